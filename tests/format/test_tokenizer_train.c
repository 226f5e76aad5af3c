/* Learning a byte-level BPE: against a slow and plain version of the same rule, and as a whole. */
#include <unistd.h>

#include "base/file.h"
#include "format/json.h"
#include "format/tokenizer_small.h"
#include "format/tokenizer_train.h"

static bd_tokenizer *train(const bd_tokenizer_recipe *recipe, const char *const *texts, int count)
{
    bd_error err = {0};
    bd_tokenizer_trainer *trainer = bd_tokenizer_trainer_create(recipe, &err);
    check_ok(trainer != NULL, err);
    for (int i = 0; i < count; i++)
        check_ok(bd_tokenizer_trainer_feed(trainer, texts[i], strlen(texts[i]), &err), err);
    bd_tokenizer *tokenizer = bd_tokenizer_trainer_finish(trainer, NULL, &err);
    check_ok(tokenizer != NULL, err);
    bd_tokenizer_trainer_destroy(trainer);
    return tokenizer;
}

// --- the rule, told plainly ----------------------------------------------------------------------

enum { MOST_WORDS = 400, MOST_LENGTH = 24 };

typedef struct {
    int ids[MOST_WORDS][MOST_LENGTH];
    int length[MOST_WORDS], count;
} plain_words;

// The pair that lies in the words most often; of equal ones the one with the smallest ids.
static int64_t best_pair(const plain_words *w, int vocabulary, int *left, int *right)
{
    int64_t *counts = calloc((size_t)vocabulary * (size_t)vocabulary, sizeof *counts), best = 0;
    for (int i = 0; i < w->count; i++)
        for (int k = 0; k + 1 < w->length[i]; k++)
            counts[w->ids[i][k] * vocabulary + w->ids[i][k + 1]]++;
    for (int a = 0; a < vocabulary; a++)
        for (int b = 0; b < vocabulary; b++)
            if (counts[a * vocabulary + b] > best) {
                best = counts[a * vocabulary + b];
                *left = a;
                *right = b;
            }
    free(counts);
    return best;
}

static void merge_plainly(plain_words *w, int left, int right, int merged)
{
    for (int i = 0; i < w->count; i++) {
        int to = 0, *ids = w->ids[i];
        for (int k = 0; k < w->length[i]; k++) {
            if (k + 1 < w->length[i] && ids[k] == left && ids[k + 1] == right) {
                ids[to++] = merged;
                k++;
            } else {
                ids[to++] = ids[k];
            }
        }
        w->length[i] = to;
    }
}

// The merges are those of the plain rule, in its order.
static void same_as_plain_rule(void **state)
{
    (void)state;
    static plain_words words;
    for (int round = 0; round < 12; round++) {
        uint64_t noise = (uint64_t)round * 77 + 5;
        int letters = round % 3 == 0 ? 2 : round % 3 == 1 ? 4 : 9; // few letters: long runs of one
        bd_text text = {0};
        words.count = MOST_WORDS;
        for (int i = 0; i < MOST_WORDS; i++) {
            words.length[i] = 2 + (int)((check_noise(&noise) + 1) * 10);
            bd_text_add_byte(&text, ' ');
            for (int k = 0; k < words.length[i]; k++)
                bd_text_add_byte(
                    &text, (char)('a' + (int)((check_noise(&noise) + 1) / 2 * (float)letters)));
        }
        bd_tokenizer_recipe recipe = bd_tokenizer_recipe_default();
        recipe.vocabulary = 340;
        recipe.least_count = 3;
        const char *texts[] = {text.data};
        bd_tokenizer *t = train(&recipe, texts, 1);
        size_t at = 0;
        for (int i = 0; i < MOST_WORDS; i++) { // every word as the ids of its bytes, the space too
            size_t end = at + (size_t)words.length[i] + 1;
            words.length[i] = 0;
            for (; at < end; at++)
                words.ids[i][words.length[i]++] = bd_tokenizer_find(t, text.data + at, 1);
        }
        // No two ways make one token here, or the plain rule would have to know them too.
        int64_t merges = bd_tokenizer_merge_count(t);
        int next = 256;
        for (int64_t rank = 0; rank < merges; rank++) {
            int left = -1, right = -1;
            int32_t got_left, got_right;
            assert_true(best_pair(&words, 400, &left, &right) >= 3);
            bd_tokenizer_merge(t, rank, &got_left, &got_right);
            assert_int_equal(got_left, left);
            assert_int_equal(got_right, right);
            size_t left_size, right_size, size;
            const char *a = bd_tokenizer_token(t, left, &left_size),
                       *b = bd_tokenizer_token(t, right, &right_size);
            char both[200];
            memcpy(both, a, left_size);
            memcpy(both + left_size, b, right_size);
            size = left_size + right_size;
            int merged = bd_tokenizer_find(t, both, size);
            assert_true(merged >= 256 && merged <= next);
            next += merged == next;
            merge_plainly(&words, left, right, merged);
        }
        assert_int_equal(bd_tokenizer_size(t), next + 4);
        int left, right;
        if (next < 336)
            assert_true(best_pair(&words, 400, &left, &right) < 3);
        bd_text_free(&text);
        bd_tokenizer_close(t);
    }
}

