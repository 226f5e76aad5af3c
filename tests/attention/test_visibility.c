#include "attention/visibility.h"

#include <jansson.h>

#include "instance.h"

/* The visibility rule: exact values from the specification, the golden table, and tile classes
 * against the rule itself. Masks are written one string per query, '1' visible. */

static void check_mask(const bd_visibility *rule, int64_t b, const char *const *rows)
{
    for (int64_t q = 0; q < rule->query_length; q++)
        for (int64_t k = 0; k < rule->key_length; k++)
            if (bd_visibility_allows(rule, b, q, k) != (rows[q][k] == '1'))
                fail_msg("query %d reads key %d: %d, wanted %c (row %s)", (int)q, (int)k,
                         bd_visibility_allows(rule, b, q, k), rows[q][k], rows[q]);
}

#define check_rows(rule, ...)                                                                      \
    do {                                                                                           \
        const char *const wanted[] = {__VA_ARGS__};                                                \
        assert_int_equal((rule)->query_length, sizeof wanted / sizeof *wanted);                    \
        assert_int_equal((rule)->key_length, strlen(wanted[0]));                                   \
        check_mask(rule, 0, wanted);                                                               \
    } while (0)

static bd_visibility square(bd_visibility_kind kind, int64_t length, int64_t block_size)
{
    return (bd_visibility){
        .kind = kind, .query_length = length, .key_length = length, .block_size = block_size};
}

/* T-01: pairs per row with a partial last block. */
static void test_block_diffusion(void **state)
{
    (void)state;
    bd_visibility rule = square(BD_BLOCK_DIFFUSION, 10, 4);
    static const int per_row[] = {4, 4, 4, 4, 8, 8, 8, 8, 10, 10};
    for (int q = 0; q < 10; q++) {
        int seen = 0;
        for (int k = 0; k < 10; k++)
            seen += bd_visibility_allows(&rule, 0, q, k);
        assert_int_equal(seen, per_row[q]);
    }
    assert_int_equal(bd_visibility_count(&rule, 0), 68);
    assert_true(bd_visibility_allows(&rule, 0, 1, 3));
    assert_false(bd_visibility_allows(&rule, 0, 3, 4));
    assert_true(bd_visibility_allows(&rule, 0, 4, 3));
    assert_true(bd_visibility_allows(&rule, 0, 8, 9));
}

/* T-02: a query offset, block size 1, a block longer than the row. */
static void test_offset_and_limits(void **state)
{
    (void)state;
    bd_visibility rule = {.kind = BD_BLOCK_DIFFUSION, .query_length = 3, .key_length = 8};
    rule.block_size = 4;
    rule.query_offset = 2;
    check_rows(&rule, "1111....", "1111....", "11111111");
    rule = square(BD_BLOCK_DIFFUSION, 4, 1);
    check_rows(&rule, "1...", "11..", "111.", "1111");
    rule = square(BD_BLOCK_DIFFUSION, 4, 9);
    check_rows(&rule, "1111", "1111", "1111", "1111");
}

static void test_causal(void **state)
{
    (void)state;
    bd_visibility rule = square(BD_CAUSAL, 4, 0);
    check_rows(&rule, "1...", "11..", "111.", "1111");
    rule.window = 2;
    check_rows(&rule, "1...", "11..", ".11.", "..11");
    rule.window = 1;
    check_rows(&rule, "1...", ".1..", "..1.", "...1");
    rule =
        (bd_visibility){.kind = BD_CAUSAL, .query_length = 2, .key_length = 6, .query_offset = 4};
    check_rows(&rule, "11111.", "111111");
    rule.window = 3;
    check_rows(&rule, "..111.", "...111");
}

