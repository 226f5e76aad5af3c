/* vector.h - the vector of one instruction set, and the few things kernels do with it.
 *
 * Only files src/ROOM/isa/NAME.c include this. Each is compiled once per level, with vectors of
 * that level's width; the code is the same text for all levels:
 *
 *     void BD_ISA_NAME(scale)(float *x, int64_t count, float factor)   // scale_avx2, scale_avx512,
 * ...
 *     {
 *         vf f = vf_set1(factor);
 *         VF_EACH(i, n, count, { vf_store_n(x + i, vf_load_n(x + i, n) * f, n); });
 *     }
 *
 * and a dispatch file beside them picks by bd_isa():
 *
 *     #define DECLARE(level) void scale_##level(float *x, int64_t count, float factor);
 *     BD_FOR_EACH_ISA(DECLARE)                             // see tensor/isa.h
 *
 * The operators + - * / < > <= >= == work on vf and vi (comparisons give vi: -1 where true). No
 * expression is contracted by the compiler: a * b + c rounds twice, vf_fma once (where the level
 * has it). Everything is a static inline function; nothing here touches memory beyond what its name
 * says.
 *
 * types     vf      VF_WIDTH floats            vi      VF_WIDTH int32
 *           vb      VF_WIDTH pairs of bf16: what one bf16 dot product step eats
 *           vd      VD_WIDTH = VF_WIDTH / 2 doubles
 */
#ifndef BD_TENSOR_ISA_VECTOR_H
#define BD_TENSOR_ISA_VECTOR_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "tensor/dtype.h"

#if !defined(BD_ISA_portable)
#include <immintrin.h>
#endif

#define BD_ISA_JOIN2(a, b) a##_##b
#define BD_ISA_JOIN(a, b)  BD_ISA_JOIN2(a, b)
#define BD_ISA_NAME(name)  BD_ISA_JOIN(name, BD_ISA)

#if defined(BD_ISA_avx512) || defined(BD_ISA_avx512bf16)
#define VF_512 1
enum { VF_WIDTH = 16 };
typedef __m512 vf;
typedef int32_t vi __attribute__((vector_size(64)));
typedef __m512i vb;
#elif defined(BD_ISA_avx2)
#define VF_256 1
enum { VF_WIDTH = 8 };
typedef __m256 vf;
typedef int32_t vi __attribute__((vector_size(32)));
typedef __m256i vb;
#else
enum { VF_WIDTH = 4 };
typedef float vf __attribute__((vector_size(16)));
typedef int32_t vi __attribute__((vector_size(16)));
typedef vi vb;
#endif

/* --- load and store, at any alignment; the _n forms touch n lanes (0 .. VF_WIDTH), the rest is 0 -
 */

#if defined(VF_512)

static inline vf vf_set1(float x)
{
    return _mm512_set1_ps(x);
}
static inline vf vf_load(const float *p)
{
    return _mm512_loadu_ps(p);
}
static inline void vf_store(float *p, vf v)
{
    _mm512_storeu_ps(p, v);
}
static inline __mmask16 vf_lanes(int64_t n)
{
    return (__mmask16)((1u << n) - 1);
}
static inline vf vf_load_n(const float *p, int64_t n)
{
    if (__builtin_constant_p(n) && n == VF_WIDTH)
        return vf_load(p);
    return _mm512_maskz_loadu_ps(vf_lanes(n), p);
}
static inline void vf_store_n(float *p, vf v, int64_t n)
{
    if (__builtin_constant_p(n) && n == VF_WIDTH) {
        vf_store(p, v);
        return;
    }
    _mm512_mask_storeu_ps(p, vf_lanes(n), v);
}

#elif defined(VF_256)

static inline vf vf_set1(float x)
{
    return _mm256_set1_ps(x);
}
static inline vf vf_load(const float *p)
{
    return _mm256_loadu_ps(p);
}
static inline void vf_store(float *p, vf v)
{
    _mm256_storeu_ps(p, v);
}
static inline __m256i vf_lanes(int64_t n)
{
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), lane);
}
static inline vf vf_load_n(const float *p, int64_t n)
{
    if (__builtin_constant_p(n) && n == VF_WIDTH)
        return vf_load(p);
    return _mm256_maskload_ps(p, vf_lanes(n));
}
static inline void vf_store_n(float *p, vf v, int64_t n)
{
    if (__builtin_constant_p(n) && n == VF_WIDTH) {
        vf_store(p, v);
        return;
    }
    _mm256_maskstore_ps(p, vf_lanes(n), v);
}

