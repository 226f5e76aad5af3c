/* Opening, refusing, changing and saving tokenizers. */
#include <unistd.h>

#include "base/file.h"
#include "base/sha256.h"
#include "format/json.h"
#include "format/tokenizer_small.h"

static char folder[64];

static int make_folder(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/bdlm-tokenizer-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    bd_error err = {0};
    return bd_folder_remove(folder, &err) ? 0 : -1;
}

static const char *in_folder(const char *name)
{
    static char path[BD_PATH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static void write_text(const char *name, const char *text)
{
    bd_error err = {0};
    check_ok(bd_file_write(in_folder(name), text, strlen(text), &err), err);
}

static void write_small(const small_parts *p)
{
    bd_text json = {0};
    small_json(p, &json);
    write_text("tokenizer.json", json.data);
    bd_text_free(&json);
}

static void check_parse_refused(const char *json, size_t size, const char *part)
{
    bd_error err = {0};
    bd_tokenizer *t = bd_tokenizer_parse(json, size, "small.json", &err);
    if (t)
        fail_msg("accepted, an error with \"%s\" expected", part);
    if (!strstr(err.message, part))
        fail_msg("error \"%s\", \"%s\" expected", err.message, part);
    if (!strstr(err.message, "small.json"))
        fail_msg("error \"%s\" does not name the file", err.message);
}

// --- refusals ------------------------------------------------------------------------------------

// What bdlm does not do is named when the file is opened.
static void refused_parts(void **state)
{
    (void)state;
    static const struct {
        small_parts p;
        const char *part;
    } cases[] = {
        {{.normalizer = "{\"type\": \"Lowercase\"}"}, "normalizer type \"Lowercase\""},
        {{.normalizer = "{\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"Nmt\"}]}"},
         "\"Nmt\""},
        {{.normalizer = "5"}, "has no \"type\""},
        {{.pre_tokenizer = "null"}, "pre-tokenizer has no ByteLevel"},
        {{.pre_tokenizer = "{\"type\": \"Metaspace\"}"}, "\"Metaspace\""},
        {{.pre_tokenizer =
              "{\"type\": \"Sequence\", \"pretokenizers\": [" BYTE_LEVEL ", {\"type\": "
              "\"Digits\"}]}"},
         "after ByteLevel"},
        {{.pre_tokenizer = "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, \"behavior\": "
                           "\"Isolated\"}"},
         "missing closing parenthesis"},
        {{.pre_tokenizer =
              "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a&&b]\"}, \"behavior\": "
              "\"Isolated\"}"},
         "&&"},
        {{.pre_tokenizer =
              "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"\\\\h\"}, \"behavior\": "
              "\"Isolated\"}"},
         "\\h"},
        {{.pre_tokenizer =
              "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"a{1,2}+\"}, \"behavior\": "
              "\"Isolated\"}"},
         "possessive"},
        {{.pre_tokenizer = "{\"type\": \"Split\", \"pattern\": {}, \"behavior\": \"Isolated\"}"},
         "neither a Regex nor a String"},
        {{.pre_tokenizer =
              "{\"type\": \"Split\", \"pattern\": {\"String\": \"a\"}, \"behavior\": \"X\"}"},
         "split behavior type \"X\""},
        {{.decoder = "null"}, "decoder type \"null\""},
        {{.decoder = "{\"type\": \"WordPiece\"}"}, "\"WordPiece\""},
        {{.decoder = "{\"type\": \"Fuse\"}"}, "decoder has no ByteLevel"},
        {{.post_processor = "{\"type\": \"BertProcessing\"}"}, "\"BertProcessing\""},
        {{.post_processor =
              "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
              "\"<s>\"}}], \"special_tokens\": {}}"},
         "\"<s>\""},
        {{.post_processor =
              "{\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": "
              "\"<s>\"}}], \"special_tokens\": {\"<s>\": {\"ids\": [999]}}}"},
         "not the id of a token"},
        {{.model = "\"byte_fallback\": true, "}, "byte_fallback"},
        {{.model = "\"dropout\": 0.1, "}, "dropout"},
        {{.model = "\"end_of_word_suffix\": \"</w>\", "}, "end_of_word_suffix"},
        {{.model = "\"unk_token\": \"<unk>\", "}, "unk_token"},
        {{.model = "\"ignore_merges\": 1, "}, "ignore_merges"},
        {{.merges = "\"h e\", \"q qq\""}, "\"qq\" is not in the vocabulary"},
        {{.merges = "\"h x\""}, "\"hx\" is not in the vocabulary"},
        {{.merges = "\"h\""}, "merges, entry 0"},
        {{.merges = "[\"h\", \"e\", \"l\"]"}, "merges, entry 0"},
        {{.merges = "[\"h\"]"}, "merges, entry 0"},
        {{.merges = "\"h e\", 5"}, "merges, entry 1"},
        {{.added = "{\"id\": 97, \"content\": \"<t>\"}"}, "already that of \"a\""},
        {{.added = "{\"id\": 97, \"content\": \"b\"}"}, "in the vocabulary it has 98"},
        {{.added = "{\"id\": 300, \"content\": \"<t>\"}, {\"id\": 300, \"content\": \"<u>\"}"},
         "already that of"},
        {{.added = "{\"id\": -1, \"content\": \"<t>\"}"}, "\"id\""},
        {{.added = "{\"id\": 99999999999, \"content\": \"<t>\"}"}, "\"id\""},
        {{.added = "{\"id\": 300}"}, "\"content\""},
        {{.added = "{\"id\": 300, \"content\": \"<t>\", \"lstrip\": \"yes\"}"}, "\"lstrip\""},
        {{.added = "7"}, "added_tokens"},
        {{.made = "he ll hell hello \\u0120w \\u0120wo he"}, "twice"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        small_parts p = small_default, c = cases[i].p;
        bd_text json = {0};
        p.normalizer = c.normalizer ? c.normalizer : p.normalizer;
        p.pre_tokenizer = c.pre_tokenizer ? c.pre_tokenizer : p.pre_tokenizer;
        p.post_processor = c.post_processor ? c.post_processor : p.post_processor;
        p.decoder = c.decoder ? c.decoder : p.decoder;
        p.added = c.added ? c.added : p.added;
        p.model = c.model ? c.model : p.model;
        p.merges = c.merges ? c.merges : p.merges;
        p.made = c.made ? c.made : p.made;
        small_json(&p, &json);
        check_parse_refused(json.data, json.size, cases[i].part);
        bd_text_free(&json);
    }
}

static void refused_files(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"", "small.json"},
        {"{", "small.json"},
        {"[]", "not a JSON object"},
        {"{}", "\"model\" is missing"},
        {"{\"model\": []}", "\"model\""},
        {"{\"model\": {\"type\": \"Unigram\"}}", "\"Unigram\""},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {}}}", "\"merges\" is missing"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": [], \"merges\": []}}", "\"vocab\" is a list"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {}, \"merges\": []}}", "vocabulary is empty"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": -1}, \"merges\": []}}",
         "vocab, entry 0"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": \"1\"}, \"merges\": []}}",
         "vocab, entry 0"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 1.5}, \"merges\": []}}",
         "vocab, entry 1"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 4000000000}, \"merges\": []}}",
         "\"a\""},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 99999999999999999999}, \"merges\": "
         "[]}}",
         "vocab"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 16000000}, \"merges\": []}}",
         "16000000"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 1, \"b\": 1}, \"merges\": []}}",
         "two tokens"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"\\ud800\": 1}, \"merges\": []}}",
         "surrogate"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"\\uZZZZ\": 1}, \"merges\": []}}", "\\u"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"\xff\": 1}, \"merges\": []}}", "not UTF-8"},
        {"{\"model\": {\"type\": \"BPE\", \"vocab\": {\"\x01\": 1}, \"merges\": []}}",
         "does not end"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_parse_refused(cases[i][0], strlen(cases[i][0]), cases[i][1]);
    bd_error err = {0};
    check_refused(bd_tokenizer_open("/nonexistent/tokenizer.json", &err) != NULL, err,
                  "/nonexistent");
    check_refused(bd_tokenizer_open(folder, &err) != NULL, err, "no tokenizer here");
}

