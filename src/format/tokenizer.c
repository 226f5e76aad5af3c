#include "format/tokenizer_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "format/json.h"

// --- making --------------------------------------------------------------------------------------

static bd_tokenizer *tokenizer_new(const char *name, bd_error *err)
{
    bd_tokenizer *t = calloc(1, sizeof *t);
    if (!t || !(t->name = strdup(name))) {
        free(t);
        bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", name);
        return NULL;
    }
    pthread_mutex_init(&t->lock, NULL);
    for (int role = 0; role < BD_ROLE_COUNT; role++)
        t->role[role] = -1;
    return t;
}

void bd_tokenizer_close(bd_tokenizer *t)
{
    if (!t)
        return;
    bd_scratch_free_all(t->idle);
    bd_vocabulary_free(&t->vocabulary);
    bd_trie_free(&t->plain_trie);
    bd_trie_free(&t->normal_trie);
    for (int i = 0; i < t->stage_count; i++)
        bd_stage_free(&t->stages[i]);
    free(t->added);
    free(t->pattern);
    free(t->chat_template);
    json_decref(t->config);
    bd_map_close(&t->map);
    free(t->owned);
    free(t->name);
    pthread_mutex_destroy(&t->lock);
    free(t);
}

// Read the source, which the tokenizer already holds.
static bool tokenizer_read_source(bd_tokenizer *t, bd_error *err)
{
    if (!bd_tokenizer_load(t, err))
        return false;
    if (!*t->identity)
        bd_sha256_bytes(t->source, t->source_size, t->identity);
    return true;
}

static bool own_source(bd_tokenizer *t, char *text, size_t size, bd_error *err)
{
    if (!text)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", t->name);
    bd_map_close(&t->map);
    free(t->owned);
    t->owned = text;
    t->source = text;
    t->source_size = size;
    return true;
}

bd_tokenizer *bd_tokenizer_parse(const char *json, size_t size, const char *what, bd_error *err)
{
    bd_tokenizer *t = tokenizer_new(what, err);
    if (!t)
        return NULL;
    char *copy = malloc(size + 1);
    if (copy)
        memcpy(copy, json, size);
    if (!own_source(t, copy, size, err) || !tokenizer_read_source(t, err)) {
        bd_tokenizer_close(t);
        return NULL;
    }
    return t;
}

bd_tokenizer *bd_tokenizer_from_json(json_t *root, const char *what, const char *identity,
                                     bd_error *err)
{
    bd_tokenizer *t = tokenizer_new(what, err);
    char *text = root ? json_dumps(root, JSON_INDENT(2)) : NULL;
    json_decref(root);
    if (t && identity)
        snprintf(t->identity, sizeof t->identity, "%s", identity);
    if (!t || !own_source(t, text, text ? strlen(text) : 0, err) ||
        !tokenizer_read_source(t, err)) {
        bd_tokenizer_close(t);
        return NULL;
    }
    return t;
}

// --- opening -------------------------------------------------------------------------------------

static bd_tokenizer *open_file(const char *path, bd_error *err)
{
    bd_tokenizer *t = tokenizer_new(path, err);
    if (!t)
        return NULL;
    bool ok = bd_map_open(&t->map, path, err);
    t->source = (const char *)t->map.data;
    t->source_size = t->map.size;
    if (ok && t->source_size == 0)
        ok = bd_fail(err, "%s: the file is empty", path);
    if (!ok || !tokenizer_read_source(t, err)) {
        bd_tokenizer_close(t);
        return NULL;
    }
    return t;
}

// Both of GPT-2's files, under either pair of names. NULL without an error: they are not there.
static bd_tokenizer *open_pair(const char *folder, const char *vocabulary, const char *merges,
                               bool *there, bd_error *err)
{
    char first[BD_PATH], second[BD_PATH], identity[BD_SHA256_TEXT];
    if (!bd_path_join(first, folder, vocabulary, err) || !bd_path_join(second, folder, merges, err))
        return NULL;
    *there = bd_file_exists(first) && bd_file_exists(second);
    if (!*there)
        return NULL;
    json_t *root = bd_gpt2_to_json(first, second, identity, err);
    return root ? bd_tokenizer_from_json(root, first, identity, err) : NULL;
}

