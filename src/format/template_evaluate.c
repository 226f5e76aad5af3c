/* Rendering: the values of expressions. */
#include "format/template_internal.h"

#include <math.h>
#include <string.h>

// --- names, attributes ---------------------------------------------------------------------------

static void look_up(const render *r, int32_t symbol, value *out)
{
    for (const scope *s = r->scope; s; s = s->parent)
        for (const binding *b = s->first; b; b = b->next)
            if (b->symbol == symbol) {
                *out = b->item;
                return;
            }
    *out = r->globals[symbol];
}

static bool loop_attribute(render *r, const loop_state *loop, const char *name, size_t size,
                           value *out)
{
    static const char *const names[] = {"index",  "index0",   "revindex", "revindex0",
                                        "first",  "last",     "length",   "depth",
                                        "depth0", "previtem", "nextitem"};
    int64_t i = loop->index, count = loop->count;
    const value absent = value_undefined(name, size);
    const value answers[] = {value_int(i + 1),
                             value_int(i),
                             value_int(count - i),
                             value_int(count - i - 1),
                             value_bool(i == 0),
                             value_bool(i == count - 1),
                             value_int(count),
                             value_int(1), // of recursive loops, which there are not
                             value_int(0),
                             i > 0 ? loop->items[i - 1] : absent,
                             i + 1 < count ? loop->items[i + 1] : absent};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++)
        if (strlen(names[k]) == size && memcmp(names[k], name, size) == 0) {
            *out = answers[k];
            return true;
        }
    return bd_render_fail(r, "a loop has no \"%.*s\"", (int)size, name);
}

// x.name: a method if there is one, else the element of that name.
static bool attribute(render *r, const node *n, value *out)
{
    value of;
    if (!bd_evaluate(r, n->child.items[0], &of))
        return false;
    r->at = n;
    const template_function *method = bd_find_method(of, n->text, n->text_size);
    if (method) {
        method_value *bound = bd_pool_alloc(&r->pool, sizeof *bound);
        if (!bound)
            return bd_render_no_memory(r);
        *bound = (method_value){method, of};
        *out = (value){.type = V_METHOD, .method = bound};
        return true;
    }
    if (of.type == V_LOOP)
        return loop_attribute(r, of.loop, n->text, n->text_size, out);
    return value_item(r, of, value_text(n->text, n->text_size), out);
}

static bool slice(render *r, const node *n, value *out)
{
    value of, bounds[3];
    if (!bd_evaluate(r, n->child.items[0], &of))
        return false;
    for (int i = 0; i < 3; i++) {
        bounds[i] = value_undefined(NULL, 0);
        if (i + 1 < n->child.count && !bd_evaluate(r, n->child.items[i + 1], &bounds[i]))
            return false;
    }
    r->at = n;
    return value_slice(r, of, bounds, out);
}

// --- arithmetic ----------------------------------------------------------------------------------

static bool is_integer(value v)
{
    return v.type == V_INT || v.type == V_BOOL;
}

static int64_t integer_of(value v)
{
    return v.type == V_INT ? v.integer : v.boolean;
}

static double real_of(value v)
{
    return v.type == V_FLOAT ? v.real : (double)integer_of(v);
}

static bool integer_power(int64_t base, int64_t exponent, int64_t *out)
{
    *out = 1;
    for (; exponent > 0; exponent >>= 1) {
        if (exponent & 1 && __builtin_mul_overflow(*out, base, out))
            return false;
        if (exponent > 1 && __builtin_mul_overflow(base, base, &base))
            return false;
    }
    return true;
}

