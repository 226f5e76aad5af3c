#include "cli/draft_recipe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/command.h"
#include "cli/conversation_data.h"
#include "cli/training.h"
#include "draft/dspark.h"

/* The mask token, and where it came from; nothing is invented (decision 15). */
static bool mask_token(const bd_recipe *recipe, const bd_draft_data *t, int64_t *mask,
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
    config->convolution.projection_std = bd_recipe_number(recipe, "draft.conv_projection_init_std");
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
    objective->lattice_calibration = (float)bd_recipe_number(recipe, "draft.lilicorr_w_cal");
    objective->lattice_margin = number_or_unset(recipe, "draft.lilicorr_margin");
}

/* Are these the layers the draft would read anyhow? Spread over few layers they may repeat one,
 * which a list of layers must not. */
static bool are_spread(const bd_states_layout *layout, const bd_draft_config *config,
                       const bd_model *target)
{
    int64_t taps[BD_MOST_TAPS];
    bd_error ignored = {0};
    return layout->tap_count == config->stack.layers &&
           bd_draft_taps(target->config.layers, config->stack.layers, taps, &ignored) &&
           !memcmp(taps, layout->taps, (size_t)layout->tap_count * sizeof *taps);
}

static bool describe(const bd_recipe *recipe, const bd_draft_data *t, bd_draft_config *config,
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
    config->sink = bd_recipe_bool(recipe, "draft.attention_sink");
    config->causality = bd_recipe_is(recipe, "draft.draft_attention", "causal")
                            ? BD_DRAFT_CAUSAL
                            : BD_DRAFT_BIDIRECTIONAL;
    int64_t taps;
    const int64_t *ids = bd_recipe_ints(recipe, "draft.target_layer_ids", &taps);
    if (taps > BD_MOST_TAPS)
        return bd_fail(err, "draft.target_layer_ids: %lld layers, at most %d expected",
                       (long long)taps, BD_MOST_TAPS);
    // With kept states the data say which layers there are (decision 14); a recipe may repeat it.
    if (taps == 0 && t->cache && !are_spread(bd_states_cache_layout(t->cache), config, t->target)) {
        ids = bd_states_cache_layout(t->cache)->taps;
        taps = bd_states_cache_layout(t->cache)->tap_count;
    }
    config->tap_count = taps;
    for (int64_t i = 0; i < taps; i++)
        config->taps[i] = ids[i];
    return bd_draft_config_complete(config, &t->target->config, err);
}

// --- the text, and the hidden states -------------------------------------------------------------

/* A cache says itself what it was made from; a recipe that says otherwise is refused. */
static bool open_cache(const bd_recipe *recipe, bd_draft_data *t, bd_error *err)
{
    const char *folder = bd_recipe_text(recipe, "data.cache");
    if (!(t->cache = bd_states_cache_open(folder, err)))
        return false;
    const bd_states_layout *layout = bd_states_cache_layout(t->cache);
    bd_states_layout wanted = *layout;
    if (bd_recipe_given(recipe, "data.sequence_length"))
        wanted.length = bd_recipe_int(recipe, "data.sequence_length");
    if (bd_recipe_has(recipe, "data.states_dtype"))
        wanted.dtype = bd_recipe_states_dtype(recipe);
    if (bd_recipe_given(recipe, "data.states_prenorm"))
        wanted.prenorm = bd_recipe_bool(recipe, "data.states_prenorm");
    if (!bd_states_layout_match(layout, &wanted, folder, err))
        return false;
    t->source = bd_states_cache_source(t->cache);
    t->tokens = bd_states_cache_tokens(t->cache);
    t->length = layout->length;
    t->token_count = bd_states_cache_rows(t->cache) * layout->length;
    fprintf(stderr, "data: %s, %lld rows of %lld tokens, hidden states in %s\n", folder,
            (long long)bd_states_cache_rows(t->cache), (long long)layout->length,
            bd_dtype_name(layout->dtype));
    return true;
}

static bool open_text(const bd_recipe *recipe, bd_draft_data *t, bd_error *err)
{
    // Read as text, their markup would be what the draft learns.
    if (bd_recipe_has_conversations(recipe))
        return bd_fail(err,
                       "data.train_files: conversations (.jsonl), text wanted to train drafts");
    if (!bd_training_corpus(recipe, t->tokenizer, &t->corpus, err))
        return false;
    t->tokens = t->corpus.tokens;
    t->token_count = t->corpus.count;
    t->length = bd_recipe_int(recipe, "data.sequence_length");
    return true;
}

