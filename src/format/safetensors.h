/* safetensors.h - tensors in files: one file, or a folder of shards with an index.
 *
 * Reading maps the files; nothing is copied. Everything in the header is checked before a tensor is
 * handed out: JSON, dtypes, shapes, offsets inside the file, sizes that match, no overlap.
 *
 *     bd_safetensors *f = bd_safetensors_open("model.safetensors", &err);   // or a model folder
 *     const bd_tensor *t = bd_safetensors_find(f, "model.norm.weight");
 *     bd_safetensors_close(f);
 */
#ifndef BD_FORMAT_SAFETENSORS_H
#define BD_FORMAT_SAFETENSORS_H

#include "base/error.h"
#include "tensor/dtype.h"

enum { BD_TENSOR_RANK = 8 };

typedef struct {
    const char *name;
    bd_dtype dtype;
    int rank;
    int64_t shape[BD_TENSOR_RANK];
    int64_t count; /* product of shape; 1 for a scalar */
    const void *data;
} bd_tensor;

typedef struct bd_safetensors bd_safetensors;

/* A .safetensors file, or a folder that holds model.safetensors or model.safetensors.index.json. */
bd_safetensors *bd_safetensors_open(const char *path, bd_error *err);
void bd_safetensors_close(bd_safetensors *file);

int64_t bd_safetensors_count(const bd_safetensors *file);
const bd_tensor *bd_safetensors_at(const bd_safetensors *file, int64_t index); /* in name order */
const bd_tensor *bd_safetensors_find(const bd_safetensors *file, const char *name);
const char *bd_safetensors_metadata(const bd_safetensors *file, const char *key); /* NULL: absent */

/* The tensor as fp32 / int32, converted into `out` [count]; an error names file, tensor, found,
 * wanted. Shapes are given as rank and sizes; -1 accepts any size. */
bool bd_safetensors_read_f32(const bd_safetensors *file, const char *name, int rank,
                             const int64_t *shape, float *out, bd_error *err);
bool bd_safetensors_read_i32(const bd_safetensors *file, const char *name, int rank,
                             const int64_t *shape, int32_t *out, bd_error *err);

/* Writing: tensors in the order given, metadata {"format": "pt"} unless other pairs are given;
 * atomic. Data is read when _write is called. */
bool bd_safetensors_write(const char *path, const bd_tensor *tensors, int64_t count,
                          const char *const *metadata_pairs, bd_error *err);

/* Several shards of at most shard_bytes with model.safetensors.index.json, or one
 * model.safetensors. */
bool bd_safetensors_write_folder(const char *folder, const bd_tensor *tensors, int64_t count,
                                 size_t shard_bytes, bd_error *err);

#endif
