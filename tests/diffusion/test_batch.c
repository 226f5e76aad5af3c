/* The nine fields: filling rows (T-12), padding policies, leak guard (T-13), reordering (T-08), and
 * the invariants of a finished batch. */
#include "diffusion/batch.h"

#include "attention/visibility.h"
#include "diffusion/corruption.h"
#include "diffusion/golden.h"
#include "parallel/layout.h"

static bd_arena *arena;

#define INTS(...)  ((const int32_t[]){__VA_ARGS__})
#define MARKS(...) ((const uint8_t[]){__VA_ARGS__})

static const bd_padding no_padding = {BD_PAD_NONE, 0, 7, 4};
static const bd_padding to_block_end = {BD_PAD_TO_BLOCK_END, 0, 7, 4};
static const bd_padding in_loss = {BD_PAD_IN_LOSS, 0, 7, 4};

/* --- filling ---------------------------------------------------------------------------------- */

static const bd_turn turns[4] = {
    {(const int32_t[]){11, 12}, 2, false},
    {(const int32_t[]){21, 22}, 2, true},
    {(const int32_t[]){31}, 1, false},
    {(const int32_t[]){41, 42}, 2, true},
};

static void prompt_protection(void **state)
{
    (void)state;
    bd_diffusion_batch b = bd_diffusion_batch_allocate(arena, 2, 8);
    bd_diffusion_batch_fill_turns(&b, 1, turns, 4, &no_padding);
    check_ints(b.targets + 8, INTS(11, 12, 21, 22, 31, 41, 42, 0), 8);
    check_ints(b.inputs + 8, b.targets + 8, 8);
    check_ints(b.completion_mask + 8, INTS(0, 0, 1, 1, 0, 1, 1, 0), 8);
    check_ints(b.targets_segmentation + 8, INTS(1, 1, 1, 1, 1, 1, 1, 0), 8);
    check_ints(b.inputs_segmentation + 8, INTS(1, 1, 1, 1, 1, 1, 1, 0), 8);
    check_ints(b.targets_position + 8, INTS(0, 1, 2, 3, 4, 5, 6, 0), 8);
    b = bd_diffusion_batch_allocate(arena, 1, 4);
    bd_diffusion_batch_fill_turns(&b, 0, turns, 4, &no_padding);
    check_ints(b.targets, INTS(11, 12, 21, 22), 4);
    check_ints(b.completion_mask, INTS(0, 0, 1, 1), 4);
}

static void padding_policies(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_diffusion_batch b = bd_diffusion_batch_allocate(arena, 1, 12);
    const int32_t ids[6] = {11, 12, 13, 14, 15, 0}; // the last one is the pad id and stays a token
    bd_diffusion_batch_fill(&b, 0, ids, NULL, 6, &no_padding);
    check_ints(b.targets_segmentation, INTS(1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0), 12);
    bd_diffusion_batch_fill(&b, 0, ids, NULL, 6, &to_block_end);
    check_ints(b.targets, INTS(11, 12, 13, 14, 15, 0, 7, 7, 0, 0, 0, 0), 12);
    check_ints(b.completion_mask, INTS(1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0), 12);
    check_ints(b.targets_position, INTS(0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 0, 0), 12);
    bd_diffusion_batch_fill(&b, 0, ids, NULL, 6, &in_loss);
    check_ints(b.targets, INTS(11, 12, 13, 14, 15, 0, 7, 7, 7, 7, 7, 7), 12);
    check_ints(b.completion_mask, INTS(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), 12);
    // Nothing is added after a prompt token, to an empty row, or beyond the row.
    bd_diffusion_batch_fill(&b, 0, ids, MARKS(0, 0, 0, 1, 1, 0), 6, &in_loss);
    check_ints(b.targets_segmentation, INTS(1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0), 12);
    bd_diffusion_batch_fill(&b, 0, ids, NULL, 0, &in_loss);
    check_ints(b.targets_segmentation, INTS(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0), 12);
    bd_diffusion_batch_fill_turns(&b, 0, turns, 4, &to_block_end);
    check_ints(b.targets, INTS(11, 12, 21, 22, 31, 41, 42, 7, 0, 0, 0, 0), 12);

    bd_pad_policy policy;
    for (int i = 0; i < BD_PAD_POLICY_COUNT; i++) {
        check_ok(bd_pad_policy_from_name(bd_pad_policy_name((bd_pad_policy)i), &policy, &err), err);
        assert_int_equal(policy, i);
    }
    check_refused(bd_pad_policy_from_name("eos", &policy, &err), err,
                  "wanted none, to-block-end or eos-in-loss");
}

