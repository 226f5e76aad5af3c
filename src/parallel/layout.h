/* layout.h - which rank owns which tokens of a row that is split over several of them.
 *
 * Under block-causal attention a late token reads far more keys than an early one, so cutting a row
 * into equal pieces gives the last rank most of the work. The layouts here permute the row first;
 * then rank j owns the j-th of `shards` equal pieces of the permuted row. Whatever is permuted,
 * every per-token field of a batch must be permuted with it: masks, segments and positions too.
 *
 *     int32_t order[L];
 *     bd_layout_order(BD_LAYOUT_DUAL_CHUNK_SWAP, L, shards, order, &err);
 *     bd_layout_apply(order, rows, L, sizeof(int32_t), tokens, reordered);
 *
 * Source: block-diffusion A.3.
 */
#ifndef BD_PARALLEL_LAYOUT_H
#define BD_PARALLEL_LAYOUT_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef enum {
    BD_LAYOUT_IN_ORDER,
    /* 2*shards equal chunks; rank j holds chunk j and chunk 2*shards-1-j, whose work adds up to the
     * same for every j. */
    BD_LAYOUT_DUAL_CHUNK_SWAP,
    BD_LAYOUT_STRIPED, /* rank j holds tokens j, j + shards, j + 2*shards, ... */
    BD_LAYOUT_COUNT
} bd_layout;

/* "in_order", "dual_chunk_swap", "striped"; reading also knows "auto", which is dual_chunk_swap. */
const char *bd_layout_name(bd_layout layout);
bool bd_layout_from_name(const char *name, bd_layout *layout, bd_error *err);

/* order[slot] = logical index of the token that lies in that slot, [length]. One shard: in order.
 * Errors: shards < 1, length < 1; dual_chunk_swap: shards odd, length not a multiple of 2*shards;
 * the others: length not a multiple of shards. */
bool bd_layout_order(bd_layout layout, int64_t length, int64_t shards, int32_t *order,
                     bd_error *err);

/* inverse[order[slot]] = slot: applying it puts a reordered row back. order must be a permutation.
 */
void bd_layout_inverse(const int32_t *order, int64_t length, int32_t *inverse);

/* to[r, slot] = from[r, order[slot]] for a field of `size` bytes per token, [rows, length]. `to`
 * and `from` must not overlap. */
void bd_layout_apply(const int32_t *order, int64_t rows, int64_t length, size_t size,
                     const void *from, void *to);

#endif
