#include "format/model_config.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "format/json.h"
#include "format/model_config_family.h"

// --- fields that change the computation in ways bdlm does not implement ------------------------

/* OFF: harmless when null, false, 0 or empty. ONE: harmless when null or 1. */
typedef enum { OFF, ONE } harmless;

static const struct {
    const char *name;
    harmless when;
} refused_fields[] = {
    // mixtures of experts, layers of another kind, extra prediction layers
    {"num_experts", OFF},
    {"num_local_experts", OFF},
    {"n_routed_experts", OFF},
    {"n_shared_experts", OFF},
    {"moe_intermediate_size", OFF},
    {"full_attention_interval", OFF},
    {"hybrid_layer_pattern", OFF},
    {"linear_num_key_heads", OFF},
    {"num_nextn_predict_layers", OFF},
    {"mtp_num_hidden_layers", OFF},
    {"num_mtp_layers", OFF},
    // positions
    {"partial_rotary_factor", ONE},
    {"rotary_pct", ONE},
    {"rotary_dim", OFF},
    {"rope_interleaved", OFF},
    {"rope_traditional", OFF},
    {"no_rope_layers", OFF},
    {"no_rope_layer_interval", OFF},
    {"alibi", OFF},
    // attention
    {"attn_logit_softcapping", OFF},
    {"query_pre_attn_scalar", OFF},
    {"attention_multiplier", OFF},
    {"attention_value_scale", ONE},
    {"attention_chunk_size", OFF},
    {"attention_sink_bias", OFF},
    {"attn_output_gate", OFF},
    {"attn_temperature_tuning", OFF},
    {"clip_qkv", OFF},
    {"kv_lora_rank", OFF},
    {"q_lora_rank", OFF},
    {"v_head_dim", OFF},
    {"sliding_window_pattern", OFF},
    {"use_bidirectional_attention", OFF},
    {"add_cross_attention", OFF},
    {"is_encoder_decoder", OFF},
    // scales and biases
    {"final_logit_softcapping", OFF},
    {"logit_scale", ONE},
    {"logits_scaling", ONE},
    {"embedding_multiplier", ONE},
    {"residual_multiplier", ONE},
    {"scale_emb", ONE},
    {"scale_depth", OFF},
    {"dim_model_base", OFF},
    {"mlp_bias", OFF},
    {"use_parallel_residual", OFF},
    // another model around or below this one
    {"text_config", OFF},
    {"vision_config", OFF},
    {"audio_config", OFF},
    {"quantization_config", OFF},
    {"compression_config", OFF},
    // a drafter, not a model of its own
    {"dflash_config", OFF},
};

static bool is_harmless(const json_t *value, harmless when)
{
    if (json_is_null(value))
        return true;
    if (when == ONE)
        return json_is_number(value) && json_number_value(value) == 1;
    return json_is_false(value) || (json_is_number(value) && json_number_value(value) == 0) ||
           (json_is_array(value) && json_array_size(value) == 0) ||
           (json_is_object(value) && json_object_size(value) == 0);
}

static bool is_listed(const char *const *names, const char *name)
{
    for (; names && *names; names++)
        if (!strcmp(*names, name))
            return true;
    return false;
}

static bool refuse_unknown_meanings(json_t *root, const char *where, const char *const *known,
                                    bd_error *err)
{
    char words[BD_JSON_WORDS];
    for (size_t i = 0; i < sizeof refused_fields / sizeof refused_fields[0]; i++) {
        const char *name = refused_fields[i].name;
        json_t *value = json_object_get(root, name);
        if (value && !is_listed(known, name) && !is_harmless(value, refused_fields[i].when))
            return bd_fail(err, "%s: \"%s\" is %s: bdlm does not compute this; %s expected", where,
                           name, bd_json_describe(value, words),
                           refused_fields[i].when == ONE ? "1 or no such field"
                                                         : "false, 0 or no such field");
    }
    // Here it is "false" that changes the computation.
    if (json_is_false(json_object_get(root, "is_causal")) && !is_listed(known, "is_causal"))
        return bd_fail(err, "%s: \"is_causal\" is false: bdlm does not compute this", where);
    return true;
}

// --- family and activation ---------------------------------------------------------------------

