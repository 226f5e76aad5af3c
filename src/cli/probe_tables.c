/* probe_tables.c - golden/block-diffusion/tables: rules without a model, one row of the table a
 * case.
 *
 * Every function reads the given fields of one case and sets the result fields in `out`. A case the
 * rule refuses gives {"error": true}; the reason goes to whoever runs the library, not into the
 * table.
 */
#include <math.h>
#include <string.h>

#include "cli/probe.h"
#include "attention/visibility.h"
#include "cli/probe_json.h"
#include "diffusion/alignment.h"
#include "diffusion/completion.h"
#include "diffusion/corruption.h"
#include "diffusion/rollout.h"
#include "parallel/layout.h"
#include "train/metrics.h"
#include "train/schedule.h"

typedef bool table_function(json_t *given, json_t *out, bd_arena *arena, bd_error *err);

static bool canvas_of(json_t *given, bd_canvas *canvas, bd_error *err)
{
    const char *alignment = bd_probe_word(given, "alignment", "");
    bool shifted = !strcmp(alignment, "shifted");
    return bd_canvas_make(
        alignment, bd_probe_word(given, "canvas", shifted ? "seed_and_mask" : "all_masked"),
        json_integer_value(json_object_get(given, "block_size")),
        json_object_get(given, "mask_id") ? json_integer_value(json_object_get(given, "mask_id"))
                                          : 0,
        canvas, err);
}

static bool visibility(json_t *given, json_t *out, bd_arena *arena, bd_error *err)
{
    (void)err;
    bd_grid positions = bd_grid_ints(given, "positions", arena),
            segments = bd_grid_ints(given, "segments", arena);
    bd_grid key_positions = bd_grid_ints(given, "key_positions", arena);
    bd_grid key_segments = bd_grid_ints(given, "key_segments", arena);
    json_t *size = json_object_get(given, "block_size");
    bd_visibility rule = {.kind = json_is_integer(size) ? BD_BLOCK_DIFFUSION : BD_CAUSAL,
                          .block_size = json_integer_value(size),
                          .query_length = positions.columns,
                          .key_length =
                              key_positions.ints ? key_positions.columns : positions.columns,
                          .query_position = positions.ints,
                          .query_segment = segments.ints,
                          .key_position = key_positions.ints ? key_positions.ints : positions.ints,
                          .key_segment = key_segments.ints ? key_segments.ints : segments.ints};
    json_t *rows = json_array();
    char *text = bd_arena_alloc(arena, (size_t)rule.key_length + 1);
    for (int64_t q = 0; q < rule.query_length; q++) {
        for (int64_t k = 0; k < rule.key_length; k++)
            text[k] = bd_visibility_allows(&rule, 0, q, k) ? '1' : '0';
        text[rule.key_length] = 0;
        json_array_append_new(rows, json_string(text));
    }
    json_object_set_new(out, "rows", rows);
    return true;
}

static bool permutation(json_t *given, json_t *out, bd_arena *arena, bd_error *err)
{
    int64_t length = json_integer_value(json_object_get(given, "length"));
    int64_t shards = json_integer_value(json_object_get(given, "shards"));
    int32_t *order = bd_arena_ints(arena, length), *inverse = bd_arena_ints(arena, length);
    if (!bd_layout_order(BD_LAYOUT_DUAL_CHUNK_SWAP, length, shards, order, err))
        return false;
    bd_layout_inverse(order, length, inverse);
    json_object_set_new(out, "order", bd_json_ints(order, length));
    json_object_set_new(out, "inverse", bd_json_ints(inverse, length));
    json_object_set_new(out, "per_shard", bd_json_int_rows(order, shards, length / shards));
    return true;
}

/* The fields of the reordered layout, asked for by its order (or by its positions, which are the
 * same). */
