#include "cli/objective.h"

#include <stdio.h>
#include <string.h>

#include "draft/draft.h"
#include "model/vocabulary.h"

// --- the mask token ------------------------------------------------------------------------------

static int32_t spelled_mask(const bd_tokenizer *tokenizer)
{
    static const char *const spellings[] = {"<|mask|>", "<mask>", "[MASK]"};
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++) {
        int32_t id = bd_tokenizer_find(tokenizer, spellings[i], strlen(spellings[i]));
        if (id >= 0)
            return id;
    }
    return -1;
}

/* Decision 15: named or known, or made for the purpose; never pad, begin or end, which
 * bd_canvas_check_model sees to. */
static int64_t mask_token(const bd_recipe *recipe, bd_tokenizer *tokenizer,
                          const bd_model_config *start, bd_objective_choice *out, bd_error *err)
{
    int64_t id = bd_recipe_int(recipe, "objective.mask_id");
    out->mask_origin = "objective.mask_id";
    if (id >= 0)
        return id;
    out->mask_origin = "the model's";
    if (start && start->diffusion.block_size > 0)
        return start->diffusion.mask_id;
    out->mask_origin = "the tokenizer's mask token";
    if ((id = bd_tokenizer_role(tokenizer, BD_ROLE_MASK)) >= 0)
        return id;
    out->mask_origin = "found in the tokenizer by its name";
    if ((id = spelled_mask(tokenizer)) < 0) {
        out->mask_origin = "added to the tokenizer";
        out->new_mask = true;
        id = bd_tokenizer_add(tokenizer, "<|mask|>", true, err);
    }
    return id >= 0 && bd_tokenizer_set_role(tokenizer, BD_ROLE_MASK, (int32_t)id, err) ? id : -1;
}

bool bd_objective_resolve(const bd_recipe *recipe, const char *command, bd_tokenizer *tokenizer,
                          const bd_model_config *start, bd_objective_choice *out, bd_error *err)
{
    *out = (bd_objective_choice){0};
    bool trained_in_blocks = start && start->diffusion.block_size > 0;
    if (!bd_recipe_is(recipe, "objective.kind", "block_diffusion"))
        return !trained_in_blocks ||
               bd_fail(err,
                       "objective.kind causal_lm: the model was trained in blocks of %lld "
                       "that see themselves, its targets would leak; block_diffusion wanted",
                       (long long)start->diffusion.block_size);
    const char *alignment = bd_recipe_word(recipe, "objective.logit_alignment");
    const char *policy = bd_recipe_word(recipe, "objective.canvas_policy");
    int64_t block_size = bd_recipe_int(recipe, "objective.block_size");
    bool open = !strcmp(bd_recipe_origin(recipe, "objective.logit_alignment"), "default") &&
                !strcmp(bd_recipe_origin(recipe, "objective.canvas_policy"), "default");
    if (trained_in_blocks && open) {
        alignment = start->diffusion.shifted ? "shifted" : "same_position";
        policy = start->diffusion.shifted ? "seed_and_mask" : "all_masked";
    }
    if (trained_in_blocks && !strcmp(bd_recipe_origin(recipe, "objective.block_size"), "default"))
        block_size = start->diffusion.block_size;
    // The pair is checked before the tokenizer is touched; 0 stands in for a token not known yet.
    if (!bd_canvas_make(alignment, policy, block_size, 0, &out->canvas, err))
        return false;
    int64_t mask = mask_token(recipe, tokenizer, start, out, err);
    if (mask < 0 || !bd_canvas_make(alignment, policy, block_size, mask, &out->canvas, err))
        return false;
    fprintf(stderr, "%s: blocks of %lld, %s, %s; mask token %lld (%s)\n", command,
            (long long)block_size, alignment, policy, (long long)mask, out->mask_origin);
    return true;
}

bool bd_objective_fit(const bd_objective_choice *choice, const char *command, int64_t old_tokens,
                      bd_model *model, bd_error *err)
{
    if (choice->canvas.block_size == 0)
        return true;
    int64_t mask = choice->canvas.mask_id, rows = model->config.vocabulary;
    if (choice->new_mask && old_tokens > 0) {
        if (mask >= rows && !bd_model_grow_vocabulary(model, mask + 1, err))
            return false;
        // Also where the embedding has a row to spare: no token has used it, so it never learned.
        int64_t known = old_tokens < rows ? old_tokens : rows;
        if (!bd_model_mean_token(model, mask, known < mask ? known : mask, err))
            return false;
        fprintf(stderr, "%s: the mask token starts as the mean of %lld embedding rows%s\n", command,
                (long long)known, mask >= rows ? ", in a row of its own" : "");
    }
    if (!bd_canvas_check_model(&choice->canvas, &model->config, err))
        return bd_error_wrap(err, "objective.mask_id");
    bd_arena *scratch = bd_arena_create(0, err);
    if (!scratch)
        return false;
    double ratio = bd_draft_mask_norm_ratio(model, mask, scratch);
    bd_arena_destroy(scratch);
    if (ratio < 0.01)
        fprintf(stderr, "%s: warning: the mask token's embedding has %.2g of the median norm\n",
                command, ratio);
    return true;
}

// --- the task ------------------------------------------------------------------------------------

static bool padding(const bd_recipe *recipe, const bd_objective_choice *choice,
                    const bd_tokenizer *tokenizer, bd_padding *out, bd_error *err)
{
    int32_t end = bd_tokenizer_role(tokenizer, BD_ROLE_EOS);
    int32_t pad = bd_tokenizer_role(tokenizer, BD_ROLE_PAD);
    *out = (bd_padding){.pad_id = pad >= 0   ? pad
                                  : end >= 0 ? end
                                             : 0,
                        .end_id = end,
                        .block_size = choice->canvas.block_size};
    if (!bd_recipe_has(recipe, "data.pad_policy")) {
        bool blocks = choice->canvas.block_size > 0 && end >= 0;
        out->policy = blocks ? BD_PAD_TO_BLOCK_END : BD_PAD_NONE;
        return true;
    }
    return bd_pad_policy_from_name(bd_recipe_word(recipe, "data.pad_policy"), &out->policy, err);
}

bool bd_objective_options(const bd_recipe *recipe, const bd_objective_choice *choice,
                          const bd_tokenizer *tokenizer, bd_document_task_options *options,
                          bd_error *err)
{
    options->canvas = choice->canvas;
    options->rows.length = bd_recipe_int(recipe, "data.sequence_length");
    options->rows.packing = bd_recipe_bool(recipe, "data.packing");
    options->min_noise = bd_recipe_number(recipe, "objective.min_noise");
    options->inverse_noise = bd_recipe_is(recipe, "objective.noise_weighting", "inverse");
    options->completion_only = bd_recipe_bool(recipe, "data.completion_only");
    options->batch_rows = bd_recipe_int(recipe, "train.batch_size");
    options->micro_batches = bd_recipe_int(recipe, "train.grad_accum");
    options->seed = (uint64_t)bd_recipe_int(recipe, "data.shuffle_seed");
    options->z_loss = (float)bd_recipe_number(recipe, "objective.z_loss_multiplier");
    return padding(recipe, choice, tokenizer, &options->rows.padding, err) &&
           bd_train_layout_from_name(bd_recipe_word(recipe, "objective.train_layout"),
                                     &options->layout, err);
}
