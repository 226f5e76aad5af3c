/* bdlm draft train - a drafter for a causal target, trained beside it on text. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/recipe_options.h"
#include "cli/training.h"
#include "draft/dspark.h"
#include "train/draft_task.h"

typedef struct {
    bd_tokenizer *tokenizer;
    bd_model *target;
    bd_draft *draft;
    bd_corpus corpus;
    bd_task task;
    char start[64];
} draft_training;

/* The mask token, and where it came from; nothing is invented (decision 15). */
static bool mask_token(const bd_recipe *recipe, const draft_training *t, int64_t *mask,
                       bd_error *err)
{
    if (bd_recipe_has(recipe, "draft.mask_token_id")) {
        *mask = bd_recipe_int(recipe, "draft.mask_token_id");
        fprintf(stderr, "draft: mask_token_id %lld (%s)\n", (long long)*mask,
                bd_recipe_origin(recipe, "draft.mask_token_id"));
    } else {
        *mask = bd_tokenizer_role(t->tokenizer, BD_ROLE_MASK);
        if (*mask < 0)
            return bd_fail(err,
                           "draft.mask_token_id is required: the tokenizer names no mask token");
        fprintf(stderr, "draft: mask_token_id %lld (the tokenizer's mask token)\n",
                (long long)*mask);
    }
    if (!bd_draft_mask_check(*mask, &t->target->config, err))
        return false;
    bd_arena *scratch = bd_arena_create(0, err);
    if (!scratch)
        return false;
    double ratio = bd_draft_mask_norm_ratio(t->target, *mask, scratch);
    bd_arena_destroy(scratch);
    if (ratio < 0.01)
        fprintf(stderr,
                "draft: warning: the mask token's embedding has %.2g of the median norm: never "
                "trained?\n",
                ratio);
    return true;
}

static bool sizes(const bd_recipe *recipe, bd_draft_config *config, bd_error *err)
{
    static const char *const names[] = {"draft.num_attention_heads", "draft.num_key_value_heads",
                                        "draft.head_dim", "draft.intermediate_size"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!bd_recipe_require(recipe, names[i],
                               "to train a draft: nothing is taken from the target", err))
            return false;
    config->stack.layers = bd_recipe_int(recipe, "draft.num_hidden_layers");
    config->stack.query_heads = bd_recipe_int(recipe, names[0]);
    config->stack.key_heads = bd_recipe_int(recipe, names[1]);
    config->stack.head_size = bd_recipe_int(recipe, names[2]);
    config->stack.intermediate = bd_recipe_int(recipe, names[3]);
    return true;
}

static bool require(const bd_recipe *recipe, const char *const *names, const char *why,
                    bd_error *err)
{
    for (; *names; names++)
        if (!bd_recipe_require(recipe, *names, why, err))
            return false;
    return true;
}

/* The sizes of what DFlash2 has beyond the backbone. */
static bool dflash2_head(const bd_recipe *recipe, bd_draft_config *config, bd_error *err)
{
    static const char *const names[] = {"draft.conv_kernel_size", "draft.conv_group_size",
                                        "draft.selector_rank", "draft.selector_top_k", NULL};
    if (!require(recipe, names, "for a dflash2 draft", err))
        return false;
    config->convolution.kernel_size = bd_recipe_int(recipe, names[0]);
    config->convolution.group_size = bd_recipe_int(recipe, names[1]);
    config->selector.rank = bd_recipe_int(recipe, names[2]);
    config->selector.top_k = bd_recipe_int(recipe, names[3]);
    return true;
}

static bool dspark_head(const bd_recipe *recipe, bd_draft_config *config, bd_error *err)
{
    if (!bd_recipe_require(recipe, "draft.markov_rank", "for a dspark draft", err))
        return false;
    config->markov.rank = bd_recipe_int(recipe, "draft.markov_rank");
    config->markov.confidence = bd_recipe_bool(recipe, "draft.use_confidence_head");
    return bd_markov_from_name(bd_recipe_word(recipe, "draft.markov_head_type"),
                               &config->markov.kind, err);
}

static bool domino_head(const bd_recipe *recipe, bd_draft_config *config, bd_error *err)
{
    static const char *const names[] = {"draft.emb_dim", "draft.gru_hidden_dim", NULL};
    if (!require(recipe, names, "for a domino draft", err))
        return false;
    config->domino.width = bd_recipe_int(recipe, names[0]);
    config->domino.state = bd_recipe_int(recipe, names[1]);
    config->domino.pure_prefix = bd_recipe_int(recipe, "draft.pure_draft_prefix_len");
    return true;
}

static int64_t int_or(const bd_recipe *recipe, const char *name, int64_t fallback)
{
    return bd_recipe_has(recipe, name) ? bd_recipe_int(recipe, name) : fallback;
}

