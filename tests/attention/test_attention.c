#include "base/profile.h"
#include "instance.h"

/* The sparse kernels against the dense float64 reference, forward and backward, at every level. */

#define F32_TOLERANCE  7e-7
#define BF16_TOLERANCE 6e-3

static bd_arena *arena;

static void compare(const instance *t, const results *want, double tolerance, const char *name)
{
    results got = run_sparse(t, arena);
    const char *const what[] = {"out", "d_query", "d_key", "d_value", "d_sink", "log_sum"};
    double found[] = {
        check_relative(got.out, want->out, t->query_count),
        check_relative(got.d_query, want->d_query, t->query_count),
        check_relative(got.d_key, want->d_key, t->key_count),
        check_relative(got.d_value, want->d_value, t->key_count),
        t->a.sink ? check_relative(got.d_sink, want->d_sink, t->a.query_heads) : 0,
        0,
    };
    for (int64_t i = 0; i < t->log_count; i++) {
        if (isinf(want->log_sum[i]) && got.log_sum[i] == want->log_sum[i])
            continue;
        double off = fabs((double)got.log_sum[i] - (double)want->log_sum[i]);
        found[5] = !(off <= found[5]) ? (isnan(off) ? INFINITY : off) : found[5];
    }
    if (getenv("BDLM_TEST_VERBOSE"))
        printf("%-45s %-10s %.1e %.1e %.1e %.1e %.1e %.1e\n", name, bd_isa_name(bd_isa()), found[0],
               found[1], found[2], found[3], found[4], found[5]);
    for (int i = 0; i < 6; i++)
        if (!(found[i] <= (i == 5 ? 8 * tolerance : tolerance))) // log_sum: absolute, near 8
            fail_msg("%s, %s, %s: off by %.3g, at most %.3g wanted", name, bd_isa_name(bd_isa()),
                     what[i], found[i], tolerance);
}

/* A profile counts the pairs that the rule shows: 4 operations each forward and 10 backward, per
 * number of a head. */
static void check_counted(const instance *t, const char *name)
{
    static bd_profile_row rows[BD_PROFILE_ROWS];
    bd_error err = {0};
    double pairs = 0, counted = 0;
    for (int64_t b = 0; b < t->a.batch; b++)
        pairs += (double)(bd_visibility_count(&t->rule, b) * t->a.query_heads);
    check_ok(bd_profile_start(false, &err), err);
    run_sparse(t, arena);
    bd_profile_stop();
    int count = bd_profile_table(rows);
    for (int i = 0; i < count; i++)
        counted += rows[i].flops;
    bd_profile_free();
    if (counted != 14 * pairs * (double)t->a.head_size)
        fail_msg("%s: %.0f operations counted, %.0f wanted", name, counted,
                 14 * pairs * (double)t->a.head_size);
}

/* Rule and shape are set; fill, run at every level in f32 and bf16, compare. */
static void check_instance(instance *t, const char *name)
{
    size_t mark = bd_arena_mark(arena);
    instance_fill(t, arena, 7);
    for (int bf16 = 0; bf16 < 2; bf16++) {
        t->a.compute = bf16 ? BD_BF16 : BD_F32;
        results want = run_dense(t, arena);
        for (int level = 0; level < BD_ISA_COUNT; level++) {
            size_t inner = bd_arena_mark(arena);
            if (!bd_isa_supported((bd_isa_level)level))
                continue;
            bd_isa_force((bd_isa_level)level);
            compare(t, &want, bf16 ? BF16_TOLERANCE : F32_TOLERANCE, name);
            bd_arena_release(arena, inner);
        }
    }
    check_counted(t, name);
    bd_arena_release(arena, mark);
}

static instance square(bd_visibility_kind kind, int64_t length, int64_t block_size)
{
    instance t = {.a = {.batch = 1, .query_heads = 1, .key_heads = 1, .head_size = 16}};
    t.rule = (bd_visibility){.kind = kind, .query_length = length, .key_length = length};
    t.rule.block_size = block_size;
    return t;
}

static instance draft(int64_t batch, int64_t context, int64_t blocks, int64_t block_size)
{
    instance t = {.a = {.batch = batch, .query_heads = 2, .key_heads = 2, .head_size = 32}};
    t.rule = (bd_visibility){.kind = BD_DRAFT, .block_size = block_size, .context_length = context};
    t.rule.query_length = blocks * block_size;
    t.rule.key_length = context + t.rule.query_length;
    t.rule.anchors = random_anchors(arena, batch, blocks, context, block_size, 3);
    return t;
}

static void test_head_sizes(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 4, 5, 16, 17, 64, 80, 128, 192, 256, 512};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        char name[64];
        snprintf(name, sizeof name, "head size %d", (int)sizes[i]);
        instance t = square(BD_BLOCK_DIFFUSION, 77, 12);
        t.a.head_size = sizes[i];
        check_instance(&t, name);
    }
}

