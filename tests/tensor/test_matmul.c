#include "tensor/levels.h"

#include "base/threads.h"
#include "tensor/matmul.h"
#include "tensor/quantized.h"

static const int64_t ins[] = {1, 3, 17, 193, 601};
static const int64_t outs[] = {1, 5, 63, 65, 200};
static const bd_dtype dtypes[] = {BD_F32, BD_BF16, BD_Q8_0};
enum { TRAINED = 2 }; // of dtypes: those that can go back

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

static float rounded(bd_dtype dtype, float x)
{
    return dtype == BD_BF16 ? bd_bf16_to_f32(bd_bf16_from_f32(x)) : x;
}

typedef struct {
    bd_dtype dtype;
    int64_t rows, in, out;
    float *x, *w, *bias, *before;
    float *x_seen, *w_seen; // as products round them
    bd_packed packed;
} problem;

// A row in blocks of int8; weights have f16 scales and round halves away from zero.
static void round_blocks(const float *row, int64_t count, bool weights, float *out)
{
    for (int64_t i = 0; i < count; i += BD_Q8_GROUP) {
        int64_t n = count - i < BD_Q8_GROUP ? count - i : BD_Q8_GROUP;
        float values[BD_Q8_GROUP] = {0}, back[BD_Q8_GROUP], most = 0;
        char block[BD_Q8_BYTES];
        memcpy(values, row + i, (size_t)n * sizeof *values);
        for (int j = 0; j < n; j++)
            most = fmaxf(most, fabsf(values[j]));
        float scale = most / 127, inverse = 1 / scale;
        bd_q8_from_f32(values, block, BD_Q8_GROUP);
        bd_q8_to_f32(block, back, BD_Q8_GROUP);
        for (int j = 0; j < n; j++)
            out[i + j] = weights ? back[j] : most > 0 ? scale * rintf(values[j] * inverse) : 0;
    }
}

static float *seen(bd_arena *arena, bd_dtype dtype, const float *from, int64_t rows, int64_t in,
                   bool weights)
{
    float *out = bd_arena_floats(arena, rows * in);
    for (int64_t r = 0; r < rows; r++)
        if (dtype == BD_Q8_0)
            round_blocks(from + r * in, in, weights, out + r * in);
        else
            for (int64_t i = 0; i < in; i++)
                out[r * in + i] = rounded(dtype, from[r * in + i]);
    return out;
}

static problem make(bd_arena *arena, bd_dtype dtype, int64_t rows, int64_t in, int64_t out)
{
    problem p = {.dtype = dtype, .rows = rows, .in = in, .out = out};
    p.x = bd_arena_floats(arena, rows * in);
    p.w = bd_arena_floats(arena, out * in);
    p.bias = bd_arena_floats(arena, out);
    p.before = bd_arena_floats(arena, rows * out);
    check_fill(p.x, rows * in, (uint64_t)(rows + in));
    check_fill(p.w, out * in, (uint64_t)(out * in));
    check_fill(p.bias, out, 3);
    check_fill(p.before, rows * out, 4);
    p.x_seen = seen(arena, dtype, p.x, rows, in, false);
    p.w_seen = seen(arena, dtype, p.w, out, in, true);
    // Guard words behind the storage: packing must stay inside.
    size_t bytes = bd_packed_bytes(dtype, out, in);
    unsigned char *storage = bd_arena_alloc(arena, bytes + 64);
    memset(storage, 0xab, bytes + 64);
    p.packed = bd_pack(dtype, p.w, BD_F32, out, in, BD_AS_STORED, storage);
    for (int i = 0; i < 64; i++)
        assert_int_equal(storage[bytes + i], 0xab);
    return p;
}

