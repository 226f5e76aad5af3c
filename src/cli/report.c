/* bdlm report - one self-contained HTML page from runs. */
#include "cli/report.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/command.h"
#include "cli/html.h"
#include "cli/options.h"
#include "cli/trace.h"
#include "format/json.h"

/* A column of metrics.jsonl against the step; lines without it are passed over. */
typedef struct {
    double *x, *y;
    int64_t count;
} column;

static column read_column(json_t *lines, const char *field)
{
    size_t size = json_array_size(lines) + 1;
    column c = {calloc(size, sizeof(double)), calloc(size, sizeof(double)), 0};
    size_t i;
    json_t *line;
    json_array_foreach(lines, i, line)
    {
        json_t *step = json_object_get(line, "step"), *value = json_object_get(line, field);
        if (!c.x || !c.y || !json_is_number(step) || !json_is_number(value))
            continue;
        c.x[c.count] = json_number_value(step);
        c.y[c.count++] = json_number_value(value);
    }
    return c;
}

static json_t *read_lines(const char *run, bd_error *err)
{
    char path[BD_PATH];
    if (!bd_path_join(path, run, "metrics.jsonl", err))
        return NULL;
    size_t size;
    char *text = bd_file_read_text(path, (size_t)1 << 30, &size, err);
    if (!text)
        return NULL;
    json_t *lines = json_array();
    int64_t number = 0;
    for (char *line = text; line && *line; number++) {
        char *end = strchr(line, '\n');
        size_t length = end ? (size_t)(end - line) : strlen(line);
        if (length > 0) {
            char where[BD_PATH + 32];
            snprintf(where, sizeof where, "%s line %lld", path, (long long)number + 1);
            json_t *value = bd_json_parse(line, length, where, err);
            if (!value) {
                json_decref(lines);
                free(text);
                return NULL;
            }
            json_array_append_new(lines, value);
        }
        line = end ? end + 1 : NULL;
    }
    free(text);
    return lines;
}

static bool add_run(bd_writer *out, const char *run, bd_error *err)
{
    static const char *const charts[][2] = {{"loss", "eval_loss"}, {"accuracy", "eval_accuracy"}};
    json_t *lines = read_lines(run, err);
    if (!lines)
        return false;
    for (size_t chart = 0; chart < 2; chart++) {
        bd_series series[2];
        column columns[2];
        int used = 0;
        for (int i = 0; i < 2; i++) {
            columns[i] = read_column(lines, charts[chart][i]);
            if (columns[i].count > 0)
                series[used++] =
                    (bd_series){charts[chart][i], columns[i].x, columns[i].y, columns[i].count};
        }
        char title[300];
        snprintf(title, sizeof title, "%.200s: %s", run, charts[chart][0]);
        if (used)
            bd_html_lines(out, title, "step", charts[chart][0], series, used);
        for (int i = 0; i < 2; i++) {
            free(columns[i].x);
            free(columns[i].y);
        }
    }
    json_decref(lines);
    return true;
}

static void add_samples(bd_writer *out, json_t *result)
{
    size_t i;
    json_t *sample;
    json_array_foreach(json_object_get(result, "samples"), i, sample)
    {
        const char *prompt = json_string_value(json_object_get(sample, "prompt"));
        const char *text = json_string_value(json_object_get(sample, "text"));
        if (!prompt || !text)
            continue;
        bd_writer_print(out, "<pre><b>");
        bd_html_escaped(out, prompt);
        bd_writer_print(out, "</b>");
        bd_html_escaped(out, text);
        bd_writer_print(out, "</pre>\n");
    }
}

/* The first prompts of a block-diffusion model, step by step. */
static void add_traces(bd_writer *out, json_t *result)
{
    enum { MOST = 3 };
    size_t i;
    json_t *trace;
    json_array_foreach(json_object_get(result, "traces"), i, trace)
    {
        if (i < MOST)
            bd_html_trace(out, trace);
    }
}

static bool add_result(bd_writer *out, const char *path, bd_error *err)
{
    enum { MOST = 64 };
    json_t *result = bd_json_load(path, err);
    if (!result)
        return false;
    double rates[MOST];
    int64_t count = 0;
    size_t i;
    json_t *rate;
    json_array_foreach(json_object_get(result, "acceptance_per_position"), i,
                       rate) if (count < MOST) rates[count++] = json_number_value(rate);
    if (count > 0)
        bd_html_bars(out, "Acceptance per position", "position in the block", "accepted / tested",
                     rates, count);
    add_traces(out, result);
    add_samples(out, result);
    json_decref(result);
    return true;
}

static void add_table(bd_writer *out, const char *table)
{
    json_t *rows = table ? json_loads(table, 0, NULL) : NULL;
    size_t i;
    json_t *row;
    bd_writer_print(out, "<table>\n");
    json_array_foreach(rows, i, row)
    {
        const char *label = json_string_value(json_array_get(row, 0));
        const char *value = json_string_value(json_array_get(row, 1));
        bd_writer_print(out, "<tr><td>");
        bd_html_escaped(out, label ? label : "");
        bd_writer_print(out, "</td><td class='n'>");
        bd_html_escaped(out, value ? value : "");
        bd_writer_print(out, "</td></tr>\n");
    }
    bd_writer_print(out, "</table>\n");
    json_decref(rows);
}

bool bd_report_write(const char *path, const char *title, const char *const *runs,
                     int64_t run_count, const char *const *results, int64_t result_count,
                     const char *table, bd_error *err)
{
    bd_writer *out = bd_writer_open(path, err);
    if (!out)
        return false;
    bd_html_begin(out, title);
    add_table(out, table);
    bool ok = true;
    for (int64_t i = 0; ok && i < run_count; i++)
        ok = add_run(out, runs[i], err);
    for (int64_t i = 0; ok && i < result_count; i++)
        ok = add_result(out, results[i], err);
    bd_html_end(out);
    if (ok)
        return bd_writer_commit(out, err);
    bd_writer_abandon(out);
    return false;
}

int bd_command_report(int argc, char **argv)
{
    const char *out = "report.html", *title = "bdlm report";
    bd_text_list runs = {0}, results = {0};
    const bd_option list[] = {
        {"out", "o", BD_ARGUMENT_TEXT, "FILE.html", "where the page goes (report.html)", &out, 0, 0,
         false},
        {"title", NULL, BD_ARGUMENT_TEXT, "TEXT", "heading of the page", &title, 0, 0, false},
        {"result", NULL, BD_ARGUMENT_LIST, "FILE.json",
         "output of generate --json or draft eval --json", &results, 0, 0, false},
    };
    const bd_options options = {.command = "report",
                                .usage = "RUN... [options]",
                                .summary =
                                    "Loss curves of runs and acceptance of drafters as one page.",
                                .list = list,
                                .count = 3,
                                .arguments = &runs};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("report", &err);
    if (runs.count + results.count == 0) {
        bd_fail(&err, "at least one run folder or --result is wanted");
        return bd_usage_error("report", &err);
    }
    if (!bd_report_write(out, title, runs.items, runs.count, results.items, results.count, NULL,
                         &err))
        return bd_run_error("report", &err);
    fprintf(stderr, "%s\n", out);
    return 0;
}
