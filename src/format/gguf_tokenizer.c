#include "format/gguf_tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/tokenizer_internal.h"

// Kinds of tokens as these files number them.
enum { NORMAL = 1, CONTROL = 3, USER_DEFINED = 4, UNUSED = 5 };

/* How text is split into words, by the name the files have for it. */
static const struct {
    const char *name;
    const char *const *pattern;
    bool whole_words; // a word that is a token is taken without merging
    bool composed;    // NFC first
} splittings[] = {{"qwen2", &bd_pattern_qwen, false, true},
                  {"llama-bpe", &bd_pattern_llama3, true, false},
                  {"gpt-2", &bd_pattern_gpt2, false, false}};
enum { SPLITTINGS = sizeof splittings / sizeof *splittings };

static const char *splitting_name(const bd_tokenizer *tokenizer, bd_error *err)
{
    const char *pattern = bd_tokenizer_pattern(tokenizer);
    for (int i = 0; pattern && i < SPLITTINGS; i++)
        if (!strcmp(pattern, *splittings[i].pattern))
            return splittings[i].name;
    bd_fail(
        err,
        "the tokenizer splits text by \"%.80s\", which has no name in GGUF files that bdlm knows "
        "(qwen2, llama-bpe, gpt-2)",
        pattern ? pattern : "several patterns");
    return NULL;
}

// --- writing -------------------------------------------------------------------------------------

static void put_tokens(bd_gguf_out *out, const bd_tokenizer *t, int64_t vocabulary, int32_t *kinds)
{
    bd_text spelled = {0};
    bd_gguf_put_texts(out, "tokenizer.ggml.tokens", vocabulary);
    for (int64_t i = 0; i < vocabulary; i++) {
        bd_token_kind kind = bd_tokenizer_kind(t, (int32_t)i);
        bd_text_clear(&spelled);
        if (kind == BD_TOKEN_NONE)
            bd_text_print(&spelled, "[PAD%lld]", (long long)i);
        else
            bd_tokenizer_spell(t, (int32_t)i, &spelled);
        bd_gguf_put_next(out, spelled.data, spelled.size);
        kinds[i] = kind == BD_TOKEN_NONE      ? UNUSED
                   : kind == BD_TOKEN_SPECIAL ? CONTROL
                   : kind == BD_TOKEN_ADDED   ? USER_DEFINED
                                              : NORMAL;
    }
    bd_gguf_put_i32s(out, "tokenizer.ggml.token_type", kinds, vocabulary);
    bd_gguf_put_texts(out, "tokenizer.ggml.merges", bd_tokenizer_merge_count(t));
    for (int64_t i = 0; i < bd_tokenizer_merge_count(t); i++) {
        int32_t left, right;
        bd_tokenizer_merge(t, i, &left, &right);
        bd_text_clear(&spelled);
        bd_tokenizer_spell(t, left, &spelled);
        bd_text_add_byte(&spelled, ' ');
        bd_tokenizer_spell(t, right, &spelled);
        bd_gguf_put_next(out, spelled.data, spelled.size);
    }
    bd_text_free(&spelled);
}

static bool starts_with_bos(const bd_tokenizer *t, int64_t bos)
{
    bd_tokens ids = {0};
    bd_error ignored = {0};
    bool yes =
        bos >= 0 &&
        bd_tokenizer_encode(t, "a", 1, &(bd_encode_options){.add_special = true}, &ids, &ignored) &&
        ids.count && ids.ids[0] == bos;
    bd_tokens_free(&ids);
    return yes;
}

