/* rows.h - the operations of a transformer that work on rows one by one.
 *
 * Every array is row-major. Forward and backward stand side by side with the same argument order.
 * Gradients named dx are *added to*, never overwritten. All are batch-invariant and give the same
 * bits on any number of threads; sums over rows (weight gradients) run in a fixed order that depends
 * on the shapes alone.
 */
#ifndef BD_TENSOR_ROWS_H
#define BD_TENSOR_ROWS_H

#include "base/arena.h"
#include "tensor/dtype.h"

/* y = x / sqrt(mean(x^2) + eps) * weight. x, y: [rows, width]; weight: [width]. inverse[rows] keeps
 * 1 / sqrt(...) for the backward pass; NULL if there will be none. y may be x. */
void bd_rms_norm(const float *x, const float *weight, float eps, int64_t rows, int64_t width,
                 float *y, float *inverse);
void bd_rms_norm_backward(const float *x, const float *weight, const float *inverse,
                          const float *dy, int64_t rows, int64_t width, float *dx, float *dweight,
                          bd_arena *scratch);

/* Rotary positions, halves paired: element i of a head turns with element i + size/2 by the angle
 * position * theta^(-2i/size). x, y: [rows, heads, size]; y may be x. */
typedef struct {
    int64_t head_size;
    const double *inverse_frequency; /* [head_size / 2] */
    float factor;                    /* multiplies cos and sin; 1 without scaling */
} bd_rope;
void bd_rope_forward(const bd_rope *rope, const float *x, const int32_t *positions, int64_t rows,
                     int64_t heads, float *y);
void bd_rope_backward(const bd_rope *rope, const float *dy, const int32_t *positions, int64_t rows,
                      int64_t heads, float *dx);

/* y = silu(gate) * up, silu(z) = z / (1 + exp(-z)). All [count]. */
void bd_swiglu(const float *gate, const float *up, int64_t count, float *y);
void bd_swiglu_backward(const float *gate, const float *up, const float *dy, int64_t count,
                        float *dgate, float *dup);

void bd_add(const float *a, const float *b, int64_t count,
            float *y);                                       /* y = a + b; y may be a or b */
void bd_accumulate(const float *x, int64_t count, float *y); /* y += x */
void bd_scale(float factor, int64_t count, float *x);        /* x *= factor */

/* y[r] = table[ids[r]] (table of any float dtype); the backward adds rows in order of r. */
void bd_gather(const void *table, bd_dtype dtype, int64_t width, const int32_t *ids, int64_t rows,
               float *y);
void bd_gather_backward(const float *dy, int64_t width, const int32_t *ids, int64_t rows,
                        float *dtable);

/* out[i] = sum_r x[r, i] added to out, in order of r. */
void bd_sum_rows(const float *x, int64_t rows, int64_t width, float *out);

/* Index of the largest value; the lowest index wins ties; a NaN never wins (decision 12). */
int64_t bd_argmax(const float *x, int64_t count);

/* The `most` largest values, falling, equal ones by index, and where they stand; most <= count. A NaN
 * enters only while there are too few numbers (decision 12). */
void bd_largest(const float *x, int64_t count, int64_t most, int32_t *index, float *value);

/* log(sum(exp(x))) and softmax with the maximum taken out first. */
float bd_log_sum_exp(const float *x, int64_t count);
void bd_softmax(const float *x, int64_t count, float *y);

/* Sum of squares in double, in a fixed order. */
double bd_sum_of_squares(const float *x, int64_t count);

#endif
