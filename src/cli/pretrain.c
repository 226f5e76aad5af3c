/* bdlm pretrain - a causal language model from text. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/command.h"
#include "cli/new_model.h"
#include "cli/options.h"
#include "cli/recipe_options.h"
#include "cli/training.h"
#include "train/pretrain_task.h"

typedef struct {
    bd_tokenizer *tokenizer;
    bd_model *model;
    bd_corpus corpus;
    bd_task task;
    char start[128]; // what the weights were before training
} pretraining;

static bool open_model(pretraining *p, const bd_recipe *recipe, bd_error *err)
{
    bd_dtype compute = bd_recipe_dtype(recipe, "train.dtype");
    const char *folder = bd_recipe_text(recipe, "model.path");
    if (!folder) {
        snprintf(p->start, sizeof p->start, "new, seed %lld", (long long)bd_recipe_int(recipe, "train.seed"));
        p->model = bd_new_model(recipe, p->tokenizer, compute, err);
    } else if ((p->model = bd_model_open(folder, compute, err))) {
        if (!bd_model_fingerprint(p->model, p->start, err))
            return false;
    }
    return p->model && bd_model_train(p->model, err);
}

static bool prepare(pretraining *p, const bd_recipe *recipe, const char *companions, bd_error *err)
{
    if (!bd_training_corpus(recipe, p->tokenizer, &p->corpus, err) || !open_model(p, recipe, err))
        return false;
    bd_pretrain_options options = {.model = p->model,
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
    fprintf(stderr, "model: %.2f million parameters, %lld layers; %lld rows of %lld tokens, %lld held out\n",
            (double)bd_model_parameter_count(p->model) / 1e6, (long long)p->model->config.layers,
            (long long)bd_pretrain_rows(&options), (long long)options.sequence_length,
            (long long)options.evaluation_rows);
    return bd_pretrain_task_create(&options, &p->task, err);
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
    bd_recipe_arguments recipe = {.sections = {"train", "data", "model", "objective", "log", "parallel"}};
    const bd_option list[] = {
        {"out", "o", BD_ARGUMENT_TEXT, "RUN", "the run folder", &run.run, 0, 0, false},
        {"resume", NULL, BD_ARGUMENT_FLAG, NULL, "go on from the newest checkpoint in RUN", &run.resume, 0, 0, false},
    };
    const bd_options options = {.command = "pretrain",
                                .usage = "--train-files FILE --tokenizer FOLDER --out RUN [options]",
                                .summary = "Trains a causal language model on text, from random weights or, with "
                                           "--path, from a model folder. RUN/latest is a model folder.",
                                .list = list,
                                .count = 2,
                                .other = bd_recipe_arguments_take,
                                .self = &recipe,
                                .more_help = bd_recipe_arguments_help};
    bd_error err = {0};
    bd_trainer_options trainer;
    pretraining p = {0};
    int status = 1;
    const char *folder = NULL;
    if (!bd_recipe_arguments_begin(&recipe, argc, argv, &err) || !bd_options_parse(&options, argc, argv, &err) ||
        !bd_training_options(recipe.recipe, &run, &trainer, &err) || !(folder = tokenizer_folder(recipe.recipe, &err)) ||
        !(p.tokenizer = bd_tokenizer_open(folder, &err)) || !prepare(&p, recipe.recipe, folder, &err))
        status = bd_run_error("pretrain", &err);
    else
        status = bd_training_run("pretrain", &p.task, &trainer, recipe.recipe, &run);
    bd_pretrain_task_free(&p.task);
    bd_corpus_free(&p.corpus);
    bd_model_close(p.model);
    bd_tokenizer_close(p.tokenizer);
    bd_recipe_free(recipe.recipe);
    return status;
}
