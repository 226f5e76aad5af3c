#include "format/recipe.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "format/recipe_value.h"

static const size_t most_bytes = (size_t)1 << 20;

int bd_recipe_option_count(void)
{
    return bd_recipe_table_size;
}

const bd_recipe_option *bd_recipe_option_at(int index)
{
    assert(index >= 0 && index < bd_recipe_table_size);
    return &bd_recipe_table[index];
}

// --- making and reading ------------------------------------------------------------------------

bd_recipe *bd_recipe_default(void)
{
    bd_recipe *recipe = bd_recipe_create();
    for (int row = 0; recipe && row < bd_recipe_table_size; row++) {
        const bd_recipe_option *option = &bd_recipe_table[row];
        bd_recipe_place place = {"the table of options", "default"};
        bd_error err = {0};
        if (option->fallback && !bd_recipe_store_text(recipe, row, option->fallback, place, &err)) {
            assert(err.kind == BD_ERROR_SYSTEM && "a default outside of its own range");
            bd_recipe_free(recipe);
            return NULL;
        }
    }
    return recipe;
}

bd_recipe *bd_recipe_parse(const char *text, size_t size, const char *what, bd_error *err)
{
    bd_recipe *recipe = bd_recipe_default();
    if (!recipe)
        bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", what);
    if (recipe && !bd_recipe_read_yaml(recipe, text, size, what, err)) {
        bd_recipe_free(recipe);
        return NULL;
    }
    return recipe;
}

bd_recipe *bd_recipe_load(const char *path, bd_error *err)
{
    size_t size;
    char *text = bd_file_read_text(path, most_bytes, &size, err);
    if (!text)
        return NULL;
    bd_recipe *recipe = bd_recipe_parse(text, size, path, err);
    free(text);
    return recipe;
}

// --- the command line --------------------------------------------------------------------------

static bool split_name(const char *name, char section[64], char key[64], bd_error *err)
{
    const char *dot = strchr(name, '.');
    if (!dot || dot == name || !dot[1] || dot - name >= 64 || strlen(dot + 1) >= 64)
        return bd_fail_as(err, BD_ERROR_USAGE, "option \"%.100s\": section.key expected", name);
    memcpy(section, name, (size_t)(dot - name));
    section[dot - name] = 0;
    strcpy(key, dot + 1);
    return true;
}

bool bd_recipe_assign(bd_recipe *recipe, const char *name, const char *value, const char *origin,
                      bd_error *err)
{
    char section[64], key[64];
    if (!split_name(name, section, key, err))
        return false;
    bd_recipe_scalar item = {value, false};
    int row = bd_recipe_lookup(section, key, &item, 1, false, origin, err);
    bool ok = row == BD_RECIPE_SKIP ||
              (row >= 0 &&
               bd_recipe_store_text(recipe, row, value, (bd_recipe_place){origin, origin}, err));
    if (!ok && err && err->kind == BD_ERROR_VALUE)
        err->kind = BD_ERROR_USAGE;
    return ok;
}

bool bd_recipe_set(bd_recipe *recipe, const char *assignment, bd_error *err)
{
    const char *equals = strchr(assignment, '=');
    char name[128];
    if (!equals || equals - assignment >= (ptrdiff_t)sizeof name)
        return bd_fail_as(err, BD_ERROR_USAGE, "setting \"%.100s\": section.key=value expected",
                          assignment);
    memcpy(name, assignment, (size_t)(equals - assignment));
    name[equals - assignment] = 0;
    return bd_recipe_assign(recipe, name, equals + 1, "command line", err);
}

// --- values ------------------------------------------------------------------------------------

static int row_of(const char *name)
{
    const char *dot = strchr(name, '.');
    for (int row = 0; dot && row < bd_recipe_table_size; row++) {
        const bd_recipe_option *option = &bd_recipe_table[row];
        size_t length = strlen(option->section);
        if (length == (size_t)(dot - name) && !memcmp(name, option->section, length) &&
            !strcmp(dot + 1, option->key))
            return row;
    }
    assert(0 && "an option name that is not in the table");
    return -1;
}

static const bd_recipe_value *value_of(const bd_recipe *recipe, const char *name,
                                       bd_option_type type)
{
    int row = row_of(name);
    assert(bd_recipe_table[row].type == type && "an option read as another type");
    (void)type;
    return bd_recipe_value_at(recipe, row);
}

bool bd_recipe_has(const bd_recipe *recipe, const char *name)
{
    return bd_recipe_value_at(recipe, row_of(name))->set;
}

bool bd_recipe_given(const bd_recipe *recipe, const char *name)
{
    return strcmp(bd_recipe_origin(recipe, name), "default") != 0;
}

