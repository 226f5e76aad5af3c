#include "tensor/isa/matmul.h"

#include "tensor/isa/vector.h"

// Vectors across a tile: with 6 rows, 24 of 32 registers hold sums, or 12 of 16.
#if defined(VF_512)
enum { TILE_VECTORS = 4 };
#else
enum { TILE_VECTORS = 2 };
#endif
enum { PANEL = TILE_VECTORS * VF_WIDTH };

#if defined(BD_ISA_avx512bf16)
#define BF16_FORMAT BD_TILE_PAIRS
#else
#define BF16_FORMAT BD_TILE_WIDEN
#endif

#define INLINE static inline __attribute__((always_inline))

/* --- tiles ------------------------------------------------------------------------------------ */

// What one step multiplies by: a vector of the panel.
INLINE vf panel_vector(bd_tile_format format, const char *b, int64_t column)
{
    if (format == BD_TILE_WIDEN)
        return vf_load_bf16((const uint16_t *)(const void *)b + column);
    return vf_load((const float *)(const void *)b + column);
}

INLINE vf multiply(bd_tile_format format, const float *a, vf b, vf sum)
{
    if (format == BD_TILE_PAIRS)
        return vf_dot_bf16(sum, (vb)vf_set1(*a), (vb)b);
    return vf_fma(vf_set1(*a), b, sum);
}

// Lanes of vector j that are to be read or written.
INLINE int64_t lanes(int64_t columns, int j)
{
    int64_t left = columns - (int64_t)j * VF_WIDTH;
    return left < 0 ? 0 : left > VF_WIDTH ? VF_WIDTH : left;
}

INLINE void load_sums(const bd_tile *t, const int rows, const int vectors,
                      vf sum[BD_TILE_ROWS][TILE_VECTORS])
{
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            const float *from = t->start + r * t->start_stride + j * VF_WIDTH;
            if (!t->start)
                sum[r][j] = vf_zero();
            else if (t->columns >= vectors * VF_WIDTH)
                sum[r][j] = vf_load(from);
            else
                sum[r][j] = vf_load_n(from, lanes(t->columns, j));
        }
}

INLINE void store_sums(const bd_tile *t, const int rows, const int vectors,
                       vf sum[BD_TILE_ROWS][TILE_VECTORS])
{
#pragma GCC unroll 6
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            float *to = t->y + r * t->y_stride + j * VF_WIDTH;
            int64_t n = lanes(t->columns, j);
            vf result = sum[r][j];
            if (t->bias)
                result += vf_load_n(t->bias + j * VF_WIDTH, n);
            if (t->accumulate)
                result += vf_load_n(to, n);
            if (n == VF_WIDTH)
                vf_store(to, result);
            else
                vf_store_n(to, result, n);
        }
}

INLINE void tile(bd_tile_format format, const int rows, const int vectors, const bd_tile *t)
{
    vf sum[BD_TILE_ROWS][TILE_VECTORS];
    load_sums(t, rows, vectors, sum);
    const float *a = t->a, *a3 = a + 3 * t->a_row;
    const char *b = t->b, *soon = t->prefetch;
    const int64_t row = t->a_row, step = t->a_step;
    const int64_t b_step = t->width * (format == BD_TILE_WIDEN ? 2 : 4);
    const int64_t soon_step = t->prefetch_lines * 64;
    for (int64_t s = 0; s < t->steps; s++) {
        vf v[TILE_VECTORS];
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++)
            v[j] = panel_vector(format, b, j * VF_WIDTH);
        for (int64_t j = 0; j < t->prefetch_lines; j++)
            __builtin_prefetch(soon + 64 * j, 0, 2); // into the second level
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
            for (int j = 0; j < vectors; j++)
                sum[r][j] =
                    multiply(format, r < 3 ? a + r * row : a3 + (r - 3) * row, v[j], sum[r][j]);
        a += step;
        a3 += step;
        b += b_step;
        soon += soon_step;
    }
    store_sums(t, rows, vectors, sum);
}

#define TILE_OF(format, vectors)                                                                   \
    switch (t->rows) {                                                                             \
    case 1:                                                                                        \
        tile(format, 1, vectors, t);                                                               \
        break;                                                                                     \
    case 2:                                                                                        \
        tile(format, 2, vectors, t);                                                               \
        break;                                                                                     \
    case 3:                                                                                        \
        tile(format, 3, vectors, t);                                                               \
        break;                                                                                     \
    case 4:                                                                                        \
        tile(format, 4, vectors, t);                                                               \
        break;                                                                                     \
    case 5:                                                                                        \
        tile(format, 5, vectors, t);                                                               \
        break;                                                                                     \
    default:                                                                                       \
        tile(format, 6, vectors, t);                                                               \
    }

