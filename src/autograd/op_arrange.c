// Operations that only move rows and columns: nothing is computed, going back adds to where a value
// came from.
#include <assert.h>
#include <string.h>

#include "autograd/tape.h"
#include "base/profile.h"
#include "base/threads.h"

static bd_profile_site moving = {.name = "move rows", .kind = BD_PROFILE_MEMORY};

// A rectangle of one matrix onto one of another; rows are independent, so threads share them.
typedef struct {
    const float *from;
    float *to;
    int64_t from_stride, to_stride, rows, width, rows_per_task;
    bool add;
} rectangle;

static void move_rows(void *context, int64_t task)
{
    const rectangle *r = context;
    int64_t begin = task * r->rows_per_task, end = begin + r->rows_per_task;
    if (end > r->rows)
        end = r->rows;
    for (int64_t row = begin; row < end; row++) {
        const float *from = r->from + row * r->from_stride;
        float *to = r->to + row * r->to_stride;
        if (!r->add) {
            memcpy(to, from, (size_t)r->width * sizeof(float));
        } else {
            for (int64_t i = 0; i < r->width; i++)
                to[i] += from[i];
        }
    }
}

static void move(const float *from, int64_t from_stride, float *to, int64_t to_stride, int64_t rows,
                 int64_t width, bool add)
{
    const int64_t floats_per_task = 1 << 15; // fewer are not worth waking a thread for
    rectangle r = {.from = from,
                   .to = to,
                   .from_stride = from_stride,
                   .to_stride = to_stride,
                   .rows = rows,
                   .width = width,
                   .add = add};
    r.rows_per_task = width > 0 ? (floats_per_task + width - 1) / width : 1;
    bd_profile_begin(&moving);
    bd_parallel((rows + r.rows_per_task - 1) / r.rows_per_task, move_rows, &r);
    bd_profile_end(&moving, 0, (add ? 12 : 8) * (double)(rows * width));
}

// --- rows of a, then rows of b, per batch row ----------------------------------------------------

typedef struct {
    bd_value *a, *b, *y;
    int64_t batch;
} stack_note;

static void stack_back(bd_tape *tape, void *context)
{
    (void)tape;
    const stack_note *n = context;
    int64_t width = n->y->width, row = n->y->rows / n->batch * width; // floats of one batch row
    int64_t a = n->a->rows / n->batch * width, b = n->b->rows / n->batch * width;
    if (n->a->gradient)
        move(n->y->gradient, row, n->a->gradient, a, n->batch, a, true);
    if (n->b->gradient)
        move(n->y->gradient + a, row, n->b->gradient, b, n->batch, b, true);
}

bd_value *bd_op_concatenate_rows(bd_tape *tape, bd_value *a, bd_value *b, int64_t batch)
{
    assert(a->width == b->width && batch > 0 && a->rows % batch == 0 && b->rows % batch == 0);
    bd_value *y = bd_tape_value(tape, a->rows + b->rows, a->width, a->gradient || b->gradient);
    int64_t na = a->rows / batch * a->width, nb = b->rows / batch * b->width;
    move(a->data, na, y->data, na + nb, batch, na, false);
    move(b->data, nb, y->data + na, na + nb, batch, nb, false);
    if (y->gradient) {
        stack_note *n = bd_arena_alloc(tape->arena, sizeof *n);
        *n = (stack_note){.a = a, .b = b, .y = y, .batch = batch};
        bd_tape_note(tape, stack_back, n);
    }
    return y;
}

// --- columns side by side ------------------------------------------------------------------------

typedef struct {
    bd_value **parts;
    int count;
    bd_value *y;
} columns_note;

static void columns_back(bd_tape *tape, void *context)
{
    (void)tape;
    const columns_note *n = context;
    const float *from = n->y->gradient;
    for (int i = 0; i < n->count; i++) {
        bd_value *part = n->parts[i];
        if (part->gradient)
            move(from, n->y->width, part->gradient, part->width, part->rows, part->width, true);
        from += part->width;
    }
}

bd_value *bd_op_concatenate_columns(bd_tape *tape, bd_value *const *parts, int count)
{
    assert(count > 0);
    int64_t rows = parts[0]->rows, width = 0;
    bool trained = false;
    for (int i = 0; i < count; i++) {
        assert(parts[i]->rows == rows);
        width += parts[i]->width;
        trained = trained || parts[i]->gradient;
    }
    bd_value *y = bd_tape_value(tape, rows, width, trained);
    float *to = y->data;
    for (int i = 0; i < count; i++) {
        move(parts[i]->data, parts[i]->width, to, width, rows, parts[i]->width, false);
        to += parts[i]->width;
    }
    if (y->gradient) {
        columns_note *n = bd_arena_alloc(tape->arena, sizeof *n);
        size_t bytes = (size_t)count * sizeof *parts;
        *n = (columns_note){.count = count, .y = y};
        n->parts = memcpy(bd_arena_alloc(tape->arena, bytes), parts, bytes);
        bd_tape_note(tape, columns_back, n);
    }
    return y;
}

// --- chosen rows ---------------------------------------------------------------------------------

typedef struct {
    bd_value *x;
    const int32_t *index;
    bd_value *y;
} gather_note;

enum { GATHER_STRIP = 64 }; // columns a thread owns on the way back: one index may occur many times

static void gather_strip_back(void *context, int64_t task)
{
    const gather_note *n = context;
    int64_t width = n->y->width, begin = task * GATHER_STRIP, end = begin + GATHER_STRIP;
    if (end > width)
        end = width;
    for (int64_t r = 0; r < n->y->rows; r++) {
        if (n->index[r] < 0)
            continue;
        const float *from = n->y->gradient + r * width;
        float *to = n->x->gradient + n->index[r] * width;
        for (int64_t i = begin; i < end; i++)
            to[i] += from[i];
    }
}

static void gather_back(bd_tape *tape, void *context)
{
    (void)tape;
    const gather_note *n = context;
    bd_profile_begin(&moving);
    bd_parallel((n->y->width + GATHER_STRIP - 1) / GATHER_STRIP, gather_strip_back, context);
    bd_profile_end(&moving, 0, 12 * (double)(n->y->rows * n->y->width));
}

bd_value *bd_op_gather_rows(bd_tape *tape, bd_value *x, const int32_t *index, int64_t rows)
{
    bd_value *y = bd_tape_value(tape, rows, x->width, x->gradient != NULL);
    size_t bytes = (size_t)x->width * sizeof(float);
    bd_profile_begin(&moving);
    for (int64_t r = 0; r < rows; r++) {
        float *to = y->data + r * x->width;
        assert(index[r] >= -1 && index[r] < x->rows);
        if (index[r] < 0)
            memset(to, 0, bytes);
        else
            memcpy(to, x->data + index[r] * x->width, bytes);
    }
    bd_profile_end(&moving, 0, 2 * (double)bytes * (double)rows);
    if (y->gradient) {
        gather_note *n = bd_arena_alloc(tape->arena, sizeof *n);
        *n = (gather_note){.x = x, .index = index, .y = y};
        bd_tape_note(tape, gather_back, n);
    }
    return y;
}
