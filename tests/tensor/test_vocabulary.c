#include "tensor/levels.h"

#include "base/threads.h"
#include "tensor/rows.h"
#include "tensor/tensors.h"
#include "tensor/vocabulary.h"

static bd_arena *arena;

static int make_arena(void **state)
{
    (void)state;
    arena = check_arena();
    return 0;
}

static int drop_arena(void **state)
{
    (void)state;
    bd_arena_destroy(arena);
    bd_threads_set(0);
    return 0;
}

/* --- losses of given logits ------------------------------------------------------------------- */

static void check_golden(const char *name)
{
    golden_case c = golden_open(name);
    int64_t vocabulary;
    const float *logits = golden_tensor(&c, "logits", NULL, &vocabulary);
    const float *weights = golden_tensor(&c, "weights", NULL, NULL);
    const float *token_loss = golden_tensor(&c, "token_loss", NULL, NULL);
    const float *grad = golden_tensor(&c, "grad_logits", NULL, NULL);
    json_t *shape = json_object_get(json_object_get(c.header, "weights"), "shape");
    int64_t rows =
        json_integer_value(json_array_get(shape, 0)) * json_integer_value(json_array_get(shape, 1));
    float *loss = bd_arena_floats(arena, rows), *d = bd_arena_floats(arena, rows * vocabulary);
    bd_vocabulary_loss v = {.rows = rows,
                            .vocabulary = vocabulary,
                            .scale = weights,
                            .targets = golden_tensor(&c, "targets", NULL, NULL),
                            .hard = 1,
                            .hard_loss = loss};
    bd_vocabulary_loss_on_logits(&v, logits, d);
    check_array(loss, token_loss, rows, 1e-6);
    check_array(d, grad, rows * vocabulary, 1e-6);
    double sum = 0, weight = 0;
    for (int64_t r = 0; r < rows; r++) {
        sum += (double)weights[r] * (double)loss[r];
        weight += (double)weights[r];
    }
    check_near(sum, golden_number(&c, "loss_sum"), 1e-6);
    check_near(weight, golden_number(&c, "weight_sum"), 1e-6);
    golden_close(&c);
}

static void test_golden_cross_entropy(void **state)
{
    (void)state;
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        check_golden("ce/ones");
        check_golden("ce/mask");
        check_golden("ce/fractional");
        check_golden("ce/vocab_two");
        check_golden("ce/wide_vocab");
        check_golden("ce/inactive_poisoned");
        check_golden("ce/all_zero_poisoned");
    }
}

// T-20: known fractions; a row of NaN and infinity that carries no weight is not looked at.
static void test_known_losses_and_a_poisoned_row(void **state)
{
    (void)state;
    const float ln2 = 0.69314718f, ln3 = 1.09861229f;
    const float z[12] = {0, 0, 0, ln2, 0, 0, NAN, INFINITY, 0, 0, 2 * ln2, ln3};
    const int32_t targets[4] = {0, 0, -1, 2};
    const float weights[4] = {1, 2, 0, 0.5f}, none[4] = {0};
    const float want[12] = {-.6666667f, .3333333f, .3333333f, -1,     .5f,  .5f,
                            0,          0,         0,         .0625f, .25f, -.3125f};
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        float loss[4], lse[4], d[12];
        int32_t best[4];
        bd_vocabulary_loss v = {.rows = 4,
                                .vocabulary = 3,
                                .scale = weights,
                                .targets = targets,
                                .hard = 1,
                                .hard_loss = loss,
                                .log_normalizer = lse,
                                .best = best};
        bd_vocabulary_loss_on_logits(&v, z, d);
        check_array(d, want, 12, 2e-7);
        check_near((double)loss[0], 1.0986123, 2e-7);
        check_near(2 * (double)loss[1], 1.3862944, 2e-7);
        check_near(0.5 * (double)loss[3], .4904146, 2e-7);
        assert_true(loss[2] == 0 && lse[2] == 0);
        assert_true(best[0] == 0 && best[1] == 0 && best[2] == -1 && best[3] == 1);
        check_near(0.01 * (double)lse[0] * (double)lse[0], .0120695, 1e-6);
        v.scale = none;
        bd_vocabulary_loss_on_logits(&v, z, d);
        for (int i = 0; i < 12; i++)
            assert_true(d[i] == 0 && loss[i / 3] == 0);
    }
}

/* --- the fused operation ---------------------------------------------------------------------- */

enum { V = 203, H = 37, S = 5, T = 21 }; // vocabulary; widths of two terms and of the teacher

