/* objective.h - what a student learns from a teacher's scores of given tokens.
 *
 * A slot's loss is soft * D(teacher, student) + hard * CE(token): D is T^2 KL(teacher, student)
 * unless another divergence is asked for, both distributions softened by the temperature T; CE is
 * at temperature 1. The loss of a batch is the weighted sum over slots and, kept apart, the sum of
 * weights. Slots of weight 0 may hold anything, also what is not a number. No gradient goes into
 * the teacher.
 *
 *     bd_distill_objective objective = bd_distill_objective_default();
 *     if (!bd_distill_objective_check(&objective, &err)) ...
 *     bd_distill_loss_on_logits(&objective, rows, V, student, teacher, targets, weights, &out);
 *
 * Source: block-diffusion G.3; decision 18.
 */
#ifndef BD_DISTILL_OBJECTIVE_H
#define BD_DISTILL_OBJECTIVE_H

#include "autograd/tape.h"
#include "base/error.h"

typedef struct {
    double temperature;            /* > 0 */
    double soft, hard;             /* >= 0, not both 0 */
    bd_divergence_kind divergence; /* forward KL, reverse KL or Jensen-Shannon */
    double beta;   /* Jensen-Shannon: the teacher's share of the mixture, in (0, 1) */
    int64_t top_k; /* forward KL over so many of the teacher's likeliest tokens and a bucket for all
                      others (G-37); 0: over all tokens */
} bd_distill_objective;

bd_distill_objective bd_distill_objective_default(void); /* T 1, soft 1, hard 0, forward KL */
bool bd_distill_objective_check(const bd_distill_objective *objective, bd_error *err);
bool bd_divergence_from_name(const char *name, bd_divergence_kind *kind, bd_error *err);
const char *bd_divergence_name(bd_divergence_kind kind); /* "forward_kl", "reverse_kl", "jsd" */

/* Sums over slots, soft and hard without their factors. The arrays are [rows]; NULL: not wanted. */
typedef struct {
    double soft_sum, hard_sum, total_sum, weight_sum;
    float *soft, *hard; /* per slot: T^2 D and cross entropy, 0 where the weight is 0 */
} bd_distill_result;

/* Weights finite and >= 0, targets of weighted slots inside the vocabulary, and teacher logits of
 * weighted slots finite when soft > 0 (with soft 0 they are not read). */
bool bd_distill_check_logits(const bd_distill_objective *objective, int64_t rows,
                             int64_t vocabulary, const float *teacher, const int32_t *targets,
                             const float *weights, bd_error *err);

/* Logits [rows, vocabulary] given. d_student: gradient of total_sum, zeros at weight 0; or NULL. */
void bd_distill_loss_on_logits(const bd_distill_objective *objective, int64_t rows,
                               int64_t vocabulary, const float *student, const float *teacher,
                               const int32_t *targets, const float *weights, float *d_student,
                               bd_distill_result *result, bd_arena *arena);

/* Hidden rows of the student x [rows, H] with its head, and a row of the teacher's hidden states
 * for each (NULL where the weight is 0) with the teacher's head: fused, never [rows, vocabulary].
 * Gradients of total_sum are added to x and the head when the tape records. */
void bd_distill_loss(const bd_distill_objective *objective, bd_tape *tape, bd_value *x,
                     bd_parameter *head, const float *const *teacher_hidden,
                     const bd_packed *teacher_head, const int32_t *targets, const float *weights,
                     bd_distill_result *result);

#endif
