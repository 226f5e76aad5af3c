/* dataset.h - text and conversations from files, one document or record at a time.
 *
 * Plain files and gzip files (.gz, dictzip .dz) are read alike. Text is UTF-8: anything else is an
 * error that names file and byte, or is replaced by U+FFFD when asked. JSONL is one JSON object a
 * line, in any of the shapes people use; fields a record has beside the known ones stay within
 * reach.
 *
 *     bd_documents *d = bd_documents_open(files, count, (bd_document_options){.entries = true},
 * &err); while ((got = bd_documents_next(d, &document, &err)) > 0) ...   // document.text,
 * document.size bd_documents_close(d);
 *
 *     bd_records *r = bd_records_open("train.jsonl", &err);
 *     while ((got = bd_records_next(r, &record, &err)) > 0) ...       // record.messages[i].content
 *     bd_records_close(r);
 */
#ifndef BD_FORMAT_DATASET_H
#define BD_FORMAT_DATASET_H

#include <jansson.h>

#include "base/error.h"

// --- text --------------------------------------------------------------------------------------

typedef struct {
    bool entries; /* documents are runs of lines between blank ones; false: each file is one */
    bool replace; /* bytes that are not UTF-8, and NUL, become U+FFFD; false: they are an error */
    size_t most_bytes; /* largest document; 0: 1 GiB */
} bd_document_options;

typedef struct {
    const char *text; /* UTF-8 with a NUL behind it; valid until the next call */
    size_t size;
    const char *file;
    int64_t number; /* 0.. over all files */
    int64_t line;   /* where it starts in its file, from 1 */
} bd_document;

typedef struct bd_documents bd_documents;

/* The files are opened one after the other, so a missing one is told when its turn comes. A
 * byte-order mark and documents of blanks alone are left out. The names must outlive the reader. */
bd_documents *bd_documents_open(const char *const *files, int64_t count,
                                bd_document_options options, bd_error *err);
int bd_documents_next(bd_documents *documents, bd_document *out,
                      bd_error *err); /* 1; 0: end; -1: error */
void bd_documents_close(bd_documents *documents);

/* How many lines were not UTF-8 so far (options.replace). */
int64_t bd_documents_repaired(const bd_documents *documents);

// --- records -----------------------------------------------------------------------------------

typedef enum {
    BD_RECORD_CONVERSATION, /* messages; also from prompt and completion or response */
    BD_RECORD_PROMPTS,      /* user messages without answers: "turns", or "prompt" alone */
    BD_RECORD_TEXT,         /* text, no messages */
} bd_record_kind;

typedef struct {
    const char
        *role; /* "system", "user", "assistant", "tool", or another name, as it is in the file */
    const char *content;
    json_t *object; /* {"role": ..., "content": ..., and whatever else the message had} */
} bd_message;

typedef struct {
    bd_record_kind kind;
    const bd_message *messages;
    int64_t message_count;
    json_t *message_list; /* the same messages as a list of their objects */
    const char *text;     /* BD_RECORD_TEXT */
    json_t *object;       /* the whole line */
    int64_t line;         /* from 1 */
} bd_record;

typedef struct bd_records bd_records;

/* Everything a record points to is valid until the next call. A line of more than 16 MiB is an
 * error; blank lines are skipped. Errors are "file:line:column: reason". */
bd_records *bd_records_open(const char *path, bd_error *err);
int bd_records_next(bd_records *records, bd_record *out, bd_error *err); /* 1; 0: end; -1: error */
void bd_records_close(bd_records *records);

/* The next line's object alone, of any shape. */
int bd_records_next_object(bd_records *records, json_t **object, bd_error *err);

#endif
