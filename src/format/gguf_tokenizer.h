/* gguf_tokenizer.h - a tokenizer as keys of a GGUF file, and back. Source: spec gguf 2.1.
 *
 *     bd_gguf_special special = {.bos = 0, .eos = 1, .mask = -1};
 *     if (!bd_gguf_put_tokenizer(out, tokenizer, vocabulary, &special, &err)) ...
 *     bd_tokenizer *again = bd_gguf_take_tokenizer(file, "model.gguf", &err);
 */
#ifndef BD_FORMAT_GGUF_TOKENIZER_H
#define BD_FORMAT_GGUF_TOKENIZER_H

#include "format/gguf.h"
#include "format/tokenizer.h"

/* Ids for the file, -1: none. bos and eos are always written: a reader that misses one takes 11. */
typedef struct {
    int64_t bos, eos, pad, mask;
} bd_gguf_special;

/* All tokenizer.* keys for `vocabulary` rows; ids without a token become "[PAD<id>]". Refused: a
 * tokenizer whose splitting of text has no name in such files, or more tokens than rows. */
bool bd_gguf_put_tokenizer(bd_gguf_out *out, const bd_tokenizer *tokenizer, int64_t vocabulary,
                           const bd_gguf_special *special, bd_error *err);

/* The tokenizer again: vocabulary, merges, special tokens, roles, chat template. */
bd_tokenizer *bd_gguf_take_tokenizer(const bd_gguf *file, const char *where, bd_error *err);

#endif