// Every beginning of a good file is refused, and bytes changed at random crash nothing.
static void damaged_files(void **state)
{
    (void)state;
    bd_text json = {0};
    bd_error err = {0};
    small_parts p = small_default;
    p.added = "{\"id\": 300, \"content\": \"<t>\", \"special\": true}";
    p.normalizer = "{\"type\": \"NFC\"}";
    small_json(&p, &json);
    for (size_t size = 0; size + 2 < json.size; size += 1 + size % 7)
        assert_null(bd_tokenizer_parse(json.data, size, "small.json", &err));
    uint64_t noise = 3;
    for (int round = 0; round < 3000; round++) {
        char *damaged = malloc(json.size);
        memcpy(damaged, json.data, json.size);
        for (int i = 0; i < 1 + round % 4; i++) {
            size_t at = (size_t)((check_noise(&noise) + 1) / 2 * (float)json.size);
            damaged[at] = (char)(check_noise(&noise) * 127);
        }
        bd_tokenizer *t = bd_tokenizer_parse(damaged, json.size, "small.json", &err);
        if (t) {
            bd_tokens tokens = {0};
            bd_text text = {0};
            if (bd_tokenizer_encode(t, "hello <t> w\u00e9e\u0301", 16, NULL, &tokens, &err))
                bd_tokenizer_decode(t, tokens.ids, tokens.count, false, &text, &err);
            bd_tokens_free(&tokens);
            bd_text_free(&text);
        }
        bd_tokenizer_close(t);
        free(damaged);
    }
    bd_text_free(&json);
}

