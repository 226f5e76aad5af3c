// Forward and backward against reference numbers computed in float64.
#include "format/json.h"
#include "models.h"
#include "tensor/rows.h"

// --- targets: hidden states, logits, arg max -----------------------------------------------------

static void check_target(const char *name)
{
    bd_error err = {0};
    char path[BD_PATH];
    snprintf(path, sizeof path, BD_GOLDEN "/draft/target-%s", name);
    bd_model *m = bd_model_open(path, BD_F32, &err);
    check_ok(m, err);
    snprintf(path, sizeof path, BD_GOLDEN "/draft/forward-target-%s.safetensors", name);
    bd_safetensors *file = golden_open(path);
    snprintf(path, sizeof path, BD_GOLDEN "/draft/forward-target-%s.json", name);
    json_t *json = bd_json_load(path, &err);
    check_ok(json, err);

    int32_t *ids = golden_ints(file, "input_ids");
    const bd_tensor *shape = bd_safetensors_find(file, "input_ids");
    int64_t B = shape->shape[0], S = shape->shape[1], H = m->config.hidden,
            V = m->config.vocabulary;
    int64_t layers = m->config.layers, rows = B * S;
    bd_arena *arena = check_arena();
    int64_t *wanted = bd_arena_alloc(arena, (size_t)(layers + 1) * sizeof *wanted);
    for (int64_t i = 0; i <= layers; i++)
        wanted[i] = i;
    bd_hidden_request request = {.layers = wanted,
                                 .count = layers + 1,
                                 .out = bd_arena_floats(arena, rows * (layers + 1) * H)};
    float *prenorm = bd_arena_floats(arena, rows * H), *logits = bd_arena_floats(arena, rows * V);
    bd_tape tape = bd_tape_begin(arena, BD_F32, false);
    bd_value *h = bd_model_forward(
        m, &tape,
        &(bd_forward){
            .tokens = ids, .rows = B, .length = S, .hidden = &request, .prenorm = prenorm});
    bd_model_logits(m, h->data, rows, logits, arena);

    float *side = bd_arena_floats(arena, rows * H);
    for (int64_t i = 0; i <= layers; i++) {
        char tensor[32];
        snprintf(tensor, sizeof tensor, "hidden/%lld", (long long)i);
        float *want = golden_floats(file, tensor);
        for (int64_t r = 0; r < rows; r++)
            memcpy(side + r * H, request.out + (r * (layers + 1) + i) * H,
                   (size_t)H * sizeof *side);
        check_array(side, want, rows * H, 1e-5);
        free(want);
    }
    float *want = golden_floats(file, "prenorm");
    check_array(prenorm, want, rows * H, 1e-5);
    free(want);
    want = golden_floats(file, "logits");
    check_array(logits, want, rows * V, 1e-5);
    free(want);
    json_t *best = json_object_get(json, "argmax");
    for (int64_t r = 0; r < rows; r++) {
        json_t *row = json_array_get(best, (size_t)(r / S));
        assert_int_equal(bd_argmax(logits + r * V, V),
                         json_integer_value(json_array_get(row, (size_t)(r % S))));
    }
    json_decref(json);
    free(ids);
    bd_safetensors_close(file);
    bd_model_close(m);
    bd_arena_destroy(arena);
}

static void targets(void **state)
{
    (void)state;
    check_target("qwen3-tiny");
    check_target("llama-tiny");
    check_target("qwen2-tiny");
}

// --- model/: logits, losses, the gradient of every parameter -------------------------------------

typedef struct {
    bd_model *model;
    bd_safetensors *file;
    json_t *json;
    int64_t B, L;
    int32_t *inputs, *targets, *positions, *segments, *source;
    float *weights;
    bd_visibility rule;
    bd_arena *arena;
} model_case;

static model_case open_case(const char *name)
{
    bd_error err = {0};
    model_case c = {.arena = check_arena()};
    char path[BD_PATH];
    snprintf(path, sizeof path, BD_GOLDEN "/block-diffusion/cases/%s.json", name);
    c.json = bd_json_load(path, &err);
    check_ok(c.json, err);
    snprintf(path, sizeof path, BD_GOLDEN "/block-diffusion/cases/%s.safetensors", name);
    c.file = golden_open(path);
    snprintf(path, sizeof path, BD_GOLDEN "/block-diffusion/%s",
             json_string_value(json_object_get(c.json, "model")));
    c.model = bd_model_open(path, BD_F32, &err);
    check_ok(c.model, err);
    c.inputs = golden_ints(c.file, "inputs");
    c.targets = golden_ints(c.file, "targets");
    c.positions = golden_ints(c.file, "positions");
    c.segments = golden_ints(c.file, "segments");
    c.source = golden_ints(c.file, "source");
    c.weights = golden_floats(c.file, "weights");
    const bd_tensor *shape = bd_safetensors_find(c.file, "inputs");
    c.B = shape->shape[0];
    c.L = shape->shape[1];
    bool causal = strcmp(json_string_value(json_object_get(c.json, "attention")), "causal") == 0;
    c.rule = (bd_visibility){.kind = causal ? BD_CAUSAL : BD_BLOCK_DIFFUSION,
                             .query_length = c.L,
                             .key_length = c.L,
                             .query_position = c.positions,
                             .key_position = c.positions,
                             .query_segment = c.segments,
                             .key_segment = c.segments};
    if (!causal)
        c.rule.block_size = json_integer_value(json_object_get(c.json, "block_size"));
    return c;
}