// Double product; error limit per element: relative to the sum of magnitudes.
static void check_product(const problem *p, const float *y, int64_t stride, bool bias, bool add)
{
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t o = 0; o < p->out; o++) {
            double want = 0, magnitude = 0;
            for (int64_t i = 0; i < p->in; i++) {
                double term = (double)p->x_seen[r * p->in + i] * (double)p->w_seen[o * p->in + i];
                want += term;
                magnitude += fabs(term);
            }
            want += bias ? (double)p->bias[o] : 0;
            want += add ? (double)p->before[r * p->out + o] : 0;
            double got = (double)y[r * stride + o];
            if (!(fabs(got - want) <= 2e-6 * (magnitude + 1)))
                fail_msg("%s [%lld,%lld,%lld] at %lld,%lld: %.9g, wanted %.9g",
                         bd_dtype_name(p->dtype), (long long)p->rows, (long long)p->in,
                         (long long)p->out, (long long)r, (long long)o, got, want);
        }
}

static void test_products_match_double(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    static const int64_t rows[] = {1, 7, 13, 103};
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (size_t d = 0; d < COUNT(dtypes); d++)
            for (size_t i = 0; i < COUNT(ins); i++)
                for (size_t o = 0; o < COUNT(outs); o++)
                    for (size_t r = 0; r < COUNT(rows); r++) {
                        size_t mark = bd_arena_mark(arena);
                        problem p = make(arena, dtypes[d], rows[r], ins[i], outs[o]);
                        bool bias = (i + o + r) % 2, add = (i + r) % 3 == 0;
                        int64_t stride = p.out + 3;
                        float *y = bd_arena_floats(arena, p.rows * stride);
                        for (int64_t n = 0; n < p.rows * stride; n++)
                            y[n] =
                                n % stride < p.out ? p.before[n / stride * p.out + n % stride] : 77;
                        bd_matmul(&p.packed, p.x, p.rows, p.in, bias ? p.bias : NULL, y, stride,
                                  add ? BD_ACCUMULATE : BD_STORE, arena);
                        check_product(&p, y, stride, bias, add);
                        for (int64_t n = 0; n < p.rows * stride; n++)
                            if (n % stride >= p.out)
                                assert_true(y[n] == 77); // nothing between the rows is touched
                        bd_arena_release(arena, mark);
                    }
    bd_arena_destroy(arena);
}

// A row alone, and the same row among 2 .. 70, with 1, 2, 3 threads: the same bits.
static void test_rows_do_not_depend_on_their_batch(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (size_t d = 0; d < COUNT(dtypes); d++)
            for (size_t i = 0; i < COUNT(ins); i++)
                for (size_t o = 0; o < COUNT(outs); o++) {
                    size_t mark = bd_arena_mark(arena);
                    problem p = make(arena, dtypes[d], 70, ins[i], outs[o]);
                    float *alone = bd_arena_floats(arena, p.rows * p.out);
                    float *together = bd_arena_floats(arena, p.rows * p.out);
                    bd_threads_set(1);
                    for (int64_t r = 0; r < p.rows; r++)
                        bd_matmul(&p.packed, p.x + r * p.in, 1, p.in, p.bias, alone + r * p.out,
                                  p.out, BD_STORE, arena);
                    for (int64_t rows = 1; rows <= p.rows; rows += rows < 20 ? 1 : 7) {
                        bd_threads_set((int)(rows % 3) + 1);
                        memset(together, 0, (size_t)(p.rows * p.out) * 4);
                        bd_matmul(&p.packed, p.x, rows, p.in, p.bias, together, p.out, BD_STORE,
                                  arena);
                        assert_memory_equal(together, alone, (size_t)(rows * p.out) * 4);
                    }
                    bd_arena_release(arena, mark);
                }
    bd_threads_set(0);
    bd_arena_destroy(arena);
}

