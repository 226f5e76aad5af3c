#include "scratch.h"

#include <zlib.h>

#include "../../fuzz/fuzz_dataset.c"

#include "format/dataset.h"

enum { MOST = 32 };

typedef struct {
    char *text[MOST];
    int64_t line[MOST];
    int count, result;
    int64_t repaired;
    bd_error err;
} all_documents;

/* Read everything; the caller frees the texts with forget(). */
static all_documents read_all(const char *const *files, int64_t count, bd_document_options options)
{
    all_documents all = {0};
    bd_documents *documents = bd_documents_open(files, count, options, &all.err);
    assert_non_null(documents);
    bd_document document;
    while ((all.result = bd_documents_next(documents, &document, &all.err)) > 0) {
        assert_int_equal(document.number, all.count);
        assert_true(all.count < MOST);
        all.line[all.count] = document.line;
        all.text[all.count++] = strndup(document.text, document.size);
    }
    all.repaired = bd_documents_repaired(documents);
    bd_documents_close(documents);
    return all;
}

static void forget(all_documents *all)
{
    for (int i = 0; i < all->count; i++)
        free(all->text[i]);
}

static const char *write_gzip(const char *name, const char *text, size_t size)
{
    const char *path = scratch_path(name);
    gzFile file = gzopen(path, "wb");
    assert_int_equal(gzwrite(file, text, (unsigned)size), (int)size);
    assert_int_equal(gzclose(file), Z_OK);
    return path;
}

static const char entries_text[] =
    "\xef\xbb\xbf\n\none\nstill one\n\n \t\ntwo \xe2\x80\x93 \n\r\n\r\nthree";

static void files_and_entries(void **state)
{
    (void)state;
    const char *files[] = {scratch_write_text("a.txt", entries_text),
                           scratch_write_text("b.txt", "  \n"),
                           write_gzip("c.txt.gz", "four\n\nfive\n", 11)};
    all_documents all = read_all(files, 3, (bd_document_options){.entries = true});
    assert_int_equal(all.result, 0);
    assert_int_equal(all.count, 5);
    assert_string_equal(all.text[0], "one\nstill one");
    assert_string_equal(all.text[1], "two \xe2\x80\x93 ");
    assert_string_equal(all.text[2], "three");
    assert_string_equal(all.text[4], "five");
    assert_int_equal(all.line[0], 3);
    assert_int_equal(all.line[2], 10);
    assert_int_equal(all.line[4], 3);
    forget(&all);
    all = read_all(files, 3, (bd_document_options){0});
    assert_int_equal(all.count, 2); // b.txt holds blanks alone
    assert_string_equal(all.text[0], entries_text + 3);
    assert_string_equal(all.text[1], "four\n\nfive\n");
    forget(&all);
    all = read_all(files, 0, (bd_document_options){0});
    assert_true(all.count == 0 && all.result == 0);
}

static void long_lines_cross_pieces(void **state)
{
    (void)state;
    // Two-byte characters at odd offsets, over several pieces of the stream.
    enum { PAIRS = 150000 };
    char *text = malloc(2 * PAIRS + 2);
    text[0] = 'x';
    for (int i = 0; i < PAIRS; i++)
        memcpy(text + 1 + 2 * i, "\xc3\xa9", 2);
    text[2 * PAIRS + 1] = 0;
    const char *files[] = {write_gzip("long.gz", text, 2 * PAIRS + 1)};
    all_documents all = read_all(files, 1, (bd_document_options){0});
    assert_int_equal(all.count, 1);
    assert_string_equal(all.text[0], text);
    forget(&all);
    all = read_all(files, 1, (bd_document_options){.most_bytes = 1000});
    assert_int_equal(all.result, -1);
    assert_non_null(strstr(all.err.message, "long.gz:1: a line of more than 1000 bytes"));
    files[0] = scratch_write_text("many.txt", "12345\n12345\n12345\n");
    all = read_all(files, 1, (bd_document_options){.most_bytes = 12});
    assert_int_equal(all.result, -1);
    assert_non_null(strstr(all.err.message, "many.txt:3: a document of more than 12 bytes"));
    free(text);
}

