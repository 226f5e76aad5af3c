// Keys and values of the tokens read so far. Each layer's rows are contiguous, so attention reads
// the cache in place, and cutting it back is setting a length.
#include <assert.h>
#include <stdlib.h>

#include "model/model.h"

bd_cache *bd_cache_create(const bd_model *model, int64_t capacity, bd_error *err)
{
    assert(capacity > 0);
    const bd_model_config *c = &model->config;
    bd_cache *cache = calloc(1, sizeof *cache);
    float **rows = calloc((size_t)(2 * c->layers), sizeof *rows);
    int64_t width = c->key_heads * c->head_size;
    // An arena, because its pages are taken when touched: a long capacity costs what is used of it.
    size_t bytes = ((size_t)(capacity * width) * sizeof(float) + 64) * 2 * (size_t)c->layers;
    bd_arena *arena = cache && rows ? bd_arena_create(bytes, err) : NULL;
    if (!arena) {
        if (!cache || !rows)
            bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a KV cache of %lld layers",
                       (long long)c->layers);
        free(cache);
        free(rows);
        return NULL;
    }
    *cache = (bd_cache){.layers = c->layers,
                        .capacity = capacity,
                        .width = width,
                        .key = rows,
                        .value = rows + c->layers,
                        .owned = arena};
    for (int64_t layer = 0; layer < c->layers; layer++) {
        cache->key[layer] = bd_arena_floats(arena, capacity * width);
        cache->value[layer] = bd_arena_floats(arena, capacity * width);
    }
    return cache;
}

void bd_cache_free(bd_cache *cache)
{
    if (!cache)
        return;
    bd_arena_destroy(cache->owned);
    free(cache->key);
    free(cache);
}

void bd_cache_truncate(bd_cache *cache, int64_t length)
{
    assert(length >= 0 && length <= cache->length);
    cache->length = length;
}
