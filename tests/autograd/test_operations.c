// Every operation of the tape against finite differences, trained and frozen in all combinations.
#include "base/threads.h"
#include "gradients.h"

// --- linear --------------------------------------------------------------------------------------

static bd_value *build_linear(fixture *f, bd_tape *tape)
{
    return bd_op_linear(tape, f->leaf[0], &f->parameter[0],
                        f->parameters > 1 ? &f->parameter[1] : NULL);
}

static void linear(void **state)
{
    (void)state;
    for (int mask = 0; mask < 16; mask++) {
        fixture f = {.build = build_linear};
        fixture_operand(&f, 5, 7);
        f.frozen_operand[0] = !(mask & 1);
        fixture_parameter(&f, 6, 7, mask & 2);
        if (mask & 8)
            fixture_parameter(&f, 0, 6, mask & 4);
        fixture_check(&f);
    }
}

static void linear_values(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_arena *arena = check_arena();
    bd_parameter weight, bias;
    const float w[6] = {1, 2, 3, 4, 5, 6}, b[2] = {0.5f, -1};
    bd_parameter_map(&weight, "w", 2, (int64_t[]){2, 3}, BD_F32, w);
    bd_parameter_map(&bias, "b", 1, (int64_t[]){2}, BD_F32, b);
    const float x[6] = {1, 0, -1, 2, 1, 0};
    bd_tape tape = bd_tape_begin(arena, BD_F32, true);
    bd_value *y = bd_op_linear(&tape, bd_tape_constant(&tape, x, 2, 3), &weight, &bias);
    const float want[4] = {-1.5f, -3, 4.5f, 12};
    check_array(y->data, want, 4, 0);
    assert_null(y->gradient);
    assert_null(tape.last);

    // bf16 rounds the inputs of the product, in both directions.
    const float fine[3] = {1.001953125f, 0, 0}; // 1 + 2^-9 rounds to 1 in bf16
    tape = bd_tape_begin(arena, BD_BF16, true);
    check_ok(bd_parameter_train(&weight, &err), err);
    y = bd_op_linear(&tape, bd_tape_constant(&tape, fine, 1, 3), &weight, NULL);
    assert_true(y->data[0] == 1 && y->data[1] == 4);
    y->gradient[0] = 1.001953125f;
    bd_tape_backward(&tape);
    assert_true(weight.gradient[0] == 1);
    bd_parameter_free(&weight);
    bd_parameter_free(&bias);
    bd_arena_destroy(arena);
}

// --- embedding, and a table that is embedding and head at once -----------------------------------

static bd_value *build_embedding(fixture *f, bd_tape *tape)
{
    return bd_op_embedding(tape, &f->parameter[0], f->indices, f->number);
}

static bd_value *build_tied(fixture *f, bd_tape *tape)
{
    bd_value *x = bd_op_embedding(tape, &f->parameter[0], f->indices, f->number);
    return bd_op_linear(tape, bd_op_swiglu(tape, x, x), &f->parameter[0], NULL);
}

static void embedding(void **state)
{
    (void)state;
    const int32_t ids[5] = {3, 0, 3, 3, 1};
    for (int trained = 0; trained < 2; trained++) {
        fixture f = {.build = build_embedding, .indices = ids, .number = 5};
        fixture_parameter(&f, 4, 6, trained);
        fixture_check(&f);
        f = (fixture){.build = build_tied, .indices = ids, .number = 5};
        fixture_parameter(&f, 4, 6, trained);
        fixture_check(&f);
    }
}

// --- norm ----------------------------------------------------------------------------------------

static bd_value *build_norm(fixture *f, bd_tape *tape)
{
    return bd_op_rms_norm(tape, f->leaf[0], &f->parameter[0], 1e-5f, f->number);
}

static void norm(void **state)
{
    (void)state;
    for (int mask = 0; mask < 4; mask++)
        for (int64_t width = 4; width <= 12; width += 8) { // three heads of 4, one row of 12
            fixture f = {.build = build_norm, .number = width};
            fixture_operand(&f, 3, 12);
            f.frozen_operand[0] = !(mask & 1);
            fixture_parameter(&f, 0, width, mask & 2);
            fixture_check(&f);
        }
}

// --- rotary positions ----------------------------------------------------------------------------

static bd_value *build_rope(fixture *f, bd_tape *tape)
{
    return bd_op_rope(tape, f->leaf[0], f->more, f->indices);
}

