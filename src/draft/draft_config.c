#include "draft/draft_config.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "format/json.h"

// --- taps ----------------------------------------------------------------------------------------

bool bd_draft_taps(int64_t target_layers, int64_t draft_layers, int64_t *taps, bd_error *err)
{
    assert(draft_layers >= 1 && draft_layers <= BD_MOST_TAPS);
    if (target_layers < draft_layers)
        return bd_fail(err, "num_target_layers (%lld) must be >= num_draft_layers (%lld)",
                       (long long)target_layers, (long long)draft_layers);
    if (draft_layers == 1) {
        taps[0] = target_layers / 2;
        return true;
    }
    double low = target_layers > 1 ? 1 : 0;
    double high = fmax(low, (double)(target_layers - 3));
    for (int64_t i = 0; i < draft_layers; i++)
        taps[i] = (int64_t)rint(low + (double)i * (high - low) / (double)(draft_layers - 1));
    return true;
}

int64_t bd_draft_highest_tap(const bd_draft_config *config)
{
    int64_t highest = config->taps[0];
    for (int64_t i = 1; i < config->tap_count; i++)
        highest = config->taps[i] > highest ? config->taps[i] : highest;
    return highest;
}

static bool check_explicit_taps(const bd_draft_config *config, int64_t target_layers, bd_error *err)
{
    if (config->tap_count != config->stack.layers)
        return bd_fail(
            err,
            "target_layer_ids lists %lld layers for %lld draft layers: one target layer per "
            "draft layer is required",
            (long long)config->tap_count, (long long)config->stack.layers);
    for (int64_t i = 0; i < config->tap_count; i++)
        if (config->taps[i] >= target_layers)
            return bd_fail(
                err, "target_layer_ids references layer %lld, beyond the target's %lld layers",
                (long long)config->taps[i], (long long)target_layers);
    for (int64_t i = 0; i < config->tap_count; i++)
        for (int64_t j = 0; j < i; j++)
            if (config->taps[i] == config->taps[j])
                return bd_fail(err, "target_layer_ids contains duplicates: layer %lld twice",
                               (long long)config->taps[i]);
    for (int64_t i = 0; i < config->tap_count; i++)
        if (config->taps[i] < 0)
            return bd_fail(err, "target_layer_ids must be non-negative, got %lld",
                           (long long)config->taps[i]);
    return true;
}

// --- a new draft ---------------------------------------------------------------------------------

bd_draft_config bd_draft_config_default(void)
{
    bd_draft_config config = {.variant = &bd_draft_dflash, .block_size = 8, .mask_id = -1};
    config.stack.family = BD_FAMILY_QWEN3;
    config.stack.layers = 5;
    config.stack.norm_eps = 1e-6;
    config.stack.initializer_range = 0.02;
    config.stack.qk_norm = true;
    config.stack.bos = config.stack.pad = -1;
    config.domino.pure_prefix = 1;
    config.stack.dtype = BD_F32;
    return config;
}

static bool required(const char *name, int64_t value, bd_error *err)
{
    // Defaults of the reference here are those of a 32-head model, whatever the target is.
    return value > 0 ||
           bd_fail(err, "draft.%s is missing: the draft's dimensions are not guessed", name);
}

static bool check_block(const bd_draft_config *config, const char *where, bd_error *err)
{
    if (config->block_size < 1 || config->block_size > BD_MOST_BLOCK)
        return bd_fail(err, "%s: block_size is %lld, 1 to %d expected", where,
                       (long long)config->block_size, BD_MOST_BLOCK);
    for (int64_t layer = 0; layer < config->stack.layers; layer++) {
        int64_t window = bd_draft_layer_window(config, layer);
        if (window != 0 && window < config->block_size)
            return bd_fail(err, "%s: the window (%lld) must be >= block_size (%lld)", where,
                           (long long)window, (long long)config->block_size);
    }
    return true;
}

