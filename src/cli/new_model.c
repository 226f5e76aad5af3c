#include "cli/new_model.h"

#include <string.h>

static bool vocabulary_of(const bd_recipe *recipe, const bd_tokenizer *tokenizer, int64_t *out,
                          bd_error *err)
{
    int64_t tokens = tokenizer ? bd_tokenizer_size(tokenizer) : 0;
    if (bd_recipe_has(recipe, "model.vocab_size"))
        *out = bd_recipe_int(recipe, "model.vocab_size");
    else if (tokenizer)
        *out = (tokens + 63) / 64 * 64;
    else
        return bd_recipe_require(recipe, "model.vocab_size", "to make a model without a tokenizer",
                                 err);
    if (*out < tokens)
        return bd_fail(err, "model.vocab_size: %lld, at least the tokenizer's %lld wanted",
                       (long long)*out, (long long)tokens);
    return true;
}

static bool required_sizes(const bd_recipe *recipe, bd_error *err)
{
    static const char *const names[] = {"model.hidden_size", "model.num_hidden_layers",
                                        "model.num_attention_heads", "model.intermediate_size"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!bd_recipe_require(recipe, names[i], "to make a new model", err))
            return false;
    return true;
}

static void tokens_of(const bd_tokenizer *tokenizer, bd_model_config *config)
{
    config->bos = config->pad = -1;
    if (!tokenizer)
        return;
    config->bos = bd_tokenizer_role(tokenizer, BD_ROLE_BOS);
    config->pad = bd_tokenizer_role(tokenizer, BD_ROLE_PAD);
    int32_t stop = bd_tokenizer_role(tokenizer, BD_ROLE_EOS);
    if (stop >= 0)
        config->stop[config->stop_count++] = stop;
}

bd_model *bd_new_model(const bd_recipe *recipe, const bd_tokenizer *tokenizer, bd_dtype compute,
                       bd_error *err)
{
    if (!required_sizes(recipe, err))
        return NULL;
    bd_model_config config = {
        .family = (bd_model_family)bd_recipe_choice(recipe, "model.family"),
        .hidden = bd_recipe_int(recipe, "model.hidden_size"),
        .layers = bd_recipe_int(recipe, "model.num_hidden_layers"),
        .query_heads = bd_recipe_int(recipe, "model.num_attention_heads"),
        .intermediate = bd_recipe_int(recipe, "model.intermediate_size"),
        .max_positions = bd_recipe_int(recipe, "model.max_position_embeddings"),
        .norm_eps = bd_recipe_number(recipe, "model.rms_norm_eps"),
        .initializer_range = bd_recipe_number(recipe, "model.initializer_range"),
        .tied_head = bd_recipe_bool(recipe, "model.tie_word_embeddings"),
        .rope = {.kind = BD_ROPE_DEFAULT, .theta = bd_recipe_number(recipe, "model.rope_theta")},
        .dtype = BD_F32};
    bool bias = bd_recipe_bool(recipe, "model.attention_bias");
    config.qkv_bias = bias || config.family == BD_FAMILY_QWEN2;
    config.output_bias = bias && config.family != BD_FAMILY_QWEN2;
    config.qk_norm = config.family == BD_FAMILY_QWEN3;
    config.key_heads = bd_recipe_has(recipe, "model.num_key_value_heads")
                           ? bd_recipe_int(recipe, "model.num_key_value_heads")
                           : config.query_heads;
    config.head_size = bd_recipe_has(recipe, "model.head_dim")
                           ? bd_recipe_int(recipe, "model.head_dim")
                           : config.hidden / config.query_heads;
    tokens_of(tokenizer, &config);
    if (!vocabulary_of(recipe, tokenizer, &config.vocabulary, err) ||
        !bd_model_config_check(&config, "new model", err))
        return NULL;
    return bd_model_create(&config, (uint64_t)bd_recipe_int(recipe, "train.seed"), compute, err);
}
