/* The text of a tokenizer.json. Nearly all of it is two lists, the vocabulary and the merges; they
 * are cut out and read here as a stream, since hundreds of thousands of JSON values would take
 * seconds and a hundred megabytes. What is left goes through the JSON library like any other file.
 */
#include "format/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

// --- finding parts -------------------------------------------------------------------------------

typedef struct {
    const char *at, *end;
} cursor;

static char peek(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\n' || *c->at == '\t' || *c->at == '\r'))
        c->at++;
    return c->at < c->end ? *c->at : 0;
}

static bool accept(cursor *c, char wanted)
{
    if (peek(c) != wanted)
        return false;
    c->at++;
    return true;
}

// Move over a string; its raw bytes, between the quotes, are *begin to at - 1.
static bool skip_string(cursor *c, const char **begin)
{
    if (!accept(c, '"'))
        return false;
    *begin = c->at;
    while (c->at < c->end && *c->at != '"')
        c->at += *c->at == '\\' && c->end - c->at > 1 ? 2 : 1;
    return c->at++ < c->end;
}

// Move over any value. Only quotes and brackets matter; the JSON library finds what else is wrong.
static bool skip_value(cursor *c)
{
    int64_t depth = 0;
    const char *unused;
    peek(c);
    while (c->at < c->end) {
        char now = *c->at;
        if (now == '"') {
            if (!skip_string(c, &unused))
                return false;
        } else if (depth == 0 && (now == ',' || now == '}' || now == ']')) {
            return true;
        } else {
            depth += (now == '{' || now == '[') - (now == '}' || now == ']');
            c->at++;
        }
        if (depth == 0 && (now == '"' || now == '}' || now == ']'))
            return true;
    }
    return false;
}

static bool is_key(const char *begin, const char *end, const char *name)
{
    return (size_t)(end - begin) == strlen(name) && memcmp(begin, name, (size_t)(end - begin)) == 0;
}

// Where the value of a key of the object at the cursor begins and ends; false when there is none.
static bool find_value(cursor c, const char *name, cursor *value)
{
    if (!accept(&c, '{'))
        return false;
    do {
        const char *key;
        if (peek(&c) == '}' || !skip_string(&c, &key))
            return false;
        bool wanted = is_key(key, c.at - 1, name);
        if (!accept(&c, ':'))
            return false;
        peek(&c);
        value->at = c.at;
        if (!skip_value(&c))
            return false;
        value->end = c.at;
        if (wanted)
            return true;
    } while (accept(&c, ','));
    return false;
}

static void span_of(cursor c, bd_source_span *span)
{
    *span = (bd_source_span){c.at, (size_t)(c.end - c.at)};
}

static void add_between(bd_text *out, const char *begin, const char *end)
{
    bd_text_add(out, begin, (size_t)(end - begin));
}

void bd_source_cut(const char *text, size_t size, bd_source_parts *parts)
{
    cursor whole = {text, text + size}, model, vocabulary, merges;
    if (!find_value(whole, "model", &model) || !find_value(model, "vocab", &vocabulary) ||
        !find_value(model, "merges", &merges) || *vocabulary.at != '{' || *merges.at != '[') {
        bd_text_add(&parts->rest, text, size); // reading it will tell what is wrong
        return;
    }
    span_of(vocabulary, &parts->vocabulary);
    span_of(merges, &parts->merges);
    bool vocabulary_first = vocabulary.at < merges.at;
    cursor first = vocabulary_first ? vocabulary : merges,
           second = vocabulary_first ? merges : vocabulary;
    add_between(&parts->rest, text, first.at);
    bd_text_add_string(&parts->rest, vocabulary_first ? "{}" : "[]");
    add_between(&parts->rest, first.end, second.at);
    bd_text_add_string(&parts->rest, vocabulary_first ? "[]" : "{}");
    add_between(&parts->rest, second.end, text + size);
}

bool bd_source_add_token(const char *text, size_t size, const char *token, bd_text *out)
{
    cursor whole = {text, text + size}, list;
    if (find_value(whole, "added_tokens", &list) && *list.at == '[') {
        cursor inside = {list.at + 1, list.end};
        const char *close = list.end - 1;
        while (close[-1] == ' ' || close[-1] == '\n' || close[-1] == '\t' || close[-1] == '\r')
            close--;
        add_between(out, text, close);
        bd_text_add_string(out, peek(&inside) == ']' ? "\n    " : ",\n    ");
        bd_text_add_string(out, token);
        add_between(out, close, text + size);
        return true;
    }
    if (find_value(whole, "added_tokens", &list)) { // null
        add_between(out, text, list.at);
        bd_text_print(out, "[%s]", token);
        add_between(out, list.end, text + size);
        return true;
    }
    if (!accept(&whole, '{'))
        return false;
    add_between(out, text, whole.at);
    bd_text_print(out, "\n  \"added_tokens\": [%s],", token);
    add_between(out, whole.at, text + size);
    return true;
}

// --- reading them --------------------------------------------------------------------------------

typedef struct {
    cursor c;
    const char *where;
    const char *part; // "vocab" or "merges"
    int64_t index;    // of the entry that is being read
    bd_error *err;
} reader;

static bool malformed(reader *r, const char *what)
{
    return bd_fail(r->err, "%s: %s, entry %lld: %s", r->where, r->part, (long long)r->index, what);
}