static bool check_variant(const bd_draft_config *config, const char *where, bd_error *err)
{
    return !config->variant->check_config || config->variant->check_config(config, where, err);
}

bool bd_draft_mask_check(int64_t mask_id, const bd_model_config *target, bd_error *err)
{
    if (mask_id < 0)
        return bd_fail(err,
                       "mask_token_id is required: a draft ships no embedding, so it must be an "
                       "existing, otherwise unused row of the target's");
    if (mask_id >= target->vocabulary)
        return bd_fail(
            err,
            "mask_token_id is %lld, an existing row of the target's embedding (0 to %lld) "
            "expected",
            (long long)mask_id, (long long)target->vocabulary - 1);
    const char *other = mask_id == target->pad ? "pad" : mask_id == target->bos ? "bos" : NULL;
    for (int i = 0; i < target->stop_count && !other; i++)
        if (mask_id == target->stop[i])
            other = "stop";
    if (other)
        return bd_fail(err,
                       "mask_token_id is %lld, the target's %s token: a token that means something "
                       "else cannot be the mask",
                       (long long)mask_id, other);
    return true;
}

/* What a draft takes from its target. Of the rotary positions only the base: scaling for long
 * contexts is a matter of the export. */
static void inherit(bd_draft_config *config, const bd_model_config *target)
{
    bd_model_config *stack = &config->stack;
    stack->hidden = target->hidden;
    stack->vocabulary = target->vocabulary;
    stack->max_positions = target->max_positions;
    stack->output_bias = stack->qkv_bias;
    stack->rope = (bd_rope_config){.theta = target->rope.theta, .factor = 1};
    config->target_layers = target->layers;
}

bool bd_draft_config_complete(bd_draft_config *config, const bd_model_config *target, bd_error *err)
{
    bd_draft_config full = *config;
    const bd_model_config *stack = &full.stack;
    inherit(&full, target);
    if (!required("num_hidden_layers", stack->layers, err) ||
        !required("num_attention_heads", stack->query_heads, err) ||
        !required("num_key_value_heads", stack->key_heads, err) ||
        !required("head_dim", stack->head_size, err) ||
        !required("intermediate_size", stack->intermediate, err))
        return false;
    if (stack->layers > BD_MOST_TAPS)
        return bd_fail(err, "draft.num_hidden_layers is %lld, at most %d expected",
                       (long long)stack->layers, BD_MOST_TAPS);
    if (full.dropout > 0)
        return bd_fail(err,
                       "attention_dropout is %g: drafts are trained without dropout, 0 expected",
                       full.dropout);
    if (full.tap_count > 0 && !check_explicit_taps(&full, target->layers, err))
        return false;
    if (full.tap_count == 0) {
        if (!bd_draft_taps(target->layers, stack->layers, full.taps, err))
            return false;
        full.tap_count = stack->layers;
    }
    if (!bd_model_config_check(stack, "draft", err) || !check_block(&full, "draft", err) ||
        !check_variant(&full, "draft", err) || !bd_draft_mask_check(full.mask_id, target, err))
        return false;
    *config = full;
    return true;
}

// --- one layer's attention -----------------------------------------------------------------------

int64_t bd_draft_layer_window(const bd_draft_config *config, int64_t layer)
{
    return config->window > 0 ? config->window : config->stack.layer_window[layer];
}

bool bd_draft_layer_causal(const bd_draft_config *config, int64_t layer)
{
    if (config->causality == BD_DRAFT_BY_LAYER)
        return config->stack.layer_window[layer] > 0;
    return config->causality == BD_DRAFT_CAUSAL;
}

// --- reading -------------------------------------------------------------------------------------

json_t *bd_draft_field_home(json_t *root, const char *field)
{
    json_t *nested = json_object_get(root, "dflash_config");
    return bd_json_has(nested, field) ? nested : root;
}

