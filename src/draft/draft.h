/* draft.h - a drafter: its weights, its description, and the target it belongs to.
 *
 * A draft has no embedding and no output head: it reads and writes tokens with its target's, which
 * stay as they are. A folder holds config.json and model.safetensors with exactly the names of
 * draft-family 2.6; a training checkpoint's prefix "dflash_module." is taken off when reading.
 *
 *     bd_draft *draft = bd_draft_open("Qwen3-0.6B-DFlash", target, BD_BF16, &err);
 *     bd_draft *fresh = bd_draft_create(&config, target, seed, BD_BF16, &err);
 *     if (!bd_draft_train(fresh, &err) ...
 *     if (!bd_draft_save(fresh, "out", BD_BF16, &err)) ...
 *     bd_draft_close(draft);
 */
#ifndef BD_DRAFT_DRAFT_H
#define BD_DRAFT_DRAFT_H

#include "draft/draft_config.h"
#include "model/layout.h"

typedef struct bd_draft {
    bd_draft_config config;
    bd_model *target; /* not owned; outlives the draft */
    bd_dtype compute; /* what the inputs of products are rounded to */
    bd_rope rope;
    const float *mask_row; /* [H] in place of the mask token's embedding; NULL: the target's row */
    bd_parameter *fc, *hidden_norm, *norm;
    bd_layer *layers;                    /* [config.stack.layers] */
    struct bd_convolution *convolutions; /* [2 * layers]: attention, MLP; NULL: none */
    void *head;                          /* the variant's own parameters; NULL: it has none */
    bd_parameters parameters;            /* all, in file order */
    bd_safetensors *file; /* where mapped weights live; NULL when made from scratch */
    bd_arena *owned;      /* names, parameter structs, the rotary table */
} bd_draft;

/* Open a folder for this target. Missing, unexpected or misshaped tensors: an error that lists
 * them. */
bd_draft *bd_draft_open(const char *folder, bd_model *target, bd_dtype compute, bd_error *err);

/* The same under a configuration that need not be the folder's. An embedding or head in the file is
 * left out without asking whether it is the target's; `draft->file` has it. */
bd_draft *bd_draft_open_as(const bd_draft_config *config, const char *folder, bd_model *target,
                           bd_dtype compute, bd_error *err);

/* Has the tensor the shape and the very values of a parameter? */
bool bd_draft_repeats(const bd_tensor *tensor, const bd_parameter *own);

/* New weights from (seed, BD_STREAM_INITIAL): matrices N(0, initializer_range), norms 1, biases and
 * sinks 0. The configuration must be complete (bd_draft_config_complete). */
bd_draft *bd_draft_create(const bd_draft_config *config, bd_model *target, uint64_t seed,
                          bd_dtype compute, bd_error *err);
void bd_draft_close(bd_draft *draft);

/* Take over the weights of another draft of the same shapes, before training: a folder, or a
 * .safetensors file. The draft is one of bd_draft_create. The target's embedding and head, which
 * some files repeat, are left out. Nothing is changed on failure (draft-family 2.8). */
bool bd_draft_load(bd_draft *draft, const char *path, bd_error *err);

bool bd_draft_train(bd_draft *draft,
                    bd_error *err); /* all weights trainable, with zero gradients */

/* config.json and model.safetensors, values converted to dtype; both files are written atomically.
 */
bool bd_draft_save(const bd_draft *draft, const char *folder, bd_dtype dtype, bd_error *err);

/* Tensors and values a draft of this description has, without making it. */
void bd_draft_size(const bd_draft_config *config, int64_t *tensors, int64_t *values);

/* Does it say how sure it is of each token (DSpark with a confidence head)? */
bool bd_draft_has_confidence(const bd_draft *draft);

/* Width of one token's features: one hidden state per tap. */
int64_t bd_draft_feature_width(const bd_draft *draft);

/* The hidden states the target has to keep for this draft: tap i is hidden/(i + 1). */
void bd_draft_request(const bd_draft *draft, int64_t layers[BD_MOST_TAPS]);

/* How large the mask token's embedding is beside the median row of the target's, which the draft
 * reads in most slots. Under 0.01 it is worth a warning: the row was never trained (decision 15).
 */
double bd_draft_mask_norm_ratio(const bd_model *target, int64_t mask_id, bd_arena *scratch);

/* --- for variants: listing tensors ------------------------------------------------------------ */

typedef struct bd_draft_builder bd_draft_builder;

/* One more tensor: where its parameter goes, how it starts, its shape (sizes after `rank`, as
 * int64_t) and its name in the file, printf-style. */
void bd_draft_builder_add(bd_draft_builder *builder, bd_parameter **place, bd_initial initial,
                          int rank, const int64_t *shape, const char *format, ...)
    __attribute__((format(printf, 6, 7)));

#endif
