/* model_config.h - what a model's config.json says, understood or refused.
 *
 * Llama, Qwen2 and Qwen3 are one description: the family decides q/k norms and qkv biases, the rest
 * are numbers. A field whose meaning bdlm does not know and that would change the computation (rope
 * scaling of an unknown type, experts, partial rotary, ...) is refused by name, never ignored.
 * Old and new spellings are read: rope_theta flat or in rope_parameters, torch_dtype or dtype.
 */
#ifndef BD_FORMAT_MODEL_CONFIG_H
#define BD_FORMAT_MODEL_CONFIG_H

#include <jansson.h>

#include "base/error.h"
#include "tensor/dtype.h"

enum { BD_MOST_LAYERS = 256, BD_MOST_STOPS = 16 };

typedef enum { BD_FAMILY_LLAMA, BD_FAMILY_QWEN2, BD_FAMILY_QWEN3, BD_FAMILY_COUNT } bd_model_family;

typedef enum { BD_ROPE_DEFAULT, BD_ROPE_LINEAR, BD_ROPE_LLAMA3, BD_ROPE_YARN } bd_rope_kind;

typedef struct {
    bd_rope_kind kind;
    double theta, factor;
    double low_frequency_factor, high_frequency_factor, original_positions; /* llama3, yarn */
    double beta_fast, beta_slow, attention_factor;                          /* yarn; 0: derived */
} bd_rope_config;

typedef struct {
    bd_model_family family;
    int64_t vocabulary, hidden, layers, query_heads, key_heads, head_size, intermediate;
    int64_t max_positions;
    double norm_eps, initializer_range;
    bool tied_head, qkv_bias, output_bias, qk_norm;
    bd_rope_config rope;
    /* 0: full attention; else a query sees itself and the window - 1 tokens before it */
    int64_t layer_window[BD_MOST_LAYERS];
    bd_dtype dtype;              /* torch_dtype: what the folder is saved in */
    int64_t bos, pad;            /* -1: none */
    int64_t stop[BD_MOST_STOPS]; /* eos_token_id, one or a list */
    int stop_count;
    /* "block_diffusion": {...} in config.json, written by bdlm; block_size 0: a causal model. */
    struct {
        int64_t block_size, mask_id;
        bool shifted; /* contract: shifted + seed_and_mask, or same_position + all_masked */
    } diffusion;
} bd_model_config;

bool bd_model_config_read(const char *path, bd_model_config *config, bd_error *err);
json_t *bd_model_config_to_json(const bd_model_config *config); /* a config.json others load */

/* The same from an object already read, whatever its "architectures" says: for configurations that
 * extend a family. `known` lists the fields the caller understands itself, NULL at the end; they
 * are not refused. NULL: none. `where` names the file. */
bool bd_model_config_parse(json_t *root, const char *where, const char *const *known,
                           bd_model_config *config, bd_error *err);

const char *bd_model_family_name(bd_model_family family); /* "qwen3", as in model_type */
bool bd_model_config_check(const bd_model_config *config, const char *where, bd_error *err);

/* inverse_frequency[head_size / 2], and the factor on cos and sin (1 unless the kind is yarn). */
void bd_rope_frequencies(const bd_rope_config *rope, int64_t head_size, double *inverse_frequency,
                         float *factor);

#endif
