/* Every rule of a draft's configuration that can be broken, one row each: draft-family 9,
 * dflash2-lilicorr 7, decisions 13 to 16, 21, 24, 25. A checkpoint holds its draft's config.json
 * and its recipe, so a resume passes the same two readers again. */
#include <math.h>

#include "draft/step.h"
#include "format/json.h"
#include "format/recipe.h"
#include "micro.h"

// --- settings of a recipe ------------------------------------------------------------------------

static void defaults(void **state)
{
    (void)state;
    static const struct {
        const char *option, *value; // as JSON
    } rows[] = {
        {"projector_type", "\"dflash\""},
        {"block_size", "8"},
        {"self_logit_distillation", "true"},
        {"loss_decay_factor", "0.0"},
        {"loss_objective", "\"dpace\""},
        {"dpace_alpha", "0.5"},
        {"num_anchors", "512"},
        {"attention_sink", "false"},
        {"draft_attention", "\"bidirectional\""},
        {"num_hidden_layers", "5"},
        {"lambda_base_start", "1.0"},
        {"lambda_base_decay_ratio", "1.0"},
        {"ce_loss_alpha", "0.1"},
        {"l1_loss_alpha", "0.9"},
        {"confidence_head_alpha", "0.0"},
        {"pure_draft_prefix_len", "1"},
        {"markov_head_type", "\"vanilla\""},
        {"use_confidence_head", "false"},
        {"selector_loss_alpha", "1.0"},
        {"lk_loss_type", "\"ce\""},
        {"lk_ce_scale", "1.0"},
        {"lk_ce_decay", "1.0"},
        {"lilicorr_w_cal", "0.0"},
        {"conv_projection_init_std", "0.0"},
    };
    static const char *const unset[] = {"mask_token_id",   "target_layer_ids", "swa_window_size",
                                        "init_checkpoint", "lilicorr_w_ce",    "lilicorr_w_margin",
                                        "lilicorr_w_pen",  "lilicorr_margin"};
    bd_recipe *recipe = bd_recipe_default();
    json_t *all = bd_recipe_to_json(recipe), *draft = json_object_get(all, "draft");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *want = json_loads(rows[i].value, JSON_DECODE_ANY, NULL);
        json_t *got = json_object_get(json_object_get(draft, rows[i].option), "value");
        bool same = json_is_number(want) ? got && json_number_value(got) == json_number_value(want)
                                         : json_equal(got, want);
        if (!same)
            fail_msg("draft.%s: the default is not %s", rows[i].option, rows[i].value);
        json_decref(want);
    }
    for (size_t i = 0; i < sizeof unset / sizeof unset[0]; i++) {
        char name[100];
        snprintf(name, sizeof name, "draft.%s", unset[i]);
        if (bd_recipe_has(recipe, name))
            fail_msg("%s has a default", name);
    }
    json_decref(all);
    bd_recipe_free(recipe);
}

