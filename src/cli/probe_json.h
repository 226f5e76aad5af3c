/* probe_json.h - arrays in JSON tables to and from plain arrays. */
#ifndef BD_CLI_PROBE_JSON_H
#define BD_CLI_PROBE_JSON_H

#include <jansson.h>

#include "base/arena.h"

/* [columns], [rows, columns], or deeper nesting with all inner dimensions in `columns`. */
typedef struct {
    int64_t rows, columns;
    int32_t *ints; /* one of the two; both NULL when the field is absent */
    float *floats; /* the string "nan" reads as not a number */
} bd_grid;

bd_grid bd_grid_ints(json_t *object, const char *field, bd_arena *arena);
bd_grid bd_grid_floats(json_t *object, const char *field, bd_arena *arena);

json_t *bd_json_ints(const int32_t *values, int64_t count);
json_t *bd_json_int_rows(const int32_t *values, int64_t rows, int64_t columns);
json_t *bd_json_float_rows(const float *values, int64_t rows, int64_t columns);

#endif
