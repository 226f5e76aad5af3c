#include "draft/anchors.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/random.h"

typedef struct {
    float number;
    int32_t position;
} candidate;

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t bd_anchors_positions(const bd_anchor_sampling *s)
{
    int64_t last = s->length - s->block_size;
    return (last > 0 ? last : 0) + 1;
}

static bool is_candidate(const bd_anchor_sampling *s, int64_t row, int64_t position)
{
    return s->loss_mask[row * s->length + position] > 0.5f;
}

int64_t bd_anchors_largest(const bd_anchor_sampling *s)
{
    int64_t largest = 0;
    for (int64_t b = 0; b < s->rows; b++) {
        int64_t count = 0;
        for (int64_t p = 0; p < bd_anchors_positions(s); p++)
            count += is_candidate(s, b, p);
        if (count > largest)
            largest = count;
    }
    return largest;
}

static int by_number(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->number != y->number)
        return x->number < y->number ? -1 : 1;
    return x->position < y->position ? -1 : x->position > y->position;
}

static int by_position(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    return x->position < y->position ? -1 : x->position > y->position;
}

bd_anchors bd_anchors_take(const bd_anchor_sampling *s, const float *uniforms, bd_arena *arena)
{
    assert(s->rows > 0 && s->length > 0 && s->block_size > 0 && s->most > 0);
    int64_t positions = bd_anchors_positions(s);
    int64_t largest = s->largest > 0 ? s->largest : bd_anchors_largest(s);
    int64_t width = least(s->most, positions);
    // The fullest row leaves one candidate out, as the reference does.
    int64_t cap = least(width, largest > 0 ? largest - 1 : 0);
    int64_t columns = s->fixed_width ? width : cap > 0 ? cap : 1;

    size_t count = (size_t)(s->rows * columns);
    int32_t *anchor = bd_arena_ints(arena, s->rows * columns);
    uint8_t *keep = bd_arena_alloc(arena, count);
    memset(anchor, 0, count * sizeof *anchor);
    memset(keep, 0, count);
    bd_anchors result = {.blocks = columns, .anchor = anchor, .keep = keep};

    size_t mark = bd_arena_mark(arena);
    candidate *list = bd_arena_alloc(arena, (size_t)positions * sizeof *list);
    for (int64_t b = 0; b < s->rows; b++) {
        int64_t found = 0;
        for (int64_t p = 0; p < positions; p++)
            if (is_candidate(s, b, p))
                list[found++] = (candidate){uniforms[b * positions + p], (int32_t)p};
        int64_t taken = least(found, cap);
        // The cut by random order comes before the sort by position.
        qsort(list, (size_t)found, sizeof *list, by_number);
        qsort(list, (size_t)taken, sizeof *list, by_position);
        for (int64_t j = 0; j < taken; j++) {
            anchor[b * columns + j] = list[j].position;
            keep[b * columns + j] = 1;
        }
    }
    bd_arena_release(arena, mark);
    return result;
}

bd_anchors bd_anchors_draw(const bd_anchor_sampling *s, uint64_t seed, uint64_t epoch,
                           uint64_t step, uint64_t first_row, bd_arena *arena)
{
    // The numbers are needed until the anchors are taken and lie before them; they go when the
    // caller releases the step.
    int64_t positions = bd_anchors_positions(s);
    float *uniforms = bd_arena_floats(arena, s->rows * positions);
    for (int64_t b = 0; b < s->rows; b++) {
        uint64_t key = bd_random_key(seed, epoch, step, first_row + (uint64_t)b);
        for (int64_t p = 0; p < positions; p++)
            uniforms[b * positions + p] = bd_random_uniform(key, BD_STREAM_ANCHOR, (uint32_t)p);
    }
    return bd_anchors_take(s, uniforms, arena);
}
