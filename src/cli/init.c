/* bdlm init - a model folder with random weights from a size description. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/command.h"
#include "cli/new_model.h"
#include "cli/options.h"
#include "cli/recipe_options.h"

static bool write_folder(const bd_model *model, const bd_tokenizer *tokenizer, const char *out,
                         bd_dtype dtype, bd_error *err)
{
    if (bd_folder_exists(out))
        return bd_fail(err, "%s: exists already", out);
    char temporary[BD_PATH + 8];
    snprintf(temporary, sizeof temporary, "%s.tmp", out);
    bool ok = bd_folder_remove(temporary, err) && bd_folder_make(temporary, err) &&
              bd_model_save(model, temporary, dtype, err) &&
              (!tokenizer || bd_tokenizer_save(tokenizer, temporary, err)) &&
              bd_folder_publish(temporary, out, err);
    if (!ok) {
        bd_error ignored = {0};
        bd_folder_remove(temporary, &ignored);
    }
    return ok;
}

int bd_command_init(int argc, char **argv)
{
    const char *out = NULL, *dtype_name = "F32";
    bd_recipe_arguments recipe = {.sections = {"model", "train"}};
    const bd_option list[] = {
        {"out", "o", BD_ARGUMENT_TEXT, "FOLDER", "the new model folder", &out, 0, 0, true},
        {"dtype", NULL, BD_ARGUMENT_CHOICE, "F32|BF16|F16", "of the stored weights", &dtype_name, 0,
         0, false},
    };
    const bd_options options = {.command = "init",
                                .usage = "--out FOLDER --hidden-size N --num-hidden-layers N ...",
                                .summary = "Makes a model folder with random weights.",
                                .list = list,
                                .count = 2,
                                .other = bd_recipe_arguments_take,
                                .self = &recipe,
                                .more_help = bd_recipe_arguments_help};
    bd_error err = {0};
    bd_dtype dtype = BD_F32;
    bd_tokenizer *tokenizer = NULL;
    bd_model *model = NULL;
    bool ok = bd_recipe_arguments_begin(&recipe, argc, argv, &err) &&
              bd_options_parse(&options, argc, argv, &err);
    const char *folder = ok ? bd_recipe_text(recipe.recipe, "model.tokenizer") : NULL;
    ok = ok && (!folder || (tokenizer = bd_tokenizer_open(folder, &err))) &&
         bd_dtype_from_name(dtype_name, &dtype) &&
         (model = bd_new_model(recipe.recipe, tokenizer, BD_F32, &err)) &&
         write_folder(model, tokenizer, out, dtype, &err);
    if (ok)
        fprintf(stderr, "%s: %.2f million parameters\n", out,
                (double)bd_model_parameter_count(model) / 1e6);
    bd_model_close(model);
    bd_tokenizer_close(tokenizer);
    bd_recipe_free(recipe.recipe);
    return ok ? 0 : bd_run_error("init", &err);
}
