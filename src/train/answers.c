#include "train/answers.h"

#include <stdlib.h>
#include <string.h>

#include "draft/speculative.h"
#include "format/dataset.h"

typedef struct {
    bd_model *model;
    const char *path;
    const bd_answer_options *options;
    bd_decoder *decoder;       // causal
    bd_rollout_caches *caches; // block diffusion
    bd_block_generation blocks;
    int32_t stops[BD_MOST_STOPS];
    int64_t stop_count;
    bd_arena *arena;
} examination;

static bool prepare(examination *x, bd_error *err)
{
    const bd_model_config *config = &x->model->config;
    x->stop_count = config->stop_count;
    for (int i = 0; i < config->stop_count; i++)
        x->stops[i] = (int32_t)config->stop[i];
    if (config->diffusion.block_size == 0)
        return (x->decoder = bd_decoder_create(x->model, NULL, x->options->context + 2, err)) !=
               NULL;
    bd_canvas canvas;
    if (!bd_canvas_from_model(config, &canvas, err))
        return false;
    x->blocks = bd_block_generation_default(canvas, x->options->most_tokens);
    if (x->options->rollout)
        x->blocks.rollout = *x->options->rollout;
    x->blocks.stop = x->stops;
    x->blocks.stop_count = x->stop_count;
    return (x->caches = bd_rollout_caches_create(x->model, 1, x->options->context, err)) != NULL;
}

// --- one record ---------------------------------------------------------------------------------

static bool prompt_tokens(const examination *x, const bd_record *record, bd_tokens *out,
                          bd_error *err)
{
    const bd_answer_options *o = x->options;
    int64_t before = record->message_count - 1;
    if (!o->chat) {
        if (before != 1)
            return bd_fail(err, "%lld messages before the answer, wanted 1 or a chat template",
                           (long long)before);
        const char *text = record->messages[0].content;
        bd_encode_options encode = {.add_special = true};
        return bd_tokenizer_encode(o->tokenizer, text, strlen(text), &encode, out, err);
    }
    json_t *messages = json_array();
    for (int64_t i = 0; i < before; i++)
        json_array_append(messages, record->messages[i].object);
    bool done = bd_chat_prompt(o->chat, messages, out, err);
    json_decref(messages);
    return done;
}

/* Returns how many tokens, negative: error. */
static int64_t generate(examination *x, const bd_tokens *prompt, int32_t *out, int64_t *forwards,
                        bd_error *err)
{
    int64_t most = x->options->most_tokens, room = x->options->context - prompt->count;
    if (room < 1) {
        bd_fail(err, "a prompt of %lld tokens, the context has %lld", (long long)prompt->count,
                (long long)x->options->context);
        return -1;
    }
    most = most < room ? most : room;
    if (x->decoder) {
        bd_generation g = bd_generation_default();
        bd_generation_report report;
        g.most = most;
        g.most_proposed = 0;
        g.stop = x->stops;
        g.stop_count = x->stop_count;
        int64_t count = bd_generate(x->decoder, prompt->ids, prompt->count, &g, out, &report, err);
        *forwards = report.cycles + 1;
        return count;
    }
    bd_block_generated got;
    x->blocks.max_tokens = most;
    if (!bd_block_generate(x->model, x->caches, prompt->ids, prompt->count, &x->blocks, out, &got,
                           x->arena, err))
        return -1;
    *forwards = got.statistics.row_forwards;
    return got.count;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

/* The text without white space around it. */
static const char *trimmed(const char *text, size_t *size)
{
    while (*size > 0 && is_blank(*text))
        text++, (*size)--;
    while (*size > 0 && is_blank(text[*size - 1]))
        (*size)--;
    return text;
}

static void compare(bd_answer *answer)
{
    size_t wanted_size = strlen(answer->wanted), got_size = strlen(answer->got);
    const char *wanted = trimmed(answer->wanted, &wanted_size);
    const char *got = trimmed(answer->got, &got_size);
    answer->begins = got_size >= wanted_size && !memcmp(got, wanted, wanted_size);
    answer->exact = answer->begins && got_size == wanted_size;
}

static bool one_record(examination *x, const bd_record *record, bd_answer_score *score,
                       bd_error *err)
{
    const bd_message *last = NULL;
    if (record->kind == BD_RECORD_CONVERSATION && record->message_count >= 2)
        last = &record->messages[record->message_count - 1];
    if (!last || strcmp(last->role, "assistant") != 0 || !last->content)
        return bd_fail(err, "no answer at the end, wanted prompt and completion, or messages");
    size_t mark = bd_arena_mark(x->arena);
    int32_t *out = bd_arena_ints(x->arena, x->options->most_tokens);
    bd_tokens prompt = {0};
    bd_text text = {0};
    bd_answer answer = {.line = record->line, .wanted = last->content};
    bool done = prompt_tokens(x, record, &prompt, err);
    double began = bd_seconds();
    answer.tokens = done ? generate(x, &prompt, out, &answer.forwards, err) : -1;
    double ended = bd_seconds();
    done = answer.tokens >= 0 &&
           bd_tokenizer_decode(x->options->tokenizer, out, answer.tokens, true, &text, err) &&
           bd_text_check(&text, err);
    if (done) {
        answer.got = text.data ? text.data : "";
        compare(&answer);
        score->records++;
        score->exact += answer.exact;
        score->begins += answer.begins;
        score->tokens += answer.tokens;
        score->forwards += answer.forwards;
        score->seconds += ended - began;
        if (x->options->told)
            x->options->told(x->options->self, &answer);
    }
    bd_text_free(&text);
    bd_tokens_free(&prompt);
    bd_arena_release(x->arena, mark);
    return done;
}

bool bd_evaluate_answers(bd_model *model, const char *path, const bd_answer_options *options,
                         bd_answer_score *score, bd_arena *arena, bd_error *err)
{
    *score = (bd_answer_score){0};
    examination x = {.model = model, .path = path, .options = options, .arena = arena};
    bd_records *records = bd_records_open(path, err);
    bd_record record;
    int got = records && prepare(&x, err) ? 1 : -1;
    while (got > 0 && (options->limit == 0 || score->records < options->limit) &&
           (got = bd_records_next(records, &record, err)) > 0) {
        if (!one_record(&x, &record, score, err)) {
            bd_error_wrap(err, "%s:%lld", path, (long long)record.line);
            got = -1;
        } else {
            bd_progress_update(options->progress, score->records, "%.1f%% exact",
                               100 * (double)score->exact / (double)score->records);
        }
    }
    bd_records_close(records);
    bd_decoder_free(x.decoder);
    bd_rollout_caches_free(x.caches);
    return got >= 0 && (score->records > 0 || bd_fail(err, "%s: no records in it", path));
}
