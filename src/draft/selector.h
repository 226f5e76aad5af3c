/* selector.h - the few tokens a slot may become, and DFlash2's choice among them.
 *
 * A slot's candidates are the tokens of its C largest backbone logits. The selector scores
 * candidate c after token p as
 *
 *     logit[c] + sum over r of predecessor[p][r] * (projection @ hidden)[r] * successor[c][r],
 *
 * so that neighbouring slots, which the backbone fills in independently, come to agree. Source:
 * dflash2-lilicorr 4.1, 4.2, 4.7.
 *
 *     bd_candidates c = bd_candidates_find(target, hidden, rows, 16, arena);
 *     bd_value *context = bd_op_linear(tape, hidden_value, selector->projection, NULL);
 *     bd_selector_scores(selector, &c, row, context->data + row * rank, previous_token, scores);
 */
#ifndef BD_DRAFT_SELECTOR_H
#define BD_DRAFT_SELECTOR_H

#include "draft/draft.h"

/* Each row's `count` largest logits, falling; equal ones by token id (decision 12). */
typedef struct {
    int64_t rows, count;
    int32_t *token;        /* [rows, count] */
    float *logit;          /* [rows, count] */
    float *log_normalizer; /* [rows]: logsumexp of all logits */
} bd_candidates;

/* Of hidden [rows, H] under the target's head; logits of many rows are never held together. */
bd_candidates bd_candidates_find(bd_model *target, const float *hidden, int64_t rows, int64_t count,
                                 bd_arena *arena);

/* Where `token` is among a row's candidates; -1: nowhere. */
int64_t bd_candidates_place(const bd_candidates *candidates, int64_t row, int32_t token);

/* hidden_gradient [rows, H] += d_logit [rows, count] @ the head's rows of the candidates. */
void bd_candidates_back(bd_model *target, const bd_candidates *candidates, const float *d_logit,
                        float *hidden_gradient, bd_arena *scratch);

typedef struct {
    bd_parameter *predecessor, *successor; /* codebooks [V, rank] */
    bd_parameter *projection;              /* [rank, H] */
} bd_selector;

/* scores[count] of a row after token `previous`; context [rank] = projection @ hidden. */
void bd_selector_scores(const bd_selector *selector, const bd_candidates *candidates, int64_t row,
                        const float *context, int32_t previous, float *scores);

/* The way back from d_scores [count], which are also the gradients of the candidates' logits: adds
 * to d_context [rank] and to the codebooks' gradients. */
void bd_selector_back(const bd_selector *selector, const bd_candidates *candidates, int64_t row,
                      const float *context, int32_t previous, const float *d_scores,
                      float *d_context);

#endif