static void not_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t size;
        const char *message, *repaired;
        int lines;
    } cases[] = {
        {"ok\ncaf\xe9 x\n", 10, ":2: byte 6 of the file is 0xe9", "ok\ncaf\xef\xbf\xbd x\n", 1},
        {"a\xc0\xaf", 3, ":1: byte 1 of the file is 0xc0", "a\xef\xbf\xbd\xef\xbf\xbd",
         1}, // overlong
        {"\xed\xa0\x80", 3, "byte 0 of the file is 0xed", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd",
         1}, // surrogate
        {"\xf4\x90\x80\x80", 4, "byte 0 of the file is 0xf4",
         "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", 1},
        {"ab\xe2\x82", 4, "byte 2 of the file is 0xe2", "ab\xef\xbf\xbd", 1}, // cut off
        {"a\0b\0\n", 5, "byte 1 of the file is 0x00",
         "a\xef\xbf\xbd"
         "b\xef\xbf\xbd\n",
         1},
        {"\xef\xbb\xbf"
         "a\xff",
         5, "byte 4 of the file is 0xff", "a\xef\xbf\xbd", 1},
        {"\xff\n\xff\n", 4, ":1: byte 0 of the file is 0xff", "\xef\xbf\xbd\n\xef\xbf\xbd\n", 2},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *files[] = {scratch_write("bad.txt", cases[i].text, cases[i].size)};
        all_documents all = read_all(files, 1, (bd_document_options){0});
        assert_int_equal(all.result, -1);
        if (!strstr(all.err.message, cases[i].message) || !strstr(all.err.message, "/bad.txt:"))
            fail_msg("\"%s\" does not contain \"%s\"", all.err.message, cases[i].message);
        all = read_all(files, 1, (bd_document_options){.replace = true});
        assert_int_equal(all.result, 0);
        assert_string_equal(all.text[0], cases[i].repaired);
        assert_int_equal(all.repaired, cases[i].lines);
        forget(&all);
    }
}

static void damaged_files(void **state)
{
    (void)state;
    const char *text = "a line of text that packs\na line of text that packs\n";
    size_t size;
    bd_error err = {0};
    char *packed = bd_file_read_text(write_gzip("whole.gz", text, strlen(text)), 1000, &size, &err);
    for (size_t cut = 0; cut < size; cut++) {
        const char *files[] = {scratch_write("cut.gz", packed, cut)};
        all_documents all = read_all(files, 1, (bd_document_options){0});
        if (all.result != -1 || !strstr(all.err.message, "cut.gz: "))
            fail_msg("cut at %zu: %d \"%s\"", cut, all.result, all.err.message);
        forget(&all);
    }
    packed[size - 6] ^= 1; // the checksum
    const char *files[] = {scratch_write("sum.gz", packed, size)};
    all_documents all = read_all(files, 1, (bd_document_options){0});
    assert_int_equal(all.result, -1);
    assert_non_null(strstr(all.err.message, "damaged gzip data"));
    forget(&all);
    free(packed);
    files[0] = scratch_write_text("plain.gz", "plain text");
    all = read_all(files, 1, (bd_document_options){0});
    assert_non_null(strstr(all.err.message, "not gzip data, as its name says"));
    files[0] = "/nonexistent/text";
    all = read_all(files, 1, (bd_document_options){0});
    assert_non_null(strstr(all.err.message, "/nonexistent/text: cannot open"));
    files[0] = scratch_folder;
    all = read_all(files, 1, (bd_document_options){0});
    assert_non_null(strstr(all.err.message, "a folder, a file expected"));
}

// --- records -----------------------------------------------------------------------------------

/* "kind|role:content|role:content" of every record of a text, a line each. */
static int summarise(const char *text, char out[4096], bd_error *err)
{
    bd_records *records = bd_records_open(scratch_write_text("r.jsonl", text), err);
    assert_non_null(records);
    bd_record record;
    int got;
    size_t used = 0;
    out[0] = 0;
    while ((got = bd_records_next(records, &record, err)) > 0) {
        used += (size_t)snprintf(out + used, 4096 - used, "%d", record.kind);
        assert_int_equal(record.message_count, record.kind == BD_RECORD_TEXT
                                                   ? 0
                                                   : (int64_t)json_array_size(record.message_list));
        for (int64_t i = 0; i < record.message_count; i++) {
            const bd_message *m = &record.messages[i];
            assert_ptr_equal(m->object, json_array_get(record.message_list, (size_t)i));
            used += (size_t)snprintf(out + used, 4096 - used, "|%s:%s", m->role, m->content);
        }
        used += (size_t)snprintf(out + used, 4096 - used, "%s%s\n", record.text ? "=" : "",
                                 record.text ? record.text : "");
    }
    bd_records_close(records);
    return got;
}

