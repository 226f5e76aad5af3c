#include "attention/visibility.h"

#include <assert.h>
#include <stddef.h>

#include "attention/spans.h"

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* --- the rule -------------------------------------------------------------------------------- */

// The first key of group 1.
static int64_t group_border(const bd_visibility *rule)
{
    switch (rule->kind) {
    case BD_DOUBLED:
        return rule->key_length / 2;
    case BD_DRAFT:
        return rule->context_length;
    default:
        return rule->key_length;
    }
}

// Coordinates are logical positions, except in draft rows, where anchors count indices.
static const int32_t *key_positions(const bd_visibility *rule, int64_t b)
{
    if (!rule->key_position || rule->kind == BD_DRAFT)
        return NULL;
    return rule->key_position + b * rule->key_length;
}

static const int32_t *key_segments(const bd_visibility *rule, int64_t b)
{
    return rule->key_segment ? rule->key_segment + b * rule->key_length : NULL;
}

static int64_t query_position(const bd_visibility *rule, int64_t b, int64_t q)
{
    if (rule->query_position)
        return rule->query_position[b * rule->query_length + q];
    if (rule->kind == BD_DOUBLED)
        return q % (rule->query_length / 2);
    return rule->query_offset + q;
}

// A query past the last block pads a tile: it reads the last block's anchor and has no block keys.
static bool draft_span(const bd_visibility *rule, int64_t b, int64_t q, bd_span *span)
{
    const bd_anchors *anchors = rule->anchors;
    assert(anchors && anchors->blocks > 0 && rule->block_size > 0);
    int64_t block = q / rule->block_size, slot = q % rule->block_size;
    int64_t entry = b * anchors->blocks + smaller(block, anchors->blocks - 1);
    if (!anchors->keep[entry])
        return false;
    int64_t anchor = anchors->anchor[entry], first = block * rule->block_size;
    span->seen[0].begin = rule->window > 0 ? anchor + slot - rule->window + 1 : INT64_MIN;
    span->seen[0].end = anchor;
    span->seen[1].begin = first;
    span->seen[1].end = first + (rule->causal_in_block ? slot + 1 : rule->block_size);
    return true;
}

static void doubled_span(const bd_visibility *rule, int64_t q, int64_t position, bd_span *span)
{
    assert(rule->query_length == rule->key_length && rule->query_length % 2 == 0);
    int64_t first = position / rule->block_size * rule->block_size, end = first + rule->block_size;
    bool noisy = q < rule->query_length / 2;
    span->seen[0] = noisy ? (bd_range){first, end} : (bd_range){0, 0};
    span->seen[1] = (bd_range){INT64_MIN, noisy ? first : end};
}

bd_span bd_visibility_span(const bd_visibility *rule, int64_t b, int64_t q)
{
    const bd_span blind = {0};
    bd_span span = {.segment = 1};
    assert(q >= 0 && (q < rule->query_length || rule->kind == BD_DRAFT));
    if (rule->query_segment)
        span.segment =
            rule->query_segment[b * rule->query_length + smaller(q, rule->query_length - 1)];
    if (span.segment <= 0)
        return blind;
    if (rule->kind == BD_DRAFT)
        return draft_span(rule, b, q, &span) ? span : blind;

    int64_t position = query_position(rule, b, q);
    switch (rule->kind) {
    case BD_CAUSAL:
        span.seen[0].begin = rule->window > 0 ? position - rule->window + 1 : INT64_MIN;
        span.seen[0].end = position + 1;
        break;
    case BD_BLOCK_DIFFUSION:
        assert(rule->block_size > 0);
        span.seen[0].begin = INT64_MIN;
        span.seen[0].end = (position / rule->block_size + 1) * rule->block_size;
        break;
    default:
        assert(rule->kind == BD_DOUBLED && rule->block_size > 0);
        doubled_span(rule, q, position, &span);
    }
    return span;
}

