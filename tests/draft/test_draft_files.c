/* Draft folders: what is saved is read back bit by bit, and what does not belong is refused (B7).
 */
#include <unistd.h>

#include "base/file.h"
#include "golden.h"
#include "micro.h"

static char folder[BD_PATH];

static int make_folder(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/bdlm-draft-%ld", (long)getpid());
    return 0;
}

static int remove_folder(void **state)
{
    (void)state;
    bd_error err = {0};
    return bd_folder_remove(folder, &err) ? 0 : 1;
}

static void round_trip(void **state)
{
    (void)state;
    bd_error err = {0};
    micro *m = micro_open();
    check_ok(bd_draft_save(m->draft, folder, BD_F32, &err), err);
    bd_draft *again = bd_draft_open(folder, m->target, BD_F32, &err);
    check_ok(again != NULL, err);
    assert_int_equal(again->parameters.count, 25);
    for (int64_t i = 0; i < 25; i++) {
        const bd_parameter *a = m->draft->parameters.items[i], *b = again->parameters.items[i];
        assert_string_equal(a->name, b->name);
        assert_memory_equal(a->data, b->data, (size_t)a->count * sizeof(float));
    }
    json_t *before = bd_draft_config_to_json(&m->draft->config);
    json_t *after = bd_draft_config_to_json(&again->config);
    assert_true(json_equal(before, after));
    json_decref(before);
    json_decref(after);
    assert_string_equal(bd_safetensors_metadata(again->file, "format"), "pt");
    bd_draft_close(again);

    check_ok(bd_draft_save(m->draft, folder, BD_BF16, &err), err);
    again = bd_draft_open(folder, m->target, BD_F32, &err);
    check_ok(again != NULL, err);
    assert_int_equal(again->fc->dtype, BD_BF16);
    assert_int_equal(again->config.stack.dtype, BD_BF16); // torch_dtype says what the tensors are
    const uint16_t *half = again->fc->data;
    for (int64_t i = 0; i < again->fc->count; i++)
        assert_int_equal(half[i], bd_bf16_from_f32(m->draft->fc->value[i]));
    bd_draft_close(again);
    micro_close(m);
}

/* Save the micro draft's tensors with one of them changed. */
typedef enum { PREFIXED, MISSING, EXTRA, MISSHAPEN, TARGET_HEAD, OTHER_HEAD, ROTARY } change;

static void save_changed(const micro *m, change how)
{
    bd_error err = {0};
    bd_tensor tensors[30];
    char names[30][120], path[BD_PATH];
    int64_t count = m->draft->parameters.count;
    float extra[MICRO_V * MICRO_H];
    for (int64_t i = 0; i < count; i++) {
        const bd_parameter *p = m->draft->parameters.items[i];
        snprintf(names[i], sizeof names[i], "%s%s", how == PREFIXED ? "dflash_module." : "",
                 p->name);
        tensors[i] = (bd_tensor){
            .name = names[i], .dtype = BD_F32, .rank = p->rank, .count = p->count, .data = p->data};
        memcpy(tensors[i].shape, p->shape, sizeof p->shape);
    }
    memcpy(extra, m->target->head->data, sizeof extra);
    if (how == OTHER_HEAD)
        extra[3] += 1;
    bd_tensor more = {.dtype = BD_F32,
                      .rank = 2,
                      .shape = {MICRO_V, MICRO_H},
                      .count = MICRO_V * MICRO_H,
                      .data = extra};
    more.name = how == EXTRA    ? "markov_w1.weight"
                : how == ROTARY ? "rotary_emb.x"
                                : "lm_head.weight";
    if (how >= TARGET_HEAD || how == EXTRA)
        tensors[count++] = more;
    if (how == MISSING)
        count--;
    if (how == MISSHAPEN) {
        tensors[0].shape[0] *= 2;
        tensors[0].shape[1] /= 2;
    }
    check_ok(bd_draft_save(m->draft, folder, BD_F32, &err), err);
    check_ok(bd_path_join(path, folder, "model.safetensors", &err), err);
    check_ok(bd_safetensors_write(path, tensors, count, NULL, &err), err);
}

static void open_changed(change how, const char *part)
{
    bd_error err = {0};
    micro *m = micro_open();
    save_changed(m, how);
    bd_draft *draft = bd_draft_open(folder, m->target, BD_F32, &err);
    if (part)
        check_refused(draft != NULL, err, part);
    else
        check_ok(draft != NULL, err);
    bd_draft_close(draft);
    micro_close(m);
}

static void names_are_exact(void **state)
{
    (void)state;
    open_changed(PREFIXED, NULL);
    open_changed(ROTARY, NULL);
    open_changed(TARGET_HEAD, NULL);
    open_changed(OTHER_HEAD, "not the target's");
    open_changed(MISSING, "1 missing (norm.weight), 0 unexpected");
    open_changed(EXTRA, "1 unexpected (markov_w1.weight)");
    open_changed(MISSHAPEN, "1 of another shape or type (fc.weight)");
}

static void a_draft_fits_its_target(void **state)
{
    (void)state;
    bd_error err = {0};
    micro *m = micro_open();
    check_ok(bd_draft_save(m->draft, folder, BD_F32, &err), err);
    bd_model_config other = micro_target_config();
    other.hidden = 16;
    bd_model *target = bd_model_create(&other, 1, BD_F32, &err);
    check_refused(bd_draft_open(folder, target, BD_F32, &err) != NULL, err, "hidden_size");
    bd_model_close(target);
    other = micro_target_config();
    other.layers = 1;
    target = bd_model_create(&other, 1, BD_F32, &err);
    check_refused(bd_draft_open(folder, target, BD_F32, &err) != NULL, err, "target_layer_ids");
    bd_model_close(target);
    micro_close(m);
}

static void initial_weights(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model_config target_config = micro_target_config();
    bd_model *target = bd_model_create(&target_config, 1, BD_F32, &err);
    bd_draft_config config = micro_draft_config();
    config.sink = config.stack.qkv_bias = true;
    config.stack.intermediate = 4000; // enough draws for their moments
    check_ok(bd_draft_config_complete(&config, &target->config, &err), err);
    bd_draft *a = bd_draft_create(&config, target, 5, BD_F32, &err);
    bd_draft *b = bd_draft_create(&config, target, 5, BD_F32, &err);
    bd_draft *c = bd_draft_create(&config, target, 6, BD_F32, &err);
    check_ok(a && b && c, err);
    const bd_parameter *gate = a->layers[0].gate;
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < gate->count; i++) {
        sum += (double)gate->value[i];
        squares += (double)gate->value[i] * (double)gate->value[i];
    }
    check_near(sum / (double)gate->count, 0, 1e-3);
    check_near(sqrt(squares / (double)gate->count), 0.02, 5e-4);
    for (int64_t i = 0; i < MICRO_H; i++)
        assert_true(a->hidden_norm->value[i] == 1 && a->layers[1].output_bias->value[i] == 0);
    assert_true(a->layers[0].sink->value[0] == 0);
    size_t bytes = (size_t)gate->count * sizeof(float);
    assert_memory_equal(gate->value, b->layers[0].gate->value, bytes);
    assert_memory_not_equal(gate->value, c->layers[0].gate->value, bytes);
    assert_memory_not_equal(gate->value, a->layers[1].gate->value, bytes);
    bd_draft_close(a);
    bd_draft_close(b);
    bd_draft_close(c);
    bd_model_close(target);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(round_trip, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(names_are_exact, make_folder, remove_folder),
        cmocka_unit_test_setup_teardown(a_draft_fits_its_target, make_folder, remove_folder),
        cmocka_unit_test(initial_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
