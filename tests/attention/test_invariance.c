#include "instance.h"

/* Bits: a query's result depends on its row of the rule and on the keys it sees, not on the other
 * queries of the call, not on keys it does not see, not on the number of threads. That is what
 * makes verifying several tokens at once and decoding them one by one give the same logits. */

static bd_arena *arena;

// Runs at every level, in f32 and bf16, with one thread and two.
static void at_every_level(void (*check)(bd_dtype compute))
{
    for (int level = 0; level < BD_ISA_COUNT; level++) {
        if (!bd_isa_supported((bd_isa_level)level))
            continue;
        bd_isa_force((bd_isa_level)level);
        for (int threads = 1; threads <= 2; threads++) {
            bd_threads_set(threads);
            size_t mark = bd_arena_mark(arena);
            check(BD_F32);
            check(BD_BF16);
            assert_int_equal(bd_arena_mark(arena), mark);
        }
    }
    bd_threads_set(0);
}

static void check_bits(const char *what, int64_t at, const float *got, const float *want,
                       int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (memcmp(&got[i], &want[i], sizeof(float)) != 0)
            fail_msg("%s, %s: query %d, number %d is %.9g, wanted %.9g", bd_isa_name(bd_isa()),
                     what, (int)at, (int)i, (double)got[i], (double)want[i]);
}

/* Queries first .. first + count - 1 of t against its first `keys` keys, compared with the same
 * rows of `want`. One row of the batch; a rule that counts queries by query_offset. */
static void check_piece(const instance *t, int64_t first, int64_t count, int64_t keys,
                        const float *want, const char *what)
{
    size_t mark = bd_arena_mark(arena);
    int64_t width = t->a.query_heads * t->a.head_size;
    bd_visibility rule = t->rule;
    bd_attention a = t->a;
    a.rule = &rule;
    rule.query_length = count;
    rule.query_offset = first;
    rule.key_length = keys;
    if (rule.key_segment)
        rule.query_segment += first;
    float *out = bd_arena_floats(arena, count * width);
    // A copy of exactly these keys, so that a read past their end is found by the sanitizer.
    size_t bytes = (size_t)(keys * a.key_heads * a.head_size) * sizeof(float);
    float *key = memcpy(malloc(bytes), t->key, bytes),
          *value = memcpy(malloc(bytes), t->value, bytes);
    bd_attention_forward(&a, t->query + first * width, key, value, out, NULL, arena);
    check_bits(what, first, out, want + first * width, count * width);
    free(key);
    free(value);
    bd_arena_release(arena, mark);
}

static void check_decoding(instance *t, bd_dtype compute)
{
    size_t mark = bd_arena_mark(arena);
    int64_t length = t->rule.query_length;
    t->a.compute = compute;
    instance_fill(t, arena, 3);
    float *whole = bd_arena_floats(arena, t->query_count);
    bd_attention_forward(&t->a, t->query, t->key, t->value, whole, NULL, arena);
    for (int64_t i = 0; i < length; i++)
        check_piece(t, i, 1, i + 1, whole, "one by one");
    for (int64_t i = 0; i + 8 <= length; i += 5)
        check_piece(t, i, 8, i + 8, whole, "eight at once");
    for (int64_t i = 0; i + 3 <= length; i += 17) // later keys are there already
        check_piece(t, i, 3, length, whole, "three in the middle");
    check_piece(t, 10, length - 10, length, whole, "all but ten");
    if (length > 110)
        check_piece(t, 57, 50, 107, whole, "fifty at once");
    bd_arena_release(arena, mark);
}

static void check_causal(bd_dtype compute)
{
    instance t = {.a = {.batch = 1, .query_heads = 4, .key_heads = 2, .head_size = 32}};
    t.rule = (bd_visibility){.kind = BD_CAUSAL, .query_length = 200, .key_length = 200};
    check_decoding(&t, compute);
    t.rule.window = 70;
    check_decoding(&t, compute);
    t.a.query_heads = 3, t.a.key_heads = 1, t.a.head_size = 21; // nothing divides anything
    check_decoding(&t, compute);
    t.rule.query_length = t.rule.key_length = 70;
    t.rule.window = 0;
    t.a.head_size = 160;
    check_decoding(&t, compute);
}

static void test_causal(void **state)
{
    (void)state;
    at_every_level(check_causal);
}

/* Keys that do not fit in a cache: they are read ahead of their use, which must not change
 * anything. */
static void check_long(bd_dtype compute)
{
    size_t mark = bd_arena_mark(arena);
    instance t = {.a = {.batch = 1, .query_heads = 5, .key_heads = 5, .head_size = 40}};
    t.rule = (bd_visibility){.kind = BD_CAUSAL, .query_length = 700, .key_length = 700};
    t.rule.window = 333;
    t.a.compute = compute;
    instance_fill(&t, arena, 4);
    float *whole = bd_arena_floats(arena, t.query_count);
    bd_attention_forward(&t.a, t.query, t.key, t.value, whole, NULL, arena);
    for (int64_t i = 350; i < 690; i += 48) {
        check_piece(&t, i, 1, i + 1, whole, "one after many");
        check_piece(&t, i, 12, i + 12, whole, "twelve after many");
    }
    bd_arena_release(arena, mark);
}

static void test_long(void **state)
{
    (void)state;
    at_every_level(check_long);
}

