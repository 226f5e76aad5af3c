/* gguf.h - the container that llama.cpp and its relatives read: keys with typed values, tensors.
 *
 * Reading maps the file and checks everything before anything is handed out: counts, types, string
 * lengths, dimensions, offsets, duplicates. Shapes are given as everywhere in bdlm, slowest axis
 * first; the file has them the other way round. Source: spec gguf 1.
 *
 *     bd_gguf *file = bd_gguf_open("model.gguf", &err);
 *     const char *name = bd_gguf_text(file, "general.architecture");
 *     const bd_gguf_tensor *t = bd_gguf_find(file, "token_embd.weight");
 *     bd_gguf_close(file);
 *
 *     bd_gguf_out *out = bd_gguf_begin();
 *     bd_gguf_put_text(out, "general.architecture", "qwen3");
 *     bd_gguf_put_tensor(out, "token_embd.weight", BD_GGUF_BF16, 2, shape, BD_F32, values);
 *     if (!bd_gguf_commit(out, "model.gguf", &err)) ...    // atomic; out is gone either way
 */
#ifndef BD_FORMAT_GGUF_H
#define BD_FORMAT_GGUF_H

#include "base/error.h"
#include "tensor/dtype.h"

/* Number formats of tensors, with the numbers the files use. */
typedef enum {
    BD_GGUF_F32 = 0,
    BD_GGUF_F16 = 1,
    BD_GGUF_Q8_0 = 8,
    BD_GGUF_I32 = 26,
    BD_GGUF_I64 = 27,
    BD_GGUF_BF16 = 30,
} bd_gguf_type;

/* Types of values. */
typedef enum {
    BD_GGUF_U8_VALUE,
    BD_GGUF_I8_VALUE,
    BD_GGUF_U16_VALUE,
    BD_GGUF_I16_VALUE,
    BD_GGUF_U32_VALUE,
    BD_GGUF_I32_VALUE,
    BD_GGUF_F32_VALUE,
    BD_GGUF_BOOL_VALUE,
    BD_GGUF_TEXT_VALUE,
    BD_GGUF_ARRAY_VALUE,
    BD_GGUF_U64_VALUE,
    BD_GGUF_I64_VALUE,
    BD_GGUF_F64_VALUE,
    BD_GGUF_VALUES
} bd_gguf_value_type;

enum { BD_GGUF_RANK = 4, BD_GGUF_MOST_NAME = 63 };

typedef struct {
    const char *name;
    bd_gguf_type type;
    int rank;
    int64_t shape[BD_GGUF_RANK]; /* slowest axis first */
    int64_t count;               /* product of shape */
    size_t bytes;
    const void *data; /* in the mapped file, aligned as the file says */
} bd_gguf_tensor;

typedef struct bd_gguf bd_gguf;

bd_gguf *bd_gguf_open(const char *path, bd_error *err);
void bd_gguf_close(bd_gguf *file);

int64_t bd_gguf_count(const bd_gguf *file);
const bd_gguf_tensor *bd_gguf_at(const bd_gguf *file, int64_t index); /* in file order */
const bd_gguf_tensor *bd_gguf_find(const bd_gguf *file, const char *name);

int64_t bd_gguf_key_count(const bd_gguf *file);
/* Key number `index`, its type and, for an array, the elements' type and count. */
const char *bd_gguf_key(const bd_gguf *file, int64_t index, bd_gguf_value_type *type,
                        bd_gguf_value_type *element, int64_t *count);
bool bd_gguf_has(const bd_gguf *file, const char *key);

/* A text value, NULL when the key is absent or of another type. Lives as long as the file. */
const char *bd_gguf_text(const bd_gguf *file, const char *key);

/* A required value of a given kind: any integer type within low..high, any float type, a bool. The
 * _if forms leave `out` as it is when the key is absent. */
bool bd_gguf_int(const bd_gguf *file, const char *key, int64_t low, int64_t high, int64_t *out,
                 bd_error *err);
bool bd_gguf_int_if(const bd_gguf *file, const char *key, int64_t low, int64_t high, int64_t *out,
                    bd_error *err);
bool bd_gguf_number(const bd_gguf *file, const char *key, double *out, bd_error *err);
bool bd_gguf_bool_if(const bd_gguf *file, const char *key, bool *out, bd_error *err);

/* The number of elements of an array of that kind (integers of any width, or texts); -1: absent or
 * of another type. Texts are walked in order: `at` starts as 0, and the bytes (no final NUL) of the
 * next one come back with their size. */
int64_t bd_gguf_ints(const bd_gguf *file, const char *key);
int64_t bd_gguf_int_at(const bd_gguf *file, const char *key, int64_t index);
int64_t bd_gguf_texts(const bd_gguf *file, const char *key);
const char *bd_gguf_text_next(const bd_gguf *file, const char *key, size_t *at, size_t *size);

/* The values of a float tensor as fp32, out [count]. */
bool bd_gguf_read_f32(const bd_gguf_tensor *tensor, float *out, bd_error *err);
/* The dtype that holds the tensor's values exactly: its own, F32 for Q8_0. */
bd_dtype bd_gguf_dtype(bd_gguf_type type);
const char *bd_gguf_type_name(bd_gguf_type type);
bool bd_gguf_type_from_name(const char *name, bd_gguf_type *type); /* "F32", "Q8_0", ... */

// --- writing -------------------------------------------------------------------------------------

typedef struct bd_gguf_out bd_gguf_out;
bd_gguf_out *bd_gguf_begin(void);
void bd_gguf_abandon(bd_gguf_out *out);

void bd_gguf_put_u32(bd_gguf_out *out, const char *key, int64_t value);
void bd_gguf_put_f32(bd_gguf_out *out, const char *key, double value);
void bd_gguf_put_bool(bd_gguf_out *out, const char *key, bool value);
void bd_gguf_put_text(bd_gguf_out *out, const char *key, const char *text);
void bd_gguf_put_i32s(bd_gguf_out *out, const char *key, const int32_t *values, int64_t count);
/* An array of texts: begin, then exactly `count` texts. */
void bd_gguf_put_texts(bd_gguf_out *out, const char *key, int64_t count);
void bd_gguf_put_next(bd_gguf_out *out, const char *text, size_t size);

/* One more tensor, converted from `from` to `type` when the file is written: the name is copied,
 * the data is not. A row that Q8_0 cannot group (its size no multiple of 32) is stored in `from`.
 */
void bd_gguf_put_tensor(bd_gguf_out *out, const char *name, bd_gguf_type type, int rank,
                        const int64_t *shape, bd_dtype from, const void *data);
bool bd_gguf_commit(bd_gguf_out *out, const char *path, bd_error *err);

#endif
