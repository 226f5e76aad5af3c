/* bdlm demo - the whole story in minutes: real text, a tokenizer, a causal target, a drafter for
 * it, the same text generated with and without the drafter; then the target as a block-diffusion
 * student, and a student that learns from a teacher. Every step is a command a user can type. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/progress.h"
#include "cli/demo.h"
#include "cli/options.h"
#include "cli/report.h"
#include "format/dataset.h"
#include "format/json.h"

typedef bd_demo demo;

// --- text ----------------------------------------------------------------------------------------

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
    bd_writer *out = bd_writer_open(bd_demo_path(d, "prompts.jsonl"), err);
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
    bd_writer *out = documents ? bd_writer_open(bd_demo_path(d, "train.txt"), err) : NULL;
    bd_writer *openings = out ? bd_writer_open(bd_demo_path(d, "openings.jsonl"), err) : NULL;
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

// --- steps ---------------------------------------------------------------------------------------

static bool train_target(const demo *d, bd_error *err)
{
    char steps[32];
    snprintf(steps, sizeof steps, "%lld", (long long)d->target_steps);
    const char *const words[] = {"pretrain",
                                 "--train-files",
                                 bd_demo_path(d, "train.txt"),
                                 "--tokenizer",
                                 bd_demo_path(d, "tokenizer"),
                                 "--out",
                                 bd_demo_path(d, "target"),
                                 "--hidden-size",
                                 "384",
                                 "--num-hidden-layers",
                                 "8",
                                 "--num-attention-heads",
                                 "6",
                                 "--num-key-value-heads",
                                 "2",
                                 "--intermediate-size",
                                 "1024",
                                 "--max-position-embeddings",
                                 "1024",
                                 BD_DEMO_BATCH,
                                 "--max-steps",
                                 steps,
                                 "--lr",
                                 "2e-3",
                                 BD_DEMO_SCHEDULE,
                                 "--weight-decay",
                                 "0.1",
                                 "--adam-b2",
                                 "0.98",
                                 "--dtype",
                                 "bf16",
                                 NULL};
    return bd_demo_run(bd_command_pretrain, NULL, words, err);
}

/* The drafter learns from text that the target writes, because that is what it will draft: the
 * target's own continuations of openings from the training text.
 * They are greedy, so their tokens are the labels: cross entropy alone is what acceptance asks for.
 */
static bool regenerate(const demo *d, bd_error *err)
{
    const char *const words[] = {"generate",
                                 "--model",
                                 bd_demo_path(d, "target/latest"),
                                 "--prompts",
                                 bd_demo_path(d, "openings.jsonl"),
                                 "--tokens",
                                 "160",
                                 "--ignore-eos",
                                 NULL};
    return bd_demo_run(bd_command_generate, bd_demo_path(d, "written.txt"), words, err);
}

static bool train_draft(const demo *d, bd_error *err)
{
    char steps[32];
    snprintf(steps, sizeof steps, "%lld", (long long)d->draft_steps);
    const char *const words[] = {"draft",
                                 "train",
                                 "--path",
                                 bd_demo_path(d, "target/latest"),
                                 "--train-files",
                                 bd_demo_path(d, "written.txt"),
                                 "--out",
                                 bd_demo_path(d, "draft"),
                                 "--num-hidden-layers",
                                 "2",
                                 "--num-attention-heads",
                                 "6",
                                 "--num-key-value-heads",
                                 "2",
                                 "--head-dim",
                                 "64",
                                 "--intermediate-size",
                                 "1024",
                                 "--block-size",
                                 "8",
                                 "--num-anchors",
                                 "24",
                                 "--self-logit-distillation",
                                 "false",
                                 BD_DEMO_BATCH,
                                 "--max-steps",
                                 steps,
                                 "--lr",
                                 "4e-3",
                                 BD_DEMO_SCHEDULE,
                                 "--dtype",
                                 "bf16",
                                 NULL};
    return bd_demo_run(bd_command_draft_train, NULL, words, err);
}

/* Both number formats: in f32 a token costs the reading of all weights, so a block of them is cheap
 * to verify; in bf16 plain decoding is faster to begin with. */
static bool compare(const demo *d, const char *dtype, bd_error *err)
{
    char name[32];
    snprintf(name, sizeof name, "compare-%s.json", dtype);
    const char *const words[] = {"generate",
                                 "--model",
                                 bd_demo_path(d, "target/latest"),
                                 "--draft",
                                 bd_demo_path(d, "draft/latest"),
                                 "--prompts",
                                 bd_demo_path(d, "prompts.jsonl"),
                                 "--tokens",
                                 "192",
                                 "--ignore-eos",
                                 "--compare",
                                 "--dtype",
                                 dtype,
                                 "--json",
                                 NULL};
    return bd_demo_run(bd_command_generate, bd_demo_path(d, name), words, err);
}

// --- the table -----------------------------------------------------------------------------------

