// The forward pass: one for training, evaluation and generation.
//
// Generation and evaluation share their bits. With tape->recording off, the logits of a token
// depend on the tokens it may see and on nothing else: not on how the prompt was cut into calls,
// how many tokens are verified at once, whether a cache is used, or the number of threads.
// Recording changes nothing in the arithmetic either; it only keeps what the way back needs.
#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/threads.h"
#include "model/model.h"

/* What stays the same from layer to layer. */
typedef struct {
    bd_model *model;
    int64_t rows;             // of the batch
    const int32_t *positions; // [rows, length]
    int64_t length;
    bd_visibility rule;       // of layers with full attention; of several caches, the last one's
    bd_cache *const *caches;  // [rows] or NULL
    bd_arena *const *scratch; // [rows] or NULL
} pass;

/* Tokens that row `row` has read before. */
static int64_t read_before(const bd_forward *input, int64_t row)
{
    return input->cache ? input->cache->length : input->caches ? input->caches[row]->length : 0;
}

static const int32_t *positions_of(bd_tape *tape, const bd_forward *input)
{
    if (input->positions)
        return input->positions;
    int32_t *positions = bd_arena_ints(tape->arena, input->rows * input->length);
    for (int64_t i = 0; i < input->rows * input->length; i++)
        positions[i] = (int32_t)(read_before(input, i / input->length) + i % input->length);
    return positions;
}

/* The caller's rule, or causal; both sides are the row. */
static bd_visibility rule_of(const bd_forward *input)
{
    bd_visibility rule = {.kind = BD_CAUSAL};
    if (input->rule)
        rule = *input->rule;
    rule.query_length = rule.key_length = input->length;
    if (input->rule && !input->cache) {
        assert(input->rule->query_length == input->length);
        assert(input->rule->key_length == input->length);
    }
    return rule;
}

/* With a cache the queries are the new tokens and the keys are all of the cache and then the new
 * tokens. */
static bd_visibility behind_cache(const bd_visibility *rule, const bd_cache *cache)
{
    bd_visibility moved = *rule;
    moved.query_offset = cache->length;
    moved.key_length += cache->length;
    return moved;
}

/* New keys or values are appended to the cache; attention then reads all of it. */
static bd_value *through_cache(bd_tape *tape, const bd_cache *cache, float *rows, bd_value *fresh)
{
    memcpy(rows + cache->length * cache->width, fresh->data,
           (size_t)(fresh->rows * fresh->width) * sizeof(float));
    return bd_tape_constant(tape, rows, cache->length + fresh->rows, cache->width);
}

static bd_value *attend(const pass *p, bd_tape *tape, int64_t index, int64_t batch,
                        const bd_visibility *whole, bd_value *query, bd_value *key, bd_value *value)
{
    const bd_model_config *c = &p->model->config;
    bd_visibility *rule = bd_arena_alloc(tape->arena, sizeof *rule);
    *rule = bd_visibility_of_layer(whole, c->layer_window[index]);
    const bd_attention attention = {.rule = rule,
                                    .batch = batch,
                                    .query_heads = c->query_heads,
                                    .key_heads = c->key_heads,
                                    .head_size = c->head_size,
                                    .compute = tape->compute,
                                    .scale = 1 / sqrtf((float)c->head_size)};
    return bd_op_attention(tape, query, key, value, &attention, NULL);
}

static bd_value row_of(const bd_value *x, int64_t row, int64_t length)
{
    return (bd_value){.data = x->data + row * length * x->width, .rows = length, .width = x->width};
}

/* Sequences of different lengths: each asks its own cache, as it would alone. */
typedef struct {
    const pass *p;
    bd_tape *tape;
    int64_t index; // of the layer
    bd_value *query, *key, *value, *seen;
} caches_job;

static bd_value *attend_cache(const caches_job *job, bd_tape *tape, int64_t row)
{
    const pass *p = job->p;
    const bd_cache *cache = p->caches[row];
    bd_value q = row_of(job->query, row, p->length), k = row_of(job->key, row, p->length),
             v = row_of(job->value, row, p->length);
    const bd_visibility rule = behind_cache(&p->rule, cache);
    return attend(p, tape, job->index, 1, &rule, &q,
                  through_cache(tape, cache, cache->key[job->index], &k),
                  through_cache(tape, cache, cache->value[job->index], &v));
}