typedef struct {
    bd_vocabulary_loss loss;
    int64_t rows;
    float *h[2], *w[2], *dh[2], *dw[2];
    float *teacher, *teacher_w;
    float *scale, *hard, *soft, *lse;
    int32_t *best;
    bd_packed forward[2], backward[2], teacher_head;
} setup;

static bd_packed pack(bd_dtype dtype, const float *w, int64_t out, int64_t in, bd_pack_order order)
{
    return bd_pack(dtype, w, BD_F32, out, in, order,
                   bd_arena_alloc(arena, bd_packed_bytes(dtype, out, in)));
}

static void prepare(setup *s, bd_dtype dtype, int64_t rows, int terms, bool teacher)
{
    static const int64_t widths[2] = {H, S};
    *s = (setup){.rows = rows};
    s->scale = bd_arena_floats(arena, rows);
    int32_t *targets = bd_arena_ints(arena, rows);
    uint64_t noise = 5;
    for (int64_t r = 0; r < rows; r++) {
        s->scale[r] = r % 5 == 2 ? 0 : 0.6f + 0.5f * check_noise(&noise);
        targets[r] = r % 5 == 2 ? -9 : (int32_t)(r * 31 % V);
    }
    s->hard = bd_arena_floats(arena, rows);
    s->soft = bd_arena_floats(arena, rows);
    s->lse = bd_arena_floats(arena, rows);
    s->best = bd_arena_ints(arena, rows);
    s->loss = (bd_vocabulary_loss){.rows = rows,
                                   .vocabulary = V,
                                   .term_count = terms,
                                   .scale = s->scale,
                                   .targets = targets,
                                   .hard = 0.7f,
                                   .z_loss = 0.01f,
                                   .hard_loss = s->hard,
                                   .soft_loss = s->soft,
                                   .best = s->best,
                                   .log_normalizer = s->lse};
    for (int i = 0; i < terms; i++) {
        int64_t width = widths[i];
        s->h[i] = bd_arena_floats(arena, rows * width);
        s->w[i] = bd_arena_floats(arena, V * width);
        check_fill(s->h[i], rows * width, 10 + (uint64_t)i);
        check_fill(s->w[i], V * width, 20 + (uint64_t)i);
        s->dh[i] = bd_arena_zeros(arena, rows * width);
        s->dw[i] = bd_arena_zeros(arena, V * width);
        s->forward[i] = pack(dtype, s->w[i], V, width, BD_AS_STORED);
        s->backward[i] = pack(dtype, s->w[i], width, V, BD_TRANSPOSED);
        s->loss.terms[i] = (bd_vocabulary_term){.features = s->h[i],
                                                .width = width,
                                                .head = &s->forward[i],
                                                .compute = dtype,
                                                .head_backward = &s->backward[i],
                                                .d_features = s->dh[i],
                                                .d_head = s->dw[i]};
        for (int64_t r = 2; r < rows; r += 5) // skipped rows may hold anything
            for (int64_t k = 0; k < width; k++)
                s->h[i][r * width + k] = NAN;
    }
    if (!teacher)
        return;
    s->teacher = bd_arena_floats(arena, rows * T);
    s->teacher_w = bd_arena_floats(arena, V * T);
    check_fill(s->teacher, rows * T, 30);
    check_fill(s->teacher_w, V * T, 31);
    s->teacher_head = pack(dtype, s->teacher_w, V, T, BD_AS_STORED);
    const float **features = bd_arena_alloc(arena, (size_t)rows * sizeof *features);
    for (int64_t r = 0; r < rows; r++) // neighbours share a teacher row; none for skipped rows
        features[r] = s->scale[r] == 0 ? NULL : s->teacher + r / 3 * T;
    s->loss.soft = 0.4f;
    s->loss.teacher_features = features;
    s->loss.teacher_head = &s->teacher_head;
}

// Weighted loss in double from the unpacked weights.
static double double_loss(const setup *s)
{
    double total = 0;
    for (int64_t r = 0; r < s->rows; r++) {
        double z[V], t[V], sum = 0, teacher_sum = 0, soft = 0;
        if (s->scale[r] == 0)
            continue;
        for (int v = 0; v < V; v++) {
            z[v] = t[v] = 0;
            for (int i = 0; i < s->loss.term_count; i++)
                for (int64_t k = 0, width = s->loss.terms[i].width; k < width; k++)
                    z[v] += (double)s->h[i][r * width + k] * (double)s->w[i][v * width + k];
            sum += exp(z[v]);
            if (s->teacher)
                for (int k = 0; k < T; k++)
                    t[v] +=
                        (double)s->loss.teacher_features[r][k] * (double)s->teacher_w[v * T + k];
            teacher_sum += exp(t[v]);
        }
        double lse = log(sum);
        if (s->teacher)
            for (int v = 0; v < V; v++)
                soft += exp(t[v]) / teacher_sum * (lse - z[v]);
        total += (double)s->scale[r] *
                 ((double)s->loss.hard * (lse - z[s->loss.targets[r]]) +
                  (double)s->loss.soft * soft + (double)s->loss.z_loss * lse * lse);
    }
    return total;
}

