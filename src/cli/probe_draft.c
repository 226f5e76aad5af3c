/* probe_draft.c - training steps, generation, anchors and tables of drafters. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/probe.h"
#include "cli/probe_json.h"
#include "cli/probe_lattice.h"
#include "draft/anchors.h"
#include "draft/lambda.h"
#include "draft/speculative.h"
#include "draft/step.h"
#include "format/json.h"

/* The target and the draft that a case names. */
typedef struct {
    bd_model *target;
    bd_draft *draft;
} pair;

static void close_pair(pair *p)
{
    bd_draft_close(p->draft);
    bd_model_close(p->target);
}

static bool open_pair(bd_probe *probe, pair *p, bd_error *err)
{
    char folder[BD_PATH];
    *p = (pair){0};
    return bd_probe_folder(probe, "target", folder, err) &&
           (p->target = bd_model_open(folder, BD_F32, err)) &&
           bd_probe_folder(probe, "draft", folder, err) &&
           (p->draft = bd_draft_open(folder, p->target, BD_F32, err));
}

// --- a training step -----------------------------------------------------------------------------

static bool read_objective(bd_probe *probe, bd_draft *draft, bd_draft_objective *objective,
                           bd_error *err)
{
    json_t *options = json_object_get(probe->json, "options");
    bool dpace = !strcmp(bd_probe_word(options, "dflash_loss_objective", "decay"), "dpace");
    *objective = (bd_draft_objective){
        .weighting = {.objective = dpace ? BD_WEIGHT_DPACE : BD_WEIGHT_DECAY,
                      .decay =
                          (float)bd_probe_option(probe, options, "dflash_loss_decay_factor", 0),
                      .alpha = (float)bd_probe_option(probe, options, "dflash_dpace_alpha", 0.5)},
        .distill = bd_probe_option(probe, options, "dflash_self_logit_distillation", 0) != 0};
    objective->ce_alpha = (float)bd_probe_option(probe, options, "dflash_ce_loss_alpha", 0.1);
    objective->l1_alpha = (float)bd_probe_option(probe, options, "dflash_l1_loss_alpha", 0.9);
    objective->confidence_alpha =
        (float)bd_probe_option(probe, options, "dflash_confidence_head_alpha", 0);
    objective->lambda = (float)bd_probe_option(probe, options, "lambda_base", 1);
    bd_probe_lattice_objective(probe, options, objective);
    // In case files the options decide window and causality, not the draft's config.
    draft->config.window = (int64_t)bd_probe_option(probe, options, "dflash_swa_window_size", 0);
    draft->config.causality =
        !strcmp(bd_probe_word(options, "dflash_draft_attention", "bidirectional"), "causal")
            ? BD_DRAFT_CAUSAL
            : BD_DRAFT_BIDIRECTIONAL;
    return bd_weighting_check(&objective->weighting, err);
}

static bool read_batch(bd_probe *probe, bd_draft_batch *batch, bd_anchors *anchors, bd_error *err)
{
    int64_t shape[BD_TENSOR_RANK], blocks[BD_TENSOR_RANK];
    const int32_t *keep;
    *batch = (bd_draft_batch){.anchors = anchors};
    if (!(batch->tokens = bd_probe_ints(probe, "input_ids", 2, shape, err)) ||
        !(batch->loss_mask = bd_probe_floats(probe, "loss_mask", 2, NULL, err)) ||
        !(anchors->anchor = bd_probe_ints(probe, "anchors", 2, blocks, err)) ||
        !(keep = bd_probe_ints(probe, "keep", 2, NULL, err)) ||
        !(batch->features = bd_probe_floats(probe, "aux_hidden", 3, NULL, err)))
        return false;
    batch->rows = shape[0];
    batch->length = shape[1];
    anchors->blocks = blocks[1];
    uint8_t *used = bd_arena_alloc(probe->arena, (size_t)(blocks[0] * blocks[1]));
    for (int64_t i = 0; i < blocks[0] * blocks[1]; i++)
        used[i] = keep[i] != 0;
    anchors->keep = used;
    const char *teacher = bd_probe_word(probe->json, "teacher", "none");
    batch->teacher_kind = !strcmp(teacher, "logits")            ? BD_TEACHER_LOGITS
                          : !strcmp(teacher, "hidden_postnorm") ? BD_TEACHER_HIDDEN
                          : !strcmp(teacher, "hidden_prenorm")  ? BD_TEACHER_PRENORM
                                                                : BD_TEACHER_NONE;
    if (batch->teacher_kind == BD_TEACHER_NONE)
        return true;
    const char *name =
        batch->teacher_kind == BD_TEACHER_LOGITS ? "teacher_logits" : "teacher_hidden";
    return (batch->teacher = bd_probe_floats(probe, name, 3, NULL, err)) != NULL;
}

