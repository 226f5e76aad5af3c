#include "format/template_methods.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// Filters that work on text take other values by how they print, as Jinja does.
static bool as_text(render *r, value v, value *out)
{
    bd_text text = {0};
    if (v.type == V_STRING) {
        *out = v;
        return true;
    }
    if (value_write(r, v, false, 0, &text))
        return value_take_text(r, &text, out);
    bd_text_free(&text);
    return false;
}

// --- text ----------------------------------------------------------------------------------------

static bool filter_trim(render *r, const arguments *args, value *out)
{
    value v;
    if (!as_text(r, args->items[0], &v))
        return false;
    *out = text_strip(v, args->items[1], true, true);
    return true;
}

static bool filter_upper(render *r, const arguments *args, value *out)
{
    value v;
    return as_text(r, args->items[0], &v) && text_change_case(r, v, CASE_UPPER, out);
}

static bool filter_lower(render *r, const arguments *args, value *out)
{
    value v;
    return as_text(r, args->items[0], &v) && text_change_case(r, v, CASE_LOWER, out);
}

static bool filter_capitalize(render *r, const arguments *args, value *out)
{
    value v;
    return as_text(r, args->items[0], &v) && text_change_case(r, v, CASE_CAPITALIZED, out);
}

static bool filter_title(render *r, const arguments *args, value *out)
{
    value v;
    return as_text(r, args->items[0], &v) && text_change_case(r, v, CASE_TITLE, out);
}

static bool filter_replace(render *r, const arguments *args, value *out)
{
    value v, from, to;
    int64_t most = args->items[3].type == V_INT ? args->items[3].integer : -1;
    return as_text(r, args->items[0], &v) && as_text(r, args->items[1], &from) &&
           as_text(r, args->items[2], &to) && text_replace(r, v, from, to, most, out);
}

static bool filter_string(render *r, const arguments *args, value *out)
{
    return as_text(r, args->items[0], out);
}

static bool filter_escape(render *r, const arguments *args, value *out)
{
    static const char from[] = "&<>\"'";
    static const char *const to[] = {"&amp;", "&lt;", "&gt;", "&#34;", "&#39;"};
    value v;
    bd_text text = {0};
    if (!as_text(r, args->items[0], &v))
        return false;
    for (size_t i = 0; i < v.size; i++) {
        const char *known = v.text[i] ? strchr(from, v.text[i]) : NULL;
        if (known)
            bd_text_add_string(&text, to[known - from]);
        else
            bd_text_add_byte(&text, v.text[i]);
    }
    return value_take_text(r, &text, out);
}

// Every line but the first (unless `first`) is moved in; empty ones only with `blank`.
static bool filter_indent(render *r, const arguments *args, value *out)
{
    value v, width = args->items[1];
    bool first = value_true(args->items[2]), blank = value_true(args->items[3]);
    bd_text text = {0}, indent = {0};
    if (!as_text(r, args->items[0], &v))
        return false;
    if (width.type == V_STRING)
        bd_text_add(&indent, width.text, width.size);
    else if (width.type == V_INT && (width.integer < 0 || width.integer > 1000))
        return bd_render_fail(r, "an indent of %lld", (long long)width.integer);
    else
        for (int64_t i = 0; i < (width.type == V_INT ? width.integer : 4); i++)
            bd_text_add_byte(&indent, ' ');
    bool line_start = true;
    for (size_t i = 0; i < v.size && text.size <= BD_TEMPLATE_TEXT; i++) {
        if (line_start && (i > 0 || first) && (blank || v.text[i] != '\n'))
            bd_text_add(&text, indent.data, indent.size);
        line_start = v.text[i] == '\n';
        bd_text_add_byte(&text, v.text[i]);
    }
    bd_text_free(&indent);
    return value_take_text(r, &text, out);
}

