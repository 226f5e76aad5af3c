/* Context-parallel layouts: T-07, the permutation table, and the balance they are made for. */
#include "check.h"

#include <jansson.h>

#include "parallel/layout.h"

static void expect(const int32_t *got, const int32_t *want, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (got[i] != want[i])
            fail_msg("[%lld] is %d, wanted %d", (long long)i, got[i], want[i]);
}

static void orders_and_inverses(void **state)
{
    (void)state;
    bd_error err = {0};
    int32_t order[16], inverse[16];
    const int32_t two[8] = {0, 1, 6, 7, 2, 3, 4, 5}, two_back[8] = {0, 1, 4, 5, 6, 7, 2, 3};
    check_ok(bd_layout_order(BD_LAYOUT_DUAL_CHUNK_SWAP, 8, 2, order, &err), err);
    bd_layout_inverse(order, 8, inverse);
    expect(order, two, 8);
    expect(inverse, two_back, 8);

    const int32_t four[16] = {0, 1, 14, 15, 2, 3, 12, 13, 4, 5, 10, 11, 6, 7, 8, 9};
    const int32_t four_back[16] = {0, 1, 4, 5, 8, 9, 12, 13, 14, 15, 10, 11, 6, 7, 2, 3};
    check_ok(bd_layout_order(BD_LAYOUT_DUAL_CHUNK_SWAP, 16, 4, order, &err), err);
    bd_layout_inverse(order, 16, inverse);
    expect(order, four, 16);
    expect(inverse, four_back, 16);

    const int32_t striped[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    check_ok(bd_layout_order(BD_LAYOUT_STRIPED, 16, 4, order, &err), err);
    bd_layout_inverse(order, 16, inverse);
    expect(order, striped, 16);
    expect(inverse, striped, 16);

    const int32_t plain[5] = {0, 1, 2, 3, 4};
    check_ok(bd_layout_order(BD_LAYOUT_DUAL_CHUNK_SWAP, 5, 1, order, &err), err);
    expect(order, plain, 5);
}

/* Pairs visible to the token at `position` of a row under block attention. */
static int64_t visible(int64_t position, int64_t length, int64_t block)
{
    int64_t end = (position / block + 1) * block;
    return end < length ? end : length;
}

static void expect_work(bd_layout layout, int64_t length, int64_t shards, int64_t block,
                        const int64_t *want)
{
    bd_error err = {0};
    int32_t order[64];
    check_ok(bd_layout_order(layout, length, shards, order, &err), err);
    for (int64_t rank = 0; rank < shards; rank++) {
        int64_t work = 0;
        for (int64_t at = 0; at < length / shards; at++)
            work += visible(order[rank * (length / shards) + at], length, block);
        assert_int_equal(work, want[rank]);
    }
}

static void work_is_balanced(void **state)
{
    (void)state;
    const bd_layout swap = BD_LAYOUT_DUAL_CHUNK_SWAP, plain = BD_LAYOUT_IN_ORDER;
    expect_work(swap, 16, 2, 4, (int64_t[]){80, 80});
    expect_work(plain, 16, 2, 4, (int64_t[]){48, 112});
    expect_work(swap, 16, 4, 2, (int64_t[]){36, 36, 36, 36});
    expect_work(plain, 16, 4, 2, (int64_t[]){12, 28, 44, 60});
    expect_work(swap, 32, 4, 4, (int64_t[]){144, 144, 144, 144});
    expect_work(plain, 32, 4, 4, (int64_t[]){48, 112, 176, 240});
    expect_work(swap, 24, 2, 4, (int64_t[]){168, 168});
}

static void fields_of_any_size(void **state)
{
    (void)state;
    bd_error err = {0};
    int32_t order[8], inverse[8];
    check_ok(bd_layout_order(BD_LAYOUT_DUAL_CHUNK_SWAP, 8, 2, order, &err), err);
    bd_layout_inverse(order, 8, inverse);
    double field[2][8], moved[2][8], back[2][8];
    unsigned char bytes[8] = "abcdefgh", moved_bytes[8];
    for (int i = 0; i < 16; i++)
        field[i / 8][i % 8] = i;
    bd_layout_apply(order, 2, 8, sizeof(double), field, moved);
    bd_layout_apply(inverse, 2, 8, sizeof(double), moved, back);
    assert_true(moved[0][2] == 6 && moved[1][2] == 14 && moved[1][4] == 10);
    assert_memory_equal(back, field, sizeof field);
    bd_layout_apply(order, 1, 8, 1, bytes, moved_bytes);
    assert_memory_equal(moved_bytes, "abghcdef", 8);
}

static void refusals(void **state)
{
    (void)state;
    bd_error err = {0};
    int32_t order[16];
    const bd_layout swap = BD_LAYOUT_DUAL_CHUNK_SWAP;
    check_refused(bd_layout_order(swap, 12, 3, order, &err), err,
                  "shards is 3, wanted a multiple of 2");
    check_refused(bd_layout_order(swap, 10, 2, order, &err), err,
                  "row length is 10, wanted a multiple of 2 x shards = 4");
    check_refused(bd_layout_order(swap, 8, 0, order, &err), err, "shards is 0");
    check_refused(bd_layout_order(swap, 0, 2, order, &err), err, "row length is 0");
    check_refused(bd_layout_order(swap, 2, 2, order, &err), err, "multiple of 2 x shards = 4");
    check_refused(bd_layout_order(swap, 8, INT64_MAX - 1, order, &err), err, "row length is 8");
    check_refused(bd_layout_order(BD_LAYOUT_STRIPED, 10, 4, order, &err), err,
                  "multiple of shards = 4");
    bd_layout layout;
    check_refused(bd_layout_from_name("zigzag", &layout, &err), err,
                  "\"zigzag\", wanted auto, in_order, dual_chunk_swap or striped");
    check_ok(bd_layout_from_name("auto", &layout, &err), err);
    assert_int_equal(layout, swap);
    for (int i = 0; i < BD_LAYOUT_COUNT; i++) {
        check_ok(bd_layout_from_name(bd_layout_name((bd_layout)i), &layout, &err), err);
        assert_int_equal(layout, i);
    }
}

static void golden_table(void **state)
{
    (void)state;
    json_t *root = json_load_file(BD_GOLDEN "/block-diffusion/tables/permutation.json", 0, NULL);
    assert_non_null(root);
    size_t index;
    json_t *item;
    int checked = 0;
    json_array_foreach(json_object_get(root, "cases"), index, item)
    {
        int64_t length = json_integer_value(json_object_get(item, "length"));
        int64_t shards = json_integer_value(json_object_get(item, "shards"));
        int32_t order[64], inverse[64];
        bd_error err = {0};
        bool done = bd_layout_order(BD_LAYOUT_DUAL_CHUNK_SWAP, length, shards, order, &err);
        assert_int_equal(done, !json_is_true(json_object_get(item, "error")));
        checked++;
        if (!done)
            continue;
        bd_layout_inverse(order, length, inverse);
        json_t *want = json_object_get(item, "order"), *back = json_object_get(item, "inverse");
        json_t *owned = json_object_get(item, "per_shard");
        for (int64_t i = 0; i < length; i++) {
            int64_t share = length / shards;
            json_t *rank = json_array_get(owned, (size_t)(i / share));
            assert_int_equal(order[i], json_integer_value(json_array_get(want, (size_t)i)));
            assert_int_equal(inverse[i], json_integer_value(json_array_get(back, (size_t)i)));
            assert_int_equal(order[i],
                             json_integer_value(json_array_get(rank, (size_t)(i % share))));
        }
    }
    assert_int_equal(checked, 9);
    json_decref(root);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(orders_and_inverses), cmocka_unit_test(work_is_balanced),
        cmocka_unit_test(fields_of_any_size),  cmocka_unit_test(refusals),
        cmocka_unit_test(golden_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
