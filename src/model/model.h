/* model.h - the transformer: Llama, Qwen2 and Qwen3 families from one description.
 *
 * A bd_model is weights and a description; it is the same for training and for generation. One
 * forward pass serves both: it runs on a tape, over whole rows under a visibility rule, or over new
 * tokens against a KV cache. Weights are mapped from the folder and packed once.
 *
 *     bd_model *m = bd_model_open("Qwen3-0.6B", BD_BF16, &err);
 *     bd_cache *cache = bd_cache_create(m, 4096, &err);
 *     bd_tape tape = bd_tape_begin(arena, m->compute, false);
 *     bd_value *h = bd_model_forward(m, &tape, &(bd_forward){.tokens = ids, .rows = 1, .length = n,
 *                                                            .cache = cache});
 *     bd_model_logits(m, h->data + (n - 1) * H, 1, logits, arena);
 */
#ifndef BD_MODEL_MODEL_H
#define BD_MODEL_MODEL_H

#include "autograd/tape.h"
#include "format/model_config.h"
#include "format/safetensors.h"

typedef struct bd_model bd_model;

/* Everything one transformer layer needs; also used by the drafts' backbone. */
typedef struct {
    bd_parameter *input_norm, *post_attention_norm;
    bd_parameter *query, *key, *value, *output;                     /* projections [out, in] */
    bd_parameter *query_bias, *key_bias, *value_bias, *output_bias; /* NULL: none */
    bd_parameter *query_norm, *key_norm;                            /* NULL: none */
    bd_parameter *gate, *up, *down;
    bd_parameter *sink; /* drafts only */
} bd_layer;

struct bd_model {
    bd_model_config config;
    bd_dtype compute;
    bool recompute; /* training keeps each layer's input only and runs the layer again on the way
                     * back: the same bits, a third more arithmetic, a fraction of the memory */
    bd_rope rope;
    bd_parameter *embedding, *norm, *head; /* head == embedding when tied */
    bd_layer layers[BD_MOST_LAYERS];
    bd_parameters parameters; /* all, in file order */
    bd_safetensors *file;     /* where mapped weights live; NULL when made from scratch */
    char *folder;             /* NULL when made from scratch */
    void *owned;              /* storage of names and parameter structs */
};

/* Open a Hugging Face folder. compute: what products round their inputs to (BD_Q8_0: a model that
 * stays frozen, its matrices in blocks of int8). Missing, extra or
 * misshaped tensors, an unknown architecture or semantics: an error naming all of them. */
bd_model *bd_model_open(const char *folder, bd_dtype compute, bd_error *err);

/* New weights: matrices N(0, initializer_range) from (seed, BD_STREAM_INITIAL), norms 1, biases 0.
 */
bd_model *bd_model_create(const bd_model_config *config, uint64_t seed, bd_dtype compute,
                          bd_error *err);
void bd_model_close(bd_model *model);

/* config.json and safetensors in the given dtype (atomic as a folder is the caller's matter). */
bool bd_model_save(const bd_model *model, const char *folder, bd_dtype dtype, bd_error *err);

bool bd_model_train(bd_model *model, bd_error *err); /* all weights trainable, with gradients */
int64_t bd_model_parameter_count(const bd_model *model);

/* SHA-256 over names, shapes and values of all tensors: what a draft or a cache was made for. */
bool bd_model_fingerprint(const bd_model *model, char out[65], bd_error *err);

/* --- KV cache ------------------------------------------------------------------------------------
 */

typedef struct bd_cache {
    int64_t layers, capacity, length, width; /* width = key_heads * head_size */
    float **key, **value;                    /* [layers] of [capacity, width] */
    void *owned;
} bd_cache;

bd_cache *bd_cache_create(const bd_model *model, int64_t capacity, bd_error *err);
void bd_cache_free(bd_cache *cache);
void bd_cache_truncate(bd_cache *cache, int64_t length); /* cut back to the first `length` tokens */

/* --- forward -------------------------------------------------------------------------------------
 */

/* Hidden states of chosen layers. hidden/0 is the embedding output, hidden/i the residual stream
 * after layer i-1. `tap i` of a draft means hidden/(i+1). Filled side by side: [rows*length,
 * count*hidden]. */
typedef struct {
    const int64_t
        *layers; /* indices into hidden/0 .. hidden/num_layers; the last is after the norm */
    int64_t count;
    float *out;
} bd_hidden_request;

typedef struct {
    const int32_t *tokens; /* [rows, length] */
    int64_t rows, length;
    const int32_t *positions;  /* [rows, length]; NULL: 0.. (after the cache's length) */
    const bd_visibility *rule; /* NULL: causal. Layers with a window stay causal sliding */
    bd_cache *const *caches;   /* [rows] of as many sequences, each as long as it is; new keys and
                                * values are appended to each row's own; NULL: none. rule NULL */
    bd_arena *const *scratch;  /* [rows] beside caches, none of them the tape's: each row asks its
                                * own cache, on any thread */
    bd_cache *cache;           /* the same for a single row, under any rule */
    bd_hidden_request *hidden; /* NULL: none */
    float *prenorm;            /* [rows*length, H]: before the final norm; NULL: not wanted */
} bd_forward;

/* Output of the final norm, [rows * length, H]. */
bd_value *bd_model_forward(bd_model *model, bd_tape *tape, const bd_forward *input);

/* logits [rows, V] = hidden [rows, H] @ head^T. Batch-invariant. */
void bd_model_logits(bd_model *model, const float *hidden, int64_t rows, float *logits,
                     bd_arena *scratch);

/* down(silu(gate h) * up h): the inner part of a layer's MLP, on normed rows. */
bd_value *bd_layer_swiglu(bd_tape *tape, const bd_layer *layer, bd_value *h);

/* One layer's MLP half: x + bd_layer_swiglu(norm(x)). Shared with drafts. */
bd_value *bd_layer_mlp(bd_tape *tape, const bd_layer *layer, bd_value *x, float eps);

#endif
