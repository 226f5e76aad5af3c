/* What a student learns from a teacher's scores: exact small numbers, the golden cases, what is
 * refused, and rows of weight 0 that hold anything (T-43, T-44, T-46). */
#include "distill/objective.h"

#include "../train/golden.h"

static const float student[6] = {0, 0, 0, 1, 0, -1};
static const int32_t targets[2] = {0, 2};
static const float weights[2] = {1, 0.5f};

typedef struct {
    double temperature, soft, hard;
    double soft_sum, hard_sum, loss;
    float gradient[6]; // over the weight
} known;

// T-43
static const known cases[] = {
    {1,
     1,
     0,
     .2133884,
     0,
     .1422589,
     {-.1111111f, .0555556f, .0555556f, .1106359f, -.0295350f, -.0811009f}},
    {2,
     1,
     0,
     .2201971,
     0,
     .1467981,
     {-.1078403f, .0539202f, .0539202f, .1154314f, -.0174250f, -.0980064f}},
    {2,
     .75,
     .25,
     .2201971,
     2.3024153,
     .4938344,
     {-.1919913f, .0959957f, .0959957f, .1420103f, .0073253f, -.1493356f}},
    {1,
     0,
     1,
     0,
     2.3024153,
     1.5349435,
     {-.4444444f, .2222222f, .2222222f, .2217470f, .0815762f, -.3033231f}},
};

static void test_known_values(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    const float teacher[6] = {logf(2), 0, 0, 0, 0, 0};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const known *k = &cases[i];
        bd_distill_objective o = bd_distill_objective_default();
        o.temperature = k->temperature;
        o.soft = k->soft;
        o.hard = k->hard;
        bd_distill_result result = {0};
        float d[6];
        bd_distill_loss_on_logits(&o, 2, 3, student, teacher, targets, weights, d, &result, arena);
        check_near(result.weight_sum, 1.5, 0);
        check_near(result.soft_sum, k->soft_sum, 3e-7);
        check_near(result.hard_sum, k->hard_sum, 3e-7);
        check_near(result.total_sum / result.weight_sum, k->loss, 3e-7);
        for (int v = 0; v < 6; v++)
            d[v] /= 1.5f;
        check_array(d, k->gradient, 6, 1e-6);
    }
    bd_arena_destroy(arena);
}

// T-44: what stands at weight 0 is never read, in either direction.
static void test_poison(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    bd_error err = {0};
    const float poisoned[6] = {0, 0, 0, NAN, INFINITY, NAN},
                teacher[6] = {logf(2), 0, 0, NAN, -INFINITY, NAN};
    const double want[] = {.0588915, .0566330, .0143626};
    const float only_first[2] = {1, 0};
    const int32_t marked[2] = {0, -1};
    for (int kind = BD_DIVERGENCE_FORWARD_KL; kind <= BD_DIVERGENCE_JENSEN_SHANNON; kind++) {
        bd_distill_objective o = bd_distill_objective_default();
        o.divergence = (bd_divergence_kind)kind;
        bd_distill_result result = {0};
        float d[6];
        check_ok(bd_distill_check_logits(&o, 2, 3, teacher, marked, only_first, &err), err);
        bd_distill_loss_on_logits(&o, 2, 3, poisoned, teacher, marked, only_first, d, &result,
                                  arena);
        check_near(result.soft_sum, want[kind - BD_DIVERGENCE_FORWARD_KL], 2e-7);
        assert_true(result.weight_sum == 1 && result.soft[1] == 0 && result.hard[1] == 0);
        assert_true(d[3] == 0 && d[4] == 0 && d[5] == 0);
        // No weight at all: sums of 0, gradients of 0.
        const float none[2] = {0, 0};
        bd_distill_loss_on_logits(&o, 2, 3, poisoned, teacher, marked, none, d, &result, arena);
        assert_true(result.total_sum == 0 && result.weight_sum == 0 && d[0] == 0);
    }
    bd_arena_destroy(arena);
}

