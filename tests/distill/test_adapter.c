/* T-27: block-diffusion rows as a token batch: where raw weights may stand on clean tokens. */
#include "check.h"
#include "distill/batch.h"

enum { LENGTH = 8, MASK = 99 };
static int32_t inputs[LENGTH] = {10, 11, MASK, MASK, 14, MASK, MASK, MASK};
static int32_t targets[LENGTH] = {10, 11, 12, 13, 14, 15, 16, 17};
static int32_t positions[LENGTH] = {0, 1, 2, 3, 4, 5, 6, 7};
static int32_t segments[LENGTH] = {1, 1, 1, 1, 1, 1, 1, 1};
static int32_t completion[LENGTH] = {0, 0, 1, 1, 1, 1, 1, 1};
static int32_t corruption[LENGTH] = {0, 0, 1, 1, 0, 1, 1, 1};
static const float raw[LENGTH] = {0, 0, 1, 1, 1, 1, 1, 1};

static bd_diffusion_batch rows_of(void)
{
    return (bd_diffusion_batch){.rows = 1,
                                .length = LENGTH,
                                .inputs = inputs,
                                .inputs_position = positions,
                                .inputs_segmentation = segments,
                                .targets = targets,
                                .targets_position = positions,
                                .targets_segmentation = segments,
                                .completion_mask = completion,
                                .corruption_mask = corruption};
}

static bool adapt(const char *alignment, const char *policy, const bd_diffusion_batch *rows,
                  float *weights, bd_array *arrays, bd_token_batch *out, bd_error *err)
{
    bd_canvas canvas;
    check_ok(bd_canvas_make(alignment, policy, 4, MASK, &canvas, err), *err);
    return bd_token_batch_from_rows(rows, &canvas, true, raw, weights, arrays, out, err);
}

static void test_shifted(void **state)
{
    (void)state;
    bd_error err = {0};
    float weights[LENGTH];
    bd_array arrays[BD_ADAPTED_INPUTS];
    bd_token_batch out;
    bd_diffusion_batch rows = rows_of();
    check_ok(adapt("shifted", "seed_and_mask", &rows, weights, arrays, &out, &err), err);
    assert_memory_equal(weights, raw, sizeof raw); // the anchor at position 4 keeps its weight
    assert_ptr_equal(out.loss_weights.data, weights);
    assert_ptr_equal(out.target_ids.data, targets);
    assert_int_equal(out.input_count, BD_ADAPTED_INPUTS);
    assert_ptr_equal(out.model_inputs[0].data, inputs);
}

static void test_same_position(void **state)
{
    (void)state;
    bd_error err = {0};
    float weights[LENGTH];
    bd_array arrays[BD_ADAPTED_INPUTS];
    bd_token_batch out;
    bd_diffusion_batch rows = rows_of();
    check_refused(adapt("same_position", "all_masked", &rows, weights, arrays, &out, &err), err,
                  "slot 4: weighted targets must be corrupted");
}

static void test_missing_fields(void **state)
{
    (void)state;
    bd_error err = {0};
    float weights[LENGTH];
    bd_array arrays[BD_ADAPTED_INPUTS];
    bd_token_batch out;
    bd_diffusion_batch rows = rows_of();
    rows.completion_mask = rows.targets_segmentation = NULL;
    check_refused(adapt("shifted", "seed_and_mask", &rows, weights, arrays, &out, &err), err,
                  "missing completion_mask, targets_segmentation");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shifted),
        cmocka_unit_test(test_same_position),
        cmocka_unit_test(test_missing_fields),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
