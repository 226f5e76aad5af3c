/* config.json of drafts: draft-family T01, T44, T45, sections 8.2, 8.3 and 9.4. */
#include "draft/draft.h"
#include "format/json.h"
#include "micro.h"

static void default_taps(void **state)
{
    (void)state;
    static const struct {
        int64_t target, draft, taps[5];
    } cases[] = {{36, 5, {1, 9, 17, 25, 33}},
                 {10, 5, {1, 2, 4, 6, 7}},
                 {32, 3, {1, 15, 29}},
                 {6, 2, {1, 3}},
                 {4, 2, {1, 1}},
                 {32, 1, {16}},
                 {1, 1, {0}},
                 {5, 5, {1, 1, 2, 2, 2}},
                 {28, 5, {1, 7, 13, 19, 25}}};
    bd_error err = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) { // T01
        int64_t taps[BD_MOST_TAPS];
        check_ok(bd_draft_taps(cases[i].target, cases[i].draft, taps, &err), err);
        for (int64_t n = 0; n < cases[i].draft; n++)
            assert_int_equal(taps[n], cases[i].taps[n]);
    }
    int64_t taps[BD_MOST_TAPS];
    check_refused(bd_draft_taps(3, 5, taps, &err), err,
                  "num_target_layers (3) must be >= num_draft_layers (5)");
}

static void golden_taps(void **state)
{
    (void)state;
    bd_error err = {0};
    json_t *tables = bd_json_load(BD_GOLDEN "/draft/tables.json", &err);
    json_t *list = json_object_get(tables, "target_layer_ids"), *row;
    size_t i;
    assert_true(json_array_size(list) > 5);
    json_array_foreach(list, i, row)
    {
        int64_t taps[BD_MOST_TAPS];
        int64_t layers = json_integer_value(json_object_get(row, "num_target_layers"));
        int64_t count = json_integer_value(json_object_get(row, "num_draft_layers"));
        check_ok(bd_draft_taps(layers, count, taps, &err), err);
        for (int64_t n = 0; n < count; n++)
            assert_int_equal(taps[n], json_integer_value(
                                          json_array_get(json_object_get(row, "ids"), (size_t)n)));
    }
    json_decref(tables);
}

static void explicit_taps(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model_config target = micro_target_config();
    bd_draft_config c = micro_draft_config();
    c.tap_count = 3;
    check_refused(bd_draft_config_complete(&c, &target, &err), err,
                  "one target layer per draft layer is required");
    c.tap_count = 2;
    c.taps[0] = 4;
    c.taps[1] = 4;
    check_refused(bd_draft_config_complete(&c, &target, &err), err, "beyond the target's 4 layers");
    c.taps[0] = c.taps[1] = 1;
    check_refused(bd_draft_config_complete(&c, &target, &err), err, "contains duplicates");
    c.taps[0] = -1;
    check_refused(bd_draft_config_complete(&c, &target, &err), err, "must be non-negative");
    c.taps[0] = 0;
    check_ok(bd_draft_config_complete(&c, &target, &err), err);
}

static void dimensions_are_not_guessed(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model_config target = micro_target_config();
    static const char *const names[] = {"num_attention_heads", "num_key_value_heads", "head_dim",
                                        "intermediate_size"};
    for (int i = 0; i < 4; i++) {
        bd_draft_config c = micro_draft_config();
        int64_t *const fields[] = {&c.stack.query_heads, &c.stack.key_heads, &c.stack.head_size,
                                   &c.stack.intermediate};
        *fields[i] = 0;
        check_refused(bd_draft_config_complete(&c, &target, &err), err, names[i]);
    }
    bd_draft_config c = micro_draft_config();
    c.window = MICRO_BS - 1;
    check_refused(bd_draft_config_complete(&c, &target, &err), err, "must be >= block_size (4)");
    c.window = MICRO_BS;
    c.dropout = 0.1;
    check_refused(bd_draft_config_complete(&c, &target, &err), err, "attention_dropout");
    c.dropout = 0;
    check_ok(bd_draft_config_complete(&c, &target, &err), err);
    assert_int_equal(c.stack.hidden, MICRO_H);
    assert_int_equal(c.stack.vocabulary, MICRO_V);
    assert_int_equal(c.target_layers, 4);
    assert_true(c.stack.rope.theta == 10000);
}

