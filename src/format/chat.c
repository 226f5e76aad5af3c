#include "format/chat.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_CUTS = 32 };

struct bd_chat {
    const bd_tokenizer *tokenizer;
    bd_template *template;
    time_t now;
    char *header, *end;
    // Where the header may be cut: a template that asks for "<think>" in its generation prompt
    // leaves it out of older turns. Longest first; the shortest is one that the template was seen
    // to print.
    size_t cuts[MOST_CUTS];
    int cut_count;
    bd_error unknown; // why turns cannot be found; kind BD_ERROR_NONE: they can
};

// --- rendering -----------------------------------------------------------------------------------

static json_t *variables_for(const bd_chat *chat, const bd_chat_request *request)
{
    json_t *variables =
        json_pack("{s:O, s:o, s:n, s:b}", "messages", request->messages, "tools",
                  request->tools ? json_incref(request->tools) : json_null(), "documents",
                  "add_generation_prompt", (int)request->add_generation_prompt);
    bool ok = variables != NULL;
    for (int role = 0; ok && role < BD_ROLE_COUNT; role++) {
        char name[32];
        size_t size;
        const char *token = bd_tokenizer_token(
            chat->tokenizer, bd_tokenizer_role(chat->tokenizer, (bd_token_role)role), &size);
        snprintf(name, sizeof name, "%s_token", bd_token_role_name((bd_token_role)role));
        if (token)
            ok = json_object_set_new(variables, name, json_stringn(token, size)) == 0;
    }
    if (ok && request->variables)
        ok = json_object_update(variables, request->variables) == 0;
    if (ok)
        return variables;
    json_decref(variables);
    return NULL;
}

static bool render_text(const bd_chat *chat, const bd_chat_request *request,
                        bd_template_output *out, bd_error *err)
{
    bd_template_options options = {.watch = "messages", .now = chat->now};
    json_t *variables = variables_for(chat, request);
    if (!variables)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a conversation");
    bool ok = bd_template_render(chat->template, variables, &options, out, err);
    json_decref(variables);
    return ok;
}

// The last occurrence of a text in another, NULL: none.
static const char *find_last(const char *in, size_t size, const char *what)
{
    size_t length = strlen(what);
    for (size_t at = size < length ? 0 : size - length + 1; at-- > 0;)
        if (memcmp(in + at, what, length) == 0)
            return in + at;
    return NULL;
}

// --- how the template opens and closes a turn ----------------------------------------------------

static const char question[] = "zqquestionqz";
static const char *const answers[] = {"zqfirstanswerqz", "zqsecondanswerqz"};

static bool render_probe(const bd_chat *chat, int turns, bool prompt, bd_template_output *out,
                         bd_error *err)
{
    json_t *messages = json_array();
    bool ok = true;
    for (int i = 0; ok && i < turns; i++)
        ok = json_array_append_new(messages,
                                   json_pack("{s:s, s:s}", "role", i % 2 ? "assistant" : "user",
                                             "content", i % 2 ? answers[i / 2] : question)) == 0;
    bd_chat_request request = {.messages = messages, .add_generation_prompt = prompt};
    ok = ok ? render_text(chat, &request, out, err)
            : bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a conversation");
    json_decref(messages);
    return ok;
}

// What follows the only message when a generation prompt is asked for: a turn's header.
static bool probe_header(bd_chat *chat, bd_error *err)
{
    bd_template_output with = {0}, without = {0};
    bool ok =
        render_probe(chat, 1, true, &with, err) && render_probe(chat, 1, false, &without, err);
    if (ok) {
        size_t begin = SIZE_MAX;
        if (with.watched_count)
            begin = (size_t)with.watched[with.watched_count - 1].end;
        else if (with.text.size >= without.text.size &&
                 memcmp(with.text.data, without.text.data, without.text.size) == 0)
            begin = without.text.size;
        if (begin == SIZE_MAX)
            ok = bd_fail(err, "the template prints no generation prompt behind the messages");
        else if (!(chat->header = strdup(with.text.data + begin)))
            ok = bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a chat");
    }
    bd_template_output_free(&with);
    bd_template_output_free(&without);
    return ok;
}