static double own_loss(const setup *s)
{
    double total = 0;
    for (int64_t r = 0; r < s->rows; r++)
        total +=
            (double)s->scale[r] *
            ((double)s->loss.hard * (double)s->hard[r] + (double)s->loss.soft * (double)s->soft[r] +
             (double)s->loss.z_loss * (double)s->lse[r] * (double)s->lse[r]);
    return total;
}

// d of double_loss by central differences for one number.
static double slope(const setup *s, float *x)
{
    const float before = *x, step = 0x1p-6f;
    *x = before + step;
    double up = double_loss(s);
    *x = before - step;
    double down = double_loss(s);
    *x = before;
    return (up - down) / (2 * (double)step);
}

static void check_gradients(int terms, bool teacher)
{
    size_t mark = bd_arena_mark(arena);
    setup s;
    prepare(&s, BD_F32, 11, terms, teacher);
    bd_vocabulary_forward_backward(&s.loss, arena);
    check_near(own_loss(&s), double_loss(&s), 1e-6);
    for (int i = 0; i < terms; i++) {
        int64_t width = s.loss.terms[i].width;
        for (int64_t n = 0; n < 11 * width; n += 3)
            if (s.scale[n / width] != 0)
                check_near((double)s.dh[i][n], slope(&s, s.h[i] + n), 3e-4);
            else
                assert_true(s.dh[i][n] == 0);
        for (int64_t n = 0; n < V * width; n += 97)
            check_near((double)s.dw[i][n], slope(&s, s.w[i] + n), 3e-4);
    }
    bd_arena_release(arena, mark);
}

static void test_gradients_against_differences(void **state)
{
    (void)state;
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        check_gradients(1, false);
        check_gradients(1, true);
        check_gradients(2, true);
    }
}

// The same numbers from logits that were computed beforehand.
static void test_fused_equals_unfused(void **state)
{
    (void)state;
    static const bd_dtype dtypes[] = {BD_F32, BD_BF16};
    enum { ROWS = 23 };
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (int d = 0; d < 2; d++) {
            size_t mark = bd_arena_mark(arena);
            setup s;
            prepare(&s, dtypes[d], ROWS, 2, true);
            bd_vocabulary_forward_backward(&s.loss, arena);
            float *z = bd_arena_floats(arena, ROWS * V), *t = bd_arena_floats(arena, ROWS * V);
            float *dz = bd_arena_floats(arena, ROWS * V), *hard = bd_arena_floats(arena, ROWS);
            float *soft = bd_arena_floats(arena, ROWS);
            const float *teacher_rows[ROWS];
            bd_matmul(&s.forward[0], s.h[0], ROWS, H, NULL, z, V, BD_STORE, arena);
            bd_matmul(&s.forward[1], s.h[1], ROWS, S, NULL, z, V, BD_ACCUMULATE, arena);
            for (int r = 0; r < ROWS; r++) {
                teacher_rows[r] = t + r * V;
                if (s.scale[r] != 0)
                    bd_matmul(&s.teacher_head, s.loss.teacher_features[r], 1, T, NULL, t + r * V, V,
                              BD_STORE, arena);
            }
            bd_vocabulary_loss plain = s.loss;
            plain.teacher_features = NULL;
            plain.teacher_logits = teacher_rows;
            plain.hard_loss = hard;
            plain.soft_loss = soft;
            bd_vocabulary_loss_on_logits(&plain, z, dz);
            assert_memory_equal(hard, s.hard, ROWS * 4);
            assert_memory_equal(soft, s.soft, ROWS * 4);
            // Features' gradient: dz @ W, one row at a time.
            for (int r = 0; r < ROWS; r++) {
                float row[H];
                bd_matmul(&s.backward[0], dz + r * V, 1, V, NULL, row, H, BD_STORE, arena);
                assert_memory_equal(row, s.dh[0] + r * H, H * 4);
            }
            // Head's gradient: over the rows that count, in order.
            float *kept = bd_arena_floats(arena, ROWS * V),
                  *features = bd_arena_floats(arena, ROWS * H);
            int64_t count = 0;
            for (int r = 0; r < ROWS; r++)
                if (s.scale[r] != 0) {
                    memcpy(kept + count * V, dz + r * V, V * 4);
                    memcpy(features + count * H, s.h[0] + r * H, H * 4);
                    count++;
                }
            float *dw = bd_arena_zeros(arena, V * H);
            bd_matmul_weight_gradient(dtypes[d], kept, V, features, H, count, V, H, dw, arena);
            assert_memory_equal(dw, s.dw[0], V * H * 4);
            // Teacher logits given row by row change nothing either.
            setup given;
            prepare(&given, dtypes[d], ROWS, 2, true);
            given.loss.teacher_features = NULL;
            given.loss.teacher_logits = teacher_rows;
            bd_vocabulary_forward_backward(&given.loss, arena);
            assert_memory_equal(given.dw[1], s.dw[1], V * S * 4);
            assert_memory_equal(given.soft, s.soft, ROWS * 4);
            bd_arena_release(arena, mark);
        }
}

