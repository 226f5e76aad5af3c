#include "draft/draft.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "format/json.h"
#include "tensor/rows.h"

// --- the list of tensors -------------------------------------------------------------------------

typedef struct {
    const char *name;
    bd_parameter **place;
    bd_initial initial;
    int rank;
    int64_t shape[BD_PARAMETER_RANK];
} entry;

struct bd_draft_builder {
    bd_arena *arena;
    entry *entries;
    int64_t count;
};

enum { MOST_NAME = 120, MOST_TENSORS = 64 * BD_MOST_TAPS };

void bd_draft_builder_add(bd_draft_builder *builder, bd_parameter **place, bd_initial initial,
                          int rank, const int64_t *shape, const char *format, ...)
{
    assert(builder->count < MOST_TENSORS && rank <= BD_PARAMETER_RANK);
    char name[MOST_NAME];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(name, sizeof name, format, arguments);
    va_end(arguments);
    entry *e = &builder->entries[builder->count++];
    *e = (entry){bd_arena_text(builder->arena, name), place, initial, rank, {0}};
    memcpy(e->shape, shape, (size_t)rank * sizeof *shape);
}

static void add_matrix(bd_draft_builder *b, bd_parameter **place, int64_t out, int64_t in,
                       int64_t layer, const char *name)
{
    bd_draft_builder_add(b, place, BD_INITIAL_NORMAL, 2, (int64_t[]){out, in},
                         "layers.%lld.%s.weight", (long long)layer, name);
}

static void add_norm(bd_draft_builder *b, bd_parameter **place, int64_t width, int64_t layer,
                     const char *name)
{
    bd_draft_builder_add(b, place, BD_INITIAL_ONE, 1, &width, "layers.%lld.%s.weight",
                         (long long)layer, name);
}

static void add_bias(bd_draft_builder *b, bd_parameter **place, int64_t width, int64_t layer,
                     const char *name)
{
    bd_draft_builder_add(b, place, BD_INITIAL_ZERO, 1, &width, "layers.%lld.self_attn.%s",
                         (long long)layer, name);
}

static void add_layer(bd_draft_builder *b, bd_layer *layer, const bd_draft_config *config,
                      int64_t l)
{
    const bd_model_config *s = &config->stack;
    int64_t hidden = s->hidden, queries = s->query_heads * s->head_size;
    int64_t keys = s->key_heads * s->head_size;
    add_norm(b, &layer->input_norm, hidden, l, "input_layernorm");
    add_matrix(b, &layer->query, queries, hidden, l, "self_attn.q_proj");
    add_matrix(b, &layer->key, keys, hidden, l, "self_attn.k_proj");
    add_matrix(b, &layer->value, keys, hidden, l, "self_attn.v_proj");
    add_matrix(b, &layer->output, hidden, queries, l, "self_attn.o_proj");
    if (s->qkv_bias) {
        add_bias(b, &layer->query_bias, queries, l, "q_proj.bias");
        add_bias(b, &layer->key_bias, keys, l, "k_proj.bias");
        add_bias(b, &layer->value_bias, keys, l, "v_proj.bias");
        add_bias(b, &layer->output_bias, hidden, l, "o_proj.bias");
    }
    add_norm(b, &layer->query_norm, s->head_size, l, "self_attn.q_norm");
    add_norm(b, &layer->key_norm, s->head_size, l, "self_attn.k_norm");
    if (config->sink)
        add_bias(b, &layer->sink, s->query_heads, l, "attention_sink_bias");
    add_norm(b, &layer->post_attention_norm, hidden, l, "post_attention_layernorm");
    add_matrix(b, &layer->gate, s->intermediate, hidden, l, "mlp.gate_proj");
    add_matrix(b, &layer->up, s->intermediate, hidden, l, "mlp.up_proj");
    add_matrix(b, &layer->down, hidden, s->intermediate, l, "mlp.down_proj");
}

/* All tensors of a draft whose config and owned arena are set; allocates its layers. */
static bd_draft_builder list_tensors(bd_draft *draft)
{
    const bd_model_config *s = &draft->config.stack;
    bd_draft_builder b = {.arena = draft->owned};
    b.entries = bd_arena_alloc(draft->owned, MOST_TENSORS * sizeof *b.entries);
    size_t bytes = (size_t)s->layers * sizeof *draft->layers;
    draft->layers = memset(bd_arena_alloc(draft->owned, bytes), 0, bytes);
    bd_draft_builder_add(&b, &draft->fc, BD_INITIAL_NORMAL, 2,
                         (int64_t[]){s->hidden, draft->config.tap_count * s->hidden}, "fc.weight");
    bd_draft_builder_add(&b, &draft->hidden_norm, BD_INITIAL_ONE, 1, &s->hidden,
                         "hidden_norm.weight");
    for (int64_t l = 0; l < s->layers; l++)
        add_layer(&b, &draft->layers[l], &draft->config, l);
    bd_draft_builder_add(&b, &draft->norm, BD_INITIAL_ONE, 1, &s->hidden, "norm.weight");
    if (draft->config.variant->build)
        draft->config.variant->build(draft, &b);
    return b;
}

