#include "tensor/isa/quantized.h"

#include "tensor/isa/vector.h"

#define INLINE static inline __attribute__((always_inline))

enum {
    GROUPS = BD_QUANTIZED_GROUP / 4,
    VECTORS = BD_QUANTIZED_COLUMNS / VF_WIDTH,
    GROUP_BYTES = 4 * BD_QUANTIZED_COLUMNS
};

/* --- integer sums of one block ---------------------------------------------------------------- */

typedef struct {
    vi v[VECTORS]; // a sum per column
} sums;

#if defined(BD_ISA_avx512bf16)

// The sixteen vectors of weights stay in registers for all rows of a tile.
typedef struct {
    __m512i v[GROUPS][VECTORS];
} block;

INLINE block load_block(const uint8_t *weights)
{
    block b;
#pragma GCC unroll 8
    for (int g = 0; g < GROUPS; g++)
#pragma GCC unroll 2
        for (int j = 0; j < VECTORS; j++)
            b.v[g][j] = _mm512_loadu_si512(weights + GROUP_BYTES * g + 64 * j);
    return b;
}

INLINE sums multiply_block(const block *b, const int8_t *values, int32_t start)
{
    sums s = {{vi_set1(start), vi_set1(start)}};
#pragma GCC unroll 8
    for (int g = 0; g < GROUPS; g++) {
        int32_t four;
        memcpy(&four, values + 4 * g, 4);
        const __m512i a = _mm512_set1_epi32(four);
#pragma GCC unroll 2
        for (int j = 0; j < VECTORS; j++)
            s.v[j] = (vi)_mm512_dpbusd_epi32((__m512i)s.v[j], b->v[g][j], a);
    }
    return s;
}

#elif defined(VF_256)

typedef struct {
    const uint8_t *weights;
} block;

INLINE block load_block(const uint8_t *weights)
{
    return (block){weights};
}

// Products of 16-bit numbers, added in pairs; the two pairs of a column meet at the end.
INLINE sums multiply_block(const block *b, const int8_t *values, int32_t start)
{
    sums out;
    for (int half = 0; half < VECTORS; half++) {
        __m256i low = _mm256_setzero_si256(), high = low;
#pragma GCC unroll 8
        for (int g = 0; g < GROUPS; g++) {
            int32_t four;
            memcpy(&four, values + 4 * g, 4);
            const __m256i a = _mm256_cvtepi8_epi16(_mm_set1_epi32(four));
            const uint8_t *at = b->weights + GROUP_BYTES * g + 32 * half;
            const __m128i *w = (const __m128i *)(const void *)at;
            __m256i first = _mm256_cvtepu8_epi16(_mm_loadu_si128(w)),
                    second = _mm256_cvtepu8_epi16(_mm_loadu_si128(w + 1));
            low = _mm256_add_epi32(low, _mm256_madd_epi16(first, a));
            high = _mm256_add_epi32(high, _mm256_madd_epi16(second, a));
        }
        const __m256i mixed = _mm256_hadd_epi32(low, high); // columns 0 1 4 5 2 3 6 7
        out.v[half] = (vi)_mm256_permute4x64_epi64(mixed, 0xd8) + start;
    }
    return out;
}

#else

typedef struct {
    const uint8_t *weights;
} block;

INLINE block load_block(const uint8_t *weights)
{
    return (block){weights};
}

INLINE sums multiply_block(const block *b, const int8_t *values, int32_t start)
{
    int32_t sum[BD_QUANTIZED_COLUMNS];
    for (int c = 0; c < BD_QUANTIZED_COLUMNS; c++)
        sum[c] = start;
    for (int g = 0; g < GROUPS; g++)
        for (int c = 0; c < BD_QUANTIZED_COLUMNS; c++)
            for (int i = 0; i < 4; i++)
                sum[c] += b->weights[GROUP_BYTES * g + 4 * c + i] * values[4 * g + i];
    sums out;
    for (int j = 0; j < VECTORS; j++)
        out.v[j] = vi_load(sum + j * VF_WIDTH);
    return out;
}

#endif

/* --- tiles ------------------------------------------------------------------------------------ */