static void refused_texts(void **state)
{
    (void)state;
    bd_tokenizer *t = small_tokenizer(&small_default);
    bd_tokens tokens = {0};
    bd_error err = {0};
    check_ok(bd_tokenizer_encode(t, "he", 2, NULL, &tokens, &err), err);
    static const char *const texts[] = {"he\xff", "he\xc3", "\xed\xa0\x80", "\xc0\x80",
                                        "\xf4\x90\x80\x80"};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        check_refused(bd_tokenizer_encode(t, texts[i], strlen(texts[i]), NULL, &tokens, &err), err,
                      "not UTF-8 at byte");
    assert_int_equal(tokens.count, 1); // as before
    bd_tokens_free(&tokens);
    bd_tokenizer_close(t);

    // A vocabulary without the byte 'x': an error that names it, or the unknown token if there is
    // one.
    bd_text json = {0};
    small_json(&small_default, &json);
    char *x = strstr(json.data, "\"\\u0078\"");
    memcpy(x, "\"\\u4e78\"", 8);
    t = bd_tokenizer_parse(json.data, json.size, "small.json", &err);
    check_refused(bd_tokenizer_encode(t, "axb", 3, NULL, &tokens, &err), err, "byte 0x78");
    bd_tokenizer_close(t);
    small_parts p = small_default;
    p.model = "\"unk_token\": \"?\", ";
    small_json(&p, &json);
    memcpy(strstr(json.data, "\"\\u0078\""), "\"\\u4e78\"", 8);
    t = bd_tokenizer_parse(json.data, json.size, "small.json", &err);
    check_tokens(t, "axb", "a|?|b");
    bd_tokenizer_close(t);
    bd_text_free(&json);
}

// A pattern that would try all ways to cut a text fails instead of running for ever.
static void runaway_pattern(void **state)
{
    (void)state;
    small_parts p = small_default;
    p.pre_tokenizer =
        "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": "
        "{\"Regex\": \"(?:a|a|aa)+$\"}, \"behavior\": \"Isolated\"}, " BYTE_LEVEL "]}";
    bd_tokenizer *t = small_tokenizer(&p);
    bd_tokens tokens = {0};
    bd_error err = {0};
    char text[201];
    memset(text, 'a', 200);
    text[200] = 'b';
    check_refused(bd_tokenizer_encode(t, text, 201, NULL, &tokens, &err), err, "too many steps");
    bd_tokens_free(&tokens);
    bd_tokenizer_close(t);
}

// --- folders -------------------------------------------------------------------------------------

