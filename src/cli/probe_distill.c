/* probe_distill.c - distillation losses on given logits, and from a rollout to a gradient. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/probe.h"
#include "distill/prepare.h"
#include "format/json.h"

static bool read_objective(bd_probe *probe, json_t *options, bd_distill_objective *objective,
                           bd_error *err)
{
    *objective = bd_distill_objective_default();
    objective->temperature = bd_probe_option(probe, options, "temperature", 1);
    objective->soft = bd_probe_option(probe, options, "soft", 1);
    objective->hard = bd_probe_option(probe, options, "hard", 0);
    objective->divergence = !strcmp(bd_probe_word(options, "direction", "forward"), "reverse")
                                ? BD_DIVERGENCE_REVERSE_KL
                                : BD_DIVERGENCE_FORWARD_KL;
    return bd_distill_objective_check(objective, err);
}

static void put_sums(bd_probe *probe, const bd_distill_result *result)
{
    bd_probe_scalar(probe, "soft_sum", result->soft_sum);
    bd_probe_scalar(probe, "hard_sum", result->hard_sum);
    bd_probe_scalar(probe, "total_sum", result->total_sum);
    bd_probe_scalar(probe, "weight_sum", result->weight_sum);
    bd_probe_scalar(probe, "loss",
                    result->weight_sum > 0 ? result->total_sum / result->weight_sum : 0);
}

bool bd_probe_distill(bd_probe *probe, bd_error *err)
{
    int64_t shape[BD_TENSOR_RANK];
    bd_distill_objective objective;
    const float *student, *teacher, *weights;
    const int32_t *targets;
    if (!(student = bd_probe_floats(probe, "student_logits", 3, shape, err)) ||
        !(teacher = bd_probe_floats(probe, "teacher_logits", 3, NULL, err)) ||
        !(targets = bd_probe_ints(probe, "targets", 2, NULL, err)) ||
        !(weights = bd_probe_floats(probe, "weights", 2, NULL, err)) ||
        !read_objective(probe, probe->json, &objective, err))
        return false;
    int64_t rows = shape[0] * shape[1];
    bd_distill_result result = {0};
    float *gradient = bd_arena_zeros(probe->arena, rows * shape[2]);
    if (!bd_distill_check_logits(&objective, rows, shape[2], teacher, targets, weights, err))
        return false;
    bd_distill_loss_on_logits(&objective, rows, shape[2], student, teacher, targets, weights,
                              gradient, &result, probe->arena);
    bd_probe_put(probe, "soft_token", BD_F32, 2, shape, result.soft);
    bd_probe_put(probe, "hard_token", BD_F32, 2, shape, result.hard);
    bd_probe_put(probe, "grad_student_logits", BD_F32, 3, shape, gradient);
    put_sums(probe, &result);
    return true;
}

// --- on-policy -----------------------------------------------------------------------------------

typedef struct {
    bd_distiller distiller;
    bd_distill_rows rows;
    int32_t *after; /* [transitions, rows, length] */
    int64_t transitions, room, cells;
    json_t *trace;
} on_policy;

static void keep(void *self, const bd_transition *t)
{
    on_policy *o = self;
    if (o->transitions == o->room)
        return;
    memcpy(o->after + o->transitions++ * o->cells, t->after, (size_t)o->cells * sizeof(int32_t));
    json_array_append_new(o->trace, json_pack("{s:s,s:I}", "kind", t->seed ? "seed" : "denoise",
                                              "block", (json_int_t)t->block));
}

static bool read_rollout(bd_probe *probe, on_policy *o, bd_error *err)
{
    json_t *options = json_object_get(probe->json, "rollout"),
           *stop = json_object_get(probe->json, "stop_ids");
    bd_canvas canvas;
    if (!bd_canvas_make(bd_probe_word(options, "alignment", ""),
                        bd_probe_word(options, "canvas", ""),
                        (int64_t)bd_probe_option(probe, options, "block_size", 0),
                        (int64_t)bd_probe_option(probe, options, "mask_id", -1), &canvas, err))
        return false;
    o->distiller.rollout = bd_rollout_default(canvas);
    o->distiller.rollout.commit.threshold =
        (float)bd_probe_option(probe, options, "threshold", 0.9);
    o->distiller.rollout.temperature = (float)bd_probe_option(probe, options, "temperature", 1);
    o->distiller.rollout.max_steps = (int64_t)bd_probe_option(probe, options, "max_steps", -1);
    int32_t *ids = bd_arena_ints(probe->arena, (int64_t)json_array_size(stop) + 1);
    for (size_t i = 0; i < json_array_size(stop); i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(stop, i));
    o->distiller.stop = ids;
    o->distiller.stop_count = (int64_t)json_array_size(stop);
    return true;
}

static bool open_case(bd_probe *probe, on_policy *o, bd_error *err)
{
    int64_t shape[BD_TENSOR_RANK];
    char folder[BD_PATH];
    bd_distill_rows *rows = &o->rows;
    if (!(rows->tokens = bd_probe_ints(probe, "tokens", 2, shape, err)) ||
        !(rows->placement.positions = bd_probe_ints(probe, "positions", 2, NULL, err)) ||
        !(rows->placement.segments = bd_probe_ints(probe, "segments", 2, NULL, err)) ||
        !(rows->completion = bd_probe_ints(probe, "completion", 2, NULL, err)) ||
        !(rows->corruption = bd_probe_ints(probe, "corruption", 2, NULL, err)) ||
        !(rows->weights = bd_probe_floats(probe, "loss_mask", 2, NULL, err)) ||
        !read_rollout(probe, o, err) ||
        !read_objective(probe, json_object_get(probe->json, "loss_options"),
                        &o->distiller.objective, err))
        return false;
    rows->placement.rows = shape[0];
    rows->placement.length = shape[1];
    o->cells = shape[0] * shape[1];
    o->room = 2 * shape[1] + 2;
    o->after = bd_arena_ints(probe->arena, o->room * o->cells);
    o->trace = json_array();
    return bd_probe_folder(probe, "student", folder, err) &&
           (o->distiller.student = bd_model_open(folder, BD_F32, err)) &&
           bd_model_train(o->distiller.student, err) &&
           bd_probe_folder(probe, "teacher", folder, err) &&
           (o->distiller.teacher = bd_model_open(folder, BD_F32, err)) &&
           bd_distiller_check(&o->distiller, err);
}

