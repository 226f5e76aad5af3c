/* bdlm generate - text from a model, plain or speculative. */
#include "cli/generate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/generate_blocks.h"
#include "cli/generate_parallel.h"
#include "cli/profile.h"
#include "draft/parallel.h"

// --- totals --------------------------------------------------------------------------------------

void bd_generation_totals_add(bd_generation_totals *totals, const bd_generation_report *report)
{
    totals->prompts++;
    totals->tokens += report->new_tokens;
    totals->passes += report->cycles;
    totals->seconds += report->draft_seconds + report->verify_seconds;
    totals->draft_seconds += report->draft_seconds;
    totals->prefill_seconds += report->prefill_seconds;
    totals->prompt_tokens += report->prompt_read;
    totals->drafted_cycles += report->drafted_cycles;
    totals->last = *report;
    for (int i = 0; i < BD_MOST_BLOCK; i++) {
        totals->tested[i] += report->tested[i];
        totals->accepted[i] += report->accepted[i];
    }
    for (int64_t n = 0; n <= BD_MOST_PRODUCED; n++) {
        totals->cycles += report->produced[n];
        totals->produced += n * report->produced[n];
    }
}

double bd_generation_rate(const bd_generation_totals *totals)
{
    return totals->seconds > 0 ? (double)totals->tokens / totals->seconds : 0;
}

double bd_generation_accept_length(const bd_generation_totals *totals)
{
    return totals->cycles > 0 ? (double)totals->produced / (double)totals->cycles : 0;
}

static int64_t tested_places(const bd_generation_totals *totals)
{
    int64_t places = 0;
    while (places < BD_MOST_BLOCK && totals->tested[places] > 0)
        places++;
    return places;
}

json_t *bd_generation_positions(const bd_generation_totals *totals)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < tested_places(totals); i++)
        json_array_append_new(list,
                              json_real((double)totals->accepted[i] / (double)totals->tested[i]));
    return list;
}

void bd_generation_print_positions(const bd_generation_totals *totals)
{
    fprintf(stderr, "accepted/tested per position:");
    for (int64_t i = 0; i < tested_places(totals); i++)
        fprintf(stderr, " %.2f (%lld/%lld)",
                (double)totals->accepted[i] / (double)totals->tested[i],
                (long long)totals->accepted[i], (long long)totals->tested[i]);
    fputc('\n', stderr);
}

// --- what is shown -------------------------------------------------------------------------------

void bd_generation_show_prompt(const bd_prompts *prompts, int64_t index)
{
    // A person sees where a prompt begins; a file is to hold nothing but text.
    if (prompts->count > 1 && isatty(1))
        printf("%s--- prompt %lld\n", index ? "\n" : "", (long long)index + 1);
    else if (index > 0)
        printf("\n");
    printf("%s", prompts->items[index]);
    fflush(stdout);
}

void bd_generation_sample(json_t *samples, const char *prompt, const bd_text *text)
{
    if (!samples || json_array_size(samples) >= 8)
        return;
    json_t *string = json_stringn(text->data ? text->data : "", text->size);
    json_array_append_new(samples, json_pack("{s:s,s:o}", "prompt", prompt, "text", string));
}

// --- one command ---------------------------------------------------------------------------------

typedef struct {
    bd_pair pair;
    bd_block_choices blocks; // of block-diffusion folders
    bd_prompts prompts;
    bd_generation options;
    const char *prompt, *prompt_file, *prompts_file, *dump_path;
    double temperature, top_p, min_p;
    int64_t top_k, seed, tokens, most_proposed, limit, parallel;
    bool compare, json, ignore_eos;
    int32_t stops[BD_MOST_STOPS];
    bd_arena *arena;
    bd_profile_choice profile;
    bd_writer *dump; // one line per cycle
    // While text streams.
    bd_token_stream stream;
    bool echo;
    bd_text shown;
    int64_t prompt_index;
} command;

