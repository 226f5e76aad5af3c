#include "format/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

#include "format/json.h"

// The type of a part, "" for null; NULL (and an error) when it is not an object with a type.
static const char *type_of(json_t *part, const char *where, const char *name, bd_error *err)
{
    if (!part || json_is_null(part))
        return "";
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type)
        bd_fail(err, "%s: \"%s\" has no \"type\"", where, name);
    return type;
}

static bool unknown_type(const char *where, const char *part, const char *type, const char *known,
                         bd_error *err)
{
    return bd_fail(err, "%s: %s type \"%.80s\" is not supported (supported: %s)", where, part, type,
                   known);
}

// An optional flag: absent or null is false.
static bool flag(json_t *object, const char *where, const char *field, bool *out, bd_error *err)
{
    *out = false;
    return !bd_json_has(object, field) || bd_json_bool(object, where, field, out, err);
}

// --- model ---------------------------------------------------------------------------------------

static bool refuse_option(json_t *model, const char *where, const char *field, bd_error *err)
{
    json_t *value = json_object_get(model, field);
    bool off = !value || json_is_null(value) || json_is_false(value) ||
               (json_is_string(value) && json_string_length(value) == 0) ||
               (json_is_number(value) && json_number_value(value) == 0);
    return off || bd_fail(err, "%s: model \"%s\" is set; bdlm reads byte-level BPE without it",
                          where, field);
}

typedef struct {
    bd_tokenizer *t;
    int64_t most_ids;
    bd_text bytes;
} vocabulary_reader;

static bool put_token(void *context, const char *spelled, size_t size, int64_t id, bd_error *err)
{
    vocabulary_reader *r = context;
    bd_vocabulary *v = &r->t->vocabulary;
    if (id >= r->most_ids)
        return bd_fail(err, "%s: vocabulary entry \"%.80s\" has id %lld, 0 to %lld expected",
                       r->t->name, spelled, (long long)id, (long long)r->most_ids - 1);
    if (id < v->size && v->tokens[id].flags)
        return bd_fail(err, "%s: id %lld is given to two tokens, one of them \"%.80s\"", r->t->name,
                       (long long)id, spelled);
    bd_text_clear(&r->bytes);
    bool plain = bd_unspell(spelled, size, &r->bytes);
    if (!bd_text_check(&r->bytes, err))
        return false;
    if (bd_vocabulary_find(v, r->bytes.data, r->bytes.size, !plain) >= 0)
        return bd_fail(err, "%s: the vocabulary has \"%.80s\" twice", r->t->name, spelled);
    return bd_vocabulary_put(v, (int32_t)id, r->bytes.data, r->bytes.size,
                             (uint8_t)(BD_TOKEN_IN_MODEL | (plain ? 0 : BD_TOKEN_RAW)), err);
}

static bool put_merge(void *context, const char *text, size_t size, int64_t middle, bd_error *err)
{
    vocabulary_reader *r = context;
    bd_vocabulary *v = &r->t->vocabulary;
    size_t left = (size_t)middle, right = size - left;
    bd_text_clear(&r->bytes);
    bool left_plain = bd_unspell(text, left, &r->bytes);
    size_t half = r->bytes.size;
    bool right_plain = bd_unspell(text + left, right, &r->bytes);
    if (!bd_text_check(&r->bytes, err))
        return false;
    int32_t a = bd_vocabulary_find(v, r->bytes.data, half, !left_plain);
    int32_t b = bd_vocabulary_find(v, r->bytes.data + half, r->bytes.size - half, !right_plain);
    if (a < 0 || b < 0)
        return bd_fail(err, "%s: merge %lld: \"%.*s\" is not in the vocabulary", r->t->name,
                       (long long)v->merge_count, (int)(a < 0 ? left : right),
                       a < 0 ? text : text + left);
    // With a raw side the whole is raw, and is found by its spelling.
    bool plain = left_plain && right_plain;
    int32_t whole = plain ? bd_vocabulary_find(v, r->bytes.data, r->bytes.size, false)
                          : bd_vocabulary_find(v, text, size, true);
    if (whole < 0)
        return bd_fail(err, "%s: merge %lld: \"%.*s\" is not in the vocabulary", r->t->name,
                       (long long)v->merge_count, (int)size, text);
    return bd_vocabulary_merge(v, a, b, whole, err);
}