static void shapes_of_records(void **state)
{
    (void)state;
    static const struct {
        const char *text, *summary;
    } cases[] = {
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, {\"role\": \"assistant\", "
         "\"content\": \"b\"}]}",
         "0|user:a|assistant:b\n"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": "
         "\"a\"}, "
         "\"b\"]}]}",
         "0|user:ab\n"},
        {"{\"messages\": [{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{}]}, "
         "{\"role\": \"assistant\", \"tool_calls\": []}, {\"role\": \"tool\", \"content\": "
         "\"t\"}]}",
         "0|assistant:|assistant:|tool:t\n"},
        {"{\"conversations\": [{\"from\": \"system\", \"value\": \"s\"}, {\"from\": \"human\", "
         "\"value\": "
         "\"a\"}, {\"from\": \"gpt\", \"value\": \"b\"}, {\"from\": \"observation\", \"value\": "
         "\"o\"}]}",
         "0|system:s|user:a|assistant:b|tool:o\n"},
        {"{\"system\": \"s\", \"conversations\": [{\"role\": \"user\", \"content\": \"a\"}]}",
         "0|system:s|user:a\n"},
        {"{\"prompt\": \"a\", \"completion\": \"b\"}", "0|user:a|assistant:b\n"},
        {"{\"prompt\": \"a\", \"response\": \"b\", \"system\": \"s\"}",
         "0|system:s|user:a|assistant:b\n"},
        {"{\"prompt\": [{\"role\": \"user\", \"content\": \"a\"}], \"completion\": [{\"role\": "
         "\"assistant\", \"content\": \"b\"}]}",
         "0|user:a|assistant:b\n"},
        {"{\"prompt\": \"a\", \"completion\": null}", "1|user:a\n"},
        {"{\"turns\": [\"a\", \"b\"]}", "1|user:a|user:b\n"},
        {"{\"text\": \"x\\u00e9\"}", "2=x\xc3\xa9\n"},
        {"{\"messages\": null, \"text\": \"x\"}", "2=x\n"},
        {"\xef\xbb\xbf{\"text\": \"1\"}\r\n\n  \n{\"text\": \"2\"}", "2=1\n2=2\n"},
        {"", ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bd_error err = {0};
        char out[4096];
        int got = summarise(cases[i].text, out, &err);
        if (got != 0)
            fail_msg("%s: %s", cases[i].text, err.message);
        assert_string_equal(out, cases[i].summary);
    }
}

static void fields_stay_within_reach(void **state)
{
    (void)state;
    bd_error err = {0};
    const char *text =
        "\n{\"id\": 7, \"messages\": [{\"role\": \"user\", \"content\": [\"x\"], \"name\": "
        "\"n\", \"tool_calls\": [1, {\"mixed\": true}]}]}\n{\"any\": [1]}\n";
    bd_records *records = bd_records_open(scratch_write_text("r.jsonl", text), &err);
    bd_record record;
    assert_int_equal(bd_records_next(records, &record, &err), 1);
    assert_int_equal(record.line, 2);
    assert_int_equal(json_integer_value(json_object_get(record.object, "id")), 7);
    json_t *message = record.messages[0].object;
    assert_string_equal(json_string_value(json_object_get(message, "content")), "x");
    assert_string_equal(json_string_value(json_object_get(message, "name")), "n");
    assert_int_equal(json_array_size(json_object_get(message, "tool_calls")), 2);
    json_t *object;
    assert_int_equal(bd_records_next_object(records, &object, &err), 1);
    assert_int_equal(json_array_size(json_object_get(object, "any")), 1);
    assert_int_equal(bd_records_next_object(records, &object, &err), 0);
    bd_records_close(records);
}

static void errors_name_line_and_column(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"{\"text\": \"a\"}\n{\"text\": }\n", "r.jsonl:2:10: "},
        {"\n\n{\"text\": \"a\" \"b\"}\n", "r.jsonl:3:"},
        {"{\"text\": \"a\"", "r.jsonl:1:"},
        {"{\"text\": \"\xe9\"}", "r.jsonl:1:"},
        {"[1]\n", "r.jsonl:1:1: not an object"},
        {"{\"a\": 1, \"a\": 2}", "duplicate"},
        {"{}", "r.jsonl:1: none of messages, conversations, prompt, turns, text is there"},
        {"{\"messages\": {}}", "\"messages\" is not a list of messages"},
        {"{\"messages\": []}", "r.jsonl:1: a record without messages"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": \"a\"}, 3]}",
         "messages[1]: not an object"},
        {"{\"messages\": [{\"content\": \"a\"}]}", "messages[0].role: missing, a text expected"},
        {"{\"messages\": [{\"role\": 3, \"content\": \"a\"}]}", "messages[0].role: missing"},
        {"{\"messages\": [{\"role\": \"user\"}]}", "messages[0].content: missing"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": 3}]}",
         "neither a text nor a list of parts"},
        {"{\"messages\": [{\"role\": \"user\", \"content\": [{\"type\": \"image\"}]}]}",
         "messages[0].content: a part that is not text"},
        {"{\"conversations\": [{\"from\": \"\", \"value\": \"a\"}]}",
         "conversations[0].from: missing"},
        {"{\"conversations\": [{\"from\": \"gpt\"}]}", "conversations[0].value: missing"},
        {"{\"prompt\": 3}", "\"prompt\" is not a text or a list of messages"},
        {"{\"prompt\": \"a\", \"completion\": 3}", "\"completion\" is not a text"},
        {"{\"turns\": [\"a\", 3]}", "turns[1]: not a text"},
        {"{\"turns\": 3}", "\"turns\" is not a list of texts"},
        {"{\"text\": 3}", "\"text\" is not a text"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bd_error err = {0};
        char out[4096];
        int got = summarise(cases[i].text, out, &err);
        assert_int_equal(got, -1);
        if (!strstr(err.message, cases[i].message) || !strstr(err.message, "/r.jsonl:"))
            fail_msg("%s: \"%s\" does not contain \"%s\"", cases[i].text, err.message,
                     cases[i].message);
    }
    bd_error err = {0};
    check_refused(bd_records_open("/nonexistent/r.jsonl", &err) != NULL, err, "cannot open");
}

