#include "format/safetensors.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "format/json.h"

static size_t tensor_bytes(const bd_tensor *tensor)
{
    return (size_t)tensor->count * bd_dtype_size(tensor->dtype);
}

static json_t *metadata_object(const char *const *pairs)
{
    static const char *const usual[] = {"format", "pt", NULL}; // some loaders insist on it
    json_t *metadata = json_object();
    for (const char *const *pair = pairs ? pairs : usual; *pair; pair += 2)
        json_object_set_new(metadata, pair[0], json_string(pair[1]));
    return metadata;
}

static json_t *tensor_entry(const bd_tensor *tensor, size_t begin)
{
    json_t *shape = json_array();
    for (int i = 0; i < tensor->rank; i++)
        json_array_append_new(shape, json_integer(tensor->shape[i]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", bd_dtype_name(tensor->dtype), "shape", shape,
                     "data_offsets", (json_int_t)begin, (json_int_t)(begin + tensor_bytes(tensor)));
}

/* The header lists tensors in the order given. Their data is ordered by falling element size, so
 * that every tensor is aligned for its dtype once the data itself starts at a multiple of 8. */
static char *make_header(const char *path, const bd_tensor *tensors, int64_t count,
                         const char *const *metadata_pairs, size_t *size, bd_error *err)
{
    size_t *begin = calloc((size_t)count + 1, sizeof *begin), offset = 0;
    for (size_t element = 8; begin && element > 0; element /= 2)
        for (int64_t i = 0; i < count; i++)
            if (bd_dtype_size(tensors[i].dtype) == element) {
                begin[i] = offset;
                offset += tensor_bytes(&tensors[i]);
            }
    json_t *header = json_object();
    bool ok =
        begin && json_object_set_new(header, "__metadata__", metadata_object(metadata_pairs)) == 0;
    for (int64_t i = 0; ok && i < count; i++) {
        if (json_object_get(header, tensors[i].name)) {
            bd_fail(err, "%s: tensor \"%.200s\" is given twice", path, tensors[i].name);
            json_decref(header);
            free(begin);
            return NULL;
        }
        ok = json_object_set_new(header, tensors[i].name, tensor_entry(&tensors[i], begin[i])) == 0;
    }
    free(begin);
    char *text = ok ? json_dumps(header, JSON_COMPACT) : NULL;
    json_decref(header);
    size_t used = text ? strlen(text) : 0;
    *size = (used + 7) / 8 * 8;
    char *padded = text ? realloc(text, *size + 1) : NULL;
    if (!padded) {
        free(text);
        bd_fail(err, "%s: no header can be made (a tensor name that is not UTF-8?)", path);
        return NULL;
    }
    memset(padded + used, ' ', *size - used);
    return padded;
}

bool bd_safetensors_write(const char *path, const bd_tensor *tensors, int64_t count,
                          const char *const *metadata_pairs, bd_error *err)
{
    size_t size;
    char *header = make_header(path, tensors, count, metadata_pairs, &size, err);
    if (!header)
        return false;
    bd_writer *writer = bd_writer_open(path, err);
    if (!writer) {
        free(header);
        return false;
    }
    uint8_t prefix[8];
    for (int i = 0; i < 8; i++)
        prefix[i] = (uint8_t)((uint64_t)size >> (8 * i));
    bd_writer_write(writer, prefix, sizeof prefix);
    bd_writer_write(writer, header, size);
    free(header);
    for (size_t element = 8; element > 0; element /= 2)
        for (int64_t i = 0; i < count; i++)
            if (bd_dtype_size(tensors[i].dtype) == element)
                bd_writer_write(writer, tensors[i].data, tensor_bytes(&tensors[i]));
    return bd_writer_commit(writer, err);
}

// --- shards ------------------------------------------------------------------------------------

/* How many tensors from `first` on go into one shard: as many as fit, at least one. */
static int64_t shard_length(const bd_tensor *tensors, int64_t first, int64_t count,
                            size_t shard_bytes)
{
    size_t used = tensor_bytes(&tensors[first]);
    int64_t end = first + 1;
    while (end < count && used <= shard_bytes && tensor_bytes(&tensors[end]) <= shard_bytes - used)
        used += tensor_bytes(&tensors[end++]);
    return end - first;
}

/* A name the other layout would use, left by an earlier save, would be found first by a reader. */
static bool remove_stale(const char *folder, const char *name, bd_error *err)
{
    char path[BD_PATH];
    if (!bd_path_join(path, folder, name, err))
        return false;
    if (bd_file_exists(path) && unlink(path) != 0)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: cannot remove", path);
    return true;
}

static bool write_shards(const char *folder, const bd_tensor *tensors, int64_t count, int shards,
                         size_t shard_bytes, bd_error *err)
{
    char path[BD_PATH], name[64];
    json_t *map = json_object();
    size_t total = 0;
    bool ok = true;
    int number = 0;
    for (int64_t first = 0; ok && first < count;) {
        int64_t length = shard_length(tensors, first, count, shard_bytes);
        snprintf(name, sizeof name, "model-%05d-of-%05d.safetensors", ++number, shards);
        for (int64_t i = first; i < first + length; i++) {
            json_object_set_new(map, tensors[i].name, json_string(name));
            total += tensor_bytes(&tensors[i]);
        }
        ok = bd_path_join(path, folder, name, err) &&
             bd_safetensors_write(path, tensors + first, length, NULL, err);
        first += length;
    }
    json_t *index =
        json_pack("{s:{s:I}, s:o}", "metadata", "total_size", (json_int_t)total, "weight_map", map);
    ok = ok && bd_path_join(path, folder, "model.safetensors.index.json", err) &&
         bd_json_save(index, path, err);
    json_decref(index);
    return ok && remove_stale(folder, "model.safetensors", err);
}

bool bd_safetensors_write_folder(const char *folder, const bd_tensor *tensors, int64_t count,
                                 size_t shard_bytes, bd_error *err)
{
    char path[BD_PATH];
    int shards = 0;
    for (int64_t first = 0; first < count; shards++)
        first += shard_length(tensors, first, count, shard_bytes);
    if (!bd_folder_make(folder, err))
        return false;
    if (shards > 1)
        return write_shards(folder, tensors, count, shards, shard_bytes, err);
    return bd_path_join(path, folder, "model.safetensors", err) &&
           bd_safetensors_write(path, tensors, count, NULL, err) &&
           remove_stale(folder, "model.safetensors.index.json", err);
}
