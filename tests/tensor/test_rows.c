#include "tensor/levels.h"

#include "base/threads.h"
#include "tensor/isa/rows.h"
#include "tensor/rows.h"

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

static float *noise(int64_t count, uint64_t seed)
{
    float *x = bd_arena_floats(arena, count);
    check_fill(x, count, seed);
    return x;
}

static float *copy(const float *x, int64_t count)
{
    return memcpy(bd_arena_floats(arena, count), x, (size_t)count * sizeof *x);
}

/* --- exp: all kernels use this one ------------------------------------------------------------ */

static void exp_of(const float *x, int64_t count, float *y)
{
    bd_row_kernels_now()->sum_exp(x, 0, count, y);
}

static void test_exp_is_accurate_everywhere(void **state)
{
    (void)state;
    enum { COUNT = 1 << 16 };
    float *x = bd_arena_floats(arena, COUNT), *y = bd_arena_floats(arena, COUNT);
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (int sweep = 0; sweep < 4; sweep++) {
            static const double from[] = {-87.33, -1, -1e-3, 60}, to[] = {88.72, 1, 1e-3, 88.72};
            for (int64_t i = 0; i < COUNT; i++)
                x[i] = (float)(from[sweep] + (to[sweep] - from[sweep]) * (double)i / COUNT);
            exp_of(x, COUNT, y);
            double worst = 0;
            for (int64_t i = 0; i < COUNT; i++) {
                double want = exp((double)x[i]), off = fabs((double)y[i] - want) / want;
                worst = off > worst ? off : worst;
            }
            if (!(worst <= 1.5e-7))
                fail_msg("%s: exp is off by %.3g", bd_isa_name((bd_isa_level)level), worst);
        }
}

static void test_exp_at_the_ends(void **state)
{
    (void)state;
    const float x[] = {-INFINITY, -3e38f, -104, -88, -0.0f, 0, 88.8f, 3e38f, INFINITY, NAN, 1};
    const float want[] = {0, 0, 0, 0, 1, 1, INFINITY, INFINITY, INFINITY, NAN, 2.718281828f};
    float y[11];
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        exp_of(x, 11, y);
        for (int i = 0; i < 11; i++)
            if (isnan(want[i]))
                assert_true(isnan(y[i]));
            else if (isinf(want[i]))
                assert_true(y[i] == want[i]);
            else
                check_near((double)y[i], (double)want[i], want[i] > 1 ? 1e-6 : 0);
    }
}

/* --- norm ------------------------------------------------------------------------------------- */

static void norm_reference(const float *x, const float *weight, double eps, const float *dy,
                           int64_t rows, int64_t width, double *y, double *dx, double *dweight)
{
    for (int64_t i = 0; i < width; i++)
        dweight[i] = 0;
    for (int64_t r = 0; r < rows; r++, x += width, dy += width, y += width, dx += width) {
        double squares = 0, product = 0;
        for (int64_t i = 0; i < width; i++)
            squares += (double)x[i] * (double)x[i];
        double inverse = 1 / sqrt(squares / (double)width + eps);
        for (int64_t i = 0; i < width; i++) {
            y[i] = (double)x[i] * inverse * (double)weight[i];
            product += (double)dy[i] * (double)weight[i] * (double)x[i];
            dweight[i] += (double)dy[i] * (double)x[i] * inverse;
        }
        for (int64_t i = 0; i < width; i++)
            dx[i] = (double)dy[i] * (double)weight[i] * inverse -
                    (double)x[i] * inverse * inverse * inverse * product / (double)width;
    }
}

static void check_doubles(const char *what, const float *got, const double *want, int64_t count,
                          double add, double tolerance)
{
    double scale = 0;
    for (int64_t i = 0; i < count; i++)
        scale = fabs(want[i]) > scale ? fabs(want[i]) : scale;
    for (int64_t i = 0; i < count; i++)
        if (!(fabs((double)got[i] - want[i] - add) <= tolerance * (scale + fabs(add))))
            fail_msg("%s[%lld] is %.9g, wanted %.9g", what, (long long)i, (double)got[i],
                     want[i] + add);
}