static bd_draft_config large(void)
{
    bd_draft_config c = bd_draft_config_default();
    c.tap_count = 5;
    c.stack.hidden = 4096;
    c.stack.query_heads = 32;
    c.stack.key_heads = 8;
    c.stack.head_size = 128;
    c.stack.intermediate = 12288;
    c.stack.vocabulary = 151936;
    return c;
}

static void sizes(void **state)
{
    (void)state;
    bd_draft_config c = large();
    int64_t tensors, values;
    bd_draft_size(&c, &tensors, &values); // T44, T45
    assert_int_equal(tensors, 58);
    assert_int_equal(values, 1048626432);
    c.sink = true;
    bd_draft_size(&c, &tensors, &values);
    assert_int_equal(tensors, 63);
    c.sink = false;
    c.stack.qkv_bias = c.stack.output_bias = true;
    bd_draft_size(&c, &tensors, &values);
    assert_int_equal(tensors, 78);
}

// --- files ---------------------------------------------------------------------------------------

static const char plain[] =
    "{\"architectures\": [\"DFlashDraftModel\"], \"model_type\": \"qwen3\", \"block_size\": 8,"
    "\"dflash_config\": {\"mask_token_id\": 151669, \"target_layer_ids\": [1, 9, 17, 25, 33]},"
    "\"hidden_size\": 4096, \"num_hidden_layers\": 5, \"num_attention_heads\": 32,"
    "\"num_key_value_heads\": 8, \"head_dim\": 128, \"intermediate_size\": 12288,"
    "\"hidden_act\": \"silu\", \"rms_norm_eps\": 1e-06, \"vocab_size\": 151936,"
    "\"max_position_embeddings\": 40960, \"initializer_range\": 0.02, \"attention_bias\": false,"
    "\"attention_dropout\": 0.0, \"rope_theta\": 1000000.0, \"rope_scaling\": null,"
    "\"tie_word_embeddings\": false, \"torch_dtype\": \"bfloat16\", \"num_target_layers\": 36}";

/* The plain file with a field set at the top or in dflash_config ("a.b"), or taken out (NULL). */
static json_t *with(const char *field, json_t *value)
{
    bd_error err = {0};
    json_t *root = bd_json_parse(plain, sizeof plain - 1, "draft", &err), *object = root;
    const char *dot = strchr(field, '.');
    if (dot)
        object = json_object_get(root, "dflash_config");
    if (value)
        json_object_set_new(object, dot ? dot + 1 : field, value);
    else
        json_object_del(object, dot ? dot + 1 : field);
    return root;
}

static void refuse(const char *field, json_t *value, const char *part)
{
    bd_error err = {0};
    bd_draft_config c;
    json_t *root = with(field, value);
    check_refused(bd_draft_config_parse(root, "draft/config.json", &c, &err), err, part);
    json_decref(root);
}

static bd_draft_config accept(const char *field, json_t *value)
{
    bd_error err = {0};
    bd_draft_config c;
    json_t *root = with(field, value);
    check_ok(bd_draft_config_parse(root, "draft/config.json", &c, &err), err);
    json_decref(root);
    return c;
}

static void reading(void **state)
{
    (void)state;
    bd_draft_config c = accept("use_cache", json_true());
    assert_ptr_equal(c.variant, &bd_draft_dflash);
    assert_int_equal(c.block_size, 8);
    assert_int_equal(c.mask_id, 151669);
    assert_int_equal(c.tap_count, 5);
    assert_int_equal(c.taps[4], 33);
    assert_int_equal(c.window, 0);
    assert_int_equal(c.causality, BD_DRAFT_BIDIRECTIONAL);
    assert_false(c.sink);
    assert_int_equal(c.target_layers, 36);
    assert_true(c.stack.rope.theta == 1e6);

    c = accept("dflash_config.causal", json_true());
    assert_int_equal(c.causality, BD_DRAFT_CAUSAL);
    c = accept("is_causal", json_true());
    assert_int_equal(c.causality, BD_DRAFT_CAUSAL);
    c = accept("dflash_config.block_size", json_integer(16)); // nested before top level
    assert_int_equal(c.block_size, 16);
    c = accept("attention_sink_bias", json_true());
    assert_true(c.sink);
    c = accept("dflash_config.target_layer_ids", json_pack("[i, i]", -1, 3));
    assert_int_equal(c.taps[0], -1);
    c = accept("dflash_config.projector_type", json_string("dflash"));
    assert_ptr_equal(c.variant, &bd_draft_dflash);
    c = accept("dflash_config.output_multiplier", json_real(1));
    c = accept("num_target_layers", NULL);
    assert_int_equal(c.target_layers, 0);
}