static bool filter_tojson(render *r, const arguments *args, value *out)
{
    value ascii = args->items[1], indent = args->items[2], separators = args->items[3];
    json_style style = {.indent = -1,
                        .ascii = value_true(ascii),
                        .sort_keys = value_true(args->items[4]),
                        .comma = ", ",
                        .colon = ": "};
    if (indent.type == V_INT) {
        if (indent.integer < 0 || indent.integer > 100)
            return bd_render_fail(r, "tojson with an indent of %lld", (long long)indent.integer);
        style.indent = indent.integer;
        style.comma = ",";
    }
    if (separators.type == V_LIST || separators.type == V_TUPLE) {
        const value *items = separators.list->items;
        value comma, colon;
        if (separators.list->count != 2 || items[0].type != V_STRING || items[1].type != V_STRING)
            return bd_render_fail(r, "tojson takes two separators");
        if (!value_copy_text(r, items[0].text, items[0].size, &comma) ||
            !value_copy_text(r, items[1].text, items[1].size, &colon))
            return false;
        style.comma = comma.text;
        style.colon = colon.text;
    }
    bd_text text = {0};
    if (value_write_json(r, args->items[0], &style, 0, &text))
        return value_take_text(r, &text, out);
    bd_text_free(&text);
    return false;
}

// --- numbers -------------------------------------------------------------------------------------

static bool filter_int(render *r, const arguments *args, value *out)
{
    value v = args->items[0], absent = args->items[1];
    char text[64], *end;
    *out = absent.type == V_UNDEFINED ? value_int(0) : absent;
    if (v.type == V_INT || v.type == V_BOOL)
        *out = value_int(v.type == V_INT ? v.integer : v.boolean);
    if (v.type == V_FLOAT && fabs(v.real) < 9e18)
        *out = value_int((int64_t)v.real);
    if (v.type == V_STRING && v.size < sizeof text) {
        value bare = text_strip(v, value_undefined(NULL, 0), true, true);
        memcpy(text, bare.text, bare.size);
        text[bare.size] = 0;
        double real = strtod(text, &end);
        if (bare.size && !*end && strspn(text, "0123456789+-.eE_") == bare.size &&
            fabs(real) < 9e15)
            *out = value_int((int64_t)real);
    }
    return bd_charge(r, 1);
}

static bool filter_float(render *r, const arguments *args, value *out)
{
    value v = args->items[0], absent = args->items[1];
    char text[64], *end;
    *out = absent.type == V_UNDEFINED ? value_real(0) : absent;
    if (v.type == V_INT || v.type == V_BOOL)
        *out = value_real(v.type == V_INT ? (double)v.integer : v.boolean);
    if (v.type == V_FLOAT)
        *out = v;
    if (v.type == V_STRING && v.size < sizeof text) {
        value bare = text_strip(v, value_undefined(NULL, 0), true, true);
        memcpy(text, bare.text, bare.size);
        text[bare.size] = 0;
        double real = strtod(text, &end);
        if (bare.size && !*end && strspn(text, "0123456789+-.eE") == bare.size)
            *out = value_real(real);
    }
    return bd_charge(r, 1);
}

static bool filter_abs(render *r, const arguments *args, value *out)
{
    value v = args->items[0];
    if (v.type == V_FLOAT)
        *out = value_real(fabs(v.real));
    else if (v.type == V_INT && v.integer != INT64_MIN)
        *out = value_int(v.integer < 0 ? -v.integer : v.integer);
    else
        return bd_render_fail(r, "%s has no absolute value", value_type_name(v));
    return true;
}

static bool filter_round(render *r, const arguments *args, value *out)
{
    value v = args->items[0], precision = args->items[1], method = args->items[2];
    int64_t digits = precision.type == V_INT ? precision.integer : 0;
    if ((v.type != V_FLOAT && v.type != V_INT) || digits < 0 || digits > 15)
        return bd_render_fail(r, "%s cannot be rounded so", value_type_name(v));
    double x = v.type == V_FLOAT ? v.real : (double)v.integer, scale = pow(10, (double)digits);
    char text[400];
    if (method.type == V_STRING && method.size == 4 && memcmp(method.text, "ceil", 4) == 0) {
        *out = value_real(ceil(x * scale) / scale);
    } else if (method.type == V_STRING && method.size == 5 &&
               memcmp(method.text, "floor", 5) == 0) {
        *out = value_real(floor(x * scale) / scale);
    } else { // printing rounds exactly, halves to even
        snprintf(text, sizeof text, "%.*f", (int)digits, x);
        *out = value_real(strtod(text, NULL));
    }
    return true;
}