static bool integers(render *r, node_operator op, int64_t a, int64_t b, value *out)
{
    int64_t result = 0;
    bool fits = true;
    if ((op == OP_DIVIDE || op == OP_FLOOR_DIVIDE || op == OP_MODULO) && b == 0)
        return bd_render_fail(r, "division by zero");
    switch (op) {
    case OP_ADD:
        fits = !__builtin_add_overflow(a, b, &result);
        break;
    case OP_SUBTRACT:
        fits = !__builtin_sub_overflow(a, b, &result);
        break;
    case OP_MULTIPLY:
        fits = !__builtin_mul_overflow(a, b, &result);
        break;
    case OP_DIVIDE:
        *out = value_real((double)a / (double)b);
        return true;
    case OP_FLOOR_DIVIDE: // towards minus infinity, as the remainder takes the sign of b
        fits = !(a == INT64_MIN && b == -1);
        result = fits ? a / b - (a % b != 0 && (a < 0) != (b < 0)) : 0;
        break;
    case OP_MODULO:
        result = b == -1 ? 0 : a % b;
        result += result != 0 && (result < 0) != (b < 0) ? b : 0;
        break;
    default:
        if (b < 0) {
            *out = value_real(pow((double)a, (double)b));
            return true;
        }
        fits = integer_power(a, b, &result);
        break;
    }
    *out = value_int(result);
    return fits || bd_render_fail(r, "an integer of more than 64 bits");
}

static bool reals(render *r, node_operator op, double a, double b, value *out)
{
    if ((op == OP_DIVIDE || op == OP_FLOOR_DIVIDE || op == OP_MODULO) && b == 0)
        return bd_render_fail(r, "division by zero");
    double result;
    switch (op) {
    case OP_ADD:
        result = a + b;
        break;
    case OP_SUBTRACT:
        result = a - b;
        break;
    case OP_MULTIPLY:
        result = a * b;
        break;
    case OP_DIVIDE:
        result = a / b;
        break;
    case OP_FLOOR_DIVIDE:
        result = floor(a / b);
        break;
    case OP_MODULO:
        result = fmod(a, b);
        result += result != 0 && (result < 0) != (b < 0) ? b : 0;
        break;
    default:
        result = pow(a, b);
        break;
    }
    *out = value_real(result);
    return true;
}

static bool repeat(render *r, value v, int64_t times, value *out)
{
    times = times < 0 ? 0 : times;
    if (v.type == V_STRING) {
        bd_text text = {0};
        if (v.size && times > BD_TEMPLATE_TEXT / (int64_t)v.size)
            return bd_render_fail(r, "a text of more than %d bytes", BD_TEMPLATE_TEXT);
        for (int64_t i = 0; v.size && i < times; i++)
            bd_text_add(&text, v.text, v.size);
        return value_take_text(r, &text, out);
    }
    if (!value_new_list(r, v.type, 0, out))
        return false;
    for (int64_t i = 0; v.list->count && i < times; i++)
        for (int64_t k = 0; k < v.list->count; k++)
            if (!bd_charge(r, 1) || !value_append(r, out->list, v.list->items[k]))
                return false;
    return true;
}

static bool joined(render *r, value a, value b, value *out)
{
    if (a.type == V_STRING) {
        char *both = bd_pool_alloc(&r->pool, a.size + b.size + 1);
        if (!both)
            return bd_render_no_memory(r);
        memcpy(both, a.text, a.size);
        memcpy(both + a.size, b.text, b.size);
        *out = value_text(both, a.size + b.size);
        return bd_charge(r, (int64_t)out->size / 16);
    }
    if (!value_new_list(r, a.type, a.list->count + b.list->count, out))
        return false;
    for (int64_t i = 0; i < a.list->count + b.list->count; i++)
        if (!value_append(r, out->list,
                          i < a.list->count ? a.list->items[i] : b.list->items[i - a.list->count]))
            return false;
    return bd_charge(r, out->list->count);
}

static bool defined(render *r, value v)
{
    if (v.type != V_UNDEFINED)
        return true;
    if (v.text)
        return bd_render_fail(r, "'%.*s' is undefined", (int)v.size, v.text);
    return bd_render_fail(r, "an undefined value is used");
}

static bool concatenate(render *r, value a, value b, value *out)
{
    bd_text text = {0};
    if (value_write(r, a, false, 0, &text) && value_write(r, b, false, 0, &text))
        return value_take_text(r, &text, out);
    bd_text_free(&text);
    return false;
}

