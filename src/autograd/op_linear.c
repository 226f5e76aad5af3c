// Products with weights: the embedding table, linear layers.
#include <assert.h>

#include "autograd/tape.h"

// --- embedding: y[r] = table[ids[r]] -------------------------------------------------------------

typedef struct {
    bd_parameter *table;
    const int32_t *ids;
    bd_value *y;
} embedding_note;

static void embedding_back(bd_tape *tape, void *context)
{
    (void)tape;
    const embedding_note *n = context;
    bd_gather_backward(n->y->gradient, n->y->width, n->ids, n->y->rows, n->table->gradient);
}

bd_value *bd_op_embedding(bd_tape *tape, bd_parameter *table, const int32_t *ids, int64_t rows)
{
    assert(table->rank == 2);
    bd_value *y = bd_tape_value(tape, rows, table->shape[1], table->gradient != NULL);
    bd_gather(table->data, table->dtype, table->shape[1], ids, rows, y->data);
    if (y->gradient) {
        embedding_note *n = bd_arena_alloc(tape->arena, sizeof *n);
        *n = (embedding_note){.table = table, .ids = ids, .y = y};
        bd_tape_note(tape, embedding_back, n);
    }
    return y;
}

// --- linear: y = x W^T + b; dx += dy W, dW += dy^T x, db += sum of dy's rows ---------------------

typedef struct {
    bd_value *x;
    bd_parameter *weight, *bias;
    bd_value *y;
} linear_note;

static void linear_back(bd_tape *tape, void *context)
{
    const linear_note *n = context;
    const float *dy = n->y->gradient;
    int64_t rows = n->x->rows, in = n->x->width, out = n->y->width;
    size_t mark = bd_arena_mark(tape->arena);
    if (n->x->gradient)
        bd_matmul(bd_parameter_backward(n->weight, tape->compute), dy, rows, out, NULL,
                  n->x->gradient, in, BD_ACCUMULATE, tape->arena);
    bd_arena_release(tape->arena, mark);
    if (n->weight->gradient)
        bd_matmul_weight_gradient(tape->compute, dy, out, n->x->data, in, rows, out, in,
                                  n->weight->gradient, tape->arena);
    if (n->bias && n->bias->gradient)
        bd_sum_rows(dy, rows, out, n->bias->gradient);
}

void bd_op_linears(bd_tape *tape, bd_value *x, const bd_linear *linears, int count, bd_value **y)
{
    assert(count > 0 && count <= BD_MOST_PRODUCTS);
    bd_product products[BD_MOST_PRODUCTS];
    for (int i = 0; i < count; i++) {
        const bd_parameter *weight = linears[i].weight, *bias = linears[i].bias;
        assert(weight->rank == 2 && weight->shape[1] == x->width);
        assert(!bias || bias->count == weight->shape[0]);
        bool trained = x->gradient || weight->gradient || (bias && bias->gradient);
        y[i] = bd_tape_value(tape, x->rows, weight->shape[0], trained);
    }
    size_t mark = bd_arena_mark(tape->arena);
    for (int i = 0; i < count; i++)
        products[i] =
            (bd_product){.w = bd_parameter_forward(linears[i].weight, tape->compute),
                         .bias = linears[i].bias ? bd_parameter_values(linears[i].bias) : NULL,
                         .y = y[i]->data,
                         .y_stride = y[i]->width};
    bd_matmul_several(products, count, x->data, x->rows, x->width, BD_STORE, tape->arena);
    bd_arena_release(tape->arena, mark);
    for (int i = 0; i < count; i++) {
        if (!y[i]->gradient)
            continue;
        linear_note *n = bd_arena_alloc(tape->arena, sizeof *n);
        *n = (linear_note){.x = x, .weight = linears[i].weight, .bias = linears[i].bias, .y = y[i]};
        bd_tape_note(tape, linear_back, n);
    }
}

bd_value *bd_op_linear(bd_tape *tape, bd_value *x, bd_parameter *weight, bd_parameter *bias)
{
    const bd_linear linear = {.weight = weight, .bias = bias};
    bd_value *y;
    bd_op_linears(tape, x, &linear, 1, &y);
    return y;
}
