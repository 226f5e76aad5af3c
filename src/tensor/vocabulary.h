/* vocabulary.h - losses over a vocabulary, without ever holding [rows, vocabulary].
 *
 * Logits are z[r] = features[r] @ head^T (a sum of such products where a draft has a correction head).
 * The operation walks over rows in chunks: logits of the chunk, losses, gradient of the logits,
 * gradient of the features and (if trained) of the head; then the chunk's logits are forgotten.
 * Memory is O(chunk x vocabulary), independent of the number of rows. Results do not depend on the
 * chunk size: each row is on its own, head gradients sum over rows in order.
 *
 *     bd_vocabulary_loss loss = {.terms = {{.features = h, .width = H, .head = &head}}, ...};
 *     bd_vocabulary_forward_backward(&loss, scratch);
 */
#ifndef BD_TENSOR_VOCABULARY_H
#define BD_TENSOR_VOCABULARY_H

#include "tensor/matmul.h"

/* One (features x head) product of the logits. */
typedef struct {
    const float *features; /* [rows, width] */
    int64_t width;
    const bd_packed *head; /* out = vocabulary, in = width */
    const bd_packed
        *head_backward; /* out = width, in = vocabulary; needed when d_features is wanted */
    float *d_features;  /* [rows, width], added to; NULL: not wanted */
    float *d_head;      /* [vocabulary, width], added to; NULL: frozen */
    bd_dtype compute;   /* of the weight gradient */
} bd_vocabulary_term;

enum { BD_VOCABULARY_TERMS = 2, BD_MOST_TOP_K = 1024 };

/* How far the student's distribution is from the teacher's, both softened by a temperature T. */
typedef enum {
    BD_DIVERGENCE_NONE,
    BD_DIVERGENCE_FORWARD_KL,     /* T^2 KL(teacher, student) (block-diffusion G-25) */
    BD_DIVERGENCE_REVERSE_KL,     /* T^2 KL(student, teacher) (decision 18) */
    BD_DIVERGENCE_JENSEN_SHANNON, /* T^2 (beta KL(teacher, m) + (1 - beta) KL(student, m)) (G-30) */
    BD_DIVERGENCE_TAIL_BUCKET, /* T^2 KL(teacher, student) over the teacher's top_k tokens and one
                                    * bucket for all others (G-37): a lower bound of the full one */
    BD_DIVERGENCE_TOTAL_VARIATION, /* sum |student - teacher|, not halved (draft-family 5.4) */
} bd_divergence_kind;

typedef struct {
    int64_t rows, vocabulary;
    bd_vocabulary_term terms[BD_VOCABULARY_TERMS];
    int term_count;
    /* Rows with scale 0 are skipped entirely: their features may hold anything, their losses are 0. */
    const float *scale; /* [rows]: gradient of row r is scale[r] * d(row loss) */
    /* Hard labels: cross entropy -log softmax(z)[target]. */
    const int32_t *targets; /* [rows]; required: also for the metrics of a soft loss */
    float hard;             /* weight of the cross entropy in the row loss */
    float z_loss;           /* adds z_loss * logsumexp(z)^2 to it; 0: off */
    /* Soft labels: -sum_v softmax(t)_v log softmax(z)_v against teacher rows, given as logits or as
     * features of a frozen head, which is then applied to these rows only. NULL: no soft labels. */
    float soft;                           /* weight of the soft cross entropy in the row loss */
    const float *const *teacher_logits;   /* [rows] pointers to [vocabulary] */
    const float *const *teacher_features; /* [rows] pointers to [teacher_head->in] */
    const bd_packed *teacher_head;
    /* A divergence from the same teacher rows, beside or instead of the soft cross entropy. */
    bd_divergence_kind divergence;
    float divergence_weight; /* in the row loss */
    float temperature;       /* > 0 */
    float beta;              /* Jensen-Shannon only: weight of the teacher in the mixture */
    int64_t top_k;           /* tail bucket only: 1 .. BD_MOST_TOP_K, at most the vocabulary */
    /* Out, each [rows] or NULL. */
    float *hard_loss;       /* cross entropy of the target */
    float *soft_loss;       /* soft cross entropy */
    float *divergence_loss; /* the divergence, unweighted */
    int32_t *best;          /* arg max, lowest id on ties; -1 for skipped rows */
    int32_t *best_first;    /* the same for the first term alone, without a correction */
    float *log_normalizer;  /* logsumexp(z) */
} bd_vocabulary_loss;

/* Forward only when no term wants a gradient. */
void bd_vocabulary_forward_backward(const bd_vocabulary_loss *loss, bd_arena *scratch);

/* The same losses on logits that exist already (golden cases, small vocabularies); d_logits
 * [rows, vocabulary] is overwritten, rows of scale 0 with zeros; may be NULL. */
void bd_vocabulary_loss_on_logits(const bd_vocabulary_loss *loss, const float *logits,
                                  float *d_logits);

#endif
