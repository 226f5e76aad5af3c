/* Rendering: walking through the statements of a template. */
#include "format/template_internal.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// --- errors, steps, printing ---------------------------------------------------------------------

bool bd_render_fail(render *r, const char *format, ...)
{
    char what[600];
    va_list list;
    va_start(list, format);
    vsnprintf(what, sizeof what, format, list);
    va_end(list);
    return bd_template_fail(r->t, r->at ? r->at->at : 0, r->err, "%s", what);
}

bool bd_render_no_memory(render *r)
{
    return bd_render_fail(r, "no memory, or more than %d MB of values", BD_TEMPLATE_MEMORY >> 20);
}

bool bd_charge(render *r, int64_t elements)
{
    r->steps += elements;
    return r->steps <= BD_TEMPLATE_STEPS ||
           bd_render_fail(r, "the template takes more than %d steps", BD_TEMPLATE_STEPS);
}

bool bd_print(render *r, const char *text, size_t size)
{
    if (r->out->size + size > BD_TEMPLATE_TEXT)
        return bd_render_fail(r, "a text of more than %d bytes", BD_TEMPLATE_TEXT);
    bd_text_add(r->out, text, size);
    return (!r->out->failed || bd_render_no_memory(r)) && bd_charge(r, (int64_t)size / 64);
}

static bool add_span(render *r, bd_template_span **spans, int64_t *count, int64_t *room,
                     size_t begin, int64_t index)
{
    if (*count == *room) {
        int64_t larger_room = *room ? *room * 2 : 16;
        bd_template_span *larger = realloc(*spans, (size_t)larger_room * sizeof *larger);
        if (!larger)
            return bd_render_no_memory(r);
        *spans = larger;
        *room = larger_room;
    }
    (*spans)[(*count)++] = (bd_template_span){(int64_t)begin, (int64_t)r->out->size, index};
    return true;
}

// --- variables -----------------------------------------------------------------------------------

// A scope inside the one that is open. Loops open one for each element: closed ones are used again.
static scope *scope_open(render *r)
{
    scope *s = r->spare_scopes;
    if (s) {
        r->spare_scopes = s->parent;
        *s = (scope){0};
    } else if (!(s = bd_pool_alloc(&r->pool, sizeof *s))) {
        bd_render_no_memory(r);
        return NULL;
    }
    s->parent = r->scope;
    return r->scope = s;
}

// Back to `outer`, which the open scope was opened in.
static void scope_close(render *r, scope *outer)
{
    scope *s = r->scope;
    r->scope = outer;
    if (s == outer || s->kept)
        return;
    while (s->first) {
        binding *next = s->first->next;
        s->first->next = r->spare_bindings;
        r->spare_bindings = s->first;
        s->first = next;
    }
    s->parent = r->spare_scopes;
    r->spare_scopes = s;
}

static bool bind(render *r, int32_t symbol, value item)
{
    binding *b = r->scope->first;
    while (b && b->symbol != symbol)
        b = b->next;
    if (!b) {
        b = r->spare_bindings;
        if (b)
            r->spare_bindings = b->next;
        else if (!(b = bd_pool_alloc(&r->pool, sizeof *b)))
            return bd_render_no_memory(r);
        *b = (binding){r->scope->first, symbol, item};
        r->scope->first = b;
    }
    b->item = item;
    return true;
}

bool bd_assign(render *r, const node *target, value item)
{
    if (target->kind == N_NAME)
        return bind(r, target->symbol, item);
    if (target->kind == N_ATTRIBUTE) {
        value holder;
        if (!bd_evaluate(r, target->child.items[0], &holder))
            return false;
        r->at = target;
        if (holder.type != V_NAMESPACE)
            return bd_render_fail(r, "an attribute of %s cannot be set, only one of a namespace",
                                  value_type_name(holder));
        return value_put(r, holder.dict, value_text(target->text, target->text_size), item);
    }
    const value *items;
    int64_t count;
    if (!value_elements(r, item, &items, &count))
        return false;
    if (count != target->child.count)
        return bd_render_fail(r, "%lld values for %lld variables", (long long)count,
                              (long long)target->child.count);
    for (int64_t i = 0; i < count; i++)
        if (!bd_assign(r, target->child.items[i], items[i]))
            return false;
    return true;
}

