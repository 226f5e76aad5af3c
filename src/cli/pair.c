#include "cli/pair.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/threads.h"
#include "format/dataset.h"

int bd_pair_options(bd_pair *pair, bd_option *list)
{
    const bd_option options[BD_PAIR_OPTIONS] = {
        {"model", "m", BD_ARGUMENT_TEXT, "FOLDER", "target model", &pair->model, 0, 0, true},
        {"draft", "md", BD_ARGUMENT_TEXT, "FOLDER", "drafter for speculative decoding",
         &pair->draft, 0, 0, false},
        {"tokenizer", NULL, BD_ARGUMENT_TEXT, "FOLDER", "tokenizer, if not the model folder's",
         &pair->tokenizer, 0, 0, false},
        {"dtype", NULL, BD_ARGUMENT_CHOICE, "bf16|f32|q8_0",
         "what matrix products round their inputs to (bf16); q8_0: weights in blocks of int8 too",
         &pair->dtype, 0, 0, false},
        {"ctx-size", "c", BD_ARGUMENT_INT, "N",
         "tokens of context (the model's positions, at most 8192)", &pair->context, 1, 1e7, false},
        {"threads", "t", BD_ARGUMENT_INT, "N", "threads (all cores, or OMP_NUM_THREADS)",
         &pair->threads, 1, 256, false},
    };
    memcpy(list, options, sizeof options);
    return BD_PAIR_OPTIONS;
}

bool bd_pair_open_model(bd_pair *pair, bool text, bd_error *err)
{
    if (pair->threads > 0)
        bd_threads_set((int)pair->threads);
    bd_dtype compute = bd_compute_from_name(pair->dtype ? pair->dtype : "bf16");
    if (!(pair->target = bd_model_open(pair->model, compute, err)) ||
        (text &&
         !(pair->text = bd_tokenizer_open(pair->tokenizer ? pair->tokenizer : pair->model, err))))
        return false;
    if (text && bd_tokenizer_size(pair->text) > pair->target->config.vocabulary)
        return bd_fail(err, "%s: the tokenizer has %lld tokens, the model %lld rows", pair->model,
                       (long long)bd_tokenizer_size(pair->text),
                       (long long)pair->target->config.vocabulary);
    int64_t positions = pair->target->config.max_positions;
    if (pair->context == 0)
        pair->context = positions < 8192 ? positions : 8192;
    if (pair->context > positions)
        return bd_fail(err, "--ctx-size: %lld, at most the model's %lld positions wanted",
                       (long long)pair->context, (long long)positions);
    return true;
}

static bool choose_schedule(bd_pair *pair, bd_error *err)
{
    static const char *const names[] = {
        [BD_DRAFT_FIXED] = "fixed", [BD_DRAFT_CONFIDENCE] = "confidence", [BD_DRAFT_AUTO] = "auto"};
    const char *name = pair->schedule_name;
    if (!name)
        return true;
    int chosen = 0;
    while (chosen <= BD_DRAFT_AUTO && strcmp(names[chosen], name))
        chosen++;
    if (chosen > BD_DRAFT_AUTO)
        return bd_fail_as(err, BD_ERROR_USAGE,
                          "--schedule: %s is not one of fixed, confidence, auto", name);
    if (!pair->drafter)
        return bd_fail_as(err, BD_ERROR_USAGE, "--schedule wants --draft");
    pair->schedule = (bd_draft_schedule)chosen;
    if (pair->schedule == BD_DRAFT_CONFIDENCE && !bd_draft_has_confidence(pair->drafter))
        return bd_fail_as(err, BD_ERROR_USAGE,
                          "--schedule confidence: %s has no confidence head (a %s draft), a dspark "
                          "draft with use_confidence_head wanted",
                          pair->draft, pair->drafter->config.variant->projector_type);
    return true;
}

bool bd_pair_open(bd_pair *pair, bd_error *err)
{
    if (!bd_pair_open_model(pair, true, err))
        return false;
    if (pair->target->config.diffusion.block_size > 0)
        return bd_fail(err, "%s: a block-diffusion model, a causal one is wanted here",
                       pair->model);
    // A drafter that was asked for and cannot run is an error, never plain decoding in silence.
    if (pair->draft &&
        !(pair->drafter = bd_draft_open(pair->draft, pair->target, pair->target->compute, err)))
        return false;
    if (!choose_schedule(pair, err))
        return false;
    int64_t block = pair->drafter ? pair->drafter->config.block_size : 1;
    pair->decoder = bd_decoder_create(pair->target, pair->drafter, pair->context + block + 1, err);
    return pair->decoder != NULL;
}

void bd_pair_close(bd_pair *pair)
{
    bd_decoder_free(pair->decoder);
    bd_draft_close(pair->drafter);
    bd_tokenizer_close(pair->text);
    bd_model_close(pair->target);
}

