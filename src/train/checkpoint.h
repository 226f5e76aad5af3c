/* checkpoint.h - the state of a run on disk: whole, verified, or not there.
 *
 *     RUN/checkpoint-N/           what the task saves: a model or draft folder that other tools
 * load trainer_state.safetensors   m.NAME, v.NAME; param.NAME where the saved files do not already
 *                                     hold exactly these fp32 values
 *         trainer.json            step, counters, metrics window, contract, SHA-256 of every file
 *     RUN/latest, RUN/best        links
 *
 * A checkpoint is made under a temporary name, synced, renamed into place, and only then do the
 * links move, each in one step: at any instant `latest` is whole, also when the process is killed.
 * What a killed process leaves behind has ".tmp-" in its name. Loading checks every byte and every
 * field of the contract before it changes anything.
 *
 * Source: block-diffusion H-01 to H-12; cli.md "A run folder".
 */
#ifndef BD_TRAIN_CHECKPOINT_H
#define BD_TRAIN_CHECKPOINT_H

#include "train/optimizer.h"
#include "train/task.h"

/* Where a run stands. */
typedef struct {
    int64_t step;          /* updates made */
    int64_t micro_batches; /* forward and backward passes made; the data cursor follows from it */
    int64_t tokens;
    double seconds;    /* spent training, over all sessions */
    double evaluation; /* evaluation loss at this step; NaN: not evaluated */
    double best;       /* lowest evaluation loss of a checkpoint so far; NaN: none */
    int64_t best_step; /* its step; -1: none */
    /* Since the last line of the log. */
    bd_metrics window;
    int64_t window_tokens;
    double window_seconds;
} bd_run_state;

bd_run_state bd_run_state_begin(void); /* step 0, nothing evaluated */

/* Write RUN/checkpoint-STEP (replacing one that a killed run left), then move `latest`, and `best`
 * if state->best_step is this step; then remove checkpoints before this one beyond the newest
 * `keep`, sparing the best (keep 0: remove none). On failure the links still lead to whole
 * checkpoints. */
bool bd_checkpoint_write(const char *run, const bd_task *task, const bd_optimizer *optimizer,
                         const bd_contract *contract, const bd_run_state *state, int64_t keep,
                         bd_error *err);

/* Read a checkpoint folder (or a link to one) into the task's parameters, the optimizer and
 * `state`. A missing, changed, truncated or unlisted file is a BD_ERROR_STATE that names it; a
 * contract that differs is one that lists the fields. Nothing is changed on failure. */
bool bd_checkpoint_read(const char *folder, const bd_task *task, bd_optimizer *optimizer,
                        const bd_contract *contract, bd_run_state *state, bd_error *err);

/* Are the files of this checkpoint what was written? For `inspect` and before copying one. */
bool bd_checkpoint_verify(const char *folder, bd_error *err);

/* RUN/NAME -> TARGET, in one step; a TARGET of NULL removes the link. */
bool bd_checkpoint_link(const char *run, const char *name, const char *target, bd_error *err);

/* Remove what a killed process left in RUN. */
bool bd_checkpoint_clean(const char *run, bd_error *err);

#endif
