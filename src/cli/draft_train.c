/* bdlm draft train - a drafter for a causal target, trained beside it on text or on its hidden
 * states. */
#include "cli/command.h"
#include "cli/draft_recipe.h"
#include "cli/options.h"
#include "cli/recipe_options.h"
#include "cli/training.h"

int bd_command_draft_train(int argc, char **argv)
{
    bd_run_arguments run = {.argc = argc, .argv = argv};
    // `draft` first: --num-hidden-layers is the draft's. The target's sizes come from its folder.
    bd_recipe_arguments recipe = {
        .sections = {"draft", "train", "data", "model", "log", "parallel"}};
    bd_option list[BD_RUN_OPTIONS];
    int count = bd_run_options(&run, list);
    const bd_options options = {
        .command = "draft train",
        .usage = "--path TARGET --train-files FILE --out RUN --num-attention-heads N ...",
        .summary = "Trains a drafter for a causal target: online (the frozen target runs on every "
                   "batch), offline (--cache, of draft cache), streaming (--listen, from draft "
                   "produce). RUN/latest is a draft folder.",
        .list = list,
        .count = count,
        .other = bd_recipe_arguments_take,
        .self = &recipe,
        .more_help = bd_recipe_arguments_help};
    bd_error err = {0};
    bd_trainer_options trainer;
    bd_draft_data data = {0};
    bd_draft_training training = {0};
    char latest[BD_PATH];
    const char *resumed;
    int status;
    if (!bd_recipe_arguments_begin(&recipe, argc, argv, &err) ||
        !bd_options_parse(&options, argc, argv, &err) ||
        !bd_training_options(recipe.recipe, &run, &trainer, &err) ||
        !bd_draft_data_open(recipe.recipe, &data, &err) ||
        !bd_training_resumed(&run, &trainer, latest, &resumed, &err) ||
        !bd_draft_training_make(recipe.recipe, &data, resumed, &training, &err))
        status = bd_run_error("draft train", &err);
    else
        status = bd_training_run("draft train", &training.task, &trainer, recipe.recipe, &run);
    bd_draft_training_free(&training, status == 0 && !bd_stop_requested);
    bd_draft_data_close(&data);
    bd_recipe_free(recipe.recipe);
    return status;
}
