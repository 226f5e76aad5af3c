/* observe.h - what a draft needs of its target: hidden states of rows of tokens.
 *
 *     bd_observation kept = {.features = features, .final = hidden};
 *     bd_target_observe(target, layers, count, tokens, rows, length, &kept, scratch);
 *
 * Source: draft-family 1.3 to 1.5.
 */
#ifndef BD_DRAFT_OBSERVE_H
#define BD_DRAFT_OBSERVE_H

#include "draft/draft.h"

/* Where the states go; each may be NULL. */
typedef struct {
    float *features; /* [rows * length, count * H]: the chosen layers side by side */
    float *final;    /* [rows * length, H]: the target's output, after its final norm */
    float *prenorm;  /* [rows * length, H]: before that norm */
} bd_observation;

/* Run the target over token rows, one row after the other: a row's states do not depend on the
 * others. layers: indices into hidden/0 .. (model.h); tap i of a draft is i + 1. */
void bd_target_observe(bd_model *target, const int64_t *layers, int64_t count,
                       const int32_t *tokens, int64_t rows, int64_t length,
                       const bd_observation *out, bd_arena *scratch);

/* The same for the layers a draft taps: features and final hidden states, either may be NULL. */
void bd_draft_observe(bd_draft *draft, const int32_t *tokens, int64_t rows, int64_t length,
                      float *features, float *hidden, bd_arena *scratch);

#endif