/* T-03, T-04 (padding by decision 1). */
static void test_segments(void **state)
{
    (void)state;
    static const int32_t two[] = {1, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 2};
    bd_visibility rule = square(BD_BLOCK_DIFFUSION, 12, 4);
    rule.query_segment = rule.key_segment = two;
    check_rows(&rule, "1111........", "1111........", "1111........", "1111........",
               "11111111....", "11111111....", "11111111....", "11111111....", "........1111",
               "........1111", "........1111", "........1111");
    assert_int_equal(bd_visibility_count(&rule, 0), 64);

    static const int32_t packed[] = {1, 1, 1, 2, 2, 2}, local[] = {0, 1, 2, 0, 1, 2};
    rule = square(BD_BLOCK_DIFFUSION, 6, 4);
    rule.query_segment = rule.key_segment = packed;
    rule.query_position = rule.key_position = local;
    check_rows(&rule, "111...", "111...", "111...", "...111", "...111", "...111");
    rule.query_position = rule.key_position = NULL;
    check_rows(&rule, "111...", "111...", "111...", "...1..", "...111", "...111");

    static const int32_t padded[] = {1, 1, 0, 0}, negative[] = {1, 1, -1, 0};
    rule = square(BD_BLOCK_DIFFUSION, 4, 2);
    rule.query_segment = rule.key_segment = padded;
    check_rows(&rule, "11..", "11..", "....", "....");
    rule.query_segment = rule.key_segment = negative;
    check_rows(&rule, "11..", "11..", "....", "....");
}

/* T-05: the doubled row. */
static void test_doubled(void **state)
{
    (void)state;
    bd_visibility rule = square(BD_DOUBLED, 8, 2);
    check_rows(&rule, "11......", "11......", "..1111..", "..1111..", "....11..", "....11..",
               "....1111", "....1111");
    assert_int_equal(bd_visibility_count(&rule, 0), 24);
    rule = square(BD_DOUBLED, 16, 4);
    assert_int_equal(bd_visibility_count(&rule, 0), 96);
    rule = square(BD_DOUBLED, 10, 2); // n = 5: the last block is shorter
    check_rows(&rule, "11........", "11........", "..11.11...", "..11.11...", "....11111.",
               ".....11...", ".....11...", ".....1111.", ".....1111.", ".....11111");
}

static const bd_anchors *anchors_of(int64_t blocks, const int32_t *anchor, const uint8_t *keep)
{
    static bd_anchors anchors;
    anchors = (bd_anchors){.blocks = blocks, .anchor = anchor, .keep = keep};
    return &anchors;
}

static bd_visibility draft(int64_t context, int64_t block_size, const bd_anchors *anchors)
{
    bd_visibility rule = {.kind = BD_DRAFT, .block_size = block_size, .context_length = context};
    rule.query_length = anchors->blocks * block_size;
    rule.key_length = context + rule.query_length;
    rule.anchors = anchors;
    return rule;
}

/* T15a to T15e, and T52: a padding query past the last block. */
static void test_draft(void **state)
{
    (void)state;
    static const int32_t anchor[] = {1, 3};
    static const uint8_t keep[] = {1, 1}, first[] = {1, 0};
    bd_visibility rule = draft(4, 2, anchors_of(2, anchor, keep));
    check_rows(&rule, "10001100", "10001100", "11100011", "11100011");
    for (int k = 0; k < 8; k++)
        assert_int_equal(bd_visibility_allows(&rule, 0, 4, k), k < 3);
    rule.window = 2;
    check_rows(&rule, "10001100", "00001100", "00100011", "00000011");
    rule.causal_in_block = true;
    check_rows(&rule, "10001000", "00001100", "00100010", "00000011");
    rule.window = 0;
    check_rows(&rule, "10001000", "10001100", "11100010", "11100011");
    rule = draft(4, 2, anchors_of(2, anchor, first));
    check_rows(&rule, "10001100", "10001100", "00000000", "00000000");
    assert_false(bd_visibility_allows(&rule, 0, 4, 0));
}

/* T16: a block generated after `context` tokens sees them through the window, by a mask written out
 * from the words of the rule: slot o sees context (context + o - window, context) and its block. */
