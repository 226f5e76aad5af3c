#include "draft/lilicorr.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/random.h"
#include "draft/convolution.h"
#include "draft/dflash.h"
#include "format/json.h"

// --- configuration -------------------------------------------------------------------------------

static const char *const fields[] = {"lilicorr_enabled",
                                     "lilicorr_candidate_topk",
                                     "lilicorr_hidden_size",
                                     "lilicorr_num_layers",
                                     "lilicorr_num_heads",
                                     "lilicorr_mlp_ratio",
                                     "lilicorr_factor_dim",
                                     "lilicorr_vector_eps",
                                     "lilicorr_logit_scale",
                                     "conv_kernel_size",
                                     "conv_group_size",
                                     "conv_projection_init_std",
                                     NULL};

static int64_t head_width(const bd_draft_config *config)
{
    return config->lilicorr.hidden > 0 ? config->lilicorr.hidden : config->stack.hidden;
}

static int64_t inner_width(const bd_draft_config *config)
{
    return (int64_t)((double)head_width(config) * config->lilicorr.mlp_ratio);
}

static json_t *required_home(json_t *root, const char *where, const char *field, bd_error *err)
{
    json_t *home = bd_draft_field_home(root, field);
    if (bd_json_has(home, field))
        return home;
    bd_fail(err, "%s: a lilicorr draft requires '%s' in dflash_config", where, field);
    return NULL;
}

static bool size(json_t *root, const char *where, const char *field, int64_t *out, bd_error *err)
{
    json_t *home = required_home(root, where, field, err);
    return home && bd_json_int(home, where, field, 1, INT32_MAX, out, err);
}

static bool real(json_t *root, const char *where, const char *field, double *out, bd_error *err)
{
    json_t *home = required_home(root, where, field, err);
    return home && bd_json_number(home, where, field, 0, 1e9, out, err);
}

static bool read_config(bd_draft_config *config, json_t *root, const char *where, bd_error *err)
{
    bd_lilicorr_config *l = &config->lilicorr;
    bool enabled = true;
    if (!bd_json_bool_if(bd_draft_field_home(root, "lilicorr_enabled"), where, "lilicorr_enabled",
                         &enabled, err))
        return false;
    if (!enabled)
        return bd_fail(err, "%s: \"lilicorr_enabled\" is false for a lilicorr draft", where);
    return size(root, where, "lilicorr_candidate_topk", &l->top_k, err) &&
           bd_json_int_if(bd_draft_field_home(root, "lilicorr_hidden_size"), where,
                          "lilicorr_hidden_size", 0, INT32_MAX, &l->hidden, err) &&
           size(root, where, "lilicorr_num_layers", &l->layers, err) &&
           size(root, where, "lilicorr_num_heads", &l->heads, err) &&
           real(root, where, "lilicorr_mlp_ratio", &l->mlp_ratio, err) &&
           size(root, where, "lilicorr_factor_dim", &l->factor, err) &&
           real(root, where, "lilicorr_vector_eps", &l->vector_eps, err) &&
           real(root, where, "lilicorr_logit_scale", &l->logit_scale, err) &&
           bd_convolution_read_config(config, root, where, err) &&
           bd_json_number_if(bd_draft_field_home(root, "conv_projection_init_std"), where,
                             "conv_projection_init_std", 0, 1e6,
                             &config->convolution.projection_std, err);
}

static void write_config(const bd_draft_config *config, json_t *root, json_t *nested)
{
    const bd_lilicorr_config *l = &config->lilicorr;
    (void)root;
    json_object_set_new(nested, "lilicorr_enabled", json_true());
    json_object_set_new(nested, "lilicorr_candidate_topk", json_integer(l->top_k));
    json_object_set_new(nested, "lilicorr_hidden_size", json_integer(head_width(config)));
    json_object_set_new(nested, "lilicorr_num_layers", json_integer(l->layers));
    json_object_set_new(nested, "lilicorr_num_heads", json_integer(l->heads));
    json_object_set_new(nested, "lilicorr_mlp_ratio", json_real(l->mlp_ratio));
    json_object_set_new(nested, "lilicorr_factor_dim", json_integer(l->factor));
    json_object_set_new(nested, "lilicorr_vector_eps", json_real(l->vector_eps));
    json_object_set_new(nested, "lilicorr_logit_scale", json_real(l->logit_scale));
    bd_convolution_write_config(config, nested);
}

