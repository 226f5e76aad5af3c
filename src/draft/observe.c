#include "draft/observe.h"

#include <string.h>

#include "base/profile.h"

void bd_target_observe(bd_model *target, const int64_t *layers, int64_t count,
                       const int32_t *tokens, int64_t rows, int64_t length,
                       const bd_observation *out, bd_arena *scratch)
{
    static bd_profile_site site = {.name = "target forward", .kind = BD_PROFILE_PHASE};
    bd_profile_begin(&site);
    int64_t hidden = target->config.hidden;
    // Row by row: a long row's activations are forgotten before the next begins.
    for (int64_t b = 0; b < rows; b++) {
        int64_t at = b * length;
        size_t mark = bd_arena_mark(scratch);
        bd_tape tape = bd_tape_begin(scratch, target->compute, false);
        bd_hidden_request request = {.layers = layers, .count = count};
        bd_forward input = {.tokens = tokens + at, .rows = 1, .length = length};
        if (out->features) {
            request.out = out->features + at * count * hidden;
            input.hidden = &request;
        }
        if (out->prenorm)
            input.prenorm = out->prenorm + at * hidden;
        const bd_value *last = bd_model_forward(target, &tape, &input);
        if (out->final)
            memcpy(out->final + at * hidden, last->data, (size_t)(length * hidden) * sizeof(float));
        bd_arena_release(scratch, mark);
    }
    bd_profile_end(&site, 0, 0);
}

void bd_draft_observe(bd_draft *draft, const int32_t *tokens, int64_t rows, int64_t length,
                      float *features, float *hidden, bd_arena *scratch)
{
    int64_t layers[BD_MOST_TAPS];
    bd_draft_request(draft, layers);
    const bd_observation out = {.features = features, .final = hidden};
    bd_target_observe(draft->target, layers, draft->config.tap_count, tokens, rows, length, &out,
                      scratch);
}