bool bd_gguf_put_tokenizer(bd_gguf_out *out, const bd_tokenizer *t, int64_t vocabulary,
                           const bd_gguf_special *special, bd_error *err)
{
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.padding_token_id",
                                       "tokenizer.ggml.mask_token_id"};
    const char *splitting = splitting_name(t, err);
    if (!splitting)
        return false;
    if (bd_tokenizer_size(t) > vocabulary)
        return bd_fail(err, "the tokenizer has ids up to %lld, the embedding %lld rows",
                       (long long)bd_tokenizer_size(t) - 1, (long long)vocabulary);
    int64_t eos = special->eos >= 0 ? special->eos : bd_tokenizer_role(t, BD_ROLE_EOS);
    int64_t bos = special->bos >= 0 ? special->bos : bd_tokenizer_role(t, BD_ROLE_BOS);
    if (eos < 0)
        return bd_fail(err,
                       "no end-of-text token: neither eos_token_id in config.json nor eos_token "
                       "in tokenizer_config.json; readers would take id 11");
    const int64_t ids[] = {bos >= 0 ? bos : eos, eos, special->pad, special->mask};
    for (int i = 0; i < 4; i++)
        if (ids[i] >= vocabulary)
            return bd_fail(err, "%s would be %lld, the embedding has %lld rows", keys[i],
                           (long long)ids[i], (long long)vocabulary);
    int32_t *kinds = malloc((size_t)vocabulary * sizeof *kinds);
    if (!kinds)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for %lld tokens", (long long)vocabulary);
    bd_gguf_put_text(out, "tokenizer.ggml.model", "gpt2");
    bd_gguf_put_text(out, "tokenizer.ggml.pre", splitting);
    put_tokens(out, t, vocabulary, kinds);
    free(kinds);
    for (int i = 0; i < 4; i++)
        if (ids[i] >= 0)
            bd_gguf_put_u32(out, keys[i], ids[i]);
    bd_gguf_put_bool(out, "tokenizer.ggml.add_bos_token", starts_with_bos(t, bos));
    if (bd_tokenizer_chat_template(t))
        bd_gguf_put_text(out, "tokenizer.chat_template", bd_tokenizer_chat_template(t));
    return true;
}

// --- reading -------------------------------------------------------------------------------------

/* The id of token `role` in these files, -1: none. */
static bool role_id(const bd_gguf *file, const char *key, int64_t tokens, int64_t *id,
                    bd_error *err)
{
    *id = -1;
    return bd_gguf_int_if(file, key, 0, tokens - 1, id, err);
}

static bool add_tokens(const bd_gguf *file, const char *where, json_t *vocabulary, json_t *added,
                       int64_t count, bd_error *err)
{
    bool kinds = bd_gguf_ints(file, "tokenizer.ggml.token_type") == count;
    size_t at = 0, size;
    for (int64_t i = 0; i < count; i++) {
        const char *text = bd_gguf_text_next(file, "tokenizer.ggml.tokens", &at, &size);
        int64_t kind = kinds ? bd_gguf_int_at(file, "tokenizer.ggml.token_type", i) : NORMAL;
        if (kind == UNUSED)
            continue;
        bool ok;
        if (kind == CONTROL || kind == USER_DEFINED)
            ok = json_array_append_new(
                     added, bd_added_token_json((int32_t)i, text, size, kind == CONTROL)) == 0;
        else
            ok = !json_object_getn(vocabulary, text, size) &&
                 json_object_setn_new(vocabulary, text, size, json_integer(i)) == 0;
        if (!ok)
            return bd_fail(err, "%s: token %lld \"%.*s\" is not UTF-8, or is there twice", where,
                           (long long)i, (int)(size < 60 ? size : 60), text);
    }
    return true;
}

static bool add_merges(const bd_gguf *file, const char *where, json_t *merges, bd_error *err)
{
    int64_t count = bd_gguf_texts(file, "tokenizer.ggml.merges");
    if (count < 0)
        return bd_fail(err, "%s: \"tokenizer.ggml.merges\" is missing", where);
    size_t at = 0, size;
    for (int64_t i = 0; i < count; i++) {
        const char *text = bd_gguf_text_next(file, "tokenizer.ggml.merges", &at, &size);
        if (json_array_append_new(merges, json_stringn(text, size)) != 0)
            return bd_fail(err, "%s: merge %lld is not UTF-8", where, (long long)i);
    }
    return true;
}

/* Puts the token of this id before each text. */
static json_t *bos_processor(const bd_gguf *file, int64_t bos)
{
    size_t at = 0, size = 0;
    const char *text = NULL;
    for (int64_t i = 0; i <= bos; i++)
        text = bd_gguf_text_next(file, "tokenizer.ggml.tokens", &at, &size);
    json_t *name = json_stringn(text, size), *table = json_object();
    json_object_setn_new(
        table, text, size,
        json_pack("{s:O, s:[I], s:[O]}", "id", name, "ids", (json_int_t)bos, "tokens", name));
    json_t *root = json_pack(
        "{s:s, s:[{s:{s:O, s:i}}, {s:{s:s, s:i}}], s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}], s:o}",
        "type", "TemplateProcessing", "single", "SpecialToken", "id", name, "type_id", 0,
        "Sequence", "id", "A", "type_id", 0, "pair", "Sequence", "id", "A", "type_id", 0,
        "Sequence", "id", "B", "type_id", 1, "special_tokens", table);
    json_decref(name);
    return root;
}

