/* doctor.h - what is wrong between a draft and its target, found by measuring.
 *
 * The target has read a calibration text once; the draft then drafts blocks at many anchors of it,
 * as configured and once for every hypothesis (hypothesis.h). Whatever makes clearly more of its
 * tokens acceptable is how the draft was trained, and so names the fault. The best one is taken for
 * granted and the rest examined again, until nothing helps any more: that finds a second fault, and
 * what only made up for the first drops out.
 *
 *     bd_doctor doctor = bd_doctor_default();
 *     doctor.patient = &patient; doctor.texts = texts; doctor.text_count = n;
 *     bd_diagnosis diagnosis;
 *     if (!bd_doctor_examine(&doctor, &diagnosis, &err)) ...
 *     for (int64_t i = 0; i < diagnosis.count; i++) ... diagnosis.items[i].fix ...
 */
#ifndef BD_DRAFT_DOCTOR_H
#define BD_DRAFT_DOCTOR_H

#include "draft/trial.h"

// --- the rule ------------------------------------------------------------------------------------

/* Two ways of using a draft, compared at the same anchors. */
typedef struct {
    int64_t anchors;
    double acceptance, other; /* tokens per pass of the target: drafted ones that stand, and one */
    double difference, error; /* mean of other - acceptance over the anchors; its standard error */
} bd_paired;

/* accepted, other: [anchors] drafted tokens that stand. */
bd_paired bd_paired_make(const int32_t *accepted, const int32_t *other, int64_t anchors);

/* Anchors below which nothing is said. */
enum { BD_DOCTOR_LEAST_ANCHORS = 64 };

/* What a fault costs is seen when mending it makes a draft useful: an untrained draft gets a few
 * more tokens right by chance. Below the second, nothing is accepted. */
#define BD_DOCTOR_LEAST_ACCEPTANCE 1.4
#define BD_DOCTOR_NOTHING          1.1

/* Is `other` clearly larger? More than 15 % and 0.2 tokens, at three standard errors; or, where the
 * effect is small but sure, more than 4 % and 0.08 tokens at five. Never with too few anchors, and
 * never where even the larger one is below BD_DOCTOR_LEAST_ACCEPTANCE. */
bool bd_paired_is_larger(const bd_paired *paired);
bool bd_paired_is_smaller(const bd_paired *paired); /* clearly, whatever is left */

// --- the examination -----------------------------------------------------------------------------

typedef struct {
    const bd_patient *patient;
    const bd_trial_text *texts;
    int64_t text_count;
    const int32_t *masks; /* tokens that might be the mask; may be NULL */
    int64_t mask_count;
    bd_progress *(*progress)(const char *what, int64_t total); /* NULL: silent */
} bd_doctor;

bd_doctor bd_doctor_default(void);

typedef enum {
    BD_VERDICT_WELL, /* worse than as configured, as it should be */
    BD_VERDICT_SAME, /* no difference to be seen: if this were the fault, it would cost nothing */
    BD_VERDICT_PERHAPS, /* may be better: more text would tell */
    BD_VERDICT_FAULT,   /* named, with a fix */
    BD_VERDICT_SHADOW,  /* better than as configured, but not once the fault is mended */
} bd_verdict;

typedef struct {
    bd_part part;
    char what[96], fix[240]; /* fix: of a fault */
    bool measured;           /* else it was seen in the files */
    bd_paired paired;
    bd_verdict verdict;
    int round; /* 0: against the draft as configured; then with the faults before it mended */
} bd_finding;

enum { BD_MOST_FINDINGS = 64 };
typedef struct {
    bd_finding items[BD_MOST_FINDINGS];
    int64_t count, faults;
    int64_t anchors;
    double acceptance; /* as configured */
    double mended;     /* with every fault found mended; the same where there is none */
} bd_diagnosis;

/* Refused: fewer than BD_DOCTOR_LEAST_ANCHORS anchors in the texts. */
bool bd_doctor_examine(const bd_doctor *doctor, bd_diagnosis *out, bd_error *err);

#endif
