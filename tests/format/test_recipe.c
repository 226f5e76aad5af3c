#include "scratch.h"

#include "../../fuzz/fuzz_recipe.c"

#include "format/recipe.h"

static bd_recipe *parse(const char *text)
{
    bd_error err = {0};
    bd_recipe *recipe = bd_recipe_parse(text, strlen(text), "r.yaml", &err);
    check_ok(recipe != NULL, err);
    return recipe;
}

static void the_table_is_sound(void **state)
{
    (void)state;
    for (int i = 0; i < bd_recipe_option_count(); i++) {
        const bd_recipe_option *a = bd_recipe_option_at(i);
        assert_true(a->section[0] && a->key[0] && a->help[0] && strlen(a->help) < 90);
        assert_true(a->low <= a->high);
        assert_true((a->type == BD_OPTION_WORD) == (a->words != NULL));
        for (int j = 0; j < i; j++) {
            const bd_recipe_option *b = bd_recipe_option_at(j);
            if (!strcmp(a->section, b->section) && !strcmp(a->key, b->key))
                fail_msg("%s.%s is in the table twice", a->section, a->key);
        }
        // Sections are runs of rows: a section that begins twice would be a typing error.
        if (i > 0 && strcmp(a->section, bd_recipe_option_at(i - 1)->section))
            for (int j = 0; j < i; j++)
                if (!strcmp(bd_recipe_option_at(j)->section, a->section))
                    fail_msg("section %s begins twice", a->section);
    }
    bd_recipe *recipe = bd_recipe_default(); // every default passes its own type and range
    assert_non_null(recipe);
    for (int i = 0; i < bd_recipe_option_count(); i++) {
        const bd_recipe_option *option = bd_recipe_option_at(i);
        char name[128];
        snprintf(name, sizeof name, "%s.%s", option->section, option->key);
        assert_int_equal(bd_recipe_has(recipe, name), option->fallback != NULL);
        assert_string_equal(bd_recipe_origin(recipe, name), "default");
    }
    bd_recipe_free(recipe);
}

static void defaults_of_the_specification(void **state)
{
    (void)state;
    bd_recipe *r = bd_recipe_default();
    assert_true(bd_recipe_is(r, "objective.kind", "causal_lm"));
    assert_int_equal(bd_recipe_int(r, "objective.block_size"), 32);
    assert_int_equal(bd_recipe_int(r, "objective.mask_id"), -1);
    assert_true(bd_recipe_number(r, "objective.min_noise") == 1e-3);
    assert_true(bd_recipe_is(r, "objective.logit_alignment", "same_position"));
    assert_true(bd_recipe_is(r, "objective.canvas_policy", "all_masked"));
    assert_true(bd_recipe_number(r, "rollout.threshold") == 0.9);
    assert_int_equal(bd_recipe_int(r, "rollout.max_denoise_steps"), -1);
    assert_int_equal(bd_recipe_int(r, "draft.block_size"), 8);
    assert_int_equal(bd_recipe_int(r, "draft.num_anchors"), 512);
    assert_true(bd_recipe_is(r, "draft.loss_objective", "dpace"));
    assert_true(bd_recipe_number(r, "draft.loss_decay_factor") == 0);
    assert_true(bd_recipe_number(r, "draft.dpace_alpha") == 0.5);
    assert_true(bd_recipe_bool(r, "draft.self_logit_distillation"));
    assert_int_equal(bd_recipe_int(r, "draft.num_hidden_layers"), 5);
    static const char *const required[] = {"draft.num_attention_heads", "draft.num_key_value_heads",
                                           "draft.head_dim", "draft.intermediate_size",
                                           "draft.mask_token_id"};
    for (size_t i = 0; i < sizeof required / sizeof required[0]; i++) {
        bd_error err = {0};
        check_refused(bd_recipe_require(r, required[i], "to train a draft", &err), err,
                      required[i]);
        check_refused(bd_recipe_require(r, required[i], "to train a draft", &err), err,
                      "is not set and has no default; it is needed to train a draft");
    }
    bd_recipe_free(r);
}

