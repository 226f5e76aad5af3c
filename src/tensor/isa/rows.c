#include "tensor/isa/rows.h"

#include "tensor/isa/vector.h"

/* --- norm ------------------------------------------------------------------------------------- */

// Four sums side by side, so that a multiplication need not wait for the one before.
static float sum_of_products(const float *a, const float *b, const float *c, int64_t count)
{
    vf sum[4] = {vf_zero(), vf_zero(), vf_zero(), vf_zero()};
    int64_t i = 0;
    for (; i + 4 * VF_WIDTH <= count; i += 4 * VF_WIDTH)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            vf v = vf_load(a + i + j * VF_WIDTH);
            if (c)
                v *= vf_load(c + i + j * VF_WIDTH);
            sum[j] = vf_fma(v, vf_load(b + i + j * VF_WIDTH), sum[j]);
        }
    for (int j = 0; i < count; i += VF_WIDTH, j++) {
        int64_t n = count - i < VF_WIDTH ? count - i : VF_WIDTH;
        vf v = vf_load_n(a + i, n);
        if (c)
            v *= vf_load_n(c + i, n);
        sum[j] = vf_fma(v, vf_load_n(b + i, n), sum[j]);
    }
    return vf_sum((sum[0] + sum[2]) + (sum[1] + sum[3]));
}

static void rms_norm(const float *x, const float *weight, float eps, int64_t rows, int64_t width,
                     float *y, float *inverse)
{
    for (int64_t r = 0; r < rows; r++, x += width, y += width) {
        float factor = 1 / sqrtf(sum_of_products(x, x, NULL, width) / (float)width + eps);
        vf f = vf_set1(factor);
        VF_EACH(i, n, width,
                { vf_store_n(y + i, vf_load_n(x + i, n) * f * vf_load_n(weight + i, n), n); });
        if (inverse)
            inverse[r] = factor;
    }
}

// dx += inverse * (w dy - x inverse^2 mean(w dy x)); dweight = sum_r dy x inverse.
static void rms_norm_backward(const float *x, const float *weight, const float *inverse,
                              const float *dy, int64_t rows, int64_t width, float *dx,
                              float *dweight)
{
    if (dweight)
        memset(dweight, 0, (size_t)width * sizeof *dweight);
    for (int64_t r = 0; r < rows; r++, x += width, dy += width) {
        vf f = vf_set1(inverse[r]);
        if (dweight)
            VF_EACH(i, n, width, {
                vf sum = vf_load_n(dweight + i, n);
                vf_store_n(dweight + i, vf_fma(vf_load_n(dy + i, n), vf_load_n(x + i, n) * f, sum),
                           n);
            });
        if (!dx)
            continue;
        float mean = sum_of_products(x, dy, weight, width) / (float)width;
        vf back = vf_set1(mean * inverse[r] * inverse[r]);
        VF_EACH(i, n, width, {
            vf own = vf_load_n(dy + i, n) * vf_load_n(weight + i, n);
            vf sum = vf_load_n(dx + i, n);
            vf_store_n(dx + i, vf_fma(f, vf_fnma(vf_load_n(x + i, n), back, own), sum), n);
        });
        dx += width;
    }
}

/* --- rotary positions ------------------------------------------------------------------------- */

// sine and cosine of VD_WIDTH angles below 2^19 in magnitude. The angle is reduced by multiples of
// pi/2, subtracted in three parts, the first two of 33 bits so that their products are exact; the
// Taylor series then leave an error far below half a float's last bit.
static void sine_cosine(vd angle, vd *sine, vd *cosine)
{
    const double magic = 0x1.8p52; // adding it rounds to an integer
    vd shifted = angle * 0x1.45f306dc9c883p-1 + magic;
    vd n = shifted - magic;
    vd r = angle - n * 0x1.921fb544p+0;
    r = r - n * 0x1.0b4611a6p-34;
    r = r - n * 0x1.3198a2e037073p-69;
    vd q = r * r;
    vd s = vd_set1(1.0 / 6227020800);
    s = s * q - 1.0 / 39916800;
    s = s * q + 1.0 / 362880;
    s = s * q - 1.0 / 5040;
    s = s * q + 1.0 / 120;
    s = s * q - 1.0 / 6;
    s = r + r * q * s;
    vd c = vd_set1(-1.0 / 87178291200);
    c = c * q + 1.0 / 479001600;
    c = c * q - 1.0 / 3628800;
    c = c * q + 1.0 / 40320;
    c = c * q - 1.0 / 720;
    c = c * q + 1.0 / 24;
    c = 1 - 0.5 * q + q * q * c;
    vl quarter = (vl)shifted; // its lowest bits count quarter turns
    vl swap = -(quarter & 1);
    vl sine_sign = (quarter & 2) << 62, cosine_sign = ((quarter + 1) & 2) << 62;
    *sine = (vd)((vl)vd_select(swap, c, s) ^ sine_sign);
    *cosine = (vd)((vl)vd_select(swap, s, c) ^ cosine_sign);
}