static void run_rows(demo *d, const char *name)
{
    char label[64];
    json_t *last = bd_demo_line(d, name, "loss", false);
    snprintf(label, sizeof label, "%s: steps, loss", name);
    bd_demo_row(d, label, "%.0f, %.3f", bd_demo_number(last, "step"), bd_demo_number(last, "loss"));
    snprintf(label, sizeof label, "%s: training tokens/s", name);
    bd_demo_row(d, label, "%.0f", bd_demo_number(last, "tokens_per_second"));
    json_decref(last);
}

static bool compare_rows(demo *d, const char *dtype, bd_error *err)
{
    char name[32], label[80];
    snprintf(name, sizeof name, "compare-%s.json", dtype);
    json_t *result = bd_json_load(bd_demo_path(d, name), err);
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
                 bd_demo_number(result, rows[i].field));
        bd_demo_row(d, label, "%s", value);
    }
    bool same = json_is_true(json_object_get(result, "identical"));
    snprintf(label, sizeof label, "%s: identical", dtype);
    bd_demo_row(d, label, "%s", same ? "yes" : "NO");
    d->identical = d->identical && same;
    json_decref(result);
    return true;
}

static bool conclude(demo *d, double began, bd_error *err)
{
    d->table = json_array();
    d->identical = true;
    printf("\n");
    run_rows(d, "target");
    run_rows(d, "draft");
    bool ok = compare_rows(d, "f32", err) && compare_rows(d, "bf16", err) &&
              bd_demo_blocks_rows(d, err) && bd_demo_distill_rows(d, err) &&
              bd_demo_compare_rows(d, err);
    bd_demo_row(d, "seconds", "%.0f", bd_seconds() - began);
    char *table = json_dumps(d->table, JSON_COMPACT);
    const char *runs[] = {bd_demo_path(d, "target"), bd_demo_path(d, "draft"),
                          bd_demo_path(d, "student"), bd_demo_path(d, "distilled")},
               *results[] = {bd_demo_path(d, "compare-f32.json"), bd_demo_path(d, "blocks.json")};
    ok = ok && bd_report_write(bd_demo_path(d, "report.html"), "bdlm demo", runs, 4, results, 2,
                               table, err);
    free(table);
    json_decref(d->table);
    if (ok)
        printf("\nidentical: %s\n%s\n", d->identical ? "yes" : "NO",
               bd_demo_path(d, "report.html"));
    return ok && (d->identical || bd_fail(err, "two ways to generate the same text differ"));
}

static bool prepare(const demo *d, bd_error *err)
{
    static const char *const runs[] = {
        "target",          "draft",   "student",    "tokenizer",  "exercises-tokenizer",
        "exercises-start", "teacher", "apprentice", "fine-tuned", "distilled",
        "states",          "drafters"};
    if (!bd_folder_make(d->out, err))
        return false;
    for (size_t i = 0; i < sizeof runs / sizeof *runs; i++)
        if (!bd_folder_remove(bd_demo_path(d, runs[i]), err))
            return false;
    return write_text(d, err);
}

static bool train_tokenizer(const demo *d, bd_error *err)
{
    const char *const words[] = {"tokenizer",
                                 "train",
                                 bd_demo_path(d, "train.txt"),
                                 "--out",
                                 bd_demo_path(d, "tokenizer"),
                                 "--vocab-size",
                                 "4096",
                                 NULL};
    return bd_demo_run(bd_command_tokenizer_train, NULL, words, err);
}

static bool tell(demo *d, bd_error *err)
{
    double began = bd_seconds();
    return prepare(d, err) && train_tokenizer(d, err) && train_target(d, err) &&
           regenerate(d, err) && train_draft(d, err) && compare(d, "f32", err) &&
           compare(d, "bf16", err) && bd_demo_blocks(d, err) && bd_demo_distill(d, err) &&
           bd_demo_compare(d, err) && conclude(d, began, err);
}

int bd_command_demo(int argc, char **argv)
{
    demo d = {.out = "demo",
              .text = "/usr/share/dictd/gcide.dict.dz",
              .megabytes = 6,
              .target_steps = 240,
              .draft_steps = 400,
              .student_steps = 180,
              .prompts = 12,
              .regenerated = 600};
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
        {"student-steps", NULL, BD_ARGUMENT_INT, "N",
         "training steps of the block-diffusion student", &d.student_steps, 1, 1e9, false},
        {"prompts", NULL, BD_ARGUMENT_INT, "N", "prompts to compare on (12)", &d.prompts, 1, 1e6,
         false},
        {"regenerated", NULL, BD_ARGUMENT_INT, "N", "texts the target writes for the draft (600)",
         &d.regenerated, 1, 1e6, false},
    };
    const bd_options options = {
        .command = "demo",
        .summary = "Trains a causal target and a drafter for it on real text and generates "
                   "the same text with and without the drafter; then block diffusion and "
                   "distillation.",
        .list = list,
        .count = sizeof list / sizeof *list};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("demo", &err);
    return tell(&d, &err) ? 0 : bd_run_error("demo", &err);
}
