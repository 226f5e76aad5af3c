/* Settings of drafts that other tools guessed, ignored or left out. Numbers and links are those of
 * the project's list of field reports. */
#include "draft/golden.h"
#include "draft/micro.h"

/* #5 SpecForge#500 (https://github.com/sgl-project/SpecForge/pull/604): the configured mask token
 * was ignored and another invented. */
static void the_configured_mask_is_used(void **state)
{
    (void)state;
    const int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const bd_anchors anchors = {.blocks = 1, .anchor = (int32_t[]){3}, .keep = (uint8_t[]){1}};
    const bd_block_batch batch = {
        .rows = 1, .length = 8, .block_size = 4, .tokens = tokens, .anchors = &anchors};
    bd_model *target = golden_target("target-qwen3-tiny", BD_F32);
    bd_draft *draft = golden_draft("draft-dflash", target, BD_F32);
    assert_int_equal(draft->config.mask_id, 96); // as its config.json says
    int32_t ids[4];
    bd_block_noise(&batch, (int32_t)draft->config.mask_id, ids);
    check_ints("ids", ids, (int32_t[]){4, 96, 96, 96}, 4);
    bd_draft_close(draft);
    bd_model_close(target);
}

/* #6 Automodel#2461 (https://github.com/NVIDIA-NeMo/Automodel/pull/2461): the mask fell back to
 * pad, which is often eos. #7 Model-Optimizer#1621
 * (https://github.com/NVIDIA/Model-Optimizer/pull/1621): a row that the target does not have. */
static void masks_are_named_and_exist(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model_config target = micro_target_config();
    target.pad = 1;
    target.bos = 2;
    target.stop[0] = 3;
    target.stop[1] = 4;
    target.stop_count = 2;
    bd_draft_config c = micro_draft_config();
    static const struct {
        int64_t id;
        const char *part;
    } bad[] = {{-1, "is required"},
               {1, "pad token"},
               {2, "bos token"},
               {3, "stop token"},
               {4, "stop token"},
               {MICRO_V, "an existing row"},
               {MICRO_V + 5, "an existing row"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        c.mask_id = bad[i].id;
        check_refused(bd_draft_config_complete(&c, &target, &err), err, bad[i].part);
    }
    c.mask_id = MICRO_MASK;
    check_ok(bd_draft_config_complete(&c, &target, &err), err);
}

/* #7, second part: a row that exists but was never trained. */
static void untrained_mask_rows_are_noticed(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    micro *m = micro_open();
    double usual = bd_draft_mask_norm_ratio(m->target, MICRO_MASK, arena);
    assert_true(usual > 0.3 && usual < 3);
    float *row = m->target->embedding->value + MICRO_MASK * MICRO_H;
    for (int i = 0; i < MICRO_H; i++)
        row[i] *= 1e-4f;
    assert_true(bd_draft_mask_norm_ratio(m->target, MICRO_MASK, arena) < 0.01);
    micro_close(m);
    bd_arena_destroy(arena);
}

static json_t *config_of(const char *draft)
{
    bd_error err = {0};
    char path[300];
    snprintf(path, sizeof path, BD_GOLDEN "/draft/%s/config.json", draft);
    json_t *root = bd_json_load(path, &err);
    check_ok(root != NULL, err);
    return root;
}

/* #30 vllm#56792 (https://github.com/vllm-project/vllm/issues/56792) and others: two layouts of a
 * block look alike; without the flag everything loads and nothing is accepted. */
static void the_layout_is_always_written(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_draft_config c;
    json_t *root = config_of("draft-dflash");
    check_ok(bd_draft_config_parse(root, "draft", &c, &err), err);
    json_t *written = bd_draft_config_to_json(&c);
    assert_true(
        json_is_false(json_object_get(json_object_get(written, "dflash_config"), "shift_label")));
    json_decref(written);
    json_t *nested = json_object_get(root, "dflash_config");
    json_object_set_new(nested, "shift_label", json_true());
    check_refused(bd_draft_config_parse(root, "draft", &c, &err), err, "first slot is its anchor");
    json_object_del(nested, "shift_label");
    json_object_set_new(root, "sample_from_anchor", json_true());
    check_refused(bd_draft_config_parse(root, "draft", &c, &err), err, "sample_from_anchor");
    json_object_set_new(root, "sample_from_anchor", json_false());
    check_ok(bd_draft_config_parse(root, "draft", &c, &err), err);
    json_decref(root);
}

/* #31 sglang#37475 (https://github.com/sgl-project/sglang/issues/37475): the right number of wrong
 * layers was made up by a formula. */
static void taps_are_never_guessed_for_a_file(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_draft_config c;
    json_t *root = config_of("draft-dflash");
    json_object_del(json_object_get(root, "dflash_config"), "target_layer_ids");
    check_refused(bd_draft_config_parse(root, "draft", &c, &err), err,
                  "\"target_layer_ids\" is missing");
    json_decref(root);
}

/* #32 vllm#42704 (https://github.com/vllm-project/vllm/pull/42704), sglang#32204
 * (https://github.com/sgl-project/sglang/issues/32204): taps off by one, the last layer out of
 * range. Tap i is the residual stream after layer i, -1 the embedding; against the dumped
 * reference. */
static void taps_against_a_dumped_reference(void **state)
{
    (void)state;
    static const char *const targets[] = {"target-qwen3-tiny", "target-llama-tiny",
                                          "target-qwen2-tiny"};
    for (int n = 0; n < 3; n++) {
        bd_error err = {0};
        bd_arena *arena = check_arena();
        char name[60];
        snprintf(name, sizeof name, "forward-%s", targets[n]);
        bd_safetensors *dump = golden_tensors(name);
        bd_model *target = golden_target(targets[n], BD_F32);
        const bd_tensor *ids = bd_safetensors_find(dump, "input_ids");
        const int32_t *tokens = golden_ints(dump, "input_ids", arena);
        int64_t rows = ids->shape[0], S = ids->shape[1], H = target->config.hidden;
        bd_draft_config config = micro_draft_config();
        config.mask_id = 7;
        check_ok(bd_draft_config_complete(&config, &target->config, &err), err);
        config.tap_count = 4;
        const int64_t taps[4] = {-1, 0, target->config.layers - 2, target->config.layers - 1};
        memcpy(config.taps, taps, sizeof taps);
        bd_draft *draft = bd_draft_create(&config, target, 1, BD_F32, &err);
        check_ok(draft != NULL, err);
        float *features = bd_arena_floats(arena, rows * S * 4 * H);
        bd_draft_observe(draft, tokens, rows, S, features, NULL, arena);
        for (int64_t t = 0; t < 4; t++) {
            snprintf(name, sizeof name, "hidden/%lld", (long long)taps[t] + 1);
            const float *want = golden_floats(dump, name, arena);
            assert_non_null(want);
            float *got = bd_arena_floats(arena, rows * S * H);
            for (int64_t r = 0; r < rows * S; r++)
                memcpy(got + r * H, features + (r * 4 + t) * H, (size_t)H * sizeof(float));
            check_array(got, want, rows * S * H, 1e-4);
        }
        bd_draft_close(draft);
        bd_model_close(target);
        bd_safetensors_close(dump);
        bd_arena_destroy(arena);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_configured_mask_is_used),
        cmocka_unit_test(masks_are_named_and_exist),
        cmocka_unit_test(untrained_mask_rows_are_noticed),
        cmocka_unit_test(the_layout_is_always_written),
        cmocka_unit_test(taps_are_never_guessed_for_a_file),
        cmocka_unit_test(taps_against_a_dumped_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