static bool check_config(const bd_draft_config *config, const char *where, bd_error *err)
{
    const bd_lilicorr_config *l = &config->lilicorr;
    const bd_convolution_config *conv = &config->convolution;
    int64_t width = head_width(config);
    if (config->block_size < 2)
        return bd_fail(err, "%s: block_size is %lld, a lilicorr draft needs at least 2", where,
                       (long long)config->block_size);
    if (l->top_k > config->stack.vocabulary)
        return bd_fail(err, "%s: lilicorr_candidate_topk=%lld exceeds the vocabulary size %lld",
                       where, (long long)l->top_k, (long long)config->stack.vocabulary);
    if (l->top_k < 1 || l->top_k > BD_LATTICE_CANDIDATES)
        return bd_fail(err, "%s: lilicorr_candidate_topk is %lld, 1 to %d expected", where,
                       (long long)l->top_k, BD_LATTICE_CANDIDATES);
    if (l->layers < 1 || l->layers > BD_MOST_TAPS || l->factor < 1)
        return bd_fail(err,
                       "%s: lilicorr_num_layers is %lld, 1 to %d expected, lilicorr_factor_dim "
                       "%lld, at least 1",
                       where, (long long)l->layers, BD_MOST_TAPS, (long long)l->factor);
    if (l->heads < 1 || width % l->heads)
        return bd_fail(err, "%s: lilicorr_num_heads (%lld) must divide lilicorr_hidden_size (%lld)",
                       where, (long long)l->heads, (long long)width);
    if (!(l->mlp_ratio * (double)width >= 1))
        return bd_fail(err, "%s: lilicorr_mlp_ratio is %g: no MLP is left", where, l->mlp_ratio);
    if (!(l->vector_eps > 0 && l->vector_eps < .5))
        return bd_fail(err, "%s: lilicorr_vector_eps must be in (0, 0.5), got %g", where,
                       l->vector_eps);
    if (!(l->logit_scale > 0))
        return bd_fail(err, "%s: lilicorr_logit_scale must be > 0, got %g", where, l->logit_scale);
    if ((conv->kernel_size > 0) != (conv->group_size > 0))
        return bd_fail(err, "%s: lilicorr got %s without %s", where,
                       conv->kernel_size > 0 ? "conv_kernel_size" : "conv_group_size",
                       conv->kernel_size > 0 ? "conv_group_size" : "conv_kernel_size");
    if (!(conv->projection_std >= 0) || isinf(conv->projection_std))
        return bd_fail(err, "%s: conv_projection_init_std must be >= 0 and finite, got %g", where,
                       conv->projection_std);
    if (conv->projection_std > 0 && conv->kernel_size == 0)
        return bd_fail(err,
                       "%s: lilicorr got conv_projection_init_std without conv_kernel_size and "
                       "conv_group_size",
                       where);
    return conv->kernel_size == 0 || bd_convolution_check_config(config, where, err);
}

// --- tensors -------------------------------------------------------------------------------------

typedef struct {
    bd_parameter *weight, *bias;
} affine;

typedef struct {
    bd_parameter *attention_norm, *mlp_norm;
    affine in, out, up, down; // in: queries, keys, values
} lattice_layer;

typedef struct {
    affine token, hidden, context; // token.weight NULL: the head is as wide as the embedding
    affine feature_norm, feature_up, feature_down;
    bd_parameter *slot_embedding, *rank_embedding; // [1, 1, slots, 1, D], [1, 1, 1, C, D]
    bd_parameter *relative, *same;                 // [heads, 2 bs - 1], [heads]
    lattice_layer *layers;
    bd_parameter *output_norm, *anchor_norm;
    affine factor, out, in, anchor_out;
} lattice_head;

static void add_affine(bd_draft_builder *b, affine *place, int64_t out, int64_t in,
                       const char *name)
{
    bd_draft_builder_add(b, &place->weight, BD_INITIAL_NORMAL, 2, (int64_t[]){out, in},
                         "lilicorr.%s.weight", name);
    bd_draft_builder_add(b, &place->bias, BD_INITIAL_ZERO, 1, &out, "lilicorr.%s.bias", name);
}