// --- lists ---------------------------------------------------------------------------------------

static bool filter_length(render *r, const arguments *args, value *out)
{
    value v = args->items[0];
    if (v.type == V_STRING)
        *out = value_int((int64_t)bd_utf8_count(v.text, v.size));
    else if (v.type == V_LIST || v.type == V_TUPLE)
        *out = value_int(v.list->count);
    else if (v.type == V_DICT)
        *out = value_int(v.dict->count);
    else if (v.type == V_UNDEFINED)
        *out = value_int(0);
    else
        return bd_render_fail(r, "%s has no length", value_type_name(v));
    return bd_charge(r, v.type == V_STRING ? (int64_t)v.size / 64 : 0);
}

static bool filter_default(render *r, const arguments *args, value *out)
{
    (void)r;
    value v = args->items[0];
    bool absent = v.type == V_UNDEFINED || (value_true(args->items[2]) && !value_true(v));
    *out = !absent ? v : args->items[1].type == V_UNDEFINED ? value_text("", 0) : args->items[1];
    return true;
}

static bool elements_of(render *r, const arguments *args, const value **items, int64_t *count)
{
    return value_elements(r, args->items[0], items, count);
}

static bool new_list_of(render *r, const value *items, int64_t count, value *out)
{
    if (!value_new_list(r, V_LIST, count, out))
        return false;
    for (int64_t i = 0; i < count; i++)
        if (!value_append(r, out->list, items[i]))
            return false;
    return true;
}

static bool filter_list(render *r, const arguments *args, value *out)
{
    const value *items;
    int64_t count;
    return elements_of(r, args, &items, &count) && new_list_of(r, items, count, out);
}

static bool filter_first(render *r, const arguments *args, value *out)
{
    const value *items;
    int64_t count;
    if (!elements_of(r, args, &items, &count))
        return false;
    *out = count ? items[0] : value_undefined(NULL, 0);
    return true;
}

static bool filter_last(render *r, const arguments *args, value *out)
{
    const value *items;
    int64_t count;
    if (!elements_of(r, args, &items, &count))
        return false;
    *out = count ? items[count - 1] : value_undefined(NULL, 0);
    return true;
}

static bool filter_reverse(render *r, const arguments *args, value *out)
{
    const value backwards[3] = {value_undefined(NULL, 0), value_undefined(NULL, 0), value_int(-1)};
    value list = args->items[0];
    if (list.type != V_STRING && !filter_list(r, args, &list))
        return false;
    return value_slice(r, list, backwards, out);
}

static bool filter_items(render *r, const arguments *args, value *out)
{
    if (args->items[0].type == V_UNDEFINED)
        return value_new_list(r, V_LIST, 0, out);
    if (args->items[0].type != V_DICT)
        return bd_render_fail(r, "%s has no items", value_type_name(args->items[0]));
    return dict_items(r, args->items[0], out);
}

// x.a.b by the text "a.b"; numbers are places.
static bool path_of(render *r, value v, value path, value *out)
{
    *out = v;
    if (path.type != V_STRING)
        return value_item(r, v, path, out);
    for (size_t at = 0; at <= path.size;) {
        const char *dot = memchr(path.text + at, '.', path.size - at);
        size_t end = dot ? (size_t)(dot - path.text) : path.size;
        value key = value_text(path.text + at, end - at), from = *out;
        if (end > at && end - at < 10 && strspn(path.text + at, "0123456789") >= end - at)
            key = value_int(atoll(path.text + at));
        if (!value_item(r, from, key, out))
            return false;
        at = end + 1;
    }
    return true;
}

