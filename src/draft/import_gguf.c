#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "draft/export.h"
#include "format/gguf_names.h"
#include "format/json.h"
#include "model/gguf_model.h"

typedef struct {
    const bd_gguf *file;
    const char *path;
    bd_gguf_flavor flavor;
    bd_draft_config config;
} reading;

static const char *key(const reading *r, const char *mainline, const char *ik)
{
    return r->flavor == BD_FLAVOR_MAINLINE ? mainline : ik;
}

static bool take_taps(reading *r, bd_error *err)
{
    const char *name = key(r, "dflash.target_layers", "dflash-draft.dflash.target_layer_ids");
    int64_t count = bd_gguf_ints(r->file, name);
    if (count < 1 || count > BD_MOST_TAPS)
        return bd_fail(err, "%s: \"%s\" is no list of 1 to %d layers", r->path, name, BD_MOST_TAPS);
    r->config.tap_count = count;
    for (int64_t i = 0; i < count; i++) {
        int64_t tap = bd_gguf_int_at(r->file, name, i) - (r->flavor == BD_FLAVOR_MAINLINE);
        if (tap < -1 || tap >= BD_MOST_LAYERS)
            return bd_fail(err, "%s: \"%s\"[%lld] is %lld, no layer", r->path, name, (long long)i,
                           (long long)bd_gguf_int_at(r->file, name, i));
        r->config.taps[i] = tap;
    }
    return true;
}

/* Which head a file has shows in its tensors. */
static bool take_variant(reading *r, bd_error *err)
{
    bd_draft_config *c = &r->config;
    c->variant = &bd_draft_dflash;
    const bd_gguf_tensor *markov = bd_gguf_find(r->file, "markov_w1.weight");
    bool shifted = true;
    if (markov) {
        c->variant = &bd_draft_dspark;
        c->markov.rank = markov->shape[markov->rank - 1];
        c->markov.confidence = bd_gguf_find(r->file, "conf_proj.weight") != NULL;
        if (!bd_gguf_bool_if(r->file, "dflash.sample_from_anchor", &shifted, err))
            return false;
        return shifted || bd_fail(err,
                                  "%s: \"dflash.sample_from_anchor\" is false: bdlm's dspark "
                                  "drafts predict from the anchor",
                                  r->path);
    }
    if (!bd_gguf_find(r->file, "selector_hidden.weight"))
        return true;
    c->variant = &bd_draft_dflash2;
    return bd_gguf_int(r->file, "dflash.conv_kernel_size", 1, BD_MOST_BLOCK,
                       &c->convolution.kernel_size, err) &&
           bd_gguf_int(r->file, "dflash.conv_group_size", 1, 1 << 20, &c->convolution.group_size,
                       err) &&
           bd_gguf_int(r->file, "dflash.selector_rank", 1, 1 << 20, &c->selector.rank, err) &&
           bd_gguf_int(r->file, "dflash.selector_top_k", 1, 1 << 20, &c->selector.top_k, err);
}

static bool refuse_unknown(const reading *r, bd_error *err)
{
    static const char *const parts[] = {
        "sliding_window",     "logit_scale", "final_logit_softcapping",
        "dimension_sections", "value_scale", "backbone_rotary_base"};
    for (int64_t i = 0; i < bd_gguf_key_count(r->file); i++) {
        bd_gguf_value_type type, element;
        int64_t count;
        const char *name = bd_gguf_key(r->file, i, &type, &element, &count);
        for (size_t j = 0; j < sizeof parts / sizeof *parts; j++)
            if (!strncmp(name, "dflash", 6) && strstr(name, parts[j]))
                return bd_fail(err, "%s: \"%s\": bdlm does not know what it means for a draft",
                               r->path, name);
    }
    return true;
}

