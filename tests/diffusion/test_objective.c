/* The training loss: golden model cases with every gradient, what carries no gradient, the doubled
 * layout against block by block, and the two ways of saying "predict the next token". */
#include "diffusion/objective.h"

#include "base/random.h"
#include "diffusion/corruption.h"
#include "diffusion/golden.h"
#include "parallel/layout.h"

static bd_arena *arena;

#define INTS(...) ((const int32_t[]){__VA_ARGS__})

/* --- golden cases ----------------------------------------------------------------------------- */

static const char *const cases[] = {
    "block_same_position",    "block_shifted",
    "all_weights_zero",       "block_shifted_fractional_weights",
    "block_shifted_in_order", "block_shifted_balanced_2",
    "block_packed",           "block_packed_shifted",
    "bf16_weights_block",     "bf16_weights_block_covers_row",
    "bf16_weights_causal",    "causal_plain",
    "causal_packed_padded",
};

static void check_gradients(const golden_case *c, const bd_model *model, double weight)
{
    for (int64_t i = 0; i < model->parameters.count; i++) {
        const bd_parameter *p = model->parameters.items[i];
        char name[300];
        snprintf(name, sizeof name, "grad.%s", p->name);
        const bd_tensor *want = bd_safetensors_find(c->tensors, name);
        assert_non_null(want);
        assert_int_equal(want->count, p->count);
        float *got = bd_arena_floats(arena, p->count);
        for (int64_t k = 0; k < p->count; k++)
            got[k] = (float)((double)p->gradient[k] / weight);
        double found = check_relative(got, want->data, p->count);
        if (!(found <= 1e-4))
            fail_msg("%s differs by %g relative", name, found);
    }
}

static void check_case(const char *name)
{
    char path[300];
    bd_error err = {0};
    snprintf(path, sizeof path, "model/%s", name);
    golden_case c = golden_open(path, "inputs");
    snprintf(path, sizeof path, GOLDEN "%s", golden_text(c.json, "model"));
    bd_model *model = bd_model_open(path, BD_F32, &err);
    if (!model)
        fail_msg("%s", err.message);
    check_ok(bd_model_train(model, &err), err);
    bd_objective objective = {.block_size = golden_int(c.json, "block_size")}; // null reads as 0
    check_ok(bd_alignment_from_name(golden_text(c.json, "alignment"), &objective.alignment, &err),
             err);
    bd_objective_rows rows = {
        {c.rows, c.length, case_ints(&c, "positions"), case_ints(&c, "segments")},
        case_ints(&c, "inputs"),
        case_ints(&c, "targets"),
        case_floats(&c, "weights")};
    int64_t cells = c.rows * c.length;
    bd_objective_result got;
    float *token_loss = bd_arena_floats(arena, cells);
    bd_tape tape = bd_tape_begin(arena, BD_F32, true);
    check_ok(bd_objective_loss(&objective, &rows, model, &tape, token_loss, &got, &err), err);
    bd_tape_backward(&tape);
    double sum = golden_number(c.json, "loss_sum"), weight = golden_number(c.json, "weight_sum");
    check_near(got.sum / (sum > 0 ? sum : 1), sum > 0 ? 1 : 0, 1e-5);
    check_near(got.weight, weight, 1e-12);
    check_array(token_loss, case_floats(&c, "token_loss"), cells, 1e-4);
    if (weight > 0 && json_is_string(json_object_get(c.json, "grad_of")))
        check_gradients(&c, model, weight);
    for (int64_t i = 0; weight == 0 && i < model->parameters.count; i++)
        for (int64_t k = 0; k < model->parameters.items[i]->count; k++)
            assert_true(model->parameters.items[i]->gradient[k] == 0);
    int64_t weighted = 0;
    for (int64_t i = 0; i < cells; i++)
        weighted += rows.weights[i] > 0;
    assert_int_equal(got.head_rows, weighted);
    int32_t *source = bd_arena_ints(arena, cells);
    bd_alignment_source(objective.alignment, &rows.placement, source, arena);
    check_ints(source, case_ints(&c, "source"), cells);
    bd_model_close(model);
    golden_close(&c);
}

