#include "draft/dspark.h"

#include <math.h>
#include <string.h>
#include <strings.h>

#include "format/json.h"

// --- the head's form -----------------------------------------------------------------------------

static const char *const kinds[] = {"vanilla", "gated", "rnn"};

const char *bd_markov_name(bd_markov_kind kind)
{
    return kinds[kind];
}

bool bd_markov_from_name(const char *name, bd_markov_kind *kind, bd_error *err)
{
    for (int i = 0; i < 3; i++)
        if (!strcasecmp(name, kinds[i])) {
            *kind = (bd_markov_kind)i;
            return true;
        }
    return bd_fail(err, "markov_head_type is \"%.60s\", vanilla, gated or rnn expected", name);
}

static bool read_config(bd_draft_config *config, json_t *root, const char *where, bd_error *err)
{
    json_t *object = bd_draft_field_home(root, "markov_rank");
    if (!bd_json_has(object, "markov_rank"))
        return bd_fail(err, "%s: \"markov_rank\" is missing, required for a dspark draft", where);
    if (!bd_json_int(object, where, "markov_rank", INT32_MIN, INT32_MAX, &config->markov.rank, err))
        return false;
    object = bd_draft_field_home(root, "markov_head_type");
    if (bd_json_has(object, "markov_head_type")) {
        const char *name = bd_json_text(object, where, "markov_head_type", err);
        if (!name)
            return false;
        if (!bd_markov_from_name(name, &config->markov.kind, err))
            return bd_error_wrap(err, "%s", where);
    }
    static const char *const confidence[] = {"enable_confidence_head", "use_confidence_head"};
    for (int i = 0; i < 2; i++)
        if (!bd_json_bool_if(bd_draft_field_home(root, confidence[i]), where, confidence[i],
                             &config->markov.confidence, err))
            return false;
    return true;
}

static void write_config(const bd_draft_config *config, json_t *root, json_t *nested)
{
    (void)root;
    const bd_markov_config *m = &config->markov;
    json_object_set_new(nested, "markov_rank", json_integer(m->rank));
    json_object_set_new(nested, "markov_head_type", json_string(kinds[m->kind]));
    json_object_set_new(nested, "use_confidence_head", json_boolean(m->confidence));
}

static bool check_config(const bd_draft_config *config, const char *where, bd_error *err)
{
    return config->markov.rank > 0 ||
           bd_fail(err, "%s: a dspark draft requires markov_rank > 0, got %lld", where,
                   (long long)config->markov.rank);
}

static bool check_objective(const bd_draft_config *config, const bd_draft_objective *o,
                            bd_error *err)
{
    const float alphas[] = {o->ce_alpha, o->l1_alpha, o->confidence_alpha};
    static const char *const names[] = {"ce_loss_alpha", "l1_loss_alpha", "confidence_head_alpha"};
    for (int i = 0; i < 3; i++)
        if (!(alphas[i] >= 0) || isinf(alphas[i]))
            return bd_fail(err, "%s must be 0 or more, got %g", names[i], (double)alphas[i]);
    if (o->confidence_alpha > 0 && !config->markov.confidence)
        return bd_fail(err,
                       "confidence_head_alpha is %g but the confidence head was not built; set "
                       "use_confidence_head to true",
                       (double)o->confidence_alpha);
    return true;
}

// --- tensors -------------------------------------------------------------------------------------

static void build(bd_draft *draft, bd_draft_builder *b)
{
    const bd_draft_config *config = &draft->config;
    int64_t V = config->stack.vocabulary, H = config->stack.hidden, r = config->markov.rank;
    bd_dspark_head *head = bd_arena_alloc(draft->owned, sizeof *head);
    *head = (bd_dspark_head){0};
    draft->head = head;
    const bd_initial normal = BD_INITIAL_NORMAL, zero = BD_INITIAL_ZERO;
    bd_draft_builder_add(b, &head->w1, normal, 2, (int64_t[]){V, r}, "markov_w1.weight");
    bd_draft_builder_add(b, &head->w2, normal, 2, (int64_t[]){V, r}, "markov_w2.weight");
    if (config->markov.kind == BD_MARKOV_GATED) {
        bd_draft_builder_add(b, &head->gate, normal, 2, (int64_t[]){r, H + r}, "gate_proj.weight");
        bd_draft_builder_add(b, &head->gate_bias, zero, 1, &r, "gate_proj.bias");
    }
    if (config->markov.kind == BD_MARKOV_RNN) {
        int64_t rows = 3 * r;
        bd_draft_builder_add(b, &head->joint, normal, 2, (int64_t[]){rows, 2 * r + H},
                             "joint_proj.weight");
        bd_draft_builder_add(b, &head->joint_bias, zero, 1, &rows, "joint_proj.bias");
    }
    if (config->markov.confidence) {
        bd_draft_builder_add(b, &head->confidence, normal, 2, (int64_t[]){1, H + r},
                             "confidence_proj.weight");
        bd_draft_builder_add(b, &head->confidence_bias, zero, 1, (int64_t[]){1},
                             "confidence_proj.bias");
    }
}