static void add_layer(bd_draft_builder *b, lattice_layer *layer, int64_t width, int64_t inner,
                      int64_t index)
{
    const int64_t packed = 3 * width;
    char name[64];
    bd_draft_builder_add(b, &layer->attention_norm, BD_INITIAL_ONE, 1, &width,
                         "lilicorr.layers.%lld.attn_norm.weight", (long long)index);
    bd_draft_builder_add(b, &layer->in.weight, BD_INITIAL_ZERO, 2, (int64_t[]){packed, width},
                         "lilicorr.layers.%lld.attn.in_proj_weight", (long long)index);
    bd_draft_builder_add(b, &layer->in.bias, BD_INITIAL_ZERO, 1, &packed,
                         "lilicorr.layers.%lld.attn.in_proj_bias", (long long)index);
    snprintf(name, sizeof name, "layers.%lld.attn.out_proj", (long long)index);
    add_affine(b, &layer->out, width, width, name);
    bd_draft_builder_add(b, &layer->mlp_norm, BD_INITIAL_ONE, 1, &width,
                         "lilicorr.layers.%lld.mlp_norm.weight", (long long)index);
    snprintf(name, sizeof name, "layers.%lld.mlp.0", (long long)index);
    add_affine(b, &layer->up, inner, width, name);
    snprintf(name, sizeof name, "layers.%lld.mlp.2", (long long)index);
    add_affine(b, &layer->down, width, inner, name);
}

static void build(bd_draft *draft, bd_draft_builder *b)
{
    const bd_draft_config *config = &draft->config;
    const bd_lilicorr_config *l = &config->lilicorr;
    int64_t H = config->stack.hidden, D = head_width(config), five = 5,
            slots = config->block_size - 1;
    lattice_head *head = bd_arena_alloc(draft->owned, sizeof *head);
    size_t bytes = (size_t)l->layers * sizeof *head->layers;
    *head = (lattice_head){.layers = memset(bd_arena_alloc(draft->owned, bytes), 0, bytes)};
    draft->head = head;
    if (config->convolution.kernel_size > 0)
        bd_convolution_build(draft, b);
    if (D != H)
        add_affine(b, &head->token, D, H, "token_proj");
    add_affine(b, &head->hidden, D, H, "pass_hidden_proj");
    bd_draft_builder_add(b, &head->feature_norm.weight, BD_INITIAL_ONE, 1, &five,
                         "lilicorr.feature_mlp.0.weight");
    bd_draft_builder_add(b, &head->feature_norm.bias, BD_INITIAL_ZERO, 1, &five,
                         "lilicorr.feature_mlp.0.bias");
    add_affine(b, &head->feature_up, D, 5, "feature_mlp.1");
    add_affine(b, &head->feature_down, D, D, "feature_mlp.3");
    bd_draft_builder_add(b, &head->slot_embedding, BD_INITIAL_ZERO, 5,
                         (int64_t[]){1, 1, slots, 1, D}, "lilicorr.slot_embedding");
    bd_draft_builder_add(b, &head->rank_embedding, BD_INITIAL_ZERO, 5,
                         (int64_t[]){1, 1, 1, l->top_k, D}, "lilicorr.rank_embedding");
    bd_draft_builder_add(b, &head->relative, BD_INITIAL_ZERO, 2,
                         (int64_t[]){l->heads, 2 * config->block_size - 1},
                         "lilicorr.relative_slot_bias");
    bd_draft_builder_add(b, &head->same, BD_INITIAL_ZERO, 1, &l->heads, "lilicorr.same_slot_bias");
    add_affine(b, &head->context, D, H, "context_proj");
    for (int64_t i = 0; i < l->layers; i++)
        add_layer(b, &head->layers[i], D, inner_width(config), i);
    bd_draft_builder_add(b, &head->output_norm, BD_INITIAL_ONE, 1, &D,
                         "lilicorr.output_norm.weight");
    bd_draft_builder_add(b, &head->anchor_norm, BD_INITIAL_ONE, 1, &D,
                         "lilicorr.anchor_norm.weight");
    add_affine(b, &head->factor, D, 3 * D, "factor_input_proj");
    add_affine(b, &head->out, l->factor, D, "out_head");
    add_affine(b, &head->in, l->factor, D, "in_head");
    add_affine(b, &head->anchor_out, l->factor, D, "anchor_out_head");
}

/* Names that newer exports give the same tensors. */
#define MLP(i)                                                                                     \
    "lilicorr.layers." #i ".mlp.up_proj.", "lilicorr.layers." #i ".mlp.0.",                        \
        "lilicorr.layers." #i ".mlp.down_proj.", "lilicorr.layers." #i ".mlp.2."
