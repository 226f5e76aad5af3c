#include "train/draft_task.h"

#include <stdlib.h>
#include <string.h>

#include "base/sha256.h"
#include "draft/anchors.h"
#include "draft/lambda.h"
#include "train/row_order.h"
#include "train/token_loss.h"

/* Evaluation draws its anchors in an epoch that no training step has, so that it is the same every
 * time. */
#define EVALUATION_EPOCH UINT32_MAX

typedef struct {
    bd_draft_task_options options;
    int64_t rows; // for training; those held out follow
    bd_row_order *order;
    // The prepared batch.
    int32_t *batch;   // [batch_rows, sequence_length]
    float *loss_mask; // all ones (every token of a text is supervised) unless the source says else
    int64_t *rows_of_batch; // [batch_rows], and by which key a source knows them
    uint64_t *keys;
    int64_t batch_rows;
    bd_row_order *ahead;             // a second one: looking ahead must not reshuffle the first
    int64_t asked;                   // samples before this one were asked for
    uint64_t epoch, step, first_row; // what its anchors are keyed by
    double lambda;                   // Domino
} drafting;

static int64_t all_rows(const bd_draft_task_options *o)
{
    return o->token_count / o->sequence_length;
}

int64_t bd_draft_task_rows(const bd_draft_task_options *options)
{
    int64_t rows = all_rows(options) - options->evaluation_rows;
    return rows > 0 ? rows : 0;
}

// --- batches -------------------------------------------------------------------------------------

static const int32_t *row_tokens(const drafting *d, int64_t row)
{
    return d->options.tokens + row * d->options.sequence_length;
}

static void put_row(drafting *d, int64_t slot, int64_t row, uint64_t key)
{
    int64_t length = d->options.sequence_length;
    d->rows_of_batch[slot] = row;
    d->keys[slot] = key;
    memcpy(d->batch + slot * length, row_tokens(d, row), (size_t)length * sizeof(int32_t));
}

/* Tell the source what will be read: the samples up to `end` and some ahead, not beyond the run. */
static bool ask(drafting *d, int64_t first, int64_t end, bd_error *err)
{
    const bd_draft_task_options *o = &d->options;
    if (!o->source || !o->source->ask)
        return true;
    int64_t last = o->steps * o->micro_batches * o->batch_rows, until = end + o->source->ahead;
    if (d->asked < first || d->asked > until) // resumed, or a batch for the second time
        d->asked = first;
    for (; d->asked < (until < last ? until : last) || d->asked < end; d->asked++) {
        const int32_t *tokens = row_tokens(d, bd_row_order_at(d->ahead, d->asked));
        if (!o->source->ask(o->source->self, (uint64_t)d->asked, tokens, err))
            return false;
    }
    return true;
}

static bool next(void *self, int64_t step, int64_t micro, bd_error *err)
{
    drafting *d = self;
    const bd_draft_task_options *o = &d->options;
    int64_t first = (step * o->micro_batches + micro) * o->batch_rows;
    if (!ask(d, first, first + o->batch_rows, err))
        return false;
    for (int64_t r = 0; r < o->batch_rows; r++)
        put_row(d, r, bd_row_order_at(d->order, first + r), (uint64_t)(first + r));
    d->batch_rows = o->batch_rows;
    d->epoch = 0;
    d->step = (uint64_t)step;
    d->lambda = bd_draft_lambda(step, o->steps, o->lambda_start, o->lambda_ratio);
    d->first_row = (uint64_t)(micro * o->batch_rows);
    return true;
}

/* The division rule of drafters, decided on an update's total weight (decision 26). */
static bd_weighted weighted(double sum, double weight)
{
    return (bd_weighted){.sum = sum, .denominator = weight, .eps = 1e-6, .threshold = 1};
}

/* The states of the batch from where they are kept. Their tokens must be those of the text. */
static bool read_states(drafting *d, float *features, float *hidden, bd_arena *arena, bd_error *err)
{
    const bd_draft_task_options *o = &d->options;
    const bd_states_source *source = o->source;
    int64_t length = o->sequence_length, width = bd_draft_feature_width(o->draft);
    int32_t *tokens = bd_arena_ints(arena, length);
    for (int64_t r = 0; r < d->batch_rows; r++) {
        const bd_states_row out = {.tokens = tokens,
                                   .loss_mask = d->loss_mask + r * length,
                                   .features = features + r * length * width,
                                   .final =
                                       hidden ? hidden + r * length * source->layout.hidden : NULL};
        if (!source->read(source->self, d->keys[r], d->rows_of_batch[r], &out, err))
            return false;
        if (memcmp(tokens, d->batch + r * length, (size_t)length * sizeof *tokens) != 0)
            return bd_fail_as(err, BD_ERROR_STATE,
                              "%s: row %lld: found other tokens than those of the text",
                              source->name, (long long)d->rows_of_batch[r]);
    }
    return true;
}

