/* From prompts to a batch: rollout, stop rule, corruption, weights, teacher (T-39, T-41), the
 * golden on-policy cases with every gradient, and what is refused before a model runs. */
#include "distill/prepare.h"

#include "../train/golden.h"
#include "bigram.h"

enum { MASK = 15 };

/* 3 -> 4 -> 7 -> 8 -> 9; nothing follows the mask. */
static const int follow[BIGRAM_VOCABULARY] = {-1, -1, -1, 4,  7,  -1, -1, 8,
                                              9,  -1, -1, -1, -1, -1, -1, -1};
/* 3 -> 7 -> 8 -> 9. */
static const int straight[BIGRAM_VOCABULARY] = {-1, -1, -1, 7,  -1, -1, -1, 8,
                                                9,  -1, -1, -1, -1, -1, -1, -1};

static bd_distiller distiller_for(const int *next, int64_t block_size, bool trained)
{
    bd_error err = {0};
    bd_canvas canvas;
    check_ok(bd_canvas_make("shifted", "seed_and_mask", block_size, MASK, &canvas, &err), err);
    bd_distiller d = {.student = bigram_model(next, 20, trained),
                      .teacher = bigram_model(next, 5, false),
                      .rollout = bd_rollout_default(canvas),
                      .objective = bd_distill_objective_default(),
                      .version = 1};
    check_ok(bd_distiller_check(&d, &err), err);
    return d;
}

static void close_distiller(bd_distiller *d)
{
    bd_model_close(d->student);
    bd_model_close(d->teacher);
}

static void check_ints(const int32_t *got, const int32_t *want, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (got[i] != want[i])
            fail_msg("[%lld] is %d, wanted %d", (long long)i, got[i], want[i]);
}

static const int32_t one_row[4] = {1, 1, 1, 1};

// T-39: without and with a stop token.
static void test_stop(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    bd_error err = {0};
    bd_distiller d = distiller_for(follow, 4, false);
    const int32_t tokens[4] = {3, 4, 5, 6}, late[4] = {0, 0, 1, 1}, stop[1] = {7};
    const float weights[4] = {0, 0, 1, 1}, first[4] = {0, 0, 1, 0};
    bd_distill_rows rows = {{1, 4, NULL, one_row}, tokens, late, late, weights};
    bd_prepared batch;
    check_ok(bd_prepare_rollout(&d, &rows, NULL, arena, &batch, &err), err);
    check_ints(batch.generated, (int32_t[]){3, 4, 7, 8}, 4);
    check_ints(batch.inputs, (int32_t[]){3, 4, MASK, MASK}, 4);
    check_array(batch.weights, weights, 4, 0);
    assert_true(batch.stopped_rows == 0 && batch.unsafe_rows == 0);
    d.stop = stop;
    d.stop_count = 1;
    check_ok(bd_prepare_rollout(&d, &rows, NULL, arena, &batch, &err), err);
    check_ints(batch.inputs, (int32_t[]){3, 4, MASK, 8}, 4);
    check_ints(batch.segments, (int32_t[]){1, 1, 1, 0}, 4);
    check_ints(batch.completion, (int32_t[]){0, 0, 1, 0}, 4);
    check_array(batch.weights, first, 4, 0);
    check_ints(batch.teacher_source, (int32_t[]){0, 0, 1, -1}, 4);
    assert_true(batch.stopped_rows == 1);
    close_distiller(&d);
    bd_arena_destroy(arena);
}

