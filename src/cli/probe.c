/* bdlm probe - one golden case in, every computed tensor out; or all cases below a folder,
 * compared. */
#include "cli/probe.h"

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/probe_compare.h"
#include "format/json.h"

// --- reading and answering -----------------------------------------------------------------------

static const bd_tensor *input(bd_probe *probe, const char *name, int rank, int64_t *shape,
                              bd_error *err)
{
    const bd_tensor *tensor = probe->inputs ? bd_safetensors_find(probe->inputs, name) : NULL;
    if (!tensor) {
        bd_fail(err, "%s: tensor %s is missing", probe->path, name);
        return NULL;
    }
    if (rank >= 0 && tensor->rank != rank) {
        bd_fail(err, "%s: tensor %s has %d dimensions, %d wanted", probe->path, name, tensor->rank,
                rank);
        return NULL;
    }
    for (int i = 0; shape && i < tensor->rank; i++)
        shape[i] = tensor->shape[i];
    return tensor;
}

static const int64_t any_size[BD_TENSOR_RANK] = {-1, -1, -1, -1, -1, -1, -1, -1};

const float *bd_probe_floats(bd_probe *probe, const char *name, int rank, int64_t *shape,
                             bd_error *err)
{
    const bd_tensor *tensor = input(probe, name, rank, shape, err);
    if (!tensor)
        return NULL;
    float *out = bd_arena_floats(probe->arena, tensor->count);
    return bd_safetensors_read_f32(probe->inputs, name, tensor->rank, any_size, out, err) ? out
                                                                                          : NULL;
}

const int32_t *bd_probe_ints(bd_probe *probe, const char *name, int rank, int64_t *shape,
                             bd_error *err)
{
    const bd_tensor *tensor = input(probe, name, rank, shape, err);
    if (!tensor)
        return NULL;
    int32_t *out = bd_arena_ints(probe->arena, tensor->count);
    return bd_safetensors_read_i32(probe->inputs, name, tensor->rank, any_size, out, err) ? out
                                                                                          : NULL;
}

bool bd_probe_has(const bd_probe *probe, const char *name)
{
    return probe->inputs && bd_safetensors_find(probe->inputs, name);
}

double bd_probe_option(const bd_probe *probe, json_t *object, const char *name, double fallback)
{
    (void)probe;
    json_t *value = json_object_get(object, name);
    if (json_is_boolean(value))
        return json_is_true(value);
    return json_is_number(value) ? json_number_value(value) : fallback;
}

const char *bd_probe_word(json_t *object, const char *name, const char *fallback)
{
    const char *text = json_string_value(json_object_get(object, name));
    return text ? text : fallback;
}

bool bd_probe_folder(bd_probe *probe, const char *field, char out[BD_PATH], bd_error *err)
{
    const char *name = bd_json_text(probe->json, probe->path, field, err);
    return name && bd_path_join(out, probe->root, name, err);
}

void bd_probe_put(bd_probe *probe, const char *name, bd_dtype dtype, int rank, const int64_t *shape,
                  const void *data)
{
    if (probe->count == BD_PROBE_TENSORS)
        abort();
    bd_tensor *tensor = &probe->tensors[probe->count++];
    *tensor = (bd_tensor){
        .name = bd_arena_text(probe->arena, name), .dtype = dtype, .rank = rank, .count = 1};
    for (int i = 0; i < rank; i++) {
        tensor->shape[i] = shape[i];
        tensor->count *= shape[i];
    }
    size_t bytes = (size_t)tensor->count * bd_dtype_size(dtype);
    void *copy = bd_arena_alloc(probe->arena, bytes);
    if (bytes)
        memcpy(copy, data, bytes);
    tensor->data = copy;
}

void bd_probe_put_ints(bd_probe *probe, const char *name, bd_dtype dtype, int rank,
                       const int64_t *shape, const int32_t *data)
{
    int64_t count = 1;
    for (int i = 0; i < rank; i++)
        count *= shape[i];
    uint8_t *wide = bd_arena_alloc(probe->arena, (size_t)count * bd_dtype_size(dtype));
    for (int64_t i = 0; i < count; i++) {
        if (dtype == BD_I64)
            ((int64_t *)wide)[i] = data[i];
        else if (dtype == BD_I32)
            ((int32_t *)wide)[i] = data[i];
        else
            wide[i] = (uint8_t)data[i];
    }
    bd_probe_put(probe, name, dtype, rank, shape, wide);
}

void bd_probe_scalar(bd_probe *probe, const char *name, double value)
{
    json_object_set_new(probe->answer, name, json_real(value));
}

// --- which family --------------------------------------------------------------------------------

typedef struct {
    const char *name;
    bd_probe_function *run;
} family;

