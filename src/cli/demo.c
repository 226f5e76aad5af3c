/* bdlm demo - the whole story in minutes: real text, a tokenizer, a causal target, a drafter for
 * it, and the same text generated with and without the drafter. Every step is a command a user can
 * type. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/progress.h"
#include "cli/command.h"
#include "cli/options.h"
#include "cli/report.h"
#include "format/dataset.h"
#include "format/json.h"

typedef struct {
    const char *out, *text;
    int64_t megabytes, target_steps, draft_steps, prompts, regenerated;
    json_t *table; /* [label, value] rows of the last page */
} demo;

enum { PATHS = 12 };

/* OUT/name in one of a few rotating buffers: enough for the arguments of one command. */
static const char *at(const demo *d, const char *name)
{
    static char paths[PATHS][BD_PATH];
    static int next;
    char *path = paths[next++ % PATHS];
    snprintf(path, BD_PATH, "%s/%s", d->out, name);
    return path;
}

// --- text
// ----------------------------------------------------------------------------------------------------

// Bytes of an entry that make a prompt to compare on, and one for the target to continue.
enum { PROMPT = 160, OPENING = 100 };

/* One line {"turns": [...]} with the first words of an entry; false: the entry is too short. */
static bool write_prompt(bd_writer *out, const bd_document *entry, size_t bytes)
{
    if (entry->size < 2 * bytes)
        return false;
    size_t cut = bytes;
    while (cut > 0 && entry->text[cut] != ' ')
        cut--;
    json_t *line = json_pack("{s:[s%]}", "turns", entry->text, cut);
    char *text = line ? json_dumps(line, JSON_COMPACT) : NULL;
    if (text)
        bd_writer_print(out, "%s\n", text);
    json_decref(line);
    free(text);
    return text != NULL;
}

/* Prompts that nothing was trained on: from the entries behind the training text. */
static bool write_prompts(const demo *d, bd_documents *documents, bd_error *err)
{
    bd_document entry;
    int64_t written = 0;
    int got = 1;
    bd_writer *out = bd_writer_open(at(d, "prompts.jsonl"), err);
    while (out && written < d->prompts && (got = bd_documents_next(documents, &entry, err)) > 0)
        if (entry.number % 7 == 0)
            written += write_prompt(out, &entry, PROMPT);
    if (got < 0 || !out) {
        bd_writer_abandon(out);
        return false;
    }
    return bd_writer_commit(out, err);
}

static bool write_text(const demo *d, bd_error *err)
{
    const char *files[] = {d->text};
    bd_documents *documents =
        bd_documents_open(files, 1, (bd_document_options){.entries = true, .replace = true}, err);
    bd_writer *out = documents ? bd_writer_open(at(d, "train.txt"), err) : NULL;
    bd_writer *openings = out ? bd_writer_open(at(d, "openings.jsonl"), err) : NULL;
    bd_document entry;
    int64_t bytes = 0, opened = 0, number = 0;
    int got = 1;
    while (openings && bytes < d->megabytes * 1000000 &&
           (got = bd_documents_next(documents, &entry, err)) > 0) {
        // The preface and licence of the dictionary come first; definitions are what is to be
        // learnt.
        if (entry.number < 200)
            continue;
        bd_writer_write(out, entry.text, entry.size);
        bd_writer_write(out, "\n\n", 2);
        bytes += (int64_t)entry.size + 2;
        // Openings spread over the whole text, for the target to continue in its own words.
        if (opened < d->regenerated && number++ % 4 == 0)
            opened += write_prompt(openings, &entry, OPENING);
    }
    bool ok = got > 0 && openings;
    if (got == 0)
        bd_fail(err, "%s: less than %lld MB of text", d->text, (long long)d->megabytes);
    if (!ok) {
        bd_writer_abandon(openings);
        bd_writer_abandon(out);
    } else {
        bool both = bd_writer_commit(openings, err);
        ok = bd_writer_commit(out, err) && both;
    }
    ok = ok && write_prompts(d, documents, err);
    bd_documents_close(documents);
    if (ok)
        fprintf(stderr, "text: %.1f MB for training, %lld prompts from later entries\n",
                (double)bytes / 1e6, (long long)d->prompts);
    return ok;
}

// --- steps
// ---------------------------------------------------------------------------------------------------

/* Show the command line, then run it. */
static bool run(bd_command_function *command, const char *const *words, bd_error *err)
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

/* The same with standard output in a file. */
static bool run_into(const char *path, bd_command_function *command, const char *const *words,
                     bd_error *err)
{
    fflush(stdout);
    int saved = dup(1);
    FILE *file = fopen(path, "w");
    if (saved < 0 || !file)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: cannot write", path);
    dup2(fileno(file), 1);
    bool ok = run(command, words, err);
    fflush(stdout);
    dup2(saved, 1);
    close(saved);
    fclose(file);
    return ok;
}

