/* probe_model.c - a model's forward and backward pass, accumulation, whole updates. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/probe.h"
#include "train/optimizer.h"
#include "train/schedule.h"
#include "train/token_loss.h"

/* The stored batches of a case, one after the other, and the model they are for. */
typedef struct {
    bd_model *model;
    int64_t count, rows, length; /* count batches of [rows, length] */
    const int32_t *inputs, *targets, *positions, *segments;
    const float *weights;
    bd_alignment alignment;
    int64_t block_size; /* 0: causal */
} batches;

static bool open_batches(bd_probe *probe, int rank, batches *b, bd_error *err)
{
    int64_t shape[BD_TENSOR_RANK];
    char folder[BD_PATH];
    *b = (batches){.count = 1};
    if (!(b->inputs = bd_probe_ints(probe, "inputs", rank, shape, err)) ||
        !(b->targets = bd_probe_ints(probe, "targets", rank, NULL, err)) ||
        !(b->positions = bd_probe_ints(probe, "positions", rank, NULL, err)) ||
        !(b->segments = bd_probe_ints(probe, "segments", rank, NULL, err)) ||
        !(b->weights = bd_probe_floats(probe, "weights", rank, NULL, err)) ||
        !bd_probe_folder(probe, "model", folder, err) ||
        !bd_alignment_from_name(bd_probe_word(probe->json, "alignment", "same_position"),
                                &b->alignment, err))
        return false;
    for (int i = 0; i < rank - 2; i++)
        b->count *= shape[i];
    b->rows = shape[rank - 2];
    b->length = shape[rank - 1];
    b->block_size = json_integer_value(json_object_get(probe->json, "block_size"));
    if (!strcmp(bd_probe_word(probe->json, "attention", "causal"), "causal"))
        b->block_size = 0;
    b->model = bd_model_open(folder, BD_F32, err);
    return b->model && bd_model_train(b->model, err);
}

static bd_objective_rows rows_at(const batches *b, int64_t index)
{
    int64_t offset = index * b->rows * b->length;
    return (bd_objective_rows){
        .placement = {b->rows, b->length, b->positions + offset, b->segments + offset},
        .inputs = b->inputs + offset,
        .targets = b->targets + offset,
        .weights = b->weights + offset};
}

static bool run(const bd_objective_rows *rows, batches *b, bd_probe *probe, bd_weighted *out,
                bd_error *err)
{
    bd_objective objective = {.alignment = b->alignment, .block_size = b->block_size};
    bd_loss loss = {0};
    bd_tape tape = bd_tape_begin(probe->arena, BD_F32, true);
    bool ok = bd_token_loss(&objective, rows, b->model, &tape, &loss, err);
    *out = loss.loss;
    return ok;
}

static void put_gradients(bd_probe *probe, const batches *b, double factor)
{
    bd_gradient_scale(&b->model->parameters, factor);
    for (int64_t i = 0; i < b->model->parameters.count; i++) {
        const bd_parameter *p = b->model->parameters.items[i];
        char name[300];
        snprintf(name, sizeof name, "grad.%s", p->name);
        bd_probe_put(probe, name, BD_F32, p->rank, p->shape, p->gradient);
    }
}

