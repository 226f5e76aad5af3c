#include "format/template_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

// --- memory --------------------------------------------------------------------------------------

struct pool_chunk {
    struct pool_chunk *next;
};

void *bd_pool_alloc(bd_pool *pool, size_t size)
{
    size = (size + 15) & ~(size_t)15;
    if (size > pool->left) {
        size_t chunk = size > 64 << 10 ? size + 16 : 64 << 10;
        if (size > pool->limit || pool->total > pool->limit - size)
            return NULL;
        struct pool_chunk *fresh = calloc(1, chunk);
        if (!fresh)
            return NULL;
        fresh->next = pool->chunks;
        pool->chunks = fresh;
        pool->total += chunk;
        pool->next = (char *)fresh + 16;
        pool->left = chunk - 16;
    }
    void *out = pool->next;
    pool->next += size;
    pool->left -= size;
    return out;
}

void bd_pool_free(bd_pool *pool)
{
    while (pool->chunks) {
        struct pool_chunk *next = pool->chunks->next;
        free(pool->chunks);
        pool->chunks = next;
    }
    *pool = (bd_pool){0};
}

// --- making --------------------------------------------------------------------------------------

value value_bool(bool b)
{
    return (value){.type = V_BOOL, .boolean = b};
}

value value_int(int64_t i)
{
    return (value){.type = V_INT, .integer = i};
}

value value_real(double d)
{
    return (value){.type = V_FLOAT, .real = d};
}

value value_text(const char *text, size_t size)
{
    return (value){.type = V_STRING, .text = text, .size = size};
}

value value_string(const char *text)
{
    return value_text(text, strlen(text));
}

value value_undefined(const char *name, size_t size)
{
    return (value){.type = V_UNDEFINED, .text = name, .size = size};
}

bool value_copy_text(render *r, const char *text, size_t size, value *out)
{
    char *copy = bd_pool_alloc(&r->pool, size + 1);
    if (!copy)
        return bd_render_no_memory(r);
    if (size)
        memcpy(copy, text, size);
    *out = value_text(copy, size);
    return bd_charge(r, (int64_t)size / 16);
}

bool value_take_text(render *r, bd_text *text, value *out)
{
    bool ok = text->failed ? bd_render_no_memory(r)
              : text->size > BD_TEMPLATE_TEXT
                  ? bd_render_fail(r, "a text of more than %d bytes", BD_TEMPLATE_TEXT)
                  : value_copy_text(r, text->data ? text->data : "", text->size, out);
    bd_text_free(text);
    return ok;
}

// Make room for one more element, in pool memory: the old room is left behind.
static bool grow(render *r, void **items, int64_t count, int64_t *room, size_t size)
{
    if (count < *room)
        return true;
    int64_t larger_room = *room ? *room * 2 : 8;
    void *larger = bd_pool_alloc(&r->pool, (size_t)larger_room * size);
    if (!larger)
        return bd_render_no_memory(r);
    if (count)
        memcpy(larger, *items, (size_t)count * size);
    *items = larger;
    *room = larger_room;
    return true;
}

bool value_new_list(render *r, value_type type, int64_t room, value *out)
{
    value_list *list = bd_pool_alloc(&r->pool, sizeof *list);
    if (!list)
        return bd_render_no_memory(r);
    if (room > 0) {
        list->items = bd_pool_alloc(&r->pool, (size_t)room * sizeof *list->items);
        if (!list->items)
            return bd_render_no_memory(r);
        list->room = room;
    }
    *out = (value){.type = type, .list = list};
    return true;
}

// A container's depth is kept, so that nothing that walks through values can run out of stack.
static bool hold(render *r, int *depth, value item)
{
    int inside = item.type == V_LIST || item.type == V_TUPLE ? item.list->depth + 1
                 : item.type == V_DICT                       ? item.dict->depth + 1
                                                             : 0;
    if (inside > *depth)
        *depth = inside;
    return *depth <= BD_TEMPLATE_DEPTH ||
           bd_render_fail(r, "values nested more than %d deep", BD_TEMPLATE_DEPTH);
}

