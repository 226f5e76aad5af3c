#include "format/corpus.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"

int64_t bd_corpus_size(const char *const *files, int64_t count, bd_error *err)
{
    int64_t bytes = 0;
    for (int64_t i = 0; i < count; i++) {
        bd_map map;
        if (!bd_map_open(&map, files[i], err))
            return -1;
        bytes += (int64_t)map.size;
        bd_map_close(&map);
    }
    return bytes;
}

void bd_corpus_free(bd_corpus *corpus)
{
    free(corpus->tokens);
    *corpus = (bd_corpus){0};
}

/* Long documents are encoded piece by piece, cut at line ends, so that progress moves and buffers stay
 * small; a line end is a border between words in every pattern that is in use. */
enum { PIECE = 1 << 16 };

static size_t piece_size(const char *text, size_t left)
{
    if (left <= PIECE)
        return left;
    for (size_t cut = PIECE; cut > PIECE / 2; cut--)
        if (text[cut - 1] == '\n' && text[cut] != '\n' && text[cut] != ' ' && text[cut] != '\t')
            return cut;
    return left; // no line end in 32 KB: one word border is not worth a wrong token
}

static bool add_document(const bd_tokenizer *tokenizer, const bd_document *document,
                         bd_progress *progress, bd_corpus *out, bd_tokens *tokens, bd_error *err)
{
    for (size_t at = 0; at < document->size;) {
        size_t size = piece_size(document->text + at, document->size - at);
        if (!bd_tokenizer_encode(tokenizer, document->text + at, size, NULL, tokens, err))
            return bd_error_wrap(err, "%s", document->file);
        at += size;
        out->bytes += (int64_t)size;
        bd_progress_update(progress, out->bytes, "%.1f million tokens",
                           (double)tokens->count / 1e6);
    }
    int32_t end = bd_tokenizer_role(tokenizer, BD_ROLE_EOS);
    if (end < 0)
        return true;
    if (tokens->count == tokens->room) {
        int64_t room = 2 * tokens->room + 16;
        int32_t *larger = realloc(tokens->ids, (size_t)room * sizeof *larger);
        if (!larger)
            return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for %lld tokens", (long long)room);
        tokens->ids = larger;
        tokens->room = room;
    }
    tokens->ids[tokens->count++] = end;
    return true;
}

bool bd_corpus_read(const bd_tokenizer *tokenizer, const char *const *files, int64_t count,
                    bd_document_options options, bd_progress *progress, bd_corpus *out,
                    bd_error *err)
{
    *out = (bd_corpus){0};
    bd_documents *documents = bd_documents_open(files, count, options, err);
    if (!documents)
        return false;
    bd_tokens tokens = {0};
    bd_document document;
    int got;
    while ((got = bd_documents_next(documents, &document, err)) > 0) {
        out->documents++;
        if (!add_document(tokenizer, &document, progress, out, &tokens, err)) {
            got = -1;
            break;
        }
    }
    out->repaired = bd_documents_repaired(documents);
    bd_documents_close(documents);
    if (got == 0 && tokens.count == 0)
        got = bd_fail(err, "%s: no text in %lld files", files[0], (long long)count) ? 0 : -1;
    out->tokens = tokens.ids;
    out->count = tokens.count;
    free(tokens.spans);
    if (got == 0)
        return true;
    bd_corpus_free(out);
    return false;
}
