/* isa/divergence.h - how far one row of logits is from a teacher's, at one instruction set. */
#ifndef BD_TENSOR_ISA_DIVERGENCE_H
#define BD_TENSOR_ISA_DIVERGENCE_H

#include "tensor/isa.h"
#include "tensor/vocabulary.h"

typedef struct {
    const float *logits, *teacher; /* [vocabulary] */
    int64_t vocabulary;
    bd_divergence_kind kind;
    float temperature, beta;
    const int32_t *kept; /* [top_k] tokens of the teacher that are not in the tail bucket */
    int64_t top_k;
    float scale;     /* of the gradient */
    float *d_logits; /* scale * d(divergence) is added; NULL: no gradient. Not logits. */
    double value;    /* out */
} bd_divergence_row;

#define BD_DECLARE_DIVERGENCE(level) void bd_divergence_row_##level(bd_divergence_row *row);
BD_FOR_EACH_ISA(BD_DECLARE_DIVERGENCE)
#undef BD_DECLARE_DIVERGENCE

#endif
