/* Block tokens, labels, weights and the weighted mean: draft-family T05, T13, T14, T18 to T23, T49,
 * T51, T53. */
#include "draft/targets.h"
#include "golden.h"

enum { S = 8 };
static const float everything[S] = {1, 1, 1, 1, 1, 1, 1, 1};
static const float one_masked[S] = {1, 1, 1, 0, 1, 1, 1, 1};
static const int32_t tokens_10[S] = {10, 11, 12, 13, 14, 15, 16, 17};
static const int32_t tokens_11[S] = {11, 12, 13, 14, 15, 16, 17, 18};

static void noise_and_positions(void **state)
{
    (void)state;
    const int32_t anchor[3] = {2, 5, 0};
    const uint8_t keep[3] = {1, 1, 0};
    bd_anchors anchors = {.blocks = 3, .anchor = anchor, .keep = keep};
    bd_block_batch batch = {.rows = 1,
                            .length = S,
                            .block_size = 3,
                            .tokens = tokens_11,
                            .loss_mask = everything,
                            .anchors = &anchors};
    int32_t ids[9], positions[9];
    bd_block_noise(&batch, 99, ids);
    check_ints("T13", ids, (int32_t[]){13, 99, 99, 16, 99, 99, 99, 99, 99}, 9);
    bd_block_positions(&batch, positions);
    check_ints("T14", positions, (int32_t[]){2, 3, 4, 5, 6, 7, 0, 1, 2}, 9);
}

static void expect_targets(int shift, const int32_t *anchor, int64_t blocks, const float *mask,
                           int64_t block_size, const int32_t *token, const int32_t *position,
                           const float *supervised)
{
    bd_arena *arena = check_arena();
    const uint8_t keep[2] = {1, 1};
    bd_anchors anchors = {.blocks = blocks, .anchor = anchor, .keep = keep};
    bd_block_batch batch = {.rows = 1,
                            .length = S,
                            .block_size = block_size,
                            .tokens = tokens_10,
                            .loss_mask = mask,
                            .anchors = &anchors};
    bd_block_targets t = bd_block_targets_make(&batch, shift, arena);
    int64_t slots = bd_block_slots(&batch);
    if (token)
        check_ints("token", t.token, token, slots);
    if (position)
        check_ints("position", t.position, position, slots);
    check_array(t.supervised, supervised, slots, 0);
    bd_arena_destroy(arena);
}

static void labels(void **state)
{
    (void)state;
    const int32_t anchor[2] = {2, 5};
    expect_targets(0, anchor, 2, one_masked, 4, (int32_t[]){12, 13, 14, 15, 15, 16, 17, 17}, // T18
                   (int32_t[]){2, 3, 4, 5, 5, 6, 7, 7}, (float[]){0, 0, 1, 1, 0, 1, 1, 0});
    expect_targets(1, anchor, 2, one_masked, 4, (int32_t[]){13, 14, 15, 16, 16, 17, 17, 17}, // T19
                   (int32_t[]){3, 4, 5, 6, 6, 7, 7, 7}, (float[]){0, 1, 1, 1, 1, 1, 0, 0});
    const int32_t last[1] = {4};
    expect_targets(0, last, 1, everything, 4, NULL, NULL, (float[]){0, 1, 1, 1}); // T53
    expect_targets(1, last, 1, everything, 4, NULL, NULL, (float[]){1, 1, 1, 0});
    expect_targets(0, last, 1, everything, 1, NULL, NULL, (float[]){0}); // T51
}

static void tokens_of_blocks(void **state)
{
    (void)state;
    const int32_t anchor[2] = {2, 5};
    const uint8_t keep[2] = {1, 1};
    bd_anchors anchors = {.blocks = 2, .anchor = anchor, .keep = keep};
    bd_block_batch batch = {.rows = 1,
                            .length = S,
                            .block_size = 4,
                            .tokens = tokens_10,
                            .loss_mask = one_masked,
                            .anchors = &anchors};
    int32_t tokens[8];
    bd_block_tokens(&batch, tokens);
    check_ints("T19", tokens, (int32_t[]){12, 13, 14, 15, 15, 16, 17, 17}, 8);
}

static void teacher_rows(void **state)
{
    (void)state;
    const int32_t label[4] = {0, 1, 5, 11}, row[4] = {0, 0, 4, 10};
    for (int i = 0; i < 4; i++)
        assert_int_equal(bd_teacher_row(label[i]), row[i]); // T05
}

