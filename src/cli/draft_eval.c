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

typedef struct {
    char name[64];
    bd_generation_totals totals;
    int64_t ar_accepted, ar_cycles;
} category;

enum { MOST_CATEGORIES = 32 };

typedef struct {
    bd_pair pair;
    bd_prompts prompts;
    bd_text_list files;
    int64_t tokens, limit, ar_tokens;
    double lower_bound;
    bool json;
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

static void add(category *c, const bd_generation_report *report, int64_t accepted, int64_t cycles)
{
    if (!c)
        return;
    bd_generation_totals_add(&c->totals, report);
    c->ar_accepted += accepted;
    c->ar_cycles += cycles;
}

static bool one(evaluation *e, int64_t index, bd_arena *arena, bd_error *err)
{
    const char *text = e->prompts.items[index];
    int32_t stops[BD_MOST_STOPS];
    bd_tokens prompt = {0};
    bd_generation options = bd_generation_default();
    bd_generation_report report, plain;
    int64_t accepted = 0, cycles = 0, block = e->pair.drafter->config.block_size;
    size_t mark = bd_arena_mark(arena);
    bool ok = bd_tokenizer_encode(e->pair.text, text, strlen(text), NULL, &prompt, err);
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
         bd_validate_draft(e->pair.decoder, prompt.ids, prompt.count, e->ar_tokens,
                           block - 1 + e->pair.drafter->config.variant->label_shift, &accepted,
                           &cycles, err);
    if (ok) {
        const char *name = e->prompts.categories[index];
        bd_generation_totals_add(&e->plain, &plain);
        add(&e->all, &report, accepted, cycles);
        if (name)
            add(find_category(e, name), &report, accepted, cycles);
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

static json_t *to_json(const category *c)
{
    return json_pack("{s:I,s:I,s:f,s:f,s:f,s:o}", "prompts", (json_int_t)c->totals.prompts,
                     "tokens", (json_int_t)c->totals.tokens, "acceptance_length",
                     bd_generation_accept_length(&c->totals), "ar_validation", ar_of(c),
                     "tokens_per_second", bd_generation_rate(&c->totals), "acceptance_per_position",
                     bd_generation_positions(&c->totals));
}

static void print_line(const char *name, const category *c)
{
    printf("%-20s %8lld %9lld %10.3f %10.3f %11.1f\n", name, (long long)c->totals.prompts,
           (long long)c->totals.tokens, bd_generation_accept_length(&c->totals), ar_of(c),
           bd_generation_rate(&c->totals));
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
    printf("%-20s %8s %9s %10s %10s %11s\n", "category", "prompts", "tokens", "acceptance", "AR",
           "tokens/s");
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
    if (!bd_pair_open(&e->pair, err) || !evaluate(e, err))
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
                   "category and position, and the AR metric of the reference trainer.",
        .list = list,
        .count = count + (int)(sizeof more / sizeof *more),
        .arguments = &e.files};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("draft eval", &err);
    bool ok = run(&e, &err);
    bd_prompts_free(&e.prompts);
    bd_pair_close(&e.pair);
    return ok ? 0 : bd_run_error("draft eval", &err);
}