/* Documents after each other: what lies before a document does not matter, whatever its size. */
static void check_documents(bd_dtype compute)
{
    size_t mark = bd_arena_mark(arena);
    enum { LENGTH = 150 };
    int32_t *segment = bd_arena_ints(arena, LENGTH);
    for (int i = 0; i < LENGTH; i++)
        segment[i] = i % 29 == 28 ? 0 : 1 + i / 50;
    instance t = {.a = {.batch = 1, .query_heads = 2, .key_heads = 1, .head_size = 16}};
    t.rule = (bd_visibility){.kind = BD_CAUSAL, .query_length = LENGTH, .key_length = LENGTH};
    t.rule.query_segment = t.rule.key_segment = segment;
    check_decoding(&t, compute);
    bd_arena_release(arena, mark);
}

static void test_documents(void **state)
{
    (void)state;
    at_every_level(check_documents);
}

/* Blocks one at a time against the blocks before, as a cached rollout does it (and T-11: a row cut
 * at a block's end). */
static void check_blocks(bd_dtype compute)
{
    size_t mark = bd_arena_mark(arena);
    instance t = {.a = {.batch = 1, .query_heads = 4, .key_heads = 1, .head_size = 24}};
    t.rule = (bd_visibility){.kind = BD_BLOCK_DIFFUSION, .query_length = 182, .key_length = 182};
    t.rule.block_size = 12;
    t.a.compute = compute;
    instance_fill(&t, arena, 5);
    float *whole = bd_arena_floats(arena, t.query_count);
    bd_attention_forward(&t.a, t.query, t.key, t.value, whole, NULL, arena);
    for (int64_t first = 0; first < 182; first += 12) {
        int64_t end = first + 12 < 182 ? first + 12 : 182;
        check_piece(&t, first, end - first, end, whole, "one block");
        check_piece(&t, 0, end, end, whole, "row cut at a block's end");
    }
    bd_arena_release(arena, mark);
}

static void test_blocks(void **state)
{
    (void)state;
    at_every_level(check_blocks);
}

/* Rows of a batch one by one. */
static void check_batch(bd_dtype compute)
{
    size_t mark = bd_arena_mark(arena);
    instance t = {.a = {.batch = 3, .query_heads = 2, .key_heads = 2, .head_size = 16}};
    t.rule = (bd_visibility){.kind = BD_DOUBLED, .query_length = 140, .key_length = 140};
    t.rule.block_size = 7;
    t.a.compute = compute;
    instance_fill(&t, arena, 6);
    float *whole = bd_arena_floats(arena, t.query_count), *one = bd_arena_floats(arena, 140 * 32);
    bd_attention_forward(&t.a, t.query, t.key, t.value, whole, NULL, arena);
    t.a.batch = 1;
    for (int64_t b = 0; b < 3; b++) {
        int64_t at = b * 140 * 32;
        bd_attention_forward(&t.a, t.query + at, t.key + at, t.value + at, one, NULL, arena);
        check_bits("row of the batch", b, one, whole + at, 140 * 32);
    }
    bd_arena_release(arena, mark);
}

static void test_batch(void **state)
{
    (void)state;
    at_every_level(check_batch);
}

/* Forward and backward give the same bytes for any number of threads. */
static void check_threads_of(instance *t)
{
    for (int level = 0; level < BD_ISA_COUNT; level++) {
        if (!bd_isa_supported((bd_isa_level)level))
            continue;
        bd_isa_force((bd_isa_level)level);
        for (int bf16 = 0; bf16 < 2; bf16++) {
            size_t mark = bd_arena_mark(arena);
            t->a.compute = bf16 ? BD_BF16 : BD_F32;
            bd_threads_set(1);
            results one = run_sparse(t, arena);
            for (int threads = 2; threads <= 5; threads += 3) {
                bd_threads_set(threads);
                results many = run_sparse(t, arena);
                check_bits("out", threads, many.out, one.out, t->query_count);
                check_bits("log_sum", threads, many.log_sum, one.log_sum, t->log_count);
                check_bits("d_query", threads, many.d_query, one.d_query, t->query_count);
                check_bits("d_key", threads, many.d_key, one.d_key, t->key_count);
                check_bits("d_value", threads, many.d_value, one.d_value, t->key_count);
                check_bits("d_sink", threads, many.d_sink, one.d_sink, t->a.query_heads);
            }
            bd_arena_release(arena, mark);
        }
    }
    bd_threads_set(0);
}

static void test_threads(void **state)
{
    (void)state;
    size_t mark = bd_arena_mark(arena);
    static const float sink[] = {0, 1, 2, 3};
    instance t = {.a = {.batch = 2, .query_heads = 4, .key_heads = 2, .head_size = 20}};
    t.rule = (bd_visibility){.kind = BD_CAUSAL, .query_length = 200, .key_length = 200};
    t.a.sink = sink;
    instance_fill(&t, arena, 8);
    check_threads_of(&t);
    t.rule = (bd_visibility){.kind = BD_DRAFT, .block_size = 8, .context_length = 100};
    t.rule.query_length = 96, t.rule.key_length = 196;
    t.rule.anchors = random_anchors(arena, 2, 12, 100, 8, 4);
    instance_fill(&t, arena, 9);
    check_threads_of(&t);
    bd_arena_release(arena, mark);
}

static int setup(void **state)
{
    (void)state;
    arena = check_arena();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    bd_arena_destroy(arena);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_causal),    cmocka_unit_test(test_long),
        cmocka_unit_test(test_documents), cmocka_unit_test(test_blocks),
        cmocka_unit_test(test_batch),     cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
