#include "cli/training.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/threads.h"
#include "cli/command.h"

int bd_run_options(bd_run_arguments *run, bd_option *list)
{
    list[0] =
        (bd_option){"out", "o", BD_ARGUMENT_TEXT, "RUN", "the run folder", &run->run, 0, 0, false};
    list[1] = (bd_option){"resume",
                          NULL,
                          BD_ARGUMENT_FLAG,
                          NULL,
                          "go on from the newest checkpoint in RUN",
                          &run->resume,
                          0,
                          0,
                          false};
    return 2 + bd_profile_options(&run->profile, list + 2);
}

bd_dtype bd_recipe_dtype(const bd_recipe *recipe, const char *name)
{
    return bd_compute_from_name(bd_recipe_word(recipe, name));
}

void bd_recipe_threads(const bd_recipe *recipe)
{
    if (bd_recipe_int(recipe, "parallel.threads") > 0)
        bd_threads_set((int)bd_recipe_int(recipe, "parallel.threads"));
}

bd_dtype bd_recipe_states_dtype(const bd_recipe *recipe)
{
    const char *name = bd_recipe_word(recipe, "data.states_dtype");
    return !name                   ? BD_F32
           : !strcmp(name, "fp64") ? BD_F64
           : !strcmp(name, "bf16") ? BD_BF16
                                   : BD_F32;
}

static int64_t warmup_steps(const bd_recipe *recipe, int64_t steps)
{
    int64_t warmup =
        bd_recipe_has(recipe, "train.warmup_steps")
            ? bd_recipe_int(recipe, "train.warmup_steps")
            : (int64_t)ceil((double)steps * bd_recipe_number(recipe, "train.warmup_ratio"));
    return warmup < steps ? warmup : steps;
}

bool bd_training_options(const bd_recipe *recipe, const bd_run_arguments *run,
                         bd_trainer_options *options, bd_error *err)
{
    *options = bd_trainer_default();
    options->steps = bd_recipe_int(recipe, "train.max_steps");
    options->micro_batches = bd_recipe_int(recipe, "train.grad_accum");
    options->compute = bd_recipe_dtype(recipe, "train.dtype");
    options->schedule =
        (bd_schedule){.peak = bd_recipe_number(recipe, "train.lr"),
                      .final_fraction = bd_recipe_number(recipe, "train.final_lr_fraction"),
                      .warmup = warmup_steps(recipe, options->steps),
                      .total = options->steps};
    if (!bd_schedule_from_name(bd_recipe_word(recipe, "train.schedule"), &options->schedule.kind,
                               err))
        return false;
    options->optimizer.b1 = bd_recipe_number(recipe, "train.adam_b1");
    options->optimizer.b2 = bd_recipe_number(recipe, "train.adam_b2");
    options->optimizer.eps = bd_recipe_number(recipe, "train.adam_eps");
    options->optimizer.weight_decay = bd_recipe_number(recipe, "train.weight_decay");
    options->optimizer.clip = bd_recipe_number(recipe, "train.clip");
    options->optimizer.m_dtype = bd_recipe_dtype(recipe, "train.mu_dtype");
    options->optimizer.v_dtype = bd_recipe_dtype(recipe, "train.nu_dtype");
    options->log_every = bd_recipe_int(recipe, "log.every");
    options->evaluate_every = bd_recipe_int(recipe, "train.eval_every");
    options->checkpoint_every = bd_recipe_int(recipe, "train.save_every");
    if (options->evaluate_every == 0)
        options->evaluate_every = options->steps; // at the end only
    options->run = run->run ? run->run : bd_recipe_text(recipe, "log.folder");
    if (!options->run)
        return bd_fail_as(err, BD_ERROR_USAGE, "--out FOLDER is required: where the run goes");
    bd_recipe_threads(recipe);
    options->stop = &bd_stop_requested;
    return true;
}

bool bd_training_resumed(const bd_run_arguments *run, bd_trainer_options *options,
                         char path[BD_PATH], const char **resumed, bd_error *err)
{
    *resumed = run->resume ? path : NULL;
    if (!run->resume)
        return true;
    if (!bd_path_join(path, options->run, "latest", err))
        return false;
    if (bd_folder_exists(path))
        return true;
    // Killed before its first checkpoint: from the beginning, to the same weights.
    *resumed = NULL;
    options->again = true;
    return bd_folder_exists(options->run) ||
           bd_fail(err, "--resume: %s: no such run", options->run);
}

bool bd_training_run_to(const char *name, const bd_task *task, bd_trainer_options *options,
                        const bd_recipe *recipe, const bd_run_arguments *run,
                        bd_train_result *result, bd_error *err)
{
    char latest[BD_PATH];
    enum { MOST_WORDS = 256 };
    const char *words[MOST_WORDS + 1] = {0};
    for (int i = 0; i < run->argc && i < MOST_WORDS; i++)
        words[i] = run->argv[i];
    if (!bd_training_resumed(run, options, latest, &options->resume, err))
        return false;
    options->recipe = bd_recipe_to_json(recipe);
    options->command = words;
    options->progress = bd_progress_begin(name, options->steps);
    bd_catch_signals();
    bool ok = bd_profile_chosen_start(&run->profile, err) && bd_train(task, options, result, err);
    bd_profile_stop();
    bd_progress_end(options->progress);
    json_decref(options->recipe);
    if (!ok)
        return false;
    fprintf(stderr, "%s: %s at step %lld, loss %.4f", name, result->stopped ? "stopped" : "done",
            (long long)result->step, result->loss);
    if (isfinite(result->evaluation))
        fprintf(stderr, ", held out %.4f", result->evaluation);
    fprintf(stderr, ", %.0f tokens/s, %.0f s; %s/latest%s\n",
            (double)result->tokens / fmax(result->seconds, 1e-9), result->seconds, options->run,
            result->stopped ? " (go on with --resume)" : "");
    return bd_profile_chosen_report(&run->profile, err);
}

int bd_training_run(const char *command, const bd_task *task, bd_trainer_options *options,
                    const bd_recipe *recipe, const bd_run_arguments *run)
{
    bd_error err = {0};
    bd_train_result result;
    return bd_training_run_to(command, task, options, recipe, run, &result, &err)
               ? 0
               : bd_run_error(command, &err);
}

bool bd_training_corpus(const bd_recipe *recipe, const bd_tokenizer *tokenizer, bd_corpus *out,
                        bd_error *err)
{
    int64_t count;
    if (!bd_recipe_require(recipe, "data.train_files", "to train", err))
        return false;
    const char *const *files = bd_recipe_texts(recipe, "data.train_files", &count);
    int64_t size = bd_corpus_size(files, count, err);
    if (size < 0)
        return false;
    bd_document_options options = {.entries = bd_recipe_is(recipe, "data.documents", "entries"),
                                   .replace = bd_recipe_is(recipe, "data.invalid_utf8", "replace")};
    bd_progress *progress = bd_progress_begin("encode", size);
    bool ok = bd_corpus_read(tokenizer, files, count, options, progress, out, err);
    bd_progress_end(progress);
    if (ok)
        fprintf(stderr, "data: %lld documents, %.2f MB, %.3f million tokens%s\n",
                (long long)out->documents, (double)out->bytes / 1e6, (double)out->count / 1e6,
                out->repaired ? " (text that was not UTF-8 was replaced)" : "");
    return ok;
}

int64_t bd_training_held_out(const bd_recipe *recipe, int64_t rows, int64_t most)
{
    int64_t held = (int64_t)((double)rows * bd_recipe_number(recipe, "data.held_out_fraction"));
    return held < most ? held : most;
}
