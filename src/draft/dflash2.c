#include "draft/dflash2.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "base/random.h"
#include "draft/convolution.h"
#include "draft/dflash.h"
#include "format/json.h"

// --- configuration and tensors -------------------------------------------------------------------

static const char *const fields[] = {"conv_kernel_size", "conv_group_size", "selector_rank",
                                     "selector_top_k", NULL};

static bool read_config(bd_draft_config *config, json_t *root, const char *where, bd_error *err)
{
    char missing[120] = "";
    size_t used = 0;
    for (const char *const *field = fields; *field; field++)
        if (!bd_json_has(bd_draft_field_home(root, *field), *field))
            used += (size_t)snprintf(missing + used, sizeof missing - used, used ? ", %s" : "%s",
                                     *field);
    if (used)
        return bd_fail(err, "%s: a dflash2 draft requires [%s] in dflash_config", where, missing);
    return bd_convolution_read_config(config, root, where, err) &&
           bd_json_int(bd_draft_field_home(root, "selector_rank"), where, "selector_rank", 1,
                       INT32_MAX, &config->selector.rank, err) &&
           bd_json_int(bd_draft_field_home(root, "selector_top_k"), where, "selector_top_k", 1,
                       INT32_MAX, &config->selector.top_k, err);
}

static void write_config(const bd_draft_config *config, json_t *root, json_t *nested)
{
    bd_convolution_write_config(config, nested);
    json_object_set_new(nested, "selector_rank", json_integer(config->selector.rank));
    json_object_set_new(nested, "selector_top_k", json_integer(config->selector.top_k));
    json_object_set_new(nested, "block_size", json_integer(config->block_size));
    // Some programs take a layer's causality from its type unless this is there.
    if (config->causality != BD_DRAFT_BY_LAYER)
        json_object_set_new(root, "is_causal", json_boolean(config->causality == BD_DRAFT_CAUSAL));
}

static bool check_config(const bd_draft_config *config, const char *where, bd_error *err)
{
    const bd_selector_config *s = &config->selector;
    if (!bd_convolution_check_config(config, where, err))
        return false;
    if (s->rank < 1)
        return bd_fail(err, "%s: selector_rank must be >= 1, got %lld", where, (long long)s->rank);
    if (s->top_k < 1 || s->top_k > config->stack.vocabulary)
        return bd_fail(err, "%s: selector_top_k must be in [1, %lld], got %lld", where,
                       (long long)config->stack.vocabulary, (long long)s->top_k);
    return true;
}

static void build(bd_draft *draft, bd_draft_builder *builder)
{
    const bd_draft_config *c = &draft->config;
    bd_selector *selector = bd_arena_alloc(draft->owned, sizeof *selector);
    const int64_t codebook[] = {c->stack.vocabulary, c->selector.rank};
    *selector = (bd_selector){0};
    draft->head = selector;
    bd_convolution_build(draft, builder);
    bd_draft_builder_add(builder, &selector->predecessor, BD_INITIAL_NORMAL, 2, codebook,
                         "candidate_selector.predecessor_codebook");
    // Zero: a fresh selector changes nothing.
    bd_draft_builder_add(builder, &selector->successor, BD_INITIAL_ZERO, 2, codebook,
                         "candidate_selector.successor_codebook");
    bd_draft_builder_add(builder, &selector->projection, BD_INITIAL_NORMAL, 2,
                         (int64_t[]){c->selector.rank, c->stack.hidden},
                         "candidate_selector.hidden_projection.weight");
}

static void initialize(bd_draft *draft, uint64_t seed)
{
    (void)seed;
    bd_convolution_initialize(draft, seed);
}

// --- the backbone's loss -------------------------------------------------------------------------

static bool check_objective(const bd_draft_config *config, const bd_draft_objective *objective,
                            bd_error *err)
{
    (void)config;
    if (!(objective->ce_scale >= 0) || !(objective->ce_decay >= 0) || isinf(objective->ce_scale) ||
        isinf(objective->ce_decay))
        return bd_fail(err, "lk_ce_scale %g, lk_ce_decay %g: 0 or more expected",
                       (double)objective->ce_scale, (double)objective->ce_decay);
    if (!(objective->selector_alpha >= 0) || isinf(objective->selector_alpha))
        return bd_fail(err, "selector_loss_alpha is %g, 0 (off) or more expected",
                       (double)objective->selector_alpha);
    if (objective->slot_loss != BD_SLOT_CE && objective->distill)
        return bd_fail(err, "lk_loss_type other than ce pays for the label token: it needs "
                            "self_logit_distillation to be false");
    return true;
}

