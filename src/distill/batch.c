#include "distill/batch.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/sha256.h"
#include "distill/objective.h"
#include "tensor/dtype.h"
#include "train/contract.h"

// --- values of any dtype -------------------------------------------------------------------------

static bool is_real(bd_dtype dtype)
{
    return (unsigned)dtype < BD_DTYPE_COUNT;
}

static bool is_integer(bd_dtype dtype)
{
    return is_real(dtype) && dtype != BD_BOOL && !bd_dtype_is_float(dtype) && dtype != BD_F64;
}

static double value_at(const bd_array *array, int64_t i)
{
    float single;
    switch (array->dtype) {
    case BD_F64:
        return ((const double *)array->data)[i];
    case BD_I64:
        return (double)((const int64_t *)array->data)[i];
    case BD_I32:
        return ((const int32_t *)array->data)[i];
    case BD_I16:
        return ((const int16_t *)array->data)[i];
    case BD_I8:
        return ((const int8_t *)array->data)[i];
    case BD_U8:
        return ((const uint8_t *)array->data)[i];
    case BD_BOOL:
        return ((const uint8_t *)array->data)[i] != 0;
    default:
        bd_to_f32(array->dtype, (const char *)array->data + (size_t)i * bd_dtype_size(array->dtype),
                  &single, 1);
        return (double)single;
    }
}

// --- checks --------------------------------------------------------------------------------------

static bool check_values(const bd_token_batch *batch, bd_error *err)
{
    const bd_array *targets = &batch->target_ids, *weights = &batch->loss_weights;
    int64_t cells = targets->shape[0] * targets->shape[1];
    // In three passes: the first complaint is about the first rule that is broken anywhere.
    for (int64_t i = 0; i < cells; i++)
        if (!isfinite(value_at(weights, i)))
            return bd_fail(err, "loss_weights: slot %lld is %g, finite wanted", (long long)i,
                           value_at(weights, i));
    for (int64_t i = 0; i < cells; i++)
        if (value_at(weights, i) < 0)
            return bd_fail(err, "loss_weights: slot %lld is %g, not negative wanted", (long long)i,
                           value_at(weights, i));
    for (int64_t i = 0; i < cells; i++)
        if (value_at(weights, i) > 0 && value_at(targets, i) < 0)
            return bd_fail(err, "target_ids: slot %lld has weight and is %g, a token wanted",
                           (long long)i, value_at(targets, i));
    return true;
}

static bool check_inputs(const bd_token_batch *batch, bd_error *err)
{
    int64_t rows = batch->target_ids.shape[0];
    if (batch->input_count < 1)
        return bd_fail(err, "model_inputs: empty, at least one array wanted");
    for (int64_t i = 0; i < batch->input_count; i++) {
        const bd_array *input = &batch->model_inputs[i];
        const char *name = input->name ? input->name : "?";
        if (!input->data)
            return bd_fail_as(err, BD_ERROR_TYPE, "model_inputs: %s has no values, an array wanted",
                              name);
        if (input->rank < 1)
            return bd_fail(err, "model_inputs: %s is a scalar, batch-major arrays wanted", name);
        if (input->shape[0] != rows)
            return bd_fail(err, "model_inputs: %s has %lld rows, the batch's %lld wanted", name,
                           (long long)input->shape[0], (long long)rows);
        if (!is_real(input->dtype))
            return bd_fail_as(err, BD_ERROR_TYPE,
                              "model_inputs: %s is of unknown dtype %d, numbers wanted", name,
                              (int)input->dtype);
    }
    return true;
}

