/* Completions: logical order, last answer (T-14), stop rule (T-39, T-40), safe weights (T-41,
 * T-42). */
#include "diffusion/completion.h"
#include "diffusion/golden.h"

static bd_arena *arena;

#define INTS(...)   ((const int32_t[]){__VA_ARGS__})
#define FLOATS(...) ((const float[]){__VA_ARGS__})

/* --- logical order ---------------------------------------------------------------------------- */

static bool order(int64_t length, const int32_t *positions, const int32_t *segments,
                  const int32_t *completion, bool prompt_first, bd_logical_rows *out, bd_error *err)
{
    bd_placement placement = {1, length, positions, segments};
    return bd_logical_rows_make(&placement, completion, prompt_first, arena, out, err);
}

static void logical_order(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_logical_rows rows;
    check_ok(
        order(5, INTS(0, 0, 0, 2, 1), INTS(0, 0, 1, 1, 1), INTS(0, 0, 0, 1, 0), true, &rows, &err),
        err);
    check_ints(rows.slot, INTS(2, 4, 3), 3);
    assert_true(rows.count[0] == 3 && rows.start[0] == 2);
    check_ok(order(3, NULL, NULL, INTS(0, 0, 0), true, &rows, &err), err);
    assert_true(rows.count[0] == 3 && rows.start[0] == 3);
    check_ok(order(2, NULL, INTS(0, 0), INTS(0, 0), true, &rows, &err), err);
    assert_true(rows.count[0] == 0 && rows.start[0] == 0);

    const char *contiguous = "unique and contiguous from zero";
    check_refused(order(3, INTS(1, 2, 3), NULL, INTS(0, 0, 1), false, &rows, &err), err,
                  contiguous);
    check_refused(order(3, INTS(0, 1, 1), NULL, INTS(0, 0, 1), false, &rows, &err), err,
                  contiguous);
    check_refused(order(3, INTS(0, 1, 5), NULL, INTS(0, 0, 1), false, &rows, &err), err,
                  contiguous);
    check_refused(order(3, INTS(0, -1, 1), NULL, INTS(0, 0, 1), false, &rows, &err), err,
                  contiguous);
    check_refused(order(4, NULL, NULL, INTS(0, 1, 0, 1), false, &rows, &err), err, "one suffix");
    check_refused(order(4, NULL, INTS(1, 1, 0, 0), INTS(0, 1, 1, 0), false, &rows, &err), err,
                  "row 0: completion covers padding at slot 2");
    check_refused(order(2, NULL, NULL, INTS(1, 1), true, &rows, &err), err,
                  "position 0 is completion");
    check_ok(order(2, NULL, NULL, INTS(1, 1), false, &rows, &err), err);
}

/* --- last answer ------------------------------------------------------------------------------ */

typedef struct {
    int32_t inputs[10], targets[10], inputs_segmentation[10], targets_segmentation[10],
        completion[10];
} answer_row;

static answer_row make_row(const int32_t *completion, int32_t segment)
{
    answer_row row;
    for (int i = 0; i < 10; i++) {
        row.inputs[i] = row.targets[i] = 11 + i;
        row.inputs_segmentation[i] = row.targets_segmentation[i] = segment;
        row.completion[i] = completion[i];
    }
    return row;
}

static bool last_answer(answer_row *row, bd_error *err)
{
    return bd_last_answer(1, 10, 0, row->inputs, row->targets, row->inputs_segmentation,
                          row->targets_segmentation, row->completion, err);
}