bool bd_draft_data_open(const bd_recipe *recipe, bd_draft_data *t, bd_error *err)
{
    const char *folder = bd_recipe_text(recipe, "model.path");
    const char *tokenizer = bd_recipe_text(recipe, "model.tokenizer");
    bool cached = bd_recipe_text(recipe, "data.cache") != NULL;
    if (!folder)
        return bd_fail_as(err, BD_ERROR_USAGE, "--path FOLDER is required: the target model");
    if (cached && bd_recipe_has(recipe, "data.listen"))
        return bd_fail_as(err, BD_ERROR_USAGE,
                          "data.cache and data.listen: one of the two expected");
    if (cached && bd_recipe_has(recipe, "data.train_files"))
        return bd_fail_as(err, BD_ERROR_USAGE,
                          "data.cache and data.train_files: one of the two expected, a cache "
                          "holds its text");
    return (t->tokenizer = bd_tokenizer_open(tokenizer ? tokenizer : folder, err)) &&
           (t->target = bd_model_open(folder, bd_recipe_dtype(recipe, "train.dtype"), err)) &&
           (cached ? open_cache(recipe, t, err) : open_text(recipe, t, err));
}

void bd_draft_data_close(bd_draft_data *t)
{
    bd_states_cache_close(t->cache);
    bd_corpus_free(&t->corpus);
    bd_model_close(t->target);
    bd_tokenizer_close(t->tokenizer);
    *t = (bd_draft_data){0};
}

// --- the draft and its task ----------------------------------------------------------------------

/* Weights that are not the draft's own invention. A resumed run has all of its weights in its
 * checkpoint, frozen ones too; a warm start is not repeated. */
static bool start_from(const bd_recipe *recipe, const char *resumed, bd_draft_training *out,
                       bd_error *err)
{
    const char *init = bd_recipe_text(recipe, "draft.init_checkpoint");
    if (init)
        snprintf(out->start, sizeof out->start, "weights of %s", init);
    const char *from = resumed ? resumed : init;
    if (!from || !bd_draft_load(out->draft, from, err))
        return !from;
    if (!resumed)
        fprintf(stderr, "draft: starts from %s, %lld tensors\n", init,
                (long long)out->draft->parameters.count);
    return true;
}

/* Whether a tensor's name begins with this: whole parts, "layers.1" is not "layers.10". */
static bool begins_with(const char *name, const char *part)
{
    size_t length = strlen(part);
    return !strncmp(name, part, length) && (name[length] == 0 || name[length] == '.');
}

static bool freeze(const bd_recipe *recipe, bd_draft_training *out, bd_error *err)
{
    const bd_parameters *all = &out->draft->parameters;
    int64_t count;
    const char *const *parts = bd_recipe_texts(recipe, "draft.freeze", &count);
    if (count == 0)
        return true;
    out->trained.items = calloc((size_t)all->count, sizeof *out->trained.items);
    if (!out->trained.items)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a list of tensors");
    for (int64_t p = 0; p < count; p++) {
        bool matches = false;
        for (int64_t i = 0; i < all->count; i++)
            matches = matches || begins_with(all->items[i]->name, parts[p]);
        if (!matches)
            return bd_fail(err, "draft.freeze: no tensor's name begins with \"%.80s\" (%s, ...)",
                           parts[p], all->items[0]->name);
    }
    for (int64_t i = 0; i < all->count; i++) {
        bool frozen = false;
        for (int64_t p = 0; p < count; p++)
            frozen = frozen || begins_with(all->items[i]->name, parts[p]);
        if (!frozen)
            out->trained.items[out->trained.count++] = all->items[i];
    }
    if (out->trained.count == 0)
        return bd_fail(err, "draft.freeze: all %lld tensors, one to train expected at least",
                       (long long)all->count);
    fprintf(stderr, "draft: %lld of %lld tensors are frozen\n",
            (long long)(all->count - out->trained.count), (long long)all->count);
    return true;
}

static bool make_draft(const bd_recipe *recipe, const bd_draft_data *t, const char *resumed,
                       bd_draft_training *out, bd_error *err)
{
    bd_draft_config config;
    uint64_t seed = (uint64_t)bd_recipe_int(recipe, "train.seed");
    if (!describe(recipe, t, &config, err) ||
        !(out->draft = bd_draft_create(&config, t->target, seed, t->target->compute, err)))
        return false;
    snprintf(out->start, sizeof out->start, "new, seed %llu", (unsigned long long)seed);
    return start_from(recipe, resumed, out, err) && bd_draft_train(out->draft, err) &&
           freeze(recipe, out, err);
}

