/* leak.h - does a block see what it must not?
 *
 * Nothing of a block may move, not by a bit, when a token behind its anchor changes, a state of the
 * target from the anchor on, or another block: the target reads the anchor and writes what follows
 * only after the block is drafted. Source: draft-family 3.4,
 * 11.2 (B2).
 *
 *     bd_leak leak;
 *     if (!bd_draft_leak(draft, tokens, count, &leak, &err)) ...      // could not be tested
 *     if (leak.count) puts(leak.text);
 */
#ifndef BD_DRAFT_LEAK_H
#define BD_DRAFT_LEAK_H

#include "draft/draft.h"

typedef struct {
    int64_t compared; /* values that must not move */
    int64_t count;    /* of them, those that did */
    char text[160];   /* the first */
} bd_leak;

/* On one row of tokens, at least 4 blocks long. */
bool bd_draft_leak(bd_draft *draft, const int32_t *tokens, int64_t count, bd_leak *out,
                   bd_error *err);

#endif
