/* Methods of texts, lists, dicts and loops, and the work on texts that filters share with them. */
#include "format/template_methods.h"

#include <string.h>
#include <utf8proc.h>

// --- work on texts -------------------------------------------------------------------------------

static bool is_one_of(int32_t c, value set)
{
    for (size_t at = 0; at < set.size;)
        if (bd_utf8_next(set.text, &at) == c)
            return true;
    return false;
}

value text_strip(value v, value set, bool left, bool right)
{
    size_t begin = 0, end = v.size;
    bool spaces = set.type != V_STRING;
    while (left && begin < end) {
        size_t next = begin;
        int32_t c = bd_utf8_next(v.text, &next);
        if (!(spaces ? bd_template_is_space(c) : is_one_of(c, set)))
            break;
        begin = next;
    }
    while (right && end > begin) {
        size_t start = end - 1, next;
        while (start > begin && ((uint8_t)v.text[start] & 0xc0) == 0x80)
            start--;
        next = start;
        int32_t c = bd_utf8_next(v.text, &next);
        if (!(spaces ? bd_template_is_space(c) : is_one_of(c, set)))
            break;
        end = start;
    }
    return value_text(v.text + begin, end - begin);
}

// One character, or the several that Unicode maps it to.
static void add_cased(int32_t c, bool upper, bd_text *out)
{
    if (upper && c == 0xdf)
        bd_text_add_string(out, "SS");
    else
        bd_text_add_character(out, upper ? utf8proc_toupper(c) : utf8proc_tolower(c));
}

static bool is_letter(int32_t c)
{
    utf8proc_category_t category = utf8proc_category(c);
    return category >= UTF8PROC_CATEGORY_LU && category <= UTF8PROC_CATEGORY_LO;
}

bool text_change_case(render *r, value v, text_case wanted, value *out)
{
    bd_text text = {0};
    bool first = true; // of the text, or of a word
    for (size_t at = 0; at < v.size;) {
        int32_t c = bd_utf8_next(v.text, &at);
        bool upper = wanted == CASE_UPPER || (wanted != CASE_LOWER && first);
        add_cased(c, upper, &text);
        first = wanted == CASE_TITLE && !is_letter(c);
    }
    return value_take_text(r, &text, out);
}

bool text_replace(render *r, value v, value from, value to, int64_t most, value *out)
{
    bd_text text = {0};
    size_t at = 0;
    if (from.type != V_STRING || to.type != V_STRING)
        return bd_render_fail(r, "replace takes two texts");
    for (; most != 0 && at <= v.size && text.size <= BD_TEMPLATE_TEXT; most -= most > 0) {
        const char *found =
            from.size ? memmem(v.text + at, v.size - at, from.text, from.size) : v.text + at;
        if (!found)
            break;
        bd_text_add(&text, v.text + at, (size_t)(found - (v.text + at)));
        bd_text_add(&text, to.text, to.size);
        at = (size_t)(found - v.text) + from.size;
        if (from.size)
            continue;
        // Nothing lies between any two characters: copy the one that follows.
        size_t begin = at;
        if (at >= v.size)
            break;
        bd_utf8_next(v.text, &at);
        bd_text_add(&text, v.text + begin, at - begin);
    }
    if (at < v.size)
        bd_text_add(&text, v.text + at, v.size - at);
    return value_take_text(r, &text, out);
}

// --- splitting -----------------------------------------------------------------------------------

static bool split_spaces(render *r, value v, int64_t most, value *out)
{
    value rest = text_strip(v, value_undefined(NULL, 0), true, false);
    while (rest.size) {
        size_t end = 0, next = 0;
        if (most >= 0 && out->list->count == most)
            return value_append(r, out->list,
                                text_strip(rest, value_undefined(NULL, 0), false, true));
        while (end < rest.size && !bd_template_is_space(bd_utf8_next(rest.text, &next)))
            end = next;
        if (!value_append(r, out->list, value_text(rest.text, end)))
            return false;
        rest = text_strip(value_text(rest.text + end, rest.size - end), value_undefined(NULL, 0),
                          true, false);
    }
    return true;
}

static void reverse(value_list *list)
{
    for (int64_t i = 0; i < list->count / 2; i++) {
        value swap = list->items[i];
        list->items[i] = list->items[list->count - 1 - i];
        list->items[list->count - 1 - i] = swap;
    }
}

