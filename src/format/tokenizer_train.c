/* Counting words, and turning a finished vocabulary into a tokenizer. The merges in between are
 * learned in tokenizer_learn.c. */
#include "format/tokenizer_train.h"

#include <stdlib.h>
#include <string.h>

#include "format/tokenizer_internal.h"
#include "format/tokenizer_learn.h"

const char *const bd_chatml_template =
    "{%- for message in messages %}\n"
    "    {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}\n"
    "{%- endfor %}\n"
    "{%- if add_generation_prompt %}\n"
    "    {{- '<|im_start|>assistant\\n' }}\n"
    "{%- endif %}\n";

bd_tokenizer_recipe bd_tokenizer_recipe_default(void)
{
    static const char *const special[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>",
                                          "<|mask|>"};
    bd_tokenizer_recipe recipe = {.vocabulary = 8192,
                                  .least_count = 2,
                                  .special = special,
                                  .special_count = 4,
                                  .chat_template = bd_chatml_template};
    recipe.roles[BD_ROLE_PAD] = "<|endoftext|>";
    recipe.roles[BD_ROLE_EOS] = "<|im_end|>";
    recipe.roles[BD_ROLE_MASK] = "<|mask|>";
    return recipe;
}

struct bd_tokenizer_trainer {
    bd_tokenizer_recipe recipe; // with texts of its own
    char *texts;                // all of them, one after the other
    const char **special;
    bd_stage stage;
    bd_matcher matcher;
    bd_text normal;
    bd_word_counts words;
};

// --- the recipe ----------------------------------------------------------------------------------

static bool is_special(const bd_tokenizer_recipe *recipe, const char *text)
{
    for (int64_t i = 0; i < recipe->special_count; i++)
        if (strcmp(recipe->special[i], text) == 0)
            return true;
    return false;
}

static bool check_recipe(const bd_tokenizer_recipe *recipe, bd_error *err)
{
    int64_t least = 256 + recipe->special_count;
    if (recipe->special_count < 0 || recipe->special_count > 10000)
        return bd_fail(err, "%lld special tokens, 0 to 10000 expected",
                       (long long)recipe->special_count);
    if (recipe->vocabulary < least || recipe->vocabulary > BD_MOST_TOKENS)
        return bd_fail(
            err,
            "a vocabulary of %lld tokens, %lld (256 bytes and %lld special tokens) to %d expected",
            (long long)recipe->vocabulary, (long long)least, (long long)recipe->special_count,
            BD_MOST_TOKENS);
    if (recipe->least_count < 1 || recipe->longest_token < 0)
        return bd_fail(err, "least count %lld and longest token %lld, at least 1 and 0 expected",
                       (long long)recipe->least_count, (long long)recipe->longest_token);
    for (int64_t i = 0; i < recipe->special_count; i++) {
        const char *text = recipe->special[i];
        bd_tokenizer_recipe earlier = *recipe;
        earlier.special_count = i;
        if (!*text || bd_utf8_valid(text, strlen(text)) < strlen(text))
            return bd_fail(err, "special token %lld is empty or not UTF-8", (long long)i);
        if (is_special(&earlier, text))
            return bd_fail(err, "special token \"%.80s\" is listed twice", text);
    }
    for (int role = 0; role < BD_ROLE_COUNT; role++)
        if (recipe->roles[role] && !is_special(recipe, recipe->roles[role]))
            return bd_fail(err, "the %s token \"%.80s\" is not one of the special tokens",
                           bd_token_role_name((bd_token_role)role), recipe->roles[role]);
    return true;
}

static const char *keep(bd_text *all, size_t *offset, const char *text)
{
    *offset = all->size;
    bd_text_add(all, text, strlen(text) + 1);
    return text;
}

