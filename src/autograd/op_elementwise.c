// Functions of single elements: sigmoid, silu, products.
#include <assert.h>
#include <math.h>

#include "autograd/tape.h"
#include "base/profile.h"
#include "base/threads.h"

enum { CHUNK = 1 << 14 }; // elements of a task

typedef struct {
    bd_value *a, *b; // b NULL: a function of one operand
    bd_value *y;
    void (*forward)(const float *a, const float *b, int64_t count, float *y);
    void (*back)(const float *a, const float *b, const float *y, const float *dy, int64_t count,
                 float *da, float *db);
} elementwise;

static float *at(float *x, int64_t begin)
{
    return x ? x + begin : NULL;
}

static void forward_chunk(void *context, int64_t task)
{
    const elementwise *e = context;
    int64_t begin = task * CHUNK, count = e->y->rows * e->y->width - begin;
    e->forward(e->a->data + begin, e->b ? e->b->data + begin : NULL, count < CHUNK ? count : CHUNK,
               e->y->data + begin);
}

static void back_chunk(void *context, int64_t task)
{
    const elementwise *e = context;
    int64_t begin = task * CHUNK, count = e->y->rows * e->y->width - begin;
    e->back(e->a->data + begin, e->b ? e->b->data + begin : NULL, e->y->data + begin,
            e->y->gradient + begin, count < CHUNK ? count : CHUNK, at(e->a->gradient, begin),
            e->b ? at(e->b->gradient, begin) : NULL);
}

static int64_t chunks(const elementwise *e)
{
    return (e->y->rows * e->y->width + CHUNK - 1) / CHUNK;
}

static void go_back(bd_tape *tape, void *context)
{
    (void)tape;
    static bd_profile_site site = {.name = "elements, back", .kind = BD_PROFILE_MEMORY};
    const elementwise *e = context;
    bd_profile_begin(&site);
    bd_parallel(chunks(e), back_chunk, context);
    bd_profile_end(&site, 0, (e->b ? 28 : 16) * (double)(e->y->rows * e->y->width));
}

static bd_value *run(bd_tape *tape, elementwise e)
{
    assert(!e.b || (e.a->rows == e.b->rows && e.a->width == e.b->width));
    e.y = bd_tape_value(tape, e.a->rows, e.a->width, e.a->gradient || (e.b && e.b->gradient));
    static bd_profile_site site = {.name = "elements", .kind = BD_PROFILE_MEMORY};
    bd_profile_begin(&site);
    bd_parallel(chunks(&e), forward_chunk, &e);
    bd_profile_end(&site, 0, (e.b ? 12 : 8) * (double)(e.y->rows * e.y->width));
    if (e.y->gradient) {
        elementwise *kept = bd_arena_alloc(tape->arena, sizeof *kept);
        *kept = e;
        bd_tape_note(tape, go_back, kept);
    }
    return e.y;
}

// --- sigmoid: y = 1 / (1 + exp(-x)) --------------------------------------------------------------

static void sigmoid(const float *a, const float *b, int64_t count, float *y)
{
    (void)b;
    for (int64_t i = 0; i < count; i++)
        y[i] = 1 / (1 + expf(-a[i]));
}

static void sigmoid_back(const float *a, const float *b, const float *y, const float *dy,
                         int64_t count, float *da, float *db)
{
    (void)a, (void)b, (void)db;
    for (int64_t i = 0; i < count; i++)
        da[i] += dy[i] * y[i] * (1 - y[i]);
}

bd_value *bd_op_sigmoid(bd_tape *tape, bd_value *x)
{
    return run(tape, (elementwise){.a = x, .forward = sigmoid, .back = sigmoid_back});
}

// --- silu: y = x sigmoid(x) ----------------------------------------------------------------------

static void silu(const float *a, const float *b, int64_t count, float *y)
{
    (void)b;
    for (int64_t i = 0; i < count; i++)
        y[i] = a[i] / (1 + expf(-a[i]));
}

static void silu_back(const float *a, const float *b, const float *y, const float *dy,
                      int64_t count, float *da, float *db)
{
    (void)b, (void)y, (void)db;
    for (int64_t i = 0; i < count; i++) {
        float s = 1 / (1 + expf(-a[i]));
        da[i] += dy[i] * s * (1 + a[i] * (1 - s));
    }
}

bd_value *bd_op_silu(bd_tape *tape, bd_value *x)
{
    return run(tape, (elementwise){.a = x, .forward = silu, .back = silu_back});
}

// --- product: y = a b; da += dy b, db += dy a ----------------------------------------------------

static void multiply(const float *a, const float *b, int64_t count, float *y)
{
    for (int64_t i = 0; i < count; i++)
        y[i] = a[i] * b[i];
}

static void multiply_back(const float *a, const float *b, const float *y, const float *dy,
                          int64_t count, float *da, float *db)
{
    (void)y;
    for (int64_t i = 0; da && i < count; i++)
        da[i] += dy[i] * b[i];
    for (int64_t i = 0; db && i < count; i++)
        db[i] += dy[i] * a[i];
}

bd_value *bd_op_multiply(bd_tape *tape, bd_value *a, bd_value *b)
{
    return run(tape, (elementwise){.a = a, .b = b, .forward = multiply, .back = multiply_back});
}
