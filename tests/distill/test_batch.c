/* A program's own rollout, teacher and student, with the public header alone: the loss of T-43, and
 * what batches are refused for (T-26). */
#include "bdlm/distill.h"

#include "check.h"

static const int32_t targets[2] = {0, 2};
static const float weights[2] = {1, .5f}, student_scores[6] = {0, 0, 0, 1, 0, -1};
static float teacher_scores[6], learned[6];
static uint64_t version;
static bool update_early;

static const bd_array input = {"input_tokens", BD_I32, 2, {1, 2}, targets};

static bool prepare(void *self, bd_token_batch *out, bd_error *err)
{
    (void)self, (void)err;
    *out = (bd_token_batch){&input,
                            1,
                            {"target_ids", BD_I32, 2, {1, 2}, targets},
                            {"loss_weights", BD_F32, 2, {1, 2}, weights}};
    return true;
}

static bool teacher(void *self, const bd_token_batch *batch, bd_array *logits, bd_error *err)
{
    (void)self, (void)batch, (void)err;
    *logits = (bd_array){"teacher_logits", BD_F32, 3, {1, 2, 3}, teacher_scores};
    version += update_early;
    return true;
}

static bool student(void *self, const bd_token_batch *batch, bd_array *logits, bd_error *err)
{
    (void)self, (void)batch, (void)err;
    *logits = (bd_array){"student_logits", BD_F32, 3, {1, 2, 3}, student_scores};
    return true;
}

static bool learn(void *self, const bd_token_batch *batch, const float *d, bd_error *err)
{
    (void)self, (void)batch, (void)err;
    memcpy(learned, d, sizeof learned);
    return true;
}

static uint64_t current(void *self)
{
    (void)self;
    return version;
}

static void test_own_source(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_distill_source source = {NULL, prepare, teacher, student, learn, current, NULL};
    bd_distill_options options = bd_distill_options_default();
    bd_distill_sums sums;
    const float want[3] = {-.1919913f * 1.5f, .0959957f * 1.5f, .0959957f * 1.5f};
    teacher_scores[0] = logf(2);
    options.temperature = 2;
    options.soft = .75;
    options.hard = .25;
    check_ok(bd_distill_once(&source, &options, &sums, &err), err);
    check_near(sums.total / sums.weight, .4938344, 3e-7);
    check_array(learned, want, 3, 2e-6);
    update_early = true;
    check_refused(bd_distill_once(&source, &options, &sums, &err), err, "version");
    assert_int_equal(err.kind, BD_ERROR_STATE);
}

/* Who was called, in a letter each; a batch is its number. */
static char order[32];

static bool note(char what)
{
    size_t end = strlen(order);
    order[end] = what;
    order[end + 1] = 0;
    return true;
}
static bool noted_prepare(void *self, bd_token_batch *out, bd_error *err)
{
    return note('p') && prepare(self, out, err);
}
static bool noted_teacher(void *self, const bd_token_batch *batch, bd_array *logits, bd_error *err)
{
    return note('t') && teacher(self, batch, logits, err);
}
static bool noted_learn(void *self, const bd_token_batch *batch, const float *d, bd_error *err)
{
    return note('l') && learn(self, batch, d, err);
}

/* T-51 with the one size there is here, 1 (G-31): of three batches each has been learnt from before
 * the next is prepared, so no two batches' scores are ever held. */
static void test_one_in_flight(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_distill_source source = {NULL,        noted_prepare, noted_teacher, student,
                                noted_learn, current,       NULL};
    bd_distill_options options = bd_distill_options_default();
    bd_distill_sums sums;
    update_early = false;
    for (int i = 0; i < 3; i++)
        check_ok(bd_distill_once(&source, &options, &sums, &err), err);
    assert_string_equal(order, "ptlptlptl");
}

static void test_refusals(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_token_batch good, b;
    prepare(NULL, &good, &err);
    check_ok(bd_token_batch_check(&good, &err), err);
    const float nan[2] = {1, NAN}, negative[2] = {1, -1}, first[2] = {1, 0};
    const int32_t marked[2] = {0, -1}, high[2] = {0, 3};
    b = good, b.target_ids.rank = 1;
    check_refused(bd_token_batch_check(&b, &err), err, "rank");
    b = good, b.target_ids.dtype = BD_F32;
    check_refused(bd_token_batch_check(&b, &err), err, "integers");
    assert_int_equal(err.kind, BD_ERROR_TYPE);
    b = good, b.loss_weights.shape[1] = 3;
    check_refused(bd_token_batch_check(&b, &err), err, "shape");
    b = good, b.loss_weights.data = nan;
    check_refused(bd_token_batch_check(&b, &err), err, "finite");
    b = good, b.loss_weights.data = negative;
    check_refused(bd_token_batch_check(&b, &err), err, "not negative");
    b = good, b.target_ids.data = marked;
    check_refused(bd_token_batch_check(&b, &err), err, "has weight");
    b.loss_weights.data = first; // a sentinel without weight
    check_ok(bd_token_batch_check(&b, &err), err);
    b = good, b.input_count = 0;
    check_refused(bd_token_batch_check(&b, &err), err, "at least one");
    b = good, b.target_ids.data = high;
    bd_array logits;
    student(NULL, &b, &logits, &err);
    check_refused(bd_logits_check(&b, &logits, &err), err, "below the vocabulary");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_own_source),
                                       cmocka_unit_test(test_one_in_flight),
                                       cmocka_unit_test(test_refusals)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
