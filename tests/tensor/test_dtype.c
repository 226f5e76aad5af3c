#include "tensor/levels.h"

#include <jansson.h>

#include "tensor/dtype.h"

static void test_names_and_sizes(void **state)
{
    (void)state;
    static const size_t sizes[BD_DTYPE_COUNT] = {4, 2, 2, 8, 8, 4, 2, 1, 1, 1};
    for (int i = 0; i < BD_DTYPE_COUNT; i++) {
        bd_dtype found = BD_DTYPE_COUNT;
        assert_int_equal(bd_dtype_size((bd_dtype)i), sizes[i]);
        assert_true(bd_dtype_from_name(bd_dtype_name((bd_dtype)i), &found));
        assert_int_equal(found, i);
        assert_int_equal(bd_dtype_is_float((bd_dtype)i), i <= BD_F64);
    }
    bd_dtype untouched = BD_I8;
    assert_false(bd_dtype_from_name("FP8", &untouched));
    assert_false(bd_dtype_from_name("f32", &untouched));
    assert_int_equal(untouched, BD_I8);
}

static void check_bf16(uint32_t bits, uint16_t want)
{
    float value;
    memcpy(&value, &bits, 4);
    uint16_t scalar = bd_bf16_from_f32(value), many[37];
    float values[37];
    for (int i = 0; i < 37; i++)
        memcpy(&values[i], &bits, 4);
    bd_from_f32(BD_BF16, values, many, 37); // whole vectors and a rest
    for (int i = 0; i < 37; i++)
        if (many[i] != scalar)
            fail_msg("%08x became %04x in a vector, %04x alone", bits, many[i], scalar);
    if (isnan(value)) {
        assert_true(isnan(bd_bf16_to_f32(scalar)));
        assert_int_equal(scalar >> 15, bits >> 31);
    } else if (scalar != want) {
        fail_msg("%08x became %04x, wanted %04x", bits, scalar, want);
    }
}

static void test_bf16_rounds_as_the_golden_table(void **state)
{
    (void)state;
    json_t *table = json_load_file(BD_GOLDEN "/block-diffusion/tables/bf16.json", 0, NULL);
    assert_non_null(table);
    json_t *cases = json_object_get(table, "cases"), *entry;
    assert_true(json_array_size(cases) > 10);
    size_t i;
    for (int level = level_first(); level >= 0; level = level_next(level))
        json_array_foreach(cases, i, entry)
        {
            check_bf16((uint32_t)json_integer_value(json_object_get(entry, "fp32_bits")),
                       (uint16_t)json_integer_value(json_object_get(entry, "bf16_bits")));
        }
    json_decref(table);
}

// Every bf16 number comes back, and values between two go to the nearer one.
static void test_bf16_every_number(void **state)
{
    (void)state;
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (uint32_t half = 0; half < 0x10000; half += level == BD_ISA_PORTABLE ? 1 : 7) {
            float value = bd_bf16_to_f32((uint16_t)half), back;
            uint16_t stored = (uint16_t)half;
            bd_to_f32(BD_BF16, &stored, &back, 1);
            assert_memory_equal(&value, &back, 4);
            if (isnan(value))
                continue;
            check_bf16(half << 16, (uint16_t)half);
            check_bf16(half << 16 | 0x7fff, (uint16_t)half);
            check_bf16(half << 16 | 0x8000, (uint16_t)(half + (half & 1)));
            if ((half & 0x7fff) < 0x7f80)
                check_bf16(half << 16 | 0x8001, (uint16_t)(half + 1));
        }
}

static float one_from_f16(uint16_t half)
{
    float value;
    bd_to_f32(BD_F16, &half, &value, 1);
    return value;
}

static uint16_t one_to_f16(float value)
{
    uint16_t half;
    bd_from_f32(BD_F16, &value, &half, 1);
    return half;
}

