#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "draft/export.h"
#include "format/gguf_names.h"
#include "format/gguf_tokenizer.h"
#include "format/json.h"
#include "model/gguf_model.h"

static const char *const architectures[] = {"dflash", "dflash-draft"};
enum { IK_MOST_TAPS = 8 };

// --- names ---------------------------------------------------------------------------------------

bool bd_draft_gguf_name(const char *name, bd_gguf_flavor flavor, char out[BD_GGUF_NAME])
{
    static const char *const whole[][3] = {
        {"fc.weight", "fc.weight", "dflash_fc.weight"},
        {"hidden_norm.weight", "enc.output_norm.weight", "dflash_hidden_norm.weight"},
        {"norm.weight", "output_norm.weight", "output_norm.weight"},
        {"markov_w1.weight", "markov_w1.weight", "markov_w1.weight"},
        {"markov_w2.weight", "markov_w2.weight", "markov_w2.weight"},
        {"confidence_proj.weight", "conf_proj.weight", "conf_proj.weight"},
        {"confidence_proj.bias", "conf_proj.bias", "conf_proj.bias"},
        {"candidate_selector.predecessor_codebook", "selector_predecessor.weight", NULL},
        {"candidate_selector.successor_codebook", "selector_successor.weight", NULL},
        {"candidate_selector.hidden_projection.weight", "selector_hidden.weight", NULL}};
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (!strcmp(name, whole[i][0])) {
            if (whole[i][1 + flavor])
                snprintf(out, BD_GGUF_NAME, "%s", whole[i][1 + flavor]);
            return whole[i][1 + flavor] != NULL;
        }
    char *part;
    if (strncmp(name, "layers.", 7) != 0)
        return false;
    long long layer = strtoll(name + 7, &part, 10);
    if (*part != '.')
        return false;
    if (flavor == BD_FLAVOR_IK && !strcmp(part + 1, "post_attention_layernorm.weight")) {
        snprintf(out, BD_GGUF_NAME, "blk.%lld.post_attention_norm.weight", layer);
        return true;
    }
    return bd_gguf_layer_name(part + 1, layer, out);
}

// --- what a flavour cannot say -------------------------------------------------------------------

static bool check_variant(const bd_draft_config *c, bd_gguf_flavor flavor, bd_error *err)
{
    bool ik = flavor == BD_FLAVOR_IK;
    if (c->variant == &bd_draft_domino || c->variant == &bd_draft_lilicorr ||
        (ik && c->variant == &bd_draft_dflash2))
        return bd_fail(err, "the %s flavour has no %s head: it cannot be exported to GGUF",
                       ik ? "ik" : "mainline", c->variant->projector_type);
    if (c->variant == &bd_draft_dspark && c->markov.kind != BD_MARKOV_VANILLA)
        return bd_fail(err, "markov_head_type is \"%s\": GGUF drafts have the vanilla head only",
                       c->markov.kind == BD_MARKOV_GATED ? "gated" : "rnn");
    if (c->variant == &bd_draft_dflash2 &&
        c->stack.hidden < c->selector.top_k * (c->selector.top_k + 1))
        return bd_fail(err,
                       "hidden_size %lld is below selector_top_k * (selector_top_k + 1) = %lld, "
                       "which the mainline flavour needs",
                       (long long)c->stack.hidden,
                       (long long)(c->selector.top_k * (c->selector.top_k + 1)));
    return true;
}

static bool check_taps(const bd_draft_config *c, int64_t layers, bd_gguf_flavor flavor,
                       bd_error *err)
{
    bool ik = flavor == BD_FLAVOR_IK;
    if (ik && c->tap_count > IK_MOST_TAPS)
        return bd_fail(err, "target_layer_ids lists %lld layers, the ik flavour takes at most %d",
                       (long long)c->tap_count, IK_MOST_TAPS);
    for (int64_t i = 0; i < c->tap_count; i++) {
        int64_t tap = c->taps[i], most = ik ? layers - 1 : layers - 2;
        if (tap > most || (ik && tap < 0))
            return bd_fail(err,
                           "target_layer_ids has layer %lld, %d to %lld can be read by the %s "
                           "flavour's program from a target of %lld layers",
                           (long long)tap, ik ? 0 : -1, (long long)most, ik ? "ik" : "mainline",
                           (long long)layers);
        for (int64_t j = 0; ik && j < i; j++)
            if (c->taps[j] == tap)
                return bd_fail(err,
                               "target_layer_ids has layer %lld twice: the ik flavour refuses it",
                               (long long)tap);
    }
    return true;
}