// Ids may have holes, but a small file must not ask for the memory of a large one.
static bool load_lists(bd_tokenizer *t, const bd_source_parts *parts, bd_error *err)
{
    int64_t most = 65536 + (int64_t)parts->vocabulary.size / 2;
    vocabulary_reader r = {.t = t, .most_ids = most < BD_MOST_TOKENS ? most : BD_MOST_TOKENS};
    bd_text_add_string(&r.bytes, "");
    bool ok = bd_vocabulary_start(&t->vocabulary, err) &&
              bd_source_vocabulary(parts, t->name, put_token, &r, err);
    if (ok && t->vocabulary.size == 0)
        ok = bd_fail(err, "%s: the vocabulary is empty", t->name);
    ok = ok && bd_source_merges(parts, t->name, put_merge, &r, err);
    bd_text_free(&r.bytes);
    return ok;
}

static bool load_model(bd_tokenizer *t, json_t *root, const bd_source_parts *parts, bd_error *err)
{
    static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                      "fuse_unk", "byte_fallback"};
    json_t *model = bd_json_object(root, t->name, "model", err);
    if (!model)
        return false;
    // Files older than the type field hold a BPE when they have merges.
    const char *type = json_string_value(json_object_get(model, "type"));
    if (type ? strcmp(type, "BPE") != 0 : !json_object_get(model, "merges"))
        return unknown_type(t->name, "model", type ? type : "(none)", "BPE", err);
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (!refuse_option(model, t->name, off[i], err))
            return false;
    if (!bd_json_object(model, t->name, "vocab", err) ||
        !bd_json_array(model, t->name, "merges", err))
        return false;
    t->rules = (bd_merge_rules){.vocabulary = &t->vocabulary, .unknown = -1};
    if (!parts->vocabulary.text)
        return bd_fail(err, "%s: \"model\" with \"vocab\" and \"merges\" is not where it should be",
                       t->name);
    if (!load_lists(t, parts, err) ||
        !flag(model, t->name, "ignore_merges", &t->rules.whole_words, err))
        return false;
    if (!bd_json_has(model, "unk_token"))
        return true;
    const char *unknown = bd_json_text(model, t->name, "unk_token", err);
    if (!unknown)
        return false;
    t->rules.unknown = bd_tokenizer_find_spelled(t, unknown, strlen(unknown));
    return t->rules.unknown >= 0 ||
           bd_fail(err, "%s: unk_token \"%.80s\" is not in the vocabulary", t->name, unknown);
}

// --- normalizer ----------------------------------------------------------------------------------

// Forms one after the other are one form: compatible if any is, composed if the last is.
static bool load_normalizer(bd_tokenizer *t, json_t *part, int depth, bd_error *err)
{
    static const char *const names[] = {"NFC", "NFD", "NFKC", "NFKD"};
    const char *type = type_of(part, t->name, "normalizer", err);
    if (!type)
        return false;
    if (!*type)
        return true;
    if (strcmp(type, "Sequence") == 0) {
        json_t *list = bd_json_array(part, t->name, "normalizers", err);
        if (!list || depth > 8)
            return list && bd_fail(err, "%s: normalizers nested more than 8 deep", t->name);
        for (size_t i = 0; i < json_array_size(list); i++)
            if (!load_normalizer(t, json_array_get(list, i), depth + 1, err))
                return false;
        return true;
    }
    for (int form = 0; form < 4; form++)
        if (strcmp(type, names[form]) == 0) {
            bool compatible = t->normalizes && (t->form == BD_NFKC || t->form == BD_NFKD);
            t->normalizes = true;
            t->form = (bd_normal_form)form;
            if (compatible && t->form == BD_NFC)
                t->form = BD_NFKC;
            if (compatible && t->form == BD_NFD)
                t->form = BD_NFKD;
            return true;
        }
    return unknown_type(t->name, "normalizer", type, "NFC, NFD, NFKC, NFKD, Sequence", err);
}

// --- pre-tokenizer -------------------------------------------------------------------------------

static bool load_behavior(bd_tokenizer *t, json_t *part, bd_split_behavior *out, bd_error *err)
{
    static const char *const names[] = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                        "MergedWithNext"};
    const char *name = bd_json_text(part, t->name, "behavior", err);
    for (int i = 0; name && i < 5; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (bd_split_behavior)i;
            return true;
        }
    if (name)
        unknown_type(t->name, "split behavior", name,
                     "Isolated, Removed, Contiguous, MergedWithPrevious, MergedWithNext", err);
    return false;
}