static bool show(void *self, const int32_t *tokens, int64_t count)
{
    command *c = self;
    bd_error err = {0};
    for (int64_t i = 0; i < count; i++)
        if (!bd_token_stream_add(&c->stream, c->pair.text, tokens[i], &c->shown, &err))
            return false;
    if (c->echo) {
        fwrite(c->shown.data, 1, c->shown.size, stdout);
        fflush(stdout);
        bd_text_clear(&c->shown);
    }
    return true;
}

static void dump_cycle(void *self, const bd_cycle *cycle)
{
    command *c = self;
    bd_writer_print(c->dump, "{\"prompt\": %lld, \"base\": %d, \"proposed\": [",
                    (long long)c->prompt_index, cycle->base);
    for (int64_t i = 0; i < cycle->count; i++)
        bd_writer_print(c->dump, "%s%d", i ? ", " : "", cycle->proposed[i]);
    bd_writer_print(c->dump,
                    "], \"accepted\": %lld, \"draft_seconds\": %.9f, \"verify_seconds\": %.9f}\n",
                    (long long)cycle->accepted, cycle->draft_seconds, cycle->verify_seconds);
}

/* New tokens fill what the prompt leaves of the context at most. */
static int64_t run(command *c, const bd_tokens *prompt, bool drafting, int32_t *out,
                   bd_generation_report *report, bd_error *err)
{
    bd_generation options = c->options;
    options.most_proposed = drafting ? c->most_proposed : 0;
    if (options.most > c->pair.context - prompt->count)
        options.most = c->pair.context - prompt->count;
    c->stream = (bd_token_stream){.skip_special = true};
    bd_text_clear(&c->shown);
    int64_t count =
        bd_generate(c->pair.decoder, prompt->ids, prompt->count, &options, out, report, err);
    if (count >= 0)
        bd_token_stream_finish(&c->stream, &c->shown, err);
    return count;
}

/* One prompt: plain or speculative; with --compare both. */
static bool one_prompt(command *c, int64_t index, bd_generation_totals *plain,
                       bd_generation_totals *drafted, json_t *samples, bd_error *err)
{
    const char *text = c->prompts.items[index];
    bd_tokens prompt = {0};
    bd_generation_report report;
    size_t mark = bd_arena_mark(c->arena);
    int32_t *first = bd_arena_ints(c->arena, c->options.most),
            *second = bd_arena_ints(c->arena, c->options.most);
    bool drafting = c->pair.drafter != NULL;
    int64_t n = -1, m = -1;
    c->prompt_index = index;
    bool ok = bd_pair_encode(&c->pair, text, &prompt, err);
    if (ok && !c->json)
        bd_generation_show_prompt(&c->prompts, index);
    c->echo = !c->json;
    ok = ok && (n = run(c, &prompt, drafting, first, &report, err)) >= 0;
    if (ok) {
        bd_generation_totals_add(drafting ? drafted : plain, &report);
        if (c->echo) {
            fwrite(c->shown.data, 1, c->shown.size, stdout);
            putchar('\n');
            fflush(stdout);
        }
        bd_generation_sample(samples, text, &c->shown);
    }
    if (ok && c->compare) {
        c->echo = false;
        // The target's cache already holds this text; start afresh so that both runs do the same
        // work.
        ok = bd_decoder_follow(c->pair.decoder, prompt.ids, 1, err) &&
             (m = run(c, &prompt, false, second, &report, err)) >= 0;
        if (ok) {
            bd_generation_totals_add(plain, &report);
            drafted->identical += n == m && !memcmp(first, second, (size_t)n * sizeof *first);
        }
    }
    bd_tokens_free(&prompt);
    bd_arena_release(c->arena, mark);
    return ok;
}

