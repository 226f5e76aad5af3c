#include "diffusion/scoring.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

/* --- caches ---------------------------------------------------------------------------------- */

struct bd_rollout_caches {
    int64_t rows, length;
    bd_cache **items; /* [rows] */
};

bd_rollout_caches *bd_rollout_caches_create(const bd_model *model, int64_t rows, int64_t length,
                                            bd_error *err)
{
    assert(rows > 0 && length > 0);
    bd_rollout_caches *caches = calloc(1, sizeof *caches);
    if (caches)
        caches->items = calloc((size_t)rows, sizeof *caches->items);
    if (!caches || !caches->items) {
        free(caches);
        bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for the KV caches of %lld rows",
                   (long long)rows);
        return NULL;
    }
    caches->rows = rows;
    caches->length = length;
    for (int64_t r = 0; r < rows; r++) {
        caches->items[r] = bd_cache_create(model, length, err);
        if (!caches->items[r]) {
            bd_rollout_caches_free(caches);
            return NULL;
        }
    }
    return caches;
}

void bd_rollout_caches_free(bd_rollout_caches *caches)
{
    if (!caches)
        return;
    for (int64_t r = 0; r < caches->rows; r++)
        bd_cache_free(caches->items[r]);
    free(caches->items);
    free(caches);
}

/* --- what both scorers share ----------------------------------------------------------------- */

typedef struct {
    bd_model *model;
    const bd_rollout_rows *rows;
    const bd_canvas *canvas;
    bd_rollout_statistics *statistics;
    bd_arena *arena;
    float *wanted; /* [most slots of a pass, H]: output rows that predict the slots asked for */

    bd_visibility rule;    /* plain */
    const int32_t *source; /* plain: bd_alignment_source of the rows */

    bd_rollout_caches *caches;
    bd_logical_rows order; /* cached */
    float *last;           /* cached: [rows, H] output of the last token in each row's cache */
} model_scorer;

static void give_logits(void *self, const bd_open_slot *slots, int64_t first, int64_t count,
                        float *out)
{
    const model_scorer *s = self;
    (void)slots;
    bd_model_logits(s->model, s->wanted + first * s->model->config.hidden, count, out, s->arena);
}

static void copy_row(const model_scorer *s, const float *from, float *to)
{
    memcpy(to, from, (size_t)s->model->config.hidden * sizeof(float));
}

/* --- plain ----------------------------------------------------------------------------------- */

static bool forward_plain(void *self, const int32_t *canvas, const bd_open_slot *slots,
                          int64_t count, bd_error *err)
{
    model_scorer *s = self;
    const bd_placement *p = &s->rows->placement;
    int64_t hidden = s->model->config.hidden;
    (void)err;
    size_t mark = bd_arena_mark(s->arena);
    bd_tape tape = bd_tape_begin(s->arena, s->model->compute, false);
    bd_forward input = {.tokens = canvas,
                        .rows = p->rows,
                        .length = p->length,
                        .positions = p->positions,
                        .rule = &s->rule};
    bd_value *out = bd_model_forward(s->model, &tape, &input);
    for (int64_t n = 0; n < count; n++) {
        int64_t row = slots[n].row * p->length;
        copy_row(s, out->data + (row + s->source[row + slots[n].slot]) * hidden,
                 s->wanted + n * hidden);
    }
    bd_arena_release(s->arena, mark);
    s->statistics->row_forwards += p->rows;
    s->statistics->forward_tokens += p->rows * p->length;
    return true;
}

/* --- cached ---------------------------------------------------------------------------------- */

/* Logical position whose output predicts the token at `position`. */
static int64_t source_position(const model_scorer *s, int64_t position)
{
    return s->canvas->alignment == BD_SHIFTED && position > 0 ? position - 1 : position;
}

/* Slots of one row. Runs what the cache lacks: everything before the block, which is final and
 * stays, and the block itself, if an output of it is asked for, which does not. */
