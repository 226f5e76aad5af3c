/* Losses over windows against the same computed by hand, one token at a time. */
#include "check.h"
#include "train/evaluate.h"

#define MODELS BD_GOLDEN "/block-diffusion/models/"

static bd_arena *arena;
static bd_model *teacher, *student;

enum { COUNT = 23, WINDOW = 8, STRIDE = 4, MASK = 96 };
static int32_t tokens[COUNT];

/* -log p of the last token of a row after those before it. */
static double surprise(const int32_t *row, int64_t length)
{
    int64_t hidden = teacher->config.hidden, vocabulary = teacher->config.vocabulary;
    size_t mark = bd_arena_mark(arena);
    bd_tape tape = bd_tape_begin(arena, BD_F32, false);
    bd_value *out =
        bd_model_forward(teacher, &tape, &(bd_forward){.tokens = row, .rows = 1, .length = length});
    float *logits = bd_arena_floats(arena, vocabulary);
    bd_model_logits(teacher, out->data + (length - 2) * hidden, 1, logits, arena);
    double sum = 0, target = logits[row[length - 1]];
    for (int64_t v = 0; v < vocabulary; v++)
        sum += exp((double)logits[v]);
    bd_arena_release(arena, mark);
    return log(sum) - target;
}

static void perplexity_by_hand(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_causal_score got;
    bd_evaluation e = {.window = WINDOW, .stride = STRIDE};
    check_ok(bd_evaluate_causal(teacher, tokens, COUNT, &e, &got, arena, &err), err);
    double want = 0;
    for (int64_t i = 1; i < COUNT; i++) {
        // The first window that holds token i scores it.
        int64_t window = i < WINDOW ? 0 : (i - WINDOW) / STRIDE + 1;
        want += surprise(tokens + window * STRIDE, i - window * STRIDE + 1);
    }
    check_near(got.nats, want, 1e-5);
    assert_true(got.tokens == COUNT - 1 && got.first == 1);
    // One window over all of it.
    e = (bd_evaluation){.window = 32, .stride = 16};
    check_ok(bd_evaluate_causal(teacher, tokens, COUNT, &e, &got, arena, &err), err);
    want = 0;
    for (int64_t i = 1; i < COUNT; i++)
        want += surprise(tokens, i + 1);
    check_near(got.nats, want, 1e-5);
    // A text ends in the middle of a window, or with it: no token is lost or counted twice.
    for (int64_t count = 2; count <= COUNT; count++) {
        e = (bd_evaluation){.window = 5, .stride = 3};
        check_ok(bd_evaluate_causal(teacher, tokens, count, &e, &got, arena, &err), err);
        assert_int_equal(got.tokens, count - 1);
    }
    e.stride = 5;
    check_refused(bd_evaluate_causal(teacher, tokens, COUNT, &e, &got, arena, &err), err,
                  "stride is 5");
    e = (bd_evaluation){.window = 1000, .stride = 4};
    check_refused(bd_evaluate_causal(teacher, tokens, COUNT, &e, &got, arena, &err), err,
                  "window is 1000");
}

static void blocks_in_windows(void **state)
{
    (void)state;
    bd_error err = {0};
    const bd_canvas canvas = {BD_SAME_POSITION, BD_ALL_MASKED, 2, MASK};
    bd_block_score exact, estimate;
    bd_evaluation e = {.window = WINDOW, .stride = STRIDE, .levels = {.5, 1}, .level_count = 2};
    check_ok(bd_evaluate_blocks(student, &canvas, tokens, COUNT, &e, &exact, arena, &err), err);
    assert_true(exact.tokens == COUNT && exact.first == 0 && exact.margin == 0);
    assert_true(exact.level[1].tokens == COUNT);           // whole blocks
    assert_true(exact.level[0].tokens == (COUNT + 1) / 2); // one of two
    // By hand: window by window, what no window before it scored.
    double want = 0;
    for (int64_t begin = 0, done = 0; done < COUNT; begin += STRIDE) {
        int64_t length = COUNT - begin < WINDOW ? COUNT - begin : WINDOW;
        int32_t completion[WINDOW];
        for (int64_t i = 0; i < length; i++)
            completion[i] = begin + i >= done;
        bd_likelihood_rows rows = {{1, length, NULL, NULL}, tokens + begin, completion};
        bd_likelihood part;
        check_ok(bd_likelihood_exact(student, &canvas, &rows, &part, arena, &err), err);
        want += part.nats;
        done = begin + length;
    }
    check_near(exact.nats, want, 1e-6);
    // The estimate's interval covers the exact value, and is no wider than it has to be.
    e.rounds = 8;
    check_ok(bd_evaluate_blocks(student, &canvas, tokens, COUNT, &e, &estimate, arena, &err), err);
    assert_true(estimate.margin > 0 && estimate.margin < .2 * exact.nats);
    assert_true(fabs(estimate.nats - exact.nats) <= estimate.margin);
    // Shifted: the first token of the text has nothing before it.
    const bd_canvas shifted = {BD_SHIFTED, BD_SEED_AND_MASK, 2, MASK};
    check_ok(bd_evaluate_blocks(student, &shifted, tokens, COUNT, &e, &estimate, arena, &err), err);
    assert_true(estimate.tokens == COUNT - 1 && estimate.first == 1);
    e.stride = 3;
    check_refused(bd_evaluate_blocks(student, &canvas, tokens, COUNT, &e, &exact, arena, &err), err,
                  "multiples of the block size 2");
    e.stride = 4, e.rounds = 1;
    check_refused(bd_evaluate_blocks(student, &canvas, tokens, COUNT, &e, &exact, arena, &err), err,
                  "rounds is 1");
}

static void interval_factors(void **state)
{
    (void)state;
    check_near(bd_interval_factor(1), 12.706, 1e-4);
    check_near(bd_interval_factor(10), 2.228, 1e-3);
    check_near(bd_interval_factor(11), 2.201, 2e-3);
    check_near(bd_interval_factor(30), 2.042, 1e-3);
    check_near(bd_interval_factor(1000000), 1.95996, 1e-5);
}

int main(void)
{
    bd_error err = {0};
    arena = check_arena();
    for (int i = 0; i < COUNT; i++)
        tokens[i] = (i * i * 7 + 20) % 90;
    teacher = bd_model_open(MODELS "teacher", BD_F32, &err);
    student = bd_model_open(MODELS "student_same", BD_F32, &err);
    if (!teacher || !student)
        return 1;
    const struct CMUnitTest tests[] = {cmocka_unit_test(perplexity_by_hand),
                                       cmocka_unit_test(blocks_in_windows),
                                       cmocka_unit_test(interval_factors)};
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bd_model_close(teacher);
    bd_model_close(student);
    return failed;
}
