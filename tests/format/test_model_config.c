#include "scratch.h"

#include "../../fuzz/fuzz_model_config.c"

#include "format/json.h"
#include "format/model_config.h"

#define SIZES                                                                                      \
    "\"vocab_size\": 97, \"hidden_size\": 32, \"num_hidden_layers\": 4, \"num_attention_heads\": " \
    "4, "                                                                                          \
    "\"num_key_value_heads\": 2, \"intermediate_size\": 48"
#define QWEN3 "\"model_type\": \"qwen3\", " SIZES
#define QWEN2 "\"model_type\": \"qwen2\", " SIZES
#define LLAMA "\"model_type\": \"llama\", " SIZES

static bool read_text(const char *text, bd_model_config *config, bd_error *err)
{
    return bd_model_config_read(scratch_write_text("config.json", text), config, err);
}

static bd_model_config read_ok(const char *text)
{
    bd_model_config config;
    bd_error err = {0};
    check_ok(read_text(text, &config, &err), err);
    return config;
}

static void golden_folders(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model_config c;
    check_ok(bd_model_config_read(BD_GOLDEN "/draft/target-llama-tiny/config.json", &c, &err), err);
    assert_int_equal(c.family, BD_FAMILY_LLAMA);
    assert_int_equal(c.vocabulary, 113);
    assert_int_equal(c.head_size, 8);
    assert_true(c.rope.theta == 500000 && c.rope.kind == BD_ROPE_DEFAULT && c.norm_eps == 1e-5);
    assert_true(!c.tied_head && !c.qkv_bias && !c.output_bias && !c.qk_norm);
    check_ok(bd_model_config_read(BD_GOLDEN "/draft/target-qwen2-tiny/config.json", &c, &err), err);
    assert_true(c.qkv_bias && !c.output_bias && !c.qk_norm && c.dtype == BD_BF16);
    assert_int_equal(c.head_size, 10); // no head_dim there: hidden / heads
    check_ok(bd_model_config_read(BD_GOLDEN "/draft/target-qwen3-tiny/config.json", &c, &err), err);
    assert_true(c.qk_norm && !c.qkv_bias && c.tied_head && c.dtype == BD_F32);
    assert_int_equal(c.head_size, 16);
    assert_int_equal(c.bos, 0);
    assert_int_equal(c.pad, -1);
    assert_int_equal(c.stop_count, 1);
    assert_int_equal(c.stop[0], 95);
    for (int i = 0; i < 5; i++)
        assert_int_equal(c.layer_window[i], 0);
    static const char *const others[] = {"tiny_a", "tiny_b", "teacher", "student_same",
                                         "student_shift"};
    for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
        char path[BD_PATH];
        snprintf(path, sizeof path, BD_GOLDEN "/block-diffusion/models/%s/config.json", others[i]);
        check_ok(bd_model_config_read(path, &c, &err), err);
    }
    check_refused(bd_model_config_read(BD_GOLDEN "/draft/draft-dflash2/config.json", &c, &err), err,
                  "this folder holds a drafter");
    // A drafter's own reader takes what it knows from the same file.
    json_t *root = bd_json_load(BD_GOLDEN "/draft/draft-dspark-rnn/config.json", &err);
    static const char *const known[] = {"dflash_config", "attention_sink_bias", NULL};
    check_ok(bd_model_config_parse(root, "config.json", known, &c, &err), err);
    assert_int_equal(c.layer_window[0], 0); // sliding_window without use_sliding_window
    check_refused(bd_model_config_parse(root, "config.json", known + 1, &c, &err), err,
                  "dflash_config");
    json_decref(root);
}

