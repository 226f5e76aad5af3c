/* new_model.h - a model from the sizes in a recipe's section `model`. */
#ifndef BD_CLI_NEW_MODEL_H
#define BD_CLI_NEW_MODEL_H

#include "format/recipe.h"
#include "format/tokenizer.h"
#include "model/model.h"

/* Random weights from train.seed. The vocabulary is model.vocab_size or the tokenizer's size
 * rounded up to 64 rows; stop, begin and padding tokens are the tokenizer's. tokenizer may be NULL.
 */
bd_model *bd_new_model(const bd_recipe *recipe, const bd_tokenizer *tokenizer, bd_dtype compute,
                       bd_error *err);

#endif