// T-41: an anchor stays clean in the input and keeps its weight; under same_position it may not.
static void test_anchor(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    bd_error err = {0};
    bd_distiller d = distiller_for(straight, 2, false);
    const int32_t tokens[4] = {3, 0, 0, 0}, completion[4] = {0, 1, 1, 1},
                  corruption[4] = {0, 1, 0, 1};
    const float weights[4] = {0, 1, 1, 1};
    bd_distill_rows rows = {{1, 4, NULL, one_row}, tokens, completion, corruption, weights};
    bd_prepared batch;
    check_ok(bd_prepare_rollout(&d, &rows, NULL, arena, &batch, &err), err);
    check_ints(batch.generated, (int32_t[]){3, 7, 8, 9}, 4);
    check_ints(batch.inputs, (int32_t[]){3, MASK, 8, MASK}, 4);
    check_array(batch.weights, weights, 4, 0);
    check_ok(bd_canvas_make("same_position", "all_masked", 2, MASK, &d.rollout.canvas, &err), err);
    check_refused(bd_prepare_rollout(&d, &rows, NULL, arena, &batch, &err), err,
                  "must be corrupted");
    close_distiller(&d);
    bd_arena_destroy(arena);
}

// A data set's own tokens: nothing is generated, the same masks and teacher rows.
static void test_dataset(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    bd_error err = {0};
    bd_distiller d = distiller_for(straight, 2, true);
    const int32_t tokens[4] = {3, 4, 5, 6}, completion[4] = {0, 1, 1, 1},
                  corruption[4] = {0, 1, 0, 1};
    const float weights[4] = {0, 1, 1, 0.5f};
    bd_distill_rows rows = {{1, 4, NULL, one_row}, tokens, completion, corruption, weights};
    bd_prepared batch;
    check_ok(bd_prepare_dataset(&d, &rows, arena, &batch, &err), err);
    check_ints(batch.generated, tokens, 4);
    check_ints(batch.inputs, (int32_t[]){3, MASK, 5, MASK}, 4);
    check_array(batch.weights, weights, 4, 0);
    bd_tape tape = bd_tape_begin(arena, BD_F32, true);
    bd_distill_result result = {0};
    d.objective.hard = 1;
    check_ok(bd_distill_step(&d, &batch, &tape, &result, &err), err);
    assert_true(result.weight_sum == 2.5 && result.hard_sum > 0 && result.soft_sum > 0);
    close_distiller(&d);
    bd_arena_destroy(arena);
}

// A prepared batch belongs to one state of the weights.
static void test_freshness(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    bd_error err = {0};
    bd_distiller d = distiller_for(straight, 2, true);
    const int32_t tokens[4] = {3, 0, 0, 0}, completion[4] = {0, 1, 1, 1},
                  corruption[4] = {0, 1, 0, 1};
    const float weights[4] = {0, 1, 1, 1};
    bd_distill_rows rows = {{1, 4, NULL, one_row}, tokens, completion, corruption, weights};
    bd_prepared batch;
    check_ok(bd_prepare_rollout(&d, &rows, NULL, arena, &batch, &err), err);
    bd_tape tape = bd_tape_begin(arena, BD_F32, true);
    bd_distill_result result = {0};
    check_ok(bd_distill_step(&d, &batch, &tape, &result, &err), err);
    d.version++;
    check_refused(bd_distill_step(&d, &batch, &tape, &result, &err), err, "version 1");
    assert_int_equal(err.kind, BD_ERROR_STATE);
    close_distiller(&d);
    bd_arena_destroy(arena);
}