// --- as a whole ----------------------------------------------------------------------------------

static const char *const story[] = {
    "The cat sat on the mat. The cat sat on the hat, and the hat was flat!\n\nThat's that.",
    "  12 34 5678 \t caf\u00e9 cafe\u0301 \u4e2d\u6587 \U0001f642\U0001f642\r\n it's the cat's hat",
    "the the the cat cat hat hat hat sat",
};

static void by_hand(void **state)
{
    (void)state;
    bd_tokenizer_recipe recipe = bd_tokenizer_recipe_default();
    const char *texts[] = {"abab ab", "ab b"};
    recipe.vocabulary = 256 + 4 + 10;
    bd_tokenizer *t = train(&recipe, texts, 2);
    // "ab" lies there 4 times: first. Then nothing twice but " "+"ab"? once. Then it ends.
    assert_int_equal(bd_tokenizer_merge_count(t), 1);
    assert_int_equal(bd_tokenizer_size(t), 256 + 1 + 4);
    check_tokens(t, "abab ab b", "ab|ab| |ab| |b");
    // Bytes are numbered by the character that spells them: "!" is first, the space comes after
    // U+00FF.
    assert_int_equal(bd_tokenizer_find(t, "!", 1), 0);
    assert_int_equal(bd_tokenizer_find(t, "~", 1), 93);
    assert_int_equal(bd_tokenizer_find(t, " ", 1), 220);
    assert_int_equal(bd_tokenizer_role(t, BD_ROLE_PAD), 257);
    assert_int_equal(bd_tokenizer_role(t, BD_ROLE_EOS), 259);
    assert_int_equal(bd_tokenizer_role(t, BD_ROLE_MASK), 260);
    assert_int_equal(bd_tokenizer_role(t, BD_ROLE_BOS), -1);
    bd_tokenizer_close(t);
}

// Words do not cross the pattern's borders, and lengths are kept.
static void limits(void **state)
{
    (void)state;
    bd_tokenizer_recipe recipe = bd_tokenizer_recipe_default();
    recipe.vocabulary = 400;
    recipe.longest_token = 3;
    bd_tokenizer *t = train(&recipe, story, 3);
    for (int32_t id = 256; id < bd_tokenizer_size(t) - 4; id++) {
        size_t size;
        const char *token = bd_tokenizer_token(t, id, &size);
        assert_true(size == 2 || size == 3);
        assert_null(memchr(token + 1, ' ', size - 1));
    }
    bd_tokenizer_close(t);
    recipe.longest_token = 0;
    recipe.vocabulary = 256 + 4 + 5; // just so many
    t = train(&recipe, story, 3);
    assert_int_equal(bd_tokenizer_size(t), 265);
    bd_tokenizer_close(t);
    recipe.vocabulary = 260;
    t = train(&recipe, story, 3);
    assert_int_equal(bd_tokenizer_merge_count(t), 0);
    bd_tokenizer_close(t);
}

static void same_in_any_order(void **state)
{
    (void)state;
    bd_tokenizer_recipe recipe = bd_tokenizer_recipe_default();
    recipe.vocabulary = 320;
    const char *const reversed[] = {story[2], story[1], story[0]};
    bd_tokenizer *a = train(&recipe, story, 3), *b = train(&recipe, story, 3),
                 *c = train(&recipe, reversed, 3);
    assert_string_equal(bd_tokenizer_identity(a), bd_tokenizer_identity(b));
    assert_string_equal(bd_tokenizer_identity(a), bd_tokenizer_identity(c));
    assert_true(bd_tokenizer_merge_count(a) > 20);
    bd_tokenizer_close(a);
    bd_tokenizer_close(b);
    bd_tokenizer_close(c);
}

