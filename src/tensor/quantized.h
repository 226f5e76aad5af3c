/* quantized.h - weights in blocks of 32 int8 with one f16 scale each (Q8_0), and products with them.
 *
 * An approximation, in two places: a weight is its int8 times the scale of its block, and the
 * left-hand row is rounded the same way, block by block, with f32 scales. Products of two blocks are
 * exact integers; blocks are added in f32 in the order of `in`, so that a row's result has the same
 * bits whatever other rows are computed with it. For frozen weights: there is no way back.
 *
 * matmul.h is the way in: bd_pack(BD_Q8_0, ...) and bd_matmul.
 */
#ifndef BD_TENSOR_QUANTIZED_H
#define BD_TENSOR_QUANTIZED_H

#include "tensor/matmul.h"

enum { BD_Q8_GROUP = 32, BD_Q8_BYTES = 34 };

/* Blocks as files hold them (ggml's Q8_0): an f16 scale amax / 127, then 32 int8, halves rounded
 * away from zero; what is no number becomes 0. count is a multiple of 32. */
void bd_q8_from_f32(const float *source, void *target, int64_t count);
void bd_q8_to_f32(const void *source, float *target, int64_t count);

/* What matmul.c does with packed weights of BD_Q8_0. An `in` that is no multiple of 32 is filled up
 * with zeros. */
size_t bd_quantized_bytes(int64_t out, int64_t in);
void bd_quantized_pack(const void *w, bd_dtype w_dtype, int64_t out, int64_t in, void *storage);
void bd_quantized_products(const bd_product *products, int count, const float *x, int64_t rows,
                           int64_t x_stride, bd_matmul_mode mode, bd_arena *scratch);

#endif