static void top_level_fields(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_draft_config c;
    json_t *root = with("dflash_config", NULL);
    json_object_set_new(root, "mask_token_id", json_integer(7));
    json_object_set_new(root, "target_layer_ids", json_pack("[i]", 3));
    json_object_del(root, "rope_theta");
    check_refused(bd_draft_config_parse(root, "draft", &c, &err), err, "rope_theta");
    json_object_set_new(root, "rope_parameters", json_pack("{s:f}", "rope_theta", 5e5));
    check_ok(bd_draft_config_parse(root, "draft", &c, &err), err);
    assert_int_equal(c.mask_id, 7);
    assert_int_equal(c.taps[0], 3);
    assert_true(c.stack.rope.theta == 5e5);
    json_decref(root);
}

static void windows(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_draft_config c;
    json_t *root = with("dflash_config.use_swa", json_true());
    check_refused(bd_draft_config_parse(root, "draft", &c, &err), err, "swa_window_size");
    json_t *nested = json_object_get(root, "dflash_config");
    json_object_set_new(nested, "swa_window_size", json_integer(7));
    check_refused(bd_draft_config_parse(root, "draft", &c, &err), err, "must be >= block_size (8)");
    json_object_set_new(nested, "swa_window_size", json_integer(1024));
    check_ok(bd_draft_config_parse(root, "draft", &c, &err), err);
    assert_int_equal(c.window, 1024);
    json_decref(root);

    // Sliding layers: windowed, and causal unless the file says what it means.
    root = with("layer_types", json_pack("[s,s,s,s,s]", "sliding_attention", "full_attention",
                                         "sliding_attention", "full_attention", "full_attention"));
    check_refused(bd_draft_config_parse(root, "draft", &c, &err), err, "sliding_window");
    json_object_set_new(root, "sliding_window", json_integer(2048));
    check_ok(bd_draft_config_parse(root, "draft", &c, &err), err);
    assert_int_equal(bd_draft_layer_window(&c, 0), 2048);
    assert_int_equal(bd_draft_layer_window(&c, 1), 0);
    assert_true(bd_draft_layer_causal(&c, 0));
    assert_false(bd_draft_layer_causal(&c, 1));
    json_t *again = bd_draft_config_to_json(&c); // written so that it is read the same way
    assert_false(bd_json_has(json_object_get(again, "dflash_config"), "causal"));
    bd_draft_config copy;
    check_ok(bd_draft_config_parse(again, "draft", &copy, &err), err);
    assert_memory_equal(&c, &copy, sizeof c);
    json_decref(again);
    json_object_set_new(root, "is_causal", json_false());
    check_ok(bd_draft_config_parse(root, "draft", &c, &err), err);
    assert_false(bd_draft_layer_causal(&c, 0));
    json_decref(root);
}

static void what_is_refused(void **state)
{
    (void)state;
    refuse("dflash_config.projector_type", json_string("medusa"), "one of dflash");
    refuse("architectures", json_pack("[s]", "DFlash2DraftModel"),
           "[\"DFlashDraftModel\"] expected");
    refuse("model_type", json_string("gemma4"), "\"model_type\" is \"gemma4\"");
    refuse("model_type", json_string("llama"), "\"qwen3\" expected");
    refuse("hidden_act", json_string("gelu"), "hidden_act");
    refuse("partial_rotary_factor", json_real(0.5), "partial_rotary_factor");
    refuse("attention_value_scale", json_real(0.612), "attention_value_scale");
    refuse("dflash_config.output_multiplier", json_real(0.196), "output_multiplier");
    refuse("dflash_config.final_logit_softcapping", json_real(20), "final_logit_softcapping");
    refuse("dflash_config.something_new", json_integer(3), "dflash_config.something_new");
    refuse("quantization_config", json_pack("{s:s}", "quant_method", "fp8"), "quantization_config");
    refuse("dflash_config.mask_token_id", NULL, "\"mask_token_id\" is missing");
    refuse("dflash_config.mask_token_id", json_integer(151936), "mask_token_id");
    refuse("block_size", json_integer(0), "block_size");
    refuse("num_hidden_layers", json_integer(65), "num_hidden_layers");
    refuse("dflash_config", json_string("x"), "an object expected");
    refuse("dflash_config.target_layer_ids", json_pack("[s]", "a"), "target_layer_ids");
    refuse("dflash_config.target_layer_ids", json_array(), "1 to 64 expected");
    refuse("layer_types", json_pack("[s]", "full_attention"), "layer_types");
    refuse("attention_dropout", json_string("0"), "attention_dropout");
}

