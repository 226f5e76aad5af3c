#include "model/layout.h"

#include <stddef.h>
#include <stdio.h>

typedef enum { NOTHING, HIDDEN, QUERY, KEY, HEAD_SIZE, INTERMEDIATE, VOCABULARY } dimension;
typedef enum { ALWAYS, QKV_BIAS, OUTPUT_BIAS, QK_NORM } condition;

typedef struct {
    const char *name;      // after "model.layers.N."
    size_t place;          // in bd_layer
    dimension rows, width; // width NOTHING: a vector
    bd_initial initial;
    condition when;
} layer_tensor;

#define AT(field) offsetof(bd_layer, field)
static const layer_tensor layer_tensors[] = {
    {"input_layernorm.weight", AT(input_norm), HIDDEN, NOTHING, BD_INITIAL_ONE, ALWAYS},
    {"self_attn.q_proj.weight", AT(query), QUERY, HIDDEN, BD_INITIAL_NORMAL, ALWAYS},
    {"self_attn.q_proj.bias", AT(query_bias), QUERY, NOTHING, BD_INITIAL_ZERO, QKV_BIAS},
    {"self_attn.k_proj.weight", AT(key), KEY, HIDDEN, BD_INITIAL_NORMAL, ALWAYS},
    {"self_attn.k_proj.bias", AT(key_bias), KEY, NOTHING, BD_INITIAL_ZERO, QKV_BIAS},
    {"self_attn.v_proj.weight", AT(value), KEY, HIDDEN, BD_INITIAL_NORMAL, ALWAYS},
    {"self_attn.v_proj.bias", AT(value_bias), KEY, NOTHING, BD_INITIAL_ZERO, QKV_BIAS},
    {"self_attn.o_proj.weight", AT(output), HIDDEN, QUERY, BD_INITIAL_NORMAL, ALWAYS},
    {"self_attn.o_proj.bias", AT(output_bias), HIDDEN, NOTHING, BD_INITIAL_ZERO, OUTPUT_BIAS},
    {"self_attn.q_norm.weight", AT(query_norm), HEAD_SIZE, NOTHING, BD_INITIAL_ONE, QK_NORM},
    {"self_attn.k_norm.weight", AT(key_norm), HEAD_SIZE, NOTHING, BD_INITIAL_ONE, QK_NORM},
    {"post_attention_layernorm.weight", AT(post_attention_norm), HIDDEN, NOTHING, BD_INITIAL_ONE,
     ALWAYS},
    {"mlp.gate_proj.weight", AT(gate), INTERMEDIATE, HIDDEN, BD_INITIAL_NORMAL, ALWAYS},
    {"mlp.up_proj.weight", AT(up), INTERMEDIATE, HIDDEN, BD_INITIAL_NORMAL, ALWAYS},
    {"mlp.down_proj.weight", AT(down), HIDDEN, INTERMEDIATE, BD_INITIAL_NORMAL, ALWAYS},
};
#undef AT

static int64_t size_of(const bd_model_config *c, dimension d)
{
    switch (d) {
    case HIDDEN:
        return c->hidden;
    case QUERY:
        return c->query_heads * c->head_size;
    case KEY:
        return c->key_heads * c->head_size;
    case HEAD_SIZE:
        return c->head_size;
    case INTERMEDIATE:
        return c->intermediate;
    case VOCABULARY:
        return c->vocabulary;
    case NOTHING:
        break;
    }
    return 0;
}

static bool present(const bd_model_config *c, condition when)
{
    return when == ALWAYS || (when == QKV_BIAS && c->qkv_bias) ||
           (when == OUTPUT_BIAS && c->output_bias) || (when == QK_NORM && c->qk_norm);
}

typedef struct {
    const bd_model_config *config;
    bd_model_tensor *out;
    int64_t count;
} list;

static void add(list *l, int64_t layer, const layer_tensor *t)
{
    if (l->out) {
        bd_model_tensor *to = &l->out[l->count];
        *to = (bd_model_tensor){.rank = t->width == NOTHING ? 1 : 2, .initial = t->initial};
        to->shape[0] = size_of(l->config, t->rows);
        to->shape[1] = size_of(l->config, t->width);
        if (layer < 0) {
            snprintf(to->name, sizeof to->name, "%s", t->name);
            to->place = t->place;
        } else {
            snprintf(to->name, sizeof to->name, "model.layers.%lld.%s", (long long)layer, t->name);
            to->place = offsetof(bd_model, layers) + (size_t)layer * sizeof(bd_layer) + t->place;
        }
    }
    l->count++;
}

int64_t bd_model_layout(const bd_model_config *config, bd_model_tensor *out)
{
    static const layer_tensor embedding = {"model.embed_tokens.weight",
                                           offsetof(bd_model, embedding),
                                           VOCABULARY,
                                           HIDDEN,
                                           BD_INITIAL_NORMAL,
                                           ALWAYS};
    static const layer_tensor norm = {
        "model.norm.weight", offsetof(bd_model, norm), HIDDEN, NOTHING, BD_INITIAL_ONE, ALWAYS};
    static const layer_tensor head = {"lm_head.weight", offsetof(bd_model, head), VOCABULARY,
                                      HIDDEN,           BD_INITIAL_NORMAL,        ALWAYS};

    list l = {.config = config, .out = out};
    add(&l, -1, &embedding);
    for (int64_t layer = 0; layer < config->layers; layer++)
        for (size_t i = 0; i < sizeof layer_tensors / sizeof *layer_tensors; i++)
            if (present(config, layer_tensors[i].when))
                add(&l, layer, &layer_tensors[i]);
    add(&l, -1, &norm);
    if (!config->tied_head)
        add(&l, -1, &head);
    return l.count;
}
