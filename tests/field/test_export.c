/* Exported drafts that other programs loaded and then ran badly. Numbers and links are those of the
 * project's list of field reports. */
#include <unistd.h>

#include "base/file.h"
#include "draft/export.h"
#include "draft/golden.h"
#include "format/gguf.h"

static char folder[64], file[80];

static int begin(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/bdlm-export-%ld", (long)getpid());
    snprintf(file, sizeof file, "%s/x.gguf", folder);
    return 0;
}

static int end(void **state)
{
    (void)state;
    bd_error err = {0};
    return bd_folder_remove(folder, &err) ? 0 : 1;
}

static const struct {
    const char *draft, *target;
    int layouts; // bits of bd_draft_layout
} drafts[] = {{"draft-dflash", "target-qwen3-tiny", 15},
              {"draft-dflash2", "target-llama-tiny", 15},
              {"draft-domino", "target-qwen3-tiny", 5},
              {"draft-dspark-rnn", "target-qwen2-tiny", 7},
              {"draft-lilicorr-conv", "target-qwen3-tiny", 3}};
enum { DRAFTS = sizeof drafts / sizeof *drafts };

static json_t *exported_config(void)
{
    char path[100];
    bd_error err = {0};
    snprintf(path, sizeof path, "%s/config.json", folder);
    json_t *root = bd_json_load(path, &err);
    if (!root)
        fail_msg("%s", err.message);
    return root;
}

/* #30 vllm#56792 (https://github.com/vllm-project/vllm/issues/56792): whether slot 0 predicts was
 * not in the file. #31: nor were the tapped layers. #35 and #37: what is written can be opened
 * again, and has the same bytes. */
static void every_layout_says_what_it_is(void **state)
{
    (void)state;
    bd_error err = {0};
    for (int i = 0; i < DRAFTS; i++)
        for (int layout = 0; layout < 4; layout++) {
            bd_model *target = golden_target(drafts[i].target, BD_F32);
            bd_draft *draft = golden_draft(drafts[i].draft, target, BD_F32);
            if (!(drafts[i].layouts & 1 << layout)) {
                check_refused(bd_draft_export(draft, (bd_draft_layout)layout, folder, &err), err,
                              draft->config.variant->projector_type);
                bd_draft_close(draft);
                bd_model_close(target);
                continue;
            }
            check_ok(bd_draft_export(draft, (bd_draft_layout)layout, folder, &err), err);
            json_t *root = exported_config(), *nested = json_object_get(root, "dflash_config");
            json_t *shift = json_object_get(nested, "shift_label");
            assert_true(json_is_boolean(shift));
            assert_int_equal(json_is_true(shift), draft->config.variant->label_shift);
            assert_int_equal(json_array_size(json_object_get(nested, "target_layer_ids")),
                             draft->config.tap_count);
            assert_int_equal(json_integer_value(json_object_get(root, "num_target_layers")),
                             target->config.layers);
            json_decref(root);
            bd_draft *again = bd_draft_open(folder, target, BD_F32, &err);
            check_ok(again != NULL, err);
            assert_int_equal(again->parameters.count, draft->parameters.count);
            for (int64_t t = 0; t < draft->parameters.count; t++) {
                const bd_parameter *a = draft->parameters.items[t], *b = again->parameters.items[t];
                assert_string_equal(a->name, b->name);
                assert_int_equal(a->dtype, b->dtype);
                assert_memory_equal(a->data, b->data, (size_t)a->count * bd_dtype_size(a->dtype));
            }
            bd_draft_close(again);
            bd_draft_close(draft);
            bd_model_close(target);
        }
}

/* #37 speculators#1006 (https://github.com/vllm-project/speculators/pull/1006): the fields of a
 * plain draft are exactly those of draft-family 8.2, and the layout of a block. */
