#include "autograd/tape.h"

#include <assert.h>
#include <string.h>

#include "base/profile.h"
#include "base/threads.h"

struct bd_note {
    void (*back)(bd_tape *tape, void *context);
    void *context;
    bd_note *previous;
};

bd_tape bd_tape_begin(bd_arena *arena, bd_dtype compute, bool recording)
{
    assert(compute == BD_F32 || compute == BD_BF16 || (compute == BD_Q8_0 && !recording));
    return (bd_tape){.arena = arena, .compute = compute, .recording = recording};
}

void bd_tape_backward(bd_tape *tape)
{
    assert(tape->recording);
    static bd_profile_site site = {.name = "backward", .kind = BD_PROFILE_PHASE};
    bd_profile_begin(&site);
    while (tape->last) {
        bd_note *note = tape->last;
        tape->last = note->previous;
        // What an operation allocates on its way back is its own scratch.
        size_t mark = bd_arena_mark(tape->arena);
        note->back(tape, note->context);
        bd_arena_release(tape->arena, mark);
    }
    bd_profile_end(&site, 0, 0);
}

void bd_tape_note(bd_tape *tape, void (*back)(bd_tape *tape, void *context), void *context)
{
    if (!tape->recording)
        return;
    bd_note *note = bd_arena_alloc(tape->arena, sizeof *note);
    *note = (bd_note){.back = back, .context = context, .previous = tape->last};
    tape->last = note;
}

enum { ZERO_CHUNK = 1 << 18 }; // floats a thread clears at a time

typedef struct {
    float *data;
    int64_t count;
} zero_job;

static void zero_chunk(void *context, int64_t task)
{
    const zero_job *job = context;
    int64_t begin = task * ZERO_CHUNK;
    int64_t count = job->count - begin < ZERO_CHUNK ? job->count - begin : ZERO_CHUNK;
    memset(job->data + begin, 0, (size_t)count * sizeof(float));
}

// Gradients of a large batch are as much memory as its activations; one thread would be a
// bottleneck.
static float *zeros(bd_arena *arena, int64_t count)
{
    zero_job job = {.data = bd_arena_floats(arena, count), .count = count};
    static bd_profile_site site = {.name = "zero gradients", .kind = BD_PROFILE_MEMORY};
    bd_profile_begin(&site);
    bd_parallel((count + ZERO_CHUNK - 1) / ZERO_CHUNK, zero_chunk, &job);
    bd_profile_end(&site, 0, 4 * (double)count);
    return job.data;
}

bd_value *bd_tape_value(bd_tape *tape, int64_t rows, int64_t width, bool wants_gradient)
{
    bd_value *value = bd_arena_alloc(tape->arena, sizeof *value);
    *value = (bd_value){.rows = rows, .width = width};
    value->data = bd_arena_floats(tape->arena, rows * width);
    if (tape->recording && wants_gradient)
        value->gradient = zeros(tape->arena, rows * width);
    return value;
}

bd_value *bd_tape_constant(bd_tape *tape, const float *data, int64_t rows, int64_t width)
{
    bd_value *value = bd_arena_alloc(tape->arena, sizeof *value);
    // An operation writes to the data of its own result only, never to that of an operand.
    *value = (bd_value){.data = (float *)(uintptr_t)data, .rows = rows, .width = width};
    return value;
}
