/* pace.h - how many tokens to draft and how many of them to verify: for speed alone.
 *
 * Verified rows are not free and a draft's guesses can be bad for a whole text, so a run may be
 * slower with a draft than without. The pace measures, while text is made, what a pass of the
 * target over 1, 2, ... rows and a proposal cost, and how often each place of a proposal stands;
 * no pass is made for its sake. From these it decides before a cycle how many tokens to propose (0:
 * decode plainly) and, where the draft has a confidence head, after the proposal how many of them
 * the target is to read. The text never depends on it.
 *
 *     bd_pace_begin(&pace, most);                                    // a text
 *     int64_t n = bd_pace_plan(&pace, BD_DRAFT_AUTO, limit);      // before each cycle
 *     n = bd_pace_cut(&pace, proposal.confidence, proposal.count);   // with a confidence head
 *     bd_pace_note(&pace, &timing);                                  // after it
 *
 * Sampled text needs care: whether a drafted token is verified may depend on the tokens before it,
 * never on itself or on later ones, or the tokens that are verified would not follow the draft's
 * distribution any more. bd_pace_cut therefore goes from place to place and stops at the first that
 * is not worth its row.
 */
#ifndef BD_DRAFT_PACE_H
#define BD_DRAFT_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "draft/draft_config.h"

typedef enum {
    BD_DRAFT_FIXED,      /* always as many as the draft gives */
    BD_DRAFT_CONFIDENCE, /* verified as far as the confidence head makes it worthwhile */
    BD_DRAFT_AUTO        /* and with the length that pays best, or plainly where none does */
} bd_draft_schedule;

/* Seconds of something that was done `count` times, smoothed; count 0: not measured. */
typedef struct {
    double seconds;
    int64_t count;
} bd_duration;

typedef struct {
    int64_t block; /* most tokens of a proposal */
    /* Kept from text to text. */
    bd_duration pass[BD_MOST_BLOCK + 2];                   /* of the target, by its rows */
    bd_duration draft[BD_MOST_BLOCK + 1];                  /* of a proposal, by its tokens */
    double tested[BD_MOST_BLOCK], accepted[BD_MOST_BLOCK]; /* per place, older cycles fading */
    double foreseen, came;   /* of the places tested: acceptances foreseen, and those that came */
    double tokens, seconds;  /* that drafted cycles brought and took, older ones fading */
    int64_t rest, next_rest; /* plain cycles to go; how many after the next trial that fails */
    int64_t run;             /* drafted cycles since the last plain one */
    bool held;               /* learn nothing more: decisions can be repeated */
    /* Of this text. */
    int64_t most, made; /* tokens announced; made so far */
    double lost;        /* seconds by which drafted cycles were slower than plain decoding */
} bd_pace;

/* One cycle: `proposed` tokens in draft_seconds, then a pass of the target over `verified` of them
 * and the newest token, of which `accepted` stood; `made` tokens came of it. */
typedef struct {
    int64_t proposed, verified, accepted, made;
    double draft_seconds, pass_seconds;
    const float *confidence; /* [verified] logits; NULL: none */
} bd_pace_cycle;

bd_pace bd_pace_new(int64_t block); /* most tokens that a proposal has */
void bd_pace_begin(bd_pace *pace, int64_t most);
void bd_pace_note(bd_pace *pace, const bd_pace_cycle *cycle);

/* Tokens to propose in the next cycle, at most `limit`; `confident`: bd_pace_cut will follow. */
int64_t bd_pace_plan(const bd_pace *pace, bd_draft_schedule schedule, int64_t limit,
                     bool confident);

/* How many of the proposed tokens are worth a row, given the confidence head's logits of each. */
int64_t bd_pace_cut(const bd_pace *pace, const float *confidence, int64_t count);

/* --- what it knows ---------------------------------------------------------------------------- */

/* Seconds of a pass over so many rows, or of a proposal of so many tokens: measured, or from the
 * measured ones around it; 0 when nothing is. More never costs less. */
double bd_pace_pass_seconds(const bd_pace *pace, int64_t rows);
double bd_pace_draft_seconds(const bd_pace *pace, int64_t tokens);

/* Tokens a cycle brings when so many are verified: 1 + the sum over places of the chance that all
 * up to this one stand. */
double bd_pace_expected(const bd_pace *pace, int64_t verified);

/* The length in 1 .. limit with most tokens a second, and that rate. */
int64_t bd_pace_best_length(const bd_pace *pace, int64_t limit, double *rate);

/* More seconds than this may drafting not have lost in this text up to now. */
double bd_pace_allowance(const bd_pace *pace);

#endif
