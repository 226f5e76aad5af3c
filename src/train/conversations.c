#include "train/conversations.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "diffusion/completion.h"
#include "format/json.h"

// --- the set -------------------------------------------------------------------------------------

static bool no_memory(bd_error *err)
{
    return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for the tokens of the conversations");
}

static bool make_room(bd_conversation_set *set, int64_t tokens, bd_error *err)
{
    int64_t need = set->token_count + tokens;
    if (need > set->token_room) {
        int64_t room = need + need / 2 + 1024;
        int32_t *ids = realloc(set->tokens, (size_t)room * sizeof *ids);
        if (ids)
            set->tokens = ids;
        uint8_t *marks = realloc(set->completion, (size_t)room);
        if (marks)
            set->completion = marks;
        if (!ids || !marks)
            return no_memory(err);
        set->token_room = room;
    }
    if (set->count == set->document_room) {
        int64_t room = 2 * set->document_room + 64;
        int64_t *ends = realloc(set->ends, (size_t)room * sizeof *ends);
        if (!ends)
            return no_memory(err);
        set->ends = ends;
        set->document_room = room;
    }
    return true;
}

bool bd_conversation_set_add(bd_conversation_set *set, const int32_t *tokens,
                             const uint8_t *completion, int64_t count, bd_error *err)
{
    if (!make_room(set, count, err))
        return false;
    memcpy(set->tokens + set->token_count, tokens, (size_t)count * sizeof *tokens);
    for (int64_t i = 0; i < count; i++)
        set->completion[set->token_count + i] = !completion || completion[i];
    set->token_count += count;
    set->ends[set->count++] = set->token_count;
    return true;
}

void bd_conversation_set_free(bd_conversation_set *set)
{
    free(set->tokens);
    free(set->completion);
    free(set->ends);
    *set = (bd_conversation_set){0};
}

bd_token_documents bd_conversation_documents(const bd_conversation_set *set)
{
    return (bd_token_documents){set->tokens, set->completion, set->ends, set->count};
}

// --- one document --------------------------------------------------------------------------------

/* A document while it is made: tokens and marks of one length. */
typedef struct {
    int32_t *tokens;
    uint8_t *completion;
    int64_t count;
} document;

/* The document as a batch of one row, in the arena, so that the rules of batches apply to it. */
static bd_diffusion_batch as_batch(const document *d, bd_arena *arena)
{
    bd_diffusion_batch batch = bd_diffusion_batch_allocate(arena, 1, d->count);
    bd_padding none = {.policy = BD_PAD_NONE};
    bd_diffusion_batch_fill(&batch, 0, d->tokens, d->completion, d->count, &none);
    return batch;
}

static bool keep_last_answer(document *d, bd_arena *arena, bd_error *err)
{
    bd_diffusion_batch b = as_batch(d, arena);
    if (!bd_last_answer(1, d->count, 0, b.inputs, b.targets, b.inputs_segmentation,
                        b.targets_segmentation, b.completion_mask, err))
        return false;
    for (int64_t i = 0; i < d->count; i++)
        d->completion[i] = b.completion_mask[i] != 0;
    return true;
}

static void cut_after_last_answer(document *d)
{
    int64_t last = d->count;
    while (last > 0 && !d->completion[last - 1])
        last--;
    if (last > 0)
        d->count = last;
}

/* What the options make of a document, before it is added. */
static bool finish(document *d, const bd_conversation_options *o, bd_conversation_set *set,
                   bd_arena *arena, bd_error *err)
{
    if (d->count == 0)
        return bd_fail(err, "a conversation without tokens");
    if (o->completion_only) {
        if (o->last_answer && !keep_last_answer(d, arena, err))
            return false;
        cut_after_last_answer(d);
    }
    if (o->completion_only && o->block_size > 0) {
        bd_diffusion_batch b = as_batch(d, arena);
        if (!bd_diffusion_batch_check_leak(&b, o->block_size, err))
            return bd_error_wrap(err, "an answer would see the prompt after it; data.last_answer "
                                      "true trains on the last answer alone");
    }
    if (o->most_tokens > 0 && d->count > o->most_tokens) {
        d->count = o->most_tokens;
        set->cut++;
        if (o->completion_only && !memchr(d->completion, 1, (size_t)d->count)) {
            set->dropped++;
            return true;
        }
    }
    return bd_conversation_set_add(set, d->tokens, d->completion, d->count, err);
}