static void open_folder(void **state)
{
    (void)state;
    small_parts p = small_default;
    p.added =
        "{\"id\": 300, \"content\": \"<end>\", \"special\": true}, {\"id\": 301, \"content\": "
        "\"<pad>\", \"special\": true}";
    write_small(&p);
    write_text(
        "tokenizer_config.json",
        "{\"eos_token\": {\"content\": \"<end>\", \"lstrip\": false}, \"pad_token\": \"<pad>\", "
        "\"bos_token\": null, \"model_max_length\": 1000000000000000019884624838656, "
        "\"chat_template\": [{\"name\": \"tools\", \"template\": \"no\"}, {\"name\": \"default\", "
        "\"template\": \"yes\"}]}");
    bd_error err = {0};
    char hash[BD_SHA256_TEXT];
    bd_tokenizer *t = bd_tokenizer_open(folder, &err);
    check_ok(t != NULL, err);
    assert_int_equal(bd_tokenizer_role(t, BD_ROLE_EOS), 300);
    assert_int_equal(bd_tokenizer_role(t, BD_ROLE_PAD), 301);
    assert_int_equal(bd_tokenizer_role(t, BD_ROLE_BOS), -1);
    assert_int_equal(bd_tokenizer_role(t, BD_ROLE_MASK), -1);
    assert_string_equal(bd_tokenizer_chat_template(t), "yes");
    check_ok(bd_sha256_file(in_folder("tokenizer.json"), hash, &err), err);
    assert_string_equal(bd_tokenizer_identity(t), hash);
    bd_tokenizer_close(t);

    write_text("chat_template.jinja", "newer");
    t = bd_tokenizer_open(folder, &err);
    check_ok(t != NULL, err);
    assert_string_equal(bd_tokenizer_chat_template(t), "newer");
    bd_tokenizer_close(t);
    unlink(in_folder("chat_template.jinja"));

    write_text("tokenizer_config.json", "{\"eos_token\": \"<nothing>\"}");
    check_refused(bd_tokenizer_open(folder, &err) != NULL, err, "\"<nothing>\"");
    write_text("tokenizer_config.json", "{\"eos_token\": 5}");
    check_refused(bd_tokenizer_open(folder, &err) != NULL, err, "\"eos_token\"");
    write_text("tokenizer_config.json", "{\"chat_template\": []}");
    check_refused(bd_tokenizer_open(folder, &err) != NULL, err, "\"default\"");
    unlink(in_folder("tokenizer_config.json"));
}

// Add a mask token, save, open again: the same ids, the file's hash, and only the addition is new.
static void add_and_save(void **state)
{
    (void)state;
    small_parts p = small_default;
    for (int with_added = 0; with_added < 2; with_added++) {
        p.added = with_added ? "{\"id\": 300, \"content\": \"<end>\", \"special\": true}" : "";
        write_small(&p);
        write_text(
            "tokenizer_config.json",
            "{\"model_max_length\": 512, \"pad_token\": \"a\", \"added_tokens_decoder\": {}}");
        bd_error err = {0};
        bd_tokenizer *t = bd_tokenizer_open(folder, &err);
        check_ok(t != NULL, err);
        int32_t mask = bd_tokenizer_add(t, "<|mask|>", true, &err);
        assert_int_equal(mask, with_added ? 301 : 262);
        assert_int_equal(bd_tokenizer_add(t, "<|mask|>", true, &err), mask);
        assert_int_equal(bd_tokenizer_add(t, "hello", false, &err), 259); // a token of the model
        assert_int_equal(bd_tokenizer_add(t, "", true, &err), -1);
        check_ok(bd_tokenizer_set_role(t, BD_ROLE_MASK, mask, &err), err);
        check_refused(bd_tokenizer_set_role(t, BD_ROLE_EOS, 5000, &err), err, "5000");
        check_ok(bd_tokenizer_set_chat_template(t, "{{ x }}", &err), err);
        check_tokens(t, "a<|mask|>hello", "a|<|mask|>|hello");
        char out[BD_PATH];
        snprintf(out, sizeof out, "%s/saved/deep", folder);
        check_ok(bd_tokenizer_save(t, out, &err), err);

        bd_tokenizer *again = bd_tokenizer_open(out, &err);
        check_ok(again != NULL, err);
        assert_string_equal(bd_tokenizer_identity(again), bd_tokenizer_identity(t));
        assert_int_equal(bd_tokenizer_role(again, BD_ROLE_MASK), mask);
        assert_int_equal(bd_tokenizer_role(again, BD_ROLE_PAD), 'a');
        assert_string_equal(bd_tokenizer_chat_template(again), "{{ x }}");
        assert_int_equal(bd_tokenizer_kind(again, mask), BD_TOKEN_SPECIAL);
        assert_int_equal(bd_tokenizer_kind(again, 259), BD_TOKEN_ADDED);
        assert_int_equal(bd_tokenizer_size(again), bd_tokenizer_size(t));
        check_tokens(again, "a<|mask|>hello", "a|<|mask|>|hello");
        json_t *config = bd_json_load(in_folder("saved/deep/tokenizer_config.json"), &err);
        assert_int_equal(json_integer_value(json_object_get(config, "model_max_length")), 512);
        char key[16];
        snprintf(key, sizeof key, "%d", mask);
        json_t *listed = json_object_get(json_object_get(config, "added_tokens_decoder"), key);
        assert_string_equal(json_string_value(json_object_get(listed, "content")), "<|mask|>");
        json_decref(config);
        bd_tokenizer_close(again);
        bd_tokenizer_close(t);
    }
}