bool bd_recipe_require(const bd_recipe *recipe, const char *name, const char *reason, bd_error *err)
{
    if (bd_recipe_has(recipe, name))
        return true;
    const bd_recipe_option *option = &bd_recipe_table[row_of(name)];
    return bd_fail(err, "option %s is not set and has no default; it is needed %s (%s)", name,
                   reason, option->help);
}

int64_t bd_recipe_int(const bd_recipe *recipe, const char *name)
{
    const bd_recipe_value *value = value_of(recipe, name, BD_OPTION_INT);
    assert(value->set && "an option without a value");
    return value->ints[0];
}

double bd_recipe_number(const bd_recipe *recipe, const char *name)
{
    const bd_recipe_value *value = value_of(recipe, name, BD_OPTION_NUMBER);
    assert(value->set && "an option without a value");
    return value->numbers[0];
}

bool bd_recipe_bool(const bd_recipe *recipe, const char *name)
{
    const bd_recipe_value *value = value_of(recipe, name, BD_OPTION_BOOL);
    assert(value->set && "an option without a value");
    return value->ints[0] != 0;
}

const char *bd_recipe_text(const bd_recipe *recipe, const char *name)
{
    const bd_recipe_value *value = value_of(recipe, name, BD_OPTION_TEXT);
    return value->set ? value->texts[0] : NULL;
}

const char *bd_recipe_word(const bd_recipe *recipe, const char *name)
{
    const bd_recipe_value *value = value_of(recipe, name, BD_OPTION_WORD);
    return value->set ? value->texts[0] : NULL;
}

int bd_recipe_choice(const bd_recipe *recipe, const char *name)
{
    const char *word = bd_recipe_word(recipe, name);
    assert(word && "an option without a value");
    return bd_recipe_word_index(bd_recipe_table[row_of(name)].words, word);
}

bool bd_recipe_is(const bd_recipe *recipe, const char *name, const char *word)
{
    const char *chosen = bd_recipe_word(recipe, name);
    assert(bd_recipe_word_index(bd_recipe_table[row_of(name)].words, word) >= 0 &&
           "a word the option cannot have");
    return chosen && !strcmp(chosen, word);
}

const int64_t *bd_recipe_ints(const bd_recipe *recipe, const char *name, int64_t *count)
{
    const bd_recipe_value *value = value_of(recipe, name, BD_OPTION_INTS);
    *count = value->count;
    return value->ints;
}

const double *bd_recipe_numbers(const bd_recipe *recipe, const char *name, int64_t *count)
{
    const bd_recipe_value *value = value_of(recipe, name, BD_OPTION_NUMBERS);
    *count = value->count;
    return value->numbers;
}

const char *const *bd_recipe_texts(const bd_recipe *recipe, const char *name, int64_t *count)
{
    const bd_recipe_value *value = value_of(recipe, name, BD_OPTION_TEXTS);
    *count = value->count;
    return (const char *const *)value->texts;
}

const char *bd_recipe_origin(const bd_recipe *recipe, const char *name)
{
    const bd_recipe_value *value = bd_recipe_value_at(recipe, row_of(name));
    return value->origin ? value->origin : "default";
}

// --- for run.json ------------------------------------------------------------------------------

static json_t *element_to_json(const bd_recipe_value *value, bd_option_type type, int64_t i)
{
    switch (type) {
    case BD_OPTION_INT:
    case BD_OPTION_INTS:
        return json_integer(value->ints[i]);
    case BD_OPTION_NUMBER:
    case BD_OPTION_NUMBERS:
        return json_real(value->numbers[i]);
    case BD_OPTION_BOOL:
        return json_boolean(value->ints[i] != 0);
    default:
        return json_string(value->texts[i]);
    }
}

static json_t *value_to_json(const bd_recipe_value *value, bd_option_type type)
{
    if (!value->set)
        return json_null();
    if (!bd_recipe_is_list(type))
        return element_to_json(value, type, 0);
    json_t *list = json_array();
    for (int64_t i = 0; i < value->count; i++)
        json_array_append_new(list, element_to_json(value, type, i));
    return list;
}

json_t *bd_recipe_to_json(const bd_recipe *recipe)
{
    json_t *root = json_object();
    for (int row = 0; row < bd_recipe_table_size; row++) {
        const bd_recipe_option *option = &bd_recipe_table[row];
        const bd_recipe_value *value = bd_recipe_value_at(recipe, row);
        json_t *section = json_object_get(root, option->section);
        if (!section) {
            section = json_object();
            json_object_set_new(root, option->section, section);
        }
        json_object_set_new(section, option->key,
                            json_pack("{s:o, s:s}", "value", value_to_json(value, option->type),
                                      "from", value->origin ? value->origin : "default"));
    }
    return root;
}