static bool lilicorr_head(const bd_recipe *recipe, bd_draft_config *config, bd_error *err)
{
    static const char *const names[] = {
        "draft.lilicorr_candidate_topk", "draft.lilicorr_num_layers",
        "draft.lilicorr_num_heads",      "draft.lilicorr_factor_dim",
        "draft.lilicorr_mlp_ratio",      "draft.lilicorr_vector_eps",
        "draft.lilicorr_logit_scale",    NULL};
    if (!require(recipe, names, "for a lilicorr draft", err))
        return false;
    config->lilicorr =
        (bd_lilicorr_config){.top_k = bd_recipe_int(recipe, names[0]),
                             .hidden = int_or(recipe, "draft.lilicorr_hidden_size", 0),
                             .layers = bd_recipe_int(recipe, names[1]),
                             .heads = bd_recipe_int(recipe, names[2]),
                             .factor = bd_recipe_int(recipe, names[3]),
                             .mlp_ratio = bd_recipe_number(recipe, names[4]),
                             .vector_eps = bd_recipe_number(recipe, names[5]),
                             .logit_scale = bd_recipe_number(recipe, names[6])};
    config->convolution.kernel_size = int_or(recipe, "draft.conv_kernel_size", 0);
    config->convolution.group_size = int_or(recipe, "draft.conv_group_size", 0);
    return true;
}

static bool head(const bd_recipe *recipe, bd_draft_config *config, bd_error *err)
{
    if (config->variant == &bd_draft_dspark)
        return dspark_head(recipe, config, err);
    if (config->variant == &bd_draft_domino)
        return domino_head(recipe, config, err);
    if (config->variant == &bd_draft_dflash2)
        return dflash2_head(recipe, config, err);
    if (config->variant == &bd_draft_lilicorr)
        return lilicorr_head(recipe, config, err);
    return true;
}

/* Negative: not given. */
static float number_or_unset(const bd_recipe *recipe, const char *name)
{
    return bd_recipe_has(recipe, name) ? (float)bd_recipe_number(recipe, name) : -1;
}

/* Options of the objective that only one variant has. */
static void objective_of_variant(const bd_recipe *recipe, bd_draft_objective *objective)
{
    objective->ce_alpha = (float)bd_recipe_number(recipe, "draft.ce_loss_alpha");
    objective->l1_alpha = (float)bd_recipe_number(recipe, "draft.l1_loss_alpha");
    objective->confidence_alpha = (float)bd_recipe_number(recipe, "draft.confidence_head_alpha");
    objective->slot_loss = bd_recipe_is(recipe, "draft.lk_loss_type", "tv")       ? BD_SLOT_TV
                           : bd_recipe_is(recipe, "draft.lk_loss_type", "lambda") ? BD_SLOT_LAMBDA
                                                                                  : BD_SLOT_CE;
    objective->ce_scale = (float)bd_recipe_number(recipe, "draft.lk_ce_scale");
    objective->ce_decay = (float)bd_recipe_number(recipe, "draft.lk_ce_decay");
    objective->selector_alpha = (float)bd_recipe_number(recipe, "draft.selector_loss_alpha");
    objective->lattice_ce = number_or_unset(recipe, "draft.lilicorr_w_ce");
    objective->lattice_margin_weight = number_or_unset(recipe, "draft.lilicorr_w_margin");
    objective->lattice_penalty = number_or_unset(recipe, "draft.lilicorr_w_pen");
    objective->lattice_margin = number_or_unset(recipe, "draft.lilicorr_margin");
}

static bool describe(const bd_recipe *recipe, const draft_training *t, bd_draft_config *config,
                     bd_error *err)
{
    *config = bd_draft_config_default();
    if (!sizes(recipe, config, err) || !mask_token(recipe, t, &config->mask_id, err))
        return false;
    config->variant = bd_draft_variant_find(bd_recipe_word(recipe, "draft.projector_type"), err);
    if (!config->variant || !head(recipe, config, err))
        return false;
    config->block_size = bd_recipe_int(recipe, "draft.block_size");
    config->window = bd_recipe_has(recipe, "draft.swa_window_size")
                         ? bd_recipe_int(recipe, "draft.swa_window_size")
                         : 0;
    config->causality = bd_recipe_is(recipe, "draft.draft_attention", "causal")
                            ? BD_DRAFT_CAUSAL
                            : BD_DRAFT_BIDIRECTIONAL;
    int64_t taps;
    const int64_t *ids = bd_recipe_ints(recipe, "draft.target_layer_ids", &taps);
    if (taps > BD_MOST_TAPS)
        return bd_fail(err, "draft.target_layer_ids: %lld layers, at most %d expected",
                       (long long)taps, BD_MOST_TAPS);
    config->tap_count = taps;
    for (int64_t i = 0; i < taps; i++)
        config->taps[i] = ids[i];
    return bd_draft_config_complete(config, &t->target->config, err);
}

