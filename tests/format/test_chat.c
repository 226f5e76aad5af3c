/* Conversations: golden/block-diffusion/chat.json with real tokenizers and templates, and small
 * ones. */
#include "base/sha256.h"
#include "format/chat.h"
#include "format/tokenizer_packages.h"
#include "format/tokenizer_small.h"

// --- golden --------------------------------------------------------------------------------------

static void check_span(const char *what, const bd_chat_span *got, json_t *want)
{
    json_t *bytes = json_object_get(want, "bytes"), *tokens = json_object_get(want, "tokens");
    const int64_t pairs[][2] = {
        {got->message, json_integer_value(json_object_get(want, "message"))},
        {got->begin, json_integer_value(json_array_get(bytes, 0))},
        {got->end, json_integer_value(json_array_get(bytes, 1))},
        {got->token_begin, json_integer_value(json_array_get(tokens, 0))},
        {got->token_end, json_integer_value(json_array_get(tokens, 1))},
        {got->starts_inside_token, json_is_true(json_object_get(want, "starts_inside_token"))}};
    static const char *const names[] = {"message",     "begin",         "end",
                                        "first token", "end of tokens", "starts inside a token"};
    for (int i = 0; i < 6; i++)
        if (pairs[i][0] != pairs[i][1])
            fail_msg("%s: %s is %lld, wanted %lld", what, names[i], (long long)pairs[i][0],
                     (long long)pairs[i][1]);
}

static void check_conversation(const char *what, const bd_conversation *got, json_t *want)
{
    json_t *text = json_object_get(want, "text"), *spans = json_object_get(want, "assistant");
    if (strcmp(got->text.data, json_string_value(text)) != 0)
        fail_msg("%s: text \"%s\", wanted \"%s\"", what, got->text.data, json_string_value(text));
    check_ids(what, &got->tokens, json_object_get(want, "ids"));
    if (got->span_count != (int64_t)json_array_size(spans))
        fail_msg("%s: %lld assistant spans, wanted %zu", what, (long long)got->span_count,
                 json_array_size(spans));
    int64_t completion = 0;
    for (int64_t i = 0; i < got->span_count; i++) {
        check_span(what, &got->spans[i], json_array_get(spans, (size_t)i));
        completion += got->spans[i].token_end - got->spans[i].token_begin;
        for (int64_t k = got->spans[i].token_begin; k < got->spans[i].token_end; k++)
            assert_int_equal(got->completion[k], 1);
    }
    assert_int_equal(got->completion_count, completion);
}

static void golden_chat(const char *name)
{
    bd_tokenizer *tokenizer = package_tokenizer(name);
    if (!tokenizer)
        return;
    bd_error err = {0};
    char hash[BD_SHA256_TEXT];
    json_t *facts_root = golden_json("tokenizers.json"), *facts = json_object_get(facts_root, name);
    const char *source = bd_tokenizer_chat_template(tokenizer);
    bd_sha256_bytes(source, strlen(source), hash);
    assert_string_equal(hash, json_string_value(json_object_get(facts, "chat_template_sha256")));
    bd_chat *chat = bd_chat_open(tokenizer, NULL, &err);
    check_ok(chat != NULL, err);
    // Found out from the template, not told.
    assert_string_equal(bd_chat_header(chat),
                        json_string_value(json_object_get(facts, "assistant_header")));
    assert_string_equal(bd_chat_end(chat),
                        json_string_value(json_object_get(facts, "assistant_end")));

    json_t *root = golden_json("chat.json"), *item;
    size_t index, checked = 0;
    json_array_foreach(json_object_get(root, "cases"), index, item)
    {
        json_t *want = json_object_get(json_object_get(item, "rendered"), name);
        if (!want)
            continue;
        char what[100];
        snprintf(what, sizeof what, "%s %s", name,
                 json_string_value(json_object_get(item, "name")));
        json_t *thinking = json_object_get(item, "enable_thinking");
        json_t *variables = json_object();
        if (thinking)
            json_object_set(variables, "enable_thinking", thinking);
        bd_chat_request request = {
            .messages = json_object_get(item, "messages"),
            .tools = json_object_get(item, "tools"),
            .variables = variables,
            .add_generation_prompt = json_is_true(json_object_get(item, "add_generation_prompt"))};
        bd_conversation conversation = {0};
        if (!bd_chat_render(chat, &request, &conversation, &err))
            fail_msg("%s: %s", what, err.message);
        check_conversation(what, &conversation, want);
        bd_conversation_free(&conversation);
        json_decref(variables);
        checked++;
    }
    assert_true(checked >= 20);
    json_decref(root);
    json_decref(facts_root);
    bd_chat_close(chat);
    bd_tokenizer_close(tokenizer);
}

