/* Small tokenizers whose answers are computed by hand: merging, splitting, added tokens, spans,
 * decoding. What the files of real models give is in test_tokenizer_golden.c. */
#include <pthread.h>

#include "base/progress.h"
#include "format/tokenizer_small.h"

// --- merging -------------------------------------------------------------------------------------

static void merges_by_rank(void **state)
{
    (void)state;
    bd_tokenizer *t = small_tokenizer(&small_default);
    check_tokens(t, "", "");
    check_tokens(t, "hello", "hello");
    check_tokens(t, "hello world", "hello| wo|r|l|d");
    check_tokens(t, "hell", "hell");
    check_tokens(t, "helo", "he|l|o");
    check_tokens(t, "llll", "ll|ll");
    check_tokens(t, "lll", "ll|l"); // the leftmost of equal pairs
    check_tokens(t, "helllo", "hell|l|o");
    assert_int_equal(bd_tokenizer_size(t), 262);
    assert_int_equal(bd_tokenizer_find(t, "hello", 5), 259);
    assert_int_equal(bd_tokenizer_find(t, " wo", 3), 261);
    assert_int_equal(bd_tokenizer_find(t, "\n", 1), 10);
    assert_int_equal(bd_tokenizer_find(t, "nothing", 7), -1);
    assert_int_equal(bd_tokenizer_kind(t, 259), BD_TOKEN_NORMAL);
    assert_int_equal(bd_tokenizer_kind(t, 262), BD_TOKEN_NONE);
    assert_int_equal(bd_tokenizer_kind(t, -1), BD_TOKEN_NONE);
    assert_int_equal(bd_tokenizer_merge_count(t), 6);
    int32_t left, right;
    bd_tokenizer_merge(t, 3, &left, &right);
    assert_int_equal(left, 258);
    assert_int_equal(right, 'o');
    bd_text spelled = {0};
    bd_tokenizer_spell(t, 261, &spelled);
    assert_string_equal(spelled.data, "\u0120wo");
    assert_true(strstr(bd_tokenizer_pattern(t), "\\p{L}") != NULL);
    bd_text_free(&spelled);
    bd_tokenizer_close(t);
}

// All 256 bytes are tokens, whatever character they are spelled with.
static void every_byte(void **state)
{
    (void)state;
    bd_tokenizer *t = small_tokenizer(&small_default);
    for (int b = 0; b < 256; b++) {
        char byte = (char)b;
        size_t size;
        assert_int_equal(bd_tokenizer_find(t, &byte, 1), b);
        const char *token = bd_tokenizer_token(t, b, &size);
        assert_int_equal(size, 1);
        assert_int_equal((uint8_t)token[0], b);
    }
    bd_tokenizer_close(t);
}

// A pair whose right side grew in the meantime waits for the rank of what it has become: "a" and
// "bc" come after "bc" and "d", though "a" and "b" came before.
static void grown_pairs(void **state)
{
    (void)state;
    small_parts p = small_default;
    p.merges = "\"b c\", \"a b\", \"bc d\", \"a bc\"";
    p.made = "bc ab bcd abc";
    bd_tokenizer *t = small_tokenizer(&p);
    check_tokens(t, "abcd", "a|bcd");
    check_tokens(t, "abc", "abc");
    check_tokens(t, "abab", "ab|ab");
    bd_tokenizer_close(t);
}

static void whole_words(void **state)
{
    (void)state;
    small_parts p = small_default;
    p.made = "he ll hell hello \\u0120w \\u0120wo xyz";
    bd_tokenizer *t = small_tokenizer(&p);
    check_tokens(t, "xyz", "x|y|z"); // no merge makes it
    bd_tokenizer_close(t);
    p.model = "\"ignore_merges\": true, ";
    t = small_tokenizer(&p);
    check_tokens(t, "xyz", "xyz");
    check_tokens(t, "xyzz", "x|y|z|z");
    bd_tokenizer_close(t);
}