static void packing(void **state)
{
    (void)state;
    bd_diffusion_batch b = bd_diffusion_batch_allocate(arena, 2, 9);
    int64_t used = bd_diffusion_batch_append(&b, 1, 0, INTS(11, 12), NULL, 2, &no_padding);
    used =
        bd_diffusion_batch_append(&b, 1, used, INTS(21, 22, 23), MARKS(0, 1, 1), 3, &to_block_end);
    assert_int_equal(used, 6);
    int64_t full =
        bd_diffusion_batch_append(&b, 1, used, INTS(31, 32, 33, 34), NULL, 4, &no_padding);
    assert_int_equal(full, 9);
    check_ints(b.targets + 9, INTS(11, 12, 21, 22, 23, 7, 31, 32, 33), 9);
    check_ints(b.targets_segmentation + 9, INTS(1, 1, 2, 2, 2, 2, 3, 3, 3), 9);
    check_ints(b.targets_position + 9, INTS(0, 1, 0, 1, 2, 3, 0, 1, 2), 9);
    check_ints(b.completion_mask + 9, INTS(1, 1, 0, 1, 1, 1, 1, 1, 1), 9);
    bd_diffusion_batch_pad(&b, 1, used, 5);
    check_ints(b.targets + 9, INTS(11, 12, 21, 22, 23, 7, 5, 5, 5), 9);
    check_ints(b.targets_segmentation + 9, INTS(1, 1, 2, 2, 2, 2, 0, 0, 0), 9);
}

/* --- leak guard ------------------------------------------------------------------------------- */

static bool leak_free(const int32_t *valid, const int32_t *completion, bd_error *err)
{
    bd_diffusion_batch b = bd_diffusion_batch_allocate(arena, 1, 8);
    for (int i = 0; i < 8; i++) {
        b.targets_position[i] = i;
        b.targets_segmentation[i] = valid ? valid[i] : 1;
        b.completion_mask[i] = completion[i];
    }
    return bd_diffusion_batch_check_leak(&b, 4, err);
}

static void leak_guard(void **state)
{
    (void)state;
    bd_error err = {0};
    check_ok(leak_free(NULL, INTS(0, 0, 1, 1, 0, 1, 1, 1), &err), err);
    check_refused(leak_free(NULL, INTS(0, 0, 1, 1, 1, 0, 1, 1), &err), err,
                  "row 0, slot 5: prompt token after completion token in one block of 4");
    check_refused(leak_free(NULL, INTS(0, 0, 1, 1, 1, 1, 0, 1), &err), err, "slot 6");
    check_ok(leak_free(INTS(1, 1, 1, 1, 1, 1, 0, 0), INTS(0, 0, 1, 1, 1, 1, 0, 0), &err), err);
    // A later document in the same block of slots is not seen, so it is no leak.
    bd_diffusion_batch b = bd_diffusion_batch_allocate(arena, 1, 4);
    bd_diffusion_batch_append(&b, 0, 0, INTS(1, 2), NULL, 2, &no_padding);
    bd_diffusion_batch_append(&b, 0, 2, INTS(3, 4), MARKS(0, 1), 2, &no_padding);
    check_ok(bd_diffusion_batch_check_leak(&b, 4, &err), err);
    check_refused(bd_diffusion_batch_check_leak(&b, 0, &err), err, "block_size is 0");
}

/* --- reordering ------------------------------------------------------------------------------- */

static void every_field_moves(void **state)
{
    (void)state;
    bd_error err = {0};
    int32_t order[8];
    check_ok(bd_layout_order(BD_LAYOUT_DUAL_CHUNK_SWAP, 8, 2, order, &err), err);
    // Prompt of 2, seeded, everything masked.
    bd_diffusion_batch b = bd_diffusion_batch_allocate(arena, 1, 8);
    const int32_t ids[8] = {10, 11, 12, 13, 14, 15, 16, 17};
    const uint64_t key = 1;
    bd_diffusion_batch_fill(&b, 0, ids, MARKS(0, 0, 1, 1, 1, 1, 1, 1), 8, &no_padding);
    bd_corruption_options options = {.min_noise = 1, .completion_only = true};
    check_ok(bd_corrupt_batch(&b, &shifted_4, &options, &(bd_corruption_draws){.keys = &key}, NULL,
                              arena, &err),
             err);
    check_ints(b.inputs, INTS(10, 11, 99, 99, 14, 99, 99, 99), 8);
    check_ints(b.corruption_mask, INTS(0, 0, 1, 1, 0, 1, 1, 1), 8);
    check_ints(b.targets_loss_mask, INTS(0, 0, 1, 1, 1, 1, 1, 1), 8);
    check_ok(bd_diffusion_batch_check(&b, &shifted_4, true, &err), err);

    bd_diffusion_batch_reorder(&b, order, arena);
    check_ints(b.inputs, INTS(10, 11, 99, 99, 99, 99, 14, 99), 8);
    check_ints(b.corruption_mask, INTS(0, 0, 1, 1, 1, 1, 0, 1), 8);
    check_ints(b.targets_loss_mask, INTS(0, 0, 1, 1, 1, 1, 1, 1), 8);
    check_ints(b.targets, INTS(10, 11, 16, 17, 12, 13, 14, 15), 8);
    check_ints(b.targets_position, order, 8);
    check_ints(b.inputs_position, order, 8);
    check_ints(b.completion_mask, INTS(0, 0, 1, 1, 1, 1, 1, 1), 8);
    check_ok(bd_diffusion_batch_check(&b, &shifted_4, true, &err), err);

    // What the reordered row sees (T-08).
    bd_visibility rule = {.kind = BD_BLOCK_DIFFUSION,
                          .query_length = 8,
                          .key_length = 8,
                          .block_size = 4,
                          .query_position = b.targets_position,
                          .key_position = b.targets_position};
    const char *rows[8] = {"11..11..", "11..11..", "11111111", "11111111",
                           "11..11..", "11..11..", "11111111", "11111111"};
    for (int q = 0; q < 8; q++)
        for (int k = 0; k < 8; k++)
            assert_int_equal(bd_visibility_allows(&rule, 0, q, k), rows[q][k] == '1');

    int32_t inverse[8];
    bd_layout_inverse(order, 8, inverse);
    bd_diffusion_batch_reorder(&b, inverse, arena);
    check_ints(b.targets, ids, 8);
}