static bool binary(render *r, const node *n, value *out)
{
    static const char *const signs[] = {"+", "-", "*", "/", "//", "%", "**"};
    value a, b;
    if (!bd_evaluate(r, n->child.items[0], &a) || !bd_evaluate(r, n->child.items[1], &b))
        return false;
    r->at = n;
    if (n->op == OP_CONCATENATE)
        return concatenate(r, a, b, out);
    if (!defined(r, a) || !defined(r, b))
        return false;
    bool sequences = a.type == V_STRING || a.type == V_LIST || a.type == V_TUPLE;
    if (n->op == OP_ADD && sequences && a.type == b.type)
        return joined(r, a, b, out);
    if (n->op == OP_MULTIPLY && sequences && is_integer(b))
        return repeat(r, a, integer_of(b), out);
    if (n->op == OP_MULTIPLY && is_integer(a) &&
        (b.type == V_STRING || b.type == V_LIST || b.type == V_TUPLE))
        return repeat(r, b, integer_of(a), out);
    if (is_integer(a) && is_integer(b))
        return integers(r, n->op, integer_of(a), integer_of(b), out);
    if ((is_integer(a) || a.type == V_FLOAT) && (is_integer(b) || b.type == V_FLOAT))
        return reals(r, n->op, real_of(a), real_of(b), out);
    return bd_render_fail(r, "%s %s %s is not possible", value_type_name(a), signs[n->op],
                          value_type_name(b));
}

static bool sign(render *r, const node *n, value *out)
{
    value v;
    if (!bd_evaluate(r, n->child.items[0], &v) || !defined(r, v))
        return false;
    r->at = n;
    bool minus = n->kind == N_NEGATE;
    if (v.type == V_FLOAT)
        *out = value_real(minus ? -v.real : v.real);
    else if (is_integer(v) && integer_of(v) != INT64_MIN)
        *out = value_int(minus ? -integer_of(v) : integer_of(v));
    else
        return bd_render_fail(r, "%s has no sign", value_type_name(v));
    return true;
}

// --- logic ---------------------------------------------------------------------------------------

static bool compare_two(render *r, node_operator op, value a, value b, bool *out)
{
    int order;
    if (op == OP_EQUAL || op == OP_UNEQUAL) {
        *out = value_equal(r, a, b) == (op == OP_EQUAL);
        return true;
    }
    if (op == OP_IN || op == OP_NOT_IN) {
        if (!value_contains(r, b, a, out))
            return false;
        *out ^= op == OP_NOT_IN;
        return true;
    }
    if (!defined(r, a) || !defined(r, b) || !value_compare(r, a, b, &order))
        return false;
    *out = op == OP_LESS         ? order < 0
           : op == OP_LESS_EQUAL ? order <= 0
           : op == OP_GREATER    ? order > 0
                                 : order >= 0;
    return true;
}

static bool comparison(render *r, const node *n, value *out)
{
    value a, b;
    bool holds = true;
    if (!bd_evaluate(r, n->child.items[0], &a))
        return false;
    for (int64_t i = 1; holds && i < n->child.count; i++) {
        if (!bd_evaluate(r, n->child.items[i], &b))
            return false;
        r->at = n;
        if (!compare_two(r, n->ops[i - 1], a, b, &holds))
            return false;
        a = b;
    }
    *out = value_bool(holds);
    return true;
}

// "and" and "or" give the side that decided, not true or false.
static bool logic(render *r, const node *n, value *out)
{
    if (!bd_evaluate(r, n->child.items[0], out))
        return false;
    return value_true(*out) == (n->kind == N_OR) || bd_evaluate(r, n->child.items[1], out);
}

static bool choice(render *r, const node *n, value *out)
{
    value holds;
    if (!bd_evaluate(r, n->child.items[1], &holds))
        return false;
    if (value_true(holds))
        return bd_evaluate(r, n->child.items[0], out);
    *out = value_undefined(NULL, 0);
    return n->child.count < 3 || bd_evaluate(r, n->child.items[2], out);
}

// --- containers and calls ------------------------------------------------------------------------

static bool list(render *r, const node *n, value *out)
{
    if (!value_new_list(r, n->kind == N_LIST ? V_LIST : V_TUPLE, n->child.count, out))
        return false;
    for (int64_t i = 0; i < n->child.count; i++) {
        value item;
        if (!bd_evaluate(r, n->child.items[i], &item) || !value_append(r, out->list, item))
            return false;
    }
    return true;
}

