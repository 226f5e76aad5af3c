/* isa/few.h - one group of rows against keys and values where they lie.
 *
 * Generation has a few queries and a long row of keys that nobody has packed: packing would cost more than the
 * products. These two read each key and value once, in blocks that fit in registers, and give the same bits as
 * the products over packed tiles.
 */
#ifndef BD_ATTENTION_ISA_FEW_H
#define BD_ATTENTION_ISA_FEW_H

#include "attention/isa/product.h"

/* Keys and values of one tile in the caller's arrays. */
typedef struct {
    const float *key, *value; // of the tile's first key
    int64_t stride;           // between keys
    int64_t keys, size;
} raw_tile;

// scores[r, k] = <query[r], key[k]> for VF_WIDTH keys from `first` on. Each row of keys is one cache line a
// block; the same lines of the next keys, and of the values, are asked for on the way.
INLINE void score_block(const bd_words words, const int rows, const bd_word *query,
                        int64_t query_stride, const raw_tile *tile, int64_t first, float *scores)
{
    const int64_t steps = bd_words_of(words, tile->size), each = words == BD_WORDS_PAIRS ? 2 : 1;
    const int64_t at = first * tile->stride;
    vf sum[BD_ROW_GROUP], total[BD_ROW_GROUP];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        sum[r] = total[r] = vf_zero();
    for (int64_t s = 0; s < steps; s += VF_WIDTH) {
        if (words == BD_WORDS_F32 && s > 0 && s % HEAD_RUN == 0) {
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                total[r] += sum[r];
                sum[r] = vf_zero();
            }
        }
        vf block[VF_WIDTH];
        transposed_words(words, tile->key + at, tile->stride, tile->keys - first, s, tile->size, block);
        for (int64_t i = 0; i < VF_WIDTH; i++) {
            __builtin_prefetch(tile->key + at + (i + VF_WIDTH) * tile->stride + s * each);
            __builtin_prefetch(tile->value + at + i * tile->stride + s * each);
        }
        if (steps - s >= VF_WIDTH) {
#pragma GCC unroll 16
            for (int i = 0; i < VF_WIDTH; i++)
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++)
                    sum[r] = product_step(words, query + r * query_stride + s + i, block[i], sum[r]);
        } else {
            for (int64_t i = 0; i < steps - s; i++)
#pragma GCC unroll 8
                for (int r = 0; r < rows; r++)
                    sum[r] = product_step(words, query + r * query_stride + s + i, block[i], sum[r]);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        vf_store(scores + r * BD_KEY_TILE + first, total[r] + sum[r]);
}

// For keys [begin, end) of the tile. Rows of queries up to the next power of two must exist.
INLINE void scores_of_few(const bd_words words, int64_t rows, const bd_word *query,
                          int64_t query_stride, const raw_tile *tile, int64_t begin, int64_t end,
                          float *scores)
{
    for (int64_t k = begin; k < end; k += VF_WIDTH) {
        if (rows == 1)
            score_block(words, 1, query, query_stride, tile, k, scores);
        else if (rows == 2)
            score_block(words, 2, query, query_stride, tile, k, scores);
        else if (rows <= 4)
            score_block(words, 4, query, query_stride, tile, k, scores);
        else
            score_block(words, 8, query, query_stride, tile, k, scores);
    }
}

// out[r, i ..] = factor[r] * out[r, i ..] + sum_k p[r, k] value[k, i ..] for `vectors` vectors of pairs.
INLINE void value_block(const int rows, const int vectors, const bd_word *p, const raw_tile *tile,
                        int64_t begin, int64_t end, int64_t i, float *out, int64_t out_stride,
                        const float *factor)
{
    vf sum[BD_ROW_GROUP][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++)
            sum[r][j] = vf_zero();
    for (int64_t k = begin; k < end; k += 2) {
        const float *even = tile->value + k * tile->stride, *odd = even + tile->stride;
        vf v[2];
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++) {
            vf second = k + 1 < end ? load_at(odd, i + j * VF_WIDTH, tile->size) : vf_zero();
            v[j] = pairs_across(load_at(even, i + j * VF_WIDTH, tile->size), second);
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
            for (int j = 0; j < vectors; j++)
                sum[r][j] =
                    product_step(BD_WORDS_PAIRS, p + r * (BD_KEY_TILE / 2) + k / 2, v[j], sum[r][j]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (int j = 0; j < vectors; j++) {
            float *to = out + r * out_stride + i + j * VF_WIDTH;
            vf_store(to, vf_fma(vf_load(to), vf_set1(factor[r]), sum[r][j]));
        }
}

// The same over a whole padded head, for p in pairs.
INLINE void values_of_few(int64_t rows, int64_t width, const bd_word *p, const raw_tile *tile,
                          int64_t begin, int64_t end, float *out, const float *factor)
{
#define VALUE_BLOCK(rows, vectors)                                                                 \
    value_block(rows, vectors, p, tile, begin, end, i, out, width, factor)
    for (int64_t i = 0; i < width; i += 2 * VF_WIDTH) {
        bool two = width - i > VF_WIDTH;
        if (rows == 1 && two)
            VALUE_BLOCK(1, 2);
        else if (rows == 1)
            VALUE_BLOCK(1, 1);
        else if (rows == 2 && two)
            VALUE_BLOCK(2, 2);
        else if (rows == 2)
            VALUE_BLOCK(2, 1);
        else if (rows <= 4 && two)
            VALUE_BLOCK(4, 2);
        else if (rows <= 4)
            VALUE_BLOCK(4, 1);
        else if (two)
            VALUE_BLOCK(8, 2);
        else
            VALUE_BLOCK(8, 1);
    }
#undef VALUE_BLOCK
}

#endif
