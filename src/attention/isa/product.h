/* isa/product.h - the one product that attention is made of.
 *
 * c[r, i] = sum_s a[r, s] b[s, i], a and b in words (kernel.h): one chain of additions per element
 * in the order of s, so that an element has the same bits whatever rows and columns are computed
 * with it. The sum replaces c[r, i], is added to it, or to factor[r] * c[r, i].
 */
#ifndef BD_ATTENTION_ISA_PRODUCT_H
#define BD_ATTENTION_ISA_PRODUCT_H

#include "attention/isa/words.h"

enum { PRODUCT_ROWS = 4 };
#if defined(VF_512)
enum { PRODUCT_VECTORS = 4 }; // 16 sums of 32 registers
#else
enum { PRODUCT_VECTORS = 2 }; // 8 of 16
#endif

typedef enum { STORE, ADD, SCALE_AND_ADD } product_end;

typedef struct {
    int64_t rows, columns, steps; // columns: a multiple of VF_WIDTH
    const bd_word *a;
    int64_t a_row, a_step; // strides in words
    const bd_word *b;
    int64_t b_step;
    float *c;
    int64_t c_row;
    product_end end;
    const float *factor; // [rows]
} product;

INLINE vf product_step(const bd_words words, const bd_word *a, vf b, vf sum)
{
    if (words == BD_WORDS_PAIRS) {
#if defined(BD_ISA_avx512bf16)
        return vf_dot_bf16(sum, vb_set1((const uint16_t *)(const void *)a), (vb)b);
#else
        __builtin_unreachable();
#endif
    }
    return vf_fma(vf_set1(*(const float __attribute__((may_alias)) *)a), b, sum);
}

INLINE void product_tile(const bd_words words, const int rows, const int vectors, const product *p,
                         const bd_word *a, const bd_word *b, float *c, const float *factor)
{
    vf sum[PRODUCT_ROWS][PRODUCT_VECTORS];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            sum[r][j] = vf_zero();
    const int64_t a_row = p->a_row, a_step = p->a_step, b_step = p->b_step;
    for (int64_t s = p->steps; s > 0; s--) {
        vf v[PRODUCT_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            v[j] = load_words(b + j * VF_WIDTH);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++)
                sum[r][j] = product_step(words, a + r * a_row, v[j], sum[r][j]);
        a += a_step;
        b += b_step;
    }
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            float *to = c + r * p->c_row + j * VF_WIDTH;
            if (p->end == ADD)
                sum[r][j] += vf_load(to);
            else if (p->end == SCALE_AND_ADD)
                sum[r][j] = vf_fma(vf_load(to), vf_set1(factor[r]), sum[r][j]);
            vf_store(to, sum[r][j]);
        }
}

#define PRODUCT_CASE(rows, vectors)                                                                \
    case (rows)*8 + (vectors):                                                                     \
        product_tile(words, rows, vectors, p, a, b, c, factor);                                    \
        break;

INLINE void product_run(const bd_words words, const product *p)
{
    for (int64_t i = 0; i < p->columns; i += PRODUCT_VECTORS * VF_WIDTH) {
        int64_t left = (p->columns - i) / VF_WIDTH;
        int64_t vectors = left < PRODUCT_VECTORS ? left : PRODUCT_VECTORS;
        for (int64_t r = 0; r < p->rows; r += PRODUCT_ROWS) {
            int64_t rows = p->rows - r < PRODUCT_ROWS ? p->rows - r : PRODUCT_ROWS;
            const bd_word *a = p->a + r * p->a_row, *b = p->b + i;
            float *c = p->c + r * p->c_row + i;
            const float *factor = p->factor ? p->factor + r : NULL;
            switch (rows * 8 + vectors) {
                PRODUCT_CASE(1, 1)
                PRODUCT_CASE(2, 1)
                PRODUCT_CASE(3, 1)
                PRODUCT_CASE(4, 1)
                PRODUCT_CASE(1, 2)
                PRODUCT_CASE(2, 2)
                PRODUCT_CASE(3, 2)
                PRODUCT_CASE(4, 2)
#if defined(VF_512)
                PRODUCT_CASE(1, 3)
                PRODUCT_CASE(2, 3)
                PRODUCT_CASE(3, 3)
                PRODUCT_CASE(4, 3)
                PRODUCT_CASE(1, 4)
                PRODUCT_CASE(2, 4)
                PRODUCT_CASE(3, 4)
                PRODUCT_CASE(4, 4)
#endif
            }
        }
    }
}
#undef PRODUCT_CASE

static __attribute__((noinline)) void product_of_floats(const product *p)
{
    product_run(BD_WORDS_F32, p);
}
#if defined(BD_ISA_avx512bf16)
static __attribute__((noinline)) void product_of_pairs(const product *p)
{
    product_run(BD_WORDS_PAIRS, p);
}
#endif

INLINE void multiply(const bd_words words, product p)
{
#if defined(BD_ISA_avx512bf16)
    if (words == BD_WORDS_PAIRS) {
        product_of_pairs(&p);
        return;
    }
#endif
    (void)words;
    product_of_floats(&p);
}

enum { HEAD_RUN = 64 };

/* A product summed over a head. Long chains of float additions lose digits, so in f32 each run of
 * steps has a chain of its own, and these are added in order. */
INLINE void multiply_heads(const bd_words words, product p)
{
    int64_t steps = p.steps, run = words == BD_WORDS_F32 ? HEAD_RUN : steps;
    for (int64_t s = 0; s < steps; s += run) {
        p.steps = steps - s < run ? steps - s : run;
        p.end = s > 0 ? ADD : STORE;
        multiply(words, p);
        p.a += run * p.a_step;
        p.b += run * p.b_step;
    }
}

/* 2^(x - shift) for shift >= about x: within 7e-8 relative, or 7e-6 where the result is rounded to
 * bf16 anyway; below 2^-126 anything down to 0. NaN stays NaN. In f32 shift must be integral, so
 * that x is not rounded by the subtraction. x = n + r, |r| <= 1/2; (2^r - 1) / r is interpolated at
 * Chebyshev points. */
INLINE vf power_of_two(const bd_words words, vf x, vf shift)
{
    if (words != BD_WORDS_F32)
        x -= shift;
    const float magic = 0x1.8p23f; // adding it rounds to an integer
    vf n = (x + magic) - magic, r = x - n, p;
    if (words == BD_WORDS_F32) {
        p = vf_fma(vf_set1(0x1.44138ap-13f), r, vf_set1(0x1.5f0890p-10f));
        p = vf_fma(p, r, vf_set1(0x1.3b2a54p-7f));
        p = vf_fma(p, r, vf_set1(0x1.c6af6cp-5f));
        p = vf_fma(p, r, vf_set1(0x1.ebfbe0p-3f));
        p = vf_fma(p, r, vf_set1(0x1.62e430p-1f));
    } else {
        p = vf_fma(vf_set1(0x1.3c6e5cp-7f), r, vf_set1(0x1.c96d5ep-5f));
        p = vf_fma(p, r, vf_set1(0x1.ebfb3ep-3f));
        p = vf_fma(p, r, vf_set1(0x1.62e2d2p-1f));
    }
    p = vf_fma(p, r, vf_set1(1));
    if (words == BD_WORDS_F32)
        n -= shift;
#if defined(VF_512)
    return _mm512_scalef_ps(p, n);
#else
    vf exponent = vf_max(vf_set1(-126), n) + magic;
    typedef uint32_t bits __attribute__((vector_size(sizeof(vf))));
    return (vf)((bits)p + ((bits)exponent << 23)); // the low bits hold the integer
#endif
}

#endif
