#include "tensor/burst.h"

#include <string.h>

#include "base/huge.h"
#include "base/progress.h"
#include "base/threads.h"
#include "tensor/isa/burst.h"

static volatile float sink; // results have to go somewhere

/* --- multiply-adds ---------------------------------------------------------------------------- */

#define ENTRY(level) &bd_burst_kernels_##level,
static const bd_burst_kernels *const tables[BD_ISA_COUNT] = {BD_FOR_EACH_ISA(ENTRY)};

typedef struct {
    float (*run)(void);
    double operations; // of one call
} burst;

static void burst_task(void *context, int64_t task)
{
    const burst *b = context;
    (void)task;
    sink = b->run();
}

double bd_burst_rate(bd_dtype dtype, double seconds)
{
    const bd_burst_kernels *kernels = tables[bd_isa()];
    burst b = {kernels->f32, kernels->f32_operations};
    if (dtype == BD_BF16 && kernels->bf16)
        b = (burst){kernels->bf16, kernels->bf16_operations};
    if (dtype == BD_Q8_0 && kernels->int8)
        b = (burst){kernels->int8, kernels->int8_operations};
    const int threads = bd_threads_count();
    double start = bd_seconds(), operations = 0, elapsed;
    do {
        bd_parallel(threads, burst_task, &b);
        operations += b.operations * threads;
        elapsed = bd_seconds() - start;
    } while (elapsed < seconds);
    return operations / elapsed;
}

/* --- reading ---------------------------------------------------------------------------------- */

enum { READERS = 64 };

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

double bd_read_rate(const void *data, size_t bytes)
{
    reading r = {data, (int64_t)(bytes / sizeof(uint64_t) / READERS)};
    double start = bd_seconds();
    bd_parallel(READERS, read_task, &r);
    return (double)bytes / (bd_seconds() - start);
}

/* --- ceilings --------------------------------------------------------------------------------- */

static double larger(double a, double b)
{
    return a > b ? a : b;
}

bd_ceilings bd_ceilings_measure(void)
{
    enum { TRIES = 8 };
    const double seconds = 0.005;
    const size_t bytes = (size_t)128 << 20; // caches hold much less
    void *data = bd_huge_alloc(bytes);
    if (data)
        memset(data, 1, bytes);
    bd_ceilings best = {0};
    // They take turns, so that a moment in which a core was lost does not hit one kind alone.
    for (int i = 0; i < TRIES; i++) {
        best.f32 = larger(best.f32, bd_burst_rate(BD_F32, seconds));
        best.bf16 = larger(best.bf16, bd_burst_rate(BD_BF16, seconds));
        best.int8 = larger(best.int8, bd_burst_rate(BD_Q8_0, seconds));
        if (data)
            best.read = larger(best.read, bd_read_rate(data, bytes));
    }
    bd_huge_free(data);
    return best;
}
