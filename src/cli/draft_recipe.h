/* draft_recipe.h - from a recipe to a drafter's training: target, text or hidden states, draft,
 * task.
 *
 *     bd_draft_data data = {0};
 *     bd_draft_training training = {0};
 *     if (!bd_draft_data_open(recipe, &data, &err) ||
 *         !bd_draft_training_make(recipe, &data, &training, &err)) ...
 *     bd_train(&training.task, ...);
 */
#ifndef BD_CLI_DRAFT_RECIPE_H
#define BD_CLI_DRAFT_RECIPE_H

#include "base/file.h"
#include "format/corpus.h"
#include "format/recipe.h"
#include "train/draft_task.h"
#include "train/states_cache.h"
#include "train/stream.h"

/* What several drafts may be trained on. */
typedef struct {
    bd_tokenizer *tokenizer;
    bd_model *target;
    bd_corpus corpus;        /* online, streaming */
    bd_states_cache *cache;  /* offline */
    bd_states_source source; /* self NULL: online */
    const int32_t *tokens;   /* of either; token_count, in rows of `length` */
    int64_t token_count, length;
} bd_draft_data;

/* The mode follows from the recipe: data.cache is offline; with data.train_files, data.listen is
 * streaming; else online. */
bool bd_draft_data_open(const bd_recipe *recipe, bd_draft_data *data, bd_error *err);
void bd_draft_data_close(bd_draft_data *data);

typedef struct {
    bd_draft *draft;
    bd_task task;
    bd_states_stream *stream; /* NULL: none of its own */
    bd_states_source source;
    int64_t rows, held_out; /* of the data: for training, for evaluation behind them */
    bd_parameters trained;  /* without those of draft.freeze; items NULL: all */
    char start[BD_PATH + 16];
} bd_draft_training;

/* `data` outlives the training, which stays where it is (the task points into it). resumed: the
 * checkpoint that the run will go on from, NULL: none. */
bool bd_draft_training_make(const bd_recipe *recipe, const bd_draft_data *data, const char *resumed,
                            bd_draft_training *training, bd_error *err);
/* finished: producers are told that it is over, and do not wait for the run to go on. */
void bd_draft_training_free(bd_draft_training *training, bool finished);

#endif
