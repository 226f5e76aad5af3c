/* The likelihood bound against the sum over all sets, written out. */
#include "diffusion/likelihood.h"
#include "diffusion/golden.h"

static bd_arena *arena;
static bd_model *same_model, *shifted_model;

enum { LENGTH = 9, MASK = 96 };

static const int32_t tokens[LENGTH] = {20, 21, 22, 40, 24, 25, 26, 7, 0};
static const int32_t segments[LENGTH] = {1, 1, 1, 1, 1, 1, 1, 1, 0};

static bd_canvas canvas_of(bool shifted, int64_t block)
{
    return (bd_canvas){shifted ? BD_SHIFTED : BD_SAME_POSITION,
                       shifted ? BD_SEED_AND_MASK : BD_ALL_MASKED, block, MASK};
}

static bd_likelihood bound(bool shifted, int64_t block, const int32_t *completion, int64_t rounds)
{
    bd_error err = {0};
    bd_likelihood result;
    bd_canvas canvas = canvas_of(shifted, block);
    bd_likelihood_rows rows = {{1, LENGTH, NULL, segments}, tokens, completion};
    check_ok(bd_likelihood_bound(shifted ? shifted_model : same_model, &canvas, &rows, rounds, 3,
                                 &result, arena, &err),
             err);
    return result;
}

/* Cross entropies of the tokens in `set` (bits from slot `begin` on) when they are masked together.
 */
static double set_loss(bool shifted, int64_t block, int64_t begin, unsigned set, bool anchor)
{
    bd_error err = {0};
    int32_t inputs[LENGTH];
    float weights[LENGTH] = {0};
    for (int64_t i = 0; i < LENGTH; i++) {
        bool masked = i >= begin && i < begin + block && (set >> (i - begin) & 1) != 0;
        inputs[i] = masked ? MASK : tokens[i];
        weights[i] = masked ? 1 : 0;
    }
    if (anchor)
        weights[begin] = 1;
    bd_objective objective = {.alignment = shifted ? BD_SHIFTED : BD_SAME_POSITION,
                              .block_size = block};
    bd_objective_rows rows = {{1, LENGTH, NULL, segments}, inputs, tokens, weights};
    bd_tape tape = bd_tape_begin(arena, BD_F32, false);
    bd_objective_result got;
    check_ok(bd_objective_loss(&objective, &rows, shifted ? shifted_model : same_model, &tape, NULL,
                               &got, &err),
             err);
    return got.sum;
}

/* sum over k of 1/k times the mean over all sets of k: what the estimate is an estimate of. */
static double exact(bool shifted, int64_t block, int64_t first_scored)
{
    double total = 0;
    for (int64_t begin = 0; begin < LENGTH - 1; begin += block) {
        unsigned allowed = 0;
        for (int64_t i = begin; i < begin + block && i < LENGTH - 1; i++)
            if (i >= first_scored && !(shifted && i == begin))
                allowed |= 1u << (i - begin);
        int n = __builtin_popcount(allowed);
        double by_count[8] = {0};
        int sets[8] = {0};
        for (unsigned set = 1; set < 1u << block; set++) {
            if (set & ~allowed)
                continue;
            by_count[__builtin_popcount(set)] += set_loss(shifted, block, begin, set, false);
            sets[__builtin_popcount(set)]++;
        }
        for (int k = 1; k <= n; k++)
            total += by_count[k] / sets[k] / k;
        if (shifted && begin >= first_scored && begin > 0)
            total += set_loss(shifted, block, begin, 0, true);
    }
    return total;
}

static void check_against(bool shifted, int64_t block, const int32_t *completion, int64_t first,
                          int64_t scored)
{
    bd_likelihood got = bound(shifted, block, completion, 60);
    double want = exact(shifted, block, first);
    if (!(fabs(got.nats - want) <= 4 * got.standard_error + 1e-4))
        fail_msg("block %lld: %.6f +- %.6f, wanted %.6f", (long long)block, got.nats,
                 got.standard_error, want);
    assert_int_equal(got.tokens, scored);
    assert_true(got.standard_error < .2 * want);
}

static void estimates_the_bound(void **state)
{
    (void)state;
    const int32_t answer[LENGTH] = {0, 0, 1, 1, 1, 1, 1, 1, 0};
    check_against(false, 3, NULL, 0, 8);
    check_against(false, 4, answer, 2, 6);
    check_against(true, 3, NULL, 0, 7); // the first token of the document does not count
    check_against(true, 4, answer, 2, 6);
}

/* Blocks of one token: nothing is random, one round is exact. Seeded blocks of two likewise. */
static void exact_without_a_choice(void **state)
{
    (void)state;
    bd_likelihood got = bound(false, 1, NULL, 3);
    check_near(got.nats, exact(false, 1, 0), 1e-5);
    check_near(got.standard_error, 0, 1e-9);
    assert_true(got.passes == 3 && got.tokens == 8);
    got = bound(true, 2, NULL, 2);
    check_near(got.nats, exact(true, 2, 0), 1e-5);
    check_near(got.standard_error, 0, 1e-9);
    // A text that counts is likelier than one with two other numbers in it.
    bd_error err = {0};
    bd_likelihood counting;
    bd_canvas canvas = canvas_of(true, 2);
    const int32_t count[LENGTH] = {20, 21, 22, 23, 24, 25, 26, 27, 0};
    bd_likelihood_rows rows = {{1, LENGTH, NULL, segments}, count, NULL};
    check_ok(bd_likelihood_bound(shifted_model, &canvas, &rows, 1, 3, &counting, arena, &err), err);
    assert_true(counting.nats + 3 < got.nats);
}

