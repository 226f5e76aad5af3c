/* bdlm sft - fine-tunes a model on conversations, causally or as block diffusion. */
#include <stdio.h>
#include <string.h>

#include "cli/command.h"
#include "cli/conversation_data.h"
#include "cli/objective.h"
#include "cli/options.h"
#include "cli/recipe_options.h"
#include "cli/training.h"

typedef struct {
    bd_tokenizer *tokenizer;
    bd_model *model;
    bd_objective_choice objective;
    bd_conversation_data data;
    bd_token_documents train, evaluation;
    bd_task task;
    char start[128];
} fine_tuning;

static bool open_model(fine_tuning *f, const bd_recipe *recipe, const char *folder, bd_error *err)
{
    int64_t old_tokens = bd_tokenizer_size(f->tokenizer);
    return (f->model = bd_model_open(folder, bd_recipe_dtype(recipe, "train.dtype"), err)) &&
           bd_model_fingerprint(f->model, f->start, err) &&
           bd_objective_resolve(recipe, "sft", f->tokenizer, &f->model->config, &f->objective,
                                err) &&
           bd_objective_fit(&f->objective, "sft", old_tokens, f->model, err);
}

/* A model that learns to end its turns has to be stopped there. */
static void add_stop(fine_tuning *f)
{
    bd_model_config *config = &f->model->config;
    int32_t end = f->data.turn_end;
    for (int i = 0; i < config->stop_count; i++)
        if (config->stop[i] == end)
            return;
    if (end < 0 || config->stop_count == BD_MOST_STOPS || end == f->objective.canvas.mask_id)
        return;
    config->stop[config->stop_count++] = end;
    fprintf(stderr, "sft: token %d ends the answers, the model will stop there\n", end);
}

static bool make_task(fine_tuning *f, const bd_recipe *recipe, const char *companions,
                      bd_error *err)
{
    f->train = bd_conversation_documents(&f->data.train);
    f->evaluation = bd_conversation_documents(&f->data.evaluation);
    bd_document_task_options options = bd_document_task_default(f->model, &f->train);
    options.name = "sft";
    options.rows.cut = false; // a conversation without its beginning is another one
    options.output = (bd_model_output){.save_dtype = BD_F32,
                                       .start = f->start,
                                       .companions = companions,
                                       .tokenizer = f->tokenizer};
    if (!bd_objective_options(recipe, &f->objective, f->tokenizer, &options, err))
        return false;
    enum { MOST_EVALUATED = 256 };
    if (f->evaluation.count > 0) {
        options.evaluation = &f->evaluation;
        options.evaluation_rows = MOST_EVALUATED;
    } else {
        bd_row_plan *plan = bd_row_plan_create(&f->train, &options.rows, err);
        if (!plan)
            return false;
        options.evaluation_rows =
            bd_training_held_out(recipe, bd_row_plan_rows(plan), MOST_EVALUATED);
        bd_row_plan_free(plan);
    }
    if (!bd_document_task_create(&options, &f->task, err))
        return false;
    fprintf(
        stderr,
        "sft: %.2f million parameters; %lld rows of %lld tokens to train on, %lld to evaluate\n",
        (double)bd_model_parameter_count(f->model) / 1e6,
        (long long)bd_document_task_rows(&f->task), (long long)options.rows.length,
        (long long)bd_document_task_evaluation_rows(&f->task));
    return true;
}

static bool prepare(fine_tuning *f, bd_recipe *recipe, bd_error *err)
{
    const char *folder = bd_recipe_text(recipe, "model.path"),
               *words = bd_recipe_text(recipe, "model.tokenizer");
    if (!folder)
        return bd_fail_as(err, BD_ERROR_USAGE,
                          "--path MODEL is required: fine-tuning starts from a model folder");
    if (!words)
        words = folder;
    if (!(f->tokenizer = bd_tokenizer_open(words, err)) || !open_model(f, recipe, folder, err) ||
        !bd_conversation_data_read(recipe, "sft", f->tokenizer, f->objective.canvas.block_size,
                                   &f->data, err))
        return false;
    bd_conversation_data_sample(stderr, f->tokenizer, &f->data.train);
    add_stop(f);
    return bd_model_train(f->model, err) && make_task(f, recipe, words, err);
}

/* Fine-tuning is on answers unless somebody says otherwise; run.json tells who did. */
static bool set_defaults(bd_recipe *recipe, bd_error *err)
{
    return strcmp(bd_recipe_origin(recipe, "data.completion_only"), "default") != 0 ||
           bd_recipe_assign(recipe, "data.completion_only", "true", "bdlm sft", err);
}

int bd_command_sft(int argc, char **argv)
{
    bd_run_arguments run = {.argc = argc, .argv = argv};
    bd_recipe_arguments recipe = {
        .sections = {"train", "data", "model", "objective", "log", "parallel"}};
    bd_option list[BD_RUN_OPTIONS];
    int count = bd_run_options(&run, list);
    const bd_options options = {
        .command = "sft",
        .usage = "--path MODEL --train-files CONVERSATIONS.jsonl --out RUN [options]",
        .summary = "Fine-tunes a model on the answers of conversations: --kind causal_lm "
                   "predicts the next token, --kind block_diffusion fills masked tokens in "
                   "(also from a causal model). RUN/latest is a model folder.",
        .list = list,
        .count = count,
        .other = bd_recipe_arguments_take,
        .self = &recipe,
        .more_help = bd_recipe_arguments_help};
    bd_error err = {0};
    bd_trainer_options trainer;
    fine_tuning f = {0};
    int status = 1;
    if (!bd_recipe_arguments_begin(&recipe, argc, argv, &err) ||
        !bd_options_parse(&options, argc, argv, &err) ||
        !bd_training_options(recipe.recipe, &run, &trainer, &err) ||
        !set_defaults(recipe.recipe, &err) || !prepare(&f, recipe.recipe, &err))
        status = bd_run_error("sft", &err);
    else
        status = bd_training_run("sft", &f.task, &trainer, recipe.recipe, &run);
    bd_document_task_free(&f.task);
    bd_conversation_data_free(&f.data);
    bd_model_close(f.model);
    bd_tokenizer_close(f.tokenizer);
    bd_recipe_free(recipe.recipe);
    return status;
}