static json_t *results(const command *c, const bd_generation_totals *plain,
                       const bd_generation_totals *drafted, const bd_pair_cost *cost,
                       json_t *samples)
{
    json_t *out = json_object();
    const bd_generation_totals *main = c->pair.drafter ? drafted : plain;
    json_object_set_new(out, "prompts", json_integer(main->prompts));
    json_object_set_new(out, "tokens", json_integer(main->tokens));
    json_object_set_new(out, "tokens_per_second", json_real(bd_generation_rate(main)));
    json_object_set_new(out, "target_passes", json_integer(main->passes));
    if (c->pair.drafter) {
        json_object_set_new(out, "acceptance_length",
                            json_real(bd_generation_accept_length(drafted)));
        json_object_set_new(out, "acceptance_per_position", bd_generation_positions(drafted));
        json_object_set_new(out, "break_even_length", json_real(cost->break_even));
        json_object_set_new(out, "seconds_per_token", json_real(cost->single));
        json_object_set_new(out, "seconds_per_block", json_real(cost->block));
        json_object_set_new(out, "seconds_per_draft", json_real(cost->draft));
    }
    if (c->compare) {
        json_object_set_new(out, "plain_tokens_per_second", json_real(bd_generation_rate(plain)));
        json_object_set_new(out, "speedup",
                            json_real(plain->seconds / fmax(drafted->seconds, 1e-12)));
        json_object_set_new(out, "identical", json_boolean(drafted->identical == drafted->prompts));
    }
    json_object_set(out, "samples", samples);
    return out;
}

static void print_results(const command *c, const bd_generation_totals *plain,
                          const bd_generation_totals *drafted, const bd_pair_cost *cost)
{
    const bd_generation_totals *main = c->pair.drafter ? drafted : plain;
    fprintf(stderr, "\nprompt: %lld tokens, %.0f tokens/s\n", (long long)main->prompt_tokens,
            (double)main->prompt_tokens / fmax(main->prefill_seconds, 1e-9));
    fprintf(stderr, "%s: %lld tokens, %.1f tokens/s, %lld target passes\n",
            c->pair.drafter ? "speculative" : "plain", (long long)main->tokens,
            bd_generation_rate(main), (long long)main->passes);
    if (c->pair.drafter) {
        fprintf(stderr,
                "acceptance length: %.3f tokens per target pass (break-even %.2f: a block of %lld "
                "costs %.2f "
                "of one token, its draft %.2f)\n",
                bd_generation_accept_length(drafted), cost->break_even,
                (long long)c->pair.drafter->config.block_size, cost->block / cost->single,
                cost->draft / cost->single);
        bd_generation_print_positions(drafted);
    }
    if (c->compare) {
        fprintf(stderr, "plain: %lld tokens, %.1f tokens/s\n", (long long)plain->tokens,
                bd_generation_rate(plain));
        fprintf(stderr, "identical: %s\nspeed-up: %.2fx\n",
                drafted->identical == drafted->prompts ? "yes" : "NO",
                plain->seconds / fmax(drafted->seconds, 1e-12));
    }
}

static bool collect_prompts(command *c, bd_error *err)
{
    if (c->blocks.tokens_in && !c->prompt && !c->prompt_file && !c->prompts_file)
        return true;
    if ((c->prompt != NULL) + (c->prompt_file != NULL) + (c->prompts_file != NULL) != 1)
        return bd_fail_as(err, BD_ERROR_USAGE, "one of --prompt, --file, --prompts is wanted");
    if (c->prompts_file)
        return bd_prompts_read(&c->prompts, c->prompts_file, c->limit, err);
    char *text = c->prompt ? strdup(c->prompt)
                           : bd_file_read_text(c->prompt_file, (size_t)64 << 20, NULL, err);
    bool ok = text && bd_prompts_add(&c->prompts, text, NULL);
    free(text);
    return ok;
}

