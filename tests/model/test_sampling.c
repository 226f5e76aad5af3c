// Sampling: hand-made distributions, cuts, ties and what does not add up.
#include "check.h"
#include "model/sampling.h"

static bd_arena *arena;

static int set_up(void **state)
{
    (void)state;
    arena = check_arena();
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    bd_arena_destroy(arena);
    return 0;
}

/* Logits of the probabilities 0.1, 0.4, 0.3, 0.2 at temperature 1. */
static void logits_of(float out[4])
{
    const float p[4] = {0.1f, 0.4f, 0.3f, 0.2f};
    for (int i = 0; i < 4; i++)
        out[i] = logf(p[i]) + 3;
}

static void expect(bd_sampling s, const float *logits, int64_t count, const float *want)
{
    bd_error err = {0};
    float p[16];
    check_ok(bd_sampling_check(&s, &err), err);
    bd_sampling_probabilities(&s, logits, count, p, arena);
    double sum = 0;
    for (int64_t i = 0; i < count; i++) {
        check_near(p[i], want[i], 1e-6);
        assert_true(want[i] > 0 || p[i] == 0);
        sum += (double)p[i];
    }
    check_near(sum, 1, 1e-6);
}

static void greedy(void **state)
{
    (void)state;
    bd_sampling s = bd_sampling_default();
    const float logits[5] = {1, NAN, 7, 7, -INFINITY};
    expect(s, logits, 5, (float[]){0, 0, 1, 0, 0});
    assert_int_equal(bd_sampling_token(&s, logits, 5, 0.9f, arena), 2);
}

static void cuts(void **state)
{
    (void)state;
    float z[4];
    logits_of(z);
    bd_sampling s = {.temperature = 1, .top_p = 1};
    expect(s, z, 4, (float[]){0.1f, 0.4f, 0.3f, 0.2f});
    s.top_k = 2;
    expect(s, z, 4, (float[]){0, 4 / 7.f, 3 / 7.f, 0});
    s.top_k = 9;
    expect(s, z, 4, (float[]){0.1f, 0.4f, 0.3f, 0.2f});
    s = (bd_sampling){.temperature = 1, .top_p = 0.65f};
    expect(s, z, 4, (float[]){0, 4 / 7.f, 3 / 7.f, 0}); // before 0.2: 0.7
    s.top_p = 0.75f;
    expect(s, z, 4, (float[]){0, 4 / 9.f, 3 / 9.f, 2 / 9.f}); // 0.7 < 0.75: 0.2 stays
    s.top_p = 0.01f;
    expect(s, z, 4, (float[]){0, 1, 0, 0}); // the first always stays
    // Top-k first: of 0.4, 0.3, 0.2 (as 4/9, 3/9, 2/9) top-p 0.7 keeps two, 7/9 being past it.
    s = (bd_sampling){.temperature = 1, .top_k = 3, .top_p = 0.7f};
    expect(s, z, 4, (float[]){0, 4 / 7.f, 3 / 7.f, 0});
    s = (bd_sampling){.temperature = 1, .top_p = 1, .min_p = 0.6f}; // at least 0.24
    expect(s, z, 4, (float[]){0, 4 / 7.f, 3 / 7.f, 0});
    s.min_p = 1;
    expect(s, z, 4, (float[]){0, 1, 0, 0});
    // Temperature 1/2 squares the probabilities: 1, 16, 9, 4 of 30.
    s = (bd_sampling){.temperature = 0.5f, .top_p = 1};
    expect(s, z, 4, (float[]){1 / 30.f, 16 / 30.f, 9 / 30.f, 4 / 30.f});
}

static void ties(void **state)
{
    (void)state;
    const float z[6] = {2, 5, 2, 2, 5, NAN};
    bd_sampling s = {.temperature = 1, .top_k = 3, .top_p = 1};
    const float low = expf(-3), sum = 2 + low;
    expect(s, z, 6, (float[]){low / sum, 1 / sum, 0, 0, 1 / sum, 0}); // of the twos the lowest id
    s = (bd_sampling){.temperature = 1, .top_k = 1, .top_p = 1};
    expect(s, z, 6, (float[]){0, 1, 0, 0, 0, 0});
    s = (bd_sampling){.temperature = 1, .top_p = 0.3f};
    expect(s, z, 6, (float[]){0, 1, 0, 0, 0, 0});
}