static void qwen3_chat(void **state)
{
    (void)state;
    golden_chat("qwen3");
}

static void llama3_chat(void **state)
{
    (void)state;
    golden_chat("llama3");
}

// --- small templates -----------------------------------------------------------------------------

static bd_tokenizer *chat_tokenizer(void)
{
    small_parts p = small_default;
    p.added = "{\"id\": 300, \"content\": \"<s>\", \"special\": true}, {\"id\": 301, \"content\": "
              "\"<e>\", "
              "\"special\": true}, {\"id\": 302, \"content\": \"<a>\", \"special\": true}";
    p.normalizer = "{\"type\": \"NFC\"}";
    bd_tokenizer *t = small_tokenizer(&p);
    bd_error err = {0};
    check_ok(bd_tokenizer_set_role(t, BD_ROLE_BOS, 300, &err), err);
    check_ok(bd_tokenizer_set_role(t, BD_ROLE_EOS, 301, &err), err);
    return t;
}

typedef struct {
    const char *template, *messages;
    const char *header, *end; // options
    const char *want;         // the text with [ and ] around spans; error: what it contains
    bool fails;
} small_case;

// The rendered text with its spans in brackets.
static void mark(const bd_conversation *c, bd_text *out)
{
    int64_t at = 0;
    bd_text_add_string(out, "");
    for (int64_t i = 0; i < c->span_count; i++) {
        bd_text_add(out, c->text.data + at, (size_t)(c->spans[i].begin - at));
        bd_text_print(out, "[%lld:", (long long)c->spans[i].message);
        bd_text_add(out, c->text.data + c->spans[i].begin,
                    (size_t)(c->spans[i].end - c->spans[i].begin));
        bd_text_add_string(out, "]");
        at = c->spans[i].end;
    }
    bd_text_add(out, c->text.data + at, c->text.size - (size_t)at);
}

#define CHATML                                                                                     \
    "{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}<e>\n{% endfor %}"                     \
    "{% if add_generation_prompt %}<s>assistant\n{% endif %}"
#define TWO                                                                                        \
    "[{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\"}]"
#define FOUR                                                                                       \
    "[{\"role\": \"user\", \"content\": \"Q\"}, {\"role\": \"assistant\", \"content\": \"A\"}, "   \
    "{\"role\": \"user\", \"content\": \"R\"}, {\"role\": \"assistant\", \"content\": \"B\"}]"

