#include "format/template_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// --- errors with a place -------------------------------------------------------------------------

static bool fail_at(const bd_template *t, size_t at, bd_error *err, const char *format,
                    va_list list)
{
    char what[600];
    int line = 1, column = 1;
    for (size_t i = 0; i < at && i < t->source_size; i++) {
        bool newline = t->source[i] == '\n';
        line += newline;
        column = newline ? 1 : column + (((uint8_t)t->source[i] & 0xc0) != 0x80);
    }
    vsnprintf(what, sizeof what, format, list);
    return bd_fail(err, "%.200s:%d:%d: %s", t->what, line, column, what);
}

bool bd_template_fail(const bd_template *t, size_t at, bd_error *err, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fail_at(t, at, err, format, list);
    va_end(list);
    return false;
}

bool bd_parse_fail(parser *p, const token *at, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fail_at(p->t, at->at, p->err, format, list);
    va_end(list);
    return false;
}

void bd_parse_describe(const token *at, char out[60])
{
    if (at->kind == T_END)
        snprintf(out, 60, "the end of the template");
    else if (at->kind == T_TEXT)
        snprintf(out, 60, "text");
    else
        snprintf(out, 60, "\"%.*s\"", (int)(at->size < 40 ? at->size : 40), at->text);
}

static bool unexpected(parser *p, const char *wanted)
{
    char words[60];
    bd_parse_describe(p->at, words);
    return bd_parse_fail(p, p->at, "%s expected, found %s", wanted, words);
}

// --- tools of the parser -------------------------------------------------------------------------

node *bd_parse_node(parser *p, node_kind kind, size_t at)
{
    node *n = bd_pool_alloc(&p->t->pool, sizeof *n);
    if (!n) {
        bd_template_fail(p->t, at, p->err, "no memory for a template");
        return NULL;
    }
    n->kind = kind;
    n->at = at;
    return n;
}

bool bd_parse_append(parser *p, node_list *list, node *item)
{
    if (!item)
        return false;
    if (list->count == list->room) {
        int64_t room = list->room ? list->room * 2 : 4;
        node **larger = bd_pool_alloc(&p->t->pool, (size_t)room * sizeof *larger);
        if (!larger)
            return bd_template_fail(p->t, item->at, p->err, "no memory for a template");
        if (list->count)
            memcpy(larger, list->items, (size_t)list->count * sizeof *larger);
        list->items = larger;
        list->room = room;
    }
    list->items[list->count++] = item;
    return true;
}

static bool is_text(const token *at, token_kind kind, const char *text)
{
    return at->kind == kind && at->size == strlen(text) && memcmp(at->text, text, at->size) == 0;
}

bool bd_parse_is(const parser *p, const char *operator)
{
    return is_text(p->at, T_OPERATOR, operator);
}

bool bd_parse_is_name(const parser *p, const char *name)
{
    return is_text(p->at, T_NAME, name);
}

bool bd_parse_accept(parser *p, const char *operator)
{
    bool is = bd_parse_is(p, operator);
    p->at += is;
    return is;
}

bool bd_parse_expect(parser *p, const char *operator)
{
    char wanted[16];
    if (bd_parse_accept(p, operator))
        return true;
    snprintf(wanted, sizeof wanted, "\"%s\"", operator);
    return unexpected(p, wanted);
}

bool bd_parse_enter(parser *p)
{
    return p->depth++ < BD_TEMPLATE_DEPTH ||
           bd_parse_fail(p, p->at, "nested more than %d deep", BD_TEMPLATE_DEPTH);
}

