#include "train/checkpoint.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "bdlm/version.h"
#include "format/json.h"
#include "format/safetensors.h"
#include "train/checkpoint_files.h"

static const char *const format_name = "bdlm checkpoint";
enum { FORMAT_VERSION = 1, NAME_SIZE = 64 };

bd_run_state bd_run_state_begin(void)
{
    return (bd_run_state){.evaluation = NAN, .best = NAN, .best_step = -1};
}

static void checkpoint_name(char out[NAME_SIZE], int64_t step)
{
    snprintf(out, NAME_SIZE, "checkpoint-%lld", (long long)step);
}

// --- trainer.json --------------------------------------------------------------------------------

static json_t *number_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *state_to_json(const bd_run_state *s, const bd_contract *contract)
{
    return json_pack("{s:s, s:i, s:s, s:I, s:I, s:I, s:f, s:o, s:o, s:I, s:{s:I, s:f, s:o}, s:o}",
                     "format", format_name, "version", FORMAT_VERSION, "bdlm", bd_version(), "step",
                     (json_int_t)s->step, "micro_batches", (json_int_t)s->micro_batches, "tokens",
                     (json_int_t)s->tokens, "seconds", s->seconds, "eval_loss",
                     number_or_null(s->evaluation), "best_eval_loss", number_or_null(s->best),
                     "best_step", (json_int_t)s->best_step, "window", "tokens",
                     (json_int_t)s->window_tokens, "seconds", s->window_seconds, "metrics",
                     bd_metrics_to_json(&s->window), "contract", bd_contract_to_json(contract));
}

static bool read_optional(json_t *root, const char *where, const char *field, double *out,
                          bd_error *err)
{
    *out = NAN;
    return !bd_json_has(root, field) || bd_json_number(root, where, field, -1e300, 1e300, out, err);
}

static bool state_from_json(json_t *root, const char *where, bd_run_state *s, bd_error *err)
{
    int64_t version;
    const char *format = bd_json_text(root, where, "format", err);
    if (!format)
        return false;
    if (strcmp(format, format_name))
        return bd_fail(err, "%s: format \"%.60s\", \"%s\" expected", where, format, format_name);
    json_t *window = bd_json_object(root, where, "window", err);
    json_t *metrics = window ? bd_json_object(window, where, "metrics", err) : NULL;
    return metrics &&
           bd_json_int(root, where, "version", FORMAT_VERSION, FORMAT_VERSION, &version, err) &&
           bd_json_int(root, where, "step", 0, INT64_MAX, &s->step, err) &&
           bd_json_int(root, where, "micro_batches", 0, INT64_MAX, &s->micro_batches, err) &&
           bd_json_int(root, where, "tokens", 0, INT64_MAX, &s->tokens, err) &&
           bd_json_number(root, where, "seconds", 0, 1e300, &s->seconds, err) &&
           read_optional(root, where, "eval_loss", &s->evaluation, err) &&
           read_optional(root, where, "best_eval_loss", &s->best, err) &&
           bd_json_int(root, where, "best_step", -1, INT64_MAX, &s->best_step, err) &&
           bd_json_int(window, where, "tokens", 0, INT64_MAX, &s->window_tokens, err) &&
           bd_json_number(window, where, "seconds", 0, 1e300, &s->window_seconds, err) &&
           bd_metrics_from_json(metrics, where, &s->window, err);
}

// --- trainer_state.safetensors -------------------------------------------------------------------

static bd_tensor like_parameter(const bd_parameter *p, const char *name, bd_dtype dtype,
                                const void *data)
{
    bd_tensor t = {.name = name, .dtype = dtype, .rank = p->rank, .count = p->count, .data = data};
    memcpy(t.shape, p->shape, sizeof p->shape);
    return t;
}

static bool same_shape(const bd_tensor *t, const bd_parameter *p)
{
    if (t->rank != p->rank)
        return false;
    for (int i = 0; i < p->rank; i++)
        if (t->shape[i] != p->shape[i])
            return false;
    return true;
}

