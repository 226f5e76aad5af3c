/* Rollouts on models: the golden cases, and T-38: caches change no bit. */
#include "diffusion/scoring.h"

#include "base/random.h"
#include "base/threads.h"
#include "diffusion/golden.h"

static bd_arena *arena;

#define INTS(...) ((const int32_t[]){__VA_ARGS__})

/* --- golden cases ----------------------------------------------------------------------------- */

static const char *const cases[] = {
    "balanced_2",
    "block_covers_row",
    "completion_starts_on_block",
    "cool",
    "hot",
    "mixed_batch",
    "one_token_prompt",
    "one_row_without_completion",
    "partial_last_block",
    "single",
    "threshold_one",
    "threshold_zero",
};

typedef struct {
    const golden_case *c;
    const char *name;
    int64_t transitions;
} trace_check;

static void check_transition(void *self, const bd_transition *t)
{
    trace_check *check = self;
    const golden_case *c = check->c;
    int64_t cells = c->rows * c->length, at = check->transitions++ * cells;
    json_t *step =
        json_array_get(json_object_get(c->json, "trace"), (size_t)check->transitions - 1);
    if (!step)
        fail_msg("%s: more transitions than wanted", check->name);
    assert_string_equal(golden_text(step, "kind"), t->seed ? "seed" : "denoise");
    assert_int_equal(golden_int(step, "block"), t->block);
    check_ints(t->before, case_ints(c, "trace.before") + at, cells);
    check_ints(t->after, case_ints(c, "trace.after") + at, cells);
    check_ints(t->open, case_ints(c, "trace.open") + at, cells);
    check_ints(t->picks, case_ints(c, "trace.picks") + at, cells);
    check_ints(t->token, case_ints(c, "trace.token") + at, cells);
    check_array(t->confidence, case_floats(c, "trace.confidence") + at, cells, 1e-4);
}

static bd_rollout_options case_options(const golden_case *c)
{
    bd_error err = {0};
    bd_canvas canvas;
    check_ok(bd_canvas_make(golden_text(c->json, "alignment"), golden_text(c->json, "canvas"),
                            golden_int(c->json, "block_size"), golden_int(c->json, "mask_id"),
                            &canvas, &err),
             err);
    bd_rollout_options o = bd_rollout_default(canvas);
    o.commit.threshold = (float)golden_number(c->json, "threshold");
    o.temperature = (float)golden_number(c->json, "temperature");
    o.max_steps = golden_int(c->json, "max_steps");
    return o;
}

static void check_case(bd_model *model, const char *kind, const char *name, bool cached)
{
    char path[200];
    bd_error err = {0};
    snprintf(path, sizeof path, "rollout/%s_%s", kind, name);
    golden_case c = golden_open(path, "tokens");
    int64_t cells = c.rows * c.length;
    bd_rollout_options o = case_options(&c);
    bd_rollout_rows rows = {
        {c.rows, c.length, case_ints(&c, "positions"), case_ints(&c, "segments")},
        case_ints(&c, "tokens"),
        case_ints(&c, "completion")};
    bd_rollout_result result = {bd_arena_ints(arena, cells), bd_arena_ints(arena, cells),
                                bd_arena_floats(arena, cells)};
    bd_rollout_statistics statistics = {0};
    trace_check check = {&c, path, 0};
    bd_rollout_observer observer = {.self = &check, .transition = check_transition};
    bd_rollout_caches *caches = NULL;
    if (cached) {
        caches = bd_rollout_caches_create(model, c.rows, c.length, &err);
        assert_non_null(caches);
    }
    check_ok(
        bd_rollout_model(model, caches, &rows, &o, &observer, &result, &statistics, arena, &err),
        err);
    bd_rollout_caches_free(caches);
    check_ints(result.tokens, case_ints(&c, "result"), cells);
    check_ints(result.steps, case_ints(&c, "step"), cells);
    check_array(result.logps, case_floats(&c, "logp"), cells, 1e-4);
    assert_int_equal(check.transitions, json_array_size(json_object_get(c.json, "trace")));
    assert_int_equal(check.transitions, statistics.transitions);
    assert_int_equal(statistics.commits, golden_int(c.json, "total_commits"));
    assert_int_equal(statistics.commits - statistics.forced,
                     golden_int(c.json, "confident_commits"));
    golden_close(&c);
}

