#include "fuzz.h"

#include <string.h>

#include "format/dataset.h"
#include "format/tokenizer_text.h"

static void read_documents(const char *path, bool entries, bool replace)
{
    bd_error err = {0};
    const char *files[] = {path, path};
    bd_document_options options = {entries, replace, 1 << 20};
    bd_documents *documents = bd_documents_open(files, 2, options, &err);
    bd_document document;
    int got;
    while ((got = bd_documents_next(documents, &document, &err)) > 0) {
        fuzz_promise(document.size > 0 && document.text[document.size] == 0);
        fuzz_promise(strlen(document.text) == document.size);
        fuzz_promise(bd_utf8_valid(document.text, document.size) == document.size);
    }
    fuzz_promise(got == 0 || err.message[0]);
    bd_documents_close(documents);
}

static void read_records(const char *path)
{
    bd_error err = {0};
    bd_records *records = bd_records_open(path, &err);
    bd_record record;
    int got = 0;
    while (records && (got = bd_records_next(records, &record, &err)) > 0) {
        fuzz_promise((record.kind == BD_RECORD_TEXT) == (record.text != NULL));
        fuzz_promise(record.kind == BD_RECORD_TEXT || record.message_count > 0);
        for (int64_t i = 0; i < record.message_count; i++)
            fuzz_promise(record.messages[i].role[0] && record.messages[i].content);
    }
    fuzz_promise((records && got == 0) || err.message[0]);
    bd_records_close(records);
}

/* Documents are well-formed text without NUL, messages have a role and a content. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64];
    int fd = fuzz_file(data, size, path);
    for (int mode = 0; mode < 4; mode++)
        read_documents(path, mode & 1, mode & 2);
    read_records(path);
    close(fd);
    return 0;
}