#else

static inline vf vf_set1(float x)
{
    return (vf){x, x, x, x};
}
static inline vf vf_load(const float *p)
{
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void vf_store(float *p, vf v)
{
    memcpy(p, &v, sizeof v);
}
static inline vf vf_load_n(const float *p, int64_t n)
{
    if (__builtin_constant_p(n) && n == VF_WIDTH)
        return vf_load(p);
    vf v = {0, 0, 0, 0};
    for (int64_t i = 0; i < n; i++)
        v[i] = p[i];
    return v;
}
static inline void vf_store_n(float *p, vf v, int64_t n)
{
    if (__builtin_constant_p(n) && n == VF_WIDTH) {
        vf_store(p, v);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        p[i] = v[i];
}

#endif

/* VF_EACH(i, n, count, { ... vf_load_n(x + i, n) ... }): the statements for i = 0, VF_WIDTH, ...; n
 * is the constant VF_WIDTH but in the last round of a count that is not a multiple. */
#define VF_EACH(i, n, count, ...)                                                                  \
    do {                                                                                           \
        int64_t i = 0;                                                                             \
        for (; i + VF_WIDTH <= (count); i += VF_WIDTH) {                                           \
            const int64_t n = VF_WIDTH;                                                            \
            __VA_ARGS__                                                                            \
        }                                                                                          \
        if (i < (count)) {                                                                         \
            const int64_t n = (count)-i;                                                           \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    } while (0)

static inline vf vf_zero(void)
{
    return vf_set1(0);
}
static inline vi vi_set1(int32_t x)
{
    return x - (vi){0};
}
/* 0, 1, 2, ... */
static inline vi vi_count(void)
{
#if defined(VF_512)
    return (vi){0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
#elif defined(VF_256)
    return (vi){0, 1, 2, 3, 4, 5, 6, 7};
#else
    return (vi){0, 1, 2, 3};
#endif
}
static inline vi vi_load(const int32_t *p)
{
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}

/* --- arithmetic ------------------------------------------------------------------------------- */

/* a * b + c; one rounding except at the portable level. */
static inline vf vf_fma(vf a, vf b, vf c)
{
#if defined(VF_512)
    return _mm512_fmadd_ps(a, b, c);
#elif defined(VF_256)
    return _mm256_fmadd_ps(a, b, c);
#else
    return a * b + c;
#endif
}

/* c - a * b */
static inline vf vf_fnma(vf a, vf b, vf c)
{
#if defined(VF_512)
    return _mm512_fnmadd_ps(a, b, c);
#elif defined(VF_256)
    return _mm256_fnmadd_ps(a, b, c);
#else
    return c - a * b;
#endif
}

/* mask ? a : b, lane by lane; mask is 0 or -1 in every lane, as comparisons give it. */
static inline vf vf_select(vi mask, vf a, vf b)
{
#if defined(VF_512)
    return _mm512_mask_blend_ps(_mm512_movepi32_mask((__m512i)mask), b, a);
#elif defined(VF_256)
    return _mm256_blendv_ps(b, a, (__m256)mask);
#else
    return (vf)((mask & (vi)a) | (~mask & (vi)b));
#endif
}
static inline vi vi_select(vi mask, vi a, vi b)
{
    return (mask & a) | (~mask & b);
}
static inline int vi_any(vi mask)
{
#if defined(VF_512)
    return _mm512_movepi32_mask((__m512i)mask) != 0;
#elif defined(VF_256)
    return _mm256_movemask_ps((__m256)mask) != 0;
#else
    return (mask[0] | mask[1] | mask[2] | mask[3]) != 0;
#endif
}

/* Larger and smaller; where a is NaN the result is b, where b is NaN it is b: so the second operand
 * decides, and vf_max(running, x) must be used with care on rows that may hold NaN. */
static inline vf vf_max(vf a, vf b)
{
#if defined(VF_512)
    return _mm512_max_ps(a, b);
#elif defined(VF_256)
    return _mm256_max_ps(a, b);
#else
    return vf_select(a > b, a, b);
#endif
}
static inline vf vf_min(vf a, vf b)
{
#if defined(VF_512)
    return _mm512_min_ps(a, b);
#elif defined(VF_256)
    return _mm256_min_ps(a, b);
#else
    return vf_select(a < b, a, b);
#endif
}
static inline vf vf_abs(vf x)
{
    return (vf)((vi)x & 0x7fffffff);
}
static inline vf vf_sqrt(vf x)
{
#if defined(VF_512)
    return _mm512_sqrt_ps(x);
#elif defined(VF_256)
    return _mm256_sqrt_ps(x);
#else
    for (int i = 0; i < VF_WIDTH; i++)
        x[i] = sqrtf(x[i]);
    return x;
#endif
}

/* Sum and largest of all lanes; halves are folded onto each other, always in this order. */
static inline float vf_sum(vf v)
{
#if defined(VF_512)
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
#elif defined(VF_256)
    __m256 h = v;
#endif
#if defined(VF_512) || defined(VF_256)
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_shuffle_ps(q, q, 1)));
#else
    return (v[0] + v[2]) + (v[1] + v[3]);
#endif
}
static inline float vf_largest(vf v)
{
#if defined(VF_512)
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
#elif defined(VF_256)
    __m256 h = v;
#endif
#if defined(VF_512) || defined(VF_256)
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_shuffle_ps(q, q, 1)));
#else
    float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
#endif
}

