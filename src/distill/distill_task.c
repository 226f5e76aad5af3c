#include "distill/distill_task.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "base/random.h"
#include "diffusion/corruption.h"
#include "diffusion/objective.h"
#include "train/replay.h"
#include "train/row_order.h"
#include "train/token_loss.h"

typedef struct {
    bd_distill_task_options options;
    bd_distiller distiller;
    bd_rollout_caches *caches;
    bd_row_plan *plan, *evaluation; // evaluation NULL: none
    bd_row_order *order;
    bd_arena *arena;
    bd_diffusion_batch batch;
    float *weights;
    uint64_t *keys; // [batch_rows]
} distill_task;

// --- batches -------------------------------------------------------------------------------------

/* Evaluation hides its tokens in an epoch that no training step has, so that it is the same every
 * time. */
#define EVALUATION_EPOCH UINT32_MAX

static double at_step(const bd_distill_path *path, double start, int64_t step, int64_t steps)
{
    double x = steps > 1 ? (double)step / (double)(steps - 1) : 1;
    double left = path->kind == BD_SCHEDULE_CONSTANT ? 1 : bd_schedule_left(path->kind, x);
    return path->end + (start - path->end) * left;
}

static void set_objective(distill_task *t, int64_t step)
{
    const bd_distill_task_options *o = &t->options;
    const bd_distill_objective *start = &o->distiller.objective;
    bd_distill_objective *now = &t->distiller.objective;
    if (o->soft.kind != BD_SCHEDULE_CONSTANT) {
        now->soft = at_step(&o->soft, start->soft, step, o->steps);
        now->hard = 1 - now->soft;
    }
    if (o->temperature.kind != BD_SCHEDULE_CONSTANT)
        now->temperature = at_step(&o->temperature, start->temperature, step, o->steps);
}

/* The rows that are in the batch, with their keys: corruption and weights. */
static bool corrupt(distill_task *t, bd_error *err)
{
    const bd_distill_task_options *o = &t->options;
    bd_corruption_options corruption = bd_corruption_default();
    corruption.min_noise = o->min_noise;
    corruption.completion_only = true;
    corruption.pad_id = o->rows.padding.pad_id;
    bd_corruption_draws draws = {.keys = t->keys};
    const bd_canvas *canvas = &t->distiller.rollout.canvas;
    size_t mark = bd_arena_mark(t->arena);
    bool ok = bd_corrupt_batch(&t->batch, canvas, &corruption, &draws, NULL, t->arena, err);
    bd_arena_release(t->arena, mark);
    if (ok)
        bd_objective_weights(&t->batch, canvas, NULL, t->weights);
    return ok;
}

static bool next(void *self, int64_t step, int64_t micro, bd_error *err)
{
    distill_task *t = self;
    const bd_distill_task_options *o = &t->options;
    int64_t first = (step * o->micro_batches + micro) * o->batch_rows,
            rows = bd_row_plan_rows(t->plan);
    if (o->epochs > 0 && first + o->batch_rows > o->epochs * rows)
        return bd_fail_as(err, BD_ERROR_EXHAUSTED,
                          "data: %lld epochs of %lld rows end before step %lld, micro-batch %lld",
                          (long long)o->epochs, (long long)rows, (long long)step, (long long)micro);
    for (int64_t r = 0; r < o->batch_rows; r++) {
        t->keys[r] = bd_random_key(o->seed, (uint64_t)((first + r) / rows), (uint64_t)step,
                                   (uint64_t)(micro * o->batch_rows + r));
        bd_row_plan_fill(t->plan, bd_row_order_at(t->order, first + r), &t->batch, r);
    }
    set_objective(t, step);
    return corrupt(t, err);
}

static void put(bd_loss *loss, const char *name, double sum, double weight)
{
    assert(loss->metric_count < BD_MOST_METRICS);
    loss->metrics[loss->metric_count++] =
        bd_metric_weighted(name, (bd_weighted){.sum = sum, .denominator = weight});
}

