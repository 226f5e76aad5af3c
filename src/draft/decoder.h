/* decoder.h - a target that reads tokens, with a draft that follows it.
 *
 * The target's KV cache and the draft's context always hold the same tokens. Tokens are read
 * tentatively: their logits come back at once, and only then it is said how many of them stay.
 * Reading k tokens together or one by one gives the same logits, bit for bit, so whoever verifies
 * drafted tokens this way gets exactly what plain decoding would have chosen.
 *
 *     bd_decoder *d = bd_decoder_create(target, draft, capacity, &err);     // draft NULL: plain
 *     const float *logits = bd_decoder_follow(d, prompt, n, &err);          // [V], after the last
 * token logits = bd_decoder_try(d, tokens, k, &err);                          // [k, V]
 *     bd_decoder_keep(d, accepted, &err);
 */
#ifndef BD_DRAFT_DECODER_H
#define BD_DRAFT_DECODER_H

#include "draft/pace.h"
#include "draft/session.h"

typedef struct bd_decoder bd_decoder;

/* capacity: most tokens ever read, those tried included. Target and draft outlive the decoder. */
bd_decoder *bd_decoder_create(bd_model *target, bd_draft *draft, int64_t capacity, bd_error *err);
void bd_decoder_free(bd_decoder *decoder);

/* Read until exactly these tokens have been read. What is already read and agrees stays (a
 * conversation that grew is not read again), what does not is cut off; the rest is read in chunks.
 * Logits after the last token, valid until the decoder's next call. */
const float *bd_decoder_follow(bd_decoder *decoder, const int32_t *tokens, int64_t count,
                               bd_error *err);

/* How many of these tokens bd_decoder_follow would not have to read. */
int64_t bd_decoder_known(const bd_decoder *decoder, const int32_t *tokens, int64_t count);

/* Read more tokens tentatively; row i of the logits [count, V] follows tokens[i]. */
const float *bd_decoder_try(bd_decoder *decoder, const int32_t *tokens, int64_t count,
                            bd_error *err);

/* The same for one more token of each of several decoders, in one pass of the target that they share;
 * none has a draft. Row i of the logits [count, V] follows tokens[i] and has the bits that
 * bd_decoder_try of decoder i gives. Valid until the first decoder's next call. */
const float *bd_decoders_try(bd_decoder *const *decoders, int64_t count, const int32_t *tokens,
                             bd_error *err);

/* Of the tokens tried last, the first `count` stay; the draft learns their features when it is
 * asked. */
bool bd_decoder_keep(bd_decoder *decoder, int64_t count, bd_error *err);

/* Tokens after `last_token`, which stands behind those read; 0 without a draft. */
int64_t bd_decoder_propose(bd_decoder *decoder, int32_t last_token, bd_proposal *proposal,
                           bd_error *err);

int64_t bd_decoder_length(const bd_decoder *decoder); /* tokens read */
int64_t bd_decoder_capacity(const bd_decoder *decoder);
bd_model *bd_decoder_target(const bd_decoder *decoder);
bd_draft *bd_decoder_draft(const bd_decoder *decoder); /* NULL: none */

/* What target and draft cost here and how drafts have done, from text to text. */
bd_pace *bd_decoder_pace(bd_decoder *decoder);

/* An arena that lives as long as the decoder, for whoever drives it. */
bd_arena *bd_decoder_scratch(bd_decoder *decoder);

/* Seconds the target takes for `rows` tokens at once behind what is read: the median of `repeats`
 * runs. Nothing is kept. Negative: error. */
double bd_decoder_cost(bd_decoder *decoder, int64_t rows, int64_t repeats, bd_error *err);

#endif
