#include "train/token_loss.h"

#include <assert.h>
#include <string.h>

#include "base/file.h"
#include "format/json.h"

// --- the loss ------------------------------------------------------------------------------------

static int64_t count_tokens(const bd_placement *placement)
{
    int64_t cells = placement->rows * placement->length, tokens = 0;
    if (!placement->segments)
        return cells;
    for (int64_t i = 0; i < cells; i++)
        tokens += placement->segments[i] != 0;
    return tokens;
}

static void put(bd_loss *loss, const char *name, double sum, double weight)
{
    assert(loss->metric_count < BD_MOST_METRICS);
    bd_weighted value = {.sum = sum, .denominator = weight};
    loss->metrics[loss->metric_count++] = bd_metric_weighted(name, value);
}

bool bd_token_loss(const bd_objective *objective, const bd_objective_rows *rows, bd_model *model,
                   bd_tape *tape, bd_loss *loss, bd_error *err)
{
    bd_objective_result result = {0};
    if (!bd_objective_loss(objective, rows, model, tape, NULL, &result, err))
        return false;
    loss->loss = (bd_weighted){.sum = result.sum, .denominator = result.weight};
    put(loss, "accuracy", result.correct, result.weight);
    if (objective->z_loss > 0)
        put(loss, "z_loss", result.z_sum, result.weight);
    loss->tokens = count_tokens(&rows->placement);
    if (tape->recording)
        bd_tape_backward(tape);
    return true;
}

void bd_loss_add(bd_loss *loss, const bd_loss *part)
{
    loss->loss.sum += part->loss.sum;
    loss->loss.denominator += part->loss.denominator;
    loss->tokens += part->tokens;
    if (loss->metric_count == 0) {
        loss->metric_count = part->metric_count;
        memcpy(loss->metrics, part->metrics, sizeof loss->metrics);
        return;
    }
    assert(loss->metric_count == part->metric_count);
    for (int i = 0; i < part->metric_count; i++) {
        assert(!strcmp(loss->metrics[i].name, part->metrics[i].name));
        loss->metrics[i].value.sum += part->metrics[i].value.sum;
        loss->metrics[i].value.denominator += part->metrics[i].value.denominator;
    }
}

// --- a batch as a case ---------------------------------------------------------------------------

static bool save_tensors(const bd_objective_rows *rows, const char *path, bd_arena *arena,
                         bd_error *err)
{
    const bd_placement *p = &rows->placement;
    int64_t cells = p->rows * p->length;
    int32_t *positions = bd_arena_ints(arena, cells), *segments = bd_arena_ints(arena, cells);
    for (int64_t i = 0; i < cells; i++) {
        positions[i] = p->positions ? p->positions[i] : (int32_t)(i % p->length);
        segments[i] = p->segments ? p->segments[i] : 1;
    }
    const struct {
        const char *name;
        bd_dtype dtype;
        const void *data;
    } fields[] = {{"inputs", BD_I32, rows->inputs},
                  {"targets", BD_I32, rows->targets},
                  {"positions", BD_I32, positions},
                  {"segments", BD_I32, segments},
                  {"weights", BD_F32, rows->weights}};
    enum { FIELDS = sizeof fields / sizeof *fields };
    bd_tensor tensors[FIELDS];
    for (int i = 0; i < FIELDS; i++)
        tensors[i] = (bd_tensor){.name = fields[i].name,
                                 .dtype = fields[i].dtype,
                                 .rank = 2,
                                 .shape = {p->rows, p->length},
                                 .count = cells,
                                 .data = fields[i].data};
    return bd_safetensors_write(path, tensors, FIELDS, NULL, err);
}

bool bd_token_rows_save(const bd_objective *objective, const bd_objective_rows *rows,
                        const bd_model *model, const char *folder, bd_error *err)
{
    char path[BD_PATH], models[BD_PATH];
    int64_t cells = rows->placement.rows * rows->placement.length;
    bd_arena *arena = bd_arena_create((size_t)cells * 8 + 4096, err);
    if (!arena)
        return false;
    bool ok = bd_path_join(path, folder, "batch.safetensors", err) &&
              save_tensors(rows, path, arena, err);
    bd_arena_destroy(arena);
    bool block = objective->block_size > 0;
    json_t *json = json_pack("{s:s, s:s, s:o, s:s}", "model", "models/current", "attention",
                             block ? "block_diffusion" : "causal", "block_size",
                             block ? json_integer(objective->block_size) : json_null(), "alignment",
                             bd_alignment_name(objective->alignment));
    ok = ok && bd_path_join(path, folder, "batch.json", err) && bd_json_save(json, path, err) &&
         bd_path_join(models, folder, "models/current", err) && bd_folder_make(models, err) &&
         bd_model_save(model, models, BD_F32, err);
    json_decref(json);
    return ok;
}
