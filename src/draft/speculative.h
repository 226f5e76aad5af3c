/* speculative.h - generation for one sequence, with or without a draft.
 *
 * Each cycle the draft proposes tokens after the newest one, the target reads all of them at once,
 * and the longest run that the target would have chosen itself stays, with one more token of the
 * target's own (the bonus). Greedy output is that of plain decoding, bit for bit; sampled output
 * follows the target's distribution exactly. Plain decoding is the same loop with nothing proposed.
 * Source: draft-family 7.3; decisions 11, 17.
 *
 *     bd_generation g = bd_generation_default();
 *     g.most = 256;
 *     bd_generation_report report;
 *     int64_t n = bd_generate(decoder, prompt, count, &g, out, &report, &err);
 *
 * Random numbers are keyed by (seed, position of the token). Where a proposal is one-hot the token
 * is drawn from the target's distribution with the number plain decoding would use, and the
 * proposal stands if it is that token: it stands with probability p(x), and if not, the token
 * follows p without x, which is what rejection sampling does with such a q. So with a plain DFlash
 * draft sampled text, too, is the same with and without the draft.
 */
#ifndef BD_DRAFT_SPECULATIVE_H
#define BD_DRAFT_SPECULATIVE_H

#include "draft/decoder.h"

/* One cycle: a newest token, what was proposed after it, and how much of that stayed. */
typedef struct {
    int32_t base;
    const int32_t *proposed;
    int64_t count;    /* proposed */
    int64_t accepted; /* of them, before any cut by a stop token or the limit */
    int64_t emitted;  /* base and accepted tokens that became output */
    double draft_seconds, verify_seconds;
} bd_cycle;

typedef struct {
    bd_sampling sampling;
    int64_t most;        /* new tokens at most */
    const int32_t *stop; /* tokens that end the text; they are part of it */
    int64_t stop_count;
    int64_t most_proposed; /* per cycle; 0: plain decoding; negative: all that the draft gives */
    bd_draft_schedule schedule; /* how many are proposed and verified; the output is the same */
    bool backbone_only;         /* proposals without the variant's head (session.h) */
    bool whole_blocks; /* for traces: propose and verify whole blocks, also after the last token */
    void *self;
    /* New tokens as they come; false ends the text there. NULL: not wanted. */
    bool (*emit)(void *self, const int32_t *tokens, int64_t count);
    void (*cycle)(void *self, const bd_cycle *cycle);
} bd_generation;

bd_generation bd_generation_default(void); /* greedy, 128 tokens, all proposals */

/* At least one token of prompt, one new one, and room for all of them? */
bool bd_generation_fits(int64_t prompt, int64_t most, int64_t capacity, bd_error *err);

/* Tokens of one cycle at most: the base, a whole block after it, the bonus; the base and the bonus
 * are never both the same cycle's. */
enum { BD_MOST_PRODUCED = BD_MOST_BLOCK + 1 };

typedef enum { BD_ENDED_BY_LIMIT, BD_ENDED_BY_STOP, BD_ENDED_BY_CALLER } bd_generation_end;

typedef struct {
    int64_t prompt_tokens, prompt_read; /* read now: the rest was known from an earlier call */
    int64_t new_tokens;
    int64_t cycles;         /* passes of the target after the prompt's */
    int64_t drafted_cycles; /* those in which something was proposed */
    int64_t tested[BD_MOST_BLOCK], accepted[BD_MOST_BLOCK]; /* per place in the proposal */
    int64_t produced[BD_MOST_PRODUCED + 1]; /* cycles by the tokens they brought, bonus included */
    double prefill_seconds, draft_seconds, verify_seconds;
    bd_generation_end ended;
} bd_generation_report;

/* New tokens into out [most]; returns how many, negative: error. `report` may be NULL. */
int64_t bd_generate(bd_decoder *decoder, const int32_t *prompt, int64_t count,
                    const bd_generation *options, int32_t *out, bd_generation_report *report,
                    bd_error *err);

/* Tokens per pass of the target, bonus included; the prompt's pass and its token are left out. */
double bd_accept_length(const bd_generation_report *report);

/* The accept length at which a cycle costs as much per token as plain decoding. */
double bd_break_even_length(double draft_seconds, double verify_seconds, double single_seconds);

/* --- the rule of acceptance ------------------------------------------------------------------- */

/* The uniform numbers of one position. */
typedef struct {
    float sample, accept, residual;
} bd_draws;
bd_draws bd_draws_at(uint64_t seed, int64_t position);

/* May the proposed token stand, with p[V] of the target and q[V] it was drawn from (NULL: one-hot)?
 * The token of this place goes to *token either way. With q: x stands if u q(x) < p(x), else the
 * token comes from max(p - q, 0) normalised (from p where that is all zero). scratch: [V]. */
bool bd_accept_token(const float *p, const float *q, int64_t vocabulary, int32_t proposed,
                     const bd_draws *u, float *scratch, int32_t *token);

#endif
