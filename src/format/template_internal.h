/* template_internal.h - the parts of a template, for the files template_*.c only.
 *
 * Source text becomes tokens (template_lexer.c), tokens a tree (template_parser.c,
 * template_expression.c); the tree is walked to render (template_run.c, template_evaluate.c) with
 * values (template_value.c) and what templates may call (template_filters.c, template_methods.c).
 */
#ifndef BD_FORMAT_TEMPLATE_INTERNAL_H
#define BD_FORMAT_TEMPLATE_INTERNAL_H

#include "format/template.h"

enum { BD_SYMBOL_LOOP = 0 }; // the variable "loop" in every template

enum {
    BD_TEMPLATE_DEPTH = 200,        // nesting of expressions and statements in the source
    BD_TEMPLATE_CALLS = 600,        // nesting of evaluations while rendering
    BD_TEMPLATE_STEPS = 20000000,   // evaluations, and bytes or elements they touch, by the dozen
    BD_TEMPLATE_MEMORY = 256 << 20, // for values
    BD_TEMPLATE_TEXT = 64 << 20,    // printed
};

// --- memory that goes away at once (template_value.c) --------------------------------------------

typedef struct {
    struct pool_chunk *chunks;
    size_t left, total, limit;
    char *next;
} bd_pool;
void *bd_pool_alloc(bd_pool *pool, size_t size); // zeroed; NULL: no memory, or past the limit
void bd_pool_free(bd_pool *pool);

// --- values --------------------------------------------------------------------------------------

typedef enum {
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_FLOAT,
    V_STRING,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_NAMESPACE, // a dict that `set` may write to
    V_LOOP,
    V_MACRO,
    V_FUNCTION, // a global function
    V_METHOD,   // of a string, list or dict
} value_type;

typedef struct value value;
typedef struct value_list value_list;
typedef struct value_dict value_dict;
typedef struct loop_state loop_state;
typedef struct macro_value macro_value;
typedef struct method_value method_value;
typedef struct template_function template_function;

struct value {
    value_type type;
    union {
        bool boolean;
        int64_t integer;
        double real;
        struct {
            const char *text; // of V_STRING; of V_UNDEFINED: what is not defined, or NULL
            size_t size;
        };
        value_list *list;
        value_dict *dict;
        loop_state *loop;
        const macro_value *macro;
        const template_function *function;
        const method_value *method;
    };
};

struct value_list {
    value *items;
    int64_t count, room;
    int depth; // of lists and dicts in it
};

typedef struct {
    value key, item;
} dict_entry;

struct value_dict {
    dict_entry *entries;
    int64_t count, room;
    int depth;
    int64_t watched; // 1 + its place in the watched list; 0: not in it
};

struct loop_state {
    const value *items;
    int64_t index, count;
    value changed; // what loop.changed() saw last
};

// --- the tree ------------------------------------------------------------------------------------

typedef enum {
    // expressions
    N_CONSTANT,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT,      // children: key, value, key, value, ...
    N_ATTRIBUTE, // child 0, text: the name
    N_ITEM,      // child 0 [child 1]
    N_SLICE,     // child 0 [child 1 : child 2 : child 3], absent ones NULL
    N_CALL,      // child 0 (arguments)
    N_FILTER,    // child 0 | text(arguments)
    N_TEST,      // child 0 is text(arguments)
    N_NEGATE,
    N_PLUS,
    N_NOT,
    N_AND,
    N_OR,
    N_BINARY,  // operator in op
    N_COMPARE, // child 0 op child 1 op child 2 ...; operators in ops
    N_CHOICE,  // child 0 if child 1 else child 2 (may be NULL)
    // statements
    N_TEXT,         // text
    N_PRINT,        // child 0
    N_FOR,          // children: target, iterable, condition or NULL; body, other
    N_IF,           // child 0: condition; body, other
    N_SET,          // children: target, value
    N_SET_BLOCK,    // child 0: target; body; filters as children 1 ...
    N_MACRO,        // symbol, parameters as children (N_NAME), defaults in arguments; body
    N_WITH,         // children: target, value, ...; body
    N_FILTER_BLOCK, // child 0: a filter applied to N_CONSTANT ""; body
    N_GENERATION,   // body
    N_BREAK,
    N_CONTINUE,
} node_kind;

