/* replay.h - where in its data a run goes on, and how much of it is still to come.
 *
 * A checkpoint holds no cursor: the data comes in an order that is drawn again, so the
 * micro-batches behind a run say where it stands. They are skipped, not trained on, and the rest is
 * bounded by the updates that are left. Data that ends early is an error, never an early end of the
 * run. Source: block-diffusion H-07 to H-11.
 *
 *     bd_replay replay = {.micro_batches = 4, .updates = 2, .most_updates = 5, .accumulation = 2,
 *                         .skipped = -1, .remaining = -1};
 *     bd_replay_span span;
 *     if (!bd_replay_plan(&replay, &span, &err)) ...       // span: items 4 .. 9
 */
#ifndef BD_TRAIN_REPLAY_H
#define BD_TRAIN_REPLAY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"

typedef struct {
    int64_t micro_batches, updates; /* behind the run */
    int64_t most_updates, accumulation;
    /* Micro-batches that the data has: those it can skip over, and those it can give after that;
     * -1: as many as are asked for. */
    int64_t skipped, remaining;
} bd_replay;

typedef struct {
    int64_t first, count; /* micro-batches to take: none when all updates are made */
} bd_replay_span;

/* Refused: counts below 0, an accumulation below 1, more updates than there are to be,
 * micro-batches that are not updates x accumulation; data that ends within what is skipped or what
 * is left. */
bool bd_replay_plan(const bd_replay *replay, bd_replay_span *span, bd_error *err);

#endif
