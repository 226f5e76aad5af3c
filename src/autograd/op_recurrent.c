// Recurrences over the rows of short blocks. All blocks take a step together, so that a step is one
// product; on the way back the weights see all steps of all blocks at once.
#include <assert.h>
#include <math.h>
#include <string.h>

#include "autograd/tape.h"
#include "base/profile.h"
#include "base/threads.h"

static float sigmoid(float x)
{
    return 1 / (1 + expf(-x));
}

typedef struct {
    bd_value *input;
    bd_parameter *weight, *bias;
    bd_value *y;
    int64_t length, blocks; // rows of a block, and how many there are
    int64_t width;          // of the state
    int64_t seen_width;     // of what the weight is applied to
    float *seen;            // [rows, seen_width]: the state before each row, first
    float *gates;           // [rows, 3 width]: after their functions
    float *product;         // [rows, 3 width]: of the weight and what it saw
    int64_t step;
    // On the way back:
    float *d_product; // [rows, 3 width]
    float *carry;     // [blocks, width]: gradient of the state behind the step
} recurrence;

static bd_profile_site cells = {.name = "recurrent cells", .kind = BD_PROFILE_MEMORY};
static bd_profile_site cells_back = {.name = "recurrent cells, back", .kind = BD_PROFILE_MEMORY};

static int64_t row_of(const recurrence *n, int64_t block)
{
    return block * n->length + n->step;
}

// product of one step = weight applied to what is seen in it
static void multiply_step(bd_tape *tape, const recurrence *n)
{
    size_t mark = bd_arena_mark(tape->arena);
    int64_t seen = n->seen_width, out = 3 * n->width;
    bd_matmul(bd_parameter_forward(n->weight, tape->compute), n->seen + n->step * seen, n->blocks,
              n->length * seen, n->bias ? bd_parameter_values(n->bias) : NULL,
              n->product + n->step * out, n->length * out, BD_STORE, tape->arena);
    bd_arena_release(tape->arena, mark);
}

static void add_weight_gradients(bd_tape *tape, const recurrence *n)
{
    int64_t rows = n->blocks * n->length, out = 3 * n->width;
    if (n->weight->gradient)
        bd_matmul_weight_gradient(tape->compute, n->d_product, out, n->seen, n->seen_width, rows,
                                  out, n->seen_width, n->weight->gradient, tape->arena);
    if (n->bias && n->bias->gradient)
        bd_sum_rows(n->d_product, rows, out, n->bias->gradient);
}

/* Run `cell` over the steps; y and what the way back needs are in the arena. state: [blocks, width]
 * to begin with and, afterwards, where the blocks ended; NULL: from 0. */
static bd_value *run(bd_tape *tape, recurrence n, bd_task_function *cell, float *state,
                     void (*back)(bd_tape *, void *))
{
    int64_t rows = n.input->rows;
    assert(n.length > 0 && rows % n.length == 0);
    n.blocks = rows / n.length;
    bool trained = n.input->gradient || n.weight->gradient || (n.bias && n.bias->gradient);
    n.y = bd_tape_value(tape, rows, n.width, trained);
    size_t mark = bd_arena_mark(tape->arena);
    n.seen = bd_arena_floats(tape->arena, rows * n.seen_width);
    n.gates = bd_arena_floats(tape->arena, rows * 3 * n.width);
    n.product = bd_arena_floats(tape->arena, rows * 3 * n.width);
    n.carry = bd_arena_zeros(tape->arena, n.blocks * n.width); // the state, on the way forward
    if (state)
        memcpy(n.carry, state, (size_t)(n.blocks * n.width) * sizeof *state);
    size_t bytes = (size_t)n.width * sizeof(float), more = n.seen_width - n.width;
    for (n.step = 0; n.step < n.length; n.step++) {
        for (int64_t b = 0; b < n.blocks; b++) {
            float *seen = n.seen + row_of(&n, b) * n.seen_width;
            memcpy(seen, n.carry + b * n.width, bytes);
            memcpy(seen + n.width, n.input->data + row_of(&n, b) * n.input->width,
                   more * sizeof *seen);
        }
        multiply_step(tape, &n);
        bd_profile_begin(&cells);
        bd_parallel(n.blocks, cell, &n);
        bd_profile_end(&cells, 0, 4 * 8 * (double)(n.blocks * n.width)); // six gates in, two out
    }
    if (state)
        memcpy(state, n.carry, (size_t)(n.blocks * n.width) * sizeof *state);
    if (!n.y->gradient) {
        bd_arena_release(tape->arena, mark);
        return n.y;
    }
    recurrence *kept = bd_arena_alloc(tape->arena, sizeof *kept);
    *kept = n;
    bd_tape_note(tape, back, kept);
    return n.y;
}