static void values_and_where_they_came_from(void **state)
{
    (void)state;
    bd_recipe *r = parse("# comment\n"
                         "model: {hidden_size: 64, tie_word_embeddings: false}\n"
                         "data:\n"
                         "  train_files: [a.txt, \"b c.gz\", 7]\n"
                         "train:\n"
                         "  lr: 3e-4   # as Python's YAML would not read it\n"
                         "  schedule: \"cosine\"\n"
                         "  warmup_steps: ~\n"
                         "draft:\n"
                         "  target_layer_ids:\n"
                         "  - 1\n"
                         "  - 9\n"
                         "log:\n");
    assert_int_equal(bd_recipe_int(r, "model.hidden_size"), 64);
    assert_false(bd_recipe_bool(r, "model.tie_word_embeddings"));
    assert_true(bd_recipe_number(r, "train.lr") == 3e-4);
    assert_string_equal(bd_recipe_word(r, "train.schedule"), "cosine");
    assert_int_equal(bd_recipe_choice(r, "train.schedule"), 2);
    assert_true(bd_recipe_is(r, "train.schedule", "cosine"));
    assert_false(bd_recipe_has(r, "train.warmup_steps"));
    int64_t count;
    const char *const *files = bd_recipe_texts(r, "data.train_files", &count);
    assert_int_equal(count, 3);
    assert_string_equal(files[1], "b c.gz");
    assert_string_equal(files[2], "7");
    const int64_t *ids = bd_recipe_ints(r, "draft.target_layer_ids", &count);
    assert_int_equal(count, 2);
    assert_int_equal(ids[1], 9);
    assert_null(bd_recipe_text(r, "log.folder"));
    assert_string_equal(bd_recipe_origin(r, "train.lr"), "r.yaml:6");
    assert_string_equal(bd_recipe_origin(r, "draft.target_layer_ids"), "r.yaml:10");
    assert_string_equal(bd_recipe_origin(r, "train.clip"), "default");

    bd_error err = {0};
    check_ok(bd_recipe_set(r, "train.lr=0.01", &err), err);
    check_ok(bd_recipe_set(r, "log.folder=runs/a=b c", &err), err);
    check_ok(bd_recipe_set(r, "draft.target_layer_ids=[2, 4 ,6]", &err), err);
    check_ok(bd_recipe_set(r, "rollout.stop_token_ids=7", &err), err);
    check_ok(bd_recipe_assign(r, "train.max_steps", "12", "--max-steps", &err), err);
    assert_true(bd_recipe_number(r, "train.lr") == 0.01);
    assert_string_equal(bd_recipe_text(r, "log.folder"), "runs/a=b c");
    ids = bd_recipe_ints(r, "draft.target_layer_ids", &count);
    assert_true(count == 3 && ids[0] == 2 && ids[2] == 6);
    ids = bd_recipe_ints(r, "rollout.stop_token_ids", &count);
    assert_true(count == 1 && ids[0] == 7);
    assert_string_equal(bd_recipe_origin(r, "train.lr"), "command line");
    assert_string_equal(bd_recipe_origin(r, "train.max_steps"), "--max-steps");
    check_ok(bd_recipe_set(r, "rollout.stop_token_ids=[]", &err), err);
    bd_recipe_ints(r, "rollout.stop_token_ids", &count);
    assert_int_equal(count, 0);
    check_ok(bd_recipe_set(r, "log.folder=null", &err), err);
    assert_false(bd_recipe_has(r, "log.folder"));

    json_t *root = bd_recipe_to_json(r);
    json_t *lr = json_object_get(json_object_get(root, "train"), "lr");
    assert_true(json_real_value(json_object_get(lr, "value")) == 0.01);
    assert_string_equal(json_string_value(json_object_get(lr, "from")), "command line");
    json_t *list = json_object_get(json_object_get(root, "draft"), "target_layer_ids");
    assert_int_equal(json_array_size(json_object_get(list, "value")), 3);
    json_t *folder = json_object_get(json_object_get(root, "log"), "folder");
    assert_true(json_is_null(json_object_get(folder, "value")));
    json_decref(root);
    bd_recipe_free(r);
}

