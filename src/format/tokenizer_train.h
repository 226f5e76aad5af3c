/* tokenizer_train.h - learn a byte-level BPE from text.
 *
 *     bd_tokenizer_recipe recipe = bd_tokenizer_recipe_default();      // 8,192 tokens, Qwen's
 * pattern bd_tokenizer_trainer *trainer = bd_tokenizer_trainer_create(&recipe, &err); while (more)
 * bd_tokenizer_trainer_feed(trainer, text, size, &err); bd_tokenizer *tokenizer =
 * bd_tokenizer_trainer_finish(trainer, progress, &err); bd_tokenizer_save(tokenizer, "out", &err);
 *
 * The same pieces of text give the same tokenizer in whatever order they are fed: words are counted
 * first, and of the most frequent pairs the one with the smallest ids is merged.
 */
#ifndef BD_FORMAT_TOKENIZER_TRAIN_H
#define BD_FORMAT_TOKENIZER_TRAIN_H

#include "base/progress.h"
#include "format/tokenizer.h"

typedef struct {
    int64_t vocabulary;    /* tokens in all: 256 bytes, merges, special tokens */
    int64_t least_count;   /* a pair seen less often is not merged */
    int64_t longest_token; /* in bytes; 0: any */
    const char *pattern;   /* how text is cut into words; NULL: Qwen's */
    const char *const *special;
    int64_t special_count;            /* they take the last ids, in this order */
    const char *roles[BD_ROLE_COUNT]; /* one of the special tokens each, or NULL */
    const char *chat_template;        /* NULL: none */
} bd_tokenizer_recipe;

/* The chat format of Qwen and many others: <|im_start|>role, a newline, the message, <|im_end|>. */
extern const char *const bd_chatml_template;

/* 8,192 tokens of which the last are <|endoftext|> (pad), <|im_start|>, <|im_end|> (eos) and
 * <|mask|>, pairs seen at least twice, and the ChatML template. */
bd_tokenizer_recipe bd_tokenizer_recipe_default(void);

typedef struct bd_tokenizer_trainer bd_tokenizer_trainer;

/* The recipe's texts are copied. */
bd_tokenizer_trainer *bd_tokenizer_trainer_create(const bd_tokenizer_recipe *recipe, bd_error *err);
void bd_tokenizer_trainer_destroy(bd_tokenizer_trainer *trainer);

/* Count the words of a piece of UTF-8 text. A piece is a document: no word crosses its ends. */
bool bd_tokenizer_trainer_feed(bd_tokenizer_trainer *trainer, const char *text, size_t size,
                               bd_error *err);

/* Learn the merges. `progress` may be NULL. Fewer tokens than asked for come out when no pair is
 * left that is frequent enough. NULL on failure; the trainer stays the caller's to destroy. */
bd_tokenizer *bd_tokenizer_trainer_finish(bd_tokenizer_trainer *trainer, bd_progress *progress,
                                          bd_error *err);

#endif