static void test_rules(void **state)
{
    (void)state;
    size_t mark = bd_arena_mark(arena);
    instance t = square(BD_CAUSAL, 150, 0);
    check_instance(&t, "causal");
    t.rule.window = 37;
    check_instance(&t, "causal, window 37");
    t = square(BD_CAUSAL, 0, 0);
    t.rule.query_length = 16, t.rule.key_length = 300, t.rule.query_offset = 284;
    check_instance(&t, "16 queries after 284 keys");
    t.rule.query_length = 1, t.rule.query_offset = 299;
    check_instance(&t, "1 query after 299 keys");
    t = square(BD_BLOCK_DIFFUSION, 200, 32);
    check_instance(&t, "block diffusion");
    t = square(BD_DOUBLED, 2 * 75, 10);
    check_instance(&t, "doubled");
    t = draft(2, 128, 18, 8);
    check_instance(&t, "draft, 144 queries at 128 keys");
    t.rule.window = 20;
    t.rule.causal_in_block = true;
    check_instance(&t, "draft, window, causal blocks");
    t = draft(1, 128, 61, 4);
    check_instance(&t, "draft, 244 queries at 128 keys");
    t = draft(1, 50, 1, 16);
    check_instance(&t, "draft, one block");
    bd_arena_release(arena, mark);
}

/* Packed rows: documents with positions of their own, padding among them, and two shuffled thirds.
 */
static void test_documents(void **state)
{
    (void)state;
    size_t mark = bd_arena_mark(arena);
    enum { LENGTH = 190 };
    int32_t *segment, *position;
    random_documents(arena, 2, LENGTH, 11, &segment, &position);
    for (int kind = 0; kind < 3; kind++) {
        instance t = square((bd_visibility_kind)kind, LENGTH, 9);
        t.a.batch = 2, t.a.query_heads = 4, t.a.key_heads = 2;
        t.rule.query_segment = t.rule.key_segment = segment;
        check_instance(&t, "documents");
        t.rule.query_position = t.rule.key_position = position;
        check_instance(&t, "documents with positions");
    }
    int32_t *order = bd_arena_ints(arena, LENGTH);
    for (int i = 0; i < LENGTH; i++)
        order[i] = (i * 77 + 5) % LENGTH;
    instance t = square(BD_BLOCK_DIFFUSION, LENGTH, 8);
    t.rule.query_position = t.rule.key_position = order;
    check_instance(&t, "shuffled positions");
    bd_arena_release(arena, mark);
}

/* Several query heads read one key head; groups that do not divide a tile, one wider than a tile.
 */
static void test_groups(void **state)
{
    (void)state;
    static const int64_t heads[][2] = {{2, 1}, {6, 2}, {8, 2}, {5, 1}, {16, 1}, {71, 1}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        char name[64];
        snprintf(name, sizeof name, "%d query heads on %d", (int)heads[i][0], (int)heads[i][1]);
        instance t = square(i % 2 ? BD_CAUSAL : BD_BLOCK_DIFFUSION, 45, 7);
        t.a.batch = 2, t.a.query_heads = heads[i][0], t.a.key_heads = heads[i][1];
        check_instance(&t, name);
    }
}

static void test_sink(void **state)
{
    (void)state;
    size_t mark = bd_arena_mark(arena);
    static const float sink[] = {0, 2.5f, -1, 4};
    instance t = square(BD_CAUSAL, 70, 0);
    t.a.query_heads = 4, t.a.key_heads = 2, t.a.batch = 2;
    t.a.sink = sink;
    check_instance(&t, "sink");
    t = draft(2, 40, 6, 5);
    t.a.sink = sink;
    check_instance(&t, "draft with sink");
    bd_arena_release(arena, mark);
}

/* T37 (a sink, nothing visible) and T38 (heads to key heads), by hand. */
static void test_by_hand(void **state)
{
    (void)state;
    const float query[] = {1, 0}, key[] = {0, 5, logf(3), 7}, value[] = {1, 10, 3, 30}, zero = 0;
    float out[2], log_sum;
    bd_visibility rule = {.kind = BD_BLOCK_DIFFUSION, .block_size = 2, .query_length = 1};
    rule.key_length = 2;
    bd_attention a = {.rule = &rule, .batch = 1, .query_heads = 1, .key_heads = 1, .head_size = 2};
    a.scale = 1;
    for (int kernel = 0; kernel < 2; kernel++) {
        void (*forward)(const bd_attention *, const float *, const float *, const float *, float *,
                        float *, bd_arena *) =
            kernel ? bd_attention_dense_forward : bd_attention_forward;
        a.sink = NULL;
        rule.query_segment = NULL;
        forward(&a, query, key, value, out, &log_sum, arena);
        check_near(out[0], 2.5, 1e-6);
        check_near(out[1], 25, 1e-6);
        check_near(log_sum, log(4), 1e-6);
        a.sink = &zero;
        forward(&a, query, key, value, out, &log_sum, arena);
        check_near(out[0], 2.0, 1e-6);
        check_near(log_sum, log(5), 1e-6);
        const int32_t padding = 0;
        rule.query_segment = &padding;
        forward(&a, query, key, value, out, &log_sum, arena);
        assert_true(out[0] == 0 && out[1] == 0);
        assert_true(log_sum == -INFINITY);
    }

    float queries[8] = {0}, keys[2] = {0}, values[2] = {3, 5}, outs[8];
    bd_visibility one = {.kind = BD_CAUSAL, .query_length = 1, .key_length = 1};
    bd_attention grouped = {.rule = &one, .batch = 1, .query_heads = 8, .key_heads = 2};
    grouped.head_size = 1, grouped.scale = 1;
    bd_attention_forward(&grouped, queries, keys, values, outs, NULL, arena);
    for (int head = 0; head < 8; head++)
        assert_true(outs[head] == (head < 4 ? 3 : 5));
}