static void spellings_old_and_new(void **state)
{
    (void)state;
    bd_model_config c = read_ok("{" QWEN3 "}");
    assert_true(c.rope.theta == 10000 && c.norm_eps == 1e-6 && c.initializer_range == 0.02);
    assert_int_equal(c.head_size, 8);
    assert_int_equal(c.dtype, BD_F32);
    assert_int_equal(c.max_positions, 32768);
    assert_true(!c.tied_head && c.stop_count == 0 && c.bos == -1 && c.diffusion.block_size == 0);
    c = read_ok("{" QWEN3 ", \"rope_theta\": 500.0, \"rope_parameters\": {\"rope_theta\": 7000, "
                "\"rope_type\": \"default\"}, \"dtype\": \"bfloat16\"}");
    assert_true(c.rope.theta == 7000 && c.rope.kind == BD_ROPE_DEFAULT && c.dtype == BD_BF16);
    c = read_ok("{" QWEN3 ", \"rope_parameters\": {\"rope_type\": \"linear\", \"factor\": 4}, "
                "\"rope_theta\": 500, \"torch_dtype\": \"torch.float16\"}");
    assert_true(c.rope.theta == 500 && c.rope.kind == BD_ROPE_LINEAR && c.rope.factor == 4);
    assert_int_equal(c.dtype, BD_F16);
    c = read_ok("{" QWEN3 ", \"rope_parameters\": {\"rope_theta\": 9}, "
                "\"rope_scaling\": {\"type\": \"linear\", \"factor\": 2.0}}");
    assert_true(c.rope.theta == 9 && c.rope.kind == BD_ROPE_LINEAR);
    c = read_ok("{" LLAMA ", \"rope_scaling\": null, \"attention_bias\": true, "
                "\"eos_token_id\": [3, 5, 7], \"tie_word_embeddings\": true, \"mlp_bias\": false}");
    assert_true(c.qkv_bias && c.output_bias && c.tied_head);
    assert_int_equal(c.stop_count, 3);
    assert_int_equal(c.stop[2], 7);
    c = read_ok(
        "{\"model_type\": \"llama\", \"vocab_size\": 9, \"hidden_size\": 8, \"num_hidden_layers\": "
        "1, \"num_attention_heads\": 2, \"intermediate_size\": 3, \"num_key_value_heads\": null, "
        "\"some_new_key\": [1], \"pretraining_tp\": 1, \"transformers_version\": \"5\"}");
    assert_int_equal(c.key_heads, 2);
    // Qwen2 does not look at the field.
    c = read_ok("{" QWEN2 ", \"attention_bias\": false}");
    assert_true(c.qkv_bias && !c.output_bias);
    c = read_ok("{" QWEN2 ", \"attention_bias\": true}");
    assert_true(c.qkv_bias && !c.output_bias);
}

static void windows_by_layer(void **state)
{
    (void)state;
    bd_model_config c = read_ok("{" QWEN2 ", \"use_sliding_window\": true, \"sliding_window\": 16, "
                                "\"max_window_layers\": 3}");
    assert_true(c.layer_window[2] == 0 && c.layer_window[3] == 16);
    c = read_ok("{" QWEN2 ", \"use_sliding_window\": false, \"sliding_window\": 16, "
                "\"max_window_layers\": 0}");
    assert_true(c.layer_window[0] == 0 && c.layer_window[3] == 0);
    c = read_ok("{" QWEN2 ", \"sliding_window\": 16, \"max_window_layers\": 0}");
    assert_int_equal(c.layer_window[3], 0); // off unless use_sliding_window says otherwise
    c = read_ok("{" QWEN2 ", \"use_sliding_window\": true, \"max_window_layers\": 0}");
    assert_int_equal(c.layer_window[0], 4096);
    c = read_ok("{" QWEN2 ", \"use_sliding_window\": true, \"sliding_window\": null, "
                "\"max_window_layers\": 0}");
    assert_int_equal(c.layer_window[0], 0);
    c = read_ok(
        "{" QWEN3
        ", \"use_sliding_window\": true, \"sliding_window\": 5, \"max_window_layers\": 4, "
        "\"layer_types\": [\"sliding_attention\", \"full_attention\", \"sliding_attention\", "
        "\"full_attention\"]}");
    assert_true(c.layer_window[0] == 5 && c.layer_window[1] == 0 && c.layer_window[2] == 5);
    c = read_ok("{" LLAMA ", \"layer_types\": [\"full_attention\", \"full_attention\", "
                "\"full_attention\", \"full_attention\"], \"sliding_window\": 3}");
    assert_int_equal(c.layer_window[0], 0);
}

