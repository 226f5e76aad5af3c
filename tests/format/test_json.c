#include "scratch.h"

#include "format/json.h"

static json_t *parse(const char *text)
{
    bd_error err = {0};
    json_t *root = bd_json_parse(text, strlen(text), "x.json", &err);
    check_ok(root != NULL, err);
    return root;
}

static void syntax_errors_name_line_and_column(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"{\"a\": 1,\n \"b\": }", "x.json:2:7: "},
        {"", "x.json:1:0: "},
        {"{\"a\": 1, \"a\": 2}", "duplicate"},
        {"{\"a\": \"\xff\"}", "x.json:1:"},
        {"{\"a\": 1} x", "end of file expected"},
        {"{\"a\": 99999999999999999999}", "integer"},
        {"[1e999]", "overflow"},
        {"{\"a\": \"\\u0000\"}", "x.json:1:"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        bd_error err = {0};
        check_refused(bd_json_parse(bad[i].text, strlen(bad[i].text), "x.json", &err) != NULL, err,
                      bad[i].message);
    }
    bd_error err = {0};
    check_refused(bd_json_load("/nonexistent/x.json", &err) != NULL, err, "cannot open");
    const char *path = scratch_write_text("bad.json", "{\n\"a\" 1}");
    check_refused(bd_json_load(path, &err) != NULL, err, "bad.json:2:");
}

static void nesting_is_bounded(void **state)
{
    (void)state;
    static char deep[200000];
    memset(deep, '[', sizeof deep);
    bd_error err = {0};
    check_refused(bd_json_parse(deep, sizeof deep, "x.json", &err) != NULL, err, "depth");
}

static void getters_say_found_and_wanted(void **state)
{
    (void)state;
    json_t *o =
        parse("{\"n\": 12, \"f\": 0.5, \"t\": \"silu\", \"b\": true, \"z\": null, \"l\": [1, 2],"
              " \"o\": {}}");
    bd_error err = {0};
    int64_t n = 0;
    double f = 0;
    bool b = false;
    check_ok(bd_json_int(o, "x.json", "n", 0, 12, &n, &err), err);
    assert_int_equal(n, 12);
    check_ok(bd_json_number(o, "x.json", "f", 0, 1, &f, &err), err);
    assert_true(f == 0.5);
    check_ok(bd_json_number(o, "x.json", "n", 0, 100, &f, &err), err);
    assert_true(f == 12);
    check_ok(bd_json_bool(o, "x.json", "b", &b, &err), err);
    assert_true(b);
    assert_string_equal(bd_json_text(o, "x.json", "t", &err), "silu");
    assert_int_equal(json_array_size(bd_json_array(o, "x.json", "l", &err)), 2);
    assert_non_null(bd_json_object(o, "x.json", "o", &err));

    check_refused(bd_json_int(o, "x.json", "n", 0, 11, &n, &err), err,
                  "x.json: \"n\" is 12, an integer from 0 to 11 expected");
    check_refused(bd_json_int(o, "x.json", "f", 0, 11, &n, &err), err, "\"f\" is 0.5, an integer");
    check_refused(bd_json_int(o, "x.json", "t", 0, 11, &n, &err), err,
                  "\"t\" is \"silu\", an integer");
    check_refused(bd_json_int(o, "x.json", "q", 0, 11, &n, &err), err,
                  "\"q\" is missing, an integer");
    check_refused(bd_json_number(o, "x.json", "f", 0.6, 1, &f, &err), err,
                  "a number from 0.6 to 1");
    check_refused(bd_json_bool(o, "x.json", "n", &b, &err), err,
                  "\"n\" is 12, true or false expected");
    check_refused(bd_json_text(o, "x.json", "l", &err) != NULL, err,
                  "\"l\" is a list of 2, a text");
    check_refused(bd_json_array(o, "x.json", "o", &err) != NULL, err, "\"o\" is an object, a list");
    check_refused(bd_json_object(o, "x.json", "z", &err) != NULL, err, "\"z\" is null, an object");

    assert_true(bd_json_has(o, "n") && !bd_json_has(o, "z") && !bd_json_has(o, "q"));
    assert_false(bd_json_has(json_object_get(o, "l"), "n")); // not an object at all
    n = 7;
    check_ok(bd_json_int_if(o, "x.json", "z", 0, 1, &n, &err), err);
    check_ok(bd_json_int_if(o, "x.json", "q", 0, 1, &n, &err), err);
    assert_int_equal(n, 7);
    check_refused(bd_json_int_if(o, "x.json", "n", 0, 1, &n, &err), err, "\"n\" is 12");
    json_decref(o);
}

static void saved_files_read_back(void **state)
{
    (void)state;
    bd_error err = {0};
    json_t *plain = json_pack("{s:f, s:[i,i], s:s}", "eps", 1e-6, "l", 1, 2, "t", "\xc3\xa9\"");
    json_t *precise = json_pack("{s:f, s:f}", "third", 1.0 / 3, "eps", 1e-6);
    const char *path = scratch_path("saved.json");
    check_ok(bd_json_save(plain, path, &err), err);
    size_t size;
    char *text = bd_file_read_text(path, 1000, &size, &err);
    assert_string_equal(text, "{\n  \"eps\": 1e-6,\n  \"l\": [\n    1,\n    2\n  ],\n"
                              "  \"t\": \"\xc3\xa9\\\"\"\n}\n");
    free(text);
    check_ok(bd_json_save(precise, path, &err), err);
    json_t *again = bd_json_load(path, &err);
    assert_true(json_equal(again, precise));
    check_refused(bd_json_save(plain, "/nonexistent/x.json", &err), err, "cannot write");
    json_decref(plain);
    json_decref(precise);
    json_decref(again);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(syntax_errors_name_line_and_column),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(getters_say_found_and_wanted),
        cmocka_unit_test(saved_files_read_back),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
