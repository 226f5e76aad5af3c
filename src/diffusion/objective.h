/* objective.h - the training loss of token rows under a model: a weighted sum and its weight.
 *
 * One forward pass under the block-diffusion rule, one index map that says which output predicts
 * which target, and the vocabulary head on those rows only that carry weight. The loss is sum over
 * slots of weight * cross entropy, kept apart from the sum of the weights: whoever accumulates
 * divides once, at the end, and by nothing if nothing had weight.
 *
 *     bd_objective_weights(&batch, &canvas, NULL, weights);
 *     bd_objective_rows rows = bd_objective_rows_of(&batch, weights);
 *     bd_objective_loss(&objective, &rows, model, &tape, NULL, &result, &err);
 *     bd_tape_backward(&tape);
 *
 * Source: block-diffusion A.5, C, N-03.
 */
#ifndef BD_DIFFUSION_OBJECTIVE_H
#define BD_DIFFUSION_OBJECTIVE_H

#include "diffusion/batch.h"
#include "model/model.h"

typedef enum {
    /* One corrupted row; a block sees the blocks before it as corrupted as they are. */
    BD_TRAIN_SINGLE,
    /* The corrupted row and then the clean one: a block sees the blocks before it clean, at twice
     * the tokens. A shifted anchor reads the clean row of the token before it, as in
     * generation. */
    BD_TRAIN_DOUBLED,
    BD_TRAIN_LAYOUT_COUNT
} bd_train_layout;

const char *bd_train_layout_name(bd_train_layout layout); /* "single", "doubled" */
bool bd_train_layout_from_name(const char *name, bd_train_layout *layout, bd_error *err);

typedef struct {
    bd_alignment alignment;
    int64_t block_size; /* 0: causal attention */
    bd_train_layout layout;
    float z_loss; /* adds z_loss * logsumexp(logits)^2 to a slot's loss; 0: off */
} bd_objective;

/* The block-diffusion objective needs block-diffusion attention, and the causal objective must not
 * have it: in-block attention would show every token its target (I-10, B-33). */
bool bd_objective_check_attention(bool block_objective, bool block_attention, bd_error *err);

/* All arrays are [rows, length]; positions and segments as in bd_placement. A target of weight 0
 * may hold anything (only the doubled layout reads it: there it must be a token unless it is
 * padding). */
typedef struct {
    bd_placement placement;
    const int32_t *inputs, *targets;
    const float *weights;
} bd_objective_rows;

bd_objective_rows bd_objective_rows_of(const bd_diffusion_batch *batch, const float *weights);

/* weights [rows, length]: 1 where targets_loss_mask is set on a token that is not padding (and,
 * when shifted, not the first of its document); else 0. With `noise` [rows, length] (corruption.h)
 * a corrupted token weighs 1 / noise instead: the likelihood bound's weighting. */
void bd_objective_weights(const bd_diffusion_batch *batch, const bd_canvas *canvas,
                          const float *noise, float *weights);

typedef struct {
    double sum;        /* of weight * (cross entropy + z-loss) */
    double weight;     /* of the weights */
    double z_sum;      /* the z-loss part of sum */
    double correct;    /* of the weights where the target is the arg max */
    int64_t head_rows; /* rows the vocabulary head ran on */
} bd_objective_result;

/* Forward, and with a recording tape the gradient of `sum` up to the output rows and the head; the
 * caller walks the tape back. With no weight anywhere everything is 0. token_loss [rows, length]
 * takes each slot's cross entropy, 0 where its weight is 0; NULL: not wanted. Errors: ids outside
 * the vocabulary, weights that are negative or not finite, weight at padding, a doubled layout on a
 * model with sliding windows. */
bool bd_objective_loss(const bd_objective *objective, const bd_objective_rows *rows,
                       bd_model *model, bd_tape *tape, float *token_loss,
                       bd_objective_result *result, bd_error *err);

#endif
