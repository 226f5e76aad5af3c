/* Values as text: as Python's str() and repr() write them, and as JSON. */
#include "format/template_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

// Python's repr of a float: the fewest digits that read back as the same number, with an exponent
// below 1e-4 and from 1e16 on, and ".0" behind a whole number.
void value_write_real(double d, bd_text *out)
{
    if (!isfinite(d)) {
        bd_text_add_string(out, isnan(d) ? "nan" : d < 0 ? "-inf" : "inf");
        return;
    }
    char digits[40];
    int precision = 0;
    do
        snprintf(digits, sizeof digits, "%.*e", precision, d);
    while (strtod(digits, NULL) != d && ++precision < 17);
    int exponent = atoi(strchr(digits, 'e') + 1);
    if (exponent < -4 || exponent >= 16) {
        *strchr(digits, 'e') = 0;
        bd_text_print(out, "%se%c%02d", digits, exponent < 0 ? '-' : '+', abs(exponent));
        return;
    }
    int decimals = precision - exponent;
    bd_text_print(out, "%.*f", decimals > 0 ? decimals : 1, d);
}

// repr of a text: single quotes unless only they are inside; what is not printable is escaped.
static void write_quoted(const char *text, size_t size, bd_text *out)
{
    bool single = memchr(text, '\'', size) != NULL,
         both = single && memchr(text, '"', size) != NULL;
    char quote = single && !both ? '"' : '\'';
    bd_text_add_byte(out, quote);
    for (size_t at = 0; at < size;) {
        size_t begin = at;
        int32_t c = bd_utf8_next(text, &at);
        utf8proc_category_t category = utf8proc_category(c);
        bool printable =
            c == ' ' || !(category == UTF8PROC_CATEGORY_CN || category >= UTF8PROC_CATEGORY_ZS);
        if (c == quote || c == '\\')
            bd_text_print(out, "\\%c", (char)c);
        else if (c == '\n' || c == '\r' || c == '\t')
            bd_text_print(out, "\\%c", c == '\n' ? 'n' : c == '\r' ? 'r' : 't');
        else if (printable)
            bd_text_add(out, text + begin, at - begin);
        else
            bd_text_print(out,
                          c < 0x100     ? "\\x%02x"
                          : c < 0x10000 ? "\\u%04x"
                                        : "\\U%08x",
                          (unsigned)c);
    }
    bd_text_add_byte(out, quote);
}

static bool write_items(render *r, value v, int depth, bd_text *out)
{
    bool tuple = v.type == V_TUPLE;
    bd_text_add_byte(out, tuple ? '(' : '[');
    for (int64_t i = 0; i < v.list->count; i++) {
        bd_text_add_string(out, i ? ", " : "");
        if (!value_write(r, v.list->items[i], true, depth + 1, out))
            return false;
    }
    bd_text_add_string(out, tuple ? (v.list->count == 1 ? ",)" : ")") : "]");
    return true;
}

static bool write_entries(render *r, value v, int depth, bd_text *out)
{
    bd_text_add_byte(out, '{');
    for (int64_t i = 0; i < v.dict->count; i++) {
        bd_text_add_string(out, i ? ", " : "");
        if (!value_write(r, v.dict->entries[i].key, true, depth + 1, out))
            return false;
        bd_text_add_string(out, ": ");
        if (!value_write(r, v.dict->entries[i].item, true, depth + 1, out))
            return false;
    }
    bd_text_add_byte(out, '}');
    return true;
}

static bool too_long(render *r, const bd_text *out)
{
    if (out->size > BD_TEMPLATE_TEXT)
        return bd_render_fail(r, "a text of more than %d bytes", BD_TEMPLATE_TEXT);
    return true;
}

bool value_write(render *r, value v, bool quoted, int depth, bd_text *out)
{
    if (depth > BD_TEMPLATE_DEPTH)
        return bd_render_fail(r, "values nested more than %d deep", BD_TEMPLATE_DEPTH);
    if (!bd_charge(r, 1) || !too_long(r, out))
        return false;
    switch (v.type) {
    case V_UNDEFINED:
        bd_text_add_string(out, quoted ? "Undefined" : "");
        return true;
    case V_NONE:
        bd_text_add_string(out, "None");
        return true;
    case V_BOOL:
        bd_text_add_string(out, v.boolean ? "True" : "False");
        return true;
    case V_INT:
        bd_text_print(out, "%lld", (long long)v.integer);
        return true;
    case V_FLOAT:
        value_write_real(v.real, out);
        return true;
    case V_STRING:
        if (quoted)
            write_quoted(v.text, v.size, out);
        else
            bd_text_add(out, v.text, v.size);
        return true;
    case V_LIST:
    case V_TUPLE:
        return write_items(r, v, depth, out);
    case V_DICT:
        return write_entries(r, v, depth, out);
    default:
        return bd_render_fail(r, "%s cannot be printed", value_type_name(v));
    }
}

// --- JSON ----------------------------------------------------------------------------------------

