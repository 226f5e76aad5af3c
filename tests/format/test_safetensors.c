#include "scratch.h"

#include <ftw.h>

#include "../../fuzz/fuzz_safetensors.c"

#include "format/json.h"
#include "format/safetensors.h"

/* A file with this header and so many zero bytes of data. */
static const char *file_with(const char *header, size_t data_bytes)
{
    static uint8_t bytes[4096];
    size_t size = strlen(header);
    memset(bytes, 0, sizeof bytes);
    for (int i = 0; i < 8; i++)
        bytes[i] = (uint8_t)((uint64_t)size >> (8 * i));
    memcpy(bytes + 8, header, size);
    return scratch_write("x.safetensors", bytes, 8 + size + data_bytes);
}

static void golden_files_open(void **state)
{
    (void)state;
    static const struct {
        const char *folder;
        int64_t tensors;
    } folders[] = {
        {"block-diffusion/models/tiny_a", 24},  {"block-diffusion/models/tiny_b", 35}, // two shards
        {"block-diffusion/models/teacher", 24}, {"draft/target-llama-tiny", 39},
        {"draft/target-qwen2-tiny", 75},        {"draft/target-qwen3-tiny", 57},
        {"draft/draft-lilicorr-conv", 67},      {"draft/draft-dspark-rnn", 33},
    };
    for (size_t i = 0; i < sizeof folders / sizeof folders[0]; i++) {
        char path[BD_PATH];
        snprintf(path, sizeof path, "%s/%s", BD_GOLDEN, folders[i].folder);
        bd_error err = {0};
        bd_safetensors *file = bd_safetensors_open(path, &err);
        check_ok(file != NULL, err);
        assert_int_equal(bd_safetensors_count(file), folders[i].tensors);
        for (int64_t t = 1; t < bd_safetensors_count(file); t++)
            assert_true(
                strcmp(bd_safetensors_at(file, t - 1)->name, bd_safetensors_at(file, t)->name) < 0);
        bd_safetensors_close(file);
    }
}

static int golden_seen;
static int open_golden(const char *path, const struct stat *info, int kind)
{
    (void)info;
    size_t length = strlen(path);
    if (kind != FTW_F || length < 12 || strcmp(path + length - 12, ".safetensors"))
        return 0;
    bd_error err = {0};
    bd_safetensors *file = bd_safetensors_open(path, &err);
    if (!file) {
        print_message("%s\n", err.message);
        return 1;
    }
    golden_seen++;
    bd_safetensors_close(file);
    return 0;
}

static void every_golden_case_opens(void **state)
{
    (void)state;
    assert_int_equal(ftw(BD_GOLDEN, open_golden, 8), 0);
    assert_true(golden_seen > 50);
}

static const float floats[6] = {1, -2.5f, 0, 3e30f, 1e-40f, 0.1f};
static const uint16_t halves[3] = {0x3f80, 0xc020, 0x7f80};
static const int64_t longs[2] = {-5, 1 << 30};
static const uint8_t bytes[3] = {0, 7, 255};
static const double scalar = 1.0 / 3;

static const bd_tensor mixed[] = {
    {"bytes", BD_U8, 1, {3}, 3, bytes},     {"floats", BD_F32, 2, {2, 3}, 6, floats},
    {"halves", BD_BF16, 1, {3}, 3, halves}, {"scalar", BD_F64, 0, {0}, 1, &scalar},
    {"longs", BD_I64, 2, {1, 2}, 2, longs}, {"empty", BD_F32, 2, {0, 4}, 0, NULL},
};
enum { MIXED = sizeof mixed / sizeof mixed[0] };

static void written_files_read_back(void **state)
{
    (void)state;
    bd_error err = {0};
    const char *path = scratch_path("mixed.safetensors");
    const char *const metadata[] = {"format", "pt", "target", "caf\xc3\xa9", NULL};
    check_ok(bd_safetensors_write(path, mixed, MIXED, metadata, &err), err);
    bd_safetensors *file = bd_safetensors_open(path, &err);
    check_ok(file != NULL, err);
    assert_int_equal(bd_safetensors_count(file), MIXED);
    for (int i = 0; i < MIXED; i++) {
        const bd_tensor *t = bd_safetensors_find(file, mixed[i].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, mixed[i].dtype);
        assert_int_equal(t->rank, mixed[i].rank);
        assert_int_equal(t->count, mixed[i].count);
        assert_memory_equal(t->shape, mixed[i].shape, sizeof(int64_t) * (size_t)t->rank);
        if (t->count)
            assert_memory_equal(t->data, mixed[i].data, (size_t)t->count * bd_dtype_size(t->dtype));
        assert_int_equal((uintptr_t)t->data % bd_dtype_size(t->dtype), 0);
    }
    assert_string_equal(bd_safetensors_metadata(file, "target"), "caf\xc3\xa9");
    assert_null(bd_safetensors_metadata(file, "other"));
    assert_null(bd_safetensors_find(file, "missing"));
    assert_null(bd_safetensors_find(file, "__metadata__"));
    bd_safetensors_close(file);
}