// The last place of `what` in the first `size` bytes of `text`; NULL: nowhere.
static const char *find_last(const char *text, size_t size, value what)
{
    for (size_t at = size < what.size ? 0 : size - what.size + 1; at-- > 0;)
        if (memcmp(text + at, what.text, what.size) == 0)
            return text + at;
    return NULL;
}

static bool split_right(render *r, value v, value by, int64_t most, value *out)
{
    size_t end = v.size;
    for (const char *found; most != 0 && (found = find_last(v.text, end, by)); most -= most > 0) {
        size_t at = (size_t)(found - v.text) + by.size;
        if (!bd_charge(r, (int64_t)(end - at) / 16) ||
            !value_append(r, out->list, value_text(v.text + at, end - at)))
            return false;
        end = (size_t)(found - v.text);
    }
    if (!value_append(r, out->list, value_text(v.text, end)))
        return false;
    reverse(out->list);
    return true;
}

static bool split(render *r, const arguments *args, bool right, value *out)
{
    value v = args->items[0], by = args->items[1], limit = args->items[2];
    int64_t most = limit.type == V_INT ? limit.integer : -1;
    if (!value_new_list(r, V_LIST, 0, out))
        return false;
    if (by.type == V_UNDEFINED || by.type == V_NONE) {
        if (right && most >= 0)
            return bd_render_fail(r, "rsplit with a limit needs a text to split at");
        return split_spaces(r, v, most, out);
    }
    if (by.type != V_STRING || by.size == 0)
        return bd_render_fail(r, "a text is split at a text that is not empty");
    if (right)
        return split_right(r, v, by, most, out);
    size_t at = 0;
    for (const char *found;
         most != 0 && (found = memmem(v.text + at, v.size - at, by.text, by.size));
         most -= most > 0) {
        if (!value_append(r, out->list, value_text(v.text + at, (size_t)(found - (v.text + at)))))
            return false;
        at = (size_t)(found - v.text) + by.size;
    }
    return bd_charge(r, (int64_t)v.size / 64) &&
           value_append(r, out->list, value_text(v.text + at, v.size - at));
}

// --- methods of texts ----------------------------------------------------------------------------

static bool method_split(render *r, const arguments *args, value *out)
{
    return split(r, args, false, out);
}

static bool method_rsplit(render *r, const arguments *args, value *out)
{
    return split(r, args, true, out);
}

static bool method_splitlines(render *r, const arguments *args, value *out)
{
    value v = args->items[0];
    bool keep = value_true(args->items[1]);
    if (!value_new_list(r, V_LIST, 0, out))
        return false;
    for (size_t at = 0; at < v.size;) {
        size_t begin = at, end = at;
        while (at < v.size) {
            end = at;
            int32_t c = bd_utf8_next(v.text, &at);
            bool breaks = (c >= 10 && c <= 13) || (c >= 0x1c && c <= 0x1e) || c == 0x85 ||
                          c == 0x2028 || c == 0x2029;
            if (c == '\r' && at < v.size && v.text[at] == '\n')
                at++;
            if (breaks)
                break;
            end = at;
        }
        if (!value_append(r, out->list, value_text(v.text + begin, (keep ? at : end) - begin)))
            return false;
    }
    return true;
}

static bool method_strip(render *r, const arguments *args, value *out)
{
    (void)r;
    *out = text_strip(args->items[0], args->items[1], true, true);
    return true;
}

static bool method_lstrip(render *r, const arguments *args, value *out)
{
    (void)r;
    *out = text_strip(args->items[0], args->items[1], true, false);
    return true;
}

static bool method_rstrip(render *r, const arguments *args, value *out)
{
    (void)r;
    *out = text_strip(args->items[0], args->items[1], false, true);
    return true;
}

static bool begins(value v, value with)
{
    return with.type == V_STRING && with.size <= v.size &&
           memcmp(v.text, with.text, with.size) == 0;
}

static bool ends(value v, value with)
{
    return with.type == V_STRING && with.size <= v.size &&
           memcmp(v.text + v.size - with.size, with.text, with.size) == 0;
}