// What sort, unique and their like look at: the element itself, an attribute, in lower case.
static bool sort_key(render *r, value item, value path, bool case_sensitive, value *out)
{
    *out = item;
    if (path.type != V_UNDEFINED && path.type != V_NONE && !path_of(r, item, path, out))
        return false;
    return case_sensitive || out->type != V_STRING || text_change_case(r, *out, CASE_LOWER, out);
}

static bool merge_sort(render *r, value *items, value *keys, value *swap, int64_t count,
                       bool reverse)
{
    if (count < 2)
        return true;
    int64_t half = count / 2, a = 0, b = half;
    if (!merge_sort(r, items, keys, swap, half, reverse) ||
        !merge_sort(r, items + half, keys + half, swap, count - half, reverse))
        return false;
    for (int64_t to = 0; to < count; to++) {
        int order = 0;
        if (a < half && b < count && !value_compare(r, keys[b], keys[a], &order))
            return false;
        bool right = a >= half || (b < count && (reverse ? order > 0 : order < 0));
        int64_t from = right ? b++ : a++;
        swap[2 * to] = items[from];
        swap[2 * to + 1] = keys[from];
    }
    for (int64_t i = 0; i < count; i++) {
        items[i] = swap[2 * i];
        keys[i] = swap[2 * i + 1];
    }
    return bd_charge(r, count);
}

static bool sorted(render *r, const value *items, int64_t count, value path, bool case_sensitive,
                   bool reverse, value *out)
{
    if (!new_list_of(r, items, count, out))
        return false;
    value *keys = bd_pool_alloc(&r->pool, ((size_t)count * 3 + 1) * sizeof *keys);
    if (!keys)
        return bd_render_no_memory(r);
    for (int64_t i = 0; i < count; i++)
        if (!sort_key(r, items[i], path, case_sensitive, &keys[i]))
            return false;
    return merge_sort(r, out->list->items, keys, keys + count, count, reverse);
}

static bool filter_sort(render *r, const arguments *args, value *out)
{
    const value *items;
    int64_t count;
    return elements_of(r, args, &items, &count) &&
           sorted(r, items, count, args->items[3], value_true(args->items[2]),
                  value_true(args->items[1]), out);
}

// dictsort(case_sensitive=false, by="key", reverse=false)
static bool filter_dictsort(render *r, const arguments *args, value *out)
{
    value items, by = args->items[2];
    bool by_value = by.type == V_STRING && by.size == 5 && memcmp(by.text, "value", 5) == 0;
    return filter_items(r, args, &items) &&
           sorted(r, items.list->items, items.list->count, value_int(by_value),
                  value_true(args->items[1]), value_true(args->items[3]), out);
}

static bool filter_unique(render *r, const arguments *args, value *out)
{
    const value *items;
    int64_t count;
    value seen;
    if (!elements_of(r, args, &items, &count) || !value_new_list(r, V_LIST, 0, out) ||
        !value_new_list(r, V_LIST, 0, &seen))
        return false;
    for (int64_t i = 0; i < count; i++) {
        value key;
        bool known;
        if (!sort_key(r, items[i], args->items[2], value_true(args->items[1]), &key) ||
            !value_contains(r, seen, key, &known))
            return false;
        if (!known && (!value_append(r, seen.list, key) || !value_append(r, out->list, items[i])))
            return false;
    }
    return true;
}

static bool extreme(render *r, const arguments *args, int wanted, value *out)
{
    const value *items;
    int64_t count;
    value best;
    if (!elements_of(r, args, &items, &count))
        return false;
    *out = value_undefined(NULL, 0);
    for (int64_t i = 0; i < count; i++) {
        value key;
        int order = 0;
        if (!sort_key(r, items[i], args->items[2], value_true(args->items[1]), &key) ||
            (i > 0 && !value_compare(r, key, best, &order)))
            return false;
        if (i == 0 || order == wanted) {
            best = key;
            *out = items[i];
        }
    }
    return true;
}

static bool filter_min(render *r, const arguments *args, value *out)
{
    return extreme(r, args, -1, out);
}