static void reordered(json_t *given, json_t *out, const bd_grid *tokens, const bd_corruption *made,
                      bd_arena *arena)
{
    json_t *wanted = json_object_get(given, "reordered");
    bd_grid order =
        bd_grid_ints(wanted, json_object_get(wanted, "order") ? "order" : "positions", arena);
    if (!order.ints || order.columns != tokens->columns)
        return;
    const struct {
        const char *name;
        const int32_t *from;
    } fields[] = {{"inputs", made->inputs},
                  {"corruption", made->corruption},
                  {"loss", made->loss},
                  {"targets", tokens->ints}};
    json_t *result = json_object();
    int32_t *moved = bd_arena_ints(arena, tokens->rows * tokens->columns);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        bd_layout_apply(order.ints, tokens->rows, tokens->columns, sizeof(int32_t), fields[i].from,
                        moved);
        json_object_set_new(result, fields[i].name,
                            bd_json_int_rows(moved, tokens->rows, tokens->columns));
    }
    // The position of a token is where it was before, that is the order itself.
    json_object_set_new(result, "order", bd_json_ints(order.ints, order.columns));
    json_object_set_new(result, "positions", bd_json_ints(order.ints, order.columns));
    json_object_set_new(out, "reordered", result);
}

static bool corruption(json_t *given, json_t *out, bd_arena *arena, bd_error *err)
{
    bd_canvas canvas;
    if (!canvas_of(given, &canvas, err))
        return false;
    bd_grid tokens = bd_grid_ints(given, "tokens", arena),
            eligible = bd_grid_ints(given, "eligible", arena);
    bd_grid noise = bd_grid_floats(given, "noise_u", arena),
            select = bd_grid_floats(given, "select_u", arena);
    bd_grid fallback = bd_grid_floats(given, "fallback_u", arena);
    double min_noise = json_number_value(json_object_get(given, "min_noise"));
    // A case that must be refused for its options brings no tokens; one token is enough to ask.
    if (!tokens.ints)
        tokens = eligible = (bd_grid){.rows = 1, .columns = 1, .ints = bd_arena_ints(arena, 1)};
    int64_t cells = tokens.rows * tokens.columns;
    bd_corruption made = {bd_arena_ints(arena, cells), bd_arena_ints(arena, cells),
                          bd_arena_ints(arena, cells), NULL};
    uint64_t no_key = 0;
    bd_corruption_draws draws = {.keys = noise.floats ? NULL : &no_key,
                                 .blocks = noise.columns,
                                 .noise = noise.floats,
                                 .select = select.floats,
                                 .fallback = fallback.floats};
    bd_placement placement = {.rows = tokens.rows, .length = tokens.columns};
    if (!bd_corrupt(&canvas, min_noise, &placement, tokens.ints, eligible.ints, &draws, &made, err))
        return false;
    json_object_set_new(out, "inputs", bd_json_int_rows(made.inputs, tokens.rows, tokens.columns));
    json_object_set_new(out, "corruption",
                        bd_json_int_rows(made.corruption, tokens.rows, tokens.columns));
    json_object_set_new(out, "loss", bd_json_int_rows(made.loss, tokens.rows, tokens.columns));
    reordered(given, out, &tokens, &made, arena);
    return true;
}

static bool alignment(json_t *given, json_t *out, bd_arena *arena, bd_error *err)
{
    bd_alignment kind;
    if (!bd_alignment_from_name(bd_probe_word(given, "alignment", ""), &kind, err))
        return false;
    bd_grid positions = bd_grid_ints(given, "positions", arena),
            segments = bd_grid_ints(given, "segments", arena);
    bd_grid valid = bd_grid_ints(given, "valid", arena);
    bd_placement placement = {.rows = json_integer_value(json_object_get(given, "rows")),
                              .length = json_integer_value(json_object_get(given, "length")),
                              .positions = positions.ints,
                              .segments = segments.ints ? segments.ints : valid.ints};
    int32_t *source = bd_arena_ints(arena, placement.rows * placement.length);
    bd_alignment_source(kind, &placement, source, arena);
    json_object_set_new(out, "source", bd_json_int_rows(source, placement.rows, placement.length));
    return true;
}

static bool last_answer(json_t *given, json_t *out, bd_arena *arena, bd_error *err)
{
    static const char *const fields[] = {"inputs", "targets", "inputs_segmentation",
                                         "targets_segmentation", "completion"};
    bd_grid grid[5];
    for (int i = 0; i < 5; i++)
        grid[i] = bd_grid_ints(given, fields[i], arena);
    if (!bd_last_answer(grid[0].rows, grid[0].columns,
                        (int32_t)json_integer_value(json_object_get(given, "pad_id")), grid[0].ints,
                        grid[1].ints, grid[2].ints, grid[3].ints, grid[4].ints, err))
        return false;
    json_t *result = json_object();
    for (int i = 0; i < 5; i++)
        json_object_set_new(result, fields[i],
                            bd_json_int_rows(grid[i].ints, grid[i].rows, grid[i].columns));
    json_object_set_new(out, "result", result);
    return true;
}

