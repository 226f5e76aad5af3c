/* isa/words.h - operands of attention's products: conversion to words (kernel.h) and packing.
 *
 * Included by isa/NAME.c only. `words` is a constant wherever these are called, so each call
 * compiles to one of the three cases.
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

/* --- where things lie ------------------------------------------------------------------------ */

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

/* --- masks ----------------------------------------------------------------------------------- */

// -1 in the lanes whose bit is set, from bit `first` on.
INLINE vi lanes_of(uint64_t mask, int64_t first)
{
    vi bits = vi_set1((int32_t)(uint32_t)(mask >> first));
    return -((bits >> vi_count()) & 1);
}

/* What a group of rows sees of a tile, by the masks of its rows: keys [begin, end) in steps of 16
 * hold all of it; `whole` when every row sees every one of these. end 0: nothing is seen. */
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
    sight s = {.begin = __builtin_ctzll(some) / 16 * 16,
               .end = 64 - __builtin_clzll(some) / 16 * 16};
    uint64_t wanted = (~(uint64_t)0 >> (64 - (s.end - s.begin))) << s.begin;
    s.whole = (all & wanted) == wanted;
    return s;
}

/* --- transposition --------------------------------------------------------------------------- */

// Within each 128 bits: (a0, b0, a1, b1), (a2, b2, a3, b3) and (a0, a1, b0, b1), (a2, a3, b2, b3).
#define SECOND(i) (VF_WIDTH + (i))
#if defined(VF_512)
#define QUARTERS(w, x, y, z)                                                                       \
    w, x, y, z, 4 + w, 4 + x, 4 + y, 4 + z, 8 + w, 8 + x, 8 + y, 8 + z, 12 + w, 12 + x, 12 + y,    \
        12 + z
#elif defined(VF_256)
#define QUARTERS(w, x, y, z) w, x, y, z, 4 + w, 4 + x, 4 + y, 4 + z
#else
#define QUARTERS(w, x, y, z) w, x, y, z
#endif
#define LOW_ONES(a, b)  __builtin_shufflevector(a, b, QUARTERS(0, SECOND(0), 1, SECOND(1)))
#define HIGH_ONES(a, b) __builtin_shufflevector(a, b, QUARTERS(2, SECOND(2), 3, SECOND(3)))
#define LOW_TWOS(a, b)  __builtin_shufflevector(a, b, QUARTERS(0, 1, SECOND(0), SECOND(1)))
#define HIGH_TWOS(a, b) __builtin_shufflevector(a, b, QUARTERS(2, 3, SECOND(2), SECOND(3)))

/* Swaps rows and columns: first inside 128 bits, 4 rows at a time, then pieces of 128 bits. */
INLINE void transpose(vf m[VF_WIDTH])
{
#pragma GCC unroll 4
    for (int g = 0; g < VF_WIDTH; g += 4) {
        vf a = LOW_ONES(m[g], m[g + 1]), b = HIGH_ONES(m[g], m[g + 1]);
        vf c = LOW_ONES(m[g + 2], m[g + 3]), d = HIGH_ONES(m[g + 2], m[g + 3]);
        m[g] = LOW_TWOS(a, c);
        m[g + 1] = HIGH_TWOS(a, c);
        m[g + 2] = LOW_TWOS(b, d);
        m[g + 3] = HIGH_TWOS(b, d);
    }
#if defined(VF_512)
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        vf a = _mm512_shuffle_f32x4(m[i], m[4 + i], 0x44);
        vf b = _mm512_shuffle_f32x4(m[i], m[4 + i], 0xee);
        vf c = _mm512_shuffle_f32x4(m[8 + i], m[12 + i], 0x44);
        vf d = _mm512_shuffle_f32x4(m[8 + i], m[12 + i], 0xee);
        m[i] = _mm512_shuffle_f32x4(a, c, 0x88);
        m[4 + i] = _mm512_shuffle_f32x4(a, c, 0xdd);
        m[8 + i] = _mm512_shuffle_f32x4(b, d, 0x88);
        m[12 + i] = _mm512_shuffle_f32x4(b, d, 0xdd);
    }
#elif defined(VF_256)
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        vf low = _mm256_permute2f128_ps(m[i], m[4 + i], 0x20);
        m[4 + i] = _mm256_permute2f128_ps(m[i], m[4 + i], 0x31);
        m[i] = low;
    }
#endif
}

/* Lane k of block[i] is word `word` + i of row k of x, for VF_WIDTH rows and words. Rows from
 * `rows` on hold some number or other, words beyond the row's `size` numbers are 0. A row is read a
 * whole vector at a time: where rows lie a power of two apart, few of their lines fit in the cache
 * together. */
