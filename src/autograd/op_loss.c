// A loss over the vocabulary: where going back begins.
#include <assert.h>

#include "autograd/tape.h"

static bd_vocabulary_term term_of(const bd_tape *tape, bd_value *x, bd_parameter *head)
{
    assert(head->rank == 2 && head->shape[1] == x->width);
    bd_vocabulary_term term = {.features = x->data, .width = x->width, .compute = tape->compute};
    term.head = bd_parameter_forward(head, tape->compute);
    if (tape->recording) {
        term.d_features = x->gradient;
        term.d_head = head->gradient;
        if (x->gradient)
            term.head_backward = bd_parameter_backward(head, tape->compute);
    }
    return term;
}

void bd_op_vocabulary_loss_of_sum(bd_tape *tape, bd_value *const *x, bd_parameter *const *heads,
                                  int count, bd_vocabulary_loss *loss)
{
    assert(count >= 1 && count <= BD_VOCABULARY_TERMS);
    for (int i = 0; i < count; i++) {
        assert(loss->rows == x[i]->rows && loss->vocabulary == heads[i]->shape[0]);
        loss->terms[i] = term_of(tape, x[i], heads[i]);
    }
    loss->term_count = count;
    size_t mark = bd_arena_mark(tape->arena);
    bd_vocabulary_forward_backward(loss, tape->arena);
    bd_arena_release(tape->arena, mark);
}

void bd_op_vocabulary_loss(bd_tape *tape, bd_value *x, bd_parameter *head, bd_vocabulary_loss *loss)
{
    bd_op_vocabulary_loss_of_sum(tape, &x, &head, 1, loss);
}
