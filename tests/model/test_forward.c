// What a pass depends on: positions, rules, its own row and nothing else.
#include "base/threads.h"
#include "models.h"

enum { LENGTH = 18 };

static bool same_rows(const bd_value *a, int64_t from, const bd_value *b, int64_t to, int64_t count)
{
    return memcmp(a->data + from * a->width, b->data + to * b->width,
                  (size_t)(count * a->width) * sizeof(float)) == 0;
}

/* Rows of a batch, packed documents and single calls are the same computation. */
static void rows_are_independent(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    for (int half = 0; half < 2; half++) {
        bd_model_config config = small_config(BD_FAMILY_QWEN2);
        config.layer_window[1] = 4;
        bd_model *model = small_model(&config, half ? BD_BF16 : BD_F32);
        int32_t tokens[3 * LENGTH];
        random_tokens(tokens, 3 * LENGTH, config.vocabulary, 5);
        bd_tape tape = bd_tape_begin(arena, model->compute, false);
        bd_forward input = {.tokens = tokens, .rows = 3, .length = LENGTH};
        bd_value *together = bd_model_forward(model, &tape, &input);
        for (int64_t r = 0; r < 3; r++) {
            bd_threads_set(1 + (int)(r % 2));
            input = (bd_forward){.tokens = tokens + r * LENGTH, .rows = 1, .length = LENGTH};
            bd_value *alone = bd_model_forward(model, &tape, &input);
            assert_true(same_rows(together, r * LENGTH, alone, 0, LENGTH));
        }

        // Two documents in one row, each with positions from 0, then padding.
        int32_t positions[LENGTH], segments[LENGTH];
        for (int i = 0; i < LENGTH; i++) {
            segments[i] = i < 7 ? 1 : i < 15 ? 2 : 0;
            positions[i] = i < 7 ? i : i < 15 ? i - 7 : 0;
        }
        const bd_visibility rule = {.kind = BD_CAUSAL,
                                    .query_length = LENGTH,
                                    .key_length = LENGTH,
                                    .query_position = positions,
                                    .key_position = positions,
                                    .query_segment = segments,
                                    .key_segment = segments};
        input = (bd_forward){
            .tokens = tokens, .rows = 1, .length = LENGTH, .positions = positions, .rule = &rule};
        bd_value *packed = bd_model_forward(model, &tape, &input);
        input = (bd_forward){.tokens = tokens, .rows = 1, .length = 7};
        assert_true(same_rows(packed, 0, bd_model_forward(model, &tape, &input), 0, 7));
        input = (bd_forward){.tokens = tokens + 7, .rows = 1, .length = 8};
        bd_value *second = bd_model_forward(model, &tape, &input);
        for (int64_t i = 0; i < 8 * config.hidden; i++) // other tiles of keys: other roundings
            check_near(packed->data[7 * config.hidden + i], second->data[i], half ? 0.05 : 1e-4);
        bd_model_close(model);
    }
    bd_arena_destroy(arena);
}

/* A row longer than a piece of the MLP, and recorded or not. */
static void pieces_and_recording(void **state)
{
    (void)state;
    enum { LONG = 1100 };
    bd_error err = {0};
    bd_arena *arena = check_arena();
    bd_model_config config = small_config(BD_FAMILY_LLAMA);
    config.max_positions = 2048;
    config.layers = 1;
    bd_model *model = small_model(&config, BD_BF16);
    int32_t *tokens = bd_arena_ints(arena, LONG);
    random_tokens(tokens, LONG, config.vocabulary, 5);
    const bd_forward input = {.tokens = tokens, .rows = 1, .length = LONG};
    bd_tape plain = bd_tape_begin(arena, BD_BF16, false);
    bd_value *a = bd_model_forward(model, &plain, &input);
    bd_tape recorded = bd_tape_begin(arena, BD_BF16, true);
    bd_value *b = bd_model_forward(model, &recorded, &input);
    assert_true(same_rows(a, 0, b, 0, LONG));
    assert_null(recorded.last); // frozen: nothing to go back to
    assert_null(b->gradient);
    check_ok(bd_model_train(model, &err), err);
    bd_value *c = bd_model_forward(model, &recorded, &input);
    assert_true(same_rows(a, 0, c, 0, LONG));
    assert_non_null(c->gradient);
    bd_model_close(model);
    bd_arena_destroy(arena);
}