static void golden(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t mark = bd_arena_mark(arena);
        check_case(cases[i]);
        bd_arena_release(arena, mark);
    }
}

/* --- a small model for the rest --------------------------------------------------------------- */

enum { LENGTH = 13, VOCABULARY = 97, MASK = 96 };

static const bd_canvas same = {BD_SAME_POSITION, BD_ALL_MASKED, 4, MASK};
static const bd_canvas shifted = {BD_SHIFTED, BD_SEED_AND_MASK, 4, MASK};
static const bd_padding no_padding = {BD_PAD_NONE, 0, 95, 4};

static bd_model *model;

static bd_objective_result loss_of(const bd_objective *objective, const bd_objective_rows *rows)
{
    bd_error err = {0};
    bd_objective_result result = {0};
    bd_tape tape = bd_tape_begin(arena, BD_F32, false);
    check_ok(bd_objective_loss(objective, rows, model, &tape, NULL, &result, &err), err);
    return result;
}

/* One row of 11 tokens, prompt of 3, then padding; corrupted with keyed draws. */
static bd_diffusion_batch make_batch(const bd_canvas *canvas, float *noise)
{
    bd_error err = {0};
    bd_diffusion_batch b = bd_diffusion_batch_allocate(arena, 1, LENGTH);
    int32_t ids[11];
    uint8_t completion[11];
    for (int i = 0; i < 11; i++) {
        ids[i] = 20 + 3 * i;
        completion[i] = i >= 3;
    }
    const uint64_t key = bd_random_key(1, 0, 0, 0);
    bd_diffusion_batch_fill(&b, 0, ids, completion, 11, &no_padding);
    bd_corruption_options options = {.min_noise = .4, .completion_only = true};
    check_ok(bd_corrupt_batch(&b, canvas, &options, &(bd_corruption_draws){.keys = &key}, noise,
                              arena, &err),
             err);
    check_ok(bd_diffusion_batch_check(&b, canvas, true, &err), err);
    return b;
}

static void weights(void **state)
{
    (void)state;
    float noise[LENGTH], w[LENGTH];
    bd_diffusion_batch b = make_batch(&shifted, noise);
    bd_objective_weights(&b, &shifted, NULL, w);
    for (int i = 0; i < LENGTH; i++)
        assert_true(w[i] == (b.targets_loss_mask[i] ? 1.f : 0.f));
    bd_objective_weights(&b, &shifted, noise, w);
    for (int i = 0; i < LENGTH; i++)
        assert_true(w[i] == (b.corruption_mask[i]     ? 1 / noise[i]
                             : b.targets_loss_mask[i] ? 1.f
                                                      : 0.f));
    // T-20: a loss mask of all ones; two rows of 4, the last slot of the second is padding.
    bd_diffusion_batch t = bd_diffusion_batch_allocate(arena, 2, 4);
    float ones[8];
    bd_diffusion_batch_fill(&t, 0, INTS(1, 2, 3, 4), NULL, 4, &no_padding);
    bd_diffusion_batch_fill(&t, 1, INTS(1, 2, 3), NULL, 3, &no_padding);
    for (int i = 0; i < 8; i++)
        t.targets_loss_mask[i] = 1;
    double sum_shifted = 0, sum_same = 0;
    bd_objective_weights(&t, &shifted, NULL, ones);
    for (int i = 0; i < 8; i++)
        sum_shifted += (double)ones[i];
    bd_objective_weights(&t, &same, NULL, ones);
    for (int i = 0; i < 8; i++)
        sum_same += (double)ones[i];
    assert_true(sum_shifted == 5 && sum_same == 7);
}

/* Sentinels where nothing is weighted change nothing; padding carries no gradient whatever it
 * holds. */
