#include "format/template_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

// Between tags, text; in tags, tokens. A sign inside a tag's brackets says what happens to the
// white space outside: "-" takes all of it, "+" leaves it. Without a sign a block or comment that
// stands first on its line takes the blanks before it (lstrip_blocks) and the newline behind it
// (trim_blocks).

typedef struct {
    const bd_template *t;
    const char *source;
    size_t size, at;
    token_list *out;
    bool line_start; // does the text that comes next begin a line?
    bd_error *err;
} lexer;

static bool add(lexer *l, token_kind kind, size_t begin, size_t end)
{
    token_list *list = l->out;
    if (list->count == list->room) {
        int64_t room = list->room ? list->room * 2 : 256;
        token *larger = realloc(list->items, (size_t)room * sizeof *larger);
        if (!larger)
            return bd_fail_as(l->err, BD_ERROR_SYSTEM, "%s: no memory for a template", l->t->what);
        list->items = larger;
        list->room = room;
    }
    list->items[list->count++] = (token){kind, l->source + begin, end - begin, begin};
    return true;
}

static bool fail(lexer *l, size_t at, const char *what)
{
    return bd_template_fail(l->t, at, l->err, "%s", what);
}

bool bd_template_is_space(int32_t c)
{
    return bd_character_is_space(c) || (c >= 0x1c && c <= 0x1f);
}

static size_t skip_space(const lexer *l, size_t at)
{
    while (at < l->size) {
        size_t next = at;
        if (!bd_template_is_space(bd_utf8_next(l->source, &next)))
            break;
        at = next;
    }
    return at;
}

static size_t strip_end(const lexer *l, size_t begin, size_t end)
{
    while (end > begin) {
        size_t start = end - 1;
        while (start > begin && ((uint8_t)l->source[start] & 0xc0) == 0x80)
            start--;
        size_t next = start;
        if (!bd_template_is_space(bd_utf8_next(l->source, &next)))
            break;
        end = start;
    }
    return end;
}

static bool starts(const lexer *l, size_t at, const char *what)
{
    size_t size = strlen(what);
    return l->size - at >= size && memcmp(l->source + at, what, size) == 0;
}

static char sign_at(const lexer *l, size_t at)
{
    return at < l->size && (l->source[at] == '-' || l->source[at] == '+') ? l->source[at] : 0;
}

// --- text ----------------------------------------------------------------------------------------

// The text [begin, end) before a tag, shortened as the tag's sign asks.
static bool add_text(lexer *l, size_t begin, size_t end, char sign, bool block)
{
    if (sign == '-') {
        end = strip_end(l, begin, end);
    } else if (sign != '+' && block) {
        size_t line = end;
        while (line > begin && l->source[line - 1] != '\n')
            line--;
        bool at_line_start = line > begin || l->line_start;
        if (at_line_start && strip_end(l, line, end) == line)
            end = line;
    }
    return begin == end || add(l, T_TEXT, begin, end);
}

// Where the next tag begins, `size` if there is none.
static size_t next_tag(const lexer *l)
{
    for (size_t at = l->at; at + 1 < l->size; at++)
        if (l->source[at] == '{' && strchr("{%#", l->source[at + 1]) && l->source[at + 1])
            return at;
    return l->size;
}

// Move behind a closing bracket of two characters and the white space it takes. Blocks and comments
// take one newline, prints none.
static void close_tag(lexer *l, char sign, bool block)
{
    l->at += 2;
    if (sign == '-')
        l->at = skip_space(l, l->at);
    else if (sign != '+' && block && l->at < l->size && l->source[l->at] == '\n')
        l->at++;
    l->line_start = l->source[l->at - 1] == '\n';
}

static bool skip_comment(lexer *l, size_t begin)
{
    size_t inside = begin + 2 + (sign_at(l, begin + 2) != 0);
    for (size_t at = inside; at + 1 < l->size; at++) {
        if (!starts(l, at, "#}"))
            continue;
        char sign = at > inside ? sign_at(l, at - 1) : 0;
        l->at = at;
        close_tag(l, sign, true);
        return true;
    }
    return fail(l, begin, "a comment that does not end");
}

// "{% raw %}": is there one at `begin`? *end is behind it.
static bool raw_tag(const lexer *l, size_t begin, const char *name, char *close_sign, size_t *end)
{
    size_t at = begin + 2;
    if (sign_at(l, at))
        at++;
    at = skip_space(l, at);
    if (!starts(l, at, name))
        return false;
    at = skip_space(l, at + strlen(name));
    *close_sign = sign_at(l, at);
    if (*close_sign)
        at++;
    *end = at;
    return starts(l, at, "%}");
}

static bool lex_raw(lexer *l, size_t begin)
{
    size_t text = l->at, end;
    char close_sign;
    for (size_t at = text; at + 1 < l->size; at++) {
        if (!starts(l, at, "{%") || !raw_tag(l, at, "endraw", &close_sign, &end))
            continue;
        if (!add_text(l, text, at, sign_at(l, at + 2), true))
            return false;
        l->at = end;
        close_tag(l, close_sign, true);
        return true;
    }
    return fail(l, begin, "{% raw %} without {% endraw %}");
}

