/* bdlm distill - a block-diffusion student learns from a causal teacher, on its own answers or on
 * given ones. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/command.h"
#include "cli/conversation_data.h"
#include "cli/objective.h"
#include "cli/options.h"
#include "cli/recipe_options.h"
#include "cli/training.h"
#include "distill/distill_task.h"

enum { MOST_STOPS = 64 };

typedef struct {
    bd_tokenizer *tokenizer;
    bd_objective_choice objective;
    bd_conversation_data data;
    bd_token_documents documents, evaluation;
    bd_distiller distiller;
    int32_t stop[MOST_STOPS];
    bd_task task;
    char start[128], teacher_hash[128];
} distillation;

// --- what a recipe may ask for -------------------------------------------------------------------

static bool is_default(const bd_recipe *recipe, const char *name)
{
    return !strcmp(bd_recipe_origin(recipe, name), "default");
}

static bool preset(bd_recipe *recipe, const char *name, const char *value, bd_error *err)
{
    return !is_default(recipe, name) || bd_recipe_assign(recipe, name, value, "bdlm distill", err);
}

/* Distilling has one objective and trains on answers; who says otherwise is told so below. */
static bool set_defaults(bd_recipe *recipe, bd_error *err)
{
    return preset(recipe, "objective.kind", "block_diffusion", err) &&
           preset(recipe, "data.completion_only", "true", err) &&
           preset(recipe, "data.last_answer", "true", err) &&
           preset(recipe, "data.packing", "false", err);
}

/* The student's own answers are another data set at every step: nothing changes while they are
 * learnt, and nothing is looked at besides (I-27). */
static bool check_source(const bd_recipe *recipe, bd_error *err)
{
    static const char *const schedules[][2] = {
        {"distill.alpha_schedule", "distill.alpha_end"},
        {"distill.temperature_schedule", "distill.temperature_end"}};
    bool own = bd_recipe_is(recipe, "distill.data_source", "student_rollout");
    for (int i = 0; i < 2; i++) {
        const char *kind = bd_recipe_word(recipe, schedules[i][0]);
        bool constant = !strcmp(kind, "constant"), end = bd_recipe_has(recipe, schedules[i][1]);
        if (own && (!constant || end))
            return bd_fail(err,
                           "%s: not with distill.data_source student_rollout, whose loss does not "
                           "change during a run",
                           schedules[i][constant ? 1 : 0]);
        if (constant == end)
            return bd_fail(err, "%s: %s, which goes %s %s", schedules[i][0], kind,
                           constant ? "without" : "only with", schedules[i][1]);
    }
    if (own && bd_recipe_int(recipe, "train.eval_every") > 0)
        return bd_fail(err,
                       "train.eval_every: %lld, 0 wanted with distill.data_source student_rollout; "
                       "bdlm eval measures a checkpoint",
                       (long long)bd_recipe_int(recipe, "train.eval_every"));
    if (own && bd_recipe_has(recipe, "data.eval_files"))
        return bd_fail(err,
                       "data.eval_files: not with distill.data_source student_rollout; bdlm eval "
                       "measures a checkpoint");
    return true;
}

static bool check_recipe(const bd_recipe *recipe, bd_error *err)
{
    if (!bd_recipe_is(recipe, "objective.kind", "block_diffusion"))
        return bd_fail(
            err, "objective.kind: causal_lm, block_diffusion wanted for the student of distill");
    if (!bd_recipe_bool(recipe, "data.completion_only"))
        return bd_fail(err, "data.completion_only: false, true wanted with distill.data_source");
    if (!bd_recipe_bool(recipe, "data.last_answer"))
        return bd_fail(
            err, "data.last_answer: false, true wanted: distill trains on the final answer only");
    if (bd_recipe_bool(recipe, "data.packing"))
        return bd_fail(
            err,
            "data.packing: true, false wanted to distill: a row has one prompt and one answer");
    if (!bd_recipe_is(recipe, "objective.train_layout", "single"))
        return bd_fail(err, "objective.train_layout: doubled, single wanted to distill");
    if (!bd_recipe_is(recipe, "objective.noise_weighting", "uniform"))
        return bd_fail(err, "objective.noise_weighting: inverse, uniform wanted to distill");
    if (bd_recipe_number(recipe, "objective.z_loss_multiplier") > 0)
        return bd_fail(err,
                       "objective.z_loss_multiplier: not part of the distillation loss, 0 wanted");
    if (!check_source(recipe, err))
        return false;
    if (bd_recipe_has(recipe, "data.train_files") && !bd_recipe_has_conversations(recipe))
        return bd_fail(err, "data.train_files: text, conversations (.jsonl) wanted to distill");
    return bd_recipe_require(recipe, "distill.teacher", "to distill", err);
}

// --- student, teacher, stop tokens ---------------------------------------------------------------