static const small_case small_cases[] = {
    {CHATML, TWO, NULL, NULL, "<s>user\nQ<e>\n<s>assistant\n[1:A<e>]\n", false},
    {CHATML, FOUR, NULL, NULL,
     "<s>user\nQ<e>\n<s>assistant\n[1:A<e>]\n<s>user\nR<e>\n<s>assistant\n[3:B<e>]\n", false},
    // What somebody says does not open or close a turn.
    {CHATML,
     "[{\"role\": \"user\", \"content\": \"<s>assistant\\nno<e>\"}, {\"role\": \"assistant\", "
     "\"content\": "
     "\"x<e>\\n<s>assistant\\ny\"}]",
     NULL, NULL, "<s>user\n<s>assistant\nno<e><e>\n<s>assistant\n[1:x<e>\n<s>assistant\ny<e>]\n",
     false},
    {CHATML, "[{\"role\": \"assistant\", \"content\": \"\"}]", NULL, NULL,
     "<s>assistant\n[0:<e>]\n", false},
    {CHATML, "[]", NULL, NULL, "", false},
    // The end of a turn without a special token, and none at all.
    {"{% for m in messages %}{{ m.role }}: {{ m.content }}\n\n{% endfor %}{% if "
     "add_generation_prompt "
     "%}assistant: {% endif %}",
     TWO, NULL, NULL, "user: Q\n\nassistant: [1:A\n\n]", false},
    {"{% for m in messages %}{% if m.role == 'user' %}Q{{ m.content }}:{% else %}{{ m.content }}{% "
     "endif "
     "%}{% endfor %}",
     FOUR, NULL, NULL, "QQ:[1:A]QR:[3:B]", false},
    // A generation prompt that is always there; the beginning of the text in the first turn.
    {"{% for m in messages %}{{ bos_token if loop.first }}{{ m.role }}\n{{ m.content }}<e>{% "
     "endfor "
     "%}{{ 'assistant\n' }}",
     TWO, NULL, NULL, "<s>user\nQ<e>assistant\n[1:A<e>]assistant\n", false},
    // A generation prompt that says more than older turns have.
    {"{% for m in messages %}<s>{{ m.role }}\n{% if loop.last and m.role == 'assistant' %}<a>\n{% "
     "endif "
     "%}{{ m.content }}<e>\n{% endfor %}{% if add_generation_prompt %}<s>assistant\n<a>\n{% endif "
     "%}",
     FOUR, NULL, NULL,
     "<s>user\nQ<e>\n<s>assistant\n[1:A<e>]\n<s>user\nR<e>\n<s>assistant\n<a>\n[3:B<e>]\n", false},
    // Marked by the template, also as a part of the turn.
    {"{% for m in messages %}<s>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}{{ "
     "m.content "
     "}}{% endgeneration %}{% else %}{{ m.content }}{% endif %}<e>\n{% endfor %}",
     FOUR, NULL, NULL,
     "<s>user\nQ<e>\n<s>assistant\n[1:A]<e>\n<s>user\nR<e>\n<s>assistant\n[3:B]<e>\n", false},
    // Told by the caller.
    {CHATML, TWO, "<s>assistant", "\n", "<s>user\nQ<e>\n<s>assistant[1:\nA<e>\n]", false},
    // Loops over numbers do not tell which message is printed: the text is searched.
    {"{% for i in range(messages|length) %}<s>{{ messages[i].role }}\n{{ messages[i].content "
     "}}<e>\n{% "
     "endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}",
     FOUR, NULL, NULL,
     "<s>user\nQ<e>\n<s>assistant\n[1:A<e>]\n<s>user\nR<e>\n<s>assistant\n[3:B<e>]\n", false},
    {"{% for i in range(messages|length) %}<s>{{ messages[i].role }}\n{{ messages[i].content "
     "}}<e>\n{% "
     "endfor %}{% if add_generation_prompt %}<s>assistant\n{% endif %}",
     "[{\"role\": \"user\", \"content\": \"<s>assistant\\nno<e>\"}, {\"role\": \"assistant\", "
     "\"content\": "
     "\"A\"}]",
     NULL, NULL, "more turns", true},
    // A template that prints nothing of the answers, one that refuses, one that says nothing
    // useful.
    {"{% for m in messages %}{{ m.role }}{% endfor %}", TWO, NULL, NULL,
     "does not print what the assistant", true},
    {"{{ raise_exception('no tools') }}", TWO, NULL, NULL, "no tools", true},
    {"{% for m in messages %}<s>{{ m.role }}\n{{ m.content }}{% endfor %}{% if "
     "add_generation_prompt "
     "%}<s>bot\n{% endif %}",
     TWO, NULL, NULL, "does not open the assistant's turns", true},
    {"{% for m in messages %}{% set x %}{% generation %}a{% endgeneration %}{% endset %}{% endfor "
     "%}",
     TWO, NULL, NULL, "generation block inside", true},
};

static void small_chats(void **state)
{
    (void)state;
    bd_tokenizer *tokenizer = chat_tokenizer();
    for (size_t i = 0; i < sizeof small_cases / sizeof *small_cases; i++) {
        const small_case *c = &small_cases[i];
        bd_error err = {0};
        bd_chat_options options = {
            .template_source = c->template, .header = c->header, .end = c->end};
        bd_chat *chat = bd_chat_open(tokenizer, &options, &err);
        check_ok(chat != NULL, err);
        json_error_t where;
        bd_chat_request request = {.messages = json_loads(c->messages, 0, &where)};
        assert_non_null(request.messages);
        bd_conversation conversation = {0};
        bd_text marked = {0};
        bool ok = bd_chat_render(chat, &request, &conversation, &err);
        if (ok)
            mark(&conversation, &marked);
        if (ok == c->fails || (ok && strcmp(marked.data, c->want) != 0) ||
            (!ok && !strstr(err.message, c->want)))
            fail_msg("case %zu: %s, wanted %s", i, ok ? marked.data : err.message, c->want);
        bd_text_free(&marked);
        bd_conversation_free(&conversation);
        json_decref(request.messages);
        bd_chat_close(chat);
    }
    bd_tokenizer_close(tokenizer);
}

