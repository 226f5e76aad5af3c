#include "draft/targets.h"

#include <math.h>
#include <string.h>

// Keeps a division defined; part of the published losses, so it is part of ours.
#define DENOMINATOR_GUARD 1e-6

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

int64_t bd_block_slots(const bd_block_batch *batch)
{
    return batch->rows * batch->anchors->blocks * batch->block_size;
}

void bd_block_noise(const bd_block_batch *batch, int32_t mask_id, int32_t *ids)
{
    const bd_anchors *anchors = batch->anchors;
    for (int64_t block = 0; block < batch->rows * anchors->blocks; block++) {
        int64_t row = block / anchors->blocks;
        int32_t *slot = ids + block * batch->block_size;
        for (int64_t k = 0; k < batch->block_size; k++)
            slot[k] = mask_id;
        if (anchors->keep[block])
            slot[0] = batch->tokens[row * batch->length + anchors->anchor[block]];
    }
}

void bd_block_positions(const bd_block_batch *batch, int32_t *positions)
{
    const bd_anchors *anchors = batch->anchors;
    for (int64_t block = 0; block < batch->rows * anchors->blocks; block++)
        for (int64_t k = 0; k < batch->block_size; k++)
            positions[block * batch->block_size + k] = anchors->anchor[block] + (int32_t)k;
}

bd_block_targets bd_block_targets_make(const bd_block_batch *batch, int shift, bd_arena *arena)
{
    int64_t slots = bd_block_slots(batch);
    bd_block_targets t = {bd_arena_ints(arena, slots), bd_arena_ints(arena, slots),
                          bd_arena_floats(arena, slots)};
    const bd_anchors *anchors = batch->anchors;
    for (int64_t i = 0; i < slots; i++) {
        int64_t block = i / batch->block_size, k = i % batch->block_size;
        int64_t row = block / anchors->blocks;
        int64_t index = anchors->anchor[block] + k + shift;
        int64_t position = least(index, batch->length - 1);
        int64_t at = row * batch->length + position;
        bool counts = anchors->keep[block] && index < batch->length &&
                      batch->loss_mask[at] > 0.5f && (shift == 1 || k > 0);
        t.token[i] = batch->tokens[at];
        t.position[i] = (int32_t)position;
        t.supervised[i] = counts ? 1.0f : 0.0f;
    }
    return t;
}

void bd_block_tokens(const bd_block_batch *batch, int32_t *tokens)
{
    const bd_anchors *anchors = batch->anchors;
    for (int64_t i = 0; i < bd_block_slots(batch); i++) {
        int64_t block = i / batch->block_size, k = i % batch->block_size;
        int64_t row = block / anchors->blocks;
        int64_t position = least(anchors->anchor[block] + k, batch->length - 1);
        tokens[i] = batch->tokens[row * batch->length + position];
    }
}

int32_t bd_teacher_row(int32_t label_position)
{
    return label_position > 0 ? label_position - 1 : 0;
}

bool bd_weighting_check(const bd_weighting *weighting, bd_error *err)
{
    // Alpha is checked whatever the objective, so that a bad value does not wait for a switch.
    if (!(weighting->alpha > 0 && weighting->alpha <= 1))
        return bd_fail(err, "dpace_alpha must be in (0, 1], got %g", (double)weighting->alpha);
    if (!(weighting->decay >= 0) || isinf(weighting->decay))
        return bd_fail(err, "loss_decay_factor must be 0 (off) or more, got %g",
                       (double)weighting->decay);
    return true;
}

/* Weights of one block by confidence: a slot counts as long as the slots before it are likely
 * right. */
static void dpace_block(float alpha, int64_t first, int64_t block_size, const float *supervised,
                        const float *cross_entropy, float *weights)
{
    float product = 1, total = 0;
    for (int64_t k = first; k < block_size; k++) {
        bool valid = supervised[k] != 0;
        if (valid)
            product *= alpha + (1 - alpha) * expf(-cross_entropy[k]);
        weights[k] = valid ? product : 0; // C_k for now
        total += weights[k];
    }
    float before = 0;
    for (int64_t k = first; k < block_size; k++) {
        float own = weights[k];
        weights[k] = supervised[k] * (total - before);
        before += own;
    }
}

void bd_position_weights(const bd_weighting *weighting, int shift, const bd_block_batch *batch,
                         const float *supervised, const float *cross_entropy, float *weights)
{
    int64_t bs = batch->block_size, first = 1 - shift;
    bool dpace = weighting->objective == BD_WEIGHT_DPACE && shift == 0 && bs > 1;
    for (int64_t block = 0; block < batch->rows * batch->anchors->blocks; block++) {
        const float *valid = supervised + block * bs;
        float *weight = weights + block * bs;
        if (dpace) {
            weight[0] = 0;
            dpace_block(weighting->alpha, first, bs, valid, cross_entropy + block * bs, weight);
            continue;
        }
        for (int64_t k = 0; k < bs; k++) {
            int64_t late = k > first ? k - first : 0;
            float factor = weighting->decay > 0 ? expf(-(float)late / weighting->decay) : 1;
            weight[k] = valid[k] * factor;
        }
    }
}

double bd_weight_denominator(double weight)
{
    return weight + DENOMINATOR_GUARD;
}

bool bd_weight_trains(double weight)
{
    return bd_weight_denominator(weight) > 1;
}

double bd_weighted_mean(double sum, double weight)
{
    return bd_weight_trains(weight) ? sum / bd_weight_denominator(weight) : 0;
}

double bd_top1(double correct, double supervised)
{
    return correct / (supervised + DENOMINATOR_GUARD);
}