// A text as long as a book in one word takes about as long as a book, not its square.
static void long_words(void **state)
{
    (void)state;
    enum { SIZE = 1 << 20 };
    bd_tokenizer *t = small_tokenizer(&small_default);
    char *text = malloc(SIZE);
    bd_error err = {0};
    bd_tokens tokens = {0};
    memset(text, 'l', SIZE);
    double start = bd_seconds();
    check_ok(bd_tokenizer_encode(t, text, SIZE, NULL, &tokens, &err), err);
    assert_int_equal(tokens.count, SIZE / 2);
    memset(text, ' ', SIZE);
    check_ok(bd_tokenizer_encode(t, text, SIZE, NULL, &tokens, &err), err);
    assert_int_equal(tokens.count, SIZE / 2 + SIZE);
    assert_true(bd_seconds() - start < 20);
    bd_tokens_free(&tokens);
    free(text);
    bd_tokenizer_close(t);
}

// The cache of words must not mix up words, and repeats give the same.
static void repeated_words(void **state)
{
    (void)state;
    bd_tokenizer *t = small_tokenizer(&small_default);
    bd_error err = {0};
    bd_text text = {0};
    uint64_t noise = 5;
    for (int i = 0; i < 200000; i++)
        bd_text_print(&text, "%c", "helo w1"[(int)((check_noise(&noise) + 1) * 3.4999f)]);
    bd_tokens once = {0}, twice = {0};
    check_ok(bd_tokenizer_encode(t, text.data, text.size, NULL, &once, &err), err);
    check_ok(bd_tokenizer_encode(t, text.data, text.size, NULL, &twice, &err), err);
    assert_int_equal(once.count, twice.count);
    assert_memory_equal(once.ids, twice.ids, (size_t)once.count * sizeof *once.ids);
    bd_text back = {0};
    check_ok(bd_tokenizer_decode(t, once.ids, once.count, false, &back, &err), err);
    assert_int_equal(back.size, text.size);
    assert_memory_equal(back.data, text.data, text.size);
    bd_text_free(&back);
    bd_text_free(&text);
    bd_tokens_free(&once);
    bd_tokens_free(&twice);
    bd_tokenizer_close(t);
}

// --- splitting -----------------------------------------------------------------------------------

#define SPLIT(pattern, behavior, invert)                                                           \
    "{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", \"pattern\": " pattern     \
    ", \"behavior\": \"" behavior "\", \"invert\": " invert "}, " BYTE_LEVEL "]}"

// With every pair of letters merged, tokens show where words end.
static void split_behaviors(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {SPLIT("{\"String\": \"-\"}", "Isolated", "false"), "--ab-cd", "-|-|ab|-|cd"},
        {SPLIT("{\"String\": \"-\"}", "Removed", "false"), "--ab-cd", "ab|cd"},
        {SPLIT("{\"String\": \"-\"}", "Contiguous", "false"), "--ab-cd", "--|ab|-|cd"},
        {SPLIT("{\"String\": \"-\"}", "MergedWithPrevious", "false"), "ab-cd--", "ab-|cd-|-"},
        {SPLIT("{\"String\": \"-\"}", "MergedWithNext", "false"), "--ab-cd", "-|-ab|-cd"},
        {SPLIT("{\"Regex\": \"[a-d]+\"}", "Isolated", "false"), "--ab-cd", "--|ab|-|cd"},
        {SPLIT("{\"Regex\": \"[a-d]+\"}", "Removed", "true"), "--ab-cd", "ab|cd"},
        {SPLIT("{\"Regex\": \"x*\"}", "Isolated", "false"), "abcd",
         "a|b|c|d"}, // empty matches cut too
        {SPLIT("{\"String\": \".\"}", "Isolated", "false"), "ab.cd", "ab|.|cd"},
        {SPLIT("{\"Regex\": \"\\\\p{N}{1,3}\"}", "Isolated", "false"), "1111111ab", "111|111|1|ab"},
        {SPLIT("{\"Regex\": \"\\\\u0061b\"}", "Removed", "false"), "ab-cdab", "-cd"},
        {SPLIT("{\"Regex\": \"(?m)a.\"}", "Removed", "false"), "a\nb", "b"},
        {SPLIT("{\"Regex\": \"^b\"}", "Removed", "false"), "a\nb", "a\n"},
        {SPLIT("{\"Regex\": \"\\\\w+\"}", "Removed", "false"), "ab\u00e9\u0301_\u0663\u00b2-", "-"},
        {SPLIT("{\"Regex\": \"\\\\bb\"}", "Removed", "false"), "ab bb \u0301b",
         "ab |b \xcc\x81\x62"},
        {SPLIT("{\"Regex\": \"\\\\s\"}", "Removed", "false"), "a\u180eb\u00a0\xc2\x85\u3000",
         "a\xe1\xa0\x8e\x62"},
        {SPLIT("{\"Regex\": \"[[:punct:]]\"}", "Removed", "false"), "a-$\u20acb", "a|b"},
        {"{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\", "
         "\"individual_digits\": true}, " BYTE_LEVEL "]}",
         "ab11", "ab|1|1"},
        {"{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Digits\"}, " BYTE_LEVEL "]}",
         "ab11", "ab|11"},
        {"{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Punctuation\", \"behavior\": "
         "\"Contiguous\"}, " BYTE_LEVEL "]}",
         "ab--cd", "ab|--|cd"},
        {"{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Whitespace\"}, " BYTE_LEVEL
         "]}",
         "ab -- cd", "ab|--|cd"},
        {"{\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"WhitespaceSplit\"}, " BYTE_LEVEL
         "]}",
         "ab--  cd", "ab--|cd"},
        {"{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": false}", "ab",
         " ab"},
        {"{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": false}", " ab",
         " ab"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        small_parts p = small_default;
        p.pre_tokenizer = cases[i][0];
        // The words as they come out: whole words are tokens when they are in the vocabulary.
        p.model = "\"ignore_merges\": true, ";
        p.merges = "";
        p.made = "ab cd -- ab- cd- -ab -cd ab-- 11 111 ab11 ab-cd --ab -cdab a\\u010a \\u0120ab "
                 "ab\\u0120 b\\u0120\\u00cc\\u0123b a\\u00e1\\u0142\\u0130b ab--\\u0120\\u0120cd";
        bd_tokenizer *t = small_tokenizer(&p);
        check_tokens(t, cases[i][1], cases[i][2]);
        bd_tokenizer_close(t);
    }
}

