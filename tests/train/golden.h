/* golden.h - one golden case: its JSON, its tensors. Missing things fail the test. */
#ifndef BD_TESTS_GOLDEN_H
#define BD_TESTS_GOLDEN_H

#include <jansson.h>

#include "check.h"
#include "format/json.h"
#include "format/safetensors.h"

typedef struct {
    json_t *json;
    bd_safetensors *tensors;
} golden;

static inline golden golden_open(const char *name)
{
    char path[256];
    bd_error err = {0};
    golden g = {0};
    snprintf(path, sizeof path, BD_GOLDEN "/block-diffusion/cases/%s.json", name);
    check_ok(g.json = bd_json_load(path, &err), err);
    snprintf(path, sizeof path, BD_GOLDEN "/block-diffusion/cases/%s.safetensors", name);
    check_ok(g.tensors = bd_safetensors_open(path, &err), err);
    return g;
}

static inline void golden_close(golden *g)
{
    json_decref(g->json);
    bd_safetensors_close(g->tensors);
}

static inline const bd_tensor *golden_tensor(const golden *g, const char *name)
{
    const bd_tensor *t = bd_safetensors_find(g->tensors, name);
    if (!t)
        fail_msg("no tensor %s", name);
    return t;
}

static inline double golden_number(json_t *object, const char *name)
{
    json_t *value = json_object_get(object, name);
    if (!json_is_number(value))
        fail_msg("no number %s", name);
    return json_number_value(value);
}

static inline const char *golden_text(json_t *object, const char *name)
{
    const char *value = json_string_value(json_object_get(object, name));
    if (!value)
        fail_msg("no text %s", name);
    return value;
}

static inline bd_dtype golden_kind(json_t *object, const char *name)
{
    return !strcmp(golden_text(object, name), "bf16") ? BD_BF16 : BD_F32;
}

static inline json_t *golden_table(const char *name)
{
    char path[256];
    bd_error err = {0};
    json_t *table;
    snprintf(path, sizeof path, BD_GOLDEN "/block-diffusion/tables/%s.json", name);
    check_ok(table = bd_json_load(path, &err), err);
    return table;
}

#endif
