#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "base/file.h"
#include "format/recipe_value.h"

/* A recipe is a mapping of sections, a section a mapping of options, an option a scalar or a list
 * of scalars. The events of libyaml are read as they come, so deeper nesting ends at its first
 * event; tags and aliases have no use here and are refused. */

typedef struct {
    bd_recipe *recipe;
    const char *what;
    yaml_parser_t parser;
    yaml_event_t event; // the current one
    bool held;          // is there one to be deleted?
    int *first_line;    // by row: the line that gave it a value, 0: none yet
} reader;

enum { MOST_KEY = 100, WHERE = BD_PATH + 32 };

static size_t line_of(const reader *r)
{
    return r->event.start_mark.line + 1;
}

static void place_text(const reader *r, size_t line, char out[WHERE])
{
    snprintf(out, WHERE, "%.4000s:%zu", r->what, line);
}

static bool syntax_error(reader *r, bd_error *err)
{
    const yaml_parser_t *p = &r->parser;
    size_t line = p->problem_mark.line + 1, column = p->problem_mark.column + 1;
    if (p->error == YAML_READER_ERROR)
        return bd_fail(err, "%s: byte %zu: %s", r->what, p->problem_offset,
                       p->problem ? p->problem : "not UTF-8");
    if (p->error == YAML_MEMORY_ERROR)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", r->what);
    return bd_fail(err, "%s:%zu:%zu: %s%s%s", r->what, line, column, p->context ? p->context : "",
                   p->context ? ": " : "", p->problem ? p->problem : "not YAML");
}

/* The next event, in r->event. */
static bool advance(reader *r, bd_error *err)
{
    if (r->held)
        yaml_event_delete(&r->event);
    r->held = false;
    if (!yaml_parser_parse(&r->parser, &r->event))
        return syntax_error(r, err);
    r->held = true;
    return true;
}

static bool unexpected(const reader *r, const char *wanted, bd_error *err)
{
    const char *found = "something else";
    switch (r->event.type) {
    case YAML_ALIAS_EVENT:
        found = "an alias";
        break;
    case YAML_SCALAR_EVENT:
        found = "a value";
        break;
    case YAML_SEQUENCE_START_EVENT:
        found = "a list";
        break;
    case YAML_MAPPING_START_EVENT:
        found = "a mapping";
        break;
    case YAML_DOCUMENT_START_EVENT:
        found = "a second document";
        break;
    default:
        break;
    }
    return bd_fail(err, "%s:%zu: found %s, %s expected", r->what, line_of(r), found, wanted);
}

/* The scalar of the current event: no tag, no NUL inside. */
static const char *scalar_text(const reader *r, bd_error *err)
{
    const char *text = (const char *)r->event.data.scalar.value;
    if (r->event.data.scalar.tag) {
        bd_fail(err, "%s:%zu: found a tag, a plain value expected", r->what, line_of(r));
        return NULL;
    }
    if (strlen(text) != r->event.data.scalar.length) {
        bd_fail(err, "%s:%zu: found a text with a NUL inside", r->what, line_of(r));
        return NULL;
    }
    return text;
}

static bool is_null_scalar(const reader *r)
{
    const char *text = (const char *)r->event.data.scalar.value;
    return r->event.data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (!text[0] || !strcmp(text, "null") || !strcmp(text, "~"));
}

/* A mapping key, copied because the event goes away. */
static bool read_key(const reader *r, const char *wanted, char key[MOST_KEY], bd_error *err)
{
    if (r->event.type != YAML_SCALAR_EVENT)
        return unexpected(r, wanted, err);
    const char *text = scalar_text(r, err);
    if (text)
        snprintf(key, MOST_KEY, "%s", text);
    return text != NULL;
}

// --- values ------------------------------------------------------------------------------------

typedef struct {
    bd_recipe_scalar *items;
    int64_t count, room;
    bool list;
} scalars;

static void free_scalars(scalars *value)
{
    for (int64_t i = 0; i < value->count; i++)
        free((char *)value->items[i].text);
    free(value->items);
}

static bool add_scalar(const reader *r, scalars *value, bd_error *err)
{
    const char *text = scalar_text(r, err);
    if (!text)
        return false;
    if (value->count == value->room) {
        int64_t room = value->room ? 2 * value->room : 8;
        bd_recipe_scalar *larger = realloc(value->items, (size_t)room * sizeof *larger);
        if (!larger)
            return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", r->what);
        value->items = larger;
        value->room = room;
    }
    bd_recipe_scalar *item = &value->items[value->count];
    item->text = strdup(text);
    item->quoted = r->event.data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
    if (!item->text)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", r->what);
    value->count++;
    return true;
}

