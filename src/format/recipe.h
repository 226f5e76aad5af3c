/* recipe.h - the settings of a run: defaults, a YAML file over them, the command line over both.
 *
 * Every option is one row of one table (recipe_schema.c): its section and key, its type, its
 * default, its range and a line of help. A recipe always holds a value, or "unset", for every row,
 * and knows where each came from. A misspelled name in a file is an error that suggests the nearest
 * one; a misspelled name in the program is an assertion.
 *
 *     bd_recipe *r = bd_recipe_load("pretrain.yaml", &err);
 *     if (!r || !bd_recipe_set(r, "train.lr=3e-4", &err)) ...
 *     double lr = bd_recipe_number(r, "train.lr");
 *     if (bd_recipe_is(r, "objective.kind", "block_diffusion")) ...
 *     bd_recipe_free(r);
 */
#ifndef BD_FORMAT_RECIPE_H
#define BD_FORMAT_RECIPE_H

#include <jansson.h>

#include "base/error.h"

typedef enum {
    BD_OPTION_INT,
    BD_OPTION_NUMBER,
    BD_OPTION_BOOL,
    BD_OPTION_TEXT,
    BD_OPTION_WORD, /* one of a few words */
    BD_OPTION_INTS, /* lists */
    BD_OPTION_NUMBERS,
    BD_OPTION_TEXTS,
} bd_option_type;

/* One row of the table. */
typedef struct {
    const char *section, *key;
    bd_option_type type;
    const char *fallback; /* the default, as a recipe would spell it; NULL: unset */
    double low, high;     /* allowed numbers, for lists of each element */
    bool above_low;       /* low itself is not allowed */
    const char *words;    /* BD_OPTION_WORD: "constant|linear|cosine" */
    const char *help;     /* one line */
} bd_recipe_option;

int bd_recipe_option_count(void);
const bd_recipe_option *bd_recipe_option_at(int index); /* in the order of the table */

typedef struct bd_recipe bd_recipe;

bd_recipe *bd_recipe_default(void);
bd_recipe *bd_recipe_load(const char *path, bd_error *err);
bd_recipe *bd_recipe_parse(const char *text, size_t size, const char *what, bd_error *err);
void bd_recipe_free(bd_recipe *recipe);

/* One assignment from the command line: "section.key=value". Lists are "1,9,17" or "[1, 9, 17]";
 * "null" unsets an option that has no default. On an error the recipe is as it was. */
bool bd_recipe_set(bd_recipe *recipe, const char *assignment, bd_error *err);

/* The same with name and value apart, and what to remember as the origin: "--lr". */
bool bd_recipe_assign(bd_recipe *recipe, const char *name, const char *value, const char *origin,
                      bd_error *err);

/* Is there a value? Options without a default may have none. */
bool bd_recipe_has(const bd_recipe *recipe, const char *name);

/* Has it been set, by a file or the command line, to whatever value? */
bool bd_recipe_given(const bd_recipe *recipe, const char *name);

/* An error that names the option when it has no value. `reason` says who needs it: "to train a
 * draft". */
bool bd_recipe_require(const bd_recipe *recipe, const char *name, const char *reason,
                       bd_error *err);

/* Values. The name, its type and that it has a value are the caller's duty; text and lists of an
 * option without value are NULL and empty. Pointers live until the option is set again. */
int64_t bd_recipe_int(const bd_recipe *recipe, const char *name);
double bd_recipe_number(const bd_recipe *recipe, const char *name);
bool bd_recipe_bool(const bd_recipe *recipe, const char *name);
const char *bd_recipe_text(const bd_recipe *recipe, const char *name);
const char *bd_recipe_word(const bd_recipe *recipe, const char *name);
int bd_recipe_choice(const bd_recipe *recipe,
                     const char *name); /* the word's place in the table, 0.. */
bool bd_recipe_is(const bd_recipe *recipe, const char *name, const char *word);
const int64_t *bd_recipe_ints(const bd_recipe *recipe, const char *name, int64_t *count);
const double *bd_recipe_numbers(const bd_recipe *recipe, const char *name, int64_t *count);
const char *const *bd_recipe_texts(const bd_recipe *recipe, const char *name, int64_t *count);

/* "default", "FILE:LINE", "command line", or what bd_recipe_assign was given. */
const char *bd_recipe_origin(const bd_recipe *recipe, const char *name);

/* {"train": {"lr": {"value": 0.0003, "from": "x.yaml:12"}, ...}, ...}, in the order of the table.
 */
json_t *bd_recipe_to_json(const bd_recipe *recipe);

#endif