static void settings(void **state)
{
    (void)state;
    static const struct {
        const char *assignment, *words;
    } rows[] = {
        {"projector_type=medusa", "dflash, dspark, domino, dflash2, lilicorr"},
        {"no_such_field=1", "no_such_field"},
        {"block_size=0", "block_size"},
        {"block_size=eight", "block_size"},
        {"num_anchors=0", "num_anchors"},
        {"loss_objective=cosine", "loss_objective"},
        {"dpace_alpha=0", "dpace_alpha"},
        {"dpace_alpha=1.5", "dpace_alpha"},
        {"dpace_alpha=nan", "dpace_alpha"},
        {"loss_decay_factor=-1", "loss_decay_factor"},
        {"draft_attention=sideways", "draft_attention"},
        {"swa_window_size=0", "swa_window_size"},
        {"mask_token_id=-1", "mask_token_id"},
        {"target_layer_ids=1,-2", "target_layer_ids"},
        {"lambda_base_start=1.1", "lambda_base_start"},
        {"lambda_base_start=-0.1", "lambda_base_start"},
        {"lambda_base_decay_ratio=0", "lambda_base_decay_ratio"},
        {"lambda_base_decay_ratio=1.1", "lambda_base_decay_ratio"},
        {"ce_loss_alpha=-1", "ce_loss_alpha"},
        {"l1_loss_alpha=-1", "l1_loss_alpha"},
        {"confidence_head_alpha=-1", "confidence_head_alpha"},
        {"markov_rank=0", "markov_rank"},
        {"markov_head_type=lstm", "markov_head_type"},
        {"emb_dim=0", "emb_dim"},
        {"gru_hidden_dim=0", "gru_hidden_dim"},
        {"pure_draft_prefix_len=-1", "pure_draft_prefix_len"},
        {"conv_kernel_size=0", "conv_kernel_size"},
        {"conv_group_size=0", "conv_group_size"},
        {"selector_rank=0", "selector_rank"},
        {"selector_top_k=0", "selector_top_k"},
        {"selector_loss_alpha=-1", "selector_loss_alpha"},
        {"lk_loss_type=kl", "lk_loss_type"},
        {"lk_ce_scale=-1", "lk_ce_scale"},
        {"lk_ce_decay=-1", "lk_ce_decay"},
        {"lilicorr_candidate_topk=0", "lilicorr_candidate_topk"},
        {"lilicorr_num_layers=0", "lilicorr_num_layers"},
        {"lilicorr_mlp_ratio=0", "lilicorr_mlp_ratio"},
        {"lilicorr_factor_dim=0", "lilicorr_factor_dim"},
        {"lilicorr_vector_eps=0", "lilicorr_vector_eps"},
        {"lilicorr_vector_eps=0.6", "lilicorr_vector_eps"},
        {"lilicorr_logit_scale=0", "lilicorr_logit_scale"},
        {"lilicorr_w_ce=-1", "lilicorr_w_ce"},
        {"lilicorr_w_margin=inf", "lilicorr_w_margin"},
        {"lilicorr_w_pen=nan", "lilicorr_w_pen"},
        {"lilicorr_w_cal=-0.5", "lilicorr_w_cal"},
        {"lilicorr_w_cal=inf", "lilicorr_w_cal"},
        {"lilicorr_margin=0", "lilicorr_margin"},
        {"conv_projection_init_std=-0.1", "conv_projection_init_std"},
        // What is dropped says why.
        {"use_torch_compile=true", "no graph compiler"},
        {"use_flex_attention=true", "block-sparse kernel"},
        {"freeze_base_model=false", "never trained with its draft"},
        {"fp32_master_weights=false", "always fp32"},
        {"offline=true", "follows from the data"},
        {"report_acc=false", "always logged"},
    };
    bd_recipe *recipe = bd_recipe_default();
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bd_error err = {0};
        char assignment[200];
        snprintf(assignment, sizeof assignment, "draft.%s", rows[i].assignment);
        if (bd_recipe_set(recipe, assignment, &err))
            fail_msg("%s was taken", assignment);
        if (!strstr(err.message, rows[i].words))
            fail_msg("%s: \"%s\" does not contain \"%s\"", assignment, err.message, rows[i].words);
    }
    // Their "off" values mean what bdlm does anyhow (decision 21).
    static const char *const off[] = {
        "draft.use_torch_compile=false", "draft.use_flex_attention=false",
        "draft.freeze_base_model=true", "draft.fp32_master_weights=true"};
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++) {
        bd_error err = {0};
        check_ok(bd_recipe_set(recipe, off[i], &err), err);
    }
    bd_recipe_free(recipe);
}

// --- config.json ---------------------------------------------------------------------------------

static json_t *sound(const bd_draft_variant *variant)
{
    bd_error err = {0};
    bd_model_config target = micro_target_config();
    bd_draft_config c = micro_draft_config(), again;
    c.variant = variant;
    c.markov = (bd_markov_config){.rank = 4};
    c.domino = (bd_domino_config){.state = 6, .width = 5, .pure_prefix = 1};
    if (variant == &bd_draft_dflash2 || variant == &bd_draft_lilicorr)
        c.convolution = (bd_convolution_config){.kernel_size = 2, .group_size = 4};
    c.selector = (bd_selector_config){.rank = 3, .top_k = 3};
    c.lilicorr = (bd_lilicorr_config){.top_k = 3,
                                      .hidden = 8,
                                      .layers = 1,
                                      .heads = 2,
                                      .factor = 8,
                                      .mlp_ratio = 2,
                                      .vector_eps = 1e-4,
                                      .logit_scale = 8};
    check_ok(bd_draft_config_complete(&c, &target, &err), err);
    json_t *root = bd_draft_config_to_json(&c);
    check_ok(bd_draft_config_parse(root, "draft", &again, &err), err);
    return root;
}

/* Fields of `patch` replace those of the file where they stand; null takes one away. */
static void apply_patch(json_t *root, const char *patch)
{
    json_t *changes = json_loads(patch, 0, NULL), *value;
    json_t *nested = json_object_get(root, "dflash_config");
    const char *name;
    assert_non_null(changes);
    json_object_foreach(changes, name, value)
    {
        json_t *home =
            json_object_get(root, name) && !json_object_get(nested, name) ? root : nested;
        if (json_is_null(value)) {
            json_object_del(root, name);
            json_object_del(nested, name);
        } else
            json_object_set(home, name, value);
    }
    json_decref(changes);
}

