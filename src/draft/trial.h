/* trial.h - one draft used in several ways, at the same anchors of the same texts.
 *
 * The target reads each text once. Blocks are then drafted at anchors spread over it, all blocks of
 * a text in one pass, and what of each would stand is counted: the tokens that are the target's own
 * choice, as long as the text is what the target would have written. For a session that proposes at
 * the same anchors the numbers are the same.
 *
 *     bd_trial trial;
 *     if (!bd_trial_begin(&trial, &patient, texts, count, &err)) ...
 *     trial.usages[0] = usage; trial.usages[1] = other; trial.usage_count = 2;
 *     bd_trial_run(&trial, NULL);          // trial.accepted[u * trial.anchors + i]
 *     bd_trial_end(&trial);
 */
#ifndef BD_DRAFT_TRIAL_H
#define BD_DRAFT_TRIAL_H

#include "base/progress.h"
#include "draft/hypothesis.h"

/* Blocks are drafted behind the first `first` tokens. The rest is best written by the target. */
typedef struct {
    const int32_t *tokens;
    int64_t count, first;
} bd_trial_text;

typedef struct {
    const bd_patient *patient;
    bd_draft *draft;
    bd_model *target;
    const bd_trial_text *texts;
    int64_t text_count;
    int64_t spacing, anchors; /* tokens from one anchor to the next; anchors of all texts */
    bd_usage usages[BD_MOST_HYPOTHESES + 1]; /* to be filled in before a run */
    int64_t usage_count;
    int32_t *accepted; /* [usages, anchors] */
    bd_arena *arena;   /* of one text */
} bd_trial;

/* Patient and texts outlive the trial. On failure nothing is left to end. */
bool bd_trial_begin(bd_trial *trial, const bd_patient *patient, const bd_trial_text *texts,
                    int64_t text_count, bd_error *err);
void bd_trial_end(bd_trial *trial);

/* May be run again with other usages. progress: texts times usages; NULL: silent. */
void bd_trial_run(bd_trial *trial, bd_progress *progress);

#endif