// A text, or any of a tuple of texts.
static bool method_startswith(render *r, const arguments *args, value *out)
{
    value with = args->items[1];
    bool holds = begins(args->items[0], with);
    for (int64_t i = 0; with.type == V_TUPLE && i < with.list->count; i++)
        holds = holds || begins(args->items[0], with.list->items[i]);
    if (with.type != V_STRING && with.type != V_TUPLE)
        return bd_render_fail(r, "startswith takes a text, not %s", value_type_name(with));
    *out = value_bool(holds);
    return true;
}

static bool method_endswith(render *r, const arguments *args, value *out)
{
    value with = args->items[1];
    bool holds = ends(args->items[0], with);
    for (int64_t i = 0; with.type == V_TUPLE && i < with.list->count; i++)
        holds = holds || ends(args->items[0], with.list->items[i]);
    if (with.type != V_STRING && with.type != V_TUPLE)
        return bd_render_fail(r, "endswith takes a text, not %s", value_type_name(with));
    *out = value_bool(holds);
    return true;
}

static bool method_removeprefix(render *r, const arguments *args, value *out)
{
    (void)r;
    value v = args->items[0];
    size_t cut = begins(v, args->items[1]) ? args->items[1].size : 0;
    *out = value_text(v.text + cut, v.size - cut);
    return true;
}

static bool method_removesuffix(render *r, const arguments *args, value *out)
{
    (void)r;
    value v = args->items[0];
    *out = value_text(v.text, v.size - (ends(v, args->items[1]) ? args->items[1].size : 0));
    return true;
}

static bool method_upper(render *r, const arguments *args, value *out)
{
    return text_change_case(r, args->items[0], CASE_UPPER, out);
}

static bool method_lower(render *r, const arguments *args, value *out)
{
    return text_change_case(r, args->items[0], CASE_LOWER, out);
}

static bool method_capitalize(render *r, const arguments *args, value *out)
{
    return text_change_case(r, args->items[0], CASE_CAPITALIZED, out);
}

static bool method_title(render *r, const arguments *args, value *out)
{
    return text_change_case(r, args->items[0], CASE_TITLE, out);
}

static bool method_replace(render *r, const arguments *args, value *out)
{
    int64_t most = args->items[3].type == V_INT ? args->items[3].integer : -1;
    return text_replace(r, args->items[0], args->items[1], args->items[2], most, out);
}

static bool find_in(render *r, const arguments *args, bool last, int64_t *at)
{
    value v = args->items[0], what = args->items[1];
    if (what.type != V_STRING)
        return bd_render_fail(r, "a text is looked for in a text, not %s", value_type_name(what));
    const char *found = last        ? find_last(v.text, v.size, what)
                        : what.size ? memmem(v.text, v.size, what.text, what.size)
                                    : v.text;
    *at = found ? (int64_t)bd_utf8_count(v.text, (size_t)(found - v.text)) : -1;
    return bd_charge(r, (int64_t)v.size / 16);
}

static bool method_find(render *r, const arguments *args, value *out)
{
    int64_t at;
    if (!find_in(r, args, false, &at))
        return false;
    *out = value_int(at);
    return true;
}

static bool method_rfind(render *r, const arguments *args, value *out)
{
    int64_t at;
    if (!find_in(r, args, true, &at))
        return false;
    *out = value_int(at);
    return true;
}

static bool method_index_of_text(render *r, const arguments *args, value *out)
{
    int64_t at;
    if (!find_in(r, args, false, &at))
        return false;
    *out = value_int(at);
    return at >= 0 || bd_render_fail(r, "the text is not found");
}

static bool method_count_text(render *r, const arguments *args, value *out)
{
    value v = args->items[0], what = args->items[1];
    int64_t count = 0;
    if (what.type != V_STRING || what.size == 0)
        return bd_render_fail(r, "count takes a text that is not empty");
    for (const char *at = v.text;
         (at = memmem(at, v.size - (size_t)(at - v.text), what.text, what.size)); at += what.size)
        count++;
    *out = value_int(count);
    return bd_charge(r, (int64_t)v.size / 16);
}

bool text_join(render *r, value list, value between, value *out)
{
    const value *items;
    int64_t count;
    bd_text text = {0};
    if (!value_elements(r, list, &items, &count))
        return false;
    bool ok = true;
    for (int64_t i = 0; ok && i < count; i++)
        ok = (i == 0 || value_write(r, between, false, 0, &text)) &&
             value_write(r, items[i], false, 0, &text);
    if (ok)
        return value_take_text(r, &text, out);
    bd_text_free(&text);
    return false;
}

