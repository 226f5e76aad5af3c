/* model_config_family.h - what tells the families apart, for the files that read and write
 * config.json. */
#ifndef BD_FORMAT_MODEL_CONFIG_FAMILY_H
#define BD_FORMAT_MODEL_CONFIG_FAMILY_H

#include "format/model_config.h"

typedef struct {
    const char *name, *architecture;
    bool qk_norm;
    bool fixed_bias; /* q, k and v have biases whatever attention_bias says, the output has none */
    bool sliding;    /* sliding_window and layer_types are part of the family */
    int64_t positions; /* max_position_embeddings where a configuration leaves it out */
} bd_family;

extern const bd_family bd_families[BD_FAMILY_COUNT];

enum { BD_ROPE_KINDS = BD_ROPE_YARN + 1 };
extern const char *const bd_rope_names[BD_ROPE_KINDS];

enum { BD_SAVED_DTYPES = 3 };
extern const struct bd_saved_dtype {
    const char *name;
    bd_dtype dtype;
} bd_saved_dtypes[BD_SAVED_DTYPES];

/* The largest size of one dimension: products of two fit comfortably into 63 bits. */
#define BD_MOST_SIZE ((int64_t)1 << 28)

#endif
