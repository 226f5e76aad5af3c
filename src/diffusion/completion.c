#include "diffusion/completion.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static int32_t position_at(const bd_placement *p, int64_t r, int64_t i)
{
    return p->positions ? p->positions[r * p->length + i] : (int32_t)i;
}

static bool valid_at(const bd_placement *p, int64_t r, int64_t i)
{
    return !p->segments || p->segments[r * p->length + i] != 0;
}

/* --- logical order --------------------------------------------------------------------------- */

/* Fill slot[0 .. n-1] of one row. Returns n, or -1 and the offending slot. */
static int64_t order_row(const bd_placement *p, int64_t r, int32_t *slot, int64_t *bad)
{
    int64_t count = 0;
    for (int64_t i = 0; i < p->length; i++)
        count += valid_at(p, r, i);
    for (int64_t at = 0; at < count; at++)
        slot[at] = -1;
    for (int64_t i = 0; i < p->length; i++) {
        if (!valid_at(p, r, i))
            continue;
        int32_t position = position_at(p, r, i);
        if (position < 0 || position >= count || slot[position] >= 0) {
            *bad = i;
            return -1;
        }
        slot[position] = (int32_t)i;
    }
    return count;
}

/* Logical position of the first completion token, or -1 if a prompt token comes after it. */
static int64_t find_start(const int32_t *completion, const int32_t *slot, int64_t count)
{
    int64_t start = count;
    while (start > 0 && completion[slot[start - 1]])
        start--;
    for (int64_t at = 0; at < start; at++)
        if (completion[slot[at]])
            return -1;
    return start;
}

bool bd_logical_rows_make(const bd_placement *placement, const int32_t *completion,
                          bool prompt_first, bd_arena *arena, bd_logical_rows *out, bd_error *err)
{
    const bd_placement *p = placement;
    assert(p->length > 0 && p->length <= INT32_MAX);
    bd_logical_rows made = {p->rows, p->length, bd_arena_ints(arena, p->rows * p->length),
                            bd_arena_ints(arena, p->rows), bd_arena_ints(arena, p->rows)};
    for (int64_t r = 0; r < p->rows; r++) {
        const int32_t *marks = completion + r * p->length;
        int32_t *slot = made.slot + r * p->length;
        for (int64_t i = 0; i < p->length; i++)
            if (marks[i] && !valid_at(p, r, i))
                return bd_fail(err, "row %lld: completion covers padding at slot %lld",
                               (long long)r, (long long)i);
        int64_t bad = 0, count = order_row(p, r, slot, &bad);
        if (count < 0)
            return bd_fail(
                err,
                "row %lld: position %d at slot %lld, wanted positions that are unique and "
                "contiguous from zero",
                (long long)r, position_at(p, r, bad), (long long)bad);
        int64_t start = find_start(marks, slot, count);
        if (start < 0)
            return bd_fail(
                err,
                "row %lld: a prompt token follows a completion token, wanted a completion "
                "that is one suffix of the row",
                (long long)r);
        if (prompt_first && count > 0 && start == 0)
            return bd_fail(err, "row %lld: position 0 is completion, wanted a prompt token there",
                           (long long)r);
        made.count[r] = (int32_t)count;
        made.start[r] = (int32_t)start;
    }
    *out = made;
    return true;
}

/* --- last answer ----------------------------------------------------------------------------- */

typedef struct {
    int64_t first, last; /* slots of the last answer; last -1: the row is empty */
} answer_span;

static bool find_last_answer(int64_t row, int64_t length, const int32_t *segmentation,
                             const int32_t *completion, answer_span *span, bd_error *err)
{
    int64_t last = -1, real = -1;
    for (int64_t i = 0; i < length; i++) {
        if (segmentation[i] != 0)
            real = i;
        if (segmentation[i] != 0 && completion[i])
            last = i;
    }
    *span = (answer_span){0, -1};
    if (real < 0)
        return true;
    if (last < 0)
        return bd_fail(err, "row %lld has no completion, wanted a completion after a prompt",
                       (long long)row);
    int64_t first = last;
    while (first > 0 && completion[first - 1])
        first--;
    bool prompt = false;
    for (int64_t i = 0; i < first; i++)
        prompt |= segmentation[i] != 0;
    if (!prompt)
        return bd_fail(err, "row %lld has no prompt, wanted a completion after a prompt",
                       (long long)row);
    *span = (answer_span){first, last};
    return true;
}

