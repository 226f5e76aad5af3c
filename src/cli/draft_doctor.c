/* bdlm draft doctor - what is wrong between a draft and its target, found by measuring. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "cli/command.h"
#include "cli/pair.h"
#include "draft/doctor.h"
#include "format/corpus.h"
#include "format/json.h"

/* Beginnings of many kinds of text, for a target of which nothing is known. */
static const char *const openings[] = {
    "The history of the city begins",
    "Once upon a time there was",
    "1. First, we need to",
    "Question: What is the difference between",
    "def main(argv):\n    ",
    "In this paper we show that",
    "Dear Sir or Madam,\n\n",
    "#include <stdio.h>\n\nint main(void)\n{\n",
    "She opened the door and",
    "The following table lists",
    "According to the report,",
    "To be or not to be,",
    "A \\A\\, n.\n   1. The",
    "\n\n",
    "{\"name\": \"",
    "It was in the year 18",
};

enum { OPENINGS = sizeof openings / sizeof *openings, OPENING = 32, LEAD = 24, MOST_TEXTS = 256 };

typedef struct {
    bd_pair pair;
    const char *draft, *text, *json;
    int64_t rows, length;
    bool given;
    bd_patient patient;
    bd_trial_text texts[MOST_TEXTS];
    int64_t count;
    bd_diagnosis diagnosis;
} examination;

// --- the calibration text ------------------------------------------------------------------------

static bool add_text(examination *x, const int32_t *tokens, int64_t count, int64_t first,
                     bd_error *err)
{
    int32_t *copy = malloc((size_t)x->length * sizeof *copy);
    if (!copy)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for %lld tokens", (long long)x->length);
    memcpy(copy, tokens, (size_t)count * sizeof *copy);
    x->texts[x->count++] = (bd_trial_text){.tokens = copy, .count = count, .first = first};
    return true;
}

/* The beginning of a string, at most half of a row, so that there is room to go on. */
static bool add_opening(examination *x, const char *text, bd_error *err)
{
    bd_tokens tokens = {0};
    int64_t most = x->length / 2;
    bool ok = bd_tokenizer_encode(x->pair.text, text, strlen(text), NULL, &tokens, err);
    int64_t count = tokens.count < most ? tokens.count : most;
    if (ok && count > 0)
        ok = add_text(x, tokens.ids, count, count, err);
    bd_tokens_free(&tokens);
    return ok;
}

static bool openings_of_prompts(examination *x, bd_error *err)
{
    bd_prompts prompts = {0};
    bool ok = bd_prompts_read(&prompts, x->text, x->rows, err);
    for (int64_t i = 0; ok && i < prompts.count; i++)
        ok = add_opening(x, prompts.items[i], err);
    bd_prompts_free(&prompts);
    return ok;
}

/* Pieces of a text, evenly spread: whole rows to be taken as they are, or openings. */
static bool pieces_of_text(examination *x, bd_error *err)
{
    bd_corpus corpus;
    int64_t size = x->given ? x->length : OPENING < x->length / 2 ? OPENING : x->length / 2;
    bd_progress *bar = bd_progress_begin("reading", bd_corpus_size(&x->text, 1, err));
    bool ok = bd_corpus_read(x->pair.text, &x->text, 1, (bd_document_options){.entries = true}, bar,
                             &corpus, err);
    bd_progress_end(bar);
    if (!ok)
        return false;
    int64_t rows = corpus.count / size < x->rows ? corpus.count / size : x->rows;
    int64_t step = rows > 0 ? corpus.count / rows : 0;
    for (int64_t i = 0; ok && i < rows; i++)
        ok = add_text(x, corpus.tokens + i * step, size, x->given ? OPENING : size, err);
    bd_corpus_free(&corpus);
    return ok;
}

static bool is_jsonl(const char *path)
{
    size_t length = strlen(path);
    return length > 6 && !strcmp(path + length - 6, ".jsonl");
}

/* The target goes on by itself, past its stop tokens. */
static bool go_on(examination *x, bd_trial_text *text, int64_t most, float temperature,
                  uint64_t seed, bd_error *err)
{
    bd_generation options = bd_generation_default();
    options.most = most;
    options.sampling.temperature = temperature;
    options.sampling.seed = seed;
    int32_t *end = (int32_t *)text->tokens + text->count;
    int64_t n = bd_generate(x->pair.decoder, text->tokens, text->count, &options, end, NULL, err);
    text->count += n > 0 ? n : 0;
    return n >= 0;
}