// --- capturing -----------------------------------------------------------------------------------

// Run a body with what it prints going into `text`, and what it sets going nowhere.
static bool capture(render *r, const node_list *body, bd_text *text, int *jump)
{
    bd_text *outer = r->out;
    scope *around = r->scope;
    r->out = text;
    r->captures++;
    bool ok = scope_open(r) && bd_run_body(r, body, jump);
    r->captures--;
    r->out = outer;
    if (ok)
        scope_close(r, around);
    return ok;
}

static bool is_named(const char *name, const node *parameter)
{
    return strlen(name) == parameter->text_size &&
           memcmp(name, parameter->text, parameter->text_size) == 0;
}

// Is every argument with a name one of the macro's parameters?
static bool known_names(render *r, const node *macro, const arguments *args)
{
    for (int64_t k = 0; k < args->named; k++) {
        bool known = false;
        for (int64_t i = 0; i < macro->child.count; i++)
            known = known || is_named(args->names[k], macro->child.items[i]);
        if (!known)
            return bd_render_fail(r, "macro %.*s takes no \"%s\"", (int)macro->text_size,
                                  macro->text, args->names[k]);
    }
    return true;
}

// One parameter: given by place, by name, by its default, or not at all.
static bool bind_parameter(render *r, const node *macro, const arguments *args, int64_t i)
{
    const node *parameter = macro->child.items[i];
    int64_t placed = args->count - args->named,
            first_default = macro->child.count - macro->arguments.count;
    value item = value_undefined(parameter->text, parameter->text_size);
    bool given = i < placed;
    if (given)
        item = args->items[i];
    for (int64_t k = 0; !given && k < args->named; k++) {
        given = is_named(args->names[k], parameter);
        if (given)
            item = args->items[placed + k];
    }
    if (!given && i >= first_default &&
        !bd_evaluate(r, macro->arguments.items[i - first_default], &item))
        return false;
    return bind(r, parameter->symbol, item);
}

bool bd_run_macro(render *r, const macro_value *macro, const arguments *args, value *out)
{
    const node *definition = macro->definition;
    int64_t parameters = definition->child.count, placed = args->count - args->named;
    scope *caller = r->scope;
    bd_text text = {0};
    int jump = 0;
    if (placed > parameters)
        return bd_render_fail(r, "macro %.*s takes %lld arguments, not %lld",
                              (int)definition->text_size, definition->text, (long long)parameters,
                              (long long)placed);
    if (!known_names(r, definition, args))
        return false;
    r->scope = macro->scope;
    bool ok = scope_open(r) != NULL;
    for (int64_t i = 0; ok && i < parameters; i++)
        ok = bind_parameter(r, definition, args, i);
    ok = ok && capture(r, &definition->body, &text, &jump);
    if (ok)
        scope_close(r, caller);
    if (ok)
        return value_take_text(r, &text, out);
    bd_text_free(&text);
    return false;
}

// Filters of {% set %} and {% filter %} blocks end at an empty constant: the text goes there.
static bool apply_filters(render *r, const node *n, value text, value *out)
{
    if (n->kind == N_CONSTANT) {
        *out = text;
        return true;
    }
    value inner;
    return apply_filters(r, n->child.items[0], text, &inner) && bd_apply_filter(r, n, inner, out);
}

static bool filtered_block(render *r, const node *n, const node *filters, value *out, int *jump)
{
    bd_text text = {0};
    value captured;
    if (!capture(r, &n->body, &text, jump)) {
        bd_text_free(&text);
        return false;
    }
    return value_take_text(r, &text, &captured) && apply_filters(r, filters, captured, out);
}

// --- statements ----------------------------------------------------------------------------------

