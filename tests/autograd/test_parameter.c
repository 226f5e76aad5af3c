// Parameters: where values live, when panels are made again, initial values.
#include "autograd/tape.h"
#include "base/random.h"
#include "base/threads.h"
#include "check.h"

static float product(const bd_packed *panel, bd_arena *arena)
{
    const float x[4] = {1, 0, 0, 0};
    float y[8];
    assert_true(panel->in <= 4 && panel->out <= 8);
    bd_matmul(panel, x, 1, panel->in, NULL, y, panel->out, BD_STORE, arena);
    return y[1]; // w[1, 0]
}

static void panels_follow_versions(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_arena *arena = check_arena();
    bd_parameter p;
    check_ok(bd_parameter_create(&p, "w", 2, (int64_t[]){3, 2}, 0, &err), err);
    for (int i = 0; i < 6; i++)
        p.value[i] = (float)i + 1; // w = [[1, 2], [3, 4], [5, 6]]
    assert_true(product(bd_parameter_forward(&p, BD_F32), arena) == 3);  // w[1][0]
    assert_true(product(bd_parameter_backward(&p, BD_F32), arena) == 2); // w[0][1]

    p.value[2] = 7;
    assert_true(product(bd_parameter_forward(&p, BD_F32), arena) == 3); // packed once, not per use
    bd_parameter_changed(&p);
    assert_true(product(bd_parameter_forward(&p, BD_F32), arena) == 7);
    assert_true(bd_parameter_forward(&p, BD_BF16)->dtype == BD_BF16);
    assert_true(bd_parameter_forward(&p, BD_F32)->dtype == BD_F32);
    bd_parameter_free(&p);
    bd_arena_destroy(arena);
}

static void training_a_mapped_tensor(void **state)
{
    (void)state;
    bd_error err = {0};
    uint16_t file[4];
    for (int i = 0; i < 4; i++)
        file[i] = bd_bf16_from_f32((float)i * 0.5f);
    bd_parameter p;
    bd_parameter_map(&p, "v", 1, (int64_t[]){4}, BD_BF16, file);
    assert_null(p.value);
    const float *copy = bd_parameter_values(&p);
    assert_true(copy[3] == 1.5f && bd_parameter_values(&p) == copy);

    check_ok(bd_parameter_train(&p, &err), err);
    assert_true(p.value[3] == 1.5f && p.data == p.value && p.dtype == BD_F32 && p.gradient[3] == 0);
    assert_ptr_equal(bd_parameter_values(&p), p.value);
    p.value[3] = 9;
    p.gradient[3] = 1;
    check_ok(bd_parameter_train(&p, &err), err); // again: values stay, the gradient is cleared
    assert_true(p.value[3] == 9 && p.gradient[3] == 0 && bd_bf16_to_f32(file[3]) == 1.5f);

    bd_parameter_freeze(&p);
    assert_null(p.gradient);
    assert_true(bd_parameter_values(&p)[3] == 9);
    bd_parameter_free(&p);
    assert_null(p.data);
}

static void lists(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_parameter a, b;
    check_ok(bd_parameter_create(&a, "a", 2, (int64_t[]){2, 3}, 1, &err), err);
    check_ok(bd_parameter_create(&b, "b", 1, (int64_t[]){5}, 0, &err), err);
    check_ok(bd_parameter_train(&b, &err), err);
    bd_parameter *items[] = {&a, &b};
    const bd_parameters list = {.items = items, .count = 2};
    assert_true(a.value[5] == 1);
    assert_int_equal(bd_parameters_total(&list), 11);
    assert_ptr_equal(bd_parameters_find(&list, "b"), &b);
    assert_null(bd_parameters_find(&list, "c"));
    b.gradient[4] = 3;
    bd_parameters_zero_gradients(&list);
    assert_true(b.gradient[4] == 0);
    bd_parameter_free(&a);
    bd_parameter_free(&b);
}

static void initial_values(void **state)
{
    (void)state;
    bd_error err = {0};
    const int64_t count = 200000; // more than one task's share
    bd_parameter one, two;
    check_ok(bd_parameter_create(&one, "w", 2, (int64_t[]){1000, 200}, 0, &err), err);
    check_ok(bd_parameter_create(&two, "w", 2, (int64_t[]){1000, 200}, 0, &err), err);
    bd_threads_set(1);
    bd_parameter_normal(&one, 7, 3, 0.02);
    bd_threads_set(2);
    bd_parameter_normal(&two, 7, 3, 0.02);
    assert_memory_equal(one.value, two.value, (size_t)count * sizeof(float));
    uint64_t key = bd_random_key(7, 0, 3, 0);
    assert_true(one.value[150000] == 0.02f * bd_random_normal(key, BD_STREAM_INITIAL, 150000));

    double sum = 0, squares = 0;
    for (int64_t i = 0; i < count; i++) {
        sum += (double)one.value[i];
        squares += (double)one.value[i] * (double)one.value[i];
    }
    check_near(sum / (double)count, 0, 2e-4);
    check_near(sqrt(squares / (double)count) / 0.02, 1, 0.01);
    bd_parameter_normal(&two, 7, 4, 0.02); // another tensor, other numbers
    assert_true(memcmp(one.value, two.value, 64) != 0);
    bd_parameter_free(&one);
    bd_parameter_free(&two);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(panels_follow_versions),
        cmocka_unit_test(training_a_mapped_tensor),
        cmocka_unit_test(lists),
        cmocka_unit_test(initial_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
