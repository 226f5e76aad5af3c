/* dflash.h - plain DFlash: every slot after the anchor predicts its own token, all at once.
 *
 * Training: cross entropy against the label tokens, or against the target's distribution, weighted
 * by slot. Drafting: the arg max of each slot; there is no joint over slots to sample from, so
 * proposals are one-hot (decision 17). Source: draft-family 5.2, 7.1; DFlash arXiv:2602.06036,
 * D-PACE arXiv:2605.18810. The entry `bd_draft_dflash` of the variants' table (variant.h) is all
 * there is to call.
 */
#ifndef BD_DRAFT_DFLASH_H
#define BD_DRAFT_DFLASH_H

#include "draft/session.h"
#include "draft/step.h"

/* The loss of 5.2 on a prepared step; other variants add theirs to it. */
void bd_dflash_loss(bd_draft_step *step, bd_draft_loss *loss);

/* --- its two halves, for variants that make something else of the slots ----------------------- */

/* Each [slots], read where supervised. */
typedef struct {
    float *hard;  /* cross entropy of the label */
    float *value; /* what a slot pays: this, or the cross entropy against the teacher */
    int32_t *best;
} bd_dflash_slots;

/* One pass over the vocabulary: fills in `slots` and step->weights, and leaves the gradients of the
 * unweighted `value`s in step->hidden. */
void bd_dflash_run(bd_draft_step *step, bd_dflash_slots *slots);

/* Adds up the slots' `value`s by weight and weighs the gradients in step->hidden accordingly, times
 * `slope` where a value is a function of what was paid (NULL: 1). unruled: the sum trains however
 * small its weight is. */
void bd_dflash_weigh(bd_draft_step *step, const float *value, const float *slope,
                     const int32_t *best, bool unruled, bd_draft_loss *loss);

#endif