bool bd_pair_encode(const bd_pair *pair, const char *text, bd_tokens *tokens, bd_error *err)
{
    size_t bad = bd_utf8_valid(text, strlen(text));
    if (bad < strlen(text))
        return bd_fail(err, "prompt: byte %zu is not UTF-8", bad);
    bd_encode_options options = {.add_special = true};
    if (!bd_tokenizer_encode(pair->text, text, strlen(text), &options, tokens, err))
        return false;
    if (tokens->count == 0)
        return bd_fail(err, "prompt: no tokens in it");
    if (tokens->count + 1 > pair->context)
        return bd_fail(err, "prompt: %lld tokens, the context has %lld (--ctx-size)",
                       (long long)tokens->count, (long long)pair->context);
    return true;
}

bool bd_token_ids_read(const char *path, bd_tokens *out, bd_error *err)
{
    char *text = bd_file_read_text(path, (size_t)64 << 20, NULL, err);
    if (!text)
        return false;
    bool ok = true;
    for (char *at = text; ok;) {
        while (isspace((unsigned char)*at) || *at == ',' || *at == '[' || *at == ']')
            at++;
        if (!*at)
            break;
        char *end;
        errno = 0;
        long id = strtol(at, &end, 10);
        if (end == at || errno || id < 0 || id > INT32_MAX) {
            ok = bd_fail(err, "%s: \"%.20s\", a token id wanted", path, at);
            break;
        }
        if (out->count == out->room) {
            int64_t room = out->room ? 2 * out->room : 256;
            int32_t *ids = realloc(out->ids, (size_t)room * sizeof *ids);
            if (!ids) {
                ok = bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory for its tokens", path);
                break;
            }
            out->ids = ids;
            out->room = room;
        }
        out->ids[out->count++] = (int32_t)id;
        at = end;
    }
    free(text);
    return ok;
}

int64_t bd_pair_stops(const bd_pair *pair, int32_t stops[BD_MOST_STOPS])
{
    for (int i = 0; i < pair->target->config.stop_count; i++)
        stops[i] = (int32_t)pair->target->config.stop[i];
    return pair->target->config.stop_count;
}

bool bd_pair_measure(bd_pair *pair, const bd_generation_report *report, bd_pair_cost *cost,
                     bd_error *err)
{
    enum { REPEATS = 21 };
    *cost = (bd_pair_cost){.single = bd_decoder_cost(pair->decoder, 1, REPEATS, err)};
    if (cost->single < 0 || !pair->drafter)
        return cost->single >= 0;
    cost->block = bd_decoder_cost(pair->decoder, pair->drafter->config.block_size, REPEATS, err);
    if (report->drafted_cycles > 0)
        cost->draft = report->draft_seconds / (double)report->drafted_cycles;
    cost->break_even = bd_break_even_length(cost->draft, cost->block, cost->single);
    return cost->block >= 0;
}

// --- prompts -------------------------------------------------------------------------------------

bool bd_prompts_add(bd_prompts *prompts, const char *text, const char *category)
{
    size_t size = (size_t)(prompts->count + 1) * sizeof(char *);
    char **items = realloc(prompts->items, size),
         **categories = items ? realloc(prompts->categories, size) : NULL;
    if (items)
        prompts->items = items;
    if (!categories)
        return false;
    prompts->categories = categories;
    prompts->items[prompts->count] = strdup(text);
    prompts->categories[prompts->count++] = category ? strdup(category) : NULL;
    return true;
}

static const char *first_prompt(const bd_record *record)
{
    if (record->kind == BD_RECORD_TEXT)
        return record->text;
    for (int64_t i = 0; i < record->message_count; i++)
        if (!strcmp(record->messages[i].role, "user"))
            return record->messages[i].content;
    return NULL;
}

/* The name of a file without folder and ending. */
static void name_file(const char *path, char out[64])
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path,
               *dot = strchr(name, '.');
    int size = dot && dot != name ? (int)(dot - name) : (int)strlen(name);
    snprintf(out, 64, "%.*s", size < 63 ? size : 63, name);
}

bool bd_prompts_read(bd_prompts *prompts, const char *path, int64_t most, bd_error *err)
{
    bd_records *records = bd_records_open(path, err);
    if (!records)
        return false;
    char file[64];
    name_file(path, file);
    bd_record record;
    int got = 1;
    while (prompts->count < most && (got = bd_records_next(records, &record, err)) > 0) {
        const char *text = first_prompt(&record);
        const char *category = json_string_value(json_object_get(record.object, "category"));
        if (text && !bd_prompts_add(prompts, text, category ? category : file)) {
            bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory for prompts", path);
            got = -1;
            break;
        }
    }
    bd_records_close(records);
    if (got >= 0 && prompts->count == 0)
        return bd_fail(err, "%s: no prompts in it", path);
    return got >= 0;
}

void bd_prompts_free(bd_prompts *prompts)
{
    for (int64_t i = 0; i < prompts->count; i++) {
        free(prompts->items[i]);
        free(prompts->categories[i]);
    }
    free(prompts->items);
    free(prompts->categories);
    *prompts = (bd_prompts){0};
}