void bd_draft_size(const bd_draft_config *config, int64_t *tensors, int64_t *values)
{
    bd_error err = {0};
    bd_draft draft = {.config = *config, .owned = bd_arena_create((size_t)64 << 20, &err)};
    *tensors = *values = 0;
    if (!draft.owned)
        return;
    bd_draft_builder list = list_tensors(&draft);
    for (int64_t i = 0; i < list.count; i++) {
        int64_t count = 1;
        for (int d = 0; d < list.entries[i].rank; d++)
            count *= list.entries[i].shape[d];
        *values += count;
    }
    *tensors = list.count;
    bd_arena_destroy(draft.owned);
}

// --- making one ----------------------------------------------------------------------------------

/* The draft with its list of tensors, and room for as many parameters. */
static bd_draft *begin(const bd_draft_config *config, bd_model *target, bd_dtype compute,
                       bd_draft_builder *list, bd_error *err)
{
    bd_arena *owned = bd_arena_create((size_t)64 << 20, err);
    if (!owned)
        return NULL;
    bd_draft *draft = bd_arena_alloc(owned, sizeof *draft);
    *draft = (bd_draft){.config = *config, .target = target, .compute = compute, .owned = owned};
    int64_t size = config->stack.head_size;
    double *frequencies = bd_arena_alloc(owned, (size_t)size / 2 * sizeof *frequencies);
    draft->rope.head_size = size;
    draft->rope.inverse_frequency = frequencies;
    bd_rope_frequencies(&config->stack.rope, size, frequencies, &draft->rope.factor);
    *list = list_tensors(draft);
    draft->parameters.items =
        bd_arena_alloc(owned, (size_t)list->count * sizeof *draft->parameters.items);
    return draft;
}

static bd_parameter *next_parameter(bd_draft *draft, const entry *e)
{
    bd_parameter *p = bd_arena_alloc(draft->owned, sizeof *p);
    *p = (bd_parameter){0};
    *e->place = p;
    draft->parameters.items[draft->parameters.count++] = p;
    return p;
}

bd_draft *bd_draft_create(const bd_draft_config *config, bd_model *target, uint64_t seed,
                          bd_dtype compute, bd_error *err)
{
    bd_draft_builder list;
    if (!bd_draft_config_fits(config, &target->config, "draft", err))
        return NULL;
    bd_draft *draft = begin(config, target, compute, &list, err);
    if (!draft)
        return NULL;
    for (int64_t i = 0; i < list.count; i++) {
        const entry *e = &list.entries[i];
        bd_parameter *p = next_parameter(draft, e);
        if (!bd_parameter_create(p, e->name, e->rank, e->shape,
                                 e->initial == BD_INITIAL_ONE ? 1 : 0, err)) {
            bd_draft_close(draft);
            return NULL;
        }
        if (e->initial == BD_INITIAL_NORMAL)
            bd_parameter_normal(p, seed, i, config->stack.initializer_range);
    }
    if (config->variant->initialize)
        config->variant->initialize(draft, seed);
    return draft;
}

void bd_draft_close(bd_draft *draft)
{
    if (!draft)
        return;
    for (int64_t i = 0; i < draft->parameters.count; i++)
        bd_parameter_free(draft->parameters.items[i]);
    bd_safetensors_close(draft->file);
    bd_arena_destroy(draft->owned); // the struct itself lies in it
}

bool bd_draft_train(bd_draft *draft, bd_error *err)
{
    if (draft->config.dropout > 0)
        return bd_fail(err,
                       "attention_dropout is %g: drafts are trained without dropout, 0 expected",
                       draft->config.dropout);
    for (int64_t i = 0; i < draft->parameters.count; i++)
        if (!bd_parameter_train(draft->parameters.items[i], err))
            return false;
    return true;
}

// --- opening a folder ----------------------------------------------------------------------------

/* Names in a message, as many as fit; the count tells the rest. */
typedef struct {
    char text[240];
    int64_t count;
    bool full;
} name_list;