static void files(void **state)
{
    (void)state;
    static const struct {
        const bd_draft_variant *variant;
        const char *patch, *words;
    } rows[] = {
        {&bd_draft_dflash, "{\"projector_type\": \"medusa\"}", "lilicorr"},
        {&bd_draft_dflash, "{\"no_such_field\": 3}", "no_such_field"},
        {&bd_draft_dflash, "{\"use_flex_attention\": true}", "use_flex_attention"},
        {&bd_draft_dflash, "{\"block_size\": 0}", "block_size"},
        {&bd_draft_dflash, "{\"use_swa\": true, \"swa_window_size\": 3}", "must be >= block_size"},
        {&bd_draft_dflash, "{\"mask_token_id\": null}", "mask_token_id"},
        {&bd_draft_dflash, "{\"mask_token_id\": 11}", "mask_token_id"},
        {&bd_draft_dflash, "{\"target_layer_ids\": null}", "target_layer_ids"},
        {&bd_draft_dflash, "{\"shift_label\": true}", "first slot is its anchor"},
        {&bd_draft_dflash, "{\"attention_dropout\": -1}", "attention_dropout"},
        {&bd_draft_domino, "{\"shift_label\": false}", "shift_label"},
        {&bd_draft_domino, "{\"emb_dim\": null}", "emb_dim"},
        {&bd_draft_domino, "{\"gru_hidden_dim\": null}", "gru_hidden_dim"},
        {&bd_draft_domino, "{\"pure_draft_prefix_len\": 4}", "pure_draft_prefix_len"},
        {&bd_draft_dspark, "{\"markov_rank\": null}", "markov_rank"},
        {&bd_draft_dspark, "{\"markov_rank\": 0}", "markov_rank"},
        {&bd_draft_dspark, "{\"markov_head_type\": \"lstm\"}", "markov_head_type"},
        {&bd_draft_dflash2, "{\"conv_kernel_size\": null}", "conv_kernel_size"},
        {&bd_draft_dflash2, "{\"conv_group_size\": null}", "conv_group_size"},
        {&bd_draft_dflash2, "{\"selector_rank\": null}", "selector_rank"},
        {&bd_draft_dflash2, "{\"selector_top_k\": null}", "selector_top_k"},
        {&bd_draft_dflash2, "{\"selector_rank\": true}", "selector_rank"},
        {&bd_draft_dflash2, "{\"selector_top_k\": 12}", "selector_top_k"},
        {&bd_draft_dflash2, "{\"conv_kernel_size\": 5}", "must not exceed block_size"},
        {&bd_draft_dflash2, "{\"conv_group_size\": 3}", "divide hidden_size"},
        {&bd_draft_lilicorr, "{\"lilicorr_enabled\": false}", "lilicorr_enabled"},
        {&bd_draft_lilicorr, "{\"lilicorr_candidate_topk\": null}", "lilicorr_candidate_topk"},
        {&bd_draft_lilicorr, "{\"lilicorr_candidate_topk\": 12}", "exceeds the vocabulary size"},
        {&bd_draft_lilicorr, "{\"lilicorr_num_layers\": true}", "lilicorr_num_layers"},
        {&bd_draft_lilicorr, "{\"lilicorr_num_heads\": 3}", "lilicorr_num_heads"},
        {&bd_draft_lilicorr, "{\"lilicorr_mlp_ratio\": null}", "lilicorr_mlp_ratio"},
        {&bd_draft_lilicorr, "{\"lilicorr_factor_dim\": 0}", "lilicorr_factor_dim"},
        {&bd_draft_lilicorr, "{\"lilicorr_vector_eps\": 0.5}", "(0, 0.5)"},
        {&bd_draft_lilicorr, "{\"lilicorr_logit_scale\": 0}", "lilicorr_logit_scale must be > 0"},
        {&bd_draft_lilicorr, "{\"block_size\": 1, \"conv_kernel_size\": 1}", "at least 2"},
        {&bd_draft_lilicorr, "{\"conv_group_size\": null}", "without conv_group_size"},
        {&bd_draft_lilicorr, "{\"conv_kernel_size\": null}", "without conv_kernel_size"},
        {&bd_draft_lilicorr, "{\"conv_projection_init_std\": -1}", "conv_projection_init_std"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        bd_error err = {0};
        bd_draft_config c;
        json_t *root = sound(rows[i].variant);
        apply_patch(root, rows[i].patch);
        if (bd_draft_config_parse(root, "draft", &c, &err))
            fail_msg("%s was taken for %s", rows[i].patch, rows[i].variant->projector_type);
        if (!strstr(err.message, rows[i].words))
            fail_msg("%s: \"%s\" does not contain \"%s\"", rows[i].patch, err.message,
                     rows[i].words);
        json_decref(root);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults),
        cmocka_unit_test(settings),
        cmocka_unit_test(files),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
