#include "draft/export.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "format/json.h"

enum { LAYOUTS = 4, NAME = 240 };
static const char *const layout_names[LAYOUTS] = {"modelopt", "vllm", "specforge", "zlab"};

/* Which variants the programs behind a layout load. */
static bool knows(bd_draft_layout layout, const bd_draft_variant *variant)
{
    bool plain = variant == &bd_draft_dflash || variant == &bd_draft_dflash2;
    switch (layout) {
    case BD_LAYOUT_MODELOPT:
        return true;
    case BD_LAYOUT_VLLM:
        return variant != &bd_draft_domino;
    case BD_LAYOUT_SPECFORGE:
        return variant != &bd_draft_lilicorr;
    case BD_LAYOUT_ZLAB:
        return plain;
    }
    return false;
}

/* A variant's first spelling of a name is the one newer exports and servers use; DSpark's flat
 * names are ModelOpt's own. */
static bool respells(bd_draft_layout layout, const bd_draft_variant *variant)
{
    return variant->aliases && !(variant == &bd_draft_dspark && layout == BD_LAYOUT_MODELOPT);
}

static void exported_name(const bd_draft *draft, bd_draft_layout layout, const char *name,
                          char out[NAME])
{
    const bd_draft_variant *variant = draft->config.variant;
    snprintf(out, NAME, "%s", name);
    if (!respells(layout, variant))
        return;
    for (const char *const *alias = variant->aliases; *alias; alias += 2) {
        size_t length = strlen(alias[1]);
        if (strncmp(name, alias[1], length))
            continue;
        snprintf(out, NAME, "%s%s", alias[0], name + length);
        return;
    }
}

/* What single programs look for besides ModelOpt's fields. */
static void add_fields(const bd_draft *draft, bd_draft_layout layout, json_t *root)
{
    const bd_draft_config *c = &draft->config;
    json_t *nested = json_object_get(root, "dflash_config");
    if (layout == BD_LAYOUT_MODELOPT)
        return;
    json_object_set_new(nested, "block_size", json_integer(c->block_size));
    if (layout == BD_LAYOUT_VLLM || layout == BD_LAYOUT_SPECFORGE)
        json_object_set_new(nested, "sample_from_anchor",
                            json_boolean(c->variant->label_shift == 1));
    if (c->causality != BD_DRAFT_BY_LAYER && layout != BD_LAYOUT_SPECFORGE)
        json_object_set_new(root, "is_causal", json_boolean(c->causality == BD_DRAFT_CAUSAL));
    if (c->variant == &bd_draft_dspark && layout == BD_LAYOUT_VLLM) {
        json_object_set_new(root, "markov_rank", json_integer(c->markov.rank));
        json_object_set_new(root, "enable_confidence_head", json_boolean(c->markov.confidence));
    }
}

bool bd_draft_export(const bd_draft *draft, bd_draft_layout layout, const char *folder,
                     bd_error *err)
{
    char path[BD_PATH];
    int64_t count = draft->parameters.count;
    if (!knows(layout, draft->config.variant))
        return bd_fail(err, "layout %s: its programs do not load %s drafts (modelopt does)",
                       layout_names[layout], draft->config.variant->projector_type);
    bd_tensor *tensors = calloc((size_t)count, sizeof *tensors);
    char(*names)[NAME] = calloc((size_t)count, sizeof *names);
    bool ok = tensors && names ? true : bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", folder);
    for (int64_t i = 0; ok && i < count; i++) {
        const bd_parameter *p = draft->parameters.items[i];
        exported_name(draft, layout, p->name, names[i]);
        tensors[i] = (bd_tensor){.name = names[i],
                                 .dtype = p->dtype,
                                 .rank = p->rank,
                                 .count = p->count,
                                 .data = p->data};
        memcpy(tensors[i].shape, p->shape, sizeof p->shape);
    }
    ok = ok && bd_folder_make(folder, err) &&
         bd_path_join(path, folder, "model.safetensors", err) &&
         bd_safetensors_write(path, tensors, count, NULL, err) &&
         bd_path_join(path, folder, "config.json", err);
    free(names);
    free(tensors);
    if (!ok)
        return false;
    bd_draft_config config = draft->config;
    config.stack.dtype = draft->fc->dtype; // the field says what the tensors are
    config.target_layers = draft->target->config.layers;
    json_t *root = bd_draft_config_to_json(&config);
    add_fields(draft, layout, root);
    ok = bd_json_save(root, path, err);
    json_decref(root);
    return ok;
}
