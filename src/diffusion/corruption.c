#include "diffusion/corruption.h"

#include <assert.h>

#include "base/random.h"

/* One row while it is corrupted. Slots [begin, end) are one block. */
typedef struct {
    const bd_canvas *canvas;
    double min_noise;
    const bd_corruption_draws *draws;
    int64_t row, length;
    const int32_t *tokens, *eligible;
    int32_t *inputs, *corruption, *loss;
    float *noise;
} row_job;

static float draw_noise(const row_job *job, int64_t block)
{
    const bd_corruption_draws *d = job->draws;
    return d->keys ? bd_random_uniform(d->keys[job->row], BD_STREAM_NOISE, (uint32_t)block)
                   : d->noise[job->row * d->blocks + block];
}

static float draw_slot(const row_job *job, bd_stream stream, int64_t slot)
{
    const bd_corruption_draws *d = job->draws;
    if (d->keys)
        return bd_random_uniform(d->keys[job->row], stream, (uint32_t)slot);
    const float *numbers = stream == BD_STREAM_SELECTION ? d->select : d->fallback;
    return numbers[job->row * d->blocks * job->canvas->block_size + slot];
}

/* Block number `block` of the row; `position` is that of its first slot within its document. */
static void corrupt_block(const row_job *job, int64_t block, int64_t begin, int64_t end,
                          int64_t position)
{
    double u = draw_noise(job, block);
    float t = (float)(job->min_noise + (1 - job->min_noise) * u);
    int64_t selected = 0, best = -1;
    float best_draw = -1;
    for (int64_t i = begin; i < end; i++) {
        if (job->noise)
            job->noise[i] = t;
        if (!job->eligible[i])
            continue;
        int64_t at = position + (i - begin);
        if (bd_canvas_is_anchor(job->canvas, at)) {
            job->loss[i] = at > 0;
            continue;
        }
        float fallback = draw_slot(job, BD_STREAM_FALLBACK, i);
        if (fallback > best_draw) {
            best_draw = fallback;
            best = i;
        }
        if (draw_slot(job, BD_STREAM_SELECTION, i) < t) {
            job->corruption[i] = 1;
            selected++;
        }
    }
    if (selected == 0 && best >= 0)
        job->corruption[best] = 1;
    for (int64_t i = begin; i < end; i++) {
        job->loss[i] |= job->corruption[i];
        job->inputs[i] = job->corruption[i] ? job->canvas->mask_id : job->tokens[i];
    }
}

static void corrupt_row(const row_job *job, const int32_t *positions, const int32_t *segments)
{
    int64_t size = job->canvas->block_size, block = 0;
    for (int64_t begin = 0, end; begin < job->length; begin = end, block++) {
        int64_t position = positions ? positions[begin] : begin;
        end = begin + 1;
        // The block goes on while the document and the block number stay the same.
        while (end < job->length && (!segments || segments[end] == segments[begin]) &&
               (positions ? positions[end] == position + (end - begin) : true) &&
               (position + (end - begin)) / size == position / size)
            end++;
        corrupt_block(job, block, begin, end, position);
    }
}

bool bd_corrupt(const bd_canvas *canvas, double min_noise, const bd_placement *placement,
                const int32_t *tokens, const int32_t *eligible, const bd_corruption_draws *draws,
                const bd_corruption *out, bd_error *err)
{
    const bd_placement *p = placement;
    if (!bd_canvas_check(canvas, 0, err))
        return false;
    if (!(min_noise > 0 && min_noise <= 1))
        return bd_fail(err, "min_noise is %g, wanted above 0 and at most 1", min_noise);
    if (p->rows < 1 || p->length < 1 || p->length > INT32_MAX)
        return bd_fail(err, "a batch of %lld rows of %lld tokens, wanted at least 1 of each",
                       (long long)p->rows, (long long)p->length);
    assert(draws->keys || (!p->positions && !p->segments));
    for (int64_t r = 0; r < p->rows; r++) {
        int64_t at = r * p->length;
        row_job job = {canvas,
                       min_noise,
                       draws,
                       r,
                       p->length,
                       tokens + at,
                       eligible + at,
                       out->inputs + at,
                       out->corruption + at,
                       out->loss + at,
                       out->noise ? out->noise + at : NULL};
        for (int64_t i = 0; i < p->length; i++)
            job.corruption[i] = job.loss[i] = 0;
        corrupt_row(&job, p->positions ? p->positions + at : NULL,
                    p->segments ? p->segments + at : NULL);
    }
    return true;
}

/* --- a whole batch --------------------------------------------------------------------------- */

bd_corruption_options bd_corruption_default(void)
{
    return (bd_corruption_options){.min_noise = 1e-3};
}

bool bd_corruption_check(const bd_canvas *canvas, const bd_corruption_options *options,
                         bd_error *err)
{
    if (!bd_canvas_check(canvas, 0, err))
        return false;
    if (!(options->min_noise > 0 && options->min_noise <= 1))
        return bd_fail(err, "min_noise is %g, wanted above 0 and at most 1", options->min_noise);
    if (options->last_answer && !options->completion_only)
        return bd_fail(err, "training on the last answer needs completion_only");
    return true;
}

bool bd_corrupt_batch(bd_diffusion_batch *batch, const bd_canvas *canvas,
                      const bd_corruption_options *options, const bd_corruption_draws *draws,
                      float *noise, bd_arena *arena, bd_error *err)
{
    int64_t cells = batch->rows * batch->length;
    if (!bd_corruption_check(canvas, options, err))
        return false;
    if (options->completion_only && !batch->completion_mask)
        return bd_fail(err, "completion_only needs a completion_mask, found none");
    if (!batch->completion_mask) {
        batch->completion_mask = bd_arena_ints(arena, cells);
        for (int64_t i = 0; i < cells; i++)
            batch->completion_mask[i] = batch->targets_segmentation[i] != 0;
    }
    if (options->last_answer &&
        !bd_last_answer(batch->rows, batch->length, options->pad_id, batch->inputs, batch->targets,
                        batch->inputs_segmentation, batch->targets_segmentation,
                        batch->completion_mask, err))
        return false;
    if (options->completion_only && !bd_diffusion_batch_check_leak(batch, canvas->block_size, err))
        return false;

    size_t mark = bd_arena_mark(arena);
    int32_t *eligible = bd_arena_ints(arena, cells);
    for (int64_t i = 0; i < cells; i++) {
        bool valid = batch->targets_segmentation[i] != 0;
        eligible[i] = valid && (!options->completion_only || batch->completion_mask[i]);
        if (!valid) // also where the last answer cut something off
            batch->inputs_position[i] = batch->targets_position[i] = 0;
    }
    bd_placement placement = bd_diffusion_batch_placement(batch);
    bd_corruption out = {batch->inputs, batch->corruption_mask, batch->targets_loss_mask, noise};
    bool done = bd_corrupt(canvas, options->min_noise, &placement, batch->targets, eligible, draws,
                           &out, err);
    bd_arena_release(arena, mark);
    return done;
}