static bool span_contains(const bd_span *span, int group, int64_t coordinate, int32_t segment)
{
    return span->segment > 0 && segment == span->segment && coordinate >= span->seen[group].begin &&
           coordinate < span->seen[group].end;
}

bool bd_visibility_allows(const bd_visibility *rule, int64_t b, int64_t q, int64_t k)
{
    assert(k >= 0 && k < rule->key_length);
    bd_span span = bd_visibility_span(rule, b, q);
    const int32_t *positions = key_positions(rule, b), *segments = key_segments(rule, b);
    int64_t border = group_border(rule);
    int group = k >= border;
    int64_t coordinate = positions ? positions[k] : group ? k - border : k;
    return span_contains(&span, group, coordinate, segments ? segments[k] : 1);
}

int64_t bd_visibility_count(const bd_visibility *rule, int64_t b)
{
    int64_t count = 0;
    for (int64_t q = 0; q < rule->query_length; q++)
        for (int64_t k = 0; k < rule->key_length; k++)
            count += bd_visibility_allows(rule, b, q, k);
    return count;
}

/* --- masks ----------------------------------------------------------------------------------- */

// Bits [begin, end) of a word, both cut to 0 .. 64.
static uint64_t bit_run(int64_t begin, int64_t end)
{
    begin = larger(begin, 0);
    end = smaller(end, 64);
    if (begin >= end)
        return 0;
    return (~(uint64_t)0 >> (64 - (end - begin))) << begin;
}

// Moves an open lower end without running below INT64_MIN.
static int64_t moved(int64_t coordinate, int64_t by)
{
    return coordinate == INT64_MIN ? INT64_MIN : coordinate + by;
}

uint64_t bd_visibility_mask(const bd_visibility *rule, int64_t b, const bd_span *span,
                            int64_t first_key, int64_t count)
{
    assert(count >= 0 && count <= 64 && first_key >= 0 && first_key + count <= rule->key_length);
    const int32_t *positions = key_positions(rule, b), *segments = key_segments(rule, b);
    int64_t border = group_border(rule);
    if (span->segment <= 0)
        return 0;
    if (!positions && !segments) { // keys lie in the order of their coordinates
        if (span->segment != 1)
            return 0;
        const bd_range *seen = span->seen;
        uint64_t low = bit_run(moved(seen[0].begin, -first_key), seen[0].end - first_key);
        uint64_t high =
            bit_run(moved(seen[1].begin, border - first_key), seen[1].end + border - first_key);
        uint64_t first_group = bit_run(0, border - first_key);
        return ((low & first_group) | (high & ~first_group)) & bit_run(0, count);
    }
    uint64_t mask = 0;
    for (int64_t i = 0; i < count; i++) {
        int64_t k = first_key + i;
        int group = k >= border;
        int64_t coordinate = positions ? positions[k] : group ? k - border : k;
        uint64_t bit = span_contains(span, group, coordinate, segments ? segments[k] : 1);
        mask |= bit << i;
    }
    return mask;
}

/* --- classes of tiles ------------------------------------------------------------------------ */

static const bd_range nowhere = {INT64_MAX, INT64_MIN}, everywhere = {INT64_MIN, INT64_MAX};

static void widen(bd_range *range, bd_range by)
{
    range->begin = smaller(range->begin, by.begin);
    range->end = larger(range->end, by.end);
}

static void narrow(bd_range *range, bd_range by)
{
    range->begin = larger(range->begin, by.begin);
    range->end = smaller(range->end, by.end);
}

static void widen_segments(int32_t *lowest, int32_t *highest, int32_t segment)
{
    bool first = *lowest > *highest;
    if (first || segment < *lowest)
        *lowest = segment;
    if (first || segment > *highest)
        *highest = segment;
}