/* One row, in an arena that no other row of the pass uses meanwhile. */
static void attend_row(void *context, int64_t row)
{
    const caches_job *job = context;
    const pass *p = job->p;
    bd_arena *arena = p->scratch[row];
    size_t mark = bd_arena_mark(arena);
    bd_tape tape = bd_tape_begin(arena, job->tape->compute, false);
    const bd_value *seen = attend_cache(job, &tape, row);
    memcpy(row_of(job->seen, row, p->length).data, seen->data,
           (size_t)(seen->rows * seen->width) * sizeof(float));
    bd_arena_release(arena, mark);
}

static bd_value *attend_caches(const pass *p, bd_tape *tape, int64_t index, bd_value *query,
                               bd_value *key, bd_value *value)
{
    caches_job job = {
        .p = p, .tape = tape, .index = index, .query = query, .key = key, .value = value};
    if (p->rows == 1)
        return attend_cache(&job, tape, 0);
    job.seen = bd_tape_value(tape, query->rows, query->width, false);
    bd_parallel(p->rows, attend_row, &job);
    return job.seen;
}

/* x + output(attention(norm(x))). */
static bd_value *attention_half(const pass *p, bd_tape *tape, int64_t index, bd_value *x)
{
    const bd_model_config *c = &p->model->config;
    const bd_layer *layer = &p->model->layers[index];
    float eps = (float)c->norm_eps;
    bd_value *h = bd_op_rms_norm(tape, x, layer->input_norm, eps, c->hidden);
    bd_value *projected[3];
    bd_op_linears(tape, h,
                  (const bd_linear[]){{layer->query, layer->query_bias},
                                      {layer->key, layer->key_bias},
                                      {layer->value, layer->value_bias}},
                  3, projected);
    bd_value *query = projected[0], *key = projected[1], *value = projected[2];
    if (layer->query_norm) {
        query = bd_op_rms_norm(tape, query, layer->query_norm, eps, c->head_size);
        key = bd_op_rms_norm(tape, key, layer->key_norm, eps, c->head_size);
    }
    query = bd_op_rope(tape, query, &p->model->rope, p->positions);
    key = bd_op_rope(tape, key, &p->model->rope, p->positions);
    bd_value *seen = p->caches ? attend_caches(p, tape, index, query, key, value)
                               : attend(p, tape, index, p->rows, &p->rule, query, key, value);
    return bd_op_add(tape, x, bd_op_linear(tape, seen, layer->output, layer->output_bias));
}

bd_value *bd_layer_swiglu(bd_tape *tape, const bd_layer *layer, bd_value *h)
{
    bd_value *wide[2];
    bd_op_linears(tape, h, (const bd_linear[]){{layer->gate, NULL}, {layer->up, NULL}}, 2, wide);
    return bd_op_linear(tape, bd_op_swiglu(tape, wide[0], wide[1]), layer->down, NULL);
}

bd_value *bd_layer_mlp(bd_tape *tape, const bd_layer *layer, bd_value *x, float eps)
{
    bd_value *h = bd_op_rms_norm(tape, x, layer->post_attention_norm, eps, x->width);
    return bd_op_add(tape, x, bd_layer_swiglu(tape, layer, h));
}

static bd_value *run_layer(const pass *p, bd_tape *tape, int64_t index, bd_value *x)
{
    x = attention_half(p, tape, index, x);
    return bd_layer_mlp(tape, &p->model->layers[index], x, (float)p->model->config.norm_eps);
}

/* Where nobody will come back to a layer's inner results, x is updated in place and the rest
 * forgotten: a long prompt holds one layer's attention and a piece of its MLP, not all layers. */
static void update_in_place(const pass *p, bd_tape *tape, int64_t index, bd_value *x)
{
    enum { MLP_ROWS = 1024 }; // enough to keep the products busy
    size_t row_bytes = (size_t)x->width * sizeof(float), mark = bd_arena_mark(tape->arena);
    const bd_value *y = attention_half(p, tape, index, x);
    memcpy(x->data, y->data, (size_t)x->rows * row_bytes);
    bd_arena_release(tape->arena, mark);
    for (int64_t row = 0; row < x->rows; row += MLP_ROWS) {
        bd_value part = {.data = x->data + row * x->width, .width = x->width};
        part.rows = x->rows - row < MLP_ROWS ? x->rows - row : MLP_ROWS;
        y = bd_layer_mlp(tape, &p->model->layers[index], &part, (float)p->model->config.norm_eps);
        memcpy(part.data, y->data, (size_t)part.rows * row_bytes);
        bd_arena_release(tape->arena, mark);
    }
}

