/* Expressions, by descending through the levels of precedence:
 *   choice  or  and  not  comparison  + -  ~  * / // %  **  sign  primary  postfix  filter, test */
#include "format/template_internal.h"

#include <stdlib.h>
#include <string.h>

// --- constants -----------------------------------------------------------------------------------

static int hex_digits(const char *text, size_t left, int count, int32_t *out)
{
    *out = 0;
    if (left < (size_t)count)
        return -1;
    for (int i = 0; i < count; i++) {
        char c = text[i];
        int digit = c >= '0' && c <= '9'                 ? c - '0'
                    : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10
                                                         : -1;
        if (digit < 0 || *out > 0x10ffff)
            return -1;
        *out = *out << 4 | digit;
    }
    return *out > 0x10ffff || (*out >= 0xd800 && *out < 0xe000) ? -1 : count;
}

// One escape behind a backslash; how many bytes it has. An unknown one stays as it is.
static size_t unescape(const char *text, size_t left, bd_text *out)
{
    static const char from[] = "\\'\"nrtbfav0", to[] = "\\'\"\n\r\t\b\f\a\v";
    int32_t c;
    int digits = text[0] == 'x' ? 2 : text[0] == 'u' ? 4 : text[0] == 'U' ? 8 : 0;
    if (digits && hex_digits(text + 1, left - 1, digits, &c) > 0) {
        bd_text_add_character(out, c);
        return (size_t)digits + 1;
    }
    if (text[0] >= '0' && text[0] <= '7') {
        size_t size = 0;
        for (c = 0; size < 3 && size < left && text[size] >= '0' && text[size] <= '7'; size++)
            c = c * 8 + (text[size] - '0');
        bd_text_add_character(out, c);
        return size;
    }
    const char *known = strchr(from, text[0]);
    if (text[0] == '\n')
        return 1; // a line that goes on
    if (known && *known)
        bd_text_add_byte(out, to[known - from]);
    else
        bd_text_print(out, "\\%c", text[0]);
    return 1;
}

static bool string_constant(parser *p, const token *first, value *out)
{
    bd_text text = {0};
    bd_text_add_string(&text, "");
    for (; p->at->kind == T_STRING; p->at++) // 'a' 'b' is one text
        for (size_t i = 0; i < p->at->size;) {
            const char *now = p->at->text + i;
            if (*now == '\\' && i + 1 < p->at->size) {
                // A character of several bytes behind a backslash is copied by its own bytes.
                i += 1;
                if ((uint8_t)now[1] < 0x80)
                    i += unescape(now + 1, p->at->size - i, &text);
                else
                    bd_text_add_byte(&text, '\\');
            } else {
                bd_text_add_byte(&text, *now);
                i++;
            }
        }
    char *copy = text.failed ? NULL : bd_pool_alloc(&p->t->pool, text.size + 1);
    if (copy)
        memcpy(copy, text.data, text.size);
    *out = value_text(copy, text.size);
    bd_text_free(&text);
    return copy || bd_parse_fail(p, first, "no memory for a text");
}

static bool number_constant(parser *p, const token *number, value *out)
{
    char digits[64];
    size_t size = 0;
    for (size_t i = 0; i < number->size && size < sizeof digits - 1; i++)
        if (number->text[i] != '_')
            digits[size++] = number->text[i];
    digits[size] = 0;
    if (number->kind == T_FLOAT) {
        *out = value_real(strtod(digits, NULL));
        return true;
    }
    if (size > 18)
        return bd_parse_fail(p, number, "an integer of more than 18 digits");
    if (size > 1 && digits[0] == '0' && strspn(digits, "0") < size)
        return bd_parse_fail(p, number, "an integer that begins with 0");
    *out = value_int(strtoll(digits, NULL, 10));
    return true;
}

static node *constant(parser *p, const token *at, value v)
{
    node *n = bd_parse_node(p, N_CONSTANT, at->at);
    if (n)
        n->constant = v;
    return n;
}

// --- primary expressions -------------------------------------------------------------------------

