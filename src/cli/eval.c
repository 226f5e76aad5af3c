/* bdlm eval - how well a model knows texts and answers. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/pair.h"
#include "cli/profile.h"
#include "format/corpus.h"
#include "train/answers.h"
#include "train/evaluate.h"

typedef struct {
    bd_pair pair;
    bd_text_list files;
    const char *tokens_in, *answers, *levels, *schedule;
    double threshold;
    int64_t window, stride, limit, rounds, seed, most_tokens;
    bool exact, chat, replace, json, verbose;
    bool blocks; // the model is a block-diffusion model
    bd_canvas canvas;
    bd_rollout_options rollout;
    bd_evaluation options;
    bd_arena *arena;
    bd_profile_choice profile;
    json_t *out;
} command;

// --- what to evaluate ---------------------------------------------------------------------------

static bool read_levels(command *c, bd_error *err)
{
    const char *at = c->levels;
    while (*at) {
        char *end;
        double level = strtod(at, &end);
        if (end == at || !(level > 0 && level <= 1) || (*end && *end != ','))
            return bd_fail_as(err, BD_ERROR_USAGE,
                              "--levels: \"%s\", numbers above 0 and at most 1 wanted, with commas",
                              c->levels);
        if (c->options.level_count == BD_MOST_LEVELS)
            return bd_fail_as(err, BD_ERROR_USAGE, "--levels: more than %d", BD_MOST_LEVELS);
        c->options.levels[c->options.level_count++] = level;
        at = *end ? end + 1 : end;
    }
    return true;
}

/* Windows in whole blocks; every set of a block where that costs little. */
static bool plan_blocks(command *c, bd_error *err)
{
    if (!bd_canvas_from_model(&c->pair.target->config, &c->canvas, err) || !read_levels(c, err))
        return false;
    c->rollout = bd_rollout_default(c->canvas);
    if (c->schedule && !bd_commit_from_name(c->schedule, &c->rollout.commit.strategy, err)) {
        bd_error_wrap(err, "--schedule");
        return false;
    }
    if (c->threshold >= 0)
        c->rollout.commit.threshold = (float)c->threshold;
    int64_t block = c->canvas.block_size;
    int64_t maskable = c->canvas.policy == BD_SEED_AND_MASK ? block - 1 : block;
    bool cheap = maskable <= 4;
    c->options.rounds = c->exact || (cheap && c->rounds < 0) ? 0 : c->rounds < 0 ? 2 : c->rounds;
    c->options.window -= c->options.window % block;
    if (c->options.window < 2 * block)
        c->options.window = 2 * block;
    if (c->stride == 0)
        c->options.stride = (c->options.window / 2 + block - 1) / block * block;
    return true;
}

static bool plan(command *c, bd_error *err)
{
    if (c->files.count == 0 && !c->tokens_in && !c->answers)
        return bd_fail_as(err, BD_ERROR_USAGE, "text files, --tokens-in or --answers are wanted");
    if (c->tokens_in && (c->files.count > 0 || c->answers))
        return bd_fail_as(err, BD_ERROR_USAGE, "--tokens-in: files and --answers need a tokenizer");
    if (!bd_pair_open_model(&c->pair, !c->tokens_in, err))
        return false;
    int64_t context = c->pair.context;
    c->blocks = c->pair.target->config.diffusion.block_size > 0;
    c->options.window = c->window ? c->window : context < 512 ? context : 512;
    c->options.stride = c->stride ? c->stride : (c->options.window + 1) / 2;
    c->options.seed = (uint64_t)c->seed;
    if (c->blocks && !plan_blocks(c, err))
        return false;
    if (!c->blocks && (c->exact || c->rounds >= 0 || c->schedule || c->threshold >= 0))
        return bd_fail_as(err, BD_ERROR_USAGE, "%s: %s is no block-diffusion model",
                          c->exact         ? "--exact"
                          : c->rounds >= 0 ? "--rounds"
                          : c->schedule    ? "--schedule"
                                           : "--threshold",
                          c->pair.model);
    c->out = json_pack("{s:s,s:s}", "model", c->pair.model, "kind",
                       c->blocks ? "block_diffusion" : "causal_lm");
    return (c->arena = bd_arena_create(0, err)) != NULL;
}