static bool load_split(bd_tokenizer *t, json_t *part, bd_stage *stage, bd_error *err)
{
    json_t *pattern = bd_json_object(part, t->name, "pattern", err);
    if (!pattern || !load_behavior(t, part, &stage->behavior, err) ||
        !flag(part, t->name, "invert", &stage->invert, err))
        return false;
    const char *regex = json_string_value(json_object_get(pattern, "Regex"));
    const char *string = json_string_value(json_object_get(pattern, "String"));
    if (string)
        return bd_stage_literal(stage, string, t->name, err);
    if (!regex)
        return bd_fail(err, "%s: a Split pattern is neither a Regex nor a String", t->name);
    if (t->pattern_count++ == 0 && !(t->pattern = strdup(regex)))
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a pattern");
    return bd_stage_compile(stage, regex, t->name, err);
}

static bool load_byte_level(bd_tokenizer *t, json_t *part, bd_stage *stage, bd_error *err)
{
    bool use_regex = true; // files older than the field mean true
    if (!flag(part, t->name, "add_prefix_space", &stage->prefix_space, err) ||
        !bd_json_bool_if(part, t->name, "use_regex", &use_regex, err))
        return false;
    if (!use_regex)
        return true;
    if (t->pattern_count++ == 0 && !(t->pattern = strdup(bd_pattern_gpt2)))
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a pattern");
    return bd_stage_compile(stage, bd_pattern_gpt2, t->name, err);
}

static bool load_simple_split(bd_tokenizer *t, json_t *part, const char *type, bd_stage *stage,
                              bool *known, bd_error *err)
{
    *known = true;
    if (strcmp(type, "Digits") == 0) {
        bool individual;
        if (!flag(part, t->name, "individual_digits", &individual, err))
            return false;
        stage->behavior = individual ? BD_SPLIT_ISOLATED : BD_SPLIT_CONTIGUOUS;
        return bd_stage_compile(stage, "\\p{N}", t->name, err);
    }
    if (strcmp(type, "Punctuation") == 0)
        return load_behavior(t, part, &stage->behavior, err) &&
               bd_stage_compile(stage, "[\\p{P}$+<=>^`|~]", t->name, err);
    if (strcmp(type, "WhitespaceSplit") == 0) {
        stage->behavior = BD_SPLIT_REMOVED;
        return bd_stage_compile(stage, "\\s", t->name, err);
    }
    if (strcmp(type, "Whitespace") == 0) {
        stage->behavior = BD_SPLIT_REMOVED;
        stage->invert = true;
        return bd_stage_words(stage, t->name, err);
    }
    *known = false;
    return true;
}

static bool load_pre_tokenizer(bd_tokenizer *t, json_t *part, int depth, bool *byte_level,
                               bd_error *err)
{
    const char *type = type_of(part, t->name, "pre_tokenizer", err);
    if (!type)
        return false;
    if (strcmp(type, "Sequence") == 0) {
        json_t *list = bd_json_array(part, t->name, "pretokenizers", err);
        if (!list || depth > 8)
            return list && bd_fail(err, "%s: pre-tokenizers nested more than 8 deep", t->name);
        for (size_t i = 0; i < json_array_size(list); i++)
            if (!load_pre_tokenizer(t, json_array_get(list, i), depth + 1, byte_level, err))
                return false;
        return true;
    }
    if (!*type)
        return true;
    if (*byte_level)
        return bd_fail(err, "%s: a pre-tokenizer (%.80s) after ByteLevel is not supported", t->name,
                       type);
    if (t->stage_count == BD_MOST_STAGES)
        return bd_fail(err, "%s: more than %d pre-tokenizers", t->name, BD_MOST_STAGES);
    bd_stage *stage = &t->stages[t->stage_count++];
    if (strcmp(type, "ByteLevel") == 0) {
        *byte_level = true;
        return load_byte_level(t, part, stage, err);
    }
    if (strcmp(type, "Split") == 0)
        return load_split(t, part, stage, err);
    bool known;
    if (!load_simple_split(t, part, type, stage, &known, err))
        return false;
    return known ||
           unknown_type(t->name, "pre-tokenizer", type,
                        "ByteLevel, Split, Digits, Punctuation, Whitespace, WhitespaceSplit, "
                        "Sequence",
                        err);
}

// --- decoder and post-processor ------------------------------------------------------------------