static bool prepare(command *c, bd_error *err)
{
    c->options = bd_generation_default();
    c->options.sampling.temperature = (float)c->temperature;
    c->options.sampling.top_k = c->top_k;
    c->options.sampling.top_p = (float)c->top_p;
    c->options.sampling.min_p = (float)c->min_p;
    c->options.sampling.seed = (uint64_t)c->seed;
    if (!bd_sampling_check(&c->options.sampling, err) || !collect_prompts(c, err))
        return false;
    if (bd_block_folder(c->pair.model))
        return true;
    if (bd_block_choices_given(&c->blocks))
        return bd_fail_as(err, BD_ERROR_USAGE, "%s: %s is no block-diffusion model",
                          bd_block_choices_given(&c->blocks), c->pair.model);
    if (!bd_pair_open(&c->pair, err))
        return false;
    if (c->parallel > 1 && (c->pair.drafter || c->dump_path))
        return bd_fail_as(err, BD_ERROR_USAGE, "--parallel: plain decoding only, without %s",
                          c->pair.drafter ? "--draft" : "--spec-dump");
    if (c->compare && !c->pair.drafter)
        return bd_fail_as(err, BD_ERROR_USAGE, "--compare wants --draft");
    c->options.most = c->tokens;
    c->options.schedule = c->pair.schedule;
    c->options.stop = c->stops;
    c->options.stop_count = c->ignore_eos ? 0 : bd_pair_stops(&c->pair, c->stops);
    c->options.self = c;
    c->options.emit = show;
    if (c->dump_path) {
        if (!(c->dump = bd_writer_open(c->dump_path, err)))
            return false;
        c->options.cycle = dump_cycle;
    }
    return (c->arena = bd_arena_create(0, err)) != NULL;
}

static bool generate_blocks(command *c, bd_error *err)
{
    if (c->parallel > 1)
        return bd_fail_as(err, BD_ERROR_USAGE,
                          "--parallel: for causal models, %s is a block-diffusion model",
                          c->pair.model);
    if (c->dump_path || c->most_proposed > 0)
        return bd_fail_as(err, BD_ERROR_USAGE, "%s: drafts are for causal models",
                          c->dump_path ? "--spec-dump" : "--draft-max");
    c->blocks.schedule = c->pair.schedule_name;
    const bd_block_request request = {.pair = &c->pair,
                                      .prompts = &c->prompts,
                                      .choices = &c->blocks,
                                      .sampling = c->options.sampling,
                                      .tokens = c->tokens,
                                      .json = c->json,
                                      .ignore_eos = c->ignore_eos,
                                      .compare = c->compare};
    return bd_generate_blocks(&request, err);
}

static bool generate(command *c, bd_error *err)
{
    if (bd_block_folder(c->pair.model))
        return generate_blocks(c, err);
    bd_generation_totals plain = {0}, drafted = {0};
    bd_pair_cost cost = {0};
    json_t *samples = json_array();
    bool ok = true;
    if (c->parallel > 1) {
        const bd_parallel_request request = {.pair = &c->pair,
                                             .prompts = &c->prompts,
                                             .options = &c->options,
                                             .places = c->parallel,
                                             .json = c->json};
        ok = bd_generate_prompts(&request, &plain, samples, err);
    }
    for (int64_t i = 0; ok && c->parallel == 1 && i < c->prompts.count; i++)
        ok = one_prompt(c, i, &plain, &drafted, samples, err);
    bd_profile_stop(); // what follows measures
    ok = ok && (!c->pair.drafter || bd_pair_measure(&c->pair, &drafted.last, &cost, err));
    if (ok && c->json) {
        json_t *out = results(c, &plain, &drafted, &cost, samples);
        json_dumpf(out, stdout, JSON_INDENT(2));
        putchar('\n');
        json_decref(out);
    }
    if (ok)
        print_results(c, &plain, &drafted, &cost);
    json_decref(samples);
    if (ok && c->compare && drafted.identical != drafted.prompts)
        return bd_fail(err, "speculative and plain output differ: this must not happen");
    return ok;
}

