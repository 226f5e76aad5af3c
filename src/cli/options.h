/* options.h - command lines: one table per command gives parsing, checks and help.
 *
 *     const bd_option options[] = {
 *         {"model", "m", BD_ARGUMENT_TEXT, "FOLDER", "target model", &model, .required = true},
 *         {"tokens", "n", BD_ARGUMENT_INT, "N", "tokens to generate", &tokens, .low = 1, .high =
 * 1e9},
 *     };
 *     if (!bd_options_parse(&(bd_options){.command = "generate", .list = options, .count = 2},
 * argc, argv, &err)) return bd_usage_error("generate", &err);
 *
 * Both `--name value` and `--name=value` are read; short names have one dash (`-m`, `-md`).
 */
#ifndef BD_CLI_OPTIONS_H
#define BD_CLI_OPTIONS_H

#include "base/error.h"

typedef enum {
    BD_ARGUMENT_FLAG,   /* bool */
    BD_ARGUMENT_TEXT,   /* const char * */
    BD_ARGUMENT_INT,    /* int64_t, within low..high */
    BD_ARGUMENT_NUMBER, /* double, within low..high */
    BD_ARGUMENT_CHOICE, /* const char *, one of the words in `argument` separated by | */
    BD_ARGUMENT_LIST,   /* bd_text_list: may be given several times */
} bd_argument_kind;

enum { BD_MOST_LISTED = 64 };
typedef struct {
    const char *items[BD_MOST_LISTED];
    int64_t count;
} bd_text_list;

typedef struct {
    const char *name, *alias; /* "model", "m"; alias may be NULL */
    bd_argument_kind kind;
    const char *argument, *help;
    void *out; /* holds the default before parsing */
    double low, high;
    bool required;
} bd_option;

typedef struct bd_options {
    const char *command; /* "draft train" */
    const char *usage;   /* "[options] FILE..." */
    const char *summary; /* one or two sentences */
    const bd_option *list;
    int64_t count;
    bd_text_list *arguments; /* words that are no options; NULL: none allowed */
    /* Options this table does not know, e.g. those of a recipe. Sets *used to 1 when it took
     * `value` (NULL when the command line ended). NULL: unknown options are errors. */
    bool (*other)(void *self, const char *name, const char *value, int *used, bd_error *err);
    void *self;
    void (*more_help)(void *self); /* printed after the table; NULL: nothing */
} bd_options;

/* argv[0] is the command's own name. --help prints the table on stdout and ends the program with 0.
 */
bool bd_options_parse(const bd_options *options, int argc, char **argv, bd_error *err);

/* "bdlm generate: MESSAGE" and how to get help, on stderr; returns 2. */
int bd_usage_error(const char *command, const bd_error *err);
/* "bdlm generate: MESSAGE" on stderr; returns 1 (2 for BD_ERROR_USAGE). */
int bd_run_error(const char *command, const bd_error *err);

#endif