/* Raw logits of every slot and the unweighted cross entropy where a weight is. */
static void put_logits(bd_probe *probe, const bd_objective_rows *rows, batches *b)
{
    const bd_placement *place = &rows->placement;
    int64_t cells = place->rows * place->length, vocabulary = b->model->config.vocabulary;
    bd_visibility rule = {.kind = b->block_size ? BD_BLOCK_DIFFUSION : BD_CAUSAL,
                          .block_size = b->block_size,
                          .query_length = place->length,
                          .key_length = place->length,
                          .query_position = place->positions,
                          .key_position = place->positions,
                          .query_segment = place->segments,
                          .key_segment = place->segments};
    bd_tape tape = bd_tape_begin(probe->arena, BD_F32, false);
    bd_value *hidden = bd_model_forward(b->model, &tape,
                                        &(bd_forward){.tokens = rows->inputs,
                                                      .rows = place->rows,
                                                      .length = place->length,
                                                      .positions = place->positions,
                                                      .rule = &rule});
    float *logits = bd_arena_floats(probe->arena, cells * vocabulary);
    float *token_loss = bd_arena_zeros(probe->arena, cells);
    int32_t *source = bd_arena_ints(probe->arena, cells);
    bd_alignment_source(b->alignment, place, source, probe->arena);
    bd_model_logits(b->model, hidden->data, cells, logits, probe->arena);
    for (int64_t i = 0; i < cells; i++) {
        if (place->segments[i] == 0)
            memset(logits + i * vocabulary, 0, (size_t)vocabulary * sizeof(float));
        if (source[i] < 0 || rows->weights[i] == 0)
            continue;
        const float *row = logits + (i / place->length * place->length + source[i]) * vocabulary;
        token_loss[i] = bd_log_sum_exp(row, vocabulary) - row[rows->targets[i]];
    }
    int64_t shape[3] = {place->rows, place->length, vocabulary};
    bd_probe_put(probe, "logits", BD_F32, 3, shape, logits);
    bd_probe_put(probe, "token_loss", BD_F32, 2, shape, token_loss);
    bd_probe_put_ints(probe, "source", BD_I32, 2, shape, source);
}

bool bd_probe_model(bd_probe *probe, bd_error *err)
{
    batches b;
    bd_weighted loss;
    bool ok = open_batches(probe, 2, &b, err);
    bd_objective_rows rows = ok ? rows_at(&b, 0) : (bd_objective_rows){0};
    ok = ok && run(&rows, &b, probe, &loss, err);
    if (ok) {
        put_logits(probe, &rows, &b);
        put_gradients(probe, &b, bd_weighted_factor(loss));
        bd_probe_scalar(probe, "loss_sum", loss.sum);
        bd_probe_scalar(probe, "weight_sum", loss.denominator);
        bd_probe_scalar(probe, "loss", bd_weighted_value(loss));
        json_object_set_new(probe->answer, "grad_all_zero", json_boolean(loss.denominator == 0));
    }
    bd_model_close(b.model);
    return ok;
}

bool bd_probe_accumulate(bd_probe *probe, bd_error *err)
{
    batches b;
    bool ok = open_batches(probe, 3, &b, err);
    json_t *sums = json_array(), *weights = json_array();
    bd_weighted total = {0};
    double means = 0;
    for (int64_t i = 0; ok && i < b.count; i++) {
        bd_objective_rows rows = rows_at(&b, i);
        bd_weighted part;
        if (!(ok = run(&rows, &b, probe, &part, err)))
            break;
        json_array_append_new(sums, json_real(part.sum));
        json_array_append_new(weights, json_real(part.denominator));
        means += bd_weighted_value(part) / (double)b.count;
        total.sum += part.sum;
        total.denominator += part.denominator;
    }
    json_object_set_new(probe->answer, "micro_sums", sums);
    json_object_set_new(probe->answer, "micro_weights", weights);
    if (ok) {
        put_gradients(probe, &b, bd_weighted_factor(total));
        bd_probe_scalar(probe, "weight_total", total.denominator);
        bd_probe_scalar(probe, "loss", bd_weighted_value(total));
        bd_probe_scalar(probe, "mean_of_micro_means", means);
        bd_probe_scalar(probe, "grad_norm", bd_gradient_norm(&b.model->parameters));
        json_object_set_new(probe->answer, "grad_all_zero", json_boolean(total.denominator == 0));
    }
    bd_model_close(b.model);
    return ok;
}

// --- whole updates -------------------------------------------------------------------------------