// Copy the recipe's texts behind one another, then point at the copies.
static bool copy_recipe(bd_tokenizer_trainer *t, const bd_tokenizer_recipe *recipe, bd_error *err)
{
    bd_text all = {0};
    size_t pattern, template_at = 0, role_at[BD_ROLE_COUNT] = {0};
    size_t *special_at = calloc((size_t)recipe->special_count + 1, sizeof *special_at);
    t->special = calloc((size_t)recipe->special_count + 1, sizeof *t->special);
    t->recipe = *recipe;
    keep(&all, &pattern, recipe->pattern ? recipe->pattern : bd_pattern_qwen);
    if (recipe->chat_template)
        keep(&all, &template_at, recipe->chat_template);
    for (int role = 0; role < BD_ROLE_COUNT; role++)
        if (recipe->roles[role])
            keep(&all, &role_at[role], recipe->roles[role]);
    for (int64_t i = 0; special_at && i < recipe->special_count; i++)
        keep(&all, &special_at[i], recipe->special[i]);
    t->texts = all.data;
    bool ok = !all.failed && special_at && t->special;
    if (ok) {
        t->recipe.pattern = t->texts + pattern;
        t->recipe.chat_template = recipe->chat_template ? t->texts + template_at : NULL;
        for (int role = 0; role < BD_ROLE_COUNT; role++)
            t->recipe.roles[role] = recipe->roles[role] ? t->texts + role_at[role] : NULL;
        for (int64_t i = 0; i < recipe->special_count; i++)
            t->special[i] = t->texts + special_at[i];
        t->recipe.special = t->special;
    }
    free(special_at);
    return ok || bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a tokenizer's recipe");
}

bd_tokenizer_trainer *bd_tokenizer_trainer_create(const bd_tokenizer_recipe *recipe, bd_error *err)
{
    if (!check_recipe(recipe, err))
        return NULL;
    bd_tokenizer_trainer *t = calloc(1, sizeof *t);
    if (!t) {
        bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a tokenizer trainer");
        return NULL;
    }
    if (!copy_recipe(t, recipe, err) ||
        !bd_stage_compile(&t->stage, t->recipe.pattern, "tokenizer recipe", err) ||
        !bd_matcher_open(&t->matcher, err)) {
        bd_tokenizer_trainer_destroy(t);
        return NULL;
    }
    return t;
}

void bd_tokenizer_trainer_destroy(bd_tokenizer_trainer *t)
{
    if (!t)
        return;
    bd_word_counts_free(&t->words);
    bd_matcher_close(&t->matcher);
    bd_stage_free(&t->stage);
    bd_text_free(&t->normal);
    free(t->texts);
    free(t->special);
    free(t);
}

// --- counting ------------------------------------------------------------------------------------

static bool words_grow(bd_word_counts *w, bd_error *err)
{
    if (w->count == w->room) {
        int64_t room = w->room ? w->room * 2 : 4096;
        bd_counted_word *larger = realloc(w->words, (size_t)room * sizeof *larger);
        if (!larger)
            return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for %lld words", (long long)room);
        w->words = larger;
        w->room = room;
    }
    if ((uint64_t)w->count * 2 < w->mask)
        return true;
    uint64_t size = w->mask ? (w->mask + 1) * 2 : 16384;
    int32_t *bucket = w->count < INT32_MAX / 2 ? malloc(size * sizeof *bucket) : NULL;
    if (!bucket)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for %lld words", (long long)w->count);
    memset(bucket, 0xff, size * sizeof *bucket);
    for (int64_t i = 0; i < w->count; i++) {
        uint64_t at =
            bd_hash_bytes(w->bytes.data + w->words[i].begin, w->words[i].size) & (size - 1);
        while (bucket[at] >= 0)
            at = (at + 1) & (size - 1);
        bucket[at] = (int32_t)i;
    }
    free(w->bucket);
    w->bucket = bucket;
    w->mask = size - 1;
    return true;
}

static bool count_word(void *context, const char *text, size_t size, bd_error *err)
{
    bd_word_counts *w = context;
    if (size > UINT32_MAX / 4 || !words_grow(w, err))
        return size <= UINT32_MAX / 4 ? false : bd_fail(err, "a word of %zu bytes", size);
    uint64_t at = bd_hash_bytes(text, size) & w->mask;
    for (; w->bucket[at] >= 0; at = (at + 1) & w->mask) {
        bd_counted_word *word = &w->words[w->bucket[at]];
        if (word->size == size && memcmp(w->bytes.data + word->begin, text, size) == 0) {
            word->count++;
            return true;
        }
    }
    w->words[w->count] =
        (bd_counted_word){.begin = w->bytes.size, .size = (uint32_t)size, .count = 1};
    bd_text_add(&w->bytes, text, size);
    w->bucket[at] = (int32_t)w->count++;
    return bd_text_check(&w->bytes, err);
}

void bd_word_counts_free(bd_word_counts *w)
{
    bd_text_free(&w->bytes);
    free(w->words);
    free(w->bucket);
    *w = (bd_word_counts){0};
}