static bool method_join(render *r, const arguments *args, value *out)
{
    return text_join(r, args->items[1], args->items[0], out);
}

// isdigit, isalpha, isspace, isupper, islower: of every character, and there must be one.
static bool all_are(value v, char kind)
{
    bool cased = false;
    for (size_t at = 0; at < v.size;) {
        int32_t c = bd_utf8_next(v.text, &at);
        utf8proc_category_t category = utf8proc_category(c);
        bool upper = category == UTF8PROC_CATEGORY_LU, lower = category == UTF8PROC_CATEGORY_LL;
        cased = cased || upper || lower;
        if ((kind == 'd' && category != UTF8PROC_CATEGORY_ND) || (kind == 'a' && !is_letter(c)) ||
            (kind == 'n' && !is_letter(c) && category != UTF8PROC_CATEGORY_ND) ||
            (kind == 's' && !bd_template_is_space(c)) || (kind == 'u' && lower) ||
            (kind == 'l' && upper))
            return false;
    }
    return kind == 'u' || kind == 'l' ? cased : v.size > 0;
}

#define ALL_ARE(name, kind)                                                                        \
    static bool method_##name(render *r, const arguments *args, value *out)                        \
    {                                                                                              \
        (void)r;                                                                                   \
        *out = value_bool(all_are(args->items[0], kind));                                          \
        return true;                                                                               \
    }
ALL_ARE(isdigit, 'd')
ALL_ARE(isalpha, 'a')
ALL_ARE(isalnum, 'n')
ALL_ARE(isspace, 's')
ALL_ARE(isupper, 'u')
ALL_ARE(islower, 'l')

// --- methods of lists, dicts and loops -----------------------------------------------------------

static bool method_index_of(render *r, const arguments *args, value *out)
{
    const value_list *list = args->items[0].list;
    for (int64_t i = 0; i < list->count; i++)
        if (value_equal(r, list->items[i], args->items[1])) {
            *out = value_int(i);
            return true;
        }
    return bd_render_fail(r, "the element is not in the list");
}

static bool method_count_items(render *r, const arguments *args, value *out)
{
    const value_list *list = args->items[0].list;
    int64_t count = 0;
    for (int64_t i = 0; i < list->count; i++)
        count += value_equal(r, list->items[i], args->items[1]);
    *out = value_int(count);
    return true;
}

bool dict_items(render *r, value v, value *out)
{
    if (!value_new_list(r, V_LIST, v.dict->count, out))
        return false;
    for (int64_t i = 0; i < v.dict->count; i++) {
        value pair;
        if (!value_new_list(r, V_TUPLE, 2, &pair) ||
            !value_append(r, pair.list, v.dict->entries[i].key) ||
            !value_append(r, pair.list, v.dict->entries[i].item) ||
            !value_append(r, out->list, pair))
            return false;
    }
    return true;
}

static bool method_items(render *r, const arguments *args, value *out)
{
    return dict_items(r, args->items[0], out);
}

static bool method_keys(render *r, const arguments *args, value *out)
{
    const value *items;
    int64_t count;
    if (!value_elements(r, args->items[0], &items, &count) ||
        !value_new_list(r, V_LIST, count, out))
        return false;
    for (int64_t i = 0; i < count; i++)
        if (!value_append(r, out->list, items[i]))
            return false;
    return true;
}

static bool method_values(render *r, const arguments *args, value *out)
{
    const value_dict *dict = args->items[0].dict;
    if (!value_new_list(r, V_LIST, dict->count, out))
        return false;
    for (int64_t i = 0; i < dict->count; i++)
        if (!value_append(r, out->list, dict->entries[i].item))
            return false;
    return true;
}

static bool method_get(render *r, const arguments *args, value *out)
{
    const value *found = value_get(r, args->items[0].dict, args->items[1]);
    value absent = args->items[2];
    if (absent.type == V_UNDEFINED)
        absent = (value){.type = V_NONE};
    *out = found ? *found : absent;
    return bd_charge(r, 1);
}