static bool read_options(bd_probe *probe, bd_optimizer_options *options, bd_schedule *schedule,
                         bd_error *err)
{
    json_t *adamw = json_object_get(probe->json, "adamw"),
           *rate = json_object_get(probe->json, "schedule");
    *options = bd_optimizer_default();
    options->b1 = bd_probe_option(probe, adamw, "b1", options->b1);
    options->b2 = bd_probe_option(probe, adamw, "b2", options->b2);
    options->eps = bd_probe_option(probe, adamw, "eps", options->eps);
    options->eps_root = bd_probe_option(probe, adamw, "eps_root", options->eps_root);
    options->weight_decay = bd_probe_option(probe, adamw, "weight_decay", options->weight_decay);
    options->decay_matrices_only = bd_probe_option(probe, adamw, "decay_only_matrices", 1) != 0;
    options->clip = bd_probe_option(probe, probe->json, "clip", 0);
    options->m_dtype =
        strcmp(bd_probe_word(probe->json, "m_kind", "fp32"), "bf16") ? BD_F32 : BD_BF16;
    options->v_dtype =
        strcmp(bd_probe_word(probe->json, "v_kind", "fp32"), "bf16") ? BD_F32 : BD_BF16;
    *schedule = (bd_schedule){.peak = bd_probe_option(probe, rate, "peak", 0),
                              .final_fraction = bd_probe_option(probe, rate, "final_fraction", 0),
                              .warmup = (int64_t)bd_probe_option(probe, rate, "warmup", 0),
                              .total = (int64_t)bd_probe_option(probe, rate, "total", 0),
                              .endpoint = bd_probe_option(probe, rate, "endpoint", 1) != 0};
    return bd_schedule_from_name(bd_probe_word(rate, "kind", "constant"), &schedule->kind, err);
}

static void put_parameters(bd_probe *probe, const batches *b, const bd_optimizer *optimizer)
{
    for (int64_t i = 0; i < b->model->parameters.count; i++) {
        const bd_parameter *p = b->model->parameters.items[i];
        char name[300];
        snprintf(name, sizeof name, "param.%s", p->name);
        bd_probe_put(probe, name, BD_F32, p->rank, p->shape, p->value);
        snprintf(name, sizeof name, "m.%s", p->name);
        bd_probe_put(probe, name, optimizer->options.m_dtype, p->rank, p->shape,
                     optimizer->moments[i].m);
        snprintf(name, sizeof name, "v.%s", p->name);
        bd_probe_put(probe, name, optimizer->options.v_dtype, p->rank, p->shape,
                     optimizer->moments[i].v);
    }
}

bool bd_probe_train(bd_probe *probe, bd_error *err)
{
    batches b;
    bd_optimizer *optimizer = NULL;
    bd_optimizer_options options;
    bd_schedule schedule;
    bool ok = open_batches(probe, 4, &b, err) && read_options(probe, &options, &schedule, err) &&
              (optimizer = bd_optimizer_create(&b.model->parameters, &options, err));
    int64_t micro = (int64_t)bd_probe_option(probe, probe->json, "micro_batches", 1);
    json_t *log = json_array();
    for (int64_t step = 0; ok && step < b.count / micro; step++) {
        bd_weighted total = {0};
        bd_parameters_zero_gradients(&b.model->parameters);
        for (int64_t i = 0; ok && i < micro; i++) {
            bd_objective_rows rows = rows_at(&b, step * micro + i);
            bd_weighted part;
            ok = run(&rows, &b, probe, &part, err);
            total.sum += part.sum;
            total.denominator += part.denominator;
        }
        double rate = bd_schedule_rate(&schedule, step);
        double norm = bd_optimizer_step(optimizer, total, rate);
        json_array_append_new(log, json_pack("{s:f,s:f,s:f,s:f}", "loss", bd_weighted_value(total),
                                             "weight", total.denominator, "grad_norm", norm, "lr",
                                             rate));
    }
    if (ok)
        put_parameters(probe, &b, optimizer);
    json_object_set_new(probe->answer, "log", log);
    bd_optimizer_free(optimizer);
    bd_model_close(b.model);
    return ok;
}
