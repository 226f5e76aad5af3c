#include "tensor/levels.h"

#include "base/threads.h"
#include "tensor/optimizer.h"
#include "tensor/tensors.h"

static bd_adamw options_of(const golden_case *c)
{
    return (bd_adamw){
        .b1 = golden_number(c, "b1"),
        .b2 = golden_number(c, "b2"),
        .eps = golden_number(c, "eps"),
        .eps_root = golden_number(c, "eps_root"),
        .learning_rate = golden_number(c, "lr"),
        .weight_decay = golden_number(c, "weight_decay"),
        .gradient_factor = 1,
    };
}

static bd_dtype kind(const golden_case *c, const char *name)
{
    const char *text = json_string_value(json_object_get(c->options, name));
    return strcmp(text, "bf16") == 0 ? BD_BF16 : BD_F32;
}

// bf16 moments to the bit, everything else to 1e-6.
static void check_moment(const void *got, bd_dtype dtype, const char *want, int64_t step,
                         int64_t count)
{
    size_t bytes = (size_t)count * bd_dtype_size(dtype);
    want += (size_t)step * bytes;
    if (dtype == BD_BF16)
        assert_memory_equal(got, want, bytes);
    else
        check_array((const float *)got, (const float *)(const void *)want, count, 1e-6);
}

static void check_case(const char *name)
{
    golden_case c = golden_open(name);
    int64_t steps, count;
    const float *gradients = golden_tensor(&c, "grads", &steps, &count);
    const float *params = golden_tensor(&c, "params", NULL, NULL);
    const char *want_m = golden_tensor(&c, "m", NULL, NULL),
               *want_v = golden_tensor(&c, "v", NULL, NULL);
    bd_dtype m_dtype = kind(&c, "m_kind"), v_dtype = kind(&c, "v_kind");
    bd_adamw options = options_of(&c);
    float p[1000], m[1000] = {0}, v[1000] = {0};
    assert_true(count <= 1000 && steps > 1);
    memcpy(p, golden_tensor(&c, "param0", NULL, NULL), (size_t)count * 4);
    for (int64_t step = 0; step < steps; step++) {
        options.step = step + 1;
        bd_adamw_update(&options, count, p, gradients + step * count, m_dtype, m, v_dtype, v);
        check_array(p, params + step * count, count, 1e-6);
        check_moment(m, m_dtype, want_m, step, count);
        check_moment(v, v_dtype, want_v, step, count);
    }
    golden_close(&c);
}

static void test_golden_cases(void **state)
{
    (void)state;
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        check_case("adamw/fp32_fp32_decay_0.0");
        check_case("adamw/fp32_fp32_decay_0.1");
        check_case("adamw/bf16_fp32_decay_0.0");
        check_case("adamw/bf16_fp32_decay_0.1");
        check_case("adamw/bf16_bf16_decay_0.0");
        check_case("adamw/bf16_bf16_decay_0.1");
    }
}

// g = .3 twice: the first moment is stored rounded, the second step starts from that.
static void test_first_moment_in_bf16(void **state)
{
    (void)state;
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        bd_adamw options = {.b1 = 0.9,
                            .b2 = 0.95,
                            .eps = 1e-8,
                            .learning_rate = 0.1,
                            .step = 1,
                            .gradient_factor = 1};
        float p = 1, g = 0.3f, v = 0;
        uint16_t m = 0;
        bd_adamw_update(&options, 1, &p, &g, BD_BF16, &m, BD_F32, &v);
        assert_true(bd_bf16_to_f32(m) == 0.030029296875f);
        options.step = 2;
        bd_adamw_update(&options, 1, &p, &g, BD_BF16, &m, BD_F32, &v);
        assert_true(bd_bf16_to_f32(m) == 0.05712890625f);
    }
}

static void test_gradient_factor_and_eps_root(void **state)
{
    (void)state;
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        bd_adamw options = {.b1 = 0.8,
                            .b2 = 0.9,
                            .eps = 0.01,
                            .eps_root = 0.5,
                            .learning_rate = 0.1,
                            .weight_decay = 0.3,
                            .step = 3,
                            .gradient_factor = 0.25};
        float p[21], g[21], m[21], v[21];
        check_fill(p, 21, 1);
        check_fill(g, 21, 2);
        check_fill(m, 21, 3);
        for (int i = 0; i < 21; i++)
            v[i] = 0.1f * (float)i;
        for (int i = 0; i < 21; i++) {
            double own = (double)g[i] * 0.25, first = 0.8 * (double)m[i] + 0.2 * own;
            double second = 0.9 * (double)v[i] + 0.1 * own * own;
            double unbias_m = 1 - 0.8 * 0.8 * 0.8, unbias_v = 1 - 0.9 * 0.9 * 0.9;
            double step = first / unbias_m / (sqrt(second / unbias_v + 0.5) + 0.01);
            double want = (double)p[i] - 0.1 * (step + 0.3 * (double)p[i]);
            float one_p = p[i], one_m = m[i], one_v = v[i];
            bd_adamw_update(&options, 1, &one_p, &g[i], BD_F32, &one_m, BD_F32, &one_v);
            check_near((double)one_p, want, 1e-6);
            check_near((double)one_m, first, 1e-6);
            check_near((double)one_v, second, 1e-6);
        }
    }
}

static void test_threads_change_nothing(void **state)
{
    (void)state;
    enum { COUNT = 100003 };
    bd_arena *arena = check_arena();
    float *g = bd_arena_floats(arena, COUNT), *p = bd_arena_floats(arena, COUNT);
    float *first = bd_arena_floats(arena, COUNT);
    uint16_t *m = bd_arena_alloc(arena, COUNT * 2), *v = bd_arena_alloc(arena, COUNT * 2);
    check_fill(g, COUNT, 1);
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (int threads = 1; threads <= 3; threads++) {
            bd_adamw options = {.b1 = 0.9,
                                .b2 = 0.95,
                                .eps = 1e-8,
                                .learning_rate = 1e-3,
                                .step = 1,
                                .gradient_factor = 1};
            bd_threads_set(threads);
            check_fill(p, COUNT, 2);
            memset(m, 0, COUNT * 2);
            memset(v, 0, COUNT * 2);
            bd_adamw_update(&options, COUNT, p, g, BD_BF16, m, BD_BF16, v);
            if (threads == 1)
                memcpy(first, p, COUNT * 4);
            assert_memory_equal(first, p, COUNT * 4);
        }
    bd_threads_set(0);
    bd_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_cases),
        cmocka_unit_test(test_first_moment_in_bf16),
        cmocka_unit_test(test_gradient_factor_and_eps_root),
        cmocka_unit_test(test_threads_change_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