static bool filter_max(render *r, const arguments *args, value *out)
{
    return extreme(r, args, 1, out);
}

static bool filter_sum(render *r, const arguments *args, value *out)
{
    const value *items;
    int64_t count, whole = 0;
    double real = 0;
    bool is_real = false;
    if (!elements_of(r, args, &items, &count))
        return false;
    for (int64_t i = 0; i < count; i++) {
        value v;
        if (!sort_key(r, items[i], args->items[1], true, &v))
            return false;
        if (v.type != V_INT && v.type != V_FLOAT)
            return bd_render_fail(r, "%s cannot be added up", value_type_name(v));
        is_real = is_real || v.type == V_FLOAT;
        real += v.type == V_FLOAT ? v.real : (double)v.integer;
        if (v.type == V_INT && __builtin_add_overflow(whole, v.integer, &whole))
            return bd_render_fail(r, "an integer of more than 64 bits");
    }
    *out = is_real ? value_real(real) : value_int(whole);
    return true;
}

static bool filter_join(render *r, const arguments *args, value *out)
{
    const value *items;
    int64_t count;
    value list, between = args->items[1].type == V_UNDEFINED ? value_text("", 0) : args->items[1];
    if (!elements_of(r, args, &items, &count) || !new_list_of(r, items, count, &list))
        return false;
    for (int64_t i = 0; args->items[2].type != V_UNDEFINED && i < count; i++)
        if (!path_of(r, items[i], args->items[2], &list.list->items[i]))
            return false;
    return text_join(r, list, between, out);
}

// --- filters that take filters and tests ---------------------------------------------------------

// map("upper"), map(attribute="a.b", default=x)
static bool filter_map(render *r, const arguments *args, value *out)
{
    const value *items;
    int64_t count, placed = args->count - args->named - 1;
    const template_function *filter = NULL;
    value path = value_undefined(NULL, 0), absent = value_undefined(NULL, 0);
    for (int64_t i = 0; i < args->named; i++) {
        bool is_path = strcmp(args->names[i], "attribute") == 0;
        if (!is_path && strcmp(args->names[i], "default") != 0)
            return bd_render_fail(r, "map does not take \"%s\"", args->names[i]);
        *(is_path ? &path : &absent) = args->items[placed + 1 + i];
    }
    if (placed > 0 && args->items[1].type == V_STRING)
        filter = bd_find_filter(args->items[1].text, args->items[1].size);
    if (!filter && (placed > 0 || path.type == V_UNDEFINED))
        return bd_render_fail(r, "map takes the name of a filter, or attribute=");
    if (!elements_of(r, args, &items, &count) || !value_new_list(r, V_LIST, count, out))
        return false;
    for (int64_t i = 0; i < count; i++) {
        value mapped, given[9];
        arguments inner = {.items = given, .count = placed < 9 ? placed : 9};
        given[0] = items[i];
        for (int64_t k = 1; k < inner.count; k++)
            given[k] = args->items[k + 1];
        if (!(filter ? bd_call_builtin(r, filter, &inner, &mapped)
                     : path_of(r, items[i], path, &mapped)))
            return false;
        if (mapped.type == V_UNDEFINED && absent.type != V_UNDEFINED)
            mapped = absent;
        if (!value_append(r, out->list, mapped))
            return false;
    }
    return true;
}

