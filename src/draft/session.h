/* session.h - drafting beside a target that generates: begin, propose, commit.
 *
 * A session follows one sequence. It is told the target's features of every token the target has
 * read and keeps what they mean for the draft: each layer's keys and values of the context. A
 * proposal is one pass over one block anchored at the newest token, which the target has not read
 * yet; nothing of it is kept. The context can be cut back to any length. Source: draft-family 7.3;
 * decision 17.
 *
 *     bd_draft_session *s = bd_draft_session_create(draft, capacity, &err);
 *     bd_draft_begin(s, &prompt_features, &err);
 *     bd_proposal p = {.limit = remaining};
 *     int64_t n = bd_draft_propose(s, newest_token, &p, &err);     // p.tokens[0 .. n)
 *     bd_draft_commit(s, &features_of_tokens_read_since, &err);
 */
#ifndef BD_DRAFT_SESSION_H
#define BD_DRAFT_SESSION_H

#include "draft/backbone.h"
#include "model/sampling.h"

typedef struct bd_draft_session bd_draft_session;

/* Features of tokens the target has read, [rows, taps * H], in the order of its taps. */
typedef struct {
    const float *features;
    int64_t rows;
} bd_hidden;

typedef struct {
    /* In. */
    int64_t limit;               /* most tokens wanted; 0: all the block gives */
    const bd_sampling *sampling; /* read by variants that draw from a joint; NULL: greedy */
    bool backbone_only; /* arg max of each slot's backbone logits, whatever the variant has */
    /* Out, valid until the session's next call. */
    int64_t count;
    const int32_t *tokens;
    const float *const *q;   /* [count] rows [V] the tokens were drawn from; NULL: one-hot */
    const float *hidden;     /* [slots, H] of the block's slots that were computed */
    const float *context;    /* [H] of the newest token read, for variants that read it */
    const float *logits;     /* [count, V] after a head that adds to them, else NULL */
    const float *confidence; /* [count] logits of a confidence head, else NULL */
    int64_t slots;
} bd_proposal;

/* capacity: tokens of context. The draft outlives the session. */
bd_draft_session *bd_draft_session_create(bd_draft *draft, int64_t capacity, bd_error *err);
void bd_draft_session_free(bd_draft_session *session);

/* Forget everything, then commit the features of a prompt (of its first part: commit the rest). */
bool bd_draft_begin(bd_draft_session *session, const bd_hidden *prompt_features, bd_error *err);

/* Propose the tokens after last_token, which stands right behind the committed ones. Returns how
 * many; negative: the context is full. */
int64_t bd_draft_propose(bd_draft_session *session, int32_t last_token, bd_proposal *out,
                         bd_error *err);

bool bd_draft_commit(bd_draft_session *session, const bd_hidden *accepted_features, bd_error *err);

/* Cut the context back to its first `length` tokens. */
void bd_draft_truncate(bd_draft_session *session, int64_t length);
int64_t bd_draft_length(const bd_draft_session *session);

/* best[r] = arg max of logits row r, [rows, vocabulary]; rows are shared out over threads. */
void bd_best_tokens(const float *logits, int64_t rows, int64_t vocabulary, int32_t *best);

/* --- for variants: from hidden states to tokens ----------------------------------------------- */

typedef struct bd_draft_decoding {
    bd_draft *draft;
    const float *hidden; /* [slots, H] */
    int64_t slots;
    const float *context; /* [H] of the newest token read, for variants that read it; NULL: none */
    int32_t last_token;   /* the anchor */
    int64_t position;     /* its position: how many tokens of context there are */
    const bd_sampling *sampling; /* NULL: greedy */
    int64_t count;               /* tokens wanted, at most what the variant gives */
    int32_t *tokens;             /* [count]: to be filled in */
    const float **q;             /* [count]: to be filled in where not one-hot, else left NULL */
    float *logits;               /* what a proposal tells of its logits: left NULL or filled in */
    float *confidence;
    bd_arena *arena; /* lives until the session's next call */
} bd_draft_decoding;

/* tokens[i] = arg max of the target's head at hidden rows first .. first + count - 1. */
void bd_draft_decode_greedy(const bd_draft_decoding *decoding, int64_t first);

/* Which of `count` candidate tokens slot i gets: the best score (lowest index on ties), or one
 * drawn from softmax(scores / temperature), which then is its q; nothing else of the sampling
 * applies. */
int64_t bd_draft_decode_choose(bd_draft_decoding *decoding, int64_t i, const int32_t *candidates,
                               const float *scores, int64_t count);

/* Slot after slot, from slot 0 on: the head's logits of a slot, to which `correct` adds what it
 * makes of the token before (the anchor, then the tokens just drafted); then the arg max, or a
 * token drawn from these logits, its distribution kept as q. */
void bd_draft_decode_chain(bd_draft_decoding *decoding,
                           void (*correct)(void *self, int64_t slot, int32_t previous,
                                           float *logits),
                           void *self);

#endif
