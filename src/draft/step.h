/* step.h - one training step of a drafter: from a batch to a loss and gradients.
 *
 * The order is the same for every variant: which blocks, their input and targets, the backbone,
 * then the variant's loss. The loss stays a sum and a weight; whether an update's total weight
 * trains anything is decided once per update (decision 26). The divided form exists for one batch
 * alone, as the golden cases have it. Blocks that are not kept cost nothing: the kept ones of each
 * row are moved together first. Source: draft-family 5.1 to 5.3, 5.7.
 *
 *     bd_tape tape = bd_tape_begin(arena, draft->compute, true);
 *     bd_draft_loss loss;
 *     if (!bd_draft_step_run(draft, &tape, &batch, &objective, BD_DRAFT_SUM, NULL, &loss, &err))
 * ...
 *     // gradients of loss.sum were added to the parameters; bd_weighted_mean(loss.sum,
 * loss.weight)
 */
#ifndef BD_DRAFT_STEP_H
#define BD_DRAFT_STEP_H

#include "draft/backbone.h"
#include "draft/targets.h"

/* What the teacher's distribution is made from, [B * S, V] or [B * S, H]. */
typedef enum {
    BD_TEACHER_NONE,
    BD_TEACHER_LOGITS,
    BD_TEACHER_HIDDEN,  /* the target's output before its head */
    BD_TEACHER_PRENORM, /* before its final norm, which is applied here */
} bd_teacher_kind;

typedef struct {
    int64_t rows, length;      /* B, S */
    const int32_t *tokens;     /* [B, S] */
    const float *loss_mask;    /* [B, S] */
    const bd_anchors *anchors; /* [B, N] */
    const float *features;     /* [B * S, taps * H] */
    bd_teacher_kind teacher_kind;
    const float *teacher;
} bd_draft_batch;

/* How a draft is trained; one field per option, read by the variants that have it. */
typedef struct bd_draft_objective {
    bd_weighting weighting;
    bool distill; /* learn the target's distribution instead of the label */
} bd_draft_objective;

bd_draft_objective bd_draft_objective_default(void); /* D-PACE, alpha 0.5, distilled */

typedef struct bd_draft_loss {
    double sum, weight;         /* sum of weight * loss of a slot; sum of the weights */
    double correct, supervised; /* top-1 against the label tokens, over supervised slots */
    int64_t blocks;             /* kept */
} bd_draft_loss;

/* Gradients of loss.sum, or of bd_weighted_mean(loss.sum, loss.weight). */
typedef enum { BD_DRAFT_SUM, BD_DRAFT_MEAN } bd_draft_form;

/* What else to keep, in the layout of the batch's anchors; NULL: not wanted. Slots of blocks that
 * are not kept are 0. */
typedef struct {
    float *hidden;  /* [B, N * bs, H] */
    float *weights; /* [B, N, bs] */
} bd_draft_record;

/* Forward, and with a recording tape backward: adds to the gradients of all trainable parameters. A
 * step with nothing to supervise adds nothing and is no error. Refused: rows that blocks do not
 * divide, a missing teacher, a bad weighting. */
bool bd_draft_step_run(bd_draft *draft, bd_tape *tape, const bd_draft_batch *batch,
                       const bd_draft_objective *objective, bd_draft_form form,
                       bd_draft_record *record, bd_draft_loss *loss, bd_error *err);

/* Run the target over token rows and keep what a batch needs of it: features [rows * length, taps *
 * H] and its final hidden states [rows * length, H] (BD_TEACHER_HIDDEN); either may be NULL. */
void bd_draft_observe(bd_draft *draft, const int32_t *tokens, int64_t rows, int64_t length,
                      float *features, float *hidden, bd_arena *scratch);

/* --- for variants
 * ---------------------------------------------------------------------------------- */

typedef struct bd_draft_step {
    bd_draft *draft;
    bd_tape *tape;
    const bd_draft_batch *batch;
    const bd_draft_objective *objective;
    bd_draft_form form;
    bd_block_batch blocks;    /* the kept blocks of each row, padded with unused ones */
    bd_block_targets targets; /* of these blocks */
    int64_t slots;            /* B * N * bs */
    bd_value *context;        /* [B * S, H] */
    bd_value *hidden;         /* [slots, H] */
    float *weights;           /* [slots]: set by the loss */
} bd_draft_step;

/* The teacher's rows for the supervised slots, as the fused loss wants them; others are NULL. */
typedef struct {
    const float *const *logits, *const *features; /* [slots]; one of the two is NULL */
    const bd_packed *head;                        /* of features */
} bd_teacher_rows;
bd_teacher_rows bd_draft_step_teacher(const bd_draft_step *step);

/* What a slot's gradient is multiplied by besides its weight, given the sum of weights. */
double bd_draft_step_factor(const bd_draft_step *step, double weight);

#endif
