#include "draft/backbone.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draft/convolution.h"

bd_value *bd_draft_context(bd_draft *draft, bd_tape *tape, const float *features, int64_t rows)
{
    const bd_model_config *s = &draft->config.stack;
    bd_value *x = bd_tape_constant(tape, features, rows, bd_draft_feature_width(draft));
    x = bd_op_linear(tape, x, draft->fc, NULL);
    return bd_op_rms_norm(tape, x, draft->hidden_norm, (float)s->norm_eps, s->hidden);
}

bd_visibility bd_draft_rule(const bd_draft_config *config, int64_t layer, int64_t context_length,
                            const bd_anchors *anchors)
{
    int64_t queries = anchors->blocks * config->block_size;
    return (bd_visibility){.kind = BD_DRAFT,
                           .query_length = queries,
                           .key_length = context_length + queries,
                           .block_size = config->block_size,
                           .window = bd_draft_layer_window(config, layer),
                           .context_length = context_length,
                           .anchors = anchors,
                           .causal_in_block = bd_draft_layer_causal(config, layer)};
}

// --- one layer -----------------------------------------------------------------------------------

/* What stays the same from layer to layer. The context is either rows on the tape (training) or a
 * cache that already holds its keys and values (generation). */
typedef struct {
    bd_draft *draft;
    int64_t rows;           // B
    int64_t context_length; // S
    const bd_anchors *anchors;
    const int32_t *positions;         // of the block rows
    int64_t queries;                  // slots per row that are computed
    int64_t block;                    // slots of a block that are computed
    bd_value *context;                // NULL: from the cache
    const int32_t *context_positions; // [B * S]
    bd_draft_cache *cache;
} pass;

/* rope(norm(y)): projected queries or keys; per head, as in the target. */
static bd_value *turned(const pass *p, bd_tape *tape, bd_value *y, bd_parameter *norm,
                        const int32_t *positions)
{
    const bd_model_config *s = &p->draft->config.stack;
    y = bd_op_rms_norm(tape, y, norm, (float)s->norm_eps, s->head_size);
    return bd_op_rope(tape, y, &p->draft->rope, positions);
}

/* Keys and values of context rows. */
static void context_key_value(const pass *p, bd_tape *tape, const bd_layer *layer,
                              bd_value *context, const int32_t *positions, bd_value *out[2])
{
    bd_op_linears(
        tape, context,
        (const bd_linear[]){{layer->key, layer->key_bias}, {layer->value, layer->value_bias}}, 2,
        out);
    out[0] = turned(p, tape, out[0], layer->key_norm, positions);
}

/* The context's rows, then the block's: the block is written behind the cache's last row, where the
 * next context rows will replace it. */
static bd_value *behind_cache(const pass *p, bd_tape *tape, float *rows, const bd_value *block)
{
    const bd_draft_cache *cache = p->cache;
    memcpy(rows + cache->length * cache->width, block->data,
           (size_t)(block->rows * block->width) * sizeof(float));
    return bd_tape_constant(tape, rows, cache->length + block->rows, cache->width);
}

/* What surrounds a sublayer: nothing, or a convolution on its way in and out (convolution.h). */
typedef struct {
    const bd_convolution *conv;
    bd_value *delta;
    int64_t block;
} sublayer;

static bd_value *enter(const pass *p, bd_tape *tape, int64_t index, bd_value *h, sublayer *s)
{
    *s = (sublayer){.block = p->block};
    if (!p->draft->convolutions)
        return h;
    s->conv = &p->draft->convolutions[index];
    s->delta = bd_convolution_coefficients(s->conv, tape, h);
    return bd_convolution_apply(s->conv, tape, 0, h, s->delta, s->block);
}

static bd_value *leave(const sublayer *s, bd_tape *tape, bd_value *y)
{
    return s->conv ? bd_convolution_apply(s->conv, tape, 1, y, s->delta, s->block) : y;
}

