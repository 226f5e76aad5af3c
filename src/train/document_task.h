/* document_task.h - training a model on documents, causally or as block diffusion, as a task.
 *
 * Pretraining by denoising and fine-tuning under both objectives are this one task: rows of a plan
 * (row_plan.h), four masks kept apart (batch.h), and one weighted loss. Under block diffusion every
 * row is corrupted anew each time it is seen; the draws are keyed by (seed, epoch, step, row of the
 * step's whole batch), so neither micro-batches nor threads nor resuming change a mask. Held-out
 * rows are corrupted the same way at every evaluation.
 *
 *     bd_document_task_options options = bd_document_task_default(model, &documents);
 *     options.canvas = canvas;                        // block_size 0: the causal objective
 *     options.rows.length = 512;
 *     bd_task task;
 *     if (!bd_document_task_create(&options, &task, &err)) ...
 *     bd_train(&task, &trainer_options, &result, &err);
 *     bd_document_task_free(&task);
 *
 * Source: block-diffusion A.5, B, C-10, D-16; decisions 2, 5, 11.
 */
#ifndef BD_TRAIN_DOCUMENT_TASK_H
#define BD_TRAIN_DOCUMENT_TASK_H

#include "diffusion/corruption.h"
#include "diffusion/objective.h"
#include "train/model_task.h"
#include "train/row_plan.h"
#include "train/task.h"

typedef struct {
    const char *name; /* "pretrain", "sft" */
    bd_model *model;  /* with bd_model_train() done; not owned. Its config gets the canvas. */
    const bd_token_documents *documents;  /* not owned */
    const bd_token_documents *evaluation; /* NULL: rows held out of `documents` */
    bd_row_layout rows;
    bd_canvas canvas; /* block_size 0: causal_lm, and the next fields have no meaning */
    bd_train_layout layout;
    double min_noise;
    bool inverse_noise;    /* a corrupted token weighs 1 / t: the likelihood bound */
    bool completion_only;  /* only completion tokens are corrupted and weighted */
    int64_t batch_rows;    /* rows of a micro-batch */
    int64_t micro_batches; /* per update: the same as the trainer's */
    int64_t
        evaluation_rows; /* at most; 0: no evaluation. Without `evaluation` held out from the end */
    int64_t epochs;      /* going further is an error; 0: as many as the steps take */
    uint64_t seed;       /* order of the rows, and corruption */
    float z_loss;        /* adds z_loss * logsumexp^2; 0: off */
    bd_model_output output;
} bd_document_task_options;

/* Causal, single layout, min_noise 1e-3, uniform weights, rows of 8, packing, no end tokens. */
bd_document_task_options bd_document_task_default(bd_model *model,
                                                  const bd_token_documents *documents);

/* Refuses what could not train: ids outside the vocabulary, a canvas that does not fit the model, a
 * mask token that is one of its pad, begin or stop tokens, a row longer than the model's positions,
 * too few rows, completion masks that are all 0 (or, with completion_only, all 1). */
bool bd_document_task_create(const bd_document_task_options *options, bd_task *task, bd_error *err);
void bd_document_task_free(bd_task *task);

/* Rows of the data for training and for evaluation. */
int64_t bd_document_task_rows(const bd_task *task);
int64_t bd_document_task_evaluation_rows(const bd_task *task);

/* The batch that next() prepared, for looking at it; `weights` may be NULL. */
const bd_diffusion_batch *bd_document_task_batch(const bd_task *task, const float **weights);

#endif
