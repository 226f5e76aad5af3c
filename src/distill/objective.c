#include "distill/objective.h"

#include <math.h>
#include <string.h>

static const char *const names[] = {[BD_DIVERGENCE_FORWARD_KL] = "forward_kl",
                                    [BD_DIVERGENCE_REVERSE_KL] = "reverse_kl",
                                    [BD_DIVERGENCE_JENSEN_SHANNON] = "jsd"};

const char *bd_divergence_name(bd_divergence_kind kind)
{
    return names[kind];
}

bool bd_divergence_from_name(const char *name, bd_divergence_kind *kind, bd_error *err)
{
    for (int i = BD_DIVERGENCE_FORWARD_KL; i <= BD_DIVERGENCE_JENSEN_SHANNON; i++)
        if (!strcmp(names[i], name)) {
            *kind = (bd_divergence_kind)i;
            return true;
        }
    return bd_fail(err, "opd_loss: %s, one of forward_kl, reverse_kl, jsd wanted", name);
}

bd_distill_objective bd_distill_objective_default(void)
{
    return (bd_distill_objective){
        .temperature = 1, .soft = 1, .divergence = BD_DIVERGENCE_FORWARD_KL, .beta = 0.5};
}

bool bd_distill_objective_check(const bd_distill_objective *o, bd_error *err)
{
    if (!isfinite(o->temperature) || o->temperature <= 0)
        return bd_fail(err, "distill.temperature: %g, a finite number above 0 wanted",
                       o->temperature);
    if (!isfinite(o->soft) || !isfinite(o->hard) || o->soft < 0 || o->hard < 0)
        return bd_fail(err,
                       "distill: soft weight %g and hard weight %g, finite and not negative wanted",
                       o->soft, o->hard);
    if (o->soft == 0 && o->hard == 0)
        return bd_fail(err, "distill: soft and hard weight are both 0: nothing to learn from");
    if (o->divergence < BD_DIVERGENCE_FORWARD_KL || o->divergence > BD_DIVERGENCE_JENSEN_SHANNON)
        return bd_fail(err, "distill: divergence %d is not one of a teacher", (int)o->divergence);
    if (o->divergence == BD_DIVERGENCE_JENSEN_SHANNON && !(o->beta > 0 && o->beta < 1))
        return bd_fail(
            err, "distill: beta %g of the Jensen-Shannon mixture, between 0 and 1 wanted", o->beta);
    if (o->top_k < 0 || o->top_k > BD_MOST_TOP_K)
        return bd_fail(err, "distill.opd_teacher_topk: %lld, 0 (all) to %d wanted",
                       (long long)o->top_k, BD_MOST_TOP_K);
    if (o->top_k > 0 && o->divergence != BD_DIVERGENCE_FORWARD_KL)
        return bd_fail(err,
                       "distill.opd_teacher_topk: %lld with opd_loss %s, forward_kl wanted: others "
                       "need the student's mass on every token",
                       (long long)o->top_k, names[o->divergence]);
    return true;
}

bool bd_distill_check_logits(const bd_distill_objective *objective, int64_t rows,
                             int64_t vocabulary, const float *teacher, const int32_t *targets,
                             const float *weights, bd_error *err)
{
    for (int64_t r = 0; r < rows; r++) {
        if (!isfinite(weights[r]) || weights[r] < 0)
            return bd_fail(err, "weights: slot %lld has %g, finite and not negative wanted",
                           (long long)r, (double)weights[r]);
        if (weights[r] == 0)
            continue;
        if (targets[r] < 0 || targets[r] >= vocabulary)
            return bd_fail(err, "targets: slot %lld has %d, 0 to %lld wanted", (long long)r,
                           targets[r], (long long)vocabulary - 1);
        for (int64_t v = 0; objective->soft > 0 && v < vocabulary; v++)
            if (!isfinite(teacher[r * vocabulary + v]))
                return bd_fail(err, "teacher_logits: slot %lld, token %lld is %g, finite wanted",
                               (long long)r, (long long)v, (double)teacher[r * vocabulary + v]);
    }
    return true;
}

/* The row loss of the fused operation. Without a soft weight the teacher is not read at all. */
static bd_vocabulary_loss row_loss(const bd_distill_objective *o, int64_t rows, int64_t vocabulary,
                                   const int32_t *targets, const float *weights,
                                   bd_distill_result *result, bd_arena *arena)
{
    if (!result->soft)
        result->soft = bd_arena_zeros(arena, rows);
    if (!result->hard)
        result->hard = bd_arena_zeros(arena, rows);
    bd_divergence_kind divergence = o->soft > 0 ? o->divergence : BD_DIVERGENCE_NONE;
    // With all tokens kept there is no bucket.
    if (divergence == BD_DIVERGENCE_FORWARD_KL && o->top_k > 0 && o->top_k < vocabulary)
        divergence = BD_DIVERGENCE_TAIL_BUCKET;
    return (bd_vocabulary_loss){.rows = rows,
                                .vocabulary = vocabulary,
                                .scale = weights,
                                .targets = targets,
                                .hard = (float)o->hard,
                                .divergence = divergence,
                                .divergence_weight = (float)o->soft,
                                .temperature = (float)o->temperature,
                                .beta = (float)o->beta,
                                .top_k = o->top_k,
                                .hard_loss = result->hard,
                                .divergence_loss = result->soft};
}

static void add_up(const bd_distill_objective *o, int64_t rows, const float *weights,
                   bd_distill_result *result)
{
    result->soft_sum = result->hard_sum = result->weight_sum = 0;
    for (int64_t r = 0; r < rows; r++) {
        // What is not asked for is not reported either.
        if (o->soft == 0)
            result->soft[r] = 0;
        if (o->hard == 0)
            result->hard[r] = 0;
        result->soft_sum += (double)weights[r] * (double)result->soft[r];
        result->hard_sum += (double)weights[r] * (double)result->hard[r];
        result->weight_sum += (double)weights[r];
    }
    result->total_sum = o->soft * result->soft_sum + o->hard * result->hard_sum;
}

void bd_distill_loss_on_logits(const bd_distill_objective *objective, int64_t rows,
                               int64_t vocabulary, const float *student, const float *teacher,
                               const int32_t *targets, const float *weights, float *d_student,
                               bd_distill_result *result, bd_arena *arena)
{
    const float **teacher_rows = bd_arena_alloc(arena, (size_t)rows * sizeof *teacher_rows);
    for (int64_t r = 0; r < rows; r++)
        teacher_rows[r] = teacher + r * vocabulary;
    bd_vocabulary_loss loss =
        row_loss(objective, rows, vocabulary, targets, weights, result, arena);
    if (loss.divergence != BD_DIVERGENCE_NONE)
        loss.teacher_logits = teacher_rows;
    bd_vocabulary_loss_on_logits(&loss, student, d_student);
    add_up(objective, rows, weights, result);
}

void bd_distill_loss(const bd_distill_objective *objective, bd_tape *tape, bd_value *x,
                     bd_parameter *head, const float *const *teacher_hidden,
                     const bd_packed *teacher_head, const int32_t *targets, const float *weights,
                     bd_distill_result *result)
{
    bd_vocabulary_loss loss =
        row_loss(objective, x->rows, head->shape[0], targets, weights, result, tape->arena);
    if (loss.divergence != BD_DIVERGENCE_NONE) {
        loss.teacher_features = teacher_hidden;
        loss.teacher_head = teacher_head;
    }
    bd_op_vocabulary_loss(tape, x, head, &loss);
    add_up(objective, x->rows, weights, result);
}
