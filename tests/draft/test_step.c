/* Every golden training case of the plain variant: what the step reads, computes and leaves behind.
 */
#include "attention/visibility.h"
#include "base/threads.h"
#include "golden.h"
#include "tensor/rows.h"

#define TOLERANCE 1e-4

static const char *const cases[] = {
    "dflash-ce-none",         "dflash-ce-decay",        "dflash-ce-dpace-causal-window",
    "dflash-kd-decay",        "dflash-kd-dpace-hidden", "dflash-kd-prenorm",
    "dflash-no-anchor",       "dflash-zero-weights",    "dflash-weight-one",
    "dflash-weight-below-one"};
enum { CASES = sizeof cases / sizeof cases[0] };

static void check_inputs(const golden_case *c)
{
    bd_block_batch blocks = {.rows = c->batch.rows,
                             .length = c->batch.length,
                             .block_size = c->draft->config.block_size,
                             .tokens = c->batch.tokens,
                             .loss_mask = c->batch.loss_mask,
                             .anchors = c->anchors};
    int64_t slots = bd_block_slots(&blocks);
    int32_t *ids = bd_arena_ints(c->arena, slots), *positions = bd_arena_ints(c->arena, slots);
    bd_block_noise(&blocks, (int32_t)c->draft->config.mask_id, ids);
    bd_block_positions(&blocks, positions);
    check_ints("noise_ids", ids, golden_ints(c->tensors, "noise_ids", c->arena), slots);
    check_ints("positions", positions, golden_ints(c->tensors, "positions", c->arena), slots);

    bd_block_targets t =
        bd_block_targets_make(&blocks, c->draft->config.variant->label_shift, c->arena);
    check_ints("labels", t.token, golden_ints(c->tensors, "labels", c->arena), slots);
    check_ints("label_positions", t.position, golden_ints(c->tensors, "label_positions", c->arena),
               slots);
    check_array(t.supervised, golden_floats(c->tensors, "supervised", c->arena), slots, 0);
    const int32_t *rows = golden_ints(c->tensors, "teacher_rows", c->arena);
    for (int64_t i = 0; i < slots; i++)
        assert_int_equal(bd_teacher_row(t.position[i]), rows[i]);

    bd_visibility rule = bd_draft_rule(&c->draft->config, 0, c->batch.length, c->anchors);
    const uint8_t *visible = bd_safetensors_find(c->tensors, "visible")->data;
    for (int64_t b = 0; b < c->batch.rows; b++)
        for (int64_t q = 0; q < rule.query_length; q++)
            for (int64_t k = 0; k < rule.key_length; k++)
                assert_int_equal(bd_visibility_allows(&rule, b, q, k),
                                 visible[(b * rule.query_length + q) * rule.key_length + k]);

    bd_tape tape = bd_tape_begin(c->arena, BD_F32, false);
    const bd_value *context =
        bd_draft_context(c->draft, &tape, c->batch.features, c->batch.rows * c->batch.length);
    check_array(context->data, golden_floats(c->tensors, "context", c->arena),
                context->rows * context->width, TOLERANCE);
}

/* Hidden states and logits of kept blocks; the golden file holds zeros for the others. */
static void check_outputs(const golden_case *c, const bd_draft_record *got)
{
    float *hidden = golden_floats(c->tensors, "hidden", c->arena);
    if (!hidden)
        return;
    int64_t H = c->target->config.hidden, V = c->target->config.vocabulary;
    int64_t rows = golden_count(c->tensors, "hidden") / H;
    check_array(got->hidden, hidden, rows * H, TOLERANCE);
    float *logits = bd_arena_zeros(c->arena, rows * V);
    for (int64_t r = 0; r < rows; r++)
        if (c->anchors->keep[r / c->draft->config.block_size])
            bd_model_logits(c->target, got->hidden + r * H, 1, logits + r * V, c->arena);
    check_array(logits, golden_floats(c->tensors, "logits", c->arena), rows * V, TOLERANCE);
    check_array(got->weights, golden_floats(c->tensors, "weights", c->arena), rows, TOLERANCE);
}

static void check_gradients(const golden_case *c)
{
    bool zero = !strcmp(json_string_value(json_object_get(c->json, "grads")), "all_zero");
    for (int64_t i = 0; i < c->draft->parameters.count; i++) {
        const bd_parameter *p = c->draft->parameters.items[i];
        char name[200];
        snprintf(name, sizeof name, "grads/%s", p->name);
        assert_non_null(p->gradient);
        float *want = golden_floats(c->tensors, name, c->arena);
        if (zero) {
            for (int64_t n = 0; n < p->count; n++)
                assert_true(p->gradient[n] == 0); // not even -0 times something
        } else {
            assert_non_null(want);
            assert_int_equal(p->count, golden_count(c->tensors, name));
            check_array_at(__FILE__, __LINE__, p->name, p->gradient, want, p->count, TOLERANCE);
        }
    }
}

static void run(const golden_case *c, bd_draft_form form, bd_draft_record *record,
                bd_draft_loss *loss)
{
    bd_error err = {0};
    bd_parameters_zero_gradients(&c->draft->parameters);
    bd_tape tape = bd_tape_begin(c->arena, c->draft->compute, true);
    check_ok(bd_draft_step_run(c->draft, &tape, &c->batch, &c->objective, form, record, loss, &err),
             err);
}

static bd_draft_record new_record(const golden_case *c)
{
    int64_t slots = c->batch.rows * c->anchors->blocks * c->draft->config.block_size;
    return (bd_draft_record){.hidden = bd_arena_floats(c->arena, slots * c->target->config.hidden),
                             .weights = bd_arena_floats(c->arena, slots)};
}

