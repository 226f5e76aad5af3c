// A loss over the vocabulary: where going back begins.
#include <assert.h>

#include "autograd/tape.h"

void bd_op_vocabulary_loss(bd_tape *tape, bd_value *x, bd_parameter *head, bd_vocabulary_loss *loss)
{
    assert(head->rank == 2 && head->shape[1] == x->width);
    assert(loss->rows == x->rows && loss->vocabulary == head->shape[0]);
    bd_vocabulary_term term = {.features = x->data, .width = x->width, .compute = tape->compute};
    term.head = bd_parameter_forward(head, tape->compute);
    if (tape->recording) {
        term.d_features = x->gradient;
        term.d_head = head->gradient;
        if (x->gradient)
            term.head_backward = bd_parameter_backward(head, tape->compute);
    }
    loss->terms[0] = term;
    loss->term_count = 1;
    size_t mark = bd_arena_mark(tape->arena);
    bd_vocabulary_forward_backward(loss, tape->arena);
    bd_arena_release(tape->arena, mark);
}
