/* isa/burst.h - multiply-adds as fast as one instruction set can do them. */
#ifndef BD_TENSOR_ISA_BURST_H
#define BD_TENSOR_ISA_BURST_H

#include "tensor/isa.h"

typedef struct {
    /* Some hundred microseconds of work on registers; what they return means nothing. */
    float (*f32)(void), (*bf16)(void), (*int8)(void); /* NULL: no such instruction at this level */
    double f32_operations, bf16_operations, int8_operations;
} bd_burst_kernels;

#define BD_DECLARE_BURST(level) extern const bd_burst_kernels bd_burst_kernels_##level;
BD_FOR_EACH_ISA(BD_DECLARE_BURST)
#undef BD_DECLARE_BURST

#endif