static void last_answers(void **state)
{
    (void)state;
    bd_error err = {0};
    answer_row row = make_row(INTS(0, 0, 1, 1, 0, 0, 1, 1, 1, 0), 1);
    check_ok(last_answer(&row, &err), err);
    check_ints(row.completion, INTS(0, 0, 0, 0, 0, 0, 1, 1, 1, 0), 10);
    check_ints(row.targets_segmentation, INTS(1, 1, 1, 1, 1, 1, 1, 1, 1, 0), 10);
    check_ints(row.inputs_segmentation, INTS(1, 1, 1, 1, 1, 1, 1, 1, 1, 0), 10);
    check_ints(row.targets, INTS(11, 12, 13, 14, 15, 16, 17, 18, 19, 0), 10);
    check_ints(row.inputs, INTS(11, 12, 13, 14, 15, 16, 17, 18, 19, 0), 10);

    row = make_row(INTS(0, 0, 1, 1, 0, 0, 0, 0, 0, 0), 1);
    check_ok(last_answer(&row, &err), err);
    check_ints(row.completion, INTS(0, 0, 1, 1, 0, 0, 0, 0, 0, 0), 10);
    check_ints(row.targets_segmentation, INTS(1, 1, 1, 1, 0, 0, 0, 0, 0, 0), 10);
    check_ints(row.targets, INTS(11, 12, 13, 14, 0, 0, 0, 0, 0, 0), 10);

    row = make_row(INTS(0, 0, 0, 0, 0, 0, 0, 0, 0, 0), 0);
    check_ok(last_answer(&row, &err), err);
    check_ints(row.targets, INTS(0, 0, 0, 0, 0, 0, 0, 0, 0, 0), 10);

    // The conversation of T-12: two prompts and two answers, then padding.
    row = make_row(INTS(0, 0, 1, 1, 0, 1, 1, 0, 0, 0), 1);
    for (int i = 7; i < 10; i++)
        row.inputs_segmentation[i] = row.targets_segmentation[i] = 0;
    check_ok(last_answer(&row, &err), err);
    check_ints(row.completion, INTS(0, 0, 0, 0, 0, 1, 1, 0, 0, 0), 10);

    const answer_row none = make_row(INTS(0, 0, 0, 0, 0, 0, 0, 0, 0, 0), 1);
    row = none;
    check_refused(last_answer(&row, &err), err, "row 0 has no completion");
    assert_memory_equal(&row, &none, sizeof row);
    row = make_row(INTS(1, 1, 1, 1, 1, 1, 1, 1, 1, 1), 1);
    check_refused(last_answer(&row, &err), err, "row 0 has no prompt");
    row = make_row(INTS(1, 1, 0, 0, 0, 0, 0, 0, 0, 0), 1);
    check_refused(last_answer(&row, &err), err, "no prompt");
}

static void last_answer_table(void **state)
{
    (void)state;
    json_t *root = golden_table("last_answer"), *item;
    size_t index;
    json_array_foreach(json_object_get(root, "cases"), index, item)
    {
        int64_t rows, length;
        golden_shape(item, "inputs", &rows, &length);
        const char *fields[5] = {"inputs", "targets", "inputs_segmentation", "targets_segmentation",
                                 "completion"};
        int32_t *f[5];
        for (int i = 0; i < 5; i++)
            f[i] = golden_ints(item, fields[i], arena);
        bd_error err = {0};
        bool done = bd_last_answer(rows, length, (int32_t)golden_int(item, "pad_id"), f[0], f[1],
                                   f[2], f[3], f[4], &err);
        bool refused = json_is_true(json_object_get(item, "error"));
        assert_int_equal(done, !refused);
        json_t *want = refused ? item : json_object_get(item, "result");
        for (int i = 0; i < 5; i++)
            check_ints(f[i], golden_ints(want, fields[i], arena), rows * length);
    }
    assert_int_equal(index, 19);
    json_decref(root);
}

/* --- stop rule -------------------------------------------------------------------------------- */