static void rope(void **state)
{
    (void)state;
    const double frequency[2] = {1, 0.1};
    const bd_rope turn = {.head_size = 4, .inverse_frequency = frequency, .factor = 1.5f};
    const int32_t positions[3] = {0, 5, 2};
    for (int frozen = 0; frozen < 2; frozen++) {
        fixture f = {.build = build_rope, .indices = positions, .more = &turn};
        fixture_operand(&f, 3, 8);
        f.frozen_operand[0] = frozen;
        fixture_check(&f);
    }
}

// --- one operand, read by every operation there is: their gradients add up -----------------------

static bd_value *build_everything(fixture *f, bd_tape *tape)
{
    const bd_visibility rule = {.kind = BD_CAUSAL, .query_length = 3, .key_length = 3};
    bd_visibility *kept = bd_arena_alloc(tape->arena, sizeof *kept);
    *kept = rule;
    const bd_attention a = {.rule = kept,
                            .batch = 1,
                            .query_heads = 2,
                            .key_heads = 2,
                            .head_size = 4,
                            .scale = 0.5f,
                            .compute = BD_F32};
    bd_value *x = f->leaf[0];
    bd_value *parts[8] = {bd_op_linear(tape, x, &f->parameter[0], NULL),
                          bd_op_rms_norm(tape, x, &f->parameter[1], 1e-5f, 8),
                          bd_op_rope(tape, x, f->more, f->indices),
                          bd_op_add(tape, x, x),
                          bd_op_swiglu(tape, x, x),
                          bd_op_gather_rows(tape, x, f->indices, 3),
                          bd_op_attention(tape, x, x, x, &a, NULL),
                          bd_op_linear(tape, x, &f->parameter[0], NULL)};
    return bd_op_concatenate_rows(tape, bd_op_concatenate_columns(tape, parts, 8),
                                  bd_op_concatenate_columns(tape, parts, 8), 1);
}

static void everything(void **state)
{
    (void)state;
    const double frequency[2] = {1, 0.1};
    const bd_rope turn = {.head_size = 4, .inverse_frequency = frequency, .factor = 1};
    fixture f = {.build = build_everything, .indices = (const int32_t[]){1, 0, 1}, .more = &turn};
    fixture_operand(&f, 3, 8);
    fixture_parameter(&f, 5, 8, true);
    fixture_parameter(&f, 0, 8, true);
    fixture_check(&f);
}

// --- two operands: sum, gated unit, rows ---------------------------------------------------------

static bd_value *build_add(fixture *f, bd_tape *tape)
{
    return bd_op_add(tape, f->leaf[0], f->leaf[1]);
}

static bd_value *build_double(fixture *f, bd_tape *tape) // the same operand twice
{
    return bd_op_add(tape, f->leaf[0], bd_op_add(tape, f->leaf[1], f->leaf[0]));
}

static bd_value *build_swiglu(fixture *f, bd_tape *tape)
{
    return bd_op_swiglu(tape, f->leaf[0], f->leaf[1]);
}

static bd_value *build_rows(fixture *f, bd_tape *tape)
{
    return bd_op_concatenate_rows(tape, f->leaf[0], f->leaf[1], 2);
}

static bd_value *build_columns(fixture *f, bd_tape *tape)
{
    bd_value *parts[3] = {f->leaf[1], f->leaf[0], f->leaf[1]};
    return bd_op_concatenate_columns(tape, parts, 3);
}

static void two_operands(void **state)
{
    (void)state;
    bd_value *(*const builds[])(fixture *, bd_tape *) = {build_add, build_double, build_swiglu,
                                                         build_rows, build_columns};
    for (size_t i = 0; i < sizeof builds / sizeof *builds; i++)
        for (int mask = 0; mask < 4; mask++) {
            fixture f = {.build = builds[i]};
            fixture_operand(&f, 4, 5);
            fixture_operand(&f, builds[i] == build_rows ? 6 : 4, 5);
            f.frozen_operand[0] = !(mask & 1);
            f.frozen_operand[1] = !(mask & 2);
            fixture_check(&f);
        }
}

