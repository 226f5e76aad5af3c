#include "cli/recipe_options.h"

#include <stdio.h>
#include <string.h>

bool bd_recipe_arguments_begin(bd_recipe_arguments *arguments, int argc, char **argv, bd_error *err)
{
    const char *path = NULL;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--recipe") && i + 1 < argc)
            path = argv[i + 1];
        else if (!strncmp(argv[i], "--recipe=", 9))
            path = argv[i] + 9;
    }
    arguments->recipe = path ? bd_recipe_load(path, err) : bd_recipe_default();
    return arguments->recipe != NULL;
}

/* The option that --some-key means: the first section in order that has some_key. */
static const bd_recipe_option *find(const bd_recipe_arguments *arguments, const char *name)
{
    char key[64];
    size_t length = strlen(name);
    if (length >= sizeof key)
        return NULL;
    for (size_t i = 0; i <= length; i++)
        key[i] = name[i] == '-' ? '_' : name[i];
    for (int s = 0; s < BD_RECIPE_SECTIONS && arguments->sections[s]; s++)
        for (int i = 0; i < bd_recipe_option_count(); i++) {
            const bd_recipe_option *option = bd_recipe_option_at(i);
            if (!strcmp(option->section, arguments->sections[s]) && !strcmp(option->key, key))
                return option;
        }
    return NULL;
}

bool bd_recipe_arguments_take(void *self, const char *name, const char *value, int *used,
                              bd_error *err)
{
    bd_recipe_arguments *arguments = self;
    bool is_recipe = !strcmp(name, "recipe"), is_set = !strcmp(name, "set");
    const bd_recipe_option *option = is_recipe || is_set ? NULL : find(arguments, name);
    if (!is_recipe && !is_set && !option)
        return bd_fail_as(err, BD_ERROR_USAGE, "unknown option --%s", name);
    // A switch may stand alone: --packing, or --packing false.
    bool bare = option && option->type == BD_OPTION_BOOL &&
                (!value || (strcmp(value, "true") != 0 && strcmp(value, "false") != 0));
    if (!value && !bare)
        return bd_fail_as(err, BD_ERROR_USAGE, "--%s wants a value", name);
    *used = !bare;
    if (is_recipe)
        return true; // loaded already
    bool ok;
    if (is_set) {
        ok = bd_recipe_set(arguments->recipe, value, err);
    } else {
        char full[128], origin[80];
        snprintf(full, sizeof full, "%s.%s", option->section, option->key);
        snprintf(origin, sizeof origin, "--%.70s", name);
        ok = bd_recipe_assign(arguments->recipe, full, bare ? "true" : value, origin, err);
    }
    if (!ok)
        err->kind = BD_ERROR_USAGE;
    return ok;
}

void bd_recipe_arguments_help(void *self)
{
    const bd_recipe_arguments *arguments = self;
    printf("  %-34s %s\n  %-34s %s\n", "    --recipe FILE.yaml",
           "options from a file; the rest overrides it", "    --set SECTION.KEY=VALUE",
           "one option by its full name");
    for (int s = 0; s < BD_RECIPE_SECTIONS && arguments->sections[s]; s++) {
        printf("\n%s:\n", arguments->sections[s]);
        for (int i = 0; i < bd_recipe_option_count(); i++) {
            const bd_recipe_option *option = bd_recipe_option_at(i);
            if (strcmp(option->section, arguments->sections[s]) != 0)
                continue;
            char left[64];
            snprintf(left, sizeof left, "    --%s", option->key);
            for (char *c = left + 6; *c; c++)
                if (*c == '_')
                    *c = '-';
            printf("  %-34s %s%s%s%s\n", left, option->help, option->fallback ? " (" : "",
                   option->fallback ? option->fallback : "", option->fallback ? ")" : "");
        }
    }
}