/* Weights of one block of `bs` slots. */
static void weights_of(bd_weighting w, int shift, int64_t bs, const float *supervised,
                       const float *q, float *out)
{
    float cross_entropy[8] = {0};
    const int32_t anchor[1] = {0};
    const uint8_t keep[1] = {1};
    bd_anchors anchors = {.blocks = 1, .anchor = anchor, .keep = keep};
    bd_block_batch batch = {.rows = 1, .length = S, .block_size = bs, .anchors = &anchors};
    for (int64_t i = 0; q && i < bs; i++)
        cross_entropy[i] = supervised[i] != 0 ? -logf(q[i]) : NAN; // others are not read
    bd_position_weights(&w, shift, &batch, supervised, q ? cross_entropy : NULL, out);
}

static void decay(void **state)
{
    (void)state;
    float w[4];
    bd_weighting decaying = {.objective = BD_WEIGHT_DECAY, .decay = 4, .alpha = 0.5f};
    weights_of(decaying, 0, 4, everything, NULL, w); // T20
    check_array(w, ((float[]){1, 1, .7788008f, .6065307f}), 4, 5e-7);
    weights_of(decaying, 1, 4, everything, NULL, w);
    check_array(w, ((float[]){1, .7788008f, .6065307f, .4723666f}), 4, 5e-7);
    decaying.decay = 0;
    weights_of(decaying, 0, 4, everything, NULL, w);
    check_array(w, ((float[]){1, 1, 1, 1}), 4, 0);
}

static void dpace(void **state)
{
    (void)state;
    float w[5];
    bd_weighting confident = {.objective = BD_WEIGHT_DPACE, .alpha = 0.5f};
    const float anchor_and_two[3] = {0, 1, 1};
    weights_of(confident, 0, 3, anchor_and_two, (float[]){0, .8f, .5f}, w); // T21
    check_array(w, ((float[]){0, 1.575f, .675f}), 3, 5e-7);
    const float with_hole[5] = {0, 1, 0, 1, 1};
    weights_of(confident, 0, 5, with_hole, (float[]){0, .9f, .2f, .3f, .8f}, w); // T22
    check_array(w, ((float[]){0, 2.12325f, 0, 1.17325f, .55575f}), 5, 5e-7);
    confident.alpha = 1;
    const float three[4] = {0, 1, 1, 1};
    weights_of(confident, 0, 4, three, (float[]){0, .3f, .3f, .3f}, w);
    check_array(w, ((float[]){0, 3, 2, 1}), 4, 5e-7);
    // Where slot 0 predicts, and in a block of one, the decay decides whatever the objective is.
    weights_of(confident, 1, 4, everything, NULL, w);
    check_array(w, ((float[]){1, 1, 1, 1}), 4, 0);
    weights_of(confident, 0, 1, (float[]){0}, NULL, w);
    assert_true(w[0] == 0);
}

static void weighted_mean(void **state)
{
    (void)state;
    assert_false(bd_weight_trains(.7788)); // T23
    check_near(bd_weighted_mean(5, .7788), 0, 0);
    assert_true(bd_weight_trains(1));
    check_near(bd_weighted_mean(2, 1), 1.9999980, 5e-7);
    check_near(bd_weighted_mean(1 + 3 * .7788008, 1.7788008), 1.8756460, 5e-7);
    check_near(bd_top1(1, 2), .49999975, 5e-9); // T49
    check_near(bd_top1(0, 0), 0, 0);
}

static void bad_weightings_are_refused(void **state)
{
    (void)state;
    bd_error err = {0};
    const float bad[4] = {0, -1, 1.5f, NAN};
    for (int i = 0; i < 4; i++) {
        bd_weighting w = {.objective = BD_WEIGHT_DECAY, .alpha = bad[i]};
        check_refused(bd_weighting_check(&w, &err), err, "dpace_alpha must be in (0, 1]");
    }
    bd_weighting w = {.alpha = 0.5f, .decay = -1};
    check_refused(bd_weighting_check(&w, &err), err, "loss_decay_factor");
    w.decay = 4;
    assert_true(bd_weighting_check(&w, &err));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise_and_positions),
        cmocka_unit_test(labels),
        cmocka_unit_test(tokens_of_blocks),
        cmocka_unit_test(teacher_rows),
        cmocka_unit_test(decay),
        cmocka_unit_test(dpace),
        cmocka_unit_test(weighted_mean),
        cmocka_unit_test(bad_weightings_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
