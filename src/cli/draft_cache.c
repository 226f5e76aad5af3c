/* bdlm draft cache - the hidden states a drafter learns from, written once. */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/draft_recipe.h"
#include "cli/options.h"
#include "cli/recipe_options.h"
#include "cli/training.h"

typedef struct {
    const char *out;
    bool resume;
} cache_arguments;

/* The layers of draft.target_layer_ids, or those a draft of num_hidden_layers would read. */
static bool taps_of(const bd_recipe *recipe, const bd_model *target, int64_t taps[BD_MOST_TAPS],
                    int64_t *count, bd_error *err)
{
    const int64_t *ids = bd_recipe_ints(recipe, "draft.target_layer_ids", count);
    if (*count > BD_MOST_TAPS)
        return bd_fail(err, "draft.target_layer_ids: %lld layers, at most %d expected",
                       (long long)*count, BD_MOST_TAPS);
    for (int64_t i = 0; i < *count; i++) {
        taps[i] = ids[i];
        if (ids[i] >= target->config.layers)
            return bd_fail(err, "draft.target_layer_ids: layer %lld, 0 to %lld expected",
                           (long long)ids[i], (long long)target->config.layers - 1);
    }
    if (*count > 0)
        return true;
    *count = bd_recipe_int(recipe, "draft.num_hidden_layers");
    if (*count > BD_MOST_TAPS)
        return bd_fail(err, "draft.num_hidden_layers: %lld, at most %d expected", (long long)*count,
                       BD_MOST_TAPS);
    return bd_draft_taps(target->config.layers, *count, taps, err);
}

static bool layout_of(const bd_recipe *recipe, const bd_draft_data *data, bd_states_layout *layout,
                      bd_error *err)
{
    int64_t taps[BD_MOST_TAPS], count;
    if (data->length > data->target->config.max_positions)
        return bd_fail(err,
                       "data.sequence_length: %lld, at most the target's %lld positions "
                       "expected",
                       (long long)data->length, (long long)data->target->config.max_positions);
    if (!taps_of(recipe, data->target, taps, &count, err) ||
        !bd_states_layout_make(data->target, taps, count, data->length,
                               bd_recipe_states_dtype(recipe), layout, err))
        return false;
    layout->prenorm = bd_recipe_bool(recipe, "data.states_prenorm");
    return true;
}

static bool write_cache(const bd_recipe *recipe, const cache_arguments *a,
                        const bd_draft_data *data, bd_error *err)
{
    bd_states_cache_about about = {.tokens = data->tokens,
                                   .rows = data->token_count / data->length};
    if (!layout_of(recipe, data, &about.layout, err))
        return false;
    if (about.rows < 1)
        return bd_fail(err, "data: %lld tokens, one row of %lld expected at least",
                       (long long)data->token_count, (long long)data->length);
    fprintf(stderr, "cache: %lld rows of %lld tokens, layers", (long long)about.rows,
            (long long)data->length);
    for (int64_t i = 0; i < about.layout.tap_count; i++)
        fprintf(stderr, " %lld", (long long)about.layout.taps[i]);
    fprintf(stderr, " of %lld and the last states, %s: %.3f GB, %.1f kB a token\n",
            (long long)data->target->config.layers, bd_dtype_name(about.layout.dtype),
            bd_states_cache_bytes(&about) / 1e9,
            (double)bd_states_size(&about.layout) / (double)data->length / 1e3);
    for (int64_t i = 0; i < about.rows * data->length; i++)
        if (data->tokens[i] < 0 || data->tokens[i] >= about.layout.vocabulary)
            return bd_fail(err, "data: token %lld is %d, 0 to %lld expected", (long long)i,
                           data->tokens[i], (long long)about.layout.vocabulary - 1);
    bd_catch_signals();
    bd_progress *progress = bd_progress_begin("draft cache", about.rows);
    bool stopped;
    bool ok = bd_states_cache_write(a->out, data->target, &about, a->resume, progress,
                                    &bd_stop_requested, &stopped, err);
    bd_progress_end(progress);
    if (ok && stopped)
        fprintf(stderr, "draft cache: stopped; go on with --resume\n");
    else if (ok)
        fprintf(stderr, "draft cache: %s is complete; bdlm draft train --cache %s\n", a->out,
                a->out);
    return ok;
}

int bd_command_draft_cache(int argc, char **argv)
{
    cache_arguments a = {0};
    bd_recipe_arguments recipe = {.sections = {"draft", "data", "model", "train", "parallel"}};
    const bd_option list[] = {
        {"out", "o", BD_ARGUMENT_TEXT, "CACHE", "the folder to write", &a.out, 0, 0, true},
        {"resume", NULL, BD_ARGUMENT_FLAG, NULL, "go on with an unfinished cache", &a.resume, 0, 0,
         false},
    };
    const bd_options options = {
        .command = "draft cache",
        .usage = "--path TARGET --train-files FILE --out CACHE",
        .summary = "Runs a target over text once and keeps what drafters read of it: tokens, "
                   "hidden states of --target-layer-ids, last states. Train with draft train "
                   "--cache.",
        .list = list,
        .count = 2,
        .other = bd_recipe_arguments_take,
        .self = &recipe,
        .more_help = bd_recipe_arguments_help};
    bd_error err = {0};
    bd_draft_data data = {0};
    bool ok = bd_recipe_arguments_begin(&recipe, argc, argv, &err) &&
              bd_options_parse(&options, argc, argv, &err);
    if (ok && bd_recipe_text(recipe.recipe, "data.cache"))
        ok = bd_fail_as(&err, BD_ERROR_USAGE, "data.cache: a cache is not made from a cache");
    if (ok)
        bd_recipe_threads(recipe.recipe);
    ok = ok && bd_draft_data_open(recipe.recipe, &data, &err) &&
         write_cache(recipe.recipe, &a, &data, &err);
    bd_draft_data_close(&data);
    bd_recipe_free(recipe.recipe);
    return ok ? 0 : bd_run_error("draft cache", &err);
}