bool bd_token_batch_check(const bd_token_batch *batch, bd_error *err)
{
    const bd_array *targets = &batch->target_ids, *weights = &batch->loss_weights;
    if (targets->rank != 2)
        return bd_fail(err, "target_ids: rank %d, [batch, length] wanted", targets->rank);
    if (!is_integer(targets->dtype))
        return bd_fail_as(err, BD_ERROR_TYPE, "target_ids: %s, integers wanted",
                          is_real(targets->dtype) ? bd_dtype_name(targets->dtype)
                                                  : "unknown dtype");
    if (weights->rank != 2 || weights->shape[0] != targets->shape[0] ||
        weights->shape[1] != targets->shape[1])
        return bd_fail(err, "loss_weights: not of the shape of target_ids, [%lld, %lld]",
                       (long long)targets->shape[0], (long long)targets->shape[1]);
    if (!is_real(weights->dtype))
        return bd_fail_as(err, BD_ERROR_TYPE,
                          "loss_weights: dtype %d, bool, integers or floats wanted",
                          (int)weights->dtype);
    if (targets->shape[0] < 1 || targets->shape[1] < 1 ||
        targets->shape[0] > INT32_MAX / targets->shape[1])
        return bd_fail(err, "target_ids: [%lld, %lld], at least one token wanted",
                       (long long)targets->shape[0], (long long)targets->shape[1]);
    if (!targets->data || !weights->data)
        return bd_fail_as(err, BD_ERROR_TYPE, "%s: no values",
                          targets->data ? "loss_weights" : "target_ids");
    return check_values(batch, err) && check_inputs(batch, err);
}

bool bd_logits_check(const bd_token_batch *batch, const bd_array *logits, bd_error *err)
{
    const bd_array *targets = &batch->target_ids;
    const char *name = logits->name ? logits->name : "logits";
    if (logits->rank != 3)
        return bd_fail(err, "%s: rank %d, [batch, length, vocabulary] wanted", name, logits->rank);
    if (logits->shape[0] != targets->shape[0] || logits->shape[1] != targets->shape[1])
        return bd_fail(err, "%s: [%lld, %lld, ...], the targets' [%lld, %lld] wanted", name,
                       (long long)logits->shape[0], (long long)logits->shape[1],
                       (long long)targets->shape[0], (long long)targets->shape[1]);
    if (logits->shape[2] < 1 || logits->shape[2] > INT32_MAX)
        return bd_fail(err, "%s: vocabulary of %lld", name, (long long)logits->shape[2]);
    if (!logits->data || !is_real(logits->dtype) ||
        !(bd_dtype_is_float(logits->dtype) || logits->dtype == BD_F64))
        return bd_fail_as(err, BD_ERROR_TYPE, "%s: floats wanted", name);
    for (int64_t i = 0; i < targets->shape[0] * targets->shape[1]; i++)
        if (value_at(&batch->loss_weights, i) > 0 &&
            value_at(targets, i) >= (double)logits->shape[2])
            return bd_fail(err, "target_ids: slot %lld is %g, below the vocabulary of %lld wanted",
                           (long long)i, value_at(targets, i), (long long)logits->shape[2]);
    return true;
}

bool bd_distillation_batch_check(const bd_distillation_batch *batch, bd_error *err)
{
    return bd_token_batch_check(&batch->student, err) &&
           bd_logits_check(&batch->student, &batch->teacher_logits, err);
}

// --- the loss ------------------------------------------------------------------------------------

bd_distill_options bd_distill_options_default(void)
{
    return (bd_distill_options){
        .temperature = 1, .soft = 1, .divergence = "forward_kl", .beta = 0.5};
}

static bool read_objective(const bd_distill_options *options, bd_distill_objective *out,
                           bd_error *err)
{
    *out = (bd_distill_objective){.temperature = options->temperature,
                                  .soft = options->soft,
                                  .hard = options->hard,
                                  .beta = options->beta};
    return bd_divergence_from_name(options->divergence, &out->divergence, err) &&
           bd_distill_objective_check(out, err);
}

static float *floats_of(const bd_array *array, int64_t count, bd_arena *arena)
{
    float *out = bd_arena_floats(arena, count);
    for (int64_t i = 0; i < count; i++)
        out[i] = (float)value_at(array, i);
    return out;
}

