/* bdlm draft eval - how well a drafter does on prompts: real decoding beside the reference's
 * metric. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "cli/command.h"
#include "cli/generate.h"
#include "draft/validate.h"
#include "format/chat.h"

typedef struct {
    char name[64];
    bd_generation_totals totals;
    int64_t ar_accepted, ar_cycles;    // text that grows with what is accepted
    int64_t truth_added, truth_cycles; // text that is fixed
} category;

enum { MOST_CATEGORIES = 32 };

typedef struct {
    bd_pair pair;
    bd_prompts prompts;
    bd_text_list files;
    int64_t tokens, limit, ar_tokens;
    double lower_bound;
    bool json, in_chat;
    bd_chat *chat; // NULL: prompts as they are
    category all, list[MOST_CATEGORIES];
    int count;
    bd_generation_totals plain; // the same prompts without the draft
    int64_t failed;
    char first_failure[300];
} evaluation;

static category *find_category(evaluation *e, const char *name)
{
    for (int i = 0; i < e->count; i++)
        if (!strcmp(e->list[i].name, name))
            return &e->list[i];
    if (e->count == MOST_CATEGORIES)
        return NULL;
    snprintf(e->list[e->count].name, sizeof e->list[0].name, "%s", name);
    return &e->list[e->count++];
}

static void add(category *c, const bd_generation_report *report, const category *metrics)
{
    if (!c)
        return;
    bd_generation_totals_add(&c->totals, report);
    c->ar_accepted += metrics->ar_accepted;
    c->ar_cycles += metrics->ar_cycles;
    c->truth_added += metrics->truth_added;
    c->truth_cycles += metrics->truth_cycles;
}

/* The tokens of a prompt, or of a conversation that begins with it. */
static bool encode(const evaluation *e, const char *text, bd_tokens *out, bd_error *err)
{
    if (!e->chat)
        return bd_tokenizer_encode(e->pair.text, text, strlen(text), NULL, out, err);
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", text);
    bool ok = messages ? bd_chat_prompt(e->chat, messages, out, err) : bd_fail(err, "not UTF-8");
    json_decref(messages);
    return ok;
}

/* Both metrics of section 7.2, which draft blocks of their own. */
static bool validate(const evaluation *e, const bd_tokens *prompt, const bd_generation *options,
                     category *out, bd_error *err)
{
    const bd_draft_config *config = &e->pair.drafter->config;
    const int64_t steps = config->block_size - 1 + config->variant->label_shift;
    return bd_validate_draft(e->pair.decoder, prompt->ids, prompt->count, e->ar_tokens, steps,
                             &out->ar_accepted, &out->ar_cycles, err) &&
           bd_validate_draft_truth(e->pair.decoder, prompt->ids, prompt->count, e->ar_tokens,
                                   options->stop, options->stop_count, steps, &out->truth_added,
                                   &out->truth_cycles, err);
}

static bool one(evaluation *e, int64_t index, bd_arena *arena, bd_error *err)
{
    int32_t stops[BD_MOST_STOPS];
    bd_tokens prompt = {0};
    bd_generation options = bd_generation_default();
    bd_generation_report report, plain;
    category metrics = {0};
    size_t mark = bd_arena_mark(arena);
    bool ok = encode(e, e->prompts.items[index], &prompt, err);
    options.most = e->tokens;
    options.schedule = e->pair.schedule;
    options.stop = stops;
    options.stop_count = bd_pair_stops(&e->pair, stops);
    int64_t need = prompt.count + (e->tokens > e->ar_tokens ? e->tokens : e->ar_tokens);
    if (ok && prompt.count == 0)
        ok = bd_fail(err, "no tokens in it");
    if (ok && need > e->pair.context)
        ok = bd_fail(err, "%lld tokens with the answer, the context has %lld", (long long)need,
                     (long long)e->pair.context);
    ok = ok && bd_generate(e->pair.decoder, prompt.ids, prompt.count, &options,
                           bd_arena_ints(arena, options.most), &report, err) >= 0;
    options.most_proposed = 0;
    options.schedule = BD_DRAFT_FIXED;
    ok = ok &&
         // The prompt is read again, so that both ways begin with the same.
         bd_decoder_follow(e->pair.decoder, prompt.ids, 1, err) &&
         bd_generate(e->pair.decoder, prompt.ids, prompt.count, &options,
                     bd_arena_ints(arena, options.most), &plain, err) >= 0 &&
         validate(e, &prompt, &options, &metrics, err);
    if (ok) {
        const char *name = e->prompts.categories[index];
        bd_generation_totals_add(&e->plain, &plain);
        add(&e->all, &report, &metrics);
        if (name)
            add(find_category(e, name), &report, &metrics);
    }
    bd_tokens_free(&prompt);
    bd_arena_release(arena, mark);
    return ok;
}

