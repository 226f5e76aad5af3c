/* JSONL conversations to documents: what is marked as an answer, what is cut, what is refused. */
#include "train/conversations.h"

#include <unistd.h>

#include "base/file.h"
#include "check.h"
#include "format/tokenizer_train.h"

static bd_tokenizer *tokenizer;
static char folder[] = "/tmp/bdlm-conversations-XXXXXX", path[BD_PATH];

static int set_up(void **state)
{
    (void)state;
    bd_error err = {0};
    static const char text[] = "what is it? it is what it is. what was it? it was what it was.";
    bd_tokenizer_recipe recipe = bd_tokenizer_recipe_default();
    recipe.vocabulary = 280;
    bd_tokenizer_trainer *trainer = bd_tokenizer_trainer_create(&recipe, &err);
    bool ok = trainer && bd_tokenizer_trainer_feed(trainer, text, sizeof text - 1, &err) &&
              (tokenizer = bd_tokenizer_trainer_finish(trainer, NULL, &err));
    bd_tokenizer_trainer_destroy(trainer);
    return ok && mkdtemp(folder) && bd_path_join(path, folder, "a.jsonl", &err) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_tokenizer_close(tokenizer);
    return bd_folder_remove(folder, &err) ? 0 : -1;
}

static bool read_text(const char *jsonl, const bd_conversation_options *options,
                      bd_conversation_set *set, bd_error *err)
{
    const char *files[] = {path};
    check_ok(bd_file_write(path, jsonl, strlen(jsonl), err), *err);
    return bd_conversations_read(files, 1, options, set, err);
}

/* A document as text, its answers between [ and ]. */
static void check_document(const bd_conversation_set *set, int64_t number, const char *wanted)
{
    bd_error err = {0};
    bd_text text = {0};
    int64_t begin = number ? set->ends[number - 1] : 0, next;
    for (int64_t i = begin; i < set->ends[number]; i = next) {
        for (next = i; next < set->ends[number] && set->completion[next] == set->completion[i];)
            next++;
        bd_text_add_string(&text, set->completion[i] ? "[" : "");
        check_ok(bd_tokenizer_decode(tokenizer, set->tokens + i, next - i, false, &text, &err),
                 err);
        bd_text_add_string(&text, set->completion[i] ? "]" : "");
    }
    bd_text_add_byte(&text, 0);
    assert_string_equal(text.data, wanted);
    bd_text_free(&text);
}

#define TWO_TURNS                                                                                  \
    "{\"messages\": [{\"role\": \"user\", \"content\": \"what is it?\"}, {\"role\": "              \
    "\"assistant\", \"content\": \"it\"}, {\"role\": \"user\", \"content\": \"what?\"}, "          \
    "{\"role\": \"assistant\", \"content\": \"is\"}, {\"role\": \"user\", \"content\": "           \
    "\"it was\"}]}\n"

static void test_template(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_chat *chat;
    check_ok(chat = bd_chat_open(tokenizer, NULL, &err), err);
    bd_conversation_options options = {.tokenizer = tokenizer, .chat = chat};
    bd_conversation_set set;
    const char *share =
        "{\"conversations\": [{\"from\": \"human\", \"value\": \"what\"}, {\"from\": "
        "\"gpt\", \"value\": \"it\"}]}\n";
    char both[2048];
    snprintf(both, sizeof both, "%s%s", share, TWO_TURNS);
    check_ok(read_text(both, &options, &set, &err), err);
    assert_int_equal(set.count, 2);
    check_document(&set, 0,
                   "<|im_start|>user\nwhat<|im_end|>\n<|im_start|>assistant\n"
                   "[it<|im_end|>]\n");
    check_document(
        &set, 1,
        "<|im_start|>user\nwhat is it?<|im_end|>\n<|im_start|>assistant\n[it<|im_end|>]\n"
        "<|im_start|>user\nwhat?<|im_end|>\n<|im_start|>assistant\n[is<|im_end|>]\n"
        "<|im_start|>user\nit was<|im_end|>\n");
    bd_conversation_set_free(&set);
    // Completion only: nothing after the last answer; the last answer alone.
    options.completion_only = true;
    check_ok(read_text(TWO_TURNS, &options, &set, &err), err);
    check_document(
        &set, 0,
        "<|im_start|>user\nwhat is it?<|im_end|>\n<|im_start|>assistant\n[it<|im_end|>]\n"
        "<|im_start|>user\nwhat?<|im_end|>\n<|im_start|>assistant\n[is<|im_end|>]");
    bd_conversation_set_free(&set);
    // In blocks the answer in the middle would see the prompt after it (B-12).
    options.block_size = 8;
    check_refused(read_text(TWO_TURNS, &options, &set, &err), err,
                  "a.jsonl:1: an answer would see");
    options.last_answer = true;
    check_ok(read_text(TWO_TURNS, &options, &set, &err), err);
    check_document(&set, 0,
                   "<|im_start|>user\nwhat is it?<|im_end|>\n<|im_start|>assistant\nit<|im_end|>\n"
                   "<|im_start|>user\nwhat?<|im_end|>\n<|im_start|>assistant\n[is<|im_end|>]");
    bd_conversation_set_free(&set);
    options.completion_only = false;
    check_refused(read_text(TWO_TURNS, &options, &set, &err), err,
                  "data.last_answer needs data.completion_only");
    bd_chat_close(chat);
}

static void test_plain(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_conversation_options options = {.tokenizer = tokenizer};
    bd_conversation_set set;
    check_ok(
        read_text("{\"prompt\": \"what is\", \"completion\": \" it\"}\n\n{\"text\": \"it is\"}\n",
                  &options, &set, &err),
        err);
    check_document(&set, 0, "what is[ it<|im_end|>]");
    check_document(&set, 1, "[it is<|im_end|>]");
    bd_conversation_set_free(&set);
    check_refused(read_text(TWO_TURNS, &options, &set, &err), err,
                  "a.jsonl:1: messages need a chat");
    check_refused(read_text("\n{\"prompt\": \"what\"}\n", &options, &set, &err), err,
                  "a.jsonl:2: a prompt without a completion");
    check_refused(read_text("\n", &options, &set, &err), err, "no conversations");
    // A row of 4 tokens holds a part of the first answer, and nothing of the second.
    options.completion_only = true;
    options.most_tokens = 4;
    check_ok(read_text("{\"prompt\": \"it\", \"completion\": \" was was was\"}\n"
                       "{\"prompt\": \"it it it it it it it\", \"completion\": \" was\"}\n",
                       &options, &set, &err),
             err);
    assert_true(set.count == 1 && set.cut == 2 && set.dropped == 1);
    assert_int_equal(set.ends[0], 4);
    bd_conversation_set_free(&set);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_template),
                                       cmocka_unit_test(test_plain)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
