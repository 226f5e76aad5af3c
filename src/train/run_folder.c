#include "train/run_folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/threads.h"
#include "bdlm/version.h"
#include "format/json.h"
#include "tensor/isa.h"
#include "train/checkpoint.h"

struct bd_run {
    char folder[BD_PATH], json_path[BD_PATH], log_path[BD_PATH];
    int lock, log;
};

static bool system_error(bd_error *err, const char *path, const char *what)
{
    return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: %s: %s", path, what, strerror(errno));
}

// --- opening -------------------------------------------------------------------------------------

static bool take_lock(bd_run *run, bd_error *err)
{
    char path[BD_PATH];
    if (!bd_path_join(path, run->folder, ".lock", err))
        return false;
    run->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (run->lock < 0)
        return system_error(err, path, "cannot open");
    // The system lets go of it when the process ends, however it ends. File systems without locks:
    // none.
    if (flock(run->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
        return bd_fail_as(err, BD_ERROR_STATE, "%s: another process is training here", run->folder);
    return true;
}

static bool open_files(bd_run *run, bool resuming, bd_error *err)
{
    if (!bd_folder_make(run->folder, err) || !take_lock(run, err) ||
        !bd_checkpoint_clean(run->folder, err) ||
        !bd_path_join(run->json_path, run->folder, "run.json", err) ||
        !bd_path_join(run->log_path, run->folder, "metrics.jsonl", err))
        return false;
    if (!resuming && (bd_file_exists(run->json_path) || bd_file_exists(run->log_path)))
        return bd_fail_as(err, BD_ERROR_STATE,
                          "%s: already holds a run; resume it or choose another folder",
                          run->folder);
    run->log = open(run->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    return run->log >= 0 || system_error(err, run->log_path, "cannot open");
}

bd_run *bd_run_open(const char *folder, bool resuming, bd_error *err)
{
    bd_run *run = calloc(1, sizeof *run);
    if (!run || strlen(folder) >= BD_PATH) {
        free(run);
        bd_fail(err, "run folder: a name of %zu bytes", strlen(folder));
        return NULL;
    }
    run->lock = run->log = -1;
    strcpy(run->folder, folder);
    if (open_files(run, resuming, err))
        return run;
    bd_run_close(run);
    return NULL;
}

void bd_run_close(bd_run *run)
{
    if (!run)
        return;
    if (run->log >= 0)
        close(run->log);
    if (run->lock >= 0)
        close(run->lock);
    free(run);
}

// --- run.json ------------------------------------------------------------------------------------

static void processor_name(char *out, size_t size)
{
    char line[256];
    snprintf(out, size, "unknown");
    FILE *file = fopen("/proc/cpuinfo", "r");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strncmp(line, "model name", 10) ? NULL : strchr(line, ':');
        if (!value)
            continue;
        value[strcspn(value, "\n")] = 0;
        snprintf(out, size, "%s", value + 1 + strspn(value + 1, " "));
        break;
    }
    if (file)
        fclose(file);
}

static json_t *describe_session(const bd_run_about *about, int64_t step)
{
    json_t *command = json_array();
    for (const char *const *word = about->command; word && *word; word++) {
        json_t *text = json_string(*word);
        json_array_append_new(command, text ? text : json_string("(not UTF-8)"));
    }
    char processor[256], began[32] = "";
    processor_name(processor, sizeof processor);
    time_t now = time(NULL);
    struct tm utc;
    if (gmtime_r(&now, &utc))
        strftime(began, sizeof began, "%Y-%m-%dT%H:%M:%SZ", &utc);
    return json_pack("{s:I, s:s, s:o, s:s, s:s, s:s, s:i}", "from_step", (json_int_t)step, "began",
                     began, "command", command, "version", bd_version(), "cpu", processor, "isa",
                     bd_isa_name(bd_isa()), "threads", bd_threads_count());
}

static json_t *describe_run(const bd_run_about *about)
{
    char hash[BD_SHA256_TEXT];
    bd_contract_fingerprint(about->contract, hash);
    return json_pack("{s:s, s:s, s:O, s:o, s:s, s:[]}", "format", "bdlm run", "version",
                     bd_version(), "recipe", about->recipe ? about->recipe : json_null(),
                     "contract", bd_contract_to_json(about->contract), "contract_sha256", hash,
                     "sessions");
}

bool bd_run_same(const bd_run *run, const bd_contract *contract, bd_error *err)
{
    if (!bd_file_exists(run->json_path))
        return true;
    json_t *root = bd_json_load(run->json_path, err);
    if (!root)
        return false;
    bd_contract *saved =
        bd_contract_from_json(json_object_get(root, "contract"), run->json_path, err);
    bool same = saved && bd_contract_compare(saved, contract, run->json_path, err);
    bd_contract_free(saved);
    json_decref(root);
    return same;
}

bool bd_run_describe(bd_run *run, const bd_run_about *about, int64_t step, bd_error *err)
{
    json_t *root =
        bd_file_exists(run->json_path) ? bd_json_load(run->json_path, err) : describe_run(about);
    if (!root)
        return false;
    json_t *sessions = bd_json_array(root, run->json_path, "sessions", err);
    bool ok = sessions && json_array_append_new(sessions, describe_session(about, step)) == 0 &&
              bd_json_save(root, run->json_path, err);
    json_decref(root);
    return ok;
}

// --- metrics.jsonl -------------------------------------------------------------------------------

/* The step of one line, or -1 for what is no line of ours (it is kept). */
static int64_t step_of_line(const char *line, size_t size)
{
    bd_error ignored = {0};
    json_t *object = bd_json_parse(line, size, "line", &ignored);
    json_t *step = json_object_get(object, "step");
    int64_t result = json_is_integer(step) ? json_integer_value(step) : -1;
    json_decref(object);
    return result;
}

bool bd_run_cut(bd_run *run, int64_t step, bd_error *err)
{
    bd_map map;
    if (!bd_map_open(&map, run->log_path, err))
        return false;
    size_t kept = 0;
    while (kept < map.size) {
        const char *line = (const char *)map.data + kept,
                   *end = memchr(line, '\n', map.size - kept);
        if (!end || step_of_line(line, (size_t)(end - line)) > step)
            break;
        kept += (size_t)(end - line) + 1;
    }
    bool cut = kept < map.size;
    bd_map_close(&map);
    if (cut && ftruncate(run->log, (off_t)kept) != 0)
        return system_error(err, run->log_path, "cannot shorten");
    return true;
}

bool bd_run_log(bd_run *run, json_t *line, bd_error *err)
{
    char *text = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(10));
    json_decref(line);
    size_t size = text ? strlen(text) : 0;
    if (!text)
        return bd_fail(err, "%s: a line cannot be written as JSON", run->log_path);
    text[size++] = '\n'; // in place of the NUL: one write, so that a kill leaves whole lines
    ssize_t written = write(run->log, text, size);
    free(text);
    if (written != (ssize_t)size)
        return system_error(err, run->log_path, "cannot write");
    return true;
}

bool bd_run_sync(bd_run *run, bd_error *err)
{
    return fsync(run->log) == 0 || system_error(err, run->log_path, "cannot sync");
}
