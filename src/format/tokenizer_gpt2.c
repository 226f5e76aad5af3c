/* GPT-2's two files, vocabulary as JSON and merges as lines, told as one tokenizer.json. */
#include "format/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

#include "format/json.h"

json_t *bd_added_token_json(int32_t id, const char *text, size_t size, bool special)
{
    return json_pack("{s:i, s:s%, s:b, s:b, s:b, s:b, s:b}", "id", (int)id, "content", text, size,
                     "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized", 0, "special",
                     (int)special);
}

static json_t *byte_level(bool use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 0, "use_regex", (int)use_regex);
}

json_t *bd_tokenizer_json_frame(const char *pattern)
{
    json_t *normalizer = pattern ? json_pack("{s:s}", "type", "NFC") : json_null();
    json_t *splitter = byte_level(!pattern);
    if (pattern)
        splitter = json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence",
                             "pretokenizers", "type", "Split", "pattern", "Regex", pattern,
                             "behavior", "Isolated", "invert", 0, splitter);
    return json_pack("{s:s, s:n, s:n, s:[], s:o, s:o, s:o, s:o}", "version", "1.0", "truncation",
                     "padding", "added_tokens", "normalizer", normalizer, "pre_tokenizer", splitter,
                     "post_processor", byte_level(!pattern), "decoder", byte_level(!pattern));
}

// Lines after the first ("#version: ...") are "left right", in the order of their rank.
static json_t *read_merges(char *text, const char *path, bd_error *err)
{
    json_t *merges = json_array();
    char *rest = text;
    for (int line = 1; merges && rest && *rest; line++) {
        char *now = strsep(&rest, "\n");
        size_t size = strlen(now);
        if (size && now[size - 1] == '\r')
            now[size - 1] = 0;
        if (!*now || (line == 1 && *now == '#'))
            continue;
        if (!strchr(now, ' ') || json_array_append_new(merges, json_string(now)) != 0) {
            bd_fail(err, "%s:%d: \"%.80s\" is not a pair of tokens", path, line, now);
            json_decref(merges);
            return NULL;
        }
    }
    return merges;
}

// <|endoftext|> is GPT-2's only added token; relatives without it have none.
static bool add_end_of_text(json_t *root, json_t *vocabulary)
{
    static const char end[] = "<|endoftext|>";
    json_t *id = json_object_get(vocabulary, end);
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) > INT32_MAX)
        return true; // a wrong id is refused with the rest of the vocabulary
    return json_array_append_new(json_object_get(root, "added_tokens"),
                                 bd_added_token_json((int32_t)json_integer_value(id), end,
                                                     sizeof end - 1, true)) == 0;
}

json_t *bd_gpt2_to_json(const char *vocabulary_path, const char *merges_path,
                        char identity[BD_SHA256_TEXT], bd_error *err)
{
    enum { MOST = 1 << 28 };
    size_t vocabulary_size, merges_size;
    char *vocabulary_text = bd_file_read_text(vocabulary_path, MOST, &vocabulary_size, err);
    char *merges_text =
        vocabulary_text ? bd_file_read_text(merges_path, MOST, &merges_size, err) : NULL;
    json_t *root = NULL, *vocabulary = NULL, *merges = NULL;
    if (merges_text) {
        bd_sha256 *hash = bd_sha256_begin();
        bd_sha256_add(hash, vocabulary_text, vocabulary_size);
        bd_sha256_add(hash, merges_text, merges_size);
        bd_sha256_end(hash, identity);
        vocabulary = bd_json_parse(vocabulary_text, vocabulary_size, vocabulary_path, err);
        merges = vocabulary ? read_merges(merges_text, merges_path, err) : NULL;
    }
    if (merges && (root = bd_tokenizer_json_frame(NULL))) {
        json_t *model =
            json_pack("{s:s, s:O, s:O}", "type", "BPE", "vocab", vocabulary, "merges", merges);
        if (json_object_set_new(root, "model", model) != 0 || !add_end_of_text(root, vocabulary)) {
            json_decref(root);
            root = NULL;
            bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", vocabulary_path);
        }
    }
    json_decref(vocabulary);
    json_decref(merges);
    free(vocabulary_text);
    free(merges_text);
    return root;
}