static const char *const aliases[] = {"lilicorr.feature_norm.",
                                      "lilicorr.feature_mlp.0.",
                                      "lilicorr.feature_mlp.up_proj.",
                                      "lilicorr.feature_mlp.1.",
                                      "lilicorr.feature_mlp.down_proj.",
                                      "lilicorr.feature_mlp.3.",
                                      MLP(0),
                                      MLP(1),
                                      MLP(2),
                                      MLP(3),
                                      MLP(4),
                                      MLP(5),
                                      MLP(6),
                                      MLP(7),
                                      NULL};

/* The packed projections start uniform in +- sqrt(6 / (D + 3 D)); the heads whose products are the
 * scores with a deviation of their own, since zero products would stay zero. */
static void initialize(bd_draft *draft, uint64_t seed)
{
    const bd_lilicorr_config *l = &draft->config.lilicorr;
    lattice_head *head = draft->head;
    float bound = sqrtf(6 / (4 * (float)head_width(&draft->config)));
    if (draft->convolutions)
        bd_convolution_initialize(draft, seed);
    for (int64_t i = 0; i < draft->parameters.count; i++) {
        bd_parameter *p = draft->parameters.items[i];
        if (p == head->out.weight || p == head->in.weight || p == head->anchor_out.weight)
            bd_parameter_normal(p, seed, i, .02);
        for (int64_t k = 0; k < l->layers; k++)
            if (p == head->layers[k].in.weight) {
                uint64_t key = bd_random_key(seed, 0, (uint64_t)i, 0);
                for (int64_t j = 0; j < p->count; j++)
                    p->value[j] =
                        bound * (2 * bd_random_uniform(key, BD_STREAM_INITIAL, (uint32_t)j) - 1);
                bd_parameter_changed(p);
            }
    }
}

// --- the head ------------------------------------------------------------------------------------

static bd_value *apply(bd_tape *tape, bd_value *x, const affine *a)
{
    return bd_op_linear(tape, x, a->weight, a->bias);
}

typedef struct {
    bd_draft *draft;
    const bd_candidates *candidates;
    bd_value *hidden, *logp;
} logp_note;

/* d logp[j] / d logit[v] = [v is candidate j] - softmax[v]. The dense half is a cross entropy's
 * gradient, scaled per row, with the first candidate as the label, which the sparse half undoes. */
static void logp_back(bd_tape *tape, void *context)
{
    const logp_note *n = context;
    const bd_candidates *c = n->candidates;
    bd_parameter *head = n->draft->target->head;
    float *scale = bd_arena_floats(tape->arena, c->rows);
    float *d_logit = bd_arena_floats(tape->arena, c->rows * c->count);
    int32_t *first = bd_arena_ints(tape->arena, c->rows);
    for (int64_t r = 0; r < c->rows; r++) {
        double sum = 0;
        for (int64_t j = 0; j < c->count; j++)
            sum += (double)(d_logit[r * c->count + j] = n->logp->gradient[r * c->count + j]);
        scale[r] = (float)-sum;
        d_logit[r * c->count] -= (float)sum;
        first[r] = c->token[r * c->count];
    }
    bd_vocabulary_loss pass = {.rows = c->rows,
                               .vocabulary = n->draft->target->config.vocabulary,
                               .scale = scale,
                               .targets = first,
                               .hard = 1};
    bd_op_vocabulary_loss(tape, n->hidden, head, &pass);
    bd_candidates_back(n->draft->target, c, d_logit, n->hidden->gradient, tape->arena);
}

static bd_value *log_probabilities(bd_draft *draft, bd_tape *tape, bd_value *hidden,
                                   const bd_candidates *candidates)
{
    bd_value *logp =
        bd_tape_value(tape, candidates->rows, candidates->count, hidden->gradient != NULL);
    for (int64_t i = 0; i < candidates->rows * candidates->count; i++)
        logp->data[i] = candidates->logit[i] - candidates->log_normalizer[i / candidates->count];
    if (logp->gradient) {
        logp_note *n = bd_arena_alloc(tape->arena, sizeof *n);
        *n = (logp_note){draft, candidates, hidden, logp};
        bd_tape_note(tape, logp_back, n);
    }
    return logp;
}

