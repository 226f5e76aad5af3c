/* probe_text.c - tokens.json and chat.json: the packages with real tokenizers must be installed.
 *
 * They are looked for in the folder that BDLM_NPM names, then in ./node_modules. Unless all are
 * there the case is skipped with a word about why.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/probe.h"
#include "format/chat.h"
#include "format/json.h"

enum { MOST_TOKENIZERS = 8 };

typedef struct {
    const char *name;
    bd_tokenizer *tokenizer;
} named_tokenizer;

typedef struct {
    json_t *list; /* tokenizers.json */
    named_tokenizer items[MOST_TOKENIZERS];
    int count;
} tokenizers;

/* The folder of the first file a package lists, below the folder of packages. */
static bool package_folder(json_t *entry, char out[BD_PATH])
{
    const char *package = json_string_value(json_object_get(entry, "package"));
    const char *npm = getenv("BDLM_NPM");
    json_t *files = json_object_get(entry, "files");
    const char *first = json_string_value(json_object_get(json_array_get(files, 0), "path"));
    if (!package || !first)
        return false;
    const char *roots[] = {npm ? npm : "node_modules", "node_modules"};
    for (int i = 0; i < 2; i++) {
        char path[BD_PATH + 512];
        snprintf(path, sizeof path, "%s/%s/%s", roots[i], package, first);
        if (!bd_file_exists(path))
            continue;
        char *slash = strrchr(path, '/');
        *slash = 0;
        if (strlen(path) < BD_PATH) {
            memcpy(out, path, strlen(path) + 1);
            return true;
        }
    }
    return false;
}

static bool open_tokenizers(bd_probe *probe, tokenizers *all, bd_error *err)
{
    char path[BD_PATH], folder[BD_PATH];
    *all = (tokenizers){0};
    snprintf(folder, sizeof folder, "%s", probe->path);
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = 0;
    if (!bd_path_join(path, slash ? folder : ".", "tokenizers.json", err))
        return false;
    if (!bd_file_exists(path)) {
        probe->skipped = "tokenizers.json is not beside the case";
        return true;
    }
    if (!(all->list = bd_json_load(path, err)))
        return false;
    json_t *entry;
    const char *name;
    json_object_foreach(all->list, name, entry)
    {
        if (all->count == MOST_TOKENIZERS || !package_folder(entry, folder))
            continue;
        bd_tokenizer *tokenizer = bd_tokenizer_open(folder, err);
        if (!tokenizer)
            return false;
        all->items[all->count++] = (named_tokenizer){name, tokenizer};
    }
    if (all->count < (int)json_object_size(all->list))
        probe->skipped =
            "not all packages of tokenizers.json are installed (BDLM_NPM names their folder)";
    return true;
}

static void close_tokenizers(tokenizers *all)
{
    for (int i = 0; i < all->count; i++)
        bd_tokenizer_close(all->items[i].tokenizer);
    json_decref(all->list);
}

/* A case's text: as it stands, or a piece repeated. free() it. */
static char *case_text(json_t *given, size_t *size)
{
    json_t *repeat = json_object_get(given, "repeat"), *text = json_object_get(given, "text");
    const char *piece = json_string_value(repeat ? json_array_get(repeat, 0) : text);
    size_t length = json_string_length(repeat ? json_array_get(repeat, 0) : text);
    int64_t times = repeat ? json_integer_value(json_array_get(repeat, 1)) : 1;
    char *out = malloc(length * (size_t)times + 1);
    for (int64_t i = 0; out && i < times; i++)
        memcpy(out + length * (size_t)i, piece, length);
    *size = length * (size_t)times;
    return out;
}

static json_t *decoded(const bd_tokenizer *tokenizer, const bd_tokens *tokens, bool skip)
{
    bd_text text = {0};
    bd_error ignored = {0};
    bd_tokenizer_decode(tokenizer, tokens->ids, tokens->count, skip, &text, &ignored);
    json_t *out = json_stringn(text.data ? text.data : "", text.size);
    bd_text_free(&text);
    return out;
}

/* "decoded" holds what does not give the text back, "decoded_without_special" what differs from
 * that. */
static bool encode_case(tokenizers *all, json_t *given, json_t *out, bd_error *err)
{
    json_t *ids = json_object(), *plain = json_object(), *without = json_object();
    bool ok = true;
    size_t size;
    char *text = case_text(given, &size);
    json_t *original = json_stringn(text, size);
    for (int i = 0; ok && i < all->count; i++) {
        bd_tokens tokens = {0};
        const named_tokenizer *t = &all->items[i];
        if ((ok = bd_tokenizer_encode(t->tokenizer, text, size, NULL, &tokens, err))) {
            json_t *list = json_array();
            for (int64_t k = 0; k < tokens.count; k++)
                json_array_append_new(list, json_integer(tokens.ids[k]));
            json_object_set_new(ids, t->name, list);
            json_t *back = decoded(t->tokenizer, &tokens, false),
                   *skip = decoded(t->tokenizer, &tokens, true);
            if (!json_equal(back, original))
                json_object_set(plain, t->name, back);
            if (!json_equal(skip, back))
                json_object_set(without, t->name, skip);
            json_decref(back);
            json_decref(skip);
        }
        bd_tokens_free(&tokens);
    }
    json_object_set_new(out, "ids", ids);
    if (json_object_size(plain))
        json_object_set(out, "decoded", plain);
    if (json_object_size(without))
        json_object_set(out, "decoded_without_special", without);
    json_decref(plain);
    json_decref(without);
    json_decref(original);
    free(text);
    return ok;
}