static bd_teacher_kind teacher_kind(const drafting *d, const float *hidden)
{
    const bd_states_source *source = d->options.source;
    return !hidden                            ? BD_TEACHER_NONE
           : source && source->layout.prenorm ? BD_TEACHER_PRENORM
                                              : BD_TEACHER_HIDDEN;
}

static void clear_untrained(const bd_draft_task_options *o)
{
    const bd_parameters *all = &o->draft->parameters;
    for (int64_t i = 0; i < all->count; i++)
        if (!bd_parameters_find(o->trained, all->items[i]->name))
            bd_parameters_zero_gradients(&(bd_parameters){.items = &all->items[i], .count = 1});
}

static bool forward(void *self, bd_tape *tape, bd_loss *loss, bd_error *err)
{
    drafting *d = self;
    const bd_draft_task_options *o = &d->options;
    bd_arena *arena = tape->arena;
    int64_t cells = d->batch_rows * o->sequence_length;
    float *features = bd_arena_floats(arena, cells * bd_draft_feature_width(o->draft));
    bool teacher = bd_draft_reads_teacher(o->draft, &o->objective);
    float *hidden =
        teacher ? bd_arena_floats(arena, cells * o->draft->target->config.hidden) : NULL;
    if (!o->source)
        bd_draft_observe(o->draft, d->batch, d->batch_rows, o->sequence_length, features, hidden,
                         arena);
    else if (!read_states(d, features, hidden, arena, err))
        return false;
    bd_anchor_sampling sampling = {.rows = d->batch_rows,
                                   .length = o->sequence_length,
                                   .block_size = o->draft->config.block_size,
                                   .most = o->anchors,
                                   .loss_mask = d->loss_mask,
                                   .fixed_width = true};
    bd_anchors anchors =
        bd_anchors_draw(&sampling, o->seed, d->epoch, d->step, d->first_row, arena);
    bd_draft_batch batch = {.rows = d->batch_rows,
                            .length = o->sequence_length,
                            .tokens = d->batch,
                            .loss_mask = d->loss_mask,
                            .anchors = &anchors,
                            .features = features,
                            .teacher_kind = teacher_kind(d, hidden),
                            .teacher = hidden};
    if (o->trained) // gradients of what is not trained are nobody else's to clear
        clear_untrained(o);
    bd_draft_loss made;
    bd_draft_objective objective = o->objective;
    objective.lambda = (float)d->lambda;
    if (!bd_draft_step_run(o->draft, tape, &batch, &objective, BD_DRAFT_SUM, NULL, &made, err))
        return false;
    loss->loss = weighted(made.sum, made.weight);
    loss->metrics[0] = bd_metric_weighted(
        "accuracy",
        (bd_weighted){.sum = made.correct, .denominator = made.supervised, .eps = 1e-6});
    loss->metrics[1] = bd_metric_scalar("weight_sum", made.weight);
    loss->metric_count = 2;
    // A variant with an accuracy of its own has told what the plain one is under another name.
    for (int i = 0; i < made.metric_count; i++)
        if (!strcmp(made.metrics[i].name, "accuracy")) {
            loss->metrics[0] = loss->metrics[1];
            loss->metric_count = 1;
        }
    for (int i = 0; i < made.metric_count; i++)
        loss->metrics[loss->metric_count++] = bd_metric_weighted(
            made.metrics[i].name,
            (bd_weighted){.sum = made.metrics[i].sum, .denominator = made.metrics[i].weight});
    loss->tokens = cells;
    return true;
}

static bool evaluate(void *self, bd_tape *tape, bd_loss *loss, bd_error *err)
{
    drafting *d = self;
    const bd_draft_task_options *o = &d->options;
    for (int64_t done = 0; done < o->evaluation_rows; done += d->batch_rows) {
        int64_t left = o->evaluation_rows - done;
        d->batch_rows = left < o->batch_rows ? left : o->batch_rows;
        d->epoch = EVALUATION_EPOCH;
        d->step = 0;
        d->lambda = 0; // what is drafted with is the final logits, at every step alike
        d->first_row = (uint64_t)done;
        for (int64_t r = 0; r < d->batch_rows; r++) {
            int64_t row = d->rows + done + r;
            uint64_t key = BD_STATES_HELD_OUT + (uint64_t)row;
            put_row(d, r, row, key);
            if (o->source && o->source->ask &&
                !o->source->ask(o->source->self, key, row_tokens(d, row), err))
                return false;
        }
        bd_loss part = {0};
        size_t mark = bd_arena_mark(tape->arena);
        bool ok = forward(d, tape, &part, err);
        bd_arena_release(tape->arena, mark);
        if (!ok)
            return false;
        bd_loss_add(loss, &part);
    }
    return true;
}

