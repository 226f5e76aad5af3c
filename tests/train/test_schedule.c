/* Learning rates step by step. */
#include "train/schedule.h"

#include "golden.h"

static void test_golden(void **state)
{
    (void)state;
    json_t *table = golden_table("schedules"), *entry, *value;
    size_t i, step;
    json_array_foreach(json_object_get(table, "cases"), i, entry)
    {
        bd_error err = {0};
        bd_schedule s = {.peak = golden_number(entry, "peak"),
                         .final_fraction = golden_number(entry, "final_fraction"),
                         .warmup = json_integer_value(json_object_get(entry, "warmup")),
                         .total = json_integer_value(json_object_get(entry, "total")),
                         .endpoint = json_is_true(json_object_get(entry, "endpoint"))};
        check_ok(bd_schedule_from_name(golden_text(entry, "kind"), &s.kind, &err), err);
        check_ok(bd_schedule_check(&s, &err), err);
        assert_string_equal(bd_schedule_name(s.kind), golden_text(entry, "kind"));
        json_array_foreach(json_object_get(entry, "values"), step, value)
        {
            double want = json_number_value(value), got = bd_schedule_rate(&s, (int64_t)step);
            if (fabs(got - want) > 1e-12 * s.peak)
                fail_msg("case %zu, step %zu: %.17g, wanted %.17g", i, step, got, want);
        }
    }
    assert_true(i >= 20);
    json_decref(table);
}

static void test_refusals(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_schedule_kind kind;
    check_refused(bd_schedule_from_name("exponential", &kind, &err), err,
                  "constant, linear or cosine");
    bd_schedule s = {.peak = 1, .warmup = 3, .total = 2};
    check_refused(bd_schedule_check(&s, &err), err, "warmup: 3 steps of 2");
    s = (bd_schedule){.peak = NAN, .total = 2};
    check_refused(bd_schedule_check(&s, &err), err, "learning rate");
    s = (bd_schedule){.peak = 1, .total = 2, .final_fraction = 1.5};
    check_refused(bd_schedule_check(&s, &err), err, "final_fraction");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
