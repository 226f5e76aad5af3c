#include "distill/prepare.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/profile.h"
#include "base/progress.h"

bool bd_distiller_check(const bd_distiller *d, bd_error *err)
{
    const bd_model_config *student = &d->student->config, *teacher = &d->teacher->config;
    if (student->vocabulary != teacher->vocabulary)
        return bd_fail(
            err,
            "distill.teacher: vocabulary of %lld, the student's %lld wanted: ids are not remapped",
            (long long)teacher->vocabulary, (long long)student->vocabulary);
    if (teacher->diffusion.block_size != 0)
        return bd_fail(err, "distill.teacher: a block-diffusion model, a causal one wanted");
    if (d->rollout.row_keys)
        return bd_fail(err, "rollout: sampled, greedy wanted for distillation");
    return bd_rollout_check(&d->rollout, student->vocabulary, err) &&
           bd_stop_check(d->stop, d->stop_count, student->vocabulary, d->rollout.canvas.mask_id,
                         err) &&
           bd_distill_objective_check(&d->objective, err);
}

// --- checks before any model runs (G-05) ---------------------------------------------------------

static bool refuse(int64_t at, int64_t length, const char *what, bd_error *err)
{
    return bd_fail(err, "row %lld, slot %lld: %s", (long long)(at / length),
                   (long long)(at % length), what);
}

static bool check_slot(const bd_canvas *canvas, const bd_distill_rows *rows, int64_t at,
                       bd_error *err)
{
    int64_t length = rows->placement.length;
    bool valid = rows->placement.segments[at] != 0, completion = rows->completion[at] != 0;
    bool corrupted = rows->corruption[at] != 0;
    float weight = rows->weights[at];
    int64_t position = rows->placement.positions ? rows->placement.positions[at] : at % length;
    if (!isfinite(weight) || weight < 0)
        return refuse(at, length, "weights: finite and not negative wanted", err);
    if (completion && !valid)
        return refuse(at, length, "completion_mask covers padding", err);
    if (corrupted && !completion)
        return refuse(at, length, "corruption_mask outside of the completion", err);
    if (weight > 0 && !completion)
        return refuse(at, length, "targets_loss_mask outside of the completion", err);
    if (corrupted && weight == 0)
        return refuse(at, length, "corrupted, but without weight", err);
    if (weight > 0 && position == 0)
        return refuse(at, length, "weight at logical position 0", err);
    if (weight > 0 && !corrupted && !bd_canvas_is_anchor(canvas, position))
        return refuse(at, length, "weighted targets must be corrupted or shifted anchors", err);
    return true;
}

static bool check_rows(const bd_canvas *canvas, const bd_distill_rows *rows, bd_error *err)
{
    if (!rows->placement.segments)
        return bd_fail(err, "segments: missing");
    for (int64_t at = 0; at < rows->placement.rows * rows->placement.length; at++)
        if (!check_slot(canvas, rows, at, err))
            return false;
    return true;
}

// --- the parts of a batch ------------------------------------------------------------------------

static int32_t *copy_ints(bd_arena *arena, const int32_t *from, int64_t count)
{
    int32_t *to = bd_arena_ints(arena, count);
    memcpy(to, from, (size_t)count * sizeof *to);
    return to;
}

static bool allocate(const bd_distill_rows *rows, bd_arena *arena, uint64_t version,
                     bd_prepared *out)
{
    int64_t cells = rows->placement.rows * rows->placement.length;
    *out = (bd_prepared){.rows = rows->placement.rows,
                         .length = rows->placement.length,
                         .positions = rows->placement.positions,
                         .generated = copy_ints(arena, rows->tokens, cells),
                         .steps = bd_arena_ints(arena, cells),
                         .logps = bd_arena_zeros(arena, cells),
                         .completion = copy_ints(arena, rows->completion, cells),
                         .segments = copy_ints(arena, rows->placement.segments, cells),
                         .corruption = copy_ints(arena, rows->corruption, cells),
                         .inputs = bd_arena_ints(arena, cells),
                         .weights = bd_arena_floats(arena, cells),
                         .teacher_source = bd_arena_ints(arena, cells),
                         .version = version};
    for (int64_t i = 0; i < cells; i++)
        out->steps[i] = -1;
    memcpy(out->weights, rows->weights, (size_t)cells * sizeof(float));
    return cells > 0;
}