/* Ids that cut characters apart. */
static json_t *decode_case(const tokenizers *all, json_t *given)
{
    const char *name = json_string_value(json_object_get(given, "tokenizer"));
    json_t *list = json_object_get(given, "ids");
    bd_tokens tokens = {.count = (int64_t)json_array_size(list)};
    tokens.ids = calloc((size_t)tokens.count + 1, sizeof *tokens.ids);
    for (int64_t i = 0; tokens.ids && i < tokens.count; i++)
        tokens.ids[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    json_t *text = NULL;
    for (int i = 0; tokens.ids && i < all->count; i++)
        if (name && !strcmp(all->items[i].name, name))
            text = decoded(all->items[i].tokenizer, &tokens, false);
    free(tokens.ids);
    return json_pack("{s:o*}", "text", text);
}

bool bd_probe_tokens(bd_probe *probe, bd_error *err)
{
    tokenizers all;
    bool ok = open_tokenizers(probe, &all, err);
    json_t *answers = json_array(), *texts = json_array(), *given;
    size_t i;
    if (ok && !probe->skipped) {
        json_array_foreach(json_object_get(probe->json, "cases"), i, given)
        {
            json_t *out = json_object();
            ok = ok && encode_case(&all, given, out, err);
            json_array_append_new(answers, out);
        }
        json_array_foreach(json_object_get(probe->json, "decode_only"), i, given)
            json_array_append_new(texts, decode_case(&all, given));
    }
    json_object_set_new(probe->answer, "cases", answers);
    json_object_set_new(probe->answer, "decode_only", texts);
    close_tokenizers(&all);
    return ok;
}

// --- chat.json -----------------------------------------------------------------------------------

static json_t *spans_of(const bd_conversation *conversation)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < conversation->span_count; i++) {
        const bd_chat_span *span = &conversation->spans[i];
        json_array_append_new(
            list, json_pack("{s:I,s:[I,I],s:[I,I],s:b}", "message", (json_int_t)span->message,
                            "bytes", (json_int_t)span->begin, (json_int_t)span->end, "tokens",
                            (json_int_t)span->token_begin, (json_int_t)span->token_end,
                            "starts_inside_token", span->starts_inside_token));
    }
    return list;
}

static json_t *render(const bd_chat *chat, const bd_chat_request *request, bd_error *err)
{
    bd_conversation made = {0};
    json_t *out = NULL;
    if (bd_chat_render(chat, request, &made, err)) {
        json_t *ids = json_array();
        for (int64_t i = 0; i < made.tokens.count; i++)
            json_array_append_new(ids, json_integer(made.tokens.ids[i]));
        out = json_pack("{s:o,s:o,s:o}", "text",
                        json_stringn(made.text.data ? made.text.data : "", made.text.size), "ids",
                        ids, "assistant", spans_of(&made));
    }
    bd_conversation_free(&made);
    return out;
}

/* The variables a case sets for the template. */
static json_t *variables_of(json_t *given)
{
    json_t *thinking = json_object_get(given, "enable_thinking");
    return thinking ? json_pack("{s:O}", "enable_thinking", thinking) : NULL;
}

static bool chat_case(const named_tokenizer *t, const bd_chat *chat, json_t *given,
                      json_t *rendered, bd_error *err)
{
    bd_chat_request request = {.messages = json_object_get(given, "messages"),
                               .tools = json_object_get(given, "tools"),
                               .variables = variables_of(given),
                               .add_generation_prompt =
                                   json_is_true(json_object_get(given, "add_generation_prompt"))};
    json_t *made = render(chat, &request, err);
    json_decref(request.variables);
    if (!made)
        return bd_error_wrap(err, "%s", t->name);
    json_object_set_new(rendered, t->name, made);
    return true;
}

bool bd_probe_chat(bd_probe *probe, bd_error *err)
{
    tokenizers all;
    bd_chat *chats[MOST_TOKENIZERS] = {0};
    bool ok = open_tokenizers(probe, &all, err);
    // The ones that have a template: GPT-2 has none.
    for (int i = 0; ok && !probe->skipped && i < all.count; i++)
        if (bd_tokenizer_chat_template(all.items[i].tokenizer))
            ok = (chats[i] = bd_chat_open(all.items[i].tokenizer, NULL, err)) != NULL;
    json_t *answers = json_array(), *given;
    size_t n;
    if (ok && !probe->skipped)
        json_array_foreach(json_object_get(probe->json, "cases"), n, given)
        {
            json_t *rendered = json_object();
            for (int i = 0; ok && i < all.count; i++)
                ok = !chats[i] || chat_case(&all.items[i], chats[i], given, rendered, err);
            json_array_append_new(answers, json_pack("{s:o}", "rendered", rendered));
        }
    json_object_set_new(probe->answer, "cases", answers);
    for (int i = 0; i < all.count; i++)
        bd_chat_close(chats[i]);
    close_tokenizers(&all);
    return ok;
}