static void put_scalar(bd_loss *loss, const char *name, double value)
{
    assert(loss->metric_count < BD_MOST_METRICS);
    loss->metrics[loss->metric_count++] = bd_metric_scalar(name, value);
}

static void report(const distill_task *t, const bd_prepared *batch, const bd_distill_result *result,
                   double train_seconds, bd_loss *loss)
{
    loss->loss = (bd_weighted){.sum = result->total_sum, .denominator = result->weight_sum};
    for (int64_t i = 0; i < batch->rows * batch->length; i++)
        loss->tokens += batch->segments[i] != 0;
    put(loss, "soft_loss", result->soft_sum, result->weight_sum);
    put(loss, "hard_loss", result->hard_sum, result->weight_sum);
    put_scalar(loss, "unsafe_rows", (double)batch->unsafe_rows);
    put_scalar(loss, "teacher_seconds", batch->teacher_seconds);
    put_scalar(loss, "train_seconds", train_seconds);
    if (!t->options.on_policy)
        return;
    const bd_rollout_statistics *s = &batch->statistics;
    put_scalar(loss, "rollout_seconds", batch->rollout_seconds);
    put(loss, "tokens_per_forward", (double)s->commits, (double)s->row_forwards);
    put(loss, "forced_fraction", (double)s->forced, (double)s->commits);
    put(loss, "stop_rate", (double)batch->stopped_rows, (double)batch->rows);
}

static bool forward(void *self, bd_tape *tape, bd_loss *loss, bd_error *err)
{
    distill_task *t = self;
    bd_distiller *d = &t->distiller;
    // Whoever updates the weights says so on every parameter: the batch is of this version only.
    d->version = d->student->embedding->version;
    bd_distill_rows rows = {bd_diffusion_batch_placement(&t->batch), t->batch.targets,
                            t->batch.completion_mask, t->batch.corruption_mask, t->weights};
    bd_prepared batch;
    bd_distill_result result = {0};
    if (!(t->options.on_policy ? bd_prepare_rollout(d, &rows, NULL, tape->arena, &batch, err)
                               : bd_prepare_dataset(d, &rows, tape->arena, &batch, err)))
        return false;
    double began = bd_seconds();
    d->version = d->student->embedding->version;
    if (!bd_distill_step(d, &batch, tape, &result, err))
        return false;
    report(t, &batch, &result, bd_seconds() - began, loss);
    return true;
}

/* All held-out rows. A batch that is not full repeats its last row without weight. */
static bool evaluate(void *self, bd_tape *tape, bd_loss *loss, bd_error *err)
{
    distill_task *t = self;
    const bd_distill_task_options *o = &t->options;
    int64_t rows = bd_row_plan_rows(t->evaluation);
    for (int64_t first = 0; first < rows; first += o->batch_rows) {
        for (int64_t r = 0; r < o->batch_rows; r++) {
            int64_t row = first + r < rows ? first + r : rows - 1;
            t->keys[r] = bd_random_key(o->seed, EVALUATION_EPOCH, 0, (uint64_t)row);
            bd_row_plan_fill(t->evaluation, row, &t->batch, r);
        }
        if (!corrupt(t, err))
            return false;
        for (int64_t at = (rows - first) * o->rows.length; at < o->batch_rows * o->rows.length;
             at++)
            t->weights[at] = 0;
        bd_loss part = {0};
        size_t mark = bd_arena_mark(tape->arena);
        bool ok = forward(t, tape, &part, err);
        bd_arena_release(tape->arena, mark);
        if (!ok)
            return false;
        bd_loss_add(loss, &part);
    }
    return true;
}

// --- what resume must match (H-02, H-05) ---------------------------------------------------------

