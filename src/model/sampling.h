/* sampling.h - from logits to a token.
 *
 * temperature <= 0 is arg max (lowest id on ties). Otherwise probabilities are softmax of logits /
 * temperature in fp32: top-k first, then softmax over the survivors, then top-p (keep while the
 * mass before a token is below top_p), then min-p, renormalised. Source: draft-family 7.3.
 */
#ifndef BD_MODEL_SAMPLING_H
#define BD_MODEL_SAMPLING_H

#include "base/arena.h"
#include "base/error.h"

typedef struct {
    float temperature; /* 0: greedy */
    int64_t top_k;     /* 0: all */
    float top_p;       /* 1: all */
    float min_p;       /* 0: off */
    uint64_t seed;
} bd_sampling;

bd_sampling bd_sampling_default(void); /* greedy */
bool bd_sampling_check(const bd_sampling *s, bd_error *err);

/* p[V], sums to 1; one-hot when greedy. */
void bd_sampling_probabilities(const bd_sampling *s, const float *logits, int64_t vocabulary,
                               float *p, bd_arena *scratch);
/* The token whose cumulative probability first exceeds u in [0, 1), in id order. */
int32_t bd_sampling_pick(const float *p, int64_t vocabulary, float u);
int32_t bd_sampling_token(const bd_sampling *s, const float *logits, int64_t vocabulary, float u,
                          bd_arena *scratch);

#endif