bd_query_hull bd_visibility_query_hull(const bd_visibility *rule, int64_t b, bd_range q)
{
    bd_query_hull hull = {.some = {nowhere, nowhere},
                          .all = {everywhere, everywhere},
                          .lowest_segment = 1,
                          .highest_segment = 0};
    for (int64_t i = q.begin; i < q.end; i++) {
        bd_span span = bd_visibility_span(rule, b, i);
        if (span.segment <= 0) {
            hull.some_blind = true;
            continue;
        }
        widen_segments(&hull.lowest_segment, &hull.highest_segment, span.segment);
        for (int g = 0; g < BD_KEY_GROUPS; g++) {
            if (span.seen[g].begin < span.seen[g].end)
                widen(&hull.some[g], span.seen[g]);
            narrow(&hull.all[g], span.seen[g]);
        }
    }
    return hull;
}

bd_key_hull bd_visibility_key_hull(const bd_visibility *rule, int64_t b, bd_range k)
{
    const int32_t *positions = key_positions(rule, b), *segments = key_segments(rule, b);
    int64_t border = group_border(rule);
    bd_key_hull hull = {
        .coordinates = {nowhere, nowhere}, .lowest_segment = 1, .highest_segment = 0};
    if (k.begin >= k.end)
        return hull;
    if (!positions) {
        hull.coordinates[0] = (bd_range){k.begin, smaller(k.end, border)};
        hull.coordinates[1] = (bd_range){larger(k.begin, border) - border, k.end - border};
    }
    if (!segments)
        hull.lowest_segment = hull.highest_segment = 1;
    if (!positions && !segments)
        return hull;
    for (int64_t i = k.begin; i < k.end; i++) {
        if (segments && segments[i] <= 0) {
            hull.some_hidden = true;
            continue;
        }
        if (segments)
            widen_segments(&hull.lowest_segment, &hull.highest_segment, segments[i]);
        if (positions)
            widen(&hull.coordinates[i >= border], (bd_range){positions[i], positions[i] + 1});
    }
    return hull;
}

bd_tile_class bd_visibility_classify(const bd_query_hull *queries, const bd_key_hull *keys)
{
    if (queries->lowest_segment > queries->highest_segment ||
        keys->lowest_segment > keys->highest_segment ||
        queries->lowest_segment > keys->highest_segment ||
        keys->lowest_segment > queries->highest_segment)
        return BD_TILE_EMPTY;
    bool one_segment = queries->lowest_segment == keys->highest_segment &&
                       queries->highest_segment == keys->lowest_segment;
    bool full = one_segment && !queries->some_blind && !keys->some_hidden;
    bool empty = true;
    for (int g = 0; g < BD_KEY_GROUPS; g++) {
        bd_range at = keys->coordinates[g];
        if (at.begin >= at.end)
            continue;
        empty = empty && (at.end <= queries->some[g].begin || queries->some[g].end <= at.begin);
        full = full && queries->all[g].begin <= at.begin && at.end <= queries->all[g].end;
    }
    return empty ? BD_TILE_EMPTY : full ? BD_TILE_FULL : BD_TILE_PARTIAL;
}

bd_visibility bd_visibility_of_layer(const bd_visibility *pass, int64_t window)
{
    bd_visibility rule = *pass;
    if (window == 0)
        return rule;
    assert(rule.kind == BD_CAUSAL || rule.kind == BD_BLOCK_DIFFUSION);
    bool narrower = rule.kind == BD_CAUSAL && rule.window > 0 && rule.window < window;
    rule.kind = BD_CAUSAL;
    rule.window = narrower ? rule.window : window;
    return rule;
}

bd_tile_class bd_visibility_tile(const bd_visibility *rule, int64_t b, bd_range q, bd_range k)
{
    // Queries past the end exist in draft rows alone, as padding of a tile.
    if (rule->kind != BD_DRAFT)
        q.end = smaller(q.end, rule->query_length);
    k.end = smaller(k.end, rule->key_length);
    bd_query_hull queries = bd_visibility_query_hull(rule, b, q);
    bd_key_hull keys = bd_visibility_key_hull(rule, b, k);
    return bd_visibility_classify(&queries, &keys);
}
