/* The two legal contracts, and what a model's config.json says about them. */
#include "diffusion/golden.h"

static void legal_pairs(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_canvas c;
    check_ok(bd_canvas_make("same_position", "all_masked", 1, 0, &c, &err), err);
    check_ok(bd_canvas_make("shifted", "seed_and_mask", 2, 96, &c, &err), err);
    assert_true(c.alignment == BD_SHIFTED && c.policy == BD_SEED_AND_MASK && c.block_size == 2 &&
                c.mask_id == 96);
    const bd_canvas before = c;
    check_refused(bd_canvas_make("shifted", "all_masked", 4, 9, &c, &err), err,
                  "logit_alignment shifted does not go with canvas_policy all_masked");
    check_refused(bd_canvas_make("same_position", "seed_and_mask", 4, 9, &c, &err), err,
                  "does not go with");
    check_refused(bd_canvas_make("shifted", "seed_and_mask", 1, 9, &c, &err), err,
                  "block_size is 1, wanted at least 2");
    check_refused(bd_canvas_make("same_position", "all_masked", 0, 9, &c, &err), err,
                  "block_size is 0, wanted at least 1");
    check_refused(bd_canvas_make("same_position", "all_masked", -1, 9, &c, &err), err,
                  "block_size");
    check_refused(bd_canvas_make("same_position", "all_masked", 4, -1, &c, &err), err,
                  "mask_id is -1");
    check_refused(bd_canvas_make("same_position", "all_masked", 4, INT64_MAX, &c, &err), err,
                  "mask_id");
    check_refused(bd_canvas_make("diagonal", "all_masked", 4, 9, &c, &err), err,
                  "\"diagonal\", wanted same_position or shifted");
    check_refused(bd_canvas_make("shifted", "half", 4, 9, &c, &err), err,
                  "\"half\", wanted all_masked or seed_and_mask");
    assert_memory_equal(&c, &before, sizeof c);
    check_refused(bd_canvas_check(&before, 96, &err), err, "mask_id is 96, wanted less than");
    check_ok(bd_canvas_check(&before, 97, &err), err);
}

static void anchors(void **state)
{
    (void)state;
    assert_true(bd_canvas_is_anchor(&shifted_4, 0) && bd_canvas_is_anchor(&shifted_4, 8));
    assert_false(bd_canvas_is_anchor(&shifted_4, 7));
    assert_false(bd_canvas_is_anchor(&same_position_4, 8));
}

static void from_a_model(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_canvas c, back;
    bd_model_config config = {.vocabulary = 97, .bos = -1, .pad = 0, .stop = {95}, .stop_count = 1};
    check_refused(bd_canvas_from_model(&config, &c, &err), err, "a causal model");
    bd_canvas_to_model(&(bd_canvas){BD_SHIFTED, BD_SEED_AND_MASK, 4, 96}, &config);
    check_ok(bd_canvas_from_model(&config, &c, &err), err);
    assert_true(c.alignment == BD_SHIFTED && c.block_size == 4 && c.mask_id == 96);
    bd_canvas_to_model(&(bd_canvas){BD_SAME_POSITION, BD_ALL_MASKED, 8, 1}, &config);
    check_ok(bd_canvas_from_model(&config, &back, &err), err);
    assert_true(back.alignment == BD_SAME_POSITION && back.policy == BD_ALL_MASKED);
    config.diffusion.mask_id = 0;
    check_refused(bd_canvas_from_model(&config, &c, &err), err,
                  "mask_id 0 is the model's pad token");
    config.diffusion.mask_id = 95;
    check_refused(bd_canvas_from_model(&config, &c, &err), err, "stop token");
    config.bos = 3;
    config.diffusion.mask_id = 3;
    check_refused(bd_canvas_from_model(&config, &c, &err), err, "bos token");
    config.diffusion.mask_id = 97;
    check_refused(bd_canvas_from_model(&config, &c, &err), err, "mask_id is 97");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(legal_pairs), cmocka_unit_test(anchors),
                                       cmocka_unit_test(from_a_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
