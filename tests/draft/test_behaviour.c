/* Behaviour of a training step: draft-family B1 to B6 (B7: test_draft_files.c, B10:
 * test_generate.c). */
#include "draft/anchors.h"
#include "golden.h"
#include "micro.h"

enum { BLOCK = MICRO_BS * MICRO_H, HIDDEN = MICRO_B * MICRO_N * BLOCK };
static const bd_weighting plain = {.objective = BD_WEIGHT_DECAY, .decay = 4, .alpha = .5f};
static const bd_weighting dpace = {.objective = BD_WEIGHT_DPACE, .alpha = .5f};

static void hidden_of(micro *m, float *hidden)
{
    bd_draft_record record = {.hidden = hidden};
    micro_step(m, false, plain, &record);
}

static void expect_zero_gradients(micro *m)
{
    for (int64_t i = 0; i < m->draft->parameters.count; i++) {
        const bd_parameter *p = m->draft->parameters.items[i];
        assert_non_null(p->gradient);
        for (int64_t n = 0; n < p->count; n++)
            assert_true(p->gradient[n] == 0);
    }
}

static void nothing_to_supervise_is_a_step_of_zeros(void **state) // B1
{
    (void)state;
    micro *m = micro_open();
    memset(m->keep, 0, sizeof m->keep);
    bd_draft_loss loss = micro_step(m, true, dpace, NULL);
    assert_true(loss.sum == 0 && loss.weight == 0 && loss.blocks == 0);
    expect_zero_gradients(m);

    m->keep[0] = 1;
    memset(m->loss_mask, 0, sizeof m->loss_mask);
    loss = micro_step(m, true, plain, NULL);
    assert_true(loss.sum == 0 && loss.weight == 0 && loss.blocks == 1);
    expect_zero_gradients(m);

    m->loss_mask[m->anchor[0] + 2] = 1; // one slot of weight e^(-1/4)
    loss = micro_step(m, false, plain, NULL);
    check_near(loss.weight, .7788008, 1e-6);
    assert_true(bd_weighted_mean(loss.sum, loss.weight) == 0);
    expect_zero_gradients(m);
    micro_close(m);
}

static void blocks_see_their_own_past_alone(void **state) // B2
{
    (void)state;
    static float before[HIDDEN], after[HIDDEN];
    for (int causal = 0; causal < 2; causal++) {
        micro *m = micro_open();
        m->draft->config.causality = causal ? BD_DRAFT_CAUSAL : BD_DRAFT_BIDIRECTIONAL;
        hidden_of(m, before);
        for (int p = 0; p < MICRO_S;
             p++) { // features of row 0 at p: only blocks anchored later see it
            float *feature = &m->features[p * 2 * MICRO_H + 3], own = *feature;
            *feature += 10;
            hidden_of(m, after);
            *feature = own;
            for (int j = 0; j < MICRO_B * MICRO_N; j++) {
                bool same = !memcmp(before + j * BLOCK, after + j * BLOCK, BLOCK * sizeof(float));
                assert_int_equal(same, j >= MICRO_N || m->anchor[j] <= p);
            }
        }
        m->tokens[m->anchor[1]] = (m->tokens[m->anchor[1]] + 1) % 10; // the anchor token of block 1
        hidden_of(m, after);
        for (int j = 0; j < MICRO_B * MICRO_N; j++)
            if (j != 1)
                assert_memory_equal(before + j * BLOCK, after + j * BLOCK, BLOCK * sizeof(float));
        assert_memory_not_equal(before + BLOCK, after + BLOCK, BLOCK * sizeof(float));
        micro_close(m);
    }
}

static void equal_anchors_give_equal_blocks(void **state) // B3
{
    (void)state;
    static float hidden[HIDDEN];
    micro *m = micro_open();
    m->anchor[1] = m->anchor[0] = 5;
    hidden_of(m, hidden);
    check_array(hidden, hidden + BLOCK, BLOCK, 1e-6);
    micro_close(m);
}

static float *all_gradients(const micro *m, bd_arena *arena)
{
    float *all = bd_arena_floats(arena, bd_parameters_total(&m->draft->parameters)), *at = all;
    for (int64_t i = 0; i < m->draft->parameters.count; i++) {
        const bd_parameter *p = m->draft->parameters.items[i];
        memcpy(at, p->gradient, (size_t)p->count * sizeof(float));
        at += p->count;
    }
    return all;
}

