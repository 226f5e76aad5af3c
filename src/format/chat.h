/* chat.h - a conversation as the text and tokens that a model is trained on, and who wrote which.
 *
 *     bd_chat *chat = bd_chat_open(tokenizer, NULL, &err);              // the tokenizer's own
 * template bd_conversation conversation = {0}; bd_chat_request request = {.messages = messages}; //
 * [{"role": ..., "content": ...}] if (!bd_chat_render(chat, &request, &conversation, &err)) ...
 *     // conversation.tokens.ids[i] is to be learned where conversation.completion[i] is 1
 *     bd_conversation_free(&conversation), bd_chat_close(chat);
 *
 * A span of the assistant reaches from behind the header that opens its turn to behind the token
 * that ends it: what the model has to write itself. Where these spans lie is found in this order:
 *   1. the template marks them with {% generation %};
 *   2. the options name the texts that open and close a turn;
 *   3. from the template itself: a turn's header is what it prints when asked for a generation
 * prompt, its end is the first special token (or the white space) behind what the assistant said.
 * In the last two cases the text that the template printed for one message is known, so that a user
 * who writes "<|im_start|>assistant" does not become one.
 */
#ifndef BD_FORMAT_CHAT_H
#define BD_FORMAT_CHAT_H

#include <jansson.h>
#include <time.h>

#include "format/template.h"
#include "format/tokenizer.h"

typedef struct bd_chat bd_chat;

typedef struct {
    const char *template_source; /* NULL: the tokenizer's */
    const char *header, *end;    /* of an assistant turn; NULL: found out */
    time_t now; /* what strftime_now says; 0: the clock, and texts differ by the day */
} bd_chat_options;

/* The tokenizer must outlive the chat. NULL options: all defaults. Fails when there is no template
 * or it cannot be compiled. */
bd_chat *bd_chat_open(const bd_tokenizer *tokenizer, const bd_chat_options *options, bd_error *err);
void bd_chat_close(bd_chat *chat);

/* What opens and closes an assistant turn, NULL: not known (or marked by the template). */
const char *bd_chat_header(const bd_chat *chat);
const char *bd_chat_end(const bd_chat *chat);

typedef struct {
    json_t *messages;           /* a list of objects */
    json_t *tools;              /* a list, or NULL */
    json_t *variables;          /* more variables for the template ("enable_thinking"), or NULL */
    bool add_generation_prompt; /* end with the header of an assistant turn */
    bool text_only;             /* no tokens, and spans only if they can be found */
} bd_chat_request;

typedef struct {
    int64_t message;                /* its place in the list; -1: not known */
    int64_t begin, end;             /* bytes of the text */
    int64_t token_begin, token_end; /* all tokens that have a part of these bytes */
    bool starts_inside_token;       /* the first of them also has a part of the header */
} bd_chat_span;

typedef struct {
    bd_text text;
    bd_tokens tokens;
    uint8_t *completion; /* for each token, 1: of an assistant span */
    int64_t completion_count;
    bd_chat_span *spans; /* of the assistant, in order */
    int64_t span_count, span_room;
} bd_conversation;
void bd_conversation_free(bd_conversation *conversation);

/* `out` must be empty. Fails when the template refuses the conversation, and when it has messages
 * of the assistant but their spans cannot be found. Any number of threads may render with one chat.
 */
bool bd_chat_render(const bd_chat *chat, const bd_chat_request *request, bd_conversation *out,
                    bd_error *err);

/* The tokens of a list of messages up to where the assistant begins to answer. */
bool bd_chat_prompt(const bd_chat *chat, json_t *messages, bd_tokens *out, bd_error *err);

#endif