static bool loss_of(const bd_distillation_batch *batch, const bd_array *student,
                    const bd_distill_objective *objective, float *d_student, bd_distill_sums *sums,
                    bd_arena *arena, bd_error *err)
{
    int64_t slots = student->shape[0] * student->shape[1], vocabulary = student->shape[2];
    int32_t *targets = bd_arena_ints(arena, slots);
    for (int64_t i = 0; i < slots; i++)
        targets[i] = value_at(&batch->student.loss_weights, i) > 0
                         ? (int32_t)value_at(&batch->student.target_ids, i)
                         : 0;
    const float *weights = floats_of(&batch->student.loss_weights, slots, arena);
    const float *own = floats_of(student, slots * vocabulary, arena);
    const float *teacher = floats_of(&batch->teacher_logits, slots * vocabulary, arena);
    bd_distill_result result = {0};
    if (!bd_distill_check_logits(objective, slots, vocabulary, teacher, targets, weights, err))
        return false;
    // A gradient is always taken: a divergence needs room of its own for it.
    float *d = d_student ? d_student : bd_arena_floats(arena, slots * vocabulary);
    bd_distill_loss_on_logits(objective, slots, vocabulary, own, teacher, targets, weights, d,
                              &result, arena);
    *sums =
        (bd_distill_sums){result.soft_sum, result.hard_sum, result.total_sum, result.weight_sum};
    return true;
}

bool bd_distill_prepared(const bd_distillation_batch *batch, const bd_array *student_logits,
                         const bd_distill_options *options, float *d_student, bd_distill_sums *sums,
                         bd_error *err)
{
    bd_distill_objective objective;
    if (!read_objective(options, &objective, err) || !bd_distillation_batch_check(batch, err) ||
        !bd_logits_check(&batch->student, student_logits, err))
        return false;
    if (student_logits->shape[2] != batch->teacher_logits.shape[2])
        return bd_fail(err, "teacher_logits: vocabulary of %lld, the student's %lld wanted",
                       (long long)batch->teacher_logits.shape[2],
                       (long long)student_logits->shape[2]);
    bd_arena *arena = bd_arena_create(0, err);
    if (!arena)
        return false;
    bool ok = loss_of(batch, student_logits, &objective, d_student, sums, arena, err);
    bd_arena_destroy(arena);
    return ok;
}

// --- one micro-batch of a program's own ----------------------------------------------------------

static uint64_t version_of(const bd_distill_source *source)
{
    return source->version ? source->version(source->self) : 0;
}

bool bd_distill_once(const bd_distill_source *source, const bd_distill_options *options,
                     bd_distill_sums *sums, bd_error *err)
{
    bd_distillation_batch batch = {0};
    bd_array student = {0};
    uint64_t version = version_of(source);
    if (!source->prepare(source->self, &batch.student, err) ||
        !bd_token_batch_check(&batch.student, err) ||
        !source->teacher(source->self, &batch.student, &batch.teacher_logits, err) ||
        !bd_logits_check(&batch.student, &batch.teacher_logits, err) ||
        !source->student(source->self, &batch.student, &student, err) ||
        !bd_logits_check(&batch.student, &student, err))
        return false;
    if (version_of(source) != version)
        return bd_fail_as(err, BD_ERROR_STATE,
                          "distill: weights of version %llu made the batch, now they are %llu",
                          (unsigned long long)version, (unsigned long long)version_of(source));
    bd_arena *arena = bd_arena_create(0, err);
    if (!arena)
        return false;
    float *d = bd_arena_floats(arena, student.shape[0] * student.shape[1] * student.shape[2]);
    bool ok = bd_distill_prepared(&batch, &student, options, d, sums, err) &&
              (!source->learn || source->learn(source->self, &batch.student, d, err));
    bd_arena_destroy(arena);
    return ok;
}

static void add_field(void *to, const char *name, const char *value)
{
    bd_contract_text(to, name, value);
}