static void close_case(model_case *c)
{
    free(c->inputs);
    free(c->targets);
    free(c->positions);
    free(c->segments);
    free(c->source);
    free(c->weights);
    json_decref(c->json);
    bd_safetensors_close(c->file);
    bd_model_close(c->model);
    bd_arena_destroy(c->arena);
}

static void check_logits(const model_case *c, const bd_value *h)
{
    int64_t V = c->model->config.vocabulary, rows = c->B * c->L;
    float *logits = bd_arena_floats(c->arena, rows * V);
    bd_model_logits(c->model, h->data, rows, logits, c->arena);
    for (int64_t r = 0; r < rows; r++) // what stands at padding is nobody's business, but finite
        if (c->segments[r] == 0)
            for (int64_t v = 0; v < V; v++) {
                assert_true(isfinite(logits[r * V + v]));
                logits[r * V + v] = 0;
            }
    float *want = golden_floats(c->file, "logits");
    check_array(logits, want, rows * V, 1e-5);
    free(want);
}

static void check_gradients(const model_case *c)
{
    const bd_parameters *all = &c->model->parameters;
    bool zero = json_is_true(json_object_get(c->json, "grad_all_zero"));
    for (int64_t i = 0; i < all->count; i++) {
        char name[160];
        snprintf(name, sizeof name, "grad.%s", all->items[i]->name);
        if (zero) {
            for (int64_t k = 0; k < all->items[i]->count; k++)
                assert_true(all->items[i]->gradient[k] == 0);
            continue;
        }
        float *want = golden_floats(c->file, name);
        check_array(all->items[i]->gradient, want, all->items[i]->count, 2e-5);
        free(want);
    }
}

static void check_case(const char *name)
{
    bd_error err = {0};
    model_case c = open_case(name);
    int64_t rows = c.B * c.L;
    check_ok(bd_model_train(c.model, &err), err);
    bd_tape tape = bd_tape_begin(c.arena, BD_F32, true);
    bd_value *h = bd_model_forward(c.model, &tape,
                                   &(bd_forward){.tokens = c.inputs,
                                                 .rows = c.B,
                                                 .length = c.L,
                                                 .positions = c.positions,
                                                 .rule = &c.rule});
    check_logits(&c, h);

    double total = json_number_value(json_object_get(c.json, "weight_sum")), loss_sum = 0;
    int32_t *index = bd_arena_ints(c.arena, rows);
    float *scale = bd_arena_floats(c.arena, rows), *token_loss = bd_arena_floats(c.arena, rows);
    for (int64_t r = 0; r < rows; r++) {
        index[r] = c.source[r] < 0 ? -1 : c.source[r] + (int32_t)(r / c.L * c.L);
        scale[r] = total > 0 ? (float)((double)c.weights[r] / total) : 0;
    }
    bd_value *aligned = bd_op_gather_rows(&tape, h, index, rows);
    bd_vocabulary_loss loss = {.rows = rows,
                               .vocabulary = c.model->config.vocabulary,
                               .scale = scale,
                               .targets = c.targets,
                               .hard = 1,
                               .hard_loss = token_loss};
    bd_op_vocabulary_loss(&tape, aligned, c.model->head, &loss);
    bd_tape_backward(&tape);

    float *want = golden_floats(c.file, "token_loss");
    check_array(token_loss, want, rows, 1e-5);
    free(want);
    for (int64_t r = 0; r < rows; r++)
        loss_sum += (double)c.weights[r] * (double)token_loss[r];
    check_near(loss_sum, json_number_value(json_object_get(c.json, "loss_sum")), 1e-5);
    if (json_is_string(json_object_get(c.json, "grad_of")) ||
        json_is_true(json_object_get(c.json, "grad_all_zero")))
        check_gradients(&c);

    // A pass that does not record has the same bits.
    bd_tape plain = bd_tape_begin(c.arena, BD_F32, false);
    bd_value *again = bd_model_forward(c.model, &plain,
                                       &(bd_forward){.tokens = c.inputs,
                                                     .rows = c.B,
                                                     .length = c.L,
                                                     .positions = c.positions,
                                                     .rule = &c.rule});
    assert_memory_equal(again->data, h->data, (size_t)(rows * h->width) * sizeof(float));
    close_case(&c);
}

static void model_cases(void **state)
{
    (void)state;
    bd_error err = {0};
    json_t *index = bd_json_load(BD_GOLDEN "/block-diffusion/cases/index.json", &err);
    check_ok(index, err);
    size_t i;
    json_t *entry;
    int checked = 0;
    json_array_foreach(json_object_get(index, "cases"), i, entry)
    {
        if (strncmp(json_string_value(entry), "model/", 6) != 0)
            continue;
        print_message("  %s\n", json_string_value(entry));
        check_case(json_string_value(entry));
        checked++;
    }
    assert_int_equal(checked, 13);
    json_decref(index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(targets),
        cmocka_unit_test(model_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
