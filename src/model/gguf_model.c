#include "model/gguf_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "format/gguf_names.h"
#include "format/gguf_tokenizer.h"
#include "format/json.h"
#include "model/layout.h"
#include "tensor/quantized.h"

// --- one tensor ----------------------------------------------------------------------------------

void bd_gguf_pair_rows(const void *source, void *target, int64_t rows, int64_t head_size,
                       size_t row_bytes, bool back)
{
    int64_t half = head_size / 2;
    for (int64_t row = 0; row < rows; row++) {
        int64_t head = row / head_size * head_size, inside = row % head_size;
        int64_t other = head + inside / 2 + (inside % 2 ? half : 0);
        const char *from = (const char *)source + (size_t)(back ? row : other) * row_bytes;
        memcpy((char *)target + (size_t)(back ? other : row) * row_bytes, from, row_bytes);
    }
}

double bd_gguf_shortest(double value)
{
    char text[40];
    for (int digits = 1; digits < 9; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if ((float)strtod(text, NULL) == (float)value)
            return strtod(text, NULL);
    }
    return value;
}

bd_gguf_type bd_gguf_tensor_type(const bd_parameter *p, const bd_gguf_type *wanted)
{
    if (p->rank != 2)
        return BD_GGUF_F32;
    return wanted                ? *wanted
           : p->dtype == BD_BF16 ? BD_GGUF_BF16
           : p->dtype == BD_F16  ? BD_GGUF_F16
                                 : BD_GGUF_F32;
}

/* The GGUF name of a tensor of a Hugging Face folder. */
static bool gguf_name(const char *name, char out[BD_GGUF_NAME])
{
    static const char *const whole[][2] = {{"model.embed_tokens.weight", "token_embd.weight"},
                                           {"model.norm.weight", "output_norm.weight"},
                                           {"lm_head.weight", "output.weight"}};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (!strcmp(name, whole[i][0])) {
            snprintf(out, BD_GGUF_NAME, "%s", whole[i][1]);
            return true;
        }
    char *part;
    if (strncmp(name, "model.layers.", 13) != 0)
        return false;
    long long layer = strtoll(name + 13, &part, 10);
    return *part == '.' && bd_gguf_layer_name(part + 1, layer, out);
}

static bool is_paired(const bd_model_config *config, const char *name)
{
    return config->family == BD_FAMILY_LLAMA &&
           (strstr(name, ".q_proj.") != NULL || strstr(name, ".k_proj.") != NULL);
}

// --- writing -------------------------------------------------------------------------------------

bool bd_gguf_check_rope(const bd_rope_config *rope, bd_error *err)
{
    if (rope->kind == BD_ROPE_LLAMA3)
        return bd_fail(err, "rope scaling \"llama3\": only yarn and linear are written to GGUF");
    if (rope->kind == BD_ROPE_YARN &&
        (rope->beta_fast != 32 || rope->beta_slow != 1 || rope->attention_factor > 0))
        return bd_fail(err,
                       "yarn with beta_fast %g, beta_slow %g, attention_factor %g: only 32, 1 and "
                       "the derived factor can be written to GGUF",
                       rope->beta_fast, rope->beta_slow, rope->attention_factor);
    return true;
}

static bool can_say(const bd_model_config *c, bd_error *err)
{
    const char *family = bd_model_family_name(c->family);
    for (int64_t i = 0; i < c->layers; i++)
        if (c->layer_window[i])
            return bd_fail(err, "layer %lld has a window: GGUF files of %s models cannot say so",
                           (long long)i, family);
    if (!bd_gguf_check_rope(&c->rope, err))
        return false;
    if (c->family == BD_FAMILY_QWEN2 && c->query_heads * c->head_size != c->hidden)
        return bd_fail(err,
                       "%lld heads of %lld are not hidden_size %lld: programs that read GGUF take "
                       "that for granted in qwen2 models",
                       (long long)c->query_heads, (long long)c->head_size, (long long)c->hidden);
    if (c->output_bias || (c->qkv_bias && c->family != BD_FAMILY_QWEN2))
        return bd_fail(err, "attention biases: GGUF files of %s models have none", family);
    return true;
}