static bool dict(render *r, const node *n, value *out)
{
    if (!value_new_dict(r, V_DICT, out))
        return false;
    for (int64_t i = 0; i + 1 < n->child.count; i += 2) {
        value key, item;
        if (!bd_evaluate(r, n->child.items[i], &key) ||
            !bd_evaluate(r, n->child.items[i + 1], &item))
            return false;
        r->at = n;
        if (key.type >= V_LIST)
            return bd_render_fail(r, "%s cannot be a key", value_type_name(key));
        if (!value_put(r, out->dict, key, item))
            return false;
    }
    return true;
}

bool bd_evaluate_arguments(render *r, const node *call, const value *self, arguments *args)
{
    int64_t before = self != NULL, count = call->arguments.count + before;
    *args = (arguments){.count = count};
    args->items = bd_pool_alloc(&r->pool, ((size_t)count + 1) * sizeof *args->items);
    if (!args->items)
        return bd_render_no_memory(r);
    if (self)
        args->items[0] = *self;
    for (int64_t i = 0; i < call->arguments.count; i++) {
        if (!bd_evaluate(r, call->arguments.items[i], &args->items[before + i]))
            return false;
        if (call->names && call->names[i] && !args->names)
            args->names = call->names + i;
        args->named += call->names && call->names[i];
    }
    r->at = call;
    return true;
}

static bool call(render *r, const node *n, value *out)
{
    value of;
    arguments args;
    if (!bd_evaluate(r, n->child.items[0], &of))
        return false;
    r->at = n;
    if (!defined(r, of))
        return false;
    if (of.type == V_MACRO)
        return bd_evaluate_arguments(r, n, NULL, &args) && bd_run_macro(r, of.macro, &args, out);
    if (of.type == V_METHOD)
        return bd_evaluate_arguments(r, n, &of.method->self, &args) &&
               bd_call_builtin(r, of.method->function, &args, out);
    value nothing = value_undefined(NULL, 0);
    if (of.type == V_FUNCTION)
        return bd_evaluate_arguments(r, n, &nothing, &args) &&
               bd_call_builtin(r, of.function, &args, out);
    return bd_render_fail(r, "%s cannot be called", value_type_name(of));
}

bool bd_apply_filter(render *r, const node *n, value self, value *out)
{
    arguments args;
    return bd_evaluate_arguments(r, n, &self, &args) && bd_call_builtin(r, n->builtin, &args, out);
}

static bool filter_or_test(render *r, const node *n, value *out)
{
    value self;
    if (!bd_evaluate(r, n->child.items[0], &self) || !bd_apply_filter(r, n, self, out))
        return false;
    if (n->kind == N_TEST)
        *out = value_bool(value_true(*out) != n->negated);
    return true;
}

static bool evaluate(render *r, const node *n, value *out)
{
    value a, b;
    switch (n->kind) {
    case N_CONSTANT:
        *out = n->constant;
        return true;
    case N_NAME:
        look_up(r, n->symbol, out);
        return true;
    case N_LIST:
    case N_TUPLE:
        return list(r, n, out);
    case N_DICT:
        return dict(r, n, out);
    case N_ATTRIBUTE:
        return attribute(r, n, out);
    case N_ITEM:
        if (!bd_evaluate(r, n->child.items[0], &a) || !bd_evaluate(r, n->child.items[1], &b))
            return false;
        r->at = n;
        return value_item(r, a, b, out);
    case N_SLICE:
        return slice(r, n, out);
    case N_CALL:
        return call(r, n, out);
    case N_FILTER:
    case N_TEST:
        return filter_or_test(r, n, out);
    case N_NEGATE:
    case N_PLUS:
        return sign(r, n, out);
    case N_NOT:
        if (!bd_evaluate(r, n->child.items[0], &a))
            return false;
        *out = value_bool(!value_true(a));
        return true;
    case N_AND:
    case N_OR:
        return logic(r, n, out);
    case N_BINARY:
        return binary(r, n, out);
    case N_COMPARE:
        return comparison(r, n, out);
    default:
        return choice(r, n, out);
    }
}

bool bd_evaluate(render *r, const node *expression, value *out)
{
    r->at = expression;
    if (++r->depth > BD_TEMPLATE_CALLS)
        return bd_render_fail(r, "calls nested more than %d deep", BD_TEMPLATE_CALLS);
    bool ok = bd_charge(r, 1) && evaluate(r, expression, out);
    r->depth--;
    return ok;
}
