#include "cli/generate_blocks.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/progress.h"
#include "cli/html.h"
#include "cli/trace.h"
#include "diffusion/generate.h"

// --- options ------------------------------------------------------------------------------------

bd_block_choices bd_block_choices_default(void)
{
    return (bd_block_choices){.threshold = -1, .factor = -1, .entropy_bound = -1};
}

int bd_block_options(bd_block_choices *c, bd_option *list)
{
    const bd_option options[BD_BLOCK_OPTIONS] = {
        {"threshold", NULL, BD_ARGUMENT_NUMBER, "P",
         "low_confidence, dynamic: keep what is at least this sure (0.9)", &c->threshold, 0, 1,
         false},
        {"factor", NULL, BD_ARGUMENT_NUMBER, "F", "factor: larger keeps more (1)", &c->factor, 1e-6,
         1e6, false},
        {"entropy-bound", NULL, BD_ARGUMENT_NUMBER, "NATS", "entropy: larger keeps more (0.35)",
         &c->entropy_bound, 1e-6, 1e6, false},
        {"steps", NULL, BD_ARGUMENT_INT, "N",
         "sequential, static, dynamic: steps of a block (one per token)", &c->steps, 1, 1e6, false},
        {"cacheless", NULL, BD_ARGUMENT_FLAG, NULL,
         "block diffusion: the slow reference, same tokens", &c->cacheless, 0, 0, false},
        {"trace", NULL, BD_ARGUMENT_FLAG, NULL, "block diffusion: show every step on stderr",
         &c->trace, 0, 0, false},
        {"trace-html", NULL, BD_ARGUMENT_TEXT, "FILE.html",
         "block diffusion: the steps as a page with a slider", &c->trace_html, 0, 0, false},
        {"tokens-in", NULL, BD_ARGUMENT_TEXT, "FILE",
         "block diffusion: token ids as prompt and as output, no tokenizer", &c->tokens_in, 0, 0,
         false},
    };
    memcpy(list, options, sizeof options);
    return BD_BLOCK_OPTIONS;
}

const char *bd_block_choices_given(const bd_block_choices *c)
{
    return c->threshold >= 0       ? "--threshold"
           : c->factor >= 0        ? "--factor"
           : c->entropy_bound >= 0 ? "--entropy-bound"
           : c->steps > 0          ? "--steps"
           : c->cacheless          ? "--cacheless"
           : c->trace              ? "--trace"
           : c->trace_html         ? "--trace-html"
           : c->tokens_in          ? "--tokens-in"
                                   : NULL;
}

bool bd_block_folder(const char *folder)
{
    char path[BD_PATH];
    bd_error ignored = {0};
    bd_model_config *config = malloc(sizeof *config);
    bool is = config && bd_path_join(path, folder, "config.json", &ignored) &&
              bd_model_config_read(path, config, &ignored) && config->diffusion.block_size > 0;
    free(config);
    return is;
}

// --- one command --------------------------------------------------------------------------------

/* Sums over prompts of one way to generate. */
typedef struct {
    int64_t prompts, prompt_tokens, tokens;
    double seconds;
    bd_rollout_statistics statistics;
} totals;

typedef struct {
    const bd_block_request *request;
    bd_pair *pair;
    bd_block_generation options;
    int32_t stops[BD_MOST_STOPS];
    bd_arena *arena;
    bd_trace trace;
    json_t *traces; // of the first prompts; NULL: not wanted
    bool colour;
    // While text streams.
    bd_token_stream stream;
    bd_text shown;
    bool echo;
    // Results.
    totals main, cacheless;
    int64_t identical;
    json_t *samples;
} command;

enum { MOST_SAMPLES = 8 };

static void flush_text(command *c)
{
    if (!c->echo)
        return;
    fwrite(c->shown.data ? c->shown.data : "", 1, c->shown.size, stdout);
    fflush(stdout);
    bd_text_clear(&c->shown);
}

