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
    BD_DTYPE_COUNT
} bd_dtype;

#endif
