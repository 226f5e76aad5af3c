#include "cli/probe_json.h"

#include <math.h>

static int64_t leaves(json_t *value)
{
    if (!json_is_array(value))
        return 1;
    int64_t count = 0;
    size_t i;
    json_t *item;
    json_array_foreach(value, i, item) count += leaves(item);
    return count;
}

static void flatten(json_t *value, int32_t **ints, float **floats)
{
    size_t i;
    json_t *item;
    if (json_is_array(value)) {
        json_array_foreach(value, i, item) flatten(item, ints, floats);
    } else if (ints) {
        *(*ints)++ = (int32_t)json_integer_value(value);
    } else {
        *(*floats)++ = json_is_string(value) ? NAN : (float)json_number_value(value);
    }
}

static bd_grid shape_of(json_t *value)
{
    bool nested = json_is_array(json_array_get(value, 0));
    int64_t rows = nested ? (int64_t)json_array_size(value) : 1;
    return (bd_grid){.rows = rows, .columns = leaves(value) / (rows ? rows : 1)};
}

bd_grid bd_grid_ints(json_t *object, const char *field, bd_arena *arena)
{
    json_t *value = json_object_get(object, field);
    if (!json_is_array(value))
        return (bd_grid){0};
    bd_grid grid = shape_of(value);
    int32_t *next = grid.ints = bd_arena_ints(arena, grid.rows * grid.columns);
    flatten(value, &next, NULL);
    return grid;
}

bd_grid bd_grid_floats(json_t *object, const char *field, bd_arena *arena)
{
    json_t *value = json_object_get(object, field);
    if (!json_is_array(value))
        return (bd_grid){0};
    bd_grid grid = shape_of(value);
    float *next = grid.floats = bd_arena_floats(arena, grid.rows * grid.columns);
    flatten(value, NULL, &next);
    return grid;
}

json_t *bd_json_ints(const int32_t *values, int64_t count)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(list, json_integer(values[i]));
    return list;
}

json_t *bd_json_int_rows(const int32_t *values, int64_t rows, int64_t columns)
{
    json_t *list = json_array();
    for (int64_t r = 0; r < rows; r++)
        json_array_append_new(list, bd_json_ints(values + r * columns, columns));
    return list;
}

json_t *bd_json_float_rows(const float *values, int64_t rows, int64_t columns)
{
    json_t *list = json_array();
    for (int64_t r = 0; r < rows; r++) {
        json_t *row = json_array();
        for (int64_t i = 0; i < columns; i++)
            json_array_append_new(row, json_real((double)values[r * columns + i]));
        json_array_append_new(list, row);
    }
    return list;
}
