/* instance.h - one attention call with random inputs, for the tests of this folder. */
#ifndef BD_TESTS_ATTENTION_INSTANCE_H
#define BD_TESTS_ATTENTION_INSTANCE_H

#include "attention/attention.h"
#include "base/threads.h"
#include "check.h"
#include "tensor/isa.h"

typedef struct {
    bd_visibility rule;
    bd_attention a;
    int64_t query_count, key_count, log_count; // floats of a query-, key- and log_sum-shaped array
    float *query, *key, *value, *d_out;
} instance;

typedef struct {
    float *out, *log_sum, *d_query, *d_key, *d_value, *d_sink;
} results;

static inline float *noise(bd_arena *arena, int64_t count, uint64_t seed)
{
    float *x = bd_arena_floats(arena, count);
    check_fill(x, count, seed);
    return x;
}

/* Fills in what the caller left open: sizes of arrays, random inputs, a scale. The instance's
 * address must stay: a.rule points into it. */
static inline void instance_fill(instance *t, bd_arena *arena, uint64_t seed)
{
    bd_attention *a = &t->a;
    a->rule = &t->rule;
    if (a->scale == 0)
        a->scale = 1 / sqrtf((float)a->head_size);
    t->query_count = a->batch * t->rule.query_length * a->query_heads * a->head_size;
    t->key_count = a->batch * t->rule.key_length * a->key_heads * a->head_size;
    t->log_count = a->batch * t->rule.query_length * a->query_heads;
    t->query = noise(arena, t->query_count, seed + 1);
    t->key = noise(arena, t->key_count, seed + 2);
    t->value = noise(arena, t->key_count, seed + 3);
    t->d_out = noise(arena, t->query_count, seed + 4);
    for (int64_t i = 0; i < t->query_count; i++)
        t->query[i] *= 3; // so that some keys matter more than others
}

static inline results results_make(const instance *t, bd_arena *arena)
{
    results r;
    r.out = noise(arena, t->query_count, 90); // overwritten, so it may hold anything
    r.log_sum = noise(arena, t->log_count, 91);
    r.d_query = bd_arena_zeros(arena, t->query_count);
    r.d_key = bd_arena_zeros(arena, t->key_count);
    r.d_value = bd_arena_zeros(arena, t->key_count);
    r.d_sink = bd_arena_zeros(arena, t->a.query_heads);
    return r;
}

static inline results run_sparse(const instance *t, bd_arena *arena)
{
    results r = results_make(t, arena);
    bd_attention_forward(&t->a, t->query, t->key, t->value, r.out, r.log_sum, arena);
    bd_attention_backward(&t->a, t->query, t->key, t->value, r.out, r.log_sum, t->d_out, r.d_query,
                          r.d_key, r.d_value, t->a.sink ? r.d_sink : NULL, arena);
    return r;
}

static inline results run_dense(const instance *t, bd_arena *arena)
{
    results r = results_make(t, arena);
    bd_attention_dense_forward(&t->a, t->query, t->key, t->value, r.out, r.log_sum, arena);
    bd_attention_dense_backward(&t->a, t->query, t->key, t->value, r.out, r.log_sum, t->d_out,
                                r.d_query, r.d_key, r.d_value, t->a.sink ? r.d_sink : NULL, arena);
    return r;
}

/* Anchors in ascending order with room for a block after each; every fifth block is not kept. */
static inline bd_anchors *random_anchors(bd_arena *arena, int64_t batch, int64_t blocks,
                                         int64_t context, int64_t block_size, uint64_t seed)
{
    bd_anchors *anchors = bd_arena_alloc(arena, sizeof *anchors);
    int32_t *anchor = bd_arena_ints(arena, batch * blocks);
    uint8_t *keep = bd_arena_alloc(arena, (size_t)(batch * blocks));
    uint64_t state = seed;
    for (int64_t i = 0; i < batch * blocks; i++) {
        int64_t j = i % blocks, span = context - block_size + 1;
        double at =
            ((double)j + 0.5 + 0.4 * (double)check_noise(&state)) * (double)span / (double)blocks;
        anchor[i] = (int32_t)at;
        keep[i] = i % 5 != 3;
    }
    *anchors = (bd_anchors){.blocks = blocks, .anchor = anchor, .keep = keep};
    return anchors;
}

/* Documents of random lengths, numbered from 1, some padding between and after them; positions
 * count within a document when they are wanted. */
static inline void random_documents(bd_arena *arena, int64_t batch, int64_t length, uint64_t seed,
                                    int32_t **segment, int32_t **position)
{
    *segment = bd_arena_ints(arena, batch * length);
    *position = bd_arena_ints(arena, batch * length);
    uint64_t state = seed;
    for (int64_t b = 0; b < batch; b++) {
        int32_t document = 1, at = 0;
        for (int64_t i = 0; i < length; i++) {
            float u = check_noise(&state);
            bool padding = u > 0.9f || i > length - 5;
            if (u < -0.96f && at > 0) {
                document++;
                at = 0;
            }
            (*segment)[b * length + i] = padding ? (u > 0.97f ? -1 : 0) : document;
            (*position)[b * length + i] = padding ? 0 : at++;
        }
    }
}

#endif