static bd_value *attention_half(const pass *p, bd_tape *tape, int64_t index, bd_value *x)
{
    const bd_draft_config *config = &p->draft->config;
    const bd_model_config *s = &config->stack;
    const bd_layer *layer = &p->draft->layers[index];
    bd_value *h = bd_op_rms_norm(tape, x, layer->input_norm, (float)s->norm_eps, s->hidden);
    sublayer around;
    h = enter(p, tape, 2 * index, h, &around);
    bd_value *projected[3];
    bd_op_linears(tape, h,
                  (const bd_linear[]){{layer->query, layer->query_bias},
                                      {layer->key, layer->key_bias},
                                      {layer->value, layer->value_bias}},
                  3, projected);
    bd_value *query = turned(p, tape, projected[0], layer->query_norm, p->positions);
    bd_value *key = turned(p, tape, projected[1], layer->key_norm, p->positions);
    bd_value *value = projected[2];
    if (p->cache) {
        key = behind_cache(p, tape, p->cache->key[index], key);
        value = behind_cache(p, tape, p->cache->value[index], value);
    } else {
        bd_value *seen[2];
        context_key_value(p, tape, layer, p->context, p->context_positions, seen);
        key = bd_op_concatenate_rows(tape, seen[0], key, p->rows);
        value = bd_op_concatenate_rows(tape, seen[1], value, p->rows);
    }
    bd_visibility *rule = bd_arena_alloc(tape->arena, sizeof *rule);
    *rule = bd_draft_rule(config, index, p->context_length, p->anchors);
    rule->query_length = p->queries;
    rule->key_length = p->context_length + p->queries;
    const bd_attention attention = {.rule = rule,
                                    .batch = p->rows,
                                    .query_heads = s->query_heads,
                                    .key_heads = s->key_heads,
                                    .head_size = s->head_size,
                                    .scale = 1 / sqrtf((float)s->head_size),
                                    .compute = tape->compute};
    bd_value *seen = bd_op_attention(tape, query, key, value, &attention, layer->sink);
    bd_value *y = bd_op_linear(tape, seen, layer->output, layer->output_bias);
    return bd_op_add(tape, x, leave(&around, tape, y));
}

static bd_value *mlp_half(const pass *p, bd_tape *tape, int64_t index, bd_value *x)
{
    const bd_layer *layer = &p->draft->layers[index];
    float eps = (float)p->draft->config.stack.norm_eps;
    if (!p->draft->convolutions)
        return bd_layer_mlp(tape, layer, x, eps);
    sublayer around;
    bd_value *h = bd_op_rms_norm(tape, x, layer->post_attention_norm, eps, x->width);
    h = enter(p, tape, 2 * index + 1, h, &around);
    return bd_op_add(tape, x, leave(&around, tape, bd_layer_swiglu(tape, layer, h)));
}

static bd_value *run_layer(const pass *p, bd_tape *tape, int64_t index, bd_value *x)
{
    if (tape->recording)
        return mlp_half(p, tape, index, attention_half(p, tape, index, x));
    // Nobody will come back to a layer's inner results: x is updated in place, the rest forgotten.
    size_t bytes = (size_t)(x->rows * x->width) * sizeof(float);
    size_t mark = bd_arena_mark(tape->arena);
    memcpy(x->data, attention_half(p, tape, index, x)->data, bytes);
    bd_arena_release(tape->arena, mark);
    memcpy(x->data, mlp_half(p, tape, index, x)->data, bytes);
    bd_arena_release(tape->arena, mark);
    return x;
}

/* The draft's own row for masks, where it has one. */
static void replace_masks(const pass *p, const bd_value *x, const int32_t *tokens)
{
    if (!p->draft->mask_row)
        return;
    for (int64_t i = 0; i < x->rows; i++)
        if (i % p->block != 0 && tokens[i] == p->draft->config.mask_id)
            memcpy(x->data + i * x->width, p->draft->mask_row, (size_t)x->width * sizeof(float));
}

static bd_value *run(const pass *p, bd_tape *tape, const int32_t *tokens)
{
    const bd_model_config *s = &p->draft->config.stack;
    bd_value *x = bd_op_embedding(tape, p->draft->target->embedding, tokens, p->rows * p->queries);
    replace_masks(p, x, tokens);
    for (int64_t i = 0; i < s->layers; i++)
        x = run_layer(p, tape, i, x);
    return bd_op_rms_norm(tape, x, p->draft->norm, (float)s->norm_eps, s->hidden);
}

static int32_t *count_up(bd_arena *arena, int64_t rows, int64_t length, int64_t first)
{
    int32_t *positions = bd_arena_ints(arena, rows * length);
    for (int64_t i = 0; i < rows * length; i++)
        positions[i] = (int32_t)(first + i % length);
    return positions;
}

