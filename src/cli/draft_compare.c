/* bdlm draft compare - several drafters on the same hidden states with the same budget, side by
 * side. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/draft_compare_report.h"
#include "cli/draft_recipe.h"
#include "cli/options.h"
#include "cli/recipe_options.h"
#include "cli/training.h"
#include "format/json.h"

enum { MOST_VARIANTS = 16, MOST_SEEDS = 16, OPENING = 32 };

typedef struct {
    // Asked for.
    const char *variants, *seeds, *out;
    bd_text_list files;
    int64_t tokens, limit;
    bool resume, json;
    int argc;
    char **argv;
    // Read.
    bd_recipe *recipe;
    const char *names[MOST_VARIANTS]; // of the table of variants
    int64_t seed_list[MOST_SEEDS], name_count, seed_count;
    bd_draft_data data;
    bd_tokens *prompts; // [prompt_count]
    int32_t **plain;    // [prompt_count]: what the target says alone, of plain_count tokens
    int64_t *plain_count, prompt_count, failed;
    bd_compared items[MOST_VARIANTS * MOST_SEEDS];
    bd_comparison result;
} comparison;

// --- lists ---------------------------------------------------------------------------------------

static bool read_variants(comparison *c, bd_error *err)
{
    char *copy = strdup(c->variants), *rest = copy;
    bool ok = copy != NULL;
    for (char *word; ok && (word = strsep(&rest, ","));) {
        const bd_draft_variant *variant = *word ? bd_draft_variant_find(word, err) : NULL;
        if (!variant)
            ok = *word ? false : bd_fail(err, "--variants: an empty name in \"%s\"", c->variants);
        for (int64_t i = 0; ok && i < c->name_count; i++)
            if (c->names[i] == variant->projector_type)
                ok = bd_fail(err, "--variants: %s twice", word);
        if (ok && c->name_count == MOST_VARIANTS)
            ok = bd_fail(err, "--variants: more than %d", MOST_VARIANTS);
        if (ok)
            c->names[c->name_count++] = variant->projector_type;
    }
    free(copy);
    if (!ok)
        err->kind = BD_ERROR_USAGE;
    return ok;
}

static bool read_seeds(comparison *c, bd_error *err)
{
    const char *at = c->seeds;
    if (!at) {
        c->seed_list[c->seed_count++] = bd_recipe_int(c->recipe, "train.seed");
        return true;
    }
    for (;;) {
        char *end;
        long long seed = strtoll(at, &end, 10);
        if (end == at || seed < 0 || (*end && *end != ',') || c->seed_count == MOST_SEEDS)
            return bd_fail_as(err, BD_ERROR_USAGE,
                              "--seeds: found \"%.60s\", up to %d numbers with commas expected",
                              c->seeds, MOST_SEEDS);
        c->seed_list[c->seed_count++] = seed;
        if (!*end)
            return true;
        at = end + 1;
    }
}

// --- prompts -------------------------------------------------------------------------------------

static bool add_prompt(comparison *c, bd_tokens prompt, bd_error *err)
{
    size_t count = (size_t)c->prompt_count + 1;
    bd_tokens *list = realloc(c->prompts, count * sizeof *list);
    if (!list)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for prompts");
    c->prompts = list;
    c->prompts[c->prompt_count++] = prompt;
    return true;
}

/* Openings of the rows that no draft is trained on. */
static bool held_out_prompts(comparison *c, int64_t rows, int64_t held_out, bd_error *err)
{
    int64_t length = c->data.length, size = length / 2 < OPENING ? length / 2 : OPENING;
    if (held_out < 1)
        return bd_fail(err,
                       "no prompts: nothing is held out (data.held_out_fraction %g of %lld "
                       "rows), and no PROMPTS.jsonl is given",
                       bd_recipe_number(c->recipe, "data.held_out_fraction"), (long long)rows);
    for (int64_t i = 0; i < held_out && i < c->limit; i++) {
        bd_tokens prompt = {.ids = malloc((size_t)size * sizeof(int32_t)), .count = size};
        if (!prompt.ids)
            return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for prompts");
        memcpy(prompt.ids, c->data.tokens + (rows + i) * length, (size_t)size * sizeof(int32_t));
        if (!add_prompt(c, prompt, err)) {
            bd_tokens_free(&prompt);
            return false;
        }
    }
    return true;
}

