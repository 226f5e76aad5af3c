/* bdlm inspect - what is in a model, a draft, a run or a checkpoint. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/options.h"
#include "format/gguf.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "train/contract.h"
#include "train/states_cache.h"

static bool print_tensors(const char *path, bool all, bd_error *err)
{
    bd_safetensors *file = bd_safetensors_open(path, err);
    if (!file)
        return false;
    int64_t values = 0, count = bd_safetensors_count(file);
    size_t bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        const bd_tensor *t = bd_safetensors_at(file, i);
        values += t->count;
        bytes += (size_t)t->count * bd_dtype_size(t->dtype);
        if (!all)
            continue;
        printf("%-60s %-5s [", t->name, bd_dtype_name(t->dtype));
        for (int d = 0; d < t->rank; d++)
            printf("%s%lld", d ? ", " : "", (long long)t->shape[d]);
        printf("]\n");
    }
    printf("%lld tensors, %.3f million values, %.1f MB\n", (long long)count, (double)values / 1e6,
           (double)bytes / 1e6);
    bd_safetensors_close(file);
    return true;
}

/* One key of a GGUF file: a number, a text's beginning, an array's size or few numbers. */
static void print_key(const bd_gguf *file, int64_t index)
{
    bd_error ignored = {0};
    bd_gguf_value_type type, element;
    int64_t count, number;
    double real;
    bool yes = false;
    const char *key = bd_gguf_key(file, index, &type, &element, &count);
    printf("%-44s ", key);
    if (type == BD_GGUF_TEXT_VALUE)
        printf("%.60s\n", bd_gguf_text(file, key));
    else if (type == BD_GGUF_BOOL_VALUE)
        printf("%s\n", bd_gguf_bool_if(file, key, &yes, &ignored) && yes ? "true" : "false");
    else if (bd_gguf_number(file, key, &real, &ignored))
        printf("%.9g\n", real);
    else if (bd_gguf_int(file, key, INT64_MIN, INT64_MAX, &number, &ignored))
        printf("%lld\n", (long long)number);
    else if (bd_gguf_ints(file, key) >= 0 && count <= 16) {
        for (int64_t i = 0; i < count; i++)
            printf("%s%lld", i ? " " : "", (long long)bd_gguf_int_at(file, key, i));
        putchar('\n');
    } else {
        printf("%lld elements\n", (long long)count);
    }
}

static bool print_gguf(const char *path, bd_error *err)
{
    bd_gguf *file = bd_gguf_open(path, err);
    if (!file)
        return false;
    for (int64_t i = 0; i < bd_gguf_key_count(file); i++)
        print_key(file, i);
    for (int64_t i = 0; i < bd_gguf_count(file); i++) {
        const bd_gguf_tensor *t = bd_gguf_at(file, i);
        printf("%-60s %-5s [", t->name, bd_gguf_type_name(t->type));
        for (int d = 0; d < t->rank; d++)
            printf("%s%lld", d ? ", " : "", (long long)t->shape[d]);
        printf("]\n");
    }
    printf("%lld tensors, %lld keys\n", (long long)bd_gguf_count(file),
           (long long)bd_gguf_key_count(file));
    bd_gguf_close(file);
    return true;
}

static bool ends_with(const char *text, const char *end)
{
    size_t size = strlen(text), tail = strlen(end);
    return size >= tail && !strcmp(text + size - tail, end);
}

static bool print_json(const char *folder, const char *name, bd_error *err)
{
    char path[BD_PATH];
    if (!bd_path_join(path, folder, name, err) || !bd_file_exists(path))
        return true;
    json_t *root = bd_json_load(path, err);
    if (!root)
        return false;
    printf("%s:\n", name);
    json_dumpf(root, stdout, JSON_INDENT(2));
    putchar('\n');
    json_decref(root);
    return true;
}