// --- the head ------------------------------------------------------------------------------------

static bd_value *beside(bd_tape *tape, bd_value *a, bd_value *b)
{
    return bd_op_concatenate_columns(tape, (bd_value *[]){a, b}, 2);
}

bd_value *bd_dspark_features(const bd_draft *draft, bd_tape *tape, bd_value *hidden,
                             bd_value *before, int64_t length, float *state)
{
    const bd_dspark_head *head = draft->head;
    switch (draft->config.markov.kind) {
    case BD_MARKOV_GATED: {
        bd_value *gate =
            bd_op_linear(tape, beside(tape, hidden, before), head->gate, head->gate_bias);
        return bd_op_multiply(tape, bd_op_sigmoid(tape, gate), before);
    }
    case BD_MARKOV_RNN:
        // The state comes first in the weight's columns, then the embedding, then the hidden state.
        return bd_op_gated_memory(tape, beside(tape, before, hidden), head->joint, head->joint_bias,
                                  length, state);
    default:
        return before;
    }
}

/* Logits [rows, 1] of the confidence head. */
static bd_value *confidence_of(const bd_draft *draft, bd_tape *tape, bd_value *hidden,
                               bd_value *before)
{
    const bd_dspark_head *head = draft->head;
    return bd_op_linear(tape, beside(tape, hidden, before), head->confidence,
                        head->confidence_bias);
}

// --- training ------------------------------------------------------------------------------------

double bd_dspark_confidence_loss(double logit, double probability, double *slope)
{
    *slope = 1 / (1 + exp(-logit)) - probability;
    return fmax(logit, 0) - logit * probability + log1p(exp(-fabs(logit)));
}

/* The parts of the loss, per slot, and their weighted sums. */
typedef struct {
    float *ce, *distance; // [slots]
    int32_t *best, *best_backbone;
    double ce_sum, distance_sum, confidence_sum, backbone_correct;
} parts;

/* The confidence of a slot against what its draft's acceptance would have been, a constant. */
static void learn_confidence(const bd_draft_step *step, int64_t i, double factor, parts *p)
{
    double alpha = (double)step->objective->confidence_alpha, slope;
    if (!step->confidence || alpha == 0 || factor == 0)
        return;
    double accepted = fmin(fmax(1 - (double)p->distance[i] / 2, 0), 1);
    double weight = (double)step->weights[i];
    p->confidence_sum +=
        weight * bd_dspark_confidence_loss((double)step->confidence->data[i], accepted, &slope);
    if (step->confidence->gradient)
        step->confidence->gradient[i] += (float)(alpha * weight * factor * slope);
}

static void add_up(const bd_draft_step *step, double factor, parts *p, bd_draft_loss *loss)
{
    const bd_draft_objective *o = step->objective;
    const bd_block_targets *targets = &step->targets;
    for (int64_t i = 0; i < step->slots; i++) {
        if (targets->supervised[i] == 0)
            continue;
        double weight = (double)step->weights[i];
        loss->correct += p->best[i] == targets->token[i];
        p->backbone_correct += p->best_backbone[i] == targets->token[i];
        p->ce_sum += weight * (double)p->ce[i];
        p->distance_sum += weight * (double)p->distance[i];
        learn_confidence(step, i, factor, p);
    }
    loss->sum = (double)o->ce_alpha * p->ce_sum + (double)o->l1_alpha * p->distance_sum +
                (double)o->confidence_alpha * p->confidence_sum;
}

/* Features, the correction and the confidence of the step's slots, teacher-forced. */
static void run_head(bd_draft_step *step)
{
    bd_draft *draft = step->draft;
    const bd_dspark_head *head = draft->head;
    int32_t *previous = bd_arena_ints(step->tape->arena, step->slots);
    bd_block_tokens(&step->blocks, previous);
    bd_value *before = bd_op_embedding(step->tape, head->w1, previous, step->slots);
    step->correction =
        bd_dspark_features(draft, step->tape, step->hidden, before, draft->config.block_size, NULL);
    step->correction_head = head->w2;
    if (head->confidence)
        step->confidence = confidence_of(draft, step->tape, step->hidden, before);
}