static void extremes(void **state)
{
    (void)state;
    bd_sampling s = {.temperature = 1, .top_p = 1};
    expect(s, (float[]){1, INFINITY, 2}, 3, (float[]){0, 1, 0});
    expect(s, (float[]){-INFINITY, -INFINITY}, 2, (float[]){1, 0});
    expect(s, (float[]){NAN, NAN, NAN}, 3, (float[]){1, 0, 0});
    expect(s, (float[]){-3e38f, 3e38f, 0}, 3, (float[]){0, 1, 0});
    s.temperature = 1e-38f;
    expect(s, (float[]){1, 2, 1.5f}, 3, (float[]){0, 1, 0});
    s.temperature = 1e30f;
    expect(s, (float[]){1, 2}, 2, (float[]){0.5f, 0.5f});
}

static void picking(void **state)
{
    (void)state;
    const float p[5] = {0, 0.25f, 0, 0.5f, 0.25f};
    assert_int_equal(bd_sampling_pick(p, 5, 0), 1);
    assert_int_equal(bd_sampling_pick(p, 5, 0.2499999f), 1);
    assert_int_equal(bd_sampling_pick(p, 5, 0.25f), 3); // exceeds, not reaches
    assert_int_equal(bd_sampling_pick(p, 5, 0.74f), 3);
    assert_int_equal(bd_sampling_pick(p, 5, 0.75f), 4);
    assert_int_equal(bd_sampling_pick((float[]){0.3f, 0.3f, 0}, 3, 0.9999f), 1); // a sum below u
    bd_sampling s = {.temperature = 1, .top_p = 1};
    float z[4];
    logits_of(z);
    const int32_t want[4] = {0, 1, 2, 3};
    const float u[4] = {0.05f, 0.3f, 0.7f, 0.95f};
    for (int i = 0; i < 4; i++)
        assert_int_equal(bd_sampling_token(&s, z, 4, u[i], arena), want[i]);
}

/* A large vocabulary against a plain sort. */
static void large(void **state)
{
    (void)state;
    enum { V = 5000 };
    static float z[V], p[V];
    check_fill(z, V, 3);
    for (int i = 0; i < V; i++)
        z[i] = roundf(z[i] * 200) / 20; // many ties
    bd_sampling s = {.temperature = 0.8f, .top_k = 40, .top_p = 1};
    bd_sampling_probabilities(&s, z, V, p, arena);
    int kept = 0;
    for (int i = 0; i < V; i++) {
        int better = 0;
        for (int j = 0; j < V; j++)
            better += z[j] > z[i] || (z[j] == z[i] && j < i);
        assert_int_equal(p[i] > 0, better < 40);
        kept += p[i] > 0;
    }
    assert_int_equal(kept, 40);
    size_t before = bd_arena_mark(arena);
    bd_sampling_token(&s, z, V, 0.5f, arena);
    assert_true(bd_arena_mark(arena) == before);
}

static void refusals(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_sampling s = {.temperature = -1, .top_p = 1};
    check_refused(bd_sampling_check(&s, &err), err, "temperature is -1");
    s = (bd_sampling){.temperature = NAN, .top_p = 1};
    check_refused(bd_sampling_check(&s, &err), err, "temperature");
    s = (bd_sampling){.top_p = 0};
    check_refused(bd_sampling_check(&s, &err), err, "top_p is 0");
    s = (bd_sampling){.top_p = 1.5f};
    check_refused(bd_sampling_check(&s, &err), err, "top_p is 1.5");
    s = (bd_sampling){.top_p = 1, .top_k = -1};
    check_refused(bd_sampling_check(&s, &err), err, "top_k is -1");
    s = (bd_sampling){.top_p = 1, .min_p = 2};
    check_refused(bd_sampling_check(&s, &err), err, "min_p is 2");
    s = bd_sampling_default();
    check_ok(bd_sampling_check(&s, &err), err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy),   cmocka_unit_test(cuts),    cmocka_unit_test(ties),
        cmocka_unit_test(extremes), cmocka_unit_test(picking), cmocka_unit_test(large),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
