/* Real tokenizers against golden/block-diffusion/tokens.json: ids, decoding, spans, streaming. */
#include "format/tokenizer_packages.h"

// "text", or "repeat": [piece, count].
static void case_text(json_t *item, bd_text *out)
{
    json_t *repeat = json_object_get(item, "repeat");
    json_t *text = repeat ? json_array_get(repeat, 0) : json_object_get(item, "text");
    json_int_t times = repeat ? json_integer_value(json_array_get(repeat, 1)) : 1;
    bd_text_clear(out);
    bd_text_add_string(out, "");
    for (json_int_t i = 0; i < times; i++)
        bd_text_add(out, json_string_value(text), json_string_length(text));
}

static void check_decoded(const char *what, const bd_tokenizer *tokenizer, const bd_tokens *tokens,
                          bool skip_special, const char *want, size_t size)
{
    bd_error err = {0};
    bd_text whole = {0}, pieces = {0};
    bd_token_stream stream = {.skip_special = skip_special};
    check_ok(bd_tokenizer_decode(tokenizer, tokens->ids, tokens->count, skip_special, &whole, &err),
             err);
    for (int64_t i = 0; i < tokens->count; i++) {
        check_ok(bd_token_stream_add(&stream, tokenizer, tokens->ids[i], &pieces, &err), err);
        if (bd_utf8_valid(pieces.data ? pieces.data : "", pieces.size) != pieces.size)
            fail_msg("%s: the stream gave half a character", what);
    }
    check_ok(bd_token_stream_finish(&stream, &pieces, &err), err);
    if (whole.size != size || memcmp(whole.data ? whole.data : "", want, size) != 0)
        fail_msg("%s: decoded \"%s\", wanted \"%s\"", what, whole.data, want);
    if (pieces.size != size || memcmp(pieces.data ? pieces.data : "", want, size) != 0)
        fail_msg("%s: streamed \"%s\", wanted \"%s\"", what, pieces.data, want);
    bd_text_free(&whole);
    bd_text_free(&pieces);
}

// Spans touch or overlap (bytes of one replaced character), start at 0 and end at the end.
static void check_spans(const char *what, const bd_tokens *tokens, const bd_text *text)
{
    int64_t begin = 0, end = 0;
    for (int64_t i = 0; i < tokens->count; i++) {
        bd_token_span span = tokens->spans[i];
        if (span.begin < begin || span.begin > end || span.end < end || span.end <= span.begin)
            fail_msg("%s: token %lld has span %lld-%lld after %lld-%lld", what, (long long)i,
                     (long long)span.begin, (long long)span.end, (long long)begin, (long long)end);
        begin = span.begin;
        end = span.end;
    }
    if (end != (int64_t)text->size)
        fail_msg("%s: spans end at %lld of %zu", what, (long long)end, text->size);
}

static void check_case(const bd_tokenizer *tokenizer, const char *name, json_t *item, int64_t index,
                       bd_text *text)
{
    char what[100];
    bd_error err = {0};
    json_t *want = json_object_get(json_object_get(item, "ids"), name);
    if (!want)
        return;
    snprintf(what, sizeof what, "%s case %lld (%s)", name, (long long)index,
             json_string_value(json_object_get(item, "group")));
    case_text(item, text);
    bd_tokens tokens = {0}, with_spans = {0};
    bd_encode_options spans = {.spans = true};
    check_ok(bd_tokenizer_encode(tokenizer, text->data, text->size, NULL, &tokens, &err), err);
    check_ids(what, &tokens, want);
    check_ok(bd_tokenizer_encode(tokenizer, text->data, text->size, &spans, &with_spans, &err),
             err);
    check_ids(what, &with_spans, want);
    check_spans(what, &with_spans, text);

    json_t *decoded = json_object_get(json_object_get(item, "decoded"), name);
    const char *plain = decoded ? json_string_value(decoded) : text->data;
    size_t plain_size = decoded ? json_string_length(decoded) : text->size;
    if (!decoded || plain)
        check_decoded(what, tokenizer, &tokens, false, plain, plain_size);
    json_t *without = json_object_get(json_object_get(item, "decoded_without_special"), name);
    check_decoded(what, tokenizer, &tokens, true, without ? json_string_value(without) : plain,
                  without ? json_string_length(without) : plain_size);
    bd_tokens_free(&tokens);
    bd_tokens_free(&with_spans);
}

static void check_decode_only(const bd_tokenizer *tokenizer, const char *name, json_t *list)
{
    size_t index;
    json_t *item;
    json_array_foreach(list, index, item)
    {
        char what[100];
        if (strcmp(json_string_value(json_object_get(item, "tokenizer")), name) != 0)
            continue;
        snprintf(what, sizeof what, "%s decode_only %zu", name, index);
        json_t *ids = json_object_get(item, "ids"), *text = json_object_get(item, "text");
        int32_t room[512];
        bd_tokens tokens = {.ids = room, .count = (int64_t)json_array_size(ids), .room = 512};
        assert_true(tokens.count <= tokens.room);
        for (int64_t i = 0; i < tokens.count; i++)
            room[i] = (int32_t)json_integer_value(json_array_get(ids, (size_t)i));
        check_decoded(what, tokenizer, &tokens, false, json_string_value(text),
                      json_string_length(text));
    }
}

