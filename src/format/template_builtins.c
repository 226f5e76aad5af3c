/* Calling what templates may call: arguments into their places, and the global functions. */
#include "format/template_internal.h"

#include <string.h>

// The place of a named argument, -1: the function has none of that name.
static int place_of(const template_function *function, const char *name)
{
    const char *at = function->named;
    for (int place = 0; at && *at; place++) {
        size_t size = strcspn(at, " ");
        if (strlen(name) == size && memcmp(at, name, size) == 0)
            return place;
        at += size + (at[size] == ' ');
    }
    return -1;
}

bool bd_call_builtin(render *r, const template_function *function, const arguments *args,
                     value *out)
{
    enum { MOST = 8 };
    int64_t placed = args->count - args->named - 1;
    if (function->most < 0) // takes all as they come
        return function->call(r, args, out);
    if (placed > function->most)
        return bd_render_fail(r, "%s takes at most %d arguments, not %lld", function->name,
                              function->most, (long long)placed);
    value items[MOST + 1];
    bool given[MOST + 1] = {false};
    for (int i = 0; i <= function->most; i++) {
        given[i] = i <= placed;
        items[i] = given[i] ? args->items[i] : value_undefined(NULL, 0);
    }
    for (int64_t i = 0; i < args->named; i++) {
        int place = place_of(function, args->names[i]);
        if (place < 0 || place >= function->most || given[place + 1])
            return bd_render_fail(r, "%s does not take \"%s\" here", function->name,
                                  args->names[i]);
        items[place + 1] = args->items[placed + 1 + i];
        given[place + 1] = true;
    }
    for (int i = 1; i <= function->least; i++)
        if (!given[i])
            return bd_render_fail(r, "%s takes at least %d arguments", function->name,
                                  function->least);
    arguments ordered = {.items = items, .count = function->most + 1};
    return function->call(r, &ordered, out);
}

// --- global functions ----------------------------------------------------------------------------

static bool call_raise(render *r, const arguments *args, value *out)
{
    (void)out;
    value message = args->items[1];
    if (message.type != V_STRING)
        return bd_render_fail(r, "the template raises an exception");
    return bd_render_fail(r, "the template raises: %.*s",
                          (int)(message.size < 400 ? message.size : 400), message.text);
}

static bool call_now(render *r, const arguments *args, value *out)
{
    value format = args->items[1];
    char text[256];
    struct tm local;
    time_t now = r->options->now ? r->options->now : time(NULL);
    if (format.type != V_STRING || format.size > 100 || memchr(format.text, 0, format.size))
        return bd_render_fail(r, "strftime_now takes a short text");
    char pattern[104];
    memcpy(pattern, format.text, format.size);
    pattern[format.size] = 0;
    localtime_r(&now, &local);
    size_t size = strftime(text, sizeof text, pattern, &local);
    return value_copy_text(r, text, size, out);
}

// namespace(a=1) and dict(a=1); a dict may come first.
static bool fill_dict(render *r, const arguments *args, value_type type, value *out)
{
    int64_t placed = args->count - args->named - 1;
    if (placed > 1 || (placed == 1 && args->items[1].type != V_DICT))
        return bd_render_fail(r, "a dict and arguments with names expected");
    if (!value_new_dict(r, type, out))
        return false;
    for (int64_t i = 0; placed && i < args->items[1].dict->count; i++)
        if (!value_put(r, out->dict, args->items[1].dict->entries[i].key,
                       args->items[1].dict->entries[i].item))
            return false;
    for (int64_t i = 0; i < args->named; i++)
        if (!value_put(r, out->dict, value_string(args->names[i]), args->items[placed + 1 + i]))
            return false;
    return true;
}

static bool call_namespace(render *r, const arguments *args, value *out)
{
    return fill_dict(r, args, V_NAMESPACE, out);
}

static bool call_dict(render *r, const arguments *args, value *out)
{
    return fill_dict(r, args, V_DICT, out);
}

static bool call_range(render *r, const arguments *args, value *out)
{
    int64_t bounds[3] = {0, 0, 1}, given = 0;
    for (int i = 1; i <= 3; i++) {
        if (args->items[i].type == V_UNDEFINED)
            continue;
        if (args->items[i].type != V_INT || args->items[i].integer > INT32_MAX ||
            args->items[i].integer < INT32_MIN)
            return bd_render_fail(r, "range takes integers");
        bounds[i - 1] = args->items[i].integer;
        given = i;
    }
    int64_t from = given == 1 ? 0 : bounds[0], to = given == 1 ? bounds[0] : bounds[1],
            step = bounds[2];
    if (step == 0)
        return bd_render_fail(r, "range with a step of 0");
    int64_t count = step > 0 ? (to - from + step - 1) / step : (to - from + step + 1) / step;
    count = count < 0 ? 0 : count;
    if (count > 100000)
        return bd_render_fail(r, "a range of %lld elements, at most 100000 expected",
                              (long long)count);
    if (!value_new_list(r, V_LIST, count, out))
        return false;
    for (int64_t i = 0; i < count; i++)
        out->list->items[out->list->count++] = value_int(from + i * step);
    return bd_charge(r, count);
}

const template_function *bd_find_global(const char *name)
{
    static const template_function functions[] = {
        {"raise_exception", call_raise, 1, 1, "message"},
        {"strftime_now", call_now, 1, 1, "format"},
        {"namespace", call_namespace, 0, -1, NULL},
        {"dict", call_dict, 0, -1, NULL},
        {"range", call_range, 1, 3, NULL},
    };
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++)
        if (strcmp(functions[i].name, name) == 0)
            return &functions[i];
    return NULL;
}

// --- tests ---------------------------------------------------------------------------------------