void bd_gguf_put_dimensions(bd_gguf_out *out, const char *architecture, const bd_model_config *c)
{
    static const char *const scaling[] = {NULL, "linear", NULL, "yarn"};
    const struct {
        const char *key;
        int64_t value;
    } sizes[] = {{"block_count", c->layers},
                 {"context_length", c->max_positions},
                 {"embedding_length", c->hidden},
                 {"feed_forward_length", c->intermediate},
                 {"attention.head_count", c->query_heads},
                 {"attention.head_count_kv", c->key_heads},
                 {"attention.key_length", c->head_size},
                 {"attention.value_length", c->head_size},
                 {"rope.dimension_count", c->head_size}};
    char key[120];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(key, sizeof key, "%s.%s", architecture, sizes[i].key);
        bd_gguf_put_u32(out, key, sizes[i].value);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", architecture);
    bd_gguf_put_f32(out, key, c->norm_eps);
    snprintf(key, sizeof key, "%s.rope.freq_base", architecture);
    bd_gguf_put_f32(out, key, c->rope.theta);
    if (!scaling[c->rope.kind])
        return;
    snprintf(key, sizeof key, "%s.rope.scaling.type", architecture);
    bd_gguf_put_text(out, key, scaling[c->rope.kind]);
    snprintf(key, sizeof key, "%s.rope.scaling.factor", architecture);
    bd_gguf_put_f32(out, key, c->rope.factor);
    snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", architecture);
    if (c->rope.kind == BD_ROPE_YARN)
        bd_gguf_put_u32(out, key, (int64_t)c->rope.original_positions);
}

static int64_t file_type(bd_gguf_type type)
{
    return type == BD_GGUF_F32 ? 0 : type == BD_GGUF_F16 ? 1 : type == BD_GGUF_Q8_0 ? 7 : 32;
}

static void put_keys(bd_gguf_out *out, const bd_model *model, const bd_gguf_type *type)
{
    const bd_model_config *c = &model->config;
    const char *architecture = bd_model_family_name(c->family);
    bd_gguf_put_text(out, "general.architecture", architecture);
    bd_gguf_put_text(out, "general.type", "model");
    bd_gguf_put_u32(out, "general.file_type",
                    file_type(bd_gguf_tensor_type(model->layers[0].query, type)));
    bd_gguf_put_u32(out, "general.quantization_version", 2);
    bd_gguf_put_dimensions(out, architecture, c);
    char key[40];
    snprintf(key, sizeof key, "%s.vocab_size", architecture);
    bd_gguf_put_u32(out, key, c->vocabulary);
    if (c->diffusion.block_size > 0) { // keys that other programs pass over
        bd_gguf_put_u32(out, "bd.diffusion.block_size", c->diffusion.block_size);
        bd_gguf_put_u32(out, "bd.diffusion.mask_token_id", c->diffusion.mask_id);
        bd_gguf_put_bool(out, "bd.diffusion.shifted", c->diffusion.shifted);
    }
    if (c->stop_count > 1) {
        int32_t stops[BD_MOST_STOPS];
        for (int i = 0; i < c->stop_count; i++)
            stops[i] = (int32_t)c->stop[i];
        bd_gguf_put_i32s(out, "bd.stop_token_ids", stops, c->stop_count);
    }
}

/* Tensors whose rows were put in another order live in `copies` until the file is written. */
static bool put_tensors(bd_gguf_out *out, const bd_model *model, const bd_gguf_type *type,
                        void **copies, bd_error *err)
{
    for (int64_t i = 0; i < model->parameters.count; i++) {
        const bd_parameter *p = model->parameters.items[i];
        char name[BD_GGUF_NAME];
        if (!gguf_name(p->name, name))
            return bd_fail(err, "tensor \"%s\" has no name in GGUF files", p->name);
        const void *data = p->data;
        if (is_paired(&model->config, p->name)) {
            size_t row = (size_t)(p->count / p->shape[0]) * bd_dtype_size(p->dtype);
            copies[i] = malloc((size_t)p->shape[0] * row);
            if (!copies[i])
                return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for \"%s\"", p->name);
            bd_gguf_pair_rows(data, copies[i], p->shape[0], model->config.head_size, row, false);
            data = copies[i];
        }
        bd_gguf_put_tensor(out, name, bd_gguf_tensor_type(p, type), p->rank, p->shape, p->dtype,
                           data);
    }
    return true;
}

