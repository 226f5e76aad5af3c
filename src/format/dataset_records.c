#include <stdlib.h>
#include <string.h>

#include "format/dataset.h"
#include "format/dataset_stream.h"
#include "format/json.h"

enum { MOST_LINE = 16 << 20 };

struct bd_records {
    char *path;
    bd_stream *stream;
    int64_t line;
    bd_text text;   // the current line
    json_t *object; // and what it says
    json_t *list;   // its messages
    bd_message *messages;
    size_t room;
};

bd_records *bd_records_open(const char *path, bd_error *err)
{
    bd_records *records = calloc(1, sizeof *records);
    if (!records || !(records->path = strdup(path))) {
        free(records);
        bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", path);
        return NULL;
    }
    records->stream = bd_stream_open(records->path, err);
    if (!records->stream) {
        bd_records_close(records);
        return NULL;
    }
    return records;
}

static void forget(bd_records *records)
{
    json_decref(records->object);
    json_decref(records->list);
    records->object = records->list = NULL;
}

void bd_records_close(bd_records *records)
{
    if (!records)
        return;
    forget(records);
    bd_stream_close(records->stream);
    bd_text_free(&records->text);
    free(records->messages);
    free(records->path);
    free(records);
}

int bd_records_next_object(bd_records *records, json_t **object, bd_error *err)
{
    forget(records);
    for (;;) {
        bd_text_clear(&records->text);
        int got = bd_stream_line(records->stream, &records->text, MOST_LINE, err);
        if (got <= 0)
            return got;
        records->line++;
        const char *bytes = records->text.data;
        size_t size = records->text.size;
        if (records->line == 1 && size >= 3 && !memcmp(bytes, "\xef\xbb\xbf", 3)) {
            bytes += 3; // a byte-order mark
            size -= 3;
        }
        if (strspn(bytes, " \t\r\n") == size)
            continue;
        json_error_t where;
        records->object = json_loadb(bytes, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where);
        if (!records->object) {
            bd_fail(err, "%s:%lld:%d: %s", records->path, (long long)records->line, where.column,
                    where.text);
            return -1;
        }
        if (!json_is_object(records->object)) {
            bd_fail(err, "%s:%lld:1: not an object", records->path, (long long)records->line);
            return -1;
        }
        *object = records->object;
        return 1;
    }
}

// --- messages ----------------------------------------------------------------------------------

/* Where an error happened: "FILE:LINE: messages[2]". */
typedef struct {
    const bd_records *records;
    const char *field;
    size_t index;
} spot;

static bool fail_at(const spot *at, const char *part, const char *reason, bd_error *err)
{
    return bd_fail(err, "%s:%lld: %s[%zu]%s: %s", at->records->path, (long long)at->records->line,
                   at->field, at->index, part, reason);
}