static void meanings_not_known_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"{" SIZES "}", "\"model_type\" is missing"},
        {"{\"model_type\": \"mistral\", " SIZES "}",
         "\"model_type\" is \"mistral\", one of llama, qwen2, qwen3 expected"},
        {"{" QWEN3 ", \"architectures\": [\"Qwen3ForSequenceClassification\"]}",
         "[\"Qwen3ForCausalLM\"] expected"},
        {"{" QWEN3 ", \"architectures\": [\"Qwen3ForCausalLM\", \"X\"]}",
         ", ...], [\"Qwen3ForCausalLM\"]"},
        {"{" QWEN3 ", \"architectures\": []}", "expected"},
        {"{" QWEN3 ", \"num_experts\": 8}", "\"num_experts\" is 8: bdlm does not compute this"},
        {"{" QWEN3 ", \"partial_rotary_factor\": 0.5}", "1 or no such field expected"},
        {"{" QWEN3 ", \"attn_logit_softcapping\": 50.0}", "attn_logit_softcapping"},
        {"{" QWEN3 ", \"quantization_config\": {\"bits\": 4}}", "quantization_config"},
        {"{" QWEN3 ", \"is_causal\": false}", "is_causal"},
        {"{" QWEN3 ", \"rope_parameters\": {\"partial_rotary_factor\": 0.5}}",
         "partial_rotary_factor"},
        {"{" QWEN3 ", \"rope_parameters\": {\"full_attention\": {\"rope_theta\": 1}}}",
         "by layer type"},
        {"{" LLAMA ", \"mlp_bias\": true}", "\"mlp_bias\" is true"},
        {"{" LLAMA ", \"hidden_act\": \"gelu\"}", "\"hidden_act\" is \"gelu\", \"silu\" expected"},
        {"{" LLAMA ", \"rope_scaling\": {\"type\": \"dynamic\", \"factor\": 2}}",
         "\"type\" is \"dynamic\", one of default, linear, llama3, yarn expected"},
        {"{" LLAMA ", \"rope_scaling\": {\"factor\": 2}}", "\"rope_type\" is missing"},
        {"{" LLAMA ", \"rope_scaling\": {\"type\": \"linear\"}}", "\"factor\" is missing"},
        {"{" LLAMA ", \"rope_scaling\": {\"type\": \"linear\", \"factor\": 0}}", "\"factor\" is 0"},
        {"{" LLAMA
         ", \"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, "
         "\"high_freq_factor\": 4, \"original_max_position_embeddings\": 8192}}",
         "0 < low < high expected"},
        {"{" QWEN3 ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, \"truncate\": false}}",
         "truncate"},
        {"{" QWEN3 ", \"rope_scaling\": 4}", "\"rope_scaling\" is 4, an object expected"},
        {"{" QWEN3 ", \"rope_theta\": 0}", "\"rope_theta\" is 0"},
        {"{" QWEN3 ", \"layer_types\": [\"full_attention\"]}",
         "lists 1 layers, num_hidden_layers is 4"},
        {"{" QWEN3 ", \"layer_types\": [\"full_attention\", 1, 2, 3]}",
         "\"layer_types\"[1] is \"?\""},
        {"{" QWEN3 ", \"layer_types\": [\"linear_attention\", 1, 2, 3]}",
         "is \"linear_attention\""},
        {"{" QWEN3 ", \"layer_types\": [\"sliding_attention\", 1, 2, 3]}", "there is no window"},
        {"{" LLAMA ", \"layer_types\": [\"sliding_attention\", 1, 2, 3]}", "this family has none"},
        {"{" QWEN3 ", \"torch_dtype\": \"float8_e4m3fn\"}",
         "one of float32, bfloat16, float16 expected"},
        {"{" QWEN3 ", \"eos_token_id\": 97}", "\"eos_token_id\" is 97, an integer from -1 to 96"},
        {"{" QWEN3 ", \"eos_token_id\": [1, 97]}", "\"eos_token_id\"[1]: an id from 0 to 96"},
        {"{" QWEN3 ", \"eos_token_id\": [1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}",
         "lists 17 ids"},
        {"{" QWEN3 ", \"bos_token_id\": \"<s>\"}", "\"bos_token_id\" is \"<s>\""},
        {"{" QWEN3 ", \"tie_word_embeddings\": 1}", "true or false expected"},
        {"{" QWEN3 ", \"head_dim\": 7}", "head_dim is 7, an even number expected"},
        {"{" QWEN3 ", \"rms_norm_eps\": -1}", "\"rms_norm_eps\" is -1"},
        {"{" QWEN3 ", \"block_diffusion\": {\"block_size\": 4, \"mask_token_id\": 97}}",
         "mask_token_id"},
        {"{" QWEN3
         ", \"block_diffusion\": {\"block_size\": 4, \"mask_token_id\": 9, \"logit_alignment\": "
         "\"shifted\", \"canvas_policy\": \"all_masked\"}}",
         "shifted with seed_and_mask expected"},
        {"{\"model_type\": \"qwen3\", \"vocab_size\": 97, \"hidden_size\": 32, "
         "\"num_hidden_layers\": 300, "
         "\"num_attention_heads\": 4, \"intermediate_size\": 48}",
         "\"num_hidden_layers\" is 300, an integer from 1 to 256 expected"},
        {"{\"model_type\": \"qwen3\", \"vocab_size\": 97, \"hidden_size\": 33, "
         "\"num_hidden_layers\": 3, "
         "\"num_attention_heads\": 4, \"intermediate_size\": 48}",
         "33 is not a multiple of num_attention_heads 4"},
        {"{\"model_type\": \"qwen3\", \"vocab_size\": 97, \"hidden_size\": 32, "
         "\"num_hidden_layers\": 3, "
         "\"num_attention_heads\": 4, \"num_key_value_heads\": 3, \"intermediate_size\": 48}",
         "not a multiple of num_key_value_heads 3"},
        {"{" LLAMA ", \"use_qk_norm\": true}",
         "\"use_qk_norm\" is true, which models of this family"},
        {"{" QWEN3 ", \"qk_layernorm\": false}", "\"qk_layernorm\" is false"},
        {"[]", "not a JSON object"},
        {"{", "config.json:1:"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        bd_model_config c;
        bd_error err = {0};
        check_refused(read_text(bad[i].text, &c, &err), err, bad[i].message);
        if (!strstr(err.message, "config.json"))
            fail_msg("\"%s\" does not name the file", err.message);
    }
    // Off is fine for any of them.
    read_ok(
        "{" QWEN3 ", \"num_experts\": null, \"partial_rotary_factor\": 1.0, \"mlp_bias\": false, "
        "\"attn_logit_softcapping\": null, \"quantization_config\": {}, \"no_rope_layers\": [], "
        "\"embedding_multiplier\": 1, \"num_nextn_predict_layers\": 0, \"is_causal\": true, "
        "\"use_qk_norm\": true}");
}