// --- records -------------------------------------------------------------------------------------

typedef struct {
    const bd_conversation_options *options;
    bd_conversation_set *set;
    bd_arena *arena; // scratch for one record
} reader;

static bool add_from_template(reader *r, const bd_record *record, bd_error *err)
{
    bd_conversation conversation = {0};
    bd_chat_request request = {.messages = record->message_list,
                               .tools = json_object_get(record->object, "tools")};
    bool ok = bd_chat_render(r->options->chat, &request, &conversation, err);
    if (ok) {
        document d = {conversation.tokens.ids, conversation.completion, conversation.tokens.count};
        ok = finish(&d, r->options, r->set, r->arena, err);
    }
    bd_conversation_free(&conversation);
    return ok;
}

/* A prompt that is not learned, perhaps empty, and a completion that is, ended by the end token. */
static bool add_plain(reader *r, const char *prompt, const char *completion, bd_error *err)
{
    const bd_tokenizer *tokenizer = r->options->tokenizer;
    bd_tokens tokens = {0};
    bool ok = bd_tokenizer_encode(tokenizer, prompt, strlen(prompt), NULL, &tokens, err);
    int64_t border = tokens.count;
    ok = ok && bd_tokenizer_encode(tokenizer, completion, strlen(completion), NULL, &tokens, err);
    if (ok) {
        document d = {.tokens = bd_arena_ints(r->arena, tokens.count + 1),
                      .completion = bd_arena_alloc(r->arena, (size_t)tokens.count + 1),
                      .count = tokens.count};
        if (tokens.count > 0)
            memcpy(d.tokens, tokens.ids, (size_t)tokens.count * sizeof *d.tokens);
        int32_t end = bd_tokenizer_role(tokenizer, BD_ROLE_EOS);
        if (end >= 0)
            d.tokens[d.count++] = end;
        for (int64_t i = 0; i < d.count; i++)
            d.completion[i] = i >= border;
        ok = finish(&d, r->options, r->set, r->arena, err);
    }
    bd_tokens_free(&tokens);
    return ok;
}

static bool is_pair(const bd_record *record)
{
    return bd_json_has(record->object, "prompt") && record->message_count == 2 &&
           !strcmp(record->messages[0].role, "user") &&
           !strcmp(record->messages[1].role, "assistant");
}

static bool add_record(reader *r, const bd_record *record, bd_error *err)
{
    if (record->kind == BD_RECORD_TEXT)
        return add_plain(r, "", record->text, err);
    if (record->kind == BD_RECORD_PROMPTS)
        return bd_fail(err, "a prompt without a completion, nothing to learn");
    if (r->options->chat)
        return add_from_template(r, record, err);
    if (!is_pair(record))
        return bd_fail(err, "messages need a chat template, the tokenizer has none; "
                            "data.chat_template names one");
    return add_plain(r, record->messages[0].content, record->messages[1].content, err);
}

static bool read_file(reader *r, const char *path, bd_error *err)
{
    bd_records *records = bd_records_open(path, err);
    bd_record record;
    int got = records ? 1 : -1;
    while (got > 0 && (got = bd_records_next(records, &record, err)) > 0) {
        size_t mark = bd_arena_mark(r->arena);
        if (!add_record(r, &record, err)) {
            bd_error_wrap(err, "%s:%lld", path, (long long)record.line);
            got = -1;
        }
        bd_arena_release(r->arena, mark);
    }
    bd_records_close(records);
    return got == 0;
}

bool bd_conversations_read(const char *const *files, int64_t count,
                           const bd_conversation_options *options, bd_conversation_set *out,
                           bd_error *err)
{
    *out = (bd_conversation_set){0};
    if (options->last_answer && !options->completion_only)
        return bd_fail(err, "data.last_answer needs data.completion_only");
    reader r = {.options = options, .set = out, .arena = bd_arena_create(0, err)};
    if (!r.arena)
        return false;
    bool ok = true;
    for (int64_t f = 0; ok && f < count; f++)
        ok = read_file(&r, files[f], err);
    bd_arena_destroy(r.arena);
    if (ok && out->count == 0)
        ok =
            bd_fail(err, "%s: no conversations in %lld files%s", count ? files[0] : "data",
                    (long long)count, out->dropped ? ", all answers lie beyond the row's end" : "");
    if (!ok)
        bd_conversation_set_free(out);
    return ok;
}