static node *list_or_dict(parser *p, node_kind kind)
{
    const char *close = kind == N_LIST ? "]" : "}";
    node *n = bd_parse_node(p, kind, p->at->at);
    p->at++;
    while (n && !bd_parse_is(p, close)) {
        if (n->child.count && !bd_parse_expect(p, ","))
            return NULL;
        if (bd_parse_is(p, close))
            break;
        if (!bd_parse_append(p, &n->child, bd_parse_expression(p)))
            return NULL;
        if (kind == N_DICT &&
            (!bd_parse_expect(p, ":") || !bd_parse_append(p, &n->child, bd_parse_expression(p))))
            return NULL;
    }
    return n && bd_parse_expect(p, close) ? n : NULL;
}

static node *name_or_constant(parser *p)
{
    static const char *const truths[] = {"true", "True", "false", "False", "none", "None"};
    const token *at = p->at++;
    for (int i = 0; i < 6; i++)
        if (strlen(truths[i]) == at->size && memcmp(truths[i], at->text, at->size) == 0)
            return constant(p, at, i < 4 ? value_bool(i < 2) : (value){.type = V_NONE});
    node *n = bd_parse_node(p, N_NAME, at->at);
    if (!n)
        return NULL;
    n->text = at->text;
    n->text_size = at->size;
    n->symbol = bd_parse_symbol(p, at);
    return n->symbol >= 0 ? n : NULL;
}

static node *primary(parser *p)
{
    const token *at = p->at;
    value v;
    switch (at->kind) {
    case T_NAME:
        return name_or_constant(p);
    case T_STRING:
        return string_constant(p, at, &v) ? constant(p, at, v) : NULL;
    case T_INTEGER:
    case T_FLOAT:
        p->at++;
        return number_constant(p, at, &v) ? constant(p, at, v) : NULL;
    default:
        break;
    }
    if (bd_parse_accept(p, "(")) {
        if (bd_parse_accept(p, ")"))
            return bd_parse_node(p, N_TUPLE, at->at);
        node *inside = bd_parse_tuple(p, true);
        return inside && bd_parse_expect(p, ")") ? inside : NULL;
    }
    if (bd_parse_is(p, "["))
        return list_or_dict(p, N_LIST);
    if (bd_parse_is(p, "{"))
        return list_or_dict(p, N_DICT);
    char words[60];
    bd_parse_describe(at, words);
    bd_parse_fail(p, at, "an expression expected, found %s", words);
    return NULL;
}

// --- what follows a primary expression -----------------------------------------------------------

// "(a, b, name=c)" behind a call, filter or test.
static bool call_arguments(parser *p, node *n)
{
    if (!bd_parse_expect(p, "("))
        return false;
    while (!bd_parse_is(p, ")")) {
        if (n->arguments.count && !bd_parse_expect(p, ","))
            return false;
        if (bd_parse_is(p, ")"))
            break;
        const token *at = p->at;
        if (bd_parse_is(p, "*") || bd_parse_is(p, "**"))
            return bd_parse_fail(p, at, "arguments with * or ** are not supported");
        bool named =
            at->kind == T_NAME && at[1].kind == T_OPERATOR && at[1].size == 1 && *at[1].text == '=';
        if (named)
            p->at += 2;
        if (!named && n->arguments.count && n->names[n->arguments.count - 1])
            return bd_parse_fail(p, at, "an argument without a name behind one with a name");
        if (n->arguments.count == 32)
            return bd_parse_fail(p, at, "more than 32 arguments");
        if (!n->names && !(n->names = bd_pool_alloc(&p->t->pool, 32 * sizeof *n->names)))
            return bd_parse_fail(p, at, "no memory");
        if (named) {
            char *name = bd_pool_alloc(&p->t->pool, at->size + 1);
            if (!name)
                return bd_parse_fail(p, at, "no memory");
            memcpy(name, at->text, at->size);
            n->names[n->arguments.count] = name;
        }
        if (!bd_parse_append(p, &n->arguments, bd_parse_expression(p)))
            return false;
    }
    return bd_parse_expect(p, ")");
}

static node *around(parser *p, node_kind kind, size_t at, node *inside)
{
    node *n = inside ? bd_parse_node(p, kind, at) : NULL;
    return n && bd_parse_append(p, &n->child, inside) ? n : NULL;
}