static void writing_is_deterministic_and_aligned(void **state)
{
    (void)state;
    bd_error err = {0};
    size_t size[2];
    char *text[2];
    for (int i = 0; i < 2; i++) {
        const char *path = scratch_path(i ? "b.safetensors" : "a.safetensors");
        check_ok(bd_safetensors_write(path, mixed, MIXED, NULL, &err), err);
        text[i] = bd_file_read_text(path, 10000, &size[i], &err);
    }
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(text[0], text[1], size[0]);
    assert_int_equal((uint8_t)text[0][0] % 8, 0); // so that the data starts at a multiple of 8
    assert_memory_equal(text[0] + 8,
                        "{\"__metadata__\":{\"format\":\"pt\"},\"bytes\":{\"dtype\":\"U8\"", 49);
    free(text[0]);
    free(text[1]);
    const bd_tensor twice[] = {mixed[0], mixed[0]};
    check_refused(bd_safetensors_write(scratch_path("c"), twice, 2, NULL, &err), err,
                  "given twice");
    check_refused(bd_safetensors_write("/nonexistent/x", mixed, MIXED, NULL, &err), err,
                  "cannot write");
    assert_false(bd_file_exists(scratch_path("c")));
}

static void numbers_are_converted(void **state)
{
    (void)state;
    bd_error err = {0};
    const char *path = scratch_path("convert.safetensors");
    check_ok(bd_safetensors_write(path, mixed, MIXED, NULL, &err), err);
    bd_safetensors *f = bd_safetensors_open(path, &err);
    float out[6];
    int32_t ints[3];
    check_ok(bd_safetensors_read_f32(f, "floats", 2, (int64_t[]){2, 3}, out, &err), err);
    assert_memory_equal(out, floats, sizeof floats);
    check_ok(bd_safetensors_read_f32(f, "halves", 1, (int64_t[]){-1}, out, &err), err);
    assert_true(out[0] == 1 && out[1] == -2.5f && isinf(out[2]));
    check_ok(bd_safetensors_read_f32(f, "scalar", 0, NULL, out, &err), err);
    assert_true(out[0] == (float)(1.0 / 3));
    check_ok(bd_safetensors_read_i32(f, "longs", 2, (int64_t[]){-1, 2}, ints, &err), err);
    assert_int_equal(ints[0], -5);
    assert_int_equal(ints[1], 1 << 30);
    check_ok(bd_safetensors_read_i32(f, "bytes", 1, (int64_t[]){3}, ints, &err), err);
    assert_int_equal(ints[2], 255);

    check_refused(bd_safetensors_read_f32(f, "none", 0, NULL, out, &err), err,
                  "no tensor \"none\"");
    check_refused(bd_safetensors_read_f32(f, "floats", 2, (int64_t[]){3, -1}, out, &err), err,
                  "tensor \"floats\": shape [2, 3], [3, any] expected");
    check_refused(bd_safetensors_read_f32(f, "floats", 1, (int64_t[]){6}, out, &err), err,
                  "[6] expected");
    check_refused(bd_safetensors_read_f32(f, "longs", 2, (int64_t[]){1, 2}, out, &err), err,
                  "dtype I64, a float dtype expected");
    check_refused(bd_safetensors_read_i32(f, "floats", 2, (int64_t[]){2, 3}, ints, &err), err,
                  "dtype F32, an integer dtype expected");
    bd_safetensors_close(f);
    const int64_t large = (int64_t)1 << 40;
    const bd_tensor one = {"large", BD_I64, 0, {0}, 1, &large};
    check_ok(bd_safetensors_write(path, &one, 1, NULL, &err), err);
    f = bd_safetensors_open(path, &err);
    check_refused(bd_safetensors_read_i32(f, "large", 0, NULL, ints, &err), err,
                  "element 0 is 1099511627776, 32 bits expected");
    bd_safetensors_close(f);
}

static void odd_offsets_are_read(void **state)
{
    (void)state;
    bd_error err = {0};
    // Data starts at an odd byte of the file, and the floats at an odd byte of the data.
    const char *header = "{\"a\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]},"
                         "\"f\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[1,9]}}";
    uint8_t file_bytes[512] = {(uint8_t)strlen(header)};
    size_t at = 8 + strlen(header);
    memcpy(file_bytes + 8, header, strlen(header));
    file_bytes[at] = 9;
    memcpy(file_bytes + at + 1, floats, 8);
    const char *path = scratch_write("odd.safetensors", file_bytes, at + 9);
    bd_safetensors *f = bd_safetensors_open(path, &err);
    check_ok(f != NULL, err);
    const bd_tensor *t = bd_safetensors_find(f, "f");
    assert_int_equal((uintptr_t)t->data % 4, 0);
    assert_memory_equal(t->data, floats, 8);
    bd_safetensors_close(f);
}