static int64_t rank_of(const bd_probe *probe, const char *name)
{
    const bd_tensor *tensor = probe->inputs ? bd_safetensors_find(probe->inputs, name) : NULL;
    return tensor ? tensor->rank : -1;
}

/* The case's inputs tell its family, so that a copy without expected values is recognised too. */
static family find_family(const bd_probe *probe)
{
    const char *type = bd_probe_word(probe->json, "type", "");
    if (!strcmp(type, "target_forward"))
        return (family){"forward", bd_probe_target_forward};
    if (!strcmp(type, "train_step"))
        return (family){bd_probe_word(probe->json, "variant", "draft"), bd_probe_train_step};
    if (!strcmp(type, "generation"))
        return (family){"generate", bd_probe_generation};
    if (!strcmp(type, "anchor_sampling"))
        return (family){"anchors", bd_probe_anchors};
    if (!strcmp(type, "tables"))
        return (family){"draft tables", bd_probe_draft_tables};
    if (json_object_get(probe->json, "table"))
        return (family){"tables", bd_probe_table};
    switch (rank_of(probe, "inputs")) {
    case 2:
        return (family){"model", bd_probe_model};
    case 3:
        return (family){"accumulate", bd_probe_accumulate};
    case 4:
        return (family){"train", bd_probe_train};
    default:
        break;
    }
    if (bd_probe_has(probe, "tokens"))
        return bd_probe_has(probe, "corruption") ? (family){"opd", bd_probe_on_policy}
                                                 : (family){"rollout", bd_probe_rollout};
    if (bd_probe_has(probe, "student_logits"))
        return (family){"distill", bd_probe_distill};
    if (bd_probe_has(probe, "param0"))
        return (family){"adamw", bd_probe_adamw};
    if (bd_probe_has(probe, "grad.0"))
        return (family){"clip", bd_probe_clip};
    if (bd_probe_has(probe, "logits"))
        return (family){"ce", bd_probe_cross_entropy};
    json_t *first = json_array_get(json_object_get(probe->json, "cases"), 0);
    if (json_object_get(first, "messages"))
        return (family){"chat", bd_probe_chat};
    if (json_object_get(first, "ids") || json_object_get(first, "text") ||
        json_object_get(first, "repeat"))
        return (family){"tokens", bd_probe_tokens};
    return (family){NULL, NULL};
}

/* The folder above the case that holds models/ or draft folders: what model paths are relative to.
 */
static bool find_root(const char *path, char root[BD_PATH], bd_error *err)
{
    char *real = realpath(path, NULL);
    if (!real)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: cannot open", path);
    snprintf(root, BD_PATH, "%s", real);
    free(real);
    for (char *slash; (slash = strrchr(root, '/')) && slash != root;) {
        *slash = 0;
        char models[BD_PATH + 32];
        snprintf(models, sizeof models, "%s/models", root);
        bool found = bd_folder_exists(models);
        DIR *folder = found ? NULL : opendir(root);
        for (struct dirent *entry; folder && !found && (entry = readdir(folder));)
            found = !strncmp(entry->d_name, "target-", 7) || !strncmp(entry->d_name, "draft-", 6);
        if (folder)
            closedir(folder);
        if (found)
            return true;
    }
    return bd_fail(err, "%s: no folder above it holds models/ or target folders; give --root",
                   path);
}

// --- one case ------------------------------------------------------------------------------------

/* Unlike other files of this project a case may hold "\u0000" in a string: it is a text to encode.
 */