bool bd_model_save_gguf(const bd_model *model, const bd_tokenizer *tokenizer, const char *path,
                        const bd_gguf_type *type, bd_error *err)
{
    const bd_model_config *c = &model->config;
    bd_gguf_special special = {.bos = c->bos,
                               .eos = c->stop_count ? c->stop[0] : -1,
                               .pad = c->pad,
                               .mask = c->diffusion.block_size > 0
                                           ? c->diffusion.mask_id
                                           : bd_tokenizer_role(tokenizer, BD_ROLE_MASK)};
    bd_gguf_out *out = bd_gguf_begin();
    void **copies = calloc((size_t)model->parameters.count, sizeof *copies);
    bool ok = out && copies ? true : bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", path);
    ok = ok && can_say(c, err);
    if (ok)
        put_keys(out, model, type);
    ok = ok && bd_gguf_put_tokenizer(out, tokenizer, c->vocabulary, &special, err) &&
         put_tensors(out, model, type, copies, err);
    if (ok)
        ok = bd_gguf_commit(out, path, err);
    else
        bd_gguf_abandon(out);
    for (int64_t i = 0; copies && i < model->parameters.count; i++)
        free(copies[i]);
    free(copies);
    return ok;
}

// --- reading: the description --------------------------------------------------------------------

static bool take_scaling(const bd_gguf *file, const char *where, const char *architecture,
                         bd_model_config *c, bd_error *err)
{
    char key[120];
    snprintf(key, sizeof key, "%s.rope.scaling.type", architecture);
    const char *kind = bd_gguf_text(file, key);
    if (!kind || !strcmp(kind, "none"))
        return true;
    bool yarn = !strcmp(kind, "yarn");
    if (!yarn && strcmp(kind, "linear") != 0)
        return bd_fail(err, "%s: \"%s\" is \"%.40s\", yarn or linear expected", where, key, kind);
    c->rope.kind = yarn ? BD_ROPE_YARN : BD_ROPE_LINEAR;
    c->rope.beta_fast = 32;
    c->rope.beta_slow = 1;
    snprintf(key, sizeof key, "%s.rope.scaling.factor", architecture);
    if (!bd_gguf_number(file, key, &c->rope.factor, err))
        return false;
    c->rope.factor = bd_gguf_shortest(c->rope.factor);
    int64_t original = 0;
    snprintf(key, sizeof key, "%s.rope.scaling.original_context_length", architecture);
    if (yarn && !bd_gguf_int(file, key, 1, INT32_MAX, &original, err))
        return false;
    c->rope.original_positions = (double)original;
    return true;
}

bool bd_gguf_take_dimensions(const bd_gguf *file, const char *where, const char *architecture,
                             bd_model_config *c, bd_error *err)
{
    const struct {
        const char *key;
        int64_t *out, most;
    } sizes[] = {{"block_count", &c->layers, BD_MOST_LAYERS},
                 {"context_length", &c->max_positions, INT32_MAX},
                 {"embedding_length", &c->hidden, 1 << 20},
                 {"feed_forward_length", &c->intermediate, 1 << 24},
                 {"attention.head_count", &c->query_heads, 1 << 16},
                 {"attention.head_count_kv", &c->key_heads, 1 << 16},
                 {"attention.key_length", &c->head_size, 1 << 16}};
    char key[120];
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        snprintf(key, sizeof key, "%s.%s", architecture, sizes[i].key);
        if (!strcmp(sizes[i].key, "attention.head_count_kv") && !bd_gguf_has(file, key))
            c->key_heads = c->query_heads;
        else if (!strcmp(sizes[i].key, "attention.key_length") && !bd_gguf_has(file, key))
            c->head_size = c->hidden / c->query_heads;
        else if (!bd_gguf_int(file, key, 1, sizes[i].most, sizes[i].out, err))
            return false;
    }
    c->rope.theta = 10000;
    snprintf(key, sizeof key, "%s.rope.freq_base", architecture);
    if (bd_gguf_has(file, key) && !bd_gguf_number(file, key, &c->rope.theta, err))
        return false;
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", architecture);
    if (!bd_gguf_number(file, key, &c->norm_eps, err))
        return false;
    c->rope.theta = bd_gguf_shortest(c->rope.theta);
    c->norm_eps = bd_gguf_shortest(c->norm_eps);
    c->initializer_range = 0.02;
    c->bos = c->pad = -1;
    return take_scaling(file, where, architecture, c, err);
}

