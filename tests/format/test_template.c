/* Templates: what jinja2 makes of them (template_cases.json), errors, and bounds. */
#include "base/progress.h"
#include "format/json.h"
#include "format/template.h"
#include "check.h"

static json_t *load_cases(void)
{
    bd_error err = {0};
    json_t *root = bd_json_load("tests/format/template_cases.json", &err);
    check_ok(root != NULL, err);
    return root;
}

static void check_cases(json_t *cases, json_t *variables, size_t least)
{
    size_t index;
    json_t *item;
    assert_true(json_array_size(cases) >= least);
    json_array_foreach(cases, index, item)
    {
        json_t *source = json_object_get(item, "template"), *want = json_object_get(item, "text");
        bd_error err = {0};
        bd_template_output out = {0};
        bd_template *t = bd_template_compile(json_string_value(source), json_string_length(source),
                                             "case", &err);
        if (!t || !bd_template_render(t, variables, NULL, &out, &err))
            fail_msg("%s\n%s", json_string_value(source), err.message);
        if (out.text.size != json_string_length(want) ||
            memcmp(out.text.data, json_string_value(want), out.text.size) != 0)
            fail_msg("%s\ngives  %s\nwanted %s", json_string_value(source), out.text.data,
                     json_string_value(want));
        bd_template_output_free(&out);
        bd_template_free(t);
    }
}

static void same_as_jinja2(void **state)
{
    (void)state;
    json_t *root = load_cases();
    check_cases(json_object_get(root, "cases"), json_object_get(root, "variables"), 100);
    json_decref(root);
}

static void same_white_space(void **state)
{
    (void)state;
    json_t *root = load_cases();
    check_cases(json_object_get(root, "noise"), json_object_get(root, "noise_variables"), 50);
    json_decref(root);
}

// Compile and render with "l" = [3, 1, 2], "s" = "text" and "d" = {"a": 1}; true if both work.
static bool render_text(const char *source, bd_text *text, bd_error *err)
{
    json_t *variables =
        json_pack("{s:[i,i,i], s:s, s:{s:i}}", "l", 3, 1, 2, "s", "text", "d", "a", 1);
    bd_template_output out = {0};
    bd_template *t = bd_template_compile(source, strlen(source), "case", err);
    bool ok = t && bd_template_render(t, variables, NULL, &out, err);
    if (ok)
        bd_text_add(text, out.text.data, out.text.size);
    bd_template_output_free(&out);
    bd_template_free(t);
    json_decref(variables);
    return ok;
}

static void errors(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"ab\n {{ l", "case:2:2: a tag that does not end"},
        {"{% if l %}", "case:1:11: the template ends where \"endif\" was expected"},
        {"{% for x in l %}{% else %}", "\"endfor\" was expected"},
        {"{% for x %}{% endfor %}", "case:1:10: \"in\" expected, found \"%}\""},
        {"{{ l | nofilter }}", "case:1:8: there is no filter \"nofilter\""},
        {"\u00e9\u00e9{{ l is notest }}", "case:1:11: there is no test \"notest\""},
        {"{{ q.a }}", "case:1:6: 'q' is undefined"},
        {"{{ d.b.c }}", "'b' is undefined"},
        {"{{ q() }}", "'q' is undefined"},
        {"{{ q + 1 }}", "'q' is undefined"},
        {"{{ 1 + 'a' }}", "int + text is not possible"},
        {"{{ 1 / 0 }}", "division by zero"},
        {"{{ 9223372036854775807 + 1 }}", "more than 18 digits"},
        {"{{ 999999999999999999 * 100 }}", "more than 64 bits"},
        {"{{ 2 ** 64 }}", "more than 64 bits"},
        {"{{ 'a' < 1 }}", "cannot be compared"},
        {"{{ [1, 'a'] | sort }}", "cannot be compared"},
        {"{{ raise_exception('too bad') }}", "case:1:19: the template raises: too bad"},
        {"{{ l.append(1) }}", "may not change"},
        {"{% set s.a = 1 %}", "only one of a namespace"},
        {"{% endfor %}", "\"endfor\" belongs to no statement"},
        {"{% else %}", "\"else\" belongs to no statement"},
        {"{% include 'x' %}", "\"include\" is not supported"},
        {"{% break %}", "outside of a loop"},
        {"{% for i in l recursive %}{% endfor %}", "recursive"},
        {"{{ (1 }}", "bracket"},
        {"{{ 1 2 }}", "\"}}\" expected, found \"2\""},
        {"{# a", "a comment that does not end"},
        {"{% raw %} a", "without {% endraw %}"},
        {"{{ 'a", "a text that does not end"},
        {"{{ s[ ] }}", "an index expected"},
        {"{{ s[::0] }}", "step"},
        {"{{ s.nope() }}", "'nope' is undefined"},
        {"{{ s(1) }}", "text cannot be called"},
        {"{{ 'a'|tojson(1, 2, 3, 4, 5) }}", "at most 4 arguments"},
        {"{{ 'a'|tojson(nope=1) }}", "does not take \"nope\""},
        {"{{ 'a'|replace('b') }}", "at least 2 arguments"},
        {"{{ f(*l) }}", "not supported"},
        {"{% macro f(a) %}{% endmacro %}{{ f(1, 2) }}", "takes 1 arguments"},
        {"{% macro f(a) %}{% endmacro %}{{ f(b=2) }}", "takes no \"b\""},
        {"{% for a, b in l %}{% endfor %}", "no elements"},
        {"{% for a, b in [l] %}{% endfor %}", "3 values for 2 variables"},
        {"{{ namespace }}", "function cannot be printed"},
        {"{{ q | tojson }}", "undefined cannot be written as JSON"},
        {"{{ d | length }}{{ 5 | length }}", "int has no length"},
        {"{{ range(100001) }}", "at most 100000"},
        {"{{ {l: 1} }}", "list cannot be a key"},
        {"{{ @ }}", "no meaning"},
        {"{{ \xff }}", "not UTF-8 at byte 3"},
        {"{% set none = 1 %}", "constant"},
        {"{% filter %}{% endfilter %}", "name of a filter"},
        {"{% set x %}{% generation %}{% endgeneration %}{% endset %}", "has no place"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bd_error err = {0};
        bd_text text = {0};
        if (render_text(cases[i][0], &text, &err))
            fail_msg("%s gives %s, an error with \"%s\" expected", cases[i][0], text.data,
                     cases[i][1]);
        if (!strstr(err.message, cases[i][1]))
            fail_msg("%s: error \"%s\", \"%s\" expected", cases[i][0], err.message, cases[i][1]);
        bd_text_free(&text);
    }
}