static void stop_and_student_inputs(void **state)
{
    (void)state;
    // T-39 and the failure drill "stop token first".
    const int32_t generated[4] = {3, 4, 7, 8};
    int32_t inputs[4], kept[4], completion[4] = {0, 0, 1, 1}, segments[4] = {1, 1, 1, 1};
    int32_t corruption[4] = {0, 0, 1, 1};
    float weights[4] = {0, 0, 1, 1};
    bd_placement placement = {1, 4, NULL, NULL};
    bd_stop_kept(&placement, generated, completion, NULL, 0, kept);
    check_ints(kept, completion, 4);
    bd_mask_tokens(4, generated, corruption, 15, inputs);
    check_ints(inputs, INTS(3, 4, 15, 15), 4);

    bd_stop_kept(&placement, generated, completion, INTS(7), 1, kept);
    bd_completion_drop(4, kept, completion, segments, corruption, weights);
    bd_mask_tokens(4, generated, corruption, 15, inputs);
    check_ints(inputs, INTS(3, 4, 15, 8), 4);
    check_ints(segments, INTS(1, 1, 1, 0), 4);
    check_ints(completion, INTS(0, 0, 1, 0), 4);
    assert_memory_equal(weights, FLOATS(0, 0, 1, 0), sizeof weights);

    // T-40: logical order.
    const int32_t positions[8] = {0, 1, 6, 7, 2, 3, 4, 5}, row[8] = {3, 9, 8, 7, 4, 5, 6, 7};
    int32_t marks[8], kept_8[8];
    for (int i = 0; i < 8; i++)
        marks[i] = positions[i] >= 2;
    bd_stop_kept(&(bd_placement){1, 8, positions, NULL}, row, marks, INTS(7), 1, kept_8);
    check_ints(kept_8, INTS(0, 0, 0, 0, 1, 1, 1, 1), 8);
}

static void stop_table(void **state)
{
    (void)state;
    json_t *root = golden_table("stop_tokens"), *item;
    size_t index;
    json_array_foreach(json_object_get(root, "cases"), index, item)
    {
        bd_placement p = {.positions = golden_ints(item, "positions", arena)};
        golden_shape(item, "tokens", &p.rows, &p.length);
        int32_t *kept = bd_arena_ints(arena, p.rows * p.length);
        bd_stop_kept(&p, golden_ints(item, "tokens", arena), golden_ints(item, "completion", arena),
                     golden_ints(item, "stop_ids", arena),
                     (int64_t)json_array_size(json_object_get(item, "stop_ids")), kept);
        check_ints(kept, golden_ints(item, "kept", arena), p.rows * p.length);
    }
    assert_true(index >= 13);
    json_decref(root);
}

static void stop_ids(void **state)
{
    (void)state;
    bd_error err = {0};
    check_ok(bd_stop_check(INTS(7, 8), 2, 10, 9, &err), err);
    check_refused(bd_stop_check(INTS(7, 10), 2, 10, 9, &err), err, "stop_token_ids[1] is 10");
    check_refused(bd_stop_check(INTS(-1), 1, 10, 9, &err), err, "is -1");
    check_refused(bd_stop_check(INTS(7, 8, 7), 3, 10, 9, &err), err, "names 7 twice");
    check_refused(bd_stop_check(INTS(9), 1, 10, 9, &err), err, "the mask token 9");
}

/* --- safe weights ----------------------------------------------------------------------------- */

static void expect_safe(const bd_canvas *canvas, int64_t length, const int32_t *positions,
                        const int32_t *valid, const int32_t *completion, const int32_t *corruption,
                        const float *weights, bool kept)
{
    float safe[8];
    bd_placement placement = {1, length, positions, valid};
    int64_t unsafe =
        bd_safe_weights(canvas, &placement, completion, corruption, weights, safe, arena);
    assert_int_equal(unsafe, !kept);
    for (int64_t i = 0; i < length; i++)
        assert_true(safe[i] == (kept ? weights[i] : 0));
}

