#include "train/pretrain_task.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "train/model_task.h"
#include "train/row_order.h"
#include "train/token_loss.h"

typedef struct {
    bd_pretrain_options options;
    int64_t rows; // for training; those held out follow
    bd_row_order *order;
    bd_objective objective;
    // The prepared batch, [batch_rows, sequence_length]. Weights and rows of one document.
    int32_t *inputs, *targets;
    float *weights;
    int64_t batch_rows; // rows in it now
} pretrain;

static int64_t all_rows(const bd_pretrain_options *o)
{
    return o->token_count > 0 ? (o->token_count - 1) / o->sequence_length : 0;
}

int64_t bd_pretrain_rows(const bd_pretrain_options *options)
{
    int64_t rows = all_rows(options) - options->evaluation_rows;
    return rows > 0 ? rows : 0;
}

int64_t bd_pretrain_steps_per_epoch(const bd_pretrain_options *options)
{
    return bd_pretrain_rows(options) / (options->batch_rows * options->micro_batches);
}

// --- batches -------------------------------------------------------------------------------------

static void put_row(pretrain *p, int64_t slot, int64_t row)
{
    int64_t length = p->options.sequence_length;
    const int32_t *tokens = p->options.tokens + row * length;
    memcpy(p->inputs + slot * length, tokens, (size_t)length * sizeof *tokens);
    memcpy(p->targets + slot * length, tokens + 1, (size_t)length * sizeof *tokens);
}

static bool next(void *self, int64_t step, int64_t micro, bd_error *err)
{
    pretrain *p = self;
    const bd_pretrain_options *o = &p->options;
    int64_t first = (step * o->micro_batches + micro) * o->batch_rows;
    if (o->epochs > 0 && first + o->batch_rows > o->epochs * p->rows)
        return bd_fail_as(err, BD_ERROR_EXHAUSTED,
                          "data: %lld epochs of %lld rows end before step %lld, micro-batch %lld",
                          (long long)o->epochs, (long long)p->rows, (long long)step,
                          (long long)micro);
    for (int64_t r = 0; r < o->batch_rows; r++)
        put_row(p, r, bd_row_order_at(p->order, first + r));
    p->batch_rows = o->batch_rows;
    return true;
}

static bd_objective_rows current_rows(const pretrain *p)
{
    return (bd_objective_rows){
        .placement = {.rows = p->batch_rows, .length = p->options.sequence_length},
        .inputs = p->inputs,
        .targets = p->targets,
        .weights = p->weights};
}

static bool forward(void *self, bd_tape *tape, bd_loss *loss, bd_error *err)
{
    pretrain *p = self;
    bd_objective_rows rows = current_rows(p);
    return bd_token_loss(&p->objective, &rows, p->options.model, tape, loss, err);
}

static bool evaluate(void *self, bd_tape *tape, bd_loss *loss, bd_error *err)
{
    pretrain *p = self;
    const bd_pretrain_options *o = &p->options;
    for (int64_t done = 0; done < o->evaluation_rows; done += p->batch_rows) {
        int64_t left = o->evaluation_rows - done;
        p->batch_rows = left < o->batch_rows ? left : o->batch_rows;
        for (int64_t r = 0; r < p->batch_rows; r++)
            put_row(p, r, p->rows + done + r);
        bd_loss part = {0};
        size_t mark = bd_arena_mark(tape->arena);
        bool ok = forward(p, tape, &part, err);
        bd_arena_release(tape->arena, mark);
        if (!ok)
            return false;
        bd_loss_add(loss, &part);
    }
    return true;
}

static bool save_batch(void *self, const char *folder, bd_error *err)
{
    pretrain *p = self;
    bd_objective_rows rows = current_rows(p);
    return bd_token_rows_save(&p->objective, &rows, p->options.model, folder, err);
}

// --- what resume must match ----------------------------------------------------------------------

static bd_model_output output_of(const bd_pretrain_options *o)
{
    return (bd_model_output){
        .save_dtype = o->save_dtype, .start = o->start, .companions = o->companions};
}

static bool identity(void *self, bd_contract *contract, bd_error *err)
{
    pretrain *p = self;
    const bd_pretrain_options *o = &p->options;
    bd_contract_text(contract, "objective", "causal_lm");
    bd_contract_int(contract, "data_tokens", o->token_count);
    bd_contract_hash(contract, "data_sha256", o->tokens,
                     (size_t)o->token_count * sizeof *o->tokens);
    bd_contract_int(contract, "sequence_length", o->sequence_length);
    bd_contract_int(contract, "batch_rows", o->batch_rows);
    bd_contract_int(contract, "evaluation_rows", o->evaluation_rows);
    bd_contract_int(contract, "epochs", o->epochs);
    bd_contract_int(contract, "seed", (int64_t)o->seed);
    bd_contract_number(contract, "z_loss", (double)o->z_loss);
    bd_model_output output = output_of(o);
    return bd_model_task_identity(o->model, &output, contract, err);
}

