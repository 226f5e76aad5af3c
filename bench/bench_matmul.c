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
#include <time.h>

#include "base/arena.h"
#include "base/threads.h"
#include "tensor/isa.h"
#include "tensor/matmul.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* --- bursts ----------------------------------------------------------------------------------- */

enum { CHAINS = 12, ROUNDS = 10000 };

#if defined(__x86_64__)
// Twelve chains hide the latency; the empty asm keeps the compiler from reasoning about them.
#define BURST(name, isa, vector, zero, step, first)                                                \
    __attribute__((target(isa))) static float name(void)                                           \
    {                                                                                              \
        vector c0 = zero, c1 = c0, c2 = c0, c3 = c0, c4 = c0, c5 = c0;                             \
        vector c6 = zero, c7 = c0, c8 = c0, c9 = c0, c10 = c0, c11 = c0;                           \
        for (int n = 0; n < ROUNDS; n++) {                                                         \
            c0 = step(c0), c1 = step(c1), c2 = step(c2), c3 = step(c3);                            \
            c4 = step(c4), c5 = step(c5), c6 = step(c6), c7 = step(c7);                            \
            c8 = step(c8), c9 = step(c9), c10 = step(c10), c11 = step(c11);                        \
            __asm__("" : "+v"(c0), "+v"(c1), "+v"(c2), "+v"(c3), "+v"(c4), "+v"(c5));              \
            __asm__("" : "+v"(c6), "+v"(c7), "+v"(c8), "+v"(c9), "+v"(c10), "+v"(c11));            \
        }                                                                                          \
        return first(c0) + first(c1) + first(c2) + first(c3) + first(c4) + first(c5) + first(c6) + \
               first(c7) + first(c8) + first(c9) + first(c10) + first(c11);                        \
    }

#define PAIRS(c)                                                                                   \
    _mm512_dpbf16_ps(c, (__m512bh)_mm512_set1_epi16(0x3f80), (__m512bh)_mm512_set1_epi16(0x3f80))
#define WIDE(c)   _mm512_fmadd_ps(c, _mm512_set1_ps(0.5f), _mm512_set1_ps(1))
#define MIDDLE(c) _mm256_fmadd_ps(c, _mm256_set1_ps(0.5f), _mm256_set1_ps(1))
#define NARROW(c) _mm_add_ps(_mm_mul_ps(c, _mm_set1_ps(0.5f)), _mm_set1_ps(1))

BURST(burst_avx512bf16, "avx512f,avx512bf16", __m512, _mm512_setzero_ps(), PAIRS, _mm512_cvtss_f32)
BURST(burst_avx512, "avx512f", __m512, _mm512_setzero_ps(), WIDE, _mm512_cvtss_f32)
BURST(burst_avx2, "avx2,fma", __m256, _mm256_setzero_ps(), MIDDLE, _mm256_cvtss_f32)
BURST(burst_sse2, "sse2", __m128, _mm_setzero_ps(), NARROW, _mm_cvtss_f32)
#endif

static volatile float sink;

typedef struct {
    float (*run)(void);
    double operations; // in one call, both of a multiply-add
} burst;

static burst burst_for(bd_dtype dtype)
{
    const double steps = 2.0 * CHAINS * ROUNDS;
#if defined(__x86_64__)
    switch (bd_isa()) {
    case BD_ISA_AVX512BF16:
        if (dtype == BD_BF16)
            return (burst){burst_avx512bf16, 32 * steps};
        return (burst){burst_avx512, 16 * steps};
    case BD_ISA_AVX512:
        return (burst){burst_avx512, 16 * steps};
    case BD_ISA_AVX2:
        return (burst){burst_avx2, 8 * steps};
    default:
        return (burst){burst_sse2, 4 * steps};
    }
#else
    (void)dtype;
    return (burst){NULL, steps};
#endif
}

static void burst_task(void *context, int64_t task)
{
    const burst *b = context;
    (void)task;
    if (b->run)
        sink = b->run();
}