bool bd_tokenizer_trainer_feed(bd_tokenizer_trainer *t, const char *text, size_t size,
                               bd_error *err)
{
    size_t good = bd_utf8_valid(text, size);
    if (good < size)
        return bd_fail(err, "the text is not UTF-8 at byte %zu (0x%02x)", good,
                       (uint8_t)text[good]);
    if (!bd_normal_already(BD_NFC, text, size)) {
        bd_text_clear(&t->normal);
        if (!bd_normalize(BD_NFC, text, size, &t->normal, NULL, err))
            return false;
        text = t->normal.data;
        size = t->normal.size;
    }
    bd_matcher_limit(&t->matcher, size);
    return bd_stage_split(&t->stage, &t->matcher, text, size, count_word, &t->words, err);
}

// --- the result ----------------------------------------------------------------------------------

static void spell(const bd_vocabulary *v, int32_t id, bd_text *out)
{
    const bd_token *token = &v->tokens[id];
    for (uint32_t i = 0; i < token->size; i++)
        bd_text_add_character(out, bd_byte_character((uint8_t)v->pool.data[token->begin + i]));
}

// "model": merges as "left right", which every version of every library reads.
static json_t *model_json(const bd_vocabulary *v)
{
    json_t *vocab = json_object(), *merges = json_array();
    bd_text text = {0};
    bool ok = vocab && merges;
    for (int32_t id = 0; ok && id < v->size; id++) {
        bd_text_clear(&text);
        spell(v, id, &text);
        ok = !text.failed && json_object_set_new(vocab, text.data, json_integer(id)) == 0;
    }
    for (int64_t i = 0; ok && i < v->merge_count; i++) {
        bd_text_clear(&text);
        spell(v, (int32_t)(v->merges[i] >> 32), &text);
        bd_text_add_byte(&text, ' ');
        spell(v, (int32_t)(uint32_t)v->merges[i], &text);
        ok = !text.failed && json_array_append_new(merges, json_string(text.data)) == 0;
    }
    bd_text_free(&text);
    json_t *model = ok ? json_pack("{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:O, s:O}", "type",
                                   "BPE", "dropout", "unk_token", "continuing_subword_prefix",
                                   "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0,
                                   "ignore_merges", 0, "vocab", vocab, "merges", merges)
                       : NULL;
    json_decref(vocab);
    json_decref(merges);
    return model;
}

static json_t *tokenizer_json(const bd_tokenizer_recipe *recipe, const bd_vocabulary *v)
{
    json_t *root = bd_tokenizer_json_frame(recipe->pattern);
    json_t *added = json_object_get(root, "added_tokens");
    bool ok = root && json_object_set_new(root, "model", model_json(v)) == 0;
    for (int64_t i = 0; ok && i < recipe->special_count; i++)
        ok = json_array_append_new(added,
                                   bd_added_token_json((int32_t)(v->size + i), recipe->special[i],
                                                       strlen(recipe->special[i]), true)) == 0;
    if (ok)
        return root;
    json_decref(root);
    return NULL;
}

static bool give_roles(bd_tokenizer *tokenizer, const bd_tokenizer_recipe *recipe, bd_error *err)
{
    for (int role = 0; role < BD_ROLE_COUNT; role++) {
        const char *text = recipe->roles[role];
        int32_t id = text ? bd_tokenizer_find(tokenizer, text, strlen(text)) : -1;
        if (!bd_tokenizer_set_role(tokenizer, (bd_token_role)role, id, err))
            return false;
    }
    return bd_tokenizer_set_chat_template(tokenizer, recipe->chat_template, err);
}

bd_tokenizer *bd_tokenizer_trainer_finish(bd_tokenizer_trainer *t, bd_progress *progress,
                                          bd_error *err)
{
    bd_vocabulary vocabulary = {0};
    bd_tokenizer *tokenizer = NULL;
    bd_learn_limits limits = {.tokens = t->recipe.vocabulary - t->recipe.special_count,
                              .least_count = t->recipe.least_count,
                              .longest_token = t->recipe.longest_token};
    if (bd_learn_merges(&t->words, &limits, &vocabulary, progress, err)) {
        json_t *root = tokenizer_json(&t->recipe, &vocabulary);
        if (!root)
            bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for the trained tokenizer");
        tokenizer = root ? bd_tokenizer_from_json(root, "trained tokenizer", NULL, err) : NULL;
    }
    bd_vocabulary_free(&vocabulary);
    if (tokenizer && !give_roles(tokenizer, &t->recipe, err)) {
        bd_tokenizer_close(tokenizer);
        return NULL;
    }
    return tokenizer;
}