// Large enough to be split over rows and columns, summed dimension cut several times.
static void test_large_products_do_not_depend_on_threads(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (size_t d = 0; d < COUNT(dtypes); d++) {
            size_t mark = bd_arena_mark(arena);
            problem p = make(arena, dtypes[d], 197, 1100, 333);
            float *one = bd_arena_floats(arena, p.rows * p.out);
            float *many = bd_arena_floats(arena, p.rows * p.out);
            for (int mode = BD_STORE; mode <= BD_ACCUMULATE; mode++) {
                bd_threads_set(1);
                for (int64_t r = 0; r < p.rows; r++) { // row by row: other blocks, other tiles
                    memcpy(one + r * p.out, p.before + r * p.out, (size_t)p.out * 4);
                    bd_matmul(&p.packed, p.x + r * p.in, 1, p.in, p.bias, one + r * p.out, p.out,
                              mode, arena);
                }
                for (int threads = 1; threads <= 3; threads++) {
                    bd_threads_set(threads);
                    memcpy(many, p.before, (size_t)(p.rows * p.out) * 4);
                    bd_matmul(&p.packed, p.x, p.rows, p.in, p.bias, many, p.out, mode, arena);
                    assert_memory_equal(one, many, (size_t)(p.rows * p.out) * 4);
                }
            }
            bd_arena_release(arena, mark);
        }
    bd_threads_set(0);
    bd_arena_destroy(arena);
}

// W packed both ways, from every float dtype, gives the same panels.
static void test_packing_from_every_dtype_and_order(void **state)
{
    (void)state;
    static const bd_dtype sources[] = {BD_F32, BD_BF16, BD_F16, BD_F64};
    bd_arena *arena = check_arena();
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (size_t d = 0; d < COUNT(dtypes); d++)
            for (size_t i = 0; i < COUNT(ins); i++)
                for (size_t o = 0; o < COUNT(outs); o++)
                    for (size_t s = 0; s < COUNT(sources); s++) {
                        size_t mark = bd_arena_mark(arena);
                        int64_t in = ins[i], out = outs[o];
                        float *w = bd_arena_floats(arena, in * out);
                        float *turned = bd_arena_floats(arena, in * out);
                        check_fill(w, in * out, 9);
                        for (int64_t n = 0; n < in * out; n++) // exact in every source
                            w[n] = rounded(BD_BF16, (float)(int)(w[n] * 100) / 128);
                        for (int64_t n = 0; n < in * out; n++)
                            turned[n % in * out + n / in] = w[n];
                        void *source = bd_arena_alloc(arena, (size_t)(in * out) * 8);
                        size_t bytes = bd_packed_bytes(dtypes[d], out, in);
                        char *want = bd_arena_alloc(arena, bytes),
                             *got = bd_arena_alloc(arena, bytes);
                        memset(want, 0, bytes);
                        memset(got, 0, bytes);
                        bd_pack(dtypes[d], w, BD_F32, out, in, BD_AS_STORED, want);
                        bd_from_f32(sources[s], w, source, in * out);
                        bd_pack(dtypes[d], source, sources[s], out, in, BD_AS_STORED, got);
                        assert_memory_equal(want, got, bytes);
                        if (d < TRAINED) {
                            memset(got, 0, bytes);
                            bd_from_f32(sources[s], turned, source, in * out);
                            bd_pack(dtypes[d], source, sources[s], out, in, BD_TRANSPOSED, got);
                            assert_memory_equal(want, got, bytes);
                        }
                        bd_arena_release(arena, mark);
                    }
    bd_arena_destroy(arena);
}