/* Forgetting the layers' inner results changes the memory of a step and not one bit of its
 * gradients. */
static void recomputed_layers(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model_config config = small_config(BD_FAMILY_QWEN3);
    config.layer_window[1] = 4;
    config.layers = 6;
    bd_model *model = small_model(&config, BD_F32);
    check_ok(bd_model_train(model, &err), err);
    int32_t tokens[2 * LENGTH];
    random_tokens(tokens, 2 * LENGTH, config.vocabulary, 5);
    float *kept = NULL, *output = NULL;
    size_t peak[2];
    for (int again = 0; again < 2; again++) {
        bd_arena *arena = check_arena();
        model->recompute = again;
        bd_parameters_zero_gradients(&model->parameters);
        bd_tape tape = bd_tape_begin(arena, BD_F32, true);
        bd_value *h = bd_model_forward(
            model, &tape, &(bd_forward){.tokens = tokens, .rows = 2, .length = LENGTH});
        check_fill(h->gradient, h->rows * h->width, 3);
        bd_tape_backward(&tape);
        peak[again] = bd_arena_peak(arena);
        if (!again) {
            output = malloc((size_t)(h->rows * h->width) * sizeof(float));
            memcpy(output, h->data, (size_t)(h->rows * h->width) * sizeof(float));
            kept = malloc((size_t)bd_model_parameter_count(model) * sizeof(float));
        } else {
            assert_memory_equal(output, h->data, (size_t)(h->rows * h->width) * sizeof(float));
        }
        float *at = kept;
        for (int64_t i = 0; i < model->parameters.count; i++) {
            const bd_parameter *p = model->parameters.items[i];
            size_t bytes = (size_t)p->count * sizeof(float);
            if (again)
                assert_memory_equal(at, p->gradient, bytes);
            else
                memcpy(at, p->gradient, bytes);
            at += p->count;
        }
        bd_arena_destroy(arena);
    }
    assert_true(peak[1] < peak[0] / 2);
    free(kept);
    free(output);
    bd_model_close(model);
}

/* Positions turn queries and keys, never the array index: shifting all of them changes nothing but
 * roundings, spreading them does; a linear factor of 2 is half of every position. */
static void positions_turn(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    bd_model_config config = small_config(BD_FAMILY_QWEN3);
    bd_model *model = small_model(&config, BD_F32);
    config.rope = (bd_rope_config){.kind = BD_ROPE_LINEAR, .theta = 10000, .factor = 2};
    bd_model *slower = small_model(&config, BD_F32);
    int32_t tokens[LENGTH], shifted[LENGTH], spread[LENGTH];
    random_tokens(tokens, LENGTH, config.vocabulary, 5);
    for (int i = 0; i < LENGTH; i++) {
        shifted[i] = i + 40;
        spread[i] = 2 * i;
    }
    bd_tape tape = bd_tape_begin(arena, BD_F32, false);
    bd_forward input = {.tokens = tokens, .rows = 1, .length = LENGTH};
    bd_value *plain = bd_model_forward(model, &tape, &input);
    int64_t count = plain->rows * plain->width;
    input.positions = shifted;
    check_array(bd_model_forward(model, &tape, &input)->data, plain->data, count, 1e-4);
    input.positions = spread;
    bd_value *wide = bd_model_forward(model, &tape, &input);
    assert_true(check_relative(wide->data, plain->data, count) > 1e-2);
    check_array(bd_model_forward(slower, &tape, &input)->data, plain->data, count, 1e-6);
    bd_model_close(model);
    bd_model_close(slower);
    bd_arena_destroy(arena);
}

