/* trainer.h - the loop over steps.
 *
 * next, forward and backward per micro-batch; one division, clip, schedule and AdamW per step; now
 * and then evaluation, a line in the log, a checkpoint. The loop knows nothing about models:
 * everything that depends on what is trained is behind the task's callbacks.
 *
 *     bd_trainer_options options = bd_trainer_default();
 *     options.steps = 1000;
 *     options.run = "runs/first";
 *     if (!bd_train(&task, &options, &result, &err)) ...
 *
 * A run that was stopped, or killed, goes on from a checkpoint to the same bits as one that was
 * not.
 */
#ifndef BD_TRAIN_TRAINER_H
#define BD_TRAIN_TRAINER_H

#include <jansson.h>
#include <signal.h>

#include "base/progress.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "train/task.h"

typedef struct {
    int64_t steps;         /* updates in all, those of earlier sessions included */
    int64_t micro_batches; /* per update */
    bd_dtype compute;      /* what products round their inputs to: BD_F32 or BD_BF16 */
    bd_schedule schedule;  /* its total of 0 becomes `steps` */
    bd_optimizer_options optimizer;
    /* Every so many steps, and always after the last one; 0: only then. A checkpoint is evaluated
     * before it is written, so that `best` can be told (not one that is written because of `stop`).
     */
    int64_t log_every, evaluate_every, checkpoint_every;
    int64_t keep;    /* newest checkpoints that stay, besides the best; 0: all */
    const char *run; /* run folder; NULL: nothing is written */
    const char
        *resume;    /* checkpoint folder or link to go on from, such as RUN/latest; NULL: start */
    bool again;     /* without resume: the run folder may hold this run, ended before its first
                     * checkpoint; it begins again */
    json_t *recipe; /* for run.json; NULL: none */
    const char *const *command;        /* for run.json: the command line, ended by NULL; or NULL */
    bd_progress *progress;             /* NULL: none */
    const volatile sig_atomic_t *stop; /* becomes non-zero: checkpoint and stop; NULL: never */
} bd_trainer_options;

/* 1 micro-batch, BD_BF16, cosine to 0 from 3e-4, log every step, checkpoint every 1000 keeping 2.
 */
bd_trainer_options bd_trainer_default(void);

typedef struct {
    int64_t step;      /* updates made */
    bool stopped;      /* before the last step, on request */
    double loss;       /* of the last step; NaN: none was made */
    double evaluation; /* last evaluation loss; NaN: none */
    int64_t tokens;    /* over all sessions */
    double seconds;
    size_t arena_peak; /* bytes of activations */
} bd_train_result;

/* Train to the end or until stopped. The task's parameters must be trainable and freshly
 * initialised (resuming overwrites them). On failure they hold the last whole update and RUN its
 * last checkpoint; a loss or gradient that is not finite saves the task's batch in RUN/bad-step-N.
 */
bool bd_train(const bd_task *task, const bd_trainer_options *options, bd_train_result *result,
              bd_error *err);

/* The whole contract: the trainer's fields, then the task's. bd_contract_free() it. */
bd_contract *bd_trainer_contract(const bd_task *task, const bd_trainer_options *options,
                                 bd_error *err);

#endif
