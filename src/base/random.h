/* random.h - random numbers without hidden state.
 *
 * A draw is a function of (seed, epoch, step, row) and (stream, index): any thread may make it, in
 * any order, and a resumed or re-sharded run makes the same ones. Source: block-diffusion B-27.
 *
 *     uint64_t key = bd_random_key(seed, epoch, step, row);
 *     float u = bd_random_uniform(key, BD_STREAM_ANCHOR, position);      // [0, 1)
 */
#ifndef BD_BASE_RANDOM_H
#define BD_BASE_RANDOM_H

#include <stdint.h>

/* Every use of randomness has a stream of its own. 0 to 3 are fixed by B-27 and F-22. */
typedef enum {
    BD_STREAM_NOISE = 0,     /* one noise level per block */
    BD_STREAM_SELECTION = 1, /* which eligible token is corrupted */
    BD_STREAM_FALLBACK = 2,  /* the one token of a block that would have none */
    BD_STREAM_ROLLOUT = 3,   /* sampled block rollout */
    BD_STREAM_ANCHOR = 4,    /* anchors of drafted blocks */
    BD_STREAM_SAMPLE = 5,    /* tokens sampled from the target */
    BD_STREAM_DRAFT = 6,     /* tokens sampled from the draft */
    BD_STREAM_ACCEPT = 7,    /* rejection sampling: accept or not */
    BD_STREAM_RESIDUAL = 8,  /* rejection sampling: the replacement token */
    BD_STREAM_INITIAL = 9,   /* initial weights */
    BD_STREAM_SHUFFLE = 10,  /* order of the data */
    BD_STREAM_DROPOUT = 11,
} bd_stream;

uint64_t bd_random_mix(uint64_t z);
uint64_t bd_random_key(uint64_t seed, uint64_t epoch, uint64_t step, uint64_t row);

/* 24 random bits, and the same as a float in [0, 1), exact multiples of 2^-24. */
uint32_t bd_random_bits(uint64_t key, uint32_t stream, uint32_t index);
float bd_random_uniform(uint64_t key, uint32_t stream, uint32_t index);

/* Standard normal, from two draws of the stream at 2*index and 2*index + 1 (Box-Muller). */
float bd_random_normal(uint64_t key, uint32_t stream, uint32_t index);

#endif