static void describe_run(const bd_draft_data *t, const bd_draft_task_options *options)
{
    const bd_draft_config *config = &options->draft->config;
    fprintf(stderr, "draft: %.2f million parameters, %lld layers, block %lld, reads layers",
            (double)bd_parameters_total(&options->draft->parameters) / 1e6,
            (long long)config->stack.layers, (long long)config->block_size);
    for (int64_t i = 0; i < config->tap_count; i++)
        fprintf(stderr, " %lld", (long long)config->taps[i]);
    fprintf(stderr, " of %lld; %lld rows of %lld tokens, %lld held out\n",
            (long long)t->target->config.layers, (long long)bd_draft_task_rows(options),
            (long long)options->sequence_length, (long long)options->evaluation_rows);
}

static void tell(void *self, const char *line)
{
    (void)self;
    fprintf(stderr, "stream: %s\n", line);
}

static bool open_stream(const bd_recipe *recipe, const bd_draft_data *t, bd_draft_training *out,
                        bd_error *err)
{
    bd_states_layout layout;
    bd_stream_options options = {.address = bd_recipe_text(recipe, "data.listen"),
                                 .ahead = bd_recipe_int(recipe, "data.stream_ahead"),
                                 .patience = bd_recipe_number(recipe, "data.stream_patience"),
                                 .stop = &bd_stop_requested,
                                 .tell = tell};
    if (!bd_states_layout_make(t->target, out->draft->config.taps, out->draft->config.tap_count,
                               t->length, bd_recipe_states_dtype(recipe), &layout, err))
        return false;
    layout.prenorm = bd_recipe_bool(recipe, "data.states_prenorm");
    if (!(out->stream = bd_states_stream_open(&layout, &options, err)))
        return false;
    out->source = bd_states_stream_source(out->stream);
    fprintf(stderr, "stream: waiting for producers at %s\n", options.address);
    return true;
}

bool bd_draft_training_make(const bd_recipe *recipe, const bd_draft_data *t, const char *resumed,
                            bd_draft_training *out, bd_error *err)
{
    if (!make_draft(recipe, t, resumed, out, err))
        return false;
    bd_draft_task_options options = {
        .draft = out->draft,
        .trained = out->trained.items ? &out->trained : NULL,
        .tokens = t->tokens,
        .token_count = t->token_count,
        .sequence_length = t->length,
        .batch_rows = bd_recipe_int(recipe, "train.batch_size"),
        .micro_batches = bd_recipe_int(recipe, "train.grad_accum"),
        .anchors = bd_recipe_int(recipe, "draft.num_anchors"),
        .steps = bd_recipe_int(recipe, "train.max_steps"),
        .lambda_start = bd_recipe_number(recipe, "draft.lambda_base_start"),
        .lambda_ratio = bd_recipe_number(recipe, "draft.lambda_base_decay_ratio"),
        .seed = (uint64_t)bd_recipe_int(recipe, "train.seed"),
        .save_dtype = BD_F32,
        .start = out->start};
    bool dpace = bd_recipe_is(recipe, "draft.loss_objective", "dpace");
    options.objective = (bd_draft_objective){
        .weighting = {.objective = dpace ? BD_WEIGHT_DPACE : BD_WEIGHT_DECAY,
                      .decay = (float)bd_recipe_number(recipe, "draft.loss_decay_factor"),
                      .alpha = (float)bd_recipe_number(recipe, "draft.dpace_alpha")},
        .distill = bd_recipe_bool(recipe, "draft.self_logit_distillation")};
    objective_of_variant(recipe, &options.objective);
    options.evaluation_rows = bd_training_held_out(recipe, bd_draft_task_rows(&options), 64);
    out->rows = bd_draft_task_rows(&options);
    out->held_out = options.evaluation_rows;
    describe_run(t, &options);
    if (t->source.self)
        out->source = t->source;
    else if (bd_recipe_has(recipe, "data.listen") && !open_stream(recipe, t, out, err))
        return false;
    if (out->source.self)
        options.source = &out->source;
    return bd_draft_task_create(&options, &out->task, err);
}

void bd_draft_training_free(bd_draft_training *training, bool finished)
{
    bd_draft_task_free(&training->task);
    if (training->stream) {
        bd_stream_counts counts = bd_states_stream_count(training->stream);
        fprintf(stderr, "stream: %lld records, %lld asked for again, %lld dropped as repeated\n",
                (long long)counts.received, (long long)counts.asked_again,
                (long long)counts.repeated);
    }
    bd_states_stream_close(training->stream, finished);
    bd_draft_close(training->draft);
    free(training->trained.items);
    *training = (bd_draft_training){0};
}
