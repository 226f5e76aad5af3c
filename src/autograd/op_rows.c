// Operations on rows one by one: norm, rotary positions, sums, the gated unit.
#include <assert.h>

#include "autograd/tape.h"

// --- RMS norm: y = x / rms(x) * weight, over groups of `width` -----------------------------------

typedef struct {
    bd_value *x;
    bd_parameter *weight;
    const float *inverse; // [groups]: 1 / rms
    bd_value *y;
} norm_note;

static void norm_back(bd_tape *tape, void *context)
{
    const norm_note *n = context;
    int64_t width = n->weight->count, groups = n->x->rows * n->x->width / width;
    bd_rms_norm_backward(n->x->data, bd_parameter_values(n->weight), n->inverse, n->y->gradient,
                         groups, width, n->x->gradient, n->weight->gradient, tape->arena);
}

bd_value *bd_op_rms_norm(bd_tape *tape, bd_value *x, bd_parameter *weight, float eps, int64_t width)
{
    assert(width > 0 && x->width % width == 0 && weight->count == width);
    int64_t groups = x->rows * x->width / width;
    bd_value *y = bd_tape_value(tape, x->rows, x->width, x->gradient || weight->gradient);
    float *inverse = y->gradient ? bd_arena_floats(tape->arena, groups) : NULL;
    bd_rms_norm(x->data, bd_parameter_values(weight), eps, groups, width, y->data, inverse);
    if (y->gradient) {
        norm_note *n = bd_arena_alloc(tape->arena, sizeof *n);
        *n = (norm_note){.x = x, .weight = weight, .inverse = inverse, .y = y};
        bd_tape_note(tape, norm_back, n);
    }
    return y;
}

// --- rotary positions: a rotation, so going back is turning the other way ------------------------

typedef struct {
    bd_value *x;
    const bd_rope *rope;
    const int32_t *positions;
    bd_value *y;
} rope_note;

static void rope_back(bd_tape *tape, void *context)
{
    (void)tape;
    const rope_note *n = context;
    bd_rope_backward(n->rope, n->y->gradient, n->positions, n->x->rows,
                     n->x->width / n->rope->head_size, n->x->gradient);
}

bd_value *bd_op_rope(bd_tape *tape, bd_value *x, const bd_rope *rope, const int32_t *positions)
{
    assert(x->width % rope->head_size == 0);
    bd_value *y = bd_tape_value(tape, x->rows, x->width, x->gradient != NULL);
    bd_rope_forward(rope, x->data, positions, x->rows, x->width / rope->head_size, y->data);
    if (y->gradient) {
        rope_note *n = bd_arena_alloc(tape->arena, sizeof *n);
        *n = (rope_note){.x = x, .rope = rope, .positions = positions, .y = y};
        bd_tape_note(tape, rope_back, n);
    }
    return y;
}

// --- sum: y = a + b; da += dy, db += dy ----------------------------------------------------------

typedef struct {
    bd_value *a, *b, *y;
} pair_note;

static bd_value *note_pair(bd_tape *tape, void (*back)(bd_tape *, void *), bd_value *a, bd_value *b,
                           bd_value *y)
{
    if (y->gradient) {
        pair_note *n = bd_arena_alloc(tape->arena, sizeof *n);
        *n = (pair_note){.a = a, .b = b, .y = y};
        bd_tape_note(tape, back, n);
    }
    return y;
}

static void add_back(bd_tape *tape, void *context)
{
    (void)tape;
    const pair_note *n = context;
    int64_t count = n->y->rows * n->y->width;
    if (n->a->gradient)
        bd_accumulate(n->y->gradient, count, n->a->gradient);
    if (n->b->gradient)
        bd_accumulate(n->y->gradient, count, n->b->gradient);
}

bd_value *bd_op_add(bd_tape *tape, bd_value *a, bd_value *b)
{
    assert(a->rows == b->rows && a->width == b->width);
    bd_value *y = bd_tape_value(tape, a->rows, a->width, a->gradient || b->gradient);
    bd_add(a->data, b->data, a->rows * a->width, y->data);
    return note_pair(tape, add_back, a, b, y);
}

// --- gated unit: y = silu(gate) * up -------------------------------------------------------------

static void swiglu_back(bd_tape *tape, void *context)
{
    const pair_note *n = context;
    int64_t count = n->y->rows * n->y->width;
    // One side may come from frozen weights; what flows there is dropped.
    float *dgate = n->a->gradient ? n->a->gradient : bd_arena_zeros(tape->arena, count);
    float *dup = n->b->gradient ? n->b->gradient : bd_arena_zeros(tape->arena, count);
    bd_swiglu_backward(n->a->data, n->b->data, n->y->gradient, count, dgate, dup);
}

bd_value *bd_op_swiglu(bd_tape *tape, bd_value *gate, bd_value *up)
{
    assert(gate->rows == up->rows && gate->width == up->width);
    bd_value *y = bd_tape_value(tape, gate->rows, gate->width, gate->gradient || up->gradient);
    bd_swiglu(gate->data, up->data, gate->rows * gate->width, y->data);
    return note_pair(tape, swiglu_back, gate, up, y);
}
