/* isa/rows.h - what one instruction set offers to rows.c, optimizer.c and dtype.c.
 *
 * The same contracts as in tensor/rows.h, for a range of rows or elements on one thread.
 */
#ifndef BD_TENSOR_ISA_ROWS_H
#define BD_TENSOR_ISA_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/isa.h"
#include "tensor/rows.h"

typedef struct {
    void (*rms_norm)(const float *x, const float *weight, float eps, int64_t rows, int64_t width,
                     float *y, float *inverse);
    /* dx and dweight may be NULL; dweight is overwritten with the sum over these rows. */
    void (*rms_norm_backward)(const float *x, const float *weight, const float *inverse,
                              const float *dy, int64_t rows, int64_t width, float *dx,
                              float *dweight);
    /* direction 1 or -1; add: y += instead of y =. */
    void (*rotate)(const bd_rope *rope, double direction, const float *x, const int32_t *positions,
                   int64_t rows, int64_t heads, float *y, bool add);
    void (*swiglu)(const float *gate, const float *up, int64_t count, float *y);
    void (*swiglu_backward)(const float *gate, const float *up, const float *dy, int64_t count,
                            float *dgate, float *dup);
    void (*add)(const float *a, const float *b, int64_t count, float *y);
    void (*scale)(float factor, int64_t count, float *x);
    /* Largest value, NaN left out (-inf if there is none). */
    float (*largest)(const float *x, int64_t count);
    /* Index of the first element equal to value, or -1. */
    int64_t (*find)(const float *x, float value, int64_t count);
    /* Sum of exp(x - shift); with y, the terms are written there. */
    double (*sum_exp)(const float *x, float shift, int64_t count, float *y);
    double (*sum_of_squares)(const float *x, int64_t count);
    void (*from_bf16)(const uint16_t *x, int64_t count, float *y);
    void (*to_bf16)(const float *x, int64_t count, uint16_t *y);
} bd_row_kernels;

#define BD_DECLARE_ROWS(level) extern const bd_row_kernels bd_row_kernels_##level;
BD_FOR_EACH_ISA(BD_DECLARE_ROWS)
#undef BD_DECLARE_ROWS

const bd_row_kernels *bd_row_kernels_now(void); /* those of bd_isa() */

#endif
