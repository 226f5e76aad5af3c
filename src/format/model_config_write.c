#include <math.h>
#include <stdio.h>
#include <string.h>

#include "format/model_config.h"
#include "format/model_config_family.h"

const bd_family bd_families[BD_FAMILY_COUNT] = {
    [BD_FAMILY_LLAMA] = {"llama", "LlamaForCausalLM", false, false, false, 2048},
    [BD_FAMILY_QWEN2] = {"qwen2", "Qwen2ForCausalLM", false, true, true, 32768},
    [BD_FAMILY_QWEN3] = {"qwen3", "Qwen3ForCausalLM", true, false, true, 32768},
};

const char *const bd_rope_names[BD_ROPE_KINDS] = {
    [BD_ROPE_DEFAULT] = "default",
    [BD_ROPE_LINEAR] = "linear",
    [BD_ROPE_LLAMA3] = "llama3",
    [BD_ROPE_YARN] = "yarn",
};

const struct bd_saved_dtype bd_saved_dtypes[BD_SAVED_DTYPES] = {
    {"float32", BD_F32}, {"bfloat16", BD_BF16}, {"float16", BD_F16}};

const char *bd_model_family_name(bd_model_family family)
{
    return bd_families[family].name;
}

// --- checking ----------------------------------------------------------------------------------

static bool check_windows(const bd_model_config *config, const char *where, bd_error *err)
{
    int64_t window = 0;
    for (int64_t i = 0; i < config->layers; i++) {
        int64_t own = config->layer_window[i];
        if (own < 0 || (own > 0 && !bd_families[config->family].sliding))
            return bd_fail(err, "%s: layer %lld has window %lld, which %s models do not have",
                           where, (long long)i, (long long)own,
                           bd_model_family_name(config->family));
        if (own > 0 && window > 0 && own != window)
            return bd_fail(err, "%s: windows %lld and %lld, one size for all layers expected",
                           where, (long long)window, (long long)own);
        window = own > 0 ? own : window;
    }
    return true;
}

static bool check_rope(const bd_rope_config *rope, const char *where, bd_error *err)
{
    if (!(rope->theta > 0) || !isfinite(rope->theta) ||
        (rope->kind == BD_ROPE_YARN && rope->theta <= 1))
        return bd_fail(err, "%s: rope_theta is %g, a number above %d expected", where, rope->theta,
                       rope->kind == BD_ROPE_YARN);
    if (rope->kind == BD_ROPE_DEFAULT)
        return true;
    if (!(rope->factor > 0) || !isfinite(rope->factor))
        return bd_fail(err, "%s: rope factor is %g, a number above 0 expected", where,
                       rope->factor);
    if (rope->kind == BD_ROPE_LLAMA3 &&
        (!(rope->low_frequency_factor > 0) ||
         !(rope->high_frequency_factor > rope->low_frequency_factor)))
        return bd_fail(err,
                       "%s: low_freq_factor %g and high_freq_factor %g, 0 < low < high expected",
                       where, rope->low_frequency_factor, rope->high_frequency_factor);
    double original = rope->original_positions;
    if (rope->kind != BD_ROPE_LINEAR &&
        !(original >= 1 && original <= INT32_MAX && original == floor(original)))
        return bd_fail(err, "%s: original_max_position_embeddings is %g, a size expected", where,
                       rope->original_positions);
    if (rope->kind == BD_ROPE_YARN && !(rope->beta_fast >= rope->beta_slow && rope->beta_slow > 0))
        return bd_fail(err, "%s: beta_fast %g and beta_slow %g, fast >= slow > 0 expected", where,
                       rope->beta_fast, rope->beta_slow);
    return true;
}

static bool in_range(const char *where, const char *what, int64_t value, int64_t low, int64_t high,
                     bd_error *err)
{
    return (value >= low && value <= high) ||
           bd_fail(err, "%s: %s is %lld, %lld to %lld expected", where, what, (long long)value,
                   (long long)low, (long long)high);
}