static void check_generation(int64_t context, int64_t block_size, int64_t window, bool causal)
{
    int32_t anchor = (int32_t)context;
    uint8_t keep = 1;
    bd_visibility rule = draft(context, block_size, anchors_of(1, &anchor, &keep));
    rule.window = window;
    rule.causal_in_block = causal;
    for (int64_t slot = 0; slot < block_size; slot++) {
        char row[64] = {0};
        for (int64_t k = 0; k < context; k++)
            row[k] = window == 0 || context + slot - k < window ? '1' : '.';
        for (int64_t k = 0; k < block_size; k++)
            row[context + k] = !causal || k <= slot ? '1' : '.';
        for (int64_t k = 0; k < context + block_size; k++)
            if (bd_visibility_allows(&rule, 0, slot, k) != (row[k] == '1'))
                fail_msg("context %d, window %d, causal %d: slot %d, key %d", (int)context,
                         (int)window, causal, (int)slot, (int)k);
    }
}

static void test_generation(void **state)
{
    (void)state;
    static const int64_t contexts[] = {1, 5, 16};
    for (int i = 0; i < 3; i++)
        for (int windows = 0; windows < 3; windows++)
            for (int causal = 0; causal < 2; causal++)
                check_generation(contexts[i], 4, windows * 4, causal);

    static const int32_t anchor[] = {5};
    static const uint8_t keep[] = {1};
    bd_visibility rule = draft(5, 3, anchors_of(1, anchor, keep));
    check_rows(&rule, "11111111", "11111111", "11111111");
    rule.window = 4;
    check_rows(&rule, "00111111", "00011111", "00001111");
    rule.causal_in_block = true;
    check_rows(&rule, "00111100", "00011110", "00001111");
}

/* T-11: queries before a block's end do not see past it, so a row cut there is the same row. */
static void test_truncation(void **state)
{
    (void)state;
    bd_visibility whole = square(BD_BLOCK_DIFFUSION, 14, 4), cut = square(BD_BLOCK_DIFFUSION, 8, 4);
    for (int q = 0; q < 8; q++)
        for (int k = 0; k < 14; k++)
            assert_int_equal(bd_visibility_allows(&whole, 0, q, k),
                             k < 8 && bd_visibility_allows(&cut, 0, q, k));
}

/* --- tiles ----------------------------------------------------------------------------------- */

// T-09: a token that is decoded alone sees what is there, in both kinds alike; padding never.
static void test_decoding(void **state)
{
    (void)state;
    static const int32_t segments[8] = {1, 1, 0, 1, 0, 0, 1, 0}, query_segment[1] = {1};
    for (int blocks = 0; blocks < 2; blocks++) {
        const bd_visibility rule = {.kind = blocks ? BD_BLOCK_DIFFUSION : BD_CAUSAL,
                                    .block_size = 4,
                                    .query_length = 1,
                                    .key_length = 8,
                                    .query_offset = 7,
                                    .query_segment = query_segment,
                                    .key_segment = segments};
        for (int64_t k = 0; k < 8; k++)
            assert_int_equal(bd_visibility_allows(&rule, 0, 0, k), segments[k] == 1);
    }
}

// T-10: which rule a layer follows: the pass's, unless it slides by itself.
static void test_layers(void **state)
{
    (void)state;
    const bd_visibility blocks = {.kind = BD_BLOCK_DIFFUSION, .block_size = 4}, causal = {0};
    assert_int_equal(bd_visibility_of_layer(&blocks, 0).kind, BD_BLOCK_DIFFUSION);
    assert_int_equal(bd_visibility_of_layer(&blocks, 3).kind, BD_CAUSAL);
    assert_int_equal(bd_visibility_of_layer(&blocks, 3).window, 3);
    assert_int_equal(bd_visibility_of_layer(&causal, 0).kind, BD_CAUSAL);
    assert_int_equal(bd_visibility_of_layer(&causal, 0).window, 0);
    const bd_visibility narrow = {.kind = BD_CAUSAL, .window = 2};
    assert_int_equal(bd_visibility_of_layer(&narrow, 3).window, 2);
    assert_int_equal(bd_visibility_of_layer(&narrow, 1).window, 1);
}