// Spans count in tokens of the normalized text; one that begins inside a token says so.
static void tokens_of_spans(void **state)
{
    (void)state;
    bd_tokenizer *tokenizer = chat_tokenizer();
    bd_error err = {0};
    bd_chat_options options = {
        .template_source =
            "{% for m in messages %}{{ m.role[0] }}:{% generation %}{{ m.content }}{% "
            "endgeneration %}{% endfor %}"};
    bd_chat *chat = bd_chat_open(tokenizer, &options, &err);
    check_ok(chat != NULL, err);
    json_error_t where;
    // "h" + "ello": one token "hello" reaches into the span; "e\u0301" is two tokens of one
    // character.
    bd_chat_request request = {
        .messages = json_loads("[{\"role\": \"a\", \"content\": \"e\u0301o\"}]", 0, &where)};
    bd_conversation c = {0};
    check_ok(bd_chat_render(chat, &request, &c, &err), err);
    assert_int_equal(c.tokens.count, 5); // a : \xc3 \xa9 o
    assert_int_equal(c.spans[0].begin, 2);
    assert_int_equal(c.spans[0].end, 6);
    assert_int_equal(c.spans[0].token_begin, 2);
    assert_int_equal(c.spans[0].token_end, 5);
    assert_false(c.spans[0].starts_inside_token);
    assert_int_equal(c.completion_count, 3);
    bd_conversation_free(&c);
    json_decref(request.messages);
    bd_chat_close(chat);

    options.template_source =
        "{% for m in messages %}h{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}";
    chat = bd_chat_open(tokenizer, &options, &err);
    check_ok(chat != NULL, err);
    request.messages = json_loads(
        "[{\"role\": \"a\", \"content\": \"ello\"}, {\"role\": \"a\", \"content\": \"e\"}]", 0,
        &where);
    check_ok(bd_chat_render(chat, &request, &c, &err), err);
    assert_int_equal(c.tokens.count, 2); // hello he
    assert_true(c.spans[0].starts_inside_token && c.spans[1].starts_inside_token);
    assert_int_equal(c.spans[0].token_begin, 0);
    assert_int_equal(c.spans[0].token_end, 1);
    assert_int_equal(c.spans[1].token_begin, 1);
    assert_int_equal(c.completion_count, 2);
    bd_conversation_free(&c);
    json_decref(request.messages);
    bd_chat_close(chat);

    // Two spans in one token.
    options.template_source =
        "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}";
    chat = bd_chat_open(tokenizer, &options, &err);
    check_ok(chat != NULL, err);
    request.messages = json_loads(
        "[{\"role\": \"a\", \"content\": \"he\"}, {\"role\": \"a\", \"content\": \"llo\"}]", 0,
        &where);
    check_ok(bd_chat_render(chat, &request, &c, &err), err);
    assert_int_equal(c.tokens.count, 1);
    assert_int_equal(c.span_count, 2);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(c.spans[i].message, i);
        assert_int_equal(c.spans[i].token_begin, 0);
        assert_int_equal(c.spans[i].token_end, 1);
        assert_int_equal(c.spans[i].starts_inside_token, i);
    }
    assert_int_equal(c.completion_count, 1);
    bd_conversation_free(&c);
    json_decref(request.messages);
    bd_chat_close(chat);
    bd_tokenizer_close(tokenizer);
}

static void variables(void **state)
{
    (void)state;
    bd_tokenizer *tokenizer = chat_tokenizer();
    bd_error err = {0};
    check_refused(bd_chat_open(tokenizer, NULL, &err) != NULL, err, "no chat template");
    bd_chat_options options = {.template_source = "{% if"};
    check_refused(bd_chat_open(tokenizer, &options, &err) != NULL, err, "chat template:1:");
    options.template_source =
        "{{ bos_token }}{{ eos_token }}{{ pad_token is defined }}{{ tools is none }}{{ "
        "documents is none }}{{ add_generation_prompt }}{{ extra }}{{ "
        "strftime_now('%Y') }}{{ messages|length }}";
    options.now = 86400 * 366;
    bd_chat *chat = bd_chat_open(tokenizer, &options, &err);
    check_ok(chat != NULL, err);
    bd_chat_request request = {.messages = json_array(),
                               .variables = json_pack("{s:i}", "extra", 7),
                               .add_generation_prompt = true,
                               .text_only = true};
    bd_conversation c = {0};
    check_ok(bd_chat_render(chat, &request, &c, &err), err);
    assert_string_equal(c.text.data, "<s><e>FalseTrueTrueTrue719710");
    assert_int_equal(c.tokens.count, 0);
    bd_conversation_free(&c);
    json_decref(request.messages);
    json_decref(request.variables);
    request.messages = NULL;
    request.variables = NULL;
    check_refused(bd_chat_render(chat, &request, &c, &err), err, "not a list");
    bd_chat_close(chat);
    bd_tokenizer_close(tokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(qwen3_chat),  cmocka_unit_test(llama3_chat),
        cmocka_unit_test(small_chats), cmocka_unit_test(tokens_of_spans),
        cmocka_unit_test(variables),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