/* What the first layer reads, [blocks * slots * C, D]. */
static bd_value *candidate_states(bd_draft *draft, bd_tape *tape, bd_value *hidden,
                                  const bd_candidates *c, int64_t slots)
{
    const lattice_head *head = draft->head;
    const bd_parameter *table = draft->target->embedding;
    int64_t rows = c->rows * c->count, width = table->shape[1];
    int32_t *slot_row = bd_arena_ints(tape->arena, rows), *slot = bd_arena_ints(tape->arena, rows),
            *rank = bd_arena_ints(tape->arena, rows);
    float *embedded = bd_arena_floats(tape->arena, rows * width);
    for (int64_t i = 0; i < rows; i++) {
        slot_row[i] = (int32_t)(i / c->count);
        slot[i] = slot_row[i] % (int32_t)slots;
        rank[i] = (int32_t)(i % c->count);
    }
    bd_gather(table->data, table->dtype, width, c->token, rows, embedded);
    bd_value *x = bd_tape_constant(tape, embedded, rows, width);
    if (head->token.weight)
        x = apply(tape, x, &head->token);
    bd_value *passed = apply(tape, hidden, &head->hidden);
    x = bd_op_add(tape, x, bd_op_gather_rows(tape, passed, slot_row, rows));
    bd_value *f = bd_lattice_features(tape, log_probabilities(draft, tape, hidden, c));
    f = bd_op_layer_norm(tape, f, head->feature_norm.weight, head->feature_norm.bias);
    f = apply(tape, bd_op_silu(tape, apply(tape, f, &head->feature_up)), &head->feature_down);
    x = bd_op_add(tape, x, f);
    x = bd_op_add_rows(tape, x, head->slot_embedding, slot);
    return bd_op_add_rows(tape, x, head->rank_embedding, rank);
}

static bd_value *run_layers(bd_draft *draft, bd_tape *tape, bd_value *x,
                            const bd_lattice_shape *shape)
{
    const lattice_head *head = draft->head;
    float eps = (float)draft->config.stack.norm_eps;
    for (int64_t i = 0; i < draft->config.lilicorr.layers; i++) {
        const lattice_layer *layer = &head->layers[i];
        bd_value *h = bd_op_rms_norm(tape, x, layer->attention_norm, eps, x->width);
        h = bd_lattice_attention(tape, apply(tape, h, &layer->in), head->relative, head->same,
                                 shape);
        x = bd_op_add(tape, x, apply(tape, h, &layer->out));
        h = bd_op_rms_norm(tape, x, layer->mlp_norm, eps, x->width);
        h = bd_op_silu(tape, apply(tape, h, &layer->up));
        x = bd_op_add(tape, x, apply(tape, h, &layer->down));
    }
    return bd_op_rms_norm(tape, x, head->output_norm, eps, x->width);
}

/* [blocks, D]; 0 where there is no row before the anchor, the projection's bias included. */
static bd_value *anchor_states(bd_draft *draft, bd_tape *tape, bd_value *context,
                               const int32_t *context_row, int64_t blocks)
{
    const lattice_head *head = draft->head;
    int32_t *own = bd_arena_ints(tape->arena, blocks);
    for (int64_t n = 0; n < blocks; n++)
        own[n] = context_row[n] < 0 ? -1 : (int32_t)n;
    bd_value *x = bd_op_gather_rows(tape, context, context_row, blocks);
    x = bd_op_gather_rows(tape, apply(tape, x, &head->context), own, blocks);
    return bd_op_rms_norm(tape, x, head->anchor_norm, (float)draft->config.stack.norm_eps,
                          x->width);
}

bd_lilicorr_scores bd_lilicorr_score(bd_draft *draft, bd_tape *tape, bd_value *hidden,
                                     bd_value *context, const int32_t *context_row)
{
    const bd_lilicorr_config *l = &draft->config.lilicorr;
    const lattice_head *head = draft->head;
    int64_t slots = draft->config.block_size - 1, blocks = hidden->rows / slots;
    float eps = (float)l->vector_eps, scale = (float)l->logit_scale;
    bd_lilicorr_scores s = {.shape = {blocks, slots, l->top_k}};
    bd_candidates *c = bd_arena_alloc(tape->arena, sizeof *c);
    *c = s.candidates =
        bd_candidates_find(draft->target, hidden->data, hidden->rows, l->top_k, tape->arena);
    bd_value *x = candidate_states(draft, tape, hidden, c, slots);
    x = run_layers(draft, tape, x, &s.shape);

    bd_value *anchor = anchor_states(draft, tape, context, context_row, blocks);
    int32_t *block = bd_arena_ints(tape->arena, x->rows);
    for (int64_t i = 0; i < x->rows; i++)
        block[i] = (int32_t)(i / (slots * l->top_k));
    bd_value *repeated = bd_op_gather_rows(tape, anchor, block, x->rows);
    bd_value *parts[3] = {x, repeated, bd_op_multiply(tape, x, repeated)};
    bd_value *y = bd_op_concatenate_columns(tape, parts, 3);
    y = bd_op_silu(tape, apply(tape, y, &head->factor));
    bd_value *in = bd_op_normalize(tape, apply(tape, y, &head->in), eps);
    bd_value *from = bd_op_normalize(tape, apply(tape, anchor, &head->anchor_out), eps);
    s.start = bd_lattice_start(tape, from, in, scale, &s.shape);
    if (slots > 1)
        s.pair = bd_lattice_pair(tape, bd_op_normalize(tape, apply(tape, y, &head->out), eps), in,
                                 scale, &s.shape);
    return s;
}

