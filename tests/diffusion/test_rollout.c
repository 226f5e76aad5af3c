/* The rollout algorithm on given scores: T-28 to T-36 and the rollout_fixed table. */
#include "diffusion/rollout.h"

#include "base/random.h"
#include "base/threads.h"
#include "diffusion/golden.h"

static bd_arena *arena;

#define INTS(...) ((const int32_t[]){__VA_ARGS__})

enum { CELLS = 64 };

/* A scorer from a function of (canvas, slot), which also counts its passes. */
typedef struct test_scorer {
    int64_t length, vocabulary;
    const int32_t *positions; /* [rows, length] */
    const int32_t *canvas;
    int64_t passes;
    void (*fill)(const struct test_scorer *t, const bd_open_slot *slot, float *logits);
    const float *table; /* [rows, length, vocabulary] */
    int32_t mask_id;
} test_scorer;

static bool remember(void *self, const int32_t *canvas, const bd_open_slot *slots, int64_t count,
                     bd_error *err)
{
    test_scorer *t = self;
    (void)err;
    t->canvas = canvas;
    t->passes++;
    for (int64_t n = 1; n < count; n++) // row by row, in logical order
        assert_true(slots[n].row > slots[n - 1].row || (slots[n].row == slots[n - 1].row &&
                                                        slots[n].position > slots[n - 1].position));
    return true;
}

static void fill_logits(void *self, const bd_open_slot *slots, int64_t first, int64_t count,
                        float *out)
{
    const test_scorer *t = self;
    for (int64_t n = 0; n < count; n++) {
        memset(out + n * t->vocabulary, 0, (size_t)t->vocabulary * sizeof *out);
        if (t->fill)
            t->fill(t, &slots[first + n], out + n * t->vocabulary);
    }
}

typedef struct {
    int32_t tokens[CELLS], steps[CELLS];
    float logps[CELLS];
    bd_rollout_statistics statistics;
} outcome;

static bool try_rollout(test_scorer *t, const bd_rollout_rows *rows,
                        const bd_rollout_options *options, outcome *out, bd_error *err)
{
    bd_scorer scorer = {t, t->vocabulary, remember, fill_logits};
    bd_rollout_result result = {out->tokens, out->steps, out->logps};
    out->statistics = (bd_rollout_statistics){0};
    t->length = rows->placement.length;
    t->positions = rows->placement.positions;
    return bd_rollout(&scorer, rows, options, NULL, &result, &out->statistics, arena, err);
}

static outcome rollout(test_scorer *t, const bd_rollout_rows *rows,
                       const bd_rollout_options *options)
{
    bd_error err = {0};
    outcome out;
    t->passes = 0;
    check_ok(try_rollout(t, rows, options, &out, &err), err);
    assert_int_equal(t->passes, out.statistics.transitions);
    return out;
}

static bd_rollout_options options_of(bool shifted, int64_t block, int32_t mask_id)
{
    return bd_rollout_default((bd_canvas){shifted ? BD_SHIFTED : BD_SAME_POSITION,
                                          shifted ? BD_SEED_AND_MASK : BD_ALL_MASKED, block,
                                          mask_id});
}

/* --- T-28 to T-31 ----------------------------------------------------------------------------- */

static void confident_tokens(const test_scorer *t, const bd_open_slot *slot, float *logits)
{
    (void)t;
    logits[10 + slot->position] = 12;
}

static void whole_blocks(void **state)
{
    (void)state;
    test_scorer t = {.vocabulary = 32, .fill = confident_tokens};
    bd_rollout_rows rows = {{1, 8, NULL, INTS(1, 1, 1, 1, 1, 1, 1, 0)},
                            INTS(7, 8, 1, 1, 1, 1, 1, 0),
                            INTS(0, 0, 1, 1, 1, 1, 1, 0)};
    bd_rollout_options o = options_of(false, 4, 31);
    outcome out = rollout(&t, &rows, &o);
    check_ints(out.tokens, INTS(7, 8, 12, 13, 14, 15, 16, 0), 8);
    check_ints(out.steps, INTS(-1, -1, 0, 0, 1, 1, 1, -1), 8);
    assert_int_equal(t.passes, 2);
    assert_true(out.statistics.commits == 5 && out.statistics.forced == 0);
    assert_true(bd_rollout_mean_confidence(&out.statistics) > .999);
}

