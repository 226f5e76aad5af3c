/* Scopes: how they nest, what they add up to, what they leave out, and the trace. */
#include "base/profile.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "base/threads.h"
#include "check.h"

static bd_profile_site phase = {.name = "phase", .kind = BD_PROFILE_PHASE};
static bd_profile_site other = {.name = "other phase", .kind = BD_PROFILE_PHASE};
static bd_profile_site outer = {.name = "outer", .kind = BD_PROFILE_MEMORY};
static bd_profile_site inner = {.name = "inner", .kind = BD_PROFILE_F32};

static bd_profile_row rows[BD_PROFILE_ROWS];
static int row_count;

static void begin(bool trace)
{
    bd_error err = {0};
    assert_true(bd_profile_start(trace, &err));
}

static void end(void)
{
    bd_profile_stop();
    row_count = bd_profile_table(rows);
}

/* The row of an operation in a phase (NULL: in none); NULL: there is none. */
static const bd_profile_row *row(const char *in, const char *name)
{
    for (int i = 0; i < row_count; i++)
        if (!strcmp(rows[i].name, name) &&
            (in ? rows[i].phase && !strcmp(rows[i].phase, in) : !rows[i].phase))
            return &rows[i];
    return NULL;
}

static void wait_a_little(void)
{
    const struct timespec t = {.tv_nsec = 2000000};
    nanosleep(&t, NULL);
}

static void run_inner(void)
{
    bd_profile_begin(&inner);
    wait_a_little();
    bd_profile_end(&inner, 100, 10);
}

static void off_records_nothing(void **state)
{
    (void)state;
    run_inner();
    begin(false);
    end();
    assert_int_equal(row_count, 0);
    run_inner();
    assert_int_equal(bd_profile_table(rows), 0);
    bd_profile_free();
    assert_int_equal(bd_profile_table(rows), 0);
}

static void nesting(void **state)
{
    (void)state;
    begin(false);
    run_inner();
    bd_profile_begin(&phase);
    for (int i = 0; i < 3; i++) {
        bd_profile_begin(&outer);
        run_inner();
        run_inner();
        wait_a_little();
        bd_profile_end(&outer, 1, 2);
    }
    bd_profile_end(&phase, 0, 0);
    end();
    assert_int_equal(row_count, 4);
    const bd_profile_row *p = row("phase", "phase"), *o = row("phase", "outer"),
                         *i = row("phase", "inner"), *alone = row(NULL, "inner");
    assert_non_null(p);
    assert_non_null(o);
    assert_non_null(i);
    assert_non_null(alone);
    assert_int_equal(p->calls, 1);
    assert_int_equal(o->calls, 3);
    assert_int_equal(i->calls, 6);
    assert_int_equal(alone->calls, 1);
    assert_true(i->flops == 600 && i->bytes == 60);
    assert_true(o->flops == 3 && o->total_flops == 603 && o->total_bytes == 66);
    assert_true(p->flops == 0 && p->total_flops == 603 && p->total_bytes == 66);
    // Times of scopes inside are taken out once, and all self times are the whole.
    check_near(i->self, i->total, 1e-12);
    check_near(o->self, o->total - i->total, 1e-9);
    check_near(p->self, p->total - o->total, 1e-9);
    assert_true(i->self >= 0.012 && o->self >= 0.006);
    double sum = 0;
    for (int n = 0; n < row_count; n++)
        sum += rows[n].self;
    check_near(sum, p->total + alone->total, 1e-9);
    assert_true(sum <= bd_profile_seconds());
    assert_string_equal(rows[1].name, "phase"); // a phase stands before what is in it
    bd_profile_free();
}

static void phases_within_phases(void **state)
{
    (void)state;
    begin(true);
    bd_profile_begin(&phase);
    bd_profile_begin(&phase); // within itself: one
    run_inner();
    bd_profile_end(&phase, 0, 0);
    bd_profile_begin(&other);
    run_inner();
    bd_profile_end(&other, 0, 0);
    run_inner();
    bd_profile_end(&phase, 0, 0);
    end();
    assert_int_equal(row("phase", "phase")->calls, 1);
    assert_int_equal(row("phase", "inner")->calls, 2);
    assert_int_equal(row("other phase", "inner")->calls, 1);
    assert_true(row("phase", "phase")->total_flops == 300);
    assert_true(row("other phase", "other phase")->total_flops == 100);
    check_near(row("phase", "phase")->self + row("phase", "inner")->self +
                   row("other phase", "other phase")->total,
               row("phase", "phase")->total, 1e-9);
    bd_profile_free();
}