static void every_required_size(void **state)
{
    (void)state;
    static const char *const names[] = {"vocab_size", "hidden_size", "num_hidden_layers",
                                        "num_attention_heads", "intermediate_size"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        bd_error err = {0};
        bd_model_config c;
        json_t *root = bd_json_parse("{" QWEN3 "}", strlen("{" QWEN3 "}"), "x", &err);
        json_object_del(root, names[i]);
        check_refused(bd_model_config_parse(root, "x", NULL, &c, &err), err, names[i]);
        json_object_set_new(root, names[i], json_integer(0));
        check_refused(bd_model_config_parse(root, "x", NULL, &c, &err), err, names[i]);
        json_object_set_new(root, names[i], json_string("12"));
        check_refused(bd_model_config_parse(root, "x", NULL, &c, &err), err, "\"12\"");
        json_decref(root);
    }
}

static void check_finds_what_cannot_be(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model_config good = read_ok("{" QWEN3 "}"), c = good;
    check_ok(bd_model_config_check(&c, "model", &err), err);
    c.layers = 0;
    check_refused(bd_model_config_check(&c, "model", &err), err, "model: num_hidden_layers is 0");
    c = good;
    c.key_heads = 3;
    check_refused(bd_model_config_check(&c, "model", &err), err, "not a multiple");
    c = good;
    c.layer_window[1] = 4;
    c.layer_window[2] = 5;
    check_refused(bd_model_config_check(&c, "model", &err), err, "windows 4 and 5");
    c = good;
    c.qkv_bias = true; // but no output bias: no such Qwen3
    check_refused(bd_model_config_check(&c, "model", &err), err, "qwen3 models do not have");
    c = good;
    c.family = BD_FAMILY_LLAMA;
    check_refused(bd_model_config_check(&c, "model", &err), err, "llama models do not have");
    c = good;
    c.rope.theta = NAN;
    check_refused(bd_model_config_check(&c, "model", &err), err, "rope_theta");
    c = good;
    c.stop_count = 1;
    c.stop[0] = 97;
    check_refused(bd_model_config_check(&c, "model", &err), err,
                  "eos_token_id is 97, 0 to 96 expected");
}

