/* tokenizer_small.h - tokenizers small enough to compute by hand, written as tokenizer.json texts.
 */
#ifndef BD_TESTS_TOKENIZER_SMALL_H
#define BD_TESTS_TOKENIZER_SMALL_H

#include "check.h"
#include "format/tokenizer.h"

typedef struct {
    const char *normalizer, *pre_tokenizer, *post_processor, *decoder, *added, *model;
    const char *merges; /* JSON, with the tokens they make in `made` */
    const char *made;
} small_parts;

#define BYTE_LEVEL      "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"use_regex\": false}"
#define BYTE_LEVEL_GPT2 "{\"type\": \"ByteLevel\", \"add_prefix_space\": false}"

/* Merges that make "he", "ll", "hell", "hello", " w", " wo" out of bytes. */
static const small_parts small_default = {
    .normalizer = "null",
    .pre_tokenizer = BYTE_LEVEL_GPT2,
    .post_processor = "null",
    .decoder = BYTE_LEVEL,
    .added = "",
    .model = "",
    .merges = "\"h e\", [\"l\", \"l\"], \"he ll\", \"hell o\", \"\\u0120 w\", \"\\u0120w o\"",
    .made = "he ll hell hello \\u0120w \\u0120wo",
};

/* The character that stands for a byte, as the rule is usually told: printable bytes stand for
 * themselves, the others are numbered from 256 on. */
static inline int small_character(int byte)
{
    int next = 256;
    for (int b = 0; b < 256; b++) {
        bool printable =
            (b >= '!' && b <= '~') || (b >= 0xa1 && b <= 0xac) || (b >= 0xae && b <= 0xff);
        int c = printable ? b : next++;
        if (b == byte)
            return c;
    }
    return -1;
}

/* Ids: byte b is b, what merges make follows from 256 on. */
static inline void small_json(const small_parts *p, bd_text *out)
{
    bd_text_clear(out);
    bd_text_print(
        out,
        "{\"version\": \"1.0\", \"added_tokens\": [%s],\n\"normalizer\": %s,\n\"pre_tokenizer\": "
        "%s,\n\"post_processor\": %s,\n\"decoder\": %s,\n\"model\": {\"type\": \"BPE\", %s"
        "\"vocab\": {",
        p->added, p->normalizer, p->pre_tokenizer, p->post_processor, p->decoder, p->model);
    for (int b = 0; b < 256; b++)
        bd_text_print(out, "%s\"\\u%04x\": %d", b ? ", " : "", small_character(b), b);
    int id = 256;
    for (const char *at = p->made; *at;) {
        size_t size = strcspn(at, " ");
        bd_text_print(out, ", \"%.*s\": %d", (int)size, at, id++);
        at += size + (at[size] == ' ');
    }
    bd_text_print(out, "}, \"merges\": [%s]}}\n", p->merges);
}

static inline bd_tokenizer *small_tokenizer(const small_parts *p)
{
    bd_text json = {0};
    bd_error err = {0};
    small_json(p, &json);
    bd_tokenizer *tokenizer = bd_tokenizer_parse(json.data, json.size, "small.json", &err);
    if (!tokenizer)
        fail_msg("%s", err.message);
    bd_text_free(&json);
    return tokenizer;
}

/* The tokens of a text, by what they stand for, with "|" between them. */
static inline void small_tokens(const bd_tokenizer *tokenizer, const char *text,
                                const bd_encode_options *options, bd_text *out)
{
    bd_tokens tokens = {0};
    bd_error err = {0};
    if (!bd_tokenizer_encode(tokenizer, text, strlen(text), options, &tokens, &err))
        fail_msg("\"%s\": %s", text, err.message);
    bd_text_clear(out);
    bd_text_add_string(out, "");
    for (int64_t i = 0; i < tokens.count; i++) {
        size_t size = 0;
        const char *token = bd_tokenizer_token(tokenizer, tokens.ids[i], &size);
        assert_non_null(token);
        bd_text_add_string(out, i ? "|" : "");
        bd_text_add(out, token, size);
    }
    bd_tokens_free(&tokens);
}

static inline void check_tokens(const bd_tokenizer *tokenizer, const char *text, const char *want)
{
    bd_text got = {0};
    small_tokens(tokenizer, text, NULL, &got);
    if (strcmp(got.data, want) != 0)
        fail_msg("\"%s\" gives %s, wanted %s", text, got.data, want);
    bd_text_free(&got);
}

#endif