#define TENSOR(name, dtype, shape, begin, end)                                                     \
    "\"" name "\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":[" begin "," end   \
    "]}"

static void headers_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *header;
        size_t data;
        const char *message;
    } bad[] = {
        {"{" TENSOR("a", "F32", "[2]", "0", "8") "}", 7, "ends at byte 8, the file holds 7"},
        {"{" TENSOR("a", "F32", "[2]", "0", "8") "}", 9,
         "tensors end at data byte 8, the file holds 9"},
        {"{" TENSOR("a", "F32", "[3]", "0", "8") "}", 8, "span 8 bytes, its F32 shape 12"},
        {"{" TENSOR("a", "F32", "[-2]", "0", "8") "}", 8, "shape[0] is not a size"},
        {"{" TENSOR("a", "F32", "[2.0]", "0", "8") "}", 8, "shape[0] is not a size"},
        {"{" TENSOR("a", "F32", "2", "0", "8") "}", 8, "not a list of at most 8 sizes"},
        {"{" TENSOR("a", "U8", "[1,1,1,1,1,1,1,1,1]", "0", "1") "}", 1, "not a list of at most 8"},
        {"{" TENSOR("a", "F8_E5M2", "[1]", "0", "1") "}", 1, "unknown dtype \"F8_E5M2\""},
        {"{" TENSOR("a", "F32", "[4294967296,4294967296]", "0", "0") "}", 0, "more than 2^63"},
        {"{" TENSOR("a", "F64", "[2305843009213693952]", "0", "0") "}", 0, "span 0 bytes"},
        {"{" TENSOR("a", "U8", "[1]", "-1", "0") "}", 1, "not [begin, end]"},
        {"{" TENSOR("a", "U8", "[1]", "1", "0") "}", 1, "not [begin, end]"},
        {"{" TENSOR("a", "U8", "[1]", "9223372036854775806", "9223372036854775807") "}", 1,
         "ends at"},
        {"{" TENSOR("a", "U8", "[4]", "0", "4") "," TENSOR("b", "U8", "[4]", "2", "6") "}", 6,
         "tensors \"a\" and \"b\" overlap"},
        {"{" TENSOR("a", "U8", "[2]", "0", "2") "," TENSOR("b", "U8", "[2]", "3", "5") "}", 5,
         "data bytes 2 to 3 belong to no tensor"},
        {"{" TENSOR("a", "U8", "[1]", "0", "1") "," TENSOR("a", "U8", "[1]", "1", "2") "}", 2,
         "duplicate"},
        {"{\"a\":{\"shape\":[],\"data_offsets\":[0,0]}}", 0, "no dtype"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0]}}", 0, "data_offsets is not"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[0],\"data_offsets\":[0]}}", 0, "data_offsets is not"},
        {"{\"a\":7}", 0, "tensor \"a\": not an object"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "\"a\" is not a text"},
        {"{\"__metadata__\":[]}", 0, "__metadata__ is not an object"},
        {"[]", 0, "not a JSON object"},
        {"", 0, "not a JSON object"},
        {"{\"\xff\":1}", 0, "x.safetensors: header:1:"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        bd_error err = {0};
        const char *path = file_with(bad[i].header, bad[i].data);
        check_refused(bd_safetensors_open(path, &err) != NULL, err, bad[i].message);
        if (!strstr(err.message, "x.safetensors"))
            fail_msg("\"%s\" does not name the file", err.message);
    }
    bd_error err = {0};
    uint8_t wraps[16] = {0xf8, 255, 255, 255, 255, 255, 255, 255, '{', '}'};
    check_refused(bd_safetensors_open(scratch_write("w", wraps, 16), &err) != NULL, err,
                  "header of 18446744073709551608 bytes");
    check_refused(bd_safetensors_open("/nonexistent/x", &err) != NULL, err, "cannot open");
}

static void truncated_files_are_refused(void **state)
{
    (void)state;
    bd_error err = {0};
    check_ok(bd_safetensors_write(scratch_path("whole"), mixed, MIXED, NULL, &err), err);
    size_t size;
    char *text = bd_file_read_text(scratch_path("whole"), 10000, &size, &err);
    for (size_t cut = 0; cut < size; cut++) {
        err = (bd_error){0};
        check_refused(bd_safetensors_open(scratch_write("cut", text, cut), &err) != NULL, err,
                      "cut: ");
    }
    free(text);
}