static void forced_progress(void **state)
{
    (void)state;
    test_scorer t = {.vocabulary = 8};
    bd_rollout_rows rows = {{1, 4, NULL, NULL}, INTS(2, 1, 1, 1), INTS(0, 1, 1, 1)};
    bd_rollout_options o = options_of(false, 4, 7);
    outcome out = rollout(&t, &rows, &o);
    check_ints(out.tokens, INTS(2, 0, 0, 0), 4);
    check_ints(out.steps, INTS(-1, 0, 1, 2), 4);
    for (int i = 1; i < 4; i++)
        check_near((double)out.logps[i], -1.9459101, 1e-6);
    assert_true(out.logps[0] == 0);
    assert_int_equal(t.passes, 3);
    assert_true(bd_rollout_forced_fraction(&out.statistics) == 1);

    o.commit.threshold = 0;
    out = rollout(&t, &rows, &o);
    check_ints(out.steps, INTS(-1, 0, 0, 0), 4);
    assert_int_equal(t.passes, 1);

    // One, sequential, static and dynamic on the same flat scores.
    const bd_commit_strategy strategies[4] = {BD_COMMIT_ONE, BD_COMMIT_SEQUENTIAL, BD_COMMIT_STATIC,
                                              BD_COMMIT_DYNAMIC};
    for (int i = 0; i < 4; i++) {
        o = options_of(false, 4, 7);
        o.commit.strategy = strategies[i];
        o.commit.steps = 2;
        out = rollout(&t, &rows, &o);
        check_ints(out.steps, i == 0 ? INTS(-1, 0, 1, 2) : INTS(-1, 0, 0, 1), 4);
    }
}

static void anchor_first(void **state)
{
    (void)state;
    test_scorer t = {.vocabulary = 8};
    bd_rollout_rows rows = {{1, 6, NULL, NULL}, INTS(1, 2, 3, 4, 0, 0), INTS(0, 0, 0, 0, 1, 1)};
    bd_rollout_options o = options_of(true, 4, 7);
    outcome out = rollout(&t, &rows, &o);
    check_ints(out.steps, INTS(-1, -1, -1, -1, 0, 1), 6);
    assert_int_equal(t.passes, 2);
    o.commit.threshold = 0; // also then the anchor comes first, and alone
    out = rollout(&t, &rows, &o);
    check_ints(out.steps, INTS(-1, -1, -1, -1, 0, 1), 6);
}

static void like_the_mask(const test_scorer *t, const bd_open_slot *slot, float *logits)
{
    (void)slot;
    logits[t->mask_id] = 20;
    logits[5] = 12;
}

static void mask_is_never_generated(void **state)
{
    (void)state;
    test_scorer t = {.vocabulary = 8, .fill = like_the_mask, .mask_id = 7};
    bd_rollout_rows rows = {{1, 4, NULL, NULL}, INTS(6, 1, 1, 1), INTS(0, 1, 1, 1)};
    bd_rollout_options o = options_of(false, 4, 7);
    outcome out = rollout(&t, &rows, &o);
    check_ints(out.tokens, INTS(6, 5, 5, 5), 4);
    check_ints(out.steps, INTS(-1, 0, 0, 0), 4);
    // A mask token of id 0 is stepped over by the arg max and by sampling.
    t.mask_id = 0;
    o = options_of(false, 4, 0);
    const uint64_t key = 9;
    out = rollout(&t, &rows, &o);
    check_ints(out.tokens, INTS(6, 5, 5, 5), 4);
    o.row_keys = &key;
    o.temperature = 100;
    for (int i = 1; i < 4; i++)
        assert_true(rollout(&t, &rows, &o).tokens[i] != 0);
}

/* --- T-32, T-33: confidence that grows with what is filled in --------------------------------- */

static const float amounts[8] = {0, 1, 2, .5f, 4, 1, 0, 3};

static void growing(const test_scorer *t, const bd_open_slot *slot, float *logits)
{
    int filled = 0;
    for (int64_t i = 0; i < t->length; i++) {
        int64_t position = t->positions ? t->positions[i] : i;
        filled += position / 4 == slot->position / 4 && t->canvas[i] != t->mask_id;
    }
    logits[slot->position % 3] = amounts[slot->position] + 2 * (float)filled;
}

