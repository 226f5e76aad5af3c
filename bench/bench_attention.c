/* bench_attention - how close block-sparse attention comes to what the cores can do.
 *
 *     bench_attention [draft | lengths | pairs | decode | dense] default: all; OMP_NUM_THREADS sets
 * the threads
 *
 * Every sample is taken between two bursts of multiply-adds that touch no memory, on the same
 * number of threads; "%" is the median over the samples of (useful rate / burst rate), so a core
 * that is busy with something else slows both. "Useful" counts visible pairs only: 4 head_size operations a pair forward, 10 backward.
 * BDLM_ISA picks the instruction set.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/attention.h"
#include "base/progress.h"
#include "base/threads.h"
#include "bench.h"
#include "tensor/burst.h"
#include "tensor/isa.h"

static float *noise(bd_arena *arena, int64_t count)
{
    float *x = bd_arena_floats(arena, count);
    uint64_t state = (uint64_t)count;
    for (int64_t i = 0; i < count; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        x[i] = (float)((double)(state >> 40) * 0x1p-23 - 1.0);
    }
    return x;
}

/* --- one case -------------------------------------------------------------------------------- */

typedef struct {
    bd_attention a;
    float *query, *key, *value, *out, *log_sum, *d_out, *d_query, *d_key, *d_value;
    double pairs; // over the batch
} bench_case;

static bench_case make_case(bd_arena *arena, const bd_visibility *rule, int64_t heads,
                            int64_t head_size, bd_dtype compute)
{
    bench_case c = {.a = {.rule = rule, .batch = 1, .query_heads = heads, .key_heads = heads}};
    c.a.head_size = head_size;
    c.a.scale = 1 / sqrtf((float)head_size);
    c.a.compute = compute;
    int64_t queries = rule->query_length * heads * head_size;
    int64_t keys = rule->key_length * heads * head_size;
    c.query = noise(arena, queries), c.d_out = noise(arena, queries);
    c.key = noise(arena, keys), c.value = noise(arena, keys);
    c.out = bd_arena_zeros(arena, queries), c.d_query = bd_arena_zeros(arena, queries);
    c.d_key = bd_arena_zeros(arena, keys), c.d_value = bd_arena_zeros(arena, keys);
    c.log_sum = bd_arena_zeros(arena, heads * rule->query_length);
    c.pairs = (double)bd_visibility_count(rule, 0);
    return c;
}

static void forward(bench_case *c, bd_arena *arena)
{
    bd_attention_forward(&c->a, c->query, c->key, c->value, c->out, c->log_sum, arena);
}

static void backward(bench_case *c, bd_arena *arena)
{
    bd_attention_backward(&c->a, c->query, c->key, c->value, c->out, c->log_sum, c->d_out,
                          c->d_query, c->d_key, c->d_value, NULL, arena);
}

typedef void bench_run(bench_case *c, bd_arena *arena);

static double best_time(bench_run *run, bench_case *c, bd_arena *arena, double seconds)
{
    run(c, arena); // touches memory
    double best = INFINITY, end = bd_seconds() + seconds;
    do {
        double start = bd_seconds();
        run(c, arena);
        double took = bd_seconds() - start;
        best = took < best ? took : best;
    } while (bd_seconds() < end);
    return best;
}

typedef struct {
    double best;       // seconds
    bench_ratio share; // of the burst
} outcome;

static outcome sample(bench_run *run, bench_case *c, bd_arena *arena, double operations)
{
    enum { MOST = 301 };
    double shares[MOST], end = bd_seconds() + 0.7;
    outcome result = {.best = INFINITY};
    int count = 0;
    run(c, arena);
    while (count < MOST && (count < 5 || bd_seconds() < end)) {
        double before = bd_burst_rate(c->a.compute, 0), start = bd_seconds();
        run(c, arena);
        double took = bd_seconds() - start, after = bd_burst_rate(c->a.compute, 0);
        shares[count++] = operations / took / ((before + after) / 2);
        result.best = took < result.best ? took : result.best;
    }
    result.share = bench_ratio_of(shares, count);
    return result;
}

