#include "diffusion/commit.h"

#include <assert.h>
#include <math.h>
#include <string.h>

static const char *const names[BD_COMMIT_COUNT] = {
    [BD_COMMIT_THRESHOLD] = "low_confidence", [BD_COMMIT_ONE] = "one",
    [BD_COMMIT_SEQUENTIAL] = "sequential",    [BD_COMMIT_STATIC] = "static",
    [BD_COMMIT_DYNAMIC] = "dynamic",          [BD_COMMIT_FACTOR] = "factor",
    [BD_COMMIT_ENTROPY] = "entropy",
};

bd_commit_options bd_commit_default(void)
{
    return (bd_commit_options){
        .strategy = BD_COMMIT_THRESHOLD, .threshold = 0.9f, .factor = 1, .entropy_bound = 0.35f};
}

bool bd_commit_check(const bd_commit_options *o, bd_error *err)
{
    if (o->strategy < 0 || o->strategy >= BD_COMMIT_COUNT)
        return bd_fail(err, "commit strategy %d is unknown", (int)o->strategy);
    if (!(o->threshold >= 0 && o->threshold <= 1))
        return bd_fail(err, "confidence_threshold is %g, wanted 0 to 1", (double)o->threshold);
    if (!(o->factor > 0) || isinf(o->factor))
        return bd_fail(err, "factor is %g, wanted a finite number above 0", (double)o->factor);
    if (!(o->entropy_bound > 0))
        return bd_fail(err, "entropy_bound is %g, wanted a number above 0",
                       (double)o->entropy_bound);
    if (o->steps < 0)
        return bd_fail(err, "steps is %lld, wanted at least 1, or 0 for one per slot",
                       (long long)o->steps);
    return true;
}

const char *bd_commit_name(bd_commit_strategy strategy)
{
    assert(strategy >= 0 && strategy < BD_COMMIT_COUNT);
    return names[strategy];
}

bool bd_commit_from_name(const char *name, bd_commit_strategy *strategy, bd_error *err)
{
    if (strcmp(name, "threshold") == 0) // what others call it
        name = names[BD_COMMIT_THRESHOLD];
    for (int i = 0; i < BD_COMMIT_COUNT; i++) {
        if (strcmp(name, names[i]) == 0) {
            *strategy = (bd_commit_strategy)i;
            return true;
        }
    }
    return bd_fail(err,
                   "commit strategy is \"%s\", wanted low_confidence, one, sequential, static, "
                   "dynamic, factor or entropy",
                   name);
}

int64_t bd_commit_schedule(int64_t masked, int64_t steps, int64_t step)
{
    assert(steps > 0 && step >= 0);
    if (step >= steps)
        return 0;
    return masked / steps + (step < masked % steps);
}

/* --- picking --------------------------------------------------------------------------------- */

static float rank_of(float confidence)
{
    return isfinite(confidence) ? confidence : -INFINITY;
}

/* The unpicked slot with the largest rank, the earliest of equals. */
static int64_t best_unpicked(int64_t open, const float *score, float sign, const uint8_t *pick)
{
    int64_t best = -1;
    for (int64_t i = 0; i < open; i++)
        if (!pick[i] && (best < 0 || rank_of(sign * score[i]) > rank_of(sign * score[best])))
            best = i;
    return best;
}

static int64_t pick_above(int64_t open, const float *confidence, float threshold, bool strictly,
                          uint8_t *pick)
{
    int64_t picked = 0;
    for (int64_t i = 0; i < open; i++) {
        pick[i] = isfinite(confidence[i]) &&
                  (strictly ? confidence[i] > threshold : confidence[i] >= threshold);
        picked += pick[i];
    }
    return picked;
}

/* Top up the picks to `wanted`, most confident first. */
static void pick_best(int64_t open, const float *confidence, int64_t wanted, uint8_t *pick)
{
    int64_t picked = 0;
    for (int64_t i = 0; i < open; i++)
        picked += pick[i];
    for (; picked < wanted; picked++)
        pick[best_unpicked(open, confidence, 1, pick)] = 1;
}

/* The n-th best is kept while its confidence is at least 1 - factor / (n + 1). */
static int64_t pick_by_factor(int64_t open, const float *confidence, float factor, uint8_t *pick)
{
    int64_t n = 0;
    for (; n < open; n++) {
        int64_t best = best_unpicked(open, confidence, 1, pick);
        if (n > 0 && !(rank_of(confidence[best]) >= 1 - factor / (float)(n + 2)))
            break;
        pick[best] = 1;
    }
    return n;
}

static int64_t pick_by_entropy(int64_t open, const float *entropy, float bound, uint8_t *pick)
{
    int64_t n = 0;
    for (double sum = 0; n < open; n++) {
        int64_t best = best_unpicked(open, entropy, -1, pick);
        sum += (double)entropy[best];
        if (!(sum < (double)bound))
            break;
        pick[best] = 1;
    }
    if (n == 0)
        pick[best_unpicked(open, entropy, -1, pick)] = 1;
    return n;
}

int64_t bd_commit_pick(const bd_commit_options *o, int64_t open, int64_t scheduled,
                       const float *confidence, const float *entropy, uint8_t *pick)
{
    assert(open > 0);
    memset(pick, 0, (size_t)open);
    if (scheduled < 1)
        scheduled = 1;
    if (scheduled > open)
        scheduled = open;
    int64_t met = 0;
    switch (o->strategy) {
    case BD_COMMIT_THRESHOLD:
        met = pick_above(open, confidence, o->threshold, false, pick);
        pick_best(open, confidence, 1, pick);
        return met;
    case BD_COMMIT_DYNAMIC:
        met = pick_above(open, confidence, o->threshold, true, pick);
        pick_best(open, confidence, scheduled, pick);
        return met;
    case BD_COMMIT_SEQUENTIAL:
        memset(pick, 1, (size_t)scheduled);
        return scheduled;
    case BD_COMMIT_STATIC:
        pick_best(open, confidence, scheduled, pick);
        return scheduled;
    case BD_COMMIT_FACTOR:
        return pick_by_factor(open, confidence, o->factor, pick);
    case BD_COMMIT_ENTROPY:
        return pick_by_entropy(open, entropy, o->entropy_bound, pick);
    case BD_COMMIT_ONE:
    default:
        pick_best(open, confidence, 1, pick);
        return 1;
    }
}