static void mixed_progress(void **state)
{
    (void)state;
    test_scorer t = {.vocabulary = 5, .fill = growing, .mask_id = 4};
    bd_rollout_options o = options_of(false, 4, 4);
    bd_rollout_rows six = {{1, 6, NULL, NULL}, INTS(3, 0, 0, 0, 0, 0), INTS(0, 1, 1, 1, 1, 1)};
    outcome out = rollout(&t, &six, &o);
    check_ints(out.tokens, INTS(3, 1, 2, 0, 1, 2), 6);
    check_ints(out.steps, INTS(-1, 1, 0, 1, 2, 3), 6);
    const double logp[6] = {0, -.020012, -.053490, -.032784, -.053490, -.139206};
    for (int i = 1; i < 6; i++)
        check_near((double)out.logps[i], logp[i], 1e-6);
    assert_int_equal(t.passes, 4);

    bd_rollout_rows eight = {
        {1, 8, NULL, NULL}, INTS(3, 0, 0, 0, 0, 0, 0, 0), INTS(0, 1, 1, 1, 1, 1, 1, 1)};
    out = rollout(&t, &eight, &o);
    check_ints(out.tokens, INTS(3, 1, 2, 0, 1, 2, 0, 1), 8);
    check_ints(out.steps, INTS(-1, 1, 0, 1, 2, 4, 4, 3), 8);
    assert_int_equal(t.passes, 5);

    eight.placement.positions = INTS(0, 1, 6, 7, 2, 3, 4, 5);
    out = rollout(&t, &eight, &o);
    check_ints(out.tokens, INTS(3, 1, 0, 1, 2, 0, 1, 2), 8);
    check_ints(out.steps, INTS(-1, 1, 4, 3, 0, 1, 2, 4), 8);
}

/* --- T-34, T-35: batches ---------------------------------------------------------------------- */

static void heterogeneous_batches(void **state)
{
    (void)state;
    test_scorer t = {.vocabulary = 8};
    bd_rollout_rows rows = {{3, 4, NULL, NULL},
                            INTS(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1),
                            INTS(0, 1, 1, 1, 0, 0, 0, 1, 0, 0, 0, 0)};
    bd_rollout_options o = options_of(false, 4, 7);
    outcome out = rollout(&t, &rows, &o);
    check_ints(out.steps, INTS(-1, 0, 1, 2, -1, -1, -1, 0, -1, -1, -1, -1), 12);
    check_ints(out.tokens + 8, INTS(1, 1, 1, 1), 4);
    assert_int_equal(t.passes, 3);

    bd_rollout_rows padded = {
        {2, 5, INTS(0, 0, 0, 1, 2, 0, 1, 2, 3, 4), INTS(0, 0, 1, 1, 1, 1, 1, 1, 1, 1)},
        INTS(0, 0, 1, 1, 1, 1, 1, 1, 1, 1),
        INTS(0, 0, 0, 1, 1, 0, 1, 1, 1, 1)};
    o = options_of(false, 2, 7);
    out = rollout(&t, &padded, &o);
    check_ints(out.steps, INTS(-1, -1, -1, 0, 1, -1, 0, 1, 2, 3), 10);
    assert_int_equal(t.passes, 4);
}

/* --- T-36: refusals --------------------------------------------------------------------------- */

static void refused(bd_rollout_options o, int64_t length, const int32_t *positions,
                    const int32_t *completion, const char *part)
{
    bd_error err = {0};
    outcome out;
    test_scorer t = {.vocabulary = 8};
    bd_rollout_rows rows = {{1, length, positions, NULL}, INTS(1, 1, 1, 1), completion};
    check_refused(try_rollout(&t, &rows, &o, &out, &err), err, part);
    assert_int_equal(t.passes, 0);
}

static void refusals(void **state)
{
    (void)state;
    const bd_rollout_options good = options_of(false, 4, 7);
    const int32_t *two = INTS(0, 0, 1), *three = INTS(0, 1, 1, 1);
    refused(good, 3, INTS(1, 2, 3), two, "unique and contiguous from zero");
    refused(good, 3, INTS(0, 1, 1), two, "unique and contiguous from zero");
    refused(good, 3, INTS(0, 1, 5), two, "unique and contiguous from zero");
    refused(good, 4, NULL, INTS(0, 1, 0, 1), "one suffix of the row");
    refused(options_of(true, 4, 7), 4, NULL, INTS(1, 1, 1, 1), "position 0 is completion");
    refused(good, 0, NULL, three, "1 rows of 0 tokens");

    bd_rollout_options o = good;
    o.max_steps = 3;
    refused(o, 4, NULL, three, "max_steps is 3, wanted at least block size 4");
    o = good, o.temperature = 0;
    refused(o, 4, NULL, three, "temperature is 0");
    o = good, o.temperature = INFINITY;
    refused(o, 4, NULL, three, "temperature is inf");
    o = good, o.commit.threshold = 1.1f;
    refused(o, 4, NULL, three, "confidence_threshold is 1.1");
    o = good, o.commit.steps = 5;
    refused(o, 4, NULL, three, "steps is 5");
    o = good, o.top_p = 0;
    refused(o, 4, NULL, three, "top_p is 0");
    refused(options_of(true, 1, 7), 4, NULL, three, "block_size is 1, wanted at least 2");
    refused(options_of(false, 4, 8), 4, NULL, three, "mask_id is 8");
    o = good, o.canvas.policy = BD_SEED_AND_MASK;
    refused(o, 4, NULL, three, "does not go with");

    // same_position may start at 0.
    test_scorer t = {.vocabulary = 8};
    bd_rollout_rows rows = {{1, 4, NULL, NULL}, INTS(1, 1, 1, 1), INTS(1, 1, 1, 1)};
    o = options_of(false, 2, 7);
    check_ints(rollout(&t, &rows, &o).steps, INTS(0, 1, 2, 3), 4);
}

