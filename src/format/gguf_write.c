#include "format/gguf.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "format/tokenizer_text.h"
#include "tensor/quantized.h"

enum { ALIGNMENT = 32, CHUNK = 1 << 16 }; // CHUNK values are converted at a time

typedef struct {
    bd_gguf_type type;
    bd_dtype from;
    int64_t count;
    const void *data;
} pending;

struct bd_gguf_out {
    bd_text values, infos;
    int64_t value_count, tensor_count, room;
    uint64_t offset;
    pending *tensors;
    bool failed;
};

bd_gguf_out *bd_gguf_begin(void)
{
    return calloc(1, sizeof(bd_gguf_out));
}

void bd_gguf_abandon(bd_gguf_out *out)
{
    if (!out)
        return;
    bd_text_free(&out->values);
    bd_text_free(&out->infos);
    free(out->tensors);
    free(out);
}

// --- little-endian numbers and texts -------------------------------------------------------------

static void put(bd_text *text, uint64_t number, int bytes)
{
    for (int i = 0; i < bytes; i++)
        bd_text_add_byte(text, (char)(uint8_t)(number >> (8 * i)));
}

static void put_string(bd_text *text, const char *string, size_t size)
{
    put(text, size, 8);
    bd_text_add(text, string, size);
}

static bd_text *key(bd_gguf_out *out, const char *name, bd_gguf_value_type type)
{
    out->value_count++;
    put_string(&out->values, name, strlen(name));
    put(&out->values, (uint64_t)type, 4);
    return &out->values;
}

void bd_gguf_put_u32(bd_gguf_out *out, const char *name, int64_t number)
{
    assert(number >= 0 && number <= UINT32_MAX);
    put(key(out, name, BD_GGUF_U32_VALUE), (uint64_t)number, 4);
}

void bd_gguf_put_f32(bd_gguf_out *out, const char *name, double number)
{
    float single = (float)number;
    uint32_t bits;
    memcpy(&bits, &single, sizeof bits);
    put(key(out, name, BD_GGUF_F32_VALUE), bits, 4);
}

void bd_gguf_put_bool(bd_gguf_out *out, const char *name, bool truth)
{
    put(key(out, name, BD_GGUF_BOOL_VALUE), truth, 1);
}

void bd_gguf_put_text(bd_gguf_out *out, const char *name, const char *text)
{
    put_string(key(out, name, BD_GGUF_TEXT_VALUE), text, strlen(text));
}

static void put_array(bd_gguf_out *out, const char *name, bd_gguf_value_type element, int64_t count)
{
    bd_text *text = key(out, name, BD_GGUF_ARRAY_VALUE);
    put(text, (uint64_t)element, 4);
    put(text, (uint64_t)count, 8);
}

void bd_gguf_put_i32s(bd_gguf_out *out, const char *name, const int32_t *numbers, int64_t count)
{
    put_array(out, name, BD_GGUF_I32_VALUE, count);
    for (int64_t i = 0; i < count; i++)
        put(&out->values, (uint32_t)numbers[i], 4);
}

void bd_gguf_put_texts(bd_gguf_out *out, const char *name, int64_t count)
{
    put_array(out, name, BD_GGUF_TEXT_VALUE, count);
}

void bd_gguf_put_next(bd_gguf_out *out, const char *text, size_t size)
{
    put_string(&out->values, text, size);
}

// --- tensors -------------------------------------------------------------------------------------

static bd_gguf_type plain_type(bd_dtype from)
{
    return from == BD_BF16  ? BD_GGUF_BF16
           : from == BD_F16 ? BD_GGUF_F16
           : from == BD_I64 ? BD_GGUF_I64
                            : BD_GGUF_F32;
}

static size_t type_bytes(bd_gguf_type type, int64_t count)
{
    if (type == BD_GGUF_Q8_0)
        return (size_t)(count / BD_Q8_GROUP) * BD_Q8_BYTES;
    return (size_t)count * bd_dtype_size(bd_gguf_dtype(type));
}

