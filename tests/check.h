/* check.h - what every test program uses: cmocka, and comparisons that print both values.
 *
 * Test programs run from the project's root, so golden cases are under "tests/golden/".
 */
#ifndef BD_TESTS_CHECK_H
#define BD_TESTS_CHECK_H

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"
#include "base/error.h"

#define BD_GOLDEN "tests/golden"

/* A call that must succeed; prints its error otherwise. */
#define check_ok(call, err)                                                                        \
    do {                                                                                           \
        if (!(call))                                                                               \
            fail_msg("%s: %s", #call, (err).message);                                              \
    } while (0)

/* A call that must fail with `part` in its message. */
#define check_refused(call, err, part)                                                             \
    do {                                                                                           \
        if (call)                                                                                  \
            fail_msg("%s succeeded, an error with \"%s\" expected", #call, part);                  \
        if (!strstr((err).message, part))                                                          \
            fail_msg("%s: error \"%s\" does not contain \"%s\"", #call, (err).message, part);      \
    } while (0)

/* |got - want| <= tolerance * max(1, |want|) for one number. */
#define check_near(got, want, tolerance)                                                           \
    check_near_at(__FILE__, __LINE__, #got, got, want, tolerance)
static inline void check_near_at(const char *file, int line, const char *what, double got,
                                 double want, double tolerance)
{
    double scale = fabs(want) > 1 ? fabs(want) : 1;
    if (!(fabs(got - want) <= tolerance * scale))
        fail_msg("%s:%d: %s is %.9g, wanted %.9g", file, line, what, got, want);
}

/* Largest difference over largest wanted magnitude, as compare.py does it; NaN counts as infinite. */
static inline double check_relative(const float *got, const float *want, int64_t count)
{
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < count; i++) {
        double difference = fabs((double)got[i] - (double)want[i]);
        if (!(difference <= worst))
            worst = isnan(difference) ? INFINITY : difference;
        if (fabs((double)want[i]) > scale)
            scale = fabs((double)want[i]);
    }
    return scale > 0 ? worst / scale : worst * 100; // where all wanted is 0: 1e-6 absolute at 1e-4
}

#define check_array(got, want, count, relative)                                                    \
    check_array_at(__FILE__, __LINE__, #got, got, want, count, relative)
static inline void check_array_at(const char *file, int line, const char *what, const float *got,
                                  const float *want, int64_t count, double relative)
{
    double found = check_relative(got, want, count);
    if (found <= relative)
        return;
    int64_t at = 0;
    double worst = -1;
    for (int64_t i = 0; i < count; i++) {
        double difference = fabs((double)got[i] - (double)want[i]);
        if (isnan(difference))
            difference = INFINITY;
        if (difference > worst) {
            worst = difference;
            at = i;
        }
    }
    fail_msg("%s:%d: %s differs by %.3g relative (at most %.3g): [%lld] is %.9g, wanted %.9g", file,
             line, what, found, relative, (long long)at, (double)got[at], (double)want[at]);
}

/* Repeatable noise in [-1, 1) for test data. */
static inline float check_noise(uint64_t *state)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (float)((double)(*state >> 40) * 0x1p-23 - 1.0);
}

static inline void check_fill(float *x, int64_t count, uint64_t seed)
{
    uint64_t state = seed * 2 + 1;
    for (int64_t i = 0; i < count; i++)
        x[i] = check_noise(&state);
}

static inline bd_arena *check_arena(void)
{
    bd_error err = {0};
    bd_arena *arena = bd_arena_create((size_t)4 << 30, &err);
    if (!arena)
        fail_msg("%s", err.message);
    return arena;
}

#endif