/* Do the files that the task saved hold exactly the fp32 values of this parameter? */
static bool is_saved(const bd_safetensors *saved, const bd_parameter *p)
{
    const bd_tensor *t = saved ? bd_safetensors_find(saved, p->name) : NULL;
    return t && t->dtype == BD_F32 && same_shape(t, p) &&
           !memcmp(t->data, p->value, (size_t)p->count * sizeof(float));
}

/* What the task saved, if it is a folder of tensors; NULL is no error: everything is stored then.
 */
static bd_safetensors *open_saved(const char *folder)
{
    bd_error ignored = {0};
    return bd_safetensors_open(folder, &ignored);
}

static bool write_state(const char *folder, const bd_optimizer *o, bd_error *err)
{
    const bd_parameters *list = o->parameters;
    char path[BD_PATH];
    if (!bd_path_join(path, folder, BD_TRAINER_STATE, err))
        return false;
    size_t longest = 0;
    for (int64_t i = 0; i < list->count; i++)
        longest = strlen(list->items[i]->name) > longest ? strlen(list->items[i]->name) : longest;
    size_t room = longest + sizeof "param.";
    bd_tensor *tensors = calloc((size_t)list->count * 3 + 1, sizeof *tensors);
    char *names = malloc(((size_t)list->count * 3 + 1) * room);
    if (!tensors || !names) {
        free(tensors);
        free(names);
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory for a list of tensors", path);
    }
    bd_safetensors *saved = open_saved(folder);
    int64_t count = 0;
    for (int64_t i = 0; i < list->count; i++) {
        const bd_parameter *p = list->items[i];
        char *m = names + 3 * room * (size_t)i, *v = m + room, *param = v + room;
        snprintf(m, room, "m.%s", p->name);
        snprintf(v, room, "v.%s", p->name);
        snprintf(param, room, "param.%s", p->name);
        tensors[count++] = like_parameter(p, m, o->options.m_dtype, o->moments[i].m);
        tensors[count++] = like_parameter(p, v, o->options.v_dtype, o->moments[i].v);
        if (!is_saved(saved, p))
            tensors[count++] = like_parameter(p, param, BD_F32, p->value);
    }
    bool ok = bd_safetensors_write(path, tensors, count, NULL, err);
    bd_safetensors_close(saved);
    free(tensors);
    free(names);
    return ok;
}

// --- writing -------------------------------------------------------------------------------------

static bool fill_folder(const char *folder, const bd_task *task, const bd_optimizer *optimizer,
                        const bd_contract *contract, const bd_run_state *state, bd_error *err)
{
    if (!bd_folder_remove(folder, err) || !bd_folder_make(folder, err) ||
        !task->save(task->self, folder, err) || !write_state(folder, optimizer, err))
        return false;
    json_t *root = state_to_json(state, contract);
    bool ok = root ? bd_checkpoint_seal(folder, root, err)
                   : bd_fail(err, "%s: a counter or metric is not finite", folder);
    json_decref(root);
    return ok && bd_folder_sync(folder, err);
}

/* Move the finished folder to its name. A folder of that name changes places with it in one step,
 * so that even a link to it leads to something whole all the time. */
static bool publish(const char *run, const char *temporary, const char *path, bd_error *err)
{
    if (!bd_folder_exists(path))
        return bd_folder_publish(temporary, path, err);
    if (renameat2(AT_FDCWD, temporary, AT_FDCWD, path, RENAME_EXCHANGE) != 0)
        return bd_folder_publish(temporary, path, err); // a file system that cannot exchange
    return bd_folder_sync(run, err) && bd_folder_remove(temporary, err);
}

bool bd_checkpoint_link(const char *run, const char *name, const char *target, bd_error *err)
{
    char path[BD_PATH], temporary[BD_PATH], temporary_name[NAME_SIZE];
    snprintf(temporary_name, sizeof temporary_name, "%s.tmp-link", name);
    if (!bd_path_join(path, run, name, err) || !bd_path_join(temporary, run, temporary_name, err))
        return false;
    bool ok;
    if (target) {
        unlink(temporary);
        ok = symlink(target, temporary) == 0 && rename(temporary, path) == 0;
    } else {
        ok = unlink(path) == 0 || errno == ENOENT;
    }
    if (!ok)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: cannot link: %s", path, strerror(errno));
    return bd_folder_sync(run, err);
}