/* Greedily from each opening. Where the same opening comes again, some sampled words before that
 * make it another one. */
static bool write_on(examination *x, bd_error *err)
{
    bd_progress *bar = bd_progress_begin("writing", x->count);
    bool ok = true;
    for (int64_t i = 0; ok && i < x->count; i++) {
        bd_trial_text *text = &x->texts[i];
        if (!x->text && i >= OPENINGS && x->length - text->count > 2 * LEAD) {
            ok = go_on(x, text, LEAD, 1, (uint64_t)i, err);
            text->first = text->count;
        }
        ok = ok && go_on(x, text, x->length - text->count, 0, 0, err);
        bd_progress_update(bar, i + 1, "%lld tokens each", (long long)x->length);
    }
    bd_progress_end(bar);
    return ok;
}

static bool make_texts(examination *x, bd_error *err)
{
    bool ok = true;
    int64_t least = 5 * x->patient.draft->config.block_size; // for a few blocks, and to test leaks
    if (x->length < least)
        x->length = least;
    if (x->length > x->pair.context - 1)
        x->length = x->pair.context - 1;
    for (int i = 0; ok && !x->text && i < x->rows; i++)
        ok = add_opening(x, openings[i % OPENINGS], err);
    if (x->text)
        ok = is_jsonl(x->text) ? openings_of_prompts(x, err) : pieces_of_text(x, err);
    return ok && (x->given || write_on(x, err));
}

// --- the report ----------------------------------------------------------------------------------

static const char *const verdicts[] = {"well", "no difference",
                                       "perhaps better: more text (--rows)", "FAULT",
                                       "better, until the fault is mended"};

static void print_finding(const bd_finding *f)
{
    char measured[64] = "";
    if (f->measured)
        snprintf(measured, sizeof measured, "%10.3f %+8.3f +-%.3f", f->paired.other,
                 f->paired.difference, f->paired.error);
    printf("%-7s %-46s %-28s %s\n", bd_part_name(f->part), f->what, measured, verdicts[f->verdict]);
}

static void print_faults(const bd_diagnosis *d)
{
    if (d->faults == 0) {
        printf("all is well: %.3f tokens per pass of the target, and nothing tried does clearly "
               "better\n",
               d->acceptance);
        return;
    }
    for (int64_t i = 0; i < d->count; i++) {
        const bd_finding *f = &d->items[i];
        if (f->verdict != BD_VERDICT_FAULT)
            continue;
        printf("fault: %s: %s", bd_part_name(f->part), f->what);
        if (f->measured)
            printf(": %.3f tokens per pass instead of %.3f", f->paired.other, f->paired.acceptance);
        printf("\n  fix: %s\n", f->fix);
    }
}

static void print_report(const bd_diagnosis *d)
{
    printf("%-7s %-46s %10s %8s\n", "part", "hypothesis", "acceptance", "change");
    printf("%-7s %-46s %10.3f\n", "-", "as configured", d->acceptance);
    for (int64_t i = 0; i < d->count; i++)
        print_finding(&d->items[i]);
    printf("%lld blocks; acceptance is tokens per pass of the target\n\n", (long long)d->anchors);
    print_faults(d);
}

static bool write_json(const bd_diagnosis *d, const char *path, bd_error *err)
{
    static const char *const words[] = {"well", "same", "perhaps", "fault", "shadow"};
    json_t *findings = json_array();
    for (int64_t i = 0; i < d->count; i++) {
        const bd_finding *f = &d->items[i];
        json_t *entry = json_pack("{s:s,s:s,s:s,s:i}", "part", bd_part_name(f->part), "hypothesis",
                                  f->what, "verdict", words[f->verdict], "round", f->round);
        if (f->measured) {
            json_object_set_new(entry, "acceptance", json_real(f->paired.other));
            json_object_set_new(entry, "against", json_real(f->paired.acceptance));
            json_object_set_new(entry, "standard_error", json_real(f->paired.error));
        }
        if (f->verdict == BD_VERDICT_FAULT)
            json_object_set_new(entry, "fix", json_string(f->fix));
        json_array_append_new(findings, entry);
    }
    json_t *root = json_pack("{s:b,s:I,s:I,s:f,s:f,s:o}", "well", d->faults == 0, "faults",
                             (json_int_t)d->faults, "anchors", (json_int_t)d->anchors, "acceptance",
                             d->acceptance, "acceptance_mended", d->mended, "findings", findings);
    bool ok = root ? bd_json_save(root, path, err)
                   : bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory for it", path);
    json_decref(root);
    return ok;
}

