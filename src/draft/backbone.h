/* backbone.h - the stack of layers that every drafter shares.
 *
 * Queries come from the tokens of blocks alone: one real token, the anchor, then masks. Keys and
 * values come from the target's features of all tokens before the anchor (the context) and from the
 * block itself. ctx = rms(fc(features)) is made once; each layer turns it into keys and values of
 * its own. In training many blocks of a row share the context; in generation there is one block,
 * and the context's keys and values are kept from call to call. One layer function serves both.
 * Source: draft-family 2.2, 3.4.
 *
 *     bd_value *context = bd_draft_context(draft, &tape, features, B * S);
 *     bd_value *hidden = bd_draft_forward(draft, &tape, &(bd_draft_blocks){.rows = B, .length = S,
 *                            .anchors = &anchors, .context = context, .tokens = ids, .positions =
 * p});
 */
#ifndef BD_DRAFT_BACKBONE_H
#define BD_DRAFT_BACKBONE_H

#include "draft/draft.h"

/* ctx [rows, H] of features [rows, taps * H]. */
bd_value *bd_draft_context(bd_draft *draft, bd_tape *tape, const float *features, int64_t rows);

/* Blocks over whole rows. tokens, positions: [rows, N * bs] (targets.h). */
typedef struct {
    int64_t rows, length;      /* B, S */
    const bd_anchors *anchors; /* [B, N] */
    bd_value *context;         /* [B * S, H] */
    const int32_t *tokens, *positions;
} bd_draft_blocks;

/* Output of the final norm, [B * N * bs, H]. Rows of blocks that are not kept have attended to
 * nothing and mean nothing. What `blocks` points to must outlive the tape. */
bd_value *bd_draft_forward(bd_draft *draft, bd_tape *tape, const bd_draft_blocks *blocks);

/* The rule by which blocks see in one layer (visibility.h): context of `context_length` rows first.
 */
bd_visibility bd_draft_rule(const bd_draft_config *config, int64_t layer, int64_t context_length,
                            const bd_anchors *anchors);

/* --- one block after a growing context -------------------------------------------------------- */

/* Each layer's keys and values of the context, after norm and rotary turn. Rows from `length` on
 * are room for the block that is being read and hold nothing between calls. */
typedef struct {
    int64_t capacity, length; /* rows of context */
    int64_t width;            /* key heads * head size */
    float **key, **value;     /* [layers] of [capacity + bs, width] */
    float *context;           /* [capacity, H], for variants that decode with it; else NULL */
    void *owned;
} bd_draft_cache;

bd_draft_cache *bd_draft_cache_create(const bd_draft *draft, int64_t capacity, bd_error *err);
void bd_draft_cache_free(bd_draft_cache *cache);

/* Append the context of `rows` more tokens, features [rows, taps * H]. */
void bd_draft_cache_extend(bd_draft *draft, bd_draft_cache *cache, const float *features,
                           int64_t rows, bd_arena *scratch);

/* Hidden states [count, H] of the first `count` slots of a block anchored right behind the context.
 */
bd_value *bd_draft_forward_cached(bd_draft *draft, bd_tape *tape, bd_draft_cache *cache,
                                  const int32_t *tokens, int64_t count);

#endif
