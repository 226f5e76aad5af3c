/* T-47: what is skipped and what is taken of a stream, and which streams are too short. */
#include "check.h"
#include "train/replay.h"

static void test_span(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_replay_span span;
    // A stream 0 .. 19, 2 of 5 updates of 2 micro-batches made.
    const bd_replay replay = {.micro_batches = 4,
                              .updates = 2,
                              .most_updates = 5,
                              .accumulation = 2,
                              .skipped = 20,
                              .remaining = 16};
    assert_true(bd_replay_plan(&replay, &span, &err));
    static const int64_t want[] = {4, 5, 6, 7, 8, 9};
    assert_int_equal(span.count, 6);
    for (int64_t i = 0; i < span.count; i++)
        assert_int_equal(span.first + i, want[i]);
    // What lies above the skipped source follows it: ten times each item.
    for (int64_t i = 0; i < span.count; i++)
        assert_int_equal(10 * (span.first + i), 10 * want[i]);
    // All updates made: nothing is skipped, nothing is taken, whatever the stream holds.
    const bd_replay done = {.micro_batches = 10,
                            .updates = 5,
                            .most_updates = 5,
                            .accumulation = 2,
                            .skipped = 0,
                            .remaining = 0};
    assert_true(bd_replay_plan(&done, &span, &err));
    assert_int_equal(span.count, 0);
    assert_int_equal(span.first, 0);
}

static void test_short_streams(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_replay_span span;
    bd_replay replay = {.micro_batches = 4,
                        .updates = 2,
                        .most_updates = 5,
                        .accumulation = 2,
                        .skipped = 2,
                        .remaining = 0};
    check_refused(bd_replay_plan(&replay, &span, &err), err, "2 of 4");
    assert_int_equal(err.kind, BD_ERROR_EXHAUSTED);
    replay.skipped = replay.remaining = 4; // skipped over in a source of its own
    err = (bd_error){0};
    check_refused(bd_replay_plan(&replay, &span, &err), err, "4 of 6");
    assert_int_equal(err.kind, BD_ERROR_EXHAUSTED);
}

static void test_counts(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_replay_span span;
    static const struct {
        int64_t micro_batches, updates, most, accumulation;
    } bad[] = {{12, 6, 5, 2}, {3, 2, 5, 2}, {-2, -1, 5, 2}, {4, 2, 5, 0}, {5, 2, 5, 2}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const bd_replay replay = {.micro_batches = bad[i].micro_batches,
                                  .updates = bad[i].updates,
                                  .most_updates = bad[i].most,
                                  .accumulation = bad[i].accumulation,
                                  .skipped = -1,
                                  .remaining = -1};
        err = (bd_error){0};
        assert_false(bd_replay_plan(&replay, &span, &err));
        assert_int_equal(err.kind, BD_ERROR_VALUE);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_span),
        cmocka_unit_test(test_short_streams),
        cmocka_unit_test(test_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