// --- the loss ------------------------------------------------------------------------------------

static bool check_objective(const bd_draft_config *config, const bd_draft_objective *o,
                            bd_error *err)
{
    (void)config;
    const char *unset[3];
    int count = 0;
    // Negative means not given: a run that forgot one of them would train something else.
    if (!(o->lattice_ce >= 0))
        unset[count++] = "lilicorr_w_ce";
    if (!(o->lattice_margin_weight >= 0))
        unset[count++] = "lilicorr_w_margin";
    if (!(o->lattice_penalty >= 0))
        unset[count++] = "lilicorr_w_pen";
    if (count > 0)
        return bd_fail(err, "lilicorr needs all of its weights, these are not set: %s%s%s%s%s",
                       unset[0], count > 1 ? ", " : "", count > 1 ? unset[1] : "",
                       count > 2 ? ", " : "", count > 2 ? unset[2] : "");
    if (!(o->lattice_calibration >= 0))
        return bd_fail(err, "lilicorr_w_cal is %g, a weight of at least 0 expected",
                       (double)o->lattice_calibration);
    float sum =
        o->lattice_ce + o->lattice_margin_weight + o->lattice_penalty + o->lattice_calibration;
    if (isinf(sum))
        return bd_fail(err, "lilicorr: a weight is infinite");
    if (sum == 0)
        return bd_fail(err, "lilicorr: all of its weights are 0, so its head would not be trained");
    if (o->lattice_margin_weight > 0 && !(o->lattice_margin > 0 && !isinf(o->lattice_margin)))
        return bd_fail(err, "lilicorr_margin must be > 0 with lilicorr_w_margin > 0, got %g",
                       (double)o->lattice_margin);
    return true;
}

static bool reads_teacher(const bd_draft_objective *objective)
{
    return objective->lattice_penalty > 0 || objective->lattice_calibration > 0;
}

/* The kept blocks: which slots they read, their labels, and whether they count. */
typedef struct {
    int64_t count, slots;
    int32_t *slot;        // [count * slots]: of the step
    int32_t *context_row; // [count]
    int32_t *labels;      // [count * slots]
    uint8_t *valid;
} kept_blocks;

static kept_blocks collect(const bd_draft_step *step)
{
    const bd_anchors *anchors = step->blocks.anchors;
    int64_t bs = step->blocks.block_size, slots = bs - 1, all = step->blocks.rows * anchors->blocks;
    bd_arena *arena = step->tape->arena;
    kept_blocks k = {.slots = slots,
                     .slot = bd_arena_ints(arena, all * slots),
                     .context_row = bd_arena_ints(arena, all),
                     .labels = bd_arena_ints(arena, all * slots),
                     .valid = bd_arena_alloc(arena, (size_t)all)};
    for (int64_t n = 0; n < all; n++) {
        if (!anchors->keep[n])
            continue;
        int64_t row = n / anchors->blocks, before = anchors->anchor[n] - 1;
        bool valid = true;
        for (int64_t s = 0; s < slots; s++) {
            int64_t slot = n * bs + s + 1;
            k.slot[k.count * slots + s] = (int32_t)slot;
            k.labels[k.count * slots + s] = step->targets.token[slot];
            valid = valid && step->targets.supervised[slot] != 0;
        }
        k.valid[k.count] = valid;
        k.context_row[k.count++] = before < 0 ? -1 : (int32_t)(row * step->blocks.length + before);
    }
    return k;
}