static void inactive_slots_are_silent(void **state)
{
    (void)state;
    bd_error err = {0};
    float w[LENGTH];
    bd_diffusion_batch b = make_batch(&shifted, NULL);
    bd_objective_weights(&b, &shifted, NULL, w);
    bd_objective_rows rows = bd_objective_rows_of(&b, w);
    const bd_objective objective = {.alignment = BD_SHIFTED, .block_size = 4, .z_loss = .01f};
    float *gradient[2];
    bd_objective_result got[2];
    check_ok(bd_model_train(model, &err), err);
    for (int poisoned = 0; poisoned < 2; poisoned++) {
        for (int i = 0; poisoned && i < LENGTH; i++) {
            if (!(w[i] > 0))
                b.targets[i] = i % 2 ? -1 : 1 << 30;
            if (!b.targets_segmentation[i])
                b.inputs[i] = 77;
        }
        bd_parameters_zero_gradients(&model->parameters);
        bd_tape tape = bd_tape_begin(arena, BD_F32, true);
        check_ok(bd_objective_loss(&objective, &rows, model, &tape, NULL, &got[poisoned], &err),
                 err);
        bd_tape_backward(&tape);
        gradient[poisoned] = bd_arena_floats(arena, model->embedding->count);
        memcpy(gradient[poisoned], model->embedding->gradient,
               (size_t)model->embedding->count * sizeof(float));
    }
    assert_true(got[0].sum == got[1].sum && got[0].weight == got[1].weight);
    assert_true(got[0].z_sum > 0 && got[0].z_sum == got[1].z_sum);
    assert_memory_equal(gradient[0], gradient[1], (size_t)model->embedding->count * sizeof(float));
    for (int64_t i = 0; i < model->parameters.count; i++)
        bd_parameter_freeze(model->parameters.items[i]);
}

/* Shifting the outputs by one (this library) and shifting the labels by one (causal habit) agree.
 */
static void shifted_outputs_or_shifted_labels(void **state)
{
    (void)state;
    float w[LENGTH], label_weights[LENGTH];
    int32_t labels[LENGTH];
    bd_diffusion_batch b = make_batch(&shifted, NULL);
    bd_objective_weights(&b, &shifted, NULL, w);
    for (int i = 0; i < LENGTH; i++) {
        labels[i] = i + 1 < LENGTH ? b.targets[i + 1] : 0;
        label_weights[i] = i + 1 < LENGTH ? w[i + 1] : 0;
    }
    bd_objective_rows by_output = bd_objective_rows_of(&b, w), by_label = by_output;
    by_label.targets = labels;
    by_label.weights = label_weights;
    bd_objective next = {.alignment = BD_SHIFTED, .block_size = 4};
    bd_objective here = {.alignment = BD_SAME_POSITION, .block_size = 4};
    bd_objective_result a = loss_of(&next, &by_output), c = loss_of(&here, &by_label);
    assert_true(a.sum == c.sum && a.weight == c.weight && a.weight > 4);
    assert_true(loss_of(&here, &by_output).sum != a.sum);
}