// T-46
static void test_refusals(void **state)
{
    (void)state;
    bd_error err = {0};
    const bd_distill_objective good = bd_distill_objective_default();
    check_ok(bd_distill_objective_check(&good, &err), err);
    const double temperatures[] = {0, -1, NAN, INFINITY}, bad_weights[] = {-1, NAN, INFINITY};
    for (int i = 0; i < 4; i++) {
        bd_distill_objective o = good;
        o.temperature = temperatures[i];
        check_refused(bd_distill_objective_check(&o, &err), err, "temperature");
    }
    for (int i = 0; i < 3; i++) {
        bd_distill_objective o = good;
        o.soft = bad_weights[i];
        check_refused(bd_distill_objective_check(&o, &err), err, "soft weight");
        o = good;
        o.hard = bad_weights[i];
        check_refused(bd_distill_objective_check(&o, &err), err, "hard weight");
    }
    bd_distill_objective o = good;
    o.soft = 0;
    check_refused(bd_distill_objective_check(&o, &err), err, "both 0");
    o.hard = 1;
    const float teacher[6] = {INFINITY, 0, 0, 0, 0, 0};
    check_ok(bd_distill_check_logits(&o, 2, 3, teacher, targets, weights, &err), err);
    check_refused(bd_distill_check_logits(&good, 2, 3, teacher, targets, weights, &err), err,
                  "slot 0, token 0");
    o = good;
    o.divergence = BD_DIVERGENCE_JENSEN_SHANNON;
    o.beta = 1;
    check_refused(bd_distill_objective_check(&o, &err), err, "beta");
    bd_divergence_kind kind;
    check_refused(bd_divergence_from_name("kl", &kind, &err), err, "forward_kl, reverse_kl, jsd");
    check_ok(bd_divergence_from_name("jsd", &kind, &err), err);
    assert_string_equal(bd_divergence_name(kind), "jsd");
}

static void check_case(const char *name)
{
    char path[100];
    snprintf(path, sizeof path, "distill/%s", name);
    golden g = golden_open(path);
    bd_arena *arena = check_arena();
    bd_error err = {0};
    const bd_tensor *logits = golden_tensor(&g, "student_logits");
    int64_t rows = logits->shape[0] * logits->shape[1], vocabulary = logits->shape[2];
    const float *teacher = golden_tensor(&g, "teacher_logits")->data,
                *w = golden_tensor(&g, "weights")->data;
    int32_t *labels = bd_arena_ints(arena, rows);
    check_ok(bd_safetensors_read_i32(g.tensors, "targets", 2, logits->shape, labels, &err), err);
    bd_distill_objective o = bd_distill_objective_default();
    o.temperature = golden_number(g.json, "temperature");
    o.soft = golden_number(g.json, "soft");
    o.hard = golden_number(g.json, "hard");
    if (!strcmp(golden_text(g.json, "direction"), "reverse"))
        o.divergence = BD_DIVERGENCE_REVERSE_KL;
    check_ok(bd_distill_check_logits(&o, rows, vocabulary, teacher, labels, w, &err), err);
    bd_distill_result result = {0};
    float *d = bd_arena_floats(arena, rows * vocabulary);
    bd_distill_loss_on_logits(&o, rows, vocabulary, logits->data, teacher, labels, w, d, &result,
                              arena);
    check_near(result.total_sum, golden_number(g.json, "total_sum"), 2e-6);
    check_near(result.soft_sum, golden_number(g.json, "soft_sum"), 2e-6);
    check_near(result.hard_sum, golden_number(g.json, "hard_sum"), 2e-6);
    check_near(result.weight_sum, golden_number(g.json, "weight_sum"), 1e-7);
    check_array(d, (const float *)golden_tensor(&g, "grad_student_logits")->data, rows * vocabulary,
                1e-5);
    check_array(result.soft, (const float *)golden_tensor(&g, "soft_token")->data, rows, 1e-5);
    bd_arena_destroy(arena);
    golden_close(&g);
}

static void test_golden(void **state)
{
    (void)state;
    const char *const names[] = {"all_zero_poisoned",
                                 "forward",
                                 "forward_cold",
                                 "forward_hot",
                                 "inactive_poisoned",
                                 "inactive_poisoned_reverse",
                                 "mix",
                                 "mix_reverse",
                                 "only_hard",
                                 "reverse",
                                 "reverse_hot"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        check_case(names[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_values),
        cmocka_unit_test(test_poison),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