static bool show_block(void *self, const int32_t *tokens, int64_t count)
{
    command *c = self;
    bd_error ignored = {0};
    for (int64_t i = 0; i < count; i++) {
        if (!c->pair->text)
            bd_text_print(&c->shown, "%d ", tokens[i]);
        else if (!bd_token_stream_add(&c->stream, c->pair->text, tokens[i], &c->shown, &ignored))
            return false;
    }
    // Text in pieces between the lines of a trace could not be read: then it comes at the end.
    if (!c->request->choices->trace)
        flush_text(c);
    return true;
}

static void watch(void *self, const bd_transition *transition)
{
    command *c = self;
    bd_trace_add(&c->trace, transition);
    if (c->request->choices->trace)
        bd_trace_print_step(&c->trace, c->pair->text, c->colour, stderr);
}

static bool run(command *c, const bd_tokens *prompt, bool plain, int32_t *out, totals *sums,
                bd_block_generated *result, bd_error *err)
{
    bd_block_generation options = c->options;
    options.plain = plain;
    if (options.max_tokens > c->pair->context - prompt->count)
        options.max_tokens = c->pair->context - prompt->count;
    c->stream = (bd_token_stream){.skip_special = true};
    bd_text_clear(&c->shown);
    double began = bd_seconds();
    if (!bd_block_generate(c->pair->target, NULL, prompt->ids, prompt->count, &options, out, result,
                           c->arena, err))
        return false;
    sums->seconds += bd_seconds() - began;
    if (c->pair->text)
        bd_token_stream_finish(&c->stream, &c->shown, err);
    sums->prompts++;
    sums->prompt_tokens += prompt->count;
    sums->tokens += result->count;
    bd_rollout_statistics *all = &sums->statistics;
    const bd_rollout_statistics *one = &result->statistics;
    all->transitions += one->transitions;
    all->commits += one->commits;
    all->forced += one->forced;
    all->confidence_sum += one->confidence_sum;
    all->row_forwards += one->row_forwards;
    all->forward_tokens += one->forward_tokens;
    return true;
}

static void keep_sample(command *c, const char *prompt, const int32_t *tokens, int64_t count)
{
    if (json_array_size(c->samples) >= MOST_SAMPLES)
        return;
    json_t *sample = json_pack("{s:s,s:s%}", "prompt", prompt, "text",
                               c->shown.data ? c->shown.data : "", c->shown.size);
    json_t *ids = json_array();
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(ids, json_integer(tokens[i]));
    json_object_set_new(sample, "tokens", ids);
    json_array_append_new(c->samples, sample);
}

/* The prompt, then its answer; with compare once more without caches. */
static bool answer(command *c, const char *text, const bd_tokens *prompt, bd_error *err)
{
    const bd_block_request *r = c->request;
    int32_t *first = bd_arena_ints(c->arena, r->tokens);
    int32_t *second = bd_arena_ints(c->arena, r->tokens);
    bd_block_generated got, again;
    c->echo = !r->json;
    if (c->echo && !r->choices->trace) {
        printf("%s", text);
        fflush(stdout);
    }
    bd_trace_clear(&c->trace);
    c->trace.block_size = c->options.rollout.canvas.block_size;
    c->trace.length = prompt->count + r->tokens;
    if (!run(c, prompt, r->choices->cacheless, first, &c->main, &got, err))
        return false;
    if (r->choices->trace && c->colour)
        bd_trace_print_text(&c->trace, c->pair->text, stderr);
    if (c->echo && r->choices->trace)
        printf("%s", text);
    if (r->json)
        keep_sample(c, text, first, got.count);
    flush_text(c);
    if (c->echo)
        putchar('\n');
    if (c->trace.failed)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for the trace");
    if (c->traces && json_array_size(c->traces) < MOST_SAMPLES)
        json_array_append_new(c->traces, bd_trace_json(&c->trace, c->pair->text, text));
    if (!r->compare)
        return true;
    c->options.stream = NULL;
    c->options.transition = NULL;
    bool ok = run(c, prompt, true, second, &c->cacheless, &again, err);
    c->options.stream = show_block;
    c->options.transition = c->traces || r->choices->trace ? watch : NULL;
    if (ok)
        c->identical +=
            got.count == again.count && !memcmp(first, second, (size_t)got.count * sizeof *first);
    return ok;
}