static bool take_tokens_and_diffusion(const bd_gguf *file, bd_model_config *c, bd_error *err)
{
    int64_t eos = -1, most = c->vocabulary - 1;
    if (!bd_gguf_int_if(file, "tokenizer.ggml.bos_token_id", 0, most, &c->bos, err) ||
        !bd_gguf_int_if(file, "tokenizer.ggml.eos_token_id", 0, most, &eos, err) ||
        !bd_gguf_int_if(file, "tokenizer.ggml.padding_token_id", 0, most, &c->pad, err) ||
        !bd_gguf_int_if(file, "bd.diffusion.block_size", 1, INT32_MAX, &c->diffusion.block_size,
                        err) ||
        !bd_gguf_int_if(file, "bd.diffusion.mask_token_id", 0, most, &c->diffusion.mask_id, err) ||
        !bd_gguf_bool_if(file, "bd.diffusion.shifted", &c->diffusion.shifted, err))
        return false;
    c->stop_count = eos >= 0;
    c->stop[0] = eos;
    int64_t stops = bd_gguf_ints(file, "bd.stop_token_ids");
    if (stops > 0 && stops <= BD_MOST_STOPS) {
        c->stop_count = (int)stops;
        for (int64_t i = 0; i < stops; i++)
            c->stop[i] = bd_gguf_int_at(file, "bd.stop_token_ids", i);
    }
    return true;
}

bool bd_gguf_model_config(const bd_gguf *file, const char *where, bd_model_config *c, bd_error *err)
{
    *c = (bd_model_config){.family = BD_FAMILY_COUNT};
    const char *name = bd_gguf_text(file, "general.architecture");
    for (int i = 0; name && i < BD_FAMILY_COUNT; i++)
        if (!strcmp(name, bd_model_family_name((bd_model_family)i)))
            c->family = (bd_model_family)i;
    if (c->family == BD_FAMILY_COUNT)
        return bd_fail(err,
                       "%s: \"general.architecture\" is \"%.40s\"; llama, qwen2 or qwen3 expected",
                       where, name ? name : "");
    const bd_gguf_tensor *embedding = bd_gguf_find(file, "token_embd.weight");
    if (!embedding || embedding->rank != 2)
        return bd_fail(err, "%s: tensor \"token_embd.weight\" is missing or no matrix", where);
    c->vocabulary = embedding->shape[0];
    c->dtype = bd_gguf_dtype(embedding->type);
    c->tied_head = !bd_gguf_find(file, "output.weight");
    c->qkv_bias = c->family == BD_FAMILY_QWEN2;
    c->qk_norm = c->family == BD_FAMILY_QWEN3;
    return bd_gguf_take_dimensions(file, where, name, c, err) &&
           take_tokens_and_diffusion(file, c, err) && bd_model_config_check(c, where, err);
}

// --- reading: the tensors ------------------------------------------------------------------------

/* F32 values in `dtype` where that loses nothing, else as they are. `owned` gets what is new. */
static const void *narrow(const float *values, int64_t count, bd_dtype *dtype, void **owned)
{
    void *small = malloc((size_t)count * 4);
    float *again = malloc((size_t)count * sizeof *again);
    bool same = small && again;
    if (same && *dtype != BD_F32) {
        bd_from_f32(*dtype, values, small, count);
        bd_to_f32(*dtype, small, again, count);
        same = !memcmp(values, again, (size_t)count * sizeof *again);
    } else {
        same = false;
    }
    free(again);
    if (same) {
        *owned = small;
        return small;
    }
    free(small);
    *dtype = BD_F32;
    return values;
}

