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
#include "draft/observe.h"
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

/* What a slot of DFlash2 pays: its cross entropy, the probability its label does not get, or a mix
 * that moves from the first to the second as the backbone gets better (dflash2.h). */
typedef enum { BD_SLOT_CE, BD_SLOT_TV, BD_SLOT_LAMBDA } bd_slot_loss;

/* How a draft is trained; one field per option, read by the variants that have it. */
typedef struct bd_draft_objective {
    bd_weighting weighting;
    bool distill; /* learn the target's distribution instead of the label */
    /* DSpark: weights of the cross entropy, of the distance from the teacher, of the confidence. */
    float ce_alpha, l1_alpha, confidence_alpha;
    float lambda; /* Domino: weight of the backbone's own loss, in [0, 1] (lambda.h) */
    /* DFlash2. */
    bd_slot_loss slot_loss;
    float ce_scale, ce_decay; /* of BD_SLOT_LAMBDA */
    float selector_alpha;     /* weight of the selector's loss; 0: it is not trained */
    /* LiLiCorr: weights of its four terms, and how far the label should be ahead. */
    float lattice_ce, lattice_margin_weight, lattice_penalty, lattice_calibration, lattice_margin;
} bd_draft_objective;

bd_draft_objective bd_draft_objective_default(void); /* D-PACE, alpha 0.5, distilled */

/* A number worth watching: sum / weight over all micro-batches and ranks, 0 for weight 0. */
typedef struct {
    const char *name;
    double sum, weight;
} bd_draft_metric;

enum { BD_DRAFT_METRICS = 24 };

typedef struct bd_draft_loss {
    double sum, weight;         /* sum of weight * loss of a slot; sum of the weights */
    double correct, supervised; /* top-1 against the label tokens, over supervised slots */
    int64_t blocks;             /* kept */
    double unruled;             /* the part of sum that trains however small the weight is */
    bd_draft_metric metrics[BD_DRAFT_METRICS]; /* of the variant */
    int metric_count;
} bd_draft_loss;

/* The loss of this batch alone: bd_weighted_mean(), with the unruled part always counted. */
double bd_draft_loss_mean(const bd_draft_loss *loss);

/* Gradients of loss.sum, or of bd_weighted_mean(loss.sum, loss.weight). */
typedef enum { BD_DRAFT_SUM, BD_DRAFT_MEAN } bd_draft_form;

/* What else to keep, in the layout of the batch's anchors; NULL: not wanted. Slots of blocks that
 * are not kept are 0. */
typedef struct {
    float *hidden;  /* [B, N * bs, H] */
    float *weights; /* [B, N, bs] */
    /* What heads that add to the logits make of them; for small vocabularies. */
    float *final_logits; /* [B, N, bs, V] */
    float *confidence;   /* [B, N, bs] logits; 0 without a confidence head */
} bd_draft_record;

/* Forward, and with a recording tape backward: adds to the gradients of all trainable parameters. A
 * step with nothing to supervise adds nothing and is no error. Refused: rows that blocks do not
 * divide, a missing teacher, a bad weighting. */
bool bd_draft_step_run(bd_draft *draft, bd_tape *tape, const bd_draft_batch *batch,
                       const bd_draft_objective *objective, bd_draft_form form,
                       bd_draft_record *record, bd_draft_loss *loss, bd_error *err);

/* Options out of range, or that do not go together with this draft. */
bool bd_draft_objective_check(const bd_draft_config *config, const bd_draft_objective *objective,
                              bd_error *err);

/* Does this objective read the target's distribution? */
bool bd_draft_reads_teacher(const bd_draft *draft, const bd_draft_objective *objective);

/* --- for variants ----------------------------------------------------------------------------- */

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
    /* Set by losses whose head adds to the logits; else NULL. */
    bd_value *correction;          /* [slots, width], to which correction_head is applied */
    bd_parameter *correction_head; /* [V, width] */
    bd_value *confidence;          /* [slots, 1] logits */
} bd_draft_step;

/* The teacher's rows for the supervised slots, as the fused loss wants them; others are NULL. */
typedef struct {
    const float *const *logits, *const *features; /* [slots]; one of the two is NULL */
    const bd_packed *head;                        /* of features */
} bd_teacher_rows;
bd_teacher_rows bd_draft_step_teacher(const bd_draft_step *step);

/* For losses whose weights do not depend on the logits: add up step->weights and the supervised
 * slots into `loss` and return the factor below; and weight times factor of each slot, [slots]. */
double bd_draft_step_weigh(const bd_draft_step *step, bd_draft_loss *loss);
const float *bd_draft_step_scale(const bd_draft_step *step, double factor);

/* What a slot's gradient is multiplied by besides its weight, given the sum of weights. */
double bd_draft_step_factor(const bd_draft_step *step, double weight);

/* A term with a denominator of its own, already divided by it: `mean`, unruled. Adds it to the
 * loss, whose weight must be known, and returns what its gradient is multiplied by. In a sum of
 * several micro-batches each one's term counts by its weight. */
double bd_draft_step_add(const bd_draft_step *step, double mean, bd_draft_loss *loss);

void bd_draft_loss_metric(bd_draft_loss *loss, const char *name, double sum, double weight);

#endif