double bd_dflash2_share(double scale, double decay, double probabilities, double supervised)
{
    return scale * exp(-decay * bd_top1(probabilities, supervised));
}

/* tv: 1 - q; lambda: share * ce + (1 - share) * (1 - q); q the probability of the label. Either is
 * a function of the cross entropy alone, with derivative share + (1 - share) q (share 0 for tv). */
static void weigh_probabilities(bd_draft_step *step, const bd_dflash_slots *slots,
                                bd_draft_loss *loss)
{
    const bd_draft_objective *o = step->objective;
    float *value = bd_arena_floats(step->tape->arena, step->slots);
    float *slope = bd_arena_floats(step->tape->arena, step->slots);
    double sum = 0, count = 0, share = 0;
    for (int64_t i = 0; i < step->slots; i++)
        if (step->targets.supervised[i] != 0) {
            sum += exp(-(double)slots->hard[i]);
            count += 1;
        }
    if (o->slot_loss == BD_SLOT_LAMBDA)
        share = bd_dflash2_share((double)o->ce_scale, (double)o->ce_decay, sum, count);
    for (int64_t i = 0; i < step->slots; i++) {
        double ce = (double)slots->hard[i], q = exp(-ce);
        value[i] = (float)(share * ce + (1 - share) * (1 - q));
        slope[i] = (float)(share + (1 - share) * q);
    }
    bd_dflash_weigh(step, value, slope, slots->best, true, loss);
}

// --- the selector's loss -------------------------------------------------------------------------

void bd_dflash2_previous(const bd_block_batch *batch, int32_t *tokens)
{
    const bd_anchors *anchors = batch->anchors;
    for (int64_t i = 0; i < bd_block_slots(batch); i++) {
        int64_t block = i / batch->block_size, row = block / anchors->blocks;
        int64_t position = anchors->anchor[block] + i % batch->block_size - 1;
        if (position < 0)
            position = 0;
        if (position > batch->length - 1)
            position = batch->length - 1;
        tokens[i] = batch->tokens[row * batch->length + position];
    }
}

/* The supervised slots, side by side. */
typedef struct {
    int64_t count;
    int32_t *slot;
    bd_value *hidden, *context; // [count, H], [count, rank]
    bd_candidates candidates;
    int32_t *previous;    // per slot of the step
    float *scores;        // [count, C], then their gradients
    double covered, loss; // sums over slots whose label is a candidate
    double correct;
} selection;

static void select_slots(bd_draft_step *step, selection *s)
{
    bd_tape *tape = step->tape;
    bd_draft *draft = step->draft;
    const bd_selector *selector = draft->head;
    *s = (selection){.slot = bd_arena_ints(tape->arena, step->slots),
                     .previous = bd_arena_ints(tape->arena, step->slots)};
    for (int64_t i = 0; i < step->slots; i++)
        if (step->targets.supervised[i] != 0)
            s->slot[s->count++] = (int32_t)i;
    bd_dflash2_previous(&step->blocks, s->previous);
    if (s->count == 0)
        return;
    s->hidden = bd_op_gather_rows(tape, step->hidden, s->slot, s->count);
    s->context = bd_op_linear(tape, s->hidden, selector->projection, NULL);
    s->candidates = bd_candidates_find(draft->target, s->hidden->data, s->count,
                                       draft->config.selector.top_k, tape->arena);
    s->scores = bd_arena_floats(tape->arena, s->count * s->candidates.count);
}

/* Losses of all rows; their scores become the gradients of a sum of cross entropies. */
static void judge_rows(const bd_draft_step *step, selection *s)
{
    int64_t top = s->candidates.count, rank = step->draft->config.selector.rank;
    for (int64_t i = 0; i < s->count; i++) {
        int32_t slot = s->slot[i];
        float *scores = s->scores + i * top;
        int64_t gold = bd_candidates_place(&s->candidates, i, step->targets.token[slot]);
        if (gold < 0) {
            // No choice among these is right, so there is nothing to learn from it.
            for (int64_t j = 0; j < top; j++)
                scores[j] = 0;
            continue;
        }
        bd_selector_scores(step->draft->head, &s->candidates, i, s->context->data + i * rank,
                           s->previous[slot], scores);
        s->covered += 1;
        s->correct += bd_argmax(scores, top) == gold;
        s->loss += (double)bd_log_sum_exp(scores, top) - (double)scores[gold];
        bd_softmax(scores, top, scores);
        scores[gold] -= 1;
    }
}