/* The step of a folder named checkpoint-STEP; -1 for any other name. */
static int64_t step_of(const char *name)
{
    const char *digits = name + strlen("checkpoint-");
    if (strncmp(name, "checkpoint-", strlen("checkpoint-")) || *digits < '0' || *digits > '9')
        return -1;
    char *end;
    errno = 0;
    long long step = strtoll(digits, &end, 10);
    return *end || errno ? -1 : step;
}

/* Renamed first, so that a half-removed folder never has a checkpoint's name. */
static bool remove_checkpoint(const char *run, int64_t step, bd_error *err)
{
    char name[NAME_SIZE], aside_name[NAME_SIZE + 16], path[BD_PATH], aside[BD_PATH];
    checkpoint_name(name, step);
    snprintf(aside_name, sizeof aside_name, "%s.tmp-removed", name);
    if (!bd_path_join(path, run, name, err) || !bd_path_join(aside, run, aside_name, err))
        return false;
    if (rename(path, aside) != 0)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: cannot remove: %s", path, strerror(errno));
    return bd_folder_remove(aside, err);
}

static bool prune(const char *run, int64_t step, int64_t best_step, int64_t keep, bd_error *err)
{
    char **names = NULL;
    int64_t count = bd_folder_list(run, &names, err);
    bool ok = count >= 0;
    for (int64_t i = 0; ok && i < count; i++) {
        int64_t old = step_of(names[i]), newer = 0;
        // Steps after this one belong to a run that was gone back in; they are not ours to judge.
        if (old < 0 || old >= step || old == best_step)
            continue;
        for (int64_t j = 0; j < count; j++) {
            int64_t other = step_of(names[j]);
            newer += other > old && other <= step;
        }
        if (newer >= keep)
            ok = remove_checkpoint(run, old, err);
    }
    for (int64_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
    return ok;
}

bool bd_checkpoint_write(const char *run, const bd_task *task, const bd_optimizer *optimizer,
                         const bd_contract *contract, const bd_run_state *state, int64_t keep,
                         bd_error *err)
{
    char name[NAME_SIZE], temporary_name[NAME_SIZE + 16], path[BD_PATH], temporary[BD_PATH];
    checkpoint_name(name, state->step);
    snprintf(temporary_name, sizeof temporary_name, "%s.tmp-new", name);
    if (!bd_path_join(path, run, name, err) || !bd_path_join(temporary, run, temporary_name, err))
        return false;
    if (!fill_folder(temporary, task, optimizer, contract, state, err)) {
        bd_error ignored = {0};
        bd_folder_remove(temporary, &ignored);
        return bd_error_wrap(err, "checkpoint of step %lld", (long long)state->step);
    }
    return publish(run, temporary, path, err) && bd_checkpoint_link(run, "latest", name, err) &&
           (state->best_step != state->step || bd_checkpoint_link(run, "best", name, err)) &&
           (keep <= 0 || prune(run, state->step, state->best_step, keep, err));
}

bool bd_checkpoint_clean(const char *run, bd_error *err)
{
    char **names = NULL, path[BD_PATH];
    int64_t count = bd_folder_list(run, &names, err);
    bool ok = count >= 0;
    for (int64_t i = 0; ok && i < count; i++)
        if (strstr(names[i], ".tmp-"))
            ok = bd_path_join(path, run, names[i], err) && bd_folder_remove(path, err);
    for (int64_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
    return ok;
}

// --- reading -------------------------------------------------------------------------------------

/* Where the numbers of one parameter lie in the mapped files. */
typedef struct {
    const bd_tensor *m, *v, *value;
} stored;

static const bd_tensor *find_stored(const bd_safetensors *file, const char *prefix,
                                    const bd_parameter *p, bd_dtype dtype, const char *where,
                                    bd_error *err)
{
    char name[512];
    snprintf(name, sizeof name, "%s%s", prefix, p->name);
    const bd_tensor *t = bd_safetensors_find(file, name);
    if (!t) {
        bd_fail(err, "%s: no tensor %s", where, name);
    } else if (t->dtype != dtype) {
        bd_fail_as(err, BD_ERROR_TYPE, "%s: %s is %s, %s expected", where, name,
                   bd_dtype_name(t->dtype), bd_dtype_name(dtype));
    } else if (!same_shape(t, p)) {
        bd_fail(err, "%s: %s has another shape than the parameter", where, name);
    } else {
        return t;
    }
    return NULL;
}

static bool find_all(const bd_safetensors *state, const bd_safetensors *saved,
                     const bd_optimizer *o, const char *where, stored *out, bd_error *err)
{
    for (int64_t i = 0; i < o->parameters->count; i++) {
        const bd_parameter *p = o->parameters->items[i];
        char own[512];
        snprintf(own, sizeof own, "param.%s", p->name);
        bool apart = !saved || bd_safetensors_find(state, own);
        out[i].m = find_stored(state, "m.", p, o->options.m_dtype, where, err);
        out[i].v = out[i].m ? find_stored(state, "v.", p, o->options.v_dtype, where, err) : NULL;
        out[i].value = out[i].v ? find_stored(apart ? state : saved, apart ? "param." : "", p,
                                              BD_F32, where, err)
                                : NULL;
        if (!out[i].value)
            return false;
    }
    return true;
}

static void copy_all(const stored *from, bd_optimizer *o, int64_t step)
{
    for (int64_t i = 0; i < o->parameters->count; i++) {
        bd_parameter *p = o->parameters->items[i];
        size_t count = (size_t)p->count;
        memcpy(o->moments[i].m, from[i].m->data, count * bd_dtype_size(o->options.m_dtype));
        memcpy(o->moments[i].v, from[i].v->data, count * bd_dtype_size(o->options.v_dtype));
        memcpy(p->value, from[i].value->data, count * sizeof(float));
        bd_parameter_changed(p);
    }
    o->step = step;
}

static bool load_tensors(const char *folder, bd_optimizer *o, int64_t step, bd_error *err)
{
    char path[BD_PATH];
    if (!bd_path_join(path, folder, BD_TRAINER_STATE, err))
        return false;
    bd_safetensors *state = bd_safetensors_open(path, err);
    if (!state)
        return false;
    bd_safetensors *saved = open_saved(folder);
    stored *found = calloc((size_t)o->parameters->count + 1, sizeof *found);
    bool ok = found ? find_all(state, saved, o, path, found, err)
                    : bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", path);
    if (ok)
        copy_all(found, o, step);
    free(found);
    bd_safetensors_close(saved);
    bd_safetensors_close(state);
    return ok;
}

static bool read_json(json_t *root, const char *where, const bd_contract *contract,
                      bd_run_state *state, bd_error *err)
{
    bd_contract *saved = bd_contract_from_json(json_object_get(root, "contract"), where, err);
    bool ok = saved && bd_contract_compare(saved, contract, where, err) &&
              state_from_json(root, where, state, err);
    bd_contract_free(saved);
    return ok;
}

bool bd_checkpoint_read(const char *folder, const bd_task *task, bd_optimizer *optimizer,
                        const bd_contract *contract, bd_run_state *state, bd_error *err)
{
    assert(optimizer->parameters == task->parameters);
    bd_run_state read = bd_run_state_begin();
    json_t *root = bd_checkpoint_unseal(folder, err);
    bool ok = root && read_json(root, folder, contract, &read, err) &&
              load_tensors(folder, optimizer, read.step, err);
    json_decref(root);
    if (ok)
        *state = read;
    else if (err)
        err->kind = BD_ERROR_STATE;
    return ok;
}

bool bd_checkpoint_verify(const char *folder, bd_error *err)
{
    json_t *root = bd_checkpoint_unseal(folder, err);
    json_decref(root);
    return root != NULL;
}
