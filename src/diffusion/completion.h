/* completion.h - which tokens of a row the model is to produce, and which of them count.
 *
 * A row is a prompt followed by a completion. "Followed" means by logical position: slots may be
 * reordered or left padded. These functions say where the completion is, cut it at a stop token,
 * and decide which weights may be trusted after a rollout.
 *
 *     bd_stop_kept(&placement, generated, completion, stop, count, kept);
 *     bd_completion_drop(cells, completion, kept, segments, corruption, weights);
 *     bd_safe_weights(&canvas, &placement, completion, corruption, weights, safe);
 *
 * All arrays are [rows, length]; masks are 0 or not 0. Source: block-diffusion B.3, F.2, G.1, G.2.
 */
#ifndef BD_DIFFUSION_COMPLETION_H
#define BD_DIFFUSION_COMPLETION_H

#include "diffusion/alignment.h"

/* A batch of rows read in logical order. */
typedef struct {
    int64_t rows, length;
    int32_t *slot; /* [rows, length]: slot[r, p] holds logical position p; first count[r] are set */
    int32_t *count; /* [rows]: tokens that are not padding */
    int32_t *start; /* [rows]: logical position of the first completion token; count[r]: none */
} bd_logical_rows;

/* Valid positions of every row must be 0 .. n-1, once each, and the completion a suffix of them
 * that holds no padding. With `prompt_first` a row that is not empty must begin with a prompt
 * token. Otherwise an error that names row and slot. The arrays live in the arena. */
bool bd_logical_rows_make(const bd_placement *placement, const int32_t *completion,
                          bool prompt_first, bd_arena *arena, bd_logical_rows *out, bd_error *err);

/* --- the last answer of a conversation (B-13) ------------------------------------------------ */

/* Keep the last unbroken answer of every row as its completion. Answers before it become prompt;
 * everything after it is taken out: ids become pad_id, both segmentations 0. A row that is not
 * empty needs an answer and a prompt before it, else an error, and then nothing is changed. */
bool bd_last_answer(int64_t rows, int64_t length, int32_t pad_id, int32_t *inputs, int32_t *targets,
                    int32_t *inputs_segmentation, int32_t *targets_segmentation,
                    int32_t *completion, bd_error *err);

/* --- stop tokens (G-09, G-10) ---------------------------------------------------------------- */

/* Unique ids in [0, vocabulary), none of them the mask token (-1: none). */
bool bd_stop_check(const int32_t *stop, int64_t count, int64_t vocabulary, int32_t mask_id,
                   bd_error *err);
bool bd_stop_contains(const int32_t *stop, int64_t count, int32_t token);

/* kept = completion up to and including the first stop token in it, in logical order. */
void bd_stop_kept(const bd_placement *placement, const int32_t *tokens, const int32_t *completion,
                  const int32_t *stop, int64_t stop_count, int32_t *kept);

/* Take the completion slots that are not kept out of everything, in place: segment 0, no
 * completion, no corruption, no weight. corruption and weights may be NULL. */
void bd_completion_drop(int64_t cells, const int32_t *kept, int32_t *completion, int32_t *segments,
                        int32_t *corruption, float *weights);

/* inputs = the mask token where corruption is set, else the token (G-11). */
void bd_mask_tokens(int64_t cells, const int32_t *tokens, const int32_t *corruption,
                    int32_t mask_id, int32_t *inputs);

/* --- weights that may be trusted (G-20) ------------------------------------------------------ */

/* A row keeps its weights only if they are finite and not negative, corruption lies in completion
 * and completion in the tokens that are not padding, weights lie in completion and on every
 * corrupted slot, the positions are 0 .. n-1, the completion is a suffix that is not empty and
 * leaves position 0 to the prompt, and every weighted slot is corrupted or, when shifted, an
 * anchor. Any other row gets zeros. Returns the number of rows that hold a token and were zeroed.
 * safe may be weights. */
int64_t bd_safe_weights(const bd_canvas *canvas, const bd_placement *placement,
                        const int32_t *completion, const int32_t *corruption, const float *weights,
                        float *safe, bd_arena *scratch);

#endif