static const char *role_of(const char *name)
{
    static const struct {
        const char *theirs, *role;
    } names[] = {{"human", "user"},      {"gpt", "assistant"},  {"chatgpt", "assistant"},
                 {"bot", "assistant"},   {"bard", "assistant"}, {"model", "assistant"},
                 {"observation", "tool"}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (!strcmp(name, names[i].theirs))
            return names[i].role;
    return name;
}

/* Content as one text: a text, null (a call of a tool has none), or a list of parts that are text.
 */
static json_t *content_text(const spot *at, json_t *content, bd_error *err)
{
    if (!content || json_is_null(content))
        return json_string("");
    if (json_is_string(content))
        return json_incref(content);
    if (!json_is_array(content)) {
        fail_at(at, ".content", "neither a text nor a list of parts", err);
        return NULL;
    }
    bd_text text = {0};
    size_t i;
    json_t *part;
    json_array_foreach(content, i, part)
    {
        json_t *piece = json_is_string(part) ? part : json_object_get(part, "text");
        if (!json_is_string(piece)) {
            fail_at(at, ".content", "a part that is not text", err);
            bd_text_free(&text);
            return NULL;
        }
        bd_text_add(&text, json_string_value(piece), json_string_length(piece));
    }
    json_t *whole =
        bd_text_check(&text, err) ? json_stringn(text.data ? text.data : "", text.size) : NULL;
    bd_text_free(&text);
    return whole;
}

/* The message as {"role", "content", other fields as they are}: role/content and from/value are
 * read. */
static json_t *normal_message(const spot *at, json_t *message, bd_error *err)
{
    if (!json_is_object(message)) {
        fail_at(at, "", "not an object", err);
        return NULL;
    }
    bool share = !json_object_get(message, "role") && json_object_get(message, "from");
    const char *role = json_string_value(json_object_get(message, share ? "from" : "role"));
    if (!role || !role[0]) {
        fail_at(at, share ? ".from" : ".role", "missing, a text expected", err);
        return NULL;
    }
    json_t *value = json_object_get(message, share ? "value" : "content");
    if (!value && !json_object_get(message, "tool_calls")) {
        fail_at(at, share ? ".value" : ".content", "missing, a text expected", err);
        return NULL;
    }
    json_t *content = content_text(at, value, err);
    if (!content)
        return NULL;
    json_t *normal = json_pack("{s:s, s:o}", "role", role_of(role), "content", content);
    const char *key;
    json_t *other;
    json_object_foreach(message, key, other) if (strcmp(key, "role") && strcmp(key, "content") &&
                                                 strcmp(key, "from") && strcmp(key, "value"))
        json_object_set(normal, key, other);
    return normal;
}

static bool add_message(bd_records *records, json_t *normal, bd_error *err)
{
    size_t count = json_array_size(records->list);
    if (count == records->room) {
        size_t room = records->room ? 2 * records->room : 16;
        bd_message *larger = realloc(records->messages, room * sizeof *larger);
        if (!larger) {
            json_decref(normal);
            return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", records->path);
        }
        records->messages = larger;
        records->room = room;
    }
    records->messages[count] =
        (bd_message){json_string_value(json_object_get(normal, "role")),
                     json_string_value(json_object_get(normal, "content")), normal};
    json_array_append_new(records->list, normal);
    return true;
}

static bool add_list(bd_records *records, const char *field, json_t *list, bd_error *err)
{
    size_t i;
    json_t *message;
    json_array_foreach(list, i, message)
    {
        json_t *normal = normal_message(&(spot){records, field, i}, message, err);
        if (!normal || !add_message(records, normal, err))
            return false;
    }
    return true;
}

static bool add_plain(bd_records *records, const char *role, json_t *text, bd_error *err)
{
    return add_message(records, json_pack("{s:s, s:O}", "role", role, "content", text), err);
}

// --- shapes of records -------------------------------------------------------------------------

static bool wrong_type(const bd_records *records, const char *field, const char *wanted,
                       bd_error *err)
{
    return bd_fail(err, "%s:%lld: \"%s\" is not %s", records->path, (long long)records->line, field,
                   wanted);
}

/* One side of a prompt and its completion: a text, or messages. */
static bool add_side(bd_records *records, const char *field, const char *role, bd_error *err)
{
    json_t *value = json_object_get(records->object, field);
    if (json_is_string(value))
        return add_plain(records, role, value, err);
    if (json_is_array(value))
        return add_list(records, field, value, err);
    return wrong_type(records, field, "a text or a list of messages", err);
}

static bool add_turns(bd_records *records, json_t *turns, bd_error *err)
{
    size_t i;
    json_t *turn;
    json_array_foreach(turns, i, turn)
    {
        if (!json_is_string(turn))
            return fail_at(&(spot){records, "turns", i}, "", "not a text", err);
        if (!add_plain(records, "user", turn, err))
            return false;
    }
    return true;
}

/* Instructions may stand beside the messages. */
static bool add_system(bd_records *records, bd_error *err)
{
    json_t *system = json_object_get(records->object, "system");
    return json_string_length(system) == 0 || add_plain(records, "system", system, err);
}

static bool add_prompt(bd_records *records, const char *answer, bd_error *err)
{
    return add_system(records, err) && add_side(records, "prompt", "user", err) &&
           (!answer || add_side(records, answer, "assistant", err));
}

static bool read_messages(bd_records *records, const char *field, bd_record *out, bd_error *err)
{
    json_t *list = json_object_get(records->object, field);
    out->kind = BD_RECORD_CONVERSATION;
    if (!json_is_array(list))
        return wrong_type(records, field, "a list of messages", err);
    return add_system(records, err) && add_list(records, field, list, err);
}

static bool read_shape(bd_records *records, bd_record *out, bd_error *err)
{
    json_t *object = records->object;
    if (bd_json_has(object, "messages"))
        return read_messages(records, "messages", out, err);
    if (bd_json_has(object, "conversations"))
        return read_messages(records, "conversations", out, err);
    if (bd_json_has(object, "prompt")) {
        const char *answer = bd_json_has(object, "completion") ? "completion"
                             : bd_json_has(object, "response") ? "response"
                                                               : NULL;
        out->kind = answer ? BD_RECORD_CONVERSATION : BD_RECORD_PROMPTS;
        return add_prompt(records, answer, err);
    }
    if (bd_json_has(object, "turns")) {
        out->kind = BD_RECORD_PROMPTS;
        json_t *turns = json_object_get(object, "turns");
        return json_is_array(turns) ? add_turns(records, turns, err)
                                    : wrong_type(records, "turns", "a list of texts", err);
    }
    if (bd_json_has(object, "text")) {
        out->kind = BD_RECORD_TEXT;
        out->text = json_string_value(json_object_get(object, "text"));
        return out->text || wrong_type(records, "text", "a text", err);
    }
    return bd_fail(err, "%s:%lld: none of messages, conversations, prompt, turns, text is there",
                   records->path, (long long)records->line);
}

int bd_records_next(bd_records *records, bd_record *out, bd_error *err)
{
    json_t *object;
    int got = bd_records_next_object(records, &object, err);
    if (got <= 0)
        return got;
    *out = (bd_record){.object = object, .line = records->line};
    records->list = json_array();
    if (!read_shape(records, out, err))
        return -1;
    out->message_list = records->list;
    out->messages = records->messages;
    out->message_count = (int64_t)json_array_size(records->list);
    if (out->kind != BD_RECORD_TEXT && out->message_count == 0) {
        bd_fail(err, "%s:%lld: a record without messages", records->path, (long long)records->line);
        return -1;
    }
    return 1;
}
