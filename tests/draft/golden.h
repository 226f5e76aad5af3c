/* golden.h - golden drafter cases (golden/draft/README.md) for the tests. */
#ifndef BD_TESTS_DRAFT_GOLDEN_H
#define BD_TESTS_DRAFT_GOLDEN_H

#include "check.h"
#include "draft/step.h"
#include "draft/ints.h"
#include "format/json.h"

#define DRAFT_GOLDEN BD_GOLDEN "/draft/"

static inline json_t *golden_json(const char *name)
{
    char path[300];
    bd_error err = {0};
    snprintf(path, sizeof path, DRAFT_GOLDEN "%s.json", name);
    json_t *json = bd_json_load(path, &err);
    if (!json)
        fail_msg("%s", err.message);
    return json;
}

static inline bd_safetensors *golden_tensors(const char *name)
{
    char path[300];
    bd_error err = {0};
    snprintf(path, sizeof path, DRAFT_GOLDEN "%s.safetensors", name);
    bd_safetensors *tensors = bd_safetensors_open(path, &err);
    if (!tensors)
        fail_msg("%s", err.message);
    return tensors;
}

static inline bd_model *golden_target(const char *name, bd_dtype compute)
{
    char path[300];
    bd_error err = {0};
    snprintf(path, sizeof path, DRAFT_GOLDEN "%s", name);
    bd_model *target = bd_model_open(path, compute, &err);
    if (!target)
        fail_msg("%s", err.message);
    return target;
}

static inline bd_draft *golden_draft(const char *name, bd_model *target, bd_dtype compute)
{
    char path[300];
    bd_error err = {0};
    snprintf(path, sizeof path, DRAFT_GOLDEN "%s", name);
    bd_draft *draft = bd_draft_open(path, target, compute, &err);
    if (!draft)
        fail_msg("%s", err.message);
    return draft;
}

/* A tensor of a case as fp32 or int32, in the arena; NULL when it is not there. */
static inline float *golden_floats(const bd_safetensors *tensors, const char *name, bd_arena *arena)
{
    const bd_tensor *t = bd_safetensors_find(tensors, name);
    if (!t)
        return NULL;
    bd_error err = {0};
    float *out = bd_arena_floats(arena, t->count);
    check_ok(bd_safetensors_read_f32(tensors, name, t->rank, t->shape, out, &err), err);
    return out;
}

static inline int32_t *golden_ints(const bd_safetensors *tensors, const char *name, bd_arena *arena)
{
    const bd_tensor *t = bd_safetensors_find(tensors, name);
    if (!t)
        return NULL;
    bd_error err = {0};
    int32_t *out = bd_arena_ints(arena, t->count);
    check_ok(bd_safetensors_read_i32(tensors, name, t->rank, t->shape, out, &err), err);
    return out;
}

static inline int64_t golden_count(const bd_safetensors *tensors, const char *name)
{
    const bd_tensor *t = bd_safetensors_find(tensors, name);
    return t ? t->count : 0;
}

/* One training case: inputs, and the draft with the case's options set. */
typedef struct {
    json_t *json;
    bd_safetensors *tensors;
    bd_arena *arena;
    bd_model *target;
    bd_draft *draft;
    bd_anchors *anchors; /* in the arena, the batch points to it */
    bd_draft_batch batch;
    bd_draft_objective objective;
} golden_case;

static inline void golden_options(golden_case *c)
{
    json_t *o = json_object_get(c->json, "options");
    const char *text = json_string_value(json_object_get(o, "dflash_loss_objective"));
    bool dpace = text && !strcmp(text, "dpace");
    json_t *alpha = json_object_get(o, "dflash_dpace_alpha");
    c->objective.weighting.objective = dpace ? BD_WEIGHT_DPACE : BD_WEIGHT_DECAY;
    c->objective.weighting.alpha = alpha ? (float)json_number_value(alpha) : 0.5f;
    c->objective.weighting.decay =
        (float)json_number_value(json_object_get(o, "dflash_loss_decay_factor"));
    c->objective.distill = json_is_true(json_object_get(o, "dflash_self_logit_distillation"));
    text = json_string_value(json_object_get(o, "dflash_draft_attention"));
    bool causal = text && !strcmp(text, "causal");
    // The options decide window and causality in these files, not the draft's configuration.
    c->draft->config.causality = causal ? BD_DRAFT_CAUSAL : BD_DRAFT_BIDIRECTIONAL;
    c->draft->config.window = json_integer_value(json_object_get(o, "dflash_swa_window_size"));
}

static inline golden_case golden_open(const char *name, bd_dtype compute)
{
    golden_case c = {
        .json = golden_json(name), .tensors = golden_tensors(name), .arena = check_arena()};
    bd_error err = {0};
    c.target = golden_target(json_string_value(json_object_get(c.json, "target")), compute);
    c.draft = golden_draft(json_string_value(json_object_get(c.json, "draft")), c.target, compute);
    golden_options(&c);
    c.batch.rows = json_integer_value(json_object_get(c.json, "batch"));
    c.batch.length = json_integer_value(json_object_get(c.json, "seq_len"));
    c.batch.tokens = golden_ints(c.tensors, "input_ids", c.arena);
    c.batch.loss_mask = golden_floats(c.tensors, "loss_mask", c.arena);
    c.batch.features = golden_floats(c.tensors, "aux_hidden", c.arena);
    c.anchors = bd_arena_alloc(c.arena, sizeof *c.anchors);
    c.batch.anchors = c.anchors;
    c.anchors->blocks = json_integer_value(json_object_get(c.json, "num_blocks"));
    c.anchors->anchor = golden_ints(c.tensors, "anchors", c.arena);
    c.anchors->keep = bd_safetensors_find(c.tensors, "keep")->data;
    const char *teacher = json_string_value(json_object_get(c.json, "teacher"));
    c.batch.teacher_kind = !strcmp(teacher, "logits")            ? BD_TEACHER_LOGITS
                           : !strcmp(teacher, "hidden_postnorm") ? BD_TEACHER_HIDDEN
                           : !strcmp(teacher, "hidden_prenorm")  ? BD_TEACHER_PRENORM
                                                                 : BD_TEACHER_NONE;
    c.batch.teacher = golden_floats(
        c.tensors, c.batch.teacher_kind == BD_TEACHER_LOGITS ? "teacher_logits" : "teacher_hidden",
        c.arena);
    check_ok(bd_draft_train(c.draft, &err), err);
    return c;
}

static inline void golden_close(golden_case *c)
{
    bd_draft_close(c->draft);
    bd_model_close(c->target);
    bd_safetensors_close(c->tensors);
    bd_arena_destroy(c->arena);
    json_decref(c->json);
}

#endif