static void test_skipped_rows(void **state)
{
    (void)state;
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        size_t mark = bd_arena_mark(arena);
        setup s;
        prepare(&s, BD_F32, 12, 1, true);
        for (int i = 0; i < 12 * H; i++)
            s.dh[0][i] = 0.25f;
        bd_vocabulary_forward_backward(&s.loss, arena);
        for (int r = 0; r < 12; r++)
            if (s.scale[r] == 0) {
                assert_true(s.hard[r] == 0 && s.soft[r] == 0 && s.lse[r] == 0 && s.best[r] == -1);
                for (int k = 0; k < H; k++)
                    assert_true(s.dh[0][r * H + k] == 0.25f);
            } else {
                float z[V];
                bd_matmul(&s.forward[0], s.h[0] + r * H, 1, H, NULL, z, V, BD_STORE, arena);
                assert_int_equal(s.best[r], bd_argmax(z, V));
                assert_true(isfinite(s.hard[r]) && isfinite(s.soft[r]));
            }
        for (int i = 0; i < V * H; i++)
            assert_true(isfinite(s.dw[0][i]));
        // None at all.
        memset(s.scale, 0, 12 * 4);
        memset(s.dw[0], 0, V * H * 4);
        bd_vocabulary_forward_backward(&s.loss, arena);
        for (int i = 0; i < V * H; i++)
            assert_true(s.dw[0][i] == 0);
        assert_true(s.hard[0] == 0 && s.best[0] == -1);
        bd_arena_release(arena, mark);
    }
}

// Several chunks: equal to calls on two rows at a time, with any number of threads.
static void test_chunks_and_threads_change_nothing(void **state)
{
    (void)state;
    enum { ROWS = 1100 };
    static const bd_dtype dtypes[] = {BD_F32, BD_BF16};
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (int d = 0; d < 2; d++) {
            size_t mark = bd_arena_mark(arena);
            setup one, many;
            prepare(&one, dtypes[d], ROWS, 1, true);
            for (int r = 0; r < ROWS;
                 r++) // pairs of rows that count, so that calls can be cut there
                one.scale[r] = r % 6 < 2 ? 0 : 1 + (float)(r % 7);
            for (int i = 0; i < ROWS * H; i++)
                one.h[0][i] = isnan(one.h[0][i]) ? 0.5f : one.h[0][i];
            int32_t *targets = bd_arena_ints(arena, ROWS);
            const float **teacher = bd_arena_alloc(arena, ROWS * sizeof *teacher);
            for (int r = 0; r < ROWS; r++) {
                targets[r] = r * 3 % V;
                teacher[r] = one.teacher + (int64_t)r * r % 701 * T; // some of them often
            }
            one.loss.targets = targets;
            one.loss.teacher_features = teacher;
            many = one;
            bd_threads_set(1);
            bd_vocabulary_forward_backward(&one.loss, arena);
            for (int threads = 2; threads <= 3; threads++) {
                many.dw[0] = bd_arena_zeros(arena, V * H);
                many.dh[0] = bd_arena_zeros(arena, ROWS * H);
                many.hard = bd_arena_zeros(arena, ROWS);
                many.loss.terms[0].d_head = many.dw[0];
                many.loss.terms[0].d_features = many.dh[0];
                many.loss.hard_loss = many.hard;
                bd_threads_set(threads);
                bd_vocabulary_forward_backward(&many.loss, arena);
                assert_memory_equal(one.dw[0], many.dw[0], V * H * 4);
                assert_memory_equal(one.dh[0], many.dh[0], ROWS * H * 4);
                assert_memory_equal(one.hard, many.hard, ROWS * 4);
            }
            float *dw = bd_arena_zeros(arena, V * H), *dh = bd_arena_zeros(arena, ROWS * H);
            for (int r = 0; r < ROWS; r += 2) {
                bd_vocabulary_loss pair = one.loss;
                pair.rows = 2;
                pair.scale += r;
                pair.targets += r;
                pair.teacher_features += r;
                pair.terms[0].features += r * H;
                pair.terms[0].d_features = dh + r * H;
                pair.terms[0].d_head = dw;
                pair.hard_loss = pair.soft_loss = pair.log_normalizer = NULL;
                pair.best = NULL;
                bd_vocabulary_forward_backward(&pair, arena);
            }
            assert_memory_equal(one.dw[0], dw, V * H * 4);
            assert_memory_equal(one.dh[0], dh, ROWS * H * 4);
            bd_arena_release(arena, mark);
        }
}