// --- the command ---------------------------------------------------------------------------------

/* Tokens that programs take for a mask, the likeliest first. */
static int64_t likely_masks(const examination *x, int32_t out[4])
{
    int64_t count = 0;
    int32_t mask = bd_tokenizer_role(x->pair.text, BD_ROLE_MASK);
    if (mask >= 0)
        out[count++] = mask;
    out[count++] = (int32_t)bd_tokenizer_size(x->pair.text) - 1;
    return count;
}

static bool examine(examination *x, bd_error *err)
{
    int32_t masks[4];
    if (x->given && (!x->text || is_jsonl(x->text)))
        return bd_fail_as(err, BD_ERROR_USAGE,
                          "--given: a text is wanted with it (--text FILE.txt)");
    if (!bd_pair_open(&x->pair, err) ||
        !bd_patient_open(x->draft, x->pair.target, x->pair.target->compute, &x->patient, err) ||
        !make_texts(x, err))
        return false;
    bd_doctor doctor = bd_doctor_default();
    doctor.patient = &x->patient;
    doctor.texts = x->texts;
    doctor.text_count = x->count;
    doctor.masks = masks;
    doctor.mask_count = likely_masks(x, masks);
    doctor.progress = bd_progress_begin;
    if (!bd_doctor_examine(&doctor, &x->diagnosis, err))
        return false;
    if (x->json && !write_json(&x->diagnosis, x->json, err))
        return false;
    print_report(&x->diagnosis);
    return true;
}

int bd_command_draft_doctor(int argc, char **argv)
{
    static examination x = {.rows = OPENINGS, .length = 192};
    const bd_option list[] = {
        {"target", "m", BD_ARGUMENT_TEXT, "FOLDER", "the target", &x.pair.model, 0, 0, true},
        {"draft", "md", BD_ARGUMENT_TEXT, "FOLDER", "the draft", &x.draft, 0, 0, true},
        {"text", NULL, BD_ARGUMENT_TEXT, "FILE",
         "openings: pieces of a text, or the prompts of a .jsonl (some of its own)", &x.text, 0, 0,
         false},
        {"given", NULL, BD_ARGUMENT_FLAG, NULL,
         "take the text as it is; the target does not write on (faster, less sure)", &x.given, 0, 0,
         false},
        {"rows", NULL, BD_ARGUMENT_INT, "N", "how many openings at most (16)", &x.rows, 1,
         MOST_TEXTS, false},
        {"length", NULL, BD_ARGUMENT_INT, "N", "tokens of each, opening included (192)", &x.length,
         16, 1e6, false},
        {"json", NULL, BD_ARGUMENT_TEXT, "FILE", "the findings as JSON", &x.json, 0, 0, false},
        {"tokenizer", NULL, BD_ARGUMENT_TEXT, "FOLDER", "tokenizer, if not the target folder's",
         &x.pair.tokenizer, 0, 0, false},
        {"dtype", NULL, BD_ARGUMENT_CHOICE, "bf16|f32",
         "what matrix products round their inputs to (bf16)", &x.pair.dtype, 0, 0, false},
        {"threads", "t", BD_ARGUMENT_INT, "N", "threads (all cores, or OMP_NUM_THREADS)",
         &x.pair.threads, 1, 256, false},
    };
    const bd_options options = {
        .command = "draft doctor",
        .usage = "--target FOLDER --draft FOLDER [--text FILE]",
        .summary = "Drafts as configured and in every other way a draft may have been trained, and "
                   "names what is configured wrongly, with a fix. Exit status 1 if something is.",
        .list = list,
        .count = sizeof list / sizeof *list};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("draft doctor", &err);
    bool ok = examine(&x, &err);
    int64_t faults = x.diagnosis.faults;
    for (int64_t i = 0; i < x.count; i++)
        free((int32_t *)x.texts[i].tokens);
    if (x.patient.draft)
        bd_patient_close(&x.patient);
    bd_pair_close(&x.pair);
    return ok ? faults > 0 : bd_run_error("draft doctor", &err);
}
