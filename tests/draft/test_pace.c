/* The pace: costs between measurements, the best length, the cut by confidence, and what whole
 * texts cost under it, all with made-up times. */
#include "base/random.h"
#include "check.h"
#include "draft/pace.h"

static void note(bd_pace *pace, int64_t proposed, int64_t accepted, double draft, double pass)
{
    bd_pace_note(pace, &(bd_pace_cycle){.proposed = proposed,
                                        .verified = proposed,
                                        .accepted = accepted,
                                        .made = accepted + 1,
                                        .draft_seconds = draft,
                                        .pass_seconds = pass});
}

static void measured(bd_duration *d, double seconds)
{
    *d = (bd_duration){seconds, 10};
}

// --- costs ---------------------------------------------------------------------------------------

static void costs_lie_between_measurements(void **state)
{
    (void)state;
    bd_pace p = bd_pace_new(7);
    check_near(bd_pace_pass_seconds(&p, 3), 0, 0);
    measured(&p.pass[1], 1);
    check_near(bd_pace_pass_seconds(&p, 1), 1, 0);
    check_near(bd_pace_pass_seconds(&p, 5), 1, 0); // nothing else is known
    measured(&p.pass[3], 2);
    check_near(bd_pace_pass_seconds(&p, 2), 1.5, 1e-12);
    check_near(bd_pace_pass_seconds(&p, 5), 3, 1e-12); // the same line goes on
    measured(&p.pass[8], 2.5);
    check_near(bd_pace_pass_seconds(&p, 4), 2.1, 1e-12);
    check_near(bd_pace_pass_seconds(&p, 8), 2.5, 0);
    measured(&p.pass[8], 1.4); // then three rows cannot have cost 2
    check_near(bd_pace_pass_seconds(&p, 3), 1.4, 0);
    check_near(bd_pace_pass_seconds(&p, 2), 1 + 0.4 / 7, 1e-12);
    measured(&p.draft[4], 0.5);
    check_near(bd_pace_draft_seconds(&p, 1), 0.5, 0);
    check_near(bd_pace_draft_seconds(&p, 7), 0.5, 0);
}

static void measurements_are_smoothed(void **state)
{
    (void)state;
    bd_pace p = bd_pace_new(7);
    bd_pace_begin(&p, 100);
    const double first[4] = {9, 1.2, 1, 1.1}; // memory is touched for the first time
    for (int i = 0; i < 4; i++)
        note(&p, 0, 0, 0, first[i]);
    check_near(bd_pace_pass_seconds(&p, 1), 1, 0);
    note(&p, 0, 0, 0, 1.2);
    check_near(bd_pace_pass_seconds(&p, 1), 1.02, 1e-12);
    note(&p, 0, 0, 0, 1000); // something else had the machine
    check_near(bd_pace_pass_seconds(&p, 1), 1.02 * 1.05, 1e-12);
    p.held = true;
    note(&p, 0, 0, 0, 5);
    check_near(bd_pace_pass_seconds(&p, 1), 1.02 * 1.05, 1e-12);
    assert_int_equal(p.made, 7);
}

// --- lengths -------------------------------------------------------------------------------------

/* Passes of 1 + row seconds for each further row, a draft of so many, and places that stand with
 * this chance by long experience. */
static bd_pace known(double row, double draft, double chance)
{
    bd_pace p = bd_pace_new(7);
    for (int64_t n = 0; n <= 7; n++) {
        measured(&p.pass[n + 1], 1 + row * (double)n);
        measured(&p.draft[n], draft);
    }
    for (int64_t i = 0; i < 7; i++) {
        p.tested[i] = 1e9;
        p.accepted[i] = 1e9 * chance;
    }
    p.tokens = p.seconds = 1;
    bd_pace_begin(&p, 1000);
    p.made = 1;
    return p;
}