// Twice the rows, the same memory; forward only leaves every gradient alone.
static void test_memory_does_not_grow_with_rows(void **state)
{
    (void)state;
    size_t peak[2];
    for (int i = 0; i < 2; i++) {
        bd_error err = {0};
        bd_arena *scratch = bd_arena_create((size_t)1 << 30, &err);
        assert_non_null(scratch);
        size_t mark = bd_arena_mark(arena);
        setup s;
        prepare(&s, BD_BF16, i == 0 ? 1100 : 2200, 2, true);
        bd_vocabulary_forward_backward(&s.loss, scratch);
        peak[i] = bd_arena_peak(scratch);
        assert_true(bd_arena_mark(scratch) == 0);
        bd_arena_release(arena, mark);
        bd_arena_destroy(scratch);
    }
    assert_int_equal(peak[0], peak[1]);
}

static void test_forward_only(void **state)
{
    (void)state;
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        size_t mark = bd_arena_mark(arena);
        setup with, without;
        prepare(&with, BD_F32, 9, 1, true);
        prepare(&without, BD_F32, 9, 1, true);
        without.loss.terms[0].d_features = without.loss.terms[0].d_head = NULL;
        without.loss.terms[0].head_backward = NULL;
        bd_vocabulary_forward_backward(&with.loss, arena);
        bd_vocabulary_forward_backward(&without.loss, arena);
        assert_memory_equal(with.hard, without.hard, 9 * 4);
        assert_memory_equal(with.soft, without.soft, 9 * 4);
        assert_memory_equal(with.best, without.best, 9 * 4);
        // A frozen head: the features' gradient alone.
        setup frozen;
        prepare(&frozen, BD_F32, 9, 1, true);
        frozen.loss.terms[0].d_head = NULL;
        bd_vocabulary_forward_backward(&frozen.loss, arena);
        assert_memory_equal(frozen.dh[0], with.dh[0], 9 * H * 4);
        bd_arena_release(arena, mark);
    }
}

// A teacher equal to the student: the soft gradient vanishes and the soft loss is its entropy.
static void test_soft_loss_against_itself(void **state)
{
    (void)state;
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        float z[V], d[V], soft, lse;
        check_fill(z, V, 3);
        z[7] = -INFINITY; // a probability of 0 counts as 0
        const float *teacher = z, scale = 1;
        const int32_t target = 0;
        bd_vocabulary_loss v = {.rows = 1,
                                .vocabulary = V,
                                .scale = &scale,
                                .targets = &target,
                                .soft = 1,
                                .teacher_logits = &teacher,
                                .soft_loss = &soft,
                                .log_normalizer = &lse};
        bd_vocabulary_loss_on_logits(&v, z, d);
        double entropy = 0;
        for (int i = 0; i < V; i++) {
            double p = exp((double)z[i] - (double)lse);
            entropy += p > 0 ? p * ((double)lse - (double)z[i]) : 0;
            assert_true(fabs((double)d[i]) <= 1e-8);
        }
        check_near((double)soft, entropy, 1e-6);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden_cross_entropy),
        cmocka_unit_test(test_known_losses_and_a_poisoned_row),
        cmocka_unit_test(test_gradients_against_differences),
        cmocka_unit_test(test_fused_equals_unfused),
        cmocka_unit_test(test_skipped_rows),
        cmocka_unit_test(test_chunks_and_threads_change_nothing),
        cmocka_unit_test(test_memory_does_not_grow_with_rows),
        cmocka_unit_test(test_forward_only),
        cmocka_unit_test(test_soft_loss_against_itself),
    };
    return cmocka_run_group_tests(tests, make_arena, drop_arena);
}