static bool is_there(const char *folder, const char *name)
{
    char path[BD_PATH];
    return bd_path_join(path, folder, name, NULL) && bd_file_exists(path);
}

/* A cache of hidden states: its description, and every record looked at. */
static bool inspect_cache(const char *path, bd_error *err)
{
    if (!print_json(path, "cache.json", err))
        return false;
    bd_states_cache *cache = bd_states_cache_open(path, err);
    if (!cache)
        return false;
    int64_t rows = bd_states_cache_rows(cache), row = 0;
    bd_progress *progress = bd_progress_begin("inspect", rows);
    while (row < rows && bd_states_cache_record(cache, row, err))
        bd_progress_update(progress, ++row, "records");
    bd_progress_end(progress);
    if (row == rows)
        printf("%lld records, all whole, %.3f GB\n", (long long)rows,
               (double)bd_states_size(bd_states_cache_layout(cache)) * (double)rows / 1e9);
    bd_states_cache_close(cache);
    return row == rows;
}

static bool inspect(const char *path, bool tensors, bd_error *err)
{
    if (!bd_folder_exists(path))
        return ends_with(path, ".gguf") ? print_gguf(path, err) : print_tensors(path, true, err);
    if (is_there(path, "run.json"))
        return print_json(path, "run.json", err);
    if (is_there(path, "cache.json"))
        return inspect_cache(path, err);
    bool model =
        is_there(path, "model.safetensors") || is_there(path, "model.safetensors.index.json");
    if (!model && !is_there(path, "config.json"))
        return bd_fail(err,
                       "%s: neither a run nor a model or draft folder: no run.json, config.json or "
                       "model.safetensors",
                       path);
    return print_json(path, "config.json", err) && print_json(path, "trainer.json", err) &&
           (!model || print_tensors(path, tensors, err));
}

// --- two runs -----------------------------------------------------------------------------------

static bd_contract *contract_of(const char *path, bd_error *err)
{
    char file[BD_PATH];
    const char *name = is_there(path, "run.json") ? "run.json" : "trainer.json";
    json_t *root = bd_path_join(file, path, name, err) ? bd_json_load(file, err) : NULL;
    bd_contract *contract =
        root ? bd_contract_from_json(json_object_get(root, "contract"), file, err) : NULL;
    json_decref(root);
    return contract;
}

/* What two runs or checkpoints were made under: one line for each field that differs. */
static bool compare(const char *first, const char *second, bd_error *err)
{
    bd_contract *a = contract_of(first, err), *b = a ? contract_of(second, err) : NULL;
    char *lines = b ? bd_contract_differences(a, b) : NULL;
    if (b && !lines)
        bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for the difference");
    else if (lines && !*lines)
        printf("the contracts are equal\n");
    else if (lines)
        printf("--- %s\n+++ %s\n%s\n", first, second, lines);
    bd_contract_free(a);
    bd_contract_free(b);
    free(lines);
    return lines != NULL;
}

int bd_command_inspect(int argc, char **argv)
{
    bool tensors = false;
    bd_text_list words = {0};
    const bd_option list[] = {
        {"tensors", NULL, BD_ARGUMENT_FLAG, NULL, "list every tensor", &tensors, 0, 0, false},
    };
    const bd_options options = {
        .command = "inspect",
        .usage = "PATH [SECOND]",
        .summary =
            "What is in a model or draft folder, a run, a checkpoint, a cache "
            "of hidden states, or a .safetensors or .gguf file; of two runs or checkpoints, where "
            "their contracts differ.",
        .list = list,
        .count = 1,
        .arguments = &words};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("inspect", &err);
    if (words.count != 1 && words.count != 2) {
        bd_fail(&err, "one path is wanted, or two to compare");
        return bd_usage_error("inspect", &err);
    }
    bool done = words.count == 1 ? inspect(words.items[0], tensors, &err)
                                 : compare(words.items[0], words.items[1], &err);
    return done ? 0 : bd_run_error("inspect", &err);
}