// --- a layer that is run again on the way back ---------------------------------------------------

typedef struct {
    const pass *p;
    int64_t index;
    bd_value *x, *y;
} layer_note;

static void layer_back(bd_tape *tape, void *context)
{
    const layer_note *n = context;
    bd_tape again = bd_tape_begin(tape->arena, tape->compute, true);
    bd_value *y = run_layer(n->p, &again, n->index, n->x);
    if (!y->gradient)
        return; // frozen up to here
    memcpy(y->gradient, n->y->gradient, (size_t)(y->rows * y->width) * sizeof(float));
    bd_tape_backward(&again);
}

static bd_value *run_forgetfully(const pass *p, bd_tape *tape, int64_t index, bd_value *x)
{
    bd_value *y = bd_tape_value(tape, x->rows, x->width, true);
    memcpy(y->data, x->data, (size_t)(x->rows * x->width) * sizeof(float));
    bd_tape plain = bd_tape_begin(tape->arena, tape->compute, false);
    update_in_place(p, &plain, index, y);
    layer_note *n = bd_arena_alloc(tape->arena, sizeof *n);
    *n = (layer_note){.p = p, .index = index, .x = x, .y = y};
    bd_tape_note(tape, layer_back, n);
    return y;
}

// --- the pass ------------------------------------------------------------------------------------

static bool anything_trained(const bd_model *model)
{
    for (int64_t i = 0; i < model->parameters.count; i++)
        if (model->parameters.items[i]->gradient)
            return true;
    return false;
}

/* Copy hidden/`index` to wherever it is asked for. */
static void keep_hidden(const bd_hidden_request *request, int64_t index, const bd_value *x)
{
    if (!request)
        return;
    for (int64_t i = 0; i < request->count; i++) {
        if (request->layers[i] != index)
            continue;
        float *to = request->out + i * x->width;
        for (int64_t r = 0; r < x->rows; r++)
            memcpy(to + r * request->count * x->width, x->data + r * x->width,
                   (size_t)x->width * sizeof(float));
    }
}

bd_value *bd_model_forward(bd_model *model, bd_tape *tape, const bd_forward *input)
{
    const bd_model_config *c = &model->config;
    bool going_back = tape->recording && anything_trained(model);
    assert(input->rows > 0 && input->length > 0);
    pass *p = bd_arena_alloc(tape->arena, sizeof *p);
    *p = (pass){.model = model,
                .rows = input->rows,
                .length = input->length,
                .positions = positions_of(tape, input),
                .rule = rule_of(input),
                .caches = input->cache ? &input->cache : input->caches,
                .scratch = input->scratch};
    // A cache is written in place, which a tape could not go back through.
    assert(!p->caches || !going_back);
    assert(!input->cache || input->rows == 1);
    assert(!input->caches || (!input->rule && input->scratch));
    for (int64_t r = 0; p->caches && r < p->rows; r++)
        assert(p->caches[r]->length + p->length <= p->caches[r]->capacity);
    int64_t rows = input->rows * input->length;
    bd_value *x = bd_op_embedding(tape, model->embedding, input->tokens, rows);
    for (int64_t i = 0; i < c->layers; i++) {
        keep_hidden(input->hidden, i, x);
        if (!going_back)
            update_in_place(p, tape, i, x);
        else if (model->recompute)
            x = run_forgetfully(p, tape, i, x);
        else
            x = run_layer(p, tape, i, x);
    }
    for (int64_t r = 0; p->caches && r < p->rows; r++)
        p->caches[r]->length += p->length;
    if (input->prenorm)
        memcpy(input->prenorm, x->data, (size_t)(rows * c->hidden) * sizeof(float));
    x = bd_op_rms_norm(tape, x, model->norm, (float)c->norm_eps, c->hidden);
    keep_hidden(input->hidden, c->layers, x);
    return x;
}

void bd_model_logits(bd_model *model, const float *hidden, int64_t rows, float *logits,
                     bd_arena *scratch)
{
    size_t mark = bd_arena_mark(scratch);
    bd_matmul(bd_parameter_forward(model->head, model->compute), hidden, rows, model->config.hidden,
              NULL, logits, model->config.vocabulary, BD_STORE, scratch);
    bd_arena_release(scratch, mark);
}
