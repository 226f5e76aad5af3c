/* conversation_data.h - the conversations of a recipe: files, chat template, answers, end of a
 * turn.
 *
 *     bd_conversation_data data;
 *     if (!bd_conversation_data_read(recipe, "sft", tokenizer, block_size, &data, &err)) ...
 *     bd_conversation_data_sample(stderr, tokenizer, &data.train);
 *     bd_conversation_data_free(&data);
 */
#ifndef BD_CLI_CONVERSATION_DATA_H
#define BD_CLI_CONVERSATION_DATA_H

#include <stdio.h>

#include "format/recipe.h"
#include "train/conversations.h"

typedef struct {
    bd_conversation_set train, evaluation; /* evaluation.count 0: none was named */
    int32_t turn_end; /* the special token that ends the answers, -1: none does */
} bd_conversation_data;

/* Is data.train_files a list of conversations (.jsonl, perhaps packed), and not of text? */
bool bd_recipe_has_conversations(const bd_recipe *recipe);

/* data.train_files and data.eval_files with data.chat_template, which is put into the tokenizer.
 * block_size 0: no blocks. Tells on stderr how much there is and how much of it is supervised. */
bool bd_conversation_data_read(const bd_recipe *recipe, const char *command,
                               bd_tokenizer *tokenizer, int64_t block_size,
                               bd_conversation_data *out, bd_error *err);
void bd_conversation_data_free(bd_conversation_data *data);

/* The first document with its answers marked: in colour on a terminal, else in [[ ]]. */
void bd_conversation_data_sample(FILE *out, const bd_tokenizer *tokenizer,
                                 const bd_conversation_set *set);

#endif