static void selector_loss(bd_draft_step *step, bd_draft_loss *loss)
{
    selection s;
    double alpha = (double)step->objective->selector_alpha;
    select_slots(step, &s);
    judge_rows(step, &s);
    double denominator = bd_weight_denominator(s.covered);
    double factor = bd_draft_step_add(step, alpha * s.loss / denominator, loss);
    bd_draft_loss_metric(loss, "selector_loss", s.loss, denominator);
    bd_draft_loss_metric(loss, "selector_accuracy", s.correct, denominator);
    bd_draft_loss_metric(loss, "selector_coverage", s.covered, fmax((double)s.count, 1));
    if (s.count == 0 || !s.hidden->gradient)
        return;
    int64_t top = s.candidates.count, rank = step->draft->config.selector.rank;
    bd_scale((float)(alpha * factor / denominator), s.count * top, s.scores);
    for (int64_t i = 0; i < s.count; i++)
        bd_selector_back(step->draft->head, &s.candidates, i, s.context->data + i * rank,
                         s.previous[s.slot[i]], s.scores + i * top, s.context->gradient + i * rank);
    bd_candidates_back(step->draft->target, &s.candidates, s.scores, s.hidden->gradient,
                       step->tape->arena);
}

static void run_loss(bd_draft_step *step, bd_draft_loss *loss)
{
    bd_dflash_slots slots;
    bd_dflash_run(step, &slots);
    if (step->objective->slot_loss == BD_SLOT_CE)
        bd_dflash_weigh(step, slots.value, NULL, slots.best, false, loss);
    else
        weigh_probabilities(step, &slots, loss);
    double mean = bd_draft_loss_mean(loss), weight = bd_weight_denominator(loss->weight);
    bd_draft_loss_metric(loss, "backbone_loss", mean * weight, weight);
    if (step->objective->selector_alpha > 0)
        selector_loss(step, loss);
}

static void idle(const bd_draft_objective *objective, bd_draft_loss *loss)
{
    bd_draft_loss_metric(loss, "backbone_loss", 0, 0);
    if (!(objective->selector_alpha > 0))
        return;
    bd_draft_loss_metric(loss, "selector_loss", 0, 0);
    bd_draft_loss_metric(loss, "selector_accuracy", 0, 0);
    bd_draft_loss_metric(loss, "selector_coverage", 0, 0);
}

// --- drafting ------------------------------------------------------------------------------------

static void decode(bd_draft_decoding *decoding)
{
    bd_draft *draft = decoding->draft;
    bd_arena *arena = decoding->arena;
    const float *hidden = decoding->hidden + draft->config.stack.hidden; // from slot 1
    int64_t top = draft->config.selector.top_k, rank = draft->config.selector.rank;
    bd_candidates candidates =
        bd_candidates_find(draft->target, hidden, decoding->count, top, arena);
    bd_tape tape = bd_tape_begin(arena, draft->compute, false);
    bd_value *rows = bd_tape_constant(&tape, hidden, decoding->count, draft->config.stack.hidden);
    const bd_selector *selector = draft->head;
    const bd_value *context = bd_op_linear(&tape, rows, selector->projection, NULL);
    float *scores = bd_arena_floats(arena, top);
    int32_t previous = decoding->last_token;
    for (int64_t i = 0; i < decoding->count; i++) {
        bd_selector_scores(selector, &candidates, i, context->data + i * rank, previous, scores);
        int64_t chosen =
            bd_draft_decode_choose(decoding, i, candidates.token + i * top, scores, top);
        previous = decoding->tokens[i] = candidates.token[i * top + chosen];
    }
}

const bd_draft_variant bd_draft_dflash2 = {
    .projector_type = "dflash2",
    .architecture = "DFlash2DraftModel",
    .label_shift = 0,
    .validated_plain = true,
    .fields = fields,
    .read_config = read_config,
    .write_config = write_config,
    .check_config = check_config,
    .build = build,
    .initialize = initialize,
    .check_objective = check_objective,
    .loss = run_loss,
    .idle = idle,
    .decode = decode,
};