/* The tokens of --tokens-in or of the files, cut at --limit. */
static bool read_text(command *c, bd_corpus *corpus, bd_error *err)
{
    if (c->tokens_in) {
        bd_tokens tokens = {0};
        if (!bd_token_ids_read(c->tokens_in, &tokens, err))
            return false;
        corpus->tokens = tokens.ids; // both are of malloc
        corpus->count = tokens.count;
    } else {
        bd_progress *bar =
            bd_progress_begin("read", bd_corpus_size(c->files.items, c->files.count, err));
        bool ok = bd_corpus_read(c->pair.text, c->files.items, c->files.count,
                                 (bd_document_options){.replace = c->replace}, bar, corpus, err);
        bd_progress_end(bar);
        if (!ok)
            return false;
    }
    if (c->limit > 0 && corpus->count > c->limit)
        corpus->count = c->limit;
    return true;
}

/* Bytes of text that tokens stand for; special tokens stand for none. */
static int64_t bytes_of(const command *c, const int32_t *tokens, int64_t count)
{
    int64_t bytes = 0;
    for (int64_t i = 0; c->pair.text && i < count; i++) {
        size_t size = 0;
        if (bd_tokenizer_kind(c->pair.text, tokens[i]) != BD_TOKEN_SPECIAL &&
            bd_tokenizer_token(c->pair.text, tokens[i], &size))
            bytes += (int64_t)size;
    }
    return bytes;
}

// --- text ---------------------------------------------------------------------------------------

static const char *rows_format = "%-34s %s\n";

