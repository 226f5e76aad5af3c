/* What the doctor measures is what a session would propose; its rule; what it reads in a folder;
 * and that no draft of any kind sees what it must not. */
#include <unistd.h>

#include "base/file.h"
#include "draft/decoder.h"
#include "draft/doctor.h"
#include "draft/leak.h"
#include "golden.h"

enum { LENGTH = 72, ROWS = 8, FIRST = 8, GOLDEN_LAYERS = 5 };

static const char *const drafts[][2] = {
    {"draft-dflash", "target-qwen3-tiny"},         {"draft-dflash-swa", "target-llama-tiny"},
    {"draft-dflash2", "target-llama-tiny"},        {"draft-domino", "target-qwen3-tiny"},
    {"draft-dspark-gated", "target-llama-tiny"},   {"draft-dspark-rnn", "target-qwen2-tiny"},
    {"draft-dspark-vanilla", "target-qwen3-tiny"}, {"draft-lilicorr", "target-qwen2-tiny"},
    {"draft-lilicorr-conv", "target-qwen3-tiny"}};
enum { DRAFTS = sizeof drafts / sizeof *drafts };

static char folder[BD_PATH];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/bdlm-doctor-%ld", (long)getpid());
    return 0;
}

static int remove_folder(void **state)
{
    bd_error err = {0};
    (void)state;
    return bd_folder_remove(folder, &err) ? 0 : 1;
}

// --- the rule ------------------------------------------------------------------------------------

static bool is_larger(double from, double to, double error, int64_t anchors)
{
    const bd_paired p = {.anchors = anchors,
                         .acceptance = from,
                         .other = to,
                         .difference = to - from,
                         .error = error};
    const bd_paired back = {.anchors = anchors,
                            .acceptance = to,
                            .other = from,
                            .difference = from - to,
                            .error = error};
    assert_false(bd_paired_is_larger(&p) && !bd_paired_is_smaller(&back));
    assert_false(bd_paired_is_larger(&back));
    return bd_paired_is_larger(&p);
}

static void the_rule(void **state)
{
    (void)state;
    assert_true(is_larger(1.0, 2.5, 0.1, 64));
    assert_false(is_larger(1.0, 2.5, 0.1, 63));   // too few anchors
    assert_false(is_larger(1.0, 2.5, 0.6, 64));   // three standard errors
    assert_false(is_larger(2.0, 2.25, 0.08, 99)); // 12.5 %, sure to three
    assert_true(is_larger(2.0, 2.25, 0.04, 99));  // and to six
    assert_false(is_larger(3.0, 3.1, 0.01, 99));  // sure, but a trifle
    assert_false(is_larger(1.0, 1.39, 0.01, 99)); // next to nothing either way
    assert_true(is_larger(1.0, 1.41, 0.01, 99));
}

static void paired_numbers(void **state)
{
    (void)state;
    const bd_paired p = bd_paired_make((int32_t[]){0, 1, 2, 0}, (int32_t[]){1, 1, 4, 2}, 4);
    assert_int_equal(p.anchors, 4);
    check_near(p.acceptance, 1.75, 1e-12);
    check_near(p.other, 3, 1e-12);
    check_near(p.difference, 1.25, 1e-12);
    check_near(p.error, 0.47871355387, 1e-9); // sqrt(2.75 / 12)
}

// --- measuring -----------------------------------------------------------------------------------

typedef struct {
    bd_model *target;
    bd_patient patient;
    int32_t tokens[ROWS][LENGTH];
    bd_trial_text texts[ROWS];
    bd_diagnosis diagnosis;
} bed;

/* Text that the target wrote in part: every fifth token is another one. */
static void write_texts(bed *b)
{
    bd_error err = {0};
    int64_t vocabulary = b->target->config.vocabulary;
    bd_decoder *decoder = bd_decoder_create(b->target, NULL, LENGTH + 1, &err);
    check_ok(decoder != NULL, err);
    for (int r = 0; r < ROWS; r++) {
        int32_t *row = b->tokens[r];
        row[0] = (int32_t)(r * 7 + 3);
        for (int i = 1; i < LENGTH; i++) {
            const float *logits = bd_decoder_follow(decoder, row, i, &err);
            check_ok(logits != NULL, err);
            row[i] = i % 5 ? (int32_t)bd_argmax(logits, vocabulary)
                           : (int32_t)((row[i - 1] * 5 + i + r) % vocabulary);
        }
        b->texts[r] = (bd_trial_text){.tokens = row, .count = LENGTH, .first = FIRST};
    }
    bd_decoder_free(decoder);
}

static bed *open_bed(const char *draft, const char *target)
{
    char path[300];
    bd_error err = {0};
    bed *b = calloc(1, sizeof *b);
    b->target = golden_target(target, BD_F32);
    snprintf(path, sizeof path, DRAFT_GOLDEN "%s", draft);
    check_ok(bd_patient_open(path, b->target, BD_F32, &b->patient, &err), err);
    write_texts(b);
    return b;
}