static void report(const char *name, bench_case *c, bd_arena *arena)
{
    double work = c->pairs * (double)(c->a.query_heads * c->a.head_size);
    outcome f = sample(forward, c, arena, 4 * work), b = sample(backward, c, arena, 10 * work);
    double together = 14 / (4 / f.share.median + 10 / b.share.median);
    printf(
        "%-36s %-5s %8.2f ms forward (%2.0f%%) %8.2f ms backward (%2.0f%%) %6.1f GFLOP/s useful, "
        "%2.0f%% of burst\n",
        name, c->a.compute == BD_BF16 ? "bf16" : "f32", f.best * 1e3, 100 * f.share.median,
        b.best * 1e3, 100 * b.share.median, 14 * work / (f.best + b.best) * 1e-9, 100 * together);
    char label[96];
    snprintf(label, sizeof label, "%s %s, forward, of the burst", name,
             bd_dtype_name(c->a.compute));
    bench_keep("attention", label, f.share);
    snprintf(label, sizeof label, "%s %s, backward, of the burst", name,
             bd_dtype_name(c->a.compute));
    bench_keep("attention", label, b.share);
}

/* --- cases ----------------------------------------------------------------------------------- */

/* 512 blocks of 8 over a context of 2048: what a drafter trains on. */
static void bench_draft(bd_arena *arena, bd_dtype compute)
{
    enum { BLOCKS = 512, CONTEXT = 2048, SIZE = 8 };
    size_t mark = bd_arena_mark(arena);
    int32_t anchor[BLOCKS];
    uint8_t keep[BLOCKS];
    for (int i = 0; i < BLOCKS; i++) {
        anchor[i] = (int32_t)((int64_t)i * (CONTEXT - SIZE) / BLOCKS + i % 3);
        keep[i] = 1;
    }
    bd_anchors anchors = {.blocks = BLOCKS, .anchor = anchor, .keep = keep};
    bd_visibility rule = {.kind = BD_DRAFT, .block_size = SIZE, .context_length = CONTEXT};
    rule.query_length = BLOCKS * SIZE;
    rule.key_length = CONTEXT + BLOCKS * SIZE;
    rule.anchors = &anchors;
    bench_case c = make_case(arena, &rule, 8, 64, compute);
    report("draft 512 x 8, context 2048, 8 x 64", &c, arena);
    bd_arena_release(arena, mark);
}

static void bench_lengths(bd_arena *arena, bd_dtype compute)
{
    static const int64_t lengths[] = {512, 2048, 8192};
    for (int kind = BD_CAUSAL; kind <= BD_BLOCK_DIFFUSION; kind++)
        for (int i = 0; i < 3; i++) {
            size_t mark = bd_arena_mark(arena);
            bd_visibility rule = {.kind = (bd_visibility_kind)kind, .block_size = 32};
            rule.query_length = rule.key_length = lengths[i];
            char name[64];
            snprintf(name, sizeof name, "%s, L = %d, 4 x 64",
                     kind == BD_CAUSAL ? "causal" : "blocks of 32", (int)lengths[i]);
            bench_case c = make_case(arena, &rule, 4, 64, compute);
            report(name, &c, arena);
            bd_arena_release(arena, mark);
        }
}

/* Cost by visible pairs: each rule against the same kernel with nothing hidden, which is what a dense
 * mask pays for.. */
static void bench_pairs(bd_arena *arena, bd_dtype compute)
{
    static const int64_t lengths[] = {512, 2048, 8192};
    printf("visible pairs, %s, 4 x 64, forward and backward\n", bd_dtype_name(compute));
    for (int i = 0; i < 3; i++) {
        const int64_t length = lengths[i];
        double all = 0;
        for (int kind = 0; kind < 3; kind++) {
            size_t mark = bd_arena_mark(arena);
            const bd_visibility rule = {.kind = kind == 1 ? BD_CAUSAL : BD_BLOCK_DIFFUSION,
                                        .block_size = kind == 0 ? length : 32,
                                        .query_length = length,
                                        .key_length = length};
            bench_case c = make_case(arena, &rule, 4, 64, compute);
            double seconds =
                best_time(forward, &c, arena, 0.3) + best_time(backward, &c, arena, 0.6);
            const double pairs = c.pairs;
            all = kind == 0 ? seconds : all;
            printf("L = %5lld  %-18s %10.0f pairs (%5.1f%%) %9.2f ms, %.3f of all pairs' time\n",
                   (long long)length,
                   kind == 0   ? "everything"
                   : kind == 1 ? "causal"
                               : "blocks of 32",
                   pairs, 100 * pairs / (double)(length * length), seconds * 1e3, seconds / all);
            const double ratio = seconds / all;
            char label[96];
            snprintf(label, sizeof label, "%s L = %lld %s, time of everything",
                     kind == 1 ? "causal" : "blocks of 32", (long long)length,
                     bd_dtype_name(compute));
            if (kind > 0)
                bench_keep("attention", label, (bench_ratio){ratio, ratio, ratio});
            bd_arena_release(arena, mark);
        }
    }
}