static bool one_prompt(command *c, int64_t index, bd_error *err)
{
    const bd_block_request *r = c->request;
    bd_tokens prompt = {0};
    bool ids = r->choices->tokens_in != NULL;
    const char *text = ids ? "" : r->prompts->items[index];
    size_t mark = bd_arena_mark(c->arena);
    bool ok = ids ? bd_token_ids_read(r->choices->tokens_in, &prompt, err)
                  : bd_pair_encode(c->pair, text, &prompt, err);
    if (ok && prompt.count + 1 > c->pair->context)
        ok = bd_fail(err, "prompt: %lld tokens, the context has %lld (--ctx-size)",
                     (long long)prompt.count, (long long)c->pair->context);
    if (ok && !r->json && !ids && r->prompts->count > 1)
        printf("%s--- prompt %lld\n", index ? "\n" : "", (long long)index + 1);
    ok = ok && answer(c, text, &prompt, err);
    bd_tokens_free(&prompt);
    bd_arena_release(c->arena, mark);
    return ok;
}

// --- results ------------------------------------------------------------------------------------

static double rate(const totals *t)
{
    return (double)t->tokens / fmax(t->seconds, 1e-12);
}

static void print_json(const command *c)
{
    const bd_rollout_statistics *s = &c->main.statistics;
    json_t *out = json_object();
    json_object_set_new(out, "prompts", json_integer(c->main.prompts));
    json_object_set_new(out, "tokens", json_integer(c->main.tokens));
    json_object_set_new(out, "seconds", json_real(c->main.seconds));
    json_object_set_new(out, "tokens_per_second", json_real(rate(&c->main)));
    json_object_set_new(out, "forwards", json_integer(s->row_forwards));
    json_object_set_new(out, "forward_tokens", json_integer(s->forward_tokens));
    json_object_set_new(out, "tokens_per_forward", json_real(bd_rollout_tokens_per_forward(s)));
    json_object_set_new(out, "forced_fraction", json_real(bd_rollout_forced_fraction(s)));
    json_object_set_new(out, "mean_confidence", json_real(bd_rollout_mean_confidence(s)));
    if (c->request->compare) {
        json_object_set_new(out, "cacheless_tokens_per_second", json_real(rate(&c->cacheless)));
        json_object_set_new(out, "cacheless_seconds", json_real(c->cacheless.seconds));
        json_object_set_new(out, "speedup",
                            json_real(c->cacheless.seconds / fmax(c->main.seconds, 1e-12)));
        json_object_set_new(out, "identical", json_boolean(c->identical == c->main.prompts));
    }
    json_object_set(out, "samples", c->samples);
    if (c->traces)
        json_object_set(out, "traces", c->traces);
    json_dumpf(out, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
    putchar('\n');
    json_decref(out);
}

static void print_statistics(const command *c)
{
    const bd_rollout_statistics *s = &c->main.statistics;
    fprintf(stderr,
            "\nblock diffusion%s: %lld tokens after %lld of prompt, %.1f tokens/s, %lld forwards, "
            "%.2f tokens per forward\nmean confidence %.3f, %.0f%% kept without meeting the "
            "schedule's own test\n",
            c->request->choices->cacheless ? " (cacheless)" : "", (long long)c->main.tokens,
            (long long)c->main.prompt_tokens, rate(&c->main), (long long)s->row_forwards,
            bd_rollout_tokens_per_forward(s), bd_rollout_mean_confidence(s),
            100 * bd_rollout_forced_fraction(s));
    if (c->request->compare)
        fprintf(stderr, "cacheless: %.1f tokens/s\nidentical: %s\nspeed-up: %.2fx\n",
                rate(&c->cacheless), c->identical == c->main.prompts ? "yes" : "NO",
                c->cacheless.seconds / fmax(c->main.seconds, 1e-12));
}

static bool write_page(const command *c, bd_error *err)
{
    bd_writer *out = bd_writer_open(c->request->choices->trace_html, err);
    if (!out)
        return false;
    size_t i;
    json_t *trace;
    bd_html_begin(out, "bdlm generate: trace");
    json_array_foreach(c->traces, i, trace) bd_html_trace(out, trace);
    bd_html_end(out);
    return bd_writer_commit(out, err);
}

// --- the whole ----------------------------------------------------------------------------------

static bool choose(command *c, bd_error *err)
{
    const bd_block_request *r = c->request;
    const bd_block_choices *choices = r->choices;
    bd_canvas canvas;
    if (!bd_canvas_from_model(&c->pair->target->config, &canvas, err))
        return false;
    c->options = bd_block_generation_default(canvas, r->tokens);
    bd_rollout_options *rollout = &c->options.rollout;
    if (choices->schedule &&
        !bd_commit_from_name(choices->schedule, &rollout->commit.strategy, err)) {
        bd_error_wrap(err, "--schedule");
        return false;
    }
    if (choices->threshold >= 0)
        rollout->commit.threshold = (float)choices->threshold;
    if (choices->factor >= 0)
        rollout->commit.factor = (float)choices->factor;
    if (choices->entropy_bound >= 0)
        rollout->commit.entropy_bound = (float)choices->entropy_bound;
    rollout->commit.steps = choices->steps;
    c->options.sample = r->sampling.temperature > 0;
    if (c->options.sample)
        rollout->temperature = r->sampling.temperature;
    rollout->top_k = r->sampling.top_k;
    rollout->top_p = r->sampling.top_p;
    rollout->min_p = r->sampling.min_p;
    c->options.seed = r->sampling.seed;
    c->options.stop = c->stops;
    c->options.stop_count = r->ignore_eos ? 0 : bd_pair_stops(c->pair, c->stops);
    c->options.self = c;
    c->options.stream = show_block;
    if (choices->trace || choices->trace_html) {
        c->options.transition = watch;
        c->traces = json_array();
    }
    c->colour = isatty(2) && !getenv("NO_COLOR");
    return true;
}

bool bd_generate_blocks(const bd_block_request *request, bd_error *err)
{
    command c = {.request = request, .pair = request->pair, .samples = json_array()};
    const bd_block_choices *choices = request->choices;
    int64_t prompts = choices->tokens_in ? 1 : request->prompts->count;
    bool ok = true;
    if (request->pair->draft)
        ok = bd_fail_as(err, BD_ERROR_USAGE,
                        "--draft: %s is a block-diffusion model, drafts are for causal models",
                        request->pair->model);
    else if (request->compare && choices->cacheless)
        ok = bd_fail_as(err, BD_ERROR_USAGE, "--compare and --cacheless exclude each other");
    ok = ok && bd_pair_open_model(c.pair, !choices->tokens_in, err) && choose(&c, err) &&
         (c.arena = bd_arena_create(0, err));
    for (int64_t i = 0; ok && i < prompts; i++)
        ok = one_prompt(&c, i, err);
    if (ok && request->json)
        print_json(&c);
    if (ok)
        print_statistics(&c);
    if (ok && choices->trace_html)
        ok = write_page(&c, err);
    if (ok && request->compare && c.identical != c.main.prompts)
        ok = bd_fail(err, "cached and cacheless output differ: this must not happen");
    json_decref(c.samples);
    json_decref(c.traces);
    bd_trace_free(&c.trace);
    bd_text_free(&c.shown);
    bd_arena_destroy(c.arena);
    return ok;
}
