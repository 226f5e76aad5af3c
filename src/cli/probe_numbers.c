/* probe_numbers.c - cases without a model: cross entropy, AdamW, clipping, target forward passes.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/probe.h"
#include "format/json.h"
#include "model/model.h"
#include "tensor/optimizer.h"
#include "train/optimizer.h"

bool bd_probe_cross_entropy(bd_probe *probe, bd_error *err)
{
    int64_t shape[BD_TENSOR_RANK];
    const float *logits = bd_probe_floats(probe, "logits", 3, shape, err);
    const int32_t *targets = logits ? bd_probe_ints(probe, "targets", 2, NULL, err) : NULL;
    const float *weights = targets ? bd_probe_floats(probe, "weights", 2, NULL, err) : NULL;
    if (!weights)
        return false;
    int64_t rows = shape[0] * shape[1], vocabulary = shape[2];
    float *token_loss = bd_arena_zeros(probe->arena, rows);
    float *gradient = bd_arena_zeros(probe->arena, rows * vocabulary);
    const bd_vocabulary_loss loss = {.rows = rows,
                                     .vocabulary = vocabulary,
                                     .scale = weights,
                                     .targets = targets,
                                     .hard = 1,
                                     .hard_loss = token_loss};
    bd_vocabulary_loss_on_logits(&loss, logits, gradient);
    double sum = 0, weight = 0;
    for (int64_t i = 0; i < rows; i++) {
        sum += (double)weights[i] * (double)token_loss[i];
        weight += (double)weights[i];
    }
    bd_probe_put(probe, "token_loss", BD_F32, 2, shape, token_loss);
    bd_probe_put(probe, "grad_logits", BD_F32, 3, shape, gradient);
    bd_probe_scalar(probe, "loss_sum", sum);
    bd_probe_scalar(probe, "weight_sum", weight);
    bd_probe_scalar(probe, "loss", weight != 0 ? sum / weight : 0);
    return true;
}

bool bd_probe_adamw(bd_probe *probe, bd_error *err)
{
    int64_t shape[BD_TENSOR_RANK];
    const float *start = bd_probe_floats(probe, "param0", 1, NULL, err);
    const float *gradients = start ? bd_probe_floats(probe, "grads", 2, shape, err) : NULL;
    if (!gradients)
        return false;
    json_t *json = probe->json;
    bool m_half = !strcmp(bd_probe_word(json, "m_kind", "fp32"), "bf16");
    bool v_half = !strcmp(bd_probe_word(json, "v_kind", "fp32"), "bf16");
    bd_dtype m_dtype = m_half ? BD_BF16 : BD_F32, v_dtype = v_half ? BD_BF16 : BD_F32;
    int64_t steps = shape[0], n = shape[1];
    size_t m_row = (size_t)n * bd_dtype_size(m_dtype), v_row = (size_t)n * bd_dtype_size(v_dtype);
    float *parameter = bd_arena_floats(probe->arena, n),
          *all = bd_arena_floats(probe->arena, steps * n);
    char *m = bd_arena_alloc(probe->arena, m_row), *v = bd_arena_alloc(probe->arena, v_row);
    char *all_m = bd_arena_alloc(probe->arena, m_row * (size_t)steps);
    char *all_v = bd_arena_alloc(probe->arena, v_row * (size_t)steps);
    memcpy(parameter, start, (size_t)n * sizeof(float));
    memset(m, 0, m_row);
    memset(v, 0, v_row);
    bd_adamw options = {.b1 = bd_probe_option(probe, json, "b1", 0.9),
                        .b2 = bd_probe_option(probe, json, "b2", 0.999),
                        .eps = bd_probe_option(probe, json, "eps", 1e-8),
                        .eps_root = bd_probe_option(probe, json, "eps_root", 0),
                        .learning_rate = bd_probe_option(probe, json, "lr", 0),
                        .weight_decay = bd_probe_option(probe, json, "weight_decay", 0),
                        .gradient_factor = 1};
    for (int64_t step = 0; step < steps; step++) {
        options.step = step + 1;
        bd_adamw_update(&options, n, parameter, gradients + step * n, m_dtype, m, v_dtype, v);
        memcpy(all + step * n, parameter, (size_t)n * sizeof(float));
        memcpy(all_m + m_row * (size_t)step, m, m_row);
        memcpy(all_v + v_row * (size_t)step, v, v_row);
    }
    bd_probe_put(probe, "params", BD_F32, 2, shape, all);
    bd_probe_put(probe, "m", m_dtype, 2, shape, all_m);
    bd_probe_put(probe, "v", v_dtype, 2, shape, all_v);
    return true;
}

static void tap_all_layers(const bd_model *model, int64_t *layers)
{
    for (int64_t i = 0; i <= model->config.layers; i++)
        layers[i] = i;
}

/* hidden/i side by side in `taps` become tensors of their own. */
static void put_hidden(bd_probe *probe, const float *taps, int64_t batch, int64_t length,
                       int64_t count, int64_t hidden)
{
    float *one = bd_arena_floats(probe->arena, batch * length * hidden);
    for (int64_t i = 0; i < count; i++) {
        for (int64_t r = 0; r < batch * length; r++)
            memcpy(one + r * hidden, taps + (r * count + i) * hidden,
                   (size_t)hidden * sizeof(float));
        char name[32];
        snprintf(name, sizeof name, "hidden/%lld", (long long)i);
        bd_probe_put(probe, name, BD_F32, 3, (int64_t[]){batch, length, hidden}, one);
    }
}

