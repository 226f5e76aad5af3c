/* validate.h - the acceptance that the reference implementation reports after training ("AR").
 *
 * Text grows by cycles: the target's greedy token, then drafted tokens as long as they equal the
 * target's choice, then, at the first that does not, the target's choice in its place, uncounted.
 * The metric is counted tokens over cycles. It ignores stop tokens and is not the accept length of
 * real decoding (speculative.h); it exists to compare numbers with runs of that implementation.
 * Source: draft-family 7.2.
 *
 *     int64_t accepted, cycles;
 *     if (!bd_validate_draft(decoder, prompt, n, 32, 7, &accepted, &cycles, &err)) ...
 *     printf("AR %.3f\n", (double)accepted / (double)cycles);
 */
#ifndef BD_DRAFT_VALIDATE_H
#define BD_DRAFT_VALIDATE_H

#include "draft/decoder.h"

/* A target and a draft as two questions. */
typedef struct {
    void *self;
    /* The target's greedy token after tokens[0 .. count) and up to `steps` drafted tokens after
     * that; returns how many drafts, negative: error. */
    int64_t (*draft)(void *self, const int32_t *tokens, int64_t count, int64_t steps, int32_t *base,
                     int32_t *drafts, bd_error *err);
    /* best[i]: the target's greedy token after tokens[0 .. first + i], for first + i < count. */
    bool (*judge)(void *self, const int32_t *tokens, int64_t count, int64_t first, int32_t *best,
                  bd_error *err);
} bd_validation;

/* Until `output` tokens have been added, `steps` drafts a cycle at most. */
bool bd_validate(const bd_validation *validation, const int32_t *prompt, int64_t count,
                 int64_t output, int64_t steps, int64_t *accepted, int64_t *cycles, bd_error *err);

/* The reference's other driver, against a text that is fixed: the target's own greedy continuation of at
 * most `output` tokens, up to a stop token (with it). A cycle takes the drafts of the one before as long
 * as they are the text's, then, unless the text is complete, drafts again from there and adds the base
 * token. The metric is added over cycles. */
bool bd_validate_truth(const bd_validation *validation, const int32_t *prompt, int64_t count,
                       int64_t output, const int32_t *stop, int64_t stop_count, int64_t steps,
                       int64_t *added, int64_t *cycles, bd_error *err);

/* The two with a real target and draft. */
bool bd_validate_draft_truth(bd_decoder *decoder, const int32_t *prompt, int64_t count,
                             int64_t output, const int32_t *stop, int64_t stop_count, int64_t steps,
                             int64_t *added, int64_t *cycles, bd_error *err);
bool bd_validate_draft(bd_decoder *decoder, const int32_t *prompt, int64_t count, int64_t output,
                       int64_t steps, int64_t *accepted, int64_t *cycles, bd_error *err);

#endif