static void arranged_values(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    bd_tape tape = bd_tape_begin(arena, BD_F32, false);
    const float a[4] = {1, 2, 3, 4}, b[8] = {5, 6, 7, 8, 9, 10, 11, 12};
    bd_value *stacked = bd_op_concatenate_rows(&tape, bd_tape_constant(&tape, a, 2, 2),
                                               bd_tape_constant(&tape, b, 4, 2), 2);
    const float rows[12] = {1, 2, 5, 6, 7, 8, 3, 4, 9, 10, 11, 12};
    assert_int_equal(stacked->rows, 6);
    check_array(stacked->data, rows, 12, 0);

    bd_value *parts[2] = {bd_tape_constant(&tape, a, 2, 2), bd_tape_constant(&tape, b, 2, 4)};
    bd_value *beside = bd_op_concatenate_columns(&tape, parts, 2);
    const float columns[12] = {1, 2, 5, 6, 7, 8, 3, 4, 9, 10, 11, 12};
    assert_int_equal(beside->width, 6);
    check_array(beside->data, columns, 12, 0);

    const int32_t index[3] = {1, -1, 0};
    bd_value *chosen = bd_op_gather_rows(&tape, bd_tape_constant(&tape, a, 2, 2), index, 3);
    const float picked[6] = {3, 4, 0, 0, 1, 2};
    check_array(chosen->data, picked, 6, 0);
    bd_arena_destroy(arena);
}

// --- gather --------------------------------------------------------------------------------------

static bd_value *build_gather(fixture *f, bd_tape *tape)
{
    return bd_op_gather_rows(tape, f->leaf[0], f->indices, f->number);
}

static void gather(void **state)
{
    (void)state;
    const int32_t index[6] = {2, -1, 2, 0, 2, -1};
    for (int frozen = 0; frozen < 2; frozen++) {
        fixture f = {.build = build_gather, .indices = index, .number = 6};
        fixture_operand(&f, 4, 70); // wider than a thread's strip of columns
        f.frozen_operand[0] = frozen;
        fixture_check(&f);
    }
}

// --- attention -----------------------------------------------------------------------------------

static bd_value *build_attention(fixture *f, bd_tape *tape)
{
    const bd_visibility *rule = f->more;
    const bd_attention a = {.rule = rule,
                            .batch = 2,
                            .query_heads = 4,
                            .key_heads = 2,
                            .head_size = 3,
                            .scale = 0.6f,
                            .compute = BD_F32};
    return bd_op_attention(tape, f->leaf[0], f->leaf[1], f->leaf[2], &a,
                           f->parameters ? &f->parameter[0] : NULL);
}

static void attention(void **state)
{
    (void)state;
    const bd_visibility causal = {
        .kind = BD_CAUSAL, .query_length = 4, .key_length = 6, .query_offset = 2};
    const bd_visibility blocks = {
        .kind = BD_BLOCK_DIFFUSION, .query_length = 5, .key_length = 5, .block_size = 2};
    const bd_visibility *const rules[] = {&causal, &blocks};
    for (int r = 0; r < 2; r++)
        for (int mask = 0; mask < 32; mask++) {
            if ((mask & 24) == 8)
                continue; // a trained sink, but no sink
            fixture f = {.build = build_attention, .more = rules[r]};
            fixture_operand(&f, 2 * rules[r]->query_length, 12);
            fixture_operand(&f, 2 * rules[r]->key_length, 6);
            fixture_operand(&f, 2 * rules[r]->key_length, 6);
            for (int i = 0; i < 3; i++)
                f.frozen_operand[i] = !(mask >> i & 1);
            if (mask & 16)
                fixture_parameter(&f, 0, 4, mask & 8);
            fixture_check(&f);
        }
}

// --- a loss over the vocabulary: the gradient goes straight into x and the head ------------------

typedef struct {
    double loss;
    float dx[15], dhead[35];
} loss_result;

static loss_result run_loss(bd_arena *arena, const float *x, bd_parameter *head, bool trained_x,
                            bool recording)
{
    loss_result result = {0};
    size_t mark = bd_arena_mark(arena);
    bd_tape tape = bd_tape_begin(arena, BD_F32, recording);
    bd_value *value = bd_tape_value(&tape, 3, 5, trained_x);
    memcpy(value->data, x, 15 * sizeof *x);
    const float scale[3] = {1, 0, 0.5f};
    const int32_t targets[3] = {6, 0, 2};
    float hard[3];
    bd_vocabulary_loss loss = {.rows = 3,
                               .vocabulary = 7,
                               .scale = scale,
                               .targets = targets,
                               .hard = 1,
                               .hard_loss = hard};
    bd_op_vocabulary_loss(&tape, value, head, &loss);
    assert_null(tape.last);
    for (int r = 0; r < 3; r++)
        result.loss += (double)scale[r] * (double)hard[r];
    if (value->gradient)
        memcpy(result.dx, value->gradient, sizeof result.dx);
    if (head->gradient)
        memcpy(result.dhead, head->gradient, sizeof result.dhead);
    bd_arena_release(arena, mark);
    return result;
}