static bool take_config(reading *r, const bd_model_config *target, bd_error *err)
{
    bd_draft_config *c = &r->config;
    const char *architecture = bd_gguf_text(r->file, "general.architecture");
    if (!architecture || (strcmp(architecture, "dflash") && strcmp(architecture, "dflash-draft")))
        return bd_fail(err,
                       "%s: \"general.architecture\" is \"%.40s\", dflash or dflash-draft expected",
                       r->path, architecture ? architecture : "");
    r->flavor = strcmp(architecture, "dflash") ? BD_FLAVOR_IK : BD_FLAVOR_MAINLINE;
    const bd_gguf_tensor *fc = bd_gguf_find(r->file, key(r, "fc.weight", "dflash_fc.weight"));
    if (!fc)
        return bd_fail(err, "%s: tensor \"%s\" is missing", r->path,
                       key(r, "fc.weight", "dflash_fc.weight"));
    c->stack.family = BD_FAMILY_QWEN3;
    c->stack.qk_norm = true;
    c->stack.vocabulary = target->vocabulary;
    c->stack.dtype = bd_gguf_dtype(fc->type);
    c->stack.qkv_bias = c->stack.output_bias = bd_gguf_find(r->file, "blk.0.attn_q.bias") != NULL;
    c->sink = bd_gguf_find(r->file, "blk.0.attn_sinks.weight") != NULL;
    c->target_layers = target->layers;
    bool causal = false;
    if (!refuse_unknown(r, err) || !take_taps(r, err) || !take_variant(r, err) ||
        !bd_gguf_take_dimensions(r->file, r->path, architecture, &c->stack, err) ||
        !bd_gguf_int(r->file, key(r, "dflash.block_size", "dflash-draft.dflash.block_size"), 2,
                     BD_MOST_BLOCK, &c->block_size, err) ||
        !bd_gguf_int(r->file,
                     key(r, "tokenizer.ggml.mask_token_id", "dflash-draft.dflash.mask_token_id"), 0,
                     target->vocabulary - 1, &c->mask_id, err) ||
        !bd_gguf_bool_if(r->file,
                         key(r, "dflash.attention.causal", "dflash-draft.attention.causal"),
                         &causal, err))
        return false;
    if (c->stack.layers > BD_MOST_TAPS)
        return bd_fail(err, "%s: %lld layers, at most %d expected for a draft", r->path,
                       (long long)c->stack.layers, BD_MOST_TAPS);
    c->causality = causal ? BD_DRAFT_CAUSAL : BD_DRAFT_BIDIRECTIONAL;
    // The description is checked where every other one is: as the config.json it becomes.
    json_t *root = bd_draft_config_to_json(c);
    bool ok = bd_draft_config_parse(root, r->path, c, err);
    json_decref(root);
    return ok && bd_draft_config_fits(c, target, r->path, err);
}

/* Puts the file's values in place of a fresh draft's. F32 all through: what is narrower fits. */
static bool fill(const reading *r, bd_draft *draft, bd_error *err)
{
    if (bd_gguf_count(r->file) != draft->parameters.count)
        return bd_fail(err, "%s: %lld tensors, %lld expected for a %s draft", r->path,
                       (long long)bd_gguf_count(r->file), (long long)draft->parameters.count,
                       r->config.variant->projector_type);
    for (int64_t i = 0; i < draft->parameters.count; i++) {
        bd_parameter *p = draft->parameters.items[i];
        char name[BD_GGUF_NAME] = "?";
        const bd_gguf_tensor *t =
            bd_draft_gguf_name(p->name, r->flavor, name) ? bd_gguf_find(r->file, name) : NULL;
        if (!t)
            return bd_fail(err, "%s: tensor \"%s\" is missing", r->path, name);
        if (t->rank != p->rank || memcmp(t->shape, p->shape, (size_t)p->rank * sizeof *p->shape))
            return bd_fail(err, "%s: tensor \"%s\" has another shape than \"%s\" of this draft",
                           r->path, name, p->name);
        if (!bd_gguf_read_f32(t, p->value, err))
            return bd_error_wrap(err, "%s", r->path);
    }
    return true;
}

/* The narrowest dtype that holds the matrices; whether the vectors fit in it too. */
static bool vectors_fit(const bd_draft *draft, bd_dtype dtype)
{
    for (int64_t i = 0; i < draft->parameters.count; i++) {
        const bd_parameter *p = draft->parameters.items[i];
        for (int64_t j = 0; j < p->count; j++) {
            float back;
            uint16_t half;
            bd_from_f32(dtype, p->value + j, &half, 1);
            bd_to_f32(dtype, &half, &back, 1);
            if (memcmp(&back, p->value + j, sizeof back))
                return false;
        }
    }
    return true;
}

bool bd_draft_import_gguf(const char *path, bd_model *target, const char *folder, bd_error *err)
{
    reading r = {.path = path};
    bd_gguf *file = bd_gguf_open(path, err);
    r.file = file;
    bd_draft *draft = file && take_config(&r, &target->config, err)
                          ? bd_draft_create(&r.config, target, 0, BD_F32, err)
                          : NULL;
    bool ok = draft && fill(&r, draft, err);
    if (ok) {
        bd_dtype dtype = r.config.stack.dtype;
        if (dtype != BD_F32 && !vectors_fit(draft, dtype))
            dtype = BD_F32;
        ok = bd_draft_save(draft, folder, dtype, err);
    }
    bd_draft_close(draft);
    bd_gguf_close(file);
    return ok;
}