/* What depends on tokens and anchors alone. */
static void put_blocks(bd_probe *probe, const bd_draft *draft, const bd_draft_batch *batch)
{
    int64_t bs = draft->config.block_size, n = batch->anchors->blocks, rows = batch->rows;
    bd_block_batch blocks = {rows,          batch->length,    bs,
                             batch->tokens, batch->loss_mask, batch->anchors};
    int64_t slots = bd_block_slots(&blocks);
    int32_t *ints = bd_arena_ints(probe->arena, slots);
    const int64_t flat[2] = {rows, n * bs}, nested[3] = {rows, n, bs};
    bd_block_noise(&blocks, (int32_t)draft->config.mask_id, ints);
    bd_probe_put_ints(probe, "noise_ids", BD_I64, 2, flat, ints);
    bd_block_positions(&blocks, ints);
    bd_probe_put_ints(probe, "positions", BD_I64, 2, flat, ints);
    bd_block_targets targets =
        bd_block_targets_make(&blocks, draft->config.variant->label_shift, probe->arena);
    bd_probe_put_ints(probe, "labels", BD_I64, 3, nested, targets.token);
    bd_probe_put_ints(probe, "label_positions", BD_I64, 3, nested, targets.position);
    bd_probe_put(probe, "supervised", BD_F32, 3, nested, targets.supervised);
    for (int64_t i = 0; i < slots; i++)
        ints[i] = bd_teacher_row(targets.position[i]);
    bd_probe_put_ints(probe, "teacher_rows", BD_I64, 3, nested, ints);
}

static void put_visible(bd_probe *probe, const bd_draft *draft, const bd_draft_batch *batch)
{
    int64_t queries = batch->anchors->blocks * draft->config.block_size,
            keys = batch->length + queries;
    bd_visibility rule = bd_draft_rule(&draft->config, 0, batch->length, batch->anchors);
    uint8_t *visible = bd_arena_alloc(probe->arena, (size_t)(batch->rows * queries * keys));
    for (int64_t b = 0; b < batch->rows; b++)
        for (int64_t q = 0; q < queries; q++)
            for (int64_t k = 0; k < keys; k++)
                visible[(b * queries + q) * keys + k] = bd_visibility_allows(&rule, b, q, k);
    bd_probe_put(probe, "visible", BD_U8, 3, (int64_t[]){batch->rows, queries, keys}, visible);
}

static void put_gradients(bd_probe *probe, const bd_draft *draft)
{
    for (int64_t i = 0; i < draft->parameters.count; i++) {
        const bd_parameter *p = draft->parameters.items[i];
        char name[300];
        snprintf(name, sizeof name, "grads/%s", p->name);
        bd_probe_put(probe, name, BD_F32, p->rank, p->shape, p->gradient);
    }
}

/* Loss and metrics as scalar tensors, and in the answer under their names and under "expected". */
static void put_scalar(bd_probe *probe, json_t *expected, const char *name, double value)
{
    char tensor[64];
    float single = (float)value;
    snprintf(tensor, sizeof tensor, "%s%s", strcmp(name, "loss") ? "metrics/" : "", name);
    bd_probe_put(probe, tensor, BD_F32, 0, NULL, &single);
    bd_probe_scalar(probe, name, value);
    json_object_set_new(expected, name, json_real(value));
}

static void put_context(bd_probe *probe, bd_draft *draft, const bd_draft_batch *batch)
{
    bd_tape tape = bd_tape_begin(probe->arena, BD_F32, false);
    bd_value *context =
        bd_draft_context(draft, &tape, batch->features, batch->rows * batch->length);
    bd_probe_put(probe, "context", BD_F32, 3,
                 (int64_t[]){batch->rows, batch->length, draft->target->config.hidden},
                 context->data);
}

/* Loss, accuracy and what else the variant reports. */
static void put_loss(bd_probe *probe, const bd_draft_loss *loss)
{
    json_t *expected = json_object();
    put_scalar(probe, expected, "loss", bd_draft_loss_mean(loss));
    bool own_accuracy = false;
    for (int i = 0; i < loss->metric_count; i++) {
        const bd_draft_metric *m = &loss->metrics[i];
        put_scalar(probe, expected, m->name, m->weight != 0 ? m->sum / m->weight : 0);
        own_accuracy = own_accuracy || !strcmp(m->name, "accuracy");
    }
    if (!own_accuracy)
        put_scalar(probe, expected, "accuracy",
                   bd_weight_trains(loss->weight) ? bd_top1(loss->correct, loss->supervised) : 0);
    json_object_set_new(probe->answer, "expected", expected);
}