static void saved_and_opened(void **state)
{
    (void)state;
    char folder[] = "/tmp/bdlm-train-XXXXXX";
    assert_non_null(mkdtemp(folder));
    bd_error err = {0};
    static const char *const special[] = {"<end>", "<mask>", "<user>"};
    bd_tokenizer_recipe recipe = bd_tokenizer_recipe_default();
    recipe.vocabulary = 330;
    recipe.special = special;
    recipe.special_count = 3;
    memset(recipe.roles, 0, sizeof recipe.roles);
    recipe.roles[BD_ROLE_EOS] = "<end>";
    recipe.roles[BD_ROLE_MASK] = "<mask>";
    recipe.pattern = "\\p{L}+|\\p{N}{1,3}|[^\\p{L}\\p{N}]+";
    bd_tokenizer *t = train(&recipe, story, 3);
    check_ok(bd_tokenizer_save(t, folder, &err), err);
    bd_tokenizer *again = bd_tokenizer_open(folder, &err);
    check_ok(again != NULL, err);
    assert_string_equal(bd_tokenizer_identity(t), bd_tokenizer_identity(again));
    assert_int_equal(bd_tokenizer_role(again, BD_ROLE_MASK), bd_tokenizer_size(t) - 2);
    assert_string_equal(bd_tokenizer_chat_template(again), bd_chatml_template);
    assert_string_equal(bd_tokenizer_pattern(again), recipe.pattern);
    for (int i = 0; i < 3; i++) {
        bd_tokens tokens = {0}, same = {0};
        bd_text back = {0};
        size_t size = strlen(story[i]);
        check_ok(bd_tokenizer_encode(t, story[i], size, NULL, &tokens, &err), err);
        check_ok(bd_tokenizer_encode(again, story[i], size, NULL, &same, &err), err);
        assert_int_equal(tokens.count, same.count);
        assert_memory_equal(tokens.ids, same.ids, (size_t)same.count * sizeof *same.ids);
        assert_true(tokens.count < (int64_t)size);
        check_ok(bd_tokenizer_decode(again, same.ids, same.count, false, &back, &err), err);
        if (i != 1) // there NFC joined two characters
            assert_string_equal(back.data, story[i]);
        bd_text_free(&back);
        bd_tokens_free(&tokens);
        bd_tokens_free(&same);
    }
    bd_tokenizer_close(t);
    bd_tokenizer_close(again);
    check_ok(bd_folder_remove(folder, &err), err);
}

// The file is written the way other libraries expect it.
static void file_shape(void **state)
{
    (void)state;
    char folder[] = "/tmp/bdlm-train-XXXXXX", path[BD_PATH];
    assert_non_null(mkdtemp(folder));
    bd_error err = {0};
    bd_tokenizer_recipe recipe = bd_tokenizer_recipe_default();
    recipe.vocabulary = 300;
    bd_tokenizer *t = train(&recipe, story, 3);
    check_ok(bd_tokenizer_save(t, folder, &err), err);
    snprintf(path, sizeof path, "%s/tokenizer.json", folder);
    json_t *root = bd_json_load(path, &err);
    check_ok(root != NULL, err);
    json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab");
    assert_string_equal(json_string_value(json_object_get(model, "type")), "BPE");
    assert_int_equal(json_object_size(vocab), bd_tokenizer_size(t) - 4);
    assert_int_equal(json_array_size(json_object_get(model, "merges")),
                     bd_tokenizer_merge_count(t));
    assert_int_equal(json_integer_value(json_object_get(vocab, "\u0120")), 220);
    assert_int_equal(json_array_size(json_object_get(root, "added_tokens")), 4);
    json_t *pre = json_object_get(root, "pre_tokenizer");
    assert_string_equal(json_string_value(json_object_get(pre, "type")), "Sequence");
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(root, "normalizer"), "type")), "NFC");
    json_decref(root);
    bd_tokenizer_close(t);
    check_ok(bd_folder_remove(folder, &err), err);
}

static void refused_recipes(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_tokenizer_recipe recipe = bd_tokenizer_recipe_default();
    recipe.vocabulary = 259;
    check_refused(bd_tokenizer_trainer_create(&recipe, &err) != NULL, err, "259 tokens");
    recipe = bd_tokenizer_recipe_default();
    recipe.least_count = 0;
    check_refused(bd_tokenizer_trainer_create(&recipe, &err) != NULL, err, "least count 0");
    recipe = bd_tokenizer_recipe_default();
    recipe.roles[BD_ROLE_BOS] = "<s>";
    check_refused(bd_tokenizer_trainer_create(&recipe, &err) != NULL, err, "\"<s>\"");
    recipe = bd_tokenizer_recipe_default();
    static const char *const twice[] = {"<a>", "<b>", "<a>"};
    recipe.special = twice;
    recipe.special_count = 3;
    check_refused(bd_tokenizer_trainer_create(&recipe, &err) != NULL, err, "listed twice");
    recipe = bd_tokenizer_recipe_default();
    recipe.pattern = "(";
    check_refused(bd_tokenizer_trainer_create(&recipe, &err) != NULL, err, "parenthesis");
    recipe = bd_tokenizer_recipe_default();
    bd_tokenizer_trainer *trainer = bd_tokenizer_trainer_create(&recipe, &err);
    check_refused(bd_tokenizer_trainer_feed(trainer, "ab\xff", 3, &err), err,
                  "not UTF-8 at byte 2");
    bd_tokenizer *empty =
        bd_tokenizer_trainer_finish(trainer, NULL, &err); // of no text: bytes alone
    check_ok(empty != NULL, err);
    assert_int_equal(bd_tokenizer_size(empty), 260);
    bd_tokenizer_close(empty);
    bd_tokenizer_trainer_destroy(trainer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_as_plain_rule),
        cmocka_unit_test(by_hand),
        cmocka_unit_test(limits),
        cmocka_unit_test(same_in_any_order),
        cmocka_unit_test(saved_and_opened),
        cmocka_unit_test(file_shape),
        cmocka_unit_test(refused_recipes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