// G-05, F-05 to F-07: each is told before any model runs.
static void test_refusals(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    bd_error err = {0};
    bd_distiller d = distiller_for(straight, 2, false);
    const int32_t tokens[4] = {3, 0, 0, 0};
    const struct {
        int32_t segments[4], completion[4], corruption[4];
        float weights[4];
        const char *part;
    } bad[] = {
        {{1, 1, 1, 0}, {0, 1, 1, 1}, {0, 1, 0, 0}, {0, 1, 0, 0}, "covers padding"},
        {{1, 1, 1, 1}, {0, 0, 1, 1}, {0, 1, 0, 1}, {0, 1, 0, 1}, "corruption_mask outside"},
        {{1, 1, 1, 1}, {0, 0, 1, 1}, {0, 0, 0, 1}, {0, 1, 0, 1}, "targets_loss_mask outside"},
        {{1, 1, 1, 1}, {0, 1, 1, 1}, {0, 1, 0, 1}, {0, 1, 0, 0}, "without weight"},
        {{1, 1, 1, 1}, {0, 1, 1, 1}, {0, 1, 0, 0}, {0, 1, 0, 1}, "must be corrupted"},
        {{1, 1, 1, 1}, {0, 1, 1, 1}, {0, 1, 0, 1}, {0, 1, 0, NAN}, "finite"},
        {{1, 1, 1, 1}, {0, 1, 1, 1}, {0, 1, 0, 1}, {0, 1, 0, -1}, "finite and not negative"},
        {{1, 1, 1, 1}, {1, 1, 1, 1}, {0, 1, 0, 1}, {1, 1, 0, 1}, "position 0"},
        {{1, 1, 1, 1}, {0, 1, 0, 1}, {0, 1, 0, 1}, {0, 1, 0, 1}, ""},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        bd_distill_rows rows = {{1, 4, NULL, bad[i].segments},
                                tokens,
                                bad[i].completion,
                                bad[i].corruption,
                                bad[i].weights};
        bd_prepared batch;
        check_refused(bd_prepare_rollout(&d, &rows, NULL, arena, &batch, &err), err, bad[i].part);
    }
    const int32_t twice[2] = {7, 7}, beyond[1] = {16}, mask[1] = {MASK};
    d.stop = twice;
    d.stop_count = 2;
    check_refused(bd_distiller_check(&d, &err), err, "7");
    d.stop = beyond;
    d.stop_count = 1;
    check_refused(bd_distiller_check(&d, &err), err, "16");
    d.stop = mask;
    check_refused(bd_distiller_check(&d, &err), err, "mask");
    d.stop_count = 0;
    d.teacher->config.diffusion.block_size = 4;
    check_refused(bd_distiller_check(&d, &err), err, "a causal one wanted");
    close_distiller(&d);
    bd_arena_destroy(arena);
}

// --- golden cases --------------------------------------------------------------------------------

static bd_model *golden_model(json_t *json, const char *which)
{
    char path[200];
    bd_error err = {0};
    bd_model *model;
    snprintf(path, sizeof path, BD_GOLDEN "/block-diffusion/%s", golden_text(json, which));
    check_ok(model = bd_model_open(path, BD_F32, &err), err);
    return model;
}

static const int32_t *golden_ints(const golden *g, const char *name, bd_arena *arena)
{
    bd_error err = {0};
    const bd_tensor *t = golden_tensor(g, name);
    int32_t *out = bd_arena_ints(arena, t->count);
    check_ok(bd_safetensors_read_i32(g->tensors, name, t->rank, t->shape, out, &err), err);
    return out;
}

static void golden_options(const golden *g, bd_distiller *d, bd_arena *arena)
{
    bd_error err = {0};
    bd_canvas canvas;
    json_t *rollout = json_object_get(g->json, "rollout"),
           *loss = json_object_get(g->json, "loss_options");
    json_t *stop = json_object_get(g->json, "stop_ids");
    check_ok(bd_canvas_make(golden_text(rollout, "alignment"), golden_text(rollout, "canvas"),
                            (int64_t)golden_number(rollout, "block_size"),
                            (int64_t)golden_number(rollout, "mask_id"), &canvas, &err),
             err);
    d->rollout = bd_rollout_default(canvas);
    d->rollout.commit.threshold = (float)golden_number(rollout, "threshold");
    d->rollout.temperature = (float)golden_number(rollout, "temperature");
    int32_t *ids = bd_arena_ints(arena, (int64_t)json_array_size(stop) + 1);
    for (size_t i = 0; i < json_array_size(stop); i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(stop, i));
    d->stop = ids;
    d->stop_count = (int64_t)json_array_size(stop);
    d->objective = bd_distill_objective_default();
    d->objective.temperature = golden_number(loss, "temperature");
    d->objective.soft = golden_number(loss, "soft");
    d->objective.hard = golden_number(loss, "hard");
    if (!strcmp(golden_text(loss, "direction"), "reverse"))
        d->objective.divergence = BD_DIVERGENCE_REVERSE_KL;
}

