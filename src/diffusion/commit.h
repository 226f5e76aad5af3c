/* commit.h - which proposed tokens of a block are kept in one denoising step.
 *
 * Every step proposes a token for each open slot; a strategy picks the slots whose proposals become
 * final. Every strategy picks at least one slot, so a block of n open slots is done after at most n
 * steps whatever the model says.
 *
 *     picked = bd_commit_pick(&options, open, scheduled, confidence, entropy, pick);
 *
 * Source: block-diffusion F-13, F-16, F-36, F-40.
 */
#ifndef BD_DIFFUSION_COMMIT_H
#define BD_DIFFUSION_COMMIT_H

#include <stdint.h>

#include "base/error.h"

typedef enum {
    BD_COMMIT_THRESHOLD, /* "low_confidence": all with confidence >= threshold, else the best one */
    BD_COMMIT_ONE,       /* "one": the most confident one */
    BD_COMMIT_SEQUENTIAL, /* "sequential": the scheduled number, from the first open slot on */
    BD_COMMIT_STATIC,     /* "static": the scheduled number, most confident first */
    BD_COMMIT_DYNAMIC, /* "dynamic": all above threshold if that is at least the scheduled number,
                          else the scheduled number, most confident first */
    BD_COMMIT_FACTOR,  /* "factor": the n-th most confident while its confidence is at least
                          1 - factor / (n + 1); the first always */
    BD_COMMIT_ENTROPY, /* "entropy": lowest entropy first, as many as there are running sums below
                          entropy_bound */
    BD_COMMIT_COUNT
} bd_commit_strategy;

typedef struct {
    bd_commit_strategy strategy;
    float threshold;     /* [0, 1]; low_confidence, dynamic */
    float factor;        /* > 0 */
    float entropy_bound; /* > 0, nats */
    int64_t steps;       /* steps the schedule spreads a block over; 0: one per slot of a block */
} bd_commit_options;

bd_commit_options bd_commit_default(void); /* low_confidence, 0.9, factor 1, entropy_bound 0.35 */
bool bd_commit_check(const bd_commit_options *options, bd_error *err);

/* Reading also knows "threshold" for low_confidence. */
const char *bd_commit_name(bd_commit_strategy strategy);
bool bd_commit_from_name(const char *name, bd_commit_strategy *strategy, bd_error *err);

/* The scheduled number of step `step` (from 0) for a block that had `masked` open slots: they are
 * spread evenly over the steps, the first ones taking the remainder. 32 over 5: 7 7 6 6 6. */
int64_t bd_commit_schedule(int64_t masked, int64_t steps, int64_t step);

/* Pick among `open` slots in logical order. A confidence that is no finite number counts as the
 * least; ties go to the earlier slot. entropy is read by BD_COMMIT_ENTROPY alone. pick: [open], 0
 * or 1. Returns how many of the picked slots met the strategy's own test; the rest were taken so
 * that the block goes on. */
int64_t bd_commit_pick(const bd_commit_options *options, int64_t open, int64_t scheduled,
                       const float *confidence, const float *entropy, uint8_t *pick);

#endif