bool bd_probe_train_step(bd_probe *probe, bd_error *err)
{
    const bd_draft_variant *variant =
        bd_draft_variant_find(bd_probe_word(probe->json, "variant", ""), NULL);
    if (!variant) {
        probe->skipped = "this version does not have the variant";
        return true;
    }
    pair p;
    bd_anchors anchors;
    bd_draft_batch batch;
    bd_draft_objective objective;
    bd_draft_loss loss;
    bool ok = open_pair(probe, &p, err) && bd_draft_train(p.draft, err) &&
              read_batch(probe, &batch, &anchors, err) &&
              read_objective(probe, p.draft, &objective, err);
    if (ok) {
        int64_t hidden = p.target->config.hidden, vocabulary = p.target->config.vocabulary;
        int64_t bs = p.draft->config.block_size, slots = batch.rows * anchors.blocks * bs;
        const int64_t flat[3] = {batch.rows, anchors.blocks * bs, hidden};
        const int64_t nested[4] = {batch.rows, anchors.blocks, bs, vocabulary};
        bd_draft_record record = {.hidden = bd_arena_zeros(probe->arena, slots * hidden),
                                  .weights = bd_arena_zeros(probe->arena, slots),
                                  .final_logits = bd_arena_zeros(probe->arena, slots * vocabulary),
                                  .confidence = bd_arena_zeros(probe->arena, slots)};
        bd_tape tape = bd_tape_begin(probe->arena, BD_F32, true);
        ok = bd_draft_step_run(p.draft, &tape, &batch, &objective, BD_DRAFT_MEAN, &record, &loss,
                               err);
        if (ok) {
            float *logits = bd_arena_floats(probe->arena, slots * vocabulary);
            put_blocks(probe, p.draft, &batch);
            put_visible(probe, p.draft, &batch);
            put_context(probe, p.draft, &batch);
            bd_model_logits(p.target, record.hidden, slots, logits, probe->arena);
            bd_probe_put(probe, "hidden", BD_F32, 3, flat, record.hidden);
            bd_probe_put(probe, "logits", BD_F32, 4, nested, logits);
            bd_probe_put(probe, "weights", BD_F32, 3, nested, record.weights);
            if (variant == &bd_draft_dspark || variant == &bd_draft_domino)
                bd_probe_put(probe, "final_logits", BD_F32, 4, nested, record.final_logits);
            if (p.draft->config.markov.confidence)
                bd_probe_put(probe, "confidence_logits", BD_F32, 3, nested, record.confidence);
            put_gradients(probe, p.draft);
            put_loss(probe, &loss);
            bd_probe_lattice_step(probe, p.draft, &batch, record.hidden);
        }
    }
    close_pair(&p);
    return ok;
}

// --- anchors and tables --------------------------------------------------------------------------

static void put_anchors(bd_probe *probe, int64_t i, const char *mode, int64_t rows,
                        const bd_anchors *anchors)
{
    char name[64];
    const int64_t shape[2] = {rows, anchors->blocks};
    snprintf(name, sizeof name, "%lld/anchors_%s", (long long)i, mode);
    bd_probe_put_ints(probe, name, BD_I64, 2, shape, anchors->anchor);
    snprintf(name, sizeof name, "%lld/keep_%s", (long long)i, mode);
    bd_probe_put(probe, name, BD_U8, 2, shape, anchors->keep);
}

bool bd_probe_anchors(bd_probe *probe, bd_error *err)
{
    size_t i;
    json_t *given;
    json_array_foreach(json_object_get(probe->json, "cases"), i, given)
    {
        char name[64];
        int64_t shape[BD_TENSOR_RANK];
        snprintf(name, sizeof name, "%zu/loss_mask", i);
        const float *mask = bd_probe_floats(probe, name, 2, shape, err);
        snprintf(name, sizeof name, "%zu/uniforms", i);
        const float *uniforms = mask ? bd_probe_floats(probe, name, 2, NULL, err) : NULL;
        if (!uniforms)
            return false;
        bd_anchor_sampling sampling = {
            .rows = shape[0],
            .length = shape[1],
            .block_size = (int64_t)bd_probe_option(probe, given, "block_size", 0),
            .most = (int64_t)bd_probe_option(probe, given, "num_anchors", 0),
            .loss_mask = mask};
        bd_anchors anchors = bd_anchors_take(&sampling, uniforms, probe->arena);
        put_anchors(probe, (int64_t)i, "eager", shape[0], &anchors);
        sampling.fixed_width = true;
        anchors = bd_anchors_take(&sampling, uniforms, probe->arena);
        put_anchors(probe, (int64_t)i, "static", shape[0], &anchors);
    }
    return true;
}