bool bd_probe_target_forward(bd_probe *probe, bd_error *err)
{
    char folder[BD_PATH];
    int64_t shape[BD_TENSOR_RANK];
    const int32_t *tokens = bd_probe_ints(probe, "input_ids", 2, shape, err);
    if (!tokens || !bd_probe_folder(probe, "target", folder, err))
        return false;
    bd_model *model = bd_model_open(folder, BD_F32, err);
    if (!model)
        return false;
    int64_t batch = shape[0], length = shape[1], hidden = model->config.hidden;
    int64_t vocabulary = model->config.vocabulary, rows = batch * length,
            count = model->config.layers + 1;
    int64_t layers[BD_MOST_LAYERS + 1];
    tap_all_layers(model, layers);
    bd_hidden_request request = {.layers = layers,
                                 .count = count,
                                 .out = bd_arena_floats(probe->arena, rows * count * hidden)};
    float *prenorm = bd_arena_floats(probe->arena, rows * hidden);
    float *logits = bd_arena_floats(probe->arena, rows * vocabulary);
    bd_tape tape = bd_tape_begin(probe->arena, BD_F32, false);
    bd_value *out = bd_model_forward(model, &tape,
                                     &(bd_forward){.tokens = tokens,
                                                   .rows = batch,
                                                   .length = length,
                                                   .hidden = &request,
                                                   .prenorm = prenorm});
    bd_model_logits(model, out->data, rows, logits, probe->arena);
    put_hidden(probe, request.out, batch, length, count, hidden);
    bd_probe_put(probe, "prenorm", BD_F32, 3, (int64_t[]){batch, length, hidden}, prenorm);
    bd_probe_put(probe, "logits", BD_F32, 3, (int64_t[]){batch, length, vocabulary}, logits);
    json_t *best = json_array();
    for (int64_t b = 0; b < batch; b++) {
        json_t *row = json_array();
        for (int64_t i = 0; i < length; i++)
            json_array_append_new(
                row, json_integer(bd_argmax(logits + (b * length + i) * vocabulary, vocabulary)));
        json_array_append_new(best, row);
    }
    json_object_set_new(probe->answer, "argmax", best);
    bd_model_close(model);
    return true;
}

bool bd_probe_clip(bd_probe *probe, bd_error *err)
{
    enum { MOST = 64 };
    static bd_parameter parameters[MOST];
    bd_parameter *items[MOST];
    bd_parameters list = {items, 0};
    for (int64_t i = 0; i < bd_safetensors_count(probe->inputs) && list.count < MOST; i++) {
        const bd_tensor *tensor = bd_safetensors_at(probe->inputs, i);
        if (strncmp(tensor->name, "grad.", 5) != 0)
            continue;
        float *gradient = bd_arena_floats(probe->arena, tensor->count);
        if (!bd_safetensors_read_f32(probe->inputs, tensor->name, tensor->rank, tensor->shape,
                                     gradient, err))
            return false;
        bd_parameter *p = items[list.count] = &parameters[list.count];
        list.count++;
        *p = (bd_parameter){.name = tensor->name,
                            .rank = tensor->rank,
                            .count = tensor->count,
                            .gradient = gradient};
        memcpy(p->shape, tensor->shape, sizeof p->shape);
    }
    double norm = bd_gradient_norm(&list);
    bd_gradient_scale(&list, bd_clip_factor(norm, bd_probe_option(probe, probe->json, "limit", 0)));
    bd_probe_scalar(probe, "norm", norm);
    for (int64_t i = 0; i < list.count; i++) {
        char name[80];
        snprintf(name, sizeof name, "clipped.%.60s", items[i]->name + 5);
        bd_probe_put(probe, name, BD_F32, items[i]->rank, items[i]->shape, items[i]->gradient);
    }
    return true;
}