static void long_lines_are_refused(void **state)
{
    (void)state;
    size_t size = ((size_t)16 << 20) + 20;
    char *text = malloc(size);
    memset(text, 'x', size);
    memcpy(text, "{\"text\": \"a\"}\n", 14);
    bd_error err = {0};
    bd_records *records = bd_records_open(scratch_write("long.jsonl", text, size), &err);
    free(text);
    bd_record record;
    assert_int_equal(bd_records_next(records, &record, &err), 1);
    assert_int_equal(bd_records_next(records, &record, &err), -1);
    assert_non_null(strstr(err.message, "long.jsonl:2: a line of more than 16777216 bytes"));
    bd_records_close(records);
}

static void truncated_records(void **state)
{
    (void)state;
    const char *text = "{\"messages\": [{\"role\": \"user\", \"content\": \"\xc3\xa9\"}]}";
    for (size_t cut = 1; cut < strlen(text); cut++) {
        bd_error err = {0};
        bd_records *records = bd_records_open(scratch_write("cut.jsonl", text, cut), &err);
        bd_record record;
        assert_int_equal(bd_records_next(records, &record, &err), -1);
        assert_non_null(strstr(err.message, "cut.jsonl:1:"));
        bd_records_close(records);
    }
}

static void corpus(void **state)
{
    (void)state;
    scratch_replay("dataset", LLVMFuzzerTestOneInput);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_and_entries),
        cmocka_unit_test(long_lines_cross_pieces),
        cmocka_unit_test(not_utf8),
        cmocka_unit_test(damaged_files),
        cmocka_unit_test(shapes_of_records),
        cmocka_unit_test(fields_stay_within_reach),
        cmocka_unit_test(errors_name_line_and_column),
        cmocka_unit_test(long_lines_are_refused),
        cmocka_unit_test(truncated_records),
        cmocka_unit_test(corpus),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