// select("test", ...), selectattr("a.b", "test", ...) and their opposites. Without a test: is it
// true?
static bool select_by(render *r, const arguments *args, bool by_attribute, bool wanted, value *out)
{
    const value *items;
    int64_t count, first = by_attribute ? 2 : 1;
    const template_function *test = NULL;
    if (args->named || (by_attribute && args->count < 2))
        return bd_render_fail(r, "an attribute, a test and its arguments expected");
    if (args->count > first) {
        value name = args->items[first];
        test = name.type == V_STRING ? bd_find_test(name.text, name.size) : NULL;
        if (!test)
            return bd_render_fail(r, "there is no such test");
    }
    if (!elements_of(r, args, &items, &count) || !value_new_list(r, V_LIST, 0, out))
        return false;
    for (int64_t i = 0; i < count; i++) {
        value holds, given[9];
        arguments inner = {.items = given};
        if (by_attribute ? !path_of(r, items[i], args->items[1], &given[0])
                         : (given[0] = items[i], false))
            return false;
        inner.count = 1;
        for (int64_t k = first + 1; k < args->count && inner.count < 9; k++)
            given[inner.count++] = args->items[k];
        holds = given[0];
        if (test && !bd_call_builtin(r, test, &inner, &holds))
            return false;
        if (value_true(holds) == wanted && !value_append(r, out->list, items[i]))
            return false;
    }
    return true;
}

static bool filter_select(render *r, const arguments *args, value *out)
{
    return select_by(r, args, false, true, out);
}

static bool filter_reject(render *r, const arguments *args, value *out)
{
    return select_by(r, args, false, false, out);
}

static bool filter_selectattr(render *r, const arguments *args, value *out)
{
    return select_by(r, args, true, true, out);
}

static bool filter_rejectattr(render *r, const arguments *args, value *out)
{
    return select_by(r, args, true, false, out);
}

static bool filter_attr(render *r, const arguments *args, value *out)
{
    return value_item(r, args->items[0], args->items[1], out);
}

const template_function *bd_find_filter(const char *name, size_t size)
{
    static const template_function filters[] = {
        {"trim", filter_trim, 0, 1, "chars"},
        {"upper", filter_upper, 0, 0, NULL},
        {"lower", filter_lower, 0, 0, NULL},
        {"capitalize", filter_capitalize, 0, 0, NULL},
        {"title", filter_title, 0, 0, NULL},
        {"replace", filter_replace, 2, 3, "old new count"},
        {"string", filter_string, 0, 0, NULL},
        {"safe", filter_string, 0, 0, NULL},
        {"escape", filter_escape, 0, 0, NULL},
        {"e", filter_escape, 0, 0, NULL},
        {"indent", filter_indent, 0, 3, "width first blank"},
        {"tojson", filter_tojson, 0, 4, "ensure_ascii indent separators sort_keys"},
        {"int", filter_int, 0, 1, "default"},
        {"float", filter_float, 0, 1, "default"},
        {"abs", filter_abs, 0, 0, NULL},
        {"round", filter_round, 0, 2, "precision method"},
        {"length", filter_length, 0, 0, NULL},
        {"count", filter_length, 0, 0, NULL},
        {"default", filter_default, 0, 2, "default_value boolean"},
        {"d", filter_default, 0, 2, "default_value boolean"},
        {"list", filter_list, 0, 0, NULL},
        {"first", filter_first, 0, 0, NULL},
        {"last", filter_last, 0, 0, NULL},
        {"reverse", filter_reverse, 0, 0, NULL},
        {"items", filter_items, 0, 0, NULL},
        {"sort", filter_sort, 0, 3, "reverse case_sensitive attribute"},
        {"dictsort", filter_dictsort, 0, 3, "case_sensitive by reverse"},
        {"unique", filter_unique, 0, 2, "case_sensitive attribute"},
        {"min", filter_min, 0, 2, "case_sensitive attribute"},
        {"max", filter_max, 0, 2, "case_sensitive attribute"},
        {"sum", filter_sum, 0, 1, "attribute"},
        {"join", filter_join, 0, 2, "d attribute"},
        {"map", filter_map, 0, -1, NULL},
        {"select", filter_select, 0, -1, NULL},
        {"reject", filter_reject, 0, -1, NULL},
        {"selectattr", filter_selectattr, 0, -1, NULL},
        {"rejectattr", filter_rejectattr, 0, -1, NULL},
        {"attr", filter_attr, 1, 1, NULL},
    };
    for (size_t i = 0; i < sizeof filters / sizeof *filters; i++)
        if (strlen(filters[i].name) == size && memcmp(filters[i].name, name, size) == 0)
            return &filters[i];
    return NULL;
}
