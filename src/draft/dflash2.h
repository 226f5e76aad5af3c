/* dflash2.h - DFlash with convolutions around its sublayers and a selector among candidates.
 *
 * Training: the loss of DFlash, or one of the two below, plus the selector's cross entropy over the
 * candidates of slots whose label is among them, teacher-forced and without position weights.
 * Drafting: slot after slot the best score given the token just chosen; sampled, the scores over
 * temperature are the joint that proposals are drawn from, candidates only (decision 17). Source:
 * dflash2-lilicorr 4. The entry `bd_draft_dflash2` of the variants' table is all there is to call.
 */
#ifndef BD_DRAFT_DFLASH2_H
#define BD_DRAFT_DFLASH2_H

#include "draft/selector.h"
#include "draft/session.h"
#include "draft/step.h"

/* The cross entropy's share in BD_SLOT_LAMBDA: scale * exp(-decay * A), where A is the mean
 * probability of the labels over the supervised slots, sum / (supervised + 1e-6). */
double bd_dflash2_share(double scale, double decay, double probabilities, double supervised);

/* The token before each slot's label, [B, N, bs]: what the selector is fed in training. */
void bd_dflash2_previous(const bd_block_batch *batch, int32_t *tokens);

#endif