static void check_norm(int64_t rows, int64_t width)
{
    size_t mark = bd_arena_mark(arena);
    float *x = noise(rows * width, 1), *weight = noise(width, 2), *dy = noise(rows * width, 3);
    double *want_y = bd_arena_alloc(arena, (size_t)(rows * width) * 8);
    double *want_dx = bd_arena_alloc(arena, (size_t)(rows * width) * 8);
    double *want_dw = bd_arena_alloc(arena, (size_t)width * 8);
    norm_reference(x, weight, 1e-5, dy, rows, width, want_y, want_dx, want_dw);
    float *y = bd_arena_floats(arena, rows * width), *inverse = bd_arena_floats(arena, rows);
    float *dx = noise(rows * width, 4), *dw = noise(width, 5);
    for (int64_t i = 0; i < rows * width; i++)
        dx[i] = 0.5f;
    for (int64_t i = 0; i < width; i++)
        dw[i] = 0.5f;
    bd_rms_norm(x, weight, 1e-5f, rows, width, y, inverse);
    check_doubles("y", y, want_y, rows * width, 0, 1e-6);
    bd_rms_norm_backward(x, weight, inverse, dy, rows, width, dx, dw, arena);
    check_doubles("dx", dx, want_dx, rows * width, 0.5, 2e-6);
    check_doubles("dweight", dw, want_dw, width, 0.5, 3e-6);

    // In place, without the inverse, row by row: the same bits.
    float *place = copy(x, rows * width);
    bd_rms_norm(place, weight, 1e-5f, rows, width, place, NULL);
    assert_memory_equal(place, y, (size_t)(rows * width) * 4);
    for (int64_t r = 0; r < rows; r += 13) {
        bd_rms_norm(x + r * width, weight, 1e-5f, 1, width, place, NULL);
        assert_memory_equal(place, y + r * width, (size_t)width * 4);
    }
    // Only one of the gradients.
    float *again = bd_arena_floats(arena, rows * width);
    for (int64_t i = 0; i < rows * width; i++)
        again[i] = 0.5f;
    bd_rms_norm_backward(x, weight, inverse, dy, rows, width, again, NULL, arena);
    assert_memory_equal(again, dx, (size_t)(rows * width) * 4);
    for (int64_t i = 0; i < width; i++)
        again[i] = 0.5f;
    bd_rms_norm_backward(x, weight, inverse, dy, rows, width, NULL, again, arena);
    assert_memory_equal(again, dw, (size_t)width * 4);
    bd_arena_release(arena, mark);
}

static void test_norm_and_its_gradient(void **state)
{
    (void)state;
    static const int64_t widths[] = {1, 4, 7, 64, 65, 129, 512, 1030};
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (int i = 0; i < 8; i++) {
            check_norm(1, widths[i]);
            check_norm(131, widths[i]);
        }
}

/* --- rotary positions ------------------------------------------------------------------------- */

static void check_rope(int64_t size, int64_t heads, double largest_frequency)
{
    enum { ROWS = 9 };
    static const int32_t positions[ROWS] = {0, 1, 2, 17, 1000, 32767, 131071, 1000000, 2000000000};
    size_t mark = bd_arena_mark(arena);
    int64_t half = size / 2, count = ROWS * heads * size;
    double *frequency = bd_arena_alloc(arena, (size_t)half * 8 + 8);
    for (int64_t i = 0; i < half; i++)
        frequency[i] = largest_frequency * pow(10000, -2.0 * (double)i / (double)size);
    bd_rope rope = {.head_size = size, .inverse_frequency = frequency, .factor = 1.25f};
    float *x = noise(count, 1), *y = bd_arena_floats(arena, count),
          *back = bd_arena_floats(arena, count);
    bd_rope_forward(&rope, x, positions, ROWS, heads, y);
    for (int64_t r = 0; r < ROWS; r++)
        for (int64_t h = 0; h < heads; h++)
            for (int64_t i = 0; i < half; i++) {
                double angle = (double)positions[r] * frequency[i], c = cos(angle), s = sin(angle);
                int64_t at = (r * heads + h) * size + i;
                double a = (double)x[at], b = (double)x[at + half];
                check_near((double)y[at], 1.25 * (a * c - b * s), 2e-7);
                check_near((double)y[at + half], 1.25 * (b * c + a * s), 2e-7);
            }
    // The backward pass turns back: with factor f, x comes back times f^2, added.
    for (int64_t i = 0; i < count; i++)
        back[i] = 3;
    bd_rope_backward(&rope, y, positions, ROWS, heads, back);
    for (int64_t i = 0; i < count; i++)
        check_near((double)back[i], 3 + 1.5625 * (double)x[i], 1e-6);
    float *place = copy(x, count);
    bd_rope_forward(&rope, place, positions, ROWS, heads, place);
    assert_memory_equal(place, y, (size_t)count * 4);
    bd_rope_forward(&rope, x + 3 * heads * size, positions + 3, 1, heads, place);
    assert_memory_equal(place, y + 3 * heads * size, (size_t)(heads * size) * 4);
    bd_arena_release(arena, mark);
}

