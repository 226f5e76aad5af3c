#include "format/recipe_value.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct bd_recipe {
    bd_recipe_value *values; // one a row of the table
};

bd_recipe *bd_recipe_create(void)
{
    bd_recipe *recipe = calloc(1, sizeof *recipe);
    if (recipe)
        recipe->values = calloc((size_t)bd_recipe_table_size, sizeof *recipe->values);
    if (recipe && !recipe->values) {
        free(recipe);
        return NULL;
    }
    return recipe;
}

const bd_recipe_value *bd_recipe_value_at(const bd_recipe *recipe, int row)
{
    return &recipe->values[row];
}

static void clear(bd_recipe_value *value)
{
    for (int64_t i = 0; value->texts && i < value->count; i++)
        free(value->texts[i]);
    free(value->texts);
    free(value->ints);
    free(value->numbers);
    free(value->origin);
    *value = (bd_recipe_value){0};
}

void bd_recipe_free(bd_recipe *recipe)
{
    if (!recipe)
        return;
    for (int row = 0; row < bd_recipe_table_size; row++)
        clear(&recipe->values[row]);
    free(recipe->values);
    free(recipe);
}

bool bd_recipe_is_list(bd_option_type type)
{
    return type == BD_OPTION_INTS || type == BD_OPTION_NUMBERS || type == BD_OPTION_TEXTS;
}

int bd_recipe_word_index(const char *words, const char *word)
{
    size_t length = strlen(word);
    for (int index = 0; words; index++) {
        size_t own = strcspn(words, "|");
        if (own == length && !memcmp(words, word, length))
            return index;
        words = words[own] ? words + own + 1 : NULL;
    }
    return -1;
}

// --- what is wanted, in words ------------------------------------------------------------------

static void describe_range(const bd_recipe_option *option, const char *what, char *out, size_t size)
{
    // More digits than any bound of the table has.
    if (option->above_low)
        snprintf(out, size, "%s above %.12g, at most %.12g", what, option->low, option->high);
    else
        snprintf(out, size, "%s from %.12g to %.12g", what, option->low, option->high);
}

static void describe_wanted(const bd_recipe_option *option, char *out, size_t size)
{
    switch (option->type) {
    case BD_OPTION_INT:
        describe_range(option, "an integer", out, size);
        break;
    case BD_OPTION_NUMBER:
        describe_range(option, "a number", out, size);
        break;
    case BD_OPTION_BOOL:
        snprintf(out, size, "true or false");
        break;
    case BD_OPTION_TEXT:
        snprintf(out, size, "a text");
        break;
    case BD_OPTION_WORD:
        snprintf(out, size, "one of ");
        for (const char *c = option->words; *c; c++) {
            size_t used = strlen(out);
            snprintf(out + used, size - used, *c == '|' ? ", " : "%c", *c);
        }
        break;
    case BD_OPTION_INTS:
        describe_range(option, "a list of integers", out, size);
        break;
    case BD_OPTION_NUMBERS:
        describe_range(option, "a list of numbers", out, size);
        break;
    case BD_OPTION_TEXTS:
        snprintf(out, size, "a list of texts");
        break;
    }
}

static bool mismatch(const bd_recipe_option *option, const char *found, const char *where,
                     bd_error *err)
{
    char wanted[256];
    describe_wanted(option, wanted, sizeof wanted);
    return bd_fail(err, "%s: %s.%s: found %s, %s expected", where, option->section, option->key,
                   found, wanted);
}

// --- one element -------------------------------------------------------------------------------

static bool in_range(const bd_recipe_option *option, double value)
{
    return isfinite(value) && value <= option->high &&
           (option->above_low ? value > option->low : value >= option->low);
}

static bool parse_int(const bd_recipe_option *option, const char *text, int64_t *out)
{
    // strtoll would also take leading blanks.
    if (!strchr("+-0123456789", text[0]))
        return false;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    *out = value;
    return !errno && end != text && !*end && in_range(option, (double)value);
}

static bool parse_number(const bd_recipe_option *option, const char *text, double *out)
{
    // Decimal only: strtod would also take blanks, hexadecimal, inf and nan.
    if (text[strspn(text, "+-.0123456789eE")])
        return false;
    char *end;
    *out = strtod(text, &end);
    return end != text && !*end && in_range(option, *out);
}

static bool parse_bool(const char *text, int64_t *out)
{
    *out = !strcmp(text, "true");
    return *out || !strcmp(text, "false");
}