static bool run_print(render *r, const node *n)
{
    value v;
    bd_text text = {0};
    if (!bd_evaluate(r, n->child.items[0], &v))
        return false;
    r->at = n;
    if (v.type == V_STRING)
        return bd_print(r, v.text, v.size);
    bool ok = value_write(r, v, false, 0, &text) && (!text.failed || bd_render_no_memory(r)) &&
              bd_print(r, text.data ? text.data : "", text.size);
    bd_text_free(&text);
    return ok;
}

// The elements for which the loop's condition holds, before the loop starts.
static bool select_elements(render *r, const node *n, const value **items, int64_t *count)
{
    value kept, holds;
    scope *outer = r->scope;
    if (!value_new_list(r, V_LIST, 0, &kept))
        return false;
    for (int64_t i = 0; i < *count; i++) {
        if (!scope_open(r) || !bd_assign(r, n->child.items[0], (*items)[i]) ||
            !bd_evaluate(r, n->child.items[2], &holds) ||
            (value_true(holds) && !value_append(r, kept.list, (*items)[i])))
            return false;
        scope_close(r, outer);
    }
    *items = kept.list->items;
    *count = kept.list->count;
    return true;
}

static bool run_iteration(render *r, const node *n, loop_state *loop, scope *outer, int *jump)
{
    value item = loop->items[loop->index];
    size_t begin = r->out->size;
    int64_t watched = item.type == V_DICT && r->captures == 0 ? item.dict->watched : 0;
    if (!scope_open(r) || !bind(r, BD_SYMBOL_LOOP, (value){.type = V_LOOP, .loop = loop}) ||
        !bd_assign(r, n->child.items[0], item) || !bd_run_body(r, &n->body, jump))
        return false;
    scope_close(r, outer);
    bd_template_output *o = r->output;
    return !watched || r->out->size == begin ||
           add_span(r, &o->watched, &o->watched_count, &o->watched_room, begin, watched - 1);
}

static bool run_for(render *r, const node *n, int *jump)
{
    value over;
    loop_state *loop = bd_pool_alloc(&r->pool, sizeof *loop);
    scope *outer = r->scope;
    if (!loop)
        return bd_render_no_memory(r);
    if (!bd_evaluate(r, n->child.items[1], &over))
        return false;
    r->at = n;
    if (!value_elements(r, over, &loop->items, &loop->count) ||
        (n->child.count > 2 && !select_elements(r, n, &loop->items, &loop->count)))
        return false;
    for (; loop->index < loop->count; loop->index++) {
        int inner = 0;
        if (!run_iteration(r, n, loop, outer, &inner))
            return false;
        if (inner == N_BREAK)
            break;
    }
    return loop->count > 0 || bd_run_body(r, &n->other, jump);
}

static bool run_if(render *r, const node *n, int *jump)
{
    value holds;
    for (;;) {
        if (!bd_evaluate(r, n->child.items[0], &holds))
            return false;
        if (value_true(holds))
            return bd_run_body(r, &n->body, jump);
        bool chain = n->other.count == 1 && n->other.items[0]->kind == N_IF;
        if (!chain)
            return bd_run_body(r, &n->other, jump);
        n = n->other.items[0];
    }
}

static bool run_with(render *r, const node *n, int *jump)
{
    scope *outer = r->scope;
    bool ok = scope_open(r) != NULL;
    for (int64_t i = 0; ok && i + 1 < n->child.count; i += 2) {
        value item;
        scope *inner = r->scope;
        r->scope = outer; // values are those of outside
        ok = bd_evaluate(r, n->child.items[i + 1], &item);
        r->scope = inner;
        ok = ok && bd_assign(r, n->child.items[i], item);
    }
    ok = ok && bd_run_body(r, &n->body, jump);
    if (ok)
        scope_close(r, outer);
    return ok;
}

static bool run_generation(render *r, const node *n, int *jump)
{
    size_t begin = r->out->size;
    scope *outer = r->scope;
    if (r->captures)
        return bd_render_fail(
            r, "a generation block inside a macro, set or filter block has no place in "
               "the text");
    bool ok = scope_open(r) && bd_run_body(r, &n->body, jump);
    if (ok)
        scope_close(r, outer);
    bd_template_output *o = r->output;
    return ok && add_span(r, &o->generation, &o->generation_count, &o->generation_room, begin, 0);
}

