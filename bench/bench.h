/* bench.h - what all measurements share: medians with their spread, and where figures are kept.
 *
 * Every figure is a ratio of two rates taken in turn in one process, so that a busy machine slows both.
 *
 *     double shares[SAMPLES];
 *     ...
 *     bench_ratio r = bench_ratio_of(shares, SAMPLES);
 *     bench_keep("matmul", "bf16 512 x 1024 x 3072, of the burst", r);
 *
 * With BDLM_BENCH_OUT=FILE each figure is appended to FILE as a line of JSON; `make bench` does so, and
 * `make bench-check` compares them with those of bench/baseline.json.
 */
#ifndef BENCH_H
#define BENCH_H

#include <stdio.h>
#include <stdlib.h>

typedef struct {
    double median, low, high; /* low, high: quartiles */
} bench_ratio;

static inline int bench_ascending(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Sorts the values. */
static inline bench_ratio bench_ratio_of(double *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, bench_ascending);
    return (bench_ratio){values[count / 2], values[count / 4], values[count - 1 - count / 4]};
}

/* The name tells what is divided by what; no quotes or backslashes in it. */
static inline void bench_keep(const char *bench, const char *name, bench_ratio ratio)
{
    const char *path = getenv("BDLM_BENCH_OUT");
    FILE *out = path ? fopen(path, "a") : NULL;
    if (!out)
        return;
    fprintf(out, "{\"name\": \"%s: %s\", \"median\": %.4g, \"low\": %.4g, \"high\": %.4g}\n", bench,
            name, ratio.median, ratio.low, ratio.high);
    fclose(out);
}

#endif
