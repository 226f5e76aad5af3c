/* tensors.h - just enough of safetensors to read golden cases (the real reader is in a room below).
 */
#ifndef BD_TESTS_TENSOR_TENSORS_H
#define BD_TESTS_TENSOR_TENSORS_H

#include <jansson.h>

#include "check.h"

typedef struct {
    char *bytes;    /* the whole file */
    json_t *header; /* name -> dtype, shape, data_offsets */
    const char *data;
    json_t *options; /* the .json beside it */
} golden_case;

static inline golden_case golden_open(const char *name)
{
    golden_case c = {0};
    char path[300];
    snprintf(path, sizeof path, BD_GOLDEN "/block-diffusion/cases/%s.safetensors", name);
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("cannot open %s", path);
    fseek(file, 0, SEEK_END);
    size_t size = (size_t)ftell(file);
    rewind(file);
    c.bytes = malloc(size);
    assert_int_equal(fread(c.bytes, 1, size, file), size);
    fclose(file);
    uint64_t length;
    memcpy(&length, c.bytes, 8);
    c.header = json_loadb(c.bytes + 8, length, 0, NULL);
    assert_non_null(c.header);
    c.data = c.bytes + 8 + length;
    snprintf(path, sizeof path, BD_GOLDEN "/block-diffusion/cases/%s.json", name);
    c.options = json_load_file(path, 0, NULL);
    assert_non_null(c.options);
    return c;
}

static inline void golden_close(golden_case *c)
{
    json_decref(c->header);
    json_decref(c->options);
    free(c->bytes);
}

/* Start of a tensor; its first and last extents. */
static inline const void *golden_tensor(const golden_case *c, const char *name, int64_t *first,
                                        int64_t *last)
{
    json_t *entry = json_object_get(c->header, name);
    assert_non_null(entry);
    json_t *shape = json_object_get(entry, "shape");
    if (first)
        *first = json_integer_value(json_array_get(shape, 0));
    if (last)
        *last = json_integer_value(json_array_get(shape, json_array_size(shape) - 1));
    return c->data + json_integer_value(json_array_get(json_object_get(entry, "data_offsets"), 0));
}

static inline double golden_number(const golden_case *c, const char *name)
{
    return json_number_value(json_object_get(c->options, name));
}

#endif