bd_value *bd_draft_forward(bd_draft *draft, bd_tape *tape, const bd_draft_blocks *blocks)
{
    assert(blocks->context->rows == blocks->rows * blocks->length);
    const pass p = {.draft = draft,
                    .rows = blocks->rows,
                    .context_length = blocks->length,
                    .anchors = blocks->anchors,
                    .positions = blocks->positions,
                    .queries = blocks->anchors->blocks * draft->config.block_size,
                    .block = draft->config.block_size,
                    .context = blocks->context,
                    .context_positions = count_up(tape->arena, blocks->rows, blocks->length, 0)};
    return run(&p, tape, blocks->tokens);
}

// --- one block after a growing context -----------------------------------------------------------

bd_draft_cache *bd_draft_cache_create(const bd_draft *draft, int64_t capacity, bd_error *err)
{
    assert(capacity > 0);
    const bd_model_config *s = &draft->config.stack;
    int64_t width = s->key_heads * s->head_size, rows = capacity + draft->config.block_size;
    // Pages of an arena are taken when touched: a long capacity costs what is used of it.
    size_t bytes = ((size_t)(rows * width) * sizeof(float) + 64) * 2 * (size_t)s->layers + 4096;
    if (draft->config.variant->reads_context)
        bytes += (size_t)(capacity * s->hidden) * sizeof(float) + 64;
    bd_arena *arena = bd_arena_create(bytes + 2 * (size_t)s->layers * sizeof(float *), err);
    if (!arena)
        return NULL;
    bd_draft_cache *cache = bd_arena_alloc(arena, sizeof *cache);
    *cache = (bd_draft_cache){.capacity = capacity, .width = width, .owned = arena};
    cache->key = bd_arena_alloc(arena, (size_t)s->layers * sizeof(float *));
    cache->value = bd_arena_alloc(arena, (size_t)s->layers * sizeof(float *));
    if (draft->config.variant->reads_context)
        cache->context = bd_arena_floats(arena, capacity * s->hidden);
    for (int64_t layer = 0; layer < s->layers; layer++) {
        cache->key[layer] = bd_arena_floats(arena, rows * width);
        cache->value[layer] = bd_arena_floats(arena, rows * width);
    }
    return cache;
}

void bd_draft_cache_free(bd_draft_cache *cache)
{
    if (cache)
        bd_arena_destroy(cache->owned); // the struct itself lies in it
}

void bd_draft_cache_extend(bd_draft *draft, bd_draft_cache *cache, const float *features,
                           int64_t rows, bd_arena *scratch)
{
    assert(rows >= 0 && cache->length + rows <= cache->capacity);
    if (rows == 0)
        return;
    size_t mark = bd_arena_mark(scratch);
    bd_tape tape = bd_tape_begin(scratch, draft->compute, false);
    bd_value *context = bd_draft_context(draft, &tape, features, rows);
    if (cache->context)
        memcpy(cache->context + cache->length * context->width, context->data,
               (size_t)(rows * context->width) * sizeof(float));
    const int32_t *positions = count_up(scratch, 1, rows, cache->length);
    const pass p = {.draft = draft, .rows = 1};
    size_t bytes = (size_t)(rows * cache->width) * sizeof(float);
    size_t layer_mark = bd_arena_mark(scratch);
    for (int64_t l = 0; l < draft->config.stack.layers; l++) {
        const bd_layer *layer = &draft->layers[l];
        bd_value *made[2];
        context_key_value(&p, &tape, layer, context, positions, made);
        memcpy(cache->key[l] + cache->length * cache->width, made[0]->data, bytes);
        memcpy(cache->value[l] + cache->length * cache->width, made[1]->data, bytes);
        bd_arena_release(scratch, layer_mark);
    }
    cache->length += rows;
    bd_arena_release(scratch, mark);
}

bd_value *bd_draft_forward_cached(bd_draft *draft, bd_tape *tape, bd_draft_cache *cache,
                                  const int32_t *tokens, int64_t count)
{
    assert(count >= 1 && count <= draft->config.block_size && !tape->recording);
    int32_t *anchor = bd_arena_ints(tape->arena, 1);
    uint8_t *keep = bd_arena_alloc(tape->arena, 1);
    anchor[0] = (int32_t)cache->length;
    keep[0] = 1;
    const bd_anchors anchors = {.blocks = 1, .anchor = anchor, .keep = keep};
    const pass p = {.draft = draft,
                    .rows = 1,
                    .context_length = cache->length,
                    .anchors = &anchors,
                    .positions = count_up(tape->arena, 1, count, cache->length),
                    .queries = count,
                    .block = count,
                    .cache = cache};
    return run(&p, tape, tokens);
}