static bool read_family(json_t *root, const char *where, bd_model_config *config, bd_error *err)
{
    const char *name = bd_json_text(root, where, "model_type", err);
    if (!name)
        return false;
    for (int i = 0; i < BD_FAMILY_COUNT; i++)
        if (!strcmp(name, bd_families[i].name)) {
            config->family = (bd_model_family)i;
            return true;
        }
    char names[200] = "";
    for (int i = 0; i < BD_FAMILY_COUNT; i++) {
        size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, i ? ", %s" : "%s", bd_families[i].name);
    }
    return bd_fail(err, "%s: \"model_type\" is \"%.60s\", one of %s expected", where, name, names);
}

static bool check_architecture(json_t *root, const char *where, const bd_model_config *config,
                               bd_error *err)
{
    if (!bd_json_has(root, "architectures"))
        return true;
    json_t *list = bd_json_array(root, where, "architectures", err);
    if (!list)
        return false;
    const char *name = json_string_value(json_array_get(list, 0));
    if (json_array_size(list) == 1 && name &&
        !strcmp(name, bd_families[config->family].architecture))
        return true;
    return bd_fail(err, "%s: \"architectures\" is [\"%.60s\"%s], [\"%s\"] expected%s", where,
                   name ? name : "?", json_array_size(list) > 1 ? ", ..." : "",
                   bd_families[config->family].architecture,
                   json_object_get(root, "dflash_config")
                       ? " (this folder holds a drafter, not a model of its own)"
                       : "");
}

static bool check_activation(json_t *root, const char *where, bd_error *err)
{
    if (!bd_json_has(root, "hidden_act"))
        return true;
    const char *name = bd_json_text(root, where, "hidden_act", err);
    if (!name)
        return false;
    if (strcmp(name, "silu") && strcmp(name, "swish"))
        return bd_fail(err, "%s: \"hidden_act\" is \"%.60s\", \"silu\" expected", where, name);
    return true;
}

// --- sizes and numbers -------------------------------------------------------------------------

static bool read_sizes(json_t *root, const char *where, bd_model_config *config, bd_error *err)
{
    const bd_family *family = &bd_families[config->family];
    if (!bd_json_int(root, where, "vocab_size", 1, BD_MOST_SIZE, &config->vocabulary, err) ||
        !bd_json_int(root, where, "hidden_size", 1, BD_MOST_SIZE, &config->hidden, err) ||
        !bd_json_int(root, where, "num_hidden_layers", 1, BD_MOST_LAYERS, &config->layers, err) ||
        !bd_json_int(root, where, "num_attention_heads", 1, BD_MOST_SIZE, &config->query_heads,
                     err) ||
        !bd_json_int(root, where, "intermediate_size", 1, BD_MOST_SIZE, &config->intermediate, err))
        return false;
    config->key_heads = config->query_heads;
    config->max_positions = family->positions;
    if (!bd_json_int_if(root, where, "num_key_value_heads", 1, BD_MOST_SIZE, &config->key_heads,
                        err) ||
        !bd_json_int_if(root, where, "head_dim", 1, BD_MOST_SIZE, &config->head_size, err) ||
        !bd_json_int_if(root, where, "max_position_embeddings", 1, INT32_MAX,
                        &config->max_positions, err))
        return false;
    if (config->head_size == 0) {
        if (config->hidden % config->query_heads)
            return bd_fail(err,
                           "%s: \"head_dim\" is missing, and hidden_size %lld is not a multiple of "
                           "num_attention_heads %lld",
                           where, (long long)config->hidden, (long long)config->query_heads);
        config->head_size = config->hidden / config->query_heads;
    }
    config->norm_eps = 1e-6;
    config->initializer_range = 0.02;
    return bd_json_number_if(root, where, "rms_norm_eps", 0, 1, &config->norm_eps, err) &&
           bd_json_number_if(root, where, "initializer_range", 0, 100, &config->initializer_range,
                             err);
}

/* Some programs write down whether queries and keys are normed; it must be what the family does. */
static bool check_qk_norm(json_t *root, const char *where, bool normed, bd_error *err)
{
    static const char *const names[] = {"use_qk_norm", "qk_norm", "qk_layernorm"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        bool given = normed;
        if (!bd_json_bool_if(root, where, names[i], &given, err))
            return false;
        if (given != normed)
            return bd_fail(err, "%s: \"%s\" is %s, which models of this family never have", where,
                           names[i], given ? "true" : "false");
    }
    return true;
}

