/* Weighted values, their bounds, and reducing by the type of the value. */
#include "train/metrics.h"

#include "golden.h"

static bd_weighted weighted(double sum, double denominator)
{
    return (bd_weighted){.sum = sum, .denominator = denominator};
}

static double reduce(const bd_metric *values, int count)
{
    bd_error err = {0};
    bd_metrics total = {0};
    for (int i = 0; i < count; i++)
        check_ok(bd_metrics_add(&total, &values[i], &err), err);
    return bd_metric_value(bd_metrics_find(&total, values[0].name));
}

// T-21, T-22
static void test_value(void **state)
{
    (void)state;
    bd_metric loss[2] = {bd_metric_weighted("loss", weighted(6, 3)),
                         bd_metric_weighted("loss", weighted(10, 1))};
    check_near(reduce(loss, 2), 4.0, 0);
    check_near(bd_weighted_value(weighted(0.5, 0.25)), 2, 0);
    check_near(bd_weighted_factor(weighted(0.5, 0.25)), 4, 0);
    check_near(
        bd_weighted_value((bd_weighted){.sum = .5, .denominator = .25, .min_denominator = 1}), .5,
        0);
    check_near(bd_weighted_value(weighted(6, 0)), 0, 0);
    check_near(bd_weighted_factor(weighted(6, 0)), 0, 0);
    check_near(bd_weighted_value((bd_weighted){.sum = 6, .eps = 1e-6}), 6e6, 1e-12);
    check_near(bd_metric_value(NULL), 0, 0);
    bd_weighted part = {.sum = 3, .eps = 1, .min_denominator = 2};
    bd_metric bounded[2] = {bd_metric_weighted("b", part), bd_metric_weighted("b", part)};
    bounded[1].value.sum = 1;
    check_near(reduce(bounded, 2), 2.0, 0);
}

// The drafts' rule: a weight sum of at most 1 trains nothing, decided on the total (decision 26).
static void test_threshold(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_weighted total = {.sum = 0.7, .denominator = 0.7788, .eps = 1e-6, .threshold = 1};
    assert_true(bd_weighted_factor(total) == 0 && bd_weighted_value(total) == 0);
    bd_weighted part = total;
    check_ok(bd_weighted_add(&total, part, "loss", &err), err);
    check_near(bd_weighted_value(total), 1.4 / (2 * 0.7788 + 1e-6), 1e-12);
    bd_weighted one = {.sum = 2, .denominator = 1, .eps = 1e-6, .threshold = 1};
    check_near(bd_weighted_value(one), 2 / 1.000001, 1e-12);
}

// T-23
static void test_kinds(void **state)
{
    (void)state;
    bd_metric scalars[2] = {bd_metric_scalar("a", 1), bd_metric_scalar("a", 3)};
    check_near(reduce(scalars, 2), 2, 0);
    bd_metric weighted_values[2] = {bd_metric_weighted("w", weighted(1, 1)),
                                    bd_metric_weighted("w", weighted(9, 3))};
    check_near(reduce(weighted_values, 2), 2.5, 0);

    bd_error err = {0};
    bd_metrics total = {0};
    bd_metric other = bd_metric_scalar("w", 1);
    check_ok(bd_metrics_add(&total, &weighted_values[0], &err), err);
    check_refused(bd_metrics_add(&total, &other, &err), err,
                  "metric w: a scalar value after weighted ones");
    assert_int_equal(err.kind, BD_ERROR_TYPE);
    other = bd_metric_weighted("w", (bd_weighted){.sum = 1, .denominator = 1, .eps = 1e-8});
    check_refused(bd_metrics_add(&total, &other, &err), err, "bounds differ");
    assert_int_equal(err.kind, BD_ERROR_VALUE);
    other = bd_metric_weighted("n", weighted(1, NAN));
    check_refused(bd_metrics_add(&total, &other, &err), err, "metric n: denominator nan");
    assert_int_equal(total.count, 1); // the refused ones left nothing behind
    check_near(bd_metric_value(&total.items[0]), 1, 0);
}

static void test_too_many(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_metrics total = {0};
    char name[16];
    for (int i = 0; i < BD_MOST_METRICS; i++) {
        snprintf(name, sizeof name, "m%d", i);
        bd_metric m = bd_metric_scalar(name, i);
        check_ok(bd_metrics_add(&total, &m, &err), err);
    }
    bd_metric m = bd_metric_scalar("more", 1);
    check_refused(bd_metrics_add(&total, &m, &err), err, "metric more");
}

static bool run_case(json_t *entry, double *value, bd_error *err)
{
    bd_metrics total = {0};
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(entry, "pairs"), i, item)
    {
        bd_weighted w = {.sum = json_number_value(json_array_get(item, 0)),
                         .denominator = json_number_value(json_array_get(item, 1)),
                         .eps = json_number_value(json_object_get(entry, "eps")),
                         .min_denominator = json_number_value(json_object_get(entry, "min_denom"))};
        bd_metric m = bd_metric_weighted("x", w);
        if (!bd_metrics_add(&total, &m, err))
            return false;
    }
    json_array_foreach(json_object_get(entry, "values"), i, item)
    {
        bd_metric m = bd_metric_scalar("x", json_number_value(item));
        if (!bd_metrics_add(&total, &m, err))
            return false;
    }
    *value = bd_metric_value(bd_metrics_find(&total, "x"));
    return true;
}

static void test_golden(void **state)
{
    (void)state;
    json_t *table = golden_table("metrics"), *entry;
    size_t i;
    json_array_foreach(json_object_get(table, "cases"), i, entry)
    {
        bd_error err = {0};
        double value = 0;
        bool ok = run_case(entry, &value, &err);
        assert_int_equal(ok, !json_is_true(json_object_get(entry, "error")));
        if (ok)
            check_near(value, golden_number(entry, "value"), 1e-14);
    }
    assert_true(i == 10);
    json_decref(table);
}

static void test_json(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_metrics a = {0}, b;
    bd_metric values[3] = {bd_metric_weighted("loss", (bd_weighted){0.1, 1.0 / 3, 1e-6, 0.25, 1}),
                           bd_metric_scalar("norm", 17.3), bd_metric_scalar("bad", NAN)};
    for (int i = 0; i < 3; i++)
        check_ok(bd_metrics_add(&a, &values[i], &err), err);
    json_t *json = bd_metrics_to_json(&a);
    char *text = json_dumps(json, 0);
    json_decref(json);
    check_ok(json = bd_json_parse(text, strlen(text), "text", &err), err);
    check_ok(bd_metrics_from_json(json, "text", &b, &err), err);
    assert_int_equal(b.count, 3);
    for (int i = 0; i < 2; i++) {
        assert_string_equal(a.items[i].name, b.items[i].name);
        assert_int_equal(a.items[i].kind, b.items[i].kind);
        assert_memory_equal(&a.items[i].value, &b.items[i].value, sizeof(bd_weighted));
    }
    assert_true(isnan(b.items[2].value.sum));
    json_object_set_new(json_object_get(json, "norm"), "kind", json_string("mean"));
    check_refused(bd_metrics_from_json(json, "text", &b, &err), err, "weighted or scalar expected");
    json_object_set_new(json, "norm", json_integer(3));
    check_refused(bd_metrics_from_json(json, "text", &b, &err), err, "metric norm");
    json_decref(json);
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_value),  cmocka_unit_test(test_threshold),
        cmocka_unit_test(test_kinds),  cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_golden), cmocka_unit_test(test_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
