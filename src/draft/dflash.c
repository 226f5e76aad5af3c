#include "draft/dflash.h"

#include "tensor/rows.h"

/* Sums over the slots in their order; and the gradients of the slots' features, which so far are
 * those of unweighted losses, times weight and the step's factor. */
void bd_dflash_weigh(bd_draft_step *step, const float *value, const float *slope,
                     const int32_t *best, bool unruled, bd_draft_loss *loss)
{
    const bd_block_targets *targets = &step->targets;
    for (int64_t i = 0; i < step->slots; i++) {
        if (targets->supervised[i] == 0)
            continue;
        loss->supervised += 1;
        loss->correct += best[i] == targets->token[i];
        loss->weight += (double)step->weights[i];
        loss->sum += (double)step->weights[i] * (double)value[i];
    }
    double factor = bd_draft_step_factor(step, loss->weight);
    if (unruled) {
        loss->unruled += loss->sum;
        factor = step->form == BD_DRAFT_SUM ? 1 : 1 / bd_weight_denominator(loss->weight);
    }
    if (!step->hidden->gradient)
        return;
    int64_t width = step->hidden->width;
    for (int64_t i = 0; i < step->slots; i++)
        if (targets->supervised[i] != 0) {
            double own = (double)step->weights[i] * (slope ? (double)slope[i] : 1);
            bd_scale((float)(own * factor), width, step->hidden->gradient + i * width);
        }
}

void bd_dflash_run(bd_draft_step *step, bd_dflash_slots *slots)
{
    bd_arena *arena = step->tape->arena;
    bool distill = step->objective->distill;
    slots->hard = slots->value = bd_arena_floats(arena, step->slots);
    slots->best = bd_arena_ints(arena, step->slots);
    // D-PACE weighs slots by this very pass's cross entropies, so the pass runs with weight 1 and
    // the gradients are multiplied afterwards; the head is frozen, nothing else has seen them yet.
    bd_vocabulary_loss pass = {.rows = step->slots,
                               .vocabulary = step->draft->target->config.vocabulary,
                               .scale = step->targets.supervised,
                               .targets = step->targets.token,
                               .hard = distill ? 0 : 1,
                               .hard_loss = slots->hard,
                               .best = slots->best};
    if (distill) {
        bd_teacher_rows teacher = bd_draft_step_teacher(step);
        slots->value = bd_arena_floats(arena, step->slots);
        pass.soft = 1;
        pass.soft_loss = slots->value;
        pass.teacher_logits = teacher.logits;
        pass.teacher_features = teacher.features;
        pass.teacher_head = teacher.head;
    }
    bd_op_vocabulary_loss(step->tape, step->hidden, step->draft->target->head, &pass);
    bd_position_weights(&step->objective->weighting, step->draft->config.variant->label_shift,
                        &step->blocks, step->targets.supervised, slots->hard, step->weights);
}

void bd_dflash_loss(bd_draft_step *step, bd_draft_loss *loss)
{
    bd_dflash_slots slots;
    bd_dflash_run(step, &slots);
    bd_dflash_weigh(step, slots.value, NULL, slots.best, false, loss);
}

static void decode(bd_draft_decoding *decoding)
{
    bd_draft_decode_greedy(decoding, bd_draft_variant_first_slot(decoding->draft->config.variant));
}

const bd_draft_variant bd_draft_dflash = {
    .projector_type = "dflash",
    .architecture = "DFlashDraftModel",
    .label_shift = 0,
    .loss = bd_dflash_loss,
    .decode = decode,
};
