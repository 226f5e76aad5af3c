/* token_loss.h - the loss of prepared token rows, as a task reports it.
 *
 * Every task on token rows ends here: causal pretraining, block diffusion, fine-tuning. What
 * differs is how inputs, targets, weights and positions are prepared; the loss is the objective's
 * weighted sum.
 *
 *     bd_objective causal = {.alignment = BD_SAME_POSITION};        // targets are shifted already
 *     bd_objective_rows rows = {{B, L, NULL, NULL}, inputs, targets, weights};
 *     bd_token_loss(&causal, &rows, model, tape, &loss, &err);      // and gradients, if it records
 */
#ifndef BD_TRAIN_TOKEN_LOSS_H
#define BD_TRAIN_TOKEN_LOSS_H

#include "diffusion/objective.h"
#include "train/task.h"

/* loss->loss: sum of weights * losses, sum of weights; metrics: "accuracy", and "z_loss" if it is
 * on; tokens: slots that are not padding. A recording tape is walked back: gradients of the sum are
 * added to the model's parameters. Errors are those of bd_objective_loss. */
bool bd_token_loss(const bd_objective *objective, const bd_objective_rows *rows, bd_model *model,
                   bd_tape *tape, bd_loss *loss, bd_error *err);

/* loss += part, also metric by metric (the same ones in the same order): one evaluation over many
 * batches. `loss` starts as {0}. */
void bd_loss_add(bd_loss *loss, const bd_loss *part);

/* The rows as a case for `bdlm probe`: FOLDER/batch.json, FOLDER/batch.safetensors and the model as
 * it is now in FOLDER/models/current. The folder exists. */
bool bd_token_rows_save(const bd_objective *objective, const bd_objective_rows *rows,
                        const bd_model *model, const char *folder, bd_error *err);

#endif
