/* tokenizer_learn.h - from counted words to merges, for tokenizer_train.c only. */
#ifndef BD_FORMAT_TOKENIZER_LEARN_H
#define BD_FORMAT_TOKENIZER_LEARN_H

#include "base/progress.h"
#include "format/tokenizer_internal.h"

typedef struct {
    size_t begin; // in `bytes`
    uint32_t size;
    int64_t count;
} bd_counted_word;

typedef struct {
    bd_text bytes;
    bd_counted_word *words;
    int64_t count, room;
    int32_t *bucket; // words by hash, -1: empty
    uint64_t mask;
} bd_word_counts;
void bd_word_counts_free(bd_word_counts *words);

typedef struct {
    int64_t tokens; // stop at so many, bytes included
    int64_t least_count;
    int64_t longest_token; // in bytes; 0: any
} bd_learn_limits;

/* Byte-pair encoding: tokens 0-255 are the bytes in the order of their characters; then, again and
 * again, the most frequent pair of neighbours in all words becomes a token, of equally frequent
 * ones the pair with the smaller left id, then the smaller right id. Fills in `v`, which starts
 * empty. */
bool bd_learn_merges(const bd_word_counts *words, const bd_learn_limits *limits, bd_vocabulary *v,
                     bd_progress *progress, bd_error *err);

#endif
