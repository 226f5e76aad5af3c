/* lilicorr.h - DFlash with a head that reads the candidates of all slots together.
 *
 * Each slot's C best tokens form a lattice; a small transformer without a mask reads their
 * embeddings, the slots' hidden states and what the backbone thought of them, and gives every
 * candidate two unit vectors, one that looks ahead and one that is looked at. Their products score
 * the way from the anchor to a first token and from each candidate to the next; the walk is greedy.
 * Training adds up to three terms over the lattice to DFlash's loss. Source: dflash2-lilicorr 5,
 * arXiv:2608.20530. The entry `bd_draft_lilicorr` of the variants' table is all there is to call.
 */
#ifndef BD_DRAFT_LILICORR_H
#define BD_DRAFT_LILICORR_H

#include "draft/lattice.h"
#include "draft/selector.h"
#include "draft/session.h"
#include "draft/step.h"

/* Scores over the lattices of blocks. */
typedef struct {
    bd_lattice_shape shape;
    bd_candidates candidates; /* rows: blocks * slots */
    bd_value *start, *pair;   /* [blocks, C], [blocks, (slots - 1) * C * C]; NULL with one slot */
} bd_lilicorr_scores;

/* hidden [blocks * slots, H] of slots 1 .. bs - 1; context [rows, H], of which block n reads row
 * context_row[n] (-1: there is none). The index outlives the tape. */
bd_lilicorr_scores bd_lilicorr_score(bd_draft *draft, bd_tape *tape, bd_value *hidden,
                                     bd_value *context, const int32_t *context_row);

#endif
