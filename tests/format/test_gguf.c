/* GGUF files: what is written is laid out as the format says and read back; no byte of a hostile
 * file leads astray; Q8_0 rounds as other programs do (checks 1 to 3 and 5 of spec gguf 8). */
#include "scratch.h"

#include "format/gguf.h"
#include "format/gguf_names.h"
#include "tensor/quantized.h"

static const float values[96] = {1, -2, 3.5f, 0, 1e-3f, -4, 127};
static const int64_t matrix[2] = {2, 32}, odd[2] = {3, 5}, cube[3] = {2, 2, 8}, vector[1] = {7};

static const char *write_sample(void)
{
    bd_error err = {0};
    const char *path = scratch_path("sample.gguf");
    bd_gguf_out *out = bd_gguf_begin();
    bd_gguf_put_text(out, "general.architecture", "qwen3");
    bd_gguf_put_u32(out, "qwen3.block_count", 2);
    bd_gguf_put_f32(out, "qwen3.rope.freq_base", 1e6);
    bd_gguf_put_bool(out, "yes", true);
    bd_gguf_put_i32s(out, "ids", (int32_t[]){3, -1, 5}, 3);
    bd_gguf_put_texts(out, "texts", 2);
    bd_gguf_put_next(out, "one", 3);
    bd_gguf_put_next(out, "", 0);
    bd_gguf_put_tensor(out, "a", BD_GGUF_F32, 1, vector, BD_F32, values);
    bd_gguf_put_tensor(out, "b", BD_GGUF_Q8_0, 2, matrix, BD_F32, values);
    bd_gguf_put_tensor(out, "c", BD_GGUF_Q8_0, 2, odd, BD_F32, values); // cannot be grouped
    bd_gguf_put_tensor(out, "d", BD_GGUF_BF16, 3, cube, BD_F32, values);
    check_ok(bd_gguf_commit(out, path, &err), err);
    return path;
}

static void reads_what_was_written(void **state)
{
    (void)state;
    bd_error err = {0};
    int64_t number = 0;
    double real = 0;
    bool yes = false;
    bd_gguf *file = bd_gguf_open(write_sample(), &err);
    check_ok(file != NULL, err);
    assert_int_equal(bd_gguf_key_count(file), 6);
    assert_string_equal(bd_gguf_text(file, "general.architecture"), "qwen3");
    check_ok(bd_gguf_int(file, "qwen3.block_count", 1, 9, &number, &err), err);
    assert_int_equal(number, 2);
    check_refused(bd_gguf_int(file, "qwen3.block_count", 3, 9, &number, &err), err, "is 2, 3 to 9");
    check_refused(bd_gguf_int(file, "none", 3, 9, &number, &err), err, "\"none\" is missing");
    check_refused(bd_gguf_int(file, "yes", 0, 9, &number, &err), err, "is no integer");
    check_ok(bd_gguf_number(file, "qwen3.rope.freq_base", &real, &err), err);
    assert_true(real == 1e6);
    check_ok(bd_gguf_bool_if(file, "yes", &yes, &err), err);
    assert_true(yes);
    assert_int_equal(bd_gguf_ints(file, "ids"), 3);
    assert_int_equal(bd_gguf_int_at(file, "ids", 1), -1);
    assert_int_equal(bd_gguf_ints(file, "texts"), -1);
    assert_int_equal(bd_gguf_texts(file, "texts"), 2);
    size_t at = 0, size;
    assert_memory_equal(bd_gguf_text_next(file, "texts", &at, &size), "one", 3);
    assert_int_equal(size, 3);
    bd_gguf_text_next(file, "texts", &at, &size);
    assert_int_equal(size, 0);

    const bd_gguf_tensor *c = bd_gguf_find(file, "c"), *d = bd_gguf_find(file, "d");
    assert_null(bd_gguf_find(file, "e"));
    assert_int_equal(c->type, BD_GGUF_F32);
    assert_memory_equal(c->data, values, 15 * sizeof(float));
    assert_int_equal(d->rank, 3);
    assert_memory_equal(d->shape, cube, sizeof cube);
    assert_int_equal(bd_gguf_find(file, "b")->bytes, 2 * BD_Q8_BYTES);
    bd_gguf_close(file);
}

/* Check 2: offsets follow each other, all is aligned, the last tensor is padded too. */
static void is_laid_out(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_map map;
    const char *path = write_sample();
    check_ok(bd_map_open(&map, path, &err), err);
    static const uint8_t head[] = {'G', 'G', 'U', 'F', 3, 0, 0, 0, 4, 0, 0, 0,
                                   0,   0,   0,   0,   6, 0, 0, 0, 0, 0, 0, 0};
    assert_memory_equal(map.data, head, sizeof head);
    bd_gguf *file = bd_gguf_open(path, &err);
    size_t data = map.size;
    for (int64_t i = 3; i >= 0; i--) {
        size_t bytes = bd_gguf_at(file, i)->bytes;
        data -= (bytes + 31) / 32 * 32;
    }
    assert_int_equal(data % 32, 0);
    assert_memory_equal(map.data + data, values, 7 * sizeof(float));
    for (size_t i = data + 28; i < data + 32; i++)
        assert_int_equal(map.data[i], 0);
    bd_gguf_close(file);
    bd_map_close(&map);
}