static void golden(const char *kind, const char *folder)
{
    bd_error err = {0};
    bd_model *model = bd_model_open(folder, BD_F32, &err);
    if (!model)
        fail_msg("%s", err.message);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t mark = bd_arena_mark(arena);
        check_case(model, kind, cases[i], false);
        check_case(model, kind, cases[i], true);
        bd_arena_release(arena, mark);
    }
    bd_model_close(model);
}

static void golden_same_position(void **state)
{
    (void)state;
    golden("same_position", GOLDEN "models/student_same");
}

static void golden_shifted(void **state)
{
    (void)state;
    golden("shifted", GOLDEN "models/student_shift");
}

/* --- T-38 ------------------------------------------------------------------------------------- */

static bd_model *random_model(int64_t hidden, bd_dtype compute)
{
    bd_error err = {0};
    bd_model_config config = {.family = BD_FAMILY_QWEN3,
                              .vocabulary = 53,
                              .hidden = hidden,
                              .layers = 3,
                              .query_heads = 4,
                              .key_heads = 2,
                              .head_size = 16,
                              .intermediate = 48,
                              .max_positions = 512,
                              .norm_eps = 1e-6,
                              .initializer_range = .15,
                              .tied_head = true,
                              .qk_norm = true,
                              .rope = {.kind = BD_ROPE_DEFAULT, .theta = 1e4},
                              .bos = -1,
                              .pad = -1,
                              .dtype = BD_F32};
    bd_model *model = bd_model_create(&config, 5, compute, &err);
    if (!model)
        fail_msg("%s", err.message);
    return model;
}

typedef struct {
    int32_t tokens[512], steps[512];
    float logps[512];
    bd_rollout_statistics statistics;
} outcome;

static void run(bd_model *model, bool cached, const bd_rollout_rows *rows,
                const bd_rollout_options *o, outcome *out)
{
    bd_error err = {0};
    bd_rollout_caches *caches = NULL;
    if (cached)
        caches =
            bd_rollout_caches_create(model, rows->placement.rows, rows->placement.length, &err);
    bd_rollout_result result = {out->tokens, out->steps, out->logps};
    out->statistics = (bd_rollout_statistics){0};
    check_ok(bd_rollout_model(model, caches, rows, o, NULL, &result, &out->statistics, arena, &err),
             err);
    bd_rollout_caches_free(caches);
}

static void fill_row(int64_t length, int64_t start, uint64_t seed, int32_t *tokens,
                     int32_t *completion)
{
    for (int64_t i = 0; i < length; i++) {
        tokens[i] = (int32_t)(bd_random_bits(seed, BD_STREAM_SHUFFLE, (uint32_t)i) % 52);
        completion[i] = i >= start;
    }
}

/* Cached equals plain, token by token, step by step, bit by bit. */
static void same_either_way(bd_model *model, const bd_rollout_rows *rows,
                            const bd_rollout_options *o)
{
    outcome plain, cached;
    int64_t cells = rows->placement.rows * rows->placement.length;
    run(model, false, rows, o, &plain);
    run(model, true, rows, o, &cached);
    check_ints(cached.tokens, plain.tokens, cells);
    check_ints(cached.steps, plain.steps, cells);
    assert_memory_equal(cached.logps, plain.logps, (size_t)cells * sizeof(float));
    assert_int_equal(cached.statistics.transitions, plain.statistics.transitions);
    assert_true(cached.statistics.forward_tokens < plain.statistics.forward_tokens ||
                rows->placement.length <= o->canvas.block_size);
}

static bd_rollout_options random_options(bool shifted, int64_t block, float threshold)
{
    bd_canvas canvas = {shifted ? BD_SHIFTED : BD_SAME_POSITION,
                        shifted ? BD_SEED_AND_MASK : BD_ALL_MASKED, block, 52};
    bd_rollout_options o = bd_rollout_default(canvas);
    o.commit.threshold = threshold;
    return o;
}

static void caches_are_exact(void **state)
{
    (void)state;
    bd_model *model = random_model(32, BD_F32);
    const int64_t starts[5] = {1, 3, 4, 6, 8};
    const float thresholds[3] = {.3f, .6f, .9f};
    int32_t tokens[14], completion[14];
    for (int i = 0; i < 30; i++) {
        fill_row(14, starts[i % 5], (uint64_t)i, tokens, completion);
        bd_rollout_rows rows = {{1, 14, NULL, NULL}, tokens, completion};
        bd_rollout_options o = random_options(i < 15, 4, thresholds[i / 5 % 3]);
        o.temperature = .4f;
        same_either_way(model, &rows, &o);
    }
    bd_model_close(model);
}

