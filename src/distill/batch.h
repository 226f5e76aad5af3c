/* batch.h - prepared batches of any framework: bdlm/distill.h inside the library, and the adapter
 * of block-diffusion batches to them.
 *
 *     bd_token_batch batch;
 *     bd_array inputs[BD_ADAPTED_INPUTS];
 *     if (!bd_token_batch_from_rows(&rows, &canvas, true, raw, weights, inputs, &batch, &err)) ...
 *
 * Source: block-diffusion E-10 to E-12.
 */
#ifndef BD_DISTILL_BATCH_H
#define BD_DISTILL_BATCH_H

#include "bdlm/distill.h"
#include "diffusion/batch.h"

enum { BD_ADAPTED_INPUTS = 5 };

/* The inputs are input_tokens, positions, decoder_segment_ids, targets and targets_segmentation;
 * `weights` [rows, length] takes the raw weights where they are allowed, else 0. completion_only:
 * completion is the scope, else every real token. Errors: a missing field (all of them are named),
 * weights that are not finite or negative, masks outside their scope, a weighted clean token that
 * is no shifted anchor. */
bool bd_token_batch_from_rows(const bd_diffusion_batch *rows, const bd_canvas *canvas,
                              bool completion_only, const float *raw, float *weights,
                              bd_array *inputs, bd_token_batch *out, bd_error *err);

#endif