int32_t bd_parse_symbol(parser *p, const token *name)
{
    bd_template *t = p->t;
    for (int32_t i = 0; i < t->symbol_count; i++)
        if (strlen(t->symbols[i]) == name->size &&
            memcmp(t->symbols[i], name->text, name->size) == 0)
            return i;
    if (t->symbol_count == t->symbol_room) {
        int32_t room = t->symbol_room ? t->symbol_room * 2 : 32;
        const char **larger =
            room <= 4096 ? bd_pool_alloc(&t->pool, (size_t)room * sizeof *larger) : NULL;
        if (!larger) {
            bd_parse_fail(p, name, "more than 4096 variables, or no memory");
            return -1;
        }
        if (t->symbol_count)
            memcpy(larger, t->symbols, (size_t)t->symbol_count * sizeof *larger);
        t->symbols = larger;
        t->symbol_room = room;
    }
    char *copy = bd_pool_alloc(&t->pool, name->size + 1);
    if (!copy) {
        bd_parse_fail(p, name, "no memory for a template");
        return -1;
    }
    memcpy(copy, name->text, name->size);
    t->symbols[t->symbol_count] = copy;
    return t->symbol_count++;
}

// --- statements ----------------------------------------------------------------------------------

static bool body_until(parser *p, node_list *body, const char *const *ends);

static bool end_of_block(parser *p)
{
    if (p->at->kind != T_BLOCK_END)
        return unexpected(p, "the end of the tag");
    p->at++;
    return true;
}

// The body of a statement up to "{% end %}", which is taken; one more level of nesting.
static bool whole_body(parser *p, node_list *body, const char *end)
{
    const char *ends[] = {end, NULL};
    if (!end_of_block(p) || !body_until(p, body, ends))
        return false;
    p->at++;
    return true;
}

static node *statement_for(parser *p, node *n)
{
    static const char *const ends[] = {"else", "endfor", NULL}, *const end[] = {"endfor", NULL};
    if (!bd_parse_append(p, &n->child, bd_parse_target(p)))
        return NULL;
    if (!bd_parse_is_name(p, "in")) {
        unexpected(p, "\"in\"");
        return NULL;
    }
    p->at++;
    if (!bd_parse_append(p, &n->child, bd_parse_tuple(p, false)))
        return NULL;
    if (bd_parse_is_name(p, "if")) {
        p->at++;
        if (!bd_parse_append(p, &n->child, bd_parse_expression(p)))
            return NULL;
    }
    if (bd_parse_is_name(p, "recursive")) {
        bd_parse_fail(p, p->at, "recursive loops are not supported");
        return NULL;
    }
    p->loops++;
    bool ok = end_of_block(p) && body_until(p, &n->body, ends);
    p->loops--;
    if (ok && bd_parse_is_name(p, "else")) {
        p->at++;
        ok = end_of_block(p) && body_until(p, &n->other, end);
    }
    p->at += ok;
    return ok ? n : NULL;
}

static node *statement_if(parser *p, node *n)
{
    static const char *const ends[] = {"elif", "else", "endif", NULL}, *const end[] = {"endif",
                                                                                       NULL};
    node *now = n;
    // "elif" is an if in the other branch; written as a loop, since there may be many.
    for (;;) {
        if (!bd_parse_append(p, &now->child, bd_parse_tuple(p, false)) || !end_of_block(p) ||
            !body_until(p, &now->body, ends))
            return NULL;
        if (!bd_parse_is_name(p, "elif"))
            break;
        node *next = bd_parse_node(p, N_IF, p->at++->at);
        if (!bd_parse_append(p, &now->other, next))
            return NULL;
        now = next;
    }
    if (bd_parse_is_name(p, "else")) {
        p->at++;
        if (!end_of_block(p) || !body_until(p, &now->other, end))
            return NULL;
    }
    p->at++;
    return n;
}

static node *statement_set(parser *p, node *n)
{
    if (!bd_parse_append(p, &n->child, bd_parse_target(p)))
        return NULL;
    if (bd_parse_accept(p, "="))
        return bd_parse_append(p, &n->child, bd_parse_tuple(p, true)) ? n : NULL;
    // {% set x %}...{% endset %}, perhaps with filters
    n->kind = N_SET_BLOCK;
    node *inside = bd_parse_node(p, N_CONSTANT, p->at->at);
    if (!inside)
        return NULL;
    inside->constant = value_text("", 0);
    node *filtered = bd_parse_filters(p, inside, false);
    return bd_parse_append(p, &n->child, filtered) && whole_body(p, &n->body, "endset") ? n : NULL;
}