static void the_plain_configuration_has_its_keys(void **state)
{
    (void)state;
    static const char *const keys[] = {"architectures",
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
    bd_error err = {0};
    bd_model *target = golden_target("target-qwen3-tiny", BD_F32);
    bd_draft *draft = golden_draft("draft-dflash", target, BD_F32);
    check_ok(bd_draft_export(draft, BD_LAYOUT_MODELOPT, folder, &err), err);
    json_t *root = exported_config(), *value;
    const char *key;
    size_t i = 0;
    json_object_foreach(root, key, value)
    {
        assert_true(i < sizeof keys / sizeof *keys);
        assert_string_equal(key, keys[i++]);
    }
    assert_int_equal(i, sizeof keys / sizeof *keys);
    json_decref(root);
    bd_draft_close(draft);
    bd_model_close(target);
}

/* #32 vllm#42704 (https://github.com/vllm-project/vllm/pull/42704): layers off by one, the last one
 * out of range. #39 llama.cpp#25733 (https://github.com/ggml-org/llama.cpp/pull/25733): a draft
 * without its target's tokenizer. Checked before anything is written. */
static void gguf_refuses_what_cannot_be_read(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_tokenizer *tokenizer = NULL; // not reached
    bd_model *target = golden_target("target-qwen3-tiny", BD_F32);
    bd_draft *draft = golden_draft("draft-dflash", target, BD_F32);
    draft->config.taps[0] = target->config.layers - 1;
    check_refused(bd_draft_export_gguf(draft, tokenizer, BD_FLAVOR_MAINLINE, NULL, file, &err), err,
                  "target_layer_ids has layer 4");
    draft->config.taps[0] = draft->config.taps[1];
    check_refused(bd_draft_export_gguf(draft, tokenizer, BD_FLAVOR_IK, NULL, file, &err), err,
                  "twice");
    draft->config.taps[0] = -1;
    check_refused(bd_draft_export_gguf(draft, tokenizer, BD_FLAVOR_IK, NULL, file, &err), err,
                  "has layer -1");
    draft->config.tap_count = 9;
    check_refused(bd_draft_export_gguf(draft, tokenizer, BD_FLAVOR_IK, NULL, file, &err), err,
                  "at most 8");
    bd_draft_close(draft);
    draft = golden_draft("draft-domino", target, BD_F32);
    check_refused(bd_draft_export_gguf(draft, tokenizer, BD_FLAVOR_MAINLINE, NULL, file, &err), err,
                  "no domino head");
    bd_draft_close(draft);
    bd_model_close(target);
    assert_false(bd_file_exists(file));
}

/* Names of a file from before the heads and the fusion were renamed (draft-family 8.5). */
static void old_names_are_read(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model *target = golden_target("target-qwen3-tiny", BD_F32);
    bd_draft *draft = golden_draft("draft-dspark-vanilla", target, BD_F32);
    check_ok(bd_draft_export(draft, BD_LAYOUT_MODELOPT, folder, &err), err);
    bd_tensor tensors[100];
    char path[100];
    int64_t count = draft->parameters.count;
    for (int64_t i = 0; i < count; i++) {
        const bd_parameter *p = draft->parameters.items[i];
        const char *name = !strcmp(p->name, "fc.weight") ? "encoder.fc.weight"
                           : !strcmp(p->name, "hidden_norm.weight")
                               ? "encoder.output_norm_enc.weight"
                           : !strcmp(p->name, "markov_w1.weight") ? "logit_head.markov_w1.weight"
                                                                  : p->name;
        tensors[i] = (bd_tensor){
            .name = name, .dtype = p->dtype, .rank = p->rank, .count = p->count, .data = p->data};
        memcpy(tensors[i].shape, p->shape, sizeof p->shape);
    }
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    check_ok(bd_safetensors_write(path, tensors, count, NULL, &err), err);
    bd_draft *again = bd_draft_open(folder, target, BD_F32, &err);
    check_ok(again != NULL, err);
    assert_memory_equal(again->fc->data, draft->fc->data,
                        (size_t)draft->fc->count * bd_dtype_size(draft->fc->dtype));
    bd_draft_close(again);
    bd_draft_close(draft);
    bd_model_close(target);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layout_says_what_it_is),
        cmocka_unit_test(the_plain_configuration_has_its_keys),
        cmocka_unit_test(gguf_refuses_what_cannot_be_read),
        cmocka_unit_test(old_names_are_read),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