static bool open_student(distillation *d, const bd_recipe *recipe, const char *folder,
                         bd_error *err)
{
    int64_t old_tokens = bd_tokenizer_size(d->tokenizer);
    bd_model *m = d->distiller.student =
        bd_model_open(folder, bd_recipe_dtype(recipe, "train.dtype"), err);
    return m && bd_model_fingerprint(m, d->start, err) &&
           bd_objective_resolve(recipe, "distill", d->tokenizer, &m->config, &d->objective, err) &&
           bd_objective_fit(&d->objective, "distill", old_tokens, m, err);
}

/* Ids are not remapped: every token of one tokenizer must be spelled the same in the other. */
static bool compare_tokenizers(const distillation *d, const char *folder, bd_error *err)
{
    char path[BD_PATH];
    if (!bd_path_join(path, folder, "tokenizer.json", err))
        return false;
    if (!bd_file_exists(path)) {
        fprintf(
            stderr,
            "distill: the teacher has no tokenizer of its own; it is taken to be the student's\n");
        return true;
    }
    bd_tokenizer *other = bd_tokenizer_open(folder, err);
    bool ok = other != NULL;
    for (int32_t id = 0; ok && id < d->distiller.teacher->config.vocabulary; id++) {
        size_t a_size = 0, b_size = 0;
        const char *a = id < bd_tokenizer_size(d->tokenizer)
                            ? bd_tokenizer_token(d->tokenizer, id, &a_size)
                            : NULL;
        const char *b =
            id < bd_tokenizer_size(other) ? bd_tokenizer_token(other, id, &b_size) : NULL;
        bool same = (!a && !b) || (a && b && a_size == b_size && !memcmp(a, b, a_size));
        // The mask token may be the student's alone: the teacher never reads it.
        if (!same && id != d->objective.canvas.mask_id)
            ok = bd_fail(err,
                         "distill.teacher: token %d is \"%s\", the student's \"%s\" wanted: ids "
                         "are not remapped",
                         id, b ? b : "", a ? a : "");
    }
    bd_tokenizer_close(other);
    return ok;
}

static bool open_teacher(distillation *d, const bd_recipe *recipe, bd_error *err)
{
    const char *folder = bd_recipe_text(recipe, "distill.teacher");
    bd_model *m = d->distiller.teacher =
        bd_model_open(folder, bd_recipe_dtype(recipe, "train.dtype"), err);
    return m && bd_model_fingerprint(m, d->teacher_hash, err) && compare_tokenizers(d, folder, err);
}

static bool choose_stops(distillation *d, const bd_recipe *recipe, bd_error *err)
{
    int64_t count;
    const int64_t *ids = bd_recipe_ints(recipe, "rollout.stop_token_ids", &count);
    if (count > MOST_STOPS)
        return bd_fail(err, "rollout.stop_token_ids: %lld of them, at most %d wanted",
                       (long long)count, MOST_STOPS);
    for (int64_t i = 0; i < count; i++)
        d->stop[d->distiller.stop_count++] = (int32_t)ids[i];
    int32_t end = bd_tokenizer_role(d->tokenizer, BD_ROLE_EOS);
    if (count == 0 && end < 0)
        return bd_fail(err, "rollout.stop_token_ids: [], and the tokenizer names no end token");
    if (count == 0)
        d->stop[d->distiller.stop_count++] = end;
    d->distiller.stop = d->stop;
    return true;
}

static bool set_losses(distillation *d, const bd_recipe *recipe, bd_error *err)
{
    bd_distill_objective *o = &d->distiller.objective;
    *o = bd_distill_objective_default();
    o->temperature = bd_recipe_number(recipe, "distill.temperature");
    o->soft = bd_recipe_number(recipe, "distill.alpha");
    o->hard = 1 - o->soft;
    o->top_k = bd_recipe_int(recipe, "distill.opd_teacher_topk");
    bd_rollout_options *r = &d->distiller.rollout;
    *r = bd_rollout_default(d->objective.canvas);
    r->commit.threshold = (float)bd_recipe_number(recipe, "rollout.threshold");
    r->temperature = (float)bd_recipe_number(recipe, "rollout.temperature");
    r->max_steps = bd_recipe_int(recipe, "rollout.max_denoise_steps");
    fprintf(stderr, "distill: %g x %s at temperature %g + %g x cross entropy on %s tokens\n",
            o->soft, bd_recipe_word(recipe, "distill.opd_loss"), o->temperature, o->hard,
            bd_recipe_is(recipe, "distill.data_source", "student_rollout") ? "the student's own"
                                                                           : "the data's");
    return bd_divergence_from_name(bd_recipe_word(recipe, "distill.opd_loss"), &o->divergence, err);
}

