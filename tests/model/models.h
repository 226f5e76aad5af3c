/* models.h - small models and reading of golden tensors, shared by the tests of this room. */
#ifndef BD_TESTS_MODELS_H
#define BD_TESTS_MODELS_H

#include "base/file.h"
#include "check.h"
#include "model/model.h"

/* A tensor of a golden file as fp32 / int32; free() it. */
static inline float *golden_floats(const bd_safetensors *file, const char *name)
{
    bd_error err = {0};
    const bd_tensor *t = bd_safetensors_find(file, name);
    if (!t)
        fail_msg("no tensor %s", name);
    float *out = malloc((size_t)(t->count + 1) * sizeof *out);
    check_ok(bd_safetensors_read_f32(file, name, t->rank, t->shape, out, &err), err);
    return out;
}

static inline int32_t *golden_ints(const bd_safetensors *file, const char *name)
{
    bd_error err = {0};
    const bd_tensor *t = bd_safetensors_find(file, name);
    if (!t)
        fail_msg("no tensor %s", name);
    int32_t *out = malloc((size_t)(t->count + 1) * sizeof *out);
    check_ok(bd_safetensors_read_i32(file, name, t->rank, t->shape, out, &err), err);
    return out;
}

static inline bd_safetensors *golden_open(const char *path)
{
    bd_error err = {0};
    bd_safetensors *file = bd_safetensors_open(path, &err);
    check_ok(file, err);
    return file;
}

/* A description with every size different, so that a mix-up of two shows. */
static inline bd_model_config small_config(bd_model_family family)
{
    bd_model_config c = {.family = family,
                         .vocabulary = 61,
                         .hidden = 24,
                         .layers = 3,
                         .query_heads = 4,
                         .key_heads = 2,
                         .head_size = 10,
                         .intermediate = 36,
                         .max_positions = 256,
                         .norm_eps = 1e-6,
                         .initializer_range = 0.3,
                         .dtype = BD_F32,
                         .bos = -1,
                         .pad = -1};
    c.tied_head = family == BD_FAMILY_QWEN3;
    c.qkv_bias = family != BD_FAMILY_QWEN3;
    c.output_bias = family == BD_FAMILY_LLAMA;
    c.qk_norm = family == BD_FAMILY_QWEN3;
    c.rope = (bd_rope_config){.kind = BD_ROPE_DEFAULT, .theta = 10000, .factor = 1};
    return c;
}

static inline bd_model *small_model(const bd_model_config *config, bd_dtype compute)
{
    bd_error err = {0};
    bd_model *model = bd_model_create(config, 11, compute, &err);
    check_ok(model, err);
    // Biases and norms with values of their own, or the tests could not tell them apart.
    for (int64_t i = 0; i < model->parameters.count; i++) {
        bd_parameter *p = model->parameters.items[i];
        if (p->rank > 1)
            continue;
        float around = p->value[0];
        check_fill(p->value, p->count, (uint64_t)i);
        for (int64_t k = 0; k < p->count; k++)
            p->value[k] = around + 0.3f * p->value[k];
        bd_parameter_changed(p);
    }
    return model;
}

static inline void random_tokens(int32_t *tokens, int64_t count, int64_t vocabulary, uint64_t seed)
{
    uint64_t state = seed;
    for (int64_t i = 0; i < count; i++)
        tokens[i] = (int32_t)(((double)check_noise(&state) + 1) / 2 * (double)vocabulary);
}

#endif