/* Longer rows, so that keys span several tiles of the attention kernel; batches; every strategy;
 * sampling; bf16 products; one thread and two. */
static void caches_are_exact_in_the_large(void **state)
{
    (void)state;
    enum { LENGTH = 140 };
    int32_t tokens[3 * LENGTH], completion[3 * LENGTH];
    const int64_t starts[3] = {112, 97, 133};
    const uint64_t keys[3] = {1, 2, 3};
    for (int r = 0; r < 3; r++)
        fill_row(LENGTH, starts[r], (uint64_t)r, tokens + r * LENGTH, completion + r * LENGTH);
    bd_rollout_rows rows = {{3, LENGTH, NULL, NULL}, tokens, completion};
    for (int bf16 = 0; bf16 < 2; bf16++) {
        bd_model *model = random_model(64, bf16 ? BD_BF16 : BD_F32);
        for (int shifted = 0; shifted < 2; shifted++) {
            bd_rollout_options o = random_options(shifted, 16, .3f);
            same_either_way(model, &rows, &o);
            o.row_keys = keys;
            o.commit.strategy = bf16 ? BD_COMMIT_ENTROPY : BD_COMMIT_DYNAMIC;
            o.commit.steps = 5;
            same_either_way(model, &rows, &o);
        }
        bd_rollout_options o = random_options(true, 16, .3f);
        outcome one, two, alone;
        bd_threads_set(1);
        run(model, true, &rows, &o, &one);
        bd_threads_set(2);
        run(model, true, &rows, &o, &two);
        bd_threads_set(1);
        assert_memory_equal(one.tokens, two.tokens, sizeof(int32_t) * 3 * LENGTH);
        assert_memory_equal(one.logps, two.logps, sizeof(float) * 3 * LENGTH);
        for (int r = 0; r < 3; r++) { // and a row alone gives what it gave in the batch
            bd_rollout_rows single = {
                {1, LENGTH, NULL, NULL}, tokens + r * LENGTH, completion + r * LENGTH};
            run(model, r != 1, &single, &o, &alone);
            check_ints(alone.tokens, one.tokens + r * LENGTH, LENGTH);
            check_ints(alone.steps, one.steps + r * LENGTH, LENGTH);
            assert_memory_equal(alone.logps, one.logps + r * LENGTH, sizeof(float) * LENGTH);
        }
        bd_model_close(model);
    }
}

/* Slots in any order and padding on any side: the same tokens in the same steps. */
static void slots_may_lie_anywhere(void **state)
{
    (void)state;
    enum { LENGTH = 24, TOKENS = 21 };
    bd_model *model = random_model(32, BD_F32);
    for (int shifted = 0; shifted < 2; shifted++) {
        bd_rollout_options o = random_options(shifted, 5, .5f);
        o.temperature = .4f;
        int32_t tokens[TOKENS], completion[TOKENS];
        fill_row(TOKENS, 7, 3, tokens, completion);
        bd_rollout_rows rows = {{1, TOKENS, NULL, NULL}, tokens, completion};
        outcome in_order, moved[2];
        run(model, true, &rows, &o, &in_order);
        // Position p lies in slot (5 p + 2) mod 24; what is left is padding.
        int32_t ids[LENGTH] = {0}, marks[LENGTH] = {0}, positions[LENGTH] = {0},
                segments[LENGTH] = {0};
        for (int p = 0; p < TOKENS; p++) {
            int slot = (5 * p + 2) % LENGTH;
            ids[slot] = tokens[p];
            marks[slot] = completion[p];
            positions[slot] = p;
            segments[slot] = 1;
        }
        bd_rollout_rows scattered = {{1, LENGTH, positions, segments}, ids, marks};
        for (int cached = 0; cached < 2; cached++) {
            run(model, cached, &scattered, &o, &moved[cached]);
            for (int p = 0; p < TOKENS; p++) {
                int slot = (5 * p + 2) % LENGTH;
                assert_int_equal(moved[cached].tokens[slot], in_order.tokens[p]);
                assert_int_equal(moved[cached].steps[slot], in_order.steps[p]);
                check_near((double)moved[cached].logps[slot], (double)in_order.logps[p], 1e-5);
            }
        }
    }
    bd_model_close(model);
}

