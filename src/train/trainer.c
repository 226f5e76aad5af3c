#include "train/trainer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/profile.h"
#include "train/checkpoint.h"
#include "train/replay.h"
#include "train/run_folder.h"
#include "train/update.h"

bd_trainer_options bd_trainer_default(void)
{
    return (bd_trainer_options){.micro_batches = 1,
                                .compute = BD_BF16,
                                .schedule = {.kind = BD_SCHEDULE_COSINE, .peak = 3e-4},
                                .optimizer = bd_optimizer_default(),
                                .log_every = 1,
                                .checkpoint_every = 1000,
                                .keep = 2};
}

typedef struct {
    const bd_task *task;
    bd_trainer_options options;
    bd_contract *contract;
    bd_optimizer *optimizer;
    bd_arena *arena;
    bd_run *run; // NULL: nothing is written
    bd_run_state state;
    int64_t saved_step; // of the newest checkpoint; -1: none in this session
    double loss, rate, tokens_per_second;
} trainer;

// --- the contract --------------------------------------------------------------------------------

static void add_optimizer(bd_contract *c, const bd_optimizer_options *o)
{
    bd_contract_text(c, "optimizer", "adamw");
    bd_contract_number(c, "adam_b1", o->b1);
    bd_contract_number(c, "adam_b2", o->b2);
    bd_contract_number(c, "adam_eps", o->eps);
    bd_contract_number(c, "adam_eps_root", o->eps_root);
    bd_contract_number(c, "weight_decay", o->weight_decay);
    bd_contract_bool(c, "decay_matrices_only", o->decay_matrices_only);
    bd_contract_number(c, "clip", o->clip);
    bd_contract_text(c, "m_dtype", bd_dtype_name(o->m_dtype));
    bd_contract_text(c, "v_dtype", bd_dtype_name(o->v_dtype));
}

static void add_schedule(bd_contract *c, const bd_schedule *s)
{
    bd_contract_text(c, "schedule", bd_schedule_name(s->kind));
    bd_contract_number(c, "learning_rate", s->peak);
    bd_contract_number(c, "final_fraction", s->final_fraction);
    bd_contract_int(c, "warmup", s->warmup);
    bd_contract_int(c, "schedule_steps", s->total);
    bd_contract_bool(c, "schedule_endpoint", s->endpoint);
}

static void add_parameters(bd_contract *c, const bd_parameters *list)
{
    bd_sha256 *hash = bd_sha256_begin();
    for (int64_t i = 0; i < list->count; i++) {
        const bd_parameter *p = list->items[i];
        bd_sha256_add(hash, p->name, strlen(p->name) + 1);
        bd_sha256_add(hash, p->shape, (size_t)p->rank * sizeof *p->shape);
    }
    char text[BD_SHA256_TEXT];
    bd_sha256_end(hash, text);
    bd_contract_text(c, "trained_tensors", text);
}

bd_contract *bd_trainer_contract(const bd_task *task, const bd_trainer_options *options,
                                 bd_error *err)
{
    bd_contract *c = bd_contract_create();
    bd_contract_int(c, "contract_version", 1);
    bd_contract_text(c, "task", task->name);
    bd_contract_int(c, "steps", options->steps);
    bd_contract_int(c, "micro_batches", options->micro_batches);
    bd_contract_text(c, "compute", bd_dtype_name(options->compute));
    bd_contract_text(c, "random", "splitmix_v1");
    add_optimizer(c, &options->optimizer);
    add_schedule(c, &options->schedule);
    add_parameters(c, task->parameters);
    if (task->identity(task->self, c, err) && bd_contract_ready(c, err))
        return c;
    bd_contract_free(c);
    return NULL;
}

// --- logging -------------------------------------------------------------------------------------

/* Share of the updates whose weight was too little to train anything; in a line only if there were.
 */
static const char *const idle_name = "untrained_share";

static json_t *number_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

/* One metric as `prefix``name`; the loss also as perplexity where that means something. */
static void put_metric(const trainer *t, json_t *line, const char *prefix, const bd_metric *metric)
{
    char name[BD_METRIC_NAME + 16];
    double value = bd_metric_value(metric);
    snprintf(name, sizeof name, "%s%s", prefix, metric->name);
    json_object_set_new(line, name, number_or_null(value));
    if (t->task->perplexity && !strcmp(metric->name, "loss")) {
        snprintf(name, sizeof name, "%sperplexity", prefix);
        json_object_set_new(line, name, number_or_null(exp(value)));
    }
}