static json_t *layer_ids(json_t *given)
{
    int64_t layers = json_integer_value(json_object_get(given, "num_target_layers"));
    int64_t depth = json_integer_value(json_object_get(given, "num_draft_layers"));
    int64_t taps[BD_MOST_TAPS];
    if (!bd_draft_taps(layers, depth, taps, NULL))
        return json_pack("{s:b}", "error", 1);
    json_t *ids = json_array();
    for (int64_t i = 0; i < depth; i++)
        json_array_append_new(ids, json_integer(taps[i]));
    return json_pack("{s:o}", "ids", ids);
}

bool bd_probe_draft_tables(bd_probe *probe, bd_error *err)
{
    (void)err;
    size_t i;
    json_t *given, *ids = json_array();
    json_array_foreach(json_object_get(probe->json, "target_layer_ids"), i, given)
        json_array_append_new(ids, layer_ids(given));
    json_object_set_new(probe->answer, "target_layer_ids", ids);
    json_t *lambdas = json_array();
    json_array_foreach(json_object_get(probe->json, "lambda_base"), i, given)
    {
        double value = bd_draft_lambda((int64_t)bd_probe_option(probe, given, "step", 0),
                                       (int64_t)bd_probe_option(probe, given, "total", 0),
                                       bd_probe_option(probe, given, "start", 1),
                                       bd_probe_option(probe, given, "ratio", 1));
        json_array_append_new(lambdas, json_pack("{s:f}", "value", value));
    }
    json_object_set_new(probe->answer, "lambda_base", lambdas);
    return true;
}

// --- generation ----------------------------------------------------------------------------------

static int64_t read_prompt(json_t *given, bd_arena *arena, const int32_t **prompt)
{
    bd_grid grid = bd_grid_ints(given, "prompt", arena);
    *prompt = grid.ints;
    return grid.columns;
}

/* The block drafted after a prompt: its hidden states and logits as tensors, its tokens in the
 * answer. */
static bool draft_case(bd_probe *probe, const pair *p, size_t index, json_t *given, json_t *answers,
                       bd_error *err)
{
    const int32_t *prompt;
    int64_t count = read_prompt(given, probe->arena, &prompt), bs = p->draft->config.block_size;
    int64_t vocabulary = p->target->config.vocabulary, hidden = p->target->config.hidden;
    bd_decoder *decoder = bd_decoder_create(p->target, p->draft, count + bs + 1, err);
    const float *logits = decoder ? bd_decoder_follow(decoder, prompt, count, err) : NULL;
    if (!logits) {
        bd_decoder_free(decoder);
        return false;
    }
    int32_t base = (int32_t)bd_argmax(logits, vocabulary);
    bd_proposal proposal = {0};
    int64_t drafted = bd_decoder_propose(decoder, base, &proposal, err);
    if (drafted >= 0) {
        char name[64];
        float *block_logits = bd_arena_floats(probe->arena, proposal.slots * vocabulary);
        bd_model_logits(p->target, proposal.hidden, proposal.slots, block_logits, probe->arena);
        snprintf(name, sizeof name, "%zu/hidden", index);
        bd_probe_put(probe, name, BD_F32, 3, (int64_t[]){1, proposal.slots, hidden},
                     proposal.hidden);
        snprintf(name, sizeof name, "%zu/logits", index);
        bd_probe_put(probe, name, BD_F32, 3, (int64_t[]){1, proposal.slots, vocabulary},
                     block_logits);
        snprintf(name, sizeof name, "%zu/final_logits", index);
        if (proposal.logits)
            bd_probe_put(probe, name, BD_F32, 3, (int64_t[]){1, proposal.count, vocabulary},
                         proposal.logits);
        snprintf(name, sizeof name, "%zu/confidence_logits", index);
        if (proposal.confidence)
            bd_probe_put(probe, name, BD_F32, 2, (int64_t[]){1, proposal.count},
                         proposal.confidence);
        bd_probe_lattice_draft(probe, p->draft, index, base, &proposal);
        json_t *answer =
            json_pack("{s:O,s:i,s:o}", "prompt", json_object_get(given, "prompt"), "base_token",
                      base, "draft_tokens", bd_json_ints(proposal.tokens, drafted));
        bool head_skipped = p->draft->config.variant->validated_plain;
        proposal = (bd_proposal){.backbone_only = true};
        if (head_skipped)
            drafted = bd_decoder_propose(decoder, base, &proposal, err);
        if (head_skipped && drafted >= 0)
            json_object_set_new(answer, "draft_tokens_backbone",
                                bd_json_ints(proposal.tokens, drafted));
        json_array_append_new(answers, answer);
    }
    bd_decoder_free(decoder);
    return drafted >= 0;
}

