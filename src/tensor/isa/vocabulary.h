/* isa/vocabulary.h - the loss of one row of logits, at one instruction set. */
#ifndef BD_TENSOR_ISA_VOCABULARY_H
#define BD_TENSOR_ISA_VOCABULARY_H

#include <stdint.h>

#include "tensor/isa.h"

/* Loss of logits z against `target` and, unless NULL, against softmax(teacher). */
typedef struct {
    const float *logits, *teacher; /* [vocabulary] */
    int64_t vocabulary;
    int32_t target;
    float hard, soft, z_loss, scale;
    /* Out. */
    float *d_logits; /* scale * d(hard * ce + soft * soft_ce + z_loss * lse^2), or NULL; may be
                        logits */
    float hard_loss, soft_loss, log_normalizer;
    int32_t best;
} bd_vocabulary_row;

#define BD_DECLARE_VOCABULARY(level) void bd_vocabulary_row_##level(bd_vocabulary_row *row);
BD_FOR_EACH_ISA(BD_DECLARE_VOCABULARY)
#undef BD_DECLARE_VOCABULARY

#endif