/* What lies behind the first stop token leaves attention, masks and loss (G-09, G-10). */
static void apply_stop_rule(const bd_distiller *d, const bd_placement *before, bd_arena *arena,
                            bd_prepared *out)
{
    int64_t cells = out->rows * out->length;
    int32_t *kept = bd_arena_ints(arena, cells);
    bd_stop_kept(before, out->generated, out->completion, d->stop, d->stop_count, kept);
    for (int64_t r = 0; r < out->rows; r++) {
        bool stopped = false;
        for (int64_t at = r * out->length; at < (r + 1) * out->length; at++)
            stopped = stopped ||
                      (kept[at] && bd_stop_contains(d->stop, d->stop_count, out->generated[at]));
        out->stopped_rows += stopped;
    }
    bd_completion_drop(cells, kept, out->completion, out->segments, out->corruption, out->weights);
}

/* The teacher reads the clean tokens, causally; row p - 1 scores token p (G-14). */
static void ask_teacher(bd_distiller *d, bd_arena *arena, bd_prepared *out)
{
    int64_t cells = out->rows * out->length, hidden = d->teacher->config.hidden;
    static bd_profile_site site = {.name = "teacher forward", .kind = BD_PROFILE_PHASE};
    bd_profile_begin(&site);
    double began = bd_seconds();
    bd_placement placement = {out->rows, out->length, out->positions, out->segments};
    bd_visibility rule = {.kind = BD_CAUSAL,
                          .query_length = out->length,
                          .key_length = out->length,
                          .query_position = out->positions,
                          .key_position = out->positions,
                          .query_segment = out->segments,
                          .key_segment = out->segments};
    out->teacher_hidden = bd_arena_floats(arena, cells * hidden);
    bd_alignment_source(BD_SHIFTED, &placement, out->teacher_source, arena);
    size_t mark = bd_arena_mark(arena);
    bd_tape tape = bd_tape_begin(arena, d->teacher->compute, false);
    bd_value *value = bd_model_forward(d->teacher, &tape,
                                       &(bd_forward){.tokens = out->generated,
                                                     .rows = out->rows,
                                                     .length = out->length,
                                                     .positions = out->positions,
                                                     .rule = &rule});
    memcpy(out->teacher_hidden, value->data, (size_t)(cells * hidden) * sizeof(float));
    bd_arena_release(arena, mark);
    out->teacher_seconds = bd_seconds() - began;
    bd_profile_end(&site, 0, 0);
}

static void finish(bd_distiller *d, bd_arena *arena, bd_prepared *out)
{
    bd_placement placement = {out->rows, out->length, out->positions, out->segments};
    bd_mask_tokens(out->rows * out->length, out->generated, out->corruption,
                   d->rollout.canvas.mask_id, out->inputs);
    out->unsafe_rows = bd_safe_weights(&d->rollout.canvas, &placement, out->completion,
                                       out->corruption, out->weights, out->weights, arena);
    ask_teacher(d, arena, out);
}

bool bd_prepare_rollout(bd_distiller *distiller, const bd_distill_rows *rows,
                        const bd_rollout_observer *observer, bd_arena *arena, bd_prepared *out,
                        bd_error *err)
{
    bd_logical_rows logical;
    if (!check_rows(&distiller->rollout.canvas, rows, err) ||
        !bd_logical_rows_make(&rows->placement, rows->completion, true, arena, &logical, err) ||
        !allocate(rows, arena, distiller->version, out))
        return false;
    bd_rollout_rows start = {rows->placement, rows->tokens, rows->completion};
    bd_rollout_result result = {out->generated, out->steps, out->logps};
    double began = bd_seconds();
    if (!bd_rollout_model(distiller->student, distiller->caches, &start, &distiller->rollout,
                          observer, &result, &out->statistics, arena, err))
        return false;
    out->rollout_seconds = bd_seconds() - began;
    apply_stop_rule(distiller, &rows->placement, arena, out);
    finish(distiller, arena, out);
    return true;
}