static json_t *tokenizer_json(const bd_gguf *file, const char *where, int64_t count, bd_error *err)
{
    const char *model = bd_gguf_text(file, "tokenizer.ggml.model");
    const char *name = bd_gguf_text(file, "tokenizer.ggml.pre");
    int kind = 0;
    while (kind < SPLITTINGS && (!name || strcmp(splittings[kind].name, name) != 0))
        kind++;
    if (!model || strcmp(model, "gpt2") != 0 || kind == SPLITTINGS) {
        bd_fail(err,
                "%s: tokenizer \"%.40s\" with splitting \"%.40s\"; gpt2 with qwen2, llama-bpe or "
                "gpt-2 expected",
                where, model ? model : "none", name ? name : "none");
        return NULL;
    }
    // GPT-2's splitting is what a frame without a pattern says.
    const char *pattern = *splittings[kind].pattern;
    json_t *root = bd_tokenizer_json_frame(pattern == bd_pattern_gpt2 ? NULL : pattern);
    json_t *vocabulary = json_object(), *merges = json_array();
    int64_t bos = -1;
    bool add_bos = false, ok = root && vocabulary && merges;
    if (!ok)
        bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", where);
    ok = ok &&
         add_tokens(file, where, vocabulary, json_object_get(root, "added_tokens"), count, err) &&
         add_merges(file, where, merges, err) &&
         role_id(file, "tokenizer.ggml.bos_token_id", count, &bos, err) &&
         bd_gguf_bool_if(file, "tokenizer.ggml.add_bos_token", &add_bos, err);
    if (root && !splittings[kind].composed)
        json_object_set_new(root, "normalizer", json_null());
    if (ok && add_bos && bos >= 0)
        json_object_set_new(root, "post_processor", bos_processor(file, bos));
    json_object_set_new(root, "model",
                        json_pack("{s:s, s:b, s:o, s:o}", "type", "BPE", "ignore_merges",
                                  (int)(kind < SPLITTINGS && splittings[kind].whole_words), "vocab",
                                  vocabulary, "merges", merges));
    if (!ok) {
        json_decref(root);
        return NULL;
    }
    return root;
}

static bool set_roles(const bd_gguf *file, bd_tokenizer *t, int64_t count, bd_error *err)
{
    static const struct {
        bd_token_role role;
        const char *key;
    } roles[] = {{BD_ROLE_BOS, "tokenizer.ggml.bos_token_id"},
                 {BD_ROLE_EOS, "tokenizer.ggml.eos_token_id"},
                 {BD_ROLE_PAD, "tokenizer.ggml.padding_token_id"},
                 {BD_ROLE_MASK, "tokenizer.ggml.mask_token_id"}};
    for (int i = 0; i < 4; i++) {
        int64_t id;
        if (!role_id(file, roles[i].key, count, &id, err) ||
            (id >= 0 && !bd_tokenizer_set_role(t, roles[i].role, (int32_t)id, err)))
            return false;
    }
    const char *template = bd_gguf_text(file, "tokenizer.chat_template");
    return !template || bd_tokenizer_set_chat_template(t, template, err);
}

bd_tokenizer *bd_gguf_take_tokenizer(const bd_gguf *file, const char *where, bd_error *err)
{
    int64_t count = bd_gguf_texts(file, "tokenizer.ggml.tokens");
    if (count < 1 || count > BD_MOST_TOKENS) {
        bd_fail(err, "%s: \"tokenizer.ggml.tokens\" is no list of tokens", where);
        return NULL;
    }
    json_t *root = tokenizer_json(file, where, count, err);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    bd_tokenizer *t = text ? bd_tokenizer_parse(text, strlen(text), where, err) : NULL;
    free(text);
    if (t && !set_roles(file, t, count, err)) {
        bd_tokenizer_close(t);
        t = NULL;
    }
    return t;
}