typedef enum {
    OP_ADD,
    OP_SUBTRACT,
    OP_MULTIPLY,
    OP_DIVIDE,
    OP_FLOOR_DIVIDE,
    OP_MODULO,
    OP_POWER,
    OP_CONCATENATE,
    OP_EQUAL,
    OP_UNEQUAL,
    OP_LESS,
    OP_LESS_EQUAL,
    OP_GREATER,
    OP_GREATER_EQUAL,
    OP_IN,
    OP_NOT_IN,
} node_operator;

typedef struct node node;

typedef struct {
    node **items;
    int64_t count, room;
} node_list;

struct node {
    node_kind kind;
    node_operator op;
    size_t at; // byte in the source
    const char *text;
    size_t text_size;
    int32_t symbol; // of N_NAME, N_MACRO
    value constant;
    node_list child;
    node_list arguments;   // positional ones, then those with names
    const char **names;    // of the arguments, NULL: positional
    node_operator *ops;    // of N_COMPARE, one for each child after the first
    node_list body, other; // statements
    bool negated;          // is not
    const void *builtin;   // the filter or test
};

struct bd_template {
    char *what;
    char *source; // newlines normalized
    size_t source_size;
    bd_pool pool;
    node_list body;
    const char **symbols; // names of variables
    int32_t symbol_count, symbol_room;
    bool marks_generation;
};

bool bd_template_fail(const bd_template *t, size_t at, bd_error *err, const char *format, ...)
    __attribute__((format(printf, 4, 5)));

// --- tokens --------------------------------------------------------------------------------------

typedef enum {
    T_TEXT,
    T_PRINT_BEGIN,
    T_PRINT_END,
    T_BLOCK_BEGIN,
    T_BLOCK_END,
    T_NAME,
    T_STRING, // text: between the quotes, as in the source
    T_INTEGER,
    T_FLOAT,
    T_OPERATOR,
    T_END,
} token_kind;

typedef struct {
    token_kind kind;
    const char *text;
    size_t size, at;
} token;

typedef struct {
    token *items;
    int64_t count, room;
} token_list;

bool bd_template_lex(const bd_template *t, token_list *tokens, bd_error *err);
bool bd_template_is_space(int32_t c); // Python's str.isspace: White_Space and four separators

// --- parsing -------------------------------------------------------------------------------------

typedef struct {
    bd_template *t;
    const token *at;
    int depth; // of nesting
    int loops; // around the statement
    bd_error *err;
} parser;

bool bd_parse_template(bd_template *t, const token_list *tokens, bd_error *err);

node *bd_parse_expression(parser *p);         // with "if ... else ..."
node *bd_parse_no_choice(parser *p);          // without: what "for x in" is followed by
node *bd_parse_tuple(parser *p, bool choice); // a, b, c
node *bd_parse_target(parser *p);             // what set and for assign to
node *bd_parse_variable(parser *p);           // one name
/* first | filter | filter; bare: without the first bar. */
node *bd_parse_filters(parser *p, node *first, bool bare);

