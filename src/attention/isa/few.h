/* isa/few.h - one group of rows against keys and values where they lie.
 *
 * Generation has a few queries and a long row of keys that nobody has packed: packing would cost
 * more than the products. These two read each key and value once, in blocks that fit in registers,
 * and give the same bits as the products over packed tiles.
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

// sum[r, k] = sum of query[r, s] key[k, s] over words start .. end - 1, for keys [first, last).
// Chains wait in memory between blocks: that keeps the code of a block short, and those of several
// vectors of keys apart.
INLINE void score_run(const bd_words words, const int rows, const bd_word *query,
                      int64_t query_stride, const raw_tile *tile, int64_t first, int64_t last,
                      int64_t start, int64_t end, float *sum, fetcher *next)
{
    for (int64_t s = start; s < end; s += VF_WIDTH) {
        for (int64_t k = first; k < last; k += VF_WIDTH) {
            vf column[VF_WIDTH], chain[BD_ROW_GROUP];
            fetch_lines(next, words == BD_WORDS_PAIRS ? 2 * VF_WIDTH : VF_WIDTH);
            transpose_words(words, tile->key + k * tile->stride, tile->stride, tile->keys - k, s,
                            tile->size, column);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++)
                chain[r] = s > start ? vf_load(sum + r * BD_KEY_TILE + k) : vf_zero();
            if (end - s >= VF_WIDTH) {
#pragma GCC unroll 16
                for (int i = 0; i < VF_WIDTH; i++)
#pragma GCC unroll 8
                    for (int r = 0; r < rows; r++)
                        chain[r] = product_step(words, query + r * query_stride + s + i, column[i],
                                                chain[r]);
            } else {
                for (int64_t i = 0; i < end - s; i++)
#pragma GCC unroll 8
                    for (int r = 0; r < rows; r++)
                        chain[r] = product_step(words, query + r * query_stride + s + i, column[i],
                                                chain[r]);
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++)
                vf_store(sum + r * BD_KEY_TILE + k, chain[r]);
        }
    }
}

// scores[r, k] = <query[r], key[k]>, in the runs of multiply_heads.
INLINE void scores_of_rows(const bd_words words, const int rows, const bd_word *query,
                           int64_t query_stride, const raw_tile *tile, int64_t begin, int64_t end,
                           float *scores, fetcher *next)
{
    const int64_t steps = bd_words_of(words, tile->size);
    const int64_t run = words == BD_WORDS_F32 && steps > HEAD_RUN ? HEAD_RUN : steps;
    score_run(words, rows, query, query_stride, tile, begin, end, 0, run, scores, next);
    for (int64_t s = run; s < steps; s += run) {
        _Alignas(64) float sum[BD_ROW_GROUP * BD_KEY_TILE];
        const int64_t stop = steps - s < run ? steps : s + run;
        score_run(words, rows, query, query_stride, tile, begin, end, s, stop, sum, next);
        for (int r = 0; r < rows; r++)
            for (int64_t k = r * BD_KEY_TILE + begin; k < r * BD_KEY_TILE + end; k += VF_WIDTH)
                vf_store(scores + k, vf_load(sum + k) + vf_load(scores + k));
    }
}

// For keys [begin, end) of the tile. Rows of queries up to the next power of two must exist.
INLINE void scores_of_few(const bd_words words, int64_t rows, const bd_word *query,
                          int64_t query_stride, const raw_tile *tile, int64_t begin, int64_t end,
                          float *scores, fetcher *next)
{
    if (rows == 1)
        scores_of_rows(words, 1, query, query_stride, tile, begin, end, scores, next);
    else if (rows == 2)
        scores_of_rows(words, 2, query, query_stride, tile, begin, end, scores, next);
    else if (rows <= 4)
        scores_of_rows(words, 4, query, query_stride, tile, begin, end, scores, next);
    else
        scores_of_rows(words, 8, query, query_stride, tile, begin, end, scores, next);
}

#if defined(VF_512)
enum { SUMS_OF_FEW = 16 }; // as many vectors at once as there are registers for sums
#else
enum { SUMS_OF_FEW = 4 };
#endif

// Numbers i .. of the words of keys k, k + 1, ... that one step eats.
INLINE vf value_words(const bd_words words, const raw_tile *tile, int64_t k, int64_t end, int64_t i)
{
    const float *value = tile->value + k * tile->stride;
    vf v = load_at(value, i, tile->size);
    if (words == BD_WORDS_PAIRS)
        v = pairs_across(v, k + 1 < end ? load_at(value + tile->stride, i, tile->size) : vf_zero());
    return words == BD_WORDS_ROUNDED ? rounded(v) : v;
}

// out[r, i ..] = factor[r] * out[r, i ..] + sum_k p[r, k] value[k, i ..] for `vectors` vectors.
INLINE void value_block(const bd_words words, const int rows, const int vectors, const bd_word *p,
                        const raw_tile *tile, int64_t begin, int64_t end, int64_t i, float *out,
                        int64_t out_stride, const float *factor, fetcher *next)
{
    const int64_t each = words == BD_WORDS_PAIRS ? 2 : 1;
    vf sum[BD_ROW_GROUP][4];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            sum[r][j] = vf_zero();
    for (int64_t k = begin; k < end; k += each) {
        vf v[4];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            v[j] = value_words(words, tile, k, end, i + j * VF_WIDTH);
        fetch_lines(next, vectors * each);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++)
                sum[r][j] =
                    product_step(words, p + r * (BD_KEY_TILE / each) + k / each, v[j], sum[r][j]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            float *to = out + r * out_stride + i + j * VF_WIDTH;
            vf_store(to, vf_fma(vf_load(to), vf_set1(factor[r]), sum[r][j]));
        }
}

// The same over a whole padded head.
INLINE void values_of_rows(const bd_words words, const int rows, int64_t width, const bd_word *p,
                           const raw_tile *tile, int64_t begin, int64_t end, float *out,
                           const float *factor, fetcher *next)
{
    int64_t i = 0;
    if (4 * rows <= SUMS_OF_FEW)
        for (; width - i >= 4 * VF_WIDTH; i += 4 * VF_WIDTH)
            value_block(words, rows, 4, p, tile, begin, end, i, out, width, factor, next);
    if (2 * rows <= SUMS_OF_FEW)
        for (; width - i >= 2 * VF_WIDTH; i += 2 * VF_WIDTH)
            value_block(words, rows, 2, p, tile, begin, end, i, out, width, factor, next);
    for (; i < width; i += VF_WIDTH)
        value_block(words, rows, 1, p, tile, begin, end, i, out, width, factor, next);
}

INLINE void values_of_few(const bd_words words, int64_t rows, int64_t width, const bd_word *p,
                          const raw_tile *tile, int64_t begin, int64_t end, float *out,
                          const float *factor, fetcher *next)
{
    if (rows == 1)
        values_of_rows(words, 1, width, p, tile, begin, end, out, factor, next);
    else if (rows == 2)
        values_of_rows(words, 2, width, p, tile, begin, end, out, factor, next);
    else if (rows <= 4)
        values_of_rows(words, 4, width, p, tile, begin, end, out, factor, next);
    else
        values_of_rows(words, 8, width, p, tile, begin, end, out, factor, next);
}

#endif