static void write_json_text(const char *text, size_t size, bool ascii, bd_text *out)
{
    bd_text_add_byte(out, '"');
    for (size_t at = 0; at < size;) {
        size_t begin = at;
        int32_t c = bd_utf8_next(text, &at);
        static const char from[] = "\"\\\n\r\t\b\f", to[] = "\"\\nrtbf";
        const char *known = c < 0x80 && c ? strchr(from, c) : NULL;
        if (known)
            bd_text_print(out, "\\%c", to[known - from]);
        else if (c < 0x20 || (ascii && c >= 0x7f && c < 0x10000))
            bd_text_print(out, "\\u%04x", (unsigned)c);
        else if (ascii && c >= 0x10000)
            bd_text_print(out, "\\u%04x\\u%04x", 0xd800 + (unsigned)((c - 0x10000) >> 10),
                          0xdc00 + (unsigned)((c - 0x10000) & 0x3ff));
        else
            bd_text_add(out, text + begin, at - begin);
    }
    bd_text_add_byte(out, '"');
}

static void write_indent(const json_style *style, int depth, bd_text *out)
{
    if (style->indent < 0)
        return;
    bd_text_add_byte(out, '\n');
    for (int64_t i = 0; i < style->indent * depth; i++)
        bd_text_add_byte(out, ' ');
}

static bool write_json_list(render *r, value v, const json_style *style, int depth, bd_text *out)
{
    bd_text_add_byte(out, '[');
    for (int64_t i = 0; i < v.list->count; i++) {
        bd_text_add_string(out, i ? style->comma : "");
        write_indent(style, depth + 1, out);
        if (!value_write_json(r, v.list->items[i], style, depth + 1, out))
            return false;
    }
    if (v.list->count)
        write_indent(style, depth, out);
    bd_text_add_byte(out, ']');
    return true;
}

static int compare_entries(const void *a, const void *b)
{
    const value *x = &((const dict_entry *)a)->key, *y = &((const dict_entry *)b)->key;
    size_t shared = x->size < y->size ? x->size : y->size;
    int difference = memcmp(x->text, y->text, shared);
    return difference ? difference : (x->size > y->size) - (x->size < y->size);
}

// Keys in JSON are text; Python turns numbers, booleans and None into theirs.
static bool write_json_key(render *r, value key, const json_style *style, int depth, bd_text *out)
{
    if (key.type == V_STRING) {
        write_json_text(key.text, key.size, style->ascii, out);
        return true;
    }
    if (key.type != V_INT && key.type != V_FLOAT && key.type != V_BOOL && key.type != V_NONE)
        return bd_render_fail(r, "%s cannot be a key in JSON", value_type_name(key));
    bd_text_add_byte(out, '"');
    bool ok = value_write_json(r, key, style, depth, out);
    bd_text_add_byte(out, '"');
    return ok;
}

static bool write_json_dict(render *r, value v, const json_style *style, int depth, bd_text *out)
{
    int64_t count = v.dict->count;
    const dict_entry *entries = v.dict->entries;
    if (style->sort_keys && count > 1) {
        dict_entry *sorted = bd_pool_alloc(&r->pool, (size_t)count * sizeof *sorted);
        if (!sorted)
            return bd_render_no_memory(r);
        memcpy(sorted, entries, (size_t)count * sizeof *sorted);
        for (int64_t i = 0; i < count; i++)
            if (sorted[i].key.type != V_STRING)
                return bd_render_fail(r, "keys that are not text cannot be sorted");
        qsort(sorted, (size_t)count, sizeof *sorted, compare_entries);
        entries = sorted;
    }
    bd_text_add_byte(out, '{');
    for (int64_t i = 0; i < count; i++) {
        bd_text_add_string(out, i ? style->comma : "");
        write_indent(style, depth + 1, out);
        if (!write_json_key(r, entries[i].key, style, depth + 1, out))
            return false;
        bd_text_add_string(out, style->colon);
        if (!value_write_json(r, entries[i].item, style, depth + 1, out))
            return false;
    }
    if (count)
        write_indent(style, depth, out);
    bd_text_add_byte(out, '}');
    return true;
}

bool value_write_json(render *r, value v, const json_style *style, int depth, bd_text *out)
{
    if (depth > BD_TEMPLATE_DEPTH)
        return bd_render_fail(r, "values nested more than %d deep", BD_TEMPLATE_DEPTH);
    if (!bd_charge(r, 1) || !too_long(r, out))
        return false;
    switch (v.type) {
    case V_NONE:
        bd_text_add_string(out, "null");
        return true;
    case V_BOOL:
        bd_text_add_string(out, v.boolean ? "true" : "false");
        return true;
    case V_INT:
        bd_text_print(out, "%lld", (long long)v.integer);
        return true;
    case V_FLOAT:
        if (isfinite(v.real))
            value_write_real(v.real, out);
        else
            bd_text_add_string(out, isnan(v.real) ? "NaN" : v.real < 0 ? "-Infinity" : "Infinity");
        return true;
    case V_STRING:
        write_json_text(v.text, v.size, style->ascii, out);
        return true;
    case V_LIST:
    case V_TUPLE:
        return write_json_list(r, v, style, depth, out);
    case V_DICT:
        return write_json_dict(r, v, style, depth, out);
    default:
        return bd_render_fail(r, "%s cannot be written as JSON", value_type_name(v));
    }
}