static void the_best_length(void **state)
{
    (void)state;
    double rate;
    bd_pace p = known(0, 0.5, 0.5);
    check_near(bd_pace_expected(&p, 0), 1, 0);
    check_near(bd_pace_expected(&p, 3), 1.875, 1e-6);
    assert_int_equal(bd_pace_best_length(&p, 7, &rate), 7); // rows are free
    check_near(rate, (2 - 0.0078125) / 1.5, 1e-6);
    assert_int_equal(bd_pace_best_length(&p, 4, &rate), 4);
    // (1 + 1/2 + 1/4) / (1.5 + 0.2) = 1.029 beats 1.5 / 1.6 = 0.94, 1.875 / 1.8 = 1.042 both,
    // 1.9375 / 1.9 = 1.020.
    p = known(0.1, 0.5, 0.5);
    assert_int_equal(bd_pace_best_length(&p, 7, &rate), 3);
    check_near(rate, 1.875 / 1.8, 1e-6);
    p = known(0.1, 0.5, 0.95);
    assert_int_equal(bd_pace_best_length(&p, 7, &rate), 7);
    // Nobody has tested the third place: it is taken to be like the second.
    p = known(0.1, 0.5, 0.9);
    p.tested[2] = p.accepted[2] = 0;
    check_near(bd_pace_expected(&p, 3), 1 + .9 + .81 + .729, 1e-6);
}

static void plans(void **state)
{
    (void)state;
    bd_pace p = bd_pace_new(7);
    bd_pace_begin(&p, 200);
    assert_int_equal(bd_pace_plan(&p, BD_DRAFT_FIXED, 5, false), 5);
    assert_int_equal(bd_pace_plan(&p, BD_DRAFT_AUTO, 5, false), 0); // nothing to compare with
    assert_int_equal(bd_pace_plan(&p, BD_DRAFT_CONFIDENCE, 5, true), 0);
    note(&p, 0, 0, 0, 1);
    note(&p, 0, 0, 0, 1);
    assert_int_equal(bd_pace_plan(&p, BD_DRAFT_CONFIDENCE, 5, true), 5);
    assert_int_equal(bd_pace_plan(&p, BD_DRAFT_AUTO, 7, false), 3); // a trial
    bd_pace_begin(&p, 50);
    p.made = 1;
    assert_int_equal(bd_pace_plan(&p, BD_DRAFT_AUTO, 7, false), 0); // it could cost more than 3 %

    p = known(0.1, 0.5, 0.5);
    assert_int_equal(bd_pace_plan(&p, BD_DRAFT_AUTO, 7, false), 3);
    assert_int_equal(bd_pace_plan(&p, BD_DRAFT_AUTO, 2, false), 2);
    assert_int_equal(bd_pace_plan(&p, BD_DRAFT_AUTO, 0, false), 0);
    assert_int_equal(bd_pace_plan(&p, BD_DRAFT_AUTO, 7, true), 7); // its head will cut
    check_near(bd_pace_allowance(&p), 25, 1e-9);
    p.lost = 1; // a part is kept for later
    check_near(bd_pace_allowance(&p), 0.025 * 1002 / 3, 1e-9);
    p.made = 1000;
    p.lost = 24.35; // 0.5 + 0.1 n more may be lost
    assert_int_equal(bd_pace_plan(&p, BD_DRAFT_AUTO, 7, false), 1);
    p.lost = 24.45;
    assert_int_equal(bd_pace_plan(&p, BD_DRAFT_AUTO, 7, false), 0);
    p.lost = 0;
    p.rest = 1;
    assert_int_equal(bd_pace_plan(&p, BD_DRAFT_AUTO, 7, false), 0);
    note(&p, 0, 0, 0, 1);
    assert_int_equal(bd_pace_plan(&p, BD_DRAFT_AUTO, 7, false), 3);
}

// --- confidence ----------------------------------------------------------------------------------

static float logit(double chance)
{
    return (float)log(chance / (1 - chance));
}

