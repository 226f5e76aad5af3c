/* patient.h - a draft opened although its folder may be wrong about it.
 *
 * bd_draft_open refuses a folder whose block layout is not its variant's, that carries an embedding
 * or a head of its own, that counts layers from 1, or that is for another vocabulary size. Whoever wants to find out what is
 * wrong has to run it all the same: here these statements are read, put aside and told, and the
 * tensors are opened as they are.
 *
 *     bd_patient patient;
 *     if (!bd_patient_open("draft", target, BD_BF16, &patient, &err)) ...
 *     patient.draft, patient.shift, patient.head ...
 *     bd_patient_close(&patient);
 */
#ifndef BD_DRAFT_PATIENT_H
#define BD_DRAFT_PATIENT_H

#include "draft/draft.h"

typedef struct {
    bd_draft *draft;
    int shift;          /* as the file states it, else the variant's: 1 if slot 0 predicts */
    bool shift_stated;  /* by shift_label or sample_from_anchor */
    int64_t vocabulary; /* as the file states it; the draft has its target's */
    bool taps_lowered;  /* by one: the file names the layer behind the target's last */
    int64_t window;     /* a width the file names though no layer uses it; 0: none */
    bd_parameter *head, *embedding; /* in the folder and not the target's; NULL: none */
    bd_parameter own[2];
} bd_patient;

/* The target outlives the patient. On failure nothing is left to close. */
bool bd_patient_open(const char *folder, bd_model *target, bd_dtype compute, bd_patient *out,
                     bd_error *err);
void bd_patient_close(bd_patient *patient);

#endif