/* The teacher's logits of all candidates of valid blocks. */
static const float *teacher_logits(const bd_draft_step *step, const kept_blocks *k,
                                   const bd_candidates *c)
{
    const bd_teacher_rows teacher = bd_draft_step_teacher(step);
    const bd_parameter *head = step->draft->target->head;
    bd_arena *arena = step->tape->arena;
    int64_t width = head->shape[1];
    float *logits = bd_arena_zeros(arena, c->rows * c->count), *row = bd_arena_floats(arena, width);
    for (int64_t i = 0; i < c->rows * c->count; i++) {
        int32_t slot = k->slot[i / c->count];
        if (!k->valid[i / c->count / k->slots])
            continue;
        if (teacher.logits) {
            logits[i] = teacher.logits[slot][c->token[i]];
            continue;
        }
        double sum = 0;
        bd_gather(head->data, head->dtype, width, c->token + i, 1, row);
        for (int64_t j = 0; j < width; j++)
            sum += (double)teacher.features[slot][j] * (double)row[j];
        logits[i] = (float)sum;
    }
    return logits;
}

/* Standard deviation of `count` values with count - 1, 0 where that is nothing. */
static double deviation(const float *x, int64_t count)
{
    double mean = 0, squares = 0;
    if (count < 2)
        return 0;
    for (int64_t i = 0; i < count; i++)
        mean += (double)x[i] / (double)count;
    for (int64_t i = 0; i < count; i++)
        squares += ((double)x[i] - mean) * ((double)x[i] - mean);
    return sqrt(squares / (double)(count - 1));
}

static double total(const float *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)x[i];
    return sum;
}

/* What the scores look like, over kept blocks. */
static void factor_metrics(const bd_draft_step *step, const bd_lilicorr_scores *s,
                           bd_draft_loss *loss)
{
    double scale = step->draft->config.lilicorr.logit_scale, starts = 0, pairs = 0;
    int64_t K = s->shape.candidates, blocks = s->shape.blocks,
            steps = blocks * (s->shape.slots - 1);
    for (int64_t n = 0; n < blocks; n++)
        starts += deviation(s->start->data + n * K, K);
    for (int64_t n = 0; n < steps; n++)
        pairs += deviation(s->pair->data + n * K * K, K * K);
    bd_draft_loss_metric(loss, "lilicorr_start_factor_mean",
                         total(s->start->data, blocks * K) / scale, (double)(blocks * K));
    bd_draft_loss_metric(loss, "lilicorr_pair_factor_mean",
                         s->pair ? total(s->pair->data, steps * K * K) / scale : 0,
                         (double)(steps * K * K));
    double per_block = steps > 0 ? pairs / (double)(s->shape.slots - 1) : 0;
    bd_draft_loss_metric(loss, "lilicorr_logfactor_spread", (starts + per_block) / 2,
                         (double)blocks);
}

static void lattice_metrics(const bd_lattice_result *r, int64_t slots, double weighted,
                            bd_draft_loss *loss)
{
    bd_draft_loss_metric(loss, "lilicorr_loss", weighted * fmax(r->used, 1), fmax(r->used, 1));
    bd_draft_loss_metric(loss, "lilicorr_ce", r->ce, r->used);
    bd_draft_loss_metric(loss, "lilicorr_margin", r->margin, r->used);
    bd_draft_loss_metric(loss, "lilicorr_penalty", r->penalty, r->used);
    bd_draft_loss_metric(loss, "lilicorr_calibration", r->calibration, r->used);
    bd_draft_loss_metric(loss, "lilicorr_selected_prefix", r->selected, r->valid);
    bd_draft_loss_metric(loss, "lilicorr_top1_prefix", r->top1, r->valid);
    bd_draft_loss_metric(loss, "lilicorr_selected_minus_top1", r->selected - r->top1, r->valid);
    bd_draft_loss_metric(loss, "lilicorr_oracle_prefix", r->oracle, r->valid);
    bd_draft_loss_metric(loss, "lilicorr_oracle_gap", r->oracle - r->selected, r->valid);
    bd_draft_loss_metric(loss, "lilicorr_exact", r->exact, r->valid);
    bd_draft_loss_metric(loss, "lilicorr_zero_prefix_rate", r->zero, r->valid);
    bd_draft_loss_metric(loss, "lilicorr_slot_gt_in_lattice", r->in_lattice, r->slots);
    bd_draft_loss_metric(loss, "lilicorr_slot_acc", r->right, r->used);
    bd_draft_loss_metric(loss, "lilicorr_gap_mean", r->gap, r->used);
    bd_draft_loss_metric(loss, "lilicorr_gap_frac_hit", r->gap_hit, r->used);
    bd_draft_loss_metric(loss, "accuracy", r->selected, r->valid * (double)slots);
}