static bool method_cycle(render *r, const arguments *args, value *out)
{
    int64_t count = args->count - 1;
    if (count == 0)
        return bd_render_fail(r, "cycle without values");
    *out = args->items[1 + args->items[0].loop->index % count];
    return true;
}

static bool method_changed(render *r, const arguments *args, value *out)
{
    loop_state *loop = args->items[0].loop;
    value now;
    if (!value_new_list(r, V_TUPLE, args->count, &now))
        return false;
    for (int64_t i = 1; i < args->count; i++)
        if (!value_append(r, now.list, args->items[i]))
            return false;
    *out = value_bool(!value_equal(r, loop->changed, now));
    loop->changed = now;
    return true;
}

// What would change a value: Python has it, the sandbox of chat templates forbids it.
static bool method_forbidden(render *r, const arguments *args, value *out)
{
    (void)args;
    (void)out;
    return bd_render_fail(r, "a template may not change a list or dict");
}

const template_function *bd_find_method(value self, const char *name, size_t size)
{
    static const template_function of_text[] = {{"split", method_split, 0, 2, "sep maxsplit"},
                                                {"rsplit", method_rsplit, 0, 2, "sep maxsplit"},
                                                {"splitlines", method_splitlines, 0, 1, "keepends"},
                                                {"strip", method_strip, 0, 1, NULL},
                                                {"lstrip", method_lstrip, 0, 1, NULL},
                                                {"rstrip", method_rstrip, 0, 1, NULL},
                                                {"startswith", method_startswith, 1, 1, NULL},
                                                {"endswith", method_endswith, 1, 1, NULL},
                                                {"removeprefix", method_removeprefix, 1, 1, NULL},
                                                {"removesuffix", method_removesuffix, 1, 1, NULL},
                                                {"upper", method_upper, 0, 0, NULL},
                                                {"lower", method_lower, 0, 0, NULL},
                                                {"capitalize", method_capitalize, 0, 0, NULL},
                                                {"title", method_title, 0, 0, NULL},
                                                {"replace", method_replace, 2, 3, "old new count"},
                                                {"find", method_find, 1, 1, NULL},
                                                {"rfind", method_rfind, 1, 1, NULL},
                                                {"index", method_index_of_text, 1, 1, NULL},
                                                {"count", method_count_text, 1, 1, NULL},
                                                {"join", method_join, 1, 1, NULL},
                                                {"isdigit", method_isdigit, 0, 0, NULL},
                                                {"isalpha", method_isalpha, 0, 0, NULL},
                                                {"isalnum", method_isalnum, 0, 0, NULL},
                                                {"isspace", method_isspace, 0, 0, NULL},
                                                {"isupper", method_isupper, 0, 0, NULL},
                                                {"islower", method_islower, 0, 0, NULL},
                                                {NULL, NULL, 0, 0, NULL}};
    static const template_function of_list[] = {{"index", method_index_of, 1, 1, NULL},
                                                {"count", method_count_items, 1, 1, NULL},
                                                {"append", method_forbidden, 0, -1, NULL},
                                                {"extend", method_forbidden, 0, -1, NULL},
                                                {"insert", method_forbidden, 0, -1, NULL},
                                                {"pop", method_forbidden, 0, -1, NULL},
                                                {NULL, NULL, 0, 0, NULL}};
    static const template_function of_dict[] = {{"items", method_items, 0, 0, NULL},
                                                {"keys", method_keys, 0, 0, NULL},
                                                {"values", method_values, 0, 0, NULL},
                                                {"get", method_get, 1, 2, NULL},
                                                {"update", method_forbidden, 0, -1, NULL},
                                                {"pop", method_forbidden, 0, -1, NULL},
                                                {NULL, NULL, 0, 0, NULL}};
    static const template_function of_loop[] = {{"cycle", method_cycle, 0, -1, NULL},
                                                {"changed", method_changed, 0, -1, NULL},
                                                {NULL, NULL, 0, 0, NULL}};
    const template_function *list = self.type == V_STRING                         ? of_text
                                    : self.type == V_LIST || self.type == V_TUPLE ? of_list
                                    : self.type == V_DICT                         ? of_dict
                                    : self.type == V_LOOP                         ? of_loop
                                                                                  : NULL;
    for (; list && list->name; list++)
        if (strlen(list->name) == size && memcmp(list->name, name, size) == 0)
            return list;
    return NULL;
}