static void begin_back(bd_tape *tape, recurrence *n)
{
    n->d_product = bd_arena_floats(tape->arena, n->y->rows * 3 * n->width);
    memset(n->carry, 0, (size_t)(n->blocks * n->width) * sizeof *n->carry);
}

// --- gated recurrent unit ------------------------------------------------------------------------

static void gru_cell(void *context, int64_t block)
{
    const recurrence *n = context;
    int64_t width = n->width, row = row_of(n, block);
    const float *input = n->input->data + row * 3 * width, *product = n->product + row * 3 * width;
    float *gates = n->gates + row * 3 * width, *state = n->carry + block * width;
    for (int64_t i = 0; i < width; i++) {
        float reset = sigmoid(input[i] + product[i]);
        float update = sigmoid(input[width + i] + product[width + i]);
        float fresh = tanhf(input[2 * width + i] + reset * product[2 * width + i]);
        state[i] = (1 - update) * fresh + update * state[i];
        gates[i] = reset;
        gates[width + i] = update;
        gates[2 * width + i] = fresh;
    }
    memcpy(n->y->data + row * width, state, (size_t)width * sizeof *state);
}

static void gru_cell_back(void *context, int64_t block)
{
    const recurrence *n = context;
    int64_t width = n->width, row = row_of(n, block);
    const float *gates = n->gates + row * 3 * width, *before = n->seen + row * width;
    const float *hidden_fresh = n->product + row * 3 * width + 2 * width;
    float *d_product = n->d_product + row * 3 * width, *carry = n->carry + block * width;
    float *d_input = n->input->gradient ? n->input->gradient + row * 3 * width : NULL;
    for (int64_t i = 0; i < width; i++) {
        float reset = gates[i], update = gates[width + i], fresh = gates[2 * width + i];
        float d_state = n->y->gradient[row * width + i] + carry[i];
        float d_fresh = d_state * (1 - update) * (1 - fresh * fresh);
        float d_update = d_state * (before[i] - fresh) * update * (1 - update);
        float d_reset = d_fresh * hidden_fresh[i] * reset * (1 - reset);
        d_product[i] = d_reset;
        d_product[width + i] = d_update;
        d_product[2 * width + i] = d_fresh * reset;
        if (d_input) {
            d_input[i] += d_reset;
            d_input[width + i] += d_update;
            d_input[2 * width + i] += d_fresh;
        }
        carry[i] = d_state * update;
    }
}

static void gru_back(bd_tape *tape, void *context)
{
    recurrence *n = context;
    int64_t out = 3 * n->width;
    begin_back(tape, n);
    for (n->step = n->length - 1; n->step >= 0; n->step--) {
        bd_profile_begin(&cells_back);
        bd_parallel(n->blocks, gru_cell_back, n);
        bd_profile_end(&cells_back, 0, 4 * 14 * (double)(n->blocks * n->width));
        if (n->step == 0) // what a block starts from is a constant
            break;
        size_t mark = bd_arena_mark(tape->arena);
        bd_matmul(bd_parameter_backward(n->weight, tape->compute), n->d_product + n->step * out,
                  n->blocks, n->length * out, NULL, n->carry, n->width, BD_ACCUMULATE, tape->arena);
        bd_arena_release(tape->arena, mark);
    }
    add_weight_gradients(tape, n);
}

