#include "format/safetensors.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "format/json.h"

/* A file is: u64 little-endian header size, the header (a JSON object: name -> {dtype, shape,
 * data_offsets}, and "__metadata__"), then the data the offsets count from. */

static const uint64_t most_header_bytes = 100000000; // the limit of the format
enum { PREFIX = 8 };

typedef struct {
    bd_map map;
    char *path;
    json_t *header; // tensor names and metadata point into it
    int64_t first, count;
} shard;

struct bd_safetensors {
    char *path;
    shard *shards;
    int64_t shard_count;
    bd_tensor *tensors; // in name order
    int64_t count, room;
    void **copies; // tensors whose place in the file is not aligned for their dtype
    int64_t copy_count;
};

/* Where a tensor's data lies in its shard. */
typedef struct {
    const char *name;
    uint64_t begin, end;
} extent;

// --- one tensor of a header --------------------------------------------------------------------

static bool parse_shape(const char *path, bd_tensor *tensor, json_t *entry, bd_error *err)
{
    json_t *shape = json_object_get(entry, "shape");
    if (!json_is_array(shape) || json_array_size(shape) > BD_TENSOR_RANK)
        return bd_fail(err, "%s: tensor \"%.200s\": shape is not a list of at most %d sizes", path,
                       tensor->name, BD_TENSOR_RANK);
    tensor->rank = (int)json_array_size(shape);
    tensor->count = 1;
    for (int i = 0; i < tensor->rank; i++) {
        json_t *size = json_array_get(shape, (size_t)i);
        tensor->shape[i] = json_is_integer(size) ? json_integer_value(size) : -1;
        if (tensor->shape[i] < 0)
            return bd_fail(err, "%s: tensor \"%.200s\": shape[%d] is not a size of 0 or more", path,
                           tensor->name, i);
        if (__builtin_mul_overflow(tensor->count, tensor->shape[i], &tensor->count))
            return bd_fail(err, "%s: tensor \"%.200s\": more than 2^63 elements", path,
                           tensor->name);
    }
    return true;
}

static bool parse_offsets(const char *path, const bd_tensor *tensor, json_t *entry,
                          uint64_t data_bytes, extent *out, bd_error *err)
{
    json_t *offsets = json_object_get(entry, "data_offsets");
    json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end) ||
        json_integer_value(begin) < 0 || json_integer_value(end) < json_integer_value(begin))
        return bd_fail(err, "%s: tensor \"%.200s\": data_offsets is not [begin, end]", path,
                       tensor->name);
    out->name = tensor->name;
    out->begin = (uint64_t)json_integer_value(begin);
    out->end = (uint64_t)json_integer_value(end);
    if (out->end > data_bytes)
        return bd_fail(err, "%s: tensor \"%.200s\": data ends at byte %llu, the file holds %llu",
                       path, tensor->name, (unsigned long long)out->end,
                       (unsigned long long)data_bytes);
    uint64_t bytes;
    if (__builtin_mul_overflow((uint64_t)tensor->count, bd_dtype_size(tensor->dtype), &bytes) ||
        bytes != out->end - out->begin)
        return bd_fail(err,
                       "%s: tensor \"%.200s\": data_offsets span %llu bytes, its %s shape %llu",
                       path, tensor->name, (unsigned long long)(out->end - out->begin),
                       bd_dtype_name(tensor->dtype), (unsigned long long)bytes);
    return true;
}

static bool parse_tensor(const char *path, const char *name, json_t *entry, uint64_t data_bytes,
                         bd_tensor *tensor, extent *place, bd_error *err)
{
    tensor->name = name;
    if (!json_is_object(entry))
        return bd_fail(err, "%s: tensor \"%.200s\": not an object", path, name);
    const char *dtype = json_string_value(json_object_get(entry, "dtype"));
    if (!dtype)
        return bd_fail(err, "%s: tensor \"%.200s\": no dtype", path, name);
    if (!bd_dtype_from_name(dtype, &tensor->dtype))
        return bd_fail_as(err, BD_ERROR_TYPE, "%s: tensor \"%.200s\": unknown dtype \"%.40s\"",
                          path, name, dtype);
    return parse_shape(path, tensor, entry, err) &&
           parse_offsets(path, tensor, entry, data_bytes, place, err);
}

// --- one file ----------------------------------------------------------------------------------

static int by_place(const void *a, const void *b)
{
    const extent *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end)
        return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* The format wants every byte of the data to belong to exactly one tensor. */