/* --- invariants ------------------------------------------------------------------------------- */

/* A good shifted row: prompt 0..2, completion 3..8, padding 9. */
static bd_diffusion_batch good_batch(void)
{
    bd_diffusion_batch b = bd_diffusion_batch_allocate(arena, 1, 10);
    const int32_t ids[9] = {11, 12, 13, 14, 15, 16, 17, 18, 19};
    const uint64_t key = 5;
    bd_error err = {0};
    bd_diffusion_batch_fill(&b, 0, ids, MARKS(0, 0, 0, 1, 1, 1, 1, 1, 1), 9, &no_padding);
    bd_corruption_options options = {.min_noise = 1, .completion_only = true};
    check_ok(bd_corrupt_batch(&b, &shifted_4, &options, &(bd_corruption_draws){.keys = &key}, NULL,
                              arena, &err),
             err);
    return b;
}

static void check_fault(bd_diffusion_batch b, const char *part)
{
    bd_error err = {0};
    check_refused(bd_diffusion_batch_check(&b, &shifted_4, true, &err), err, part);
}

static void invariants(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_diffusion_batch b = good_batch();
    check_ok(bd_diffusion_batch_check(&b, &shifted_4, true, &err), err);
    check_ok(bd_diffusion_batch_check(&b, &shifted_4, false, &err), err);
    check_refused(bd_diffusion_batch_check(&b, &same_position_4, true, &err), err,
                  "slot 4: targets_loss_mask on a clean token: same-position targets");

    b.targets_loss_mask = b.completion_mask = NULL;
    check_fault(b, "lacks completion_mask, targets_loss_mask");
    b = good_batch(), b.completion_mask[9] = 1;
    check_fault(b, "row 0, slot 9: completion_mask covers padding");
    b = good_batch(), b.corruption_mask[1] = b.targets_loss_mask[1] = 1;
    check_fault(b, "slot 1: corruption_mask lies outside completion_mask");
    b = good_batch(), b.targets_loss_mask[1] = 1;
    check_fault(b, "slot 1: targets_loss_mask lies outside completion_mask");
    b = good_batch(), b.targets_loss_mask[5] = 0;
    check_fault(b, "slot 5: a corrupted token has no targets_loss_mask");
    b = good_batch(), b.corruption_mask[5] = 0;
    check_fault(b,
                "slot 5: targets_loss_mask on a clean token: weighted targets must be corrupted or "
                "shifted anchors");
    b = good_batch(), b.inputs[5] = 16;
    check_fault(b, "slot 5: inputs is not the mask token");
    b = good_batch(), b.inputs[1] = 16;
    check_fault(b, "slot 1: inputs differs from targets");
    b = good_batch(), b.inputs_segmentation[2] = 0;
    check_fault(b, "slot 2: inputs_segmentation differs");
    b = good_batch(), b.inputs_position[2] = 7;
    check_fault(b, "slot 2: inputs_position differs");
    b = good_batch(), b.inputs_position[2] = b.targets_position[2] = -1;
    check_fault(b, "slot 2: targets_position is negative");
    // The first token of a document is an anchor that may not carry loss.
    b = good_batch(), b.completion_mask[0] = b.targets_loss_mask[0] = 1;
    check_fault(b, "slot 0: targets_loss_mask on a clean token");
    // Without completion_only only padding is out of reach.
    b = good_batch(), b.corruption_mask[9] = b.targets_loss_mask[9] = 1;
    check_refused(bd_diffusion_batch_check(&b, &shifted_4, false, &err), err,
                  "slot 9: corruption_mask covers padding");
    b = good_batch(), b.targets_loss_mask[9] = 1;
    check_refused(bd_diffusion_batch_check(&b, &shifted_4, false, &err), err,
                  "slot 9: targets_loss_mask covers padding");
}

int main(void)
{
    arena = check_arena();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompt_protection), cmocka_unit_test(padding_policies),
        cmocka_unit_test(packing),           cmocka_unit_test(leak_guard),
        cmocka_unit_test(every_field_moves), cmocka_unit_test(invariants),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
