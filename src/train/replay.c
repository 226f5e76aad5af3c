#include "train/replay.h"

static bool check(const bd_replay *r, bd_error *err)
{
    if (r->micro_batches < 0 || r->updates < 0 || r->most_updates < 0 || r->accumulation < 1)
        return bd_fail(
            err,
            "%lld micro-batches, %lld of %lld updates of %lld each: counts from 0 and at "
            "least 1 micro-batch an update wanted",
            (long long)r->micro_batches, (long long)r->updates, (long long)r->most_updates,
            (long long)r->accumulation);
    if (r->updates > r->most_updates)
        return bd_fail(err, "step %lld, at most %lld steps in all wanted", (long long)r->updates,
                       (long long)r->most_updates);
    if (r->micro_batches % r->accumulation || r->micro_batches / r->accumulation != r->updates)
        return bd_fail(err, "step %lld after %lld micro-batches, %lld for each step wanted",
                       (long long)r->updates, (long long)r->micro_batches,
                       (long long)r->accumulation);
    return true;
}

bool bd_replay_plan(const bd_replay *r, bd_replay_span *span, bd_error *err)
{
    *span = (bd_replay_span){0};
    if (!check(r, err))
        return false;
    if (r->updates == r->most_updates)
        return true;
    if (r->skipped >= 0 && r->skipped < r->micro_batches)
        return bd_fail_as(err, BD_ERROR_EXHAUSTED,
                          "data: it ends at %lld of %lld micro-batches replayed",
                          (long long)r->skipped, (long long)r->micro_batches);
    int64_t wanted = (r->most_updates - r->updates) * r->accumulation;
    if (r->remaining >= 0 && r->remaining < wanted)
        return bd_fail_as(err, BD_ERROR_EXHAUSTED,
                          "data: it ends at %lld of %lld micro-batches remaining",
                          (long long)r->remaining, (long long)wanted);
    *span = (bd_replay_span){.first = r->micro_batches, .count = wanted};
    return true;
}