static bool check_places(const char *path, extent *places, int64_t count, uint64_t data_bytes,
                         bd_error *err)
{
    if (count > 0)
        qsort(places, (size_t)count, sizeof *places, by_place);
    uint64_t used = 0;
    const char *last = "";
    for (int64_t i = 0; i < count; i++) {
        if (places[i].begin < used)
            return bd_fail(err, "%s: tensors \"%.200s\" and \"%.200s\" overlap", path, last,
                           places[i].name);
        if (places[i].begin > used)
            return bd_fail(err, "%s: data bytes %llu to %llu belong to no tensor", path,
                           (unsigned long long)used, (unsigned long long)places[i].begin);
        used = places[i].end;
        last = places[i].name;
    }
    if (used != data_bytes)
        return bd_fail(err, "%s: tensors end at data byte %llu, the file holds %llu", path,
                       (unsigned long long)used, (unsigned long long)data_bytes);
    return true;
}

static bool check_metadata(const char *path, json_t *metadata, bd_error *err)
{
    if (metadata && !json_is_object(metadata))
        return bd_fail(err, "%s: __metadata__ is not an object", path);
    const char *key;
    json_t *value;
    json_object_foreach(metadata, key, value) if (!json_is_string(value)) return bd_fail(
        err, "%s: __metadata__ \"%.200s\" is not a text", path, key);
    return true;
}

static json_t *parse_header(const shard *part, uint64_t *header_bytes, bd_error *err)
{
    const char *path = part->path;
    *header_bytes = 0;
    if (part->map.size < PREFIX) {
        bd_fail(err, "%s: %zu bytes, too short for a safetensors file", path, part->map.size);
        return NULL;
    }
    for (int i = 0; i < PREFIX; i++)
        *header_bytes |= (uint64_t)part->map.data[i] << (8 * i);
    if (*header_bytes > part->map.size - PREFIX || *header_bytes > most_header_bytes) {
        bd_fail(err,
                "%s: header of %llu bytes, at most %llu expected (is this a safetensors file?)",
                path, (unsigned long long)*header_bytes,
                (unsigned long long)(part->map.size - PREFIX < most_header_bytes
                                         ? part->map.size - PREFIX
                                         : most_header_bytes));
        return NULL;
    }
    const char *text = (const char *)part->map.data + PREFIX;
    if (*header_bytes == 0 || text[0] != '{') {
        bd_fail(err, "%s: the header is not a JSON object (is this a safetensors file?)", path);
        return NULL;
    }
    json_t *header = bd_json_parse(text, (size_t)*header_bytes, "header", err);
    if (!header)
        bd_error_wrap(err, "%s", path);
    return header;
}

static bool reserve(bd_safetensors *file, int64_t more, bd_error *err)
{
    if (file->count + more <= file->room)
        return true;
    int64_t room = file->count + more;
    bd_tensor *larger = realloc(file->tensors, (size_t)room * sizeof *larger);
    if (!larger)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory for %lld tensors", file->path,
                          (long long)room);
    file->tensors = larger;
    file->room = room;
    return true;
}

/* Tensor data is handed out aligned for its dtype; one at an odd place in the file is copied. */
static bool align(bd_safetensors *file, bd_tensor *tensor, bd_error *err)
{
    size_t size = bd_dtype_size(tensor->dtype);
    if ((uintptr_t)tensor->data % size == 0 || tensor->count == 0)
        return true;
    size_t bytes = (size_t)tensor->count * size;
    void **larger = realloc(file->copies, (size_t)(file->copy_count + 1) * sizeof *larger);
    if (larger)
        file->copies = larger;
    void *copy = larger ? malloc(bytes) : NULL;
    if (!copy)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory for %zu bytes of tensor \"%.200s\"",
                          file->path, bytes, tensor->name);
    tensor->data = memcpy(copy, tensor->data, bytes);
    file->copies[file->copy_count++] = copy;
    return true;
}

static bool add_tensors(bd_safetensors *file, shard *part, uint64_t header_bytes, extent *places,
                        bd_error *err)
{
    const uint8_t *data = part->map.data + PREFIX + header_bytes;
    uint64_t data_bytes = part->map.size - PREFIX - header_bytes;
    const char *name;
    json_t *entry;
    json_object_foreach(part->header, name, entry)
    {
        if (!strcmp(name, "__metadata__"))
            continue;
        bd_tensor tensor = {0};
        extent *place = &places[part->count];
        if (!parse_tensor(part->path, name, entry, data_bytes, &tensor, place, err))
            return false;
        tensor.data = data + place->begin;
        file->tensors[file->count++] = tensor;
        part->count++;
    }
    if (!check_places(part->path, places, part->count, data_bytes, err))
        return false;
    for (int64_t i = part->first; i < file->count; i++)
        if (!align(file, &file->tensors[i], err))
            return false;
    return true;
}