/* What F-30 and F-31 save: a shifted anchor costs no pass, a finished block none of its own. */
static void passes_are_counted(void **state)
{
    (void)state;
    bd_model *model = random_model(32, BD_F32);
    int32_t tokens[12], completion[12];
    outcome out;
    fill_row(12, 4, 1, tokens, completion);
    bd_rollout_rows rows = {{1, 12, NULL, NULL}, tokens, completion};
    bd_rollout_options o = random_options(false, 4, 0); // each block in one pass
    run(model, true, &rows, &o, &out);
    // Pass 1: prompt and block 1; pass 2: block 1 clean and block 2.
    assert_int_equal(out.statistics.row_forwards, 2);
    assert_int_equal(out.statistics.forward_tokens, 16);
    check_near(bd_rollout_tokens_per_forward(&out.statistics), 4, 1e-9);
    o = random_options(true, 4, 0);
    run(model, true, &rows, &o, &out);
    // Prompt (gives the anchor), block 1, block 1 clean (the anchor of block 2), block 2.
    assert_int_equal(out.statistics.row_forwards, 4);
    assert_int_equal(out.statistics.forward_tokens, 16);
    assert_int_equal(out.statistics.transitions, 4);
    run(model, false, &rows, &o, &out);
    assert_int_equal(out.statistics.row_forwards, 4);
    assert_int_equal(out.statistics.forward_tokens, 48);
    bd_model_close(model);
}

/* A model that changed between two rollouts must not be answered from old keys and values. */
static void caches_forget(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model *model = random_model(32, BD_F32);
    check_ok(bd_model_train(model, &err), err);
    bd_rollout_caches *caches = bd_rollout_caches_create(model, 2, 20, &err);
    int32_t tokens[14], completion[14], got[14];
    fill_row(14, 6, 1, tokens, completion);
    bd_rollout_rows rows = {{1, 14, NULL, NULL}, tokens, completion};
    bd_rollout_options o = random_options(true, 4, .5f);
    bd_rollout_result result = {.tokens = got};
    check_ok(bd_rollout_model(model, caches, &rows, &o, NULL, &result, NULL, arena, &err), err);
    bd_parameter *key = model->layers[1].key;
    for (int64_t i = 0; i < key->count; i++)
        key->value[i] *= i % 2 ? -3 : 2;
    bd_parameter_changed(key);
    float logps[14];
    result.logps = logps;
    check_ok(bd_rollout_model(model, caches, &rows, &o, NULL, &result, NULL, arena, &err), err);
    outcome fresh;
    run(model, true, &rows, &o, &fresh);
    check_ints(got, fresh.tokens, 14);
    assert_memory_equal(logps, fresh.logps, sizeof logps);
    bd_rollout_caches_free(caches);
    bd_model_close(model);
}

static void refusals(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model *model = random_model(32, BD_F32);
    int32_t tokens[4] = {1, 53, 3, 4}, got[4];
    bd_rollout_rows rows = {{1, 4, NULL, NULL}, tokens, INTS(0, 0, 1, 1)};
    bd_rollout_result result = {.tokens = got};
    bd_rollout_options o = random_options(true, 4, .5f);
    check_refused(bd_rollout_model(model, NULL, &rows, &o, NULL, &result, NULL, arena, &err), err,
                  "row 0, slot 1: token 53, wanted 0 to 52");
    tokens[1] = 2;
    tokens[2] = -5; // under the completion: never read
    check_ok(bd_rollout_model(model, NULL, &rows, &o, NULL, &result, NULL, arena, &err), err);
    o.canvas.mask_id = 53;
    check_refused(bd_rollout_model(model, NULL, &rows, &o, NULL, &result, NULL, arena, &err), err,
                  "mask_id is 53");
    bd_model_close(model);
}

int main(void)
{
    arena = check_arena();
    bd_threads_set(1); // small products; where threads matter the test says so
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_same_position),   cmocka_unit_test(golden_shifted),
        cmocka_unit_test(caches_are_exact),       cmocka_unit_test(caches_are_exact_in_the_large),
        cmocka_unit_test(slots_may_lie_anywhere), cmocka_unit_test(passes_are_counted),
        cmocka_unit_test(caches_forget),          cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