static void cuts(void **state)
{
    (void)state;
    bd_pace p = known(0.25, 0.5, 0.8);
    p.tokens = 2; // two tokens a second: a row has to bring half a token
    p.seconds = 1;
    const float z[5] = {logit(.9), logit(.8), logit(.8), logit(.8), logit(.99)};
    assert_int_equal(bd_pace_cut(&p, z, 5), 3); // .9, .72, .576, .461
    assert_int_equal(bd_pace_cut(&p, z, 2), 2);
    assert_int_equal(bd_pace_cut(&p, z, 0), 0);
    p.tokens = 4; // only a row that brings one, which none is sure to do
    assert_int_equal(bd_pace_cut(&p, z, 5), 0);
    p.pass[6].count = 3; // what a pass over all of them costs is not known well
    assert_int_equal(bd_pace_cut(&p, z, 5), 5);
    p.pass[6].count = 10;
    // A head that has been too sure is believed less, one that was never trained more.
    p.tokens = 2;
    p.foreseen = 98;
    p.came = 63; // times 0.65
    assert_int_equal(bd_pace_cut(&p, z, 5), 1);
    const float untrained[4] = {0, 0, 0, 0};
    p.foreseen = 48;
    p.came = 98; // times 2: sure
    assert_int_equal(bd_pace_cut(&p, untrained, 4), 4);
    // Rows in pairs: the second of a pair is free, so each costs half of what the first does.
    p = known(0, 0.5, 0.8);
    for (int64_t n = 0; n <= 7; n++)
        measured(&p.pass[n + 1], 1 + 0.25 * (double)((n + 1) / 2));
    p.tokens = 4;
    p.seconds = 1;
    assert_int_equal(bd_pace_cut(&p, z, 5), 4); // .576 is worth half a token, .456 not a whole one
}

static void cutting_does_not_look_ahead(void **state)
{
    (void)state;
    // Whether a place is verified depends on nothing behind it: sampled text would be biased.
    bd_pace p = known(0.25, 0.5, 0.8);
    p.tokens = 2;
    p.seconds = 1;
    for (uint32_t i = 0; i < 2000; i++) {
        float z[7], other[7];
        uint64_t key = bd_random_key(i, 0, 0, 0);
        for (uint32_t k = 0; k < 7; k++) {
            z[k] = 4 * bd_random_uniform(key, 0, k);
            other[k] = 4 * bd_random_uniform(key, 1, k) - 2;
        }
        int64_t n = bd_pace_cut(&p, z, 7);
        if (n < 7) // the place where it stopped decided, those behind it did not
            memcpy(z + n + 1, other + n + 1, (size_t)(6 - n) * sizeof *z);
        assert_int_equal(bd_pace_cut(&p, z, 7), n);
    }
}

// --- whole texts ---------------------------------------------------------------------------------

/* Times of a draft of 0.5 and 0.1 a row against plain passes of 1. Tokens come in runs that are easy
 * or hard to guess. */
typedef struct {
    double easy, hard;
} kind;

static double uniform(uint32_t text, uint32_t *index)
{
    return (double)bd_random_uniform(bd_random_key(text, 0, 0, 0), 0, (*index)++);
}

static double speed_up(bd_pace *p, kind k, uint32_t text, int64_t most, bd_draft_schedule schedule)
{
    enum { MOST = 2048 };
    static bool right[MOST];
    uint32_t index = 0;
    bool hard = false;
    for (int64_t i = 0; i < MOST; i++) {
        hard = uniform(text, &index) < 0.15 ? !hard : hard;
        right[i] = uniform(text, &index) < (hard ? k.hard : k.easy);
    }
    double seconds = 0;
    int64_t made = 0;
    bd_pace_begin(p, most);
    while (made < most) {
        int64_t limit = most - made - 1 < 7 ? most - made - 1 : 7, accepted = 0;
        int64_t n = bd_pace_plan(p, schedule, limit, false);
        while (accepted < n && right[made + accepted])
            accepted++;
        double draft = n ? 0.5 : 0, pass = 1 + 0.1 * (double)n;
        note(p, n, accepted, draft, pass);
        seconds += draft + pass;
        made += accepted + 1;
    }
    return (double)made / seconds;
}