typedef struct {
    json_t *steps, *accepted;
} cycles;

static void keep_cycle(void *self, const bd_cycle *cycle)
{
    cycles *all = self;
    json_t *emitted = json_array();
    for (int64_t i = 0; i < cycle->emitted; i++)
        json_array_append_new(emitted, json_integer(i ? cycle->proposed[i - 1] : cycle->base));
    json_array_append_new(all->accepted, json_integer(cycle->accepted));
    json_array_append_new(all->steps,
                          json_pack("{s:i,s:o,s:I,s:o}", "base_token", cycle->base, "draft_tokens",
                                    bd_json_ints(cycle->proposed, cycle->count), "accepted",
                                    (json_int_t)cycle->accepted, "emitted", emitted));
}

static bool speculative_case(bd_probe *probe, const pair *p, json_t *given, json_t *answers,
                             bd_error *err)
{
    const int32_t *prompt;
    int64_t count = read_prompt(given, probe->arena, &prompt);
    json_t *eos = json_object_get(given, "eos_token_id"),
           *most = json_object_get(given, "max_draft");
    int32_t stop = json_is_integer(eos) ? (int32_t)json_integer_value(eos) : -1;
    cycles all = {json_array(), json_array()};
    bd_generation options = bd_generation_default();
    options.most = json_integer_value(json_object_get(given, "max_new_tokens"));
    options.stop = &stop;
    options.stop_count = stop >= 0;
    options.whole_blocks = true;
    options.backbone_only = json_is_false(json_object_get(given, "use_head"));
    options.most_proposed = json_is_integer(most) ? json_integer_value(most) : -1;
    options.self = &all;
    options.cycle = keep_cycle;
    int64_t room = count + options.most + 2 * p->draft->config.block_size + 2;
    int32_t *drafted = bd_arena_ints(probe->arena, options.most),
            *plain = bd_arena_ints(probe->arena, options.most);
    bd_decoder *decoder = bd_decoder_create(p->target, p->draft, room, err);
    int64_t n = decoder ? bd_generate(decoder, prompt, count, &options, drafted, NULL, err) : -1;
    options.most_proposed = 0;
    options.whole_blocks = false;
    options.cycle = NULL;
    int64_t m = n >= 0 ? bd_generate(decoder, prompt, count, &options, plain, NULL, err) : -1;
    bd_decoder_free(decoder);
    json_array_append_new(answers, json_pack("{s:O,s:o,s:o,s:o,s:o}", "prompt",
                                             json_object_get(given, "prompt"), "output",
                                             bd_json_ints(drafted, n > 0 ? n : 0), "greedy",
                                             bd_json_ints(plain, m > 0 ? m : 0), "accepted",
                                             all.accepted, "steps", all.steps));
    return m >= 0;
}

bool bd_probe_generation(bd_probe *probe, bd_error *err)
{
    const bd_draft_variant *variant =
        bd_draft_variant_find(bd_probe_word(probe->json, "variant", ""), NULL);
    if (!variant) {
        probe->skipped = "this version does not have the variant";
        return true;
    }
    pair p;
    bool ok = open_pair(probe, &p, err);
    size_t i;
    json_t *given, *drafts = json_array(), *traces = json_array();
    json_array_foreach(json_object_get(probe->json, "draft_cases"), i, given) ok =
        ok && draft_case(probe, &p, i, given, drafts, err);
    json_array_foreach(json_object_get(probe->json, "speculative"), i, given) ok =
        ok && speculative_case(probe, &p, given, traces, err);
    json_object_set_new(probe->answer, "draft_cases", drafts);
    json_object_set_new(probe->answer, "speculative", traces);
    close_pair(&p);
    return ok;
}