// Side by side each product has the bits it has alone: also where one is empty or ends in a narrow
// panel, on one thread and on two.
static void test_several_products_of_the_same_rows(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    static const int64_t widths[BD_MOST_PRODUCTS] = {200, 0, 65, 1400}, rows[] = {1, 8, 17};
    enum { IN = 601, MOST = 1400 };
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (size_t d = 0; d < COUNT(dtypes); d++)
            for (size_t r = 0; r < COUNT(rows); r++) {
                size_t mark = bd_arena_mark(arena);
                problem p[BD_MOST_PRODUCTS];
                bd_product products[BD_MOST_PRODUCTS];
                float *alone = bd_arena_zeros(arena, rows[r] * (MOST + 3));
                for (int i = 0; i < BD_MOST_PRODUCTS; i++) {
                    p[i] = make(arena, dtypes[d], rows[r], IN, widths[i]);
                    products[i] = (bd_product){.w = &p[i].packed,
                                               .bias = i % 2 ? NULL : p[i].bias,
                                               .y = bd_arena_zeros(arena, rows[r] * (MOST + 3)),
                                               .y_stride = widths[i] + 3};
                }
                for (int threads = 1; threads <= 2; threads++) {
                    bd_threads_set(threads);
                    bd_matmul_several(products, BD_MOST_PRODUCTS, p[0].x, rows[r], IN, BD_STORE,
                                      arena);
                    for (int i = 0; i < BD_MOST_PRODUCTS; i++) {
                        bd_matmul(products[i].w, p[0].x, rows[r], IN, products[i].bias, alone,
                                  products[i].y_stride, BD_STORE, arena);
                        for (int64_t row = 0; row < rows[r]; row++)
                            assert_memory_equal(products[i].y + row * products[i].y_stride,
                                                alone + row * products[i].y_stride,
                                                (size_t)widths[i] * sizeof(float));
                    }
                }
                check_product(&p[3], products[3].y, products[3].y_stride, false, false);
                bd_arena_release(arena, mark);
            }
    bd_threads_set(0);
    bd_arena_destroy(arena);
}

static void test_input_rows_with_a_stride(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (size_t d = 0; d < COUNT(dtypes); d++) {
            problem p = make(arena, dtypes[d], 9, 37, 21);
            float *wide = bd_arena_floats(arena, 9 * 50);
            float *got = bd_arena_floats(arena, 9 * 21), *want = bd_arena_floats(arena, 9 * 21);
            for (int64_t n = 0; n < 9 * 50; n++)
                wide[n] = n % 50 < 37 ? p.x[n / 50 * 37 + n % 50] : NAN; // never read
            bd_matmul(&p.packed, p.x, 9, 37, NULL, want, 21, BD_STORE, arena);
            bd_matmul(&p.packed, wide, 9, 50, NULL, got, 21, BD_STORE, arena);
            assert_memory_equal(want, got, 9 * 21 * 4);
        }
    bd_arena_destroy(arena);
}

// A NaN or infinity stays in its own row.
static void test_poison_stays_in_its_row(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (size_t d = 0; d < COUNT(dtypes); d++) {
            problem p = make(arena, dtypes[d], 5, 33, 70);
            float *y = bd_arena_floats(arena, 5 * 70);
            p.x[2 * 33 + 32] = NAN;
            p.x[3 * 33] = INFINITY;
            bd_matmul(&p.packed, p.x, 5, 33, NULL, y, 70, BD_STORE, arena);
            for (int64_t o = 0; o < 70; o++) {
                assert_true(isfinite(y[o]) && isfinite(y[70 + o]) && isfinite(y[280 + o]));
                assert_true(isnan(y[140 + o]));
                assert_false(isfinite(y[210 + o]));
            }
        }
    bd_arena_destroy(arena);
}

static void gradient_reference(bd_dtype dtype, const float *dy, const float *x, int64_t rows,
                               int64_t out, int64_t in, double *dw, double *magnitude)
{
    for (int64_t o = 0; o < out; o++)
        for (int64_t i = 0; i < in; i++) {
            double sum = 0, size = 0;
            for (int64_t r = 0; r < rows; r++) {
                double term = (double)rounded(dtype, dy[r * (out + 1) + o]) *
                              (double)rounded(dtype, x[r * (in + 2) + i]);
                sum += term;
                size += fabs(term);
            }
            dw[o * in + i] = sum;
            magnitude[o * in + i] = size;
        }
}

