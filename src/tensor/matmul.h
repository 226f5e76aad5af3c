/* matmul.h - matrix products with weights packed once.
 *
 * A weight matrix is [out, in], as in Hugging Face files. It is packed into panels whose layout is
 * the instruction set's own; products run in f32, with both inputs rounded to bf16, or (forward
 * only) in blocks of int8 (quantized.h), always with f32 accumulation in a fixed order over `in`.
 * Every product here is *batch-invariant*: a row of
 * the result has the same bits whatever other rows are computed with it, and on any number of
 * threads.
 *
 *     bd_packed w = bd_pack(BD_BF16, data, BD_F32, out, in, BD_AS_STORED, storage);
 *     bd_matmul(&w, x, rows, in, bias, y, out, BD_STORE, scratch);   // y[r,o] = sum_i x[r,i]
 * w[o,i]
 */
#ifndef BD_TENSOR_MATMUL_H
#define BD_TENSOR_MATMUL_H

#include "base/arena.h"
#include "tensor/dtype.h"

typedef struct {
    bd_dtype dtype;  /* BD_F32, BD_BF16 or BD_Q8_0 */
    int64_t out, in; /* of the product: y is [rows, out], x is [rows, in] */
    void *data;      /* panels; owned by whoever gave the storage */
} bd_packed;

typedef enum { BD_AS_STORED, BD_TRANSPOSED } bd_pack_order;
typedef enum { BD_STORE, BD_ACCUMULATE } bd_matmul_mode;

/* Bytes of storage that bd_pack needs (64-byte aligned) for a product of this shape. */
size_t bd_packed_bytes(bd_dtype dtype, int64_t out, int64_t in);

/* Pack w. BD_AS_STORED: w is [out, in]. BD_TRANSPOSED: w is [in, out] and its transpose is packed,
 * so that a Hugging Face weight W [o, i] packed with out = i, in = o gives dX = dY @ W; not with
 * BD_Q8_0. */
bd_packed bd_pack(bd_dtype dtype, const void *w, bd_dtype w_dtype, int64_t out, int64_t in,
                  bd_pack_order order, void *storage);

/* y[r, o] (+)= sum_i x[r, i] * w[o, i] (+ bias[o]).
 * x: [rows, in] with row stride x_stride; y: [rows, out] with row stride y_stride; bias may be
 * NULL. BD_STORE overwrites y, BD_ACCUMULATE adds to it (the product is summed first, then added
 * once). */
void bd_matmul(const bd_packed *w, const float *x, int64_t rows, int64_t x_stride,
               const float *bias, float *y, int64_t y_stride, bd_matmul_mode mode,
               bd_arena *scratch);

/* The same for several weights that share their `in` and dtype and read the same x: one pass over
 * all panels, with the bits that each product has alone. */
typedef struct {
    const bd_packed *w;
    const float *bias; /* or NULL */
    float *y;
    int64_t y_stride;
} bd_product;

enum { BD_MOST_PRODUCTS = 4 };

void bd_matmul_several(const bd_product *products, int count, const float *x, int64_t rows,
                       int64_t x_stride, bd_matmul_mode mode, bd_arena *scratch);

/* dw[o, i] += sum_r dy[r, o] * x[r, i]: the gradient of a weight. Inputs are rounded to `compute`
 * (BD_F32 or BD_BF16) first. The sum runs over r in a fixed order that depends on rows alone. */
void bd_matmul_weight_gradient(bd_dtype compute, const float *dy, int64_t dy_stride, const float *x,
                               int64_t x_stride, int64_t rows, int64_t out, int64_t in, float *dw,
                               bd_arena *scratch);

#endif
