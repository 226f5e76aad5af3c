// A model's life: opened from a folder or made from nothing, trained, saved, closed.
#include "model/model.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/sha256.h"
#include "format/json.h"
#include "model/layout.h"

/* What model->owned points to. */
typedef struct {
    bd_model_tensor *tensors; // names live here; one per parameter, in the same order
    bd_parameter *parameters;
    bd_parameter **items;
    double *inverse_frequency;
} storage;

// --- a model without values ----------------------------------------------------------------------

static bool no_memory(bd_error *err)
{
    return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a model's description");
}

static bd_model *describe(const bd_model_config *config, bd_dtype compute, bd_error *err)
{
    assert(compute == BD_F32 || compute == BD_BF16 || compute == BD_Q8_0);
    bd_model *model = calloc(1, sizeof *model);
    storage *own = calloc(1, sizeof *own);
    if (!model || !own) {
        free(model);
        free(own);
        no_memory(err);
        return NULL;
    }
    model->config = *config;
    model->compute = compute;
    model->owned = own;
    int64_t count = bd_model_layout(config, NULL);
    own->tensors = calloc((size_t)count, sizeof *own->tensors);
    own->parameters = calloc((size_t)count, sizeof *own->parameters);
    own->items = calloc((size_t)count, sizeof *own->items);
    own->inverse_frequency = calloc((size_t)config->head_size, sizeof(double));
    if (!own->tensors || !own->parameters || !own->items || !own->inverse_frequency) {
        bd_model_close(model);
        no_memory(err);
        return NULL;
    }
    bd_model_layout(config, own->tensors);
    for (int64_t i = 0; i < count; i++) {
        own->items[i] = &own->parameters[i];
        memcpy((char *)model + own->tensors[i].place, &own->items[i], sizeof(bd_parameter *));
    }
    if (config->tied_head)
        model->head = model->embedding;
    model->parameters = (bd_parameters){.items = own->items, .count = count};
    model->rope =
        (bd_rope){.head_size = config->head_size, .inverse_frequency = own->inverse_frequency};
    bd_rope_frequencies(&config->rope, config->head_size, own->inverse_frequency,
                        &model->rope.factor);
    return model;
}

void bd_model_close(bd_model *model)
{
    if (!model)
        return;
    storage *own = model->owned;
    for (int64_t i = 0; i < model->parameters.count; i++)
        bd_parameter_free(model->parameters.items[i]);
    free(own->tensors);
    free(own->parameters);
    free(own->items);
    free(own->inverse_frequency);
    free(own);
    if (model->file)
        bd_safetensors_close(model->file);
    free(model->folder);
    free(model);
}

bd_model *bd_model_create(const bd_model_config *config, uint64_t seed, bd_dtype compute,
                          bd_error *err)
{
    if (!bd_model_config_check(config, "a new model", err))
        return NULL;
    bd_model *model = describe(config, compute, err);
    if (!model)
        return NULL;
    const bd_model_tensor *tensors = ((storage *)model->owned)->tensors;
    for (int64_t i = 0; i < model->parameters.count; i++) {
        bd_parameter *p = model->parameters.items[i];
        const bd_model_tensor *t = &tensors[i];
        float fill = t->initial == BD_INITIAL_ONE ? 1 : 0;
        if (!bd_parameter_create(p, t->name, t->rank, t->shape, fill, err)) {
            bd_model_close(model);
            return NULL;
        }
        if (t->initial == BD_INITIAL_NORMAL)
            bd_parameter_normal(p, seed, i, config->initializer_range);
    }
    return model;
}

// --- opening a folder ----------------------------------------------------------------------------

/* All that is wrong with a folder's tensors, in one line that fits an error. */
typedef struct {
    char text[800];
    size_t used;
    int64_t count, untold;
} complaints;

static void complain(complaints *c, const char *kind, const char *name, const char *detail)
{
    c->count++;
    size_t room = sizeof c->text - c->used;
    int length =
        snprintf(c->text + c->used, room, "%s%s %.120s%s", c->used ? "; " : "", kind, name, detail);
    if (length < 0 || (size_t)length >= room) {
        c->text[c->used] = '\0';
        c->untold++;
        return;
    }
    for (char *at = c->text + c->used; *at; at++)
        if ((unsigned char)*at < ' ')
            *at = '?'; // a file may name its tensors anything; a message stays one line
    c->used += (size_t)length;
}