static void errors_in_files(void **state)
{
    (void)state;
    static const struct {
        const char *text, *message;
    } bad[] = {
        {"train:\n  lr: fast\n",
         "r.yaml:2: train.lr: found \"fast\", a number from 0 to 10 expected"},
        {"train:\n  lr: \"1\"\n", "found the text \"1\", a number"},
        {"train:\n  lr: 11\n", "found \"11\", a number from 0 to 10 expected"},
        {"train:\n  lr: nan\n", "found \"nan\""},
        {"train:\n  lr: 0x1\n", "found \"0x1\""},
        {"train:\n  lr: [1]\n", "found a list, a number"},
        {"train:\n  lr:\n", "found null, a number"},
        {"train:\n  max_steps: 1.5\n", "found \"1.5\", an integer from 1 to 1e+15 expected"},
        {"train:\n  max_steps: 99999999999999999999\n", "an integer"},
        {"draft: {dpace_alpha: 0}\n", "a number above 0, at most 1 expected"},
        {"train: {schedule: cosin}\n", "found \"cosin\", one of constant, linear, cosine expected"},
        {"model: {tie_word_embeddings: yes}\n", "found \"yes\", true or false expected"},
        {"draft: {target_layer_ids: [1, x]}\n",
         "found \"x\", a list of integers from 0 to 255 expected"},
        {"data: {train_files: ['']}\n", "a list of texts expected"},
        {"train:\n  warmup_step: 1\n", "r.yaml:2: unknown option train.warmup_step; did you mean "
                                       "train.warmup_steps?"},
        {"rollout:\n  temperatur: 1\n", "did you mean rollout.temperature?"},
        {"train:\n  block_size: 1\n", "did you mean objective.block_size?"},
        {"train:\n  learning_rate: 1\n", "did you mean train.lr?"},
        {"draft:\n  dflash_num_anchors: 1\n", "did you mean draft.num_anchors?"},
        {"train:\n  qqqqqqqqqqqqqqqqqqqqqq: 1\n", "unknown option train.qqqqqqqqqqqqqqqqqqqqqq"},
        {"trian:\n  lr: 1\n",
         "r.yaml:1: unknown section \"trian\", one of model, data, objective, draft"},
        {"train:\n  lr: 1\n  clip: 1\n  lr: 2\n",
         "r.yaml:4: train.lr is given twice, first in line 2"},
        {"train: {lr: 1}\ntrain: {lr: 1}\n", "given twice"},
        {"draft: {use_torch_compile: true}\n",
         "which bdlm does not have: there is no graph compiler"},
        {"train: {lr: &x 1, clip: *x}\n", "found an alias, a value or a list of values expected"},
        {"train: *x\n", "found an alias"},
        {"train: {lr: {a: 1}}\n", "found a mapping, a value"},
        {"train: {lr: [[1]]}\n", "found a list, a value expected"},
        {"train: {lr: !!float 1}\n", "found a tag"},
        {"train: 3\n", "found a value, the options of the section expected"},
        {"- 3\n", "found a list, sections with options expected"},
        {"{[1]: 2}\n", "found a list, a section's name expected"},
        {"train: {lr: 1}\n---\n", "r.yaml:2: found a second document"},
        {"train: {lr: 1\n", "r.yaml:2:1: "},
        {"train:\n\tlr: 1\n", "r.yaml:2:"},
        {"log: {folder: \"a\\0b\"}\n", "NUL"},
        {"train:\n  lr: \xff\n", "r.yaml: byte 13: "},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        bd_error err = {0};
        check_refused(bd_recipe_parse(bad[i].text, strlen(bad[i].text), "r.yaml", &err) != NULL,
                      err, bad[i].message);
        if (!strstr(err.message, "r.yaml"))
            fail_msg("\"%s\" does not name the file", err.message);
    }
    bd_error err = {0};
    check_refused(bd_recipe_load("/nonexistent/r.yaml", &err) != NULL, err, "cannot open");
    const char *path = scratch_write_text("r.yaml", "train:\n  lr: x\n");
    check_refused(bd_recipe_load(path, &err) != NULL, err, "/r.yaml:2: train.lr");
}

