/* optimizer.h - AdamW over a list of parameters, and what happens to gradients before it.
 *
 * Gradients arrive as gradients of a loss *sum*, added up over micro-batches. One update divides
 * them once by the total denominator, clips their global norm and steps; division and clipping are
 * one factor inside the update, so the gradients are read once more for the norm and once for the
 * update. Parameters are fp32, so they are their own master copy; moments are stored as fp32 or
 * bf16.
 *
 *     bd_optimizer *o = bd_optimizer_create(parameters, &options, &err);
 *     double norm = bd_optimizer_step(o, total_weight, learning_rate);   // of the divided
 * gradients bd_optimizer_free(o);
 *
 * Source: block-diffusion D-04, D-05, D-07, D-12, D-18 to D-20; golden/block-diffusion "AdamW",
 * "Clipping".
 */
#ifndef BD_TRAIN_OPTIMIZER_H
#define BD_TRAIN_OPTIMIZER_H

#include "autograd/parameter.h"
#include "train/metrics.h"

typedef struct {
    double b1, b2, eps, eps_root, weight_decay;
    bool decay_matrices_only;  /* no decay on vectors: norms, biases */
    double clip;               /* largest global norm; 0: no clipping */
    bd_dtype m_dtype, v_dtype; /* BD_F32 or BD_BF16 */
} bd_optimizer_options;

bd_optimizer_options bd_optimizer_default(
    void); /* 0.9, 0.999, 1e-8, 0, 0, matrices only, 1, fp32 */
bool bd_optimizer_check(const bd_optimizer_options *options, bd_error *err);

/* Moments of one parameter, [count] each, in the dtypes of the options. */
typedef struct {
    void *m, *v;
} bd_moments;

typedef struct {
    bd_optimizer_options options;
    const bd_parameters *parameters; /* not owned */
    bd_moments *moments;             /* one per parameter */
    int64_t step;                    /* updates made: the t of the bias correction is step + 1 */
    void *storage;                   /* of all moments */
    size_t bytes;
} bd_optimizer;

/* Moments of zero. Every parameter must have `value` and `gradient`. */
bd_optimizer *bd_optimizer_create(const bd_parameters *parameters,
                                  const bd_optimizer_options *options, bd_error *err);
void bd_optimizer_free(bd_optimizer *optimizer);

/* Divide the gradients by `total`'s denominator (all zero when that is nothing), clip, and update
 * the parameters, whose panels are thereby out of date. Returns the norm before clipping; when that
 * is not finite nothing has been changed. The gradient buffers keep their values (zeroed if the
 * factor is 0). Same bytes on any number of threads. */
double bd_optimizer_step(bd_optimizer *optimizer, bd_weighted total, double learning_rate);

/* sqrt of the sum of squares of all gradients, in double, in an order given by the shapes. */
double bd_gradient_norm(const bd_parameters *parameters);

/* limit / norm when norm >= limit > 0, else 1. */
double bd_clip_factor(double norm, double limit);

/* Multiply all gradients; a factor of 0 gives zeros whatever was there. */
void bd_gradient_scale(const bd_parameters *parameters, double factor);

#endif
