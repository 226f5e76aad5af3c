// Attention on the tape. The arithmetic is src/attention's; this keeps what its way back needs.
#include <assert.h>

#include "autograd/tape.h"

typedef struct {
    bd_value *query, *key, *value;
    bd_parameter *sink;
    bd_attention attention;
    const float *log_sum; // [batch, query_heads, query_length]
    bd_value *y;
} attention_note;

// The kernel gives all three gradients together; what a frozen operand gets is dropped.
static float *gradient_or_scratch(bd_tape *tape, const bd_value *value)
{
    return value->gradient ? value->gradient
                           : bd_arena_zeros(tape->arena, value->rows * value->width);
}

static void attention_back(bd_tape *tape, void *context)
{
    const attention_note *n = context;
    float *d_sink = NULL;
    if (n->sink)
        d_sink =
            n->sink->gradient ? n->sink->gradient : bd_arena_zeros(tape->arena, n->sink->count);
    bd_attention_backward(&n->attention, n->query->data, n->key->data, n->value->data, n->y->data,
                          n->log_sum, n->y->gradient, gradient_or_scratch(tape, n->query),
                          gradient_or_scratch(tape, n->key), gradient_or_scratch(tape, n->value),
                          d_sink, tape->arena);
}

bd_value *bd_op_attention(bd_tape *tape, bd_value *query, bd_value *key, bd_value *value,
                          const bd_attention *attention, bd_parameter *sink)
{
    bd_attention a = *attention;
    assert(query->rows == a.batch * a.rule->query_length && key->rows == value->rows);
    assert(key->rows == a.batch * a.rule->key_length && key->width == value->width);
    assert(query->width == a.query_heads * a.head_size && key->width == a.key_heads * a.head_size);
    assert(!sink || sink->count == a.query_heads);
    a.sink = sink ? bd_parameter_values(sink) : NULL;

    bool trained = query->gradient || key->gradient || value->gradient || (sink && sink->gradient);
    bd_value *y = bd_tape_value(tape, query->rows, query->width, trained);
    float *log_sum = y->gradient ? bd_arena_floats(tape->arena, query->rows * a.query_heads) : NULL;
    size_t mark = bd_arena_mark(tape->arena);
    bd_attention_forward(&a, query->data, key->data, value->data, y->data, log_sum, tape->arena);
    bd_arena_release(tape->arena, mark);
    if (y->gradient) {
        attention_note *n = bd_arena_alloc(tape->arena, sizeof *n);
        *n = (attention_note){.query = query,
                              .key = key,
                              .value = value,
                              .sink = sink,
                              .attention = a,
                              .log_sum = log_sum,
                              .y = y};
        bd_tape_note(tape, attention_back, n);
    }
    return y;
}