INLINE void transpose_words(const bd_words words, const float *x, int64_t stride, int64_t rows,
                            int64_t word, int64_t size, vf block[VF_WIDTH])
{
    enum { MOST_NUMBERS = 2 * VF_WIDTH };
    const int64_t numbers = words == BD_WORDS_PAIRS ? 2 * VF_WIDTH : VF_WIDTH;
    float copy[VF_WIDTH * MOST_NUMBERS];
    const int64_t first = words == BD_WORDS_PAIRS ? 2 * word : word;
    x += first;
    if (size - first < numbers) { // the end of a head that fills no vector
        memset(copy, 0, sizeof copy);
        for (int64_t k = 0; k < VF_WIDTH && k < rows; k++)
            memcpy(copy + k * MOST_NUMBERS, x + k * stride, (size_t)(size - first) * sizeof(float));
        x = copy;
        stride = MOST_NUMBERS;
        rows = VF_WIDTH;
    }
    if (rows >= VF_WIDTH) {
#pragma GCC unroll 16
        for (int i = 0; i < VF_WIDTH; i++)
            block[i] = words_along(words, x + i * stride, 0, INT64_MAX);
    } else {
#pragma GCC unroll 16
        for (int i = 0; i < VF_WIDTH; i++)
            block[i] = words_along(words, x + (i < rows ? i : rows - 1) * stride, 0, INT64_MAX);
    }
    transpose(block);
}

/* --- reading ahead --------------------------------------------------------------------------- */

/* What will be read next: rows of `numbers` floats. Reading heads side by side jumps through
 * memory, so lines are asked for ahead, in the order of memory, a few at a time between the
 * arithmetic. */
typedef struct {
    const float *row;
    int64_t at, numbers, stride, rows;
} fetcher;

INLINE void fetch_lines(fetcher *f, const int64_t lines)
{
    enum { LINE = 64 / sizeof(float) };
    if (f->rows <= 0)
        return;
    if (f->numbers - f->at >= lines * LINE) {
#pragma GCC unroll 32
        for (int64_t i = 0; i < lines; i++)
            __builtin_prefetch(f->row + f->at + i * LINE, 0, 2);
        f->at += lines * LINE;
    } else {
        for (int64_t i = 0; i < lines; i++, f->at += LINE) {
            if (f->at >= f->numbers) {
                f->at = 0;
                f->row += f->stride;
                f->rows--;
            }
            __builtin_prefetch(f->row + f->at, 0, 2);
        }
    }
    if (f->at >= f->numbers) {
        f->at = 0;
        f->row += f->stride;
        f->rows--;
    }
}

/* --- tiles ----------------------------------------------------------------------------------- */

/* x[k] for k < count <= BD_KEY_TILE, row stride `stride`, as a right operand summed over head_size:
 * columns [head_steps][BD_KEY_TILE]; columns k >= count hold some number or other. */
INLINE void pack_columns(const bd_words words, const float *x, int64_t stride, int64_t count,
                         int64_t size, bd_word *columns, fetcher *next)
{
    int64_t steps = bd_words_of(words, size);
    for (int64_t k = 0; k < BD_KEY_TILE; k += VF_WIDTH)
        for (int64_t s = 0; s < steps; s += VF_WIDTH) {
            vf block[VF_WIDTH];
            int64_t first = k < count ? k : count - 1;
            transpose_words(words, x + first * stride, stride, count - first, s, size, block);
            fetch_lines(next, words == BD_WORDS_PAIRS ? 2 * VF_WIDTH : VF_WIDTH);
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

/* x[k] for k < count, as a right operand summed over k: rows [words of `padded` rows][width], zero
 * for k >= count. */
INLINE void pack_right(const bd_words words, const float *x, int64_t stride, int64_t count,
                       int64_t padded, int64_t size, int64_t width, bd_word *rows, fetcher *next)
{
    const int64_t each = words == BD_WORDS_PAIRS ? 2 : 1;
    for (int64_t k = 0; k < padded; k += each, rows += width)
        for (int64_t i = 0; i < width; i += VF_WIDTH) {
            vf v = k < count ? load_at(x + k * stride, i, size) : vf_zero();
            if (words == BD_WORDS_PAIRS)
                v = pairs_across(v, k + 1 < count ? load_at(x + (k + 1) * stride, i, size)
                                                  : vf_zero());
            else if (words == BD_WORDS_ROUNDED)
                v = rounded(v);
            fetch_lines(next, each);
            store_words(rows + i, v);
        }
}

#endif