/* a0 b0 a1 b1 ...: the lower halves of a and b lane by lane, and the upper halves. */
#if defined(VF_512)
#define VF_LOW  0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23
#define VF_HIGH 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31
#elif defined(VF_256)
#define VF_LOW  0, 8, 1, 9, 2, 10, 3, 11
#define VF_HIGH 4, 12, 5, 13, 6, 14, 7, 15
#else
#define VF_LOW  0, 4, 1, 5
#define VF_HIGH 2, 6, 3, 7
#endif
static inline vf vf_interleave_low(vf a, vf b)
{
    return __builtin_shufflevector(a, b, VF_LOW);
}
static inline vf vf_interleave_high(vf a, vf b)
{
    return __builtin_shufflevector(a, b, VF_HIGH);
}

/* VF_WIDTH rows become columns. Interleaving row i with row i + VF_WIDTH / 2 moves one bit of the
 * row number into the lane number; doing so for every bit swaps the two. */
static inline void vf_transpose(vf v[VF_WIDTH])
{
    for (int bit = 1; bit < VF_WIDTH; bit *= 2) {
        vf next[VF_WIDTH];
#pragma GCC unroll 8
        for (int i = 0; i < VF_WIDTH / 2; i++) {
            next[2 * i] = vf_interleave_low(v[i], v[i + VF_WIDTH / 2]);
            next[2 * i + 1] = vf_interleave_high(v[i], v[i + VF_WIDTH / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < VF_WIDTH; i++)
            v[i] = next[i];
    }
}

/* exp(x) with a relative error below 1.5e-7 where the result is a normal number; results below
 * FLT_MIN are exactly 0 (so is exp(-inf)), above FLT_MAX they are inf; NaN stays NaN.
 *
 * x = n ln 2 + r with |r| <= ln 2 / 2, exp(r) = 1 + r + r^2 q(r); q interpolates at Chebyshev
 * points. */
static inline vf vf_exp(vf x)
{
    const float lowest = -87.33654f;
    vf y = vf_max(vf_set1(lowest), vf_min(vf_set1(89), x)); // NaN passes through both
    const float magic = 0x1.8p23f;                          // adding it rounds to an integer
    vf shifted = vf_fma(y, vf_set1(0x1.715476p+0f), vf_set1(magic));
    vf n = shifted - magic;
    vf r = vf_fnma(n, vf_set1(0x1.62e400p-1f), y); // ln 2 in two parts; the first has 15 bits
    r = vf_fnma(n, vf_set1(0x1.7f7d1cp-20f), r);
    vf q = vf_set1(0.00139261836f);
    q = vf_fma(q, r, vf_set1(0.00836317905f));
    q = vf_fma(q, r, vf_set1(0.0416665546f));
    q = vf_fma(q, r, vf_set1(0.16666577f));
    q = vf_fma(q, r, vf_set1(0.5f));
    vf p = vf_fma(r * r, q, r) + 1.0f;
#if defined(VF_512)
    __mmask16 kept = _mm512_cmp_ps_mask(x, vf_set1(lowest), _CMP_NLT_UQ);
    return _mm512_maskz_scalef_ps(kept, p, n);
#else
    // 2^n in two factors, since n may be 128 (and the product inf).
    vi whole = (vi)shifted - 0x4b400000, half = whole >> 1;
    vf result = p * (vf)((half + 127) << 23) * (vf)((whole - half + 127) << 23);
    return (vf)((vi)result & ~(vi)(x < lowest));
#endif
}

/* --- int8 and f16 ----------------------------------------------------------------------------- */

static inline vf vf_from_vi(vi v)
{
    return __builtin_convertvector(v, vf);
}

/* The lowest bytes of VF_WIDTH lanes. */
static inline void vi_store_int8(int8_t *p, vi v)
{
#if defined(VF_512)
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8((__m512i)v));
#else
    for (int i = 0; i < VF_WIDTH; i++)
        p[i] = (int8_t)v[i];
#endif
}

/* VF_WIDTH f16 numbers. */
static inline vf vf_load_f16(const uint16_t *p)
{
#if defined(VF_512)
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
#elif defined(VF_256)
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
#else
    float out[VF_WIDTH];
    bd_to_f32(BD_F16, p, out, VF_WIDTH);
    return vf_load(out);
#endif
}

/* --- bf16 ------------------------------------------------------------------------------------- */

/* Rounded to bf16 (nearest, ties to even, NaN stays NaN), in the upper half of each lane. */
static inline vi vf_round_bf16(vf v)
{
    vi bits = (vi)v;
    vi rounded = bits + 0x7fff + ((bits >> 16) & 1);
    vi not_a_number = (vi)(v != v);
#if defined(VF_512)
    return (vi)_mm512_mask_or_epi32((__m512i)rounded, _mm512_movepi32_mask((__m512i)not_a_number),
                                    (__m512i)bits, _mm512_set1_epi32(0x400000));
#else
    return vi_select(not_a_number, bits | 0x400000, rounded);
#endif
}

/* VF_WIDTH bf16 numbers to and from f32. */
static inline vf vf_load_bf16(const uint16_t *p)
{
#if defined(VF_512)
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)p));
    return (vf)_mm512_slli_epi32(wide, 16);