/* Logits of the rows `source` names, 0 where the weight is 0. */
static void put_aligned(bd_probe *probe, const char *name, bd_model *model, const float *hidden,
                        const int32_t *source, const bd_prepared *batch)
{
    int64_t cells = batch->rows * batch->length, width = model->config.hidden,
            v = model->config.vocabulary;
    float *logits = bd_arena_zeros(probe->arena, cells * v);
    for (int64_t at = 0; at < cells; at++)
        if (batch->weights[at] > 0)
            bd_model_logits(model,
                            hidden + (at / batch->length * batch->length + source[at]) * width, 1,
                            logits + at * v, probe->arena);
    bd_probe_put(probe, name, BD_F32, 3, (int64_t[]){batch->rows, batch->length, v}, logits);
}

static void put_student_logits(bd_probe *probe, on_policy *o, const bd_prepared *batch)
{
    int64_t cells = batch->rows * batch->length;
    bd_visibility rule = {.kind = BD_BLOCK_DIFFUSION,
                          .block_size = o->distiller.rollout.canvas.block_size,
                          .query_length = batch->length,
                          .key_length = batch->length,
                          .query_position = batch->positions,
                          .key_position = batch->positions,
                          .query_segment = batch->segments,
                          .key_segment = batch->segments};
    bd_tape tape = bd_tape_begin(probe->arena, BD_F32, false);
    bd_value *hidden = bd_model_forward(o->distiller.student, &tape,
                                        &(bd_forward){.tokens = batch->inputs,
                                                      .rows = batch->rows,
                                                      .length = batch->length,
                                                      .positions = batch->positions,
                                                      .rule = &rule});
    int32_t *source = bd_arena_ints(probe->arena, cells);
    bd_placement placement = {batch->rows, batch->length, batch->positions, batch->segments};
    bd_alignment_source(o->distiller.rollout.canvas.alignment, &placement, source, probe->arena);
    put_aligned(probe, "student_logits", o->distiller.student, hidden->data, source, batch);
}

static void put_batch(bd_probe *probe, const on_policy *o, const bd_prepared *batch)
{
    const int64_t shape[3] = {o->transitions, batch->rows, batch->length};
    bd_probe_put(probe, "trace.after", BD_I32, 3, shape, o->after);
    bd_probe_put(probe, "result", BD_I32, 2, shape + 1, batch->generated);
    bd_probe_put(probe, "step", BD_I32, 2, shape + 1, batch->steps);
    bd_probe_put(probe, "logp", BD_F32, 2, shape + 1, batch->logps);
    bd_probe_put(probe, "kept_completion", BD_I32, 2, shape + 1, batch->completion);
    bd_probe_put(probe, "kept_segments", BD_I32, 2, shape + 1, batch->segments);
    bd_probe_put(probe, "kept_corruption", BD_I32, 2, shape + 1, batch->corruption);
    bd_probe_put(probe, "student_inputs", BD_I32, 2, shape + 1, batch->inputs);
    bd_probe_put(probe, "weights", BD_F32, 2, shape + 1, batch->weights);
    json_object_set(probe->answer, "trace", o->trace);
}

static void put_gradients(bd_probe *probe, const bd_model *student, double factor)
{
    for (int64_t i = 0; i < student->parameters.count; i++) {
        const bd_parameter *p = student->parameters.items[i];
        char name[300];
        snprintf(name, sizeof name, "grad.%s", p->name);
        bd_scale((float)factor, p->count, p->gradient);
        bd_probe_put(probe, name, BD_F32, p->rank, p->shape, p->gradient);
    }
}

bool bd_probe_on_policy(bd_probe *probe, bd_error *err)
{
    on_policy o = {0};
    bd_prepared batch;
    bd_rollout_observer observer = {.self = &o, .transition = keep};
    bool ok = open_case(probe, &o, err) &&
              bd_prepare_rollout(&o.distiller, &o.rows, &observer, probe->arena, &batch, err);
    if (ok) {
        int64_t cells = batch.rows * batch.length;
        const int64_t shape[2] = {batch.rows, batch.length};
        bd_distill_result result = {.soft = bd_arena_zeros(probe->arena, cells),
                                    .hard = bd_arena_zeros(probe->arena, cells)};
        bd_tape tape = bd_tape_begin(probe->arena, BD_F32, true);
        ok = bd_distill_step(&o.distiller, &batch, &tape, &result, err);
        put_batch(probe, &o, &batch);
        put_aligned(probe, "teacher_logits", o.distiller.teacher, batch.teacher_hidden,
                    batch.teacher_source, &batch);
        put_student_logits(probe, &o, &batch);
        bd_probe_put(probe, "soft_token", BD_F32, 2, shape, result.soft);
        bd_probe_put(probe, "hard_token", BD_F32, 2, shape, result.hard);
        put_sums(probe, &result);
        put_gradients(probe, o.distiller.student,
                      result.weight_sum > 0 ? 1 / result.weight_sum : 0);
    }
    json_decref(o.trace);
    bd_model_close(o.distiller.student);
    bd_model_close(o.distiller.teacher);
    return ok;
}