static bool file_prompts(comparison *c, bd_error *err)
{
    bd_prompts texts = {0};
    bool ok = true;
    for (int64_t i = 0; ok && i < c->files.count; i++)
        ok = bd_prompts_read(&texts, c->files.items[i], texts.count + c->limit, err);
    for (int64_t i = 0; ok && i < texts.count; i++) {
        bd_tokens prompt = {0};
        ok = bd_tokenizer_encode(c->data.tokenizer, texts.items[i], strlen(texts.items[i]), NULL,
                                 &prompt, err);
        bool fits = ok && prompt.count > 0 &&
                    prompt.count + c->tokens <= c->data.target->config.max_positions;
        if (ok && fits)
            ok = add_prompt(c, prompt, err);
        else
            bd_tokens_free(&prompt);
        c->failed += ok && !fits;
    }
    bd_prompts_free(&texts);
    if (ok && c->prompt_count == 0)
        ok = bd_fail(err,
                     "all %lld prompts failed: empty, or too long for the target's %lld "
                     "positions",
                     (long long)c->failed, (long long)c->data.target->config.max_positions);
    if (ok && c->failed)
        fprintf(stderr, "draft compare: %lld prompts are empty or too long and left out\n",
                (long long)c->failed);
    return ok;
}

// --- decoding ------------------------------------------------------------------------------------

/* Generate from all prompts. The first time, without a draft, the texts are kept; afterwards they
 * must come out the same. */
static bool decode(comparison *c, bd_draft *draft, const char *what, bd_generation_totals *totals,
                   bd_error *err)
{
    bd_generation options = bd_generation_default();
    int32_t stops[BD_MOST_STOPS];
    const bd_model_config *config = &c->data.target->config;
    for (int i = 0; i < config->stop_count; i++)
        stops[i] = (int32_t)config->stop[i];
    options.stop = stops;
    options.stop_count = config->stop_count;
    options.most = c->tokens;
    options.most_proposed = draft ? -1 : 0;
    int64_t block = draft ? draft->config.block_size : 1, longest = 0;
    for (int64_t i = 0; i < c->prompt_count; i++)
        longest = c->prompts[i].count > longest ? c->prompts[i].count : longest;
    bd_decoder *decoder =
        bd_decoder_create(c->data.target, draft, longest + c->tokens + block + 1, err);
    int32_t *out = malloc((size_t)c->tokens * sizeof *out);
    bd_progress *progress = bd_progress_begin(what, c->prompt_count);
    bool ok = decoder && (out || bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for tokens"));
    for (int64_t i = 0; ok && i < c->prompt_count; i++) {
        bd_generation_report report;
        const bd_tokens *prompt = &c->prompts[i];
        int64_t n = bd_generate(decoder, prompt->ids, prompt->count, &options, out, &report, err);
        if (!(ok = n >= 0))
            break;
        bd_generation_totals_add(totals, &report);
        if (!draft) {
            c->plain_count[i] = n;
            c->plain[i] = out;
            out = malloc((size_t)c->tokens * sizeof *out);
            ok = out || bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for tokens");
        } else if (n != c->plain_count[i] ||
                   memcmp(out, c->plain[i], (size_t)n * sizeof *out) != 0) {
            ok = bd_fail(err, "speculative and plain output differ: this must not happen");
        }
        bd_progress_update(progress, i + 1, "acceptance length %.2f",
                           bd_generation_accept_length(totals));
        if (ok && bd_stop_requested)
            ok = bd_fail(err, "stopped");
    }
    bd_progress_end(progress);
    free(out);
    bd_decoder_free(decoder);
    return ok;
}

// --- one draft -----------------------------------------------------------------------------------

static bool choose(comparison *c, const char *name, int64_t seed, bd_error *err)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)seed);
    return bd_recipe_assign(c->recipe, "draft.projector_type", name, "draft compare", err) &&
           bd_recipe_assign(c->recipe, "train.seed", text, "draft compare", err);
}

static bool folder_of(const comparison *c, const bd_compared *item, char out[BD_PATH],
                      bd_error *err)
{
    char part[64];
    snprintf(part, sizeof part, "%s-seed%lld", item->variant, (long long)item->seed);
    return bd_path_join(out, c->out, part, err);
}