/* The same bytes of loss and gradients with other anchors arrays. */
static void expect_same_step(micro *m, const bd_anchors *other)
{
    bd_arena *arena = check_arena();
    bd_draft_loss a = micro_step(m, true, dpace, NULL);
    float *first = all_gradients(m, arena);
    const bd_anchors *own = m->batch.anchors;
    m->batch.anchors = other;
    bd_draft_loss b = micro_step(m, true, dpace, NULL);
    float *second = all_gradients(m, arena);
    m->batch.anchors = own;
    assert_true(a.weight > 1);
    assert_memory_equal(&a, &b, sizeof a);
    size_t bytes = (size_t)bd_parameters_total(&m->draft->parameters) * sizeof(float);
    assert_memory_equal(first, second, bytes);
    bd_arena_destroy(arena);
}

static void unused_columns_change_nothing(void **state) // B4
{
    (void)state;
    micro *m = micro_open();
    const int32_t anchor[10] = {2, 0, 5, 3, 8, 9, 3, 7, 1, 0};
    const uint8_t keep[10] = {1, 0, 1, 0, 1, 0, 1, 1, 0, 0};
    const bd_anchors scattered = {.blocks = 5, .anchor = anchor, .keep = keep};
    expect_same_step(m, &scattered);
    micro_close(m);
}

static void fixed_and_fitted_axes_agree(void **state) // B5
{
    (void)state;
    bd_arena *arena = check_arena();
    micro *m = micro_open();
    bd_anchor_sampling s = {.rows = MICRO_B,
                            .length = MICRO_S,
                            .block_size = MICRO_BS,
                            .most = 512,
                            .loss_mask = m->loss_mask};
    bd_anchors fitted = bd_anchors_draw(&s, 3, 0, 0, 0, arena);
    s.fixed_width = true;
    bd_anchors fixed = bd_anchors_draw(&s, 3, 0, 0, 0, arena);
    assert_int_equal(fixed.blocks, MICRO_S - MICRO_BS + 1);
    assert_true(fitted.blocks < fixed.blocks);
    m->batch.anchors = &fitted;
    expect_same_step(m, &fixed);
    micro_close(m);
    bd_arena_destroy(arena);
}

static void observed_and_given_features_agree(void **state) // B6
{
    (void)state;
    bd_arena *arena = check_arena();
    golden_case c = golden_open("dflash-kd-decay", BD_F32);
    int64_t rows = c.batch.rows, S = c.batch.length, H = c.target->config.hidden;
    int64_t V = c.target->config.vocabulary, width = bd_draft_feature_width(c.draft);
    float *features = bd_arena_floats(arena, rows * S * width);
    float *hidden = bd_arena_floats(arena, rows * S * H),
          *prenorm = bd_arena_floats(arena, rows * S * H);
    bd_draft_observe(c.draft, c.batch.tokens, rows, S, features, hidden, arena);
    // The golden case's features and teacher are the target's own on these very tokens.
    check_array(features, c.batch.features, rows * S * width, 1e-5);
    float *logits = bd_arena_floats(arena, rows * S * V);
    bd_model_logits(c.target, hidden, rows * S, logits, arena);
    check_array(logits, c.batch.teacher, rows * S * V, 1e-4);
    bd_tape tape = bd_tape_begin(arena, BD_F32, false);
    bd_model_forward(
        c.target, &tape,
        &(bd_forward){.tokens = c.batch.tokens, .rows = rows, .length = S, .prenorm = prenorm});
    double want = json_real_value(json_object_get(json_object_get(c.json, "expected"), "loss"));
    c.batch.features = features;
    const bd_teacher_kind kinds[3] = {BD_TEACHER_LOGITS, BD_TEACHER_HIDDEN, BD_TEACHER_PRENORM};
    const float *const teachers[3] = {logits, hidden, prenorm};
    for (int i = 0; i < 3; i++) {
        bd_error err = {0};
        bd_draft_loss loss;
        c.batch.teacher_kind = kinds[i];
        c.batch.teacher = teachers[i];
        check_ok(bd_draft_step_run(c.draft, &tape, &c.batch, &c.objective, BD_DRAFT_MEAN, NULL,
                                   &loss, &err),
                 err);
        check_near(bd_weighted_mean(loss.sum, loss.weight), want, 1e-5);
    }
    golden_close(&c);
    bd_arena_destroy(arena);
}

