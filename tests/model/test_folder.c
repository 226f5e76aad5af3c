// Folders: opening, saving, and what is said about folders that do not fit.
#include <unistd.h>

#include "format/json.h"
#include "models.h"

static char folder[BD_PATH];

static int set_up(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/bdlm-test-model-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    bd_error err = {0};
    return bd_folder_remove(folder, &err) ? 0 : -1;
}

static const char *inside(const char *name)
{
    static char path[2 * BD_PATH];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

// --- round trips ---------------------------------------------------------------------------------

static void f32_round_trip(void **state)
{
    (void)state;
    bd_error err = {0};
    for (int family = 0; family < BD_FAMILY_COUNT; family++) {
        bd_model_config config = small_config((bd_model_family)family);
        bd_model *made = small_model(&config, BD_F32);
        check_ok(bd_model_save(made, folder, BD_F32, &err), err);
        bd_model *opened = bd_model_open(folder, BD_BF16, &err);
        check_ok(opened, err);
        assert_int_equal(opened->parameters.count, made->parameters.count);
        assert_int_equal(bd_model_parameter_count(opened), bd_model_parameter_count(made));
        assert_true((opened->head == opened->embedding) == config.tied_head);
        for (int64_t i = 0; i < made->parameters.count; i++) {
            const bd_parameter *a = made->parameters.items[i], *b = opened->parameters.items[i];
            assert_string_equal(a->name, b->name);
            assert_memory_equal(a->data, b->data, (size_t)a->count * sizeof(float));
        }
        char print[2][65];
        check_ok(bd_model_fingerprint(made, print[0], &err), err);
        check_ok(bd_model_fingerprint(opened, print[1], &err), err);
        assert_string_equal(print[0], print[1]);
        bd_model_close(made);
        bd_model_close(opened);
    }
}

static void half_round_trip(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model_config config = small_config(BD_FAMILY_QWEN2);
    bd_model *made = small_model(&config, BD_F32);
    const bd_dtype dtypes[] = {BD_BF16, BD_F16};
    for (int d = 0; d < 2; d++) {
        check_ok(bd_model_save(made, folder, dtypes[d], &err), err);
        bd_model *opened = bd_model_open(folder, BD_F32, &err);
        check_ok(opened, err);
        assert_int_equal(opened->config.dtype, dtypes[d]);
        const bd_parameter *a = made->layers[1].gate, *b = opened->layers[1].gate;
        assert_int_equal(b->dtype, dtypes[d]);
        float *values = malloc((size_t)b->count * sizeof *values);
        bd_to_f32(b->dtype, b->data, values, b->count);
        double step = dtypes[d] == BD_BF16 ? 0x1p-8 : 0x1p-11;
        for (int64_t i = 0; i < b->count; i++)
            assert_true(fabs((double)values[i] - (double)a->value[i]) <=
                        step * fabs((double)a->value[i]) + 1e-7);
        free(values);

        // Halves widened to fp32 and saved again: other bytes, the same values, one fingerprint.
        char print[2][65];
        check_ok(bd_model_fingerprint(opened, print[0], &err), err);
        check_ok(bd_model_save(opened, inside("wide"), BD_F32, &err), err);
        bd_model *wide = bd_model_open(inside("wide"), BD_F32, &err);
        check_ok(wide, err);
        check_ok(bd_model_fingerprint(wide, print[1], &err), err);
        assert_string_equal(print[0], print[1]);
        check_ok(bd_model_train(wide, &err), err); // values move to memory, the print stays
        check_ok(bd_model_fingerprint(wide, print[1], &err), err);
        assert_string_equal(print[0], print[1]);
        wide->norm->value[0] += 1;
        check_ok(bd_model_fingerprint(wide, print[1], &err), err);
        assert_string_not_equal(print[0], print[1]);
        bd_model_close(wide);
        bd_model_close(opened);
    }
    bd_model_close(made);
}

static void new_models(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model_config config = small_config(BD_FAMILY_QWEN2);
    bd_model *a = bd_model_create(&config, 5, BD_F32, &err);
    bd_model *b = bd_model_create(&config, 5, BD_F32, &err);
    bd_model *c = bd_model_create(&config, 6, BD_F32, &err);
    check_ok(a && b && c, err);
    char print[3][65];
    check_ok(bd_model_fingerprint(a, print[0], &err), err);
    check_ok(bd_model_fingerprint(b, print[1], &err), err);
    check_ok(bd_model_fingerprint(c, print[2], &err), err);
    assert_string_equal(print[0], print[1]);
    assert_string_not_equal(print[0], print[2]);
    assert_true(a->norm->value[3] == 1 && a->layers[2].key_bias->value[3] == 0);
    assert_true(a->layers[0].gate->value[0] != a->layers[1].gate->value[0]);
    assert_true(a->head->value[0] != a->embedding->value[0]);
    assert_null(a->layers[0].query_norm);
    assert_null(a->layers[0].output_bias);
    config.key_heads = 3; // does not divide 4
    assert_null(bd_model_create(&config, 5, BD_F32, &err));
    bd_model_close(a);
    bd_model_close(b);
    bd_model_close(c);
}

// --- folders that do not fit ---------------------------------------------------------------------

/* Write the small model with changes: a tensor left out, renamed, reshaped, retyped. */
typedef struct {
    const char *drop, *reshape, *retype, *add;
} damage;

static void write_damaged(const bd_model *model, damage how)
{
    bd_error err = {0};
    int64_t count = model->parameters.count, used = 0;
    bd_tensor *tensors = calloc((size_t)count + 1, sizeof *tensors);
    float *zeros = calloc(100000, sizeof *zeros);
    for (int64_t i = 0; i < count; i++) {
        const bd_parameter *p = model->parameters.items[i];
        if (how.drop && strcmp(p->name, how.drop) == 0)
            continue;
        bd_tensor *t = &tensors[used++];
        *t = (bd_tensor){
            .name = p->name, .dtype = BD_F32, .rank = p->rank, .count = p->count, .data = p->data};
        memcpy(t->shape, p->shape, sizeof p->shape);
        if (how.reshape && strcmp(p->name, how.reshape) == 0) {
            t->shape[0] += 1;
            t->count = t->shape[0] * (p->rank > 1 ? t->shape[1] : 1);
            t->data = zeros;
        }
        if (how.retype && strcmp(p->name, how.retype) == 0)
            t->dtype = BD_I32;
    }
    if (how.add)
        tensors[used++] = (bd_tensor){
            .name = how.add, .dtype = BD_F32, .rank = 1, .shape = {3}, .count = 3, .data = zeros};
    check_ok(bd_safetensors_write(inside("model.safetensors"), tensors, used, NULL, &err), err);
    free(tensors);
    free(zeros);
}

static void refuse(const char *part)
{
    bd_error err = {0};
    check_refused(bd_model_open(folder, BD_F32, &err), err, part);
    assert_null(strchr(err.message, '\n'));
}

static void misfits(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model_config config = small_config(BD_FAMILY_QWEN3);
    bd_model *model = small_model(&config, BD_F32);
    check_ok(bd_model_save(model, folder, BD_F32, &err), err);

    const char *gate = "model.layers.1.mlp.gate_proj.weight";
    write_damaged(model, (damage){.drop = gate});
    refuse("missing model.layers.1.mlp.gate_proj.weight");
    write_damaged(model, (damage){.reshape = gate});
    refuse("shape of model.layers.1.mlp.gate_proj.weight is [37, 24], config.json wants [36, 24]");
    write_damaged(model, (damage){.retype = gate});
    refuse("dtype of model.layers.1.mlp.gate_proj.weight is I32, F32, BF16 or F16 wanted");
    write_damaged(model, (damage){.add = "model.layers.3.self_attn.q_proj.bias"});
    refuse("extra model.layers.3.self_attn.q_proj.bias");

    // Everything at once is told at once.
    write_damaged(model, (damage){.drop = gate, .reshape = "model.norm.weight", .add = "surprise"});
    refuse("missing model.layers.1.mlp.gate_proj.weight; shape of model.norm.weight is [25], "
           "config.json wants [24]; extra surprise");

    write_damaged(model, (damage){.add = "two\nlines"});
    refuse("extra two?lines");

    // A second copy of a tied head and frequencies that config.json also gives are not read.
    write_damaged(model, (damage){.add = "lm_head.weight"});
    bd_model *opened = bd_model_open(folder, BD_F32, &err);
    check_ok(opened, err);
    assert_ptr_equal(opened->head, opened->embedding);
    bd_model_close(opened);
    write_damaged(model, (damage){.add = "model.layers.0.self_attn.rotary_emb.inv_freq"});
    opened = bd_model_open(folder, BD_F32, &err);
    check_ok(opened, err);
    bd_model_close(opened);

    // With a head of its own the same name is a tensor like any other.
    config.tied_head = false;
    bd_model *separate = small_model(&config, BD_F32);
    check_ok(bd_model_save(separate, folder, BD_F32, &err), err);
    write_damaged(separate, (damage){.drop = "lm_head.weight"});
    refuse("missing lm_head.weight");

    // A long list is cut, not broken.
    check_ok(
        bd_safetensors_write(
            inside("model.safetensors"),
            &(bd_tensor){.name = "x", .rank = 0, .count = 1, .dtype = BD_F32, .data = &(float){0}},
            1, NULL, &err),
        err);
    refuse("missing model.embed_tokens.weight");
    refuse(" more");
    bd_model_close(separate);
    bd_model_close(model);
}

static void missing_files(void **state)
{
    (void)state;
    bd_error err = {0};
    check_refused(bd_model_open("/nowhere/model", BD_F32, &err), err, "/nowhere/model/config.json");
    bd_model_config config = small_config(BD_FAMILY_LLAMA);
    bd_model *model = small_model(&config, BD_F32);
    check_ok(bd_model_save(model, folder, BD_F32, &err), err);
    assert_int_equal(unlink(inside("model.safetensors")), 0);
    refuse("model.safetensors");
    bd_model_close(model);

    json_t *root = bd_json_load(inside("config.json"), &err);
    check_ok(root, err);
    json_object_set_new(root, "model_type", json_string("mamba"));
    check_ok(bd_json_save(root, inside("config.json"), &err), err);
    json_decref(root);
    refuse("mamba");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(f32_round_trip, set_up, tear_down),
        cmocka_unit_test_setup_teardown(half_round_trip, set_up, tear_down),
        cmocka_unit_test(new_models),
        cmocka_unit_test_setup_teardown(misfits, set_up, tear_down),
        cmocka_unit_test_setup_teardown(missing_files, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