static bool train(comparison *c, bd_compared *item, bd_error *err)
{
    char name[64], folder[BD_PATH], latest[BD_PATH];
    snprintf(name, sizeof name, "%s, seed %lld", item->variant, (long long)item->seed);
    if (!folder_of(c, item, folder, err) || !bd_path_join(latest, folder, "latest", err))
        return false;
    bd_run_arguments run = {.run = folder, .argc = c->argc, .argv = c->argv};
    run.resume = c->resume && bd_folder_exists(latest);
    if (c->resume && !run.resume && !bd_folder_remove(folder, err))
        return false; // it never got as far as a checkpoint
    bd_trainer_options options;
    bd_train_result result;
    bd_draft_training training = {0};
    bool ok =
        choose(c, item->variant, item->seed, err) &&
        bd_training_options(c->recipe, &run, &options, err) &&
        bd_draft_training_make(c->recipe, &c->data, run.resume ? latest : NULL, &training, err) &&
        bd_training_run_to(name, &training.task, &options, c->recipe, &run, &result, err);
    if (ok) {
        item->parameters = bd_parameters_total(&training.draft->parameters);
        item->steps = result.step;
        item->training_seconds = result.seconds;
        item->loss = result.loss;
        item->held_out = result.evaluation;
    }
    bd_draft_training_free(&training, true);
    return ok && (!result.stopped || bd_fail(err, "stopped; go on with --resume"));
}

/* Decode with the draft as it was saved. */
static bool measure(comparison *c, bd_compared *item, bd_error *err)
{
    char folder[BD_PATH], latest[BD_PATH];
    if (!folder_of(c, item, folder, err) || !bd_path_join(latest, folder, "latest", err))
        return false;
    bd_draft *draft = bd_draft_open(latest, c->data.target, c->data.target->compute, err);
    bool ok = draft && decode(c, draft, item->variant, &item->totals, err);
    bd_draft_close(draft);
    return ok;
}

/* All are trained first and measured right after one another, beside plain decoding: what else the
 * machine does then weighs on all alike. */
static bool train_and_measure(comparison *c, bd_error *err)
{
    for (int64_t i = 0; i < c->name_count; i++)
        for (int64_t s = 0; s < c->seed_count; s++)
            c->items[c->result.count++] =
                (bd_compared){.variant = c->names[i], .seed = c->seed_list[s]};
    for (int64_t i = 0; i < c->result.count; i++)
        if (!train(c, &c->items[i], err))
            return bd_error_wrap(err, "%s, seed %lld", c->items[i].variant,
                                 (long long)c->items[i].seed);
    if (!decode(c, NULL, "plain", &c->result.plain, err))
        return false;
    for (int64_t i = 0; i < c->result.count; i++)
        if (!measure(c, &c->items[i], err))
            return bd_error_wrap(err, "%s, seed %lld", c->items[i].variant,
                                 (long long)c->items[i].seed);
    return true;
}

/* Every variant's options are looked at before the first one is trained. Tells how many rows are
 * held out. */
static bool check_all(comparison *c, int64_t *rows, int64_t *held_out, bd_error *err)
{
    for (int64_t i = 0; i < c->name_count; i++) {
        bd_draft_training training = {0};
        bool ok = choose(c, c->names[i], c->seed_list[0], err) &&
                  bd_draft_training_make(c->recipe, &c->data, NULL, &training, err);
        *rows = training.rows;
        *held_out = training.held_out;
        bd_draft_training_free(&training, true);
        if (!ok)
            return bd_error_wrap(err, "%s", c->names[i]);
    }
    return true;
}

// --- the command ---------------------------------------------------------------------------------

static bool write_results(const comparison *c, bd_error *err)
{
    char path[BD_PATH];
    json_t *root = bd_comparison_to_json(&c->result);
    bool ok = root && bd_path_join(path, c->out, "compare.json", err) &&
              bd_json_save(root, path, err) && bd_path_join(path, c->out, "compare.md", err) &&
              bd_comparison_markdown(&c->result, path, err);
    if (ok && c->json) {
        json_dumpf(root, stdout, JSON_INDENT(2));
        putchar('\n');
    } else if (ok) {
        bd_comparison_print(&c->result);
    }
    json_decref(root);
    if (ok)
        fprintf(stderr,
                "draft compare: %s/compare.md, compare.json; every draft is in "
                "%s/VARIANT-seedN/latest\n",
                c->out, c->out);
    return ok;
}

