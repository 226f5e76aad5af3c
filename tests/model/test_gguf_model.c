/* Target models in GGUF: the order of rows for llama, and exactly the keys, types, names and
 * dimensions of the architecture (checks 1, 3 and 6 of spec gguf 8). */
#include "check.h"

#include <unistd.h>

#include "model/gguf_model.h"

/* Two heads of four rows: halves 0 1 | 2 3 become pairs 0 2 1 3. */
static void rows_are_paired(void **state)
{
    (void)state;
    const float halves[16] = {0,  0.5f,  1,  1.5f,  2,  2.5f,  3,  3.5f,
                              10, 10.5f, 11, 11.5f, 12, 12.5f, 13, 13.5f};
    const float want[16] = {0,  0.5f,  2,  2.5f,  1,  1.5f,  3,  3.5f,
                            10, 10.5f, 12, 12.5f, 11, 11.5f, 13, 13.5f};
    float pairs[16], back[16];
    bd_gguf_pair_rows(halves, pairs, 8, 4, 2 * sizeof(float), false);
    assert_memory_equal(pairs, want, sizeof want);
    bd_gguf_pair_rows(pairs, back, 8, 4, 2 * sizeof(float), true);
    assert_memory_equal(back, halves, sizeof halves);
    for (int64_t size = 2; size <= 64; size += 2) { // any head size: back is the inverse
        int32_t ids[192], there[192], again[192];
        for (int i = 0; i < 192; i++)
            ids[i] = i;
        bd_gguf_pair_rows(ids, there, 3 * size, size, sizeof *ids, false);
        bd_gguf_pair_rows(there, again, 3 * size, size, sizeof *ids, true);
        assert_memory_equal(again, ids, (size_t)(3 * size) * sizeof *ids);
        assert_int_equal(there[1], size / 2);
    }
}

static void numbers_stay_short(void **state)
{
    (void)state;
    assert_true(bd_gguf_shortest((double)1e-6f) == 1e-6);
    assert_true(bd_gguf_shortest((double)10000.0f) == 10000);
    assert_true(bd_gguf_shortest((double)0.1f) == 0.1);
}

static void keys_have_their_types(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        bd_gguf_value_type type;
    } want[] = {{"llama.block_count", BD_GGUF_U32_VALUE},
                {"llama.context_length", BD_GGUF_U32_VALUE},
                {"llama.embedding_length", BD_GGUF_U32_VALUE},
                {"llama.feed_forward_length", BD_GGUF_U32_VALUE},
                {"llama.attention.head_count", BD_GGUF_U32_VALUE},
                {"llama.attention.head_count_kv", BD_GGUF_U32_VALUE},
                {"llama.attention.key_length", BD_GGUF_U32_VALUE},
                {"llama.attention.value_length", BD_GGUF_U32_VALUE},
                {"llama.rope.dimension_count", BD_GGUF_U32_VALUE},
                {"llama.attention.layer_norm_rms_epsilon", BD_GGUF_F32_VALUE},
                {"llama.rope.freq_base", BD_GGUF_F32_VALUE}};
    bd_error err = {0};
    bd_model_config c = {.layers = 3,
                         .max_positions = 64,
                         .hidden = 8,
                         .intermediate = 12,
                         .query_heads = 4,
                         .key_heads = 2,
                         .head_size = 6,
                         .norm_eps = 1e-6};
    c.rope.theta = 500000;
    char path[64];
    snprintf(path, sizeof path, "/tmp/bdlm-keys-%ld.gguf", (long)getpid());
    bd_gguf_out *out = bd_gguf_begin();
    bd_gguf_put_dimensions(out, "llama", &c);
    check_ok(bd_gguf_commit(out, path, &err), err);
    bd_gguf *file = bd_gguf_open(path, &err);
    check_ok(file != NULL, err);
    assert_int_equal(bd_gguf_key_count(file), sizeof want / sizeof *want);
    for (int64_t i = 0; i < bd_gguf_key_count(file); i++) {
        bd_gguf_value_type type, element;
        int64_t count;
        assert_string_equal(bd_gguf_key(file, i, &type, &element, &count), want[i].key);
        assert_int_equal(type, want[i].type);
    }
    bd_model_config again = {0};
    check_ok(bd_gguf_take_dimensions(file, path, "llama", &again, &err), err);
    assert_int_equal(again.head_size, 6);
    assert_int_equal(again.key_heads, 2);
    assert_true(again.rope.theta == 500000 && again.norm_eps == 1e-6);
    bd_gguf_close(file);
    remove(path);
}

static void tensors_have_their_types(void **state)
{
    (void)state;
    const bd_gguf_type q8 = BD_GGUF_Q8_0;
    const bd_parameter norm = {.rank = 1, .dtype = BD_BF16}, matrix = {.rank = 2, .dtype = BD_BF16};
    const bd_parameter kernel = {.rank = 3, .dtype = BD_BF16};
    assert_int_equal(bd_gguf_tensor_type(&norm, &q8), BD_GGUF_F32);
    assert_int_equal(bd_gguf_tensor_type(&kernel, &q8), BD_GGUF_F32);
    assert_int_equal(bd_gguf_tensor_type(&matrix, &q8), BD_GGUF_Q8_0);
    assert_int_equal(bd_gguf_tensor_type(&matrix, NULL), BD_GGUF_BF16);
}

static void refuses_what_has_no_form(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_rope_config rope = {.kind = BD_ROPE_LLAMA3};
    check_refused(bd_gguf_check_rope(&rope, &err), err, "llama3");
    rope = (bd_rope_config){.kind = BD_ROPE_YARN, .beta_fast = 1, .beta_slow = 1};
    check_refused(bd_gguf_check_rope(&rope, &err), err, "beta_fast 1");
    rope.beta_fast = 32;
    check_ok(bd_gguf_check_rope(&rope, &err), err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_paired),          cmocka_unit_test(numbers_stay_short),
        cmocka_unit_test(keys_have_their_types),    cmocka_unit_test(tensors_have_their_types),
        cmocka_unit_test(refuses_what_has_no_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
