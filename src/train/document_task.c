#include "train/document_task.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"
#include "train/row_order.h"
#include "train/token_loss.h"

/* The epoch that keys the corruption of held-out rows: one that training never reaches. */
#define EVALUATION_EPOCH UINT64_MAX

typedef struct {
    bd_document_task_options options;
    bd_row_plan *plan, *evaluation; // evaluation NULL: rows after the training rows of `plan`
    int64_t rows, evaluation_rows;
    bd_row_order *order;
    bd_objective objective;
    bd_arena *arena;          // the batch, and scratch for preparing it
    bd_diffusion_batch batch; // batch.rows: in it now
    float *weights, *noise;
    uint64_t *keys; // [batch_rows]
} document_task;

static bool is_causal(const document_task *t)
{
    return t->options.canvas.block_size == 0;
}

// --- batches -------------------------------------------------------------------------------------

/* Every clean token predicts the next one of its document: weight where it may be learned. */
static void prepare_causal(document_task *t)
{
    bd_diffusion_batch *b = &t->batch;
    for (int64_t i = 0; i < b->rows * b->length; i++) {
        bool wanted = !t->options.completion_only || b->completion_mask[i];
        b->targets_loss_mask[i] =
            b->targets_segmentation[i] != 0 && b->targets_position[i] > 0 && wanted;
        t->weights[i] = b->targets_loss_mask[i] ? 1 : 0;
    }
}

static bool prepare_blocks(document_task *t, bd_error *err)
{
    const bd_document_task_options *o = &t->options;
    bd_corruption_options corruption = bd_corruption_default();
    corruption.min_noise = o->min_noise;
    corruption.completion_only = o->completion_only;
    corruption.pad_id = o->rows.padding.pad_id;
    bd_corruption_draws draws = {.keys = t->keys};
    if (!bd_corrupt_batch(&t->batch, &o->canvas, &corruption, &draws, t->noise, t->arena, err) ||
        !bd_diffusion_batch_check(&t->batch, &o->canvas, o->completion_only, err))
        return false;
    bd_objective_weights(&t->batch, &o->canvas, o->inverse_noise ? t->noise : NULL, t->weights);
    return true;
}

static bool prepare(document_task *t, bd_error *err)
{
    if (!is_causal(t))
        return prepare_blocks(t, err);
    prepare_causal(t);
    return true;
}

static bool next(void *self, int64_t step, int64_t micro, bd_error *err)
{
    document_task *t = self;
    const bd_document_task_options *o = &t->options;
    int64_t first = (step * o->micro_batches + micro) * o->batch_rows;
    if (o->epochs > 0 && first + o->batch_rows > o->epochs * t->rows)
        return bd_fail_as(err, BD_ERROR_EXHAUSTED,
                          "data: %lld epochs of %lld rows end before step %lld, micro-batch %lld",
                          (long long)o->epochs, (long long)t->rows, (long long)step,
                          (long long)micro);
    t->batch.rows = o->batch_rows;
    for (int64_t r = 0; r < o->batch_rows; r++) {
        uint64_t epoch = (uint64_t)((first + r) / t->rows);
        t->keys[r] =
            bd_random_key(o->seed, epoch, (uint64_t)step, (uint64_t)(micro * o->batch_rows + r));
        bd_row_plan_fill(t->plan, bd_row_order_at(t->order, first + r), &t->batch, r);
    }
    return prepare(t, err);
}

static bool next_evaluation(document_task *t, int64_t done, bd_error *err)
{
    const bd_document_task_options *o = &t->options;
    int64_t left = t->evaluation_rows - done;
    t->batch.rows = left < o->batch_rows ? left : o->batch_rows;
    for (int64_t r = 0; r < t->batch.rows; r++) {
        t->keys[r] = bd_random_key(o->seed, EVALUATION_EPOCH, 0, (uint64_t)(done + r));
        if (t->evaluation)
            bd_row_plan_fill(t->evaluation, done + r, &t->batch, r);
        else
            bd_row_plan_fill(t->plan, t->rows + done + r, &t->batch, r);
    }
    return prepare(t, err);
}

