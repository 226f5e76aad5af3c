/* Which output row predicts which token: T-19 and the alignment table. */
#include "diffusion/alignment.h"
#include "diffusion/golden.h"

static bd_arena *arena;

static void expect(bd_alignment alignment, int64_t length, const int32_t *positions,
                   const int32_t *segments, const int32_t *want)
{
    int32_t got[16];
    bd_placement placement = {1, length, positions, segments};
    bd_alignment_source(alignment, &placement, got, arena);
    check_ints(got, want, length);
}

#define INTS(...) ((const int32_t[]){__VA_ARGS__})

static void sources(void **state)
{
    (void)state;
    expect(BD_SAME_POSITION, 4, INTS(0, 3, 1, 2), NULL, INTS(0, 1, 2, 3));
    expect(BD_SHIFTED, 4, NULL, NULL, INTS(0, 0, 1, 2));
    expect(BD_SHIFTED, 4, INTS(0, 1, 2, 3), NULL, INTS(0, 0, 1, 2));
    expect(BD_SHIFTED, 4, INTS(0, 3, 1, 2), NULL, INTS(0, 3, 0, 2));
    expect(BD_SHIFTED, 6, INTS(0, 3, 1, 2, 0, 0), INTS(1, 1, 1, 1, 0, 0), INTS(0, 3, 0, 2, -1, -1));
    expect(BD_SHIFTED, 8, INTS(0, 1, 6, 7, 2, 3, 4, 5), NULL, INTS(0, 0, 7, 2, 1, 4, 5, 6));
    expect(BD_SHIFTED, 5, INTS(0, 0, 0, 1, 2), INTS(0, 0, 1, 1, 1), INTS(-1, -1, 2, 2, 3));
    // Decision 3: within the document. Segment numbers need not be sorted.
    expect(BD_SHIFTED, 6, INTS(0, 1, 2, 0, 1, 2), INTS(7, 7, 7, 2, 2, 2), INTS(0, 0, 1, 3, 3, 4));
    // A predecessor that is not there, positions beyond the row, and one that is there twice.
    expect(BD_SHIFTED, 4, INTS(0, 1, 0, 5), INTS(1, 1, 2, 2), INTS(0, 0, 2, 2));
    expect(BD_SHIFTED, 4, INTS(9, 1, 10, 1000000000), NULL, INTS(0, 0, 0, 0));
    expect(BD_SHIFTED, 4, INTS(0, 1, 1, 2), NULL, INTS(0, 0, 0, 2));
}

static void gather_and_scatter(void **state)
{
    (void)state;
    const int32_t source[4] = {0, 0, 1, 2}, padded[4] = {-1, 1, 1, -1};
    const float d_aligned[4] = {1, 2, 3, 4}, raw[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    float d_raw[4] = {0}, aligned[8];
    bd_alignment_scatter(source, 1, 4, 1, d_aligned, d_raw);
    assert_true(d_raw[0] == 3 && d_raw[1] == 3 && d_raw[2] == 4 && d_raw[3] == 0);
    bd_alignment_gather(padded, 1, 4, 2, raw, aligned);
    const float want[8] = {0, 0, 3, 4, 3, 4, 0, 0};
    assert_memory_equal(aligned, want, sizeof want);
    memset(d_raw, 0, sizeof d_raw);
    bd_alignment_scatter(padded, 1, 4, 1, d_aligned, d_raw);
    assert_true(d_raw[0] == 0 && d_raw[1] == 5 && d_raw[3] == 0);
    // A second row stays in itself.
    const int32_t two[4] = {0, 0, 1, 0};
    bd_alignment_gather(two, 2, 2, 1, raw, aligned);
    assert_true(aligned[1] == 1 && aligned[2] == 4 && aligned[3] == 3);
}

static void golden(void **state)
{
    (void)state;
    json_t *root = golden_table("alignment"), *item;
    size_t index;
    json_array_foreach(json_object_get(root, "cases"), index, item)
    {
        bd_error err = {0};
        bd_alignment alignment;
        bool known = bd_alignment_from_name(golden_text(item, "alignment"), &alignment, &err);
        assert_int_equal(known, !json_is_true(json_object_get(item, "error")));
        if (!known)
            continue;
        int64_t rows = golden_int(item, "rows"), length = golden_int(item, "length");
        int32_t *segments = golden_ints(item, "segments", arena);
        if (!segments)
            segments = golden_ints(item, "valid", arena);
        bd_placement placement = {rows, length, golden_ints(item, "positions", arena), segments};
        int32_t *got = bd_arena_ints(arena, rows * length);
        const int32_t *want = golden_ints(item, "source", arena);
        bd_alignment_source(alignment, &placement, got, arena);
        check_ints(got, want, rows * length);
    }
    assert_int_equal(index, 18);
    json_decref(root);
}

int main(void)
{
    arena = check_arena();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sources), cmocka_unit_test(gather_and_scatter), cmocka_unit_test(golden)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