/* Failed samples are counted and named; all failed is a failure (exit 1). */
static bool evaluate(evaluation *e, bd_error *err)
{
    bd_arena *arena = bd_arena_create(0, err);
    if (!arena)
        return false;
    bd_progress *progress = bd_progress_begin("draft eval", e->prompts.count);
    for (int64_t i = 0; i < e->prompts.count && !bd_stop_requested; i++) {
        bd_error why = {0};
        if (!one(e, i, arena, &why)) {
            if (e->failed++ == 0)
                snprintf(e->first_failure, sizeof e->first_failure, "prompt %lld: %.200s",
                         (long long)i + 1, why.message);
            fprintf(stderr, "draft eval: prompt %lld failed: %s\n", (long long)i + 1, why.message);
        }
        bd_progress_update(progress, i + 1, "acceptance length %.2f",
                           bd_generation_accept_length(&e->all.totals));
    }
    bd_progress_end(progress);
    bd_arena_destroy(arena);
    if (e->all.totals.prompts == 0)
        return bd_fail(err, "all %lld prompts failed; %s", (long long)e->failed, e->first_failure);
    if (e->failed)
        fprintf(stderr, "draft eval: %lld of %lld prompts failed; %s\n", (long long)e->failed,
                (long long)e->prompts.count, e->first_failure);
    return true;
}

static double ar_of(const category *c)
{
    return c->ar_cycles > 0 ? (double)c->ar_accepted / (double)c->ar_cycles : 0;
}

static double truth_of(const category *c)
{
    return c->truth_cycles > 0 ? (double)c->truth_added / (double)c->truth_cycles : 0;
}

static json_t *to_json(const category *c)
{
    return json_pack("{s:I,s:I,s:f,s:f,s:f,s:f,s:o}", "prompts", (json_int_t)c->totals.prompts,
                     "tokens", (json_int_t)c->totals.tokens, "acceptance_length",
                     bd_generation_accept_length(&c->totals), "ar_validation", ar_of(c),
                     "ar_fixed_text", truth_of(c), "tokens_per_second",
                     bd_generation_rate(&c->totals), "acceptance_per_position",
                     bd_generation_positions(&c->totals));
}

static void print_line(const char *name, const category *c)
{
    printf("%-20s %8lld %9lld %10.3f %8.3f %8.3f %11.1f\n", name, (long long)c->totals.prompts,
           (long long)c->totals.tokens, bd_generation_accept_length(&c->totals), ar_of(c),
           truth_of(c), bd_generation_rate(&c->totals));
}