static bool prepare(draft_training *t, const bd_recipe *recipe, bd_error *err)
{
    bd_dtype compute = bd_recipe_dtype(recipe, "train.dtype");
    const char *folder = bd_recipe_text(recipe, "model.path");
    const char *tokenizer = bd_recipe_text(recipe, "model.tokenizer");
    uint64_t seed = (uint64_t)bd_recipe_int(recipe, "train.seed");
    bd_draft_config config;
    if (!folder)
        return bd_fail_as(err, BD_ERROR_USAGE, "--path FOLDER is required: the target model");
    if (!(t->tokenizer = bd_tokenizer_open(tokenizer ? tokenizer : folder, err)) ||
        !(t->target = bd_model_open(folder, compute, err)) || !describe(recipe, t, &config, err) ||
        !(t->draft = bd_draft_create(&config, t->target, seed, compute, err)) ||
        !bd_draft_train(t->draft, err) ||
        !bd_training_corpus(recipe, t->tokenizer, &t->corpus, err))
        return false;
    snprintf(t->start, sizeof t->start, "new, seed %llu", (unsigned long long)seed);
    bd_draft_task_options options = {
        .draft = t->draft,
        .tokens = t->corpus.tokens,
        .token_count = t->corpus.count,
        .sequence_length = bd_recipe_int(recipe, "data.sequence_length"),
        .batch_rows = bd_recipe_int(recipe, "train.batch_size"),
        .micro_batches = bd_recipe_int(recipe, "train.grad_accum"),
        .anchors = bd_recipe_int(recipe, "draft.num_anchors"),
        .steps = bd_recipe_int(recipe, "train.max_steps"),
        .lambda_start = bd_recipe_number(recipe, "draft.lambda_base_start"),
        .lambda_ratio = bd_recipe_number(recipe, "draft.lambda_base_decay_ratio"),
        .seed = seed,
        .save_dtype = BD_F32,
        .start = t->start};
    bool dpace = bd_recipe_is(recipe, "draft.loss_objective", "dpace");
    options.objective = (bd_draft_objective){
        .weighting = {.objective = dpace ? BD_WEIGHT_DPACE : BD_WEIGHT_DECAY,
                      .decay = (float)bd_recipe_number(recipe, "draft.loss_decay_factor"),
                      .alpha = (float)bd_recipe_number(recipe, "draft.dpace_alpha")},
        .distill = bd_recipe_bool(recipe, "draft.self_logit_distillation")};
    objective_of_variant(recipe, &options.objective);
    options.evaluation_rows = bd_training_held_out(recipe, bd_draft_task_rows(&options), 64);
    fprintf(stderr, "draft: %.2f million parameters, %lld layers, block %lld, reads layers",
            (double)bd_parameters_total(&t->draft->parameters) / 1e6,
            (long long)config.stack.layers, (long long)config.block_size);
    for (int64_t i = 0; i < config.tap_count; i++)
        fprintf(stderr, " %lld", (long long)config.taps[i]);
    fprintf(stderr, " of %lld; %lld rows of %lld tokens, %lld held out\n",
            (long long)t->target->config.layers, (long long)bd_draft_task_rows(&options),
            (long long)options.sequence_length, (long long)options.evaluation_rows);
    return bd_draft_task_create(&options, &t->task, err);
}

int bd_command_draft_train(int argc, char **argv)
{
    bd_run_arguments run = {.argc = argc, .argv = argv};
    // `draft` first: --num-hidden-layers is the draft's. The target's sizes come from its folder.
    bd_recipe_arguments recipe = {
        .sections = {"draft", "train", "data", "model", "log", "parallel"}};
    const bd_option list[] = {
        {"out", "o", BD_ARGUMENT_TEXT, "RUN", "the run folder", &run.run, 0, 0, false},
        {"resume", NULL, BD_ARGUMENT_FLAG, NULL, "go on from the newest checkpoint in RUN",
         &run.resume, 0, 0, false},
    };
    const bd_options options = {
        .command = "draft train",
        .usage = "--path TARGET --train-files FILE --out RUN --num-attention-heads N ...",
        .summary = "Trains a drafter for a causal target, online: the frozen target "
                   "runs on every batch. RUN/latest is a draft folder.",
        .list = list,
        .count = 2,
        .other = bd_recipe_arguments_take,
        .self = &recipe,
        .more_help = bd_recipe_arguments_help};
    bd_error err = {0};
    bd_trainer_options trainer;
    draft_training t = {0};
    int status;
    if (!bd_recipe_arguments_begin(&recipe, argc, argv, &err) ||
        !bd_options_parse(&options, argc, argv, &err) ||
        !bd_training_options(recipe.recipe, &run, &trainer, &err) ||
        !prepare(&t, recipe.recipe, &err))
        status = bd_run_error("draft train", &err);
    else
        status = bd_training_run("draft train", &t.task, &trainer, recipe.recipe, &run);
    bd_draft_task_free(&t.task);
    bd_corpus_free(&t.corpus);
    bd_draft_close(t.draft);
    bd_model_close(t.target);
    bd_tokenizer_close(t.tokenizer);
    bd_recipe_free(recipe.recipe);
    return status;
}
