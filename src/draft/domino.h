/* domino.h - Domino: a backbone that fills a block at once, and a recurrent head that reads what
 * was drafted.
 *
 * Every slot predicts the next token, slot 0 included. A gated recurrent unit reads the target's
 * embeddings of the tokens up to a slot; from its state and the slot's hidden state h the head
 * makes
 *
 *     E2 silu(E1 [h; state])
 *
 * which is added to the backbone's logits, except in the first `pure_prefix` slots. Training mixes
 * two cross entropies, (1 - lambda) of the final logits and lambda of the backbone's alone, with
 * lambda falling from update to update (lambda.h). Drafting goes left to right: the unit consumes
 * the anchor or the token just drafted, then the slot's logits are corrected. Source:
 * draft-family 5.5, 6.3, 7.1; Domino arXiv:2605.29707. The entry `bd_draft_domino` of the variants'
 * table (variant.h) is what a program uses.
 */
#ifndef BD_DRAFT_DOMINO_H
#define BD_DRAFT_DOMINO_H

#include "draft/session.h"
#include "draft/step.h"

typedef struct {
    bd_parameter *input, *recurrent; /* of the unit: [3G, H], [3G, G]; gates reset, update, new */
    bd_parameter *inner, *outer;     /* E1 [E, H + G], E2 [V, E] */
} bd_domino_head;

/* States [rows, G] of the unit after each token of blocks of `length`; state: bd_op_gru. */
bd_value *bd_domino_states(const bd_draft *draft, bd_tape *tape, const int32_t *tokens,
                           int64_t rows, int64_t length, float *state);

/* silu(E1 [h; state]), [rows, E]. */
bd_value *bd_domino_features(const bd_draft *draft, bd_tape *tape, bd_value *hidden,
                             bd_value *states);

#endif
