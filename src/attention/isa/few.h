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

// scores[r, k] = <query[r], key[k]> for `blocks` vectors of keys from `first` on.
INLINE void score_blocks(const bd_words words, const int rows, const int blocks,
                         const bd_word *query, int64_t query_stride, const raw_tile *tile,
                         int64_t first, float *scores)
{
    const int64_t steps = bd_words_of(words, tile->size);
    const int64_t run = words == BD_WORDS_F32 ? HEAD_RUN : steps;
    for (int64_t start = 0; start < steps; start += run) {
        const int64_t end = steps - start < run ? steps : start + run;
        vf sum[BD_ROW_GROUP][4];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int j = 0; j < blocks; j++)
                sum[r][j] = vf_zero();
        for (int64_t s = start; s < end; s += VF_WIDTH) {
#pragma GCC unroll 4
            for (int j = 0; j < blocks; j++) {
                vf column[VF_WIDTH];
                int64_t k = first + j * VF_WIDTH;
                transpose_words(words, tile->key + k * tile->stride, tile->stride, tile->keys - k, s,
                                tile->size, column);
                if (end - s >= VF_WIDTH) {
#pragma GCC unroll 16
                    for (int i = 0; i < VF_WIDTH; i++)
#pragma GCC unroll 8
                        for (int r = 0; r < rows; r++)
                            sum[r][j] = product_step(words, query + r * query_stride + s + i,
                                                     column[i], sum[r][j]);
                } else {
                    for (int64_t i = 0; i < end - s; i++)
#pragma GCC unroll 8
                        for (int r = 0; r < rows; r++)
                            sum[r][j] = product_step(words, query + r * query_stride + s + i,
                                                     column[i], sum[r][j]);
                }
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int j = 0; j < blocks; j++) {
                float *to = scores + r * BD_KEY_TILE + first + j * VF_WIDTH;
                if (start > 0)
                    sum[r][j] += vf_load(to);
                vf_store(to, sum[r][j]);
            }
    }
}

#if defined(VF_512)
enum { SUMS_OF_FEW = 16 };
#else
enum { SUMS_OF_FEW = 4 };
#endif

// As many vectors of keys at once as there are registers for sums.
INLINE void scores_of_rows(const bd_words words, const int rows, const bd_word *query,
                           int64_t query_stride, const raw_tile *tile, int64_t begin, int64_t end,
                           float *scores)
{
    int64_t k = begin;
    if (4 * rows <= SUMS_OF_FEW)
        for (; end - k >= 4 * VF_WIDTH; k += 4 * VF_WIDTH)
            score_blocks(words, rows, 4, query, query_stride, tile, k, scores);
    if (2 * rows <= SUMS_OF_FEW)
        for (; end - k >= 2 * VF_WIDTH; k += 2 * VF_WIDTH)
            score_blocks(words, rows, 2, query, query_stride, tile, k, scores);
    for (; k < end; k += VF_WIDTH)
        score_blocks(words, rows, 1, query, query_stride, tile, k, scores);
}

// For keys [begin, end) of the tile. Rows of queries up to the next power of two must exist.
INLINE void scores_of_few(const bd_words words, int64_t rows, const bd_word *query,
                          int64_t query_stride, const raw_tile *tile, int64_t begin, int64_t end,
                          float *scores)
{
    if (rows == 1)
        scores_of_rows(words, 1, query, query_stride, tile, begin, end, scores);
    else if (rows == 2)
        scores_of_rows(words, 2, query, query_stride, tile, begin, end, scores);
    else if (rows <= 4)
        scores_of_rows(words, 4, query, query_stride, tile, begin, end, scores);
    else
        scores_of_rows(words, 8, query, query_stride, tile, begin, end, scores);
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