bool value_append(render *r, value_list *list, value item)
{
    if (!hold(r, &list->depth, item))
        return false;
    if (!grow(r, (void **)&list->items, list->count, &list->room, sizeof item))
        return false;
    list->items[list->count++] = item;
    return true;
}

bool value_new_dict(render *r, value_type type, value *out)
{
    value_dict *dict = bd_pool_alloc(&r->pool, sizeof *dict);
    if (!dict)
        return bd_render_no_memory(r);
    *out = (value){.type = type, .dict = dict};
    return true;
}

static dict_entry *find_entry(render *r, const value_dict *dict, value key)
{
    for (int64_t i = 0; i < dict->count; i++)
        if (value_equal(r, dict->entries[i].key, key))
            return &dict->entries[i];
    return NULL;
}

bool value_put(render *r, value_dict *dict, value key, value item)
{
    dict_entry *entry = find_entry(r, dict, key);
    if (!bd_charge(r, 1) || !hold(r, &dict->depth, item))
        return false;
    if (entry) {
        entry->item = item;
        return true;
    }
    if (!grow(r, (void **)&dict->entries, dict->count, &dict->room, sizeof *dict->entries))
        return false;
    dict->entries[dict->count++] = (dict_entry){key, item};
    return true;
}

const value *value_get(render *r, const value_dict *dict, value key)
{
    const dict_entry *entry = find_entry(r, dict, key);
    return entry ? &entry->item : NULL;
}

static bool object_from_json(render *r, json_t *json, int depth, value *out)
{
    const char *key;
    json_t *item;
    if (!value_new_dict(r, V_DICT, out))
        return false;
    value_dict *dict = out->dict;
    json_object_foreach(json, key, item)
    {
        value name, converted;
        // JSON's keys differ from one another: no need to look for this one.
        if (!value_copy_text(r, key, strlen(key), &name) ||
            !value_from_json(r, item, depth + 1, &converted) || !hold(r, &dict->depth, converted) ||
            !grow(r, (void **)&dict->entries, dict->count, &dict->room, sizeof *dict->entries))
            return false;
        dict->entries[dict->count++] = (dict_entry){name, converted};
    }
    return true;
}

bool value_from_json(render *r, json_t *json, int depth, value *out)
{
    if (depth > BD_TEMPLATE_DEPTH)
        return bd_render_fail(r, "variables nested more than %d deep", BD_TEMPLATE_DEPTH);
    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return object_from_json(r, json, depth, out);
    case JSON_ARRAY:
        if (!value_new_list(r, V_LIST, (int64_t)json_array_size(json), out))
            return false;
        for (size_t i = 0; i < json_array_size(json); i++) {
            value item;
            if (!value_from_json(r, json_array_get(json, i), depth + 1, &item) ||
                !value_append(r, out->list, item))
                return false;
        }
        return true;
    case JSON_STRING:
        return value_copy_text(r, json_string_value(json), json_string_length(json), out);
    case JSON_INTEGER:
        *out = value_int(json_integer_value(json));
        return true;
    case JSON_REAL:
        *out = value_real(json_real_value(json));
        return true;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = value_bool(json_is_true(json));
        return true;
    default:
        *out = (value){.type = V_NONE};
        return true;
    }
}

// --- asking --------------------------------------------------------------------------------------

const char *value_type_name(value v)
{
    static const char *const names[] = {"undefined", "None",  "bool",     "int",   "float",
                                        "text",      "list",  "tuple",    "dict",  "namespace",
                                        "loop",      "macro", "function", "method"};
    return names[v.type];
}

bool value_true(value v)
{
    switch (v.type) {
    case V_UNDEFINED:
    case V_NONE:
        return false;
    case V_BOOL:
        return v.boolean;
    case V_INT:
        return v.integer != 0;
    case V_FLOAT:
        return v.real != 0;
    case V_STRING:
        return v.size > 0;
    case V_LIST:
    case V_TUPLE:
        return v.list->count > 0;
    case V_DICT:
        return v.dict->count > 0;
    default:
        return true;
    }
}

static bool is_number(value v)
{
    return v.type == V_BOOL || v.type == V_INT || v.type == V_FLOAT;
}

static double as_real(value v)
{
    return v.type == V_FLOAT ? v.real : v.type == V_INT ? (double)v.integer : v.boolean;
}