static void origin_metrics(const bd_draft_loss *origin, bd_draft_loss *loss)
{
    double denominator = bd_weight_denominator(origin->weight);
    bool trains = bd_weight_trains(origin->weight);
    bd_draft_loss_metric(loss, "origin_loss", trains ? origin->sum : 0, denominator);
    bd_draft_loss_metric(loss, "origin_accuracy", trains ? origin->correct : 0,
                         bd_weight_denominator(origin->supervised));
}

static void run_loss(bd_draft_step *step, bd_draft_loss *loss)
{
    const bd_draft_objective *o = step->objective;
    bd_dflash_loss(step, loss);
    const bd_draft_loss origin = *loss;
    const kept_blocks k = collect(step);
    bd_value *hidden = bd_op_gather_rows(step->tape, step->hidden, k.slot, k.count * k.slots);
    const bd_lilicorr_scores s =
        bd_lilicorr_score(step->draft, step->tape, hidden, step->context, k.context_row);
    const bd_lattice_weights weights = {(double)o->lattice_ce, (double)o->lattice_margin_weight,
                                        (double)o->lattice_penalty, (double)o->lattice_calibration,
                                        (double)o->lattice_margin};
    const bd_lattice_blocks blocks = {
        .shape = s.shape,
        .candidates = s.candidates.token,
        .labels = k.labels,
        .valid = k.valid,
        .start = s.start->data,
        .pair = s.pair ? s.pair->data : NULL,
        .teacher = reads_teacher(o) ? teacher_logits(step, &k, &s.candidates) : NULL};
    bd_lattice_result result;
    double factor = step->form == BD_DRAFT_SUM ? bd_weight_denominator(loss->weight) : 1;
    double mean = bd_lattice_judge(&weights, &blocks, factor, s.start->gradient,
                                   s.pair ? s.pair->gradient : NULL, &result);
    bd_draft_step_add(step, mean, loss);
    origin_metrics(&origin, loss);
    lattice_metrics(&result, s.shape.slots, mean, loss);
    factor_metrics(step, &s, loss);
}

static void idle(const bd_draft_objective *objective, bd_draft_loss *loss)
{
    (void)objective;
    const bd_lattice_result nothing = {0};
    bd_draft_loss_metric(loss, "origin_loss", 0, 0);
    bd_draft_loss_metric(loss, "origin_accuracy", 0, 0);
    lattice_metrics(&nothing, 1, 0, loss);
}

// --- drafting ------------------------------------------------------------------------------------

static void decode(bd_draft_decoding *decoding)
{
    bd_draft *draft = decoding->draft;
    int64_t width = draft->config.stack.hidden, slots = draft->config.block_size - 1;
    int64_t K = draft->config.lilicorr.top_k, chosen = 0;
    assert(decoding->slots == slots + 1);
    bd_tape tape = bd_tape_begin(decoding->arena, draft->compute, false);
    int32_t *row = bd_arena_ints(decoding->arena, 1);
    const float *context = decoding->context;
    row[0] = context ? 0 : -1;
    if (!context)
        context = bd_arena_zeros(decoding->arena, width);
    const bd_lilicorr_scores s = bd_lilicorr_score(
        draft, &tape, bd_tape_constant(&tape, decoding->hidden + width, slots, width),
        bd_tape_constant(&tape, context, 1, width), row);
    for (int64_t i = 0; i < decoding->count; i++) {
        const float *scores = i ? s.pair->data + ((i - 1) * K + chosen) * K : s.start->data;
        const int32_t *tokens = s.candidates.token + i * K;
        chosen = bd_draft_decode_choose(decoding, i, tokens, scores, K);
        decoding->tokens[i] = tokens[chosen];
    }
}

const bd_draft_variant bd_draft_lilicorr = {
    .projector_type = "lilicorr",
    .architecture = "LiLiCorrDraftModel",
    .label_shift = 0,
    .validated_plain = true,
    .reads_context = true,
    .aliases = aliases,
    .fields = fields,
    .read_config = read_config,
    .write_config = write_config,
    .check_config = check_config,
    .build = build,
    .initialize = initialize,
    .check_objective = check_objective,
    .reads_teacher = reads_teacher,
    .loss = run_loss,
    .idle = idle,
    .decode = decode,
};
