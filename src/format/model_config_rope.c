#include <assert.h>
#include <math.h>

#include "format/model_config.h"

static const double two_pi = 6.283185307179586476925;

/* Slow waves (few turns over the original positions) are stretched by `factor`, fast ones kept, and
 * those between blended. */
static double llama3_frequency(const bd_rope_config *rope, double frequency)
{
    double turns = rope->original_positions * frequency / two_pi;
    if (turns > rope->high_frequency_factor)
        return frequency;
    if (turns < rope->low_frequency_factor)
        return frequency / rope->factor;
    double keep = (turns - rope->low_frequency_factor) /
                  (rope->high_frequency_factor - rope->low_frequency_factor);
    return (1 - keep) * frequency / rope->factor + keep * frequency;
}

/* The pair whose wave makes `turns` turns over the original positions. */
static double yarn_pair(const bd_rope_config *rope, int64_t head_size, double turns)
{
    return (double)head_size * log(rope->original_positions / (two_pi * turns)) /
           (2 * log(rope->theta));
}

static void yarn_frequencies(const bd_rope_config *rope, int64_t head_size,
                             double *inverse_frequency)
{
    double low = fmax(floor(yarn_pair(rope, head_size, rope->beta_fast)), 0);
    double high = fmin(ceil(yarn_pair(rope, head_size, rope->beta_slow)), (double)(head_size - 1));
    if (low == high)
        high += 0.001;
    for (int64_t i = 0; i < head_size / 2; i++) {
        double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
        inverse_frequency[i] *= 1 - ramp + ramp / rope->factor;
    }
}

void bd_rope_frequencies(const bd_rope_config *rope, int64_t head_size, double *inverse_frequency,
                         float *factor)
{
    assert(head_size > 0 && head_size % 2 == 0);
    for (int64_t i = 0; i < head_size / 2; i++)
        inverse_frequency[i] = pow(rope->theta, -2.0 * (double)i / (double)head_size);
    *factor = 1;
    switch (rope->kind) {
    case BD_ROPE_DEFAULT:
        break;
    case BD_ROPE_LINEAR:
        for (int64_t i = 0; i < head_size / 2; i++)
            inverse_frequency[i] /= rope->factor;
        break;
    case BD_ROPE_LLAMA3:
        for (int64_t i = 0; i < head_size / 2; i++)
            inverse_frequency[i] = llama3_frequency(rope, inverse_frequency[i]);
        break;
    case BD_ROPE_YARN:
        yarn_frequencies(rope, head_size, inverse_frequency);
        if (rope->attention_factor > 0)
            *factor = (float)rope->attention_factor;
        else if (rope->factor > 1)
            *factor = (float)(0.1 * log(rope->factor) + 1);
        break;
    }
}