static void test_rope_against_libm(void **state)
{
    (void)state;
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        check_rope(4, 3, 1);
        check_rope(6, 1, 1);
        check_rope(64, 4, 1);
        check_rope(80, 2, 0.37);
        check_rope(512, 1, 1);
        check_rope(1100, 1, 1); // more than the table of angles holds
    }
}

/* --- element by element ----------------------------------------------------------------------- */

static void test_swiglu(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 5, 16, 333};
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (int n = 0; n < 4; n++) {
            int64_t count = counts[n];
            float *gate = noise(count, 1), *up = noise(count, 2), *dy = noise(count, 3);
            float *y = bd_arena_floats(arena, count);
            float *dgate = bd_arena_zeros(arena, count), *dup = bd_arena_zeros(arena, count);
            for (int64_t i = 0; i < count; i++) {
                gate[i] *= i % 3 ? 4 : 40;
                dgate[i] = dup[i] = 0.5f;
            }
            bd_swiglu(gate, up, count, y);
            bd_swiglu_backward(gate, up, dy, count, dgate, dup);
            for (int64_t i = 0; i < count; i++) {
                double z = (double)gate[i], u = (double)up[i], g = (double)dy[i],
                       s = 1 / (1 + exp(-z));
                check_near((double)y[i], z * s * u, 5e-7);
                check_near((double)dgate[i], 0.5 + g * u * (s + z * s * (1 - s)), 5e-7);
                check_near((double)dup[i], 0.5 + g * z * s, 1e-6);
            }
            float *only = bd_arena_floats(arena, count);
            for (int64_t i = 0; i < count; i++)
                only[i] = 0.5f;
            bd_swiglu_backward(gate, up, dy, count, NULL, only);
            assert_memory_equal(only, dup, (size_t)count * 4);
        }
    const float gate[3] = {-200, 200, -1e30f}, up[3] = {1, 1, 1};
    float y[3];
    bd_swiglu(gate, up, 3, y);
    assert_true(y[0] == 0 && y[1] == 200 && y[2] == 0);
}

static void test_add_accumulate_scale(void **state)
{
    (void)state;
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        float *a = noise(37, 1), *b = noise(37, 2), *y = bd_arena_floats(arena, 38);
        y[37] = 77;
        bd_add(a, b, 37, y);
        for (int i = 0; i < 37; i++)
            assert_true(y[i] == a[i] + b[i]);
        bd_accumulate(a, 37, y);
        for (int i = 0; i < 37; i++)
            assert_true(y[i] == a[i] + b[i] + a[i]);
        bd_scale(0.3f, 37, y);
        for (int i = 0; i < 37; i++)
            assert_true(y[i] == (a[i] + b[i] + a[i]) * 0.3f);
        assert_true(y[37] == 77);
        bd_add(a, b, 37, b);
        bd_scale(0.3f, 0, a);
    }
}

/* --- tables and sums over rows ---------------------------------------------------------------- */