static void check_tiles(const bd_visibility *rule, int64_t tile_q, int64_t tile_k,
                        const char *wanted)
{
    char found[256];
    size_t n = 0;
    for (int64_t q = 0; q < rule->query_length; q += tile_q) {
        if (q > 0)
            found[n++] = ' ';
        for (int64_t k = 0; k < rule->key_length; k += tile_k)
            found[n++] = "EPF"[bd_visibility_tile(rule, 0, (bd_range){q, q + tile_q},
                                                  (bd_range){k, k + tile_k})];
    }
    found[n] = 0;
    assert_string_equal(found, wanted);
}

/* T-06, T17: the last tile of a row may be cut short by its end. */
static void test_tile_classes(void **state)
{
    (void)state;
    bd_visibility rule = square(BD_BLOCK_DIFFUSION, 10, 4);
    check_tiles(&rule, 4, 4, "FEE FFE FFF");
    check_tiles(&rule, 3, 3, "FPEE FPPE FFPP FFFF");
    rule = square(BD_BLOCK_DIFFUSION, 12, 4);
    check_tiles(&rule, 8, 8, "PE FF");
    rule = square(BD_BLOCK_DIFFUSION, 16, 8);
    check_tiles(&rule, 4, 4, "FFEE FFEE FFFF FFFF");
    rule = square(BD_BLOCK_DIFFUSION, 9, 4);
    check_tiles(&rule, 2, 2, "FFEEE FFEEE FFFFE FFFFE FFFFF");

    static const int32_t anchor[] = {2, 5};
    static const uint8_t keep[] = {1, 1};
    rule = draft(8, 4, anchors_of(2, anchor, keep));
    check_tiles(&rule, 4, 4, "PEFE FPEF");
}

static void check_class(const bd_visibility *rule, bd_range q, bd_range k, int *cautious)
{
    bd_tile_class class = bd_visibility_tile(rule, 0, q, k);
    int64_t seen = 0, pairs = 0;
    for (int64_t i = q.begin; i < q.end; i++)
        for (int64_t j = k.begin; j < k.end; j++, pairs++)
            seen += bd_visibility_allows(rule, 0, i, j);
    if (class == BD_TILE_EMPTY)
        assert_int_equal(seen, 0);
    else if (class == BD_TILE_FULL)
        assert_int_equal(seen, pairs);
    else
        *cautious += seen == 0 || seen == pairs;
}

/* Random rules: classes are never wrong; where nothing is shuffled they are never cautious either.
 */
