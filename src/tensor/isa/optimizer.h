/* isa/optimizer.h - the AdamW update of a range of elements, at one instruction set. */
#ifndef BD_TENSOR_ISA_OPTIMIZER_H
#define BD_TENSOR_ISA_OPTIMIZER_H

#include "tensor/isa.h"
#include "tensor/optimizer.h"

/* m_unbias = 1 / (1 - b1^t), v_unbias = 1 / (1 - b2^t). */
typedef void bd_adamw_kernel(const bd_adamw *options, float m_unbias, float v_unbias, int64_t count,
                             float *parameter, const float *gradient, bd_dtype m_dtype, void *m,
                             bd_dtype v_dtype, void *v);

#define BD_DECLARE_ADAMW(level) bd_adamw_kernel bd_adamw_##level;
BD_FOR_EACH_ISA(BD_DECLARE_ADAMW)
#undef BD_DECLARE_ADAMW

#endif