static void name_list_add(name_list *list, const char *name)
{
    size_t used = strlen(list->text), room = sizeof list->text - used;
    list->full = list->full || strlen(name) + sizeof ", , ..." > room;
    if (!list->full)
        snprintf(list->text + used, room, "%s%s", list->count ? ", " : "", name);
    else if (room > sizeof ", ...")
        snprintf(list->text + used, room, ", ...");
    list->count++;
}

static const char *plain_name(const char *name)
{
    static const char prefix[] = "dflash_module.";
    return !strncmp(name, prefix, sizeof prefix - 1) ? name + sizeof prefix - 1 : name;
}

/* A tensor by a name with or without the prefix. */
static const bd_tensor *find_plain(const bd_safetensors *file, const char *name)
{
    const bd_tensor *tensor = bd_safetensors_find(file, name);
    if (tensor)
        return tensor;
    char prefixed[3 * MOST_NAME];
    snprintf(prefixed, sizeof prefixed, "dflash_module.%s", name);
    return bd_safetensors_find(file, prefixed);
}

/* Spellings of the backbone and of heads met in older files, as in bd_draft_variant.aliases. */
static const char *const old_names[] = {"encoder.fc.",
                                        "fc.",
                                        "encoder.output_norm_enc.",
                                        "hidden_norm.",
                                        "logit_head.markov_w1.",
                                        "markov_w1.",
                                        "logit_head.markov_w2.",
                                        "markov_w2.",
                                        NULL};

/* The other spelling of a name by one pair of aliases: `from` at its beginning becomes `to`. False:
 * it does not begin so. */
static bool respell(const char *name, const char *from, const char *to, char out[2 * MOST_NAME])
{
    size_t length = strlen(from);
    return !strncmp(name, from, length) &&
           snprintf(out, 2 * MOST_NAME, "%s%s", to, name + length) < 2 * MOST_NAME;
}

static const bd_tensor *find_tensor(const bd_draft *draft, const char *name)
{
    const bd_tensor *tensor = find_plain(draft->file, name);
    const char *const *lists[] = {draft->config.variant->aliases, old_names};
    char other[2 * MOST_NAME];
    for (int l = 0; l < 2; l++)
        for (const char *const *alias = lists[l]; !tensor && alias && *alias; alias += 2)
            if (respell(name, alias[1], alias[0], other))
                tensor = find_plain(draft->file, other);
    return tensor;
}

/* Does a tensor of the list go by this name, or by this other spelling of its own? */
static bool is_listed(const bd_draft *draft, const bd_draft_builder *list, const char *name)
{
    for (int64_t j = 0; j < list->count; j++) {
        if (!strcmp(list->entries[j].name, name))
            return true;
        const char *const *lists[] = {draft->config.variant->aliases, old_names};
        char own[2 * MOST_NAME];
        for (int l = 0; l < 2; l++)
            for (const char *const *alias = lists[l]; alias && *alias; alias += 2)
                if (respell(name, alias[0], alias[1], own) && !strcmp(list->entries[j].name, own))
                    return true;
    }
    return false;
}

static bool has_shape(const bd_tensor *tensor, const entry *e)
{
    return tensor->rank == e->rank &&
           !memcmp(tensor->shape, e->shape, (size_t)e->rank * sizeof *e->shape) &&
           bd_dtype_is_float(tensor->dtype);
}

/* A file may repeat the target's embedding or head, as some trainers save them. One that differs
 * belongs to another kind of draft, and using the target's in its place would be silently wrong. */
bool bd_draft_repeats(const bd_tensor *tensor, const bd_parameter *own)
{
    enum { PART = 4096 };
    float ours[PART], theirs[PART];
    if (tensor->rank != own->rank || tensor->shape[0] != own->shape[0] ||
        tensor->shape[1] != own->shape[1] || !bd_dtype_is_float(tensor->dtype))
        return false;
    for (int64_t i = 0; i < own->count; i += PART) {
        int64_t count = own->count - i < PART ? own->count - i : PART;
        const char *a = tensor->data, *b = own->data;
        bd_to_f32(tensor->dtype, a + (size_t)i * bd_dtype_size(tensor->dtype), theirs, count);
        bd_to_f32(own->dtype, b + (size_t)i * bd_dtype_size(own->dtype), ours, count);
        if (memcmp(ours, theirs, (size_t)count * sizeof(float)))
            return false;
    }
    return true;
}

static bool check_target_copy(const bd_draft *draft, const bd_tensor *tensor, const char *folder,
                              bool *is_copy, bd_error *err)
{
    const char *name = plain_name(tensor->name);
    const bd_parameter *own = !strcmp(name, "embed_tokens.weight") ? draft->target->embedding
                              : !strcmp(name, "lm_head.weight")    ? draft->target->head
                                                                   : NULL;
    *is_copy = own != NULL;
    if (!own || bd_draft_repeats(tensor, own))
        return true;
    return bd_fail(err,
                   "%s: \"%s\" is not the target's: drafts with an embedding or head of their own "
                   "are not supported",
                   folder, tensor->name);
}

