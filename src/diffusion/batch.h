/* batch.h - the nine fields of a block-diffusion batch, and what must hold between them.
 *
 * Four masks are kept apart and never merged: which tokens are real (segmentation), which the model
 * is to produce (completion), which inputs were replaced by the mask token (corruption), and which
 * targets count (loss). Batches are target aligned: targets[i] is the clean token in slot i, and
 * inputs[i] is the same token or the mask token; nothing is shifted here.
 *
 *     bd_diffusion_batch batch = bd_diffusion_batch_allocate(arena, rows, L);
 *     bd_diffusion_batch_fill(&batch, 0, ids, answer_marks, count, &padding);
 *     bd_corrupt_batch(&batch, &canvas, &options, &draws, noise, scratch, &err);   // corruption.h
 *     bd_diffusion_batch_check(&batch, &canvas, completion_only, &err);
 *
 * Source: block-diffusion B.1, B.2, B.6, A-20.
 */
#ifndef BD_DIFFUSION_BATCH_H
#define BD_DIFFUSION_BATCH_H

#include "diffusion/alignment.h"

typedef struct {
    int64_t rows, length;
    /* [rows, length] each; a mask that is not given is NULL. */
    int32_t *inputs, *inputs_position, *inputs_segmentation;
    int32_t *targets, *targets_position, *targets_segmentation;
    int32_t *completion_mask, *corruption_mask, *targets_loss_mask;
} bd_diffusion_batch;

/* All nine fields, zeroed. */
bd_diffusion_batch bd_diffusion_batch_allocate(bd_arena *arena, int64_t rows, int64_t length);

static inline bd_placement bd_diffusion_batch_placement(const bd_diffusion_batch *batch)
{
    return (bd_placement){batch->rows, batch->length, batch->targets_position,
                          batch->targets_segmentation};
}

/* --- filling rows ---------------------------------------------------------------------------- */

/* What follows the last token of a document. Only padding outside the policy's reach is padding:
 * segment 0, never corrupted, never weighted. */
typedef enum {
    BD_PAD_NONE,         /* "none": padding at once */
    BD_PAD_TO_BLOCK_END, /* "to-block-end": end tokens to the end of its last block, trained on */
    BD_PAD_IN_LOSS,      /* "eos-in-loss": end tokens to the end of the row, trained on */
    BD_PAD_POLICY_COUNT
} bd_pad_policy;

const char *bd_pad_policy_name(bd_pad_policy policy);
bool bd_pad_policy_from_name(const char *name, bd_pad_policy *policy, bd_error *err);

typedef struct {
    bd_pad_policy policy;
    int32_t pad_id, end_id;
    int64_t block_size; /* BD_PAD_TO_BLOCK_END only */
} bd_padding;

/* Row `row` = one document, cut at the row's end and padded. completion[i] says whether token i is
 * the model's to produce; NULL: all are. End tokens of the padding policy are added only after a
 * completion token. Corruption and loss masks are cleared. */
void bd_diffusion_batch_fill(bd_diffusion_batch *batch, int64_t row, const int32_t *tokens,
                             const uint8_t *completion, int64_t count, const bd_padding *padding);

/* The same for the turns of a conversation: prompt turns are never trained on (B-07). */
typedef struct {
    const int32_t *tokens;
    int64_t count;
    bool answer;
} bd_turn;
void bd_diffusion_batch_fill_turns(bd_diffusion_batch *batch, int64_t row, const bd_turn *turns,
                                   int64_t turn_count, const bd_padding *padding);

/* Packing: put a document at slot `used` of the row, with the next segment number and positions
 * from 0. Returns the slots used now; the caller goes on until the row is full and then pads it. */
int64_t bd_diffusion_batch_append(bd_diffusion_batch *batch, int64_t row, int64_t used,
                                  const int32_t *tokens, const uint8_t *completion, int64_t count,
                                  const bd_padding *padding);
void bd_diffusion_batch_pad(bd_diffusion_batch *batch, int64_t row, int64_t used, int32_t pad_id);

/* --- the whole batch ------------------------------------------------------------------------- */

/* Permute every field: slot s gets what was in slot order[s] (parallel/layout.h). */
void bd_diffusion_batch_reorder(bd_diffusion_batch *batch, const int32_t *order, bd_arena *scratch);

/* In no block may a prompt token follow a completion token: the answer would see it while it is
 * generated (B-12). Reads slots in stored order, before any reordering. */
bool bd_diffusion_batch_check_leak(const bd_diffusion_batch *batch, int64_t block_size,
                                   bd_error *err);

/* The invariants of a finished batch: all masks present; input and target positions and segments
 * agree; completion in the real tokens; corruption in loss; loss in completion (or, without
 * completion_only, in the real tokens); a clean token weighted only where it is an anchor that is
 * not first in its document; inputs are targets or the mask token. Names row, slot and field. */
bool bd_diffusion_batch_check(const bd_diffusion_batch *batch, const bd_canvas *canvas,
                              bool completion_only, bd_error *err);

#endif
