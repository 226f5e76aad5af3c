/* isa/words.h - operands of attention's products: conversion to words (kernel.h) and packing.
 *
 * Included by isa/NAME.c only. `words` is a constant wherever these are called, so each call compiles to one
 * of the three cases.
 */
#ifndef BD_ATTENTION_ISA_WORDS_H
#define BD_ATTENTION_ISA_WORDS_H

#include "attention/kernel.h"
#include "tensor/isa/vector.h"

/* What products with inputs rounded to bf16 work on at this level. */
#if defined(BD_ISA_avx512bf16)
#define BF16_WORDS BD_WORDS_PAIRS
#else
#define BF16_WORDS BD_WORDS_ROUNDED
#endif

#define INLINE static inline __attribute__((always_inline))

INLINE vf load_words(const bd_word *p)
{
    return (vf)vi_load((const int32_t *)(const void *)p);
}
INLINE void store_words(bd_word *p, vf words)
{
    memcpy(p, &words, sizeof words);
}

INLINE vf rounded(vf x)
{
    return (vf)(vf_round_bf16(x) & (int32_t)0xffff0000);
}

/* Words (first[0], first[1]), (first[2], first[3]) ... (second[0], second[1]) ... */
INLINE vf pairs_along(vf first, vf second)
{
#if defined(BD_ISA_avx512bf16)
    return (vf)_mm512_cvtne2ps_pbh(second, first);
#else
    return (vf)vb_from_f32(first, second);
#endif
}

/* Words (even[0], odd[0]), (even[1], odd[1]) ... */
INLINE vf pairs_across(vf even, vf odd)
{
#if defined(BD_ISA_avx512bf16)
    const __m512i order =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    return (vf)_mm512_permutexvar_epi16(order, (__m512i)_mm512_cvtne2ps_pbh(odd, even));
#else
    return (vf)vb_interleave(even, odd);
#endif
}

/* VF_WIDTH numbers as bf16. */
INLINE void store_half_words(uint16_t *p, vf x)
{
#if defined(BD_ISA_avx512bf16)
    _mm256_storeu_si256((__m256i *)(void *)p, (__m256i)_mm512_cvtneps_pbh(x));
#else
    vf_store_bf16(p, x);
#endif
}

/* Elements at, at + 1 ... of x[count]; 0 beyond its end. */
INLINE vf load_at(const float *x, int64_t at, int64_t count)
{
    int64_t left = count - at;
    if (left >= VF_WIDTH)
        return vf_load(x + at);
    return left > 0 ? vf_load_n(x + at, left) : vf_zero();
}

/* VF_WIDTH words along x[count], from word `word` on. */
INLINE vf words_along(const bd_words words, const float *x, int64_t word, int64_t count)
{
    if (words == BD_WORDS_PAIRS)
        return pairs_along(load_at(x, 2 * word, count), load_at(x, 2 * word + VF_WIDTH, count));
    vf v = load_at(x, word, count);
    return words == BD_WORDS_ROUNDED ? rounded(v) : v;
}

/* A row as a left operand summed over head_size: row_words words, zero beyond the row's end. */
INLINE void pack_left(const bd_words words, const float *x, int64_t count, int64_t row_words,
                      bd_word *row)
{
    int64_t w = 0;
    for (; w + VF_WIDTH <= row_words; w += VF_WIDTH)
        store_words(row + w, words_along(words, x, w, count));
    if (w < row_words) { // a padded head of 16 bf16 numbers is half a vector
        float last[VF_WIDTH];
        vf_store(last, words_along(words, x, w, count));
        memcpy(row + w, last, (size_t)(row_words - w) * sizeof *row);
    }
}

/* --- where things lie --------------------------------------------------------------------------------- */

// Row r of a key head: query r / group, head r % group of the group.
INLINE int64_t row_at(const bd_attention_job *job, int64_t b, int64_t key_head, int64_t row)
{
    int64_t group = job->plan.group, query = row / group, head = key_head * group + row % group;
    const bd_attention *a = job->a;
    int64_t index = (job->first_row + b) * a->rule->query_length + query;
    return (index * a->query_heads + head) * a->head_size;
}

