#include "diffusion/objective.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const char *const layouts[BD_TRAIN_LAYOUT_COUNT] = {
    [BD_TRAIN_SINGLE] = "single",
    [BD_TRAIN_DOUBLED] = "doubled",
};

const char *bd_train_layout_name(bd_train_layout layout)
{
    assert(layout >= 0 && layout < BD_TRAIN_LAYOUT_COUNT);
    return layouts[layout];
}

bool bd_train_layout_from_name(const char *name, bd_train_layout *layout, bd_error *err)
{
    for (int i = 0; i < BD_TRAIN_LAYOUT_COUNT; i++) {
        if (strcmp(name, layouts[i]) == 0) {
            *layout = (bd_train_layout)i;
            return true;
        }
    }
    return bd_fail(err, "train_layout is \"%s\", wanted single or doubled", name);
}

bool bd_objective_check_attention(bool block_objective, bool block_attention, bd_error *err)
{
    if (block_objective && !block_attention)
        return bd_fail(err,
                       "training_objective block_diffusion needs attention_type block_diffusion");
    if (!block_objective && block_attention)
        return bd_fail(err, "attention_type block_diffusion with training_objective causal_lm: "
                            "targets would leak through in-block attention");
    return true;
}

bd_objective_rows bd_objective_rows_of(const bd_diffusion_batch *batch, const float *weights)
{
    return (bd_objective_rows){bd_diffusion_batch_placement(batch), batch->inputs, batch->targets,
                               weights};
}

void bd_objective_weights(const bd_diffusion_batch *batch, const bd_canvas *canvas,
                          const float *noise, float *weights)
{
    for (int64_t i = 0; i < batch->rows * batch->length; i++) {
        bool active = batch->targets_loss_mask[i] && batch->targets_segmentation[i] != 0 &&
                      (canvas->alignment != BD_SHIFTED || batch->targets_position[i] != 0);
        weights[i] = active ? 1 : 0;
        if (active && noise && batch->corruption_mask[i])
            weights[i] = 1 / noise[i];
    }
}

/* --- checks ---------------------------------------------------------------------------------- */

static bool check_slot(const bd_objective_rows *rows, bool doubled, int64_t vocabulary, int64_t at,
                       bd_error *err)
{
    const bd_placement *p = &rows->placement;
    long long row = at / p->length, slot = at % p->length;
    bool valid = !p->segments || p->segments[at] != 0;
    float weight = rows->weights[at];
    if (rows->inputs[at] < 0 || rows->inputs[at] >= vocabulary)
        return bd_fail(err, "row %lld, slot %lld: input token %d, wanted 0 to %lld", row, slot,
                       rows->inputs[at], (long long)vocabulary - 1);
    if (!isfinite(weight) || weight < 0)
        return bd_fail(err, "row %lld, slot %lld: weight %g, wanted a finite number of at least 0",
                       row, slot, (double)weight);
    if (weight > 0 && !valid)
        return bd_fail(err, "row %lld, slot %lld: weight %g at padding, wanted 0", row, slot,
                       (double)weight);
    if ((weight > 0 || (doubled && valid)) &&
        (rows->targets[at] < 0 || rows->targets[at] >= vocabulary))
        return bd_fail(err, "row %lld, slot %lld: target token %d, wanted 0 to %lld", row, slot,
                       rows->targets[at], (long long)vocabulary - 1);
    return true;
}

/* --- forward --------------------------------------------------------------------------------- */

/* What the model is run on. In the doubled layout `length` is twice the rows' length. */
typedef struct {
    int64_t length;
    const int32_t *tokens, *positions, *segments;
} model_rows;

static const int32_t *twice(const int32_t *first, const int32_t *second, int64_t rows,
                            int64_t length, bd_arena *arena)
{
    int32_t *both = bd_arena_ints(arena, 2 * rows * length);
    size_t bytes = (size_t)length * sizeof *both;
    for (int64_t r = 0; r < rows; r++) {
        memcpy(both + 2 * r * length, first + r * length, bytes);
        memcpy(both + (2 * r + 1) * length, second + r * length, bytes);
    }
    return both;
}

static model_rows double_rows(const bd_objective_rows *rows, bd_arena *arena)
{
    const bd_placement *p = &rows->placement;
    int64_t cells = p->rows * p->length;
    int32_t *positions = bd_arena_ints(arena, cells), *clean = bd_arena_ints(arena, cells);
    for (int64_t i = 0; i < cells; i++) {
        bool valid = !p->segments || p->segments[i] != 0;
        positions[i] = p->positions ? p->positions[i] : (int32_t)(i % p->length);
        clean[i] = valid ? rows->targets[i] : 0;
    }
    return (model_rows){
        .length = 2 * p->length,
        .tokens = twice(rows->inputs, clean, p->rows, p->length, arena),
        .positions = twice(positions, positions, p->rows, p->length, arena),
        .segments = p->segments ? twice(p->segments, p->segments, p->rows, p->length, arena) : NULL,
    };
}

static const bd_visibility *make_rule(const bd_objective *objective, const model_rows *rows,
                                      bd_arena *arena)
{
    bd_visibility *rule = bd_arena_alloc(arena, sizeof *rule); // the tape asks it again, going back
    bd_visibility_kind kind = objective->layout == BD_TRAIN_DOUBLED ? BD_DOUBLED
                              : objective->block_size > 0           ? BD_BLOCK_DIFFUSION
                                                                    : BD_CAUSAL;
    *rule = (bd_visibility){.kind = kind,
                            .query_length = rows->length,
                            .key_length = rows->length,
                            .block_size = objective->block_size,
                            .query_position = rows->positions,
                            .key_position = rows->positions,
                            .query_segment = rows->segments,
                            .key_segment = rows->segments};
    return rule;
}