static void vocabulary_loss(bd_draft_step *step, const float *scale, parts *p)
{
    bd_arena *arena = step->tape->arena;
    bd_model *target = step->draft->target;
    bd_teacher_rows teacher = bd_draft_step_teacher(step);
    p->ce = bd_arena_floats(arena, step->slots);
    p->distance = bd_arena_floats(arena, step->slots);
    p->best = bd_arena_ints(arena, step->slots);
    p->best_backbone = bd_arena_ints(arena, step->slots);
    bd_vocabulary_loss pass = {.rows = step->slots,
                               .vocabulary = target->config.vocabulary,
                               .scale = scale,
                               .targets = step->targets.token,
                               .hard = step->objective->ce_alpha,
                               .teacher_logits = teacher.logits,
                               .teacher_features = teacher.features,
                               .teacher_head = teacher.head,
                               .divergence = BD_DIVERGENCE_TOTAL_VARIATION,
                               .divergence_weight = step->objective->l1_alpha,
                               .temperature = 1,
                               .hard_loss = p->ce,
                               .divergence_loss = p->distance,
                               .best = p->best,
                               .best_first = p->best_backbone};
    bd_op_vocabulary_loss_of_sum(step->tape, (bd_value *[]){step->hidden, step->correction},
                                 (bd_parameter *[]){target->head, step->correction_head}, 2, &pass);
}

static void put_metrics(const parts *p, double weight, double supervised, bd_draft_loss *loss)
{
    bd_draft_loss_metric(loss, "ce_loss", p->ce_sum, weight);
    bd_draft_loss_metric(loss, "l1_loss", p->distance_sum, weight);
    bd_draft_loss_metric(loss, "confidence_loss", p->confidence_sum, weight);
    bd_draft_loss_metric(loss, "base_accuracy", p->backbone_correct, supervised);
}

static void loss_of_step(bd_draft_step *step, bd_draft_loss *loss)
{
    bd_position_weights(&step->objective->weighting, 1, &step->blocks, step->targets.supervised,
                        NULL, step->weights);
    double factor = bd_draft_step_weigh(step, loss);
    parts p = {0};
    run_head(step);
    vocabulary_loss(step, bd_draft_step_scale(step, factor), &p);
    add_up(step, factor, &p, loss);
    put_metrics(&p, loss->weight, loss->supervised, loss);
}

static void idle(const bd_draft_objective *objective, bd_draft_loss *loss)
{
    (void)objective;
    put_metrics(&(parts){0}, 0, 0, loss);
}

static bool reads_teacher(const bd_draft_objective *objective)
{
    (void)objective;
    return true;
}

// --- drafting ------------------------------------------------------------------------------------

typedef struct {
    bd_draft_decoding *decoding;
    float *state; // of the rnn, [r]
} chain;

static void correct(void *self, int64_t slot, int32_t previous, float *logits)
{
    const chain *c = self;
    bd_draft *draft = c->decoding->draft;
    bd_arena *arena = c->decoding->arena;
    const bd_dspark_head *head = draft->head;
    int64_t H = draft->config.stack.hidden, V = draft->config.stack.vocabulary;
    bd_tape tape = bd_tape_begin(arena, draft->compute, false);
    bd_value *hidden = bd_tape_constant(&tape, c->decoding->hidden + slot * H, 1, H);
    bd_value *before = bd_op_embedding(&tape, head->w1, &previous, 1);
    if (head->confidence)
        c->decoding->confidence[slot] = confidence_of(draft, &tape, hidden, before)->data[0];
    const bd_value *features = bd_dspark_features(draft, &tape, hidden, before, 1, c->state);
    bd_matmul(bd_parameter_forward(head->w2, draft->compute), features->data, 1, features->width,
              NULL, logits, V, BD_ACCUMULATE, arena);
}

static void decode(bd_draft_decoding *decoding)
{
    const bd_draft *draft = decoding->draft;
    const bd_dspark_head *head = draft->head;
    chain c = {.decoding = decoding,
               .state = bd_arena_zeros(decoding->arena, draft->config.markov.rank)};
    if (head->confidence)
        decoding->confidence = bd_arena_floats(decoding->arena, decoding->count);
    bd_draft_decode_chain(decoding, correct, &c);
}

static const char *const fields[] = {"markov_rank", "markov_head_type", "use_confidence_head",
                                     "enable_confidence_head", NULL};
// Other trainers and servers nest the heads.
static const char *const aliases[] = {"markov_head.markov_w1.",
                                      "markov_w1.",
                                      "markov_head.markov_w2.",
                                      "markov_w2.",
                                      "markov_head.gate_proj.",
                                      "gate_proj.",
                                      "markov_head.joint_proj.",
                                      "joint_proj.",
                                      "confidence_head.proj.",
                                      "confidence_proj.",
                                      "confidence_head.confidence_proj.",
                                      "confidence_proj.",
                                      NULL};

const bd_draft_variant bd_draft_dspark = {
    .projector_type = "dspark",
    .architecture = "DFlashDraftModel",
    .label_shift = 1,
    .ignores_distillation = true,
    .aliases = aliases,
    .fields = fields,
    .read_config = read_config,
    .write_config = write_config,
    .check_config = check_config,
    .build = build,
    .check_objective = check_objective,
    .reads_teacher = reads_teacher,
    .loss = loss_of_step,
    .idle = idle,
    .decode = decode,
};