static void written_configurations_read_back(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{" QWEN3
        ", \"tie_word_embeddings\": true, \"rope_theta\": 1000000, \"eos_token_id\": [1, 2]}",
        "{" QWEN2
        ", \"use_sliding_window\": true, \"sliding_window\": 9, \"max_window_layers\": 2}",
        "{" LLAMA ", \"attention_bias\": true, \"bos_token_id\": 1, \"torch_dtype\": \"bfloat16\", "
        "\"rope_scaling\": {\"rope_type\": \"llama3\", \"factor\": 8.0, \"low_freq_factor\": 1.0, "
        "\"high_freq_factor\": 4.0, \"original_max_position_embeddings\": 8192}}",
        "{" QWEN3 ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0, \"mscale\": 1.0, "
        "\"mscale_all_dim\": 0.5, \"original_max_position_embeddings\": 32768}}",
        "{" QWEN3 ", \"block_diffusion\": {\"block_size\": 8, \"mask_token_id\": 96, "
        "\"logit_alignment\": \"shifted\", \"canvas_policy\": \"seed_and_mask\"}}",
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        bd_error err = {0};
        bd_model_config c = read_ok(texts[i]), again;
        json_t *root = bd_model_config_to_json(&c);
        const char *path = scratch_path("written.json");
        check_ok(bd_json_save(root, path, &err), err);
        check_ok(bd_model_config_read(path, &again, &err), err);
        json_t *second = bd_model_config_to_json(&again);
        assert_true(json_equal(root, second));
        assert_true(again.rope.theta == c.rope.theta && again.rope.factor == c.rope.factor);
        assert_true(again.rope.attention_factor == c.rope.attention_factor);
        assert_memory_equal(again.layer_window, c.layer_window, sizeof c.layer_window);
        assert_memory_equal(again.stop, c.stop, sizeof c.stop);
        assert_int_equal(again.dtype, c.dtype);
        assert_int_equal(again.diffusion.block_size, c.diffusion.block_size);
        assert_int_equal(again.diffusion.shifted, c.diffusion.shifted);
        json_decref(root);
        json_decref(second);
    }
    bd_model_config c = read_ok(texts[1]);
    json_t *root = bd_model_config_to_json(&c);
    assert_string_equal(
        json_string_value(json_array_get(json_object_get(root, "architectures"), 0)),
        "Qwen2ForCausalLM");
    assert_int_equal(json_integer_value(json_object_get(root, "max_window_layers")), 2);
    assert_int_equal(json_integer_value(json_object_get(root, "sliding_window")), 9);
    assert_true(json_is_null(json_object_get(root, "eos_token_id")));
    assert_null(json_object_get(root, "attention_bias")); // Qwen2 has no such field
    json_decref(root);
}