// --- added tokens --------------------------------------------------------------------------------

#define ADDED(id, text, flags) "{\"id\": " id ", \"content\": \"" text "\"" flags "}"
#define PLAIN                  ", \"normalized\": false, \"special\": true"

static void added_tokens(void **state)
{
    (void)state;
    static const char *const cases[][3] = {
        {ADDED("300", "<t>", PLAIN), "a<t>b<t><t", "a|<t>|b|<t>|<|t"},
        {ADDED("300", "<t>", PLAIN) "," ADDED("301", "<t><t>", PLAIN), "<t><t><t>", "<t><t>|<t>"},
        {ADDED("301", "<tx", PLAIN) "," ADDED("300", "<t", PLAIN), "<t<tx<", "<t|<tx|<"},
        {ADDED("300", "ab", PLAIN ", \"single_word\": true"), "ab xab ab", "ab| |x|a|b| |ab"},
        {ADDED("300", "ab", PLAIN ", \"single_word\": true"), "ab\u00e9 \u00e9ab ab.",
         "a|b|\xc3|\xa9| |\xc3|\xa9|a|b| |ab|."},
        {ADDED("300", "[M]", PLAIN ", \"lstrip\": true"), "a  [M] b", "a|[M]| |b"},
        {ADDED("300", "[M]", PLAIN ", \"rstrip\": true"), "a [M]\u3000 b", "a| |[M]|b"},
        {ADDED("104", "h", PLAIN), "hello",
         "h|e|ll|o"}, // a token of the model becomes one of these
        // U+1E0B is d with a dot, U+0307 the dot
        {ADDED("300", "\u1e0b", ", \"normalized\": true"), "d\u0307x", "\u1e0b|x"},
        {ADDED("300", "\u1e0b", PLAIN), "d\u0307x\u1e0b", "\xe1|\xb8|\x8b|x|\u1e0b"},
        {ADDED("300", "d\u0307", ", \"normalized\": true"), "\u1e0bx", "d\u0307|x"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        small_parts p = small_default;
        p.normalizer = "{\"type\": \"NFC\"}";
        p.added = cases[i][0];
        bd_tokenizer *t = small_tokenizer(&p);
        check_tokens(t, cases[i][1], cases[i][2]);
        bd_tokenizer_close(t);
    }
}

static void special_as_text(void **state)
{
    (void)state;
    small_parts p = small_default;
    p.added = ADDED("300", "<s>", PLAIN) "," ADDED("301", "<t>", "");
    bd_tokenizer *t = small_tokenizer(&p);
    bd_text got = {0};
    bd_encode_options options = {.special_as_text = true};
    small_tokens(t, "<s><t>", &options, &got);
    assert_string_equal(got.data, "<|s|>|<t>");
    assert_int_equal(bd_tokenizer_kind(t, 300), BD_TOKEN_SPECIAL);
    assert_int_equal(bd_tokenizer_kind(t, 301), BD_TOKEN_ADDED);
    assert_int_equal(bd_tokenizer_kind(t, 299), BD_TOKEN_NONE);
    assert_int_equal(bd_tokenizer_size(t), 302);
    bd_text_free(&got);
    bd_tokenizer_close(t);
}

static void automatic_tokens(void **state)
{
    (void)state;
    small_parts p = small_default;
    p.added = ADDED("300", "<s>", PLAIN) "," ADDED("301", "</s>", PLAIN);
    p.post_processor =
        "{\"type\": \"Sequence\", \"processors\": [" BYTE_LEVEL
        ", {\"type\": \"TemplateProcessing\", "
        "\"single\": [{\"SpecialToken\": {\"id\": \"<s>\", \"type_id\": 0}}, {\"Sequence\": "
        "{\"id\": \"A\", "
        "\"type_id\": 0}}, {\"SpecialToken\": {\"id\": \"</s>\", \"type_id\": 0}}], \"pair\": [], "
        "\"special_tokens\": {\"<s>\": {\"id\": \"<s>\", \"ids\": [300], \"tokens\": [\"<s>\"]}, "
        "\"</s>\": {\"id\": \"</s>\", \"ids\": [301], \"tokens\": [\"</s>\"]}}}]}";
    bd_tokenizer *t = small_tokenizer(&p);
    bd_text got = {0};
    bd_encode_options options = {.add_special = true};
    small_tokens(t, "he", &options, &got);
    assert_string_equal(got.data, "<s>|he|</s>");
    small_tokens(t, "he", NULL, &got);
    assert_string_equal(got.data, "he");
    bd_text_free(&got);
    bd_tokenizer_close(t);
}

// --- spans ---------------------------------------------------------------------------------------

static void check_spans(const bd_tokenizer *t, const char *text, const char *want)
{
    bd_tokens tokens = {0};
    bd_text got = {0};
    bd_error err = {0};
    bd_encode_options options = {.spans = true};
    check_ok(bd_tokenizer_encode(t, text, strlen(text), &options, &tokens, &err), err);
    bd_text_add_string(&got, "");
    for (int64_t i = 0; i < tokens.count; i++)
        bd_text_print(&got, "%s%lld-%lld", i ? " " : "", (long long)tokens.spans[i].begin,
                      (long long)tokens.spans[i].end);
    if (strcmp(got.data, want) != 0)
        fail_msg("\"%s\": spans %s, wanted %s", text, got.data, want);
    bd_tokens_free(&tokens);
    bd_text_free(&got);
}

static void spans(void **state)
{
    (void)state;
    small_parts p = small_default;
    p.normalizer = "{\"type\": \"NFC\"}";
    p.added = ADDED("300", "<s>", PLAIN ", \"lstrip\": true");
    bd_tokenizer *t = small_tokenizer(&p);
    check_spans(t, "hello world", "0-5 5-8 8-9 9-10 10-11");
    check_spans(t, "he <s>he", "0-2 2-6 6-8");
    // U+00E9 is two bytes and two tokens; written as e and U+0301 it is three bytes.
    check_spans(t, "he\u00e9o", "0-2 2-3 3-4 4-5");
    check_spans(t, "hee\u0301o", "0-2 2-5 2-5 5-6");
    check_spans(t, "<s>e\u0301<s>he", "0-3 3-6 3-6 6-9 9-11");
    bd_tokenizer_close(t);
    p = small_default;
    p.pre_tokenizer = "{\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"use_regex\": true}";
    t = small_tokenizer(&p);
    check_spans(t, "wohe", "0-2 2-4"); // " wo" without the space that is not there
    bd_tokenizer_close(t);
}

// --- decoding ------------------------------------------------------------------------------------

static void decoding(void **state)
{
    (void)state;
    small_parts p = small_default;
    p.added = ADDED("300", "<s>", PLAIN);
    bd_tokenizer *t = small_tokenizer(&p);
    // hello, <s>, the first two bytes of a three-byte character, "h", its last byte, an unused id
    int32_t ids[] = {259, 300, 0xe4, 0xb8, 'h', 0xad, 299, 100000, -5};
    bd_text out = {0};
    bd_error err = {0};
    check_ok(bd_tokenizer_decode(t, ids, 9, false, &out, &err), err);
    assert_string_equal(out.data, "hello<s>\ufffdh\ufffd");
    bd_text_clear(&out);
    check_ok(bd_tokenizer_decode(t, ids, 9, true, &out, &err), err);
    assert_string_equal(out.data, "hello\ufffdh\ufffd");
    bd_text_clear(&out);

    bd_token_stream stream = {0};
    int32_t whole[] = {0xe4, 0xb8, 0xad, 0xf0, 0x9f};
    for (int i = 0; i < 5; i++) {
        check_ok(bd_token_stream_add(&stream, t, whole[i], &out, &err), err);
        assert_int_equal(out.size, i < 2 ? 0 : 3);
    }
    check_ok(bd_token_stream_finish(&stream, &out, &err), err);
    assert_string_equal(out.data, "\u4e2d\ufffd");
    bd_text_free(&out);
    bd_tokenizer_close(t);
}

// Streaming any ids gives what decoding them at once gives.
static void stream_of_noise(void **state)
{
    (void)state;
    bd_tokenizer *t = small_tokenizer(&small_default);
    bd_error err = {0};
    uint64_t noise = 17;
    for (int round = 0; round < 2000; round++) {
        int32_t ids[12];
        bd_text whole = {0}, pieces = {0};
        bd_token_stream stream = {0};
        for (int i = 0; i < 12; i++) {
            // mostly bytes that begin or continue characters
            ids[i] = 128 + (int32_t)((check_noise(&noise) + 1) * 67);
            check_ok(bd_token_stream_add(&stream, t, ids[i], &pieces, &err), err);
        }
        check_ok(bd_token_stream_finish(&stream, &pieces, &err), err);
        check_ok(bd_tokenizer_decode(t, ids, 12, false, &whole, &err), err);
        assert_string_equal(pieces.data, whole.data);
        bd_text_free(&whole);
        bd_text_free(&pieces);
    }
    bd_tokenizer_close(t);
}

// --- many threads --------------------------------------------------------------------------------

typedef struct {
    const bd_tokenizer *tokenizer;
    const bd_text *text;
    const bd_tokens *want;
    bool same;
} thread_job;

static void *encode_again(void *context)
{
    thread_job *job = context;
    bd_error err = {0};
    job->same = true;
    for (int i = 0; i < 20; i++) {
        bd_tokens tokens = {0};
        job->same =
            bd_tokenizer_encode(job->tokenizer, job->text->data, job->text->size, NULL, &tokens,
                                &err) &&
            tokens.count == job->want->count &&
            memcmp(tokens.ids, job->want->ids, (size_t)tokens.count * sizeof *tokens.ids) == 0 &&
            job->same;
        bd_tokens_free(&tokens);
    }
    return NULL;
}

static void threads(void **state)
{
    (void)state;
    bd_tokenizer *t = small_tokenizer(&small_default);
    bd_text text = {0};
    bd_tokens want = {0};
    bd_error err = {0};
    for (int i = 0; i < 2000; i++)
        bd_text_print(&text, "hello %d world ", i);
    check_ok(bd_tokenizer_encode(t, text.data, text.size, NULL, &want, &err), err);
    pthread_t thread[4];
    thread_job job[4];
    for (int i = 0; i < 4; i++) {
        job[i] = (thread_job){t, &text, &want, false};
        assert_int_equal(pthread_create(&thread[i], NULL, encode_again, &job[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(thread[i], NULL);
        assert_true(job[i].same);
    }
    bd_tokens_free(&want);
    bd_text_free(&text);
    bd_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(merges_by_rank),  cmocka_unit_test(every_byte),
        cmocka_unit_test(grown_pairs),     cmocka_unit_test(whole_words),
        cmocka_unit_test(long_words),      cmocka_unit_test(repeated_words),
        cmocka_unit_test(split_behaviors), cmocka_unit_test(added_tokens),
        cmocka_unit_test(special_as_text), cmocka_unit_test(automatic_tokens),
        cmocka_unit_test(spans),           cmocka_unit_test(decoding),
        cmocka_unit_test(stream_of_noise), cmocka_unit_test(threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
