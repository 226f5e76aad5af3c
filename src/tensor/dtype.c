#include "tensor/dtype.h"

#include <assert.h>

#include "tensor/isa/rows.h"

static const struct {
    const char *name;
    size_t size;
    bool is_float;
} dtypes[BD_DTYPE_COUNT] = {
    [BD_F32] = {"F32", 4, true},    [BD_BF16] = {"BF16", 2, true}, [BD_F16] = {"F16", 2, true},
    [BD_F64] = {"F64", 8, true},    [BD_I64] = {"I64", 8, false},  [BD_I32] = {"I32", 4, false},
    [BD_I16] = {"I16", 2, false},   [BD_I8] = {"I8", 1, false},    [BD_U8] = {"U8", 1, false},
    [BD_BOOL] = {"BOOL", 1, false},
};

size_t bd_dtype_size(bd_dtype dtype)
{
    assert(dtype < BD_DTYPE_COUNT);
    return dtypes[dtype].size;
}

const char *bd_dtype_name(bd_dtype dtype)
{
    assert(dtype <= BD_Q8_0);
    return dtype == BD_Q8_0 ? "Q8_0" : dtypes[dtype].name;
}

bd_dtype bd_compute_from_name(const char *name)
{
    assert(!strcmp(name, "f32") || !strcmp(name, "fp32") || !strcmp(name, "bf16") ||
           !strcmp(name, "q8_0"));
    return name[0] == 'q' ? BD_Q8_0 : name[0] == 'b' ? BD_BF16 : BD_F32;
}

bool bd_dtype_from_name(const char *name, bd_dtype *dtype)
{
    for (int i = 0; i < BD_DTYPE_COUNT; i++)
        if (strcmp(name, dtypes[i].name) == 0) {
            *dtype = (bd_dtype)i;
            return true;
        }
    return false;
}

bool bd_dtype_is_float(bd_dtype dtype)
{
    assert(dtype < BD_DTYPE_COUNT);
    return dtypes[dtype].is_float;
}

// f16 by integer arithmetic: the threads run with denormals flushed, which would change small
// values.
static float f16_to_f32(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000) << 16;
    uint32_t exponent = half >> 10 & 0x1f, mantissa = half & 0x3ff;
    uint32_t bits;
    if (exponent == 0x1f) {
        bits = 0x7f800000u | mantissa << 13;
    } else if (exponent != 0) {
        bits = (exponent + 112) << 23 | mantissa << 13;
    } else if (mantissa != 0) {
        int shift = __builtin_clz(mantissa) - 21; // until the leading one is the hidden bit
        bits = (uint32_t)(113 - shift) << 23 | (mantissa << shift & 0x3ff) << 13;
    } else {
        bits = 0;
    }
    bits |= sign;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

static uint16_t f16_from_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00); // NaN
    if (magnitude >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00); // rounds to infinity
    if (magnitude < 0x33000000u)
        return (uint16_t)sign; // below half of the smallest denormal
    uint32_t mantissa = (magnitude & 0x7fffff) | 0x800000;
    int exponent = (int)(magnitude >> 23) - 112;
    int shift = exponent > 0 ? 13 : 14 - exponent; // denormals lose more bits
    uint32_t kept = mantissa >> shift, rest = mantissa & ((1u << shift) - 1),
             tie = 1u << (shift - 1);
    kept += rest > tie || (rest == tie && (kept & 1));
    if (exponent > 0)
        kept += (uint32_t)(exponent - 1) << 10; // the hidden bit adds the missing one
    return (uint16_t)(sign | kept);
}

void bd_to_f32(bd_dtype from, const void *source, float *target, int64_t count)
{
#define CONVERT(type, expression)                                                                  \
    for (int64_t i = 0; i < count; i++) {                                                          \
        type x;                                                                                    \
        memcpy(&x, (const char *)source + (size_t)i * sizeof x, sizeof x);                         \
        target[i] = (expression);                                                                  \
    }                                                                                              \
    return
    switch (from) {
    case BD_F32:
        memmove(target, source, (size_t)count * sizeof(float));
        return;
    case BD_BF16:
        bd_row_kernels_now()->from_bf16(source, count, target);
        return;
    case BD_F16:
        CONVERT(uint16_t, f16_to_f32(x));
    case BD_F64:
        CONVERT(double, (float)x);
    case BD_I64:
        CONVERT(int64_t, (float)x);
    case BD_I32:
        CONVERT(int32_t, (float)x);
    case BD_I16:
        CONVERT(int16_t, (float)x);
    case BD_I8:
        CONVERT(int8_t, (float)x);
    case BD_U8:
        CONVERT(uint8_t, (float)x);
    case BD_BOOL:
        CONVERT(uint8_t, x ? 1.0f : 0.0f);
    case BD_DTYPE_COUNT:
        break;
    }
#undef CONVERT
    assert(0 && "a dtype");
}

void bd_from_f32(bd_dtype to, const float *source, void *target, int64_t count)
{
#define CONVERT(type, expression)                                                                  \
    for (int64_t i = 0; i < count; i++) {                                                          \
        float x = source[i];                                                                       \
        type y = (expression);                                                                     \
        memcpy((char *)target + (size_t)i * sizeof y, &y, sizeof y);                               \
    }                                                                                              \
    return
    switch (to) {
    case BD_F32:
        memmove(target, source, (size_t)count * sizeof(float));
        return;
    case BD_BF16:
        bd_row_kernels_now()->to_bf16(source, count, target);
        return;
    case BD_F16:
        CONVERT(uint16_t, f16_from_f32(x));
    case BD_F64:
        CONVERT(double, (double)x);
    default:
        assert(0 && "a float dtype");
    }
#undef CONVERT
}