/* Fields of dflash_config that every variant has. */
static const char *const common_fields[] = {"mask_token_id",
                                            "target_layer_ids",
                                            "causal",
                                            "use_swa",
                                            "swa_window_size",
                                            "block_size",
                                            "attention_sink_bias",
                                            "projector_type",
                                            "shift_label",
                                            "sample_from_anchor",
                                            "is_causal",
                                            "num_target_layers",
                                            NULL};

static bool is_listed(const char *const *names, const char *name)
{
    for (; names && *names; names++)
        if (!strcmp(*names, name))
            return true;
    return false;
}

static bool is_off(const json_t *value)
{
    return json_is_null(value) || json_is_false(value) ||
           (json_is_number(value) && json_number_value(value) == 0);
}

/* Scales that some drafts carry; 1 is harmless, anything else changes the computation. */
static const char *const scales[] = {"input_embedding_scale", "output_multiplier", NULL};

static bool refuse_unknown_meanings(json_t *root, const char *where,
                                    const bd_draft_variant *variant, bd_error *err)
{
    json_t *nested = json_object_get(root, "dflash_config"), *value;
    char words[BD_JSON_WORDS];
    const char *name;
    if (nested && !json_is_object(nested))
        return bd_fail(err, "%s: \"dflash_config\" is %s, an object expected", where,
                       bd_json_describe(nested, words));
    json_object_foreach(
        nested, name,
        value) if (!is_listed(common_fields, name) && !is_listed(variant->fields, name) &&
                   !is_listed(scales, name) &&
                   !is_off(value)) return bd_fail(err,
                                                  "%s: \"dflash_config.%.60s\" is %s: bdlm does "
                                                  "not know what it means for "
                                                  "a %s draft",
                                                  where, name, bd_json_describe(value, words),
                                                  variant->projector_type);
    for (const char *const *scale = scales; *scale; scale++) {
        value = json_object_get(bd_draft_field_home(root, *scale), *scale);
        if (value && !json_is_null(value) &&
            !(json_is_number(value) && json_number_value(value) == 1))
            return bd_fail(
                err, "%s: \"%s\" is %s: bdlm does not compute this; 1 or no such field expected",
                where, *scale, bd_json_describe(value, words));
    }
    return true;
}

static bool read_variant(json_t *root, const char *where, bd_draft_config *config, bd_error *err)
{
    json_t *object = bd_draft_field_home(root, "projector_type");
    const char *name = NULL;
    if (bd_json_has(object, "projector_type") &&
        !(name = bd_json_text(object, where, "projector_type", err)))
        return false;
    config->variant = bd_draft_variant_find(name, err);
    if (!config->variant)
        return bd_error_wrap(err, "%s", where);
    if (!bd_json_has(root, "architectures"))
        return true;
    json_t *list = bd_json_array(root, where, "architectures", err);
    if (!list)
        return false;
    const char *architecture = json_string_value(json_array_get(list, 0));
    if (json_array_size(list) == 1 && architecture &&
        !strcmp(architecture, config->variant->architecture))
        return true;
    return bd_fail(
        err, "%s: \"architectures\" is [\"%.60s\"%s], [\"%s\"] expected for projector_type %s",
        where, architecture ? architecture : "?", json_array_size(list) > 1 ? ", ..." : "",
        config->variant->architecture, config->variant->projector_type);
}

/* Whether slot 0 predicts is the variant's own affair; a file that says otherwise is another draft.
 */
static bool check_layout(json_t *root, const char *where, const bd_draft_variant *variant,
                         bd_error *err)
{
    static const char *const names[] = {"shift_label", "sample_from_anchor"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        bool shift = variant->label_shift == 1;
        if (!bd_json_bool_if(bd_draft_field_home(root, names[i]), where, names[i], &shift, err))
            return false;
        if (shift != (variant->label_shift == 1))
            return bd_fail(err, "%s: \"%s\" is %s, but a %s draft's first slot %s", where, names[i],
                           shift ? "true" : "false", variant->projector_type,
                           variant->label_shift ? "predicts a token" : "is its anchor");
    }
    return true;
}

