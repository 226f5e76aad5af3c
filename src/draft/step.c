#include "draft/step.h"

#include <assert.h>
#include <string.h>

bd_draft_objective bd_draft_objective_default(void)
{
    return (bd_draft_objective){.weighting = {.objective = BD_WEIGHT_DPACE, .alpha = 0.5f},
                                .distill = true,
                                .ce_alpha = 0.1f,
                                .l1_alpha = 0.9f,
                                .lambda = 1,
                                .ce_scale = 1,
                                .ce_decay = 1,
                                .selector_alpha = 1};
}

// --- blocks --------------------------------------------------------------------------------------

/* The kept blocks of each row moved together, and for each the column it came from. */
typedef struct {
    bd_anchors anchors;
    int32_t *column; // [B, N of the new layout]; -1: padding
    int64_t kept;
} compact_blocks;

static compact_blocks compact(const bd_draft_batch *batch, bd_arena *arena)
{
    const bd_anchors *all = batch->anchors;
    compact_blocks c = {.kept = 0};
    for (int64_t b = 0; b < batch->rows; b++) {
        int64_t count = 0;
        for (int64_t j = 0; j < all->blocks; j++)
            count += all->keep[b * all->blocks + j] != 0;
        c.kept += count;
        if (count > c.anchors.blocks)
            c.anchors.blocks = count;
    }
    int64_t width = c.anchors.blocks;
    int32_t *anchor = bd_arena_ints(arena, batch->rows * width);
    uint8_t *keep = bd_arena_alloc(arena, (size_t)(batch->rows * width));
    c.column = bd_arena_ints(arena, batch->rows * width);
    for (int64_t b = 0; b < batch->rows; b++) {
        int64_t n = b * width;
        for (int64_t j = 0; j < all->blocks; j++)
            if (all->keep[b * all->blocks + j]) {
                anchor[n] = all->anchor[b * all->blocks + j];
                keep[n] = 1;
                c.column[n++] = (int32_t)j;
            }
        for (; n < (b + 1) * width; n++) {
            anchor[n] = 0;
            keep[n] = 0;
            c.column[n] = -1;
        }
    }
    c.anchors.anchor = anchor;
    c.anchors.keep = keep;
    return c;
}

/* Rows of `width` floats a slot from the compact layout back to the batch's. */
static void spread(const bd_draft_step *step, const compact_blocks *c, const float *from,
                   int64_t width, float *to)
{
    int64_t bs = step->blocks.block_size, columns = step->batch->anchors->blocks;
    size_t block = (size_t)(bs * width) * sizeof(float);
    memset(to, 0, (size_t)(step->batch->rows * columns) * block);
    for (int64_t n = 0; from && n < step->batch->rows * c->anchors.blocks; n++)
        if (c->column[n] >= 0) {
            int64_t row = n / c->anchors.blocks;
            memcpy(to + (row * columns + c->column[n]) * bs * width, from + n * bs * width, block);
        }
}

// --- the teacher ---------------------------------------------------------------------------------

/* Rows of the teacher that are read, after the target's final norm; each once, however many
 * overlapping blocks read it. */
static const float *normed_row(const bd_draft_step *step, int64_t row, const float **known)
{
    bd_model *target = step->draft->target;
    int64_t width = target->config.hidden;
    if (!known[row]) {
        float *y = bd_arena_floats(step->tape->arena, width);
        bd_rms_norm(step->batch->teacher + row * width, bd_parameter_values(target->norm),
                    (float)target->config.norm_eps, 1, width, y, NULL);
        known[row] = y;
    }
    return known[row];
}

