/* bdlm/distill.h - on-policy distillation for a model, a rollout and a teacher of your own.
 *
 * A program brings four things as callbacks: its rollout (a batch of generated tokens with
 * weights), its student's scores of exactly these tokens, its teacher's, and what a resumed run has
 * to have in common with this one. How outputs are aligned with targets is the program's affair:
 * scores are asked for target by target. The library checks, computes the weighted divergence and
 * cross entropy, and hands back the gradient of the student's scores.
 *
 *     bd_distill_source source = {.self = &mine, .prepare = my_rollout, .student = my_scores,
 *                                 .teacher = my_teacher, .learn = my_backward};
 *     bd_distill_options options = bd_distill_options_default();
 *     bd_distill_sums sums;
 *     if (!bd_distill_once(&source, &options, &sums, &err)) ...
 *     loss = sums.weight > 0 ? sums.total / sums.weight : 0;
 *
 * Arrays are row-major and stay the program's. Nothing is averaged: sums and weights add up over
 * micro-batches and are divided once. Source: block-diffusion section E, G.3.
 */
#ifndef BDLM_DISTILL_H
#define BDLM_DISTILL_H

#include <stdbool.h>
#include <stdint.h>

#include "bdlm/dtype.h"
#include "bdlm/error.h"

enum { BD_ARRAY_RANK = 8 };

typedef struct {
    const char *name; /* for messages */
    bd_dtype dtype;
    int rank;
    int64_t shape[BD_ARRAY_RANK];
    const void *data;
} bd_array;

/* Tokens that were generated and what they count. Slots of weight 0 may hold any target, -1
 * included. */
typedef struct {
    const bd_array
        *model_inputs; /* [input_count], batch-major; whatever the program's model wants */
    int64_t input_count;
    bd_array target_ids;   /* [rows, length], integers */
    bd_array loss_weights; /* [rows, length], bool, integers or floats; finite, >= 0 */
} bd_token_batch;

/* The checks of E-02 in their order: rank, integer targets, shapes, real weights, finite, not
 * negative, weighted targets >= 0, and at least one input, each an array with the rows of the batch
 * first. */
bool bd_token_batch_check(const bd_token_batch *batch, bd_error *err);

/* Target-aligned scores [rows, length, vocabulary], floats; weighted targets inside the vocabulary.
 */
bool bd_logits_check(const bd_token_batch *batch, const bd_array *logits, bd_error *err);

/* A batch with its teacher's scores of the same targets: prepared data and nothing else. Both are
 * checked; that the scores are of the student as it is now, no tensor can prove. */
typedef struct {
    bd_token_batch student;
    bd_array teacher_logits;
} bd_distillation_batch;

bool bd_distillation_batch_check(const bd_distillation_batch *batch, bd_error *err);

typedef struct {
    double temperature; /* > 0; softens both distributions, the divergence is times T^2 */
    double soft, hard;  /* weights of the divergence and of the cross entropy at temperature 1 */
    const char *divergence; /* "forward_kl" (teacher, student), "reverse_kl", "jsd" */
    double beta;            /* jsd: the teacher's share of the mixture */
} bd_distill_options;

bd_distill_options bd_distill_options_default(void); /* 1, 1, 0, "forward_kl", 0.5 */

typedef struct {
    double soft, hard, total, weight; /* sums over the slots; total = soft weight * soft + ... */
} bd_distill_sums;

/* The loss of prepared scores. d_student [rows, length, vocabulary]: gradient of the total with
 * respect to the student's aligned scores, 0 at weight 0; NULL: not wanted. */
bool bd_distill_prepared(const bd_distillation_batch *batch, const bd_array *student_logits,
                         const bd_distill_options *options, float *d_student, bd_distill_sums *sums,
                         bd_error *err);

typedef struct {
    void *self;
    /* A fresh rollout of the student as it is now. Its arrays live until the next call. */
    bool (*prepare)(void *self, bd_token_batch *out, bd_error *err);
    /* Target-aligned scores of exactly these targets. */
    bool (*teacher)(void *self, const bd_token_batch *batch, bd_array *logits, bd_error *err);
    bool (*student)(void *self, const bd_token_batch *batch, bd_array *logits, bd_error *err);
    /* Take the gradient of the student's scores back into the model. NULL: the loss alone. */
    bool (*learn)(void *self, const bd_token_batch *batch, const float *d_logits, bd_error *err);
    /* The number of the student's weights; it rises with every update. A batch whose weights
     * changed before its loss was taken is refused. NULL: not told. */
    uint64_t (*version)(void *self);
    /* Call add(to, name, value) for whatever resuming has to match. NULL: nothing. */
    void (*identity)(void *self, void (*add)(void *to, const char *name, const char *value),
                     void *to);
} bd_distill_source;

/* One micro-batch: rollout, teacher, student, loss, gradient, in this order and once each. */
bool bd_distill_once(const bd_distill_source *source, const bd_distill_options *options,
                     bd_distill_sums *sums, bd_error *err);

/* SHA-256 (64 hexadecimal digits) over the source's identity and the options: equal for runs that
 * may go on from each other. */
bool bd_distill_fingerprint(const bd_distill_source *source, const bd_distill_options *options,
                            char out[65], bd_error *err);

#endif
