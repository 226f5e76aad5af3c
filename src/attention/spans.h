/* spans.h - the visibility rule in the form kernels walk it.
 *
 * Under every rule the keys a query sees are one interval of coordinates per group of keys, cut
 * down to the query's own document. Causal and block-diffusion rows have one group; a doubled row
 * has two, the noisy and the clean half; a draft row has two, the context and the block keys.
 * Everything else (may q read k, the class of a tile, the bit mask of a tile) follows from these
 * intervals, which bd_visibility_span alone computes.
 */
#ifndef BD_ATTENTION_SPANS_H
#define BD_ATTENTION_SPANS_H

#include "attention/visibility.h"

enum { BD_KEY_GROUPS = 2 };

/* What one query sees. */
typedef struct {
    bd_range seen[BD_KEY_GROUPS]; /* coordinates, per group; begin >= end: nothing */
    int32_t segment;              /* of the query; 0: it sees nothing at all */
} bd_span;

bd_span bd_visibility_span(const bd_visibility *rule, int64_t b, int64_t q);

/* Bit i: does a query with this span see key first_key + i? For i < count <= 64; other bits are 0.
 */
uint64_t bd_visibility_mask(const bd_visibility *rule, int64_t b, const bd_span *span,
                            int64_t first_key, int64_t count);

/* What several queries see together: `some` contains every coordinate that any of them sees, `all`
 * only coordinates that each of them sees. */
typedef struct {
    bd_range some[BD_KEY_GROUPS], all[BD_KEY_GROUPS];
    int32_t lowest_segment, highest_segment; /* of the queries that see anything; 1, 0: none does */
    bool some_blind;                         /* one of them sees nothing */
} bd_query_hull;

/* Where several keys lie. */
typedef struct {
    bd_range coordinates[BD_KEY_GROUPS];     /* begin >= end: no key of this group */
    int32_t lowest_segment, highest_segment; /* of the keys that can be seen; 1, 0: none can */
    bool some_hidden;                        /* one of them is padding */
} bd_key_hull;

bd_query_hull bd_visibility_query_hull(const bd_visibility *rule, int64_t b, bd_range q);
bd_key_hull bd_visibility_key_hull(const bd_visibility *rule, int64_t b, bd_range k);
bd_tile_class bd_visibility_classify(const bd_query_hull *queries, const bd_key_hull *keys);

#endif