static void test_gather_and_its_gradient(void **state)
{
    (void)state;
    enum { VOCABULARY = 11, WIDTH = 200, ROWS = 600 }; // enough for several tasks
    int32_t ids[ROWS];
    for (int r = 0; r < ROWS; r++)
        ids[r] = r * r % VOCABULARY;
    static const bd_dtype dtypes[] = {BD_F32, BD_BF16, BD_F16};
    float *table = noise(VOCABULARY * WIDTH, 1);
    for (int i = 0; i < VOCABULARY * WIDTH; i++)
        table[i] = (float)(int)(table[i] * 100) / 128; // exact in every dtype
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        float *y = bd_arena_floats(arena, ROWS * WIDTH);
        for (int d = 0; d < 3; d++) {
            void *stored = bd_arena_alloc(arena, VOCABULARY * WIDTH * 4);
            bd_from_f32(dtypes[d], table, stored, VOCABULARY * WIDTH);
            bd_gather(stored, dtypes[d], WIDTH, ids, ROWS, y);
            for (int r = 0; r < ROWS; r++)
                assert_memory_equal(y + r * WIDTH, table + ids[r] * WIDTH, WIDTH * 4);
        }
        float *dy = noise(ROWS * WIDTH, 2), *dtable = noise(VOCABULARY * WIDTH, 3);
        float *want = copy(dtable, VOCABULARY * WIDTH);
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < WIDTH; i++)
                want[ids[r] * WIDTH + i] += dy[r * WIDTH + i];
        bd_gather_backward(dy, WIDTH, ids, ROWS, dtable);
        assert_memory_equal(want, dtable, VOCABULARY * WIDTH * 4);
        float *sum = noise(WIDTH, 4), *want_sum = copy(sum, WIDTH);
        for (int r = 0; r < ROWS; r++)
            for (int i = 0; i < WIDTH; i++)
                want_sum[i] += dy[r * WIDTH + i];
        bd_sum_rows(dy, ROWS, WIDTH, sum);
        assert_memory_equal(want_sum, sum, WIDTH * 4);
    }
}

/* --- over a row ------------------------------------------------------------------------------- */

static void test_argmax(void **state)
{
    (void)state;
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        for (int64_t count = 1; count < 140; count += 3)
            for (int64_t at = 0; at < count; at += 5) {
                float *x = noise(count, (uint64_t)count);
                x[at] = 2;
                if (at + 1 < count)
                    x[count - 1] = 2; // a tie: the first one wins
                if (at > 0)
                    x[0] = NAN;
                if (at > 1)
                    x[at - 1] = NAN;
                assert_int_equal(bd_argmax(x, count), at);
            }
        const float none[] = {NAN, NAN, NAN}, low[] = {NAN, -INFINITY, -INFINITY},
                    high[] = {1, INFINITY, NAN, INFINITY};
        assert_int_equal(bd_argmax(none, 3), 0);
        assert_int_equal(bd_argmax(low, 3), 1);
        assert_int_equal(bd_argmax(high, 4), 1);
    }
}

static void test_log_sum_exp_and_softmax(void **state)
{
    (void)state;
    static const int64_t counts[] = {1, 2, 15, 16, 100, 1024, 5003};
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        for (int n = 0; n < 7; n++)
            for (int big = 0; big < 2; big++) {
                int64_t count = counts[n];
                float *x = noise(count, 7), *y = bd_arena_floats(arena, count);
                double sum = 0;
                for (int64_t i = 0; i < count; i++) {
                    x[i] = big ? 1000 + 30 * x[i] : 5 * x[i];
                    sum += exp((double)x[i] - (big ? 1030 : 5));
                }
                double want = log(sum) + (big ? 1030 : 5);
                check_near((double)bd_log_sum_exp(x, count), want, 1e-7);
                bd_softmax(x, count, y);
                for (int64_t i = 0; i < count; i++) {
                    double p = exp((double)x[i] - want);
                    // Rounding x - max alone moves a probability by half a bit of the difference.
                    assert_true(fabs((double)y[i] - p) <=
                                (3e-7 + 6e-8 * (want - (double)x[i])) * p + 1e-38);
                }
            }
        const float masked[] = {-INFINITY, 0, -INFINITY, 0};
        float y[4];
        check_near((double)bd_log_sum_exp(masked, 4), 0.6931471806, 1e-7);
        bd_softmax(masked, 4, y);
        assert_true(y[0] == 0 && y[1] == 0.5f && y[2] == 0 && y[3] == 0.5f);
        const float none[] = {-INFINITY, -INFINITY}, full[] = {0, INFINITY}, bad[] = {0, NAN};
        assert_true(bd_log_sum_exp(none, 2) == -INFINITY);
        assert_true(bd_log_sum_exp(full, 2) == INFINITY);
        assert_true(isnan(bd_log_sum_exp(bad, 2)));
    }
}