static bool read_taps(json_t *root, const char *where, bd_draft_config *config, bd_error *err)
{
    json_t *object = bd_draft_field_home(root, "target_layer_ids");
    if (!bd_json_has(object, "target_layer_ids"))
        return bd_fail(err,
                       "%s: \"target_layer_ids\" is missing: which of its target's layers a draft "
                       "reads cannot be guessed",
                       where);
    json_t *list = bd_json_array(object, where, "target_layer_ids", err);
    if (!list)
        return false;
    config->tap_count = (int64_t)json_array_size(list);
    if (config->tap_count < 1 || config->tap_count > BD_MOST_TAPS)
        return bd_fail(err, "%s: \"target_layer_ids\" lists %lld layers, 1 to %d expected", where,
                       (long long)config->tap_count, BD_MOST_TAPS);
    for (int64_t i = 0; i < config->tap_count; i++) {
        json_t *id = json_array_get(list, (size_t)i);
        config->taps[i] = json_is_integer(id) ? json_integer_value(id) : -2;
        if (config->taps[i] < -1 || config->taps[i] >= BD_MOST_LAYERS)
            return bd_fail(err, "%s: \"target_layer_ids\"[%lld]: a layer from -1 to %d expected",
                           where, (long long)i, BD_MOST_LAYERS - 1);
    }
    return true;
}

static bool read_causality(json_t *root, const char *where, bd_draft_config *config, bd_error *err)
{
    const char *field =
        bd_json_has(bd_draft_field_home(root, "is_causal"), "is_causal") ? "is_causal" : "causal";
    if (!bd_json_has(bd_draft_field_home(root, field), field)) {
        config->causality = BD_DRAFT_BIDIRECTIONAL;
        for (int64_t i = 0; i < config->stack.layers; i++)
            if (config->stack.layer_window[i] > 0)
                config->causality = BD_DRAFT_BY_LAYER;
        return true;
    }
    bool causal;
    if (!bd_json_bool(bd_draft_field_home(root, field), where, field, &causal, err))
        return false;
    config->causality = causal ? BD_DRAFT_CAUSAL : BD_DRAFT_BIDIRECTIONAL;
    return true;
}

/* use_swa puts one window on all layers; else sliding_window counts for the sliding layers. */
static bool read_windows(json_t *root, const char *where, bd_draft_config *config, bd_error *err)
{
    bool all = false;
    if (!bd_json_bool_if(bd_draft_field_home(root, "use_swa"), where, "use_swa", &all, err))
        return false;
    if (all && !bd_json_int(bd_draft_field_home(root, "swa_window_size"), where, "swa_window_size",
                            1, INT32_MAX, &config->window, err))
        return false;
    if (!bd_json_has(root, "layer_types"))
        return true;
    json_t *types = bd_json_array(root, where, "layer_types", err);
    if (!types)
        return false;
    if ((int64_t)json_array_size(types) != config->stack.layers)
        return bd_fail(err, "%s: \"layer_types\" lists %zu layers, num_hidden_layers is %lld",
                       where, json_array_size(types), (long long)config->stack.layers);
    for (int64_t i = 0; i < config->stack.layers; i++) {
        const char *type = json_string_value(json_array_get(types, (size_t)i));
        if (type && !strcmp(type, "full_attention"))
            continue;
        if (!type || strcmp(type, "sliding_attention"))
            return bd_fail(err,
                           "%s: \"layer_types\"[%lld] is \"%.60s\", full_attention or "
                           "sliding_attention expected",
                           where, (long long)i, type ? type : "?");
        if (!bd_json_int(root, where, "sliding_window", 1, INT32_MAX,
                         &config->stack.layer_window[i], err))
            return false;
    }
    return true;
}