static bool read_switches(json_t *root, const char *where, bd_model_config *config, bd_error *err)
{
    const bd_family *family = &bd_families[config->family];
    bool bias = false;
    if (!bd_json_bool_if(root, where, "tie_word_embeddings", &config->tied_head, err) ||
        !bd_json_bool_if(root, where, "attention_bias", &bias, err) ||
        !check_qk_norm(root, where, family->qk_norm, err))
        return false;
    config->qk_norm = family->qk_norm;
    config->qkv_bias = family->fixed_bias || bias;
    config->output_bias = !family->fixed_bias && bias;
    return true;
}

static bool read_dtype(json_t *root, const char *where, bd_model_config *config, bd_error *err)
{
    const char *field = bd_json_has(root, "torch_dtype") ? "torch_dtype" : "dtype";
    config->dtype = BD_F32;
    if (!bd_json_has(root, field))
        return true;
    const char *name = bd_json_text(root, where, field, err);
    if (!name)
        return false;
    const char *plain = !strncmp(name, "torch.", 6) ? name + 6 : name;
    for (int i = 0; i < BD_SAVED_DTYPES; i++)
        if (!strcmp(plain, bd_saved_dtypes[i].name)) {
            config->dtype = bd_saved_dtypes[i].dtype;
            return true;
        }
    return bd_fail(err, "%s: \"%s\" is \"%.60s\", one of float32, bfloat16, float16 expected",
                   where, field, name);
}

static bool read_token_ids(json_t *root, const char *where, bd_model_config *config, bd_error *err)
{
    config->bos = config->pad = -1;
    int64_t last = config->vocabulary - 1;
    if (!bd_json_int_if(root, where, "bos_token_id", -1, last, &config->bos, err) ||
        !bd_json_int_if(root, where, "pad_token_id", -1, last, &config->pad, err))
        return false;
    json_t *stop = json_object_get(root, "eos_token_id");
    if (!json_is_array(stop)) {
        config->stop[0] = -1;
        if (!bd_json_int_if(root, where, "eos_token_id", -1, last, &config->stop[0], err))
            return false;
        config->stop_count = config->stop[0] >= 0;
        return true;
    }
    if (json_array_size(stop) > BD_MOST_STOPS)
        return bd_fail(err, "%s: \"eos_token_id\" lists %zu ids, at most %d expected", where,
                       json_array_size(stop), BD_MOST_STOPS);
    config->stop_count = (int)json_array_size(stop);
    for (int i = 0; i < config->stop_count; i++) {
        json_t *id = json_array_get(stop, (size_t)i);
        config->stop[i] = json_is_integer(id) ? json_integer_value(id) : -1;
        if (config->stop[i] < 0 || config->stop[i] > last)
            return bd_fail(err, "%s: \"eos_token_id\"[%d]: an id from 0 to %lld expected", where, i,
                           (long long)last);
    }
    return true;
}

// --- rotary positions --------------------------------------------------------------------------

static bool read_rope_kind(json_t *scaling, const char *where, bd_rope_config *rope, bd_error *err)
{
    const char *field = bd_json_has(scaling, "rope_type") ? "rope_type" : "type";
    if (!bd_json_has(scaling, field))
        return json_object_size(scaling) == 0 || bd_json_has(scaling, "rope_theta") ||
               bd_fail(err, "%s: \"rope_type\" is missing, a text expected", where);
    const char *name = bd_json_text(scaling, where, field, err);
    if (!name)
        return false;
    for (int i = 0; i < BD_ROPE_KINDS; i++)
        if (!strcmp(name, bd_rope_names[i])) {
            rope->kind = (bd_rope_kind)i;
            return true;
        }
    return bd_fail(err, "%s: \"%s\" is \"%.60s\", one of default, linear, llama3, yarn expected",
                   where, field, name);
}

/* Magnitude correction of YaRN: 0.1 * c * ln(factor) + 1. */
static double yarn_magnitude(double factor, double c)
{
    return factor > 1 ? 0.1 * c * log(factor) + 1 : 1;
}