bool bd_prepare_dataset(bd_distiller *distiller, const bd_distill_rows *rows, bd_arena *arena,
                        bd_prepared *out, bd_error *err)
{
    if (!check_rows(&distiller->rollout.canvas, rows, err) ||
        !allocate(rows, arena, distiller->version, out))
        return false;
    finish(distiller, arena, out);
    return true;
}

// --- the step ------------------------------------------------------------------------------------

/* Slots that carry weight: where they are, which output row of the student and of the teacher is
 * theirs. */
typedef struct {
    int64_t count;
    int32_t *cell, *student_row, *targets;
    const float **teacher_row;
    float *weights;
} weighted_slots;

static weighted_slots gather(const bd_distiller *d, const bd_prepared *b, bd_arena *arena)
{
    int64_t cells = b->rows * b->length, hidden = d->teacher->config.hidden;
    int32_t *source = bd_arena_ints(arena, cells);
    bd_placement placement = {b->rows, b->length, b->positions, b->segments};
    bd_alignment_source(d->rollout.canvas.alignment, &placement, source, arena);
    weighted_slots slots = {.cell = bd_arena_ints(arena, cells),
                            .student_row = bd_arena_ints(arena, cells),
                            .targets = bd_arena_ints(arena, cells),
                            .teacher_row = bd_arena_alloc(arena, (size_t)cells * sizeof(float *)),
                            .weights = bd_arena_floats(arena, cells)};
    for (int64_t at = 0; at < cells; at++) {
        if (!(b->weights[at] > 0))
            continue;
        int64_t n = slots.count++, row = at / b->length * b->length;
        slots.cell[n] = (int32_t)at;
        slots.student_row[n] = (int32_t)(row + source[at]);
        slots.targets[n] = b->generated[at];
        slots.teacher_row[n] = b->teacher_hidden + (row + b->teacher_source[at]) * hidden;
        slots.weights[n] = b->weights[at];
    }
    return slots;
}

static void scatter(const weighted_slots *slots, int64_t cells, const bd_distill_result *made,
                    bd_distill_result *result)
{
    if (result->soft)
        memset(result->soft, 0, (size_t)cells * sizeof(float));
    if (result->hard)
        memset(result->hard, 0, (size_t)cells * sizeof(float));
    for (int64_t n = 0; n < slots->count; n++) {
        if (result->soft)
            result->soft[slots->cell[n]] = made->soft[n];
        if (result->hard)
            result->hard[slots->cell[n]] = made->hard[n];
    }
}

bool bd_distill_step(bd_distiller *d, const bd_prepared *batch, bd_tape *tape,
                     bd_distill_result *result, bd_error *err)
{
    if (batch->version != d->version)
        return bd_fail_as(
            err, BD_ERROR_STATE,
            "distill: a batch prepared with weights of version %llu, the student is at %llu",
            (unsigned long long)batch->version, (unsigned long long)d->version);
    weighted_slots slots = gather(d, batch, tape->arena);
    bd_distill_result made = {0};
    if (slots.count > 0) {
        bd_visibility rule = {.kind = BD_BLOCK_DIFFUSION,
                              .block_size = d->rollout.canvas.block_size,
                              .query_length = batch->length,
                              .key_length = batch->length,
                              .query_position = batch->positions,
                              .key_position = batch->positions,
                              .query_segment = batch->segments,
                              .key_segment = batch->segments};
        bd_forward input = {.tokens = batch->inputs,
                            .rows = batch->rows,
                            .length = batch->length,
                            .positions = batch->positions,
                            .rule = bd_arena_alloc(tape->arena, sizeof rule)};
        memcpy((void *)input.rule, &rule, sizeof rule);
        bd_value *hidden = bd_model_forward(d->student, tape, &input);
        bd_value *wanted = bd_op_gather_rows(tape, hidden, slots.student_row, slots.count);
        bd_distill_loss(&d->objective, tape, wanted, d->student->head, slots.teacher_row,
                        bd_parameter_forward(d->teacher->head, d->teacher->compute), slots.targets,
                        slots.weights, &made);
        if (tape->recording)
            bd_tape_backward(tape);
    }
    scatter(&slots, batch->rows * batch->length, &made, result);
    result->soft_sum = made.soft_sum;
    result->hard_sum = made.hard_sum;
    result->total_sum = made.total_sum;
    result->weight_sum = made.weight_sum;
    return true;
}