static node *attribute(parser *p, node *of)
{
    const token *name = p->at;
    node *n;
    if (name->kind == T_INTEGER) { // x.0 is x[0]
        value v;
        p->at++;
        n = number_constant(p, name, &v) ? around(p, N_ITEM, name->at, of) : NULL;
        return n && bd_parse_append(p, &n->child, constant(p, name, v)) ? n : NULL;
    }
    if (name->kind != T_NAME) {
        bd_parse_fail(p, name, "a name expected behind \".\"");
        return NULL;
    }
    p->at++;
    n = around(p, N_ATTRIBUTE, name->at, of);
    if (n) {
        n->text = name->text;
        n->text_size = name->size;
    }
    return n;
}

static bool slice_part(parser *p, node *n)
{
    bool absent = bd_parse_is(p, ":") || bd_parse_is(p, "]");
    node *part = absent ? NULL : bd_parse_expression(p);
    if (!absent && !part)
        return false;
    return bd_parse_append(p, &n->child, part ? part : bd_parse_node(p, N_CONSTANT, p->at->at));
}

// "[a]", "[a:b:c]" with any of them absent.
static node *subscript(parser *p, node *of)
{
    node *n = around(p, N_SLICE, p->at->at, of);
    if (!n || !slice_part(p, n))
        return NULL;
    if (bd_parse_accept(p, "]")) {
        n->kind = N_ITEM;
        if (n->child.items[1]->kind == N_CONSTANT &&
            n->child.items[1]->constant.type == V_UNDEFINED) {
            bd_parse_fail(p, p->at - 1, "an index expected");
            return NULL;
        }
        return n;
    }
    for (int part = 0; part < 2; part++) {
        if (!bd_parse_accept(p, ":")) {
            if (part == 0)
                return bd_parse_expect(p, "]") ? n : NULL;
            if (!bd_parse_append(p, &n->child, bd_parse_node(p, N_CONSTANT, p->at->at)))
                return NULL;
        } else if (!slice_part(p, n)) {
            return NULL;
        }
    }
    return bd_parse_expect(p, "]") ? n : NULL;
}

static node *postfix(parser *p, node *n)
{
    while (n) {
        size_t at = p->at->at;
        if (bd_parse_accept(p, ".")) {
            n = attribute(p, n);
        } else if (bd_parse_accept(p, "[")) {
            n = subscript(p, n);
        } else if (bd_parse_is(p, "(")) {
            n = around(p, N_CALL, at, n);
            if (n && !call_arguments(p, n))
                return NULL;
        } else {
            break;
        }
    }
    return n;
}

static node *filter(parser *p, node *n)
{
    const token *name = p->at++;
    if (name->kind != T_NAME) {
        bd_parse_fail(p, name, "the name of a filter expected");
        return NULL;
    }
    n = around(p, N_FILTER, name->at, n);
    if (!n)
        return NULL;
    n->text = name->text;
    n->text_size = name->size;
    n->builtin = bd_find_filter(name->text, name->size);
    if (!n->builtin) {
        bd_parse_fail(p, name, "there is no filter \"%.*s\"", (int)name->size, name->text);
        return NULL;
    }
    return !bd_parse_is(p, "(") || call_arguments(p, n) ? n : NULL;
}

// Does the token begin an argument that a test takes without brackets, as in "is divisibleby 3"?
static bool begins_test_argument(const parser *p)
{
    const token *at = p->at;
    if (at->kind == T_STRING || at->kind == T_INTEGER || at->kind == T_FLOAT)
        return true;
    if (at->kind == T_NAME)
        return !bd_parse_is_name(p, "else") && !bd_parse_is_name(p, "or") &&
               !bd_parse_is_name(p, "and") && !bd_parse_is_name(p, "is") &&
               !bd_parse_is_name(p, "if") && !bd_parse_is_name(p, "in") &&
               !bd_parse_is_name(p, "not");
    return bd_parse_is(p, "[") || bd_parse_is(p, "{");
}

