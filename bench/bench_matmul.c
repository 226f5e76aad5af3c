/* bench_matmul - how close products come to what the cores can do.
 *
 *     bench_matmul [threads ...]        default: 1, and all cores if there are more
 *
 * Every sample is taken between two bursts of multiply-adds that touch no memory, together as long
 * as the sample and on the same number of threads; "%" is the median over the samples of (product
 * rate / burst rate), so a core that is busy with something else slows both. One row is bound by
 * memory: its weight bytes per second stand beside those of a plain read of the same panels.
 * BDLM_ISA picks the instruction set.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/arena.h"
#include "base/progress.h"
#include "base/threads.h"
#include "bench.h"
#include "tensor/burst.h"
#include "tensor/isa.h"
#include "tensor/matmul.h"

/* --- samples ---------------------------------------------------------------------------------- */

typedef struct {
    bd_dtype dtype;
    bool gradient;
    int64_t rows, in, out;
    float *x, *y, *w;
    bd_packed packed;
    bd_arena *arena;
} product;

static void run_product(product *p)
{
    if (p->gradient)
        bd_matmul_weight_gradient(p->dtype, p->y, p->out, p->x, p->in, p->rows, p->out, p->in, p->w,
                                  p->arena);
    else
        bd_matmul(&p->packed, p->x, p->rows, p->in, NULL, p->y, p->out, BD_STORE, p->arena);
}

enum { MOST_SAMPLES = 301 };

typedef struct {
    double median_rate, best_rate, seconds;
    bench_ratio share; // of the burst
} outcome;

static outcome sample(product *p)
{
    double rates[MOST_SAMPLES], shares[MOST_SAMPLES];
    const double work = 2.0 * (double)p->rows * (double)p->in * (double)p->out,
                 stop = bd_seconds() + 0.3;
    double length = 0;
    int count = 0;
    run_product(p);
    while (count < MOST_SAMPLES && (count < 7 || bd_seconds() < stop)) {
        double before = bd_burst_rate(p->dtype, length / 2), start = bd_seconds();
        run_product(p);
        length = bd_seconds() - start;
        rates[count] = work / length;
        double after = bd_burst_rate(p->dtype, length / 2);
        shares[count] = rates[count] / ((before + after) / 2);
        count++;
    }
    const double median = bench_ratio_of(rates, count).median;
    return (outcome){median, rates[count - 1], work / median, bench_ratio_of(shares, count)};
}

/* --- reading ---------------------------------------------------------------------------------- */

static double best_read_rate(const void *data, size_t bytes)
{
    double best = 0;
    for (int i = 0; i < 9; i++) {
        double rate = bd_read_rate(data, bytes);
        best = rate > best ? rate : best;
    }
    return best;
}

/* --- table ------------------------------------------------------------------------------------ */

static void bench(bd_arena *arena, bd_dtype dtype, bool gradient, int64_t rows, int64_t in,
                  int64_t out)
{
    size_t mark = bd_arena_mark(arena);
    product p = {
        .dtype = dtype, .gradient = gradient, .rows = rows, .in = in, .out = out, .arena = arena};
    p.x = bd_arena_floats(arena, rows * in);
    p.y = bd_arena_floats(arena, rows * out);
    p.w = bd_arena_floats(arena, out * in);
    for (int64_t i = 0; i < rows * in; i++)
        p.x[i] = (float)(i % 17) / 17 - 0.5f;
    for (int64_t i = 0; i < rows * out; i++)
        p.y[i] = (float)(i % 11) / 11 - 0.5f;
    for (int64_t i = 0; i < out * in; i++)
        p.w[i] = (float)(i % 13) / 13 - 0.5f;
    size_t bytes = bd_packed_bytes(dtype, out, in);
    p.packed = bd_pack(dtype, p.w, BD_F32, out, in, BD_AS_STORED, bd_arena_alloc(arena, bytes));
    outcome o = sample(&p);
    printf("%-5s %-8s %6lld %6lld %7lld  %8.3f ms  %7.1f GF/s (best %7.1f)  %5.1f %%",
           bd_dtype_name(dtype), gradient ? "gradient" : "product", (long long)rows, (long long)in,
           (long long)out, o.seconds * 1e3, o.median_rate * 1e-9, o.best_rate * 1e-9,
           o.share.median * 100);
    char name[96];
    snprintf(name, sizeof name, "%s %s, %lld x %lld x %lld, %d threads, of the burst",
             bd_dtype_name(dtype), gradient ? "gradient" : "product", (long long)rows,
             (long long)in, (long long)out, bd_threads_count());
    bench_keep("matmul", name, o.share);
    if (!gradient && bytes >= (size_t)32 << 20)
        printf("  weights %5.1f GB/s (read %5.1f)", (double)bytes / o.seconds * 1e-9,
               best_read_rate(p.packed.data, bytes) * 1e-9);
    printf("\n");
    bd_arena_release(arena, mark);
}

static void bench_threads(bd_arena *arena, int threads)
{
    static const int64_t rows[] = {1, 8, 16, 64, 512};
    static const bd_dtype dtypes[] = {BD_F32, BD_BF16, BD_Q8_0};
    bd_threads_set(threads);
    printf("%s, %d thread%s: burst %.0f GF/s f32, %.0f GF/s bf16\n", bd_isa_name(bd_isa()), threads,
           threads == 1 ? "" : "s", bd_burst_rate(BD_F32, 0.01) * 1e-9,
           bd_burst_rate(BD_BF16, 0.01) * 1e-9);
    printf("dtype what       rows     in     out\n");
    for (int d = 0; d < 3; d++) {
        for (int r = 0; r < 5; r++)
            bench(arena, dtypes[d], false, rows[r], 256, 1024);
        for (int r = 0; r < 5; r++)
            bench(arena, dtypes[d], false, rows[r], 1024, 3072);
        for (int r = 0; r < 4; r++)
            bench(arena, dtypes[d], false, rows[r], 1024, 32000);
        bench(arena, dtypes[d], false, 1024, 1024, 1024);
        if (dtypes[d] == BD_Q8_0)
            continue; // of frozen weights
        bench(arena, dtypes[d], true, 512, 256, 1024);
        bench(arena, dtypes[d], true, 512, 1024, 1024);
        bench(arena, dtypes[d], true, 256, 1024, 32000);
    }
}

int main(int count, char **words)
{
    bd_error err = {0};
    bd_arena *arena = bd_arena_create(0, &err);
    if (!arena || !bd_isa_init(&err)) {
        fprintf(stderr, "bench_matmul: %s\n", err.message);
        return 1;
    }
    for (int i = 1; i < count; i++)
        bench_threads(arena, atoi(words[i]));
    if (count < 2) {
        bd_threads_set(0);
        int all = bd_threads_count();
        bench_threads(arena, 1);
        if (all > 1)
            bench_threads(arena, all);
    }
    bd_arena_destroy(arena);
    return 0;
}
