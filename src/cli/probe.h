/* probe.h - one golden case: what it gives, what was computed from it.
 *
 * A family's function reads the case's inputs alone, computes, and puts every expected tensor and
 * scalar under its own name into the answer. Formats: golden/block-diffusion/README.md,
 * golden/draft/README.md.
 */
#ifndef BD_CLI_PROBE_H
#define BD_CLI_PROBE_H

#include <jansson.h>

#include "base/arena.h"
#include "format/safetensors.h"

enum { BD_PROBE_TENSORS = 2048 };

typedef struct {
    bd_arena *arena;         /* everything the answer points to */
    const char *path, *root; /* the case file; the folder its model paths are relative to */
    json_t *json;
    bd_safetensors *inputs; /* NULL for tables */
    json_t *answer;         /* becomes OUT.json */
    bd_tensor tensors[BD_PROBE_TENSORS];
    int64_t count;
    const char *skipped; /* why the case could not be run here (a missing package) */
} bd_probe;

typedef bool bd_probe_function(bd_probe *probe, bd_error *err);

bd_probe_function bd_probe_chat, bd_probe_distill, bd_probe_on_policy, bd_probe_cross_entropy,
    bd_probe_adamw, bd_probe_clip, bd_probe_model, bd_probe_accumulate, bd_probe_train,
    bd_probe_rollout, bd_probe_table, bd_probe_target_forward, bd_probe_train_step,
    bd_probe_generation, bd_probe_anchors, bd_probe_draft_tables, bd_probe_tokens;

/* --- reading inputs: an error names case and tensor ------------------------------------------- */

/* A tensor with its values as fp32 / int32 in the arena; shape is filled in; rank -1 accepts any.
 */
const float *bd_probe_floats(bd_probe *probe, const char *name, int rank, int64_t *shape,
                             bd_error *err);
const int32_t *bd_probe_ints(bd_probe *probe, const char *name, int rank, int64_t *shape,
                             bd_error *err);
bool bd_probe_has(const bd_probe *probe, const char *name);
double bd_probe_option(const bd_probe *probe, json_t *object, const char *name, double fallback);
const char *bd_probe_word(json_t *object, const char *name, const char *fallback);
/* ROOT/NAME of the model folder the case's field names. */
bool bd_probe_folder(bd_probe *probe, const char *field, char out[4096], bd_error *err);

/* --- answers ---------------------------------------------------------------------------------- */

/* Copies into the arena. shape: rank sizes. */
void bd_probe_put(bd_probe *probe, const char *name, bd_dtype dtype, int rank, const int64_t *shape,
                  const void *data);
void bd_probe_put_ints(bd_probe *probe, const char *name, bd_dtype dtype, int rank,
                       const int64_t *shape, const int32_t *data);
void bd_probe_scalar(bd_probe *probe, const char *name, double value);

#endif