static bool compare(comparison *c, bd_error *err)
{
    int64_t rows = 0, held_out = 0;
    if (!read_variants(c, err) || !read_seeds(c, err))
        return false;
    if (bd_recipe_has(c->recipe, "data.listen"))
        return bd_fail_as(err, BD_ERROR_USAGE,
                          "data.listen: all drafts read the same states, data.cache expected");
    bd_recipe_threads(c->recipe);
    if (!bd_draft_data_open(c->recipe, &c->data, err) || !check_all(c, &rows, &held_out, err) ||
        !(c->files.count ? file_prompts(c, err) : held_out_prompts(c, rows, held_out, err)))
        return false;
    if (!c->resume && bd_folder_exists(c->out))
        return bd_fail(err, "%s: exists already; go on with --resume", c->out);
    if (!bd_folder_make(c->out, err))
        return false;
    c->plain = calloc((size_t)c->prompt_count, sizeof *c->plain);
    c->plain_count = calloc((size_t)c->prompt_count, sizeof *c->plain_count);
    if (!c->plain || !c->plain_count)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for %lld prompts",
                          (long long)c->prompt_count);
    const char *cache = bd_recipe_text(c->recipe, "data.cache");
    c->result = (bd_comparison){.items = c->items,
                                .target = bd_recipe_text(c->recipe, "model.path"),
                                .data = cache ? cache : "text",
                                .dtype = bd_recipe_word(c->recipe, "train.dtype"),
                                .prompts = c->prompt_count,
                                .failed = c->failed,
                                .tokens = c->tokens};
    bd_catch_signals();
    return train_and_measure(c, err) && write_results(c, err);
}

static void release(comparison *c)
{
    for (int64_t i = 0; i < c->prompt_count; i++) {
        bd_tokens_free(&c->prompts[i]);
        if (c->plain)
            free(c->plain[i]);
    }
    free(c->prompts);
    free(c->plain);
    free(c->plain_count);
    bd_draft_data_close(&c->data);
    bd_recipe_free(c->recipe);
    free(c);
}

int bd_command_draft_compare(int argc, char **argv)
{
    bd_recipe_arguments recipe = {
        .sections = {"draft", "train", "data", "model", "log", "parallel"}};
    comparison *c = calloc(1, sizeof *c);
    if (!c)
        return 1;
    *c = (comparison){.variants = "dflash,dspark,domino,dflash2,lilicorr",
                      .tokens = 64,
                      .limit = 32,
                      .argc = argc,
                      .argv = argv};
    const bd_option list[] = {
        {"variants", NULL, BD_ARGUMENT_TEXT, "LIST",
         "which drafters (dflash,dspark,domino,dflash2,lilicorr)", &c->variants, 0, 0, false},
        {"seeds", NULL, BD_ARGUMENT_TEXT, "LIST", "each is trained once with each (train.seed)",
         &c->seeds, 0, 0, false},
        {"out", "o", BD_ARGUMENT_TEXT, "FOLDER", "tables, and a run folder for each draft", &c->out,
         0, 0, true},
        {"resume", NULL, BD_ARGUMENT_FLAG, NULL, "keep the drafts that FOLDER has already",
         &c->resume, 0, 0, false},
        {"tokens", "n", BD_ARGUMENT_INT, "N", "new tokens per prompt (64)", &c->tokens, 1, 1e6,
         false},
        {"limit", NULL, BD_ARGUMENT_INT, "N", "at most so many prompts of each file (32)",
         &c->limit, 1, 1e6, false},
        {"json", NULL, BD_ARGUMENT_FLAG, NULL, "results as JSON", &c->json, 0, 0, false},
    };
    const bd_options options = {
        .command = "draft compare",
        .usage = "--path TARGET --cache CACHE --out FOLDER [PROMPTS.jsonl...]",
        .summary = "Trains several drafters on the same hidden states with the same budget and "
                   "decodes with each. Prompts are those of the files, or openings of the rows "
                   "held out.",
        .list = list,
        .count = sizeof list / sizeof *list,
        .arguments = &c->files,
        .other = bd_recipe_arguments_take,
        .self = &recipe,
        .more_help = bd_recipe_arguments_help};
    bd_error err = {0};
    bool ok = bd_recipe_arguments_begin(&recipe, argc, argv, &err) &&
              bd_options_parse(&options, argc, argv, &err);
    c->recipe = recipe.recipe;
    ok = ok && compare(c, &err);
    release(c);
    return ok ? 0 : bd_run_error("draft compare", &err);
}