static bool failing(void *self, const int32_t *canvas, const bd_open_slot *slots, int64_t count,
                    bd_error *err)
{
    (void)self, (void)canvas, (void)slots, (void)count;
    return bd_fail(err, "the scorer gave up");
}

static void a_scorer_may_fail(void **state)
{
    (void)state;
    bd_error err = {0};
    int32_t tokens[4];
    bd_scorer scorer = {NULL, 8, failing, fill_logits};
    bd_rollout_result result = {.tokens = tokens};
    bd_rollout_options o = options_of(false, 4, 7);
    bd_rollout_rows rows = {{1, 4, NULL, NULL}, INTS(1, 1, 1, 1), INTS(0, 1, 1, 1)};
    check_refused(bd_rollout(&scorer, &rows, &o, NULL, &result, NULL, arena, &err), err, "gave up");
}

/* --- sampling --------------------------------------------------------------------------------- */

static void uneven(const test_scorer *t, const bd_open_slot *slot, float *logits)
{
    for (int64_t v = 0; v < t->vocabulary; v++)
        logits[v] = (float)((v * 7 + slot->position * 3) % 5) * .4f;
}

static void sampled_rows_are_independent(void **state)
{
    (void)state;
    test_scorer t = {.vocabulary = 16, .fill = uneven};
    int32_t ones[36], completion[36];
    for (int i = 0; i < 36; i++) {
        ones[i] = 1;
        completion[i] = i % 12 >= (i < 12 ? 5 : i < 24 ? 1 : 9);
    }
    const uint64_t keys[3] = {11, 22, 33};
    bd_rollout_options o = options_of(false, 4, 15);
    o.row_keys = keys;
    o.commit.threshold = .2f;
    bd_rollout_rows all = {{3, 12, NULL, NULL}, ones, completion};
    outcome together = rollout(&t, &all, &o);
    int same_as_greedy = 0;
    for (int r = 0; r < 3; r++) {
        bd_rollout_rows one = {{1, 12, NULL, NULL}, ones, completion + 12 * r};
        o.row_keys = keys + r;
        outcome alone = rollout(&t, &one, &o);
        check_ints(together.tokens + 12 * r, alone.tokens, 12);
        check_ints(together.steps + 12 * r, alone.steps, 12);
        o.row_keys = NULL;
        outcome greedy = rollout(&t, &one, &o);
        for (int i = 0; i < 12; i++)
            same_as_greedy += completion[12 * r + i] && greedy.tokens[i] == alone.tokens[i];
    }
    assert_true(same_as_greedy < 20); // of 21: it does sample

    // The draw is the documented one: token = inverse CDF at draw step * length + position.
    bd_rollout_rows single = {{1, 2, NULL, NULL}, ones, INTS(0, 1)};
    o = options_of(false, 2, 15);
    for (uint64_t key = 0; key < 200; key++) {
        float logits[16] = {0}, u = bd_random_uniform(key, BD_STREAM_ROLLOUT, 1);
        uneven(&t, &(bd_open_slot){0, 1, 1}, logits);
        double sum = 0, below = 0;
        for (int v = 0; v < 15; v++)
            sum += exp((double)logits[v]);
        int want = 0;
        while (want < 14 && (below += exp((double)logits[want])) / sum <= (double)u)
            want++;
        o.row_keys = &key;
        outcome out = rollout(&t, &single, &o);
        assert_int_equal(out.tokens[1], want);
        check_near((double)out.logps[1], (double)logits[want] - log(sum), 1e-6);
    }
    // top_k 1 is greedy whatever the draw.
    o.top_k = 1;
    for (uint64_t key = 0; key < 20; key++) {
        o.row_keys = &key;
        outcome drawn = rollout(&t, &single, &o);
        o.row_keys = NULL;
        assert_int_equal(drawn.tokens[1], rollout(&t, &single, &o).tokens[1]);
    }
}

/* --- threads, stopping ------------------------------------------------------------------------ */