static bool parse_element(const bd_recipe_option *option, const bd_recipe_scalar *item,
                          bd_recipe_value *value, int64_t i)
{
    bool text = option->type == BD_OPTION_TEXT || option->type == BD_OPTION_TEXTS ||
                option->type == BD_OPTION_WORD;
    if (item->quoted && !text)
        return false;
    switch (option->type) {
    case BD_OPTION_INT:
    case BD_OPTION_INTS:
        return parse_int(option, item->text, &value->ints[i]);
    case BD_OPTION_NUMBER:
    case BD_OPTION_NUMBERS:
        return parse_number(option, item->text, &value->numbers[i]);
    case BD_OPTION_BOOL:
        return parse_bool(item->text, &value->ints[i]);
    case BD_OPTION_WORD:
        if (bd_recipe_word_index(option->words, item->text) < 0)
            return false;
        break;
    case BD_OPTION_TEXT:
    case BD_OPTION_TEXTS:
        if (!item->text[0])
            return false;
        break;
    }
    value->texts[i] = strdup(item->text);
    return value->texts[i] != NULL;
}

// --- a whole value -----------------------------------------------------------------------------

static bool is_null(const bd_recipe_scalar *item)
{
    return !item->quoted &&
           (!item->text[0] || !strcmp(item->text, "null") || !strcmp(item->text, "~"));
}

static bool allocate(bd_recipe_value *value, int64_t count, const char *origin)
{
    size_t room = (size_t)(count ? count : 1);
    value->set = true;
    value->count = count;
    value->ints = calloc(room, sizeof *value->ints);
    value->numbers = calloc(room, sizeof *value->numbers);
    value->texts = calloc(room, sizeof *value->texts);
    value->origin = strdup(origin);
    return value->ints && value->numbers && value->texts && value->origin;
}

bool bd_recipe_store(bd_recipe *recipe, int row, const bd_recipe_scalar *items, int64_t count,
                     bool list, bd_recipe_place place, bd_error *err)
{
    const bd_recipe_option *option = &bd_recipe_table[row];
    bool unset = !list && is_null(&items[0]);
    if (unset && option->fallback)
        return mismatch(option, "null", place.where, err);
    if (list && !bd_recipe_is_list(option->type))
        return mismatch(option, "a list", place.where, err);
    bd_recipe_value value = {0};
    if (!allocate(&value, unset ? 0 : count, place.origin)) {
        clear(&value);
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", place.where);
    }
    value.set = !unset;
    for (int64_t i = 0; i < value.count; i++) {
        if (parse_element(option, &items[i], &value, i))
            continue;
        clear(&value);
        char found[128];
        snprintf(found, sizeof found, items[i].quoted ? "the text \"%.80s\"" : "\"%.80s\"",
                 items[i].text);
        return mismatch(option, found, place.where, err);
    }
    clear(&recipe->values[row]);
    recipe->values[row] = value;
    return true;
}

/* The elements of "a, b, c" or "[a, b, c]": `copy` is cut into pieces. */
static int64_t split_list(char *copy, bd_recipe_scalar *items)
{
    char *end = copy + strlen(copy);
    if (copy[0] == '[' && end[-1] == ']') {
        copy++;
        *--end = 0;
    }
    int64_t count = 0;
    if (!copy[strspn(copy, " ")])
        return 0;
    for (char *at = copy; at; count++) {
        char *comma = strchr(at, ',');
        char *last = comma ? comma : end;
        at += strspn(at, " ");
        while (last > at && last[-1] == ' ')
            last--;
        *last = 0;
        items[count] = (bd_recipe_scalar){at, false};
        at = comma ? comma + 1 : NULL;
    }
    return count;
}

bool bd_recipe_store_text(bd_recipe *recipe, int row, const char *text, bd_recipe_place place,
                          bd_error *err)
{
    bd_recipe_scalar scalar = {text, false};
    if (!bd_recipe_is_list(bd_recipe_table[row].type) || is_null(&scalar))
        return bd_recipe_store(recipe, row, &scalar, 1, false, place, err);
    char *copy = strdup(text);
    bd_recipe_scalar *items = calloc(strlen(text) + 1, sizeof *items);
    bool ok = copy && items;
    if (!ok)
        bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", place.where);
    ok = ok && bd_recipe_store(recipe, row, items, split_list(copy, items), true, place, err);
    free(copy);
    free(items);
    return ok;
}
