/* anchors.h - where the blocks of a training step start.
 *
 * A block may start at any supervised token that leaves room for the whole block. Every candidate
 * gets a uniform number; each row takes the candidates with the smallest numbers, at most
 * min(num_anchors, largest candidate count of the batch - 1) of them, in order of position. The
 * axis has either that many columns (eager) or a width that the configuration alone decides
 * (static); the blocks that are kept are the same. Source: draft-family 3.1, 3.2; decisions 7, 8,
 * 11, 12.
 *
 *     bd_anchor_sampling s = {.rows = B, .length = S, .block_size = bs, .most = 512,
 *                             .loss_mask = mask, .fixed_width = true};
 *     bd_anchors anchors = bd_anchors_draw(&s, seed, epoch, step, first_row, arena);
 */
#ifndef BD_DRAFT_ANCHORS_H
#define BD_DRAFT_ANCHORS_H

#include "attention/visibility.h"
#include "base/arena.h"

typedef struct {
    int64_t rows, length; /* B, S */
    int64_t block_size;
    int64_t most;           /* num_anchors: blocks per row at most */
    const float *loss_mask; /* [B, S]; a token over 0.5 may be an anchor */
    bool fixed_width; /* static: min(most, S - bs + 1) columns; else as many as the batch needs */
    int64_t largest;  /* candidates of the fullest row, of a batch spread over ranks; 0: of this */
} bd_anchor_sampling;

/* Positions of a row that may be drawn: 0 .. S - bs, at least one. */
int64_t bd_anchors_positions(const bd_anchor_sampling *s);

/* Candidates of the fullest row. 0 or 1: no block can be drawn at all (see the -1 above). */
int64_t bd_anchors_largest(const bd_anchor_sampling *s);

/* Take anchors by given numbers, uniforms [B, bd_anchors_positions()] in [0, 1). Equal numbers: the
 * lower position first. Columns that are not kept have anchor 0. The arrays live in the arena. */
bd_anchors bd_anchors_take(const bd_anchor_sampling *s, const float *uniforms, bd_arena *arena);

/* The same with numbers of the counter generator, stream BD_STREAM_ANCHOR, keyed by
 * (seed, epoch, step, first_row + row), so that they do not depend on how rows are spread over
 * ranks. */
bd_anchors bd_anchors_draw(const bd_anchor_sampling *s, uint64_t seed, uint64_t epoch,
                           uint64_t step, uint64_t first_row, bd_arena *arena);

#endif
