/* More rows for a vocabulary: old rows keep their values, new ones are the mean, files agree. */
#include "model/vocabulary.h"

#include <unistd.h>

#include "base/file.h"
#include "check.h"

static bd_model *small_model(bool tied)
{
    bd_error err = {0};
    bd_model_config config = {.family = BD_FAMILY_LLAMA,
                              .vocabulary = 5,
                              .hidden = 8,
                              .layers = 1,
                              .query_heads = 2,
                              .key_heads = 1,
                              .head_size = 4,
                              .intermediate = 8,
                              .max_positions = 16,
                              .norm_eps = 1e-6,
                              .initializer_range = 0.5,
                              .tied_head = tied,
                              .rope = {.theta = 10000, .factor = 1},
                              .dtype = BD_F32,
                              .bos = -1,
                              .pad = -1};
    bd_model *model;
    check_ok(model = bd_model_create(&config, 3, BD_F32, &err), err);
    return model;
}

static void check_rows(const float *got, const float *old, int64_t rows)
{
    assert_memory_equal(got, old, 5 * 8 * sizeof *got);
    for (int64_t i = 0; i < 8; i++) {
        double mean = 0;
        for (int64_t r = 0; r < 5; r++)
            mean += (double)old[r * 8 + i] / 5;
        for (int64_t r = 5; r < rows; r++)
            check_near((double)got[r * 8 + i], mean, 1e-6);
    }
}

static void test_grow(void **state)
{
    (void)state;
    bd_error err = {0};
    for (int tied = 0; tied <= 1; tied++) {
        bd_model *model = small_model(tied), *opened;
        float embedding[40], head[40];
        memcpy(embedding, model->embedding->data, sizeof embedding);
        memcpy(head, model->head->data, sizeof head);
        check_ok(bd_model_grow_vocabulary(model, 7, &err), err);
        assert_int_equal(model->config.vocabulary, 7);
        assert_int_equal(model->embedding->shape[0], 7);
        assert_true((model->head == model->embedding) == tied);
        check_rows(model->embedding->value, embedding, 7);
        check_rows(model->head->value, head, 7);
        // A mapped folder grows as well, and its weights train.
        char folder[] = "/tmp/bdlm-vocabulary-XXXXXX";
        assert_non_null(mkdtemp(folder));
        check_ok(bd_model_save(model, folder, BD_F32, &err), err);
        bd_model_close(model);
        check_ok(opened = bd_model_open(folder, BD_F32, &err), err);
        check_ok(bd_model_grow_vocabulary(opened, 9, &err), err);
        check_ok(bd_model_train(opened, &err), err);
        assert_int_equal(opened->embedding->count, 72);
        assert_true(opened->embedding->gradient != NULL);
        check_rows(opened->embedding->value, embedding, 7);
        bd_model_close(opened);
        check_ok(bd_folder_remove(folder, &err), err);
    }
}

static void test_mean_of_known_rows(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model *model = small_model(false);
    const float *old = model->embedding->value;
    double want = ((double)old[1] + (double)old[9] + (double)old[17]) / 3;
    float before = old[25];
    check_ok(bd_model_mean_token(model, 4, 3, &err), err); // rows 0 to 2; row 3 is left alone
    check_near((double)model->embedding->value[33], want, 1e-6);
    assert_true(model->embedding->value[25] == before);
    bd_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_grow),
                                       cmocka_unit_test(test_mean_of_known_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