static json_t *make_line(trainer *t)
{
    bd_run_state *s = &t->state;
    const bd_metric *loss = bd_metrics_find(&s->window, "loss");
    t->tokens_per_second = s->window_seconds > 0 ? (double)s->window_tokens / s->window_seconds : 0;
    json_t *line = json_object();
    json_object_set_new(line, "step", json_integer(s->step));
    if (loss)
        put_metric(t, line, "", loss);
    json_object_set_new(line, "lr", json_real(t->rate));
    json_object_set_new(line, "weight", number_or_null(loss ? loss->value.denominator : 0));
    json_object_set_new(line, "tokens", json_integer(s->tokens));
    json_object_set_new(line, "tokens_per_second", json_real(t->tokens_per_second));
    json_object_set_new(line, "seconds", json_real(s->seconds));
    for (int i = 0; i < s->window.count; i++) {
        const bd_metric *metric = &s->window.items[i];
        bool no_news = !strcmp(metric->name, idle_name) && metric->value.sum == 0;
        if (metric != loss && !no_news)
            put_metric(t, line, "", metric);
    }
    return line;
}

/* Write what was gathered since the last line, and start anew. `evaluation` may be NULL. */
static bool log_window(trainer *t, const bd_metrics *evaluation, bd_error *err)
{
    json_t *line = make_line(t);
    for (int i = 0; evaluation && i < evaluation->count; i++)
        put_metric(t, line, "eval_", &evaluation->items[i]);
    t->state.window = (bd_metrics){0};
    t->state.window_tokens = 0;
    t->state.window_seconds = 0;
    if (t->run)
        return bd_run_log(t->run, line, err);
    json_decref(line);
    return true;
}

static void show_progress(const trainer *t)
{
    const bd_run_state *s = &t->state;
    double rate =
        s->window_seconds > 0 ? (double)s->window_tokens / s->window_seconds : t->tokens_per_second;
    bd_progress_update(t->options.progress, s->step, "loss %.4f  %.0f tokens/s", t->loss, rate);
}

// --- one step ------------------------------------------------------------------------------------

/* Save what made a step fail, for `bdlm probe`. What fails here does not hide the first error. */
static void save_bad_batch(trainer *t, const bd_update *update, bd_error *err)
{
    const bd_task *task = t->task;
    char name[64], folder[BD_PATH], message[sizeof err->message];
    if (!t->run || !task->save_batch)
        return;
    bd_error ignored = {0};
    snprintf(name, sizeof name, "bad-step-%lld", (long long)t->state.step);
    if (!bd_path_join(folder, t->options.run, name, &ignored))
        return;
    int64_t first = update->bad_micro >= 0 ? update->bad_micro : 0;
    int64_t end = update->bad_micro >= 0 ? first + 1 : t->options.micro_batches;
    bool ok = true;
    for (int64_t micro = first; ok && micro < end; micro++) {
        char part[32], path[BD_PATH];
        snprintf(part, sizeof part, "micro-%lld", (long long)micro);
        ok = bd_path_join(path, folder, part, &ignored) && bd_folder_make(path, &ignored) &&
             task->next(task->self, t->state.step, micro, &ignored) &&
             task->save_batch(task->self, path, &ignored);
    }
    snprintf(message, sizeof message, "%.700s; %s %.200s", err->message,
             ok ? "its batch is in" : "its batch could not be saved in", folder);
    memcpy(err->message, message, sizeof message);
}

static bool gather(trainer *t, const bd_update *update, double seconds, bd_error *err)
{
    bd_run_state *s = &t->state;
    bd_metric loss = bd_metric_weighted("loss", update->loss);
    bd_metric norm = bd_metric_scalar("grad_norm", update->gradient_norm);
    bd_metric idle = bd_metric_scalar(idle_name, bd_weighted_factor(update->loss) == 0);
    if (!bd_metrics_add(&s->window, &loss, err) || !bd_metrics_add(&s->window, &norm, err) ||
        !bd_metrics_add(&s->window, &idle, err))
        return false;
    for (int i = 0; i < update->metrics.count; i++)
        if (!bd_metrics_add(&s->window, &update->metrics.items[i], err))
            return false;
    s->step++;
    s->micro_batches += t->options.micro_batches;
    s->tokens += update->tokens;
    s->window_tokens += update->tokens;
    s->seconds += seconds;
    s->window_seconds += seconds;
    s->evaluation = NAN;
    t->loss = bd_weighted_value(update->loss);
    return true;
}