static bool hex4(reader *r, int32_t *out)
{
    *out = 0;
    if (r->c.end - r->c.at < 4)
        return malformed(r, "\\u without four digits");
    for (int i = 0; i < 4; i++) {
        char h = *r->c.at++;
        int digit = h >= '0' && h <= '9'                 ? h - '0'
                    : (h | 32) >= 'a' && (h | 32) <= 'f' ? (h | 32) - 'a' + 10
                                                         : -1;
        if (digit < 0)
            return malformed(r, "\\u without four digits");
        *out = *out << 4 | digit;
    }
    return true;
}

static bool read_escape(reader *r, bd_text *out)
{
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    char now = r->c.at < r->c.end ? *r->c.at++ : 0;
    const char *simple = now ? strchr(from, now) : NULL;
    if (simple) {
        bd_text_add_byte(out, to[simple - from]);
        return true;
    }
    int32_t c, low;
    if (now != 'u')
        return malformed(r, "an unknown escape");
    if (!hex4(r, &c))
        return false;
    if (c >= 0xd800 && c <= 0xdbff) {
        if (r->c.end - r->c.at < 2 || r->c.at[0] != '\\' || r->c.at[1] != 'u')
            return malformed(r, "half a surrogate pair");
        r->c.at += 2;
        if (!hex4(r, &low))
            return false;
        if (low < 0xdc00 || low > 0xdfff)
            return malformed(r, "half a surrogate pair");
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    } else if (c >= 0xdc00 && c <= 0xdfff) {
        return malformed(r, "half a surrogate pair");
    }
    bd_text_add_character(out, c);
    return true;
}

// Append a string's text.
static bool read_string(reader *r, bd_text *out)
{
    if (!accept(&r->c, '"'))
        return malformed(r, "a text expected");
    size_t start = out->size;
    for (;;) {
        const char *run = r->c.at;
        while (r->c.at < r->c.end && *r->c.at != '"' && *r->c.at != '\\' &&
               (uint8_t)*r->c.at >= 0x20)
            r->c.at++;
        bd_text_add(out, run, (size_t)(r->c.at - run));
        if (r->c.at >= r->c.end || (uint8_t)*r->c.at < 0x20)
            return malformed(r, "a text that does not end");
        if (*r->c.at++ == '"')
            break;
        if (!read_escape(r, out))
            return false;
    }
    if (!bd_text_check(out, r->err))
        return false;
    if (bd_utf8_valid(out->data + start, out->size - start) < out->size - start)
        return malformed(r, "a text that is not UTF-8");
    return true;
}

static bool read_id(reader *r, int64_t *out)
{
    *out = 0;
    char first = peek(&r->c);
    if (first < '0' || first > '9')
        return malformed(r, "an id from 0 on expected");
    while (r->c.at < r->c.end && *r->c.at >= '0' && *r->c.at <= '9' && *out < INT32_MAX)
        *out = *out * 10 + (*r->c.at++ - '0');
    return true;
}

bool bd_source_vocabulary(const bd_source_parts *parts, const char *where, bd_source_entry entry,
                          void *context, bd_error *err)
{
    const bd_source_span *span = &parts->vocabulary;
    reader r = {{span->text, span->text + span->size}, where, "vocab", 0, err};
    bd_text text = {0};
    bool ok = accept(&r.c, '{');
    if (ok && peek(&r.c) != '}')
        do {
            int64_t id = 0;
            bd_text_clear(&text);
            ok = read_string(&r, &text) && (accept(&r.c, ':') || malformed(&r, "no colon")) &&
                 read_id(&r, &id) && entry(context, text.data, text.size, id, err);
            r.index++;
        } while (ok && accept(&r.c, ','));
    if (ok && !(accept(&r.c, '}') && r.c.at == r.c.end))
        ok = malformed(&r, "a comma or the end expected");
    bd_text_free(&text);
    return ok;
}

// ["a", "b"] or "a b": the text of both sides and where the second begins.
static bool read_merge(reader *r, bd_text *text, size_t *middle)
{
    if (accept(&r->c, '[')) {
        if (!read_string(r, text))
            return false;
        *middle = text->size;
        return (accept(&r->c, ',') || malformed(r, "two texts expected")) && read_string(r, text) &&
               (accept(&r->c, ']') || malformed(r, "two texts expected"));
    }
    if (!read_string(r, text))
        return false;
    char *space = memchr(text->data, ' ', text->size);
    if (!space || memchr(space + 1, ' ', text->size - (size_t)(space + 1 - text->data)))
        return malformed(r, "two texts with one space between them expected");
    *middle = (size_t)(space - text->data);
    memmove(space, space + 1, text->size - *middle); // with the NUL
    text->size--;
    return true;
}

bool bd_source_merges(const bd_source_parts *parts, const char *where, bd_source_entry entry,
                      void *context, bd_error *err)
{
    const bd_source_span *span = &parts->merges;
    reader r = {{span->text, span->text + span->size}, where, "merges", 0, err};
    bd_text text = {0};
    bool ok = accept(&r.c, '[');
    if (ok && peek(&r.c) != ']')
        do {
            size_t middle = 0;
            bd_text_clear(&text);
            ok = read_merge(&r, &text, &middle) &&
                 entry(context, text.data, text.size, (int64_t)middle, err);
            r.index++;
        } while (ok && accept(&r.c, ','));
    if (ok && !(accept(&r.c, ']') && r.c.at == r.c.end))
        ok = malformed(&r, "a comma or the end expected");
    bd_text_free(&text);
    return ok;
}
