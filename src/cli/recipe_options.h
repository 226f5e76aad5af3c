/* recipe_options.h - the options of a recipe as command line options.
 *
 * `--recipe FILE.yaml` first, then `--set section.key=value` and `--key value` over it, whatever
 * the order on the command line. `--lr` stands for train.lr: the sections a command names are
 * searched in order for the key.
 *
 *     bd_recipe_arguments a = {.sections = {"train", "data", "model"}};
 *     if (!bd_recipe_arguments_begin(&a, argc, argv, &err)) ...
 *     bd_options_parse(&(bd_options){..., .other = bd_recipe_arguments_take, .self = &a,
 *                                    .more_help = bd_recipe_arguments_help}, argc, argv, &err)
 */
#ifndef BD_CLI_RECIPE_OPTIONS_H
#define BD_CLI_RECIPE_OPTIONS_H

#include "format/recipe.h"

enum { BD_RECIPE_SECTIONS = 10 };

typedef struct {
    const char *sections[BD_RECIPE_SECTIONS]; /* NULL after the last */
    bd_recipe *recipe;                        /* bd_recipe_free() it */
} bd_recipe_arguments;

/* Loads the recipe that --recipe names, or the defaults. */
bool bd_recipe_arguments_begin(bd_recipe_arguments *arguments, int argc, char **argv,
                               bd_error *err);
bool bd_recipe_arguments_take(void *self, const char *name, const char *value, int *used,
                              bd_error *err);
void bd_recipe_arguments_help(void *self);

#endif