static bool make_step(trainer *t, bd_error *err)
{
    const bd_trainer_options *o = &t->options;
    double began = bd_seconds();
    bd_update update;
    t->rate = bd_schedule_rate(&o->schedule, t->state.step);
    if (!bd_update_run(t->task, t->optimizer, t->state.step, o->micro_batches, t->rate, o->compute,
                       t->arena, &update, err)) {
        if (update.bad_micro >= 0 || update.bad_gradient)
            save_bad_batch(t, &update, err);
        return false;
    }
    return gather(t, &update, bd_seconds() - began, err);
}

// --- now and then --------------------------------------------------------------------------------

static bool is_due(int64_t every, int64_t step)
{
    return every > 0 && step % every == 0;
}

static bool evaluate(trainer *t, bd_metrics *out, bd_error *err)
{
    bd_loss loss = {0};
    size_t mark = bd_arena_mark(t->arena);
    bd_tape tape = bd_tape_begin(t->arena, t->options.compute, false);
    static bd_profile_site site = {.name = "evaluation", .kind = BD_PROFILE_PHASE};
    bd_profile_begin(&site);
    bool ok = t->task->evaluate(t->task->self, &tape, &loss, err);
    bd_profile_end(&site, 0, 0);
    bd_arena_release(t->arena, mark);
    if (!ok)
        return bd_error_wrap(err, "evaluation after step %lld", (long long)t->state.step);
    bd_metric total = bd_metric_weighted("loss", loss.loss);
    *out = (bd_metrics){0};
    ok = bd_metrics_add(out, &total, err);
    for (int i = 0; ok && i < loss.metric_count; i++)
        ok = bd_metrics_add(out, &loss.metrics[i], err);
    t->state.evaluation = bd_weighted_value(loss.loss);
    return ok;
}

static bool save(trainer *t, bd_error *err)
{
    bd_run_state *s = &t->state;
    if (!t->run || t->saved_step == s->step)
        return true;
    if (isfinite(s->evaluation) && !(s->evaluation >= s->best)) { // also where there is no best yet
        s->best = s->evaluation;
        s->best_step = s->step;
    }
    static bd_profile_site site = {.name = "checkpoint", .kind = BD_PROFILE_PHASE};
    bd_profile_begin(&site);
    bool ok = bd_run_sync(t->run, err) && bd_checkpoint_write(t->options.run, t->task, t->optimizer,
                                                              t->contract, s, t->options.keep, err);
    bd_profile_end(&site, 0, 0);
    if (ok)
        t->saved_step = s->step;
    return ok;
}

static bool after_step(trainer *t, bd_error *err)
{
    const bd_trainer_options *o = &t->options;
    int64_t step = t->state.step;
    bool last = step == o->steps;
    bool saves = t->run && (last || is_due(o->checkpoint_every, step));
    bool evaluates = t->task->evaluate && (last || saves || is_due(o->evaluate_every, step));
    bd_metrics evaluation;
    show_progress(t);
    if (evaluates && !evaluate(t, &evaluation, err))
        return false;
    if ((last || evaluates || is_due(o->log_every, step)) &&
        !log_window(t, evaluates ? &evaluation : NULL, err))
        return false;
    return !saves || save(t, err);
}

// --- the run -------------------------------------------------------------------------------------

static bool check_options(const bd_trainer_options *o, bd_error *err)
{
    if (o->steps < 1)
        return bd_fail(err, "steps: %lld, at least 1 expected", (long long)o->steps);
    if (o->micro_batches < 1)
        return bd_fail(err, "micro_batches: %lld, at least 1 expected",
                       (long long)o->micro_batches);
    if (o->compute != BD_F32 && o->compute != BD_BF16)
        return bd_fail_as(err, BD_ERROR_TYPE, "compute: %s, F32 or BF16 expected",
                          bd_dtype_name(o->compute));
    return bd_schedule_check(&o->schedule, err);
}

