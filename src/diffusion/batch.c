#include "diffusion/batch.h"

#include <assert.h>
#include <string.h>

#include "parallel/layout.h"

bd_diffusion_batch bd_diffusion_batch_allocate(bd_arena *arena, int64_t rows, int64_t length)
{
    assert(rows > 0 && length > 0);
    bd_diffusion_batch batch = {.rows = rows, .length = length};
    int32_t **fields[] = {
        &batch.inputs,          &batch.inputs_position,  &batch.inputs_segmentation,
        &batch.targets,         &batch.targets_position, &batch.targets_segmentation,
        &batch.completion_mask, &batch.corruption_mask,  &batch.targets_loss_mask};
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) {
        *fields[f] = bd_arena_ints(arena, rows * length);
        memset(*fields[f], 0, (size_t)(rows * length) * sizeof(int32_t));
    }
    return batch;
}

/* --- filling rows ---------------------------------------------------------------------------- */

static const char *const pad_policies[BD_PAD_POLICY_COUNT] = {
    [BD_PAD_NONE] = "none",
    [BD_PAD_TO_BLOCK_END] = "to-block-end",
    [BD_PAD_IN_LOSS] = "eos-in-loss",
};

const char *bd_pad_policy_name(bd_pad_policy policy)
{
    assert(policy >= 0 && policy < BD_PAD_POLICY_COUNT);
    return pad_policies[policy];
}

bool bd_pad_policy_from_name(const char *name, bd_pad_policy *policy, bd_error *err)
{
    for (int i = 0; i < BD_PAD_POLICY_COUNT; i++) {
        if (strcmp(name, pad_policies[i]) == 0) {
            *policy = (bd_pad_policy)i;
            return true;
        }
    }
    return bd_fail(err, "pad_policy is \"%s\", wanted none, to-block-end or eos-in-loss", name);
}

static void set_slot(bd_diffusion_batch *batch, int64_t at, int32_t token, int32_t position,
                     int32_t segment, int32_t completion)
{
    batch->inputs[at] = batch->targets[at] = token;
    batch->inputs_position[at] = batch->targets_position[at] = position;
    batch->inputs_segmentation[at] = batch->targets_segmentation[at] = segment;
    batch->completion_mask[at] = completion;
    batch->corruption_mask[at] = batch->targets_loss_mask[at] = 0;
}

/* End tokens after the document in slots [start, start + count), as far as the policy reaches but
 * not over more than `room` slots. Returns how many were added. */
static int64_t add_end_tokens(bd_diffusion_batch *batch, int64_t start, int64_t count, int64_t room,
                              const bd_padding *padding)
{
    if (count == 0 || !batch->completion_mask[start + count - 1])
        return 0;
    int64_t wanted = 0;
    if (padding->policy == BD_PAD_IN_LOSS)
        wanted = room;
    if (padding->policy == BD_PAD_TO_BLOCK_END)
        wanted = (padding->block_size - count % padding->block_size) % padding->block_size;
    if (wanted > room)
        wanted = room;
    for (int64_t i = count; i < count + wanted; i++)
        set_slot(batch, start + i, padding->end_id, (int32_t)i, batch->targets_segmentation[start],
                 1);
    return wanted;
}

int64_t bd_diffusion_batch_append(bd_diffusion_batch *batch, int64_t row, int64_t used,
                                  const int32_t *tokens, const uint8_t *completion, int64_t count,
                                  const bd_padding *padding)
{
    assert(used >= 0 && used <= batch->length && count >= 0);
    int64_t start = row * batch->length + used, room = batch->length - used;
    int32_t segment = used > 0 ? batch->targets_segmentation[start - 1] + 1 : 1;
    if (count > room)
        count = room;
    for (int64_t i = 0; i < count; i++)
        set_slot(batch, start + i, tokens[i], (int32_t)i, segment, !completion || completion[i]);
    return used + count + add_end_tokens(batch, start, count, room - count, padding);
}

void bd_diffusion_batch_pad(bd_diffusion_batch *batch, int64_t row, int64_t used, int32_t pad_id)
{
    for (int64_t i = used; i < batch->length; i++)
        set_slot(batch, row * batch->length + i, pad_id, 0, 0, 0);
}

void bd_diffusion_batch_fill(bd_diffusion_batch *batch, int64_t row, const int32_t *tokens,
                             const uint8_t *completion, int64_t count, const bd_padding *padding)
{
    int64_t used = bd_diffusion_batch_append(batch, row, 0, tokens, completion, count, padding);
    bd_diffusion_batch_pad(batch, row, used, padding->pad_id);
}

void bd_diffusion_batch_fill_turns(bd_diffusion_batch *batch, int64_t row, const bd_turn *turns,
                                   int64_t turn_count, const bd_padding *padding)
{
    int64_t used = 0, start = row * batch->length;
    for (int64_t t = 0; t < turn_count; t++)
        for (int64_t i = 0; i < turns[t].count && used < batch->length; i++, used++)
            set_slot(batch, start + used, turns[t].tokens[i], (int32_t)used, 1, turns[t].answer);
    used += add_end_tokens(batch, start, used, batch->length - used, padding);
    bd_diffusion_batch_pad(batch, row, used, padding->pad_id);
}

/* --- the whole batch ------------------------------------------------------------------------- */