bool bd_distill_fingerprint(const bd_distill_source *source, const bd_distill_options *options,
                            char out[65], bd_error *err)
{
    bd_contract *contract = bd_contract_create();
    if (source->identity)
        source->identity(source->self, add_field, contract);
    bd_contract_number(contract, "distill_temperature", options->temperature);
    bd_contract_number(contract, "soft_loss_weight", options->soft);
    bd_contract_number(contract, "hard_loss_weight", options->hard);
    bd_contract_text(contract, "opd_loss", options->divergence);
    bd_contract_number(contract, "opd_beta", options->beta);
    bool ok = bd_contract_ready(contract, err);
    if (ok)
        bd_contract_fingerprint(contract, out);
    bd_contract_free(contract);
    return ok;
}

// --- block-diffusion rows ------------------------------------------------------------------------

static bool check_present(const bd_diffusion_batch *b, const float *raw, bd_error *err)
{
    const struct {
        const char *name;
        const void *data;
    } fields[] = {{"completion_mask", b->completion_mask},
                  {"corruption_mask", b->corruption_mask},
                  {"inputs", b->inputs},
                  {"inputs_position", b->inputs_position},
                  {"inputs_segmentation", b->inputs_segmentation},
                  {"targets", b->targets},
                  {"targets_loss_mask", raw},
                  {"targets_position", b->targets_position},
                  {"targets_segmentation", b->targets_segmentation}};
    char missing[300] = "";
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (!fields[i].data) {
            strcat(missing, *missing ? ", " : "");
            strcat(missing, fields[i].name);
        }
    return !*missing || bd_fail(err, "batch: missing %s", missing);
}

static bool check_cell(const bd_diffusion_batch *b, const bd_canvas *canvas, bool completion_only,
                       float raw, int64_t at, bd_error *err)
{
    int64_t row = at / b->length, slot = at % b->length;
    bool valid = b->targets_segmentation[at] != 0, completion = b->completion_mask[at] != 0;
    bool scope = completion_only ? completion : valid, corrupted = b->corruption_mask[at] != 0;
    const char *what = NULL;
    if (!isfinite(raw) || raw < 0)
        what = "targets_loss_mask: finite and not negative wanted";
    else if (completion && !valid)
        what = "completion_mask covers padding";
    else if (corrupted && !scope)
        what = "corruption_mask outside of its scope";
    else if (raw > 0 && !scope)
        what = "targets_loss_mask outside of its scope";
    else if (raw > 0 && !corrupted &&
             !(b->targets_position[at] > 0 && bd_canvas_is_anchor(canvas, b->targets_position[at])))
        what = "weighted targets must be corrupted or shifted anchors";
    return !what || bd_fail(err, "row %lld, slot %lld: %s", (long long)row, (long long)slot, what);
}

bool bd_token_batch_from_rows(const bd_diffusion_batch *rows, const bd_canvas *canvas,
                              bool completion_only, const float *raw, float *weights,
                              bd_array *inputs, bd_token_batch *out, bd_error *err)
{
    if (!check_present(rows, raw, err))
        return false;
    for (int64_t at = 0; at < rows->rows * rows->length; at++) {
        if (!check_cell(rows, canvas, completion_only, raw[at], at, err))
            return false;
        weights[at] = raw[at];
    }
    const struct {
        const char *name;
        const int32_t *data;
    } fields[BD_ADAPTED_INPUTS] = {{"input_tokens", rows->inputs},
                                   {"positions", rows->inputs_position},
                                   {"decoder_segment_ids", rows->inputs_segmentation},
                                   {"targets", rows->targets},
                                   {"targets_segmentation", rows->targets_segmentation}};
    for (int i = 0; i < BD_ADAPTED_INPUTS; i++)
        inputs[i] =
            (bd_array){fields[i].name, BD_I32, 2, {rows->rows, rows->length}, fields[i].data};
    *out = (bd_token_batch){inputs,
                            BD_ADAPTED_INPUTS,
                            {"target_ids", BD_I32, 2, {rows->rows, rows->length}, rows->targets},
                            {"loss_weights", BD_F32, 2, {rows->rows, rows->length}, weights}};
    return bd_token_batch_check(out, err);
}