static void test_tiles_are_sound(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    uint64_t noise_state = 5;
    int cautious = 0;
    for (int round = 0; round < 400; round++) {
        size_t mark = bd_arena_mark(arena);
        int64_t length = 2 * (int64_t)(10 + 9 * check_noise(&noise_state));
        bd_visibility rule = square((bd_visibility_kind)(round % 3), length, 1 + round % 7);
        rule.window = round % 4 == 0 ? 1 + round % 9 : 0;
        int32_t *segment, *position;
        random_documents(arena, 1, length, (uint64_t)round, &segment, &position);
        if (round % 5 > 1)
            rule.query_segment = rule.key_segment = segment;
        if (round % 5 == 3)
            rule.query_position = rule.key_position = position;
        if (round % 5 == 4) { // shuffled
            for (int64_t i = length - 1; i > 0; i--) {
                int64_t j = (int64_t)((check_noise(&noise_state) + 1) / 2 * (float)(i + 1));
                int32_t p = position[i], s = segment[i];
                position[i] = position[j], segment[i] = segment[j];
                position[j] = p, segment[j] = s;
            }
            rule.query_position = rule.key_position = position;
        }
        if (round % 6 == 5) {
            int64_t block_size = 1 + round % 5, blocks = 1 + round % 4;
            int64_t context = block_size + round % 23;
            rule = draft(context, block_size,
                         random_anchors(arena, 1, blocks, context, block_size, (uint64_t)round));
            rule.window = round % 4 == 1 ? block_size + round % 3 : 0;
            rule.causal_in_block = round % 2;
        }
        int exact = 0;
        for (int64_t height = 1; height <= 8; height += 3)
            for (int64_t q = 0; q < rule.query_length; q += height)
                for (int64_t k = 0; k < rule.key_length; k += 4) {
                    bd_range rows = {q, q + height}, columns = {k, k + 4};
                    rows.end = rows.end < rule.query_length ? rows.end : rule.query_length;
                    columns.end = columns.end < rule.key_length ? columns.end : rule.key_length;
                    check_class(&rule, rows, columns, &exact);
                }
        cautious += exact;
        if (!rule.query_segment && !rule.query_position && rule.kind < BD_DOUBLED)
            assert_int_equal(exact, 0);
        bd_arena_release(arena, mark);
    }
    assert_true(cautious > 0); // the shuffled rows did test something
    bd_arena_destroy(arena);
}

/* --- the golden table ------------------------------------------------------------------------ */

static const int32_t *ints(bd_arena *arena, const json_t *list)
{
    if (!list)
        return NULL;
    int32_t *x = bd_arena_ints(arena, (int64_t)json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++)
        x[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return x;
}

static void check_case(bd_arena *arena, const json_t *item)
{
    const json_t *size = json_object_get(item, "block_size"), *rows = json_object_get(item, "rows");
    const json_t *positions = json_object_get(item, "positions");
    const json_t *key_positions = json_object_get(item, "key_positions");
    const json_t *key_segments = json_object_get(item, "key_segments");
    bd_visibility rule = {.kind = json_is_null(size) ? BD_CAUSAL : BD_BLOCK_DIFFUSION};
    rule.block_size = json_integer_value(size);
    rule.query_position = ints(arena, positions);
    rule.query_segment = ints(arena, json_object_get(item, "segments"));
    rule.query_length = (int64_t)json_array_size(positions);
    rule.key_position = key_positions ? ints(arena, key_positions) : rule.query_position;
    rule.key_segment = key_segments ? ints(arena, key_segments) : rule.query_segment;
    rule.key_length = key_positions ? (int64_t)json_array_size(key_positions) : rule.query_length;
    assert_int_equal(json_array_size(rows), rule.query_length);
    const char *wanted[64];
    for (size_t q = 0; q < json_array_size(rows); q++) {
        wanted[q] = json_string_value(json_array_get(rows, q));
        assert_int_equal(strlen(wanted[q]), rule.key_length);
    }
    check_mask(&rule, 0, wanted);
}

static void test_golden_table(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    json_error_t error;
    json_t *root = json_load_file(BD_GOLDEN "/block-diffusion/tables/visibility.json", 0, &error);
    if (!root)
        fail_msg("visibility.json: %s", error.text);
    const json_t *cases = json_object_get(root, "cases");
    assert_true(json_array_size(cases) >= 20);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check_case(arena, json_array_get(cases, i));
    json_decref(root);
    bd_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_block_diffusion), cmocka_unit_test(test_offset_and_limits),
        cmocka_unit_test(test_causal),          cmocka_unit_test(test_segments),
        cmocka_unit_test(test_doubled),         cmocka_unit_test(test_draft),
        cmocka_unit_test(test_generation),      cmocka_unit_test(test_truncation),
        cmocka_unit_test(test_decoding),        cmocka_unit_test(test_layers),
        cmocka_unit_test(test_tile_classes),    cmocka_unit_test(test_tiles_are_sound),
        cmocka_unit_test(test_golden_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