static bool forward(void *self, bd_tape *tape, bd_loss *loss, bd_error *err)
{
    document_task *t = self;
    bd_objective_rows rows = bd_objective_rows_of(&t->batch, t->weights);
    return bd_token_loss(&t->objective, &rows, t->options.model, tape, loss, err);
}

static bool evaluate(void *self, bd_tape *tape, bd_loss *loss, bd_error *err)
{
    document_task *t = self;
    for (int64_t done = 0; done < t->evaluation_rows; done += t->batch.rows) {
        bd_loss part = {0};
        size_t mark = bd_arena_mark(tape->arena);
        bool ok = next_evaluation(t, done, err) && forward(t, tape, &part, err);
        bd_arena_release(tape->arena, mark);
        if (!ok)
            return false;
        bd_loss_add(loss, &part);
    }
    return true;
}

static bool save_batch(void *self, const char *folder, bd_error *err)
{
    document_task *t = self;
    bd_objective_rows rows = bd_objective_rows_of(&t->batch, t->weights);
    return bd_token_rows_save(&t->objective, &rows, t->options.model, folder, err);
}

// --- what resume must match ----------------------------------------------------------------------

static void add_documents(bd_contract *c, const char *what, const bd_token_documents *d)
{
    char name[48];
    int64_t tokens = d->ends[d->count - 1];
    snprintf(name, sizeof name, "%s_documents", what);
    bd_contract_int(c, name, d->count);
    snprintf(name, sizeof name, "%s_sha256", what);
    bd_contract_hash(c, name, d->tokens, (size_t)tokens * sizeof *d->tokens);
    snprintf(name, sizeof name, "%s_ends_sha256", what);
    bd_contract_hash(c, name, d->ends, (size_t)d->count * sizeof *d->ends);
    if (!d->completion)
        return;
    snprintf(name, sizeof name, "%s_completion_sha256", what);
    bd_contract_hash(c, name, d->completion, (size_t)tokens);
}

static void add_rows(bd_contract *c, const bd_row_layout *rows)
{
    bd_contract_int(c, "sequence_length", rows->length);
    bd_contract_bool(c, "packing", rows->packing);
    bd_contract_bool(c, "cut_documents", rows->cut);
    bd_contract_text(c, "pad_policy", bd_pad_policy_name(rows->padding.policy));
    bd_contract_int(c, "pad_id", rows->padding.pad_id);
    bd_contract_int(c, "end_id", rows->padding.end_id);
}

static void add_canvas(bd_contract *c, const bd_document_task_options *o)
{
    bd_contract_int(c, "block_size", o->canvas.block_size);
    bd_contract_int(c, "mask_id", o->canvas.mask_id);
    bd_contract_text(c, "logit_alignment", bd_alignment_name(o->canvas.alignment));
    bd_contract_text(c, "canvas_policy", bd_canvas_policy_name(o->canvas.policy));
    bd_contract_text(c, "train_layout", bd_train_layout_name(o->layout));
    bd_contract_number(c, "min_noise", o->min_noise);
    bd_contract_bool(c, "inverse_noise_weights", o->inverse_noise);
}

static bool identity(void *self, bd_contract *contract, bd_error *err)
{
    const document_task *t = self;
    const bd_document_task_options *o = &t->options;
    bd_contract_text(contract, "objective", is_causal(t) ? "causal_lm" : "block_diffusion");
    if (!is_causal(t))
        add_canvas(contract, o);
    bd_contract_bool(contract, "completion_only", o->completion_only);
    add_documents(contract, "data", o->documents);
    if (o->evaluation)
        add_documents(contract, "evaluation", o->evaluation);
    add_rows(contract, &o->rows);
    bd_contract_int(contract, "batch_rows", o->batch_rows);
    bd_contract_int(contract, "evaluation_rows", t->evaluation_rows);
    bd_contract_int(contract, "epochs", o->epochs);
    bd_contract_int(contract, "seed", (int64_t)o->seed);
    bd_contract_number(contract, "z_loss", (double)o->z_loss);
    return bd_model_task_identity(o->model, &o->output, contract, err);
}

