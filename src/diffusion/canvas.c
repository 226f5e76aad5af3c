#include "diffusion/canvas.h"

#include <assert.h>
#include <string.h>

static const char *const alignments[BD_ALIGNMENT_COUNT] = {
    [BD_SAME_POSITION] = "same_position",
    [BD_SHIFTED] = "shifted",
};

static const char *const policies[BD_CANVAS_POLICY_COUNT] = {
    [BD_ALL_MASKED] = "all_masked",
    [BD_SEED_AND_MASK] = "seed_and_mask",
};

const char *bd_alignment_name(bd_alignment alignment)
{
    assert(alignment >= 0 && alignment < BD_ALIGNMENT_COUNT);
    return alignments[alignment];
}

const char *bd_canvas_policy_name(bd_canvas_policy policy)
{
    assert(policy >= 0 && policy < BD_CANVAS_POLICY_COUNT);
    return policies[policy];
}

bool bd_alignment_from_name(const char *name, bd_alignment *alignment, bd_error *err)
{
    for (int i = 0; i < BD_ALIGNMENT_COUNT; i++) {
        if (strcmp(name, alignments[i]) == 0) {
            *alignment = (bd_alignment)i;
            return true;
        }
    }
    return bd_fail(err, "logit_alignment is \"%s\", wanted same_position or shifted", name);
}

bool bd_canvas_policy_from_name(const char *name, bd_canvas_policy *policy, bd_error *err)
{
    for (int i = 0; i < BD_CANVAS_POLICY_COUNT; i++) {
        if (strcmp(name, policies[i]) == 0) {
            *policy = (bd_canvas_policy)i;
            return true;
        }
    }
    return bd_fail(err, "canvas_policy is \"%s\", wanted all_masked or seed_and_mask", name);
}

bool bd_canvas_make(const char *alignment, const char *policy, int64_t block_size, int64_t mask_id,
                    bd_canvas *canvas, bd_error *err)
{
    bd_canvas made = {.block_size = block_size};
    if (!bd_alignment_from_name(alignment, &made.alignment, err) ||
        !bd_canvas_policy_from_name(policy, &made.policy, err))
        return false;
    if (mask_id > INT32_MAX)
        return bd_fail(err, "mask_id is %lld, wanted at most %d", (long long)mask_id, INT32_MAX);
    made.mask_id = mask_id < 0 ? -1 : (int32_t)mask_id;
    if (!bd_canvas_check(&made, 0, err))
        return false;
    *canvas = made;
    return true;
}

bool bd_canvas_check(const bd_canvas *canvas, int64_t vocabulary, bd_error *err)
{
    if (canvas->alignment < 0 || canvas->alignment >= BD_ALIGNMENT_COUNT || canvas->policy < 0 ||
        canvas->policy >= BD_CANVAS_POLICY_COUNT)
        return bd_fail(err, "logit_alignment %d with canvas_policy %d is unknown",
                       (int)canvas->alignment, (int)canvas->policy);
    if ((canvas->alignment == BD_SHIFTED) != (canvas->policy == BD_SEED_AND_MASK))
        return bd_fail(err,
                       "logit_alignment %s does not go with canvas_policy %s, wanted same_position "
                       "with all_masked or shifted with seed_and_mask",
                       alignments[canvas->alignment], policies[canvas->policy]);
    int64_t least = canvas->policy == BD_SEED_AND_MASK ? 2 : 1;
    if (canvas->block_size < least)
        return bd_fail(err, "block_size is %lld, wanted at least %lld for canvas_policy %s",
                       (long long)canvas->block_size, (long long)least, policies[canvas->policy]);
    if (canvas->mask_id < 0)
        return bd_fail(err, "mask_id is %d, wanted at least 0", canvas->mask_id);
    if (vocabulary > 0 && canvas->mask_id >= vocabulary)
        return bd_fail(err, "mask_id is %d, wanted less than the vocabulary's %lld",
                       canvas->mask_id, (long long)vocabulary);
    return true;
}

bool bd_canvas_check_model(const bd_canvas *canvas, const bd_model_config *config, bd_error *err)
{
    if (!bd_canvas_check(canvas, config->vocabulary, err))
        return false;
    const char *taken = canvas->mask_id == config->pad   ? "pad"
                        : canvas->mask_id == config->bos ? "bos"
                                                         : NULL;
    for (int i = 0; i < config->stop_count; i++)
        if (config->stop[i] == canvas->mask_id)
            taken = "stop";
    if (taken)
        return bd_fail(err, "mask_id %d is the model's %s token, wanted a token of its own",
                       canvas->mask_id, taken);
    return true;
}

bool bd_canvas_from_model(const bd_model_config *config, bd_canvas *canvas, bd_error *err)
{
    if (config->diffusion.block_size == 0)
        return bd_fail(err, "the model's config.json has no \"block_diffusion\": a causal model, "
                            "wanted a block-diffusion one");
    bool shifted = config->diffusion.shifted;
    bd_canvas found = {
        .alignment = shifted ? BD_SHIFTED : BD_SAME_POSITION,
        .policy = shifted ? BD_SEED_AND_MASK : BD_ALL_MASKED,
        .block_size = config->diffusion.block_size,
        .mask_id = config->diffusion.mask_id < 0 || config->diffusion.mask_id > INT32_MAX
                       ? -1
                       : (int32_t)config->diffusion.mask_id,
    };
    if (!bd_canvas_check_model(&found, config, err))
        return bd_error_wrap(err, "config.json: block_diffusion");
    *canvas = found;
    return true;
}

void bd_canvas_to_model(const bd_canvas *canvas, bd_model_config *config)
{
    config->diffusion.block_size = canvas->block_size;
    config->diffusion.mask_id = canvas->mask_id;
    config->diffusion.shifted = canvas->alignment == BD_SHIFTED;
}