static bool read_path(const bd_recipe *recipe, const char *what, bd_distill_path *path,
                      bd_error *err)
{
    char schedule[64], end[64];
    snprintf(schedule, sizeof schedule, "distill.%s_schedule", what);
    snprintf(end, sizeof end, "distill.%s_end", what);
    if (bd_recipe_has(recipe, end))
        path->end = bd_recipe_number(recipe, end);
    return bd_schedule_from_name(bd_recipe_word(recipe, schedule), &path->kind, err);
}

static bool make_task(distillation *d, const bd_recipe *recipe, const char *companions,
                      bd_error *err)
{
    d->documents = bd_conversation_documents(&d->data.train);
    // Rows, corruption and batches are those of fine-tuning.
    bd_document_task_options shared = bd_document_task_default(d->distiller.student, &d->documents);
    if (!bd_objective_options(recipe, &d->objective, d->tokenizer, &shared, err))
        return false;
    bd_distill_task_options options = bd_distill_task_default(&d->distiller, &d->documents);
    options.on_policy = bd_recipe_is(recipe, "distill.data_source", "student_rollout");
    if (!read_path(recipe, "alpha", &options.soft, err) ||
        !read_path(recipe, "temperature", &options.temperature, err))
        return false;
    d->evaluation = bd_conversation_documents(&d->data.evaluation);
    if (d->evaluation.count > 0)
        options.evaluation = &d->evaluation;
    options.rows = shared.rows;
    options.rows.cut = false;
    options.min_noise = shared.min_noise;
    options.batch_rows = shared.batch_rows;
    options.micro_batches = shared.micro_batches;
    options.steps = bd_recipe_int(recipe, "train.max_steps");
    options.seed = shared.seed;
    options.teacher_hash = d->teacher_hash;
    options.tokenizer_hash = bd_tokenizer_identity(d->tokenizer);
    options.output = (bd_model_output){.save_dtype = BD_F32,
                                       .start = d->start,
                                       .companions = companions,
                                       .tokenizer = d->tokenizer};
    return bd_distill_task_create(&options, &d->task, err);
}

static bool prepare(distillation *d, bd_recipe *recipe, bd_error *err)
{
    const char *folder = bd_recipe_text(recipe, "model.path"),
               *words = bd_recipe_text(recipe, "model.tokenizer");
    if (!folder)
        return bd_fail_as(err, BD_ERROR_USAGE, "--path MODEL is required: the student");
    if (!words)
        words = folder;
    return set_defaults(recipe, err) && check_recipe(recipe, err) &&
           (d->tokenizer = bd_tokenizer_open(words, err)) && open_student(d, recipe, folder, err) &&
           open_teacher(d, recipe, err) && choose_stops(d, recipe, err) &&
           set_losses(d, recipe, err) && bd_distiller_check(&d->distiller, err) &&
           bd_conversation_data_read(recipe, "distill", d->tokenizer,
                                     d->objective.canvas.block_size, &d->data, err) &&
           bd_model_train(d->distiller.student, err) && make_task(d, recipe, words, err);
}

int bd_command_distill(int argc, char **argv)
{
    bd_run_arguments run = {.argc = argc, .argv = argv};
    bd_recipe_arguments recipe = {.sections = {"distill", "train", "data", "model", "objective",
                                               "rollout", "log", "parallel"}};
    bd_option list[BD_RUN_OPTIONS];
    int count = bd_run_options(&run, list);
    const bd_options options = {
        .command = "distill",
        .usage = "--recipe opd.yaml --path STUDENT --teacher TEACHER --train-files "
                 "CONVERSATIONS.jsonl --out RUN [options]",
        .summary = "Trains a block-diffusion student on the scores of a causal teacher: with "
                   "--data-source student_rollout of answers the student writes itself, with "
                   "dataset of those in the data. RUN/latest is a model folder.",
        .list = list,
        .count = count,
        .other = bd_recipe_arguments_take,
        .self = &recipe,
        .more_help = bd_recipe_arguments_help};
    bd_error err = {0};
    bd_trainer_options trainer;
    distillation d = {0};
    int status = 1;
    if (!bd_recipe_arguments_begin(&recipe, argc, argv, &err) ||
        !bd_options_parse(&options, argc, argv, &err) ||
        !bd_training_options(recipe.recipe, &run, &trainer, &err) ||
        !prepare(&d, recipe.recipe, &err))
        status = bd_run_error("distill", &err);
    else
        status = bd_training_run("distill", &d.task, &trainer, recipe.recipe, &run);
    if (d.task.self)
        bd_distill_task_free(&d.task);
    bd_conversation_data_free(&d.data);
    bd_model_close(d.distiller.student);
    bd_model_close(d.distiller.teacher);
    bd_tokenizer_close(d.tokenizer);
    bd_recipe_free(recipe.recipe);
    return status;
}
