/* Divergences between rows of logits: values against the definition in double, gradients against
 * central differences, at every instruction set; rows of scale 0 may hold anything. */
#include "levels.h"
#include "tensor/vocabulary.h"

enum { MOST = 2100 };

static void softmax(const float *x, int64_t count, double temperature, double *p)
{
    double most = -INFINITY, sum = 0;
    for (int64_t v = 0; v < count; v++)
        most = fmax(most, (double)x[v] / temperature);
    for (int64_t v = 0; v < count; v++)
        sum += p[v] = exp((double)x[v] / temperature - most);
    for (int64_t v = 0; v < count; v++)
        p[v] /= sum;
}

static double kl(const double *p, const double *q, int64_t count)
{
    double sum = 0;
    for (int64_t v = 0; v < count; v++)
        sum += p[v] > 0 ? p[v] * log(p[v] / q[v]) : 0;
    return sum;
}

typedef struct {
    bd_divergence_kind kind;
    float temperature, beta;
    int64_t count, top_k;
} setting;

/* The `top_k` largest of the teacher each on their own, all others together. */
static double bucketed(const setting *s, const float *teacher, const double *pt, const double *ps)
{
    double sum = 0, t_left = 1, s_left = 1;
    for (int64_t v = 0; v < s->count; v++) {
        int64_t above = 0;
        for (int64_t w = 0; w < s->count; w++)
            above += teacher[w] > teacher[v] || (teacher[w] == teacher[v] && w < v);
        if (above >= s->top_k)
            continue;
        sum += pt[v] * log(pt[v] / ps[v]);
        t_left -= pt[v];
        s_left -= ps[v];
    }
    return s->top_k < s->count ? sum + t_left * log(t_left / s_left) : sum;
}

static double reference(const setting *s, const float *student, const float *teacher)
{
    static double ps[MOST], pt[MOST], middle[MOST];
    double temperature = (double)s->temperature, beta = (double)s->beta, sum = 0;
    double square = temperature * temperature;
    softmax(student, s->count, temperature, ps);
    softmax(teacher, s->count, temperature, pt);
    for (int64_t v = 0; v < s->count; v++) {
        middle[v] = beta * pt[v] + (1 - beta) * ps[v];
        sum += fabs(ps[v] - pt[v]);
    }
    switch (s->kind) {
    case BD_DIVERGENCE_FORWARD_KL:
        return square * kl(pt, ps, s->count);
    case BD_DIVERGENCE_REVERSE_KL:
        return square * kl(ps, pt, s->count);
    case BD_DIVERGENCE_TAIL_BUCKET:
        return square * bucketed(s, teacher, pt, ps);
    case BD_DIVERGENCE_JENSEN_SHANNON:
        return square * (beta * kl(pt, middle, s->count) + (1 - beta) * kl(ps, middle, s->count));
    default:
        return sum;
    }
}

static double computed(const setting *s, const float *student, const float *teacher, float scale,
                       float *d)
{
    float value = 0;
    const float *rows[1] = {teacher};
    const int32_t target = 0;
    bd_vocabulary_loss loss = {.rows = 1,
                               .vocabulary = s->count,
                               .scale = &scale,
                               .targets = &target,
                               .teacher_logits = rows,
                               .divergence = s->kind,
                               .divergence_weight = 1,
                               .temperature = s->temperature,
                               .beta = s->beta,
                               .top_k = s->top_k,
                               .divergence_loss = &value};
    bd_vocabulary_loss_on_logits(&loss, student, d);
    return (double)value;
}

static void check_setting(const setting *s)
{
    static float student[MOST], teacher[MOST], gradient[MOST];
    check_fill(student, s->count, 3);
    check_fill(teacher, s->count, 8);
    for (int64_t v = 0; v < s->count; v++) {
        student[v] *= 3;
        teacher[v] *= 3;
    }
    check_near(computed(s, student, teacher, 0.5f, gradient), reference(s, student, teacher), 3e-6);
    double most = 0, worst = 0;
    for (int64_t v = 0; v < s->count; v += 1 + s->count / 40) {
        const float middle = student[v], step = 1e-3f;
        student[v] = middle + step;
        double high = reference(s, student, teacher), wide = (double)student[v];
        student[v] = middle - step;
        double low = reference(s, student, teacher);
        wide -= (double)student[v];
        student[v] = middle;
        double want = 0.5 * (high - low) / wide;
        worst = fmax(worst, fabs((double)gradient[v] - want));
        most = fmax(most, fabs(want));
    }
    if (worst > 2e-4 * most)
        fail_msg("kind %d, %lld tokens, T %g: gradient off by %g of %g", (int)s->kind,
                 (long long)s->count, (double)s->temperature, worst, most);
}

