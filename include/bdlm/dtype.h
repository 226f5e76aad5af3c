/* bdlm/dtype.h - number formats, with the names safetensors gives them. */
#ifndef BDLM_DTYPE_H
#define BDLM_DTYPE_H

typedef enum {
    BD_F32,
    BD_BF16,
    BD_F16,
    BD_F64,
    BD_I64,
    BD_I32,
    BD_I16,
    BD_I8,
    BD_U8,
    BD_BOOL,
    BD_DTYPE_COUNT,
    BD_Q8_0 =
        BD_DTYPE_COUNT /* blocks of 32 int8 and a scale: how products run, no array's format */
} bd_dtype;

#endif