static void forward_row(model_scorer *s, const int32_t *canvas, const bd_open_slot *slots,
                        int64_t count, float *wanted)
{
    int64_t row = slots[0].row, size = s->canvas->block_size, hidden = s->model->config.hidden;
    bd_cache *cache = s->caches->items[row];
    int64_t begin = slots[0].position / size * size, end = s->order.count[row];
    if (end - begin > size)
        end = begin + size;
    bool inside = source_position(s, slots[count - 1].position) >= begin;
    int64_t from = cache->length, to = inside ? end : begin;
    assert(from <= begin);

    size_t mark = bd_arena_mark(s->arena);
    const float *out = NULL; // output of position `from` and those after it
    if (to > from) {
        int32_t *tokens = bd_arena_ints(s->arena, to - from);
        for (int64_t p = from; p < to; p++)
            tokens[p - from] =
                canvas[row * s->order.length + s->order.slot[row * s->order.length + p]];
        bd_visibility rule = {.kind = BD_BLOCK_DIFFUSION,
                              .block_size = size,
                              .query_offset = from,
                              .query_length = to - from,
                              .key_length = to};
        bd_tape tape = bd_tape_begin(s->arena, s->model->compute, false);
        bd_forward input = {
            .tokens = tokens, .rows = 1, .length = to - from, .rule = &rule, .cache = cache};
        out = bd_model_forward(s->model, &tape, &input)->data;
        bd_cache_truncate(cache, begin);
        if (begin > from)
            copy_row(s, out + (begin - 1 - from) * hidden, s->last + row * hidden);
        s->statistics->row_forwards++;
        s->statistics->forward_tokens += to - from;
    }
    for (int64_t n = 0; n < count; n++) {
        int64_t source = source_position(s, slots[n].position);
        copy_row(s, source < begin ? s->last + row * hidden : out + (source - from) * hidden,
                 wanted + n * hidden);
    }
    bd_arena_release(s->arena, mark);
}

static bool forward_cached(void *self, const int32_t *canvas, const bd_open_slot *slots,
                           int64_t count, bd_error *err)
{
    model_scorer *s = self;
    (void)err;
    for (int64_t first = 0, n = 1; n <= count; n++) {
        if (n < count && slots[n].row == slots[first].row)
            continue;
        forward_row(s, canvas, slots + first, n - first,
                    s->wanted + first * s->model->config.hidden);
        first = n;
    }
    return true;
}

/* --- the rollout ----------------------------------------------------------------------------- */

static bool check_tokens(const bd_model *model, const bd_rollout_rows *rows, bd_error *err)
{
    const bd_placement *p = &rows->placement;
    for (int64_t i = 0; i < p->rows * p->length; i++)
        if (!rows->completion[i] &&
            (rows->tokens[i] < 0 || rows->tokens[i] >= model->config.vocabulary))
            return bd_fail(err, "row %lld, slot %lld: token %d, wanted 0 to %lld",
                           (long long)(i / p->length), (long long)(i % p->length), rows->tokens[i],
                           (long long)model->config.vocabulary - 1);
    return true;
}

static void prepare_plain(model_scorer *s)
{
    const bd_placement *p = &s->rows->placement;
    int32_t *source = bd_arena_ints(s->arena, p->rows * p->length);
    bd_alignment_source(s->canvas->alignment, p, source, s->arena);
    s->source = source;
    s->rule = (bd_visibility){.kind = BD_BLOCK_DIFFUSION,
                              .query_length = p->length,
                              .key_length = p->length,
                              .block_size = s->canvas->block_size,
                              .query_position = p->positions,
                              .key_position = p->positions,
                              .query_segment = p->segments,
                              .key_segment = p->segments};
}

static bool prepare_cached(model_scorer *s, bd_error *err)
{
    const bd_placement *p = &s->rows->placement;
    assert(s->caches->rows >= p->rows && s->caches->length >= p->length);
    for (int64_t r = 0; r < p->rows; r++)
        bd_cache_truncate(s->caches->items[r], 0);
    s->last = bd_arena_floats(s->arena, p->rows * s->model->config.hidden);
    return bd_logical_rows_make(p, s->rows->completion, false, s->arena, &s->order, err);
}

bool bd_rollout_model(bd_model *model, bd_rollout_caches *caches, const bd_rollout_rows *rows,
                      const bd_rollout_options *options, const bd_rollout_observer *observer,
                      bd_rollout_result *result, bd_rollout_statistics *statistics, bd_arena *arena,
                      bd_error *err)
{
    const bd_placement *p = &rows->placement;
    if (!bd_rollout_check(options, model->config.vocabulary, err) ||
        !check_tokens(model, rows, err))
        return false;
    size_t mark = bd_arena_mark(arena);
    int64_t size = options->canvas.block_size, width = size < p->length ? size : p->length;
    bd_rollout_statistics unused = {0};
    model_scorer s = {.model = model,
                      .rows = rows,
                      .canvas = &options->canvas,
                      .statistics = statistics ? statistics : &unused,
                      .arena = arena,
                      .caches = caches,
                      .wanted = bd_arena_floats(arena, p->rows * width * model->config.hidden)};
    bd_scorer scorer = {.self = &s,
                        .vocabulary = model->config.vocabulary,
                        .forward = caches ? forward_cached : forward_plain,
                        .logits = give_logits};
    bool done = true;
    if (caches)
        done = prepare_cached(&s, err);
    else
        prepare_plain(&s);
    done = done && bd_rollout(&scorer, rows, options, observer, result, s.statistics, arena, err);
    bd_arena_release(arena, mark);
    return done;
}