static void golden_cases(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        golden_case c = golden_open(cases[i], BD_F32);
        json_t *expected = json_object_get(c.json, "expected");
        check_inputs(&c);
        bd_draft_record record = new_record(&c);
        bd_draft_loss loss;
        run(&c, BD_DRAFT_MEAN, &record, &loss);
        check_near(bd_weighted_mean(loss.sum, loss.weight),
                   json_real_value(json_object_get(expected, "loss")), TOLERANCE);
        double accuracy =
            bd_weight_trains(loss.weight) ? bd_top1(loss.correct, loss.supervised) : 0;
        check_near(accuracy, json_real_value(json_object_get(expected, "accuracy")), 1e-6);
        check_outputs(&c, &record);
        check_gradients(&c);
        golden_close(&c);
    }
}

static float *copy_gradients(const golden_case *c)
{
    float *all = bd_arena_floats(c->arena, bd_parameters_total(&c->draft->parameters)), *at = all;
    for (int64_t i = 0; i < c->draft->parameters.count; i++) {
        const bd_parameter *p = c->draft->parameters.items[i];
        memcpy(at, p->gradient, (size_t)p->count * sizeof(float));
        at += p->count;
    }
    return all;
}

static void sum_form_is_the_mean_times_its_denominator(void **state)
{
    (void)state;
    golden_case c = golden_open("dflash-kd-decay", BD_F32);
    bd_draft_loss loss;
    run(&c, BD_DRAFT_MEAN, NULL, &loss);
    float *mean = copy_gradients(&c);
    run(&c, BD_DRAFT_SUM, NULL, &loss);
    float *sum = copy_gradients(&c);
    int64_t count = bd_parameters_total(&c.draft->parameters);
    for (int64_t i = 0; i < count; i++)
        mean[i] *= (float)(loss.weight + 1e-6);
    check_array(sum, mean, count, 1e-5);
    golden_close(&c);
}

/* Bytes of everything a step leaves, whatever the number of threads. */
static void threads_do_not_matter(void **state)
{
    (void)state;
    const bd_dtype computes[2] = {BD_F32, BD_BF16};
    for (int d = 0; d < 2; d++) {
        golden_case c = golden_open("dflash-ce-dpace-causal-window", computes[d]);
        int64_t count = bd_parameters_total(&c.draft->parameters);
        bd_draft_loss first, second;
        bd_threads_set(1);
        run(&c, BD_DRAFT_MEAN, NULL, &first);
        float *one = copy_gradients(&c);
        bd_threads_set(2);
        run(&c, BD_DRAFT_MEAN, NULL, &second);
        float *two = copy_gradients(&c);
        assert_memory_equal(&first, &second, sizeof first);
        assert_memory_equal(one, two, (size_t)count * sizeof(float));
        golden_close(&c);
    }
}

static void bf16_is_close(void **state)
{
    (void)state;
    for (int i = 0; i < CASES; i++) {
        golden_case c = golden_open(cases[i], BD_BF16);
        bd_draft_loss loss;
        run(&c, BD_DRAFT_MEAN, NULL, &loss);
        double want = json_real_value(json_object_get(json_object_get(c.json, "expected"), "loss"));
        check_near(bd_weighted_mean(loss.sum, loss.weight), want, 0.03);
        golden_close(&c);
    }
}

static void evaluation_leaves_gradients_alone(void **state)
{
    (void)state;
    bd_error err = {0};
    golden_case c = golden_open("dflash-ce-decay", BD_F32);
    bd_draft_loss trained, evaluated;
    run(&c, BD_DRAFT_SUM, NULL, &trained);
    float *before = copy_gradients(&c);
    bd_tape tape = bd_tape_begin(c.arena, BD_F32, false);
    check_ok(bd_draft_step_run(c.draft, &tape, &c.batch, &c.objective, BD_DRAFT_SUM, NULL,
                               &evaluated, &err),
             err);
    float *after = copy_gradients(&c);
    assert_memory_equal(&trained, &evaluated, sizeof trained);
    int64_t count = bd_parameters_total(&c.draft->parameters);
    assert_memory_equal(before, after, (size_t)count * sizeof(float));
    golden_close(&c);
}

static void bad_batches_are_refused(void **state)
{
    (void)state;
    bd_error err = {0};
    golden_case c = golden_open("dflash-ce-decay", BD_F32);
    bd_draft_loss loss;
    bd_tape tape = bd_tape_begin(c.arena, BD_F32, true);
    c.objective.distill = true;
    check_refused(
        bd_draft_step_run(c.draft, &tape, &c.batch, &c.objective, BD_DRAFT_SUM, NULL, &loss, &err),
        err, "logits or final hidden states");
    c.objective.distill = false;
    c.objective.weighting.alpha = 0;
    check_refused(
        bd_draft_step_run(c.draft, &tape, &c.batch, &c.objective, BD_DRAFT_SUM, NULL, &loss, &err),
        err, "dpace_alpha");
    c.objective.weighting.alpha = 1;
    c.batch.length--;
    check_refused(
        bd_draft_step_run(c.draft, &tape, &c.batch, &c.objective, BD_DRAFT_SUM, NULL, &loss, &err),
        err, "must be divisible by block_size");
    golden_close(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_cases),
        cmocka_unit_test(sum_form_is_the_mean_times_its_denominator),
        cmocka_unit_test(threads_do_not_matter),
        cmocka_unit_test(bf16_is_close),
        cmocka_unit_test(evaluation_leaves_gradients_alone),
        cmocka_unit_test(bad_batches_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