static void test_f16_every_number(void **state)
{
    (void)state;
    for (uint32_t half = 0; half < 0x10000; half++) {
        int exponent = half >> 10 & 0x1f, mantissa = half & 0x3ff;
        float value = one_from_f16((uint16_t)half);
        double want = exponent ? ldexp(1024 + mantissa, exponent - 25) : ldexp(mantissa, -24);
        if (exponent == 0x1f) {
            assert_true(mantissa ? isnan(value) : isinf(value));
            if (!mantissa)
                assert_int_equal(one_to_f16(value), half);
            continue;
        }
        assert_true(fabs((double)value) == want);
        assert_int_equal(one_to_f16(value), half);
        if (exponent == 30 && mantissa == 0x3ff)
            continue;
        // Halfway to the next number: to the even one; a little more: up.
        double next = (double)one_from_f16((uint16_t)(half + 1)),
               middle = ((double)value + next) / 2;
        assert_int_equal(one_to_f16((float)middle), half + (half & 1));
        assert_int_equal(one_to_f16((float)(middle + (next - (double)value) / 64)), half + 1);
    }
    assert_int_equal(one_to_f16(65519.0f), 0x7bff);
    assert_int_equal(one_to_f16(65520.0f), 0x7c00);
    assert_int_equal(one_to_f16(-1e9f), 0xfc00);
    assert_int_equal(one_to_f16(1e-9f), 0);
    assert_true(isnan(one_from_f16(one_to_f16(NAN))));
}

static void test_other_dtypes(void **state)
{
    (void)state;
    double d[2] = {0.5, -1e300};
    int64_t l[2] = {-7, 1 << 20};
    int32_t w[1] = {-70000};
    int16_t h[1] = {-300};
    int8_t b[1] = {-3};
    uint8_t u[2] = {200, 0};
    float f[2];
    bd_to_f32(BD_F64, d, f, 2);
    assert_true(f[0] == 0.5f && f[1] == -INFINITY);
    bd_to_f32(BD_I64, l, f, 2);
    assert_true(f[0] == -7 && f[1] == 1048576);
    bd_to_f32(BD_I32, w, f, 1);
    assert_true(f[0] == -70000);
    bd_to_f32(BD_I16, h, f, 1);
    assert_true(f[0] == -300);
    bd_to_f32(BD_I8, b, f, 1);
    assert_true(f[0] == -3);
    bd_to_f32(BD_U8, u, f, 2);
    assert_true(f[0] == 200 && f[1] == 0);
    bd_to_f32(BD_BOOL, u, f, 2);
    assert_true(f[0] == 1 && f[1] == 0);
    f[0] = 0.1f;
    bd_from_f32(BD_F64, f, d, 1);
    assert_true(d[0] == (double)0.1f);
}

static void test_level_from_the_environment(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_isa_level best = bd_isa();
    setenv("BDLM_ISA", "portable", 1);
    check_ok(bd_isa_init(&err), err);
    assert_int_equal(bd_isa(), BD_ISA_PORTABLE);
    setenv("BDLM_ISA", "sse9", 1);
    check_refused(bd_isa_init(&err), err, "sse9");
    assert_non_null(strstr(err.message, "portable"));
    assert_int_equal(bd_isa(), BD_ISA_PORTABLE); // unchanged by the refusal
    for (int level = 0; level < BD_ISA_COUNT; level++) {
        setenv("BDLM_ISA", bd_isa_name((bd_isa_level)level), 1);
        if (bd_isa_supported((bd_isa_level)level)) {
            check_ok(bd_isa_init(&err), err);
            assert_int_equal(bd_isa(), level);
        } else {
            check_refused(bd_isa_init(&err), err, bd_isa_name((bd_isa_level)level));
        }
    }
    unsetenv("BDLM_ISA");
    check_ok(bd_isa_init(&err), err);
    assert_int_equal(bd_isa(), best);
}

int main(void)
{
    unsetenv("BDLM_ISA");
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_and_sizes),
        cmocka_unit_test(test_bf16_rounds_as_the_golden_table),
        cmocka_unit_test(test_bf16_every_number),
        cmocka_unit_test(test_f16_every_number),
        cmocka_unit_test(test_other_dtypes),
        cmocka_unit_test(test_level_from_the_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