INLINE void store_row(const bd_quantized_tile *t, int r, const vf sum[VECTORS])
{
    for (int j = 0; j < VECTORS; j++) {
        int64_t n = t->columns - j * VF_WIDTH;
        n = n < 0 ? 0 : n > VF_WIDTH ? VF_WIDTH : n;
        float *to = t->y + r * t->y_stride + j * VF_WIDTH;
        vf result = sum[j];
        if (t->bias)
            result += vf_load_n(t->bias + j * VF_WIDTH, n);
        if (t->accumulate)
            result += vf_load_n(to, n);
        vf_store_n(to, result, n);
    }
}

INLINE void tile_of(const int rows, const bd_quantized_tile *t)
{
    vf sum[BD_QUANTIZED_ROWS][VECTORS];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < VECTORS; j++)
            sum[r][j] = vf_zero();
    const uint8_t *soon = t->prefetch;
    for (int64_t i = 0; i < t->blocks; i++) {
        const uint8_t *weights = t->weights + i * BD_QUANTIZED_BLOCK;
        const block b = load_block(weights);
        for (int64_t line = 0; line < t->prefetch_lines; line++)
            __builtin_prefetch(soon + 64 * line, 0, 2); // into the second level
        soon += 64 * t->prefetch_lines;
        vf scale[VECTORS];
        for (int j = 0; j < VECTORS; j++)
            scale[j] = vf_load_f16(t->scales + i * BD_QUANTIZED_COLUMNS + j * VF_WIDTH);
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++) {
            const bd_quantized_row *row = &t->row[r];
            const sums s = multiply_block(&b, row->values + i * BD_QUANTIZED_GROUP, row->starts[i]);
            const vf row_scale = vf_set1(row->scales[i]);
            for (int j = 0; j < VECTORS; j++)
                sum[r][j] = vf_fma(vf_from_vi(s.v[j]), scale[j] * row_scale, sum[r][j]);
        }
    }
    for (int r = 0; r < rows; r++)
        store_row(t, r, sum[r]);
}

static void tile(const bd_quantized_tile *t)
{
    switch (t->rows) {
    case 1:
        tile_of(1, t);
        break;
    case 2:
        tile_of(2, t);
        break;
    case 3:
        tile_of(3, t);
        break;
    default:
        tile_of(4, t);
    }
}

/* --- rows ------------------------------------------------------------------------------------- */

// The largest magnitude of a block; a NaN, whose bits are above those of all numbers, wins.
INLINE float largest_magnitude(const vf *x, int count)
{
    vi most = (vi)vf_abs(x[0]);
    for (int i = 1; i < count; i++) {
        const vi next = (vi)vf_abs(x[i]);
        most = vi_select(next > most, next, most);
    }
    int32_t best = most[0];
    for (int i = 1; i < VF_WIDTH; i++)
        best = most[i] > best ? most[i] : best;
    float value;
    memcpy(&value, &best, 4);
    return value;
}

// Unsigned, since what is no number gives any integers, and sums of them wrap.
typedef uint32_t bits __attribute__((vector_size(sizeof(vf))));

static void quantize(const float *x, int64_t count, const bd_quantized_row *row)
{
    enum { PARTS = BD_QUANTIZED_GROUP / VF_WIDTH };
    const float magic = 0x1.8p23f; // adding it rounds to an integer, ties to even
    for (int64_t i = 0, b = 0; i < count; i += BD_QUANTIZED_GROUP, b++) {
        vf part[PARTS];
        for (int p = 0; p < PARTS; p++) {
            const int64_t left = count - i - p * VF_WIDTH;
            part[p] = left >= VF_WIDTH ? vf_load(x + i + p * VF_WIDTH)
                      : left > 0       ? vf_load_n(x + i + p * VF_WIDTH, left)
                                       : vf_zero();
        }
        const float scale = largest_magnitude(part, PARTS) / 127;
        const float inverse = scale != 0 ? 1 / scale : 0;
        bits total = {0};
        for (int p = 0; p < PARTS; p++) {
            const bits whole = (bits)(part[p] * inverse + magic) - 0x4b400000u;
            vi_store_int8(row->values + i + p * VF_WIDTH, (vi)whole);
            total += whole;
        }
        uint32_t sum = 0;
        for (int j = 0; j < VF_WIDTH; j++)
            sum += total[j];
        row->scales[b] = scale;
        row->starts[b] = (int32_t)(-128u * sum);
    }
}

const bd_quantized_kernels BD_ISA_NAME(bd_quantized_kernels) = {.tile = tile, .quantize = quantize};
