#include "fuzz.h"

#include <string.h>

#include "format/recipe.h"

/* An accepted recipe has a value or none for every option, and says where it came from. A text that
 * is no recipe may be an assignment; a refused one changes nothing. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bd_error err = {0};
    bd_recipe *recipe = bd_recipe_parse((const char *)data, size, "recipe.yaml", &err);
    fuzz_promise(recipe || err.message[0]);
    if (!recipe)
        recipe = bd_recipe_default();
    json_t *before = bd_recipe_to_json(recipe);
    fuzz_promise(before && json_object_size(before) > 0);
    char *assignment = calloc(size + 1, 1);
    if (size)
        memcpy(assignment, data, size);
    if (!bd_recipe_set(recipe, assignment, &err)) {
        json_t *after = bd_recipe_to_json(recipe);
        fuzz_promise(json_equal(before, after));
        json_decref(after);
    }
    free(assignment);
    json_decref(before);
    bd_recipe_free(recipe);
    return 0;
}