static bool stop_tokens(json_t *given, json_t *out, bd_arena *arena, bd_error *err)
{
    (void)err;
    bd_grid tokens = bd_grid_ints(given, "tokens", arena),
            completion = bd_grid_ints(given, "completion", arena);
    bd_grid stop = bd_grid_ints(given, "stop_ids", arena),
            positions = bd_grid_ints(given, "positions", arena);
    int32_t *kept = bd_arena_ints(arena, tokens.rows * tokens.columns);
    bd_placement placement = {
        .rows = tokens.rows, .length = tokens.columns, .positions = positions.ints};
    bd_stop_kept(&placement, tokens.ints, completion.ints, stop.ints, stop.columns, kept);
    json_object_set_new(out, "kept", bd_json_int_rows(kept, tokens.rows, tokens.columns));
    return true;
}

static bool safe_weights(json_t *given, json_t *out, bd_arena *arena, bd_error *err)
{
    bd_canvas canvas;
    if (!canvas_of(given, &canvas, err))
        return false;
    bd_grid positions = bd_grid_ints(given, "positions", arena),
            valid = bd_grid_ints(given, "valid", arena);
    bd_grid completion = bd_grid_ints(given, "completion", arena);
    bd_grid masked = bd_grid_ints(given, "corruption", arena),
            weights = bd_grid_floats(given, "weights", arena);
    bd_placement placement = {weights.rows, weights.columns, positions.ints, valid.ints};
    float *safe = bd_arena_floats(arena, weights.rows * weights.columns);
    bd_safe_weights(&canvas, &placement, completion.ints, masked.ints, weights.floats, safe, arena);
    json_object_set_new(out, "result", bd_json_float_rows(safe, weights.rows, weights.columns));
    return true;
}

static bool bf16(json_t *given, json_t *out, bd_arena *arena, bd_error *err)
{
    (void)arena;
    (void)err;
    uint32_t bits = (uint32_t)json_integer_value(json_object_get(given, "fp32_bits"));
    float value;
    memcpy(&value, &bits, 4);
    uint16_t half;
    bd_from_f32(BD_BF16, &value, &half, 1);
    json_object_set_new(out, "bf16_bits", json_integer(half));
    return true;
}

static bool schedule(json_t *given, json_t *out, bd_arena *arena, bd_error *err)
{
    (void)arena;
    bd_schedule s = {.peak = json_number_value(json_object_get(given, "peak")),
                     .final_fraction = json_number_value(json_object_get(given, "final_fraction")),
                     .warmup = json_integer_value(json_object_get(given, "warmup")),
                     .total = json_integer_value(json_object_get(given, "total")),
                     .endpoint = json_is_true(json_object_get(given, "endpoint"))};
    if (!bd_schedule_from_name(bd_probe_word(given, "kind", ""), &s.kind, err) ||
        !bd_schedule_check(&s, err))
        return false;
    json_t *values = json_array();
    for (int64_t step = 0; step <= s.total + 2; step++)
        json_array_append_new(values, json_real(bd_schedule_rate(&s, step)));
    json_object_set_new(out, "values", values);
    return true;
}

static bool metric(json_t *given, json_t *out, bd_arena *arena, bd_error *err)
{
    (void)arena;
    bd_metrics metrics = {0};
    size_t i;
    json_t *item;
    json_array_foreach(json_object_get(given, "pairs"), i, item)
    {
        bd_weighted w = {.sum = json_number_value(json_array_get(item, 0)),
                         .denominator = json_number_value(json_array_get(item, 1)),
                         .eps = json_number_value(json_object_get(given, "eps")),
                         .min_denominator = json_number_value(json_object_get(given, "min_denom"))};
        bd_metric value = bd_metric_weighted("value", w);
        if (!bd_metrics_add(&metrics, &value, err))
            return false;
    }
    json_array_foreach(json_object_get(given, "values"), i, item)
    {
        bd_metric value = bd_metric_scalar("value", json_number_value(item));
        if (!bd_metrics_add(&metrics, &value, err))
            return false;
    }
    json_object_set_new(out, "value",
                        json_real(bd_metric_value(bd_metrics_find(&metrics, "value"))));
    return true;
}

