/* targets.h - which token a slot of a block is trained on, and how much it counts.
 *
 * Slot k of a block anchored at a has position a + k. It is trained on the token at a + k + shift,
 * where the shift is the one constant that tells the variants apart: 0 (DFlash, DFlash2, LiLiCorr:
 * slot 0 is the anchor itself and trained on nothing) or 1 (DSpark, Domino: every slot predicts the
 * next token). A teacher's logits that predict the token at position i stand at row i - 1. Source:
 * draft-family 4.
 *
 *     bd_block_batch batch = {.rows = B, .length = S, .block_size = bs, .tokens = ids,
 *                             .loss_mask = mask, .anchors = &anchors};
 *     bd_block_targets targets = bd_block_targets_make(&batch, shift, arena);
 *     bd_position_weights(&weighting, shift, &batch, targets.supervised, loss, weights);
 */
#ifndef BD_DRAFT_TARGETS_H
#define BD_DRAFT_TARGETS_H

#include "attention/visibility.h"
#include "base/arena.h"
#include "base/error.h"

/* Token rows and the blocks drawn from them. */
typedef struct {
    int64_t rows, length;      /* B, S */
    int64_t block_size;        /* bs */
    const int32_t *tokens;     /* [B, S] */
    const float *loss_mask;    /* [B, S]: a token counts where it is 1 */
    const bd_anchors *anchors; /* [B, N] */
} bd_block_batch;

/* Slots of all blocks: B * N * bs. */
int64_t bd_block_slots(const bd_block_batch *batch);

/* What the draft reads, [B, N * bs]: the anchor's token, then masks; an unused block is all masks.
 */
void bd_block_noise(const bd_block_batch *batch, int32_t mask_id, int32_t *ids);

/* Rotary positions of the slots, [B, N * bs]: anchor + k. */
void bd_block_positions(const bd_block_batch *batch, int32_t *positions);

/* Each [B, N, bs]. The position is min(a + k + shift, S - 1); supervised is 1 where the block is
 * used, the label lies inside the row and under the loss mask, and the slot is not a shift-0
 * anchor. */
typedef struct {
    int32_t *token, *position;
    float *supervised;
} bd_block_targets;
bd_block_targets bd_block_targets_make(const bd_block_batch *batch, int shift, bd_arena *arena);

/* Teacher-forced tokens [B, N, bs], the token at a + k (clamped): what heads that read the token
 * before a label are fed. */
void bd_block_tokens(const bd_block_batch *batch, int32_t *tokens);

/* The row of the teacher's logits that predicts the token at a label position; 0 for position 0. */
int32_t bd_teacher_row(int32_t label_position);

typedef enum { BD_WEIGHT_DPACE, BD_WEIGHT_DECAY } bd_weight_objective;

typedef struct {
    bd_weight_objective objective;
    float decay; /* BD_WEIGHT_DECAY: gamma in slots; 0: every slot counts the same */
    float alpha; /* BD_WEIGHT_DPACE: in (0, 1] */
} bd_weighting;

bool bd_weighting_check(const bd_weighting *weighting, bd_error *err);

/* weights[B, N, bs] = supervised times the position weight.
 * Decay: exp(-max(k - (1 - shift), 0) / gamma). D-PACE (slots from the first supervised one, shift
 * 0 only): with q = exp(-cross entropy) of the label, s = alpha + (1 - alpha) q where supervised
 * and 1 elsewhere, C = running product of s, 0 where not supervised; the weight is the sum of C
 * from the slot on. `cross_entropy` [B, N, bs] is read at supervised slots by D-PACE alone. A
 * constant for gradients. */
void bd_position_weights(const bd_weighting *weighting, int shift, const bd_block_batch *batch,
                         const float *supervised, const float *cross_entropy, float *weights);

/* The division of a drafter's weighted loss: sum / (weight + 1e-6), or "trains nothing" when the
 * denominator does not exceed 1 (draft-family 4.4). */
bool bd_weight_trains(double weight);
double bd_weighted_mean(double sum, double weight); /* 0 when it trains nothing */
double bd_weight_denominator(double weight);        /* weight + 1e-6 */

/* Top-1 over the supervised slots: correct / (supervised + 1e-6). */
double bd_top1(double correct, double supervised);

#endif
