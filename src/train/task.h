/* task.h - what the trainer trains.
 *
 * Pretraining, fine-tuning, distillation and every drafter are a task: a few callbacks. One loop,
 * one accumulation, one checkpoint, one set of logs serve them all. The loss is always a sum and a
 * denominator until the very end; gradients are of the *sum* and are divided once per update.
 *
 *     bd_task task;
 *     if (!bd_pretrain_task_create(&options, &task, &err)) ...
 *     bd_train(&task, &trainer_options, &result, &err);
 */
#ifndef BD_TRAIN_TASK_H
#define BD_TRAIN_TASK_H

#include "autograd/tape.h"
#include "train/contract.h"
#include "train/metrics.h"

/* What a forward pass leaves behind: gradients of loss.sum are already in the parameters. A loss
 * that is a plain mean has denominator 1. */
typedef struct {
    bd_weighted loss;                   /* sum and denominator */
    bd_metric metrics[BD_MOST_METRICS]; /* by name, weighted or scalar; "loss" and "grad_norm" are
                                           taken */
    int metric_count;
    int64_t tokens; /* for tokens/s */
} bd_loss;

typedef struct {
    void *self;
    const char *name;                /* "pretrain": for messages */
    const bd_parameters *parameters; /* trainable tensors, by name, in a fixed order */
    bool perplexity;                 /* the loss is a mean -log p: exp of it is logged as well */
    /* Prepare the batch of this step and micro-batch; deterministic in (seed, step, micro). */
    bool (*next)(void *self, int64_t step, int64_t micro, bd_error *err);
    /* Forward and backward of the prepared batch: adds gradients of the loss sum. The loss comes in
     * as {0}. */
    bool (*forward)(void *self, bd_tape *tape, bd_loss *loss, bd_error *err);
    /* What resume must match. */
    bool (*identity)(void *self, bd_contract *contract, bd_error *err);
    /* Evaluate on held-out data without touching parameters: sums over the whole of it. The tape
     * does not record; its arena may be marked and released per batch. NULL: no evaluation. */
    bool (*evaluate)(void *self, bd_tape *tape, bd_loss *loss, bd_error *err);
    /* Save the trained thing into an existing, empty folder, as files that other tools load. */
    bool (*save)(void *self, const char *folder, bd_error *err);
    /* Save the prepared batch into an existing folder, to find out what went wrong with it. NULL:
     * no. */
    bool (*save_batch)(void *self, const char *folder, bd_error *err);
} bd_task;

#endif