// The list of added tokens may be absent or null.
static void add_to_bare_file(void **state)
{
    (void)state;
    static const char *const list[] = {"\"added_tokens\": null, ", ""};
    for (int i = 0; i < 2; i++) {
        bd_text json = {0};
        bd_error err = {0};
        bd_text_print(&json,
                      "{%s\"model\": {\"merges\": [], \"vocab\": {\"a\": 0}, \"type\": \"BPE\"}, "
                      "\"pre_tokenizer\": " BYTE_LEVEL ", \"decoder\": " BYTE_LEVEL "}",
                      list[i]);
        bd_tokenizer *t = bd_tokenizer_parse(json.data, json.size, "bare.json", &err);
        check_ok(t != NULL, err);
        assert_int_equal(bd_tokenizer_add(t, "<x>", false, &err), 1);
        assert_int_equal(bd_tokenizer_add(t, "<y>", false, &err), 2);
        char out[BD_PATH];
        snprintf(out, sizeof out, "%s/bare", folder);
        check_ok(bd_tokenizer_save(t, out, &err), err);
        bd_tokenizer *again = bd_tokenizer_open(out, &err);
        check_ok(again != NULL, err);
        check_tokens(again, "<y>a<x>", "<y>|a|<x>");
        bd_tokenizer_close(again);
        bd_tokenizer_close(t);
        bd_text_free(&json);
    }
}

static void gpt2_files(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_text vocabulary = {0};
    char out[BD_PATH], path[BD_PATH + 32];
    bd_text_add_string(&vocabulary, "{");
    for (int b = 0; b < 256; b++)
        bd_text_print(&vocabulary, "\"\\u%04x\": %d, ", small_character(b), b);
    bd_text_add_string(&vocabulary, "\"he\": 256, \"\\u0120he\": 257, \"<|endoftext|>\": 258}");
    static const char *const names[][2] = {{"encoder.json", "vocab.bpe"},
                                           {"vocab.json", "merges.txt"}};
    for (int i = 0; i < 2; i++) {
        snprintf(out, sizeof out, "%s/pair%d", folder, i);
        check_ok(bd_folder_make(out, &err), err);
        snprintf(path, sizeof path, "%s/%s", out, names[i][0]);
        check_ok(bd_file_write(path, vocabulary.data, vocabulary.size, &err), err);
        static const char merges[] = "#version: 0.2\nh e\r\n\u0120 he\n\n";
        snprintf(path, sizeof path, "%s/%s", out, names[i][1]);
        check_ok(bd_file_write(path, merges, sizeof merges - 1, &err), err);
        bd_tokenizer *t = bd_tokenizer_open(out, &err);
        check_ok(t != NULL, err);
        check_tokens(t, "he he<|endoftext|>she's", "he| he|<|endoftext|>|s|he|'|s");
        assert_int_equal(bd_tokenizer_kind(t, 258), BD_TOKEN_SPECIAL);
        assert_int_equal(bd_tokenizer_role(t, BD_ROLE_EOS), 258);
        snprintf(path, sizeof path, "%s/json", out);
        check_ok(bd_tokenizer_save(t, path, &err), err);
        bd_tokenizer *again = bd_tokenizer_open(path, &err);
        check_ok(again != NULL, err);
        check_tokens(again, "he he<|endoftext|>she's", "he| he|<|endoftext|>|s|he|'|s");
        bd_tokenizer_close(again);
        bd_tokenizer_close(t);
        snprintf(path, sizeof path, "%s/%s", out, names[i][1]);
        check_ok(bd_file_write(path, "#version: 0.2\nh\n", 16, &err), err);
        check_refused(bd_tokenizer_open(out, &err) != NULL, err, ":2: \"h\"");
    }
    bd_text_free(&vocabulary);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refused_parts),   cmocka_unit_test(refused_files),
        cmocka_unit_test(damaged_files),   cmocka_unit_test(refused_texts),
        cmocka_unit_test(runaway_pattern), cmocka_unit_test(open_folder),
        cmocka_unit_test(add_and_save),    cmocka_unit_test(add_to_bare_file),
        cmocka_unit_test(gpt2_files),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