static bool read_yarn(json_t *scaling, const char *where, int64_t max_positions,
                      bd_rope_config *rope, bd_error *err)
{
    double m = 0, m_all = 0;
    bool truncate = true;
    rope->original_positions = (double)max_positions;
    rope->beta_fast = 32;
    rope->beta_slow = 1;
    if (!bd_json_number_if(scaling, where, "original_max_position_embeddings", 1, INT32_MAX,
                           &rope->original_positions, err) ||
        !bd_json_number_if(scaling, where, "beta_fast", 1e-6, 1e6, &rope->beta_fast, err) ||
        !bd_json_number_if(scaling, where, "beta_slow", 1e-6, 1e6, &rope->beta_slow, err) ||
        !bd_json_number_if(scaling, where, "attention_factor", 1e-6, 1e6, &rope->attention_factor,
                           err) ||
        !bd_json_number_if(scaling, where, "mscale", 0, 1e6, &m, err) ||
        !bd_json_number_if(scaling, where, "mscale_all_dim", 0, 1e6, &m_all, err) ||
        !bd_json_bool_if(scaling, where, "truncate", &truncate, err))
        return false;
    if (!truncate)
        return bd_fail(err, "%s: \"truncate\" is false: bdlm does not compute this", where);
    rope->factor = (double)max_positions / rope->original_positions;
    if (!bd_json_number_if(scaling, where, "factor", 1e-6, 1e9, &rope->factor, err))
        return false;
    if (rope->attention_factor == 0 && m > 0 && m_all > 0)
        rope->attention_factor =
            yarn_magnitude(rope->factor, m) / yarn_magnitude(rope->factor, m_all);
    return true;
}

static bool read_scaling(json_t *scaling, const char *where, int64_t max_positions,
                         bd_rope_config *rope, bd_error *err)
{
    if (!read_rope_kind(scaling, where, rope, err))
        return false;
    switch (rope->kind) {
    case BD_ROPE_DEFAULT:
        return true;
    case BD_ROPE_LINEAR:
        return bd_json_number(scaling, where, "factor", 1e-6, 1e9, &rope->factor, err);
    case BD_ROPE_LLAMA3:
        return bd_json_number(scaling, where, "factor", 1e-6, 1e9, &rope->factor, err) &&
               bd_json_number(scaling, where, "low_freq_factor", 1e-6, 1e9,
                              &rope->low_frequency_factor, err) &&
               bd_json_number(scaling, where, "high_freq_factor", 1e-6, 1e9,
                              &rope->high_frequency_factor, err) &&
               bd_json_number(scaling, where, "original_max_position_embeddings", 1, INT32_MAX,
                              &rope->original_positions, err);
    case BD_ROPE_YARN:
        break;
    }
    return read_yarn(scaling, where, max_positions, rope, err);
}

/* rope_parameters holds everything in newer files; rope_theta and rope_scaling lie flat in older
 * ones. */
static bool read_rope(json_t *root, const char *where, bd_model_config *config, bd_error *err)
{
    bd_rope_config *rope = &config->rope;
    *rope = (bd_rope_config){.theta = 10000, .factor = 1};
    if (!bd_json_number_if(root, where, "rope_theta", 1e-6, 1e15, &rope->theta, err))
        return false;
    const char *field = "rope_scaling";
    if (bd_json_has(root, "rope_parameters")) {
        json_t *parameters = bd_json_object(root, where, "rope_parameters", err);
        if (!parameters)
            return false;
        const char *key;
        json_t *value;
        json_object_foreach(parameters, key, value) if (json_is_object(value)) return bd_fail(
            err,
            "%s: \"rope_parameters\" differ by layer type (\"%.60s\"): bdlm "
            "does not compute this",
            where, key);
        if (!bd_json_number_if(parameters, where, "rope_theta", 1e-6, 1e15, &rope->theta, err) ||
            !refuse_unknown_meanings(parameters, where, NULL, err))
            return false;
        if (bd_json_has(parameters, "rope_type") || bd_json_has(parameters, "type"))
            field = "rope_parameters";
    }
    if (!bd_json_has(root, field))
        return true;
    json_t *scaling = bd_json_object(root, where, field, err);
    if (!scaling)
        return false;
    if (!read_scaling(scaling, where, config->max_positions, rope, err))
        return bd_error_wrap(err, "\"%s\"", field);
    return true;
}

// --- windows -----------------------------------------------------------------------------------

/* The window of sliding layers, 0 when the configuration switches windows off. */
static bool read_window(json_t *root, const char *where, int64_t *window, bd_error *err)
{
    bool use = false;
    *window = 0;
    if (!bd_json_bool_if(root, where, "use_sliding_window", &use, err))
        return false;
    if (use) {
        *window = 4096; // the families' default
        if (json_is_null(json_object_get(root, "sliding_window")) &&
            json_object_get(root, "sliding_window"))
            *window = 0;
    }
    int64_t given = *window;
    if (!bd_json_int_if(root, where, "sliding_window", 1, INT32_MAX, &given, err))
        return false;
    if (use)
        *window = given;
    return true;
}

