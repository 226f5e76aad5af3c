/* corpus.h - text files as one stream of token ids, in memory.
 *
 *     bd_corpus corpus = {0};
 *     if (!bd_corpus_read(tokenizer, files, count, &options, progress, &corpus, &err)) ...
 *     bd_corpus_free(&corpus);
 *
 * Every document is encoded on its own and, if the tokenizer has an end-of-text token, followed by it.
 */
#ifndef BD_FORMAT_CORPUS_H
#define BD_FORMAT_CORPUS_H

#include "base/progress.h"
#include "format/dataset.h"
#include "format/tokenizer.h"

typedef struct {
    int32_t *tokens;
    int64_t count;
    int64_t documents, bytes; /* read */
    int64_t repaired;         /* lines that were not UTF-8, with options.replace */
} bd_corpus;

/* progress counts bytes of text; its total is not known before, so it may be NULL or made with the
 * files' sizes (bd_corpus_size). An empty corpus is an error that names the files. */
bool bd_corpus_read(const bd_tokenizer *tokenizer, const char *const *files, int64_t count,
                    bd_document_options options, bd_progress *progress, bd_corpus *out,
                    bd_error *err);
void bd_corpus_free(bd_corpus *corpus);

/* Bytes of the files as they are stored; an error names a file that is missing. */
int64_t bd_corpus_size(const char *const *files, int64_t count, bd_error *err);

#endif