static node *statement_macro(parser *p, node *n)
{
    const token *name = p->at;
    if (name->kind != T_NAME) {
        unexpected(p, "the macro's name");
        return NULL;
    }
    p->at++;
    n->symbol = bd_parse_symbol(p, name);
    n->text = name->text;
    n->text_size = name->size;
    if (n->symbol < 0 || !bd_parse_expect(p, "("))
        return NULL;
    while (!bd_parse_is(p, ")")) {
        if (n->child.count && !bd_parse_expect(p, ","))
            return NULL;
        if (!bd_parse_append(p, &n->child, bd_parse_variable(p)))
            return NULL;
        if (bd_parse_accept(p, "=")) {
            if (!bd_parse_append(p, &n->arguments, bd_parse_expression(p)))
                return NULL;
        } else if (n->arguments.count) {
            bd_parse_fail(p, p->at, "a parameter without a default behind one with a default");
            return NULL;
        }
    }
    int loops = p->loops;
    p->at++;
    p->loops = 0;
    bool ok = whole_body(p, &n->body, "endmacro");
    p->loops = loops;
    return ok ? n : NULL;
}

static node *statement_with(parser *p, node *n)
{
    while (p->at->kind != T_BLOCK_END) {
        if ((n->child.count && !bd_parse_expect(p, ",")) ||
            !bd_parse_append(p, &n->child, bd_parse_target(p)) || !bd_parse_expect(p, "=") ||
            !bd_parse_append(p, &n->child, bd_parse_expression(p)))
            return NULL;
    }
    return whole_body(p, &n->body, "endwith") ? n : NULL;
}

static node *statement_filter(parser *p, node *n)
{
    node *inside = bd_parse_node(p, N_CONSTANT, p->at->at);
    if (!inside)
        return NULL;
    inside->constant = value_text("", 0);
    node *filtered = bd_parse_filters(p, inside, true);
    return bd_parse_append(p, &n->child, filtered) && whole_body(p, &n->body, "endfilter") ? n
                                                                                           : NULL;
}

static node *statement_generation(parser *p, node *n)
{
    p->t->marks_generation = true;
    return whole_body(p, &n->body, "endgeneration") ? n : NULL;
}

static node *statement_jump(parser *p, node *n)
{
    if (p->loops == 0) {
        bd_template_fail(p->t, n->at, p->err, "\"%s\" outside of a loop",
                         n->kind == N_BREAK ? "break" : "continue");
        return NULL;
    }
    return n;
}

// One "{% ... %}" whose name is at the parser's place.
static node *statement(parser *p)
{
    static const struct {
        const char *name;
        node_kind kind;
        node *(*parse)(parser *p, node *n);
    } known[] = {{"for", N_FOR, statement_for},
                 {"if", N_IF, statement_if},
                 {"set", N_SET, statement_set},
                 {"macro", N_MACRO, statement_macro},
                 {"with", N_WITH, statement_with},
                 {"filter", N_FILTER_BLOCK, statement_filter},
                 {"generation", N_GENERATION, statement_generation},
                 {"break", N_BREAK, statement_jump},
                 {"continue", N_CONTINUE, statement_jump}};
    const token *name = p->at;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        if (!bd_parse_is_name(p, known[i].name))
            continue;
        p->at++;
        node *n = bd_parse_node(p, known[i].kind, name->at);
        n = n ? known[i].parse(p, n) : NULL;
        return n && end_of_block(p) ? n : NULL;
    }
    if (name->kind != T_NAME) {
        unexpected(p, "the name of a statement");
        return NULL;
    }
    if ((name->size > 3 && memcmp(name->text, "end", 3) == 0) || is_text(name, T_NAME, "else") ||
        is_text(name, T_NAME, "elif"))
        bd_parse_fail(p, name, "\"%.*s\" belongs to no statement here", (int)name->size,
                      name->text);
    else
        bd_parse_fail(p, name,
                      "the statement \"%.*s\" is not supported (supported: for, if, set, macro, "
                      "with, filter, generation, raw, break, continue)",
                      (int)name->size, name->text);
    return NULL;
}