static node *test(parser *p, node *n)
{
    bool negated = bd_parse_is_name(p, "not");
    p->at += negated;
    const token *name = p->at++;
    if (name->kind != T_NAME) {
        bd_parse_fail(p, name, "the name of a test expected");
        return NULL;
    }
    n = around(p, N_TEST, name->at, n);
    if (!n)
        return NULL;
    n->text = name->text;
    n->text_size = name->size;
    n->negated = negated;
    n->builtin = bd_find_test(name->text, name->size);
    if (!n->builtin) {
        bd_parse_fail(p, name, "there is no test \"%.*s\"", (int)name->size, name->text);
        return NULL;
    }
    if (bd_parse_is(p, "("))
        return call_arguments(p, n) ? n : NULL;
    if (begins_test_argument(p))
        return bd_parse_append(p, &n->arguments, postfix(p, primary(p))) ? n : NULL;
    return n;
}

node *bd_parse_filters(parser *p, node *n, bool bare)
{
    if (bare)
        n = filter(p, n);
    while (n) {
        if (bd_parse_accept(p, "|")) {
            n = filter(p, n);
        } else if (bd_parse_is_name(p, "is")) {
            p->at++;
            n = test(p, n);
        } else if (bd_parse_is(p, "(")) {
            n = postfix(p, n);
        } else {
            break;
        }
    }
    return n;
}

// --- operators -----------------------------------------------------------------------------------

// A sign binds closer than filters: -1|abs is (-1)|abs.
static node *signed_value(parser *p, bool filters)
{
    const token *at = p->at;
    node *n;
    if (!bd_parse_enter(p))
        return NULL;
    if (bd_parse_accept(p, "-"))
        n = around(p, N_NEGATE, at->at, signed_value(p, false));
    else if (bd_parse_accept(p, "+"))
        n = around(p, N_PLUS, at->at, signed_value(p, false));
    else
        n = primary(p);
    n = postfix(p, n);
    p->depth--;
    return filters ? bd_parse_filters(p, n, false) : n;
}

typedef struct {
    const char *text;
    node_operator op;
} operator_name;

static node *binary(parser *p, int level);

// The levels of operators that take two sides, loosest first.
static const operator_name levels[][5] = {
    {{"+", OP_ADD}, {"-", OP_SUBTRACT}},
    {{"~", OP_CONCATENATE}},
    {{"*", OP_MULTIPLY}, {"/", OP_DIVIDE}, {"//", OP_FLOOR_DIVIDE}, {"%", OP_MODULO}},
    {{"**", OP_POWER}},
};

static node *binary(parser *p, int level)
{
    if (level == 4)
        return signed_value(p, true);
    node *n = binary(p, level + 1);
    while (n) {
        const operator_name *found = NULL;
        for (int i = 0; i < 5 && levels[level][i].text; i++)
            if (bd_parse_is(p, levels[level][i].text))
                found = &levels[level][i];
        if (!found)
            break;
        node *both = around(p, N_BINARY, p->at++->at, n);
        if (!both || !bd_parse_append(p, &both->child, binary(p, level + 1)))
            return NULL;
        both->op = found->op;
        n = both;
    }
    return n;
}