static void test_values_and_gradients(void **state)
{
    (void)state;
    static const int64_t counts[] = {2, 7, 16, 33, MOST};
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (int kind = BD_DIVERGENCE_FORWARD_KL; kind <= BD_DIVERGENCE_TOTAL_VARIATION; kind++)
            for (size_t c = 0; c < sizeof counts / sizeof *counts; c++)
                for (int t = 0; t < 3; t++)
                    check_setting(&(setting){(bd_divergence_kind)kind, (float[]){1, 2, 0.5f}[t],
                                             (float[]){0.5f, 0.25f, 0.9f}[t], counts[c],
                                             counts[c] < MOST ? counts[c] / 3 + 1 : 30});
}

// T-44: p = (1/3, 1/3, 1/3) against (1/2, 1/4, 1/4).
static void test_known_values(void **state)
{
    (void)state;
    const float student[3] = {0, 0, 0}, teacher[3] = {logf(2), 0, 0};
    const float reverse[3] = {-0.1540327f, 0.0770164f, 0.0770164f};
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        float d[3];
        setting s = {BD_DIVERGENCE_FORWARD_KL, 1, 0.5f, 3, 1};
        check_near(computed(&s, student, teacher, 1, d), 0.0588915, 2e-7);
        s.kind = BD_DIVERGENCE_JENSEN_SHANNON;
        check_near(computed(&s, student, teacher, 1, d), 0.0143626, 2e-7);
        s.kind = BD_DIVERGENCE_REVERSE_KL;
        check_near(computed(&s, student, teacher, 1, d), 0.0566330, 2e-7);
        check_array(d, reverse, 3, 1e-6);
    }
}

// T-45: the teacher's two likeliest tokens of four, renormalised, with a bucket for the others, and
// in full; the bucket is a lower bound, and with all tokens kept there is none.
static void test_tail_bucket(void **state)
{
    (void)state;
    const float student[4] = {0, 1, 2, 0}, teacher[4] = {2, 1, 0, 0};
    const double want[2][3] = {{.4621172, .9837464, 1.0554023}, {.4898373, .9285705, 1.0794917}};
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (int i = 0; i < 2; i++) {
            const float temperature = (float)(i + 1);
            setting full = {BD_DIVERGENCE_FORWARD_KL, temperature, 0.5f, 4, 0}, two = full;
            setting bucket = {BD_DIVERGENCE_TAIL_BUCKET, temperature, 0.5f, 4, 2}, all = bucket;
            two.count = 2;
            all.top_k = 4;
            float d[4], d_full[4];
            check_near(computed(&two, student, teacher, 1, d), want[i][0], 2e-7);
            check_near(computed(&bucket, student, teacher, 1, d), want[i][1], 2e-7);
            check_near(computed(&full, student, teacher, 1, d_full), want[i][2], 2e-7);
            check_near(computed(&all, student, teacher, 1, d), want[i][2], 2e-7);
            check_array(d, d_full, 4, 1e-6);
        }
}

// The same distribution: nothing to learn, whatever the shift of the logits.
static void test_equal_rows(void **state)
{
    (void)state;
    float student[40], teacher[40], d[40];
    check_fill(student, 40, 5);
    memcpy(teacher, student, sizeof teacher);
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (int kind = BD_DIVERGENCE_FORWARD_KL; kind <= BD_DIVERGENCE_TOTAL_VARIATION; kind++) {
            setting s = {(bd_divergence_kind)kind, 2, 0.3f, 40, 13};
            assert_true(fabs(computed(&s, student, teacher, 1, d)) < 1e-12);
            for (int v = 0; v < 40; v++)
                assert_true(fabsf(d[v]) < 1e-12f);
        }
}

// Probabilities that underflow to 0 count as 0 where the other side has none either.
static void test_far_apart(void **state)
{
    (void)state;
    const float student[4] = {0, 0, -500, -500}, teacher[4] = {0, 0, -600, -500};
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (int kind = BD_DIVERGENCE_FORWARD_KL; kind <= BD_DIVERGENCE_TOTAL_VARIATION; kind++) {
            float d[4];
            setting s = {(bd_divergence_kind)kind, 1, 0.5f, 4, 3};
            assert_true(fabs(computed(&s, student, teacher, 1, d)) < 1e-6);
            for (int v = 0; v < 4; v++)
                assert_true(fabsf(d[v]) < 1e-6f);
        }
}

static void test_skipped_rows(void **state)
{
    (void)state;
    float bad[5] = {NAN, INFINITY, -INFINITY, 1, NAN}, d[5] = {1, 2, 3, 4, 5};
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        setting s = {BD_DIVERGENCE_REVERSE_KL, 1, 0.5f, 5, 1};
        assert_true(computed(&s, bad, bad, 0, d) == 0);
        for (int v = 0; v < 5; v++)
            assert_true(d[v] == 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values_and_gradients),
        cmocka_unit_test(test_known_values),
        cmocka_unit_test(test_tail_bucket),
        cmocka_unit_test(test_equal_rows),
        cmocka_unit_test(test_far_apart),
        cmocka_unit_test(test_skipped_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