static void errors_on_the_command_line(void **state)
{
    (void)state;
    static const struct {
        const char *assignment, *message;
    } bad[] = {
        {"train.lr", "section.key=value expected"},
        {"lr=3", "option \"lr\": section.key expected"},
        {".lr=3", "section.key expected"},
        {"train.=3", "section.key expected"},
        {"train.lr=", "found null"},
        {"train.lr=x", "command line: train.lr: found \"x\""},
        {"train.lrr=1", "did you mean train.lr?"},
        {"nowhere.lr=1", "unknown section \"nowhere\""},
        {"draft.target_layer_ids=1,,2", "a list of integers"},
        {"draft.target_layer_ids=[", "found \"[\""},
        {"train.batch_size=0", "found \"0\", an integer from 1"},
        {"train.use_flex=1", "unknown option"},
        {"draft.use_flex_attention=true", "block-sparse kernel is always in use"},
    };
    bd_recipe *r = parse("train: {lr: 0.5}");
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        bd_error err = {0};
        check_refused(bd_recipe_set(r, bad[i].assignment, &err), err, bad[i].message);
        assert_int_equal(err.kind, BD_ERROR_USAGE);
        assert_true(bd_recipe_number(r, "train.lr") == 0.5);
        assert_string_equal(bd_recipe_origin(r, "train.lr"), "r.yaml:1");
    }
    bd_error err = {0};
    check_ok(bd_recipe_set(r, "draft.use_flex_attention=false", &err),
             err); // off: nothing to refuse
    bd_recipe_free(r);
}

static void odd_files_that_are_fine(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "# nothing\n",
                                        "---\n",
                                        "~\n",
                                        "{}\n",
                                        "train:\n",
                                        "train: {}\n",
                                        "\xef\xbb\xbftrain: {lr: 1}\n",
                                        "train: {lr: 1}\r\n",
                                        "--- {train: {lr: 1}}\n...\n",
                                        "train: {fused_optimizer: false}\n"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        bd_recipe_free(parse(texts[i]));
}

static void bombs_are_bounded(void **state)
{
    (void)state;
    static char nested[400000];
    memset(nested, '[', sizeof nested);
    bd_error err = {0};
    check_refused(bd_recipe_parse(nested, sizeof nested, "r.yaml", &err) != NULL, err, "r.yaml:1");
    memset(nested, '{', sizeof nested);
    check_refused(bd_recipe_parse(nested, sizeof nested, "r.yaml", &err) != NULL, err, "r.yaml:1");
    memset(nested, '-', sizeof nested);
    check_refused(bd_recipe_parse(nested, sizeof nested, "r.yaml", &err) != NULL, err, "r.yaml:1");
    static char large[(1 << 20) + 2];
    memset(large, '#', sizeof large);
    const char *path = scratch_write("large.yaml", large, sizeof large);
    check_refused(bd_recipe_load(path, &err) != NULL, err, "at most 1048576 expected");
}

static void corpus(void **state)
{
    (void)state;
    scratch_replay("recipe", LLVMFuzzerTestOneInput);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_is_sound),
        cmocka_unit_test(defaults_of_the_specification),
        cmocka_unit_test(values_and_where_they_came_from),
        cmocka_unit_test(errors_in_files),
        cmocka_unit_test(errors_on_the_command_line),
        cmocka_unit_test(odd_files_that_are_fine),
        cmocka_unit_test(bombs_are_bounded),
        cmocka_unit_test(corpus),
    };
    return cmocka_run_group_tests(tests, scratch_begin, scratch_end);
}