/* Scores that do not depend on the canvas. */
typedef struct {
    const float *scores;
    int64_t length, vocabulary;
} fixed_scores;

static void copy_scores(void *self, const bd_open_slot *slots, int64_t first, int64_t count,
                        float *out)
{
    const fixed_scores *fixed = self;
    for (int64_t i = 0; i < count; i++) {
        const bd_open_slot *slot = &slots[first + i];
        memcpy(out + i * fixed->vocabulary,
               fixed->scores + (slot->row * fixed->length + slot->slot) * fixed->vocabulary,
               (size_t)fixed->vocabulary * sizeof(float));
    }
}

static bool rollout_fixed(json_t *given, json_t *out, bd_arena *arena, bd_error *err)
{
    bd_canvas canvas;
    if (!canvas_of(given, &canvas, err))
        return false;
    bd_rollout_options options = bd_rollout_default(canvas);
    bd_grid tokens = bd_grid_ints(given, "tokens", arena),
            positions = bd_grid_ints(given, "positions", arena);
    bd_grid valid = bd_grid_ints(given, "valid", arena),
            completion = bd_grid_ints(given, "completion", arena);
    bd_grid scores = bd_grid_floats(given, "scores", arena);
    json_t *value;
    if ((value = json_object_get(given, "threshold")))
        options.commit.threshold = (float)json_number_value(value);
    if ((value = json_object_get(given, "temperature")))
        options.temperature = (float)json_number_value(value);
    if ((value = json_object_get(given, "max_steps")))
        options.max_steps = json_integer_value(value);
    int64_t cells = tokens.rows * tokens.columns;
    // A case that must be refused brings no scores; it fails before they are asked for.
    fixed_scores fixed = {scores.floats, tokens.columns,
                          scores.floats ? scores.rows * scores.columns / cells
                                        : canvas.mask_id + 2};
    bd_scorer scorer = {.self = &fixed, .vocabulary = fixed.vocabulary, .logits = copy_scores};
    bd_rollout_rows rows = {
        {tokens.rows, tokens.columns, positions.ints, valid.ints}, tokens.ints, completion.ints};
    bd_rollout_result result = {.tokens = bd_arena_ints(arena, cells),
                                .steps = bd_arena_ints(arena, cells)};
    if (!bd_rollout(&scorer, &rows, &options, NULL, &result, NULL, arena, err))
        return false;
    json_object_set_new(out, "result",
                        bd_json_int_rows(result.tokens, tokens.rows, tokens.columns));
    json_object_set_new(out, "step", bd_json_int_rows(result.steps, tokens.rows, tokens.columns));
    return true;
}

static const struct {
    const char *name;
    table_function *run;
} tables[] = {{"visibility", visibility},      {"permutation", permutation},
              {"corruption", corruption},      {"alignment", alignment},
              {"last_answer", last_answer},    {"stop_tokens", stop_tokens},
              {"safe_weights", safe_weights},  {"bf16", bf16},
              {"schedules", schedule},         {"metrics", metric},
              {"rollout_fixed", rollout_fixed}};

bool bd_probe_table(bd_probe *probe, bd_error *err)
{
    const char *name = bd_probe_word(probe->json, "table", "");
    table_function *run = NULL;
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++)
        if (!strcmp(tables[i].name, name))
            run = tables[i].run;
    if (!run)
        return bd_fail(err, "%s: table %s is not known", probe->path, name);
    json_t *answers = json_array(), *given;
    size_t i;
    json_array_foreach(json_object_get(probe->json, "cases"), i, given)
    {
        json_t *answer = json_object();
        bd_error refused = {0};
        size_t mark = bd_arena_mark(probe->arena);
        if (!run(given, answer, probe->arena, &refused)) {
            json_object_clear(answer);
            json_object_set_new(answer, "error", json_true());
        }
        bd_arena_release(probe->arena, mark);
        json_array_append_new(answers, answer);
    }
    json_object_set_new(probe->answer, "cases", answers);
    return true;
}