static bool train_target(const demo *d, bd_error *err)
{
    char steps[32];
    snprintf(steps, sizeof steps, "%lld", (long long)d->target_steps);
    const char *const words[] = {"pretrain",
                                 "--train-files",
                                 at(d, "train.txt"),
                                 "--tokenizer",
                                 at(d, "tokenizer"),
                                 "--out",
                                 at(d, "target"),
                                 "--hidden-size",
                                 "256",
                                 "--num-hidden-layers",
                                 "8",
                                 "--num-attention-heads",
                                 "4",
                                 "--num-key-value-heads",
                                 "2",
                                 "--intermediate-size",
                                 "640",
                                 "--max-position-embeddings",
                                 "1024",
                                 "--sequence-length",
                                 "256",
                                 "--batch-size",
                                 "8",
                                 "--max-steps",
                                 steps,
                                 "--lr",
                                 "2e-3",
                                 "--warmup-ratio",
                                 "0.05",
                                 "--schedule",
                                 "cosine",
                                 "--final-lr-fraction",
                                 "0.05",
                                 "--weight-decay",
                                 "0.1",
                                 "--adam-b2",
                                 "0.98",
                                 "--dtype",
                                 "bf16",
                                 NULL};
    return run(bd_command_pretrain, words, err);
}

/* The drafter learns from text that the target writes, because that is what it will draft: the
 * target's own continuations of openings from the training text.
 * They are greedy, so their tokens are the labels: cross entropy alone is what acceptance asks for.
 */
static bool regenerate(const demo *d, bd_error *err)
{
    const char *const words[] = {
        "generate", "--model", at(d, "target/latest"), "--prompts", at(d, "openings.jsonl"),
        "--tokens", "160",     "--ignore-eos",         NULL};
    return run_into(at(d, "written.txt"), bd_command_generate, words, err);
}

static bool train_draft(const demo *d, bd_error *err)
{
    char steps[32];
    snprintf(steps, sizeof steps, "%lld", (long long)d->draft_steps);
    const char *const words[] = {"draft",
                                 "train",
                                 "--path",
                                 at(d, "target/latest"),
                                 "--train-files",
                                 at(d, "written.txt"),
                                 "--out",
                                 at(d, "draft"),
                                 "--num-hidden-layers",
                                 "2",
                                 "--num-attention-heads",
                                 "4",
                                 "--num-key-value-heads",
                                 "2",
                                 "--head-dim",
                                 "64",
                                 "--intermediate-size",
                                 "640",
                                 "--block-size",
                                 "8",
                                 "--num-anchors",
                                 "24",
                                 "--self-logit-distillation",
                                 "false",
                                 "--sequence-length",
                                 "256",
                                 "--batch-size",
                                 "8",
                                 "--max-steps",
                                 steps,
                                 "--lr",
                                 "4e-3",
                                 "--warmup-ratio",
                                 "0.05",
                                 "--schedule",
                                 "cosine",
                                 "--final-lr-fraction",
                                 "0.05",
                                 "--dtype",
                                 "bf16",
                                 NULL};
    return run(bd_command_draft_train, words, err);
}

/* Both number formats: in f32 a token costs the reading of all weights, so a block of them is cheap
 * to verify; in bf16 plain decoding is faster to begin with. */
static bool compare(const demo *d, const char *dtype, bd_error *err)
{
    char name[32];
    snprintf(name, sizeof name, "compare-%s.json", dtype);
    const char *const words[] = {"generate",
                                 "--model",
                                 at(d, "target/latest"),
                                 "--draft",
                                 at(d, "draft/latest"),
                                 "--prompts",
                                 at(d, "prompts.jsonl"),
                                 "--tokens",
                                 "192",
                                 "--ignore-eos",
                                 "--compare",
                                 "--dtype",
                                 dtype,
                                 "--json",
                                 NULL};
    return run_into(at(d, name), bd_command_generate, words, err);
}

// --- the table
// -----------------------------------------------------------------------------------------------