INLINE int64_t key_at(const bd_attention_job *job, int64_t b, int64_t key_head, int64_t key)
{
    const bd_attention *a = job->a;
    int64_t index = (job->first_row + b) * a->rule->key_length + key;
    return (index * a->key_heads + key_head) * a->head_size;
}

INLINE int64_t keys_in_tile(const bd_attention_job *job, int64_t tile)
{
    int64_t left = job->a->rule->key_length - tile * BD_KEY_TILE;
    return left < BD_KEY_TILE ? left : BD_KEY_TILE;
}

/* --- masks ----------------------------------------------------------------------------------------- */

// -1 in the lanes whose bit is set, from bit `first` on.
INLINE vi lanes_of(uint64_t mask, int64_t first)
{
    vi bits = vi_set1((int32_t)(uint32_t)(mask >> first));
    return -((bits >> vi_count()) & 1);
}

/* What a group of rows sees of a tile, by the masks of its rows: keys [begin, end) in steps of 16 hold
 * all of it; `whole` when every row sees every one of these. end 0: nothing is seen. */
typedef struct {
    int64_t begin, end;
    bool whole;
} sight;

INLINE sight sight_of(const uint64_t *masks, int64_t rows)
{
    uint64_t some = 0, all = ~(uint64_t)0;
    for (int64_t r = 0; r < rows; r++) {
        some |= masks[r];
        all &= masks[r];
    }
    if (!some)
        return (sight){0};
    sight s = {.begin = __builtin_ctzll(some) / 16 * 16, .end = 64 - __builtin_clzll(some) / 16 * 16};
    uint64_t wanted = (~(uint64_t)0 >> (64 - (s.end - s.begin))) << s.begin;
    s.whole = (all & wanted) == wanted;
    return s;
}

/* --- transposition --------------------------------------------------------------------------------- */