/* The loss along a direction in one parameter. */
static double loss_at(micro *m, bd_parameter *p, const float *own, const float *direction,
                      double by)
{
    for (int64_t i = 0; i < p->count; i++)
        p->value[i] = (float)((double)own[i] + by * (double)direction[i]);
    bd_parameter_changed(p);
    bd_draft_loss loss = micro_step(m, true, plain, NULL);
    return bd_weighted_mean(loss.sum, loss.weight);
}

/* Sinks, biases, a window and causal blocks together, against differences of the loss. */
static void gradients_are_slopes_of_the_loss(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_arena *arena = check_arena();
    micro *m = micro_open();
    bd_draft_close(m->draft);
    bd_draft_config config = micro_draft_config();
    config.sink = config.stack.qkv_bias = true;
    config.window = 5;
    config.causality = BD_DRAFT_CAUSAL;
    check_ok(bd_draft_config_complete(&config, &m->target->config, &err), err);
    m->draft = bd_draft_create(&config, m->target, 1, BD_F32, &err);
    check_ok(m->draft && bd_draft_train(m->draft, &err), err);
    micro_weights(m);
    for (int64_t i = 0; i < m->draft->parameters.count; i++)
        if (strstr(m->draft->parameters.items[i]->name, "bias"))
            micro_parameter(m->draft->parameters.items[i], 300 + i, .3, 0);
    assert_int_equal(m->draft->parameters.count, 25 + 2 * 5);
    for (int64_t i = 0; i < m->draft->parameters.count; i++) {
        bd_parameter *p = m->draft->parameters.items[i];
        float *own = bd_arena_floats(arena, p->count),
              *direction = bd_arena_floats(arena, p->count);
        memcpy(own, p->value, (size_t)p->count * sizeof(float));
        check_fill(direction, p->count, (uint64_t)i);
        micro_step(m, true, plain, NULL);
        double slope = 0, size = 0;
        for (int64_t n = 0; n < p->count; n++) {
            slope += (double)p->gradient[n] * (double)direction[n];
            size += (double)p->gradient[n] * (double)p->gradient[n];
        }
        assert_true(size > 0);
        const double step = 2e-3;
        double difference =
            loss_at(m, p, own, direction, step) - loss_at(m, p, own, direction, -step);
        loss_at(m, p, own, direction, 0);
        if (fabs(difference / (2 * step) - slope) > 2e-3 * fmax(1, sqrt(size)))
            fail_msg("%s: slope %g, difference %g", p->name, slope, difference / (2 * step));
    }
    micro_close(m);
    bd_arena_destroy(arena);
}

/* Draft-family T16: one block behind a context of 5, by the rule that training uses. */
static void a_block_in_generation(void **state)
{
    (void)state;
    static const char *const causal[3] = {"00111100", "00011110", "00001111"};
    static const char *const both[3] = {"00111111", "00011111", "00001111"};
    bd_draft_config config = micro_draft_config();
    config.block_size = 3;
    const bd_anchors anchors = {.blocks = 1, .anchor = (int32_t[]){5}, .keep = (uint8_t[]){1}};
    for (int mode = 0; mode < 3; mode++) {
        config.window = mode < 2 ? 4 : 0;
        config.causality = mode == 0 ? BD_DRAFT_CAUSAL : BD_DRAFT_BIDIRECTIONAL;
        bd_visibility rule = bd_draft_rule(&config, 0, 5, &anchors);
        assert_int_equal(rule.query_length, 3);
        assert_int_equal(rule.key_length, 8);
        for (int64_t q = 0; q < 3; q++)
            for (int64_t k = 0; k < 8; k++) {
                bool want = mode == 2 || (mode == 0 ? causal : both)[q][k] == '1';
                assert_int_equal(bd_visibility_allows(&rule, 0, q, k), want);
            }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_to_supervise_is_a_step_of_zeros),
        cmocka_unit_test(blocks_see_their_own_past_alone),
        cmocka_unit_test(equal_anchors_give_equal_blocks),
        cmocka_unit_test(unused_columns_change_nothing),
        cmocka_unit_test(fixed_and_fitted_axes_agree),
        cmocka_unit_test(observed_and_given_features_agree),
        cmocka_unit_test(gradients_are_slopes_of_the_loss),
        cmocka_unit_test(a_block_in_generation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