static void row(demo *d, const char *label, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void row(demo *d, const char *label, const char *format, ...)
{
    char value[200];
    va_list list;
    va_start(list, format);
    vsnprintf(value, sizeof value, format, list);
    va_end(list);
    json_array_append_new(d->table, json_pack("[s,s]", label, value));
    printf("%-34s %s\n", label, value);
}

/* The last line of a run's log that has a loss. */
static json_t *last_line(const char *path)
{
    size_t size;
    char *text = bd_file_read_text(path, (size_t)1 << 30, &size, NULL);
    json_t *last = NULL;
    for (char *line = text; line && *line;) {
        char *end = strchr(line, '\n');
        json_t *value = json_loadb(line, end ? (size_t)(end - line) : strlen(line), 0, NULL);
        if (json_object_get(value, "loss")) {
            json_decref(last);
            last = value;
        } else {
            json_decref(value);
        }
        line = end ? end + 1 : NULL;
    }
    free(text);
    return last;
}

static double number(json_t *object, const char *name)
{
    return json_number_value(json_object_get(object, name));
}

static void run_rows(demo *d, const char *name, const char *log)
{
    char label[64];
    json_t *last = last_line(log);
    snprintf(label, sizeof label, "%s: steps, loss", name);
    row(d, label, "%.0f, %.3f", number(last, "step"), number(last, "loss"));
    snprintf(label, sizeof label, "%s: training tokens/s", name);
    row(d, label, "%.0f", number(last, "tokens_per_second"));
    json_decref(last);
}

static bool compare_rows(demo *d, const char *dtype, bool *identical, bd_error *err)
{
    char name[32], label[80];
    snprintf(name, sizeof name, "compare-%s.json", dtype);
    json_t *result = bd_json_load(at(d, name), err);
    if (!result)
        return false;
    const struct {
        const char *label, *field;
    } rows[] = {{"plain decoding, tokens/s", "plain_tokens_per_second"},
                {"speculative decoding, tokens/s", "tokens_per_second"},
                {"speed-up", "speedup"},
                {"acceptance length", "acceptance_length"}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char value[64];
        snprintf(label, sizeof label, "%s: %s", dtype, rows[i].label);
        snprintf(value, sizeof value,
                 i < 2    ? "%.1f"
                 : i == 2 ? "%.2fx"
                          : "%.3f",
                 number(result, rows[i].field));
        row(d, label, "%s", value);
    }
    bool same = json_is_true(json_object_get(result, "identical"));
    snprintf(label, sizeof label, "%s: identical", dtype);
    row(d, label, "%s", same ? "yes" : "NO");
    *identical = *identical && same;
    json_decref(result);
    return true;
}

static bool conclude(demo *d, double began, bd_error *err)
{
    bool identical = true;
    d->table = json_array();
    printf("\n");
    run_rows(d, "target", at(d, "target/metrics.jsonl"));
    run_rows(d, "draft", at(d, "draft/metrics.jsonl"));
    bool ok = compare_rows(d, "f32", &identical, err) && compare_rows(d, "bf16", &identical, err);
    row(d, "seconds", "%.0f", bd_seconds() - began);
    char *table = json_dumps(d->table, JSON_COMPACT);
    const char *runs[] = {at(d, "target"), at(d, "draft")},
               *results[] = {at(d, "compare-f32.json")};
    ok = ok && bd_report_write(at(d, "report.html"), "bdlm demo", runs, 2, results, 1, table, err);
    free(table);
    json_decref(d->table);
    if (ok)
        printf("\nidentical: %s\n%s\n", identical ? "yes" : "NO", at(d, "report.html"));
    return ok && (identical || bd_fail(err, "speculative and plain output differ"));
}

static bool prepare(const demo *d, bd_error *err)
{
    const char *const runs[] = {"target", "draft", "tokenizer"};
    if (!bd_folder_make(d->out, err))
        return false;
    for (int i = 0; i < 3; i++)
        if (!bd_folder_remove(at(d, runs[i]), err))
            return false;
    return write_text(d, err);
}

static bool tell(demo *d, bd_error *err)
{
    double began = bd_seconds();
    const char *const tokenizer[] = {
        "tokenizer", "train", at(d, "train.txt"), "--out", at(d, "tokenizer"), "--vocab-size",
        "4096",      NULL};
    return prepare(d, err) && run(bd_command_tokenizer_train, tokenizer, err) &&
           train_target(d, err) && regenerate(d, err) && train_draft(d, err) &&
           compare(d, "f32", err) && compare(d, "bf16", err) && conclude(d, began, err);
}

int bd_command_demo(int argc, char **argv)
{
    demo d = {.out = "demo",
              .text = "/usr/share/dictd/gcide.dict.dz",
              .megabytes = 6,
              .target_steps = 340,
              .draft_steps = 450,
              .prompts = 12,
              .regenerated = 800};
    const bd_option list[] = {
        {"out", "o", BD_ARGUMENT_TEXT, "FOLDER", "where everything goes (demo)", &d.out, 0, 0,
         false},
        {"text", NULL, BD_ARGUMENT_TEXT, "FILE", "text to learn (Debian's dict-gcide)", &d.text, 0,
         0, false},
        {"megabytes", NULL, BD_ARGUMENT_INT, "N", "of it (6)", &d.megabytes, 1, 1e6, false},
        {"target-steps", NULL, BD_ARGUMENT_INT, "N", "training steps of the target",
         &d.target_steps, 1, 1e9, false},
        {"draft-steps", NULL, BD_ARGUMENT_INT, "N", "training steps of the draft", &d.draft_steps,
         1, 1e9, false},
        {"prompts", NULL, BD_ARGUMENT_INT, "N", "prompts to compare on (12)", &d.prompts, 1, 1e6,
         false},
        {"regenerated", NULL, BD_ARGUMENT_INT, "N", "texts the target writes for the draft (800)",
         &d.regenerated, 1, 1e6, false},
    };
    const bd_options options = {
        .command = "demo",
        .summary = "Trains a causal target and a drafter for it on real text and generates "
                   "the same text with and without the drafter.",
        .list = list,
        .count = sizeof list / sizeof *list};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("demo", &err);
    return tell(&d, &err) ? 0 : bd_run_error("demo", &err);
}