static void close_bed(bed *b)
{
    bd_patient_close(&b->patient);
    bd_model_close(b->target);
    free(b);
}

static void examine(bed *b)
{
    bd_error err = {0};
    bd_doctor doctor = bd_doctor_default();
    doctor.patient = &b->patient;
    doctor.texts = b->texts;
    doctor.text_count = ROWS;
    check_ok(bd_doctor_examine(&doctor, &b->diagnosis, &err), err);
}

/* Tokens that stand of what a session proposes at one anchor. */
static int64_t session_stands(bd_decoder *decoder, const int32_t *row, int64_t anchor)
{
    bd_error err = {0};
    int64_t vocabulary = bd_decoder_target(decoder)->config.vocabulary, stand = 0;
    int32_t best[BD_MOST_BLOCK + 1], drafted[BD_MOST_BLOCK];
    bd_proposal proposal = {.limit = 0};
    check_ok(bd_decoder_follow(decoder, row, anchor, &err) != NULL, err);
    int64_t count = bd_decoder_propose(decoder, row[anchor], &proposal, &err);
    assert_true(count > 0);
    memcpy(drafted, proposal.tokens, (size_t)count * sizeof *drafted);
    int64_t known = LENGTH - anchor < count ? LENGTH - anchor : count;
    const float *logits = bd_decoder_try(decoder, row + anchor, known, &err);
    check_ok(logits != NULL, err);
    bd_best_tokens(logits, known, vocabulary, best);
    for (int64_t k = 0; k < known && drafted[k] == best[k]; k++) {
        stand++;
        if (anchor + k + 1 >= LENGTH || row[anchor + k + 1] != best[k])
            break;
    }
    check_ok(bd_decoder_keep(decoder, 0, &err), err);
    return stand;
}

static void the_measure_is_that_of_sessions(void **state)
{
    (void)state;
    int64_t all = 0;
    for (int i = 0; i < DRAFTS; i++) {
        bd_error err = {0};
        bed *b = open_bed(drafts[i][0], drafts[i][1]);
        examine(b);
        bd_decoder *decoder = bd_decoder_create(b->target, b->patient.draft, LENGTH + 32, &err);
        check_ok(decoder != NULL, err);
        int64_t size = b->patient.draft->config.block_size, stand = 0, anchors = 0;
        for (int r = 0; r < ROWS; r++)
            for (int64_t a = FIRST; a + size <= LENGTH; a += size < 8 ? size : 8, anchors++)
                stand += session_stands(decoder, b->tokens[r], a);
        assert_int_equal(b->diagnosis.anchors, anchors);
        check_near(b->diagnosis.acceptance, 1 + (double)stand / (double)anchors, 1e-9);
        all += stand;
        bd_decoder_free(decoder);
        close_bed(b);
    }
    assert_true(all > 20); // or it would have compared nothing
}

static void every_draft_can_be_examined(void **state)
{
    (void)state;
    for (int i = 0; i < DRAFTS; i++) {
        bed *b = open_bed(drafts[i][0], drafts[i][1]);
        examine(b);
        bool seen[BD_PARTS] = {false};
        for (int64_t f = 0; f < b->diagnosis.count; f++) {
            const bd_finding *finding = &b->diagnosis.items[f];
            seen[finding->part] = true;
            assert_true((finding->fix[0] != '\0') == (finding->verdict == BD_VERDICT_FAULT));
        }
        for (int part = 0; part < BD_PARTS; part++)
            if (part != BD_PART_HEAD && part != BD_PART_ROPE && part != BD_PART_DRAFT)
                assert_true(seen[part]);
        close_bed(b);
    }
}

static void no_draft_sees_ahead(void **state)
{
    (void)state;
    for (int i = 0; i < DRAFTS; i++) {
        bd_error err = {0};
        bd_leak leak;
        bed *b = open_bed(drafts[i][0], drafts[i][1]);
        check_ok(bd_draft_leak(b->patient.draft, b->tokens[0], LENGTH, &leak, &err), err);
        if (leak.count)
            fail_msg("%s: %s", drafts[i][0], leak.text);
        assert_true(leak.compared > 10 * b->target->config.vocabulary);
        check_refused(bd_draft_leak(b->patient.draft, b->tokens[0], 9, &leak, &err), err, "leaks");
        close_bed(b);
    }
}

static void too_little_text_is_refused(void **state)
{
    (void)state;
    bd_error err = {0};
    bed *b = open_bed(drafts[0][0], drafts[0][1]);
    bd_doctor doctor = bd_doctor_default();
    doctor.patient = &b->patient;
    doctor.texts = b->texts;
    doctor.text_count = 2;
    check_refused(bd_doctor_examine(&doctor, &b->diagnosis, &err), err, "at least 64");
    close_bed(b);
}

