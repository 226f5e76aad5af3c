#include "draft/validate.h"

#include <stdlib.h>
#include <string.h>

#include "tensor/rows.h"

/* The text so far, and room for the drafts of one cycle behind it. */
typedef struct {
    const bd_validation *validation;
    int32_t *tokens;
    int64_t count, most;
    int64_t steps;
    int64_t accepted, cycles;
} progress;

static bool run_cycle(progress *p, int32_t *best, bd_error *err)
{
    const bd_validation *v = p->validation;
    int32_t base, *drafts = p->tokens + p->count + 1;
    p->cycles++;
    int64_t count = v->draft(v->self, p->tokens, p->count, p->steps, &base, drafts, err);
    if (count < 0)
        return false;
    p->tokens[p->count++] = base;
    p->accepted++;
    if (count == 0 || p->count >= p->most)
        return true;
    // best[i] follows the base and i drafts.
    if (!v->judge(v->self, p->tokens, p->count + count, p->count - 1, best, err))
        return false;
    for (int64_t i = 0; i < count && p->count < p->most; i++) {
        bool right = best[i] == p->tokens[p->count];
        p->tokens[p->count++] = best[i];
        p->accepted += right;
        if (!right) // the correction is not counted
            break;
    }
    return true;
}

bool bd_validate(const bd_validation *validation, const int32_t *prompt, int64_t count,
                 int64_t output, int64_t steps, int64_t *accepted, int64_t *cycles, bd_error *err)
{
    if (count < 1 || output < 1 || steps < 0 || steps > BD_MOST_BLOCK)
        return bd_fail(
            err,
            "validation of %lld tokens with %lld drafts after a prompt of %lld: at least 1, "
            "0 to %d and at least 1 expected",
            (long long)output, (long long)steps, (long long)count, BD_MOST_BLOCK);
    progress p = {.validation = validation, .count = count, .most = count + output, .steps = steps};
    p.tokens = calloc((size_t)(p.most + steps + 2), sizeof *p.tokens);
    int32_t *best = calloc((size_t)(steps + 2), sizeof *best);
    bool ok = p.tokens && best;
    if (ok)
        memcpy(p.tokens, prompt, (size_t)count * sizeof *prompt);
    else
        bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a text of %lld tokens", (long long)p.most);
    while (ok && p.count < p.most)
        ok = run_cycle(&p, best, err);
    free(p.tokens);
    free(best);
    *accepted = p.accepted;
    *cycles = p.cycles;
    return ok;
}

// --- a real target and draft ---------------------------------------------------------------------

static int64_t propose(void *self, const int32_t *tokens, int64_t count, int64_t steps,
                       int32_t *base, int32_t *drafts, bd_error *err)
{
    bd_decoder *decoder = self;
    const float *logits = bd_decoder_follow(decoder, tokens, count, err);
    if (!logits)
        return -1;
    *base = (int32_t)bd_argmax(logits, bd_decoder_target(decoder)->config.vocabulary);
    if (steps < 1)
        return 0;
    bd_proposal proposal = {.limit = steps,
                            .backbone_only =
                                bd_decoder_draft(decoder)->config.variant->validated_plain};
    int64_t proposed = bd_decoder_propose(decoder, *base, &proposal, err);
    if (proposed > 0)
        memcpy(drafts, proposal.tokens, (size_t)proposed * sizeof *drafts);
    return proposed;
}

static bool judge(void *self, const int32_t *tokens, int64_t count, int64_t first, int32_t *best,
                  bd_error *err)
{
    bd_decoder *decoder = self;
    int64_t vocabulary = bd_decoder_target(decoder)->config.vocabulary;
    // All before `first` has been read by the proposal of the same cycle.
    const float *logits = bd_decoder_try(decoder, tokens + first, count - first, err);
    if (!logits)
        return false;
    bd_best_tokens(logits, count - first, vocabulary, best);
    return bd_decoder_keep(decoder, 0, err);
}

bool bd_validate_draft(bd_decoder *decoder, const int32_t *prompt, int64_t count, int64_t output,
                       int64_t steps, int64_t *accepted, int64_t *cycles, bd_error *err)
{
    const bd_validation validation = {.self = decoder, .draft = propose, .judge = judge};
    return bd_validate(&validation, prompt, count, output, steps, accepted, cycles, err);
}
