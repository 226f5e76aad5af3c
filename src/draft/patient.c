#include "draft/patient.h"

#include <string.h>

#include "base/file.h"
#include "format/json.h"

// --- config.json ---------------------------------------------------------------------------------

static void forget(json_t *root, const char *field)
{
    json_object_del(root, field);
    json_object_del(json_object_get(root, "dflash_config"), field);
}

/* Where a block's first prediction is, taken out of the file: the variant would refuse another. */
static bool take_layout(json_t *root, const char *where, bd_patient *out, bd_error *err)
{
    static const char *const names[] = {"shift_label", "sample_from_anchor"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        json_t *home = bd_draft_field_home(root, names[i]);
        bool shift = false;
        if (!bd_json_has(home, names[i]))
            continue;
        if (!bd_json_bool(home, where, names[i], &shift, err))
            return false;
        if (out->shift_stated && shift != (out->shift == 1))
            return bd_fail(err, "%s: \"shift_label\" and \"sample_from_anchor\" differ", where);
        out->shift = shift;
        out->shift_stated = true;
        forget(root, names[i]);
    }
    return true;
}

static bool take_vocabulary(json_t *root, const char *where, const bd_model *target,
                            bd_patient *out, bd_error *err)
{
    if (!bd_json_int(root, where, "vocab_size", 1, INT32_MAX, &out->vocabulary, err))
        return false;
    json_object_set_new(root, "vocab_size", json_integer(target->config.vocabulary));
    return true;
}

/* A window that stands in the file, but that neither use_swa nor a sliding layer puts to use. */
static int64_t idle_window(json_t *root, const bd_draft_config *config)
{
    static const char *const names[] = {"swa_window_size", "sliding_window"};
    for (int64_t i = 0; i < config->stack.layers; i++)
        if (bd_draft_layer_window(config, i) > 0)
            return 0;
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        json_int_t width =
            json_integer_value(json_object_get(bd_draft_field_home(root, names[i]), names[i]));
        if (width >= config->block_size && width <= INT32_MAX)
            return width;
    }
    return 0;
}

/* Programs that count the embedding as 0 have the last layer one beyond ours. */
static void lower_taps(const bd_model *target, bd_draft_config *config, bd_patient *out)
{
    out->taps_lowered = bd_draft_highest_tap(config) == target->config.layers;
    for (int64_t i = 0; i < config->tap_count && out->taps_lowered; i++)
        config->taps[i] -= config->taps[i] >= 0;
}

static bool read_config(json_t *root, const char *path, const bd_model *target, bd_patient *out,
                        bd_draft_config *config, bd_error *err)
{
    if (!json_is_object(root))
        return bd_fail(err, "%s: not a JSON object", path);
    if (!take_layout(root, path, out, err) || !take_vocabulary(root, path, target, out, err) ||
        !bd_draft_config_parse(root, path, config, err))
        return false;
    lower_taps(target, config, out);
    if (!bd_draft_config_fits(config, &target->config, path, err))
        return false;
    if (!out->shift_stated)
        out->shift = config->variant->label_shift;
    out->window = idle_window(root, config);
    return true;
}

// --- tensors -------------------------------------------------------------------------------------

/* The folder's own table of this name, if it has one that is not the target's; NULL: it has not. */
static bool own_table(bd_patient *out, const char *name, const bd_parameter *targets,
                      bd_parameter *place, bd_parameter **found, bd_error *err)
{
    char prefixed[64];
    const bd_tensor *tensor = bd_safetensors_find(out->draft->file, name);
    *found = NULL;
    if (!tensor) {
        snprintf(prefixed, sizeof prefixed, "dflash_module.%s", name);
        tensor = bd_safetensors_find(out->draft->file, prefixed);
    }
    if (!tensor || bd_draft_repeats(tensor, targets))
        return true;
    if (tensor->rank != 2 || tensor->shape[1] != targets->shape[1] ||
        tensor->shape[0] != targets->shape[0] || !bd_dtype_is_float(tensor->dtype))
        return bd_fail(err,
                       "\"%s\" of the draft has another shape than the target's, [%lld, %lld]: a "
                       "reduced vocabulary is not supported",
                       name, (long long)targets->shape[0], (long long)targets->shape[1]);
    bd_parameter_map(place, tensor->name, 2, tensor->shape, tensor->dtype, tensor->data);
    *found = place;
    return true;
}

bool bd_patient_open(const char *folder, bd_model *target, bd_dtype compute, bd_patient *out,
                     bd_error *err)
{
    char path[BD_PATH];
    bd_draft_config config;
    *out = (bd_patient){0};
    json_t *root = bd_path_join(path, folder, "config.json", err) ? bd_json_load(path, err) : NULL;
    bool ok = root && read_config(root, path, target, out, &config, err);
    json_decref(root);
    if (!ok || !(out->draft = bd_draft_open_as(&config, folder, target, compute, err)))
        return false;
    if (own_table(out, "lm_head.weight", target->head, &out->own[0], &out->head, err) &&
        own_table(out, "embed_tokens.weight", target->embedding, &out->own[1], &out->embedding,
                  err))
        return true;
    bd_patient_close(out);
    return bd_error_wrap(err, "%s", folder);
}

void bd_patient_close(bd_patient *patient)
{
    for (int i = 0; i < 2; i++)
        bd_parameter_free(&patient->own[i]);
    bd_draft_close(patient->draft);
    *patient = (bd_patient){0};
}