// --- saving --------------------------------------------------------------------------------------

static bool save(void *self, const char *folder, bd_error *err)
{
    const bd_pretrain_options *o = &((pretrain *)self)->options;
    bd_model_output output = output_of(o);
    return bd_model_task_save(o->model, &output, folder, err);
}

// --- creating ------------------------------------------------------------------------------------

static bool check(const bd_pretrain_options *o, bd_error *err)
{
    const bd_model_config *config = &o->model->config;
    if (o->sequence_length < 1 || o->sequence_length > config->max_positions)
        return bd_fail(err, "sequence_length: %lld, 1 to the model's %lld positions expected",
                       (long long)o->sequence_length, (long long)config->max_positions);
    if (o->batch_rows < 1 || o->micro_batches < 1 ||
        o->batch_rows > INT32_MAX / 2 / o->sequence_length)
        return bd_fail(err, "batch_rows: %lld rows of %lld tokens in %lld micro-batches",
                       (long long)o->batch_rows, (long long)o->sequence_length,
                       (long long)o->micro_batches);
    if (o->evaluation_rows < 0 || o->epochs < 0 || !(o->z_loss >= 0))
        return bd_fail(err,
                       "evaluation_rows %lld, epochs %lld, z_loss %g: nothing below 0 expected",
                       (long long)o->evaluation_rows, (long long)o->epochs, (double)o->z_loss);
    if (!bd_dtype_is_float(o->save_dtype))
        return bd_fail_as(err, BD_ERROR_TYPE, "save_dtype: %s, a float type expected",
                          bd_dtype_name(o->save_dtype));
    if (bd_pretrain_rows(o) < 1)
        return bd_fail(
            err,
            "data: %lld tokens make %lld rows of %lld tokens, more than the %lld held out for "
            "evaluation expected",
            (long long)o->token_count, (long long)all_rows(o), (long long)o->sequence_length,
            (long long)o->evaluation_rows);
    for (int64_t i = 0; i < o->token_count; i++)
        if (o->tokens[i] < 0 || o->tokens[i] >= config->vocabulary)
            return bd_fail(err, "data: token %lld is %d, 0 to %lld expected", (long long)i,
                           o->tokens[i], (long long)config->vocabulary - 1);
    return true;
}

static void destroy(pretrain *p)
{
    if (!p)
        return;
    bd_row_order_free(p->order);
    free(p->inputs);
    free(p->targets);
    free(p->weights);
    free(p);
}

static pretrain *create(const bd_pretrain_options *o, bd_error *err)
{
    size_t cells = (size_t)(o->batch_rows * o->sequence_length);
    pretrain *p = calloc(1, sizeof *p);
    if (p) {
        *p = (pretrain){.options = *o,
                        .rows = bd_pretrain_rows(o),
                        .objective = {.alignment = BD_SAME_POSITION, .z_loss = o->z_loss},
                        .inputs = malloc(cells * sizeof *p->inputs),
                        .targets = malloc(cells * sizeof *p->targets),
                        .weights = malloc(cells * sizeof *p->weights)};
    }
    if (!p || !p->inputs || !p->targets || !p->weights) {
        bd_fail_as(err, BD_ERROR_SYSTEM, "data: no memory for a batch of %zu tokens", cells);
    } else if ((p->order = bd_row_order_create(p->rows, o->seed, err))) {
        for (size_t i = 0; i < cells; i++)
            p->weights[i] = 1;
        return p;
    }
    destroy(p);
    return NULL;
}

bool bd_pretrain_task_create(const bd_pretrain_options *options, bd_task *task, bd_error *err)
{
    pretrain *p = check(options, err) ? create(options, err) : NULL;
    if (!p)
        return false;
    *task = (bd_task){.self = p,
                      .name = "pretrain",
                      .parameters = &options->model->parameters,
                      .perplexity = options->z_loss == 0,
                      .next = next,
                      .forward = forward,
                      .identity = identity,
                      .evaluate = options->evaluation_rows > 0 ? evaluate : NULL,
                      .save = save,
                      .save_batch = save_batch};
    return true;
}

void bd_pretrain_task_free(bd_task *task)
{
    destroy(task->self);
    *task = (bd_task){0};
}