static bool stop_at_first(void *self, const bd_finished_block *block)
{
    int64_t *seen = self;
    seen[block->row] = seen[block->row] * 100 + block->position * 10 + block->count;
    return block->row != 0;
}

static void a_row_may_stop(void **state)
{
    (void)state;
    test_scorer t = {.vocabulary = 32, .fill = confident_tokens, .length = 8};
    bd_scorer scorer = {&t, 32, remember, fill_logits};
    outcome out;
    int64_t seen[2] = {0};
    bd_rollout_result result = {out.tokens, out.steps, out.logps};
    bd_rollout_observer observer = {.self = seen, .block = stop_at_first};
    bd_rollout_options o = options_of(false, 3, 31);
    int32_t ones[16], completion[16];
    for (int i = 0; i < 16; i++) {
        ones[i] = 1;
        completion[i] = i % 8 > 0;
    }
    bd_error err = {0};
    bd_rollout_rows rows = {{2, 8, NULL, NULL}, ones, completion};
    check_ok(bd_rollout(&scorer, &rows, &o, &observer, &result, NULL, arena, &err), err);
    check_ints(out.tokens, INTS(1, 11, 12, 31, 31, 31, 31, 31), 8);
    check_ints(out.steps, INTS(-1, 0, 0, -1, -1, -1, -1, -1), 8);
    check_ints(out.tokens + 8, INTS(1, 11, 12, 13, 14, 15, 16, 17), 8);
    assert_int_equal(seen[0], 12);
    assert_int_equal(seen[1], 123362);
}

/* --- the table -------------------------------------------------------------------------------- */

static void from_table(const test_scorer *t, const bd_open_slot *slot, float *logits)
{
    memcpy(logits, t->table + (slot->row * t->length + slot->slot) * t->vocabulary,
           (size_t)t->vocabulary * sizeof *logits);
}

static void golden(void **state)
{
    (void)state;
    json_t *root = golden_table("rollout_fixed"), *item;
    size_t index;
    int wrong = 0;
    json_array_foreach(json_object_get(root, "cases"), index, item)
    {
        bd_error err = {0};
        bool error = json_is_true(json_object_get(item, "error"));
        bd_rollout_rows rows = {.tokens = golden_ints(item, "tokens", arena),
                                .completion = golden_ints(item, "completion", arena)};
        golden_shape(item, "tokens", &rows.placement.rows, &rows.placement.length);
        rows.placement.positions = golden_ints(item, "positions", arena);
        rows.placement.segments = golden_ints(item, "valid", arena);
        test_scorer t = {.vocabulary = 8, .fill = from_table};
        json_t *scores = json_object_get(item, "scores");
        if (scores) {
            t.table = golden_floats(item, "scores", arena);
            t.vocabulary = (int64_t)json_array_size(json_array_get(json_array_get(scores, 0), 0));
        }
        bd_canvas canvas;
        outcome out;
        bool done = bd_canvas_make(golden_text(item, "alignment"), golden_text(item, "canvas"),
                                   golden_int(item, "block_size"), golden_int(item, "mask_id"),
                                   &canvas, &err);
        if (done) {
            bd_rollout_options o = bd_rollout_default(canvas);
            if (json_object_get(item, "threshold"))
                o.commit.threshold = (float)golden_number(item, "threshold");
            if (json_object_get(item, "temperature"))
                o.temperature = (float)golden_number(item, "temperature");
            if (json_object_get(item, "max_steps"))
                o.max_steps = golden_int(item, "max_steps");
            done = try_rollout(&t, &rows, &o, &out, &err);
        }
        if (done == error)
            fail_msg("%s: %s", golden_text(item, "name"), done ? "accepted" : err.message);
        wrong += error;
        if (error)
            continue;
        int64_t cells = rows.placement.rows * rows.placement.length;
        check_ints(out.tokens, golden_ints(item, "result", arena), cells);
        check_ints(out.steps, golden_ints(item, "step", arena), cells);
    }
    assert_int_equal(index, 23);
    assert_int_equal(wrong, 10);
    json_decref(root);
}

int main(void)
{
    arena = check_arena();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_blocks),
        cmocka_unit_test(forced_progress),
        cmocka_unit_test(anchor_first),
        cmocka_unit_test(mask_is_never_generated),
        cmocka_unit_test(mixed_progress),
        cmocka_unit_test(heterogeneous_batches),
        cmocka_unit_test(refusals),
        cmocka_unit_test(a_scorer_may_fail),
        cmocka_unit_test(sampled_rows_are_independent),
        cmocka_unit_test(a_row_may_stop),
        cmocka_unit_test(golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