static void test_sum_of_squares(void **state)
{
    (void)state;
    enum { COUNT = 300001 };
    float *x = noise(COUNT, 1);
    x[COUNT - 1] = 1e20f; // its square does not fit a float
    double want = 0;
    for (int64_t i = 0; i < COUNT; i++)
        want += (double)x[i] * (double)x[i];
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        double first = 0;
        for (int threads = 1; threads <= 3; threads++) {
            bd_threads_set(threads);
            double got = bd_sum_of_squares(x, COUNT);
            check_near(got / want, 1, 1e-14);
            if (threads == 1)
                first = got;
            assert_true(got == first);
            check_near(bd_sum_of_squares(x, 1), (double)x[0] * (double)x[0], 1e-15);
        }
    }
    assert_true(bd_sum_of_squares(x, 0) == 0);
}

/* --- threads ---------------------------------------------------------------------------------- */

// Everything that splits its work, large enough to split: the same bytes with 1, 2 and 3 threads.
enum { ROWS = 700, WIDTH = 192, COUNT = ROWS * WIDTH };

typedef struct {
    float norm[COUNT], dx[COUNT], dweight[WIDTH], narrow_dweight[WIDTH], turned[COUNT],
        swiglu[COUNT];
    float dgate[COUNT], dup[COUNT], sum[COUNT], gathered[COUNT], table[COUNT], total[WIDTH];
} everything;

static void run_everything(everything *out)
{
    float *x = noise(COUNT, 1), *dy = noise(COUNT, 2), *weight = noise(WIDTH, 3);
    float *inverse = noise(ROWS * 6, 4);
    int32_t ids[ROWS], positions[ROWS];
    double frequency[16];
    for (int r = 0; r < ROWS; r++) {
        ids[r] = r * 7 % 13;
        positions[r] = r * 3;
    }
    for (int i = 0; i < 16; i++)
        frequency[i] = pow(10000, -i / 16.0);
    bd_rope rope = {.head_size = 32, .inverse_frequency = frequency, .factor = 1};
    bd_rms_norm(x, weight, 1e-6f, ROWS, WIDTH, out->norm, NULL);
    bd_rms_norm_backward(x, weight, inverse, dy, ROWS, WIDTH, out->dx, out->dweight, arena);
    bd_rms_norm_backward(x, weight, inverse, dy, ROWS * 6, WIDTH / 6, NULL, out->narrow_dweight,
                         arena);
    bd_rope_forward(&rope, x, positions, ROWS, 6, out->turned);
    bd_rope_backward(&rope, dy, positions, ROWS, 6, out->turned);
    bd_swiglu(x, dy, COUNT, out->swiglu);
    bd_swiglu_backward(x, dy, x, COUNT, out->dgate, out->dup);
    bd_add(x, dy, COUNT, out->sum);
    bd_scale(0.7f, COUNT, out->sum);
    bd_accumulate(dy, COUNT, out->sum);
    bd_gather(x, BD_F32, WIDTH, ids, ROWS, out->gathered);
    bd_gather_backward(dy, WIDTH, ids, ROWS, out->table);
    bd_sum_rows(dy, ROWS, WIDTH, out->total);
}

static void test_threads_change_nothing(void **state)
{
    (void)state;
    for (int level = level_first(); level >= 0; level = level_next(level)) {
        size_t mark = bd_arena_mark(arena);
        everything *first = (everything *)(void *)bd_arena_zeros(arena, sizeof *first / 4);
        everything *other = (everything *)(void *)bd_arena_zeros(arena, sizeof *other / 4);
        bd_threads_set(1);
        run_everything(first);
        for (int threads = 2; threads <= 3; threads++) {
            memset(other, 0, sizeof *other);
            bd_threads_set(threads);
            run_everything(other);
            assert_memory_equal(first, other, sizeof *first);
        }
        bd_arena_release(arena, mark);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exp_is_accurate_everywhere),
        cmocka_unit_test(test_exp_at_the_ends),
        cmocka_unit_test(test_norm_and_its_gradient),
        cmocka_unit_test(test_rope_against_libm),
        cmocka_unit_test(test_swiglu),
        cmocka_unit_test(test_add_accumulate_scale),
        cmocka_unit_test(test_gather_and_its_gradient),
        cmocka_unit_test(test_argmax),
        cmocka_unit_test(test_log_sum_exp_and_softmax),
        cmocka_unit_test(test_sum_of_squares),
        cmocka_unit_test(test_threads_change_nothing),
    };
    return cmocka_run_group_tests(tests, make_arena, drop_arena);
}