static bool read_windows(json_t *root, const char *where, bd_model_config *config, bd_error *err)
{
    int64_t window = 0, first_window_layer = 28;
    if (bd_families[config->family].sliding &&
        (!read_window(root, where, &window, err) ||
         !bd_json_int_if(root, where, "max_window_layers", 0, INT32_MAX, &first_window_layer, err)))
        return false;
    if (!bd_json_has(root, "layer_types")) {
        for (int64_t i = 0; i < config->layers; i++)
            config->layer_window[i] = i >= first_window_layer ? window : 0;
        return true;
    }
    json_t *types = bd_json_array(root, where, "layer_types", err);
    if (!types)
        return false;
    if ((int64_t)json_array_size(types) != config->layers)
        return bd_fail(err, "%s: \"layer_types\" lists %zu layers, num_hidden_layers is %lld",
                       where, json_array_size(types), (long long)config->layers);
    for (int64_t i = 0; i < config->layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        bool full = type && !strcmp(type, "full_attention");
        if (!full && (!type || strcmp(type, "sliding_attention")))
            return bd_fail(err,
                           "%s: \"layer_types\"[%lld] is \"%.60s\", full_attention or "
                           "sliding_attention expected",
                           where, (long long)i, type ? type : "?");
        if (!full && window == 0)
            return bd_fail(err,
                           "%s: \"layer_types\"[%lld] is sliding_attention, but there is no window "
                           "(%s)",
                           where, (long long)i,
                           bd_families[config->family].sliding
                               ? "use_sliding_window true and sliding_window expected"
                               : "this family has none");
        config->layer_window[i] = full ? 0 : window;
    }
    return true;
}

// --- what bdlm adds ----------------------------------------------------------------------------

static bool read_diffusion(json_t *root, const char *where, bd_model_config *config, bd_error *err)
{
    if (!bd_json_has(root, "block_diffusion"))
        return true;
    json_t *object = bd_json_object(root, where, "block_diffusion", err);
    if (!object)
        return false;
    if (!bd_json_int(object, where, "block_size", 1, INT32_MAX, &config->diffusion.block_size,
                     err) ||
        !bd_json_int(object, where, "mask_token_id", 0, config->vocabulary - 1,
                     &config->diffusion.mask_id, err))
        return bd_error_wrap(err, "\"block_diffusion\"");
    const char *alignment = bd_json_text(object, where, "logit_alignment", err);
    const char *policy = alignment ? bd_json_text(object, where, "canvas_policy", err) : NULL;
    if (!policy)
        return bd_error_wrap(err, "\"block_diffusion\"");
    config->diffusion.shifted = !strcmp(alignment, "shifted");
    if (!strcmp(alignment, "shifted")
            ? !strcmp(policy, "seed_and_mask")
            : !strcmp(alignment, "same_position") && !strcmp(policy, "all_masked"))
        return true;
    return bd_fail(
        err,
        "%s: \"block_diffusion\": logit_alignment \"%.40s\" with canvas_policy \"%.40s\", "
        "same_position with all_masked or shifted with seed_and_mask expected",
        where, alignment, policy);
}

// --- the whole ---------------------------------------------------------------------------------

bool bd_model_config_parse(json_t *root, const char *where, const char *const *known,
                           bd_model_config *config, bd_error *err)
{
    *config = (bd_model_config){0};
    if (!json_is_object(root))
        return bd_fail(err, "%s: not a JSON object", where);
    return read_family(root, where, config, err) && check_activation(root, where, err) &&
           refuse_unknown_meanings(root, where, known, err) &&
           read_sizes(root, where, config, err) && read_switches(root, where, config, err) &&
           read_dtype(root, where, config, err) && read_token_ids(root, where, config, err) &&
           read_rope(root, where, config, err) && read_windows(root, where, config, err) &&
           read_diffusion(root, where, config, err) && bd_model_config_check(config, where, err);
}

bool bd_model_config_read(const char *path, bd_model_config *config, bd_error *err)
{
    json_t *root = bd_json_load(path, err);
    if (!root)
        return false;
    bool ok = json_is_object(root) ? read_family(root, path, config, err) &&
                                         check_architecture(root, path, config, err)
                                   : bd_fail(err, "%s: not a JSON object", path);
    ok = ok && bd_model_config_parse(root, path, NULL, config, err);
    json_decref(root);
    return ok;
}
