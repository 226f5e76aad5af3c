/* visibility.h - who may read whom.
 *
 * Every attention in bdlm asks this one question: may the query at (row b, index q) read the key at
 * (row b, index k)? Training masks, generation masks, the tile classes of the sparse kernel and the
 * pictures of `bdlm mask` are all evaluations of bd_visibility_allows().
 *
 *     bd_visibility rule = {.kind = BD_BLOCK_DIFFUSION, .block_size = 4};
 *     rule.query_length = rule.key_length = L;
 *     if (bd_visibility_allows(&rule, 0, q, k)) ...
 */
#ifndef BD_ATTENTION_VISIBILITY_H
#define BD_ATTENTION_VISIBILITY_H

#include <stdbool.h>
#include <stdint.h>

typedef enum {
    BD_CAUSAL,          /* key position <= query position; with a window: query - key < window */
    BD_BLOCK_DIFFUSION, /* key block <= query block */
    BD_DOUBLED,         /* noisy half then clean half of one row */
    BD_DRAFT,           /* context before the anchor, and the block itself (draft-family 3.4) */
} bd_visibility_kind;

/* Where each drafted block starts, and whether it is used. */
typedef struct {
    int64_t blocks;        /* N per row */
    const int32_t *anchor; /* [B, N] */
    const uint8_t *keep;   /* [B, N] */
} bd_anchors;

typedef struct {
    bd_visibility_kind kind;
    int64_t query_length; /* per row; BD_DRAFT: N * block_size */
    int64_t key_length;   /* per row; BD_DRAFT: context_length + N * block_size */
    int64_t block_size;   /* tokens per block (all kinds but BD_CAUSAL) */
    /* Logical positions. NULL: query q has position query_offset + q, key k has position k (in a
     * doubled row, the index within its half; BD_DRAFT goes by indices alone). */
    int64_t query_offset;
    const int32_t *query_position; /* [B, query_length] */
    const int32_t *key_position;   /* [B, key_length] */
    /* Document numbers; 0 (padding) and negative ones are neither seen nor see (decision 1).
     * NULL: all are document 1. */
    const int32_t *query_segment; /* [B, query_length] */
    const int32_t *key_segment;   /* [B, key_length] */
    int64_t window;               /* BD_CAUSAL, BD_DRAFT: how far a query looks back; 0: all */
    /* BD_DRAFT only. */
    int64_t context_length; /* S: keys below it are context, the rest are block keys */
    const bd_anchors *anchors;
    bool causal_in_block;
} bd_visibility;

/* May query q read key k in row b? Reads nothing but the rule; any order, any thread. For BD_DRAFT
 * a query index past the last block (a row that pads a tile) reads the last block's anchor. */
bool bd_visibility_allows(const bd_visibility *rule, int64_t b, int64_t q, int64_t k);

/* The rule of one layer under the rule of the whole pass. A layer with a window of its own (> 0)
 * stays causal and sliding whatever the pass says; any other follows the pass. Not for doubled
 * rows: causal order would show a token its own answer. */
bd_visibility bd_visibility_of_layer(const bd_visibility *pass, int64_t window);

typedef struct {
    int64_t begin, end; /* [begin, end) */
} bd_range;

typedef enum { BD_TILE_EMPTY, BD_TILE_PARTIAL, BD_TILE_FULL } bd_tile_class;

/* EMPTY: no pair of the tile is visible, skip it. FULL: every pair is, no test needed.
 * PARTIAL: ask per pair. Never EMPTY or FULL wrongly; PARTIAL may be cautious (A-25..A-28). */
bd_tile_class bd_visibility_tile(const bd_visibility *rule, int64_t b, bd_range q, bd_range k);

/* The number of visible pairs in row b, by asking for each; for tests and pictures. */
int64_t bd_visibility_count(const bd_visibility *rule, int64_t b);

#endif