static void add_objective(bd_contract *c, const bd_distill_task_options *o, const bd_distiller *d)
{
    const bd_canvas *canvas = &d->rollout.canvas;
    bd_contract_text(c, "objective",
                     o->on_policy ? "on_policy_distillation" : "dataset_distillation");
    bd_contract_text(c, "distill_data_source", o->on_policy ? "student_rollout" : "dataset");
    bd_contract_int(c, "block_size", canvas->block_size);
    bd_contract_int(c, "mask_id", canvas->mask_id);
    bd_contract_text(c, "logit_alignment", bd_alignment_name(canvas->alignment));
    bd_contract_text(c, "canvas_policy", bd_canvas_policy_name(canvas->policy));
    bd_contract_number(c, "min_noise", o->min_noise);
    bd_contract_text(c, "rng", "splitmix_v1");
    bd_contract_number(c, "distill_temperature", d->objective.temperature);
    bd_contract_number(c, "soft_loss_weight", d->objective.soft);
    bd_contract_number(c, "hard_loss_weight", d->objective.hard);
    bd_contract_text(c, "opd_loss", bd_divergence_name(d->objective.divergence));
    bd_contract_number(c, "opd_beta", d->objective.beta);
    bd_contract_int(c, "opd_teacher_topk", d->objective.top_k);
    if (o->on_policy)
        return;
    bd_contract_text(c, "alpha_schedule", bd_schedule_name(o->soft.kind));
    bd_contract_number(c, "alpha_end", o->soft.end);
    bd_contract_text(c, "temperature_schedule", bd_schedule_name(o->temperature.kind));
    bd_contract_number(c, "temperature_end", o->temperature.end);
}

static void add_rollout(bd_contract *c, const bd_distiller *d)
{
    int64_t stop[64], count = d->stop_count < 64 ? d->stop_count : 64;
    for (int64_t i = 0; i < count; i++)
        stop[i] = d->stop[i];
    bd_contract_text(c, "rollout_algorithm", bd_commit_name(d->rollout.commit.strategy));
    bd_contract_number(c, "rollout_confidence_threshold", (double)d->rollout.commit.threshold);
    bd_contract_number(c, "rollout_temperature", (double)d->rollout.temperature);
    bd_contract_int(c, "rollout_max_denoise_steps", d->rollout.max_steps);
    bd_contract_ints(c, "stop_token_ids", stop, count);
}

static void add_data(bd_contract *c, const bd_distill_task_options *o)
{
    const bd_token_documents *d = o->documents;
    int64_t tokens = d->ends[d->count - 1];
    bd_contract_int(c, "data_documents", d->count);
    bd_contract_hash(c, "data_sha256", d->tokens, (size_t)tokens * sizeof *d->tokens);
    bd_contract_hash(c, "data_ends_sha256", d->ends, (size_t)d->count * sizeof *d->ends);
    bd_contract_hash(c, "data_completion_sha256", d->completion, (size_t)tokens);
    bd_contract_int(c, "sequence_length", o->rows.length);
    bd_contract_text(c, "pad_policy", bd_pad_policy_name(o->rows.padding.policy));
    bd_contract_int(c, "pad_id", o->rows.padding.pad_id);
    bd_contract_int(c, "end_id", o->rows.padding.end_id);
    bd_contract_int(c, "batch_rows", o->batch_rows);
    bd_contract_int(c, "epochs", o->epochs);
    bd_contract_int(c, "seed", (int64_t)o->seed);
}

static bool identity(void *self, bd_contract *contract, bd_error *err)
{
    const distill_task *t = self;
    const bd_distill_task_options *o = &t->options;
    add_objective(contract, o, &o->distiller);
    if (o->on_policy)
        add_rollout(contract, &t->distiller);
    bd_contract_text(contract, "teacher_checkpoint",
                     o->teacher_hash ? o->teacher_hash : "not told");
    bd_contract_text(contract, "tokenizer", o->tokenizer_hash ? o->tokenizer_hash : "not told");
    add_data(contract, o);
    return bd_model_task_identity(t->distiller.student, &o->output, contract, err);
}

static bool save(void *self, const char *folder, bd_error *err)
{
    const distill_task *t = self;
    return bd_model_task_save(t->distiller.student, &t->options.output, folder, err);
}