/* Map one file, check all of its header and append its tensors. */
static bool add_shard(bd_safetensors *file, const char *path, bd_error *err)
{
    shard *larger = realloc(file->shards, (size_t)(file->shard_count + 1) * sizeof *larger);
    char *copy = strdup(path);
    if (larger)
        file->shards = larger;
    if (!larger || !copy) {
        free(copy);
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", path);
    }
    shard *part = &file->shards[file->shard_count++];
    *part = (shard){.path = copy, .first = file->count};
    uint64_t header_bytes;
    if (!bd_map_open(&part->map, path, err) ||
        !(part->header = parse_header(part, &header_bytes, err)))
        return false;
    if (!check_metadata(path, json_object_get(part->header, "__metadata__"), err))
        return false;
    int64_t most = (int64_t)json_object_size(part->header);
    if (!reserve(file, most, err))
        return false;
    extent *places = malloc((size_t)(most + 1) * sizeof *places);
    if (!places)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory for %lld tensors", path,
                          (long long)most);
    bool ok = add_tensors(file, part, header_bytes, places, err);
    free(places);
    return ok;
}

// --- a folder of shards ------------------------------------------------------------------------

static bool is_plain_name(const char *name)
{
    return name && name[0] && !strchr(name, '/') && !strchr(name, '\\') && !strstr(name, "..");
}

static const shard *find_shard(const bd_safetensors *file, const char *path)
{
    for (int64_t i = 0; i < file->shard_count; i++)
        if (!strcmp(file->shards[i].path, path))
            return &file->shards[i];
    return NULL;
}

static bool add_indexed(bd_safetensors *file, const char *folder, json_t *index, const char *where,
                        bd_error *err)
{
    json_t *map = bd_json_object(index, where, "weight_map", err);
    if (!map)
        return false;
    const char *name;
    json_t *value;
    json_object_foreach(map, name, value)
    {
        const char *shard_name = json_string_value(value);
        if (!is_plain_name(shard_name))
            return bd_fail(err, "%s: weight_map \"%.200s\": a file name in this folder expected",
                           where, name);
        char path[BD_PATH];
        if (!bd_path_join(path, folder, shard_name, err))
            return false;
        const shard *part = find_shard(file, path);
        if (!part && !add_shard(file, path, err))
            return bd_error_wrap(err, "%s: weight_map \"%.200s\"", where, name);
        part = find_shard(file, path);
        json_t *entry = json_object_get(part->header, name);
        if (!entry || !strcmp(name, "__metadata__"))
            return bd_fail(err, "%s: weight_map \"%.200s\": not in %s", where, name, shard_name);
    }
    return true;
}

static bool add_folder(bd_safetensors *file, const char *folder, bd_error *err)
{
    char path[BD_PATH];
    if (!bd_path_join(path, folder, "model.safetensors", err))
        return false;
    if (bd_file_exists(path))
        return add_shard(file, path, err);
    if (!bd_path_join(path, folder, "model.safetensors.index.json", err))
        return false;
    if (!bd_file_exists(path))
        return bd_fail_as(err, BD_ERROR_SYSTEM,
                          "%s: neither model.safetensors nor model.safetensors.index.json is there",
                          folder);
    json_t *index = bd_json_load(path, err);
    if (!index)
        return false;
    bool ok = add_indexed(file, folder, index, path, err);
    json_decref(index);
    return ok;
}

// --- opening and looking up --------------------------------------------------------------------

static int by_name(const void *a, const void *b)
{
    return strcmp(((const bd_tensor *)a)->name, ((const bd_tensor *)b)->name);
}

static bool sort_tensors(bd_safetensors *file, bd_error *err)
{
    if (file->count > 0)
        qsort(file->tensors, (size_t)file->count, sizeof *file->tensors, by_name);
    for (int64_t i = 1; i < file->count; i++)
        if (!strcmp(file->tensors[i - 1].name, file->tensors[i].name))
            return bd_fail(err, "%s: tensor \"%.200s\" is in two shards", file->path,
                           file->tensors[i].name);
    return true;
}

bd_safetensors *bd_safetensors_open(const char *path, bd_error *err)
{
    bd_safetensors *file = calloc(1, sizeof *file);
    if (!file || !(file->path = strdup(path))) {
        free(file);
        bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", path);
        return NULL;
    }
    bool ok = bd_folder_exists(path) ? add_folder(file, path, err) : add_shard(file, path, err);
    if (!ok || !sort_tensors(file, err)) {
        bd_safetensors_close(file);
        return NULL;
    }
    return file;
}