/* Rows that see nothing: zeros and finite everywhere; what nobody sees gets no gradient. */
static void test_nothing_visible(void **state)
{
    (void)state;
    size_t mark = bd_arena_mark(arena);
    enum { LENGTH = 100 };
    int32_t *segment = bd_arena_ints(arena, LENGTH);
    for (int i = 0; i < LENGTH; i++)
        segment[i] = i >= 20 && i < 90;
    for (int level = 0; level < BD_ISA_COUNT; level++) {
        if (!bd_isa_supported((bd_isa_level)level))
            continue;
        bd_isa_force((bd_isa_level)level);
        for (int bf16 = 0; bf16 < 2; bf16++) {
            instance t = square(BD_CAUSAL, LENGTH, 0);
            t.a.compute = bf16 ? BD_BF16 : BD_F32;
            t.rule.query_segment = t.rule.key_segment = segment;
            instance_fill(&t, arena, 1);
            results r = run_sparse(&t, arena);
            for (int i = 0; i < LENGTH; i++)
                for (int j = 0; j < 16; j++) {
                    int64_t at = i * 16 + j;
                    bool seen = segment[i] > 0;
                    assert_true(isfinite(r.out[at]) && (r.out[at] != 0) == seen);
                    assert_true(isfinite(r.d_value[at]) && (r.d_value[at] != 0) == seen);
                    assert_true(isfinite(r.d_query[at]) && (seen || r.d_query[at] == 0));
                    assert_true(isfinite(r.d_key[at]) && (seen || r.d_key[at] == 0));
                    assert_true((r.log_sum[i] == -INFINITY) == !seen);
                }
        }
    }
    bd_arena_release(arena, mark);
}

/* Gradients are added to what is there. */
static void test_gradients_accumulate(void **state)
{
    (void)state;
    size_t mark = bd_arena_mark(arena);
    instance t = square(BD_BLOCK_DIFFUSION, 30, 4);
    instance_fill(&t, arena, 2);
    results once = run_sparse(&t, arena), twice = run_sparse(&t, arena);
    bd_attention_backward(&t.a, t.query, t.key, t.value, twice.out, twice.log_sum, t.d_out,
                          twice.d_query, twice.d_key, twice.d_value, NULL, arena);
    for (int64_t i = 0; i < t.query_count; i++) {
        assert_true(twice.d_query[i] == 2 * once.d_query[i]);
        assert_true(twice.d_key[i] == 2 * once.d_key[i]);
        assert_true(twice.d_value[i] == 2 * once.d_value[i]);
    }
    bd_arena_release(arena, mark);
}

static double loss_of(const instance *t)
{
    size_t mark = bd_arena_mark(arena);
    float *out = bd_arena_floats(arena, t->query_count);
    bd_attention_forward(&t->a, t->query, t->key, t->value, out, NULL, arena);
    double loss = 0;
    for (int64_t i = 0; i < t->query_count; i++)
        loss += (double)out[i] * (double)t->d_out[i];
    bd_arena_release(arena, mark);
    return loss;
}

static void check_slope(const instance *t, float *x, int64_t count, const float *gradient)
{
    for (int64_t i = 0; i < count; i += 1 + count / 40) {
        const float was = x[i], step = 0.02f;
        x[i] = was + step;
        double up = loss_of(t);
        x[i] = was - step;
        double down = loss_of(t);
        x[i] = was;
        check_near(gradient[i], (up - down) / (2 * (double)step), 2e-3);
    }
}

static void test_central_differences(void **state)
{
    (void)state;
    size_t mark = bd_arena_mark(arena);
    float sink[2] = {0.5f, -0.5f};
    instance t = square(BD_BLOCK_DIFFUSION, 12, 5);
    t.a.query_heads = 2, t.a.head_size = 6;
    t.a.sink = sink;
    instance_fill(&t, arena, 21);
    results r = run_sparse(&t, arena);
    check_slope(&t, t.query, t.query_count, r.d_query);
    check_slope(&t, t.key, t.key_count, r.d_key);
    check_slope(&t, t.value, t.key_count, r.d_value);
    check_slope(&t, sink, 2, r.d_sink);
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
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_head_sizes),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_documents),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_sink),
        cmocka_unit_test(test_nothing_visible),
        cmocka_unit_test(test_gradients_accumulate),
        cmocka_unit_test(test_central_differences),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
