/* golden.h - reading the tables and cases of tests/golden/block-diffusion. */
#ifndef BD_TESTS_DIFFUSION_GOLDEN_H
#define BD_TESTS_DIFFUSION_GOLDEN_H

#include "check.h"

#include <jansson.h>

#include "diffusion/canvas.h"
#include "format/safetensors.h"

#define GOLDEN BD_GOLDEN "/block-diffusion/"

/* The root of tables/NAME.json; its cases are the array "cases". */
static inline json_t *golden_table(const char *name)
{
    char path[500];
    json_error_t error;
    snprintf(path, sizeof path, GOLDEN "tables/%s.json", name);
    json_t *root = json_load_file(path, 0, &error);
    if (!root)
        fail_msg("%s: %s", path, error.text);
    return root;
}

static inline int64_t golden_count(const json_t *value)
{
    if (!json_is_array(value))
        return 1;
    int64_t count = 0;
    for (size_t i = 0; i < json_array_size(value); i++)
        count += golden_count(json_array_get(value, i));
    return count;
}

static inline int64_t golden_flatten(const json_t *value, double *out)
{
    if (!json_is_array(value)) {
        *out = json_is_string(value) ? NAN : json_number_value(value);
        return 1;
    }
    int64_t count = 0;
    for (size_t i = 0; i < json_array_size(value); i++)
        count += golden_flatten(json_array_get(value, i), out + count);
    return count;
}

static inline double *golden_numbers(json_t *item, const char *field, int64_t *count,
                                     bd_arena *arena)
{
    const json_t *value = json_object_get(item, field);
    if (!value)
        return NULL;
    *count = golden_count(value);
    double *numbers = bd_arena_alloc(arena, (size_t)*count * sizeof *numbers);
    golden_flatten(value, numbers);
    return numbers;
}

/* Nested arrays of a field, flattened; NULL when the field is absent. */
static inline int32_t *golden_ints(json_t *item, const char *field, bd_arena *arena)
{
    int64_t count;
    double *numbers = golden_numbers(item, field, &count, arena);
    int32_t *out = numbers ? bd_arena_ints(arena, count) : NULL;
    for (int64_t i = 0; out && i < count; i++)
        out[i] = (int32_t)numbers[i];
    return out;
}

static inline float *golden_floats(json_t *item, const char *field, bd_arena *arena)
{
    int64_t count;
    double *numbers = golden_numbers(item, field, &count, arena);
    float *out = numbers ? bd_arena_floats(arena, count) : NULL;
    for (int64_t i = 0; out && i < count; i++)
        out[i] = (float)numbers[i];
    return out;
}

static inline int64_t golden_int(json_t *item, const char *field)
{
    return json_integer_value(json_object_get(item, field));
}

static inline double golden_number(json_t *item, const char *field)
{
    return json_number_value(json_object_get(item, field));
}

static inline const char *golden_text(json_t *item, const char *field)
{
    return json_string_value(json_object_get(item, field));
}

/* Rows and length of a two-dimensional field. */
static inline void golden_shape(json_t *item, const char *field, int64_t *rows, int64_t *length)
{
    json_t *value = json_object_get(item, field);
    *rows = (int64_t)json_array_size(value);
    *length = (int64_t)json_array_size(json_array_get(value, 0));
}

/* --- cases ------------------------------------------------------------------------------------ */

typedef struct {
    json_t *json;
    bd_safetensors *tensors;
    int64_t rows, length;
} golden_case;

static inline golden_case golden_open(const char *name, const char *shape_of)
{
    char path[500];
    bd_error err = {0};
    golden_case c;
    snprintf(path, sizeof path, GOLDEN "cases/%s.json", name);
    c.json = json_load_file(path, 0, NULL);
    snprintf(path, sizeof path, GOLDEN "cases/%s.safetensors", name);
    c.tensors = bd_safetensors_open(path, &err);
    if (!c.json || !c.tensors)
        fail_msg("%s: %s", name, err.message);
    const bd_tensor *t = bd_safetensors_find(c.tensors, shape_of);
    assert_non_null(t);
    c.rows = t->shape[0];
    c.length = t->shape[1];
    return c;
}

static inline void golden_close(golden_case *c)
{
    json_decref(c->json);
    bd_safetensors_close(c->tensors);
}

static inline const int32_t *case_ints(const golden_case *c, const char *name)
{
    const bd_tensor *t = bd_safetensors_find(c->tensors, name);
    if (!t || t->dtype != BD_I32)
        fail_msg("no int32 tensor %s", name);
    return t->data;
}

static inline const float *case_floats(const golden_case *c, const char *name)
{
    const bd_tensor *t = bd_safetensors_find(c->tensors, name);
    if (!t || t->dtype != BD_F32)
        fail_msg("no float32 tensor %s", name);
    return t->data;
}

#define check_ints(got, want, count) check_ints_at(__FILE__, __LINE__, #got, got, want, count)
static inline void check_ints_at(const char *file, int line, const char *what, const int32_t *got,
                                 const int32_t *want, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (got[i] != want[i])
            fail_msg("%s:%d: %s[%lld] is %d, wanted %d", file, line, what, (long long)i, got[i],
                     want[i]);
}

static const bd_canvas same_position_4 = {BD_SAME_POSITION, BD_ALL_MASKED, 4, 99};
static const bd_canvas shifted_4 = {BD_SHIFTED, BD_SEED_AND_MASK, 4, 99};

#endif
