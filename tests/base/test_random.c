/* Values of block-diffusion T-15. */
#include "base/random.h"
#include "check.h"

static void mix_and_keys(void **state)
{
    (void)state;
    assert_true(bd_random_mix(1) == 0x5692161d100b05e5u);
    assert_true(bd_random_key(0, 0, 0, 0) == 0x2130748aaac80268u);
    assert_true(bd_random_key(7, 0, 3, 0) == 0x781fea73b86cd27cu);
    assert_true(bd_random_key(7, 0, 3, 1) == 0xe944831734b514cbu);
    assert_true(bd_random_key(7, 1, 3, 0) == 0x0a5bb0d35d465878u);
}

static void draws(void **state)
{
    (void)state;
    uint64_t key = bd_random_key(7, 0, 3, 0);
    const uint32_t noise[3] = {4424192, 2965107, 45873};
    const uint32_t selection[4] = {1432880, 12825249, 16559670, 13617419};
    const uint32_t fallback[2] = {12597413, 14896767};
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(bd_random_bits(key, BD_STREAM_NOISE, i), noise[i]);
    for (uint32_t i = 0; i < 4; i++)
        assert_int_equal(bd_random_bits(key, BD_STREAM_SELECTION, i), selection[i]);
    for (uint32_t i = 0; i < 2; i++)
        assert_int_equal(bd_random_bits(key, BD_STREAM_FALLBACK, i), fallback[i]);
    key = bd_random_key(7, 0, 3, 1);
    const uint32_t other[3] = {2079634, 14538092, 9080402};
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(bd_random_bits(key, BD_STREAM_NOISE, i), other[i]);
    assert_true(bd_random_uniform(key, BD_STREAM_NOISE, 0) == 2079634 * 0x1p-24f);
}

static void normal_moments(void **state)
{
    (void)state;
    uint64_t key = bd_random_key(1, 2, 3, 4);
    enum { COUNT = 200000 };
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < COUNT; i++) {
        double x = bd_random_normal(key, BD_STREAM_INITIAL, i);
        sum += x;
        squares += x * x;
    }
    check_near(sum / COUNT, 0, 0.01);
    check_near(squares / COUNT, 1, 0.02);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(mix_and_keys), cmocka_unit_test(draws),
                                       cmocka_unit_test(normal_moments)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