/* The stack's own fields, read by the model room; what drafts spell differently is taken out first.
 */
static bool read_stack(json_t *root, const char *where, bd_draft_config *config, bd_error *err)
{
    static const char *const known[] = {"dflash_config", "attention_sink_bias", "is_causal", NULL};
    static const char *const ours[] = {"layer_types", "sliding_window", "use_sliding_window",
                                       "max_window_layers", "tie_word_embeddings"};
    if (!bd_json_has(root, "rope_theta") &&
        !bd_json_has(json_object_get(root, "rope_parameters"), "rope_theta"))
        return bd_fail(err, "%s: \"rope_theta\" is missing (also in rope_parameters)", where);
    json_t *plain = json_copy(root);
    for (size_t i = 0; i < sizeof ours / sizeof ours[0]; i++)
        json_object_del(plain, ours[i]);
    bool ok = bd_model_config_parse(plain, where, known, &config->stack, err);
    json_decref(plain);
    if (ok && config->stack.family != BD_FAMILY_QWEN3)
        return bd_fail(err, "%s: \"model_type\" is \"%s\", \"qwen3\" expected for a draft", where,
                       bd_model_family_name(config->stack.family));
    if (ok && config->stack.layers > BD_MOST_TAPS)
        return bd_fail(err, "%s: \"num_hidden_layers\" is %lld, at most %d expected for a draft",
                       where, (long long)config->stack.layers, BD_MOST_TAPS);
    return ok;
}

bool bd_draft_config_parse(json_t *root, const char *where, bd_draft_config *config, bd_error *err)
{
    *config = (bd_draft_config){0};
    if (!json_is_object(root))
        return bd_fail(err, "%s: not a JSON object", where);
    if (!read_variant(root, where, config, err) ||
        !refuse_unknown_meanings(root, where, config->variant, err) ||
        !read_stack(root, where, config, err) || !check_layout(root, where, config->variant, err) ||
        !bd_json_int(bd_draft_field_home(root, "block_size"), where, "block_size", 1, BD_MOST_BLOCK,
                     &config->block_size, err) ||
        !bd_json_int(bd_draft_field_home(root, "mask_token_id"), where, "mask_token_id", 0,
                     config->stack.vocabulary - 1, &config->mask_id, err) ||
        !read_taps(root, where, config, err) || !read_windows(root, where, config, err) ||
        !read_causality(root, where, config, err) ||
        !bd_json_bool_if(bd_draft_field_home(root, "attention_sink_bias"), where,
                         "attention_sink_bias", &config->sink, err) ||
        !bd_json_number_if(root, where, "attention_dropout", 0, 1, &config->dropout, err) ||
        !bd_json_int_if(bd_draft_field_home(root, "num_target_layers"), where, "num_target_layers",
                        0, BD_MOST_LAYERS, &config->target_layers, err))
        return false;
    if (config->variant->read_config && !config->variant->read_config(config, root, where, err))
        return false;
    return check_block(config, where, err) && check_variant(config, where, err);
}

bool bd_draft_config_read(const char *path, bd_draft_config *config, bd_error *err)
{
    json_t *root = bd_json_load(path, err);
    if (!root)
        return false;
    bool ok = bd_draft_config_parse(root, path, config, err);
    json_decref(root);
    return ok;
}

static bool same_size(const char *where, const char *field, int64_t draft, int64_t target,
                      bd_error *err)
{
    return draft == target || bd_fail(err, "%s: \"%s\" is %lld, the target's is %lld", where, field,
                                      (long long)draft, (long long)target);
}

bool bd_draft_config_fits(const bd_draft_config *config, const bd_model_config *target,
                          const char *where, bd_error *err)
{
    if (!same_size(where, "hidden_size", config->stack.hidden, target->hidden, err) ||
        !same_size(where, "vocab_size", config->stack.vocabulary, target->vocabulary, err))
        return false;
    for (int64_t i = 0; i < config->tap_count; i++)
        if (config->taps[i] >= target->layers)
            return bd_fail(
                err, "%s: \"target_layer_ids\" names layer %lld, the target has layers 0 to %lld",
                where, (long long)config->taps[i], (long long)target->layers - 1);
    return true;
}

