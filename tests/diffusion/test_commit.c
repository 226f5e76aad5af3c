/* Which proposals are kept: schedules and strategies (T-37, F-36, F-40). */
#include "diffusion/commit.h"
#include "diffusion/golden.h"

#define FLOATS(...) ((const float[]){__VA_ARGS__})

static void schedules(void **state)
{
    (void)state;
    const int64_t want[3][5] = {{7, 7, 6, 6, 6}, {1, 1, 1, 1, 0}, {3, 2, 2, 0, 0}};
    const int64_t masked[3] = {32, 4, 7}, steps[3] = {5, 4, 3};
    for (int i = 0; i < 3; i++)
        for (int64_t step = 0; step < 5; step++)
            assert_int_equal(bd_commit_schedule(masked[i], steps[i], step), want[i][step]);
}

/* Picks as a string of 0 and 1, and the number that met the test. */
static void expect(bd_commit_options o, int64_t scheduled, const char *want, int64_t met,
                   const float *score)
{
    uint8_t pick[8];
    int64_t open = (int64_t)strlen(want);
    assert_int_equal(bd_commit_pick(&o, open, scheduled, score, score, pick), met);
    for (int64_t i = 0; i < open; i++)
        if (pick[i] != want[i] - '0')
            fail_msg("%s: pick[%lld] is %d, wanted %c", bd_commit_name(o.strategy), (long long)i,
                     pick[i], want[i]);
}

static void strategies(void **state)
{
    (void)state;
    bd_commit_options o = bd_commit_default();
    expect(o, 1, "1010", 2, FLOATS(.95f, .5f, .92f, .3f));
    expect(o, 1, "100", 0, FLOATS(.5f, .4f, .3f));
    expect(o, 1, "11", 2, FLOATS(.9f, .9f)); // at the threshold counts
    expect(o, 1, "010", 0, FLOATS(.3f, .4f, .4f));
    expect(o, 1, "010", 0, FLOATS(NAN, .1f, INFINITY));
    expect(o, 1, "100", 0, FLOATS(NAN, NAN, NAN));
    o.threshold = 0;
    expect(o, 1, "111", 3, FLOATS(.1f, 0, .2f));
    o.threshold = 1;
    expect(o, 1, "0101", 2, FLOATS(.99999994f, 1, .5f, 1));

    o.strategy = BD_COMMIT_ONE;
    expect(o, 3, "010", 1, FLOATS(.95f, .99f, .92f));
    o.strategy = BD_COMMIT_SEQUENTIAL;
    expect(o, 2, "110", 2, FLOATS(.1f, .2f, .9f));
    expect(o, 0, "100", 1, FLOATS(.1f, .2f, .9f));
    expect(o, 9, "111", 3, FLOATS(.1f, .2f, .9f));
    o.strategy = BD_COMMIT_STATIC;
    expect(o, 2, "0110", 2, FLOATS(.1f, .9f, .2f, .2f));
    o.strategy = BD_COMMIT_DYNAMIC;
    o.threshold = .85f;
    expect(o, 2, "1101", 3, FLOATS(.9f, .9f, .85f, .99f)); // strictly above
    expect(o, 2, "0101", 1, FLOATS(.1f, .9f, .2f, .3f));
    expect(o, 2, "0011", 0, FLOATS(.1f, .1f, .2f, .3f));
    // factor 1: rank 2 needs 2/3, rank 3 needs 3/4, rank 4 needs 4/5.
    o.strategy = BD_COMMIT_FACTOR;
    expect(o, 1, "1101", 3, FLOATS(.76f, .8f, .7f, .9f));
    expect(o, 1, "0100", 1, FLOATS(.6f, .65f, .1f, .2f));
    expect(o, 1, "1111", 4, FLOATS(.8f, .8f, .8f, .8f));
    // entropies, lowest first: .05, .1, .15 sum to .3 below .35; .2 goes beyond.
    o.strategy = BD_COMMIT_ENTROPY;
    expect(o, 1, "1011", 3, FLOATS(.1f, .2f, .15f, .05f));
    expect(o, 1, "010", 0, FLOATS(.5f, .4f, .6f));
    expect(o, 1, "111", 3, FLOATS(0, 0, 0));
}

static void refusals(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_commit_options o = bd_commit_default();
    check_ok(bd_commit_check(&o, &err), err);
    o.threshold = 1.1f;
    check_refused(bd_commit_check(&o, &err), err, "confidence_threshold is 1.1");
    o = bd_commit_default(), o.threshold = NAN;
    check_refused(bd_commit_check(&o, &err), err, "confidence_threshold");
    o = bd_commit_default(), o.factor = 0;
    check_refused(bd_commit_check(&o, &err), err, "factor is 0");
    o = bd_commit_default(), o.entropy_bound = -1;
    check_refused(bd_commit_check(&o, &err), err, "entropy_bound is -1");
    o = bd_commit_default(), o.steps = -1;
    check_refused(bd_commit_check(&o, &err), err, "steps is -1");
    bd_commit_strategy s;
    check_refused(bd_commit_from_name("random", &s, &err), err,
                  "\"random\", wanted low_confidence, one");
    check_ok(bd_commit_from_name("threshold", &s, &err), err);
    assert_int_equal(s, BD_COMMIT_THRESHOLD);
    for (int i = 0; i < BD_COMMIT_COUNT; i++) {
        check_ok(bd_commit_from_name(bd_commit_name((bd_commit_strategy)i), &s, &err), err);
        assert_int_equal(s, i);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(schedules), cmocka_unit_test(strategies),
                                       cmocka_unit_test(refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