// --- creating ------------------------------------------------------------------------------------

/* A prompt, then one answer, then nothing; also of what is left when the row cuts it. */
static bool check_document(const bd_token_documents *d, int64_t which, int64_t length,
                           bd_error *err)
{
    int64_t begin = which > 0 ? d->ends[which - 1] : 0, end = d->ends[which];
    end = end - begin > length ? begin + length : end;
    int64_t at = begin;
    while (at < end && !d->completion[at])
        at++;
    if (at == begin || at == end)
        return bd_fail(
            err,
            "data: document %lld has no %s within %lld tokens, a completion after a prompt wanted",
            (long long)which, at == end ? "completion" : "prompt", (long long)length);
    for (; at < end; at++)
        if (!d->completion[at])
            return bd_fail(
                err,
                "data: document %lld goes on after its completion; data.last_answer cuts there",
                (long long)which);
    return true;
}

static bool check_sizes(const bd_distill_task_options *o, bd_error *err)
{
    const bd_distiller *d = &o->distiller;
    int64_t most = d->student->config.max_positions;
    if (d->teacher->config.max_positions < most)
        most = d->teacher->config.max_positions;
    if (o->rows.packing)
        return bd_fail(
            err, "data.packing: on, off wanted to distill (a rollout has one completion a row)");
    if (o->rows.length < 2 || o->rows.length > most)
        return bd_fail(err, "data.sequence_length: %lld, 2 to the models' %lld positions wanted",
                       (long long)o->rows.length, (long long)most);
    if (o->batch_rows < 1 || o->micro_batches < 1 ||
        o->batch_rows > INT32_MAX / 4 / o->rows.length || o->epochs < 0)
        return bd_fail(err, "train.batch_size: %lld rows in %lld micro-batches",
                       (long long)o->batch_rows, (long long)o->micro_batches);
    if (!o->documents->completion || o->documents->count < 1)
        return bd_fail(err, "data: no completions, conversations wanted");
    return true;
}

/* What changes during a run, and what is looked at besides, belongs to data that is given. */
static bool check_paths(const bd_distill_task_options *o, bd_error *err)
{
    bool changes =
        o->soft.kind != BD_SCHEDULE_CONSTANT || o->temperature.kind != BD_SCHEDULE_CONSTANT;
    if (o->on_policy && changes)
        return bd_fail(err, "distill.alpha_schedule, distill.temperature_schedule: constant wanted "
                            "with distill.data_source student_rollout");
    if (o->on_policy && o->evaluation)
        return bd_fail(err,
                       "data.eval_files: none wanted with distill.data_source student_rollout");
    bd_distill_objective last = o->distiller.objective;
    if (o->soft.kind != BD_SCHEDULE_CONSTANT) {
        last.soft = o->soft.end;
        last.hard = 1 - last.soft;
    }
    if (o->temperature.kind != BD_SCHEDULE_CONSTANT)
        last.temperature = o->temperature.end;
    return bd_distill_objective_check(&last, err);
}

static bool check_documents(const bd_distill_task_options *o, const bd_token_documents *documents,
                            bd_error *err)
{
    int64_t vocabulary = o->distiller.student->config.vocabulary;
    for (int64_t i = 0; i < documents->ends[documents->count - 1]; i++)
        if (documents->tokens[i] < 0 || documents->tokens[i] >= vocabulary)
            return bd_fail(err, "data: token %lld is %d, 0 to %lld wanted", (long long)i,
                           documents->tokens[i], (long long)vocabulary - 1);
    for (int64_t i = 0; i < documents->count; i++)
        if (!check_document(documents, i, o->rows.length, err))
            return false;
    return true;
}