/* `latest` must not lead to a checkpoint that this session will replace. */
static bool link_resumed(trainer *t, bd_error *err)
{
    char name[64], path[BD_PATH];
    snprintf(name, sizeof name, "checkpoint-%lld", (long long)t->state.step);
    if (!bd_path_join(path, t->options.run, name, err))
        return false;
    char *own = realpath(path, NULL), *resumed = realpath(t->options.resume, NULL);
    bool inside = own && resumed && !strcmp(own, resumed);
    free(own);
    free(resumed);
    if (!inside)
        return true;
    t->saved_step = t->state.step;
    char best[64];
    snprintf(best, sizeof best, "checkpoint-%lld", (long long)t->state.best_step);
    bool has_best = t->state.best_step >= 0 && bd_path_join(path, t->options.run, best, err) &&
                    bd_folder_exists(path);
    return bd_checkpoint_link(t->options.run, "latest", name, err) &&
           bd_checkpoint_link(t->options.run, "best", has_best ? best : NULL, err);
}

static bool check_resumed(const trainer *t, bd_error *err)
{
    const bd_replay replay = {.micro_batches = t->state.micro_batches,
                              .updates = t->state.step,
                              .most_updates = t->options.steps,
                              .accumulation = t->options.micro_batches,
                              .skipped = -1, // the tasks know how much data they have
                              .remaining = -1};
    bd_replay_span span;
    return bd_replay_plan(&replay, &span, err) || bd_error_wrap(err, "cannot resume");
}

static bool prepare(trainer *t, bd_error *err)
{
    const bd_trainer_options *o = &t->options;
    if (!check_options(o, err) || !(t->contract = bd_trainer_contract(t->task, o, err)) ||
        !(t->arena = bd_arena_create(0, err)) ||
        !(t->optimizer = bd_optimizer_create(t->task->parameters, &o->optimizer, err)))
        return false;
    if (o->run && !(t->run = bd_run_open(o->run, o->resume || o->again, err)))
        return false;
    if (t->run && !o->resume && !bd_run_same(t->run, t->contract, err))
        return bd_error_wrap(err, "cannot begin again");
    if (o->resume &&
        !bd_checkpoint_read(o->resume, t->task, t->optimizer, t->contract, &t->state, err))
        return bd_error_wrap(err, "cannot resume");
    if (!check_resumed(t, err))
        return false;
    bd_progress_resume(o->progress, t->state.step);
    if (!t->run)
        return true;
    bd_run_about about = {.recipe = o->recipe, .command = o->command, .contract = t->contract};
    return (!o->resume || link_resumed(t, err)) && bd_run_cut(t->run, t->state.step, err) &&
           bd_run_describe(t->run, &about, t->state.step, err);
}

static bool loop(trainer *t, bool *stopped, bd_error *err)
{
    const bd_trainer_options *o = &t->options;
    while (t->state.step < o->steps) {
        if (o->stop && *o->stop) {
            *stopped = true;
            return t->state.step == 0 || save(t, err);
        }
        if (make_step(t, err) && after_step(t, err))
            continue;
        // A batch that was waited for in vain leaves the last whole update as it was.
        if (err->kind != BD_ERROR_STOPPED || !o->stop || !*o->stop)
            return false;
        *err = (bd_error){0};
    }
    return true;
}

bool bd_train(const bd_task *task, const bd_trainer_options *options, bd_train_result *result,
              bd_error *err)
{
    trainer t = {.task = task,
                 .options = *options,
                 .state = bd_run_state_begin(),
                 .saved_step = -1,
                 .loss = NAN};
    if (t.options.schedule.total == 0)
        t.options.schedule.total = t.options.steps;
    bool stopped = false;
    bool ok = prepare(&t, err) && loop(&t, &stopped, err);
    if (result)
        *result = (bd_train_result){.step = t.state.step,
                                    .stopped = stopped,
                                    .loss = t.loss,
                                    .evaluation = t.state.evaluation,
                                    .tokens = t.state.tokens,
                                    .seconds = t.state.seconds,
                                    .arena_peak = t.arena ? bd_arena_peak(t.arena) : 0};
    bd_run_close(t.run);
    bd_optimizer_free(t.optimizer);
    bd_arena_destroy(t.arena);
    bd_contract_free(t.contract);
    return ok;
}