/* Wanted values were computed apart from this program, in double, from the published formulas. */
static void rope_frequencies(void **state)
{
    (void)state;
    static const struct {
        bd_rope_config rope;
        float factor;
        struct {
            int index;
            double value;
        } wanted[6];
    } cases[] = {
        {{BD_ROPE_DEFAULT, 10000, 1, 0, 0, 0, 0, 0, 0}, 1, {{0, 1}, {32, 0.01}, {48, 0.001}}},
        {{BD_ROPE_LINEAR, 10000, 4, 0, 0, 0, 0, 0, 0}, 1, {{0, 0.25}, {32, 0.0025}, {48, 0.00025}}},
        {{BD_ROPE_LLAMA3, 500000, 8, 1, 4, 8192, 0, 0, 0},
         1,
         {{16, 0.0376060309309},
          {28, 0.00321144599475},
          {30, 0.00137189356776},
          {33, 0.000312693750384},
          {36, 7.78465527393e-05},
          {63, 3.06892598891e-07}}},
        {{BD_ROPE_YARN, 1e6, 4, 0, 0, 32768, 32, 1, 0},
         1.13862944f,
         {{20, 0.0133352143216},
          {24, 0.00537532149079},
          {30, 0.00106436098125},
          {36, 0.000179841155874},
          {40, 4.4456985251e-05},
          {63, 3.10234440188e-07}}},
        {{BD_ROPE_YARN, 1e6, 48, 0, 0, 4096, 1, 1, 1},
         1,
         {{24, 0.0056234132519},
          {29, 0.00191095297497},
          {30, 0.00153992652606},
          {31, 2.58528700157e-05},
          {40, 3.70474877091e-06},
          {63, 2.58528700157e-08}}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        double frequency[64];
        float factor = 0;
        bd_rope_frequencies(&cases[i].rope, 128, frequency, &factor);
        check_near(factor, cases[i].factor, 1e-7);
        for (int w = 0; w < 6 && cases[i].wanted[w].value > 0; w++)
            check_near(frequency[cases[i].wanted[w].index] / cases[i].wanted[w].value, 1, 1e-10);
    }
}

static void yarn_details(void **state)
{
    (void)state;
    bd_model_config c = read_ok("{" QWEN3 ", \"max_position_embeddings\": 4096, "
                                "\"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4.0}}");
    assert_true(c.rope.original_positions == 4096 && c.rope.beta_fast == 32 &&
                c.rope.beta_slow == 1);
    assert_true(c.rope.attention_factor == 0); // derived: 0.1 ln 4 + 1
    c = read_ok("{" QWEN3
                ", \"max_position_embeddings\": 4096, \"rope_scaling\": {\"type\": \"yarn\", "
                "\"original_max_position_embeddings\": 1024}}");
    assert_true(c.rope.factor == 4);
    c = read_ok("{" QWEN3
                ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"mscale\": 1.0, "
                "\"mscale_all_dim\": 1.0}}");
    assert_true(c.rope.attention_factor == 1);
    c = read_ok("{" QWEN3
                ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 40, \"mscale\": 0.707, "
                "\"mscale_all_dim\": 1.0}}");
    check_near(c.rope.attention_factor, 0.921042355, 1e-9); // (0.0707 ln 40 + 1) / (0.1 ln 40 + 1)
    c = read_ok("{" QWEN3 ", \"rope_scaling\": {\"type\": \"yarn\", \"factor\": 4, "
                "\"attention_factor\": 1.5}}");
    assert_true(c.rope.attention_factor == 1.5);
}

static void truncated_files_are_refused(void **state)
{
    (void)state;
    static const char text[] = "{" QWEN3 ", \"eos_token_id\": [1, 2], \"rope_scaling\": null}";
    for (size_t cut = 0; cut + 1 < sizeof text; cut++) {
        bd_model_config c;
        bd_error err = {0};
        const char *path = scratch_write("config.json", text, cut);
        check_refused(bd_model_config_read(path, &c, &err), err, "config.json:1:");
    }
    bd_model_config c;
    bd_error err = {0};
    check_refused(bd_model_config_read("/nonexistent/config.json", &c, &err), err, "cannot open");
}

static void corpus(void **state)
{
    (void)state;
    scratch_replay("model_config", LLVMFuzzerTestOneInput);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_folders),
        cmocka_unit_test(spellings_old_and_new),
        cmocka_unit_test(windows_by_layer),
        cmocka_unit_test(meanings_not_known_are_refused),
        cmocka_unit_test(every_required_size),
        cmocka_unit_test(check_finds_what_cannot_be),
        cmocka_unit_test(written_configurations_read_back),
        cmocka_unit_test(rope_frequencies),
        cmocka_unit_test(yarn_details),
        cmocka_unit_test(truncated_files_are_refused),
        cmocka_unit_test(corpus),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