// (a0, b0, a1, b1 ...) of the lower and of the upper halves.
INLINE vf interleave_low(vf a, vf b)
{
#if defined(VF_512)
    return __builtin_shufflevector(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
#elif defined(VF_256)
    return __builtin_shufflevector(a, b, 0, 8, 1, 9, 2, 10, 3, 11);
#else
    return __builtin_shufflevector(a, b, 0, 4, 1, 5);
#endif
}
INLINE vf interleave_high(vf a, vf b)
{
#if defined(VF_512)
    return __builtin_shufflevector(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
#elif defined(VF_256)
    return __builtin_shufflevector(a, b, 4, 12, 5, 13, 6, 14, 7, 15);
#else
    return __builtin_shufflevector(a, b, 2, 6, 3, 7);
#endif
}

/* One shuffle of a whole deck: each bit of the row number moves up by one, the top one becomes the
 * lowest of the column number and the other way round. log2(VF_WIDTH) of them swap rows and columns. */
INLINE void shuffle_rows(const vf in[VF_WIDTH], vf out[VF_WIDTH])
{
#pragma GCC unroll 8
    for (int i = 0; i < VF_WIDTH / 2; i++) {
        out[2 * i] = interleave_low(in[i], in[i + VF_WIDTH / 2]);
        out[2 * i + 1] = interleave_high(in[i], in[i + VF_WIDTH / 2]);
    }
}

INLINE void transpose(vf rows[VF_WIDTH])
{
    vf other[VF_WIDTH];
    shuffle_rows(rows, other);
    shuffle_rows(other, rows);
#if defined(VF_512)
    shuffle_rows(rows, other);
    shuffle_rows(other, rows);
#elif defined(VF_256)
    shuffle_rows(rows, other);
#pragma GCC unroll 8
    for (int i = 0; i < VF_WIDTH; i++)
        rows[i] = other[i];
#endif
}

#if defined(VF_512)
/* Four numbers from each of 16 rows, transposed: four vectors. Lane quarters are filled by loads, so that what
 * is left to shuffle stays inside quarters. */
INLINE void transpose_quads(const float *x, int64_t stride, vf out[4])
{
    vf in[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        const float *row = x + i * stride; // quarter j of in[i] is row 4 j + i
        in[i] = _mm512_castps128_ps512(_mm_loadu_ps(row));
        in[i] = _mm512_mask_broadcast_f32x4(in[i], 0x00f0, _mm_loadu_ps(row + 4 * stride));
        in[i] = _mm512_mask_broadcast_f32x4(in[i], 0x0f00, _mm_loadu_ps(row + 8 * stride));
        in[i] = _mm512_mask_broadcast_f32x4(in[i], 0xf000, _mm_loadu_ps(row + 12 * stride));
    }
    vf a = _mm512_unpacklo_ps(in[0], in[1]), b = _mm512_unpackhi_ps(in[0], in[1]);
    vf c = _mm512_unpacklo_ps(in[2], in[3]), d = _mm512_unpackhi_ps(in[2], in[3]);
    out[0] = (vf)_mm512_unpacklo_pd((__m512d)a, (__m512d)c);
    out[1] = (vf)_mm512_unpackhi_pd((__m512d)a, (__m512d)c);
    out[2] = (vf)_mm512_unpacklo_pd((__m512d)b, (__m512d)d);
    out[3] = (vf)_mm512_unpackhi_pd((__m512d)b, (__m512d)d);
}
#endif

/* Words word .. word + VF_WIDTH - 1 of rows x[0 .. VF_WIDTH-1], transposed: lane k of block[i] is word
 * word + i of row k. Rows from `rows` on and words beyond the head are 0. */
INLINE void transposed_words(const bd_words words, const float *x, int64_t stride, int64_t rows,
                             int64_t word, int64_t size, vf block[VF_WIDTH])
{
#if defined(VF_512)
    if (words == BD_WORDS_F32 && rows >= VF_WIDTH && word + VF_WIDTH <= size) {
#pragma GCC unroll 4
        for (int i = 0; i < VF_WIDTH; i += 4)
            transpose_quads(x + word + i, stride, block + i);
        return;
    }
#endif
#pragma GCC unroll 16
    for (int i = 0; i < VF_WIDTH; i++)
        block[i] = i < rows ? words_along(words, x + i * stride, word, size) : vf_zero();
    transpose(block);
}

/* --- tiles ----------------------------------------------------------------------------------------- */

/* x[k] for k < count <= BD_KEY_TILE, row stride `stride`, as a right operand summed over head_size: columns
 * [head_steps][BD_KEY_TILE], zero for k >= count. */
INLINE void pack_columns(const bd_words words, const float *x, int64_t stride, int64_t count,
                         int64_t size, bd_word *columns)
{
    int64_t steps = bd_words_of(words, size);
    for (int64_t k = 0; k < BD_KEY_TILE; k += VF_WIDTH) {
        for (int64_t s = 0; s < steps; s += VF_WIDTH) {
            vf block[VF_WIDTH];
            transposed_words(words, x + k * stride, stride, count - k, s, size, block);
            bd_word *to = columns + s * BD_KEY_TILE + k;
            if (steps - s >= VF_WIDTH) {
#pragma GCC unroll 16
                for (int i = 0; i < VF_WIDTH; i++)
                    store_words(to + i * BD_KEY_TILE, block[i]);
            } else {
                for (int64_t i = 0; i < steps - s; i++)
                    store_words(to + i * BD_KEY_TILE, block[i]);
            }
        }
    }
}

/* x[k] for k < count, as a right operand summed over k: rows [words of `padded` rows][width], zero for
 * k >= count. */
INLINE void pack_right(const bd_words words, const float *x, int64_t stride, int64_t count,
                       int64_t padded, int64_t size, int64_t width, bd_word *rows)
{
    int64_t each = words == BD_WORDS_PAIRS ? 2 : 1;
    for (int64_t k = 0; k < padded; k += each, rows += width)
        for (int64_t i = 0; i < width; i += VF_WIDTH) {
            vf v = k < count ? load_at(x + k * stride, i, size) : vf_zero();
            if (words == BD_WORDS_PAIRS)
                v = pairs_across(v, k + 1 < count ? load_at(x + (k + 1) * stride, i, size)
                                                  : vf_zero());
            else if (words == BD_WORDS_ROUNDED)
                v = rounded(v);
            store_words(rows + i, v);
        }
}

#endif