bd_teacher_rows bd_draft_step_teacher(const bd_draft_step *step)
{
    const bd_draft_batch *batch = step->batch;
    bd_arena *arena = step->tape->arena;
    bd_model *target = step->draft->target;
    bool logits = batch->teacher_kind == BD_TEACHER_LOGITS;
    int64_t width = logits ? target->config.vocabulary : target->config.hidden;
    size_t bytes = (size_t)step->slots * sizeof(float *);
    const float **rows = memset(bd_arena_alloc(arena, bytes), 0, bytes);
    const float **known = NULL;
    if (batch->teacher_kind == BD_TEACHER_PRENORM) {
        size_t all = (size_t)(batch->rows * batch->length) * sizeof *known;
        known = memset(bd_arena_alloc(arena, all), 0, all);
    }
    int64_t slots_per_row = step->slots / batch->rows;
    for (int64_t i = 0; i < step->slots; i++) {
        if (step->targets.supervised[i] == 0)
            continue;
        int64_t row = i / slots_per_row * batch->length + bd_teacher_row(step->targets.position[i]);
        rows[i] = known ? normed_row(step, row, known) : batch->teacher + row * width;
    }
    if (logits)
        return (bd_teacher_rows){.logits = rows};
    return (bd_teacher_rows){.features = rows,
                             .head = bd_parameter_forward(target->head, step->tape->compute)};
}

double bd_draft_step_factor(const bd_draft_step *step, double weight)
{
    if (step->form == BD_DRAFT_SUM)
        return 1;
    return bd_weighted_mean(1, weight);
}

double bd_draft_step_add(const bd_draft_step *step, double mean, bd_draft_loss *loss)
{
    double denominator = bd_weight_denominator(loss->weight);
    loss->sum += mean * denominator;
    loss->unruled += mean * denominator;
    return step->form == BD_DRAFT_SUM ? denominator : 1;
}

double bd_draft_loss_mean(const bd_draft_loss *loss)
{
    return bd_weighted_mean(loss->sum - loss->unruled, loss->weight) +
           loss->unruled / bd_weight_denominator(loss->weight);
}

void bd_draft_loss_metric(bd_draft_loss *loss, const char *name, double sum, double weight)
{
    assert(loss->metric_count < BD_DRAFT_METRICS);
    loss->metrics[loss->metric_count++] = (bd_draft_metric){name, sum, weight};
}

double bd_draft_step_weigh(const bd_draft_step *step, bd_draft_loss *loss)
{
    for (int64_t i = 0; i < step->slots; i++) {
        loss->supervised += (double)step->targets.supervised[i];
        loss->weight += (double)step->weights[i];
    }
    return bd_draft_step_factor(step, loss->weight);
}

const float *bd_draft_step_scale(const bd_draft_step *step, double factor)
{
    float *scale = bd_arena_floats(step->tape->arena, step->slots);
    for (int64_t i = 0; i < step->slots; i++)
        scale[i] = (float)((double)step->weights[i] * factor);
    return scale;
}

// --- the step ------------------------------------------------------------------------------------

bool bd_draft_reads_teacher(const bd_draft *draft, const bd_draft_objective *objective)
{
    const bd_draft_variant *variant = draft->config.variant;
    return variant->needs_teacher || (objective->distill && !variant->ignores_distillation) ||
           (variant->reads_teacher && variant->reads_teacher(objective));
}

bool bd_draft_objective_check(const bd_draft_config *config, const bd_draft_objective *objective,
                              bd_error *err)
{
    return bd_weighting_check(&objective->weighting, err) &&
           (!config->variant->check_objective ||
            config->variant->check_objective(config, objective, err));
}

static bool check(const bd_draft *draft, const bd_draft_batch *batch,
                  const bd_draft_objective *objective, bd_error *err)
{
    int64_t bs = draft->config.block_size;
    if (batch->length % bs)
        return bd_fail(
            err,
            "seq_len (%lld) must be divisible by block_size (%lld). Adjust the sequence length "
            "or use padding.",
            (long long)batch->length, (long long)bs);
    if (batch->teacher_kind == BD_TEACHER_NONE && bd_draft_reads_teacher(draft, objective))
        return bd_fail(err,
                       "a %s draft that learns from its target's distribution needs the target's "
                       "logits or final hidden states; the batch has neither",
                       draft->config.variant->projector_type);
    return bd_draft_objective_check(&draft->config, objective, err);
}