static bool load_decoder(bd_tokenizer *t, json_t *part, bool *byte_level, int depth, bd_error *err)
{
    const char *type = type_of(part, t->name, "decoder", err);
    if (!type)
        return false;
    if (strcmp(type, "Sequence") == 0 && depth < 8) {
        json_t *list = bd_json_array(part, t->name, "decoders", err);
        for (size_t i = 0; list && i < json_array_size(list); i++)
            if (!load_decoder(t, json_array_get(list, i), byte_level, depth + 1, err))
                return false;
        return list != NULL;
    }
    if (strcmp(type, "ByteLevel") == 0)
        *byte_level = true;
    else if (strcmp(type, "Fuse") != 0) // joins what is joined anyway
        return unknown_type(t->name, "decoder", *type ? type : "null", "ByteLevel, Fuse, Sequence",
                            err);
    return true;
}

static bool add_automatic(bd_tokenizer *t, json_t *special, json_t *item, bool after, bd_error *err)
{
    const char *name = json_string_value(json_object_get(item, "id"));
    json_t *ids = name ? json_object_get(json_object_get(special, name), "ids") : NULL;
    if (!json_is_array(ids))
        return bd_fail(err, "%s: TemplateProcessing names \"%.80s\" without giving its ids",
                       t->name, name ? name : "(nothing)");
    int *count = after ? &t->after_count : &t->before_count;
    for (size_t i = 0; i < json_array_size(ids); i++) {
        json_int_t id = json_integer_value(json_array_get(ids, i));
        if (!json_is_integer(json_array_get(ids, i)) || id < 0 || id >= BD_MOST_TOKENS ||
            bd_tokenizer_kind(t, (int32_t)id) == BD_TOKEN_NONE)
            return bd_fail(err, "%s: TemplateProcessing: \"%.80s\" is not the id of a token",
                           t->name, name);
        if (*count == BD_MOST_AUTOMATIC)
            return bd_fail(err, "%s: TemplateProcessing adds more than %d tokens", t->name,
                           BD_MOST_AUTOMATIC);
        (after ? t->after : t->before)[(*count)++] = (int32_t)id;
    }
    return true;
}

static bool load_post_processor(bd_tokenizer *t, json_t *part, int depth, bd_error *err)
{
    const char *type = type_of(part, t->name, "post_processor", err);
    if (!type)
        return false;
    if (!*type || strcmp(type, "ByteLevel") == 0) // trims offsets, changes no id
        return true;
    if (strcmp(type, "Sequence") == 0 && depth < 8) {
        json_t *list = bd_json_array(part, t->name, "processors", err);
        for (size_t i = 0; list && i < json_array_size(list); i++)
            if (!load_post_processor(t, json_array_get(list, i), depth + 1, err))
                return false;
        return list != NULL;
    }
    if (strcmp(type, "TemplateProcessing") != 0)
        return unknown_type(t->name, "post-processor", type,
                            "ByteLevel, TemplateProcessing, Sequence", err);
    json_t *single = bd_json_array(part, t->name, "single", err);
    json_t *special = json_object_get(part, "special_tokens");
    bool after = false;
    for (size_t i = 0; single && i < json_array_size(single); i++) {
        json_t *item = json_array_get(single, i), *token = json_object_get(item, "SpecialToken");
        if (json_object_get(item, "Sequence"))
            after = true;
        else if (!add_automatic(t, special, token, after, err))
            return false;
    }
    return single != NULL;
}

// --- added tokens --------------------------------------------------------------------------------

// A token that is looked for in normalized text is looked for as its own normal form.
static bool trie_put(bd_tokenizer *t, const bd_added_token *token, const char *text, size_t size,
                     bd_error *err)
{
    int32_t index = (int32_t)t->added_count;
    if (!token->normalized || !t->normalizes || bd_normal_already(t->form, text, size))
        return bd_trie_add(token->normalized ? &t->normal_trie : &t->plain_trie, text, size, index,
                           err);
    bd_text normal = {0};
    bool ok = bd_normalize(t->form, text, size, &normal, NULL, err) &&
              bd_trie_add(&t->normal_trie, normal.data, normal.size, index, err);
    bd_text_free(&normal);
    return ok;
}

int32_t bd_tokenizer_find_spelled(const bd_tokenizer *t, const char *text, size_t size)
{
    bd_text bytes = {0};
    bool plain = bd_unspell(text, size, &bytes);
    int32_t id =
        bytes.failed ? -2 : bd_vocabulary_find(&t->vocabulary, bytes.data, bytes.size, !plain);
    bd_text_free(&bytes);
    return id;
}