static bool save(void *self, const char *folder, bd_error *err)
{
    const bd_document_task_options *o = &((document_task *)self)->options;
    return bd_model_task_save(o->model, &o->output, folder, err);
}

// --- checks --------------------------------------------------------------------------------------

static bool check_tokens(const bd_token_documents *d, const char *what, int64_t vocabulary,
                         bd_error *err)
{
    for (int64_t i = 0; d->count > 0 && i < d->ends[d->count - 1]; i++)
        if (d->tokens[i] < 0 || d->tokens[i] >= vocabulary)
            return bd_fail(err, "%s: token %lld is %d, 0 to %lld expected", what, (long long)i,
                           d->tokens[i], (long long)vocabulary - 1);
    return true;
}

static bool check_completion(const bd_document_task_options *o, const bd_token_documents *d,
                             bd_error *err)
{
    if (!o->completion_only)
        return true;
    double share = bd_completion_share(d);
    if (share == 0)
        return bd_fail(err, "completion_only: no token of the data is of an answer, nothing would "
                            "be trained");
    if (share == 1)
        return bd_fail(err, "completion_only: every token of the data is of an answer; does the "
                            "chat template mark them?");
    return true;
}

static bool check_counts(const bd_document_task_options *o, bd_error *err)
{
    const bd_model_config *config = &o->model->config;
    if (o->rows.length < 1 || o->rows.length > config->max_positions)
        return bd_fail(err, "sequence_length: %lld, 1 to the model's %lld positions expected",
                       (long long)o->rows.length, (long long)config->max_positions);
    if (o->batch_rows < 1 || o->micro_batches < 1 || o->batch_rows > INT32_MAX / 4 / o->rows.length)
        return bd_fail(err, "batch_rows: %lld rows of %lld tokens in %lld micro-batches",
                       (long long)o->batch_rows, (long long)o->rows.length,
                       (long long)o->micro_batches);
    if (o->evaluation_rows < 0 || o->epochs < 0 || !(o->z_loss >= 0))
        return bd_fail(err,
                       "evaluation_rows %lld, epochs %lld, z_loss %g: nothing below 0 expected",
                       (long long)o->evaluation_rows, (long long)o->epochs, (double)o->z_loss);
    return true;
}

static bool check_objective(const bd_document_task_options *o, bd_error *err)
{
    if (o->canvas.block_size == 0) {
        // In-block attention would show every token its target (I-11, B-33).
        if (o->model->config.diffusion.block_size == 0)
            return true;
        return bd_fail(err,
                       "objective causal_lm on a block-diffusion model (blocks of %lld): "
                       "objective block_diffusion wanted",
                       (long long)o->model->config.diffusion.block_size);
    }
    bd_corruption_options corruption = bd_corruption_default();
    corruption.min_noise = o->min_noise;
    return bd_canvas_check_model(&o->canvas, &o->model->config, err) &&
           bd_corruption_check(&o->canvas, &corruption, err);
}

static bool check(const bd_document_task_options *o, bd_error *err)
{
    int64_t vocabulary = o->model->config.vocabulary;
    if (!check_counts(o, err) || !check_objective(o, err) ||
        !bd_model_output_check(&o->output, err) ||
        !check_tokens(o->documents, "data", vocabulary, err) ||
        !check_completion(o, o->documents, err))
        return false;
    return !o->evaluation || (check_tokens(o->evaluation, "evaluation data", vocabulary, err) &&
                              check_completion(o, o->evaluation, err));
}

// --- creating ------------------------------------------------------------------------------------

bd_document_task_options bd_document_task_default(bd_model *model,
                                                  const bd_token_documents *documents)
{
    return (bd_document_task_options){
        .name = "pretrain",
        .model = model,
        .documents = documents,
        .rows = {.packing = true, .cut = true, .padding = {.end_id = -1}},
        .min_noise = 1e-3,
        .batch_rows = 8,
        .micro_batches = 1,
        .output = {.save_dtype = BD_F32}};
}