static int64_t as_integer(value v)
{
    return v.type == V_INT ? v.integer : v.boolean;
}

static int compare_numbers(value a, value b)
{
    if (a.type == V_FLOAT || b.type == V_FLOAT) {
        double x = as_real(a), y = as_real(b);
        return (x > y) - (x < y);
    }
    int64_t x = as_integer(a), y = as_integer(b);
    return (x > y) - (x < y);
}

bool value_equal(render *r, value a, value b)
{
    if (++r->steps > BD_TEMPLATE_STEPS)
        return false;
    if (is_number(a) && is_number(b))
        return compare_numbers(a, b) == 0 && !isnan(as_real(a)) && !isnan(as_real(b));
    if (a.type != b.type)
        return false;
    switch (a.type) {
    case V_UNDEFINED:
    case V_NONE:
        return true;
    case V_STRING:
        r->steps += (int64_t)(a.size == b.size ? a.size : 0) / 64;
        return a.size == b.size && memcmp(a.text, b.text, a.size) == 0;
    case V_LIST:
    case V_TUPLE:
        if (a.list->count != b.list->count)
            return false;
        for (int64_t i = 0; i < a.list->count; i++)
            if (!value_equal(r, a.list->items[i], b.list->items[i]))
                return false;
        return true;
    case V_DICT:
        if (a.dict->count != b.dict->count)
            return false;
        for (int64_t i = 0; i < a.dict->count; i++) {
            const value *other = value_get(r, b.dict, a.dict->entries[i].key);
            if (!other || !value_equal(r, a.dict->entries[i].item, *other))
                return false;
        }
        return true;
    default:
        return a.dict == b.dict;
    }
}

bool value_compare(render *r, value a, value b, int *order)
{
    if (is_number(a) && is_number(b)) {
        *order = compare_numbers(a, b);
        return true;
    }
    if (a.type == V_STRING && b.type == V_STRING) {
        // UTF-8 sorts as its characters do.
        size_t shared = a.size < b.size ? a.size : b.size;
        int difference = shared ? memcmp(a.text, b.text, shared) : 0;
        *order = difference ? (difference > 0) - (difference < 0)
                            : (a.size > b.size) - (a.size < b.size);
        return bd_charge(r, (int64_t)shared / 64);
    }
    if (a.type == b.type && (a.type == V_LIST || a.type == V_TUPLE)) {
        for (int64_t i = 0; i < a.list->count && i < b.list->count; i++) {
            if (value_equal(r, a.list->items[i], b.list->items[i]))
                continue;
            return value_compare(r, a.list->items[i], b.list->items[i], order);
        }
        *order = (a.list->count > b.list->count) - (a.list->count < b.list->count);
        return true;
    }
    return bd_render_fail(r, "%s and %s cannot be compared", value_type_name(a),
                          value_type_name(b));
}

bool value_contains(render *r, value container, value item, bool *out)
{
    *out = false;
    switch (container.type) {
    case V_UNDEFINED:
        return true;
    case V_STRING:
        if (item.type != V_STRING)
            return bd_render_fail(r, "only text can be in a text, not %s", value_type_name(item));
        *out =
            item.size == 0 || memmem(container.text, container.size, item.text, item.size) != NULL;
        return bd_charge(r, (int64_t)container.size / 64);
    case V_LIST:
    case V_TUPLE:
        for (int64_t i = 0; i < container.list->count && !*out; i++)
            *out = value_equal(r, container.list->items[i], item);
        return bd_charge(r, container.list->count / 8);
    case V_DICT:
        *out = value_get(r, container.dict, item) != NULL;
        return bd_charge(r, container.dict->count / 8);
    default:
        return bd_render_fail(r, "nothing can be in %s", value_type_name(container));
    }
}

// --- elements ------------------------------------------------------------------------------------

