#include "diffusion/alignment.h"

#include <assert.h>
#include <string.h>

/* Slots of one row in lists by position, so that finding a predecessor looks only at the slots that
 * hold its position: one per packed document. Positions beyond the row share lists with others. */
typedef struct {
    int64_t length;
    int32_t *head; /* [length]: last slot with position % length == index, or -1 */
    int32_t *next; /* [length]: the slot before it in the same list, or -1 */
} slot_lists;

static int32_t position_of(const bd_placement *p, int64_t r, int64_t i)
{
    return p->positions ? p->positions[r * p->length + i] : (int32_t)i;
}

static int32_t segment_of(const bd_placement *p, int64_t r, int64_t i)
{
    return p->segments ? p->segments[r * p->length + i] : 1;
}

static void list_slots(const bd_placement *p, int64_t r, slot_lists *lists)
{
    memset(lists->head, -1, (size_t)p->length * sizeof *lists->head);
    for (int64_t i = 0; i < p->length; i++) {
        int32_t position = position_of(p, r, i);
        if (segment_of(p, r, i) == 0 || position < 0)
            continue;
        int64_t list = position % p->length;
        lists->next[i] = lists->head[list];
        lists->head[list] = (int32_t)i;
    }
}

static int32_t find_slot(const bd_placement *p, int64_t r, const slot_lists *lists, int32_t segment,
                         int32_t position)
{
    for (int32_t i = lists->head[position % p->length]; i >= 0; i = lists->next[i])
        if (position_of(p, r, i) == position && segment_of(p, r, i) == segment)
            return i;
    return -1;
}

static int32_t first_slot(const bd_placement *p, int64_t r, int32_t segment)
{
    int64_t i = 0;
    while (segment_of(p, r, i) != segment)
        i++;
    return (int32_t)i;
}

static void align_row(const bd_placement *p, int64_t r, const slot_lists *lists, int32_t *source)
{
    for (int64_t i = 0; i < p->length; i++) {
        int32_t segment = segment_of(p, r, i), position = position_of(p, r, i);
        if (segment == 0) {
            source[i] = -1;
        } else if (position <= 0) {
            source[i] = (int32_t)i;
        } else {
            int32_t before = find_slot(p, r, lists, segment, position - 1);
            source[i] = before >= 0 ? before : first_slot(p, r, segment);
        }
    }
}

void bd_alignment_source(bd_alignment alignment, const bd_placement *placement, int32_t *source,
                         bd_arena *scratch)
{
    const bd_placement *p = placement;
    assert(p->length > 0 && p->length <= INT32_MAX);
    size_t mark = bd_arena_mark(scratch);
    slot_lists lists = {p->length, bd_arena_ints(scratch, p->length),
                        bd_arena_ints(scratch, p->length)};
    for (int64_t r = 0; r < p->rows; r++) {
        int32_t *row = source + r * p->length;
        if (alignment == BD_SHIFTED) {
            list_slots(p, r, &lists);
            align_row(p, r, &lists, row);
            continue;
        }
        for (int64_t i = 0; i < p->length; i++)
            row[i] = (int32_t)i;
    }
    bd_arena_release(scratch, mark);
}

void bd_alignment_gather(const int32_t *source, int64_t rows, int64_t length, int64_t width,
                         const float *raw, float *aligned)
{
    size_t bytes = (size_t)width * sizeof(float);
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < length; i++) {
            float *to = aligned + (r * length + i) * width;
            int32_t from = source[r * length + i];
            if (from < 0)
                memset(to, 0, bytes);
            else
                memcpy(to, raw + (r * length + from) * width, bytes);
        }
    }
}

void bd_alignment_scatter(const int32_t *source, int64_t rows, int64_t length, int64_t width,
                          const float *d_aligned, float *d_raw)
{
    for (int64_t r = 0; r < rows; r++) {
        for (int64_t i = 0; i < length; i++) {
            int32_t into = source[r * length + i];
            if (into < 0)
                continue;
            const float *from = d_aligned + (r * length + i) * width;
            float *to = d_raw + (r * length + into) * width;
            for (int64_t w = 0; w < width; w++)
                to[w] += from[w];
        }
    }
}