// The first special token behind the answer, or the white space there, or nothing.
static bool probe_end(bd_chat *chat, const char *tail, size_t size, bd_error *err)
{
    bd_tokens tokens = {0};
    bd_encode_options options = {.spans = true};
    if (!bd_tokenizer_encode(chat->tokenizer, tail, size, &options, &tokens, err))
        return false;
    size_t begin = 0, end = size;
    while (end > begin && strchr(" \n\r\t", tail[end - 1]))
        end--;
    if (end == begin)
        end = size;
    for (int64_t i = 0; i < tokens.count; i++) {
        bd_token_kind kind = bd_tokenizer_kind(chat->tokenizer, tokens.ids[i]);
        if (kind == BD_TOKEN_SPECIAL || kind == BD_TOKEN_ADDED) {
            begin = (size_t)tokens.spans[i].begin;
            end = (size_t)tokens.spans[i].end;
            break;
        }
    }
    bd_tokens_free(&tokens);
    chat->end = strndup(tail + begin, end - begin);
    return chat->end || bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a chat");
}

// Places in the header from which on older turns may lack it, longest first: only whole marks such
// as
// "<think>" are left out, never the name of a role.
static bool find_cuts(bd_chat *chat, bd_error *err)
{
    bd_tokens tokens = {0};
    bd_encode_options options = {.spans = true};
    size_t size = strlen(chat->header), places[MOST_CUTS];
    int count = 0;
    if (!bd_tokenizer_encode(chat->tokenizer, chat->header, size, &options, &tokens, err))
        return false;
    for (int64_t i = 1; i < tokens.count && count < MOST_CUTS - 1; i++) {
        size_t begin = (size_t)tokens.spans[i].begin;
        bool mark = bd_tokenizer_kind(chat->tokenizer, tokens.ids[i]) != BD_TOKEN_NORMAL ||
                    strchr("<[", chat->header[begin]);
        if (mark && begin > 0)
            places[count++] = begin;
    }
    places[count++] = size;
    bd_tokens_free(&tokens);
    for (int i = 0; i < count; i++)
        chat->cuts[i] = places[count - 1 - i];
    chat->cut_count = count;
    return true;
}

// The longest beginning of the header that the text has, and where it ends there. NULL: none.
static const char *find_header(const bd_chat *chat, const char *text, size_t size, int *cut)
{
    for (int i = 0; i < chat->cut_count; i++) {
        const char *found = memmem(text, size, chat->header, chat->cuts[i]);
        *cut = i;
        if (found)
            return found + chat->cuts[i];
    }
    return NULL;
}

// See how the template prints two answers, and what surrounds them.
static bool probe_turns(bd_chat *chat, bd_error *err)
{
    bd_template_output out = {0};
    int answer_count = 2, shortest = 0;
    if (!render_probe(chat, 4, false, &out, err)) {
        bd_template_output_free(&out);
        answer_count = 1;
        if (!render_probe(chat, 2, false, &out, err)) {
            bd_template_output_free(&out);
            return false;
        }
    }
    bool ok = true;
    size_t from = 0;
    for (int i = 0; ok && i < answer_count; i++) {
        int cut = 0;
        const char *answer = strstr(out.text.data + from, answers[i]);
        const char *next = answer ? strstr(answer, question) : NULL;
        if (!answer) {
            ok = bd_fail(err, "the template does not print what the assistant says");
            break;
        }
        size_t begin = (size_t)(answer - out.text.data);
        if (!find_header(chat, out.text.data + from, begin - from, &cut)) {
            ok = bd_fail(err,
                         "the template's generation prompt does not open the assistant's turns");
            break;
        }
        shortest = cut > shortest ? cut : shortest;
        // The end is looked for in the text of the message alone, if that is known.
        size_t after = begin + strlen(answers[i]),
               end = next ? (size_t)(next - out.text.data) : out.text.size;
        for (int64_t k = 0; k < out.watched_count; k++)
            if (out.watched[k].index == 2 * i + 1 && (size_t)out.watched[k].end >= after)
                end = (size_t)out.watched[k].end;
        if (!chat->end)
            ok = probe_end(chat, out.text.data + after, end - after, err);
        from = after;
    }
    chat->cut_count = shortest + 1;
    bd_template_output_free(&out);
    return ok;
}

static bool find_turns(bd_chat *chat, const bd_chat_options *options, bd_error *err)
{
    if (options->header || options->end) {
        chat->header = strdup(options->header ? options->header : "");
        chat->end = strdup(options->end ? options->end : "");
        if (!chat->header || !chat->end)
            return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a chat");
        chat->cuts[0] = strlen(chat->header);
        chat->cut_count = 1;
        return true;
    }
    return probe_header(chat, err) && find_cuts(chat, err) && probe_turns(chat, err);
}