static void check_weight_gradient(bd_arena *arena, bd_dtype dtype, int64_t rows, int64_t out,
                                  int64_t in)
{
    size_t mark = bd_arena_mark(arena);
    float *dy = bd_arena_floats(arena, rows * (out + 1)),
          *x = bd_arena_floats(arena, rows * (in + 2));
    float *first = bd_arena_floats(arena, out * in), *dw = bd_arena_floats(arena, out * in);
    double *want = bd_arena_alloc(arena, (size_t)(out * in) * 8);
    double *magnitude = bd_arena_alloc(arena, (size_t)(out * in) * 8);
    check_fill(dy, rows * (out + 1), 5);
    check_fill(x, rows * (in + 2), 6);
    gradient_reference(dtype, dy, x, rows, out, in, want, magnitude);
    for (int threads = 1; threads <= 3; threads++) {
        bd_threads_set(threads);
        for (int64_t i = 0; i < out * in; i++)
            dw[i] = 0.25f; // added to
        bd_matmul_weight_gradient(dtype, dy, out + 1, x, in + 2, rows, out, in, dw, arena);
        if (threads == 1)
            memcpy(first, dw, (size_t)(out * in) * 4);
        assert_memory_equal(first, dw, (size_t)(out * in) * 4);
    }
    for (int64_t i = 0; i < out * in; i++)
        if (!(fabs((double)dw[i] - 0.25 - want[i]) <= 3e-6 * (magnitude[i] + 1)))
            fail_msg("%s rows %lld [%lld,%lld] at %lld: %.9g, wanted %.9g", bd_dtype_name(dtype),
                     (long long)rows, (long long)out, (long long)in, (long long)i, (double)dw[i],
                     want[i] + 0.25);
    // Cut in two (at an even row: pairs stay together) it is the same chain of additions.
    int64_t half = rows / 4 * 2;
    for (int64_t i = 0; i < out * in; i++)
        dw[i] = 0.25f;
    bd_matmul_weight_gradient(dtype, dy, out + 1, x, in + 2, half, out, in, dw, arena);
    bd_matmul_weight_gradient(dtype, dy + half * (out + 1), out + 1, x + half * (in + 2), in + 2,
                              rows - half, out, in, dw, arena);
    assert_memory_equal(first, dw, (size_t)(out * in) * 4);
    bd_arena_release(arena, mark);
}

static void test_weight_gradients(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (size_t d = 0; d < TRAINED; d++) {
            check_weight_gradient(arena, dtypes[d], 1, 5, 3);
            check_weight_gradient(arena, dtypes[d], 7, 49, 65);
            check_weight_gradient(arena, dtypes[d], 70, 97, 130);
            check_weight_gradient(arena, dtypes[d], 1031, 53, 67);
        }
    bd_threads_set(0);
    bd_arena_destroy(arena);
}

static void test_empty_shapes(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    float y[4] = {1, 2, 3, 4}, x[4] = {0};
    for (int level = level_first(); level >= 0; level = level_next(level))
        for (size_t d = 0; d < COUNT(dtypes); d++) {
            bd_packed w =
                bd_pack(dtypes[d], x, BD_F32, 2, 0, BD_AS_STORED, bd_arena_alloc(arena, 64));
            bd_matmul(&w, x, 0, 0, NULL, y, 2, BD_STORE, arena);
            assert_true(y[0] == 1);
            bd_matmul(&w, x, 2, 0, NULL, y, 2, BD_STORE, arena); // an empty sum
            assert_true(y[0] == 0 && y[3] == 0);
            y[0] = 1;
            y[3] = 4;
            if (d < TRAINED)
                bd_matmul_weight_gradient(dtypes[d], x, 2, x, 2, 0, 2, 2, y, arena);
            assert_true(y[0] == 1 && y[3] == 4);
        }
    bd_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products_match_double),
        cmocka_unit_test(test_rows_do_not_depend_on_their_batch),
        cmocka_unit_test(test_large_products_do_not_depend_on_threads),
        cmocka_unit_test(test_packing_from_every_dtype_and_order),
        cmocka_unit_test(test_several_products_of_the_same_rows),
        cmocka_unit_test(test_input_rows_with_a_stride),
        cmocka_unit_test(test_poison_stays_in_its_row),
        cmocka_unit_test(test_weight_gradients),
        cmocka_unit_test(test_empty_shapes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