static bool check_token_ids(const bd_model_config *config, const char *where, bd_error *err)
{
    int64_t last = config->vocabulary - 1;
    if (!in_range(where, "bos_token_id", config->bos, -1, last, err) ||
        !in_range(where, "pad_token_id", config->pad, -1, last, err) ||
        !in_range(where, "number of stop tokens", config->stop_count, 0, BD_MOST_STOPS, err))
        return false;
    for (int i = 0; i < config->stop_count; i++)
        if (!in_range(where, "eos_token_id", config->stop[i], 0, last, err))
            return false;
    return config->diffusion.block_size == 0 ||
           (in_range(where, "block_diffusion.block_size", config->diffusion.block_size, 1,
                     INT32_MAX, err) &&
            in_range(where, "block_diffusion.mask_token_id", config->diffusion.mask_id, 0, last,
                     err));
}

bool bd_model_config_check(const bd_model_config *config, const char *where, bd_error *err)
{
    if (!in_range(where, "vocab_size", config->vocabulary, 1, BD_MOST_SIZE, err) ||
        !in_range(where, "hidden_size", config->hidden, 1, BD_MOST_SIZE, err) ||
        !in_range(where, "num_hidden_layers", config->layers, 1, BD_MOST_LAYERS, err) ||
        !in_range(where, "num_attention_heads", config->query_heads, 1, 1 << 16, err) ||
        !in_range(where, "num_key_value_heads", config->key_heads, 1, config->query_heads, err) ||
        !in_range(where, "head_dim", config->head_size, 2, 1 << 12, err) ||
        !in_range(where, "intermediate_size", config->intermediate, 1, BD_MOST_SIZE, err) ||
        !in_range(where, "max_position_embeddings", config->max_positions, 1, INT32_MAX, err))
        return false;
    if (config->query_heads % config->key_heads)
        return bd_fail(err,
                       "%s: num_attention_heads %lld is not a multiple of num_key_value_heads %lld",
                       where, (long long)config->query_heads, (long long)config->key_heads);
    if (config->head_size % 2)
        return bd_fail(err, "%s: head_dim is %lld, an even number expected", where,
                       (long long)config->head_size);
    if (!(config->norm_eps >= 0 && config->norm_eps <= 1))
        return bd_fail(err, "%s: rms_norm_eps is %g, 0 to 1 expected", where, config->norm_eps);
    const bd_family *family = &bd_families[config->family];
    if (config->qk_norm != family->qk_norm ||
        (family->fixed_bias ? !config->qkv_bias || config->output_bias
                            : config->qkv_bias != config->output_bias))
        return bd_fail(err, "%s: norms or biases that %s models do not have", where, family->name);
    return check_rope(&config->rope, where, err) && check_windows(config, where, err) &&
           check_token_ids(config, where, err);
}

// --- writing -----------------------------------------------------------------------------------

static json_t *id_or_null(int64_t id)
{
    return id < 0 ? json_null() : json_integer(id);
}

static json_t *stop_to_json(const bd_model_config *config)
{
    if (config->stop_count <= 1)
        return id_or_null(config->stop_count ? config->stop[0] : -1);
    json_t *list = json_array();
    for (int i = 0; i < config->stop_count; i++)
        json_array_append_new(list, json_integer(config->stop[i]));
    return list;
}

static json_t *scaling_to_json(const bd_rope_config *rope, int64_t max_positions)
{
    if (rope->kind == BD_ROPE_DEFAULT)
        return json_null();
    json_t *scaling =
        json_pack("{s:s, s:f}", "rope_type", bd_rope_names[rope->kind], "factor", rope->factor);
    if (rope->kind == BD_ROPE_LINEAR)
        return scaling;
    // Some readers take the ratio of the two for the factor, which is 1 where they are the same.
    if (rope->kind == BD_ROPE_LLAMA3 || rope->original_positions != (double)max_positions)
        json_object_set_new(scaling, "original_max_position_embeddings",
                            json_integer((json_int_t)rope->original_positions));
    if (rope->kind == BD_ROPE_LLAMA3) {
        json_object_set_new(scaling, "low_freq_factor", json_real(rope->low_frequency_factor));
        json_object_set_new(scaling, "high_freq_factor", json_real(rope->high_frequency_factor));
        return scaling;
    }
    json_object_set_new(scaling, "beta_fast", json_real(rope->beta_fast));
    json_object_set_new(scaling, "beta_slow", json_real(rope->beta_slow));
    if (rope->attention_factor > 0)
        json_object_set_new(scaling, "attention_factor", json_real(rope->attention_factor));
    return scaling;
}

