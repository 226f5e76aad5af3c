#include "model/sampling.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/profile.h"
#include "tensor/rows.h"

bd_sampling bd_sampling_default(void)
{
    return (bd_sampling){.temperature = 0, .top_k = 0, .top_p = 1, .min_p = 0, .seed = 0};
}

bool bd_sampling_check(const bd_sampling *s, bd_error *err)
{
    if (!(s->temperature >= 0) || isinf(s->temperature))
        return bd_fail(err, "temperature is %g, 0 (greedy) or a positive number wanted",
                       (double)s->temperature);
    if (s->top_k < 0)
        return bd_fail(err, "top_k is %lld, 0 (all) or more wanted", (long long)s->top_k);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return bd_fail(err, "top_p is %g, more than 0 and at most 1 wanted", (double)s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return bd_fail(err, "min_p is %g, 0 (off) to 1 wanted", (double)s->min_p);
    return true;
}

// --- the most likely tokens, one after the other -------------------------------------------------
//
// A heap of token ids: building it is one pass over the vocabulary and taking the next token costs
// a logarithm, where sorting everything would cost more than the model of a small vocabulary.

typedef struct {
    const float *logits;
    int32_t *ids;
    int64_t count;
} heap;

static float rank_of(const heap *h, int32_t id)
{
    return isnan(h->logits[id]) ? -INFINITY : h->logits[id];
}

static bool before(const heap *h, int32_t a, int32_t b)
{
    float x = rank_of(h, a), y = rank_of(h, b);
    return x > y || (x == y && a < b); // ties: the lower id
}

static void sink(heap *h, int64_t at)
{
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= h->count)
            return;
        if (child + 1 < h->count && before(h, h->ids[child + 1], h->ids[child]))
            child++;
        if (!before(h, h->ids[child], h->ids[at]))
            return;
        int32_t id = h->ids[at];
        h->ids[at] = h->ids[child];
        h->ids[child] = id;
        at = child;
    }
}

static heap heap_of(const float *logits, int64_t count, bd_arena *scratch)
{
    heap h = {.logits = logits, .ids = bd_arena_ints(scratch, count), .count = count};
    for (int64_t i = 0; i < count; i++)
        h.ids[i] = (int32_t)i;
    for (int64_t i = count / 2; i-- > 0;)
        sink(&h, i);
    return h;
}

static int32_t heap_take(heap *h)
{
    int32_t id = h->ids[0];
    h->ids[0] = h->ids[--h->count];
    sink(h, 0);
    return id;
}

// --- probabilities -------------------------------------------------------------------------------

/* exp((z - largest) / temperature) for the top k, 0 for the rest and for a NaN; returns their sum.
 */
static double weigh(const bd_sampling *s, const float *logits, int64_t vocabulary, float largest,
                    float *p, bd_arena *scratch)
{
    float threshold = -INFINITY;
    int64_t last = vocabulary; // of the tokens at the threshold, those up to here survive
    if (s->top_k > 0 && s->top_k < vocabulary) {
        heap h = heap_of(logits, vocabulary, scratch);
        for (int64_t k = 0; k < s->top_k; k++)
            last = heap_take(&h);
        threshold = rank_of(&h, (int32_t)last);
    }
    double sum = 0;
    for (int64_t i = 0; i < vocabulary; i++) {
        bool survives = logits[i] > threshold || (logits[i] == threshold && i <= last);
        p[i] = survives ? expf((logits[i] - largest) / s->temperature) : 0;
        sum += (double)p[i];
    }
    return sum;
}

/* Drop the tail beyond top_p: tokens are kept, most likely first, while the mass before is less. */
static double keep_nucleus(float top_p, const float *logits, int64_t vocabulary, double sum,
                           float *p, bd_arena *scratch)
{
    heap h = heap_of(logits, vocabulary, scratch);
    double mass = 0;
    while (h.count > 0 && mass < (double)top_p * sum)
        mass += (double)p[heap_take(&h)];
    for (int64_t i = 0; i < h.count; i++)
        p[h.ids[i]] = 0;
    return mass;
}

static double keep_likely(float min_p, int64_t vocabulary, float *p)
{
    double sum = 0;
    for (int64_t i = 0; i < vocabulary; i++) {
        if (p[i] < min_p) // the largest weight is 1
            p[i] = 0;
        sum += (double)p[i];
    }
    return sum;
}

static void weigh_all(const bd_sampling *s, const float *logits, int64_t vocabulary, float largest,
                      float *p, bd_arena *scratch)
{
    size_t mark = bd_arena_mark(scratch);
    double sum = weigh(s, logits, vocabulary, largest, p, scratch);
    if (s->top_p < 1)
        sum = keep_nucleus(s->top_p, logits, vocabulary, sum, p, scratch);
    if (s->min_p > 0)
        sum = keep_likely(s->min_p, vocabulary, p);
    for (int64_t i = 0; i < vocabulary; i++)
        p[i] = (float)((double)p[i] / sum);
    bd_arena_release(scratch, mark);
}

static bd_profile_site choosing = {.name = "sampling", .kind = BD_PROFILE_MEMORY};

void bd_sampling_probabilities(const bd_sampling *s, const float *logits, int64_t vocabulary,
                               float *p, bd_arena *scratch)
{
    assert(vocabulary > 0);
    bd_profile_begin(&choosing);
    int64_t best = bd_argmax(logits, vocabulary);
    if (!(s->temperature > 0) || !isfinite(logits[best])) {
        memset(p, 0, (size_t)vocabulary * sizeof *p);
        p[best] = 1; // greedy, or nothing finite to weigh
    } else {
        weigh_all(s, logits, vocabulary, logits[best], p, scratch);
    }
    bd_profile_end(&choosing, 0, 8 * (double)vocabulary);
}

// --- drawing -------------------------------------------------------------------------------------

int32_t bd_sampling_pick(const float *p, int64_t vocabulary, float u)
{
    double mass = 0;
    int64_t last = 0;
    for (int64_t i = 0; i < vocabulary; i++) {
        if (!(p[i] > 0))
            continue;
        mass += (double)p[i];
        last = i;
        if (mass > (double)u)
            break;
    }
    return (int32_t)last; // rounding may leave the sum just below u: then the last possible token
}

int32_t bd_sampling_token(const bd_sampling *s, const float *logits, int64_t vocabulary, float u,
                          bd_arena *scratch)
{
    if (!(s->temperature > 0)) {
        bd_profile_begin(&choosing);
        int32_t best = (int32_t)bd_argmax(logits, vocabulary);
        bd_profile_end(&choosing, 0, 4 * (double)vocabulary);
        return best;
    }
    size_t mark = bd_arena_mark(scratch);
    float *p = bd_arena_floats(scratch, vocabulary);
    bd_sampling_probabilities(s, logits, vocabulary, p, scratch);
    int32_t token = bd_sampling_pick(p, vocabulary, u);
    bd_arena_release(scratch, mark);
    return token;
}