enum { ANGLES = 256 }; // of one head handled at a time

// cosines and sines of position * frequency, times the factor; both have room for whole vectors.
static void turn_table(const double *frequency, double position, double direction, double factor,
                       bool small, int64_t count, float *cosine, float *sine)
{
    for (int64_t i = 0; i < count; i += VD_WIDTH) {
        vd angle = {0}, s, c;
        if (i + VD_WIDTH <= count)
            angle = vd_load(frequency + i) * position;
        else
            for (int64_t j = 0; i + j < count; j++)
                angle[j] = frequency[i + j] * position;
        if (small)
            sine_cosine(angle, &s, &c);
        else
            for (int j = 0; j < VD_WIDTH; j++) {
                s[j] = sin(angle[j]);
                c[j] = cos(angle[j]);
            }
        vd_store_f32(sine + i, s * (direction * factor));
        vd_store_f32(cosine + i, c * factor);
    }
}

static double largest_magnitude(const double *x, int64_t count)
{
    double most = 0;
    for (int64_t i = 0; i < count; i++)
        most = fabs(x[i]) > most ? fabs(x[i]) : most;
    return most;
}

static void rotate(const bd_rope *rope, double direction, const float *x, const int32_t *positions,
                   int64_t rows, int64_t heads, float *y, bool add)
{
    const int64_t size = rope->head_size, half = size / 2;
    const double fastest = largest_magnitude(rope->inverse_frequency, half);
    float cosine[ANGLES + VD_WIDTH], sine[ANGLES + VD_WIDTH];
    for (int64_t r = 0; r < rows; r++)
        for (int64_t first = 0; first < half; first += ANGLES) {
            const int64_t count = half - first < ANGLES ? half - first : ANGLES;
            const bool small = fastest * fabs((double)positions[r]) < 0x1p19;
            turn_table(rope->inverse_frequency + first, positions[r], direction,
                       (double)rope->factor, small, count, cosine, sine);
            for (int64_t h = 0; h < heads; h++) {
                const int64_t at = (r * heads + h) * size + first;
                const float *x1 = x + at, *x2 = x1 + half;
                float *y1 = y + at, *y2 = y1 + half;
                VF_EACH(i, n, count, {
                    vf a = vf_load_n(x1 + i, n);
                    vf b = vf_load_n(x2 + i, n);
                    vf c = vf_load_n(cosine + i, n);
                    vf s = vf_load_n(sine + i, n);
                    vf low = vf_fnma(b, s, a * c);
                    vf high = vf_fma(a, s, b * c);
                    if (add) {
                        low += vf_load_n(y1 + i, n);
                        high += vf_load_n(y2 + i, n);
                    }
                    vf_store_n(y1 + i, low, n);
                    vf_store_n(y2 + i, high, n);
                });
            }
        }
}

/* --- element by element ----------------------------------------------------------------------- */

static void swiglu(const float *gate, const float *up, int64_t count, float *y)
{
    VF_EACH(i, n, count, {
        vf z = vf_load_n(gate + i, n);
        vf_store_n(y + i, z / (1 + vf_exp(-z)) * vf_load_n(up + i, n), n);
    });
}

// silu'(z) = s + z s (1 - s), s = 1 / (1 + exp(-z)).
static void swiglu_backward(const float *gate, const float *up, const float *dy, int64_t count,
                            float *dgate, float *dup)
{
    VF_EACH(i, n, count, {
        vf z = vf_load_n(gate + i, n);
        vf g = vf_load_n(dy + i, n);
        vf s = 1 / (1 + vf_exp(-z));
        vf silu = z * s;
        if (dgate) {
            vf slope = vf_fma(silu, 1 - s, s);
            vf_store_n(dgate + i, vf_fma(g * vf_load_n(up + i, n), slope, vf_load_n(dgate + i, n)),
                       n);
        }
        if (dup)
            vf_store_n(dup + i, vf_fma(g, silu, vf_load_n(dup + i, n)), n);
    });
}

