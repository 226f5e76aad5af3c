#include "cli/options.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const bd_option *find(const bd_options *options, const char *name, bool dashes)
{
    for (int64_t i = 0; i < options->count; i++) {
        const bd_option *option = &options->list[i];
        if (dashes ? strcmp(option->name, name) == 0
                   : option->alias && !strcmp(option->alias, name))
            return option;
    }
    return NULL;
}

static bool usage(bd_error *err, const char *format, const char *name, const char *value)
{
    return bd_fail_as(err, BD_ERROR_USAGE, format, name, value);
}

static bool choose(const bd_option *option, const char *value, bd_error *err)
{
    size_t length = strlen(value);
    for (const char *word = option->argument; word && *word;) {
        const char *end = strchr(word, '|');
        size_t size = end ? (size_t)(end - word) : strlen(word);
        if (size == length && memcmp(word, value, size) == 0) {
            *(const char **)option->out = value;
            return true;
        }
        word = end ? end + 1 : NULL;
    }
    return bd_fail_as(err, BD_ERROR_USAGE, "--%s: %s is not one of %s", option->name, value,
                      option->argument);
}

static bool set(const bd_option *option, const char *value, bd_error *err)
{
    char *end;
    errno = 0;
    switch (option->kind) {
    case BD_ARGUMENT_FLAG:
        *(bool *)option->out = true;
        return true;
    case BD_ARGUMENT_TEXT:
        *(const char **)option->out = value;
        return true;
    case BD_ARGUMENT_CHOICE:
        return choose(option, value, err);
    case BD_ARGUMENT_LIST: {
        bd_text_list *list = option->out;
        if (list->count == BD_MOST_LISTED)
            return usage(err, "--%s given more than 64 times: %s", option->name, value);
        list->items[list->count++] = value;
        return true;
    }
    case BD_ARGUMENT_INT: {
        long long number = strtoll(value, &end, 10);
        if (end == value || *end || errno)
            return usage(err, "--%s: %s is not a whole number", option->name, value);
        if ((double)number < option->low || (double)number > option->high)
            return bd_fail_as(err, BD_ERROR_USAGE, "--%s: %lld is outside %.0f to %.0f",
                              option->name, number, option->low, option->high);
        *(int64_t *)option->out = number;
        return true;
    }
    case BD_ARGUMENT_NUMBER: {
        double number = strtod(value, &end);
        if (end == value || *end || !isfinite(number))
            return usage(err, "--%s: %s is not a number", option->name, value);
        if (number < option->low || number > option->high)
            return bd_fail_as(err, BD_ERROR_USAGE, "--%s: %g is outside %g to %g", option->name,
                              number, option->low, option->high);
        *(double *)option->out = number;
        return true;
    }
    }
    return false;
}

static void print_help(const bd_options *options)
{
    printf("usage: bdlm %s %s\n\n%s\n\n", options->command,
           options->usage ? options->usage : "[options]", options->summary);
    for (int64_t i = 0; i < options->count; i++) {
        const bd_option *option = &options->list[i];
        char left[128];
        snprintf(left, sizeof left, "%s%s%s--%s%s%s", option->alias ? "-" : "",
                 option->alias ? option->alias : "", option->alias ? ", " : "    ", option->name,
                 option->argument ? " " : "", option->argument ? option->argument : "");
        printf("  %-34s %s%s\n", left, option->help, option->required ? " (required)" : "");
    }
    printf("  %-34s %s\n", "    --help", "this text");
    if (options->more_help)
        options->more_help(options->self);
}

static bool check_required(const bd_options *options, const bool *given, bd_error *err)
{
    for (int64_t i = 0; i < options->count; i++)
        if (options->list[i].required && !given[i])
            return usage(err, "--%s %s is required", options->list[i].name,
                         options->list[i].argument);
    return true;
}

/* One word that starts with a dash; *used says whether the next word was its value. */
static bool take(const bd_options *options, char *word, const char *next, bool *given, int *used,
                 bd_error *err)
{
    bool dashes = word[1] == '-';
    char *name = word + (dashes ? 2 : 1);
    char *equals = strchr(name, '=');
    if (equals)
        *equals = 0;
    const char *value = equals ? equals + 1 : next;
    const bd_option *option = find(options, name, dashes);
    if (!option) {
        if (!dashes || !options->other)
            return usage(err, "unknown option %s%s", word, "");
        int took = 0;
        if (!options->other(options->self, name, value, &took, err))
            return false;
        *used = took && !equals;
        return true;
    }
    given[option - options->list] = true;
    if (option->kind == BD_ARGUMENT_FLAG) {
        if (equals)
            return usage(err, "--%s takes no value, found %s", name, value);
        return set(option, NULL, err);
    }
    if (!value)
        return usage(err, "--%s wants %s", option->name, option->argument);
    *used = !equals;
    return set(option, value, err);
}

bool bd_options_parse(const bd_options *options, int argc, char **argv, bd_error *err)
{
    enum { MOST_OPTIONS = 128 };
    bool given[MOST_OPTIONS] = {false};
    bool only_words = false;
    for (int i = 1; i < argc; i++) {
        char *word = argv[i];
        if (!only_words && (!strcmp(word, "--help") || !strcmp(word, "-h"))) {
            print_help(options);
            exit(0);
        }
        if (!only_words && !strcmp(word, "--")) {
            only_words = true;
            continue;
        }
        if (only_words || word[0] != '-' || word[1] == 0) {
            if (!options->arguments)
                return usage(err, "unexpected word %s%s", word, "");
            if (options->arguments->count == BD_MOST_LISTED)
                return usage(err, "more than 64 words: %s%s", word, "");
            options->arguments->items[options->arguments->count++] = word;
            continue;
        }
        int used = 0;
        if (!take(options, word, i + 1 < argc ? argv[i + 1] : NULL, given, &used, err))
            return false;
        i += used;
    }
    return check_required(options, given, err);
}

int bd_usage_error(const char *command, const bd_error *err)
{
    fprintf(stderr, "bdlm %s: %s\nbdlm %s --help shows the options\n", command, err->message,
            command);
    return 2;
}

int bd_run_error(const char *command, const bd_error *err)
{
    if (err->kind == BD_ERROR_USAGE)
        return bd_usage_error(command, err);
    fprintf(stderr, "bdlm %s: %s\n", command, err->message);
    return 1;
}