/* Field report 50: slower with a draft than without. */
static void no_text_is_slower_by_three_percent(void **state)
{
    (void)state;
    static const kind kinds[] = {{0, 0}, {.4, .1}, {.7, .2}, {.85, .3}};
    for (int k = 0; k < 4; k++)
        for (int64_t most = 20; most <= 1500; most *= 3) {
            bd_pace p = bd_pace_new(7);
            double fixed = 0;
            for (uint32_t text = 0; text < 40; text++) {
                double here = speed_up(&p, kinds[k], text, most, BD_DRAFT_AUTO);
                bd_pace other = bd_pace_new(7);
                fixed += speed_up(&other, kinds[k], text, most, BD_DRAFT_FIXED) / 40;
                if (here < 0.97)
                    fail_msg("kind %d, text %u of %d tokens: %.3f of plain decoding", k, text,
                             (int)most, here);
            }
            assert_true(k >= 2 || fixed < 0.97); // without it they would be
        }
}

/* A draft for one text in two: easy texts are not held back by the others. */
static void texts_differ(void **state)
{
    (void)state;
    bd_pace p = bd_pace_new(7);
    double easy = 0, hopeless = 0, fixed = 0;
    for (uint32_t text = 0; text < 40; text++) {
        hopeless += speed_up(&p, (kind){0, 0}, text, 400, BD_DRAFT_AUTO) / 40;
        easy += speed_up(&p, (kind){.97, .8}, text, 400, BD_DRAFT_AUTO) / 40;
        bd_pace other = bd_pace_new(7);
        fixed += speed_up(&other, (kind){.97, .8}, text, 400, BD_DRAFT_FIXED) / 40;
    }
    assert_true(hopeless > 0.975);
    assert_true(fixed > 2 && easy > 0.9 * fixed);
}

static void a_good_draft_is_used(void **state)
{
    (void)state;
    bd_pace p = bd_pace_new(7);
    double with = 0, fixed = 0;
    for (uint32_t text = 0; text < 20; text++) {
        with += speed_up(&p, (kind){.97, .8}, text, 200, BD_DRAFT_AUTO) / 20;
        bd_pace other = bd_pace_new(7);
        fixed += speed_up(&other, (kind){.97, .8}, text, 200, BD_DRAFT_FIXED) / 20;
    }
    assert_true(with > 0.95 * fixed);
    // And where a shorter block is better than a whole one, it is found.
    p = bd_pace_new(7);
    with = fixed = 0;
    for (uint32_t text = 0; text < 20; text++) {
        with += speed_up(&p, (kind){.9, .5}, text, 1000, BD_DRAFT_AUTO) / 20;
        bd_pace other = bd_pace_new(7);
        fixed += speed_up(&other, (kind){.9, .5}, text, 1000, BD_DRAFT_FIXED) / 20;
    }
    assert_true(with > fixed);
}

/* Rests between trials that fail: 16, 32, ... plain cycles up to 256, and never more. */
static void rests_grow(void **state)
{
    (void)state;
    bd_pace p = bd_pace_new(7);
    bd_pace_begin(&p, 100000);
    int64_t last = -1, rests[12], count = 0;
    for (int64_t i = 0; count < 12; i++) {
        int64_t n = bd_pace_plan(&p, BD_DRAFT_AUTO, 7, false);
        note(&p, n, 0, n ? 0.5 : 0, 1 + 0.1 * (double)n);
        if (n > 0) {
            rests[count++] = i - last - 1;
            last = i;
        }
    }
    const int64_t want[6] = {2, 16, 32, 64, 128, 256};
    for (int i = 0; i < 12; i++)
        assert_int_equal(rests[i], want[i < 6 ? i : 5]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(costs_lie_between_measurements),
        cmocka_unit_test(measurements_are_smoothed),
        cmocka_unit_test(the_best_length),
        cmocka_unit_test(plans),
        cmocka_unit_test(cuts),
        cmocka_unit_test(cutting_does_not_look_ahead),
        cmocka_unit_test(no_text_is_slower_by_three_percent),
        cmocka_unit_test(texts_differ),
        cmocka_unit_test(a_good_draft_is_used),
        cmocka_unit_test(rests_grow),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