bool bd_parse_fail(parser *p, const token *at, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
node *bd_parse_node(parser *p, node_kind kind, size_t at);
bool bd_parse_append(parser *p, node_list *list, node *item);
bool bd_parse_is(const parser *p, const char *operator);
bool bd_parse_is_name(const parser *p, const char *name);
bool bd_parse_accept(parser *p, const char *operator);
bool bd_parse_expect(parser *p, const char *operator);
int32_t bd_parse_symbol(parser *p, const token *name);
bool bd_parse_enter(parser *p); // one level deeper; false: too deep
void bd_parse_describe(const token *at, char out[60]);

// --- rendering -----------------------------------------------------------------------------------

typedef struct binding {
    struct binding *next;
    int32_t symbol;
    value item;
} binding;

typedef struct scope {
    struct scope *parent;
    binding *first;
    bool kept; // a macro remembers it
} scope;

struct macro_value {
    const node *definition;
    scope *scope; // where it was defined
};

typedef struct {
    const bd_template *t;
    bd_pool pool;
    bd_text *out; // where printing goes now
    int captures; // how many captures are around; 0: out is the rendered text
    bd_template_output *output;
    const bd_template_options *options;
    value *globals; // by symbol
    scope *scope;
    scope *spare_scopes; // closed ones, to be used again
    binding *spare_bindings;
    int depth;
    int64_t steps;
    const node *at; // for errors
    bd_error *err;
} render;

typedef struct {
    value *items;
    int64_t count;
    const char **names; // of the last `named` ones
    int64_t named;
} arguments;

bool bd_run_body(render *r, const node_list *body, int *jump); // jump: N_BREAK, N_CONTINUE or 0
bool bd_run_macro(render *r, const macro_value *macro, const arguments *args, value *out);
bool bd_assign(render *r, const node *target, value item);

bool bd_evaluate(render *r, const node *expression, value *out);
bool bd_evaluate_arguments(render *r, const node *call, const value *self, arguments *args);
bool bd_apply_filter(render *r, const node *filter, value self, value *out);

bool bd_render_fail(render *r, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool bd_render_no_memory(render *r);
bool bd_charge(render *r, int64_t elements); // steps for touching so many bytes or elements
bool bd_print(render *r, const char *text, size_t size);

// --- values: making and asking (template_value.c) ------------------------------------------------

value value_bool(bool b);
value value_int(int64_t i);
value value_real(double d);
value value_text(const char *text, size_t size);
value value_string(const char *text);
value value_undefined(const char *name, size_t size);

/* A copy in the render's memory; false: error told. */
bool value_copy_text(render *r, const char *text, size_t size, value *out);
bool value_take_text(render *r, bd_text *text, value *out); // the same, and text is freed

bool value_new_list(render *r, value_type type, int64_t room, value *out);
bool value_append(render *r, value_list *list, value item);
bool value_new_dict(render *r, value_type type, value *out);
bool value_put(render *r, value_dict *dict, value key, value item);
const value *value_get(render *r, const value_dict *dict, value key); // NULL: not there
bool value_from_json(render *r, json_t *json, int depth, value *out);

bool value_true(value v);
/* Counts steps; when they run out it is false and the next bd_charge fails. */
bool value_equal(render *r, value a, value b);
/* -1, 0, 1; false: they have no order (error told). */
bool value_compare(render *r, value a, value b, int *order);
bool value_contains(render *r, value container, value item, bool *out);
const char *value_type_name(value v); // as Python says

/* The elements of anything that `for` takes: lists, strings by character, keys of dicts. */
bool value_elements(render *r, value v, const value **items, int64_t *count);

/* How Python's str() and repr() write a value. */
bool value_write(render *r, value v, bool quoted, int depth, bd_text *out);
void value_write_real(double d, bd_text *out);
typedef struct {
    int64_t indent; // -1: all on one line
    bool sort_keys, ascii;
    const char *comma, *colon;
} json_style;
bool value_write_json(render *r, value v, const json_style *style, int depth, bd_text *out);

/* Characters [from, to) with the step of a slice, as Python counts them; of lists and strings. */
bool value_slice(render *r, value v, const value bounds[3], value *out);
bool value_item(render *r, value container, value key, value *out); // undefined when not there

// --- what templates may call ---------------------------------------------------------------------

typedef bool (*builtin_function)(render *r, const arguments *args, value *out);

struct template_function {
    const char *name;
    builtin_function call; // args->items[0] is what a filter, test or method is applied to
    int least, most;       // arguments besides that
    const char *named;     // names of the arguments in order, with spaces; NULL: only by place
};

struct method_value {
    const template_function *function;
    value self;
};

const template_function *bd_find_filter(const char *name, size_t size);
const template_function *bd_find_test(const char *name, size_t size);
const template_function *bd_find_global(const char *name);
const template_function *bd_find_method(value self, const char *name, size_t size);

/* Put arguments with names into their places; absent ones are V_UNDEFINED. All callables are called
 * this way: `call` sees least + 1 to most + 1 items. */
bool bd_call_builtin(render *r, const template_function *function, const arguments *args,
                     value *out);

#endif