static void deep(int depth)
{
    if (depth == 0)
        return;
    bd_profile_begin(&inner);
    deep(depth - 1);
    bd_profile_end(&inner, 1, 0);
}

static void too_deep_is_left_out(void **state)
{
    (void)state;
    begin(false);
    deep(100);
    run_inner();
    end();
    const bd_profile_row *i = row(NULL, "inner");
    assert_int_equal(i->calls, 32 + 1);
    bd_profile_free();
}

static void task(void *context, int64_t number)
{
    (void)context;
    (void)number;
    bd_profile_begin(&inner);
    bd_profile_end(&inner, 3, 5);
}

static void tasks_on_all_threads(void **state)
{
    (void)state;
    for (int threads = 1; threads <= 4; threads++) {
        bd_threads_set(threads);
        begin(true);
        bd_profile_begin(&phase);
        for (int i = 0; i < 10; i++)
            bd_parallel(1000, task, NULL);
        bd_profile_end(&phase, 0, 0);
        end();
        assert_int_equal(row_count, 2);
        assert_int_equal(row("phase", "inner")->calls, 10000);
        assert_true(row("phase", "inner")->flops == 30000);
        // Times are those of one thread, so that shares stay shares of the wall.
        check_near(row("phase", "inner")->self, row("phase", "inner")->total, 1e-12);
        assert_true(row("phase", "inner")->total <= row("phase", "phase")->total);
        bd_profile_free();
    }
}

static json_t *read_trace(void)
{
    char path[] = "/tmp/test_profile_XXXXXX";
    bd_error err = {0};
    json_error_t where;
    close(mkstemp(path));
    assert_true(bd_profile_write_trace(path, &err));
    json_t *trace = json_load_file(path, 0, &where);
    unlink(path);
    assert_non_null(trace);
    return trace;
}

static double number(json_t *event, const char *key)
{
    json_t *value = json_object_get(event, key);
    assert_true(json_is_number(value));
    return json_number_value(value);
}

static void trace_of_complete_events(void **state)
{
    (void)state;
    bd_error err = {0};
    begin(true);
    bd_profile_begin(&phase);
    run_inner();
    bd_profile_end(&phase, 0, 0);
    end();
    json_t *trace = read_trace();
    assert_int_equal(json_array_size(trace), 2);
    json_t *first = json_array_get(trace, 0), *second = json_array_get(trace, 1);
    assert_string_equal(json_string_value(json_object_get(first, "name")), "inner");
    assert_string_equal(json_string_value(json_object_get(second, "name")), "phase");
    assert_string_equal(json_string_value(json_object_get(second, "cat")), "phase");
    assert_string_equal(json_string_value(json_object_get(first, "ph")), "X");
    assert_true(number(first, "dur") >= 2000); // microseconds
    assert_true(number(second, "ts") >= 0 && number(first, "ts") >= number(second, "ts"));
    assert_true(number(first, "ts") + number(first, "dur") <=
                number(second, "ts") + number(second, "dur") + 0.01);
    assert_true(number(json_object_get(first, "args"), "flops") == 100);
    json_decref(trace);
    assert_false(bd_profile_write_trace("/nowhere/at/all.json", &err));
    bd_profile_free();
    json_t *empty = read_trace();
    assert_int_equal(json_array_size(empty), 0);
    json_decref(empty);
}

static void a_trace_keeps_the_newest(void **state)
{
    (void)state;
    bd_threads_set(1);
    begin(true);
    run_inner();
    for (int i = 0; i < BD_PROFILE_EVENTS + 6; i++) {
        bd_profile_begin(&outer);
        bd_profile_end(&outer, i, 0);
    }
    end();
    assert_int_equal(bd_profile_dropped(), 7);
    json_t *trace = read_trace();
    assert_int_equal(json_array_size(trace), BD_PROFILE_EVENTS);
    assert_true(number(json_object_get(json_array_get(trace, 0), "args"), "flops") == 6);
    json_decref(trace);
    assert_int_equal(row(NULL, "inner")->calls, 1); // the table forgets nothing
    bd_profile_free();
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(off_records_nothing),      cmocka_unit_test(nesting),
        cmocka_unit_test(phases_within_phases),     cmocka_unit_test(too_deep_is_left_out),
        cmocka_unit_test(tasks_on_all_threads),     cmocka_unit_test(trace_of_complete_events),
        cmocka_unit_test(a_trace_keeps_the_newest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