// A narrow last panel goes vector by vector.
INLINE void tile_of_any_width(bd_tile_format format, const bd_tile *t)
{
    if (t->width == PANEL) {
        TILE_OF(format, TILE_VECTORS)
        return;
    }
    bd_tile part = *t;
    for (int64_t c = 0; c < part.columns; c += VF_WIDTH) {
        bd_tile narrow = part;
        narrow.columns = part.columns - c < VF_WIDTH ? part.columns - c : VF_WIDTH;
        narrow.b = (const char *)part.b + c * (format == BD_TILE_WIDEN ? 2 : 4);
        narrow.start = part.start ? part.start + c : NULL;
        narrow.y = part.y + c;
        narrow.bias = part.bias ? part.bias + c : NULL;
        narrow.prefetch = NULL;
        t = &narrow;
        TILE_OF(format, 1)
    }
}

static void tile_f32(const bd_tile *t)
{
    tile_of_any_width(BD_TILE_F32, t);
}

static void tile_bf16(const bd_tile *t)
{
    tile_of_any_width(BF16_FORMAT, t);
}

/* --- packing ---------------------------------------------------------------------------------- */

INLINE vf rounded(bool round, vf v)
{
    return round ? (vf)(vf_round_bf16(v) & (int32_t)0xffff0000) : v;
}

static void pack_rows(bd_tile_format format, bool round, const float *w, int64_t stride,
                      int64_t count, int64_t columns, int64_t width, void *panel)
{
    const int per_step = format == BD_TILE_PAIRS ? 2 : 1;
    char *to = panel;
    for (int64_t k = 0; k < count; k += per_step, w += per_step * stride) {
        for (int64_t c = 0; c < width; c += VF_WIDTH) {
            int64_t n = lanes(columns - c, 0);
            vf v = n == VF_WIDTH ? vf_load(w + c) : vf_load_n(w + c, n);
            if (format == BD_TILE_PAIRS) {
                vf odd = k + 1 < count ? vf_load_n(w + stride + c, n) : vf_zero();
                vb_store((uint16_t *)(void *)to, vb_interleave(v, odd));
                to += 4 * VF_WIDTH;
            } else if (format == BD_TILE_WIDEN) {
                vf_store_bf16((uint16_t *)(void *)to, v);
                to += 2 * VF_WIDTH;
            } else {
                vf_store((float *)(void *)to, rounded(round, v));
                to += 4 * VF_WIDTH;
            }
        }
    }
}

static void pack_columns(bd_tile_format format, const float *w, int64_t stride, int64_t count,
                         int64_t columns, int64_t width, void *panel)
{
    const int per_step = format == BD_TILE_PAIRS ? 2 : 1, bytes = format == BD_TILE_WIDEN ? 2 : 4;
    const int64_t steps = (count + per_step - 1) / per_step;
    for (int64_t c = 0; c < width; c += VF_WIDTH)
        for (int64_t s = 0; s < steps; s += VF_WIDTH) {
            vf v[VF_WIDTH]; // VF_WIDTH steps of VF_WIDTH columns
            int64_t k = s * per_step;
            for (int i = 0; i < VF_WIDTH; i++) {
                const float *from = w + (c + i) * stride + k;
                if (c + i >= columns)
                    v[i] = vf_zero();
                else if (format == BD_TILE_PAIRS)
                    v[i] = (vf)vb_from_f32(vf_load_n(from, lanes(count - k, 0)),
                                           vf_load_n(from + VF_WIDTH, lanes(count - k, 1)));
                else
                    v[i] = vf_load_n(from, lanes(count - k, 0));
            }
            vf_transpose(v);
            char *to = (char *)panel + (s * width + c) * bytes;
            for (int i = 0; i < VF_WIDTH && s + i < steps; i++, to += width * bytes)
                if (format == BD_TILE_WIDEN)
                    vf_store_bf16((uint16_t *)(void *)to, v[i]);
                else
                    vf_store((float *)(void *)to, v[i]);
        }
}

static void round_row(bd_tile_format format, const float *x, int64_t count, void *row)
{
    if (format != BD_TILE_PAIRS) {
        float *to = row;
        for (int64_t i = 0; i < count; i += VF_WIDTH) {
            int64_t n = lanes(count - i, 0);
            vf_store_n(to + i, rounded(true, vf_load_n(x + i, n)), n);
        }
        return;
    }
    uint16_t *to = row;
    int64_t i = 0;
    for (; i + 2 * VF_WIDTH <= count; i += 2 * VF_WIDTH)
        vb_store(to + i, vb_from_f32(vf_load(x + i), vf_load(x + i + VF_WIDTH)));
    for (; i < count; i += VF_WIDTH) {
        int64_t n = lanes(count - i, 0);
        vf_store_bf16_n(to + i, vf_load_n(x + i, n), n + (n & 1));
    }
}

const bd_matmul_kernels BD_ISA_NAME(bd_matmul_kernels) = {
    .panel_columns = PANEL,
    .vector_columns = VF_WIDTH,
    .bf16_format = BF16_FORMAT,
    .tile = {[BD_TILE_F32] = tile_f32, [BF16_FORMAT] = tile_bf16},
    .pack_rows = pack_rows,
    .pack_columns = pack_columns,
    .round_row = round_row,
};
