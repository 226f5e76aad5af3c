#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "format/recipe_value.h"

/* Names of options: finding them, and what to suggest for one that does not exist. */

enum { MOST_NAME = 63 };

/* Insertions, deletions and replacements that turn a into b. */
static int edit_distance(const char *a, const char *b)
{
    size_t n = strlen(a), m = strlen(b);
    if (n > MOST_NAME || m > MOST_NAME)
        return INT_MAX;
    int row[MOST_NAME + 1];
    for (size_t j = 0; j <= m; j++)
        row[j] = (int)j;
    for (size_t i = 1; i <= n; i++) {
        int diagonal = row[0];
        row[0] = (int)i;
        for (size_t j = 1; j <= m; j++) {
            int change = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            int step = (row[j] < row[j - 1] ? row[j] : row[j - 1]) + 1;
            row[j] = change < step ? change : step;
        }
    }
    return row[m];
}

/* The name without the prefix that the frameworks put before it. */
static const char *without_prefix(const char *key)
{
    static const char *const prefixes[] = {"dflash_", "block_diffusion_", "distill_rollout_",
                                           "distill_"};
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++)
        if (!strncmp(key, prefixes[i], strlen(prefixes[i])))
            return key + strlen(prefixes[i]);
    return key;
}

/* Write "section.key" of the option that was probably meant; false: nothing is near. */
static bool suggest(const char *section, const char *key, char out[160])
{
    for (int i = 0; i < bd_recipe_synonym_count; i++)
        if (!strcmp(key, bd_recipe_synonyms[i].other))
            return snprintf(out, 160, "%s", bd_recipe_synonyms[i].ours) > 0;
    const char *plain = without_prefix(key);
    const bd_recipe_option *best = NULL;
    int nearest = INT_MAX;
    for (int row = 0; row < bd_recipe_table_size; row++) {
        const bd_recipe_option *option = &bd_recipe_table[row];
        int distance = edit_distance(plain, option->key);
        if (distance == INT_MAX)
            continue;
        // A name of the same section is nearer than one of another.
        distance = 2 * distance + (strcmp(section, option->section) != 0);
        if (distance < nearest) {
            nearest = distance;
            best = option;
        }
    }
    int allowed = 2 * (strlen(plain) < 6 ? 1 : (int)strlen(plain) / 3) + 1;
    return best && nearest <= allowed && snprintf(out, 160, "%s.%s", best->section, best->key) > 0;
}

bool bd_recipe_check_section(const char *section, const char *where, bd_error *err)
{
    char names[256] = "";
    const char *last = "";
    for (int row = 0; row < bd_recipe_table_size; row++) {
        const char *own = bd_recipe_table[row].section;
        if (!strcmp(own, section))
            return true;
        if (strcmp(own, last)) {
            size_t used = strlen(names);
            snprintf(names + used, sizeof names - used, used ? ", %s" : "%s", own);
        }
        last = own;
    }
    return bd_fail(err, "%s: unknown section \"%.60s\", one of %s expected", where, section, names);
}

static int lookup_foreign(const char *section, const char *key, const bd_recipe_scalar *items,
                          int64_t count, bool list, const char *where, bd_error *err)
{
    for (int i = 0; i < bd_recipe_foreign_size; i++) {
        const bd_recipe_foreign *foreign = &bd_recipe_foreign_table[i];
        if (strcmp(section, foreign->section) || strcmp(key, foreign->key))
            continue;
        if (!list && count == 1 &&
            (bd_recipe_word_index(foreign->off, items[0].text) >= 0 ||
             !strcmp(items[0].text, "null")))
            return BD_RECIPE_SKIP;
        bd_fail(err, "%s: %s.%s: found \"%.60s\", which bdlm does not have: %s", where, section,
                key, list || count != 1 ? "a list" : items[0].text, foreign->reason);
        return BD_RECIPE_UNKNOWN;
    }
    return 0;
}

int bd_recipe_lookup(const char *section, const char *key, const bd_recipe_scalar *items,
                     int64_t count, bool list, const char *where, bd_error *err)
{
    if (!bd_recipe_check_section(section, where, err))
        return BD_RECIPE_UNKNOWN;
    for (int row = 0; row < bd_recipe_table_size; row++)
        if (!strcmp(section, bd_recipe_table[row].section) &&
            !strcmp(key, bd_recipe_table[row].key))
            return row;
    int foreign = lookup_foreign(section, key, items, count, list, where, err);
    if (foreign < 0)
        return foreign;
    char near[160];
    if (suggest(section, key, near))
        bd_fail(err, "%s: unknown option %s.%.60s; did you mean %s?", where, section, key, near);
    else
        bd_fail(err, "%s: unknown option %s.%.60s", where, section, key);
    return BD_RECIPE_UNKNOWN;
}