static void golden_tokens(const char *name)
{
    bd_tokenizer *tokenizer = package_tokenizer(name);
    if (!tokenizer)
        return;
    json_t *root = golden_json("tokens.json"), *item;
    bd_text text = {0};
    size_t index;
    json_array_foreach(json_object_get(root, "cases"), index, item)
        check_case(tokenizer, name, item, (int64_t)index, &text);
    check_decode_only(tokenizer, name, json_object_get(root, "decode_only"));
    bd_text_free(&text);
    json_decref(root);
    bd_tokenizer_close(tokenizer);
}

static void qwen3_tokens(void **state)
{
    (void)state;
    golden_tokens("qwen3");
}

static void llama3_tokens(void **state)
{
    (void)state;
    golden_tokens("llama3");
}

static void gpt2_tokens(void **state)
{
    (void)state;
    golden_tokens("gpt2");
}

static void check_role(const bd_tokenizer *tokenizer, bd_token_role role, json_t *facts)
{
    char field[32];
    size_t size = 0;
    snprintf(field, sizeof field, "%s_token", bd_token_role_name(role));
    json_t *want = json_object_get(facts, field);
    if (!want)
        return;
    const char *text = bd_tokenizer_token(tokenizer, bd_tokenizer_role(tokenizer, role), &size);
    if (json_is_null(want))
        assert_null(text);
    else
        assert_string_equal(text, json_string_value(want));
}

// Sizes, hashes and special tokens as tokenizers.json lists them.
static void facts(void **state)
{
    (void)state;
    json_t *root = golden_json("tokenizers.json"), *item;
    const char *name;
    json_object_foreach(root, name, item)
    {
        bd_tokenizer *tokenizer = package_tokenizer(name);
        if (!tokenizer)
            continue;
        int64_t normal = 0, added = 0;
        for (int32_t id = 0; id < bd_tokenizer_size(tokenizer); id++) {
            bd_token_kind kind = bd_tokenizer_kind(tokenizer, id);
            normal += kind == BD_TOKEN_NORMAL;
            added += kind == BD_TOKEN_ADDED || kind == BD_TOKEN_SPECIAL;
        }
        // GPT-2 counts its added token with its vocabulary, the others do not.
        int64_t vocabulary = json_integer_value(json_object_get(item, "vocabulary"));
        assert_int_equal(added, json_integer_value(json_object_get(item, "added_tokens")));
        assert_true(normal == vocabulary || normal + added == vocabulary);
        json_t *file = json_array_get(json_object_get(item, "files"), 0);
        if (strcmp(name, "gpt2") != 0)
            assert_string_equal(bd_tokenizer_identity(tokenizer),
                                json_string_value(json_object_get(file, "sha256")));
        for (int role = 0; role < BD_ROLE_COUNT; role++)
            check_role(tokenizer, (bd_token_role)role, item);
        bd_tokenizer_close(tokenizer);
    }
    json_decref(root);
}

// gpt-oss has no golden cases; its pattern splits by case, its merges are the largest list.
static void gptoss(void **state)
{
    (void)state;
    bd_tokenizer *tokenizer = package_tokenizer("gptoss");
    if (!tokenizer)
        return;
    const char *texts[] = {"", "camelCaseWord HTTPServer x2y  \n\n\t",
                           "don't DON'T 1234567 naïve é 中文 🙂",
                           "<|start|>assistant<|message|>ok<|return|>"};
    bd_error err = {0};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        bd_tokens tokens = {0};
        check_ok(bd_tokenizer_encode(tokenizer, texts[i], strlen(texts[i]), NULL, &tokens, &err),
                 err);
        check_decoded(texts[i], tokenizer, &tokens, false, texts[i], strlen(texts[i]));
        bd_tokens_free(&tokens);
    }
    bd_tokens tokens = {0};
    check_ok(bd_tokenizer_encode(tokenizer, "HTTPServer don't", 16, NULL, &tokens, &err), err);
    size_t size;
    for (int64_t i = 0; i < tokens.count; i++)
        assert_non_null(bd_tokenizer_token(tokenizer, tokens.ids[i], &size));
    assert_int_equal(tokens.count,
                     3); // "HTTP", "Server", " don't": the apostrophe stays with its word
    bd_tokens_free(&tokens);
    bd_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen3_tokens), cmocka_unit_test(llama3_tokens),
        cmocka_unit_test(gpt2_tokens),  cmocka_unit_test(facts),
        cmocka_unit_test(gptoss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