static void write_shape(char *out, size_t size, int rank, const int64_t *shape)
{
    size_t used = (size_t)snprintf(out, size, "[");
    for (int i = 0; i < rank && used < size; i++)
        used +=
            (size_t)snprintf(out + used, size - used, "%s%lld", i ? ", " : "", (long long)shape[i]);
    if (used < size)
        snprintf(out + used, size - used, "]");
}

static void take_tensor(const bd_safetensors *file, const bd_model_tensor *wanted, bd_parameter *p,
                        complaints *c)
{
    const bd_tensor *found = bd_safetensors_find(file, wanted->name);
    if (!found) {
        complain(c, "missing", wanted->name, "");
        return;
    }
    bool same = found->rank == wanted->rank;
    for (int i = 0; same && i < wanted->rank; i++)
        same = found->shape[i] == wanted->shape[i];
    char detail[240], have[100], want[60];
    if (!same) {
        write_shape(have, sizeof have, found->rank, found->shape);
        write_shape(want, sizeof want, wanted->rank, wanted->shape);
        snprintf(detail, sizeof detail, " is %s, config.json wants %s", have, want);
        complain(c, "shape of", wanted->name, detail);
    } else if (found->dtype != BD_F32 && found->dtype != BD_BF16 && found->dtype != BD_F16) {
        snprintf(detail, sizeof detail, " is %s, F32, BF16 or F16 wanted",
                 bd_dtype_name(found->dtype));
        complain(c, "dtype of", wanted->name, detail);
    } else {
        bd_parameter_map(p, wanted->name, wanted->rank, wanted->shape, found->dtype, found->data);
    }
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Tensors that carry no information of their own: a tied head written a second time (Hugging Face
 * ties after loading, so its values are never used there either), and rotary frequencies, which old
 * exports hold though config.json says the same. */
static bool redundant(const char *name)
{
    if (strcmp(name, "lm_head.weight") == 0)
        return true; // it is not extra when the head is separate
    const char *dot = strrchr(name, '.');
    return dot && strcmp(dot, ".inv_freq") == 0 && strstr(name, "rotary_emb");
}

static bool complain_of_extra(const bd_model *model, complaints *c, bd_error *err)
{
    int64_t count = model->parameters.count;
    const bd_model_tensor *tensors = ((const storage *)model->owned)->tensors;
    const char **names = malloc((size_t)count * sizeof *names);
    if (!names)
        return no_memory(err);
    for (int64_t i = 0; i < count; i++)
        names[i] = tensors[i].name;
    qsort(names, (size_t)count, sizeof *names, by_name);
    for (int64_t i = 0; i < bd_safetensors_count(model->file); i++) {
        const char *name = bd_safetensors_at(model->file, i)->name;
        if (!bsearch(&name, names, (size_t)count, sizeof *names, by_name) && !redundant(name))
            complain(c, "extra", name, "");
    }
    free(names);
    return true;
}

static bool take_tensors(bd_model *model, const char *folder, bd_error *err)
{
    complaints c = {.count = 0};
    const bd_model_tensor *tensors = ((const storage *)model->owned)->tensors;
    for (int64_t i = 0; i < model->parameters.count; i++)
        take_tensor(model->file, &tensors[i], model->parameters.items[i], &c);
    if (!complain_of_extra(model, &c, err))
        return false;
    if (c.count == 0)
        return true;
    char more[40] = "";
    if (c.untold)
        snprintf(more, sizeof more, "; and %lld more", (long long)c.untold);
    return bd_fail(err, "%.120s: tensors do not match config.json: %s%s", folder, c.text, more);
}

bd_model *bd_model_open(const char *folder, bd_dtype compute, bd_error *err)
{
    char path[BD_PATH];
    bd_model_config config;
    if (!bd_path_join(path, folder, "config.json", err) ||
        !bd_model_config_read(path, &config, err))
        return NULL;
    bd_model *model = describe(&config, compute, err);
    if (!model)
        return NULL;
    model->folder = strdup(folder);
    model->file = bd_safetensors_open(folder, err);
    if (!model->folder && model->file)
        no_memory(err);
    if (!model->folder || !model->file || !take_tensors(model, folder, err)) {
        bd_model_close(model);
        return NULL;
    }
    return model;
}

// --- saving --------------------------------------------------------------------------------------

static bool save_config(const bd_model *model, const char *folder, bd_dtype dtype, bd_error *err)
{
    char path[BD_PATH];
    if (!bd_path_join(path, folder, "config.json", err))
        return false;
    bd_model_config config = model->config;
    config.dtype = dtype;
    json_t *root = bd_model_config_to_json(&config);
    if (!root)
        return no_memory(err);
    bool saved = bd_json_save(root, path, err);
    json_decref(root);
    return saved;
}

/* Values in the wanted dtype: where they are already, or converted into the arena. */
static const void *values_as(const bd_parameter *p, bd_dtype dtype, bd_arena *arena)
{
    if (p->dtype == dtype)
        return p->data;
    void *out = bd_arena_alloc(arena, (size_t)p->count * bd_dtype_size(dtype));
    if (dtype == BD_F32) {
        bd_to_f32(p->dtype, p->data, out, p->count);
        return out;
    }
    float piece[1024];
    for (int64_t i = 0; i < p->count; i += 1024) {
        int64_t count = p->count - i < 1024 ? p->count - i : 1024;
        bd_to_f32(p->dtype, (const char *)p->data + (size_t)i * bd_dtype_size(p->dtype), piece,
                  count);
        bd_from_f32(dtype, piece, (char *)out + (size_t)i * bd_dtype_size(dtype), count);
    }
    return out;
}

bool bd_model_save(const bd_model *model, const char *folder, bd_dtype dtype, bd_error *err)
{
    const size_t shard_bytes = (size_t)4 << 30;
    assert(dtype == BD_F32 || dtype == BD_BF16 || dtype == BD_F16);
    if (!bd_folder_make(folder, err) || !save_config(model, folder, dtype, err))
        return false;
    const bd_parameters *all = &model->parameters;
    // Address space for every tensor; pages are taken only for those that are converted.
    size_t reserve = (size_t)(bd_parameters_total(all) + 64 * all->count) * bd_dtype_size(dtype);
    bd_arena *arena = bd_arena_create(reserve + 4096, err);
    if (!arena)
        return false;
    bd_tensor *tensors = calloc((size_t)all->count, sizeof *tensors);
    bool saved = tensors ? true : no_memory(err);
    for (int64_t i = 0; saved && i < all->count; i++) {
        const bd_parameter *p = all->items[i];
        tensors[i] = (bd_tensor){.name = p->name,
                                 .dtype = dtype,
                                 .rank = p->rank,
                                 .count = p->count,
                                 .data = values_as(p, dtype, arena)};
        memcpy(tensors[i].shape, p->shape, (size_t)p->rank * sizeof(int64_t));
    }
    if (saved)
        saved = bd_safetensors_write_folder(folder, tensors, all->count, shard_bytes, err);
    free(tensors);
    bd_arena_destroy(arena);
    return saved;
}

// --- the whole model -----------------------------------------------------------------------------

bool bd_model_train(bd_model *model, bd_error *err)
{
    for (int64_t i = 0; i < model->parameters.count; i++)
        if (!bd_parameter_train(model->parameters.items[i], err))
            return false;
    return true;
}

int64_t bd_model_parameter_count(const bd_model *model)
{
    return bd_parameters_total(&model->parameters);
}

/* Hashed per tensor, in file order: its name with the final NUL, rank and sizes as 64-bit integers,
 * values as fp32 - so a bf16 folder and its fp32 copy have one fingerprint. All little-endian. */
bool bd_model_fingerprint(const bd_model *model, char out[65], bd_error *err)
{
    bd_sha256 *hash = bd_sha256_begin();
    if (!hash)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "cannot start a SHA-256");
    float piece[1024];
    for (int64_t t = 0; t < model->parameters.count; t++) {
        const bd_parameter *p = model->parameters.items[t];
        int64_t rank = p->rank;
        bd_sha256_add(hash, p->name, strlen(p->name) + 1);
        bd_sha256_add(hash, &rank, sizeof rank);
        bd_sha256_add(hash, p->shape, (size_t)p->rank * sizeof(int64_t));
        if (p->dtype == BD_F32) {
            bd_sha256_add(hash, p->data, (size_t)p->count * sizeof(float));
            continue;
        }
        for (int64_t i = 0; i < p->count; i += 1024) {
            int64_t count = p->count - i < 1024 ? p->count - i : 1024;
            size_t offset = (size_t)i * bd_dtype_size(p->dtype);
            bd_to_f32(p->dtype, (const char *)p->data + offset, piece, count);
            bd_sha256_add(hash, piece, (size_t)count * sizeof(float));
        }
    }
    bd_sha256_end(hash, out);
    return true;
}