bd_chat *bd_chat_open(const bd_tokenizer *tokenizer, const bd_chat_options *options, bd_error *err)
{
    static const bd_chat_options none = {0};
    options = options ? options : &none;
    const char *source =
        options->template_source ? options->template_source : bd_tokenizer_chat_template(tokenizer);
    if (!source) {
        bd_fail(err, "the tokenizer has no chat template, and none was given");
        return NULL;
    }
    bd_chat *chat = calloc(1, sizeof *chat);
    if (!chat) {
        bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a chat");
        return NULL;
    }
    chat->tokenizer = tokenizer;
    chat->now = options->now;
    chat->template = bd_template_compile(source, strlen(source), "chat template", err);
    if (!chat->template) {
        bd_chat_close(chat);
        return NULL;
    }
    // Not to know is an error only when a conversation has answers: see bd_chat_render.
    if (!bd_template_marks_generation(chat->template))
        find_turns(chat, options, &chat->unknown);
    return chat;
}

void bd_chat_close(bd_chat *chat)
{
    if (!chat)
        return;
    bd_template_free(chat->template);
    free(chat->header);
    free(chat->end);
    free(chat);
}

const char *bd_chat_header(const bd_chat *chat)
{
    return chat->unknown.kind ? NULL : chat->header;
}

const char *bd_chat_end(const bd_chat *chat)
{
    return chat->unknown.kind ? NULL : chat->end;
}

// --- spans in the text ---------------------------------------------------------------------------

static bool add_span(bd_conversation *c, int64_t message, int64_t begin, int64_t end, bd_error *err)
{
    if (c->span_count == c->span_room) {
        int64_t room = c->span_room ? c->span_room * 2 : 16;
        bd_chat_span *larger = realloc(c->spans, (size_t)room * sizeof *larger);
        if (!larger)
            return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a conversation");
        c->spans = larger;
        c->span_room = room;
    }
    c->spans[c->span_count++] = (bd_chat_span){.message = message, .begin = begin, .end = end};
    return true;
}

// What {% generation %} blocks printed, with the message whose loop they lie in.
static bool marked_spans(const bd_template_output *out, bd_conversation *c, bd_error *err)
{
    for (int64_t i = 0; i < out->generation_count; i++) {
        const bd_template_span *g = &out->generation[i];
        int64_t message = -1;
        for (int64_t k = 0; k < out->watched_count; k++)
            if (out->watched[k].begin <= g->begin && g->end <= out->watched[k].end)
                message = out->watched[k].index;
        if (g->begin < g->end && !add_span(c, message, g->begin, g->end, err))
            return false;
    }
    return true;
}

static bool is_assistant(json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));
    return role && (strcmp(role, "assistant") == 0 || strcmp(role, "model") == 0);
}

// The turn in what was printed for one message: behind the first header (which comes before
// anything that was said) up to behind the last end (which comes after).
static bool span_in_region(const bd_chat *chat, const bd_template_output *out,
                           const bd_template_span *region, bd_conversation *c, bd_error *err)
{
    const char *text = out->text.data + region->begin;
    size_t size = (size_t)(region->end - region->begin);
    int cut;
    const char *begin = find_header(chat, text, size, &cut);
    if (!begin)
        return true;
    size_t left = size - (size_t)(begin - text);
    const char *end = find_last(begin, left, chat->end);
    int64_t stop = end ? end + strlen(chat->end) - out->text.data : region->end;
    return add_span(c, region->index, begin - out->text.data, stop, err);
}

static bool spans_by_message(const bd_chat *chat, json_t *messages, const bd_template_output *out,
                             bd_conversation *c, bd_error *err)
{
    for (int64_t i = 0; i < out->watched_count; i++) {
        const bd_template_span *region = &out->watched[i];
        bool again = c->span_count && c->spans[c->span_count - 1].message == region->index;
        if (!again && is_assistant(json_array_get(messages, (size_t)region->index)) &&
            !span_in_region(chat, out, region, c, err))
            return false;
    }
    return true;
}

