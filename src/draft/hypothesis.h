/* hypothesis.h - the ways in which a draft may be used otherwise than it was trained.
 *
 * A usage is everything about a draft that its weights do not say: which slot predicts first, which
 * states of the target it reads, which row stands for a mask, which head it writes with, how it
 * turns positions. A hypothesis changes one thing of a usage and knows how the mistake would be
 * mended. doctor.h measures them. Source: draft-family 1.3, 1.4, 2.1, 3.8, 8.5.
 *
 *     bd_usage usage = bd_usage_of(&patient);
 *     bd_hypotheses list;
 *     bd_hypotheses_make(&patient, &usage, candidates, count, &list);
 *     bd_usage other = usage;
 *     bd_hypothesis_apply(&list.items[i], &other);
 */
#ifndef BD_DRAFT_HYPOTHESIS_H
#define BD_DRAFT_HYPOTHESIS_H

#include "draft/patient.h"

/* Where the target's final norm stands in what the draft is fed or was taught. */
typedef enum {
    BD_STATES_AS_SERVED,     /* the last layer after the norm, all others before it */
    BD_STATES_LAST_BEFORE,   /* the last layer before it as well */
    BD_STATES_HIGHEST_AFTER, /* the highest tapped layer after it, though it is not the last */
    BD_STATES_ALL_AFTER,     /* every tapped layer after it */
} bd_states_norm;

typedef enum { BD_HEAD_TARGET, BD_HEAD_EMBEDDING, BD_HEAD_OWN } bd_head_choice;

typedef struct {
    int shift;         /* 1: slot 0 predicts */
    int64_t tap_shift; /* added to every tapped layer */
    bd_states_norm norm;
    bool unnormed_teacher; /* compared with what the target's head says of states before the norm */
    int64_t mask_id;
    bool zero_mask;
    bd_head_choice head;
    bool own_embedding;
    bd_rope_config rope;
    bool windows_off;
    int64_t window; /* of all layers, where windows_off does not say otherwise */
    bd_draft_causality causality;
} bd_usage;

typedef enum {
    BD_PART_LAYOUT,
    BD_PART_TAPS,
    BD_PART_NORM,
    BD_PART_MASK,
    BD_PART_HEAD,
    BD_PART_VOCABULARY,
    BD_PART_ROPE,
    BD_PART_WINDOW,
    BD_PART_LEAK,
    BD_PART_DRAFT, /* the draft as a whole */
    BD_PARTS
} bd_part;

const char *bd_part_name(bd_part part); /* "layout" */

typedef struct {
    bd_part part;
    bd_usage changed;    /* only the fields below are meant */
    size_t offset, size; /* of the one field that differs */
    char what[80], fix[220];
} bd_hypothesis;

enum { BD_MOST_HYPOTHESES = 32, BD_MOST_CANDIDATES = 6 };
typedef struct {
    bd_hypothesis items[BD_MOST_HYPOTHESES];
    int64_t count;
} bd_hypotheses;

/* As the folder says. */
bd_usage bd_usage_of(const bd_patient *patient);

/* Everything that may be otherwise than in `usage` and makes sense for this pair. candidates: token
 * ids that might be the mask, the likeliest first; of those and a few of the target's, at most
 * BD_MOST_CANDIDATES are taken up. */
void bd_hypotheses_make(const bd_patient *patient, const bd_usage *usage, const int32_t *candidates,
                        int64_t count, bd_hypotheses *out);

void bd_hypothesis_apply(const bd_hypothesis *hypothesis, bd_usage *usage);

#endif