static bool take_tensor(const bd_gguf *file, const char *where, const bd_model_config *c,
                        const bd_model_tensor *want, bd_tensor *out, void *owned[2], bd_error *err)
{
    char name[BD_GGUF_NAME] = "";
    gguf_name(want->name, name);
    const bd_gguf_tensor *t = bd_gguf_find(file, name);
    if (!t)
        return bd_fail(err, "%s: tensor \"%s\" is missing", where, name);
    if (t->rank != want->rank || memcmp(t->shape, want->shape, (size_t)t->rank * sizeof *t->shape))
        return bd_fail(err, "%s: tensor \"%s\" is [%lld, %lld], [%lld, %lld] expected", where, name,
                       (long long)t->shape[0], (long long)(t->rank > 1 ? t->shape[1] : 0),
                       (long long)want->shape[0], (long long)(want->rank > 1 ? want->shape[1] : 0));
    *out = (bd_tensor){.name = want->name,
                       .dtype = bd_gguf_dtype(t->type),
                       .rank = t->rank,
                       .count = t->count,
                       .data = t->data};
    memcpy(out->shape, t->shape, (size_t)t->rank * sizeof *t->shape);
    if (!bd_dtype_is_float(out->dtype))
        return bd_fail(err, "%s: tensor \"%s\" is %s, a float type expected", where, name,
                       bd_gguf_type_name(t->type));
    if (t->type == BD_GGUF_Q8_0) {
        if (!(owned[0] = malloc((size_t)t->count * sizeof(float))))
            return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", where);
        bd_q8_to_f32(t->data, owned[0], t->count);
        out->data = owned[0];
    } else if (t->rank == 1 && t->type == BD_GGUF_F32) {
        out->dtype = c->dtype;
        out->data = narrow(t->data, t->count, &out->dtype, &owned[0]);
    }
    if (is_paired(c, want->name)) {
        size_t row = (size_t)(t->count / t->shape[0]) * bd_dtype_size(out->dtype);
        if (!(owned[1] = malloc((size_t)t->shape[0] * row)))
            return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", where);
        bd_gguf_pair_rows(out->data, owned[1], t->shape[0], c->head_size, row, true);
        out->data = owned[1];
    }
    return true;
}

static bool write_tensors(const bd_gguf *file, const char *where, const bd_model_config *c,
                          const char *folder, bd_error *err)
{
    int64_t count = bd_model_layout(c, NULL);
    bd_model_tensor *layout = calloc((size_t)count, sizeof *layout);
    bd_tensor *tensors = calloc((size_t)count, sizeof *tensors);
    void *(*owned)[2] = calloc((size_t)count, sizeof *owned);
    bool ok = layout && tensors && owned ? true
                                         : bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", where);
    if (ok && count != bd_gguf_count(file))
        ok = bd_fail(err, "%s: %lld tensors, %lld expected for this architecture", where,
                     (long long)bd_gguf_count(file), (long long)count);
    if (ok)
        bd_model_layout(c, layout);
    for (int64_t i = 0; ok && i < count; i++)
        ok = take_tensor(file, where, c, &layout[i], &tensors[i], owned[i], err);
    ok = ok && bd_safetensors_write_folder(folder, tensors, count, (size_t)4 << 30, err);
    for (int64_t i = 0; owned && i < count; i++) {
        free(owned[i][0]);
        free(owned[i][1]);
    }
    free(owned);
    free(tensors);
    free(layout);
    return ok;
}

bool bd_gguf_to_folder(const char *path, const char *folder, bd_error *err)
{
    bd_model_config config;
    char config_path[BD_PATH];
    bd_gguf *file = bd_gguf_open(path, err);
    bd_tokenizer *tokenizer = NULL;
    bool ok = file && bd_gguf_model_config(file, path, &config, err) &&
              (tokenizer = bd_gguf_take_tokenizer(file, path, err)) &&
              bd_folder_make(folder, err) && write_tensors(file, path, &config, folder, err) &&
              bd_tokenizer_save(tokenizer, folder, err) &&
              bd_path_join(config_path, folder, "config.json", err);
    if (ok) {
        json_t *root = bd_model_config_to_json(&config);
        ok = bd_json_save(root, config_path, err);
        json_decref(root);
    }
    bd_tokenizer_close(tokenizer);
    bd_gguf_close(file);
    return ok;
}