/* One token or a few against a cache, as generation does it: microseconds a call. */
static void bench_decode(bd_arena *arena, bd_dtype compute)
{
    static const int64_t shapes[][4] = {{1, 128, 4, 64},   {1, 1024, 8, 64},  {8, 1024, 8, 64},
                                        {16, 1024, 8, 64}, {1, 8192, 8, 128}, {8, 8192, 8, 128}};
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        size_t mark = bd_arena_mark(arena);
        bd_visibility rule = {.kind = BD_CAUSAL, .query_length = shapes[i][0]};
        rule.key_length = shapes[i][1];
        rule.query_offset = rule.key_length - rule.query_length;
        bench_case c = make_case(arena, &rule, shapes[i][2], shapes[i][3], compute);
        float *log_sum = c.log_sum;
        c.log_sum = NULL;
        double t = best_time(forward, &c, arena, 0.1);
        c.log_sum = log_sum;
        double bytes = 8.0 * (double)(shapes[i][1] * shapes[i][2] * shapes[i][3]);
        printf(
            "%2d queries, %4d keys, %d x %3d       %-5s %9.2f us  %6.1f GB/s of keys and values\n",
            (int)shapes[i][0], (int)shapes[i][1], (int)shapes[i][2], (int)shapes[i][3],
            compute == BD_BF16 ? "bf16" : "f32", t * 1e6, bytes / t * 1e-9);
        bd_arena_release(arena, mark);
    }
}

static void dense_forward(bench_case *c, bd_arena *arena)
{
    bd_attention_dense_forward(&c->a, c->query, c->key, c->value, c->out, c->log_sum, arena);
}

static void dense_backward(bench_case *c, bd_arena *arena)
{
    bd_attention_dense_backward(&c->a, c->query, c->key, c->value, c->out, c->log_sum, c->d_out,
                                c->d_query, c->d_key, c->d_value, NULL, arena);
}

static void bench_dense(bd_arena *arena)
{
    bd_visibility rule = {.kind = BD_BLOCK_DIFFUSION, .block_size = 32};
    rule.query_length = rule.key_length = 256;
    bench_case c = make_case(arena, &rule, 4, 64, BD_F32);
    double sparse = best_time(forward, &c, arena, 0.1) + best_time(backward, &c, arena, 0.1);
    double dense =
        best_time(dense_forward, &c, arena, 0.1) + best_time(dense_backward, &c, arena, 0.1);
    printf("dense float64 reference, L = 256: %.2f ms, sparse %.2f ms, ratio %.0f\n", dense * 1e3,
           sparse * 1e3, dense / sparse);
}

int main(int argc, char **argv)
{
    bd_error err = {0};
    bd_arena *arena = bd_arena_create(0, &err);
    if (!arena || !bd_isa_init(&err)) {
        fprintf(stderr, "bench_attention: %s\n", err.message);
        return 1;
    }
    const char *only = argc > 1 ? argv[1] : "";
    bd_burst_rate(BD_F32, 0);
    printf("%s, %d threads, burst %.0f GFLOP/s f32, %.0f bf16\n", bd_isa_name(bd_isa()),
           bd_threads_count(), bd_burst_rate(BD_F32, 0.01) * 1e-9,
           bd_burst_rate(BD_BF16, 0.01) * 1e-9);
    for (int bf16 = 1; bf16 >= 0; bf16--) {
        bd_dtype compute = bf16 ? BD_BF16 : BD_F32;
        if (!*only || strcmp(only, "draft") == 0)
            bench_draft(arena, compute);
        if (!*only || strcmp(only, "lengths") == 0)
            bench_lengths(arena, compute);
        if (!*only || strcmp(only, "pairs") == 0)
            bench_pairs(arena, compute);
        if (!*only || strcmp(only, "decode") == 0)
            bench_decode(arena, compute);
    }
    if (!*only || strcmp(only, "dense") == 0)
        bench_dense(arena);
    bd_arena_destroy(arena);
    return 0;
}