bool bd_last_answer(int64_t rows, int64_t length, int32_t pad_id, int32_t *inputs, int32_t *targets,
                    int32_t *inputs_segmentation, int32_t *targets_segmentation,
                    int32_t *completion, bd_error *err)
{
    answer_span span;
    for (int64_t r = 0; r < rows; r++)
        if (!find_last_answer(r, length, targets_segmentation + r * length, completion + r * length,
                              &span, err))
            return false;
    for (int64_t r = 0; r < rows; r++) {
        int64_t row = r * length;
        find_last_answer(r, length, targets_segmentation + row, completion + row, &span, NULL);
        for (int64_t i = 0; i < length; i++) {
            int64_t at = row + i;
            bool keep = targets_segmentation[at] != 0 && i <= span.last;
            completion[at] = keep && i >= span.first;
            if (keep)
                continue;
            inputs[at] = targets[at] = pad_id;
            inputs_segmentation[at] = targets_segmentation[at] = 0;
        }
    }
    return true;
}

/* --- stop tokens ----------------------------------------------------------------------------- */

bool bd_stop_check(const int32_t *stop, int64_t count, int64_t vocabulary, int32_t mask_id,
                   bd_error *err)
{
    for (int64_t i = 0; i < count; i++) {
        if (stop[i] < 0 || stop[i] >= vocabulary)
            return bd_fail(err, "stop_token_ids[%lld] is %d, wanted 0 to %lld", (long long)i,
                           stop[i], (long long)vocabulary - 1);
        if (stop[i] == mask_id)
            return bd_fail(err, "stop_token_ids[%lld] is the mask token %d", (long long)i, mask_id);
        if (bd_stop_contains(stop, i, stop[i]))
            return bd_fail(err, "stop_token_ids names %d twice, wanted unique ids", stop[i]);
    }
    return true;
}

bool bd_stop_contains(const int32_t *stop, int64_t count, int32_t token)
{
    for (int64_t i = 0; i < count; i++)
        if (stop[i] == token)
            return true;
    return false;
}

void bd_stop_kept(const bd_placement *placement, const int32_t *tokens, const int32_t *completion,
                  const int32_t *stop, int64_t stop_count, int32_t *kept)
{
    const bd_placement *p = placement;
    for (int64_t r = 0; r < p->rows; r++) {
        int64_t row = r * p->length;
        int32_t end = INT32_MAX;
        for (int64_t i = 0; i < p->length; i++)
            if (completion[row + i] && position_at(p, r, i) < end &&
                bd_stop_contains(stop, stop_count, tokens[row + i]))
                end = position_at(p, r, i);
        for (int64_t i = 0; i < p->length; i++)
            kept[row + i] = completion[row + i] && position_at(p, r, i) <= end;
    }
}

void bd_completion_drop(int64_t cells, const int32_t *kept, int32_t *completion, int32_t *segments,
                        int32_t *corruption, float *weights)
{
    for (int64_t i = 0; i < cells; i++) {
        if (completion[i] && !kept[i])
            segments[i] = 0;
        completion[i] = completion[i] && kept[i];
        if (completion[i])
            continue;
        if (corruption)
            corruption[i] = 0;
        if (weights)
            weights[i] = 0;
    }
}

void bd_mask_tokens(int64_t cells, const int32_t *tokens, const int32_t *corruption,
                    int32_t mask_id, int32_t *inputs)
{
    for (int64_t i = 0; i < cells; i++)
        inputs[i] = corruption[i] ? mask_id : tokens[i];
}

/* --- safe weights ---------------------------------------------------------------------------- */

static bool row_is_safe(const bd_canvas *canvas, const bd_placement *p, int64_t r,
                        const int32_t *completion, const int32_t *corruption, const float *weights,
                        int32_t *slot)
{
    int64_t bad, count = order_row(p, r, slot, &bad);
    if (count <= 0)
        return false;
    for (int64_t i = 0; i < p->length; i++) {
        if (!isfinite(weights[i]) || weights[i] < 0)
            return false;
        bool weighted = weights[i] > 0;
        if ((completion[i] && !valid_at(p, r, i)) || (corruption[i] && !completion[i]) ||
            (weighted && !completion[i]) || (corruption[i] && !weighted))
            return false;
        if (weighted && !corruption[i] && !bd_canvas_is_anchor(canvas, position_at(p, r, i)))
            return false;
    }
    int64_t start = find_start(completion, slot, count);
    return start > 0 && start < count; // some prompt, some completion
}

int64_t bd_safe_weights(const bd_canvas *canvas, const bd_placement *placement,
                        const int32_t *completion, const int32_t *corruption, const float *weights,
                        float *safe, bd_arena *scratch)
{
    const bd_placement *p = placement;
    size_t mark = bd_arena_mark(scratch);
    int32_t *slot = bd_arena_ints(scratch, p->length);
    int64_t unsafe = 0;
    for (int64_t r = 0; r < p->rows; r++) {
        int64_t row = r * p->length;
        bool trusted =
            row_is_safe(canvas, p, r, completion + row, corruption + row, weights + row, slot);
        bool empty = true;
        for (int64_t i = 0; i < p->length; i++) {
            empty &= !valid_at(p, r, i);
            safe[row + i] = trusted ? weights[row + i] : 0;
        }
        unsafe += !trusted && !empty;
    }
    bd_arena_release(scratch, mark);
    return unsafe;
}