bd_value *bd_op_gru(bd_tape *tape, bd_value *input, bd_parameter *weight, int64_t length,
                    float *state)
{
    int64_t width = weight->shape[1];
    assert(weight->rank == 2 && weight->shape[0] == 3 * width && input->width == 3 * width);
    const recurrence n = {
        .input = input, .weight = weight, .length = length, .width = width, .seen_width = width};
    return run(tape, n, gru_cell, state, gru_back);
}

// --- gated memory --------------------------------------------------------------------------------

static void memory_cell(void *context, int64_t block)
{
    const recurrence *n = context;
    int64_t width = n->width, row = row_of(n, block);
    const float *product = n->product + row * 3 * width;
    float *gates = n->gates + row * 3 * width, *state = n->carry + block * width;
    for (int64_t i = 0; i < width; i++) {
        float keep = sigmoid(product[i]), candidate = tanhf(product[width + i]);
        float out = tanhf(product[2 * width + i]);
        state[i] = keep * state[i] + (1 - keep) * candidate;
        n->y->data[row * width + i] = out;
        gates[i] = keep;
        gates[width + i] = candidate;
        gates[2 * width + i] = out;
    }
}

static void memory_cell_back(void *context, int64_t block)
{
    const recurrence *n = context;
    int64_t width = n->width, row = row_of(n, block);
    const float *gates = n->gates + row * 3 * width, *before = n->seen + row * n->seen_width;
    float *d_product = n->d_product + row * 3 * width, *carry = n->carry + block * width;
    for (int64_t i = 0; i < width; i++) {
        float keep = gates[i], candidate = gates[width + i], out = gates[2 * width + i];
        d_product[i] = carry[i] * (before[i] - candidate) * keep * (1 - keep);
        d_product[width + i] = carry[i] * (1 - keep) * (1 - candidate * candidate);
        d_product[2 * width + i] = n->y->gradient[row * width + i] * (1 - out * out);
        carry[i] *= keep;
    }
}

static void memory_back(bd_tape *tape, void *context)
{
    recurrence *n = context;
    int64_t out = 3 * n->width, more = n->seen_width - n->width;
    begin_back(tape, n);
    float *d_seen = bd_arena_floats(tape->arena, n->blocks * n->seen_width);
    for (n->step = n->length - 1; n->step >= 0; n->step--) {
        bd_profile_begin(&cells_back);
        bd_parallel(n->blocks, memory_cell_back, n);
        bd_profile_end(&cells_back, 0, 4 * 14 * (double)(n->blocks * n->width));
        size_t mark = bd_arena_mark(tape->arena);
        bd_matmul(bd_parameter_backward(n->weight, tape->compute), n->d_product + n->step * out,
                  n->blocks, n->length * out, NULL, d_seen, n->seen_width, BD_STORE, tape->arena);
        bd_arena_release(tape->arena, mark);
        for (int64_t b = 0; b < n->blocks; b++) {
            const float *from = d_seen + b * n->seen_width;
            bd_accumulate(from, n->width, n->carry + b * n->width);
            if (n->input->gradient)
                bd_accumulate(from + n->width, more, n->input->gradient + row_of(n, b) * more);
        }
    }
    add_weight_gradients(tape, n);
}

bd_value *bd_op_gated_memory(bd_tape *tape, bd_value *input, bd_parameter *weight,
                             bd_parameter *bias, int64_t length, float *state)
{
    int64_t width = weight->shape[0] / 3;
    assert(weight->rank == 2 && weight->shape[0] == 3 * width);
    assert(weight->shape[1] == width + input->width && bias->count == 3 * width);
    const recurrence n = {.input = input,
                          .weight = weight,
                          .bias = bias,
                          .length = length,
                          .width = width,
                          .seen_width = width + input->width};
    return run(tape, n, memory_cell, state, memory_back);
}