static bd_tokenizer *open_folder(const char *folder, bd_error *err)
{
    char path[BD_PATH];
    bool there = true;
    if (!bd_path_join(path, folder, "tokenizer.json", err))
        return NULL;
    if (bd_file_exists(path))
        return open_file(path, err);
    bd_tokenizer *t = open_pair(folder, "encoder.json", "vocab.bpe", &there, err);
    if (!there)
        t = open_pair(folder, "vocab.json", "merges.txt", &there, err);
    if (!there)
        bd_fail(err,
                "%s: no tokenizer here (tokenizer.json, or encoder.json with vocab.bpe, or "
                "vocab.json with merges.txt)",
                folder);
    if (t) {
        // GPT-2's one special token is what begins and ends its texts.
        int32_t end = bd_tokenizer_find(t, "<|endoftext|>", 13);
        t->role[BD_ROLE_BOS] = t->role[BD_ROLE_EOS] = end;
    }
    return t;
}

bd_tokenizer *bd_tokenizer_open(const char *path, bd_error *err)
{
    if (!bd_folder_exists(path))
        return open_file(path, err);
    bd_tokenizer *t = open_folder(path, err);
    if (t && !bd_tokenizer_read_config(t, path, err)) {
        bd_tokenizer_close(t);
        return NULL;
    }
    return t;
}

bool bd_tokenizer_save(const bd_tokenizer *t, const char *folder, bd_error *err)
{
    char path[BD_PATH];
    return bd_folder_make(folder, err) && bd_path_join(path, folder, "tokenizer.json", err) &&
           bd_file_write(path, t->source, t->source_size, err) &&
           bd_tokenizer_write_config(t, folder, err);
}

// --- asking --------------------------------------------------------------------------------------

const char *bd_tokenizer_identity(const bd_tokenizer *t)
{
    return t->identity;
}

int64_t bd_tokenizer_size(const bd_tokenizer *t)
{
    return t->vocabulary.size;
}

bd_token_kind bd_tokenizer_kind(const bd_tokenizer *t, int32_t id)
{
    uint8_t flags = id >= 0 && id < t->vocabulary.size ? t->vocabulary.tokens[id].flags : 0;
    if (flags & BD_TOKEN_IS_SPECIAL)
        return BD_TOKEN_SPECIAL;
    if (flags & BD_TOKEN_IS_ADDED)
        return BD_TOKEN_ADDED;
    return flags ? BD_TOKEN_NORMAL : BD_TOKEN_NONE;
}

const char *bd_tokenizer_token(const bd_tokenizer *t, int32_t id, size_t *size)
{
    if (bd_tokenizer_kind(t, id) == BD_TOKEN_NONE)
        return NULL;
    *size = t->vocabulary.tokens[id].size;
    return t->vocabulary.pool.data + t->vocabulary.tokens[id].begin;
}

static int32_t find_added(const bd_tokenizer *t, const char *text, size_t size)
{
    for (int64_t i = 0; i < t->added_count; i++) {
        const bd_token *token = &t->vocabulary.tokens[t->added[i].id];
        if (token->size == size && memcmp(t->vocabulary.pool.data + token->begin, text, size) == 0)
            return t->added[i].id;
    }
    return -1;
}

int32_t bd_tokenizer_find(const bd_tokenizer *t, const char *text, size_t size)
{
    int32_t id = find_added(t, text, size);
    return id >= 0 ? id : bd_vocabulary_find(&t->vocabulary, text, size, false);
}

void bd_tokenizer_spell(const bd_tokenizer *t, int32_t id, bd_text *out)
{
    size_t size;
    const char *bytes = bd_tokenizer_token(t, id, &size);
    if (!bytes)
        return;
    uint8_t flags = t->vocabulary.tokens[id].flags;
    if (flags & BD_TOKEN_RAW || !(flags & BD_TOKEN_IN_MODEL)) {
        bd_text_add(out, bytes, size);
        return;
    }
    for (size_t i = 0; i < size; i++)
        bd_text_add_character(out, bd_byte_character((uint8_t)bytes[i]));
}