static void enumeration_is_exact(void **state)
{
    (void)state;
    bd_error err = {0};
    const int32_t answer[LENGTH] = {0, 0, 1, 1, 1, 1, 1, 1, 0};
    for (int64_t block = 1; block <= 4; block++)
        for (int shifted = 0; shifted <= (block > 1); shifted++)
            for (int marked = 0; marked < 2; marked++) {
                bd_canvas canvas = canvas_of(shifted, block);
                bd_likelihood_rows rows = {
                    {1, LENGTH, NULL, segments}, tokens, marked ? answer : NULL};
                bd_likelihood got;
                check_ok(bd_likelihood_exact(shifted ? shifted_model : same_model, &canvas, &rows,
                                             &got, arena, &err),
                         err);
                check_near(got.nats, exact(shifted, block, marked ? 2 : 0), 1e-5);
                assert_int_equal(got.tokens, marked ? 6 : shifted ? 7 : 8);
                assert_int_equal(got.passes, (1 << (shifted ? block - 1 : block)) - 1);
                assert_true(got.standard_error == 0);
            }
    bd_canvas canvas = canvas_of(false, 16);
    int32_t many[16] = {0};
    bd_likelihood_rows rows = {{1, 16, NULL, NULL}, many, NULL};
    bd_likelihood got;
    check_refused(bd_likelihood_exact(same_model, &canvas, &rows, &got, arena, &err), err,
                  "16 tokens to mask, at most 10");
}

/* Of 40 intervals of ten rounds each, at 95%, about 38 cover the exact value. */
static void intervals_cover_the_exact_value(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_canvas canvas = canvas_of(false, 3);
    bd_likelihood_rows rows = {{1, LENGTH, NULL, segments}, tokens, NULL};
    bd_likelihood want, got;
    check_ok(bd_likelihood_exact(same_model, &canvas, &rows, &want, arena, &err), err);
    const double student_t = 2.262;
    int covered = 0;
    for (uint64_t seed = 0; seed < 40; seed++) {
        check_ok(bd_likelihood_bound(same_model, &canvas, &rows, 10, seed, &got, arena, &err), err);
        assert_true(got.standard_error > 0);
        covered += fabs(got.nats - want.nats) <= student_t * got.standard_error;
    }
    if (covered < 33)
        fail_msg("%d of 40 intervals cover %.4f", covered, want.nats);
}

/* At level 1 the whole block is masked; at a quarter of four tokens one is. */
static void loss_at_a_noise_level(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_canvas canvas = canvas_of(false, 4);
    bd_likelihood_rows rows = {{1, LENGTH, NULL, segments}, tokens, NULL};
    bd_denoising all, one;
    check_ok(bd_denoising_loss(same_model, &canvas, &rows, 1, 5, &all, arena, &err), err);
    assert_int_equal(all.tokens, 8);
    check_near(all.nats, set_loss(false, 4, 0, 15, false) + set_loss(false, 4, 4, 15, false), 1e-5);
    check_ok(bd_denoising_loss(same_model, &canvas, &rows, .25, 5, &one, arena, &err), err);
    assert_int_equal(one.tokens, 2);
    bool found = false;
    for (int first = 0; first < 4; first++)
        for (int second = 0; second < 4; second++)
            found |= fabs(one.nats - set_loss(false, 4, 0, 1u << first, false) -
                          set_loss(false, 4, 4, 1u << second, false)) < 1e-4;
    assert_true(found);
    assert_true(one.correct >= 0 && one.correct <= 2);
    check_refused(bd_denoising_loss(same_model, &canvas, &rows, 0, 5, &one, arena, &err), err,
                  "noise level is 0");
}

static void rows_are_keyed(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_likelihood two, again;
    int32_t both[2 * LENGTH], marks[2 * LENGTH];
    memcpy(both, tokens, sizeof tokens);
    memcpy(both + LENGTH, tokens, sizeof tokens);
    memcpy(marks, segments, sizeof segments);
    memset(marks + LENGTH, 0, sizeof segments); // an empty row adds nothing
    bd_canvas canvas = canvas_of(false, 4);
    bd_likelihood_rows rows = {{2, LENGTH, NULL, marks}, both, NULL};
    check_ok(bd_likelihood_bound(same_model, &canvas, &rows, 2, 3, &two, arena, &err), err);
    again = bound(false, 4, NULL, 2);
    assert_true(two.nats == again.nats && two.tokens == 8);
    check_refused(bd_likelihood_bound(same_model, &canvas, &rows, 0, 3, &two, arena, &err), err,
                  "rounds is 0");
    both[0] = 97;
    check_refused(bd_likelihood_bound(same_model, &canvas, &rows, 1, 3, &two, arena, &err), err,
                  "token 97");
}

int main(void)
{
    bd_error err = {0};
    arena = check_arena();
    same_model = bd_model_open(GOLDEN "models/student_same", BD_F32, &err);
    shifted_model = bd_model_open(GOLDEN "models/student_shift", BD_F32, &err);
    if (!same_model || !shifted_model)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(estimates_the_bound),   cmocka_unit_test(exact_without_a_choice),
        cmocka_unit_test(enumeration_is_exact),  cmocka_unit_test(intervals_cover_the_exact_value),
        cmocka_unit_test(loss_at_a_noise_level), cmocka_unit_test(rows_are_keyed)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bd_model_close(same_model);
    bd_model_close(shifted_model);
    return failed;
}
