/* What a resumed run must match, field by field. */
#include "train/contract.h"

#include "check.h"
#include "format/json.h"

static bd_contract *example(int64_t block_size, double rate)
{
    bd_contract *c = bd_contract_create();
    bd_contract_text(c, "student_model", "qwen3-tiny");
    bd_contract_int(c, "block_size", block_size);
    bd_contract_number(c, "learning_rate", rate);
    bd_contract_bool(c, "packing", false);
    bd_contract_ints(c, "stop_token_ids", (int64_t[]){95, 3}, 2);
    bd_contract_hash(c, "data", "abc", 3);
    bd_error err = {0};
    check_ok(bd_contract_ready(c, &err), err);
    return c;
}

static void test_texts(void **state)
{
    (void)state;
    bd_contract *c = example(-4, 0.1);
    bd_contract_number(c, "third", 1.0 / 3);
    bd_contract_number(c, "whole", 3);
    bd_contract_number(c, "tiny", 4.9e-324);
    bd_contract_number(c, "infinite", INFINITY);
    bd_contract_ints(c, "none", NULL, 0);
    assert_string_equal(bd_contract_find(c, "block_size"), "-4");
    assert_string_equal(bd_contract_find(c, "learning_rate"), "0.1");
    assert_string_equal(bd_contract_find(c, "third"), "0.3333333333333333");
    assert_true(strtod(bd_contract_find(c, "third"), NULL) == 1.0 / 3);
    assert_string_equal(bd_contract_find(c, "whole"), "3");
    assert_string_equal(bd_contract_find(c, "tiny"), "5e-324");
    assert_string_equal(bd_contract_find(c, "infinite"), "inf");
    assert_string_equal(bd_contract_find(c, "packing"), "false");
    assert_string_equal(bd_contract_find(c, "stop_token_ids"), "[95, 3]");
    assert_string_equal(bd_contract_find(c, "none"), "[]");
    assert_string_equal(bd_contract_find(c, "data"),
                        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_null(bd_contract_find(c, "absent"));
    assert_int_equal(bd_contract_count(c), 11);
    bd_contract_free(c);
}

static void test_json(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_contract *a = example(4, 3e-4), *b;
    json_t *json = bd_contract_to_json(a);
    char *text = json_dumps(json, 0);
    assert_non_null(
        strstr(text, "{\"student_model\": \"qwen3-tiny\", \"block_size\": \"4\"")); // in order
    json_decref(json);
    check_ok(json = bd_json_parse(text, strlen(text), "text", &err), err);
    check_ok(b = bd_contract_from_json(json, "text", &err), err);
    check_ok(bd_contract_compare(a, b, "here", &err), err);
    char first[BD_SHA256_TEXT], second[BD_SHA256_TEXT];
    bd_contract_fingerprint(a, first);
    bd_contract_fingerprint(b, second);
    assert_string_equal(first, second);
    bd_contract_free(b);
    json_object_set_new(json, "block_size", json_integer(4));
    check_refused(bd_contract_from_json(json, "text", &err), err,
                  "field block_size: a text expected");
    check_refused(bd_contract_from_json(NULL, "text", &err), err, "text: no contract");
    assert_int_equal(err.kind, BD_ERROR_STATE);
    json_decref(json);
    free(text);
    bd_contract_free(a);
}

// T-48: a changed, a new and a lost field; all of them are told.
static void test_differences(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_contract *saved = example(4, 3e-4), *now = example(8, 3.0000000000000003e-4);
    bd_contract_text(saved, "optimizer", "adamw");
    bd_contract_text(now, "teacher_model", "large");
    check_refused(
        bd_contract_compare(saved, now, "RUN/checkpoint-10", &err), err,
        "RUN/checkpoint-10: block_size: checkpoint has 4, this run has 8; learning_rate: "
        "checkpoint has 0.0003, this run has 0.00030000000000000003; teacher_model: checkpoint "
        "has no such field, this run has large; optimizer: checkpoint has adamw, this run has no "
        "such field");
    assert_int_equal(err.kind, BD_ERROR_STATE);
    char *lines = bd_contract_differences(saved, now);
    int count = 0;
    for (char *c = lines; *c; c++)
        count += *c == '\n';
    assert_int_equal(count, 4);
    free(lines);
    lines = bd_contract_differences(saved, saved);
    assert_string_equal(lines, "");
    free(lines);
    char first[BD_SHA256_TEXT], second[BD_SHA256_TEXT];
    bd_contract_fingerprint(saved, first);
    bd_contract_fingerprint(now, second);
    assert_string_not_equal(first, second);
    bd_contract_free(saved);
    bd_contract_free(now);
}

static void test_many_differences(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_contract *saved = bd_contract_create(), *now = bd_contract_create();
    for (int i = 0; i < 100; i++) {
        char name[32];
        snprintf(name, sizeof name, "field_%d", i);
        bd_contract_int(saved, name, i);
        bd_contract_int(now, name, i + 1);
    }
    check_refused(bd_contract_compare(saved, now, "X", &err), err, "field_0: checkpoint has 0");
    int told = 0;
    for (const char *at = err.message; (at = strstr(at, "checkpoint has")); at++)
        told++;
    char rest[32];
    snprintf(rest, sizeof rest, "; and %d more", 100 - told);
    assert_non_null(strstr(err.message, rest));
    assert_true(told > 5);
    char *lines = bd_contract_differences(saved, now);
    assert_non_null(strstr(lines, "field_99: checkpoint has 99, this run has 100\n"));
    free(lines);
    bd_contract_free(saved);
    bd_contract_free(now);
}

static void test_not_utf8(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_contract *c = bd_contract_create();
    bd_contract_text(c, "path", "\xff\xfe");
    check_refused(bd_contract_ready(c, &err), err, "field path: not UTF-8");
    bd_contract_free(c);
    check_refused(bd_contract_ready(NULL, &err), err, "no memory");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),       cmocka_unit_test(test_json),
        cmocka_unit_test(test_differences), cmocka_unit_test(test_many_differences),
        cmocka_unit_test(test_not_utf8),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