static json_t *load_case(const char *path, bd_error *err)
{
    json_error_t why;
    json_t *root = json_load_file(path, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    if (!root)
        bd_fail(err, "%s:%d:%d: %s", path, why.line, why.column, why.text);
    return root;
}

static bool open_case(bd_probe *probe, const char *path, const char *root, char found_root[BD_PATH],
                      bd_error *err)
{
    *probe = (bd_probe){.path = path, .answer = json_object()};
    probe->arena = bd_arena_create(0, err);
    if (!probe->arena || !(probe->json = load_case(path, err)))
        return false;
    size_t length = strlen(path);
    char tensors[BD_PATH];
    if (length < 6 || length + 8 >= sizeof tensors || strcmp(path + length - 5, ".json") != 0)
        return bd_fail(err, "%s: a case file ends in .json", path);
    snprintf(tensors, sizeof tensors, "%.*s.safetensors", (int)(length - 5), path);
    if (bd_file_exists(tensors) && !(probe->inputs = bd_safetensors_open(tensors, err)))
        return false;
    if (!root) {
        // Tables and plain losses name no model; they need no root.
        bd_error ignored = {0};
        root = find_root(path, found_root, &ignored) ? found_root : ".";
    }
    probe->root = root;
    return true;
}

static void close_case(bd_probe *probe)
{
    json_decref(probe->json);
    json_decref(probe->answer);
    bd_safetensors_close(probe->inputs);
    bd_arena_destroy(probe->arena);
}

static bool write_answer(const bd_probe *probe, const char *out, bd_error *err)
{
    char json[BD_PATH];
    size_t length = strlen(out);
    if (length < 13 || length >= BD_PATH || strcmp(out + length - 12, ".safetensors") != 0)
        return bd_fail_as(err, BD_ERROR_USAGE, "--out: %s does not end in .safetensors", out);
    snprintf(json, sizeof json, "%.*s.json", (int)(length - 12), out);
    return bd_safetensors_write(out, probe->tensors, probe->count, NULL, err) &&
           bd_json_save(probe->answer, json, err);
}

static bool run_case(const char *path, const char *root, const char *out, bd_error *err)
{
    bd_probe probe;
    char found_root[BD_PATH];
    bool ok = open_case(&probe, path, root, found_root, err);
    if (ok) {
        family f = find_family(&probe);
        if (!f.name)
            ok = bd_fail(
                err, "%s: not a golden case: no known \"type\", \"table\" or input tensors", path);
        else if (!f.run)
            ok = bd_fail(err, "%s: cases of family %s cannot be run by this version", path, f.name);
        else
            ok = f.run(&probe, err);
        if (ok && probe.skipped)
            ok = bd_fail(err, "%s: %s", path, probe.skipped);
    }
    ok = ok && write_answer(&probe, out, err);
    close_case(&probe);
    return ok;
}

// --- all cases -----------------------------------------------------------------------------------

static bool case_of_all(const char *path, const char *root, bd_probe_totals *totals, bd_error *err)
{
    bd_probe probe;
    char found_root[BD_PATH];
    if (!open_case(&probe, path, root, found_root, err)) {
        close_case(&probe);
        return false;
    }
    family f = find_family(&probe);
    if (f.name) {
        bd_probe_result result = {0};
        bd_error why = {0};
        if (!f.run)
            probe.skipped = "this version cannot run the family";
        else if (!f.run(&probe, &why))
            snprintf(result.first_failure, sizeof result.first_failure, "%s", why.message),
                result.failures = 1;
        else if (!probe.skipped)
            bd_probe_compare(&probe, &result);
        bd_probe_totals_add(totals, f.name, path, &result, probe.skipped);
    }
    close_case(&probe);
    return true;
}

static bool walk(const char *folder, const char *root, bd_probe_totals *totals, bd_error *err)
{
    char **names;
    int64_t count = bd_folder_list(folder, &names, err);
    bool ok = count >= 0;
    for (int64_t i = 0; i < count; i++) {
        char path[BD_PATH];
        size_t length = strlen(names[i]);
        bool is_case = length > 5 && !strcmp(names[i] + length - 5, ".json") &&
                       strcmp(names[i], "config.json") && strcmp(names[i], "index.json") &&
                       strcmp(names[i], "tokenizers.json") &&
                       strcmp(names[i], "model.safetensors.index.json");
        ok = ok && bd_path_join(path, folder, names[i], err);
        if (ok && bd_folder_exists(path))
            ok = walk(path, root, totals, err);
        else if (ok && is_case)
            ok = case_of_all(path, root, totals, err);
        free(names[i]);
    }
    if (count >= 0)
        free(names);
    return ok;
}

int bd_command_probe(int argc, char **argv)
{
    const char *out = NULL, *root = NULL, *all = NULL;
    bd_text_list words = {0};
    const bd_option list[] = {
        {"out", "o", BD_ARGUMENT_TEXT, "FILE.safetensors",
         "where tensors go; scalars beside it as .json", &out, 0, 0, false},
        {"root", NULL, BD_ARGUMENT_TEXT, "DIR", "what model paths in a case are relative to", &root,
         0, 0, false},
        {"all", NULL, BD_ARGUMENT_TEXT, "DIR", "run and compare every case below DIR", &all, 0, 0,
         false},
    };
    const bd_options options = {
        .command = "probe",
        .usage = "CASE.json --out OUT.safetensors | --all DIR",
        .summary = "Computes the expected values of a golden case from its inputs alone.",
        .list = list,
        .count = 3,
        .arguments = &words};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("probe", &err);
    if (all && words.count == 0) {
        bd_probe_totals totals = {0};
        if (!walk(all, root, &totals, &err))
            return bd_run_error("probe", &err);
        return bd_probe_totals_print(&totals) ? 0 : 1;
    }
    if (all || words.count != 1 || !out) {
        bd_fail(&err, "one case file and --out, or --all DIR, are wanted");
        return bd_usage_error("probe", &err);
    }
    return run_case(words.items[0], root, out, &err) ? 0 : bd_run_error("probe", &err);
}
