#include "format/gguf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tensor/quantized.h"

enum { MOST_KEYS = 4096, MOST_TENSORS = 1 << 16, MOST_KEY = 65535 };

typedef struct {
    char *key;
    bd_gguf_value_type type, element;
    int64_t count;       // of an array
    const uint8_t *data; // the value, or an array's first element
    char *text;          // of a text value, with a final NUL
} value;

struct bd_gguf {
    bd_map map;
    char *path;
    value *values;
    int64_t value_count;
    bd_gguf_tensor *tensors;
    int64_t tensor_count;
    const bd_gguf_tensor **by_name;
};

// --- a cursor that never leaves the file ---------------------------------------------------------

typedef struct {
    const uint8_t *data;
    size_t size, at;
    const char *path;
    bd_error *err;
} cursor;

static const uint8_t *take(cursor *c, uint64_t bytes, const char *what)
{
    if (bytes > c->size - c->at) {
        bd_fail(c->err, "%s: ends inside %s: %llu bytes wanted at byte %zu, the file has %zu",
                c->path, what, (unsigned long long)bytes, c->at, c->size);
        return NULL;
    }
    const uint8_t *here = c->data + c->at;
    c->at += (size_t)bytes;
    return here;
}

static uint32_t load32(const uint8_t *p)
{
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static uint64_t load64(const uint8_t *p)
{
    return load32(p) | (uint64_t)load32(p + 4) << 32;
}

static bool take32(cursor *c, uint32_t *out, const char *what)
{
    const uint8_t *p = take(c, 4, what);
    *out = p ? load32(p) : 0;
    return p != NULL;
}

static bool take64(cursor *c, uint64_t *out, const char *what)
{
    const uint8_t *p = take(c, 8, what);
    *out = p ? load64(p) : 0;
    return p != NULL;
}

/* A length and that many bytes; a copy with a final NUL when `most` is given (0: no copy). */
static bool take_text(cursor *c, size_t most, char **copy, const char *what)
{
    uint64_t size;
    const uint8_t *bytes;
    if (!take64(c, &size, what))
        return false;
    if (most && (size == 0 || size > most))
        return bd_fail(c->err, "%s: %s of %llu bytes, 1 to %zu expected", c->path, what,
                       (unsigned long long)size, most);
    if (!(bytes = take(c, size, what)))
        return false;
    if (!copy)
        return true;
    if (memchr(bytes, 0, (size_t)size))
        return bd_fail(c->err, "%s: %s with a NUL byte at byte %zu", c->path, what, c->at);
    *copy = malloc((size_t)size + 1);
    if (!*copy)
        return bd_fail_as(c->err, BD_ERROR_SYSTEM, "%s: no memory for %s", c->path, what);
    memcpy(*copy, bytes, (size_t)size);
    (*copy)[size] = 0;
    return true;
}

// --- keys ----------------------------------------------------------------------------------------

static size_t value_size(bd_gguf_value_type type)
{
    static const uint8_t sizes[BD_GGUF_VALUES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return sizes[type];
}

static bool take_type(cursor *c, bd_gguf_value_type *type, const char *key)
{
    uint32_t number;
    if (!take32(c, &number, "a value's type"))
        return false;
    if (number >= BD_GGUF_VALUES)
        return bd_fail(c->err, "%s: \"%.80s\" has value type %u, 0 to %d expected", c->path, key,
                       number, BD_GGUF_VALUES - 1);
    *type = (bd_gguf_value_type)number;
    return true;
}

static bool take_array(cursor *c, value *v)
{
    uint64_t count;
    if (!take_type(c, &v->element, v->key) || !take64(c, &count, "an array's size"))
        return false;
    if (v->element == BD_GGUF_ARRAY_VALUE)
        return bd_fail(c->err, "%s: \"%.80s\" is an array of arrays, which bdlm does not read",
                       c->path, v->key);
    v->data = c->data + c->at;
    size_t each = value_size(v->element);
    if (count > (c->size - c->at) / (each ? each : 8))
        return bd_fail(c->err, "%s: \"%.80s\" has %llu elements, more than the file has bytes",
                       c->path, v->key, (unsigned long long)count);
    v->count = (int64_t)count;
    if (each)
        return take(c, count * each, v->key) != NULL;
    for (uint64_t i = 0; i < count; i++)
        if (!take_text(c, 0, NULL, v->key))
            return false;
    return true;
}

static bool take_value(cursor *c, bd_gguf *file, value *v)
{
    if (!take_text(c, MOST_KEY, &v->key, "a key") || !take_type(c, &v->type, v->key))
        return false;
    for (int64_t i = 0; i < file->value_count - 1; i++)
        if (!strcmp(file->values[i].key, v->key))
            return bd_fail(c->err, "%s: key \"%.80s\" is there twice", c->path, v->key);
    if (v->type == BD_GGUF_ARRAY_VALUE)
        return take_array(c, v);
    if (v->type == BD_GGUF_TEXT_VALUE)
        return take_text(c, 0, &v->text, v->key);
    v->data = take(c, value_size(v->type), v->key);
    return v->data != NULL;
}

// --- tensors -------------------------------------------------------------------------------------

static const struct {
    bd_gguf_type type;
    const char *name;
    bd_dtype dtype;
    int64_t group;
    size_t bytes; // of a group
} types[] = {
    {BD_GGUF_F32, "F32", BD_F32, 1, 4},
    {BD_GGUF_F16, "F16", BD_F16, 1, 2},
    {BD_GGUF_Q8_0, "Q8_0", BD_F32, BD_Q8_GROUP, BD_Q8_BYTES},
    {BD_GGUF_I32, "I32", BD_I32, 1, 4},
    {BD_GGUF_I64, "I64", BD_I64, 1, 8},
    {BD_GGUF_BF16, "BF16", BD_BF16, 1, 2},
};
enum { TYPES = sizeof types / sizeof *types };

static int type_index(uint32_t number)
{
    for (int i = 0; i < TYPES; i++)
        if ((uint32_t)types[i].type == number)
            return i;
    return -1;
}

bd_dtype bd_gguf_dtype(bd_gguf_type type)
{
    return types[type_index((uint32_t)type)].dtype;
}

const char *bd_gguf_type_name(bd_gguf_type type)
{
    return types[type_index((uint32_t)type)].name;
}

bool bd_gguf_type_from_name(const char *name, bd_gguf_type *type)
{
    for (int i = 0; i < TYPES; i++)
        if (!strcmp(types[i].name, name)) {
            *type = types[i].type;
            return true;
        }
    return false;
}

static bool take_shape(cursor *c, bd_gguf_tensor *t)
{
    uint32_t rank;
    if (!take32(c, &rank, "a tensor's rank"))
        return false;
    if (rank < 1 || rank > BD_GGUF_RANK)
        return bd_fail(c->err, "%s: tensor \"%s\" has %u dimensions, 1 to %d expected", c->path,
                       t->name, rank, BD_GGUF_RANK);
    t->rank = (int)rank;
    t->count = 1;
    for (int d = t->rank - 1; d >= 0; d--) {
        uint64_t size;
        if (!take64(c, &size, "a tensor's shape"))
            return false;
        if (size < 1 || size > INT64_MAX / 8 / (uint64_t)t->count)
            return bd_fail(c->err, "%s: tensor \"%s\" has a dimension of %llu", c->path, t->name,
                           (unsigned long long)size);
        t->shape[d] = (int64_t)size;
        t->count *= (int64_t)size;
    }
    return true;
}

/* The entry of one tensor; `data` becomes its offset for now. */
static bool take_tensor(cursor *c, bd_gguf_tensor *t, uint64_t *offset)
{
    uint32_t number;
    char *name = NULL;
    bool ok = take_text(c, BD_GGUF_MOST_NAME, &name, "a tensor's name");
    t->name = name;
    if (!ok || !take_shape(c, t) || !take32(c, &number, "a tensor's type") ||
        !take64(c, offset, "a tensor's offset"))
        return false;
    int type = type_index(number);
    if (type < 0)
        return bd_fail(c->err,
                       "%s: tensor \"%s\" has type %u; F32, F16, BF16, Q8_0, I32 or I64 expected",
                       c->path, t->name, number);
    int64_t row = t->shape[t->rank - 1];
    if (row % types[type].group)
        return bd_fail(c->err, "%s: tensor \"%s\" has rows of %lld, a multiple of %lld expected",
                       c->path, t->name, (long long)row, (long long)types[type].group);
    t->type = types[type].type;
    t->bytes = (size_t)(t->count / types[type].group) * types[type].bytes;
    return true;
}

static bool place_tensors(cursor *c, bd_gguf *file, const uint64_t *offsets)
{
    int64_t alignment = 32;
    if (!bd_gguf_int_if(file, "general.alignment", 1, 1 << 20, &alignment, c->err))
        return false;
    if (alignment & (alignment - 1))
        return bd_fail(c->err, "%s: \"general.alignment\" is %lld, a power of two expected",
                       c->path, (long long)alignment);
    size_t step = (size_t)alignment, start = (c->at + step - 1) / step * step;
    uint64_t wanted = 0;
    for (int64_t i = 0; i < file->tensor_count; i++) {
        bd_gguf_tensor *t = &file->tensors[i];
        if (offsets[i] != wanted)
            return bd_fail(c->err, "%s: tensor \"%s\" starts at %llu, %llu expected: no gaps",
                           c->path, t->name, (unsigned long long)offsets[i],
                           (unsigned long long)wanted);
        if (start > c->size || wanted > c->size - start || t->bytes > c->size - start - wanted)
            return bd_fail(c->err, "%s: tensor \"%s\" ends behind the end of the file (%zu bytes)",
                           c->path, t->name, c->size);
        t->data = c->data + start + wanted;
        wanted = (wanted + t->bytes + step - 1) / step * step;
    }
    return true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp((*(bd_gguf_tensor *const *)a)->name, (*(bd_gguf_tensor *const *)b)->name);
}

static bool sort_names(bd_gguf *file, bd_error *err)
{
    for (int64_t i = 0; i < file->tensor_count; i++)
        file->by_name[i] = &file->tensors[i];
    qsort(file->by_name, (size_t)file->tensor_count, sizeof *file->by_name, by_name);
    for (int64_t i = 1; i < file->tensor_count; i++)
        if (!strcmp(file->by_name[i - 1]->name, file->by_name[i]->name))
            return bd_fail(err, "%s: tensor \"%s\" is there twice", file->path,
                           file->by_name[i]->name);
    return true;
}

// --- opening -------------------------------------------------------------------------------------

static bool take_head(cursor *c, uint64_t *tensors, uint64_t *values)
{
    uint32_t version;
    const uint8_t *magic = take(c, 4, "the head");
    if (!magic)
        return false;
    if (memcmp(magic, "GGUF", 4) != 0)
        return bd_fail(c->err, "%s: not a GGUF file: it does not start with \"GGUF\"", c->path);
    if (!take32(c, &version, "the head") || !take64(c, tensors, "the head") ||
        !take64(c, values, "the head"))
        return false;
    if (version != 3)
        return bd_fail(c->err, "%s: GGUF version %u, 3 expected", c->path, version);
    if (*tensors > MOST_TENSORS || *values > MOST_KEYS)
        return bd_fail(c->err, "%s: %llu tensors and %llu keys, at most %d and %d expected",
                       c->path, (unsigned long long)*tensors, (unsigned long long)*values,
                       MOST_TENSORS, MOST_KEYS);
    return true;
}

static bool read_all(bd_gguf *file, cursor *c)
{
    uint64_t tensors, values;
    if (!take_head(c, &tensors, &values))
        return false;
    file->values = calloc((size_t)values + 1, sizeof *file->values);
    file->tensors = calloc((size_t)tensors + 1, sizeof *file->tensors);
    file->by_name = calloc((size_t)tensors + 1, sizeof *file->by_name);
    uint64_t *offsets = calloc((size_t)tensors + 1, sizeof *offsets);
    bool ok = file->values && file->tensors && file->by_name && offsets;
    if (!ok)
        bd_fail_as(c->err, BD_ERROR_SYSTEM, "%s: no memory", c->path);
    for (uint64_t i = 0; ok && i < values; i++) {
        file->value_count++;
        ok = take_value(c, file, &file->values[i]);
    }
    for (uint64_t i = 0; ok && i < tensors; i++) {
        file->tensor_count++;
        ok = take_tensor(c, &file->tensors[i], &offsets[i]);
    }
    ok = ok && place_tensors(c, file, offsets) && sort_names(file, c->err);
    free(offsets);
    return ok;
}

bd_gguf *bd_gguf_open(const char *path, bd_error *err)
{
    bd_gguf *file = calloc(1, sizeof *file);
    if (!file || !(file->path = strdup(path))) {
        free(file);
        bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", path);
        return NULL;
    }
    if (!bd_map_open(&file->map, path, err)) {
        free(file->path);
        free(file);
        return NULL;
    }
    cursor c = {file->map.data, file->map.size, 0, file->path, err};
    if (!read_all(file, &c)) {
        bd_gguf_close(file);
        return NULL;
    }
    return file;
}

void bd_gguf_close(bd_gguf *file)
{
    if (!file)
        return;
    for (int64_t i = 0; i < file->value_count; i++) {
        free(file->values[i].key);
        free(file->values[i].text);
    }
    for (int64_t i = 0; i < file->tensor_count; i++)
        free((char *)file->tensors[i].name);
    free(file->values);
    free(file->tensors);
    free(file->by_name);
    free(file->path);
    bd_map_close(&file->map);
    free(file);
}

// --- asking --------------------------------------------------------------------------------------

int64_t bd_gguf_count(const bd_gguf *file)
{
    return file->tensor_count;
}

const bd_gguf_tensor *bd_gguf_at(const bd_gguf *file, int64_t index)
{
    return &file->tensors[index];
}

const bd_gguf_tensor *bd_gguf_find(const bd_gguf *file, const char *name)
{
    const bd_gguf_tensor key = {.name = name}, *pointer = &key;
    const bd_gguf_tensor **found = bsearch(&pointer, file->by_name, (size_t)file->tensor_count,
                                           sizeof *file->by_name, by_name);
    return found ? *found : NULL;
}

static const value *find(const bd_gguf *file, const char *key)
{
    for (int64_t i = 0; i < file->value_count; i++)
        if (!strcmp(file->values[i].key, key))
            return &file->values[i];
    return NULL;
}

int64_t bd_gguf_key_count(const bd_gguf *file)
{
    return file->value_count;
}

const char *bd_gguf_key(const bd_gguf *file, int64_t index, bd_gguf_value_type *type,
                        bd_gguf_value_type *element, int64_t *count)
{
    const value *v = &file->values[index];
    *type = v->type;
    *element = v->element;
    *count = v->count;
    return v->key;
}

bool bd_gguf_has(const bd_gguf *file, const char *key)
{
    return find(file, key) != NULL;
}

const char *bd_gguf_text(const bd_gguf *file, const char *key)
{
    const value *v = find(file, key);
    return v && v->type == BD_GGUF_TEXT_VALUE ? v->text : NULL;
}

/* An integer of any width; false: not one, or too large for an int64_t. */
static bool integer(bd_gguf_value_type type, const uint8_t *p, int64_t *out)
{
    switch (type) {
    case BD_GGUF_U8_VALUE:
        *out = p[0];
        return true;
    case BD_GGUF_I8_VALUE:
        *out = (int8_t)p[0];
        return true;
    case BD_GGUF_U16_VALUE:
        *out = p[0] | p[1] << 8;
        return true;
    case BD_GGUF_I16_VALUE:
        *out = (int16_t)(p[0] | p[1] << 8);
        return true;
    case BD_GGUF_U32_VALUE:
        *out = load32(p);
        return true;
    case BD_GGUF_I32_VALUE:
        *out = (int32_t)load32(p);
        return true;
    case BD_GGUF_U64_VALUE:
    case BD_GGUF_I64_VALUE:
        *out = (int64_t)load64(p);
        return type == BD_GGUF_I64_VALUE || *out >= 0;
    default:
        return false;
    }
}

bool bd_gguf_int(const bd_gguf *file, const char *key, int64_t low, int64_t high, int64_t *out,
                 bd_error *err)
{
    const value *v = find(file, key);
    int64_t got;
    if (!v)
        return bd_fail(err, "%s: key \"%s\" is missing", file->path, key);
    if (!integer(v->type, v->data, &got))
        return bd_fail(err, "%s: \"%s\" is no integer", file->path, key);
    if (got < low || got > high)
        return bd_fail(err, "%s: \"%s\" is %lld, %lld to %lld expected", file->path, key,
                       (long long)got, (long long)low, (long long)high);
    *out = got;
    return true;
}

bool bd_gguf_int_if(const bd_gguf *file, const char *key, int64_t low, int64_t high, int64_t *out,
                    bd_error *err)
{
    return !find(file, key) || bd_gguf_int(file, key, low, high, out, err);
}

bool bd_gguf_number(const bd_gguf *file, const char *key, double *out, bd_error *err)
{
    const value *v = find(file, key);
    if (!v)
        return bd_fail(err, "%s: key \"%s\" is missing", file->path, key);
    if (v->type == BD_GGUF_F32_VALUE) {
        float number;
        memcpy(&number, v->data, sizeof number);
        *out = (double)number;
    } else if (v->type == BD_GGUF_F64_VALUE) {
        memcpy(out, v->data, sizeof *out);
    } else {
        return bd_fail(err, "%s: \"%s\" is no floating-point number", file->path, key);
    }
    return true;
}

bool bd_gguf_bool_if(const bd_gguf *file, const char *key, bool *out, bd_error *err)
{
    const value *v = find(file, key);
    if (v && v->type != BD_GGUF_BOOL_VALUE)
        return bd_fail(err, "%s: \"%s\" is not true or false", file->path, key);
    if (v)
        *out = v->data[0] != 0;
    return true;
}

int64_t bd_gguf_ints(const bd_gguf *file, const char *key)
{
    const value *v = find(file, key);
    bool whole = v && v->type == BD_GGUF_ARRAY_VALUE && v->element != BD_GGUF_TEXT_VALUE &&
                 v->element != BD_GGUF_F32_VALUE && v->element != BD_GGUF_F64_VALUE &&
                 v->element != BD_GGUF_BOOL_VALUE;
    return whole ? v->count : -1;
}

int64_t bd_gguf_int_at(const bd_gguf *file, const char *key, int64_t index)
{
    const value *v = find(file, key);
    int64_t out = 0;
    integer(v->element, v->data + (size_t)index * value_size(v->element), &out);
    return out;
}

int64_t bd_gguf_texts(const bd_gguf *file, const char *key)
{
    const value *v = find(file, key);
    return v && v->type == BD_GGUF_ARRAY_VALUE && v->element == BD_GGUF_TEXT_VALUE ? v->count : -1;
}

const char *bd_gguf_text_next(const bd_gguf *file, const char *key, size_t *at, size_t *size)
{
    const uint8_t *here = find(file, key)->data + *at;
    *size = (size_t)load64(here);
    *at += 8 + *size;
    return (const char *)here + 8;
}

bool bd_gguf_read_f32(const bd_gguf_tensor *tensor, float *out, bd_error *err)
{
    if (tensor->type == BD_GGUF_Q8_0)
        bd_q8_to_f32(tensor->data, out, tensor->count);
    else if (bd_dtype_is_float(bd_gguf_dtype(tensor->type)))
        bd_to_f32(bd_gguf_dtype(tensor->type), tensor->data, out, tensor->count);
    else
        return bd_fail(err, "tensor \"%s\" is %s, a float type expected", tensor->name,
                       bd_gguf_type_name(tensor->type));
    return true;
}