static void prepare(bd_draft_step *step, const compact_blocks *c)
{
    const bd_draft_batch *batch = step->batch;
    bd_arena *arena = step->tape->arena;
    step->blocks = (bd_block_batch){.rows = batch->rows,
                                    .length = batch->length,
                                    .block_size = step->draft->config.block_size,
                                    .tokens = batch->tokens,
                                    .loss_mask = batch->loss_mask,
                                    .anchors = &c->anchors};
    step->slots = bd_block_slots(&step->blocks);
    step->targets =
        bd_block_targets_make(&step->blocks, step->draft->config.variant->label_shift, arena);
    step->weights = bd_arena_zeros(arena, step->slots);
    int32_t *tokens = bd_arena_ints(arena, step->slots),
            *positions = bd_arena_ints(arena, step->slots);
    bd_block_noise(&step->blocks, (int32_t)step->draft->config.mask_id, tokens);
    bd_block_positions(&step->blocks, positions);
    step->context =
        bd_draft_context(step->draft, step->tape, batch->features, batch->rows * batch->length);
    const bd_draft_blocks blocks = {.rows = batch->rows,
                                    .length = batch->length,
                                    .anchors = &c->anchors,
                                    .context = step->context,
                                    .tokens = tokens,
                                    .positions = positions};
    step->hidden = bd_draft_forward(step->draft, step->tape, &blocks);
}

/* All logits after the head, [slots, V]; NULL in a step without blocks. */
static const float *final_logits(const bd_draft_step *step)
{
    if (!step->hidden)
        return NULL;
    bd_arena *arena = step->tape->arena;
    int64_t vocabulary = step->draft->config.stack.vocabulary;
    float *logits = bd_arena_floats(arena, step->slots * vocabulary);
    bd_model_logits(step->draft->target, step->hidden->data, step->slots, logits, arena);
    if (step->correction)
        bd_matmul(bd_parameter_forward(step->correction_head, step->tape->compute),
                  step->correction->data, step->slots, step->correction->width, NULL, logits,
                  vocabulary, BD_ACCUMULATE, arena);
    return logits;
}

bool bd_draft_step_run(bd_draft *draft, bd_tape *tape, const bd_draft_batch *batch,
                       const bd_draft_objective *objective, bd_draft_form form,
                       bd_draft_record *record, bd_draft_loss *loss, bd_error *err)
{
    *loss = (bd_draft_loss){0};
    if (!check(draft, batch, objective, err))
        return false;
    bd_draft_step step = {
        .draft = draft, .tape = tape, .batch = batch, .objective = objective, .form = form};
    step.blocks.block_size = draft->config.block_size;
    compact_blocks *c = bd_arena_alloc(tape->arena, sizeof *c); // notes on the tape point to it
    *c = compact(batch, tape->arena);
    loss->blocks = c->kept;
    if (c->kept == 0 && draft->config.variant->idle)
        draft->config.variant->idle(objective, loss);
    if (c->kept > 0) {
        prepare(&step, c);
        draft->config.variant->loss(&step, loss);
        if (tape->recording)
            bd_tape_backward(tape);
    }
    if (record && record->hidden)
        spread(&step, c, step.hidden ? step.hidden->data : NULL, draft->config.stack.hidden,
               record->hidden);
    if (record && record->weights)
        spread(&step, c, step.weights, 1, record->weights);
    if (record && record->final_logits)
        spread(&step, c, final_logits(&step), draft->config.stack.vocabulary, record->final_logits);
    if (record && record->confidence)
        spread(&step, c, step.confidence ? step.confidence->data : NULL, 1, record->confidence);
    return true;
}
