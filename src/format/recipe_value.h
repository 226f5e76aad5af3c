/* recipe_value.h - what the files of the recipe share: the table, and turning text into values. */
#ifndef BD_FORMAT_RECIPE_VALUE_H
#define BD_FORMAT_RECIPE_VALUE_H

#include "format/recipe.h"

extern const bd_recipe_option bd_recipe_table[];
extern const int bd_recipe_table_size;

/* An option of another program that has no meaning here: accepted when it is off, else refused. */
typedef struct {
    const char *section, *key;
    const char *off; /* the accepted spellings: "false|0" */
    const char *reason;
} bd_recipe_foreign;
extern const bd_recipe_foreign bd_recipe_foreign_table[];
extern const int bd_recipe_foreign_size;

/* Names used elsewhere, for suggestions only. */
typedef struct {
    const char *other, *ours;
} bd_recipe_synonym;
extern const bd_recipe_synonym bd_recipe_synonyms[];
extern const int bd_recipe_synonym_count;

/* One value: a list has count elements, anything else one. Booleans are in ints, words in texts. */
typedef struct {
    bool set;
    int64_t count;
    int64_t *ints;
    double *numbers;
    char **texts;
    char *origin; /* NULL: default */
} bd_recipe_value;

bd_recipe *bd_recipe_create(void); /* nothing set */
const bd_recipe_value *bd_recipe_value_at(const bd_recipe *recipe, int row);
bool bd_recipe_is_list(bd_option_type type);

/* One scalar as written. Quoted ones are text and nothing else. */
typedef struct {
    const char *text;
    bool quoted;
} bd_recipe_scalar;

/* Errors begin with `where`, and the recipe remembers `origin`. */
typedef struct {
    const char *where, *origin;
} bd_recipe_place;

/* The row of section.key; BD_RECIPE_SKIP for an option of another program that is off;
 * BD_RECIPE_UNKNOWN after an error that suggests the nearest name. The value is only looked at for
 * such options. */
enum { BD_RECIPE_UNKNOWN = -1, BD_RECIPE_SKIP = -2 };
int bd_recipe_lookup(const char *section, const char *key, const bd_recipe_scalar *items,
                     int64_t count, bool list, const char *where, bd_error *err);

/* Is there such a section? If not, an error that lists them. */
bool bd_recipe_check_section(const char *section, const char *where, bd_error *err);

/* Give a row its value, after checking type and range; nothing changes on an error. */
bool bd_recipe_store(bd_recipe *recipe, int row, const bd_recipe_scalar *items, int64_t count,
                     bool list, bd_recipe_place place, bd_error *err);

/* The same from one text: a scalar, "1,9,17" or "[1, 9, 17]". */
bool bd_recipe_store_text(bd_recipe *recipe, int row, const char *text, bd_recipe_place place,
                          bd_error *err);

/* Assign everything a YAML text says. */
bool bd_recipe_read_yaml(bd_recipe *recipe, const char *text, size_t size, const char *what,
                         bd_error *err);

/* The place of `word` in "a|b|c", or -1. */
int bd_recipe_word_index(const char *words, const char *word);

#endif
