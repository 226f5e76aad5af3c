/* dtype.h - number formats and conversion between them.
 *
 * Names are those of safetensors files. bf16 and f16 round to nearest, ties to even.
 *
 *     bd_to_f32(BD_BF16, mapped, row, count);
 */
#ifndef BD_TENSOR_DTYPE_H
#define BD_TENSOR_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "bdlm/dtype.h"

size_t bd_dtype_size(bd_dtype dtype);
const char *bd_dtype_name(bd_dtype dtype);                  /* "F32", "BF16", ... */
bool bd_dtype_from_name(const char *name, bd_dtype *dtype); /* false: unknown */
bool bd_dtype_is_float(bd_dtype dtype);
/* How products run, by the name an option has: "f32" (or "fp32"), "bf16", "q8_0". */
bd_dtype bd_compute_from_name(const char *name);

void bd_to_f32(bd_dtype from, const void *source, float *target, int64_t count);
void bd_from_f32(bd_dtype to, const float *source, void *target, int64_t count);

static inline uint16_t bd_bf16_from_f32(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40); // stays a NaN
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static inline float bd_bf16_to_f32(uint16_t half)
{
    uint32_t bits = (uint32_t)half << 16;
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

#endif
