/* bdlm pretrain - a language model from text, by predicting the next token or by denoising blocks.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/command.h"
#include "cli/new_model.h"
#include "cli/objective.h"
#include "cli/options.h"
#include "cli/recipe_options.h"
#include "cli/training.h"
#include "train/pretrain_task.h"

typedef struct {
    bd_tokenizer *tokenizer;
    bd_model *model;
    bd_corpus corpus;
    bd_objective_choice objective;
    bd_token_documents documents; // block diffusion: the corpus, cut where its documents end
    int64_t *ends;
    bd_task task;
    char start[128]; // what the weights were before training
} pretraining;

static bool open_model(pretraining *p, const bd_recipe *recipe, bd_error *err)
{
    bd_dtype compute = bd_recipe_dtype(recipe, "train.dtype");
    const char *folder = bd_recipe_text(recipe, "model.path");
    int64_t old_tokens = folder ? bd_tokenizer_size(p->tokenizer) : 0;
    if (folder) {
        if (!(p->model = bd_model_open(folder, compute, err)) ||
            !bd_model_fingerprint(p->model, p->start, err))
            return false;
    }
    if (!bd_objective_resolve(recipe, "pretrain", p->tokenizer, p->model ? &p->model->config : NULL,
                              &p->objective, err))
        return false;
    if (!folder) {
        snprintf(p->start, sizeof p->start, "new, seed %lld",
                 (long long)bd_recipe_int(recipe, "train.seed"));
        p->model = bd_new_model(recipe, p->tokenizer, compute, err);
    }
    return p->model && bd_objective_fit(&p->objective, "pretrain", old_tokens, p->model, err) &&
           bd_model_train(p->model, err);
}

static void tell_model(const pretraining *p, int64_t rows, int64_t held, int64_t length)
{
    fprintf(
        stderr,
        "model: %.2f million parameters, %lld layers; %lld rows of %lld tokens, %lld held out\n",
        (double)bd_model_parameter_count(p->model) / 1e6, (long long)p->model->config.layers,
        (long long)rows, (long long)length, (long long)held);
}

static bool causal_task(pretraining *p, const bd_recipe *recipe, const char *companions,
                        bd_error *err)
{
    bd_pretrain_options options = {
        .model = p->model,
        .tokens = p->corpus.tokens,
        .token_count = p->corpus.count,
        .sequence_length = bd_recipe_int(recipe, "data.sequence_length"),
        .batch_rows = bd_recipe_int(recipe, "train.batch_size"),
        .micro_batches = bd_recipe_int(recipe, "train.grad_accum"),
        .seed = (uint64_t)bd_recipe_int(recipe, "train.seed"),
        .z_loss = (float)bd_recipe_number(recipe, "objective.z_loss_multiplier"),
        .save_dtype = BD_F32,
        .start = p->start,
        .companions = companions};
    options.evaluation_rows = bd_training_held_out(recipe, bd_pretrain_rows(&options), 256);
    tell_model(p, bd_pretrain_rows(&options), options.evaluation_rows, options.sequence_length);
    return bd_pretrain_task_create(&options, &p->task, err);
}

static bool block_task(pretraining *p, const bd_recipe *recipe, const char *companions,
                       bd_error *err)
{
    int32_t end = bd_tokenizer_role(p->tokenizer, BD_ROLE_EOS);
    p->documents.tokens = p->corpus.tokens;
    p->documents.ends = p->ends =
        bd_document_ends(p->corpus.tokens, p->corpus.count, end, &p->documents.count, err);
    if (!p->ends)
        return false;
    bd_document_task_options options = bd_document_task_default(p->model, &p->documents);
    options.output = (bd_model_output){.save_dtype = BD_F32,
                                       .start = p->start,
                                       .companions = companions,
                                       .tokenizer = p->tokenizer};
    if (!bd_objective_options(recipe, &p->objective, p->tokenizer, &options, err))
        return false;
    if (options.completion_only)
        return bd_fail(err, "data.completion_only: text has no answers, it is for bdlm sft");
    int64_t rows = p->corpus.count / options.rows.length;
    options.evaluation_rows = bd_training_held_out(recipe, rows, 256);
    if (!bd_document_task_create(&options, &p->task, err))
        return false;
    tell_model(p, bd_document_task_rows(&p->task), options.evaluation_rows, options.rows.length);
    return true;
}

static bool prepare(pretraining *p, const bd_recipe *recipe, const char *companions, bd_error *err)
{
    if (!open_model(p, recipe, err) || !bd_training_corpus(recipe, p->tokenizer, &p->corpus, err))
        return false;
    return p->objective.canvas.block_size > 0 ? block_task(p, recipe, companions, err)
                                              : causal_task(p, recipe, companions, err);
}

/* The folder with the tokenizer's files: what model.tokenizer names, or the model's own. */
static const char *tokenizer_folder(const bd_recipe *recipe, bd_error *err)
{
    const char *folder = bd_recipe_text(recipe, "model.tokenizer");
    if (!folder)
        folder = bd_recipe_text(recipe, "model.path");
    if (!folder)
        bd_fail_as(err, BD_ERROR_USAGE, "--tokenizer FOLDER (or --path MODEL) is required");
    return folder;
}

int bd_command_pretrain(int argc, char **argv)
{
    bd_run_arguments run = {.argc = argc, .argv = argv};
    bd_recipe_arguments recipe = {
        .sections = {"train", "data", "model", "objective", "log", "parallel"}};
    bd_option list[BD_RUN_OPTIONS];
    int count = bd_run_options(&run, list);
    const bd_options options = {
        .command = "pretrain",
        .usage = "--train-files FILE --tokenizer FOLDER --out RUN [options]",
        .summary = "Trains a language model on text, from random weights or, with --path, "
                   "from a model folder: --kind causal_lm predicts the next token, --kind "
                   "block_diffusion fills masked tokens in. RUN/latest is a model folder.",
        .list = list,
        .count = count,
        .other = bd_recipe_arguments_take,
        .self = &recipe,
        .more_help = bd_recipe_arguments_help};
    bd_error err = {0};
    bd_trainer_options trainer;
    pretraining p = {0};
    int status = 1;
    const char *folder = NULL;
    if (!bd_recipe_arguments_begin(&recipe, argc, argv, &err) ||
        !bd_options_parse(&options, argc, argv, &err) ||
        !bd_training_options(recipe.recipe, &run, &trainer, &err) ||
        !(folder = tokenizer_folder(recipe.recipe, &err)) ||
        !(p.tokenizer = bd_tokenizer_open(folder, &err)) ||
        !prepare(&p, recipe.recipe, folder, &err))
        status = bd_run_error("pretrain", &err);
    else
        status = bd_training_run("pretrain", &p.task, &trainer, recipe.recipe, &run);
    if (p.objective.canvas.block_size > 0)
        bd_document_task_free(&p.task);
    else
        bd_pretrain_task_free(&p.task);
    free(p.ends);
    bd_corpus_free(&p.corpus);
    bd_model_close(p.model);
    bd_tokenizer_close(p.tokenizer);
    bd_recipe_free(recipe.recipe);
    return status;
}
