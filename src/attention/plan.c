#include "attention/plan.h"

#include "base/threads.h"

typedef struct {
    const bd_visibility *rule;
    bd_attention_plan *plan;
    int64_t first_row;
    const bd_key_hull *keys; // [batch, tiles]
    int64_t *blocks;         // [batch, units]: partial tiles of the unit; later its first block
} plan_job;

static bd_range tile_keys(const bd_visibility *rule, int64_t tile)
{
    int64_t end = (tile + 1) * BD_KEY_TILE;
    return (bd_range){tile * BD_KEY_TILE, end < rule->key_length ? end : rule->key_length};
}

static void classify_unit(void *context, int64_t task)
{
    const plan_job *job = context;
    const bd_attention_plan *plan = job->plan;
    int64_t b = task / plan->units;
    bd_query_hull queries = bd_visibility_query_hull(
        job->rule, job->first_row + b, bd_attention_plan_queries(plan, task % plan->units));
    const bd_key_hull *keys = job->keys + b * plan->tiles;
    int32_t *marks = plan->marks + task * plan->tiles;
    int64_t partial = 0;
    for (int64_t tile = 0; tile < plan->tiles; tile++) {
        bd_tile_class class = bd_visibility_classify(&queries, &keys[tile]);
        marks[tile] = class == BD_TILE_EMPTY  ? BD_MARK_EMPTY
                      : class == BD_TILE_FULL ? BD_MARK_FULL
                                              : (int32_t)partial++;
    }
    job->blocks[task] = partial;
}

static void fill_masks(void *context, int64_t task)
{
    const plan_job *job = context;
    const bd_attention_plan *plan = job->plan;
    int64_t b = job->first_row + task / plan->units;
    bd_range q = bd_attention_plan_queries(plan, task % plan->units);
    int32_t *marks = plan->marks + task * plan->tiles;
    for (int64_t tile = 0; tile < plan->tiles; tile++)
        if (marks[tile] >= 0)
            marks[tile] += (int32_t)job->blocks[task];
    for (int64_t i = q.begin; i < q.end; i++) {
        bd_span span = bd_visibility_span(job->rule, b, i);
        for (int64_t tile = 0; tile < plan->tiles; tile++) {
            if (marks[tile] < 0)
                continue;
            bd_range k = tile_keys(job->rule, tile);
            plan->masks[marks[tile] * plan->unit_queries + i - q.begin] =
                bd_visibility_mask(job->rule, b, &span, k.begin, k.end - k.begin);
        }
    }
}

static int64_t unit_pairs(const bd_attention_plan *plan, int64_t b, int64_t unit,
                          int64_t key_length)
{
    const int32_t *marks = bd_attention_plan_marks(plan, b, unit);
    const bd_range queries = bd_attention_plan_queries(plan, unit);
    const int64_t first = unit * BD_UNIT_ROWS, last = first + BD_UNIT_ROWS;
    const int64_t end = last < plan->rows ? last : plan->rows;
    int64_t pairs = 0;
    for (int64_t tile = 0; tile < plan->tiles; tile++) {
        int64_t keys = key_length - tile * BD_KEY_TILE;
        keys = keys < BD_KEY_TILE ? keys : BD_KEY_TILE;
        if (marks[tile] == BD_MARK_FULL)
            pairs += (end - first) * keys;
        for (int64_t row = first; marks[tile] >= 0 && row < end; row++)
            pairs += __builtin_popcountll(
                plan->masks[marks[tile] * plan->unit_queries + row / plan->group - queries.begin]);
    }
    return pairs;
}

int64_t bd_attention_plan_pairs(const bd_attention_plan *plan, int64_t batch, int64_t key_length)
{
    int64_t pairs = 0;
    for (int64_t b = 0; b < batch; b++)
        for (int64_t unit = 0; unit < plan->units; unit++)
            pairs += unit_pairs(plan, b, unit, key_length);
    return pairs;
}

bd_attention_plan bd_attention_plan_make(const bd_visibility *rule, int64_t first_row,
                                         int64_t batch, int64_t group, bd_arena *arena)
{
    bd_attention_plan plan = {.group = group, .rows = rule->query_length * group};
    plan.units = (plan.rows + BD_UNIT_ROWS - 1) / BD_UNIT_ROWS;
    plan.tiles = (rule->key_length + BD_KEY_TILE - 1) / BD_KEY_TILE;
    plan.unit_queries = (BD_UNIT_ROWS + group - 2) / group + 1;
    int64_t units = batch * plan.units;
    plan.marks = bd_arena_ints(arena, units * plan.tiles);
    int64_t *blocks = bd_arena_alloc(arena, (size_t)units * sizeof *blocks);
    bd_key_hull *keys = bd_arena_alloc(arena, (size_t)(batch * plan.tiles) * sizeof *keys);
    for (int64_t b = 0; b < batch; b++)
        for (int64_t tile = 0; tile < plan.tiles; tile++)
            keys[b * plan.tiles + tile] =
                bd_visibility_key_hull(rule, first_row + b, tile_keys(rule, tile));

    plan_job job = {.rule = rule, .plan = &plan, .first_row = first_row};
    job.keys = keys;
    job.blocks = blocks;
    bd_parallel(units, classify_unit, &job);
    int64_t total = 0;
    for (int64_t unit = 0; unit < units; unit++) {
        int64_t partial = blocks[unit];
        blocks[unit] = total;
        total += partial;
    }
    plan.masks = bd_arena_alloc(arena, (size_t)(total * plan.unit_queries) * sizeof *plan.masks);
    bd_parallel(units, fill_masks, &job);
    return plan;
}