/* Nothing in the file may be left over: a name that does not belong is a tensor not understood. */
static bool is_target_copy(const char *name)
{
    return !strcmp(name, "embed_tokens.weight") || !strcmp(name, "lm_head.weight");
}

static bool check_leftovers(const bd_draft *draft, const bd_draft_builder *list, const char *folder,
                            bool ignore_copies, name_list *unexpected, bd_error *err)
{
    for (int64_t i = 0; i < bd_safetensors_count(draft->file); i++) {
        const bd_tensor *tensor = bd_safetensors_at(draft->file, i);
        const char *name = plain_name(tensor->name);
        bool known = strstr(name, "rotary_emb") || is_listed(draft, list, name) ||
                     (ignore_copies && is_target_copy(name));
        if (!known && !check_target_copy(draft, tensor, folder, &known, err))
            return false;
        if (!known)
            name_list_add(unexpected, tensor->name);
        if (name != tensor->name && bd_safetensors_find(draft->file, name))
            return bd_fail(err, "%s: \"%s\" is there with and without the prefix dflash_module.",
                           folder, name);
    }
    return true;
}

/* The tensors of draft->file in the order of the list; anything missing, misshaped or left over is
 * an error that lists it. */
static bool match_tensors(const bd_draft *draft, const bd_draft_builder *list, const char *folder,
                          bool ignore_copies, const bd_tensor **found, bd_error *err)
{
    name_list missing = {0}, unexpected = {0}, shapes = {0};
    for (int64_t i = 0; i < list->count; i++) {
        const entry *e = &list->entries[i];
        found[i] = find_tensor(draft, e->name);
        if (!found[i])
            name_list_add(&missing, e->name);
        else if (!has_shape(found[i], e))
            name_list_add(&shapes, e->name);
    }
    if (!check_leftovers(draft, list, folder, ignore_copies, &unexpected, err))
        return false;
    if (missing.count || unexpected.count || shapes.count)
        return bd_fail(
            err,
            "%s: does not match the configured draft architecture: %lld missing (%s), %lld "
            "unexpected (%s), %lld of another shape or type (%s)",
            folder, (long long)missing.count, missing.text, (long long)unexpected.count,
            unexpected.text, (long long)shapes.count, shapes.text);
    return true;
}

static bool map_tensors(bd_draft *draft, const bd_draft_builder *list, const char *folder,
                        bool ignore_copies, bd_error *err)
{
    const bd_tensor **found =
        bd_arena_alloc(draft->owned, (size_t)list->count * sizeof(const bd_tensor *));
    if (!match_tensors(draft, list, folder, ignore_copies, found, err))
        return false;
    for (int64_t i = 0; i < list->count; i++) {
        const entry *e = &list->entries[i];
        bd_parameter_map(next_parameter(draft, e), e->name, e->rank, e->shape, found[i]->dtype,
                         found[i]->data);
    }
    return true;
}

bool bd_draft_load(bd_draft *draft, const char *path, bd_error *err)
{
    const bd_parameters *own = &draft->parameters;
    assert(!draft->file);
    if (!bd_folder_exists(path) && !bd_file_exists(path))
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no draft weights at %s", path);
    if (!(draft->file = bd_safetensors_open(path, err)))
        return false;
    size_t mark = bd_arena_mark(draft->owned);
    bd_draft_builder list = {.count = own->count};
    list.entries = bd_arena_alloc(draft->owned, (size_t)own->count * sizeof *list.entries);
    const bd_tensor **found =
        bd_arena_alloc(draft->owned, (size_t)own->count * sizeof(const bd_tensor *));
    for (int64_t i = 0; i < own->count; i++) {
        const bd_parameter *p = own->items[i];
        list.entries[i] = (entry){.name = p->name, .rank = p->rank};
        memcpy(list.entries[i].shape, p->shape, sizeof p->shape);
    }
    bool ok = match_tensors(draft, &list, path, true, found, err);
    for (int64_t i = 0; ok && i < own->count; i++) {
        bd_parameter *p = own->items[i];
        bd_to_f32(found[i]->dtype, found[i]->data, p->value, p->count);
        bd_parameter_changed(p);
    }
    bd_arena_release(draft->owned, mark);
    bd_safetensors_close(draft->file);
    draft->file = NULL;
    return ok;
}