// Operations per second of all threads together, over at least so many seconds.
static double burst_rate(bd_dtype dtype, double seconds)
{
    burst b = burst_for(dtype);
    const int threads = bd_threads_count();
    double start = now(), operations = 0, elapsed;
    do {
        bd_parallel(threads, burst_task, &b);
        operations += b.operations * threads;
        elapsed = now() - start;
    } while (elapsed < seconds);
    return operations / elapsed;
}

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

static int by_size(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

enum { MOST_SAMPLES = 301 };

typedef struct {
    double median_rate, best_rate, median_share, seconds;
} outcome;

static outcome sample(product *p)
{
    double rates[MOST_SAMPLES], shares[MOST_SAMPLES];
    const double work = 2.0 * (double)p->rows * (double)p->in * (double)p->out, stop = now() + 0.3;
    double length = 0;
    int count = 0;
    run_product(p);
    while (count < MOST_SAMPLES && (count < 7 || now() < stop)) {
        double before = burst_rate(p->dtype, length / 2), start = now();
        run_product(p);
        length = now() - start;
        rates[count] = work / length;
        double after = burst_rate(p->dtype, length / 2);
        shares[count] = rates[count] / ((before + after) / 2);
        count++;
    }
    qsort(rates, (size_t)count, sizeof *rates, by_size);
    qsort(shares, (size_t)count, sizeof *shares, by_size);
    return (outcome){rates[count / 2], rates[count - 1], shares[count / 2],
                     work / rates[count / 2]};
}

/* --- reading ---------------------------------------------------------------------------------- */

typedef struct {
    const uint64_t *data;
    int64_t count; // of one task
} reading;

static void read_task(void *context, int64_t task)
{
    const reading *r = context;
    const uint64_t *from = r->data + task * r->count;
    uint64_t sum[16] = {0};
    for (int64_t i = 0; i + 16 <= r->count; i += 16)
        for (int j = 0; j < 16; j++)
            sum[j] ^= from[i + j];
    for (int j = 1; j < 16; j++)
        sum[0] ^= sum[j];
    sink = (float)sum[0];
}

static double read_rate(const void *data, size_t bytes)
{
    double best = 0;
    reading r = {data, (int64_t)(bytes / 8 / 64)};
    for (int i = 0; i < 9; i++) {
        double start = now();
        bd_parallel(64, read_task, &r);
        double rate = (double)bytes / (now() - start);
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
           o.median_share * 100);
    if (!gradient && bytes >= (size_t)32 << 20)
        printf("  weights %5.1f GB/s (read %5.1f)", (double)bytes / o.seconds * 1e-9,
               read_rate(p.packed.data, bytes) * 1e-9);
    printf("\n");
    bd_arena_release(arena, mark);
}

static void bench_threads(bd_arena *arena, int threads)
{
    static const int64_t rows[] = {1, 8, 16, 64, 512};
    static const bd_dtype dtypes[] = {BD_F32, BD_BF16};
    bd_threads_set(threads);
    printf("%s, %d thread%s: burst %.0f GF/s f32, %.0f GF/s bf16\n", bd_isa_name(bd_isa()), threads,
           threads == 1 ? "" : "s", burst_rate(BD_F32, 0.01) * 1e-9,
           burst_rate(BD_BF16, 0.01) * 1e-9);
    printf("dtype what       rows     in     out\n");
    for (int d = 0; d < 2; d++) {
        for (int r = 0; r < 5; r++)
            bench(arena, dtypes[d], false, rows[r], 256, 1024);
        for (int r = 0; r < 5; r++)
            bench(arena, dtypes[d], false, rows[r], 1024, 3072);
        for (int r = 0; r < 4; r++)
            bench(arena, dtypes[d], false, rows[r], 1024, 32000);
        bench(arena, dtypes[d], false, 1024, 1024, 1024);
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