static void report(const evaluation *e)
{
    if (e->json) {
        json_t *out = to_json(&e->all), *categories = json_object();
        for (int i = 0; i < e->count; i++)
            json_object_set_new(categories, e->list[i].name, to_json(&e->list[i]));
        json_object_set_new(out, "categories", categories);
        json_object_set_new(out, "plain_tokens_per_second",
                            json_real(bd_generation_rate(&e->plain)));
        json_object_set_new(out, "ar_skips_head",
                            json_boolean(e->pair.drafter->config.variant->validated_plain));
        json_object_set_new(out, "failed", json_integer(e->failed));
        json_dumpf(out, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(out);
        return;
    }
    printf("%-20s %8s %9s %10s %8s %8s %11s\n", "category", "prompts", "tokens", "acceptance", "AR",
           "AR fixed", "tokens/s");
    for (int i = 0; i < e->count; i++)
        print_line(e->list[i].name, &e->list[i]);
    print_line("all", &e->all);
    printf("plain decoding: %.1f tokens/s\n", bd_generation_rate(&e->plain));
    if (e->pair.drafter->config.variant->validated_plain)
        printf("AR skips this variant's selector or reranker, as the reference does\n");
    fflush(stdout);
    bd_generation_print_positions(&e->all.totals);
}

static bool run(evaluation *e, bd_error *err)
{
    if (e->files.count == 0)
        return bd_fail_as(err, BD_ERROR_USAGE, "at least one prompt file is wanted");
    if (!e->pair.draft)
        return bd_fail_as(err, BD_ERROR_USAGE, "--draft FOLDER is required");
    for (int64_t i = 0; i < e->files.count; i++)
        if (!bd_prompts_read(&e->prompts, e->files.items[i], e->prompts.count + e->limit, err))
            return false;
    bd_catch_signals();
    if (!bd_pair_open(&e->pair, err) ||
        (e->in_chat && !(e->chat = bd_chat_open(e->pair.text, NULL, err))) || !evaluate(e, err))
        return false;
    report(e);
    double ar = ar_of(&e->all);
    if (ar < e->lower_bound)
        return bd_fail(err, "AR %.3f is below lower bound %.3f", ar, e->lower_bound);
    return true;
}

int bd_command_draft_eval(int argc, char **argv)
{
    static evaluation e = {.tokens = 128, .limit = 80, .ar_tokens = 32};
    bd_option list[16];
    int count = bd_pair_options(&e.pair, list);
    const bd_option more[] = {
        {"tokens", "n", BD_ARGUMENT_INT, "N", "new tokens per prompt (128)", &e.tokens, 1, 1e6,
         false},
        {"limit", NULL, BD_ARGUMENT_INT, "N", "at most so many prompts of each file (80)", &e.limit,
         1, 1e9, false},
        {"ar-tokens", NULL, BD_ARGUMENT_INT, "N", "tokens per prompt of the AR metric (32)",
         &e.ar_tokens, 1, 1e6, false},
        {"chat", NULL, BD_ARGUMENT_FLAG, NULL, "put prompts into the tokenizer's chat template",
         &e.in_chat, 0, 0, false},
        {"ar-lower-bound", NULL, BD_ARGUMENT_NUMBER, "X", "fail when AR is below (0)",
         &e.lower_bound, 0, 1e3, false},
        {"schedule", NULL, BD_ARGUMENT_TEXT, "NAME", BD_SCHEDULE_HELP, &e.pair.schedule_name, 0, 0,
         false},
        {"json", NULL, BD_ARGUMENT_FLAG, NULL, "results as JSON", &e.json, 0, 0, false},
    };
    memcpy(list + count, more, sizeof more);
    const bd_options options = {
        .command = "draft eval",
        .usage = "-m TARGET -md DRAFT PROMPTS.jsonl...",
        .summary = "Acceptance length in real greedy decoding (tokens per target pass), per "
                   "category and position, and both AR metrics of the reference trainer: over text "
                   "that grows with what is accepted, and over the target's own text.",
        .list = list,
        .count = count + (int)(sizeof more / sizeof *more),
        .arguments = &e.files};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("draft eval", &err);
    bool ok = run(&e, &err);
    bd_prompts_free(&e.prompts);
    bd_chat_close(e.chat);
    bd_pair_close(&e.pair);
    return ok ? 0 : bd_run_error("draft eval", &err);
}
