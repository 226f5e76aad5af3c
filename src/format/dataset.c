#include "format/dataset.h"

#include <stdlib.h>
#include <string.h>

#include "format/dataset_stream.h"

struct bd_documents {
    const char *const *files;
    int64_t file_count, file; // file: the one being read
    bd_document_options options;
    bd_stream *stream; // NULL between files
    int64_t offset;    // bytes of the file before the current line
    int64_t line;      // number of the current line, from 1
    int64_t number;    // documents handed out
    int64_t repaired;
    bd_text raw, text; // the current line as it is in the file; the document so far
};

bd_documents *bd_documents_open(const char *const *files, int64_t count,
                                bd_document_options options, bd_error *err)
{
    bd_documents *documents = calloc(1, sizeof *documents);
    if (!documents) {
        bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a document reader");
        return NULL;
    }
    documents->files = files;
    documents->file_count = count;
    documents->options = options;
    if (!options.most_bytes)
        documents->options.most_bytes = (size_t)1 << 30;
    return documents;
}

void bd_documents_close(bd_documents *documents)
{
    if (!documents)
        return;
    bd_stream_close(documents->stream);
    bd_text_free(&documents->raw);
    bd_text_free(&documents->text);
    free(documents);
}

int64_t bd_documents_repaired(const bd_documents *documents)
{
    return documents->repaired;
}

// --- lines -------------------------------------------------------------------------------------

/* Read the next line into d->raw: 1; 0 at the end of the file; -1 for an error. */
static int next_line(bd_documents *d, bd_error *err)
{
    d->offset += (int64_t)d->raw.size;
    bd_text_clear(&d->raw);
    int got = bd_stream_line(d->stream, &d->raw, d->options.most_bytes, err);
    d->line += got > 0;
    if (d->line == 1 && d->raw.size >= 3 && !memcmp(d->raw.data, "\xef\xbb\xbf", 3)) {
        // A byte-order mark is no part of the text.
        d->raw.size -= 3;
        memmove(d->raw.data, d->raw.data + 3, d->raw.size);
        d->offset += 3;
    }
    return got;
}

/* A line ends with a newline or with the file, so no character is cut off by its end. A NUL is
 * valid UTF-8 but no text: it shows a binary file, or UTF-16. */
static bool add_line(bd_documents *d, bd_error *err)
{
    const char *bytes = d->raw.data;
    size_t size = d->raw.size, at = 0;
    const char *nul = memchr(bytes, 0, size);
    size_t end = nul ? (size_t)(nul - bytes) : size;
    size_t valid = bd_utf8_valid(bytes, end);
    if (valid < size && !d->options.replace)
        return bd_fail(err, "%s:%lld: byte %lld of the file is 0x%02x, UTF-8 text expected",
                       d->files[d->file], (long long)d->line,
                       (long long)d->offset + (long long)valid, (unsigned char)bytes[valid]);
    d->repaired += valid < size;
    for (;;) {
        bd_utf8_repair(&d->text, bytes + at, end - at, false);
        if (end == size)
            break;
        bd_text_add_character(&d->text, 0xfffd);
        at = end + 1;
        nul = memchr(bytes + at, 0, size - at);
        end = nul ? (size_t)(nul - bytes) : size;
    }
    if (d->text.size > d->options.most_bytes)
        return bd_fail(err, "%s:%lld: a document of more than %zu bytes", d->files[d->file],
                       (long long)d->line, d->options.most_bytes);
    return bd_text_check(&d->text, err);
}

static bool is_blank(const char *bytes, size_t size)
{
    for (size_t i = 0; i < size; i++)
        if (!memchr(" \t\r\n\v\f", bytes[i], 6))
            return false;
    return true;
}

// --- documents ---------------------------------------------------------------------------------

static bool open_file(bd_documents *d, bd_error *err)
{
    d->stream = bd_stream_open(d->files[d->file], err);
    d->offset = d->line = 0;
    bd_text_clear(&d->raw);
    return d->stream != NULL;
}

static void close_file(bd_documents *d)
{
    bd_stream_close(d->stream);
    d->stream = NULL;
    d->file++;
}

/* Collect lines until the document is whole: 1; 0 when the file ends before one starts; -1: an
 * error. */
static int collect(bd_documents *d, int64_t *first_line, bd_error *err)
{
    bd_text_clear(&d->text);
    for (;;) {
        int got = next_line(d, err);
        if (got < 0)
            return -1;
        bool blank = got > 0 && is_blank(d->raw.data, d->raw.size);
        if (got == 0 || (blank && d->options.entries && d->text.size))
            return !is_blank(d->text.data, d->text.size);
        if (blank && d->options.entries)
            continue;
        if (!d->text.size)
            *first_line = d->line;
        if (!add_line(d, err))
            return -1;
    }
}

int bd_documents_next(bd_documents *d, bd_document *out, bd_error *err)
{
    while (d->file < d->file_count) {
        if (!d->stream && !open_file(d, err))
            return -1;
        const char *file = d->files[d->file];
        int64_t first_line = 1;
        int got = collect(d, &first_line, err);
        if (got < 0)
            return -1;
        if (got > 0) {
            if (d->options.entries && d->text.data[d->text.size - 1] == '\n')
                d->text.data[--d->text.size] =
                    0; // the end of an entry's last line is no part of it
            *out = (bd_document){d->text.data, d->text.size, file, d->number++, first_line};
            return 1;
        }
        close_file(d);
    }
    return 0;
}
