/* pace.h - is drafting worth it here?
 *
 * Verified rows are not free and a draft's guesses can be bad for a whole text, so a run may be
 * slower with a draft than without. The pace compares what drafted cycles cost per token with what
 * a plain pass costs, and rests from drafting while it does not pay, trying again after ever longer
 * rests. It decides about speed alone: the output does not depend on it.
 *
 *     bd_pace pace = bd_pace_begin();
 *     bool draft = bd_pace_draft(&pace);                      // before each cycle
 *     bd_pace_note(&pace, draft, seconds, tokens);            // after it
 */
#ifndef BD_DRAFT_PACE_H
#define BD_DRAFT_PACE_H

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    double single;           /* seconds of a plain pass, smoothed; 0: not measured yet */
    double seconds;          /* of the drafted cycles on trial, */
    int64_t tokens, cycles;  /* what they brought, and how many they are */
    int64_t rest, next_rest; /* plain cycles to go; and how many after the next failed trial */
} bd_pace;

bd_pace bd_pace_begin(void);
bool bd_pace_draft(const bd_pace *pace);

/* A cycle of `tokens` tokens took so long; `drafted` as bd_pace_draft() said. */
void bd_pace_note(bd_pace *pace, bool drafted, double seconds, int64_t tokens);

#endif