// --- what resume must match, and saving ----------------------------------------------------------

static bool identity(void *self, bd_contract *contract, bd_error *err)
{
    drafting *d = self;
    const bd_draft_task_options *o = &d->options;
    char target[BD_SHA256_TEXT];
    json_t *config = bd_draft_config_to_json(&o->draft->config);
    char *text = config ? json_dumps(config, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(config);
    if (!text)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "contract: no memory for the draft's config");
    bd_contract_hash(contract, "draft_config", text, strlen(text));
    free(text);
    if (!bd_model_fingerprint(o->draft->target, target, err))
        return false;
    bd_contract_text(contract, "target", target);
    bd_contract_text(contract, "start", o->start ? o->start : "not told");
    bd_contract_int(contract, "data_tokens", o->token_count);
    bd_contract_hash(contract, "data_sha256", o->tokens,
                     (size_t)o->token_count * sizeof *o->tokens);
    bd_contract_int(contract, "sequence_length", o->sequence_length);
    bd_contract_int(contract, "batch_rows", o->batch_rows);
    bd_contract_int(contract, "evaluation_rows", o->evaluation_rows);
    bd_contract_int(contract, "num_anchors", o->anchors);
    bd_contract_text(contract, "loss_objective",
                     o->objective.weighting.objective == BD_WEIGHT_DPACE ? "dpace" : "decay");
    bd_contract_number(contract, "loss_decay_factor", (double)o->objective.weighting.decay);
    bd_contract_number(contract, "dpace_alpha", (double)o->objective.weighting.alpha);
    bd_contract_bool(contract, "self_logit_distillation", o->objective.distill);
    bd_contract_number(contract, "ce_loss_alpha", (double)o->objective.ce_alpha);
    bd_contract_number(contract, "l1_loss_alpha", (double)o->objective.l1_alpha);
    bd_contract_number(contract, "confidence_head_alpha", (double)o->objective.confidence_alpha);
    bd_contract_number(contract, "lambda_base_start", o->lambda_start);
    bd_contract_number(contract, "lambda_base_decay_ratio", o->lambda_ratio);
    if (o->draft->config.variant == &bd_draft_domino)
        bd_contract_int(contract, "lambda_base_steps", o->steps);
    // Options of the other variants, at their defaults where they mean nothing.
    bd_contract_int(contract, "lk_loss_type", o->objective.slot_loss);
    bd_contract_number(contract, "lk_ce_scale", (double)o->objective.ce_scale);
    bd_contract_number(contract, "lk_ce_decay", (double)o->objective.ce_decay);
    bd_contract_number(contract, "lilicorr_w_ce", (double)o->objective.lattice_ce);
    bd_contract_number(contract, "lilicorr_w_margin", (double)o->objective.lattice_margin_weight);
    bd_contract_number(contract, "lilicorr_w_pen", (double)o->objective.lattice_penalty);
    bd_contract_number(contract, "lilicorr_w_cal", (double)o->objective.lattice_calibration);
    bd_contract_number(contract, "lilicorr_margin", (double)o->objective.lattice_margin);
    bd_contract_number(contract, "selector_loss_alpha", (double)o->objective.selector_alpha);
    bd_contract_int(contract, "seed", (int64_t)o->seed);
    bd_contract_text(contract, "save_dtype", bd_dtype_name(o->save_dtype));
    // What comes as it would be computed here may come from anywhere; else it must stay the same.
    if (o->source && (o->source->layout.dtype == BD_BF16 || o->source->layout.prenorm))
        bd_states_layout_contract(&o->source->layout, contract);
    return true;
}

static bool save(void *self, const char *folder, bd_error *err)
{
    const bd_draft_task_options *o = &((drafting *)self)->options;
    return bd_draft_save(o->draft, folder, o->save_dtype, err);
}

// --- creating ------------------------------------------------------------------------------------

