#include "base/random.h"

#include <math.h>

#define GOLDEN_GAMMA 0x9E3779B97F4A7C15u

uint64_t bd_random_mix(uint64_t z)
{
    z ^= z >> 30;
    z *= 0xBF58476D1CE4E5B9u;
    z ^= z >> 27;
    z *= 0x94D049BB133111EBu;
    z ^= z >> 31;
    return z;
}

uint64_t bd_random_key(uint64_t seed, uint64_t epoch, uint64_t step, uint64_t row)
{
    const uint64_t words[4] = {seed, epoch, step, row};
    uint64_t h = 0;
    for (int i = 0; i < 4; i++)
        h = bd_random_mix((h ^ words[i]) + GOLDEN_GAMMA);
    return h;
}

uint32_t bd_random_bits(uint64_t key, uint32_t stream, uint32_t index)
{
    uint64_t counter = ((uint64_t)stream << 32 | index) + 1;
    return (uint32_t)(bd_random_mix(key + GOLDEN_GAMMA * counter) >> 40);
}

float bd_random_uniform(uint64_t key, uint32_t stream, uint32_t index)
{
    return (float)bd_random_bits(key, stream, index) * 0x1p-24f;
}

float bd_random_normal(uint64_t key, uint32_t stream, uint32_t index)
{
    // 1 - u lies in (0, 1], so the logarithm is finite.
    double radius = 1.0 - (double)bd_random_uniform(key, stream, 2 * index);
    double angle = (double)bd_random_uniform(key, stream, 2 * index + 1);
    return (float)(sqrt(-2.0 * log(radius)) * cos(6.283185307179586 * angle));
}