/* in the doubled layout block b is scored as if the blocks before it were clean. */
static void doubled_is_block_by_block(void **state)
{
    (void)state;
    const bd_canvas *canvases[2] = {&same, &shifted};
    for (int kind = 0; kind < 2; kind++) {
        const bd_canvas *canvas = canvases[kind];
        float w[LENGTH], block_weights[LENGTH];
        int32_t inputs[LENGTH];
        bd_diffusion_batch b = make_batch(canvas, NULL);
        bd_objective_weights(&b, canvas, NULL, w);
        bd_objective_rows rows = bd_objective_rows_of(&b, w), block = rows;
        bd_objective single = {.alignment = canvas->alignment, .block_size = 4}, doubled = single;
        doubled.layout = BD_TRAIN_DOUBLED;
        bd_objective_result got = loss_of(&doubled, &rows);
        double sum = 0;
        block.inputs = inputs;
        block.weights = block_weights;
        for (int first = 0; first < LENGTH; first += 4) {
            for (int i = 0; i < LENGTH; i++) {
                inputs[i] = i < first ? b.targets[i] : b.inputs[i];
                block_weights[i] = i / 4 == first / 4 ? w[i] : 0;
            }
            // What predicts a shifted anchor lies in the block before it, which is clean here as
            // well.
            sum += loss_of(&single, &block).sum;
        }
        check_near(got.sum, sum, 1e-5);
        assert_true(got.weight > 4 && fabs(loss_of(&single, &rows).sum - sum) > 1e-3);

        // Reordered over two shards: the same loss.
        bd_error err = {0};
        bd_diffusion_batch even = bd_diffusion_batch_allocate(arena, 1, 12);
        for (int i = 0; i < 12; i++) {
            even.inputs[i] = b.inputs[i], even.targets[i] = b.targets[i];
            even.targets_position[i] = b.targets_position[i];
            even.targets_segmentation[i] = b.targets_segmentation[i];
        }
        int32_t order[12];
        float moved[12];
        check_ok(bd_layout_order(BD_LAYOUT_DUAL_CHUNK_SWAP, 12, 2, order, &err), err);
        bd_diffusion_batch_reorder(&even, order, arena);
        bd_layout_apply(order, 1, 12, sizeof(float), w, moved);
        bd_objective_rows reordered = bd_objective_rows_of(&even, moved);
        check_near(loss_of(&doubled, &reordered).sum, sum, 1e-5);
    }
}

static void refusals(void **state)
{
    (void)state;
    bd_error err = {0};
    check_ok(bd_objective_check_attention(true, true, &err), err);
    check_ok(bd_objective_check_attention(false, false, &err), err);
    check_refused(bd_objective_check_attention(false, true, &err), err, "targets would leak");
    check_refused(bd_objective_check_attention(true, false, &err), err, "needs attention_type");
    bd_train_layout layout;
    check_ok(bd_train_layout_from_name("doubled", &layout, &err), err);
    assert_int_equal(layout, BD_TRAIN_DOUBLED);
    check_refused(bd_train_layout_from_name("triple", &layout, &err), err,
                  "wanted single or doubled");

    int32_t inputs[4] = {1, 2, 3, 4}, targets[4] = {1, 2, 3, 4}, segments[4] = {1, 1, 1, 0};
    float w[4] = {0, 1, 0, 0};
    bd_objective_rows rows = {{1, 4, NULL, segments}, inputs, targets, w};
    bd_objective objective = {.alignment = BD_SHIFTED, .block_size = 4};
    bd_objective_result result = {0};
    bd_tape tape = bd_tape_begin(arena, BD_F32, false);
#define LOSS bd_objective_loss(&objective, &rows, model, &tape, NULL, &result, &err)
    check_ok(LOSS, err);
    w[1] = -1;
    check_refused(LOSS, err, "slot 1: weight -1");
    w[1] = NAN;
    check_refused(LOSS, err, "slot 1: weight nan");
    w[1] = 1, w[3] = 1;
    check_refused(LOSS, err, "slot 3: weight 1 at padding");
    w[3] = 0, targets[1] = VOCABULARY;
    check_refused(LOSS, err, "slot 1: target token 97, wanted 0 to 96");
    targets[1] = 2, inputs[2] = -1;
    check_refused(LOSS, err, "slot 2: input token -1");
    inputs[2] = 3, targets[2] = -1; // no weight: nobody asks
    check_ok(LOSS, err);
    objective.layout = BD_TRAIN_DOUBLED; // here it is fed to the model
    check_refused(LOSS, err, "slot 2: target token -1");
#undef LOSS
}

int main(void)
{
    bd_error err = {0};
    arena = check_arena();
    model = bd_model_open(GOLDEN "models/student_same", BD_F32, &err);
    if (!model)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden),
        cmocka_unit_test(weights),
        cmocka_unit_test(inactive_slots_are_silent),
        cmocka_unit_test(shifted_outputs_or_shifted_labels),
        cmocka_unit_test(doubled_is_block_by_block),
        cmocka_unit_test(refusals),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bd_model_close(model);
    bd_arena_destroy(arena);
    return failed;
}