/* Does the source keep what this draft would see online? */
static bool check_source(const bd_draft_task_options *o, bd_error *err)
{
    const bd_states_layout *found = &o->source->layout;
    bd_states_layout wanted;
    if (!bd_states_layout_make(o->draft->target, o->draft->config.taps, o->draft->config.tap_count,
                               o->sequence_length, found->dtype, &wanted, err))
        return false;
    // Its own matter, so long as a teacher is there for who reads it.
    wanted.final = found->final || bd_draft_reads_teacher(o->draft, &o->objective);
    wanted.prenorm = found->prenorm;
    return bd_states_layout_match(found, &wanted, o->source->name, err);
}

static bool check(const bd_draft_task_options *o, bd_error *err)
{
    const bd_model_config *target = &o->draft->target->config;
    int64_t bs = o->draft->config.block_size, length = o->sequence_length;
    // With one block's length only one token could be an anchor, and sampling leaves one candidate
    // out.
    if (length < 2 * bs || length % bs != 0 || length > target->max_positions)
        return bd_fail(
            err,
            "sequence_length: %lld, a multiple of block_size %lld from %lld to the target's %lld "
            "positions expected",
            (long long)length, (long long)bs, (long long)(2 * bs),
            (long long)target->max_positions);
    if (o->batch_rows < 1 || o->micro_batches < 1 || o->anchors < 1 || o->evaluation_rows < 0)
        return bd_fail(
            err, "batch_rows %lld, micro_batches %lld, num_anchors %lld: at least 1 expected",
            (long long)o->batch_rows, (long long)o->micro_batches, (long long)o->anchors);
    if (bd_draft_task_rows(o) < 1)
        return bd_fail(
            err,
            "data: %lld tokens make %lld rows of %lld tokens, more than the %lld held out expected",
            (long long)o->token_count, (long long)all_rows(o), (long long)length,
            (long long)o->evaluation_rows);
    for (int64_t i = 0; i < o->token_count; i++)
        if (o->tokens[i] < 0 || o->tokens[i] >= target->vocabulary)
            return bd_fail(err, "data: token %lld is %d, 0 to %lld expected", (long long)i,
                           o->tokens[i], (long long)target->vocabulary - 1);
    if (!(o->lambda_start >= 0 && o->lambda_start <= 1) ||
        !(o->lambda_ratio >= 0 && o->lambda_ratio <= 1))
        return bd_fail(
            err, "lambda_base_start %g and lambda_base_decay_ratio %g: numbers in [0, 1] expected",
            o->lambda_start, o->lambda_ratio);
    return bd_draft_objective_check(&o->draft->config, &o->objective, err) &&
           (!o->source || check_source(o, err));
}

static void destroy(drafting *d)
{
    if (!d)
        return;
    bd_row_order_free(d->order);
    bd_row_order_free(d->ahead);
    free(d->rows_of_batch);
    free(d->keys);
    free(d->batch);
    free(d->loss_mask);
    free(d);
}

bool bd_draft_task_create(const bd_draft_task_options *options, bd_task *task, bd_error *err)
{
    *task = (bd_task){0};
    if (!check(options, err))
        return false;
    size_t cells = (size_t)(options->batch_rows * options->sequence_length);
    drafting *d = calloc(1, sizeof *d);
    if (d)
        *d = (drafting){.options = *options,
                        .rows = bd_draft_task_rows(options),
                        .batch = malloc(cells * sizeof *d->batch),
                        .loss_mask = malloc(cells * sizeof *d->loss_mask),
                        .rows_of_batch = malloc((size_t)options->batch_rows * sizeof(int64_t)),
                        .keys = malloc((size_t)options->batch_rows * sizeof(uint64_t))};
    if (!d || !d->batch || !d->loss_mask || !d->rows_of_batch || !d->keys)
        bd_fail_as(err, BD_ERROR_SYSTEM, "data: no memory for a batch of %zu tokens", cells);
    else if ((d->order = bd_row_order_create(d->rows, options->seed, err)))
        d->ahead = bd_row_order_create(d->rows, options->seed, err);
    if (!d || !d->ahead) {
        destroy(d);
        return false;
    }
    for (size_t i = 0; i < cells; i++)
        d->loss_mask[i] = 1;
    *task =
        (bd_task){.self = d,
                  .name = "draft",
                  .parameters = options->trained ? options->trained : &options->draft->parameters,
                  .next = next,
                  .forward = forward,
                  .identity = identity,
                  .evaluate = options->evaluation_rows > 0 ? evaluate : NULL,
                  .save = save};
    return true;
}

void bd_draft_task_free(bd_task *task)
{
    destroy(task->self);
    *task = (bd_task){0};
}