// --- folders and hypotheses ----------------------------------------------------------------------

static void save_config(const bd_draft *draft, void (*change)(json_t *root))
{
    char path[BD_PATH];
    bd_error err = {0};
    json_t *root = bd_draft_config_to_json(&draft->config);
    check_ok(bd_draft_save(draft, folder, BD_F32, &err), err);
    change(root);
    check_ok(bd_path_join(path, folder, "config.json", &err), err);
    check_ok(bd_json_save(root, path, &err), err);
    json_decref(root);
}

static void say_otherwise(json_t *root)
{
    json_t *nested = json_object_get(root, "dflash_config");
    json_object_set_new(nested, "shift_label", json_true());
    json_object_set_new(root, "vocab_size", json_integer(77));
    json_object_set_new(root, "sliding_window", json_integer(12));
}

static void count_from_one(json_t *root)
{
    json_t *nested = json_object_get(root, "dflash_config"), *taps = json_array();
    json_array_append_new(taps, json_integer(1));
    json_array_append_new(taps, json_integer(GOLDEN_LAYERS));
    json_object_set_new(nested, "target_layer_ids", taps);
}

static void contradict(json_t *root)
{
    json_object_set_new(json_object_get(root, "dflash_config"), "sample_from_anchor", json_true());
}

static void what_a_folder_says_is_told(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_patient p;
    bed *b = open_bed(drafts[0][0], drafts[0][1]);
    assert_int_equal(b->patient.shift, 0);
    assert_int_equal(b->patient.vocabulary, b->target->config.vocabulary);
    assert_null(b->patient.head);
    save_config(b->patient.draft, say_otherwise);
    check_refused(bd_draft_open(folder, b->target, BD_F32, &err) != NULL, err, "shift_label");
    err = (bd_error){0};
    check_ok(bd_patient_open(folder, b->target, BD_F32, &p, &err), err);
    assert_true(p.shift == 1 && p.shift_stated);
    assert_int_equal(p.vocabulary, 77);
    assert_int_equal(p.window, 12);
    assert_false(p.taps_lowered);
    bd_patient_close(&p);
    assert_int_equal(b->target->config.layers, GOLDEN_LAYERS);
    save_config(b->patient.draft, count_from_one);
    check_ok(bd_patient_open(folder, b->target, BD_F32, &p, &err), err);
    assert_true(p.taps_lowered);
    assert_int_equal(p.draft->config.taps[0], 0);
    assert_int_equal(p.draft->config.taps[1], GOLDEN_LAYERS - 1);
    bd_patient_close(&p);
    save_config(b->patient.draft, contradict);
    check_refused(bd_patient_open(folder, b->target, BD_F32, &p, &err), err, "differ");
    close_bed(b);
}

static int64_t count_part(const bd_hypotheses *list, bd_part part)
{
    int64_t count = 0;
    for (int64_t i = 0; i < list->count; i++)
        count += list->items[i].part == part;
    return count;
}

static void hypotheses_change_one_thing(void **state)
{
    (void)state;
    bed *b = open_bed(drafts[0][0], drafts[0][1]);
    bd_usage usage = bd_usage_of(&b->patient);
    static bd_hypotheses list;
    bd_hypotheses_make(&b->patient, &usage, (int32_t[]){1, 2, 1}, 3, &list);
    assert_int_equal(count_part(&list, BD_PART_LAYOUT), 1);
    assert_in_range(count_part(&list, BD_PART_MASK), 3, BD_MOST_CANDIDATES + 1);
    for (int64_t i = 0; i < list.count; i++) {
        bd_usage other = usage;
        bd_hypothesis_apply(&list.items[i], &other);
        const char *a = (const char *)&usage, *c = (const char *)&other;
        size_t from = list.items[i].offset, to = from + list.items[i].size;
        assert_memory_not_equal(a + from, c + from, list.items[i].size);
        assert_memory_equal(a, c, from);
        assert_memory_equal(a + to, c + to, sizeof usage - to);
    }
    // A second one on top of the first: what was mended is not proposed again.
    bd_hypothesis_apply(&list.items[0], &usage);
    assert_int_equal(usage.shift, 1);
    usage.norm = BD_STATES_ALL_AFTER;
    bd_hypotheses_make(&b->patient, &usage, NULL, 0, &list);
    assert_int_equal(count_part(&list, BD_PART_NORM), 0);
    close_bed(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rule),
        cmocka_unit_test(paired_numbers),
        cmocka_unit_test(the_measure_is_that_of_sessions),
        cmocka_unit_test(every_draft_can_be_examined),
        cmocka_unit_test(no_draft_sees_ahead),
        cmocka_unit_test(too_little_text_is_refused),
        cmocka_unit_test_setup_teardown(what_a_folder_says_is_told, make_folder, remove_folder),
        cmocka_unit_test(hypotheses_change_one_thing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
