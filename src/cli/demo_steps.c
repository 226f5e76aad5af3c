#include "cli/demo.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

enum { PATHS = 12 };

const char *bd_demo_path(const bd_demo *demo, const char *name)
{
    static char paths[PATHS][BD_PATH];
    static int next;
    char *path = paths[next++ % PATHS];
    snprintf(path, BD_PATH, "%s/%s", demo->out, name);
    return path;
}

// --- commands -----------------------------------------------------------------------------------

static bool show_and_run(bd_command_function *command, const char *const *words, bd_error *err)
{
    enum { MOST = 80 };
    char *arguments[MOST + 1] = {0};
    int count = 0;
    fprintf(stderr, "\n$ bdlm");
    for (; words[count] && count < MOST; count++) {
        fprintf(stderr, " %s", words[count]);
        arguments[count] = strdup(words[count]);
    }
    fputc('\n', stderr);
    // Of a name in two words the command sees only the second.
    int verb = strcmp(words[0], "tokenizer") && strcmp(words[0], "draft") ? 0 : 1;
    int status = command(count - verb, arguments + verb);
    for (int i = 0; i < count; i++)
        free(arguments[i]);
    if (status != 0)
        return bd_fail(err, "%s failed", words[0]);
    return !bd_stop_requested || bd_fail(err, "stopped");
}

bool bd_demo_run(bd_command_function *command, const char *into, const char *const *words,
                 bd_error *err)
{
    if (!into)
        return show_and_run(command, words, err);
    fflush(stdout);
    int saved = dup(1);
    FILE *file = fopen(into, "w");
    if (saved < 0 || !file) {
        if (file)
            fclose(file);
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: cannot write", into);
    }
    dup2(fileno(file), 1);
    bool ok = show_and_run(command, words, err);
    fflush(stdout);
    dup2(saved, 1);
    close(saved);
    fclose(file);
    return ok;
}

// --- results ------------------------------------------------------------------------------------

void bd_demo_row(bd_demo *demo, const char *label, const char *format, ...)
{
    char value[200];
    va_list list;
    va_start(list, format);
    vsnprintf(value, sizeof value, format, list);
    va_end(list);
    json_array_append_new(demo->table, json_pack("[s,s]", label, value));
    printf("%-34s %s\n", label, value);
}

double bd_demo_number(json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

json_t *bd_demo_line(const bd_demo *demo, const char *run, const char *field, bool first)
{
    char name[64];
    snprintf(name, sizeof name, "%s/metrics.jsonl", run);
    size_t size;
    char *text = bd_file_read_text(bd_demo_path(demo, name), (size_t)1 << 30, &size, NULL);
    json_t *found = NULL;
    for (char *line = text; line && *line && !(first && found);) {
        char *end = strchr(line, '\n');
        json_t *value = json_loadb(line, end ? (size_t)(end - line) : strlen(line), 0, NULL);
        if (json_object_get(value, field)) {
            json_decref(found);
            found = value;
        } else {
            json_decref(value);
        }
        line = end ? end + 1 : NULL;
    }
    free(text);
    return found;
}