static bd_draft *open_folder(const bd_draft_config *config, const char *folder, bd_model *target,
                             bd_dtype compute, bool ignore_copies, bd_error *err)
{
    bd_draft_builder list;
    bd_draft *draft = begin(config, target, compute, &list, err);
    if (!draft)
        return NULL;
    draft->file = bd_safetensors_open(folder, err);
    if (!draft->file || !map_tensors(draft, &list, folder, ignore_copies, err)) {
        bd_draft_close(draft);
        return NULL;
    }
    return draft;
}

bd_draft *bd_draft_open(const char *folder, bd_model *target, bd_dtype compute, bd_error *err)
{
    char path[BD_PATH];
    bd_draft_config config;
    if (!bd_path_join(path, folder, "config.json", err) ||
        !bd_draft_config_read(path, &config, err) ||
        !bd_draft_config_fits(&config, &target->config, path, err))
        return NULL;
    return open_folder(&config, folder, target, compute, false, err);
}

bd_draft *bd_draft_open_as(const bd_draft_config *config, const char *folder, bd_model *target,
                           bd_dtype compute, bd_error *err)
{
    return bd_draft_config_fits(config, &target->config, folder, err)
               ? open_folder(config, folder, target, compute, true, err)
               : NULL;
}

// --- saving --------------------------------------------------------------------------------------

bool bd_draft_save(const bd_draft *draft, const char *folder, bd_dtype dtype, bd_error *err)
{
    char weights[BD_PATH], config_path[BD_PATH];
    if (!bd_folder_make(folder, err) || !bd_path_join(weights, folder, "model.safetensors", err) ||
        !bd_path_join(config_path, folder, "config.json", err))
        return false;
    bd_arena *arena = bd_arena_create(0, err);
    if (!arena)
        return false;
    int64_t count = draft->parameters.count;
    bd_tensor *tensors = bd_arena_alloc(arena, (size_t)count * sizeof *tensors);
    for (int64_t i = 0; i < count; i++) {
        const bd_parameter *p = draft->parameters.items[i];
        tensors[i] = (bd_tensor){
            .name = p->name, .dtype = dtype, .rank = p->rank, .count = p->count, .data = p->data};
        memcpy(tensors[i].shape, p->shape, sizeof p->shape);
        if (p->dtype != dtype) {
            size_t mark_bytes = (size_t)p->count * bd_dtype_size(dtype);
            void *converted = bd_arena_alloc(arena, mark_bytes);
            size_t mark = bd_arena_mark(arena);
            float *wide = bd_arena_floats(arena, p->count);
            bd_to_f32(p->dtype, p->data, wide, p->count);
            bd_from_f32(dtype, wide, converted, p->count);
            bd_arena_release(arena, mark);
            tensors[i].data = converted;
        }
    }
    bool ok = bd_safetensors_write(weights, tensors, count, NULL, err);
    bd_arena_destroy(arena);
    if (!ok)
        return false;
    bd_draft_config config = draft->config;
    config.stack.dtype = dtype; // the field says what the tensors are
    json_t *root = bd_draft_config_to_json(&config);
    ok = bd_json_save(root, config_path, err);
    json_decref(root);
    return ok;
}

// --- what a draft needs of its target ------------------------------------------------------------

bool bd_draft_has_confidence(const bd_draft *draft)
{
    return draft->config.variant == &bd_draft_dspark && draft->config.markov.confidence;
}

int64_t bd_draft_feature_width(const bd_draft *draft)
{
    return draft->config.tap_count * draft->config.stack.hidden;
}

void bd_draft_request(const bd_draft *draft, int64_t layers[BD_MOST_TAPS])
{
    for (int64_t i = 0; i < draft->config.tap_count; i++)
        layers[i] = draft->config.taps[i] + 1;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double bd_draft_mask_norm_ratio(const bd_model *target, int64_t mask_id, bd_arena *scratch)
{
    const bd_parameter *table = target->embedding;
    int64_t rows = table->shape[0], width = table->shape[1];
    size_t mark = bd_arena_mark(scratch);
    double *norms = bd_arena_alloc(scratch, (size_t)rows * sizeof *norms);
    float *row = bd_arena_floats(scratch, width);
    for (int64_t i = 0; i < rows; i++) {
        bd_to_f32(table->dtype,
                  (const char *)table->data + (size_t)(i * width) * bd_dtype_size(table->dtype),
                  row, width);
        norms[i] = sqrt(bd_sum_of_squares(row, width));
    }
    double mask = norms[mask_id];
    qsort(norms, (size_t)rows, sizeof *norms, by_size);
    double median = norms[rows / 2];
    bd_arena_release(scratch, mark);
    return median > 0 ? mask / median : 1;
}
