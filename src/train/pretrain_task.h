/* pretrain_task.h - causal language modelling on a stream of tokens, as a task.
 *
 * The stream is cut into rows of sequence_length + 1 tokens that overlap by one, so that every
 * token but the first is predicted exactly once an epoch. The last rows are held out for
 * evaluation. Each epoch visits the training rows in an order of its own, drawn from the counter
 * generator; which rows a micro-batch holds is a function of (seed, step, micro) alone, so resuming
 * needs no cursor.
 *
 *     bd_pretrain_options options = {.model = model, .tokens = ids, .token_count = n,
 *                                    .sequence_length = 256, .batch_rows = 8, .micro_batches = 1};
 *     bd_task task;
 *     if (!bd_pretrain_task_create(&options, &task, &err)) ...
 *     bd_train(&task, &trainer_options, &result, &err);
 *     bd_pretrain_task_free(&task);
 */
#ifndef BD_TRAIN_PRETRAIN_TASK_H
#define BD_TRAIN_PRETRAIN_TASK_H

#include "model/model.h"
#include "train/task.h"

typedef struct {
    bd_model *model;       /* with bd_model_train() done; not owned */
    const int32_t *tokens; /* [token_count], mapped or in memory; not copied, not owned */
    int64_t token_count;
    int64_t sequence_length; /* tokens a row feeds; at most the model's positions */
    int64_t batch_rows;      /* rows of a micro-batch */
    int64_t micro_batches;   /* per update: the same as the trainer's */
    int64_t evaluation_rows; /* held out from the end of the stream; 0: no evaluation */
    int64_t epochs;          /* going further is an error; 0: as many as the steps take */
    uint64_t seed;
    float z_loss;           /* adds z_loss * logsumexp^2; 0: off */
    bd_dtype save_dtype;    /* of saved weights: BD_F32, BD_BF16 or BD_F16 */
    const char *start;      /* what the weights were before training, for the contract: the hash of
                               a folder, a seed; NULL: not told */
    const char *companions; /* folder whose tokenizer files are saved beside the weights; or NULL */
} bd_pretrain_options;

/* Refuses a stream that is too short or holds ids outside of the vocabulary. */
bool bd_pretrain_task_create(const bd_pretrain_options *options, bd_task *task, bd_error *err);
void bd_pretrain_task_free(bd_task *task);

/* Training rows of the stream under these options, and the updates that one epoch fills. */
int64_t bd_pretrain_rows(const bd_pretrain_options *options);
int64_t bd_pretrain_steps_per_epoch(const bd_pretrain_options *options);

#endif