static bool can_say(const bd_draft *draft, bd_gguf_flavor flavor, bd_error *err)
{
    const bd_draft_config *c = &draft->config;
    bool windows = c->window > 0, ik = flavor == BD_FLAVOR_IK;
    for (int64_t i = 0; i < c->stack.layers; i++)
        windows = windows || c->stack.layer_window[i] > 0;
    if (windows)
        return bd_fail(err, "a draft with a window: it means something else in GGUF programs (it "
                            "bounds the block too), so it is not exported");
    if (c->sink && ik)
        return bd_fail(err, "attention_sink_bias: the ik flavour has no sinks");
    if (c->stack.qkv_bias && !ik)
        return bd_fail(err, "attention_bias: the mainline flavour has no biases (ik has)");
    if (!bd_gguf_check_rope(&c->stack.rope, err))
        return false;
    if (c->block_size < 2)
        return bd_fail(err, "block_size is %lld, above 1 expected", (long long)c->block_size);
    return check_variant(c, flavor, err) &&
           check_taps(c, draft->target->config.layers, flavor, err);
}

// --- writing -------------------------------------------------------------------------------------

static void put_taps(bd_gguf_out *out, const bd_draft_config *c, bd_gguf_flavor flavor)
{
    int32_t taps[BD_MOST_TAPS];
    // Mainline counts what goes into a layer, everybody else what comes out of it.
    for (int64_t i = 0; i < c->tap_count; i++)
        taps[i] = (int32_t)(c->taps[i] + (flavor == BD_FLAVOR_MAINLINE));
    bd_gguf_put_i32s(out,
                     flavor == BD_FLAVOR_MAINLINE ? "dflash.target_layers"
                                                  : "dflash-draft.dflash.target_layer_ids",
                     taps, c->tap_count);
}

static void put_keys(bd_gguf_out *out, const bd_draft *draft, bd_gguf_flavor flavor)
{
    const bd_draft_config *c = &draft->config;
    const char *architecture = architectures[flavor];
    bool causal = c->causality == BD_DRAFT_CAUSAL, dspark = c->variant == &bd_draft_dspark;
    bd_gguf_put_text(out, "general.architecture", architecture);
    bd_gguf_put_text(out, "general.type", "model");
    bd_gguf_put_u32(out, "general.quantization_version", 2);
    bd_gguf_put_dimensions(out, architecture, &c->stack);
    put_taps(out, c, flavor);
    if (flavor == BD_FLAVOR_MAINLINE) {
        bd_gguf_put_u32(out, "dflash.block_size", c->block_size);
        bd_gguf_put_bool(out, "dflash.attention.causal", causal);
    } else {
        bd_gguf_put_u32(out, "dflash-draft.dflash.block_size", c->block_size);
        bd_gguf_put_bool(out, "dflash-draft.attention.causal", causal);
        bd_gguf_put_u32(out, "dflash-draft.dflash.mask_token_id", c->mask_id);
        bd_gguf_put_u32(out, "dflash-draft.dflash.n_target_features",
                        c->tap_count * draft->target->config.hidden);
    }
    if (dspark && flavor == BD_FLAVOR_MAINLINE) {
        bd_gguf_put_bool(out, "dflash.sample_from_anchor", true);
        bd_gguf_put_bool(out, "dflash.has_confidence_head", c->markov.confidence);
    }
    if (c->variant == &bd_draft_dflash2) {
        bd_gguf_put_u32(out, "dflash.conv_kernel_size", c->convolution.kernel_size);
        bd_gguf_put_u32(out, "dflash.conv_group_size", c->convolution.group_size);
        bd_gguf_put_u32(out, "dflash.selector_rank", c->selector.rank);
        bd_gguf_put_u32(out, "dflash.selector_top_k", c->selector.top_k);
    }
}

static bool put_tensors(bd_gguf_out *out, const bd_draft *draft, bd_gguf_flavor flavor,
                        const bd_gguf_type *type, bd_error *err)
{
    for (int64_t i = 0; i < draft->parameters.count; i++) {
        const bd_parameter *p = draft->parameters.items[i];
        char name[BD_GGUF_NAME];
        if (!bd_draft_gguf_name(p->name, flavor, name))
            return bd_fail(err, "tensor \"%s\" has no name in GGUF drafts", p->name);
        bd_gguf_put_tensor(out, name, bd_gguf_tensor_type(p, type), p->rank, p->shape, p->dtype,
                           p->data);
    }
    return true;
}

bool bd_draft_export_gguf(const bd_draft *draft, const bd_tokenizer *tokenizer,
                          bd_gguf_flavor flavor, const bd_gguf_type *type, const char *path,
                          bd_error *err)
{
    const bd_model_config *target = &draft->target->config;
    bd_gguf_special special = {.bos = target->bos,
                               .eos = target->stop_count ? target->stop[0] : -1,
                               .pad = target->pad,
                               .mask = flavor == BD_FLAVOR_MAINLINE ? draft->config.mask_id : -1};
    if (!can_say(draft, flavor, err))
        return false;
    bd_gguf_out *out = bd_gguf_begin();
    if (!out)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", path);
    put_keys(out, draft, flavor);
    if (!bd_gguf_put_tokenizer(out, tokenizer, target->vocabulary, &special, err) ||
        !put_tensors(out, draft, flavor, type, err)) {
        bd_gguf_abandon(out);
        return false;
    }
    return bd_gguf_commit(out, path, err);
}
