#include "draft/domino.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "format/json.h"

// --- the head's form -----------------------------------------------------------------------------

static bool read_config(bd_draft_config *config, json_t *root, const char *where, bd_error *err)
{
    static const char *const names[] = {"gru_hidden_dim", "emb_dim", "pure_draft_prefix_len"};
    bd_domino_config *d = &config->domino;
    int64_t *const places[] = {&d->state, &d->width, &d->pure_prefix};
    d->pure_prefix = 1;
    for (int i = 0; i < 3; i++)
        if (!bd_json_int_if(bd_draft_field_home(root, names[i]), where, names[i],
                            i < 2 ? 1 : INT32_MIN, INT32_MAX, places[i], err))
            return false;
    return true;
}

static void write_config(const bd_draft_config *config, json_t *root, json_t *nested)
{
    const bd_domino_config *d = &config->domino;
    json_object_set_new(nested, "pure_draft_prefix_len", json_integer(d->pure_prefix));
    json_object_set_new(nested, "gru_hidden_dim", json_integer(d->state));
    json_object_set_new(nested, "emb_dim", json_integer(d->width));
    json_object_set_new(root, "emb_dim", json_integer(d->width)); // some readers look here
}

static bool check_config(const bd_draft_config *config, const char *where, bd_error *err)
{
    const bd_domino_config *d = &config->domino;
    if (d->state <= 0 || d->width <= 0)
        return bd_fail(
            err, "%s: a domino draft needs %s%s%s", where, d->width <= 0 ? "emb_dim" : "",
            d->width <= 0 && d->state <= 0 ? " and " : "", d->state <= 0 ? "gru_hidden_dim" : "");
    if (d->pure_prefix < 0 || d->pure_prefix > config->block_size - 1)
        return bd_fail(err,
                       "%s: pure_draft_prefix_len must be in [0, %lld] (block_size=%lld), got %lld",
                       where, (long long)config->block_size - 1, (long long)config->block_size,
                       (long long)d->pure_prefix);
    return true;
}

static bool check_objective(const bd_draft_config *config, const bd_draft_objective *o,
                            bd_error *err)
{
    (void)config;
    return (o->lambda >= 0 && o->lambda <= 1) ||
           bd_fail(err, "lambda_base must be in [0, 1], got %g", (double)o->lambda);
}

// --- tensors -------------------------------------------------------------------------------------

static void build(bd_draft *draft, bd_draft_builder *b)
{
    const bd_draft_config *config = &draft->config;
    int64_t V = config->stack.vocabulary, H = config->stack.hidden;
    int64_t G = config->domino.state, E = config->domino.width;
    bd_domino_head *head = bd_arena_alloc(draft->owned, sizeof *head);
    *head = (bd_domino_head){0};
    draft->head = head;
    const bd_initial normal = BD_INITIAL_NORMAL;
    bd_draft_builder_add(b, &head->input, normal, 2, (int64_t[]){3 * G, H},
                         "prefix_gru.weight_ih_l0");
    bd_draft_builder_add(b, &head->recurrent, normal, 2, (int64_t[]){3 * G, G},
                         "prefix_gru.weight_hh_l0");
    bd_draft_builder_add(b, &head->inner, normal, 2, (int64_t[]){E, H + G}, "embed_proj.0.weight");
    bd_draft_builder_add(b, &head->outer, normal, 2, (int64_t[]){V, E}, "embed_proj.2.weight");
}

/* The unit starts as recurrent units usually do: uniform within 1 / sqrt(G). */
static void initialize(bd_draft *draft, uint64_t seed)
{
    const bd_domino_head *head = draft->head;
    double bound = 1 / sqrt((double)draft->config.domino.state);
    for (int64_t i = 0; i < draft->parameters.count; i++) {
        bd_parameter *p = draft->parameters.items[i];
        if (p == head->input || p == head->recurrent)
            bd_parameter_uniform(p, seed, i, bound);
    }
}

// --- the head ------------------------------------------------------------------------------------

bd_value *bd_domino_states(const bd_draft *draft, bd_tape *tape, const int32_t *tokens,
                           int64_t rows, int64_t length, float *state)
{
    const bd_domino_head *head = draft->head;
    bd_value *x = bd_op_embedding(tape, draft->target->embedding, tokens, rows);
    return bd_op_gru(tape, bd_op_linear(tape, x, head->input, NULL), head->recurrent, length,
                     state);
}

bd_value *bd_domino_features(const bd_draft *draft, bd_tape *tape, bd_value *hidden,
                             bd_value *states)
{
    const bd_domino_head *head = draft->head;
    bd_value *both = bd_op_concatenate_columns(tape, (bd_value *[]){hidden, states}, 2);
    return bd_op_silu(tape, bd_op_linear(tape, both, head->inner, NULL));
}

// --- training ------------------------------------------------------------------------------------

/* Rows of the first slots of each block become 0: what a head makes of them is 0, and no gradient
 * passes. */
static bd_value *without_prefix(const bd_draft_step *step, bd_value *features)
{
    int64_t bs = step->draft->config.block_size, prefix = step->draft->config.domino.pure_prefix;
    if (prefix == 0)
        return features;
    int32_t *index = bd_arena_ints(step->tape->arena, step->slots);
    for (int64_t i = 0; i < step->slots; i++)
        index[i] = i % bs < prefix ? -1 : (int32_t)i;
    return bd_op_gather_rows(step->tape, features, index, step->slots);
}

