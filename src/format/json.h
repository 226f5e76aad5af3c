/* json.h - JSON with errors that name file, field, found and wanted. A thin layer over jansson.
 *
 *     json_t *root = bd_json_load(path, &err);
 *     int64_t hidden;
 *     if (!bd_json_int(root, path, "hidden_size", 1, 1 << 20, &hidden, &err)) ...
 */
#ifndef BD_FORMAT_JSON_H
#define BD_FORMAT_JSON_H

#include <jansson.h>

#include "base/error.h"

/* The root value of a file / of text; errors carry line and column. An object that names a key
 * twice is refused. json_decref() it. */
json_t *bd_json_load(const char *path, bd_error *err);
json_t *bd_json_parse(const char *text, size_t size, const char *what, bd_error *err);
bool bd_json_save(json_t *root, const char *path, bd_error *err); /* indent 2, atomic */

/* A required field of an object, with its type and range checked. `where` names the file. */
bool bd_json_int(json_t *object, const char *where, const char *field, int64_t low, int64_t high,
                 int64_t *out, bd_error *err);
bool bd_json_number(json_t *object, const char *where, const char *field, double low, double high,
                    double *out, bd_error *err);
bool bd_json_bool(json_t *object, const char *where, const char *field, bool *out, bd_error *err);
const char *bd_json_text(json_t *object, const char *where, const char *field, bd_error *err);
json_t *bd_json_array(json_t *object, const char *where, const char *field, bd_error *err);
json_t *bd_json_object(json_t *object, const char *where, const char *field, bd_error *err);

/* Is the field there and not null? Optional fields: test, then read with the functions above. */
bool bd_json_has(json_t *object, const char *field);

/* The same for fields that may be absent or null: `out` is left as it is then. */
bool bd_json_int_if(json_t *object, const char *where, const char *field, int64_t low, int64_t high,
                    int64_t *out, bd_error *err);
bool bd_json_number_if(json_t *object, const char *where, const char *field, double low,
                       double high, double *out, bd_error *err);
bool bd_json_bool_if(json_t *object, const char *where, const char *field, bool *out,
                     bd_error *err);

/* A value in a few words, for error messages: 12, "silu", a list of 3, an object. */
enum { BD_JSON_WORDS = 80 };
const char *bd_json_describe(const json_t *value, char out[BD_JSON_WORDS]);

#endif