static void rounds_as_others(void **state)
{
    (void)state;
    float source[32] = {127, 0.5f, -0.5f, 1.5f, -2.5f, 0.49f, -127, 1e-42f}, back[32];
    uint8_t block[BD_Q8_BYTES];
    bd_q8_from_f32(source, block, 32); // the scale is 1: halves go away from zero
    assert_int_equal(block[0] | block[1] << 8, 0x3c00);
    static const int8_t want[] = {127, 1, -1, 2, -3, 0, -127, 0};
    assert_memory_equal(block + 2, want, sizeof want);
    bd_q8_to_f32(block, back, 32);
    assert_true(back[4] == -3 && back[6] == -127);

    memset(source, 0, sizeof source);
    bd_q8_from_f32(source, block, 32);
    for (int i = 0; i < BD_Q8_BYTES; i++)
        assert_int_equal(block[i], 0);
    source[3] = 1; // 1/127 in f16 is 0x2008; what divides is the fp32 scale, so 1 is 127 exactly
    source[4] = NAN;
    bd_q8_from_f32(source, block, 32);
    assert_int_equal(block[0] | block[1] << 8, 0x2008);
    assert_int_equal(block[2 + 3], 127);
    assert_int_equal(block[2 + 4], 0);
}

/* Every beginning of a file, every byte changed in several ways: an error or a whole reading. */
static void survives_hostile_bytes(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_map map;
    check_ok(bd_map_open(&map, write_sample(), &err), err);
    uint8_t *bytes = malloc(map.size);
    for (size_t cut = 0; cut < map.size; cut++) {
        bd_gguf *file = bd_gguf_open(scratch_write("cut.gguf", map.data, cut), &err);
        if (file && cut < map.size - 31) // only the last padding may be missing
            fail_msg("%zu of %zu bytes were read", cut, map.size);
        bd_gguf_close(file);
    }
    static const uint8_t changes[] = {0x00, 0xff, 0x80, 0x7f, 0x09};
    for (size_t i = 0; i < map.size && i < 600; i++)
        for (size_t j = 0; j < sizeof changes; j++) {
            memcpy(bytes, map.data, map.size);
            bytes[i] = changes[j];
            bd_gguf *file = bd_gguf_open(scratch_write("odd.gguf", bytes, map.size), &err);
            for (int64_t t = 0; file && t < bd_gguf_count(file); t++) {
                const bd_gguf_tensor *tensor = bd_gguf_at(file, t);
                float *out = malloc((size_t)tensor->count * sizeof *out);
                assert_non_null(out);
                bd_gguf_read_f32(tensor, out, &err);
                free(out);
            }
            bd_gguf_close(file);
        }
    free(bytes);
    bd_map_close(&map);
}

/* Tensors follow each other: one that starts 32 bytes later is refused. */
static void refuses_a_gap(void)
{
    bd_error err = {0};
    bd_map map;
    check_ok(bd_map_open(&map, write_sample(), &err), err);
    uint8_t *bytes = malloc(map.size + 32);
    memcpy(bytes, map.data, map.size);
    static const uint8_t entry[] = {1, 0, 0, 0, 0, 0, 0, 0, 'b', 2, 0, 0, 0, 32, 0, 0, 0,
                                    0, 0, 0, 0, 2, 0, 0, 0, 0,   0, 0, 0, 8, 0,  0, 0, 32};
    uint8_t *at = memmem(bytes, map.size, entry, sizeof entry);
    assert_non_null(at);
    at[sizeof entry - 1] = 64;
    check_refused(bd_gguf_open(scratch_write("gap.gguf", bytes, map.size), &err), err,
                  "tensor \"b\" starts at 64, 32 expected");
    free(bytes);
    bd_map_close(&map);
}

static void names_what_is_wrong(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_gguf_out *out = bd_gguf_begin();
    bd_gguf_put_u32(out, "a", 1);
    bd_gguf_put_u32(out, "a", 2);
    check_ok(bd_gguf_commit(out, scratch_path("twice.gguf"), &err), err);
    check_refused(bd_gguf_open(scratch_path("twice.gguf"), &err), err, "key \"a\" is there twice");
    out = bd_gguf_begin();
    bd_gguf_put_tensor(out, "t", BD_GGUF_F32, 1, vector, BD_F32, values);
    bd_gguf_put_tensor(out, "t", BD_GGUF_F32, 1, vector, BD_F32, values);
    check_ok(bd_gguf_commit(out, scratch_path("pair.gguf"), &err), err);
    check_refused(bd_gguf_open(scratch_path("pair.gguf"), &err), err,
                  "tensor \"t\" is there twice");
    static const uint8_t huge[] = {'G',  'G',  'U',  'F',  3, 0, 0, 0, 0xff, 0xff, 0xff, 0xff,
                                   0xff, 0xff, 0xff, 0x7f, 0, 0, 0, 0, 0,    0,    0,    0};
    check_refused(bd_gguf_open(scratch_write("huge.gguf", huge, sizeof huge), &err), err,
                  "9223372036854775807 tensors");
    check_refused(bd_gguf_open(scratch_write_text("text.gguf", "hello, world"), &err), err,
                  "not a GGUF file");
    refuses_a_gap();
    char name[BD_GGUF_NAME];
    assert_true(bd_gguf_layer_name("self_attn.q_proj.weight", 12, name));
    assert_string_equal(name, "blk.12.attn_q.weight");
    assert_false(bd_gguf_layer_name("self_attn.rotary_emb.inv_freq", 0, name));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_what_was_written), cmocka_unit_test(is_laid_out),
        cmocka_unit_test(rounds_as_others),       cmocka_unit_test(survives_hostile_bytes),
        cmocka_unit_test(names_what_is_wrong),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