static node *print(parser *p)
{
    node *n = bd_parse_node(p, N_PRINT, p->at->at);
    p->at++;
    if (!n || !bd_parse_append(p, &n->child, bd_parse_tuple(p, true)))
        return NULL;
    if (p->at->kind != T_PRINT_END) {
        unexpected(p, "\"}}\"");
        return NULL;
    }
    p->at++;
    return n;
}

static bool ends_here(const parser *p, const char *const *ends)
{
    for (; *ends; ends++)
        if (is_text(p->at + 1, T_NAME, *ends))
            return true;
    return false;
}

// Statements up to a "{% name" in `ends` (NULL: up to the end); the parser is then at the name.
static bool body_until(parser *p, node_list *body, const char *const *ends)
{
    bool ok = bd_parse_enter(p);
    while (ok) {
        node *n = NULL;
        if (p->at->kind == T_END) {
            while (ends && ends[1])
                ends++; // the last one closes the statement
            if (ends)
                ok =
                    bd_parse_fail(p, p->at, "the template ends where \"%s\" was expected", ends[0]);
            break;
        }
        if (p->at->kind == T_TEXT) {
            n = bd_parse_node(p, N_TEXT, p->at->at);
            if (n) {
                n->text = p->at->text;
                n->text_size = p->at->size;
            }
            p->at++;
        } else if (p->at->kind == T_PRINT_BEGIN) {
            n = print(p);
        } else if (ends && ends_here(p, ends)) {
            p->at++;
            break;
        } else {
            p->at++;
            n = statement(p);
        }
        ok = bd_parse_append(p, body, n);
    }
    p->depth--;
    return ok;
}

bool bd_parse_template(bd_template *t, const token_list *tokens, bd_error *err)
{
    parser p = {.t = t, .at = tokens->items, .err = err};
    static const token loop = {T_NAME, "loop", 4, 0};
    return bd_parse_symbol(&p, &loop) == BD_SYMBOL_LOOP && body_until(&p, &t->body, NULL);
}

// --- compiling -----------------------------------------------------------------------------------

// Newlines as "\n", and without the one at the very end.
static size_t normalize_newlines(const char *source, size_t size, char *out)
{
    size_t to = 0;
    for (size_t i = 0; i < size; i++) {
        bool carriage = source[i] == '\r';
        if (carriage && i + 1 < size && source[i + 1] == '\n')
            i++;
        out[to++] = carriage ? '\n' : source[i];
    }
    return to > 0 && out[to - 1] == '\n' ? to - 1 : to;
}

bd_template *bd_template_compile(const char *source, size_t size, const char *what, bd_error *err)
{
    bd_template *t = calloc(1, sizeof *t);
    if (!t || !(t->what = strdup(what)) || !(t->source = malloc(size + 1))) {
        bd_template_free(t);
        bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory for a template of %zu bytes", what, size);
        return NULL;
    }
    t->pool.limit = BD_TEMPLATE_MEMORY;
    size_t good = bd_utf8_valid(source, size);
    token_list tokens = {0};
    bool ok = good == size || bd_fail(err, "%s: not UTF-8 at byte %zu", what, good);
    if (ok) {
        t->source_size = normalize_newlines(source, size, t->source);
        t->source[t->source_size] = 0;
        ok = bd_template_lex(t, &tokens, err) && bd_parse_template(t, &tokens, err);
    }
    free(tokens.items);
    if (ok)
        return t;
    bd_template_free(t);
    return NULL;
}

void bd_template_free(bd_template *t)
{
    if (!t)
        return;
    bd_pool_free(&t->pool);
    free(t->what);
    free(t->source);
    free(t);
}

bool bd_template_marks_generation(const bd_template *t)
{
    return t->marks_generation;
}