static bool check(const bd_distill_task_options *o, bd_error *err)
{
    const bd_distiller *d = &o->distiller;
    bd_corruption_options corruption = bd_corruption_default();
    corruption.min_noise = o->min_noise;
    if (!bd_distiller_check(d, err) ||
        !bd_canvas_check_model(&d->rollout.canvas, &d->student->config, err) ||
        !bd_corruption_check(&d->rollout.canvas, &corruption, err) ||
        !bd_model_output_check(&o->output, err) || !check_sizes(o, err) || !check_paths(o, err))
        return false;
    return check_documents(o, o->documents, err) &&
           (!o->evaluation || check_documents(o, o->evaluation, err));
}

bd_distill_task_options bd_distill_task_default(const bd_distiller *distiller,
                                                const bd_token_documents *documents)
{
    return (bd_distill_task_options){.distiller = *distiller,
                                     .documents = documents,
                                     .rows = {.padding = {.end_id = -1}},
                                     .min_noise = 1e-3,
                                     .batch_rows = 8,
                                     .micro_batches = 1,
                                     .output = {.save_dtype = BD_F32}};
}

static void destroy(distill_task *t)
{
    if (!t)
        return;
    bd_rollout_caches_free(t->caches);
    bd_row_order_free(t->order);
    bd_row_plan_free(t->plan);
    bd_row_plan_free(t->evaluation);
    if (t->arena)
        bd_arena_destroy(t->arena);
    free(t);
}

static bool prepare_data(distill_task *t, bd_error *err)
{
    const bd_distill_task_options *o = &t->options;
    if (!(t->plan = bd_row_plan_create(o->documents, &o->rows, err)) ||
        (o->evaluation && !(t->evaluation = bd_row_plan_create(o->evaluation, &o->rows, err))))
        return false;
    // Too little data is told before the first step, not when it ends (H-11).
    int64_t rows = bd_row_plan_rows(t->plan);
    const bd_replay all = {.most_updates = o->steps,
                           .accumulation = o->micro_batches,
                           .skipped = -1,
                           .remaining = o->epochs > 0 ? o->epochs * rows / o->batch_rows : -1};
    bd_replay_span span;
    if (!bd_replay_plan(&all, &span, err))
        return false;
    return (t->order = bd_row_order_create(rows, o->seed, err)) != NULL;
}

static bool prepare_batch(distill_task *t, bd_error *err)
{
    const bd_distill_task_options *o = &t->options;
    int64_t cells = o->batch_rows * o->rows.length;
    if (!(t->arena = bd_arena_create((size_t)cells * 4 * 32 + (1 << 16), err)))
        return false;
    t->batch = bd_diffusion_batch_allocate(t->arena, o->batch_rows, o->rows.length);
    t->weights = bd_arena_zeros(t->arena, cells);
    t->keys = bd_arena_alloc(t->arena, (size_t)o->batch_rows * sizeof *t->keys);
    if (!o->on_policy || t->distiller.caches)
        return true;
    t->caches = bd_rollout_caches_create(t->distiller.student, o->batch_rows, o->rows.length, err);
    t->distiller.caches = t->caches;
    return t->caches != NULL;
}

bool bd_distill_task_create(const bd_distill_task_options *options, bd_task *task, bd_error *err)
{
    distill_task *t = check(options, err) ? calloc(1, sizeof *t) : NULL;
    if (!t)
        return err->kind != BD_ERROR_NONE ? false
                                          : bd_fail_as(err, BD_ERROR_SYSTEM, "distill: no memory");
    t->options = *options;
    t->distiller = options->distiller;
    if (!prepare_data(t, err) || !prepare_batch(t, err)) {
        destroy(t);
        return false;
    }
    bd_canvas_to_model(&t->distiller.rollout.canvas, &t->distiller.student->config);
    *task = (bd_task){.self = t,
                      .name = "distill",
                      .parameters = &t->distiller.student->parameters,
                      .next = next,
                      .forward = forward,
                      .identity = identity,
                      .evaluate = t->evaluation ? evaluate : NULL,
                      .save = save};
    return true;
}

void bd_distill_task_free(bd_task *task)
{
    destroy(task->self);
    *task = (bd_task){0};
}