#elif defined(VF_256)
    __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
    return (vf)_mm256_slli_epi32(wide, 16);
#else
    // A zero before each of them: as 32 bits, the number in the upper half.
    typedef uint16_t halves __attribute__((vector_size(16)));
    halves zero = {0}, narrow = {0};
    memcpy(&narrow, p, 2 * VF_WIDTH);
    return (vf)__builtin_shufflevector(zero, narrow, 0, 8, 1, 9, 2, 10, 3, 11);
#endif
}
static inline void vf_store_bf16(uint16_t *p, vf v)
{
    vi r = vf_round_bf16(v);
#if defined(VF_512)
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)r, 16)));
#elif defined(VF_256)
    __m256i high = _mm256_srli_epi32((__m256i)r, 16);
    __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(high, high), 0x08);
    _mm_storeu_si128((__m128i *)(void *)p, _mm256_castsi256_si128(packed));
#else
    typedef uint16_t halves __attribute__((vector_size(16)));
    halves upper = __builtin_shufflevector((halves)r, (halves)r, 1, 3, 5, 7, 1, 3, 5, 7);
    memcpy(p, &upper, 2 * VF_WIDTH);
#endif
}
static inline vf vf_load_bf16_n(const uint16_t *p, int64_t n)
{
    if (__builtin_constant_p(n) && n == VF_WIDTH)
        return vf_load_bf16(p);
    uint16_t buffer[VF_WIDTH] = {0};
    memcpy(buffer, p, (size_t)n * 2);
    return vf_load_bf16(buffer);
}
static inline void vf_store_bf16_n(uint16_t *p, vf v, int64_t n)
{
    if (__builtin_constant_p(n) && n == VF_WIDTH) {
        vf_store_bf16(p, v);
        return;
    }
    uint16_t buffer[VF_WIDTH];
    vf_store_bf16(buffer, v);
    memcpy(p, buffer, (size_t)n * 2);
}