// Without loops over the messages: the n-th header in the text opens the n-th answer.
static bool spans_by_search(const bd_chat *chat, json_t *messages, const bd_template_output *out,
                            bd_conversation *c, bd_error *err)
{
    const char *at = out->text.data, *stop = at + out->text.size;
    size_t message = 0, count = json_array_size(messages);
    int cut;
    for (const char *begin; (begin = find_header(chat, at, (size_t)(stop - at), &cut));) {
        const char *end = memmem(begin, (size_t)(stop - begin), chat->end, strlen(chat->end));
        if (!end || !*chat->end)
            break; // the generation prompt
        while (message < count && !is_assistant(json_array_get(messages, message)))
            message++;
        if (message == count)
            return bd_fail(err, "the text has more turns that look like the assistant's than the "
                                "conversation has");
        at = end + strlen(chat->end);
        if (!add_span(c, (int64_t)message++, begin - out->text.data, at - out->text.data, err))
            return false;
    }
    for (; message < count; message++)
        if (is_assistant(json_array_get(messages, message)))
            return bd_fail(err, "message %zu is the assistant's, but the text has no turn for it",
                           message);
    return true;
}

static bool find_spans(const bd_chat *chat, json_t *messages, const bd_template_output *out,
                       bd_conversation *c, bd_error *err)
{
    if (bd_template_marks_generation(chat->template))
        return marked_spans(out, c, err);
    bool any = false;
    for (size_t i = 0; i < json_array_size(messages); i++)
        any = any || is_assistant(json_array_get(messages, i));
    if (!any)
        return true;
    if (chat->unknown.kind)
        return bd_fail(err,
                       "cannot tell what the assistant writes: %.600s; mark it with {%% generation "
                       "%%} or name the texts that open and close a turn",
                       chat->unknown.message);
    return out->watched_count ? spans_by_message(chat, messages, out, c, err)
                              : spans_by_search(chat, messages, out, c, err);
}

// --- tokens --------------------------------------------------------------------------------------

static bool find_tokens(const bd_chat *chat, bd_conversation *c, bd_error *err)
{
    bd_encode_options options = {.spans = true};
    if (!bd_tokenizer_encode(chat->tokenizer, c->text.data, c->text.size, &options, &c->tokens,
                             err))
        return false;
    c->completion = calloc((size_t)c->tokens.count + 1, 1);
    if (!c->completion)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a conversation");
    int64_t token = 0;
    for (int64_t i = 0; i < c->span_count; i++) {
        bd_chat_span *span = &c->spans[i];
        // One token may have a part of two spans.
        while (token > 0 && c->tokens.spans[token - 1].end > span->begin)
            token--;
        while (token < c->tokens.count && c->tokens.spans[token].end <= span->begin)
            token++;
        span->token_begin = token;
        span->starts_inside_token = token < c->tokens.count &&
                                    c->tokens.spans[token].begin < span->begin &&
                                    span->begin < span->end;
        while (token < c->tokens.count && c->tokens.spans[token].begin < span->end)
            c->completion[token++] = 1;
        span->token_end = token;
    }
    for (int64_t i = 0; i < c->tokens.count; i++)
        c->completion_count += c->completion[i];
    return true;
}

bool bd_chat_render(const bd_chat *chat, const bd_chat_request *request, bd_conversation *out,
                    bd_error *err)
{
    bd_template_output rendered = {0};
    bd_error unknown = {0};
    if (!json_is_array(request->messages))
        return bd_fail(err, "a conversation's messages are not a list");
    if (!render_text(chat, request, &rendered, err)) {
        bd_template_output_free(&rendered);
        return false;
    }
    bool ok = find_spans(chat, request->messages, &rendered, out, &unknown);
    if (!ok && request->text_only) {
        out->span_count = 0;
        ok = true;
    }
    if (!ok && err)
        *err = unknown;
    out->text = rendered.text;
    rendered.text = (bd_text){0};
    bd_template_output_free(&rendered);
    return ok && (request->text_only || find_tokens(chat, out, err));
}

void bd_conversation_free(bd_conversation *c)
{
    bd_text_free(&c->text);
    bd_tokens_free(&c->tokens);
    free(c->completion);
    free(c->spans);
    *c = (bd_conversation){0};
}

bool bd_chat_prompt(const bd_chat *chat, json_t *messages, bd_tokens *out, bd_error *err)
{
    const bd_chat_request request = {.messages = messages, .add_generation_prompt = true};
    bd_conversation conversation = {0};
    bool ok = bd_chat_render(chat, &request, &conversation, err);
    if (ok) {
        *out = conversation.tokens;
        conversation.tokens = (bd_tokens){0};
    }
    bd_conversation_free(&conversation);
    return ok;
}
