/* attention.h - softmax attention over the visible pairs only.
 *
 * out[q] = sum_k p[q,k] v[k], p = softmax over visible k of scale * <query[q], key[k]>, query head
 * h reading key head h / (query_heads / key_heads). Tiles that the rule calls EMPTY are skipped,
 * forward and backward; a query that sees nothing gives 0. Keys are walked in tiles that start at
 * absolute multiples of the tile size, so a query's result has the same bits whatever other queries
 * are computed with it (batch-invariant), on any number of threads.
 *
 *     bd_attention a = {.rule = &rule, .batch = B, .query_heads = 8, .key_heads = 2,
 *                       .head_size = 64, .scale = 0.125f, .compute = BD_F32};
 *     bd_attention_forward(&a, q, k, v, out, log_sum, scratch);
 */
#ifndef BD_ATTENTION_ATTENTION_H
#define BD_ATTENTION_ATTENTION_H

#include "attention/visibility.h"
#include "base/arena.h"
#include "tensor/dtype.h"

enum { BD_MOST_HEAD_SIZE = 512 };

typedef struct {
    const bd_visibility *rule;
    int64_t batch, query_heads, key_heads, head_size; /* head_size 1..BD_MOST_HEAD_SIZE */
    float scale;                                      /* above 0 */
    bd_dtype
        compute; /* BD_F32, or BD_BF16: inputs of the products rounded to bf16, f32 sums; beside
                          weights in BD_Q8_0 attention is that of BD_BF16 */
    const float *sink; /* [query_heads]: a logit more per head, its probability dropped; or NULL */
} bd_attention;

/* query, out: [batch, query_length, query_heads, head_size]; key, value: [batch, key_length,
 * key_heads, head_size], with the row strides of a dense array. Hidden keys and values must be
 * finite as well. log_sum [batch, query_heads, query_length] keeps the logsumexp of the visible
 * scores and the sink for the backward pass, -inf where nothing is visible; NULL if there will be
 * none. */
void bd_attention_forward(const bd_attention *a, const float *query, const float *key,
                          const float *value, float *out, float *log_sum, bd_arena *scratch);

/* Gradients are added to d_query, d_key, d_value and d_sink [query_heads] (NULL without a sink). */
void bd_attention_backward(const bd_attention *a, const float *query, const float *key,
                           const float *value, const float *out, const float *log_sum,
                           const float *d_out, float *d_query, float *d_key, float *d_value,
                           float *d_sink, bd_arena *scratch);

/* The reference: dense, float64 inside, every pair asked. Same arguments; slow; for tests and
 * `attention.kernel: dense`. */
void bd_attention_dense_forward(const bd_attention *a, const float *query, const float *key,
                                const float *value, float *out, float *log_sum, bd_arena *scratch);
void bd_attention_dense_backward(const bd_attention *a, const float *query, const float *key,
                                 const float *value, const float *out, const float *log_sum,
                                 const float *d_out, float *d_query, float *d_key, float *d_value,
                                 float *d_sink, bd_arena *scratch);

#endif