static uint64_t padded(uint64_t bytes)
{
    return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

void bd_gguf_put_tensor(bd_gguf_out *out, const char *name, bd_gguf_type type, int rank,
                        const int64_t *shape, bd_dtype from, const void *data)
{
    assert(strlen(name) <= BD_GGUF_MOST_NAME && rank >= 1 && rank <= BD_GGUF_RANK);
    if (type == BD_GGUF_Q8_0 && shape[rank - 1] % BD_Q8_GROUP)
        type = plain_type(from);
    if (out->tensor_count == out->room) {
        int64_t room = out->room ? 2 * out->room : 64;
        pending *more = realloc(out->tensors, (size_t)room * sizeof *more);
        if (!more) {
            out->failed = true;
            return;
        }
        out->tensors = more;
        out->room = room;
    }
    int64_t count = 1;
    put_string(&out->infos, name, strlen(name));
    put(&out->infos, (uint64_t)rank, 4);
    for (int d = rank - 1; d >= 0; d--) {
        put(&out->infos, (uint64_t)shape[d], 8);
        count *= shape[d];
    }
    put(&out->infos, (uint64_t)type, 4);
    put(&out->infos, out->offset, 8);
    out->offset = padded(out->offset + type_bytes(type, count));
    out->tensors[out->tensor_count++] = (pending){type, from, count, data};
}

/* The values in chunks through fp32, or as they are when nothing changes. */
static void write_values(bd_writer *writer, const pending *t, float *wide, uint8_t *narrow)
{
    const uint8_t *from = t->data;
    if (t->type != BD_GGUF_Q8_0 && bd_gguf_dtype(t->type) == t->from) {
        bd_writer_write(writer, from, type_bytes(t->type, t->count));
        return;
    }
    for (int64_t i = 0; i < t->count; i += CHUNK) {
        int64_t count = t->count - i < CHUNK ? t->count - i : CHUNK;
        bd_to_f32(t->from, from + (size_t)i * bd_dtype_size(t->from), wide, count);
        if (t->type == BD_GGUF_Q8_0)
            bd_q8_from_f32(wide, narrow, count);
        else
            bd_from_f32(bd_gguf_dtype(t->type), wide, narrow, count);
        bd_writer_write(writer, narrow, type_bytes(t->type, count));
    }
}

static void pad(bd_writer *writer, uint64_t written)
{
    static const uint8_t zeros[ALIGNMENT];
    bd_writer_write(writer, zeros, (size_t)(padded(written) - written));
}

bool bd_gguf_commit(bd_gguf_out *out, const char *path, bd_error *err)
{
    bd_text head = {0};
    bd_text_add(&head, "GGUF", 4);
    put(&head, 3, 4);
    put(&head, (uint64_t)out->tensor_count, 8);
    put(&head, (uint64_t)out->value_count, 8);
    float *wide = malloc(CHUNK * sizeof *wide);
    uint8_t *narrow = malloc(CHUNK * sizeof *wide);
    bd_writer *writer = NULL;
    bool ok = bd_text_check(&head, err) && bd_text_check(&out->values, err) &&
              bd_text_check(&out->infos, err);
    if (ok && (out->failed || !wide || !narrow))
        ok = bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", path);
    if (ok && (writer = bd_writer_open(path, err))) {
        bd_writer_write(writer, head.data, head.size);
        bd_writer_write(writer, out->values.data, out->values.size);
        bd_writer_write(writer, out->infos.data, out->infos.size);
        pad(writer, head.size + out->values.size + out->infos.size);
        for (int64_t i = 0; i < out->tensor_count; i++) {
            write_values(writer, &out->tensors[i], wide, narrow);
            pad(writer, type_bytes(out->tensors[i].type, out->tensors[i].count));
        }
        ok = bd_writer_commit(writer, err);
    }
    free(wide);
    free(narrow);
    bd_text_free(&head);
    bd_gguf_abandon(out);
    return ok && writer;
}