/* The value that starts at the current event: a scalar, or a list of scalars. */
static bool read_value(reader *r, scalars *value, bd_error *err)
{
    if (r->event.type == YAML_SCALAR_EVENT)
        return add_scalar(r, value, err);
    if (r->event.type != YAML_SEQUENCE_START_EVENT)
        return unexpected(r, "a value or a list of values", err);
    value->list = true;
    for (;;) {
        if (!advance(r, err))
            return false;
        if (r->event.type == YAML_SEQUENCE_END_EVENT)
            return true;
        if (r->event.type != YAML_SCALAR_EVENT)
            return unexpected(r, "a value", err);
        if (!add_scalar(r, value, err))
            return false;
    }
}

static bool assign(reader *r, const char *section, const char *key, size_t line,
                   const scalars *value, bd_error *err)
{
    char where[WHERE];
    place_text(r, line, where);
    int row = bd_recipe_lookup(section, key, value->items, value->count, value->list, where, err);
    if (row < 0)
        return row == BD_RECIPE_SKIP;
    if (r->first_line[row])
        return bd_fail(err, "%s: %s.%s is given twice, first in line %d", where, section, key,
                       r->first_line[row]);
    r->first_line[row] = (int)line;
    return bd_recipe_store(r->recipe, row, value->items, value->count, value->list,
                           (bd_recipe_place){where, where}, err);
}

// --- structure ---------------------------------------------------------------------------------

static bool read_section(reader *r, const char *section, bd_error *err)
{
    if (r->event.type == YAML_SCALAR_EVENT && is_null_scalar(r))
        return true; // "train:" with nothing below
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return unexpected(r, "the options of the section", err);
    for (;;) {
        char key[MOST_KEY];
        if (!advance(r, err))
            return false;
        if (r->event.type == YAML_MAPPING_END_EVENT)
            return true;
        if (!read_key(r, "an option's name", key, err))
            return false;
        size_t line = line_of(r);
        scalars value = {0};
        bool ok = advance(r, err) && read_value(r, &value, err) &&
                  assign(r, section, key, line, &value, err);
        free_scalars(&value);
        if (!ok)
            return false;
    }
}

static bool read_sections(reader *r, bd_error *err)
{
    if (r->event.type == YAML_SCALAR_EVENT && is_null_scalar(r))
        return true;
    if (r->event.type != YAML_MAPPING_START_EVENT)
        return unexpected(r, "sections with options", err);
    for (;;) {
        char section[MOST_KEY], where[WHERE];
        if (!advance(r, err))
            return false;
        if (r->event.type == YAML_MAPPING_END_EVENT)
            return true;
        if (!read_key(r, "a section's name", section, err))
            return false;
        place_text(r, line_of(r), where);
        if (!bd_recipe_check_section(section, where, err) || !advance(r, err) ||
            !read_section(r, section, err))
            return false;
    }
}

static bool read_stream(reader *r, bd_error *err)
{
    if (!advance(r, err) || !advance(r, err)) // start of stream, and of document
        return false;
    if (r->event.type == YAML_STREAM_END_EVENT)
        return true; // nothing but comments
    if (!advance(r, err) || !read_sections(r, err) || !advance(r, err) || !advance(r, err))
        return false;
    return r->event.type == YAML_STREAM_END_EVENT || unexpected(r, "the end of the file", err);
}

bool bd_recipe_read_yaml(bd_recipe *recipe, const char *text, size_t size, const char *what,
                         bd_error *err)
{
    reader r = {.recipe = recipe, .what = what};
    r.first_line = calloc((size_t)bd_recipe_table_size, sizeof *r.first_line);
    if (!r.first_line || !yaml_parser_initialize(&r.parser)) {
        free(r.first_line);
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", what);
    }
    yaml_parser_set_input_string(&r.parser, (const unsigned char *)text, size);
    yaml_parser_set_encoding(&r.parser, YAML_UTF8_ENCODING);
    bool ok = read_stream(&r, err);
    if (r.held)
        yaml_event_delete(&r.event);
    yaml_parser_delete(&r.parser);
    free(r.first_line);
    return ok;
}