bool bd_tokenizer_put_added(bd_tokenizer *t, bd_added_token token, const char *text, size_t size,
                            bd_error *err)
{
    if (t->added_count == t->added_room) {
        int64_t room = t->added_room ? t->added_room * 2 : 64;
        bd_added_token *larger = realloc(t->added, (size_t)room * sizeof *larger);
        if (!larger)
            return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for added tokens");
        t->added = larger;
        t->added_room = room;
    }
    uint8_t flags = (uint8_t)(BD_TOKEN_IS_ADDED | (token.special ? BD_TOKEN_IS_SPECIAL : 0));
    if (!trie_put(t, &token, text, size, err))
        return false;
    if (token.id < t->vocabulary.size && t->vocabulary.tokens[token.id].flags & BD_TOKEN_IN_MODEL)
        t->vocabulary.tokens[token.id].flags |= flags;
    else if (!bd_vocabulary_put(&t->vocabulary, token.id, text, size, flags, err))
        return false;
    t->added[t->added_count++] = token;
    return true;
}

static bool load_added(bd_tokenizer *t, json_t *item, int64_t most, bd_error *err)
{
    char where[200];
    bd_added_token token = {0};
    int64_t id;
    const char *text = bd_json_text(item, t->name, "content", err);
    if (!text)
        return bd_error_wrap(err, "added_tokens");
    size_t size = strlen(text);
    snprintf(where, sizeof where, "%.100s: added token \"%.60s\"", t->name, text);
    if (!bd_json_int(item, where, "id", 0, most - 1, &id, err) ||
        !flag(item, where, "single_word", &token.single_word, err) ||
        !flag(item, where, "lstrip", &token.lstrip, err) ||
        !flag(item, where, "rstrip", &token.rstrip, err) ||
        !flag(item, where, "special", &token.special, err))
        return false;
    token.normalized = !token.special;
    if (!bd_json_bool_if(item, where, "normalized", &token.normalized, err))
        return false;
    if (size == 0)
        return true; // other libraries pass over it
    token.id = (int32_t)id;
    int32_t known = bd_tokenizer_find_spelled(t, text, size);
    if (known < -1)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for added tokens");
    if (known >= 0 && known != token.id)
        return bd_fail(err, "%s has id %d, in the vocabulary it has %d", where, token.id, known);
    size_t there_size;
    const char *there = bd_tokenizer_token(t, token.id, &there_size);
    if (there && bd_tokenizer_kind(t, token.id) != BD_TOKEN_NORMAL && there_size == size &&
        memcmp(there, text, size) == 0)
        return true; // listed twice
    if (there && known < 0)
        return bd_fail(err, "%s has id %d, which is already that of \"%.60s\"", where, token.id,
                       there);
    return bd_tokenizer_put_added(t, token, text, size, err);
}

static bool load_all(bd_tokenizer *t, json_t *root, const bd_source_parts *parts, bd_error *err)
{
    bool splits_bytes = false, joins_bytes = false;
    if (!json_is_object(root))
        return bd_fail(err, "%s: not a JSON object", t->name);
    if (!load_model(t, root, parts, err) ||
        !load_normalizer(t, json_object_get(root, "normalizer"), 0, err) ||
        !load_pre_tokenizer(t, json_object_get(root, "pre_tokenizer"), 0, &splits_bytes, err) ||
        !load_decoder(t, json_object_get(root, "decoder"), &joins_bytes, 0, err))
        return false;
    if (!splits_bytes || !joins_bytes)
        return bd_fail(err, "%s: the %s has no ByteLevel; bdlm reads byte-level BPE only", t->name,
                       splits_bytes ? "decoder" : "pre-tokenizer");
    if (t->pattern_count != 1) {
        free(t->pattern);
        t->pattern = NULL;
    }
    json_t *added = json_object_get(root, "added_tokens");
    if (bd_json_has(root, "added_tokens") && !bd_json_array(root, t->name, "added_tokens", err))
        return false;
    int64_t most = t->vocabulary.size + (int64_t)json_array_size(added) * 2 + 65536;
    most = most < BD_MOST_TOKENS ? most : BD_MOST_TOKENS;
    for (size_t i = 0; i < json_array_size(added); i++)
        if (!load_added(t, json_array_get(added, i), most, err))
            return false;
    return load_post_processor(t, json_object_get(root, "post_processor"), 0, err);
}

bool bd_tokenizer_load(bd_tokenizer *t, bd_error *err)
{
    bd_source_parts parts = {0};
    bd_source_cut(t->source, t->source_size, &parts);
    json_t *root = NULL;
    if (bd_text_check(&parts.rest, err))
        root = bd_json_parse(parts.rest.data ? parts.rest.data : "", parts.rest.size, t->name, err);
    bool ok = root && load_all(t, root, &parts, err);
    json_decref(root);
    bd_text_free(&parts.rest);
    return ok;
}