void bd_diffusion_batch_reorder(bd_diffusion_batch *batch, const int32_t *order, bd_arena *scratch)
{
    int32_t *fields[] = {
        batch->inputs,          batch->inputs_position,  batch->inputs_segmentation,
        batch->targets,         batch->targets_position, batch->targets_segmentation,
        batch->completion_mask, batch->corruption_mask,  batch->targets_loss_mask};
    size_t mark = bd_arena_mark(scratch), bytes = (size_t)(batch->rows * batch->length) * 4;
    int32_t *before = bd_arena_ints(scratch, batch->rows * batch->length);
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) {
        if (!fields[f])
            continue;
        memcpy(before, fields[f], bytes);
        bd_layout_apply(order, batch->rows, batch->length, sizeof(int32_t), before, fields[f]);
    }
    bd_arena_release(scratch, mark);
}

bool bd_diffusion_batch_check_leak(const bd_diffusion_batch *batch, int64_t block_size,
                                   bd_error *err)
{
    if (block_size < 1)
        return bd_fail(err, "block_size is %lld, wanted at least 1", (long long)block_size);
    if (!batch->completion_mask)
        return bd_fail(err, "completion_mask is missing");
    for (int64_t r = 0; r < batch->rows; r++) {
        int64_t answer_segment = 0, answer_block = -1; // block of the last completion token seen
        for (int64_t i = 0; i < batch->length; i++) {
            int64_t at = r * batch->length + i, segment = batch->targets_segmentation[at];
            if (segment == 0)
                continue;
            int64_t block = batch->targets_position[at] / block_size;
            if (batch->completion_mask[at]) {
                answer_segment = segment;
                answer_block = block;
            } else if (segment == answer_segment && block == answer_block) {
                return bd_fail(
                    err,
                    "row %lld, slot %lld: prompt token after completion token in one block "
                    "of %lld",
                    (long long)r, (long long)i, (long long)block_size);
            }
        }
    }
    return true;
}

static bool check_present(const bd_diffusion_batch *batch, bd_error *err)
{
    const struct {
        const char *name;
        const int32_t *field;
    } fields[] = {
        {"completion_mask", batch->completion_mask},
        {"corruption_mask", batch->corruption_mask},
        {"inputs", batch->inputs},
        {"inputs_position", batch->inputs_position},
        {"inputs_segmentation", batch->inputs_segmentation},
        {"targets", batch->targets},
        {"targets_loss_mask", batch->targets_loss_mask},
        {"targets_position", batch->targets_position},
        {"targets_segmentation", batch->targets_segmentation},
    };
    char missing[200] = "";
    for (size_t f = 0; f < sizeof fields / sizeof *fields; f++) {
        if (fields[f].field)
            continue;
        if (*missing)
            strcat(missing, ", ");
        strcat(missing, fields[f].name);
    }
    return !*missing || bd_fail(err, "a block-diffusion batch lacks %s", missing);
}

/* What is wrong with one slot, or NULL. */
static const char *slot_fault(const bd_diffusion_batch *batch, const bd_canvas *canvas,
                              bool completion_only, int64_t at)
{
    bool valid = batch->targets_segmentation[at] != 0, completion = batch->completion_mask[at] != 0;
    bool corrupted = batch->corruption_mask[at] != 0, loss = batch->targets_loss_mask[at] != 0;
    bool eligible = completion_only ? completion : valid;
    int32_t position = batch->targets_position[at];
    if (batch->inputs_segmentation[at] != batch->targets_segmentation[at])
        return "inputs_segmentation differs from targets_segmentation";
    if (valid && batch->inputs_position[at] != position)
        return "inputs_position differs from targets_position";
    if (valid && position < 0)
        return "targets_position is negative";
    if (completion && !valid)
        return "completion_mask covers padding";
    if (corrupted && !eligible)
        return completion_only ? "corruption_mask lies outside completion_mask"
                               : "corruption_mask covers padding";
    if (loss && !eligible)
        return completion_only ? "targets_loss_mask lies outside completion_mask"
                               : "targets_loss_mask covers padding";
    if (corrupted && !loss)
        return "a corrupted token has no targets_loss_mask";
    if (loss && !corrupted && canvas->alignment == BD_SAME_POSITION)
        return "targets_loss_mask on a clean token: same-position targets must be corrupted";
    if (loss && !corrupted && !(bd_canvas_is_anchor(canvas, position) && position > 0))
        return "targets_loss_mask on a clean token: weighted targets must be corrupted or shifted "
               "anchors";
    if (valid && batch->inputs[at] != (corrupted ? canvas->mask_id : batch->targets[at]))
        return corrupted ? "inputs is not the mask token where corruption_mask is set"
                         : "inputs differs from targets where corruption_mask is not set";
    return NULL;
}

bool bd_diffusion_batch_check(const bd_diffusion_batch *batch, const bd_canvas *canvas,
                              bool completion_only, bd_error *err)
{
    if (!bd_canvas_check(canvas, 0, err) || !check_present(batch, err))
        return false;
    for (int64_t r = 0; r < batch->rows; r++) {
        for (int64_t i = 0; i < batch->length; i++) {
            const char *fault = slot_fault(batch, canvas, completion_only, r * batch->length + i);
            if (fault)
                return bd_fail(err, "row %lld, slot %lld: %s", (long long)r, (long long)i, fault);
        }
    }
    return true;
}