// Whatever a template does, it comes to an end, with an error if need be.
static void bounds(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "nested more than"},
        {"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", ""},
        {"{% set n = namespace(x='ab') %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% "
         "endfor %}",
         ""},
        {"{% set n = namespace(x=[1]) %}{% for i in range(99) %}{% set n.x = n.x + n.x %}{% endfor "
         "%}",
         ""},
        {"{% set n = namespace(x=[]) %}{% for i in range(9999) %}{% set n.x = [n.x] %}{% endfor %}",
         "nested more than"},
        {"{% set n = namespace(x=1) %}{% for i in range(90) %}{% set n.x = [n.x, n.x] %}{% endfor "
         "%}{{ n.x == "
         "n.x }}",
         "steps"},
        {"{% set n = namespace(x=1) %}{% for i in range(90) %}{% set n.x = [n.x, n.x] %}{% endfor "
         "%}{{ n.x }}",
         ""},
        {"{{ 'abc' * 999999999 }}", "bytes"},
        {"{{ [1] * 999999999999 }}", ""},
        {"{% for i in range(99999) %}{{ 'x' * 99999 }}{% endfor %}", ""},
        {"{{ ('ab' * 9999999)|replace('', 'x' * 999) }}", ""},
        {"{{ ('\\n' * 9999999)|indent(999, true, true) }}", ""},
        {"{% set a = 'a' * 9999999 %}{% for i in range(99999) %}{{ 'b' in a }}{% endfor %}",
         "steps"},
        {"{% set a = ('a' * 999999)|list %}{% for i in range(99999) %}{{ a|sort|length }}{% endfor "
         "%}",
         ""},
    };
    double start = bd_seconds();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bd_error err = {0};
        bd_text text = {0};
        if (render_text(cases[i][0], &text, &err))
            fail_msg("%s comes to a good end", cases[i][0]);
        if (!strstr(err.message, cases[i][1]))
            fail_msg("%s: error \"%s\", \"%s\" expected", cases[i][0], err.message, cases[i][1]);
        bd_text_free(&text);
    }
    assert_true(bd_seconds() - start < 120);
}

// Nesting in the source is bounded for every kind of bracket and block.
static void deep_sources(void **state)
{
    (void)state;
    static const char *const open[] = {"(",  "[",  "{'a':",        "-",           "not ",
                                       "x[", "f(", "1 if 1 else ", "'a'|default("};
    for (size_t i = 0; i < sizeof open / sizeof *open; i++) {
        bd_text source = {0}, text = {0};
        bd_error err = {0};
        bd_text_add_string(&source, "{{ ");
        for (int k = 0; k < 100000; k++)
            bd_text_add_string(&source, open[i]);
        bd_text_add_string(&source, "1 }}");
        assert_false(render_text(source.data, &text, &err));
        bd_text_free(&source);
        bd_text_free(&text);
    }
    bd_text source = {0}, text = {0};
    bd_error err = {0};
    for (int k = 0; k < 5000; k++)
        bd_text_add_string(&source, "{% if 1 %}");
    check_refused(render_text(source.data, &text, &err), err, "nested more than");
    bd_text_clear(&source);
    bd_text_add_string(&source, "{{ 1");
    for (int k = 0; k < 5000; k++)
        bd_text_add_string(&source, " + 1");
    bd_text_add_string(&source, " }}");
    check_refused(render_text(source.data, &text, &err), err, "nested more than");
    bd_text_clear(&source);
    bd_text_add_string(&source, "{% if 0 %}");
    for (int k = 0; k < 5000; k++) // long chains are not deep
        bd_text_add_string(&source, "{% elif 0 %}a");
    bd_text_add_string(&source, "{% else %}b{% endif %}");
    check_ok(render_text(source.data, &text, &err), err);
    assert_string_equal(text.data, "b");
    bd_text_free(&source);
    bd_text_free(&text);
}