/* Output row of the model that predicts the target in slot i of row r. */
static int32_t output_row(const bd_objective *objective, const bd_placement *p,
                          const int32_t *source, int64_t r, int64_t i)
{
    int32_t from = source[r * p->length + i];
    if (objective->layout != BD_TRAIN_DOUBLED)
        return (int32_t)(r * p->length + from);
    int64_t position = p->positions ? p->positions[r * p->length + i] : i;
    bool before_block =
        objective->alignment == BD_SHIFTED && position > 0 && position % objective->block_size == 0;
    return (int32_t)(2 * r * p->length + (before_block ? p->length : 0) + from);
}

/* --- the loss -------------------------------------------------------------------------------- */

/* The slots that carry weight, in order. */
typedef struct {
    int64_t count;
    int32_t *cell;   /* slot number in the batch */
    int32_t *output; /* row of the model's output */
    int32_t *targets;
    float *weights;
} weighted_slots;

static weighted_slots gather_slots(const bd_objective *objective, const bd_objective_rows *rows,
                                   bd_arena *arena)
{
    const bd_placement *p = &rows->placement;
    int64_t cells = p->rows * p->length;
    int32_t *source = bd_arena_ints(arena, cells);
    weighted_slots slots = {0, bd_arena_ints(arena, cells), bd_arena_ints(arena, cells),
                            bd_arena_ints(arena, cells), bd_arena_floats(arena, cells)};
    bd_alignment_source(objective->alignment, p, source, arena);
    for (int64_t at = 0; at < cells; at++) {
        if (!(rows->weights[at] > 0))
            continue;
        int64_t n = slots.count++;
        slots.cell[n] = (int32_t)at;
        slots.output[n] = output_row(objective, p, source, at / p->length, at % p->length);
        slots.targets[n] = rows->targets[at];
        slots.weights[n] = rows->weights[at];
    }
    return slots;
}

static void add_up(const bd_vocabulary_loss *loss, const weighted_slots *slots, float *token_loss,
                   bd_objective_result *result)
{
    for (int64_t n = 0; n < slots->count; n++) {
        double w = (double)slots->weights[n], z = (double)loss->log_normalizer[n];
        double z_part = loss->z_loss > 0 ? (double)loss->z_loss * z * z : 0;
        result->sum += w * ((double)loss->hard_loss[n] + z_part);
        result->z_sum += w * z_part;
        result->weight += w;
        if (loss->best[n] == slots->targets[n])
            result->correct += w;
        if (token_loss)
            token_loss[slots->cell[n]] = loss->hard_loss[n];
    }
}

bool bd_objective_loss(const bd_objective *objective, const bd_objective_rows *rows,
                       bd_model *model, bd_tape *tape, float *token_loss,
                       bd_objective_result *result, bd_error *err)
{
    const bd_placement *p = &rows->placement;
    int64_t cells = p->rows * p->length;
    bool doubled = objective->layout == BD_TRAIN_DOUBLED;
    assert(p->rows > 0 && p->length > 0 && 2 * cells <= INT32_MAX);
    assert(!doubled || objective->block_size > 0);
    for (int64_t layer = 0; doubled && layer < model->config.layers; layer++)
        if (model->config.layer_window[layer] > 0)
            return bd_fail(
                err,
                "train_layout doubled on a model whose layer %lld has a sliding window of "
                "%lld, wanted full attention in every layer",
                (long long)layer, (long long)model->config.layer_window[layer]);
    for (int64_t at = 0; at < cells; at++)
        if (!check_slot(rows, doubled, model->config.vocabulary, at, err))
            return false;

    *result = (bd_objective_result){0};
    if (token_loss)
        memset(token_loss, 0, (size_t)cells * sizeof(float));
    weighted_slots slots = gather_slots(objective, rows, tape->arena);
    if (slots.count == 0)
        return true;
    result->head_rows = slots.count;

    model_rows fed = {p->length, rows->inputs, p->positions, p->segments};
    if (doubled)
        fed = double_rows(rows, tape->arena);
    bd_forward input = {.tokens = fed.tokens,
                        .rows = p->rows,
                        .length = fed.length,
                        .positions = fed.positions,
                        .rule = make_rule(objective, &fed, tape->arena)};
    bd_value *hidden = bd_model_forward(model, tape, &input);
    bd_vocabulary_loss loss = {.rows = slots.count,
                               .vocabulary = model->config.vocabulary,
                               .scale = slots.weights,
                               .targets = slots.targets,
                               .hard = 1,
                               .z_loss = objective->z_loss,
                               .hard_loss = bd_arena_floats(tape->arena, slots.count),
                               .best = bd_arena_ints(tape->arena, slots.count),
                               .log_normalizer = bd_arena_floats(tape->arena, slots.count)};
    bd_value *wanted = bd_op_gather_rows(tape, hidden, slots.output, slots.count);
    bd_op_vocabulary_loss(tape, wanted, model->head, &loss);
    add_up(&loss, &slots, token_loss, result);
    return true;
}