static void check_gradients(const golden *g, const bd_model *student, double weight)
{
    for (int64_t i = 0; i < student->parameters.count; i++) {
        const bd_parameter *p = student->parameters.items[i];
        char name[200];
        snprintf(name, sizeof name, "grad.%s", p->name);
        for (int64_t k = 0; k < p->count; k++)
            p->gradient[k] = (float)((double)p->gradient[k] / weight);
        check_array(p->gradient, (const float *)golden_tensor(g, name)->data, p->count, 1e-4);
    }
}

static void check_case(const char *name, bool cached)
{
    char path[100];
    snprintf(path, sizeof path, "opd/%s", name);
    golden g = golden_open(path);
    bd_arena *arena = check_arena();
    bd_error err = {0};
    bd_distiller d = {.student = golden_model(g.json, "student"),
                      .teacher = golden_model(g.json, "teacher")};
    check_ok(bd_model_train(d.student, &err), err);
    golden_options(&g, &d, arena);
    check_ok(bd_distiller_check(&d, &err), err);
    const bd_tensor *tokens = golden_tensor(&g, "tokens");
    int64_t B = tokens->shape[0], L = tokens->shape[1];
    bd_distill_rows rows = {
        {B, L, golden_ints(&g, "positions", arena), golden_ints(&g, "segments", arena)},
        golden_ints(&g, "tokens", arena),
        golden_ints(&g, "completion", arena),
        golden_ints(&g, "corruption", arena),
        golden_tensor(&g, "loss_mask")->data};
    if (cached)
        check_ok(d.caches = bd_rollout_caches_create(d.student, B, L, &err), err);
    bd_prepared batch;
    check_ok(bd_prepare_rollout(&d, &rows, NULL, arena, &batch, &err), err);
    check_ints(batch.generated, golden_ints(&g, "result", arena), B * L);
    check_ints(batch.steps, golden_ints(&g, "step", arena), B * L);
    check_ints(batch.completion, golden_ints(&g, "kept_completion", arena), B * L);
    check_ints(batch.segments, golden_ints(&g, "kept_segments", arena), B * L);
    check_ints(batch.corruption, golden_ints(&g, "kept_corruption", arena), B * L);
    check_ints(batch.inputs, golden_ints(&g, "student_inputs", arena), B * L);
    check_array(batch.weights, (const float *)golden_tensor(&g, "weights")->data, B * L, 0);
    bd_tape tape = bd_tape_begin(arena, BD_F32, true);
    bd_distill_result result = {.soft = bd_arena_zeros(arena, B * L)};
    check_ok(bd_distill_step(&d, &batch, &tape, &result, &err), err);
    check_near(result.total_sum, golden_number(g.json, "total_sum"), 1e-5);
    check_near(result.weight_sum, golden_number(g.json, "weight_sum"), 0);
    check_array(result.soft, (const float *)golden_tensor(&g, "soft_token")->data, B * L, 1e-4);
    check_gradients(&g, d.student, result.weight_sum);
    bd_rollout_caches_free(d.caches);
    close_distiller(&d);
    bd_arena_destroy(arena);
    golden_close(&g);
}

static void test_golden(void **state)
{
    (void)state;
    const char *const names[] = {"same_position_forward", "same_position_reverse_no_stop",
                                 "shifted_forward", "shifted_balanced", "shifted_mix_reverse"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_case(names[i], false);
    check_case("same_position_forward", true);
    check_case("shifted_forward", true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_stop),     cmocka_unit_test(test_anchor),
        cmocka_unit_test(test_dataset),  cmocka_unit_test(test_freshness),
        cmocka_unit_test(test_refusals), cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