static void safe_weights(void **state)
{
    (void)state;
    const bd_canvas same = {BD_SAME_POSITION, BD_ALL_MASKED, 2, 15};
    const bd_canvas shifted = {BD_SHIFTED, BD_SEED_AND_MASK, 2, 15};
    // T-41: a clean anchor is legal when shifted only.
    const int32_t *suffix = INTS(0, 1, 1, 1), *corrupted = INTS(0, 1, 0, 1);
    expect_safe(&shifted, 4, NULL, NULL, suffix, corrupted, FLOATS(0, 1, 1, 1), true);
    expect_safe(&same, 4, NULL, NULL, suffix, corrupted, FLOATS(0, 1, 1, 1), false);
    int32_t inputs[4];
    bd_mask_tokens(4, INTS(3, 7, 8, 9), corrupted, 15, inputs);
    check_ints(inputs, INTS(3, 15, 8, 15), 4);

    // T-42.
    const int32_t *two = INTS(0, 1), *three = INTS(0, 1, 1), *first = INTS(1, 1);
    expect_safe(&same, 4, NULL, NULL, INTS(0, 1, 0, 1), corrupted, FLOATS(0, 1, 0, 1), false);
    expect_safe(&same, 2, INTS(-1, 1), NULL, two, two, FLOATS(0, 1), false);
    expect_safe(&same, 2, INTS(0, 2), NULL, two, two, FLOATS(0, 1), false);
    expect_safe(&same, 3, NULL, INTS(1, 1, 0), three, three, FLOATS(0, 1, 1), false);
    expect_safe(&same, 2, NULL, NULL, two, two, FLOATS(0, NAN), false);
    expect_safe(&same, 2, NULL, NULL, two, two, FLOATS(NAN, 1), false);
    expect_safe(&same, 2, NULL, NULL, two, two, FLOATS(0, -1), false);
    expect_safe(&same, 2, NULL, NULL, two, two, FLOATS(0, INFINITY), false);
    expect_safe(&same, 2, NULL, NULL, first, two, FLOATS(0, 1), false);
    expect_safe(&same, 2, NULL, NULL, two, two, FLOATS(0, 0), false);
    expect_safe(&same, 2, NULL, NULL, two, first, FLOATS(0, 1), false);
    expect_safe(&same, 2, NULL, NULL, INTS(0, 0), INTS(0, 0), FLOATS(0, 0), false);
    expect_safe(&same, 4, NULL, NULL, suffix, corrupted, FLOATS(0, .5f, 0, 2), true);
    expect_safe(&same, 2, INTS(1, 0), NULL, INTS(1, 0), INTS(1, 0), FLOATS(1, 0), true);
    expect_safe(&same, 2, NULL, NULL, two, two, FLOATS(0, 1), true);
}

static void safe_table(void **state)
{
    (void)state;
    json_t *root = golden_table("safe_weights"), *item;
    size_t index;
    json_array_foreach(json_object_get(root, "cases"), index, item)
    {
        bool shifted = strcmp(golden_text(item, "alignment"), "shifted") == 0;
        bd_canvas canvas = {shifted ? BD_SHIFTED : BD_SAME_POSITION,
                            shifted ? BD_SEED_AND_MASK : BD_ALL_MASKED,
                            golden_int(item, "block_size"), 0};
        bd_placement p = {.positions = golden_ints(item, "positions", arena),
                          .segments = golden_ints(item, "valid", arena)};
        golden_shape(item, "weights", &p.rows, &p.length);
        float *got = bd_arena_floats(arena, p.rows * p.length);
        const float *want = golden_floats(item, "result", arena);
        bd_safe_weights(&canvas, &p, golden_ints(item, "completion", arena),
                        golden_ints(item, "corruption", arena),
                        golden_floats(item, "weights", arena), got, arena);
        for (int64_t i = 0; i < p.rows * p.length; i++)
            if (got[i] != want[i])
                fail_msg("%s[%lld] is %g, wanted %g", golden_text(item, "name"), (long long)i,
                         (double)got[i], (double)want[i]);
    }
    assert_true(index >= 20);
    json_decref(root);
}

int main(void)
{
    arena = check_arena();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logical_order),     cmocka_unit_test(last_answers),
        cmocka_unit_test(last_answer_table), cmocka_unit_test(stop_and_student_inputs),
        cmocka_unit_test(stop_table),        cmocka_unit_test(stop_ids),
        cmocka_unit_test(safe_weights),      cmocka_unit_test(safe_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