// --- writing -------------------------------------------------------------------------------------

static json_t *nested_to_json(const bd_draft_config *config)
{
    json_t *taps = json_array();
    for (int64_t i = 0; i < config->tap_count; i++)
        json_array_append_new(taps, json_integer(config->taps[i]));
    json_t *nested = json_pack("{s:I, s:o}", "mask_token_id", (json_int_t)config->mask_id,
                               "target_layer_ids", taps);
    if (config->causality != BD_DRAFT_BY_LAYER)
        json_object_set_new(nested, "causal", json_boolean(config->causality == BD_DRAFT_CAUSAL));
    if (config->window > 0) {
        json_object_set_new(nested, "use_swa", json_true());
        json_object_set_new(nested, "swa_window_size", json_integer(config->window));
    }
    if (config->sink)
        json_object_set_new(nested, "attention_sink_bias", json_true());
    if (bd_draft_variant_at(0) != config->variant)
        json_object_set_new(nested, "projector_type", json_string(config->variant->projector_type));
    // Two layouts of a block look alike in every other field, so it is always said which one this
    // is.
    json_object_set_new(nested, "shift_label", json_boolean(config->variant->label_shift == 1));
    return nested;
}

/* layer_types, and the window of whichever layers have one. */
static void add_windows(const bd_draft_config *config, json_t *root)
{
    json_t *types = json_array();
    int64_t window = config->window;
    for (int64_t i = 0; i < config->stack.layers; i++) {
        bool sliding = config->stack.layer_window[i] > 0;
        if (sliding && window == 0)
            window = config->stack.layer_window[i];
        json_array_append_new(types, json_string(sliding ? "sliding_attention" : "full_attention"));
    }
    json_object_set_new(root, "layer_types", types);
    if (window > 0)
        json_object_set_new(root, "sliding_window", json_integer(window));
}

json_t *bd_draft_config_to_json(const bd_draft_config *config)
{
    const bd_model_config *stack = &config->stack;
    json_t *model = bd_model_config_to_json(stack); // for the spellings of rotary scaling and dtype
    json_t *root = json_object(), *nested = nested_to_json(config);
    json_object_set_new(root, "architectures", json_pack("[s]", config->variant->architecture));
    json_object_set_new(root, "model_type", json_string(bd_model_family_name(stack->family)));
    json_object_set_new(root, "block_size", json_integer(config->block_size));
    json_object_set_new(root, "dflash_config", nested);
    if (config->sink)
        json_object_set_new(root, "attention_sink_bias", json_true());
    static const char *const copied[] = {
        "hidden_size", "num_hidden_layers",       "num_attention_heads", "num_key_value_heads",
        "head_dim",    "intermediate_size",       "hidden_act",          "rms_norm_eps",
        "vocab_size",  "max_position_embeddings", "initializer_range",   "attention_bias"};
    for (size_t i = 0; i < sizeof copied / sizeof copied[0]; i++)
        json_object_set(root, copied[i], json_object_get(model, copied[i]));
    json_object_set_new(root, "attention_dropout", json_real(config->dropout));
    json_object_set(root, "rope_theta", json_object_get(model, "rope_theta"));
    json_object_set(root, "rope_scaling", json_object_get(model, "rope_scaling"));
    json_object_set_new(root, "tie_word_embeddings", json_false());
    json_object_set(root, "torch_dtype", json_object_get(model, "torch_dtype"));
    json_object_set_new(root, "num_target_layers", json_integer(config->target_layers));
    add_windows(config, root);
    if (config->variant->write_config)
        config->variant->write_config(config, root, nested);
    json_decref(model);
    return root;
}
