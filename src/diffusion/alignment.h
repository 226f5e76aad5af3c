/* alignment.h - which output row predicts which token.
 *
 * One index map serves training, scoring and rollout: source[r, i] is the slot of row r whose
 * output predicts the token in slot i. A loss for target i reads raw row source[i] and adds its
 * gradient there, so logits are never copied and the head may run on the wanted rows only.
 *
 *     bd_alignment_source(BD_SHIFTED, &layout, source, arena);
 *
 * same_position: source is the slot itself. shifted: the slot that holds the token one logical
 * position earlier in the same document; the first token of a document keeps its own row, which
 * says nothing about it and must not be weighted; padding has source -1. Source: block-diffusion
 * C-02..C-07, decision 3.
 */
#ifndef BD_DIFFUSION_ALIGNMENT_H
#define BD_DIFFUSION_ALIGNMENT_H

#include "base/arena.h"
#include "diffusion/canvas.h"

/* Where the tokens of a batch stand: [rows, length] each. */
typedef struct {
    int64_t rows, length;
    const int32_t *positions; /* NULL: 0, 1, 2, ... */
    const int32_t *segments;  /* 0: padding; NULL: one document, no padding */
} bd_placement;

/* source: [rows, length]. A token whose predecessor is not in the row reads the first slot of its
 * own document; of several predecessors with the same position the last slot counts. */
void bd_alignment_source(bd_alignment alignment, const bd_placement *placement, int32_t *source,
                         bd_arena *scratch);

/* aligned[r, i] = raw[r, source[r, i]], rows of `width` floats; zeros where the source is -1. */
void bd_alignment_gather(const int32_t *source, int64_t rows, int64_t length, int64_t width,
                         const float *raw, float *aligned);

/* The way back: d_raw[r, source[r, i]] += d_aligned[r, i], in order of i. */
void bd_alignment_scatter(const int32_t *source, int64_t rows, int64_t length, int64_t width,
                          const float *d_aligned, float *d_raw);

#endif
