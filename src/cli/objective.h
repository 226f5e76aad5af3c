/* objective.h - section `objective` of a recipe: which loss, and the canvas of block diffusion.
 *
 *     if (!bd_objective_resolve(recipe, "pretrain", tokenizer, config, &objective, &err)) ...
 *     model = ...;
 *     if (!bd_objective_fit(&objective, tokenizer, model, &err)) ...        // a row for the mask
 * token
 */
#ifndef BD_CLI_OBJECTIVE_H
#define BD_CLI_OBJECTIVE_H

#include "format/recipe.h"
#include "format/tokenizer.h"
#include "train/document_task.h"

typedef struct {
    bd_canvas canvas; /* block_size 0: causal_lm */
    bool new_mask;    /* the mask token was added to the tokenizer */
    const char *mask_origin;
} bd_objective_choice;

/* Blocks, contract and mask token. `start` is the configuration of the model that training starts
 * from, NULL for a new one: what the recipe leaves open, a block-diffusion model decides. The mask
 * token is, in this order: objective.mask_id, the model's own, the tokenizer's mask token, a token
 * spelled <|mask|>, <mask> or [MASK], or a new one, <|mask|>. */
bool bd_objective_resolve(const bd_recipe *recipe, const char *command, bd_tokenizer *tokenizer,
                          const bd_model_config *start, bd_objective_choice *out, bd_error *err);

/* Give a mask token that was added a row, the mean of the rows of the `old_tokens` that the
 * tokenizer had before (0: a new model, whose random row stays as it is); warn of a row that looks
 * untrained. */
bool bd_objective_fit(const bd_objective_choice *choice, const char *command, int64_t old_tokens,
                      bd_model *model, bd_error *err);

/* The fields of the task that a recipe decides; documents, model and output are the caller's. */
bool bd_objective_options(const bd_recipe *recipe, const bd_objective_choice *choice,
                          const bd_tokenizer *tokenizer, bd_document_task_options *options,
                          bd_error *err);

#endif