static bool comparison_operator(parser *p, node_operator *op)
{
    static const operator_name names[] = {{"==", OP_EQUAL},      {"!=", OP_UNEQUAL},
                                          {"<=", OP_LESS_EQUAL}, {">=", OP_GREATER_EQUAL},
                                          {"<", OP_LESS},        {">", OP_GREATER}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (bd_parse_accept(p, names[i].text)) {
            *op = names[i].op;
            return true;
        }
    if (bd_parse_is_name(p, "in")) {
        p->at++;
        *op = OP_IN;
        return true;
    }
    if (bd_parse_is_name(p, "not") && p->at[1].kind == T_NAME && p->at[1].size == 2 &&
        memcmp(p->at[1].text, "in", 2) == 0) {
        p->at += 2;
        *op = OP_NOT_IN;
        return true;
    }
    return false;
}

static node *comparison(parser *p)
{
    enum { MOST = 16 };
    size_t at = p->at->at;
    node *n = binary(p, 0), *all = NULL;
    node_operator op;
    while (n && comparison_operator(p, &op)) {
        if (!all) {
            all = around(p, N_COMPARE, at, n);
            if (!all || !(all->ops = bd_pool_alloc(&p->t->pool, MOST * sizeof *all->ops)))
                return NULL;
        }
        if (all->child.count == MOST) {
            bd_parse_fail(p, p->at, "more than %d comparisons in a row", MOST);
            return NULL;
        }
        all->ops[all->child.count - 1] = op;
        if (!bd_parse_append(p, &all->child, binary(p, 0)))
            return NULL;
    }
    return all ? all : n;
}

static node *negation(parser *p)
{
    size_t at = p->at->at;
    if (!bd_parse_is_name(p, "not"))
        return comparison(p);
    p->at++;
    if (!bd_parse_enter(p))
        return NULL;
    node *n = around(p, N_NOT, at, negation(p));
    p->depth--;
    return n;
}

static node *logical(parser *p, node_kind kind)
{
    const char *word = kind == N_OR ? "or" : "and";
    node *n = kind == N_OR ? logical(p, N_AND) : negation(p);
    while (n && bd_parse_is_name(p, word)) {
        node *both = around(p, kind, p->at++->at, n);
        if (!both ||
            !bd_parse_append(p, &both->child, kind == N_OR ? logical(p, N_AND) : negation(p)))
            return NULL;
        n = both;
    }
    return n;
}

node *bd_parse_no_choice(parser *p)
{
    if (!bd_parse_enter(p))
        return NULL;
    node *n = logical(p, N_OR);
    p->depth--;
    return n;
}

node *bd_parse_expression(parser *p)
{
    node *n = bd_parse_no_choice(p);
    while (n && bd_parse_is_name(p, "if")) {
        node *choice = around(p, N_CHOICE, p->at++->at, n);
        if (!choice || !bd_parse_append(p, &choice->child, bd_parse_no_choice(p)))
            return NULL;
        if (bd_parse_is_name(p, "else")) {
            p->at++;
            if (!bd_parse_enter(p) || !bd_parse_append(p, &choice->child, bd_parse_expression(p)))
                return NULL;
            p->depth--;
        }
        n = choice;
    }
    return n;
}

node *bd_parse_tuple(parser *p, bool choice)
{
    size_t at = p->at->at;
    node *first = choice ? bd_parse_expression(p) : bd_parse_no_choice(p);
    if (!first || !bd_parse_is(p, ","))
        return first;
    node *n = around(p, N_TUPLE, at, first);
    while (n && bd_parse_accept(p, ",")) {
        if (p->at->kind == T_PRINT_END || p->at->kind == T_BLOCK_END || bd_parse_is(p, ")"))
            break;
        if (!bd_parse_append(p, &n->child, choice ? bd_parse_expression(p) : bd_parse_no_choice(p)))
            return NULL;
    }
    return n;
}

node *bd_parse_variable(parser *p)
{
    if (p->at->kind != T_NAME) {
        bd_parse_fail(p, p->at, "the name of a variable expected");
        return NULL;
    }
    node *n = name_or_constant(p);
    if (n && n->kind != N_NAME) {
        bd_parse_fail(p, p->at - 1, "a constant cannot be assigned to");
        return NULL;
    }
    return n;
}

// "a", "a, b", "ns.a"
node *bd_parse_target(parser *p)
{
    size_t at = p->at->at;
    node *tuple = NULL;
    bool brackets = bd_parse_accept(p, "(");
    for (;;) {
        node *one = bd_parse_variable(p);
        if (one && bd_parse_accept(p, "."))
            one = attribute(p, one);
        if (!one || (one->kind != N_NAME && one->kind != N_ATTRIBUTE))
            return NULL;
        if (!tuple && !bd_parse_is(p, ","))
            return !brackets || bd_parse_expect(p, ")") ? one : NULL;
        if (!tuple && !(tuple = bd_parse_node(p, N_TUPLE, at)))
            return NULL;
        if (!bd_parse_append(p, &tuple->child, one))
            return NULL;
        if (!bd_parse_accept(p, ",") || (brackets && bd_parse_is(p, ")")))
            return !brackets || bd_parse_expect(p, ")") ? tuple : NULL;
    }
}
