/* Anchor sampling: draft-family T08 to T12, the golden draws, and the counter generator. */
#include "draft/anchors.h"
#include "golden.h"

enum { S = 8, BS = 4, MOST = 512 };
static const float numbers[5] = {.9f, .5f, .1f, .2f, .3f};
static const float first_row[S] = {0, 1, 1, 0, 1, 1, 1, 1}, second_row[S] = {0, 0, 0, 1};

static void expect(const bd_anchor_sampling *s, const float *uniforms, int64_t columns,
                   const int32_t *anchor, const uint8_t *keep)
{
    bd_arena *arena = check_arena();
    bd_anchors got = bd_anchors_take(s, uniforms, arena);
    assert_int_equal(got.blocks, columns);
    check_ints("anchor", got.anchor, anchor, s->rows * columns);
    assert_memory_equal(got.keep, keep, (size_t)(s->rows * columns));
    bd_arena_destroy(arena);
}

static bd_anchor_sampling one_row(const float *mask)
{
    return (bd_anchor_sampling){
        .rows = 1, .length = S, .block_size = BS, .most = MOST, .loss_mask = mask};
}

static void fullest_row_leaves_one_out(void **state)
{
    (void)state;
    bd_anchor_sampling s = one_row(first_row);
    assert_int_equal(bd_anchors_largest(&s), 3);
    expect(&s, numbers, 2, (int32_t[]){2, 4}, (uint8_t[]){1, 1}); // T08
}

static void shorter_rows_are_padded(void **state)
{
    (void)state;
    float mask[2 * S], u[10];
    memcpy(mask, first_row, sizeof first_row);
    memcpy(mask + S, second_row, sizeof second_row);
    memcpy(u, numbers, sizeof numbers);
    memcpy(u + 5, numbers, sizeof numbers);
    bd_anchor_sampling s = one_row(mask);
    s.rows = 2;
    expect(&s, u, 2, (int32_t[]){2, 4, 3, 0}, (uint8_t[]){1, 1, 1, 0}); // T09
}

static void one_candidate_gives_no_block(void **state)
{
    (void)state;
    bd_anchor_sampling s = one_row(second_row);
    expect(&s, numbers, 1, (int32_t[]){0}, (uint8_t[]){0}); // T10
}

static void smallest_numbers_win(void **state)
{
    (void)state;
    float all[S] = {1, 1, 1, 1, 1, 1, 1, 1};
    bd_anchor_sampling s = one_row(all);
    s.most = 2;
    expect(&s, numbers, 2, (int32_t[]){2, 3}, (uint8_t[]){1, 1}); // T11
}

static void fixed_width_keeps_the_same(void **state)
{
    (void)state;
    bd_anchor_sampling s = one_row(first_row);
    s.fixed_width = true;
    expect(&s, numbers, 5, (int32_t[]){2, 4, 0, 0, 0}, (uint8_t[]){1, 1, 0, 0, 0}); // T12
    s.loss_mask = second_row;
    expect(&s, numbers, 5, (int32_t[]){0, 0, 0, 0, 0}, (uint8_t[]){0, 0, 0, 0, 0});
}

static void equal_numbers_take_the_lower_position(void **state)
{
    (void)state;
    const float same[5] = {.5f, .5f, .5f, .5f, .5f};
    float all[S] = {1, 1, 1, 1, 1, 1, 1, 1};
    bd_anchor_sampling s = one_row(all);
    s.most = 2;
    expect(&s, same, 2, (int32_t[]){0, 1}, (uint8_t[]){1, 1});
}

static void largest_of_other_ranks_counts(void **state)
{
    (void)state;
    bd_anchor_sampling s = one_row(second_row);
    s.largest = 3; // the row of T09, with the fuller row on another rank
    s.fixed_width = true;
    expect(&s, numbers, 5, (int32_t[]){3, 0, 0, 0, 0}, (uint8_t[]){1, 0, 0, 0, 0});
}

static void golden_draws(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    json_t *json = golden_json("anchors");
    bd_safetensors *tensors = golden_tensors("anchors");
    json_t *cases = json_object_get(json, "cases");
    assert_true(json_array_size(cases) >= 5);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *c = json_array_get(cases, i);
        bd_anchor_sampling s = {.rows = json_integer_value(json_object_get(c, "batch")),
                                .length = json_integer_value(json_object_get(c, "seq_len")),
                                .block_size = json_integer_value(json_object_get(c, "block_size")),
                                .most = json_integer_value(json_object_get(c, "num_anchors"))};
        char name[60];
        snprintf(name, sizeof name, "%zu/loss_mask", i);
        s.loss_mask = golden_floats(tensors, name, arena);
        snprintf(name, sizeof name, "%zu/uniforms", i);
        const float *uniforms = golden_floats(tensors, name, arena);
        for (int mode = 0; mode < 2; mode++) {
            s.fixed_width = mode == 1;
            const char *word = mode ? "static" : "eager";
            snprintf(name, sizeof name, "%zu/anchors_%s", i, word);
            const int32_t *anchor = golden_ints(tensors, name, arena);
            int64_t columns = golden_count(tensors, name) / s.rows;
            snprintf(name, sizeof name, "%zu/keep_%s", i, word);
            expect(&s, uniforms, columns, anchor, bd_safetensors_find(tensors, name)->data);
        }
    }
    bd_safetensors_close(tensors);
    json_decref(json);
    bd_arena_destroy(arena);
}

static void drawn_rows_do_not_depend_on_their_batch(void **state)
{
    (void)state;
    enum { ROWS = 4, LENGTH = 64 };
    bd_arena *arena = check_arena();
    float mask[ROWS * LENGTH];
    for (int i = 0; i < ROWS * LENGTH; i++)
        mask[i] = 1;
    bd_anchor_sampling s = {.rows = ROWS,
                            .length = LENGTH,
                            .block_size = 8,
                            .most = 10,
                            .loss_mask = mask,
                            .fixed_width = true};
    bd_anchors all = bd_anchors_draw(&s, 7, 1, 3, 20, arena);
    s.rows = 2;
    bd_anchors half = bd_anchors_draw(&s, 7, 1, 3, 22, arena);
    assert_int_equal(half.blocks, 10);
    check_ints("anchor", half.anchor, all.anchor + 2 * 10, 2 * 10);
    bd_anchors next = bd_anchors_draw(&s, 7, 1, 4, 22, arena);
    assert_memory_not_equal(next.anchor, half.anchor, 20 * sizeof(int32_t));
    for (int i = 1; i < 10; i++)
        assert_true(all.anchor[i] > all.anchor[i - 1] && all.anchor[i] <= LENGTH - 8);
    bd_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fullest_row_leaves_one_out),
        cmocka_unit_test(shorter_rows_are_padded),
        cmocka_unit_test(one_candidate_gives_no_block),
        cmocka_unit_test(smallest_numbers_win),
        cmocka_unit_test(fixed_width_keeps_the_same),
        cmocka_unit_test(equal_numbers_take_the_lower_position),
        cmocka_unit_test(largest_of_other_ranks_counts),
        cmocka_unit_test(golden_draws),
        cmocka_unit_test(drawn_rows_do_not_depend_on_their_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
