/* prepare.h - from a batch of prompts to a batch a student can learn from: its own rollout, scored.
 *
 * In this order: the student fills the completions with its current weights; what comes after the
 * first stop token is dropped from everything; the corruption mask, drawn before the rollout, hides
 * tokens of the fresh text from the student; weights that cannot be trusted become 0; the causal
 * teacher reads the clean text and its output rows, shifted by one, score exactly the generated
 * tokens. A prepared batch belongs to the weights it was made with: it carries their version and is
 * refused after an update.
 *
 *     bd_prepared batch;
 *     if (!bd_prepare_rollout(&distiller, &rows, arena, &batch, &err)) ...
 *     if (!bd_distill_step(&distiller, &batch, &tape, &result, &err)) ...
 *
 * Source: block-diffusion G.1, G.2.
 */
#ifndef BD_DISTILL_PREPARE_H
#define BD_DISTILL_PREPARE_H

#include "diffusion/completion.h"
#include "diffusion/scoring.h"
#include "distill/objective.h"

/* Who learns from whom, and how. */
typedef struct {
    bd_model *student, *teacher; /* of one vocabulary; the teacher is frozen and causal */
    bd_rollout_options rollout;  /* greedy */
    bd_rollout_caches *caches;   /* for the rollout; NULL: the plain form, same tokens */
    const int32_t *stop;         /* [stop_count]; none: nothing is dropped */
    int64_t stop_count;
    bd_distill_objective objective;
    uint64_t version; /* raised by whoever updates the student's weights */
} bd_distiller;

bool bd_distiller_check(const bd_distiller *distiller, bd_error *err);

/* What is known before the rollout, [rows, length] each. */
typedef struct {
    bd_placement placement; /* segments not NULL */
    const int32_t *tokens;  /* prompts; what lies under the completion is not read */
    const int32_t *completion, *corruption;
    const float *weights; /* the loss mask, >= 0 */
} bd_distill_rows;

/* [rows, length] each unless noted; in the arena. */
typedef struct {
    int64_t rows, length;
    const int32_t *positions;
    int32_t *generated; /* the rollout: targets, and what the teacher reads */
    int32_t *steps;     /* of the rollout */
    float *logps;
    int32_t *completion, *segments, *corruption; /* after the stop rule */
    int32_t *inputs;                             /* what the student reads */
    float *weights;
    int32_t *teacher_source; /* slot whose teacher row scores the slot's token; -1: none */
    float *teacher_hidden;   /* [rows * length, H of the teacher], after its final norm */
    int64_t unsafe_rows;     /* rows whose weights were all taken back */
    int64_t stopped_rows;    /* rows that a stop token ended */
    bd_rollout_statistics statistics;
    uint64_t version; /* of the student's weights */
    double rollout_seconds, teacher_seconds;
} bd_prepared;

/* Errors, before any model runs: shapes and masks that contradict each other (G-05), rows that are
 * no prompt with one completion behind it (F-05 to F-07). */
bool bd_prepare_rollout(bd_distiller *distiller, const bd_distill_rows *rows,
                        const bd_rollout_observer *observer, bd_arena *arena, bd_prepared *out,
                        bd_error *err);

/* The same for a data set's own tokens (distill.data_source: dataset): nothing is generated. */
bool bd_prepare_dataset(bd_distiller *distiller, const bd_distill_rows *rows, bd_arena *arena,
                        bd_prepared *out, bd_error *err);

/* Student forward and loss; a recording tape is walked back: gradients of total_sum are added to
 * the student. result->soft and ->hard, if wanted, are [rows, length]. A batch of another version:
 * error. */
bool bd_distill_step(bd_distiller *distiller, const bd_prepared *batch, bd_tape *tape,
                     bd_distill_result *result, bd_error *err);

#endif