static bool run_macro_definition(render *r, const node *n)
{
    macro_value *macro = bd_pool_alloc(&r->pool, sizeof *macro);
    if (!macro)
        return bd_render_no_memory(r);
    *macro = (macro_value){n, r->scope};
    for (scope *s = r->scope; s && !s->kept; s = s->parent)
        s->kept = true;
    return bind(r, n->symbol, (value){.type = V_MACRO, .macro = macro});
}

static bool run_statement(render *r, const node *n, int *jump)
{
    value v;
    r->at = n;
    switch (n->kind) {
    case N_TEXT:
        return bd_print(r, n->text, n->text_size);
    case N_PRINT:
        return run_print(r, n);
    case N_FOR:
        return run_for(r, n, jump);
    case N_IF:
        return run_if(r, n, jump);
    case N_SET:
        return bd_evaluate(r, n->child.items[1], &v) && bd_assign(r, n->child.items[0], v);
    case N_SET_BLOCK:
        return filtered_block(r, n, n->child.items[1], &v, jump) &&
               bd_assign(r, n->child.items[0], v);
    case N_MACRO:
        return run_macro_definition(r, n);
    case N_WITH:
        return run_with(r, n, jump);
    case N_FILTER_BLOCK: {
        bd_text text = {0};
        bool ok = filtered_block(r, n, n->child.items[0], &v, jump) &&
                  value_write(r, v, false, 0, &text) &&
                  bd_print(r, text.data ? text.data : "", text.size);
        bd_text_free(&text);
        return ok;
    }
    case N_GENERATION:
        return run_generation(r, n, jump);
    default:
        *jump = (int)n->kind;
        return true;
    }
}

bool bd_run_body(render *r, const node_list *body, int *jump)
{
    if (++r->depth > BD_TEMPLATE_CALLS)
        return bd_render_fail(r, "calls nested more than %d deep", BD_TEMPLATE_CALLS);
    bool ok = true;
    for (int64_t i = 0; ok && !*jump && i < body->count; i++)
        ok = bd_charge(r, 1) && run_statement(r, body->items[i], jump);
    r->depth--;
    return ok;
}

// --- the whole -----------------------------------------------------------------------------------

static bool set_globals(render *r, json_t *variables)
{
    for (int32_t i = 0; i < r->t->symbol_count; i++) {
        const char *name = r->t->symbols[i];
        json_t *item = json_object_get(variables, name);
        const template_function *function = bd_find_global(name);
        if (item && !value_from_json(r, item, 0, &r->globals[i]))
            return false;
        if (!item)
            r->globals[i] = function ? (value){.type = V_FUNCTION, .function = function}
                                     : value_undefined(name, strlen(name));
        const char *watch = r->options->watch;
        if (!item || !watch || strcmp(watch, name) != 0 || r->globals[i].type != V_LIST)
            continue;
        value_list *list = r->globals[i].list;
        for (int64_t k = 0; k < list->count; k++)
            if (list->items[k].type == V_DICT)
                list->items[k].dict->watched = k + 1;
    }
    return true;
}

bool bd_template_render(const bd_template *t, json_t *variables, const bd_template_options *options,
                        bd_template_output *out, bd_error *err)
{
    static const bd_template_options none = {0};
    render r = {.t = t,
                .out = &out->text,
                .output = out,
                .options = options ? options : &none,
                .pool.limit = BD_TEMPLATE_MEMORY,
                .err = err};
    int jump = 0;
    bd_text_add_string(&out->text, "");
    r.globals = bd_pool_alloc(&r.pool, ((size_t)t->symbol_count + 1) * sizeof *r.globals);
    bool ok = (r.globals || bd_render_no_memory(&r)) && scope_open(&r) &&
              set_globals(&r, variables) && bd_run_body(&r, &t->body, &jump) &&
              bd_text_check(&out->text, err);
    bd_pool_free(&r.pool);
    return ok;
}

void bd_template_output_free(bd_template_output *out)
{
    bd_text_free(&out->text);
    free(out->generation);
    free(out->watched);
    *out = (bd_template_output){0};
}
