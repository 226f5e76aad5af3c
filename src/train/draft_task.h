/* draft_task.h - training a drafter beside its frozen target, as a task.
 *
 * Every micro-batch takes, for rows of text, the hidden states the draft reads and the final ones
 * its teacher rows are made from, draws anchors, and takes one draft step. The states come from
 * running the target here (online), or from a source: a cache (offline) or producers (streaming).
 * The same text gives the same weights whichever it is, if the source keeps fp32.
 * Rows are cut from a stream of tokens; epochs shuffle them; anchors are keyed by (seed, step,
 * row), so resuming needs no cursor. Source: draft-family 5; decisions 7, 8, 10, 11, 26.
 *
 *     bd_draft_task_options options = {.draft = draft, .tokens = ids, .token_count = n,
 *                                      .sequence_length = 512, .batch_rows = 4, .micro_batches = 1,
 *                                      .anchors = 64, .objective = bd_draft_objective_default()};
 *     bd_task task;
 *     if (!bd_draft_task_create(&options, &task, &err)) ...
 */
#ifndef BD_TRAIN_DRAFT_TASK_H
#define BD_TRAIN_DRAFT_TASK_H

#include "draft/step.h"
#include "train/states.h"
#include "train/task.h"

typedef struct {
    bd_draft *draft;              /* with bd_draft_train() done; not owned */
    const bd_parameters *trained; /* which of its tensors; NULL: all. Others keep their values */
    const int32_t *tokens;        /* [token_count]; not copied, not owned */
    int64_t token_count;
    int64_t sequence_length; /* of a row: a multiple of the block size, at least two blocks */
    int64_t batch_rows, micro_batches;
    int64_t evaluation_rows;      /* held out from the end of the stream */
    int64_t anchors;              /* blocks per row at most */
    bd_draft_objective objective; /* Domino: its lambda is set from these */
    int64_t steps;                /* updates in all */
    double lambda_start, lambda_ratio;
    uint64_t seed;
    bd_dtype save_dtype;
    const bd_states_source *source; /* NULL: online. A source of other states is refused */
    const char *start;              /* what the weights were before training, for the contract */
} bd_draft_task_options;

bool bd_draft_task_create(const bd_draft_task_options *options, bd_task *task, bd_error *err);
void bd_draft_task_free(bd_task *task);

int64_t bd_draft_task_rows(const bd_draft_task_options *options); /* for training */

#endif