int bd_command_generate(int argc, char **argv)
{
    command c = {.blocks = bd_block_choices_default(),
                 .top_p = 1,
                 .tokens = 128,
                 .most_proposed = -1,
                 .limit = 1000000,
                 .parallel = 1};
    bd_option list[48];
    int count = bd_pair_options(&c.pair, list);
    const bd_option more[] = {
        {"prompt", "p", BD_ARGUMENT_TEXT, "TEXT", "prompt", &c.prompt, 0, 0, false},
        {"file", "f", BD_ARGUMENT_TEXT, "FILE", "prompt from a file", &c.prompt_file, 0, 0, false},
        {"prompts", NULL, BD_ARGUMENT_TEXT, "FILE.jsonl",
         "many prompts (turns, prompt, text, messages)", &c.prompts_file, 0, 0, false},
        {"limit", NULL, BD_ARGUMENT_INT, "N", "at most so many of --prompts", &c.limit, 1, 1e9,
         false},
        {"parallel", NULL, BD_ARGUMENT_INT, "N", "so many prompts at once, without --draft (1)",
         &c.parallel, 1, BD_MOST_PARALLEL, false},
        {"tokens", "n", BD_ARGUMENT_INT, "N", "new tokens at most (128)", &c.tokens, 1, 1e7, false},
        {"seed", "s", BD_ARGUMENT_INT, "N", "of sampling (0)", &c.seed, 0, 1e18, false},
        {"temp", NULL, BD_ARGUMENT_NUMBER, "T", "temperature; 0: greedy (0)", &c.temperature, 0,
         100, false},
        {"top-k", NULL, BD_ARGUMENT_INT, "K", "sample from the K most likely; 0: all (0)", &c.top_k,
         0, 1e7, false},
        {"top-p", NULL, BD_ARGUMENT_NUMBER, "P", "sample from the most likely mass P (1)", &c.top_p,
         0, 1, false},
        {"min-p", NULL, BD_ARGUMENT_NUMBER, "P", "drop what is below P times the best (0)",
         &c.min_p, 0, 1, false},
        {"draft-max", NULL, BD_ARGUMENT_INT, "N", "propose at most N tokens a cycle (all)",
         &c.most_proposed, 1, BD_MOST_BLOCK, false},
        {"schedule", NULL, BD_ARGUMENT_TEXT, "NAME",
         BD_SCHEDULE_HELP "; block diffusion: which tokens a step keeps: low_confidence (that), "
                          "one, sequential, static, dynamic, factor, entropy",
         &c.pair.schedule_name, 0, 0, false},
        {"ignore-eos", NULL, BD_ARGUMENT_FLAG, NULL, "do not stop at stop tokens", &c.ignore_eos, 0,
         0, false},
        {"compare", NULL, BD_ARGUMENT_FLAG, NULL,
         "also decode plainly (blocks: without caches); is it identical, how much faster",
         &c.compare, 0, 0, false},
        {"spec-dump", NULL, BD_ARGUMENT_TEXT, "FILE.jsonl", "one line per speculative cycle",
         &c.dump_path, 0, 0, false},
        {"json", NULL, BD_ARGUMENT_FLAG, NULL, "results as JSON on standard output", &c.json, 0, 0,
         false},
    };
    memcpy(list + count, more, sizeof more);
    count += (int)(sizeof more / sizeof *more);
    count += bd_profile_options(&c.profile, list + count);
    count += bd_block_options(&c.blocks, list + count);
    const bd_options options = {
        .command = "generate",
        .usage = "-m MODEL [-md DRAFT] -p TEXT [options]",
        .summary = "Generates text from a causal or a block-diffusion model. With --draft, "
                   "speculative decoding: the same tokens, bit for bit, in fewer passes "
                   "of the target.",
        .list = list,
        .count = count};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("generate", &err);
    bool ok = prepare(&c, &err) && bd_profile_chosen_start(&c.profile, &err) && generate(&c, &err);
    if (c.dump && ok)
        ok = bd_writer_commit(c.dump, &err);
    else if (c.dump)
        bd_writer_abandon(c.dump);
    ok = ok && bd_profile_chosen_report(&c.profile, &err);
    bd_text_free(&c.shown);
    bd_arena_destroy(c.arena);
    bd_prompts_free(&c.prompts);
    bd_pair_close(&c.pair);
    return ok ? 0 : bd_run_error("generate", &err);
}
