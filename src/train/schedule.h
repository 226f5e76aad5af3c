/* schedule.h - the learning rate of every step.
 *
 * peak * s / warmup while s < warmup; then from peak to peak * final_fraction along a line or a
 * half cosine, or constant; 0 from `total` on. Steps count from 0. With n = total - warmup decay
 * steps the way walked at the j-th of them is j / (n - 1) if `endpoint` (the last step has the
 * final rate), else j / n. A single decay step with `endpoint` is at the end already. Source:
 * golden/block-diffusion "Learning rate".
 *
 *     bd_schedule s = {.kind = BD_SCHEDULE_COSINE, .peak = 3e-4, .warmup = 100, .total = 1000};
 *     double rate = bd_schedule_rate(&s, step);
 */
#ifndef BD_TRAIN_SCHEDULE_H
#define BD_TRAIN_SCHEDULE_H

#include "base/error.h"

typedef enum {
    BD_SCHEDULE_CONSTANT,
    BD_SCHEDULE_LINEAR,
    BD_SCHEDULE_COSINE,
    BD_SCHEDULE_COUNT
} bd_schedule_kind;

typedef struct {
    bd_schedule_kind kind;
    double peak, final_fraction;
    int64_t warmup, total;
    bool endpoint;
} bd_schedule;

const char *bd_schedule_name(bd_schedule_kind kind); /* "constant", "linear", "cosine" */
bool bd_schedule_from_name(const char *name, bd_schedule_kind *kind, bd_error *err);

/* peak finite and >= 0, final_fraction in [0, 1], 0 <= warmup <= total. */
bool bd_schedule_check(const bd_schedule *schedule, bd_error *err);

double bd_schedule_rate(const bd_schedule *schedule, int64_t step);

/* Share of the distance that is still to go after x of the way, x from 0 to 1: 1 - x along a line,
 * half a cosine, or always 1. */
double bd_schedule_left(bd_schedule_kind kind, double x);

#endif