/* No tensor of any family is opened and then not used. */
static void every_parameter_matters(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    int32_t tokens[LENGTH];
    for (int family = 0; family < BD_FAMILY_COUNT; family++) {
        bd_model_config config = small_config((bd_model_family)family);
        bd_model *model = small_model(&config, BD_F32);
        int64_t V = config.vocabulary, count = LENGTH * V;
        random_tokens(tokens, LENGTH, V, 5);
        tokens[2] = (int32_t)V - 1; // the row of the table that is changed
        size_t mark = bd_arena_mark(arena);
        float *logits[2] = {bd_arena_floats(arena, count), bd_arena_floats(arena, count)};
        for (int64_t i = -1; i < model->parameters.count; i++) {
            bd_parameter *p = i < 0 ? model->norm : model->parameters.items[i];
            float kept = p->value[p->count - 1];
            p->value[p->count - 1] += i < 0 ? 0 : 0.5f;
            bd_parameter_changed(p);
            bd_tape tape = bd_tape_begin(arena, BD_F32, false);
            bd_forward input = {.tokens = tokens, .rows = 1, .length = LENGTH};
            bd_value *h = bd_model_forward(model, &tape, &input);
            bd_model_logits(model, h->data, LENGTH, logits[i >= 0], arena);
            if (i >= 0 && memcmp(logits[0], logits[1], (size_t)count * sizeof(float)) == 0)
                fail_msg("%s: %s changes nothing", bd_model_family_name(config.family), p->name);
            p->value[p->count - 1] = kept;
            bd_parameter_changed(p);
        }
        bd_arena_release(arena, mark);
        bd_model_close(model);
    }
    bd_arena_destroy(arena);
}

/* Taps: any layers, in any order, twice if asked for; with a cache the rows are the new tokens. */
static void taps(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_arena *arena = check_arena();
    bd_model_config config = small_config(BD_FAMILY_QWEN3);
    bd_model *model = small_model(&config, BD_F32);
    int64_t H = config.hidden;
    int32_t tokens[LENGTH];
    random_tokens(tokens, LENGTH, config.vocabulary, 5);
    const int64_t layers[4] = {3, 0, 2, 0};
    float *whole = bd_arena_floats(arena, LENGTH * 4 * H),
          *part = bd_arena_floats(arena, 5 * 4 * H);
    bd_hidden_request request = {.layers = layers, .count = 4, .out = whole};
    bd_tape tape = bd_tape_begin(arena, BD_F32, false);
    bd_value *h = bd_model_forward(
        model, &tape,
        &(bd_forward){.tokens = tokens, .rows = 1, .length = LENGTH, .hidden = &request});
    for (int64_t r = 0; r < LENGTH; r++) {
        const float *row = whole + r * 4 * H;
        assert_memory_equal(row, h->data + r * H, (size_t)H * sizeof(float));
        assert_memory_equal(row + H, model->embedding->value + tokens[r] * H, (size_t)H * 4);
        assert_memory_equal(row + 3 * H, row + H, (size_t)H * sizeof(float));
        assert_true(memcmp(row + 2 * H, row + H, (size_t)H * sizeof(float)) != 0);
    }
    bd_cache *cache = bd_cache_create(model, LENGTH, &err);
    check_ok(cache, err);
    bd_forward input = {.tokens = tokens, .rows = 1, .length = LENGTH - 5, .cache = cache};
    bd_model_forward(model, &tape, &input);
    request.out = part;
    input = (bd_forward){
        .tokens = tokens + LENGTH - 5, .rows = 1, .length = 5, .cache = cache, .hidden = &request};
    bd_model_forward(model, &tape, &input);
    assert_memory_equal(part, whole + (LENGTH - 5) * 4 * H, (size_t)(5 * 4 * H) * sizeof(float));
    bd_cache_free(cache);
    bd_model_close(model);
    bd_arena_destroy(arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_independent),    cmocka_unit_test(pieces_and_recording),
        cmocka_unit_test(recomputed_layers),       cmocka_unit_test(positions_turn),
        cmocka_unit_test(every_parameter_matters), cmocka_unit_test(taps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