#define TEST(name, condition)                                                                      \
    static bool test_##name(render *r, const arguments *args, value *out)                          \
    {                                                                                              \
        (void)r;                                                                                   \
        value v = args->items[0];                                                                  \
        (void)v;                                                                                   \
        *out = value_bool(condition);                                                              \
        return true;                                                                               \
    }

TEST(defined, v.type != V_UNDEFINED)
TEST(undefined, v.type == V_UNDEFINED)
TEST(none, v.type == V_NONE)
TEST(boolean, v.type == V_BOOL)
TEST(true, v.type == V_BOOL && v.boolean)
TEST(false, v.type == V_BOOL && !v.boolean)
TEST(integer, v.type == V_INT)
TEST(float, v.type == V_FLOAT)
TEST(number, v.type == V_BOOL || v.type == V_INT || v.type == V_FLOAT)
TEST(string, v.type == V_STRING)
TEST(mapping, v.type == V_DICT)
TEST(sequence, v.type == V_LIST || v.type == V_TUPLE || v.type == V_STRING || v.type == V_DICT)
TEST(iterable, v.type == V_LIST || v.type == V_TUPLE || v.type == V_STRING || v.type == V_DICT ||
                   v.type == V_UNDEFINED)
TEST(callable, v.type == V_MACRO || v.type == V_FUNCTION || v.type == V_METHOD)
TEST(equal, value_equal(r, v, args->items[1]))
TEST(unequal, !value_equal(r, v, args->items[1]))
TEST(same,
     v.type == args->items[1].type && (v.type == V_LIST || v.type == V_TUPLE || v.type == V_DICT
                                           ? v.list == args->items[1].list
                                           : value_equal(r, v, args->items[1])))

static bool compare(render *r, const arguments *args, bool less, bool equal, bool greater,
                    value *out)
{
    int order;
    if (!value_compare(r, args->items[0], args->items[1], &order))
        return false;
    *out = value_bool(order < 0 ? less : order == 0 ? equal : greater);
    return true;
}

static bool test_less(render *r, const arguments *args, value *out)
{
    return compare(r, args, true, false, false, out);
}

static bool test_less_equal(render *r, const arguments *args, value *out)
{
    return compare(r, args, true, true, false, out);
}

static bool test_greater(render *r, const arguments *args, value *out)
{
    return compare(r, args, false, false, true, out);
}

static bool test_greater_equal(render *r, const arguments *args, value *out)
{
    return compare(r, args, false, true, true, out);
}

static bool test_in(render *r, const arguments *args, value *out)
{
    bool in;
    if (!value_contains(r, args->items[1], args->items[0], &in))
        return false;
    *out = value_bool(in);
    return true;
}

static bool remainder_is(render *r, value v, int64_t divisor, int64_t wanted, value *out)
{
    if (v.type != V_INT || divisor == 0)
        return bd_render_fail(r, "%s has no remainder", value_type_name(v));
    int64_t rest = divisor == -1 ? 0 : v.integer % divisor;
    *out = value_bool(rest == wanted || (wanted && rest == -wanted));
    return true;
}

static bool test_even(render *r, const arguments *args, value *out)
{
    return remainder_is(r, args->items[0], 2, 0, out);
}

static bool test_odd(render *r, const arguments *args, value *out)
{
    return remainder_is(r, args->items[0], 2, 1, out);
}

static bool test_divisible(render *r, const arguments *args, value *out)
{
    if (args->items[1].type != V_INT)
        return bd_render_fail(r, "divisibleby takes an integer");
    return remainder_is(r, args->items[0], args->items[1].integer, 0, out);
}

const template_function *bd_find_test(const char *name, size_t size)
{
    static const template_function tests[] = {
        {"defined", test_defined, 0, 0, NULL},
        {"undefined", test_undefined, 0, 0, NULL},
        {"none", test_none, 0, 0, NULL},
        {"boolean", test_boolean, 0, 0, NULL},
        {"true", test_true, 0, 0, NULL},
        {"false", test_false, 0, 0, NULL},
        {"integer", test_integer, 0, 0, NULL},
        {"float", test_float, 0, 0, NULL},
        {"number", test_number, 0, 0, NULL},
        {"string", test_string, 0, 0, NULL},
        {"mapping", test_mapping, 0, 0, NULL},
        {"sequence", test_sequence, 0, 0, NULL},
        {"iterable", test_iterable, 0, 0, NULL},
        {"callable", test_callable, 0, 0, NULL},
        {"sameas", test_same, 1, 1, NULL},
        {"equalto", test_equal, 1, 1, NULL},
        {"eq", test_equal, 1, 1, NULL},
        {"==", test_equal, 1, 1, NULL},
        {"ne", test_unequal, 1, 1, NULL},
        {"!=", test_unequal, 1, 1, NULL},
        {"lt", test_less, 1, 1, NULL},
        {"lessthan", test_less, 1, 1, NULL},
        {"<", test_less, 1, 1, NULL},
        {"le", test_less_equal, 1, 1, NULL},
        {"<=", test_less_equal, 1, 1, NULL},
        {"gt", test_greater, 1, 1, NULL},
        {"greaterthan", test_greater, 1, 1, NULL},
        {">", test_greater, 1, 1, NULL},
        {"ge", test_greater_equal, 1, 1, NULL},
        {">=", test_greater_equal, 1, 1, NULL},
        {"in", test_in, 1, 1, NULL},
        {"even", test_even, 0, 0, NULL},
        {"odd", test_odd, 0, 0, NULL},
        {"divisibleby", test_divisible, 1, 1, NULL},
    };
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        if (strlen(tests[i].name) == size && memcmp(tests[i].name, name, size) == 0)
            return &tests[i];
    return NULL;
}
