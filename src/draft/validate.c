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

static bool check(int64_t count, int64_t output, int64_t steps, bd_error *err)
{
    return (count >= 1 && output >= 1 && steps >= 0 && steps <= BD_MOST_BLOCK) ||
           bd_fail(err,
                   "validation of %lld tokens with %lld drafts after a prompt of %lld: at least 1, "
                   "0 to %d and at least 1 expected",
                   (long long)output, (long long)steps, (long long)count, BD_MOST_BLOCK);
}

bool bd_validate(const bd_validation *validation, const int32_t *prompt, int64_t count,
                 int64_t output, int64_t steps, int64_t *accepted, int64_t *cycles, bd_error *err)
{
    if (!check(count, output, steps, err))
        return false;
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

// --- against a fixed text ------------------------------------------------------------------------

static bool is_stop(int32_t token, const int32_t *stop, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (stop[i] == token)
            return true;
    return false;
}

/* The prompt is there already; returns the length with the continuation, negative: error. */
static int64_t write_truth(const bd_validation *v, int32_t *truth, int64_t count, int64_t output,
                           const int32_t *stop, int64_t stop_count, bd_error *err)
{
    for (int64_t most = count + output; count < most; count++) {
        if (v->draft(v->self, truth, count, 0, &truth[count], NULL, err) < 0)
            return -1;
        if (is_stop(truth[count], stop, stop_count))
            return count + 1;
    }
    return count;
}

bool bd_validate_truth(const bd_validation *v, const int32_t *prompt, int64_t count, int64_t output,
                       const int32_t *stop, int64_t stop_count, int64_t steps, int64_t *added,
                       int64_t *cycles, bd_error *err)
{
    if (!check(count, output, steps, err))
        return false;
    int32_t *truth = calloc((size_t)(count + output), sizeof *truth), queue[BD_MOST_BLOCK + 1];
    if (!truth)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a text of %lld tokens",
                          (long long)(count + output));
    memcpy(truth, prompt, (size_t)count * sizeof *truth);
    const int64_t end = write_truth(v, truth, count, output, stop, stop_count, err);
    int64_t at = count, queued = 0;
    // What has been accepted is the text itself, so that `at` of its tokens are the state.
    for (*cycles = 0; end >= 0 && queued >= 0 && at < end; ++*cycles) {
        for (int64_t i = 0; i < queued && at < end && queue[i] == truth[at]; i++)
            at++;
        if (at == end)
            continue;
        int32_t base;
        queued = v->draft(v->self, truth, at, steps, &base, queue, err);
        at++;
    }
    *added = end - count;
    free(truth);
    return end >= 0 && queued >= 0;
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

bool bd_validate_draft_truth(bd_decoder *decoder, const int32_t *prompt, int64_t count,
                             int64_t output, const int32_t *stop, int64_t stop_count, int64_t steps,
                             int64_t *added, int64_t *cycles, bd_error *err)
{
    const bd_validation validation = {.self = decoder, .draft = propose, .judge = judge};
    return bd_validate_truth(&validation, prompt, count, output, stop, stop_count, steps, added,
                             cycles, err);
}