static void destroy(document_task *t)
{
    if (!t)
        return;
    bd_row_order_free(t->order);
    bd_row_plan_free(t->plan);
    bd_row_plan_free(t->evaluation);
    if (t->arena)
        bd_arena_destroy(t->arena);
    free(t);
}

static bool plan_rows(document_task *t, bd_error *err)
{
    const bd_document_task_options *o = &t->options;
    if (!(t->plan = bd_row_plan_create(o->documents, &o->rows, err)))
        return false;
    int64_t rows = bd_row_plan_rows(t->plan);
    t->evaluation_rows = o->evaluation_rows;
    if (o->evaluation) {
        if (!(t->evaluation = bd_row_plan_create(o->evaluation, &o->rows, err)))
            return bd_error_wrap(err, "evaluation");
        if (t->evaluation_rows > bd_row_plan_rows(t->evaluation))
            t->evaluation_rows = bd_row_plan_rows(t->evaluation);
    } else {
        rows -= t->evaluation_rows;
    }
    t->rows = rows;
    if (rows < 1)
        return bd_fail(err,
                       "data: %lld rows of %lld tokens, more than the %lld held out for "
                       "evaluation expected",
                       (long long)bd_row_plan_rows(t->plan), (long long)o->rows.length,
                       (long long)t->evaluation_rows);
    return (t->order = bd_row_order_create(rows, o->seed, err)) != NULL;
}

static bool make_batch(document_task *t, bd_error *err)
{
    const bd_document_task_options *o = &t->options;
    int64_t cells = o->batch_rows * o->rows.length;
    // Nine fields, weights and noise, and the scratch of preparing them.
    if (!(t->arena = bd_arena_create((size_t)cells * 4 * 32 + (1 << 16), err)))
        return false;
    t->batch = bd_diffusion_batch_allocate(t->arena, o->batch_rows, o->rows.length);
    t->weights = bd_arena_zeros(t->arena, cells);
    t->noise = bd_arena_zeros(t->arena, cells);
    t->keys = bd_arena_alloc(t->arena, (size_t)o->batch_rows * sizeof *t->keys);
    return true;
}

static document_task *create(const bd_document_task_options *o, bd_error *err)
{
    document_task *t = calloc(1, sizeof *t);
    if (!t) {
        bd_fail_as(err, BD_ERROR_SYSTEM, "data: no memory for a task");
        return NULL;
    }
    t->options = *o;
    bool causal = o->canvas.block_size == 0;
    // Batches are target aligned, so the causal objective is the shifted alignment.
    t->objective = (bd_objective){.alignment = causal ? BD_SHIFTED : o->canvas.alignment,
                                  .block_size = o->canvas.block_size,
                                  .layout = causal ? BD_TRAIN_SINGLE : o->layout,
                                  .z_loss = o->z_loss};
    if (plan_rows(t, err) && make_batch(t, err))
        return t;
    destroy(t);
    return NULL;
}

bool bd_document_task_create(const bd_document_task_options *options, bd_task *task, bd_error *err)
{
    document_task *t = check(options, err) ? create(options, err) : NULL;
    if (!t)
        return false;
    if (!is_causal(t))
        bd_canvas_to_model(&options->canvas, &options->model->config);
    *task = (bd_task){.self = t,
                      .name = options->name,
                      .parameters = &options->model->parameters,
                      .perplexity = is_causal(t) && options->z_loss == 0,
                      .next = next,
                      .forward = forward,
                      .identity = identity,
                      .evaluate = t->evaluation_rows > 0 ? evaluate : NULL,
                      .save = save,
                      .save_batch = save_batch};
    return true;
}

void bd_document_task_free(bd_task *task)
{
    destroy(task->self);
    *task = (bd_task){0};
}

int64_t bd_document_task_rows(const bd_task *task)
{
    return ((const document_task *)task->self)->rows;
}

int64_t bd_document_task_evaluation_rows(const bd_task *task)
{
    return ((const document_task *)task->self)->evaluation_rows;
}

const bd_diffusion_batch *bd_document_task_batch(const bd_task *task, const float **weights)
{
    const document_task *t = task->self;
    if (weights)
        *weights = t->weights;
    return &t->batch;
}