bool value_elements(render *r, value v, const value **items, int64_t *count)
{
    value list;
    *items = NULL;
    *count = 0;
    switch (v.type) {
    case V_UNDEFINED:
        return true;
    case V_LIST:
    case V_TUPLE:
        *items = v.list->items;
        *count = v.list->count;
        return bd_charge(r, *count / 8);
    case V_DICT:
        if (!value_new_list(r, V_LIST, v.dict->count, &list))
            return false;
        for (int64_t i = 0; i < v.dict->count; i++)
            list.list->items[i] = v.dict->entries[i].key;
        list.list->count = v.dict->count;
        break;
    case V_STRING:
        if (!value_new_list(r, V_LIST, (int64_t)bd_utf8_count(v.text, v.size), &list))
            return false;
        for (size_t at = 0; at < v.size;) {
            size_t begin = at;
            bd_utf8_next(v.text, &at);
            list.list->items[list.list->count++] = value_text(v.text + begin, at - begin);
        }
        break;
    default:
        return bd_render_fail(r, "%s has no elements to go through", value_type_name(v));
    }
    *items = list.list->items;
    *count = list.list->count;
    return bd_charge(r, *count / 8);
}

static int64_t clamp(int64_t i, int64_t low, int64_t high)
{
    return i < low ? low : i > high ? high : i;
}

// One bound of a slice: absent ones and None are the end that the step starts from or runs to.
static bool slice_bound(render *r, value v, int64_t count, int64_t step, int64_t absent,
                        int64_t *out)
{
    if (v.type == V_UNDEFINED || v.type == V_NONE) {
        *out = absent;
        return true;
    }
    if (v.type != V_INT)
        return bd_render_fail(r, "a slice's bound is %s, an int expected", value_type_name(v));
    int64_t i = v.integer < 0 && v.integer >= -count ? v.integer + count : v.integer;
    *out = step > 0 ? clamp(i, 0, count) : clamp(i, -1, count - 1);
    return true;
}

bool value_slice(render *r, value v, const value bounds[3], value *out)
{
    int64_t step = 1, from = 0, to = 0, count = 0;
    const value *items;
    if (v.type != V_LIST && v.type != V_TUPLE && v.type != V_STRING)
        return bd_render_fail(r, "%s cannot be sliced", value_type_name(v));
    if (bounds[2].type == V_INT)
        step = bounds[2].integer;
    else if (bounds[2].type != V_UNDEFINED && bounds[2].type != V_NONE)
        return bd_render_fail(r, "a slice's step is %s, an int expected",
                              value_type_name(bounds[2]));
    if (step == 0 || step < -INT32_MAX || step > INT32_MAX)
        return bd_render_fail(r, "a slice's step is %lld", (long long)step);
    if (!value_elements(r, v, &items, &count) ||
        !slice_bound(r, bounds[0], count, step, step > 0 ? 0 : count - 1, &from) ||
        !slice_bound(r, bounds[1], count, step, step > 0 ? count : -1, &to))
        return false;
    bd_text text = {0};
    if (v.type != V_STRING && !value_new_list(r, v.type, 0, out))
        return false;
    for (int64_t i = from; step > 0 ? i < to : i > to; i += step) {
        if (v.type == V_STRING)
            bd_text_add(&text, items[i].text, items[i].size);
        else if (!value_append(r, out->list, items[i]))
            return false;
    }
    return v.type != V_STRING || value_take_text(r, &text, out);
}

bool value_item(render *r, value container, value key, value *out)
{
    *out = value_undefined(key.type == V_STRING ? key.text : NULL,
                           key.type == V_STRING ? key.size : 0);
    switch (container.type) {
    case V_DICT:
    case V_NAMESPACE: {
        const value *found = value_get(r, container.dict, key);
        if (found)
            *out = *found;
        return bd_charge(r, container.dict->count / 8);
    }
    case V_LIST:
    case V_TUPLE:
    case V_STRING: {
        if (key.type != V_INT && key.type != V_BOOL)
            return true;
        const value *items;
        int64_t count, i = as_integer(key);
        if (!value_elements(r, container, &items, &count))
            return false;
        if (i < 0)
            i += count;
        if (i >= 0 && i < count)
            *out = items[i];
        return true;
    }
    case V_UNDEFINED:
        if (container.text)
            return bd_render_fail(r, "'%.*s' is undefined", (int)container.size, container.text);
        return bd_render_fail(r, "an undefined value has no elements");
    default:
        return true;
    }
}