// --- inside tags ---------------------------------------------------------------------------------

static bool name_byte(char c)
{
    return isalnum((unsigned char)c) || c == '_' || (uint8_t)c >= 0x80;
}

static bool lex_string(lexer *l)
{
    size_t begin = l->at, at = begin + 1;
    char quote = l->source[begin];
    while (at < l->size && l->source[at] != quote)
        at += l->source[at] == '\\' && at + 1 < l->size ? 2 : 1;
    if (at >= l->size)
        return fail(l, begin, "a text that does not end");
    l->at = at + 1;
    return add(l, T_STRING, begin + 1, at);
}

static size_t digits(const lexer *l, size_t at)
{
    while (at < l->size &&
           (isdigit((unsigned char)l->source[at]) || (l->source[at] == '_' && at + 1 < l->size &&
                                                      isdigit((unsigned char)l->source[at + 1]))))
        at++;
    return at;
}

static bool digit_at(const lexer *l, size_t at)
{
    return at < l->size && isdigit((unsigned char)l->source[at]);
}

// 12, 1_000, 1.5, 1e3, 1.5e-3. "1.x" is an attribute of 1.
static bool lex_number(lexer *l)
{
    size_t begin = l->at, at = digits(l, begin);
    bool real = false;
    if (at < l->size && l->source[at] == '.' && digit_at(l, at + 1)) {
        at = digits(l, at + 1);
        real = true;
    }
    if (at < l->size && (l->source[at] | 32) == 'e') {
        size_t exponent = at + 1;
        if (sign_at(l, exponent))
            exponent++;
        if (digit_at(l, exponent)) {
            at = digits(l, exponent);
            real = true;
        }
    }
    l->at = at;
    return add(l, real ? T_FLOAT : T_INTEGER, begin, at);
}

static bool lex_operator(lexer *l, int *brackets)
{
    static const char *const two[] = {"//", "**", "==", "!=", ">=", "<="};
    for (size_t i = 0; i < sizeof two / sizeof *two; i++)
        if (starts(l, l->at, two[i])) {
            l->at += 2;
            return add(l, T_OPERATOR, l->at - 2, l->at);
        }
    char c = l->source[l->at];
    if (!c || !strchr("+-/*%~[](){}<>=.:|,;", c))
        return fail(l, l->at, "a character that has no meaning here");
    *brackets += (strchr("[({", c) != NULL) - (strchr("])}", c) != NULL);
    if (*brackets < 0)
        return fail(l, l->at, "a bracket that was not opened");
    l->at++;
    return add(l, T_OPERATOR, l->at - 1, l->at);
}

static bool lex_tag(lexer *l, size_t begin, bool block)
{
    const char *close = block ? "%}" : "}}";
    int brackets = 0;
    for (;;) {
        l->at = skip_space(l, l->at);
        if (l->at >= l->size)
            return fail(l, begin, "a tag that does not end");
        // Inside brackets "}}" closes two of them.
        char sign = sign_at(l, l->at);
        if (sign == '+' && !block)
            sign = 0;
        if (brackets == 0 && starts(l, l->at + (sign != 0), close)) {
            size_t end = l->at;
            l->at += sign != 0;
            close_tag(l, sign, block);
            return add(l, block ? T_BLOCK_END : T_PRINT_END, end, end + 2);
        }
        char c = l->source[l->at];
        size_t start = l->at;
        bool ok;
        if (c == '"' || c == '\'') {
            ok = lex_string(l);
        } else if (isdigit((unsigned char)c)) {
            ok = lex_number(l);
        } else if (name_byte(c)) {
            while (l->at < l->size && name_byte(l->source[l->at]))
                l->at++;
            ok = add(l, T_NAME, start, l->at);
        } else {
            ok = lex_operator(l, &brackets);
        }
        if (!ok)
            return false;
    }
}

bool bd_template_lex(const bd_template *t, token_list *tokens, bd_error *err)
{
    lexer l = {t, t->source, t->source_size, 0, tokens, true, err};
    for (;;) {
        size_t text = l.at, tag = next_tag(&l), end;
        if (tag == l.size)
            return (text == l.size || add(&l, T_TEXT, text, l.size)) &&
                   add(&l, T_END, l.size, l.size);
        char kind = l.source[tag + 1], sign = sign_at(&l, tag + 2), close_sign;
        if (!add_text(&l, text, tag, sign, kind != '{'))
            return false;
        if (kind == '#') {
            if (!skip_comment(&l, tag))
                return false;
            continue;
        }
        if (kind == '%' && raw_tag(&l, tag, "raw", &close_sign, &end)) {
            l.at = end;
            close_tag(&l, close_sign, false);
            if (!lex_raw(&l, tag))
                return false;
            continue;
        }
        l.at = tag + 2 + (sign != 0);
        if (!add(&l, kind == '%' ? T_BLOCK_BEGIN : T_PRINT_BEGIN, tag, tag + 2) ||
            !lex_tag(&l, tag, kind == '%'))
            return false;
    }
}