/* Pairs: lane i of a vb holds element 2i in its lower and 2i + 1 in its upper half, which is also
 * their order in memory. */
static inline vb vb_load(const uint16_t *p) /* 2 * VF_WIDTH of them */
{
    vb v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline void vb_store(uint16_t *p, vb v)
{
    memcpy(p, &v, sizeof v);
}
/* One pair in all lanes. */
static inline vb vb_set1(const uint16_t *pair)
{
    int32_t bits;
    memcpy(&bits, pair, 4);
    return (vb)vi_set1(bits);
}
/* Lane i becomes the pair (even[i], odd[i]): two rows interleaved, as panels over k want them. */
static inline vb vb_interleave(vf even, vf odd)
{
    vi low = (vi)((uint32_t __attribute__((vector_size(sizeof(vf)))))vf_round_bf16(even) >> 16);
    return (vb)(low | (vf_round_bf16(odd) & (int32_t)0xffff0000));
}
/* 2 * VF_WIDTH consecutive floats: `first` holds elements 0 .. VF_WIDTH-1, `second` the rest. */
static inline vb vb_from_f32(vf first, vf second)
{
#if defined(VF_512)
    __m256i low = _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)vf_round_bf16(first), 16));
    __m256i high = _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)vf_round_bf16(second), 16));
    return _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
#elif defined(VF_256)
    __m256i low = _mm256_srli_epi32((__m256i)vf_round_bf16(first), 16);
    __m256i high = _mm256_srli_epi32((__m256i)vf_round_bf16(second), 16);
    return _mm256_permute4x64_epi64(_mm256_packus_epi32(low, high), 0xd8);
#else
    typedef uint16_t halves __attribute__((vector_size(16)));
    return (vb)__builtin_shufflevector((halves)vf_round_bf16(first), (halves)vf_round_bf16(second),
                                       1, 3, 5, 7, 9, 11, 13, 15);
#endif
}

/* sum + a[2i] * b[2i] + a[2i+1] * b[2i+1] in each lane i. At the avx512bf16 level one instruction,
 * which takes denormals as zero. */
static inline vf vf_dot_bf16(vf sum, vb a, vb b)
{
#if defined(BD_ISA_avx512bf16)
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)b);
#else
    vf a_even = (vf)((vi)a << 16), b_even = (vf)((vi)b << 16);
    vf a_odd = (vf)((vi)a & (int32_t)0xffff0000), b_odd = (vf)((vi)b & (int32_t)0xffff0000);
    return vf_fma(a_odd, b_odd, vf_fma(a_even, b_even, sum));
#endif
}

/* --- double ----------------------------------------------------------------------------------- */

/* Half as many doubles as floats. */
enum { VD_WIDTH = VF_WIDTH / 2 };
typedef double vd __attribute__((vector_size(sizeof(vf))));
typedef int64_t vl __attribute__((vector_size(sizeof(vf))));
typedef float vf_half __attribute__((vector_size(sizeof(vf) / 2)));

static inline vd vd_set1(double x)
{
    return x - (vd){0};
}
static inline vd vd_load(const double *p)
{
    vd v;
    memcpy(&v, p, sizeof v);
    return v;
}
static inline vd vd_select(vl mask, vd a, vd b)
{
    return (vd)((mask & (vl)a) | (~mask & (vl)b));
}
/* VD_WIDTH floats in memory as doubles, and back. */
static inline vd vd_load_f32(const float *p)
{
    vf_half v;
    memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, vd);
}
static inline void vd_store_f32(float *p, vd v)
{
    vf_half h = __builtin_convertvector(v, vf_half);
    memcpy(p, &h, sizeof h);
}
static inline double vd_sum(vd v)
{
    double lane[VD_WIDTH];
    memcpy(lane, &v, sizeof lane);
    for (int half = VD_WIDTH / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lane[i] += lane[i + half];
    return lane[0];
}

#endif