/* layer_types says it all; the older fields say the same where they can. */
static void add_windows(const bd_model_config *config, json_t *root)
{
    json_t *types = json_array();
    int64_t window = 0, first = config->layers;
    for (int64_t i = 0; i < config->layers; i++) {
        bool sliding = config->layer_window[i] > 0;
        if (sliding && first == config->layers)
            first = i;
        window = sliding ? config->layer_window[i] : window;
        json_array_append_new(types, json_string(sliding ? "sliding_attention" : "full_attention"));
    }
    json_object_set_new(root, "use_sliding_window", json_boolean(window > 0));
    json_object_set_new(root, "sliding_window", window > 0 ? json_integer(window) : json_null());
    json_object_set_new(root, "max_window_layers", json_integer(first));
    json_object_set_new(root, "layer_types", types);
}

static const char *dtype_text(bd_dtype dtype)
{
    for (int i = 0; i < BD_SAVED_DTYPES; i++)
        if (bd_saved_dtypes[i].dtype == dtype)
            return bd_saved_dtypes[i].name;
    return "float32";
}

json_t *bd_model_config_to_json(const bd_model_config *config)
{
    const bd_family *family = &bd_families[config->family];
    json_t *root = json_object();
    json_object_set_new(root, "architectures", json_pack("[s]", family->architecture));
    json_object_set_new(root, "model_type", json_string(family->name));
    json_object_set_new(root, "vocab_size", json_integer(config->vocabulary));
    json_object_set_new(root, "hidden_size", json_integer(config->hidden));
    json_object_set_new(root, "num_hidden_layers", json_integer(config->layers));
    json_object_set_new(root, "num_attention_heads", json_integer(config->query_heads));
    json_object_set_new(root, "num_key_value_heads", json_integer(config->key_heads));
    json_object_set_new(root, "head_dim", json_integer(config->head_size));
    json_object_set_new(root, "intermediate_size", json_integer(config->intermediate));
    json_object_set_new(root, "hidden_act", json_string("silu"));
    json_object_set_new(root, "rms_norm_eps", json_real(config->norm_eps));
    json_object_set_new(root, "initializer_range", json_real(config->initializer_range));
    json_object_set_new(root, "max_position_embeddings", json_integer(config->max_positions));
    json_object_set_new(root, "rope_theta", json_real(config->rope.theta));
    json_object_set_new(root, "rope_scaling",
                        scaling_to_json(&config->rope, config->max_positions));
    json_object_set_new(root, "tie_word_embeddings", json_boolean(config->tied_head));
    if (!family->fixed_bias)
        json_object_set_new(root, "attention_bias", json_boolean(config->output_bias));
    json_object_set_new(root, "attention_dropout", json_real(0));
    if (config->family == BD_FAMILY_LLAMA)
        json_object_set_new(root, "mlp_bias", json_false());
    if (family->sliding)
        add_windows(config, root);
    json_object_set_new(root, "torch_dtype", json_string(dtype_text(config->dtype)));
    json_object_set_new(root, "bos_token_id", id_or_null(config->bos));
    json_object_set_new(root, "eos_token_id", stop_to_json(config));
    json_object_set_new(root, "pad_token_id", id_or_null(config->pad));
    json_object_set_new(root, "use_cache", json_true());
    if (config->diffusion.block_size > 0)
        json_object_set_new(root, "block_diffusion",
                            json_pack("{s:I, s:I, s:s, s:s}", "block_size",
                                      (json_int_t)config->diffusion.block_size, "mask_token_id",
                                      (json_int_t)config->diffusion.mask_id, "logit_alignment",
                                      config->diffusion.shifted ? "shifted" : "same_position",
                                      "canvas_policy",
                                      config->diffusion.shifted ? "seed_and_mask" : "all_masked"));
    return root;
}
