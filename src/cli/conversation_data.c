#include "cli/conversation_data.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

bool bd_recipe_has_conversations(const bd_recipe *recipe)
{
    int64_t count;
    const char *const *files = bd_recipe_texts(recipe, "data.train_files", &count);
    for (int64_t i = 0; i < count; i++)
        if (!strstr(files[i], ".jsonl"))
            return false;
    return count > 0;
}

static bool take_template(const bd_recipe *recipe, bd_tokenizer *tokenizer, bd_error *err)
{
    enum { MOST_TEMPLATE = 1 << 20 };
    const char *path = bd_recipe_text(recipe, "data.chat_template");
    if (!path)
        return true;
    char *source = bd_file_read_text(path, MOST_TEMPLATE, NULL, err);
    bool ok = source && bd_tokenizer_set_chat_template(tokenizer, source, err);
    free(source);
    return ok;
}

static void tell(const char *command, const char *what, const bd_conversation_set *set)
{
    bd_token_documents documents = bd_conversation_documents(set);
    fprintf(stderr, "%s: %s %lld conversations, %.3f million tokens, %.1f %% of them of answers",
            command, what, (long long)set->count, (double)set->token_count / 1e6,
            100 * bd_completion_share(&documents));
    if (set->cut)
        fprintf(stderr, "; %lld were cut at the row's end", (long long)set->cut);
    if (set->dropped)
        fprintf(stderr, ", %lld of them left out: no answer was left", (long long)set->dropped);
    fprintf(stderr, "\n");
}

static bool read_files(const bd_recipe *recipe, const char *command, const char *option,
                       const bd_conversation_options *options, bd_conversation_set *out,
                       bd_error *err)
{
    int64_t count;
    const char *const *files = bd_recipe_texts(recipe, option, &count);
    if (!bd_conversations_read(files, count, options, out, err))
        return false;
    tell(command, option, out);
    return true;
}

/* The token that most models are told to stop at: the last one of the first answers. */
static int32_t turn_end(const bd_tokenizer *tokenizer, const bd_conversation_set *set)
{
    for (int64_t i = 0; i < set->token_count; i++) {
        bool ends = set->completion[i] && (i + 1 == set->token_count || !set->completion[i + 1]);
        if (ends)
            return bd_tokenizer_kind(tokenizer, set->tokens[i]) == BD_TOKEN_SPECIAL ? set->tokens[i]
                                                                                    : -1;
    }
    return -1;
}

bool bd_conversation_data_read(const bd_recipe *recipe, const char *command,
                               bd_tokenizer *tokenizer, int64_t block_size,
                               bd_conversation_data *out, bd_error *err)
{
    *out = (bd_conversation_data){.turn_end = -1};
    if (!bd_recipe_require(recipe, "data.train_files", "to train", err) ||
        !take_template(recipe, tokenizer, err))
        return false;
    bd_chat *chat = NULL;
    if (bd_tokenizer_chat_template(tokenizer) && !(chat = bd_chat_open(tokenizer, NULL, err)))
        return false;
    bd_conversation_options options = {
        .tokenizer = tokenizer,
        .chat = chat,
        .completion_only = bd_recipe_bool(recipe, "data.completion_only"),
        .last_answer = bd_recipe_bool(recipe, "data.last_answer"),
        .block_size = block_size,
        .most_tokens = bd_recipe_int(recipe, "data.sequence_length")};
    bool ok = read_files(recipe, command, "data.train_files", &options, &out->train, err) &&
              (!bd_recipe_has(recipe, "data.eval_files") ||
               read_files(recipe, command, "data.eval_files", &options, &out->evaluation, err));
    bd_chat_close(chat);
    if (ok)
        out->turn_end = turn_end(tokenizer, &out->train);
    else
        bd_conversation_data_free(out);
    return ok;
}

void bd_conversation_data_free(bd_conversation_data *data)
{
    bd_conversation_set_free(&data->train);
    bd_conversation_set_free(&data->evaluation);
}

void bd_conversation_data_sample(FILE *out, const bd_tokenizer *tokenizer,
                                 const bd_conversation_set *set)
{
    enum { MOST_SHOWN = 200 };
    bool colour = isatty(fileno(out)) && !getenv("NO_COLOR");
    int64_t end = set->count > 0 ? set->ends[0] : 0, shown = end < MOST_SHOWN ? end : MOST_SHOWN,
            next;
    bd_text text = {0};
    bd_error ignored = {0};
    for (int64_t i = 0; i < shown; i = next) {
        bool answer = set->completion[i];
        for (next = i; next < shown && set->completion[next] == set->completion[i];)
            next++;
        if (answer)
            bd_text_add_string(&text, colour ? "\033[32m" : "[[");
        if (!bd_tokenizer_decode(tokenizer, set->tokens + i, next - i, false, &text, &ignored))
            break;
        if (answer)
            bd_text_add_string(&text, colour ? "\033[0m" : "]]");
    }
    if (text.data)
        fprintf(out, "first conversation, %s:\n%.*s%s\n",
                colour ? "answers in green" : "answers in [[ ]]", (int)text.size, text.data,
                shown < end ? " ..." : "");
    bd_text_free(&text);
}
