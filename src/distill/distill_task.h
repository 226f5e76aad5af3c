/* distill_task.h - a student learning from a causal teacher, as a task.
 *
 * Every micro-batch takes rows of conversations, draws their corruption, and then either lets the
 * student write the last answer itself (on policy) or keeps the data's answer; the teacher scores
 * exactly these tokens. The rollout happens in the forward call, with the weights of that moment,
 * and is never reused. Order and corruption are keyed by (seed, epoch, step, row): resuming needs
 * no cursor.
 *
 *     bd_distill_task_options options = bd_distill_task_default(&distiller, &documents);
 *     options.on_policy = true;
 *     options.rows.length = 256;
 *     if (!bd_distill_task_create(&options, &task, &err)) ...
 *     bd_train(&task, &trainer_options, &result, &err);
 *     bd_distill_task_free(&task);
 *
 * Logged beside the loss: soft_loss, hard_loss, tokens_per_forward, forced_fraction, stop_rate,
 * unsafe_rows, rollout_seconds, teacher_seconds, train_seconds. Source: block-diffusion G, H;
 * decisions 20, 27, 28.
 */
#ifndef BD_DISTILL_DISTILL_TASK_H
#define BD_DISTILL_DISTILL_TASK_H

#include "distill/prepare.h"
#include "train/model_task.h"
#include "train/row_plan.h"
#include "train/schedule.h"
#include "train/task.h"

typedef struct {
    bd_schedule_kind kind;
    double end;
} bd_distill_path;

typedef struct {
    bd_distiller distiller; /* student with bd_model_train() done; models and stop tokens are not
                               owned; caches NULL: the task makes its own; version is the task's */
    bool on_policy;         /* distill.data_source: student_rollout, or else dataset */
    /* Dataset only: from the objective's soft weight (hard is 1 - soft) and temperature at the
     * first step to these at the last. Constant: they stay. */
    bd_distill_path soft, temperature;
    const bd_token_documents *evaluation; /* dataset only: held out; NULL: none */
    const bd_token_documents *documents;  /* each a prompt and one answer behind it; not owned */
    bd_row_layout rows;                   /* without packing */
    double min_noise;
    int64_t batch_rows, micro_batches;
    int64_t steps;  /* with `epochs`: data that ends before them is refused at once */
    int64_t epochs; /* 0: as many as the steps take */
    uint64_t seed;
    bd_model_output output;
    const char *teacher_hash, *tokenizer_hash; /* for the contract; NULL: not told */
} bd_distill_task_options;

bd_distill_task_options bd_distill_task_default(const bd_distiller *distiller,
                                                const bd_token_documents *documents);

/* Errors: what bd_distiller_check refuses; packing; documents without a prompt, without an answer
 * or with something after it; rows longer than either model's positions; data too small for its
 * epochs (BD_ERROR_EXHAUSTED). */
bool bd_distill_task_create(const bd_distill_task_options *options, bd_task *task, bd_error *err);
void bd_distill_task_free(bd_task *task);

#endif