static void row(const command *c, const char *label, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void row(const command *c, const char *label, const char *format, ...)
{
    char value[200];
    va_list list;
    if (c->json)
        return;
    va_start(list, format);
    vsnprintf(value, sizeof value, format, list);
    va_end(list);
    printf(rows_format, label, value);
}

static void set(json_t *object, const char *name, double value)
{
    json_object_set_new(object, name, isfinite(value) ? json_real(value) : json_null());
}

static bool causal_text(command *c, const bd_corpus *corpus, bd_error *err)
{
    bd_causal_score score;
    if (!bd_evaluate_causal(c->pair.target, corpus->tokens, corpus->count, &c->options, &score,
                            c->arena, err))
        return false;
    int64_t bytes = bytes_of(c, corpus->tokens + score.first, corpus->count - score.first);
    double mean = score.nats / (double)score.tokens, bits = score.nats / log(2) / (double)bytes;
    json_t *text = json_object();
    json_object_set_new(text, "tokens", json_integer(score.tokens));
    json_object_set_new(text, "bytes", json_integer(bytes));
    set(text, "nats_per_token", mean);
    set(text, "perplexity", exp(mean));
    set(text, "bits_per_byte", bits);
    set(text, "accuracy", score.correct / (double)score.tokens);
    json_object_set_new(c->out, "text", text);
    row(c, "tokens, bytes", "%lld, %lld", (long long)score.tokens, (long long)bytes);
    row(c, "nats a token", "%.4f", mean);
    row(c, "perplexity", "%.3f", exp(mean));
    if (bytes > 0)
        row(c, "bits a byte", "%.4f", bits);
    row(c, "next token right", "%.1f%%", 100 * score.correct / (double)score.tokens);
    return true;
}

static void tell_levels(const command *c, const bd_block_score *score, json_t *text)
{
    json_t *levels = json_array();
    for (int i = 0; i < c->options.level_count; i++) {
        const bd_denoising *d = &score->level[i];
        double tokens = fmax((double)d->tokens, 1), share = c->options.levels[i];
        json_t *level = json_object();
        json_object_set_new(level, "masked", json_real(share));
        json_object_set_new(level, "tokens", json_integer(d->tokens));
        set(level, "nats_per_token", d->nats / tokens);
        set(level, "accuracy", d->correct / tokens);
        json_array_append_new(levels, level);
        char label[64];
        snprintf(label, sizeof label, "%.0f%% of a block masked", 100 * share);
        row(c, label, "%.4f nats a masked token, %.1f%% right", d->nats / tokens,
            100 * d->correct / tokens);
    }
    json_object_set_new(text, "denoising", levels);
}

static bool block_text(command *c, const bd_corpus *corpus, bd_error *err)
{
    bd_block_score score;
    if (!bd_evaluate_blocks(c->pair.target, &c->canvas, corpus->tokens, corpus->count, &c->options,
                            &score, c->arena, err))
        return false;
    int64_t bytes = bytes_of(c, corpus->tokens + score.first, corpus->count - score.first);
    double tokens = (double)score.tokens, per_byte = log(2) * (double)bytes;
    bool exact = c->options.rounds == 0;
    json_t *text = json_object();
    json_object_set_new(text, "tokens", json_integer(score.tokens));
    json_object_set_new(text, "bytes", json_integer(bytes));
    json_object_set_new(text, "block_size", json_integer(c->canvas.block_size));
    json_object_set_new(text, "exact", json_boolean(exact));
    set(text, "nats_per_token", score.nats / tokens);
    set(text, "nats_per_token_margin", score.margin / tokens);
    set(text, "perplexity", exp(score.nats / tokens));
    set(text, "bits_per_byte", score.nats / per_byte);
    set(text, "bits_per_byte_margin", score.margin / per_byte);
    json_object_set_new(text, "passes", json_integer(score.passes));
    row(c, "tokens, bytes", "%lld, %lld", (long long)score.tokens, (long long)bytes);
    tell_levels(c, &score, text);
    json_object_set_new(c->out, "text", text);
    const char *how = exact ? "exact" : "estimated, 95% interval";
    row(c, "nats a token, at most", "%.4f +- %.4f (%s)", score.nats / tokens, score.margin / tokens,
        how);
    row(c, "perplexity, at most", "%.3f", exp(score.nats / tokens));
    if (bytes > 0)
        row(c, "bits a byte, at most", "%.4f +- %.4f (%s)", score.nats / per_byte,
            score.margin / per_byte, how);
    return true;
}

static bool evaluate_text(command *c, bd_error *err)
{
    if (c->files.count == 0 && !c->tokens_in)
        return true;
    bd_corpus corpus = {0};
    bool ok = read_text(c, &corpus, err);
    if (ok) {
        c->options.progress = bd_progress_begin("eval", corpus.count);
        ok = c->blocks ? block_text(c, &corpus, err) : causal_text(c, &corpus, err);
        bd_progress_end(c->options.progress);
    }
    bd_corpus_free(&corpus);
    return ok;
}

// --- answers ------------------------------------------------------------------------------------

static void show_answer(void *self, const bd_answer *answer)
{
    const command *c = self;
    if (c->verbose)
        fprintf(stderr, "line %lld: %s\n  wanted: %s\n  got:    %s\n", (long long)answer->line,
                answer->exact    ? "exact"
                : answer->begins ? "begins so"
                                 : "differs",
                answer->wanted, answer->got);
}

static bool evaluate_answers(command *c, bd_error *err)
{
    if (!c->answers)
        return true;
    bd_chat *chat = NULL;
    if (c->chat && !(chat = bd_chat_open(c->pair.text, NULL, err)))
        return false;
    bd_answer_options options = {.tokenizer = c->pair.text,
                                 .chat = chat,
                                 .most_tokens = c->most_tokens,
                                 .context = c->pair.context,
                                 .rollout = c->blocks ? &c->rollout : NULL,
                                 .progress = bd_progress_begin("answers", 0),
                                 .told = show_answer,
                                 .self = c};
    bd_answer_score score;
    bool ok = bd_evaluate_answers(c->pair.target, c->answers, &options, &score, c->arena, err);
    bd_progress_end(options.progress);
    bd_chat_close(chat);
    if (!ok)
        return false;
    double records = (double)score.records, tokens = (double)score.tokens;
    json_t *answers = json_object();
    json_object_set_new(answers, "records", json_integer(score.records));
    json_object_set_new(answers, "exact", json_integer(score.exact));
    json_object_set_new(answers, "begins", json_integer(score.begins));
    set(answers, "exact_match", (double)score.exact / records);
    json_object_set_new(answers, "tokens", json_integer(score.tokens));
    set(answers, "tokens_per_forward", tokens / fmax((double)score.forwards, 1));
    set(answers, "tokens_per_second", tokens / fmax(score.seconds, 1e-12));
    json_object_set_new(c->out, "answers", answers);
    row(c, "exact match", "%.1f%% (%lld of %lld)", 100 * (double)score.exact / records,
        (long long)score.exact, (long long)score.records);
    row(c, "begins with the answer", "%.1f%%", 100 * (double)score.begins / records);
    row(c, "tokens per forward", "%.3f", tokens / fmax((double)score.forwards, 1));
    row(c, "tokens/s", "%.1f", tokens / fmax(score.seconds, 1e-12));
    return true;
}

// --- the command --------------------------------------------------------------------------------

int bd_command_eval(int argc, char **argv)
{
    command c = {
        .levels = "0.1,0.25,0.5,0.75,1", .threshold = -1, .rounds = -1, .most_tokens = 128};
    const bd_option own[] = {
        {"model", "m", BD_ARGUMENT_TEXT, "FOLDER", "causal or block-diffusion model", &c.pair.model,
         0, 0, true},
        {"tokenizer", NULL, BD_ARGUMENT_TEXT, "FOLDER", "tokenizer, if not the model folder's",
         &c.pair.tokenizer, 0, 0, false},
        {"dtype", NULL, BD_ARGUMENT_CHOICE, "bf16|f32|q8_0",
         "what matrix products round their inputs to (bf16); q8_0: weights in blocks of int8 too",
         &c.pair.dtype, 0, 0, false},
        {"threads", "t", BD_ARGUMENT_INT, "N", "threads (all cores, or OMP_NUM_THREADS)",
         &c.pair.threads, 1, 256, false},
        {"ctx-size", "c", BD_ARGUMENT_INT, "N",
         "tokens of context for answers (the model's positions, at most 8192)", &c.pair.context, 1,
         1e7, false},
        {"window", NULL, BD_ARGUMENT_INT, "N", "tokens of text at a time (512)", &c.window, 2, 1e7,
         false},
        {"stride", NULL, BD_ARGUMENT_INT, "N",
         "new tokens of a window, the rest is context (half of it)", &c.stride, 1, 1e7, false},
        {"limit", NULL, BD_ARGUMENT_INT, "N", "at most so many tokens of the text (all)", &c.limit,
         2, 1e15, false},
        {"replace", NULL, BD_ARGUMENT_FLAG, NULL, "bytes that are not UTF-8 become U+FFFD",
         &c.replace, 0, 0, false},
        {"tokens-in", NULL, BD_ARGUMENT_TEXT, "FILE", "token ids instead of text, no tokenizer",
         &c.tokens_in, 0, 0, false},
        {"levels", NULL, BD_ARGUMENT_TEXT, "LIST",
         "blocks: shares of a block to mask (0.1,0.25,0.5,0.75,1)", &c.levels, 0, 0, false},
        {"rounds", NULL, BD_ARGUMENT_INT, "N",
         "blocks: random orders the bound is estimated from (2; blocks of up to 4: exact)",
         &c.rounds, 2, 1e6, false},
        {"exact", NULL, BD_ARGUMENT_FLAG, NULL, "blocks of up to 10: the bound from every set",
         &c.exact, 0, 0, false},
        {"seed", "s", BD_ARGUMENT_INT, "N", "blocks: of orders and masks (0)", &c.seed, 0, 1e18,
         false},
        {"answers", NULL, BD_ARGUMENT_TEXT, "FILE.jsonl",
         "prompts with answers: how many are given word for word", &c.answers, 0, 0, false},
        {"chat", NULL, BD_ARGUMENT_FLAG, NULL, "put prompts into the tokenizer's chat template",
         &c.chat, 0, 0, false},
        {"tokens", "n", BD_ARGUMENT_INT, "N", "tokens of an answer at most (128)", &c.most_tokens,
         1, 1e7, false},
        {"schedule", NULL, BD_ARGUMENT_TEXT, "NAME", "blocks: as in generate", &c.schedule, 0, 0,
         false},
        {"threshold", NULL, BD_ARGUMENT_NUMBER, "P", "blocks: as in generate", &c.threshold, 0, 1,
         false},
        {"verbose", "v", BD_ARGUMENT_FLAG, NULL, "show every answer on stderr", &c.verbose, 0, 0,
         false},
        {"json", NULL, BD_ARGUMENT_FLAG, NULL, "results as JSON on standard output", &c.json, 0, 0,
         false},
    };
    enum { OWN = sizeof own / sizeof *own };
    bd_option list[OWN + BD_PROFILE_OPTIONS];
    memcpy(list, own, sizeof own);
    const bd_options options = {
        .command = "eval",
        .usage = "-m MODEL [FILE...] [--answers FILE.jsonl] [options]",
        .summary =
            "Perplexity and bits per byte of text under a causal model; loss at noise levels "
            "and the likelihood bound under a block-diffusion model; exact match of answers.",
        .list = list,
        .count = OWN + bd_profile_options(&c.profile, list + OWN),
        .arguments = &c.files};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("eval", &err);
    bool ok = plan(&c, &err) && bd_profile_chosen_start(&c.profile, &err) &&
              evaluate_text(&c, &err) && evaluate_answers(&c, &err);
    bd_profile_stop();
    if (ok && c.json) {
        json_dumpf(c.out, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        putchar('\n');
    }
    ok = ok && bd_profile_chosen_report(&c.profile, &err);
    json_decref(c.out);
    bd_arena_destroy(c.arena);
    bd_pair_close(&c.pair);
    return ok ? 0 : bd_run_error("eval", &err);
}