static void add(const float *a, const float *b, int64_t count, float *y)
{
    VF_EACH(i, n, count, { vf_store_n(y + i, vf_load_n(a + i, n) + vf_load_n(b + i, n), n); });
}

static void scale(float factor, int64_t count, float *x)
{
    vf f = vf_set1(factor);
    VF_EACH(i, n, count, { vf_store_n(x + i, vf_load_n(x + i, n) * f, n); });
}

static void from_bf16(const uint16_t *x, int64_t count, float *y)
{
    VF_EACH(i, n, count, { vf_store_n(y + i, vf_load_bf16_n(x + i, n), n); });
}

static void to_bf16(const float *x, int64_t count, uint16_t *y)
{
    VF_EACH(i, n, count, { vf_store_bf16_n(y + i, vf_load_n(x + i, n), n); });
}

/* --- over a row ------------------------------------------------------------------------------- */

// vf_max(x, largest) keeps `largest` where x is NaN.
static float largest(const float *x, int64_t count)
{
    vf most[4];
    for (int j = 0; j < 4; j++)
        most[j] = vf_set1(-INFINITY);
    int64_t i = 0;
    for (; i + 4 * VF_WIDTH <= count; i += 4 * VF_WIDTH)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            most[j] = vf_max(vf_load(x + i + j * VF_WIDTH), most[j]);
    for (; i + VF_WIDTH <= count; i += VF_WIDTH)
        most[0] = vf_max(vf_load(x + i), most[0]);
    float result = vf_largest(vf_max(vf_max(most[0], most[1]), vf_max(most[2], most[3])));
    for (; i < count; i++)
        result = x[i] > result ? x[i] : result;
    return result;
}

static int64_t find(const float *x, float value, int64_t count)
{
    const vf wanted = vf_set1(value);
    int64_t i = 0;
    while (i + VF_WIDTH <= count && !vi_any(vf_load(x + i) == wanted))
        i += VF_WIDTH;
    for (; i < count; i++)
        if (x[i] == value)
            return i;
    return -1;
}

// Floats within a block, doubles over the blocks.
enum { SUM_BLOCK = 1024 };

static double sum_exp(const float *x, float shift, int64_t count, float *y)
{
    const vf s = vf_set1(shift);
    double total = 0;
    for (int64_t block = 0; block < count; block += SUM_BLOCK) {
        const int64_t size = count - block < SUM_BLOCK ? count - block : SUM_BLOCK;
        vf sum = vf_zero();
        VF_EACH(i, n, size, {
            vf e = vf_exp(vf_load_n(x + block + i, n) - s);
            if (y)
                vf_store_n(y + block + i, e, n);
            if (n < VF_WIDTH)
                e = vf_select(vi_count() < (int32_t)n, e, vf_zero());
            sum += e;
        });
        total += (double)vf_sum(sum);
    }
    return total;
}

static double sum_of_squares(const float *x, int64_t count)
{
    vd sum[4] = {vd_set1(0), vd_set1(0), vd_set1(0), vd_set1(0)};
    int64_t i = 0;
    for (; i + 4 * VD_WIDTH <= count; i += 4 * VD_WIDTH)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) {
            vd v = vd_load_f32(x + i + j * VD_WIDTH);
            sum[j] += v * v;
        }
    double total = vd_sum((sum[0] + sum[2]) + (sum[1] + sum[3]));
    for (; i < count; i++)
        total += (double)x[i] * (double)x[i];
    return total;
}

const bd_row_kernels BD_ISA_NAME(bd_row_kernels) = {
    .rms_norm = rms_norm,
    .rms_norm_backward = rms_norm_backward,
    .rotate = rotate,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .add = add,
    .scale = scale,
    .largest = largest,
    .find = find,
    .sum_exp = sum_exp,
    .sum_of_squares = sum_of_squares,
    .from_bf16 = from_bf16,
    .to_bf16 = to_bf16,
};