static void folders_of_shards(void **state)
{
    (void)state;
    bd_error err = {0};
    const char *folder = scratch_path("model");
    char path[BD_PATH];
    check_ok(bd_safetensors_write_folder(folder, mixed, MIXED, 30, &err), err);
    check_ok(bd_path_join(path, folder, "model-00001-of-00002.safetensors", &err), err);
    assert_true(bd_file_exists(path)); // 3 + 24 bytes, 6 + 8 + 16 + 0
    bd_safetensors *f = bd_safetensors_open(folder, &err);
    check_ok(f != NULL, err);
    assert_int_equal(bd_safetensors_count(f), MIXED);
    assert_memory_equal(bd_safetensors_find(f, "longs")->data, longs, sizeof longs);
    bd_safetensors_close(f);
    check_ok(bd_path_join(path, folder, "model.safetensors.index.json", &err), err);
    json_t *index = bd_json_load(path, &err);
    assert_int_equal(
        json_integer_value(json_object_get(json_object_get(index, "metadata"), "total_size")),
        3 + 24 + 6 + 8 + 16);
    json_t *map = json_object_get(index, "weight_map");
    assert_string_equal(json_string_value(json_object_get(map, "floats")),
                        "model-00001-of-00002.safetensors");
    assert_string_equal(json_string_value(json_object_get(map, "halves")),
                        "model-00002-of-00002.safetensors");
    json_decref(index);
    // Saving again as one file replaces the index, which would be stale.
    check_ok(bd_safetensors_write_folder(folder, mixed, 2, 1 << 20, &err), err);
    assert_false(bd_file_exists(path));
    f = bd_safetensors_open(folder, &err);
    assert_int_equal(bd_safetensors_count(f), 2);
    bd_safetensors_close(f);
    // And the other way round: a reader looks for the one file first.
    check_ok(bd_safetensors_write_folder(folder, mixed, MIXED, 30, &err), err);
    f = bd_safetensors_open(folder, &err);
    assert_int_equal(bd_safetensors_count(f), MIXED);
    bd_safetensors_close(f);
    check_refused(bd_safetensors_open(scratch_folder, &err) != NULL, err,
                  "neither model.safetensors");
}

static void indexes_are_checked(void **state)
{
    (void)state;
    static const struct {
        const char *index, *message;
    } bad[] = {
        {"{\"weight_map\": {\"bytes\": \"../one.safetensors\"}}",
         "a file name in this folder expected"},
        {"{\"weight_map\": {\"bytes\": \"/etc/passwd\"}}", "a file name in this folder expected"},
        {"{\"weight_map\": {\"bytes\": \"..\"}}", "a file name in this folder expected"},
        {"{\"weight_map\": {\"bytes\": \"\"}}", "a file name in this folder expected"},
        {"{\"weight_map\": {\"bytes\": 3}}", "a file name in this folder expected"},
        {"{\"weight_map\": []}", "\"weight_map\" is a list of 0, an object expected"},
        {"{}", "\"weight_map\" is missing"},
        {"[]", "\"weight_map\" is missing"},
        {"{\"weight_map\": {\"bytes\": \"none.safetensors\"}}", "cannot open"},
        {"{\"weight_map\": {\"other\": \"one.safetensors\"}}", "\"other\": not in one.safetensors"},
        {"{\"weight_map\": {\"__metadata__\": \"one.safetensors\"}}", "not in one.safetensors"},
        {"{\"weight_map\": {\"bytes\": \"one.safetensors\", \"floats\": \"two.safetensors\"}}",
         "tensor \"floats\" is in two shards"},
    };
    bd_error err = {0};
    check_ok(bd_folder_make(scratch_path("shards"), &err), err);
    check_ok(bd_safetensors_write(scratch_path("shards/one.safetensors"), mixed, 2, NULL, &err),
             err);
    check_ok(bd_safetensors_write(scratch_path("shards/two.safetensors"), mixed + 1, 2, NULL, &err),
             err);
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        err = (bd_error){0};
        scratch_write_text("shards/model.safetensors.index.json", bad[i].index);
        check_refused(bd_safetensors_open(scratch_path("shards"), &err) != NULL, err,
                      bad[i].message);
    }
}

static void corpus(void **state)
{
    (void)state;
    scratch_replay("safetensors", LLVMFuzzerTestOneInput);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_files_open),
        cmocka_unit_test(every_golden_case_opens),
        cmocka_unit_test(written_files_read_back),
        cmocka_unit_test(writing_is_deterministic_and_aligned),
        cmocka_unit_test(numbers_are_converted),
        cmocka_unit_test(odd_offsets_are_read),
        cmocka_unit_test(headers_are_checked),
        cmocka_unit_test(truncated_files_are_refused),
        cmocka_unit_test(folders_of_shards),
        cmocka_unit_test(indexes_are_checked),
        cmocka_unit_test(corpus),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
