/* proposal.h - from the logits of one open slot to a proposed token and how sure it is.
 *
 * z = logits / temperature with the mask token taken out; probabilities are softmax(z). The
 * proposal is the arg max (lowest id on ties, a NaN never wins), or a sample by inverse CDF in id
 * order. The confidence is the largest probability, also when sampling. Source: block-diffusion
 * F-14, F-19, F-22.
 */
#ifndef BD_DIFFUSION_PROPOSAL_H
#define BD_DIFFUSION_PROPOSAL_H

#include "model/sampling.h"

typedef struct {
    int32_t token;
    float log_probability; /* of the token; NaN when the logits hold one */
    float confidence;      /* largest probability; NaN likewise */
    float entropy;         /* nats; 0 unless wanted */
} bd_proposed_token;

/* logits: [vocabulary], vocabulary >= 2, temperature > 0. Any thread. */
bd_proposed_token bd_propose_greedy(const float *logits, int64_t vocabulary, int32_t mask_id,
                                    float temperature, bool want_entropy);

/* The same with a token sampled by the draw u in [0, 1) after top-k, top-p and min-p of `sampling`
 * (whose temperature is the one used). The log-probability is that of the unfiltered softmax. */
bd_proposed_token bd_propose_sampled(const float *logits, int64_t vocabulary, int32_t mask_id,
                                     const bd_sampling *sampling, float u, bool want_entropy,
                                     bd_arena *scratch);

#endif