static void run_head(bd_draft_step *step)
{
    bd_draft *draft = step->draft;
    int32_t *tokens = bd_arena_ints(step->tape->arena, step->slots);
    bd_block_tokens(&step->blocks, tokens);
    bd_value *states =
        bd_domino_states(draft, step->tape, tokens, step->slots, draft->config.block_size, NULL);
    bd_value *features = bd_domino_features(draft, step->tape, step->hidden, states);
    step->correction = without_prefix(step, features);
    step->correction_head = ((bd_domino_head *)draft->head)->outer;
}

/* One of the two cross entropies, `share` of the loss: over `terms` products of the logits. */
typedef struct {
    float *ce;     // [slots]
    int32_t *best; // [slots]
    double sum, correct;
} part;

static part cross_entropy(const bd_draft_step *step, const float *scale, int terms, float share)
{
    bd_arena *arena = step->tape->arena;
    bd_model *target = step->draft->target;
    part p = {bd_arena_floats(arena, step->slots), bd_arena_ints(arena, step->slots), 0, 0};
    bd_vocabulary_loss pass = {.rows = step->slots,
                               .vocabulary = target->config.vocabulary,
                               .scale = scale,
                               .targets = step->targets.token,
                               .hard = share,
                               .hard_loss = p.ce,
                               .best = p.best};
    bd_tape tape = *step->tape;
    tape.recording = tape.recording && share != 0; // the fused loss leaves no note, only gradients
    bd_op_vocabulary_loss_of_sum(&tape, (bd_value *[]){step->hidden, step->correction},
                                 (bd_parameter *[]){target->head, step->correction_head}, terms,
                                 &pass);
    for (int64_t i = 0; i < step->slots; i++)
        if (step->targets.supervised[i] != 0) {
            p.sum += (double)step->weights[i] * (double)p.ce[i];
            p.correct += p.best[i] == step->targets.token[i];
        }
    return p;
}

static void put_metrics(const part *final, const part *base, const bd_draft_objective *objective,
                        bd_draft_loss *loss)
{
    bd_draft_loss_metric(loss, "final_loss", final->sum, loss->weight);
    bd_draft_loss_metric(loss, "base_loss", base->sum, loss->weight);
    bd_draft_loss_metric(loss, "base_accuracy", base->correct, loss->supervised);
    bd_draft_loss_metric(loss, "lambda_base", (double)objective->lambda, 1);
}

static void loss_of_step(bd_draft_step *step, bd_draft_loss *loss)
{
    float lambda = step->objective->lambda;
    bd_position_weights(&step->objective->weighting, 1, &step->blocks, step->targets.supervised,
                        NULL, step->weights);
    const float *scale = bd_draft_step_scale(step, bd_draft_step_weigh(step, loss));
    run_head(step);
    part final = cross_entropy(step, scale, 2, 1 - lambda);
    part base = cross_entropy(step, scale, 1, lambda);
    loss->correct = final.correct;
    loss->sum = (1 - (double)lambda) * final.sum + (double)lambda * base.sum;
    put_metrics(&final, &base, step->objective, loss);
}

static void idle(const bd_draft_objective *objective, bd_draft_loss *loss)
{
    put_metrics(&(part){0}, &(part){0}, objective, loss);
}

// --- drafting ------------------------------------------------------------------------------------

typedef struct {
    bd_draft_decoding *decoding;
    float *state; // [G]
} chain;

static void correct(void *self, int64_t slot, int32_t previous, float *logits)
{
    const chain *c = self;
    bd_draft *draft = c->decoding->draft;
    const bd_domino_head *head = draft->head;
    int64_t H = draft->config.stack.hidden, V = draft->config.stack.vocabulary;
    bd_tape tape = bd_tape_begin(c->decoding->arena, draft->compute, false);
    bd_value *state = bd_domino_states(draft, &tape, &previous, 1, 1, c->state);
    if (slot < draft->config.domino.pure_prefix)
        return;
    bd_value *hidden = bd_tape_constant(&tape, c->decoding->hidden + slot * H, 1, H);
    const bd_value *features = bd_domino_features(draft, &tape, hidden, state);
    bd_matmul(bd_parameter_forward(head->outer, draft->compute), features->data, 1, features->width,
              NULL, logits, V, BD_ACCUMULATE, c->decoding->arena);
}

static void decode(bd_draft_decoding *decoding)
{
    chain c = {.decoding = decoding,
               .state = bd_arena_zeros(decoding->arena, decoding->draft->config.domino.state)};
    bd_draft_decode_chain(decoding, correct, &c);
}

static const char *const fields[] = {"pure_draft_prefix_len", "gru_hidden_dim", "emb_dim", NULL};

const bd_draft_variant bd_draft_domino = {
    .projector_type = "domino",
    .architecture = "DFlashDraftModel",
    .label_shift = 1,
    .ignores_distillation = true,
    .fields = fields,
    .read_config = read_config,
    .write_config = write_config,
    .check_config = check_config,
    .build = build,
    .initialize = initialize,
    .check_objective = check_objective,
    .loss = loss_of_step,
    .idle = idle,
    .decode = decode,
};
