#include "diffusion/proposal.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* The arg max and sum of exp(z - z[best]) without the mask token. */
typedef struct {
    int64_t best;
    float largest;
    double sum, weighted; /* weighted: sum of exp(z - largest) * (z - largest) */
} softmax_sums;

static softmax_sums sum_up(const float *logits, int64_t vocabulary, int32_t mask_id,
                           float temperature, bool want_weighted)
{
    softmax_sums s = {.best = mask_id == 0 ? 1 : 0};
    s.largest = logits[s.best] / temperature;
    for (int64_t v = s.best + 1; v < vocabulary; v++) {
        float z = logits[v] / temperature;
        if (v != mask_id && (z > s.largest || (isnan(s.largest) && !isnan(z)))) {
            s.largest = z;
            s.best = v;
        }
    }
    // In double, in id order: half of an exact tie is exactly 0.5, as a threshold of 0.5 expects.
    for (int64_t v = 0; v < vocabulary; v++) {
        if (v == mask_id)
            continue;
        float below = logits[v] / temperature - s.largest;
        float e = expf(below);
        s.sum += (double)e;
        if (want_weighted && e > 0)
            s.weighted += (double)e * (double)below;
    }
    return s;
}

static bd_proposed_token propose(const float *logits, float temperature, const softmax_sums *s,
                                 int64_t token, bool want_entropy)
{
    double below = (double)(logits[token] / temperature - s->largest), log_sum = log(s->sum);
    return (bd_proposed_token){
        .token = (int32_t)token,
        .log_probability = (float)((token == s->best && !isnan(s->sum) ? 0 : below) - log_sum),
        .confidence = (float)(1 / s->sum),
        .entropy = want_entropy ? (float)(log_sum - s->weighted / s->sum) : 0,
    };
}

bd_proposed_token bd_propose_greedy(const float *logits, int64_t vocabulary, int32_t mask_id,
                                    float temperature, bool want_entropy)
{
    assert(vocabulary >= 2 && mask_id >= 0 && mask_id < vocabulary && temperature > 0);
    softmax_sums s = sum_up(logits, vocabulary, mask_id, temperature, want_entropy);
    return propose(logits, temperature, &s, s.best, want_entropy);
}

bd_proposed_token bd_propose_sampled(const float *logits, int64_t vocabulary, int32_t mask_id,
                                     const bd_sampling *sampling, float u, bool want_entropy,
                                     bd_arena *scratch)
{
    assert(vocabulary >= 2 && mask_id >= 0 && mask_id < vocabulary && sampling->temperature > 0);
    softmax_sums s = sum_up(logits, vocabulary, mask_id, sampling->temperature, want_entropy);
    int64_t token = s.best;
    if (isfinite(s.sum)) {
        size_t mark = bd_arena_mark(scratch);
        float *z = bd_arena_floats(scratch, vocabulary), *p = bd_arena_floats(scratch, vocabulary);
        memcpy(z, logits, (size_t)vocabulary * sizeof *z);
        z[mask_id] = -INFINITY;
        bd_sampling_probabilities(sampling, z, vocabulary, p, scratch);
        token = bd_sampling_pick(p, vocabulary, u);
        bd_arena_release(scratch, mark);
    }
    return propose(logits, sampling->temperature, &s, token, want_entropy);
}
