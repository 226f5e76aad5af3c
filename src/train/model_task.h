/* model_task.h - what every task that trains a whole model shares: its contract and its files.
 *
 *     bd_model_output output = {.save_dtype = BD_F32, .start = hash, .companions = "models/a"};
 *     bd_model_task_identity(model, &output, contract, &err);
 *     bd_model_task_save(model, &output, folder, &err);
 */
#ifndef BD_TRAIN_MODEL_TASK_H
#define BD_TRAIN_MODEL_TASK_H

#include "format/tokenizer.h"
#include "model/model.h"
#include "train/contract.h"

typedef struct {
    bd_dtype save_dtype;    /* of saved weights: BD_F32, BD_BF16 or BD_F16 */
    const char *start;      /* what the weights were before training: the hash of a folder, a seed;
                               NULL: not told */
    const char *companions; /* folder whose tokenizer files are saved beside the weights; or NULL */
    const bd_tokenizer *tokenizer; /* saved over these: it got a token that they lack; or NULL */
} bd_model_output;

bool bd_model_output_check(const bd_model_output *output, bd_error *err);

/* The fields "vocab_size", "start", "save_dtype" and "model_config", a hash. */
bool bd_model_task_identity(const bd_model *model, const bd_model_output *output,
                            bd_contract *contract, bd_error *err);

/* A model folder that other tools load, with its tokenizer. */
bool bd_model_task_save(const bd_model *model, const bd_model_output *output, const char *folder,
                        bd_error *err);

#endif
