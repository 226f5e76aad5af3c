/* micro.h - the micro model of draft-family 11.3: every value from one formula. */
#ifndef BD_TESTS_DRAFT_MICRO_H
#define BD_TESTS_DRAFT_MICRO_H

#include "check.h"
#include "draft/step.h"
#include "draft/ints.h"

enum {
    MICRO_B = 2,
    MICRO_S = 12,
    MICRO_N = 3,
    MICRO_BS = 4,
    MICRO_H = 8,
    MICRO_V = 11,
    MICRO_MASK = 10
};

static inline int64_t micro_hash(int64_t tensor, int64_t index)
{
    int64_t h = (1103 * index + 7919 * tensor + 12345) % 2003;
    return (h * h + 31 * h) % 2003;
}

static inline double micro_value(int64_t tensor, int64_t index, double scale, double base)
{
    return base + scale * ((double)micro_hash(tensor, index) / 1001.0 - 1.0);
}

static inline void micro_fill(float *x, int64_t count, int64_t tensor, double scale, double base)
{
    for (int64_t i = 0; i < count; i++)
        x[i] = (float)micro_value(tensor, i, scale, base);
}

static inline void micro_parameter(bd_parameter *p, int64_t tensor, double scale, double base)
{
    micro_fill(p->value, p->count, tensor, scale, base);
    bd_parameter_changed(p);
}

typedef struct {
    bd_model *target;
    bd_draft *draft;
    bd_draft_batch batch;
    bd_anchors anchors;
    int32_t tokens[MICRO_B * MICRO_S], anchor[MICRO_B * MICRO_N];
    uint8_t keep[MICRO_B * MICRO_N];
    float loss_mask[MICRO_B * MICRO_S];
    float features[MICRO_B * MICRO_S * 2 * MICRO_H], hidden[MICRO_B * MICRO_S * MICRO_H];
} micro;

static inline bd_model_config micro_target_config(void)
{
    bd_model_config c = {.family = BD_FAMILY_QWEN3,
                         .vocabulary = MICRO_V,
                         .hidden = MICRO_H,
                         .layers = 4,
                         .query_heads = 2,
                         .key_heads = 1,
                         .head_size = 4,
                         .intermediate = 12,
                         .max_positions = 64,
                         .norm_eps = 1e-6,
                         .initializer_range = 0.02,
                         .qk_norm = true,
                         .rope = {.theta = 10000, .factor = 1},
                         .bos = -1,
                         .pad = -1};
    return c;
}

static inline bd_draft_config micro_draft_config(void)
{
    bd_draft_config c = bd_draft_config_default();
    c.stack.layers = 2;
    c.stack.query_heads = 2;
    c.stack.key_heads = 1;
    c.stack.head_size = 4;
    c.stack.intermediate = 12;
    c.block_size = MICRO_BS;
    c.mask_id = MICRO_MASK;
    return c;
}

static inline void micro_weights(micro *m)
{
    micro_parameter(m->target->embedding, 1, 1, 0);
    micro_parameter(m->target->head, 2, 1, 0);
    micro_parameter(m->target->norm, 3, .5, 1);
    micro_parameter(m->draft->fc, 10, .5, 0);
    micro_parameter(m->draft->hidden_norm, 11, .25, 1);
    micro_parameter(m->draft->norm, 12, .25, 1);
    for (int64_t l = 0; l < 2; l++) {
        const bd_layer *layer = &m->draft->layers[l];
        bd_parameter *const in_order[] = {
            layer->query,      layer->key,      layer->value,      layer->output,
            layer->query_norm, layer->key_norm, layer->input_norm, layer->post_attention_norm,
            layer->gate,       layer->up,       layer->down};
        for (int i = 0; i < 11; i++) {
            bool norm = i >= 4 && i < 8;
            micro_parameter(in_order[i], 20 + 20 * l + i, norm ? .25 : .5, norm ? 1 : 0);
        }
    }
}

static inline micro *micro_open(void)
{
    bd_error err = {0};
    micro *m = calloc(1, sizeof *m);
    bd_model_config target = micro_target_config();
    bd_draft_config config = micro_draft_config();
    m->target = bd_model_create(&target, 1, BD_F32, &err);
    check_ok(m->target != NULL, err);
    check_ok(bd_draft_config_complete(&config, &m->target->config, &err), err);
    m->draft = bd_draft_create(&config, m->target, 1, BD_F32, &err);
    check_ok(m->draft != NULL, err);
    micro_weights(m);
    check_ok(bd_draft_train(m->draft, &err), err);

    for (int64_t i = 0; i < MICRO_B * MICRO_S; i++) {
        m->tokens[i] = (int32_t)(micro_hash(99, i) % 10);
        int64_t row = i / MICRO_S, p = i % MICRO_S;
        m->loss_mask[i] = row == 0 ? p != 0 && p != 1 && p != 6 : p >= 3 && p <= 9;
    }
    memcpy(m->anchor, (int32_t[]){2, 5, 8, 3, 7, 0}, sizeof m->anchor);
    memcpy(m->keep, (uint8_t[]){1, 1, 1, 1, 1, 0}, sizeof m->keep);
    micro_fill(m->features, MICRO_B * MICRO_S * 2 * MICRO_H, 90, 1, 0);
    micro_fill(m->hidden, MICRO_B * MICRO_S * MICRO_H, 91, 1, 0);
    m->anchors = (bd_anchors){.blocks = MICRO_N, .anchor = m->anchor, .keep = m->keep};
    m->batch = (bd_draft_batch){.rows = MICRO_B,
                                .length = MICRO_S,
                                .tokens = m->tokens,
                                .loss_mask = m->loss_mask,
                                .anchors = &m->anchors,
                                .features = m->features,
                                .teacher_kind = BD_TEACHER_PRENORM,
                                .teacher = m->hidden};
    return m;
}

static inline void micro_close(micro *m)
{
    bd_draft_close(m->draft);
    bd_model_close(m->target);
    free(m);
}

/* One recording step with fresh gradients; hidden and weights in the batch's layout. */
static inline bd_draft_loss micro_step(micro *m, bool distill, bd_weighting weighting,
                                       bd_draft_record *record)
{
    bd_error err = {0};
    bd_arena *arena = check_arena();
    bd_draft_objective objective = {.weighting = weighting, .distill = distill};
    bd_draft_loss loss;
    bd_parameters_zero_gradients(&m->draft->parameters);
    bd_tape tape = bd_tape_begin(arena, m->draft->compute, true);
    check_ok(bd_draft_step_run(m->draft, &tape, &m->batch, &objective, BD_DRAFT_MEAN, record, &loss,
                               &err),
             err);
    bd_arena_destroy(arena);
    return loss;
}

#endif
