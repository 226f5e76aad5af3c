/* lambda.h - how much of Domino's loss is the backbone's own.
 *
 * The head starts from a backbone that drafts well alone: the weight of the backbone's own loss
 * falls from `start` to 0 over the first `ratio` of training. Source: draft-family 5.5.
 */
#ifndef BD_DRAFT_LAMBDA_H
#define BD_DRAFT_LAMBDA_H

#include <stdint.h>

/* clamp(start * (1 - min(step / max(1, int(total * ratio)), 1)), 0, 1), `step` updates already
 * made; a total that is not known (<= 0) counts as 1. */
double bd_draft_lambda(int64_t step, int64_t total, double start, double ratio);

#endif
