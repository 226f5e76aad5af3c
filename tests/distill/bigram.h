/* bigram.h - models that know one thing: which token follows which. Every layer adds nothing, so
 * the output at token t scores next[t] far above the rest; a token that nothing follows (next -1)
 * scores all alike. Rows of `shifted` models can be worked out by hand. */
#ifndef BD_TESTS_BIGRAM_H
#define BD_TESTS_BIGRAM_H

#include "check.h"
#include "model/model.h"

enum { BIGRAM_VOCABULARY = 16 };

static inline bd_model_config bigram_config(void)
{
    return (bd_model_config){.family = BD_FAMILY_QWEN3,
                             .vocabulary = BIGRAM_VOCABULARY,
                             .hidden = BIGRAM_VOCABULARY,
                             .layers = 1,
                             .query_heads = 2,
                             .key_heads = 1,
                             .head_size = 8,
                             .intermediate = 32,
                             .max_positions = 64,
                             .norm_eps = 1e-6,
                             .initializer_range = 0.05,
                             .qk_norm = true,
                             .rope = {.theta = 10000, .factor = 1},
                             .dtype = BD_F32,
                             .bos = -1,
                             .pad = -1};
}

static inline void bigram_set(bd_model *model, const int *next, float sure)
{
    for (int64_t i = 0; i < model->parameters.count; i++) {
        bd_parameter *p = model->parameters.items[i];
        if (p->rank == 2)
            memset(p->value, 0, (size_t)p->count * sizeof(float));
    }
    for (int t = 0; t < BIGRAM_VOCABULARY; t++) {
        model->embedding->value[t * BIGRAM_VOCABULARY + t] = 1;
        if (next[t] >= 0)
            model->head->value[next[t] * BIGRAM_VOCABULARY + t] = sure / 4; // the norm makes it 4
    }
    for (int64_t i = 0; i < model->parameters.count; i++)
        bd_parameter_changed(model->parameters.items[i]);
}

static inline bd_model *bigram_model(const int *next, float sure, bool trained)
{
    bd_error err = {0};
    bd_model_config config = bigram_config();
    bd_model *model;
    check_ok(model = bd_model_create(&config, 1, BD_F32, &err), err);
    if (trained)
        check_ok(bd_model_train(model, &err), err);
    bigram_set(model, next, sure);
    return model;
}

#endif
