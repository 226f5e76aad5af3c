/* conversations.h - files of conversations as documents of tokens with the answers marked.
 *
 * Every record of a JSONL file becomes one document: a chat template turns its messages into text
 * and says what the assistant wrote; without a template, "prompt" and "completion" stand one after
 * the other, the completion followed by the end token; a "text" is all completion.
 *
 *     bd_conversation_options options = {.tokenizer = tokenizer, .chat = chat,
 *                                        .completion_only = true, .block_size = 8};
 *     bd_conversation_set set;
 *     if (!bd_conversations_read(files, count, &options, &set, &err)) ...
 *     bd_token_documents documents = bd_conversation_documents(&set);
 *     bd_conversation_set_free(&set);
 *
 * Source: block-diffusion B.2, B.3; field reports 71, 74.
 */
#ifndef BD_TRAIN_CONVERSATIONS_H
#define BD_TRAIN_CONVERSATIONS_H

#include "format/chat.h"
#include "format/dataset.h"
#include "train/row_plan.h"

typedef struct {
    const bd_tokenizer *tokenizer;
    const bd_chat *chat;  /* NULL: no template */
    bool completion_only; /* what follows the last answer is cut off: it can teach nothing */
    bool last_answer;     /* earlier answers become prompt (B-13); needs completion_only */
    int64_t block_size;  /* with completion_only no prompt token may follow an answer within a block
                            (B-12); 0: no blocks */
    int64_t most_tokens; /* longer documents are cut there; 0: none is */
} bd_conversation_options;

typedef struct {
    int32_t *tokens;
    uint8_t *completion; /* for each token */
    int64_t *ends;       /* [count] */
    int64_t count, token_count;
    int64_t cut;     /* documents that were longer than most_tokens */
    int64_t dropped; /* those of which no answer was left, with completion_only */
    int64_t token_room, document_room;
} bd_conversation_set;

/* A record with an error, or without an answer, is an error that names file and line. */
bool bd_conversations_read(const char *const *files, int64_t count,
                           const bd_conversation_options *options, bd_conversation_set *out,
                           bd_error *err);
void bd_conversation_set_free(bd_conversation_set *set);

/* One more document at the end of the set. completion NULL: all of it. */
bool bd_conversation_set_add(bd_conversation_set *set, const int32_t *tokens,
                             const uint8_t *completion, int64_t count, bd_error *err);

bd_token_documents bd_conversation_documents(const bd_conversation_set *set);

#endif