static void vocabulary_loss(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_arena *arena = check_arena();
    float x[15];
    check_fill(x, 15, 5);
    for (int mask = 0; mask < 4; mask++) {
        bd_parameter head;
        check_ok(bd_parameter_create(&head, "head", 2, (int64_t[]){7, 5}, 0, &err), err);
        check_fill(head.value, head.count, 6);
        if (mask & 1)
            check_ok(bd_parameter_train(&head, &err), err);
        loss_result got = run_loss(arena, x, &head, mask & 2, true);
        float wanted[35];
        for (int i = 0; i < 35; i++) {
            double loss[2];
            float kept = head.value[i];
            for (int side = 0; side < 2; side++) {
                head.value[i] = kept + (side ? 0.01f : -0.01f);
                bd_parameter_changed(&head);
                loss[side] = run_loss(arena, x, &head, true, false).loss;
            }
            head.value[i] = kept;
            wanted[i] = mask & 1 ? (float)((loss[1] - loss[0]) / 0.02) : 0;
        }
        bd_parameter_changed(&head);
        check_array(got.dhead, wanted, 35, 1.5e-3);
        for (int i = 0; i < 15; i++) {
            double loss[2];
            float kept = x[i];
            for (int side = 0; side < 2; side++) {
                x[i] = kept + (side ? 0.01f : -0.01f);
                loss[side] = run_loss(arena, x, &head, true, false).loss;
            }
            x[i] = kept;
            wanted[i] = mask & 2 ? (float)((loss[1] - loss[0]) / 0.02) : 0;
        }
        check_array(got.dx, wanted, 15, 1.5e-3);
        bd_parameter_free(&head);
    }
    bd_arena_destroy(arena);
}

// --- elements, recurrences -----------------------------------------------------------------------

static bd_value *build_elements(fixture *f, bd_tape *tape)
{
    bd_value *gate = bd_op_sigmoid(tape, f->leaf[0]);
    return bd_op_multiply(tape, gate, bd_op_silu(tape, f->leaf[1]));
}

static void elements(void **state)
{
    (void)state;
    for (int mask = 0; mask < 4; mask++) {
        fixture f = {.build = build_elements};
        for (int i = 0; i < 2; i++) {
            fixture_operand(&f, 4, 5);
            f.frozen_operand[i] = !(mask >> i & 1);
        }
        fixture_check(&f);
    }
}

static bd_value *build_gru(fixture *f, bd_tape *tape)
{
    return bd_op_gru(tape, f->leaf[0], &f->parameter[0], 3, NULL);
}

static bd_value *build_memory(fixture *f, bd_tape *tape)
{
    return bd_op_gated_memory(tape, f->leaf[0], &f->parameter[0], &f->parameter[1], 3, NULL);
}

static void recurrences(void **state)
{
    (void)state;
    for (int mask = 0; mask < 8; mask++) {
        fixture f = {.build = build_gru};
        fixture_operand(&f, 6, 12);
        f.frozen_operand[0] = !(mask & 1);
        fixture_parameter(&f, 12, 4, mask & 2);
        fixture_check(&f);
        f = (fixture){.build = build_memory};
        fixture_operand(&f, 6, 5);
        f.frozen_operand[0] = !(mask & 1);
        fixture_parameter(&f, 9, 8, mask & 2);
        fixture_parameter(&f, 0, 9, mask & 4);
        fixture_check(&f);
    }
}

int main(void)
{
    bd_threads_set(1); // thousands of tiny runs
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(linear),
        cmocka_unit_test(elements),
        cmocka_unit_test(recurrences),
        cmocka_unit_test(linear_values),
        cmocka_unit_test(embedding),
        cmocka_unit_test(norm),
        cmocka_unit_test(rope),
        cmocka_unit_test(two_operands),
        cmocka_unit_test(everything),
        cmocka_unit_test(gather),
        cmocka_unit_test(arranged_values),
        cmocka_unit_test(attention),
        cmocka_unit_test(vocabulary_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
