/* optimizer.h - the arithmetic of one AdamW update.
 *
 * m = b1 m + (1-b1) g;  v = b2 v + (1-b2) g^2;
 * p -= lr * ( m/(1-b1^t) / (sqrt(v/(1-b2^t) + eps_root) + eps) + decay * p )
 * in float32. The update uses the new moments before rounding; they are stored as float32 or bf16,
 * nearest, ties to even (decision 19). Source: golden/block-diffusion "AdamW".
 */
#ifndef BD_TENSOR_OPTIMIZER_H
#define BD_TENSOR_OPTIMIZER_H

#include "tensor/dtype.h"

/* Options are double because 1 - b1 has to be rounded to f32 after the subtraction: with b1 = 0.9f
 * it would be 0.10000002, enough to move a bf16 moment. */
typedef struct {
    double b1, b2, eps, eps_root, learning_rate, weight_decay;
    int64_t step;           /* t, from 1 */
    double gradient_factor; /* multiplies every gradient first: normalisation and clipping in one */
} bd_adamw;

void bd_adamw_update(const bd_adamw *options, int64_t count, float *parameter,
                     const float *gradient, bd_dtype m_dtype, void *m, bd_dtype v_dtype, void *v);

#endif