// Pieces of good templates put together at random: nothing crashes.
static void random_sources(void **state)
{
    (void)state;
    static const char *const pieces[] = {"{{",
                                         "}}",
                                         "{%",
                                         "%}",
                                         "{#",
                                         "#}",
                                         "-",
                                         "+",
                                         " if ",
                                         " else ",
                                         " for ",
                                         " in ",
                                         " endif ",
                                         " endfor ",
                                         "x",
                                         "l",
                                         "s",
                                         "d",
                                         "1",
                                         "2.5",
                                         "'a'",
                                         "\"",
                                         "'",
                                         "|",
                                         ".",
                                         "[",
                                         "]",
                                         "(",
                                         ")",
                                         "{",
                                         "}",
                                         ":",
                                         ",",
                                         "=",
                                         "==",
                                         "not ",
                                         " is ",
                                         "defined",
                                         "upper",
                                         "length",
                                         "set ",
                                         "macro ",
                                         "endmacro",
                                         "raw",
                                         "endraw",
                                         "loop",
                                         "tojson",
                                         "join",
                                         "\n",
                                         " ",
                                         "\\",
                                         "~",
                                         "*",
                                         "**",
                                         "//",
                                         "%",
                                         "<",
                                         "true",
                                         "none",
                                         "items()",
                                         "split",
                                         "{% if l %}",
                                         "{% endif %}",
                                         "{% for i in l %}",
                                         "{% endfor %}",
                                         "{{ s }}",
                                         "\xc3\xa9",
                                         "\xff"};
    uint64_t noise = 9;
    int good = 0;
    for (int round = 0; round < 20000; round++) {
        bd_text source = {0}, text = {0};
        bd_error err = {0};
        for (int i = 0; i < 2 + round % 20; i++)
            bd_text_add_string(&source, pieces[(size_t)((check_noise(&noise) + 1) / 2 *
                                                        (float)(sizeof pieces / sizeof *pieces))]);
        good += render_text(source.data, &text, &err);
        bd_text_free(&source);
        bd_text_free(&text);
    }
    assert_true(good > 1000 && good < 19000);
}

static void spans(void **state)
{
    (void)state;
    static const char source[] = "{% for m in messages[1:] %}<{{ m.c }}{% generation %}[{{ m.c "
                                 "}}]{% endgeneration %}>{% endfor %}"
                                 "{% for m in messages %}{% endfor %}{% for m in messages[::-1] "
                                 "%}{{ loop.index }}{% endfor %}";
    bd_error err = {0};
    bd_template *t = bd_template_compile(source, strlen(source), "case", &err);
    check_ok(t != NULL, err);
    assert_true(bd_template_marks_generation(t));
    json_t *variables =
        json_pack("{s:[{s:s}, {s:s}, {s:s}]}", "messages", "c", "a", "c", "bb", "c", "");
    bd_template_options options = {.watch = "messages"};
    bd_template_output out = {0};
    check_ok(bd_template_render(t, variables, &options, &out, &err), err);
    assert_string_equal(out.text.data, "<bb[bb]><[]>123");
    const int64_t generation[][2] = {{3, 7}, {9, 11}};
    const int64_t watched[][3] = {{0, 8, 1}, {8, 12, 2}, {12, 13, 2}, {13, 14, 1}, {14, 15, 0}};
    assert_int_equal(out.generation_count, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(out.generation[i].begin, generation[i][0]);
        assert_int_equal(out.generation[i].end, generation[i][1]);
    }
    assert_int_equal(out.watched_count, 5);
    for (int i = 0; i < 5; i++) {
        assert_int_equal(out.watched[i].begin, watched[i][0]);
        assert_int_equal(out.watched[i].end, watched[i][1]);
        assert_int_equal(out.watched[i].index, watched[i][2]);
    }
    bd_template_output_free(&out);
    json_decref(variables);
    bd_template_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_jinja2), cmocka_unit_test(same_white_space),
        cmocka_unit_test(errors),         cmocka_unit_test(bounds),
        cmocka_unit_test(deep_sources),   cmocka_unit_test(random_sources),
        cmocka_unit_test(spans),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
