/* dspark.h - DSpark: a backbone that fills a block at once, and a small head that reads the token
 * before.
 *
 * Every slot predicts the next token, slot 0 included. The head adds a bias to the logits that
 * depends on the token just before (Markov): W2 times features of rank r, which are
 *
 *     vanilla   e = W1[token before]
 *     gated     sig(G [h; e] + b) * e
 *     rnn       tanh(o), [g; c; o] = J [state; e; h] + b; state = sig(g) state + (1 - sig(g))
 * tanh(c)
 *
 * with h the slot's hidden state. So a block's logits are one sum of two products, hidden x target
 * head plus features x W2, and go through the fused loss as such. Training: cross entropy of the
 * label, and the distance from the target's distribution; a confidence head learns how likely a
 * slot's draft is to be accepted, 1 - distance / 2. Drafting goes left to right, each token fed to
 * the next slot's head. Source: draft-family 5.4, 6.1, 6.2, 7.1; DSpark arXiv:2607.05147. The entry
 * `bd_draft_dspark` of the variants' table (variant.h) is what a program uses.
 */
#ifndef BD_DRAFT_DSPARK_H
#define BD_DRAFT_DSPARK_H

#include "draft/session.h"
#include "draft/step.h"

typedef struct {
    bd_parameter *w1, *w2;                      /* [V, r] */
    bd_parameter *gate, *gate_bias;             /* [r, H + r]; gated only */
    bd_parameter *joint, *joint_bias;           /* [3r, 2r + H]; rnn only */
    bd_parameter *confidence, *confidence_bias; /* [1, H + r]; NULL: no such head */
} bd_dspark_head;

/* Features [rows, r] of blocks of `length` slots, from their hidden states and the embeddings of
 * the tokens before, [rows, r]. state: of the rnn (bd_op_gated_memory). */
bd_value *bd_dspark_features(const bd_draft *draft, bd_tape *tape, bd_value *hidden,
                             bd_value *before, int64_t length, float *state);

/* Binary cross entropy of a logit against a probability, and sigmoid(logit) - probability. */
double bd_dspark_confidence_loss(double logit, double probability, double *slope);

const char *bd_markov_name(bd_markov_kind kind);
bool bd_markov_from_name(const char *name, bd_markov_kind *kind, bd_error *err);

#endif
