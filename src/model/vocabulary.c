#include "model/vocabulary.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* Mean of the first `rows` rows, summed in double in the order of the rows. */
static bool mean_row(const bd_parameter *p, int64_t rows, float *mean, bd_error *err)
{
    int64_t width = p->shape[1];
    size_t bytes = (size_t)width * bd_dtype_size(p->dtype);
    double *sum = calloc((size_t)width, sizeof *sum);
    if (!sum)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory for a row", p->name);
    for (int64_t r = 0; r < rows; r++) {
        bd_to_f32(p->dtype, (const char *)p->data + (size_t)r * bytes, mean, width);
        for (int64_t i = 0; i < width; i++)
            sum[i] += (double)mean[i];
    }
    for (int64_t i = 0; i < width; i++)
        mean[i] = rows > 0 ? (float)(sum[i] / (double)rows) : 0;
    free(sum);
    return true;
}

/* Replace the parameter by a writable copy of `rows` rows, new ones being the mean of the old. */
static bool copy_with_rows(bd_parameter *p, int64_t rows, bd_error *err)
{
    int64_t old = p->shape[0], width = p->shape[1];
    bd_parameter larger;
    if (!bd_parameter_create(&larger, p->name, 2, (int64_t[]){rows, width}, 0, err))
        return false;
    bd_to_f32(p->dtype, p->data, larger.value, (old < rows ? old : rows) * width);
    if (rows > old) {
        float *first = larger.value + old * width;
        if (!mean_row(p, old, first, err)) {
            bd_parameter_free(&larger);
            return false;
        }
        for (int64_t r = old + 1; r < rows; r++)
            memcpy(larger.value + r * width, first, (size_t)width * sizeof *first);
    }
    larger.version = p->version + 1;
    bd_parameter_free(p);
    *p = larger;
    return true;
}

bool bd_model_grow_vocabulary(bd_model *model, int64_t vocabulary, bd_error *err)
{
    assert(vocabulary >= model->config.vocabulary);
    bd_model_config config = model->config;
    config.vocabulary = vocabulary;
    if (!bd_model_config_check(&config, "a larger vocabulary", err) ||
        !copy_with_rows(model->embedding, vocabulary, err) ||
        (model->head != model->embedding && !copy_with_rows(model->head, vocabulary, err)))
        return false;
    model->config = config;
    return true;
}

static bool set_row(bd_parameter *p, int64_t row, int64_t rows, bd_error *err)
{
    if (!p->value && !copy_with_rows(p, p->shape[0], err))
        return false;
    if (!mean_row(p, rows, p->value + row * p->shape[1], err))
        return false;
    bd_parameter_changed(p);
    return true;
}

bool bd_model_mean_token(bd_model *model, int64_t token, int64_t rows, bd_error *err)
{
    assert(token >= 0 && token < model->config.vocabulary && rows <= model->config.vocabulary);
    assert(token >= rows);
    return set_row(model->embedding, token, rows, err) &&
           (model->head == model->embedding || set_row(model->head, token, rows, err));
}
