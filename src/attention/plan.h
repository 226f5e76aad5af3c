/* plan.h - which tiles one attention call walks, decided once and shared by all heads.
 *
 * Query rows of one key head are (query, head of the group) pairs in that order; BD_UNIT_ROWS of
 * them make a unit, the piece of work of one task. Keys are cut into tiles of BD_KEY_TILE at
 * absolute multiples. For every (unit, tile) the plan says whether to skip it, to take it whole, or
 * which keys each query of the unit sees in it.
 */
#ifndef BD_ATTENTION_PLAN_H
#define BD_ATTENTION_PLAN_H

#include "attention/spans.h"
#include "base/arena.h"

enum { BD_KEY_TILE = 64, BD_UNIT_ROWS = 64 };

enum { BD_MARK_EMPTY = -2, BD_MARK_FULL = -1 }; /* other marks: the number of a block of masks */

typedef struct {
    int64_t group;        /* query heads per key head */
    int64_t rows;         /* query_length * group */
    int64_t units, tiles; /* per row of the batch */
    int64_t unit_queries; /* most queries a unit touches: the masks of one block */
    int32_t *marks;       /* [batch, units, tiles] */
    uint64_t *masks;      /* [blocks, unit_queries]: bit i is key i of the tile */
} bd_attention_plan;

/* The plan for rows first_row .. first_row + batch - 1 of the rule. Lives in the arena. */
bd_attention_plan bd_attention_plan_make(const bd_visibility *rule, int64_t first_row,
                                         int64_t batch, int64_t group, bd_arena *arena);

/* Visible (query row, key) pairs of one key head, over the plan's rows of the batch. */
int64_t bd_attention_plan_pairs(const bd_attention_plan *plan, int64_t batch, int64_t key_length);

static inline const int32_t *bd_attention_plan_marks(const bd_attention_plan *plan, int64_t b,
                                                     int64_t unit)
{
    return plan->marks + (b * plan->units + unit) * plan->tiles;
}

/* The queries that a unit's rows belong to. */
static inline bd_range bd_attention_plan_queries(const bd_attention_plan *plan, int64_t unit)
{
    int64_t first = unit * BD_UNIT_ROWS, end = first + BD_UNIT_ROWS;
    end = end < plan->rows ? end : plan->rows;
    return (bd_range){first / plan->group, (end - 1) / plan->group + 1};
}

#endif