int64_t bd_tokenizer_merge_count(const bd_tokenizer *t)
{
    return t->vocabulary.merge_count;
}

void bd_tokenizer_merge(const bd_tokenizer *t, int64_t rank, int32_t *left, int32_t *right)
{
    assert(rank >= 0 && rank < t->vocabulary.merge_count);
    *left = (int32_t)(t->vocabulary.merges[rank] >> 32);
    *right = (int32_t)(uint32_t)t->vocabulary.merges[rank];
}

const char *bd_tokenizer_pattern(const bd_tokenizer *t)
{
    return t->pattern;
}

int32_t bd_tokenizer_role(const bd_tokenizer *t, bd_token_role role)
{
    return t->role[role];
}

const char *bd_tokenizer_chat_template(const bd_tokenizer *t)
{
    return t->chat_template;
}

// --- changing ------------------------------------------------------------------------------------

bool bd_tokenizer_set_role(bd_tokenizer *t, bd_token_role role, int32_t id, bd_error *err)
{
    if (id != -1 && bd_tokenizer_kind(t, id) == BD_TOKEN_NONE)
        return bd_fail(err, "%s: no token has id %d, so it cannot be the %s token", t->name, id,
                       bd_token_role_name(role));
    t->role[role] = id;
    return true;
}

bool bd_tokenizer_set_chat_template(bd_tokenizer *t, const char *source, bd_error *err)
{
    char *copy = source ? strdup(source) : NULL;
    if (source && !copy)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", t->name);
    free(t->chat_template);
    t->chat_template = copy;
    t->template_elsewhere = true;
    return true;
}

// The configuration lists added tokens a second time, by id.
static bool list_in_config(bd_tokenizer *t, int32_t id, json_t *token)
{
    json_t *list = json_object_get(t->config, "added_tokens_decoder");
    if (!json_is_object(list))
        return true;
    char key[16];
    snprintf(key, sizeof key, "%d", id);
    json_t *entry = json_copy(token);
    json_object_del(entry, "id");
    return json_object_set_new(list, key, entry) == 0;
}

static bool add_to_source(bd_tokenizer *t, int32_t id, const char *text, bool special,
                          bd_error *err)
{
    json_t *token = bd_added_token_json(id, text, strlen(text), special);
    char *spelled = token && list_in_config(t, id, token) ? json_dumps(token, 0) : NULL;
    json_decref(token);
    bd_text longer = {0};
    bool ok = spelled && bd_source_add_token(t->source, t->source_size, spelled, &longer);
    free(spelled);
    if (!ok || longer.failed) {
        bd_text_free(&longer);
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory to add \"%.80s\"", t->name, text);
    }
    own_source(t, longer.data, longer.size, err);
    bd_sha256_bytes(t->source, t->source_size, t->identity);
    return true;
}

int32_t bd_tokenizer_add(bd_tokenizer *t, const char *text, bool special, bd_error *err)
{
    size_t size = strlen(text);
    if (size == 0 || bd_utf8_valid(text, size) < size) {
        bd_fail(err, "%s: a token of no text, or of text that is not UTF-8, cannot be added",
                t->name);
        return -1;
    }
    int32_t id = find_added(t, text, size);
    if (id >= 0)
        return id;
    id = bd_tokenizer_find_spelled(t, text, size);
    if (id == -1)
        id = (int32_t)t->vocabulary.size;
    if (id < 0 || id >= BD_MOST_TOKENS) {
        bd_fail(err, "%s: no room for another token", t->name);
        return -1;
    }
    bd_added_token token = {.id = id, .special = special};
    return add_to_source(t, id, text, special, err) &&
                   bd_tokenizer_put_added(t, token, text, size, err)
               ? id
               : -1;
}