static void writing(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_draft_config c = accept("use_cache", json_true());
    json_t *root = bd_draft_config_to_json(&c);
    static const char *const fields[] = {"architectures",
                                         "model_type",
                                         "block_size",
                                         "dflash_config",
                                         "hidden_size",
                                         "num_hidden_layers",
                                         "num_attention_heads",
                                         "num_key_value_heads",
                                         "head_dim",
                                         "intermediate_size",
                                         "hidden_act",
                                         "rms_norm_eps",
                                         "vocab_size",
                                         "max_position_embeddings",
                                         "initializer_range",
                                         "attention_bias",
                                         "attention_dropout",
                                         "rope_theta",
                                         "rope_scaling",
                                         "tie_word_embeddings",
                                         "torch_dtype",
                                         "num_target_layers",
                                         "layer_types"};
    const char *key;
    json_t *value;
    size_t i = 0;
    json_object_foreach(root, key, value)
    {
        assert_true(i < sizeof fields / sizeof fields[0]);
        assert_string_equal(key, fields[i++]); // exactly the fields of 8.2, in its order
    }
    assert_int_equal(i, sizeof fields / sizeof fields[0]);
    json_t *nested = json_object_get(root, "dflash_config");
    assert_true(json_is_false(json_object_get(nested, "causal")));
    assert_true(json_is_false(json_object_get(nested, "shift_label")));
    assert_int_equal(json_object_size(nested), 4);
    assert_string_equal(json_string_value(json_object_get(root, "torch_dtype")), "bfloat16");
    json_decref(root);

    c.window = 1024;
    c.sink = true;
    c.causality = BD_DRAFT_CAUSAL;
    root = bd_draft_config_to_json(&c);
    nested = json_object_get(root, "dflash_config");
    assert_int_equal(json_integer_value(json_object_get(root, "sliding_window")), 1024);
    assert_int_equal(json_integer_value(json_object_get(nested, "swa_window_size")), 1024);
    assert_true(json_is_true(json_object_get(nested, "use_swa")));
    assert_true(json_is_true(json_object_get(nested, "attention_sink_bias")));
    assert_true(json_is_true(json_object_get(root, "attention_sink_bias")));
    bd_draft_config copy;
    check_ok(bd_draft_config_parse(root, "draft", &copy, &err), err);
    assert_memory_equal(&c, &copy, sizeof c);
    json_decref(root);
}

/* Damaged files are understood or refused; nothing else happens (run with sanitizers). */
static void hostile_bytes(void **state)
{
    (void)state;
    char text[sizeof plain];
    uint64_t noise = 1;
    int refused = 0;
    for (int i = 0; i < 3000; i++) {
        bd_error err = {0};
        bd_draft_config c;
        memcpy(text, plain, sizeof plain);
        for (int n = 0; n <= i % 3; n++) {
            size_t at = (size_t)((check_noise(&noise) + 1) / 2 * (float)(sizeof plain - 1));
            text[at] = "0123456789-e.[]{}\",ntfx"[(int)((check_noise(&noise) + 1) * 11.9f)];
        }
        json_t *root = bd_json_parse(text, sizeof plain - 1, "draft", &err);
        bool ok = root && bd_draft_config_parse(root, "draft", &c, &err);
        assert_true(ok || err.message[0]);
        refused += !ok;
        if (ok) {
            int64_t tensors, values;
            bd_draft_size(&c, &tensors, &values);
            assert_true(tensors > 0);
        }
        json_decref(root);
    }
    assert_true(refused > 1000 && refused < 3000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(default_taps),
        cmocka_unit_test(golden_taps),
        cmocka_unit_test(explicit_taps),
        cmocka_unit_test(dimensions_are_not_guessed),
        cmocka_unit_test(sizes),
        cmocka_unit_test(reading),
        cmocka_unit_test(top_level_fields),
        cmocka_unit_test(windows),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(writing),
        cmocka_unit_test(hostile_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