void bd_safetensors_close(bd_safetensors *file)
{
    if (!file)
        return;
    for (int64_t i = 0; i < file->shard_count; i++) {
        bd_map_close(&file->shards[i].map);
        json_decref(file->shards[i].header);
        free(file->shards[i].path);
    }
    for (int64_t i = 0; i < file->copy_count; i++)
        free(file->copies[i]);
    free(file->copies);
    free(file->shards);
    free(file->tensors);
    free(file->path);
    free(file);
}

int64_t bd_safetensors_count(const bd_safetensors *file)
{
    return file->count;
}

const bd_tensor *bd_safetensors_at(const bd_safetensors *file, int64_t index)
{
    assert(index >= 0 && index < file->count);
    return &file->tensors[index];
}

const bd_tensor *bd_safetensors_find(const bd_safetensors *file, const char *name)
{
    bd_tensor wanted = {.name = name};
    if (file->count == 0)
        return NULL;
    return bsearch(&wanted, file->tensors, (size_t)file->count, sizeof *file->tensors, by_name);
}

const char *bd_safetensors_metadata(const bd_safetensors *file, const char *key)
{
    for (int64_t i = 0; i < file->shard_count; i++) {
        json_t *metadata = json_object_get(file->shards[i].header, "__metadata__");
        const char *value = json_string_value(json_object_get(metadata, key));
        if (value)
            return value;
    }
    return NULL;
}

// --- reading into memory -----------------------------------------------------------------------

static void print_shape(char *out, size_t size, int rank, const int64_t *shape)
{
    size_t used = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < rank && used < size; i++) {
        if (shape[i] < 0)
            used += (size_t)snprintf(out + used, size - used, i ? ", any" : "any");
        else
            used += (size_t)snprintf(out + used, size - used, i ? ", %lld" : "%lld",
                                     (long long)shape[i]);
    }
    if (used < size)
        snprintf(out + used, size - used, "]");
}

static const bd_tensor *find_shaped(const bd_safetensors *file, const char *name, int rank,
                                    const int64_t *shape, bd_error *err)
{
    const bd_tensor *tensor = bd_safetensors_find(file, name);
    if (!tensor) {
        bd_fail(err, "%s: no tensor \"%s\"", file->path, name);
        return NULL;
    }
    bool same = tensor->rank == rank;
    for (int i = 0; same && i < rank; i++)
        same = shape[i] < 0 || shape[i] == tensor->shape[i];
    if (same)
        return tensor;
    char found[200], wanted[200];
    print_shape(found, sizeof found, tensor->rank, tensor->shape);
    print_shape(wanted, sizeof wanted, rank, shape);
    bd_fail(err, "%s: tensor \"%s\": shape %s, %s expected", file->path, name, found, wanted);
    return NULL;
}

bool bd_safetensors_read_f32(const bd_safetensors *file, const char *name, int rank,
                             const int64_t *shape, float *out, bd_error *err)
{
    const bd_tensor *tensor = find_shaped(file, name, rank, shape, err);
    if (!tensor)
        return false;
    if (!bd_dtype_is_float(tensor->dtype))
        return bd_fail_as(err, BD_ERROR_TYPE, "%s: tensor \"%s\": dtype %s, a float dtype expected",
                          file->path, name, bd_dtype_name(tensor->dtype));
    bd_to_f32(tensor->dtype, tensor->data, out, tensor->count);
    return true;
}

static int64_t int_at(const bd_tensor *tensor, int64_t i)
{
    switch (tensor->dtype) {
    case BD_I64:
        return ((const int64_t *)tensor->data)[i];
    case BD_I32:
        return ((const int32_t *)tensor->data)[i];
    case BD_I16:
        return ((const int16_t *)tensor->data)[i];
    case BD_I8:
        return ((const int8_t *)tensor->data)[i];
    default: // BD_U8, BD_BOOL
        return ((const uint8_t *)tensor->data)[i];
    }
}

bool bd_safetensors_read_i32(const bd_safetensors *file, const char *name, int rank,
                             const int64_t *shape, int32_t *out, bd_error *err)
{
    const bd_tensor *tensor = find_shaped(file, name, rank, shape, err);
    if (!tensor)
        return false;
    if (bd_dtype_is_float(tensor->dtype))
        return bd_fail_as(err, BD_ERROR_TYPE,
                          "%s: tensor \"%s\": dtype %s, an integer dtype expected", file->path,
                          name, bd_dtype_name(tensor->dtype));
    for (int64_t i = 0; i < tensor->count; i++) {
        int64_t value = int_at(tensor, i);
        if (value < INT32_MIN || value > INT32_MAX)
            return bd_fail(err, "%s: tensor \"%s\": element %lld is %lld, 32 bits expected",
                           file->path, name, (long long)i, (long long)value);
        out[i] = (int32_t)value;
    }
    return true;
}
