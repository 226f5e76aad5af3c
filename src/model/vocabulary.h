/* vocabulary.h - more rows for a model's embedding and head: a token that its vocabulary lacked.
 *
 *     int32_t mask = bd_tokenizer_add(tokenizer, "<|mask|>", true, &err);
 *     if (mask >= model->config.vocabulary && !bd_model_grow_vocabulary(model, mask + 1, &err)) ...
 *     bd_model_mean_token(model, mask, old_size);
 */
#ifndef BD_MODEL_VOCABULARY_H
#define BD_MODEL_VOCABULARY_H

#include "model/model.h"

/* Make the embedding, and the head if it is separate, `vocabulary` rows long; new rows are the mean
 * of the old ones. The model's other tensors stay where they are. For a model that is not trained
 * yet: gradients and panels are dropped. */
bool bd_model_grow_vocabulary(bd_model *model, int64_t vocabulary, bd_error *err);

/* Set row `token` to the mean of the first `rows` rows, in the embedding and in a separate head.
 * A row that no token has used holds whatever it was initialised with; the mean is where an unknown
 * token is likeliest to stand, and its logit is an average one. */
bool bd_model_mean_token(bd_model *model, int64_t token, int64_t rows, bd_error *err);

#endif
