#include "format/json.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/file.h"

// The largest file read as one JSON value. Tokenizers are the largest in practice, some 30 MB.
static const size_t most_bytes = (size_t)1 << 30;

json_t *bd_json_parse(const char *text, size_t size, const char *what, bd_error *err)
{
    json_error_t where;
    json_t *root = json_loadb(text, size, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY, &where);
    if (!root)
        bd_fail(err, "%s:%d:%d: %s", what, where.line, where.column, where.text);
    return root;
}

json_t *bd_json_load(const char *path, bd_error *err)
{
    size_t size;
    char *text = bd_file_read_text(path, most_bytes, &size, err);
    if (!text)
        return NULL;
    json_t *root = bd_json_parse(text, size, path, err);
    free(text);
    return root;
}

static int write_part(const char *bytes, size_t size, void *writer)
{
    bd_writer_write(writer, bytes, size);
    return 0;
}

/* Do all numbers below `value` survive being written with so many digits? */
static bool digits_suffice(json_t *value, int digits)
{
    bool enough = true;
    size_t i;
    const char *key;
    json_t *child;
    json_array_foreach(value, i, child) enough = enough && digits_suffice(child, digits);
    json_object_foreach(value, key, child) enough = enough && digits_suffice(child, digits);
    if (!json_is_real(value))
        return enough;
    char text[40];
    snprintf(text, sizeof text, "%.*g", digits, json_real_value(value));
    return strtod(text, NULL) == json_real_value(value);
}

bool bd_json_save(json_t *root, const char *path, bd_error *err)
{
    bd_writer *writer = bd_writer_open(path, err);
    if (!writer)
        return false;
    // 17 digits keep every number, 15 keep most and read better: 1e-06, not 9.9999999999999995e-07.
    size_t digits = digits_suffice(root, 15) ? 15 : 17;
    size_t flags = JSON_INDENT(2) | JSON_ENCODE_ANY | JSON_REAL_PRECISION(digits);
    if (json_dump_callback(root, write_part, writer, flags) != 0) {
        bd_writer_abandon(writer);
        return bd_fail(err, "%s: cannot be written as JSON (a text that is not UTF-8?)", path);
    }
    bd_writer_write(writer, "\n", 1);
    return bd_writer_commit(writer, err);
}

const char *bd_json_describe(const json_t *value, char out[BD_JSON_WORDS])
{
    switch (value ? json_typeof(value) : JSON_NULL) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        snprintf(out, BD_JSON_WORDS, "a list of %zu", json_array_size(value));
        return out;
    case JSON_STRING:
        snprintf(out, BD_JSON_WORDS, "\"%.60s\"", json_string_value(value));
        return out;
    case JSON_INTEGER:
        snprintf(out, BD_JSON_WORDS, "%lld", (long long)json_integer_value(value));
        return out;
    case JSON_REAL:
        snprintf(out, BD_JSON_WORDS, "%.17g", json_real_value(value));
        return out;
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    default:
        return "null";
    }
}

static bool mismatch(const json_t *value, const char *where, const char *field, const char *wanted,
                     bd_error *err)
{
    char words[BD_JSON_WORDS];
    if (!value)
        return bd_fail(err, "%s: \"%s\" is missing, %s expected", where, field, wanted);
    return bd_fail(err, "%s: \"%s\" is %s, %s expected", where, field,
                   bd_json_describe(value, words), wanted);
}

bool bd_json_int(json_t *object, const char *where, const char *field, int64_t low, int64_t high,
                 int64_t *out, bd_error *err)
{
    json_t *value = json_object_get(object, field);
    int64_t number = json_is_integer(value) ? json_integer_value(value) : 0;
    if (json_is_integer(value) && number >= low && number <= high) {
        *out = number;
        return true;
    }
    char wanted[96];
    snprintf(wanted, sizeof wanted, "an integer from %lld to %lld", (long long)low,
             (long long)high);
    return mismatch(value, where, field, wanted, err);
}

bool bd_json_number(json_t *object, const char *where, const char *field, double low, double high,
                    double *out, bd_error *err)
{
    json_t *value = json_object_get(object, field);
    double number = json_is_number(value) ? json_number_value(value) : 0;
    if (json_is_number(value) && number >= low && number <= high) {
        *out = number;
        return true;
    }
    char wanted[96];
    snprintf(wanted, sizeof wanted, "a number from %g to %g", low, high);
    return mismatch(value, where, field, wanted, err);
}

bool bd_json_bool(json_t *object, const char *where, const char *field, bool *out, bd_error *err)
{
    json_t *value = json_object_get(object, field);
    if (!json_is_boolean(value))
        return mismatch(value, where, field, "true or false", err);
    *out = json_is_true(value);
    return true;
}

const char *bd_json_text(json_t *object, const char *where, const char *field, bd_error *err)
{
    json_t *value = json_object_get(object, field);
    if (!json_is_string(value)) {
        mismatch(value, where, field, "a text", err);
        return NULL;
    }
    return json_string_value(value);
}

json_t *bd_json_array(json_t *object, const char *where, const char *field, bd_error *err)
{
    json_t *value = json_object_get(object, field);
    if (!json_is_array(value)) {
        mismatch(value, where, field, "a list", err);
        return NULL;
    }
    return value;
}

json_t *bd_json_object(json_t *object, const char *where, const char *field, bd_error *err)
{
    json_t *value = json_object_get(object, field);
    if (!json_is_object(value)) {
        mismatch(value, where, field, "an object", err);
        return NULL;
    }
    return value;
}

bool bd_json_has(json_t *object, const char *field)
{
    json_t *value = json_object_get(object, field);
    return value && !json_is_null(value);
}

bool bd_json_int_if(json_t *object, const char *where, const char *field, int64_t low, int64_t high,
                    int64_t *out, bd_error *err)
{
    return !bd_json_has(object, field) || bd_json_int(object, where, field, low, high, out, err);
}

bool bd_json_number_if(json_t *object, const char *where, const char *field, double low,
                       double high, double *out, bd_error *err)
{
    return !bd_json_has(object, field) || bd_json_number(object, where, field, low, high, out, err);
}

bool bd_json_bool_if(json_t *object, const char *where, const char *field, bool *out, bd_error *err)
{
    return !bd_json_has(object, field) || bd_json_bool(object, where, field, out, err);
}
