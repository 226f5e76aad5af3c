/* update.h - one update: micro-batches, their summed loss, one division.
 *
 * g = (sum over micro-batches of the gradient of S) / (sum over micro-batches of D), never a mean
 * of means. An update whose total weight is nothing has exact zero gradients in every parameter and
 * the optimizer still steps: moments decay, weight decay applies, the schedule moves on.
 *
 *     bd_update update;
 *     if (!bd_update_accumulate(task, step, micro_batches, compute, arena, &update, &err)) ...
 *     update.gradient_norm = bd_optimizer_step(optimizer, update.loss, rate);
 *
 * Source: block-diffusion D-03 to D-10; decisions 10 and 26.
 */
#ifndef BD_TRAIN_UPDATE_H
#define BD_TRAIN_UPDATE_H

#include "train/optimizer.h"
#include "train/task.h"

typedef struct {
    bd_weighted loss;   /* over all micro-batches */
    bd_metrics metrics; /* the same for the task's metrics */
    int64_t tokens;
    double learning_rate;
    double gradient_norm; /* of the divided gradients, before clipping */
    int64_t bad_micro;    /* -1; or the micro-batch whose loss is not finite */
    bool bad_gradient;    /* the gradient is not finite; parameters were left alone */
} bd_update;

/* Zero the gradients, then run every micro-batch. Gradients of the sums are left in the parameters,
 * not yet divided. A loss that is not finite is a BD_ERROR_VALUE that names step, micro-batch and
 * value. */
bool bd_update_accumulate(const bd_task *task, int64_t step, int64_t micro_batches,
                          bd_dtype compute, bd_arena *arena, bd_update *update, bd_error *err);

/* Accumulate and step the optimizer. A gradient that is not finite changes nothing and is a
 * BD_ERROR_VALUE that names step, norm and the first parameter that has one. */
bool bd_update_run(const bd_task *task, bd_optimizer *optimizer, int64_t step,
                   int64_t micro_batches, double learning_rate, bd_dtype compute, bd_arena *arena,
                   bd_update *update, bd_error *err);

#endif
