/* probe_rollout.c - block rollouts on a model folder, with the whole trace. */
#include <string.h>

#include "base/file.h"
#include "cli/probe.h"
#include "diffusion/scoring.h"
#include "format/json.h"

typedef struct {
    bd_arena *arena;
    int64_t cells, count, room;
    // [count, cells] each
    int32_t *before, *after, *open, *picks, *token;
    float *confidence;
    json_t *steps;
} trace;

static void keep(void *self, const bd_transition *t)
{
    trace *all = self;
    if (all->count == all->room)
        return; // more passes than a block has slots: cannot be
    size_t bytes = (size_t)all->cells * sizeof(int32_t);
    int64_t at = all->count++ * all->cells;
    memcpy(all->before + at, t->before, bytes);
    memcpy(all->after + at, t->after, bytes);
    memcpy(all->open + at, t->open, bytes);
    memcpy(all->picks + at, t->picks, bytes);
    memcpy(all->token + at, t->token, bytes);
    memcpy(all->confidence + at, t->confidence, bytes);
    json_array_append_new(all->steps, json_pack("{s:s,s:I}", "kind", t->seed ? "seed" : "denoise",
                                                "block", (json_int_t)t->block));
}

static trace trace_allocate(bd_arena *arena, int64_t cells, int64_t room)
{
    int64_t size = cells * room;
    return (trace){arena,
                   cells,
                   0,
                   room,
                   bd_arena_ints(arena, size),
                   bd_arena_ints(arena, size),
                   bd_arena_ints(arena, size),
                   bd_arena_ints(arena, size),
                   bd_arena_ints(arena, size),
                   bd_arena_floats(arena, size),
                   json_array()};
}

static void put_trace(bd_probe *probe, const trace *all, int64_t rows, int64_t length)
{
    const int64_t shape[3] = {all->count, rows, length};
    bd_probe_put(probe, "trace.before", BD_I32, 3, shape, all->before);
    bd_probe_put(probe, "trace.after", BD_I32, 3, shape, all->after);
    bd_probe_put(probe, "trace.open", BD_I32, 3, shape, all->open);
    bd_probe_put(probe, "trace.picks", BD_I32, 3, shape, all->picks);
    bd_probe_put(probe, "trace.token", BD_I32, 3, shape, all->token);
    bd_probe_put(probe, "trace.confidence", BD_F32, 3, shape, all->confidence);
    json_object_set(probe->answer, "trace", all->steps);
}

static bool read_options(bd_probe *probe, bd_rollout_options *options, bd_error *err)
{
    json_t *json = probe->json;
    bd_canvas canvas;
    if (!bd_canvas_make(bd_probe_word(json, "alignment", ""), bd_probe_word(json, "canvas", ""),
                        (int64_t)bd_probe_option(probe, json, "block_size", 0),
                        (int64_t)bd_probe_option(probe, json, "mask_id", -1), &canvas, err))
        return false;
    *options = bd_rollout_default(canvas);
    options->commit.threshold = (float)bd_probe_option(probe, json, "threshold", 0.9);
    options->temperature = (float)bd_probe_option(probe, json, "temperature", 1);
    options->max_steps = (int64_t)bd_probe_option(probe, json, "max_steps", -1);
    return true;
}

bool bd_probe_rollout(bd_probe *probe, bd_error *err)
{
    int64_t shape[BD_TENSOR_RANK];
    char folder[BD_PATH];
    bd_rollout_options options;
    bd_rollout_rows rows = {0};
    if (!(rows.tokens = bd_probe_ints(probe, "tokens", 2, shape, err)) ||
        !(rows.placement.positions = bd_probe_ints(probe, "positions", 2, NULL, err)) ||
        !(rows.placement.segments = bd_probe_ints(probe, "segments", 2, NULL, err)) ||
        !(rows.completion = bd_probe_ints(probe, "completion", 2, NULL, err)) ||
        !read_options(probe, &options, err) || !bd_probe_folder(probe, "model", folder, err))
        return false;
    bd_model *model = bd_model_open(folder, BD_F32, err);
    if (!model)
        return false;
    rows.placement.rows = shape[0];
    rows.placement.length = shape[1];
    int64_t cells = shape[0] * shape[1];
    bd_rollout_result result = {bd_arena_ints(probe->arena, cells),
                                bd_arena_ints(probe->arena, cells),
                                bd_arena_floats(probe->arena, cells)};
    // At most one pass per slot and one for the first token of each block.
    trace all = trace_allocate(probe->arena, cells, 2 * shape[1] + 2);
    bd_rollout_observer observer = {.self = &all, .transition = keep};
    bd_rollout_statistics statistics = {0};
    bool ok = bd_rollout_model(model, NULL, &rows, &options, &observer, &result, &statistics,
                               probe->arena, err);
    if (ok) {
        bd_probe_put(probe, "result", BD_I32, 2, shape, result.tokens);
        bd_probe_put(probe, "step", BD_I32, 2, shape, result.steps);
        bd_probe_put(probe, "logp", BD_F32, 2, shape, result.logps);
        put_trace(probe, &all, shape[0], shape[1]);
        json_object_set_new(probe->answer, "total_commits", json_integer(statistics.commits));
        json_object_set_new(probe->answer, "confident_commits",
                            json_integer(statistics.commits - statistics.forced));
    }
    json_decref(all.steps);
    bd_model_close(model);
    return ok;
}
