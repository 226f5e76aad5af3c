/* tape.h - operations that remember how to go back.
 *
 * An operation computes its result at once and, when recording, leaves a note on the tape; going
 * through the notes backwards adds up gradients. Results, gradients and notes live in an arena that
 * the caller resets after the step. A tape that does not record (generation) costs nothing more
 * than the arithmetic: the same operations serve training and inference, so there is one forward
 * pass.
 *
 *     bd_tape tape = bd_tape_begin(arena, BD_BF16, true);
 *     bd_value *h = bd_op_rms_norm(&tape, x, norm, eps, width);
 *     bd_value *y = bd_op_linear(&tape, h, weight, NULL);
 *     ... y->gradient is filled by a loss ...
 *     bd_tape_backward(&tape);
 */
#ifndef BD_AUTOGRAD_TAPE_H
#define BD_AUTOGRAD_TAPE_H

#include "attention/attention.h"
#include "autograd/parameter.h"
#include "tensor/rows.h"
#include "tensor/vocabulary.h"

typedef struct {
    float *data;     /* [rows, width] */
    float *gradient; /* same shape, zero at first; NULL when nothing upstream is trained */
    int64_t rows, width;
} bd_value;

typedef struct bd_note bd_note;

typedef struct {
    bd_arena *arena;
    bd_dtype compute; /* BD_F32 or BD_BF16: what the inputs of products are rounded to; BD_Q8_0 only
                         without recording */
    bool recording;
    bd_note *last;
} bd_tape;

bd_tape bd_tape_begin(bd_arena *arena, bd_dtype compute, bool recording);
void bd_tape_backward(bd_tape *tape);

/* For operations defined in other rooms: leave a note. `back` runs once, in reverse order, with the
 * context given (which lives in the arena). */
void bd_tape_note(bd_tape *tape, void (*back)(bd_tape *tape, void *context), void *context);

/* A new result; with a gradient buffer iff recording and `wants_gradient`. */
bd_value *bd_tape_value(bd_tape *tape, int64_t rows, int64_t width, bool wants_gradient);
/* Data that exists already and needs no gradient. */
bd_value *bd_tape_constant(bd_tape *tape, const float *data, int64_t rows, int64_t width);

/* --- operations; shapes in brackets -------------------------------------------------------------
 */

/* [rows, H] rows of an embedding table [V, H]. */
bd_value *bd_op_embedding(bd_tape *tape, bd_parameter *table, const int32_t *ids, int64_t rows);

/* x [rows, in] @ weight[out, in]^T + bias[out] -> [rows, out]; bias may be NULL. */
bd_value *bd_op_linear(bd_tape *tape, bd_value *x, bd_parameter *weight, bd_parameter *bias);

/* Several of them on the same x, in one pass over all weights: y[i] as bd_op_linear gives it. Up to
 * BD_MOST_PRODUCTS. */
typedef struct {
    bd_parameter *weight, *bias;
} bd_linear;
void bd_op_linears(bd_tape *tape, bd_value *x, const bd_linear *linears, int count, bd_value **y);

/* RMS norm over groups of `width` values (the whole row, or each head), weight [width]. */
bd_value *bd_op_rms_norm(bd_tape *tape, bd_value *x, bd_parameter *weight, float eps,
                         int64_t width);

/* Rotary positions on [rows, heads * rope->head_size]. positions must outlive the tape. */
bd_value *bd_op_rope(bd_tape *tape, bd_value *x, const bd_rope *rope, const int32_t *positions);

bd_value *bd_op_add(bd_tape *tape, bd_value *a, bd_value *b);
bd_value *bd_op_swiglu(bd_tape *tape, bd_value *gate, bd_value *up);
bd_value *bd_op_multiply(bd_tape *tape, bd_value *a, bd_value *b);
bd_value *bd_op_sigmoid(bd_tape *tape, bd_value *x);
bd_value *bd_op_silu(bd_tape *tape, bd_value *x); /* x sigmoid(x) */

/* Per batch row: the rows of a, then the rows of b. a [batch * na, W], b [batch * nb, W]. */
bd_value *bd_op_concatenate_rows(bd_tape *tape, bd_value *a, bd_value *b, int64_t batch);

/* Columns of several values side by side: [rows, sum of widths]. */
bd_value *bd_op_concatenate_columns(bd_tape *tape, bd_value *const *parts, int count);

/* y[r] = x[index[r]]; index -1 gives a zero row. */
bd_value *bd_op_gather_rows(bd_tape *tape, bd_value *x, const int32_t *index, int64_t rows);

/* Attention over visible pairs; `rule` and what it points to must outlive the tape. sink may be
 * NULL. */
bd_value *bd_op_attention(bd_tape *tape, bd_value *query, bd_value *key, bd_value *value,
                          const bd_attention *attention, bd_parameter *sink);

/* Recurrences over blocks of `length` consecutive rows. state [blocks, width]: what the blocks start
 * from, a constant, replaced by where they end; NULL: from 0. A block stepped through row by row
 * gives the bits of the block at once.
 *
 * Gated recurrent unit without biases: input [rows, 3G] is W x, weight U [3G, G], both in the order
 * reset, update, new; y is the state after each row:
 * r = sig(ir + hr), z = sig(iz + hz), n = tanh(in + r hn), state = (1 - z) n + z state. */
bd_value *bd_op_gru(bd_tape *tape, bd_value *input, bd_parameter *weight, int64_t length,
                    float *state);
/* Gated memory: input [rows, W], weight [3R, R + W], bias [3R]. [g; c; o] = weight [state; input] +
 * bias, y = tanh(o), then state = sig(g) state + (1 - sig(g)) tanh(c). */
bd_value *bd_op_gated_memory(bd_tape *tape, bd_value *input, bd_parameter *weight,
                             bd_parameter *bias, int64_t length, float *state);

/* A loss over the vocabulary of logits x @ head^T. `loss` gives targets, scale, teacher and
 * outputs; its terms are filled in here (one term: x, head). The gradient is computed in the same
 * pass (fused) and stored in x->gradient and head->gradient immediately; nothing is noted. */
void bd_op_vocabulary_loss(bd_tape *tape, bd_value *x, bd_parameter *head,
                           bd_vocabulary_loss *loss);
/* The same for logits that are a sum of such products: x[0] @ heads[0]^T + x[1] @ heads[1]^T. */
void bd_op_vocabulary_loss_of_sum(bd_tape *tape, bd_value *const *x, bd_parameter *const *heads,
                                  int count, bd_vocabulary_loss *loss);

#endif
