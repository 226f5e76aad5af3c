#include "draft/parallel.h"

#include <assert.h>

#include "base/progress.h"
#include "diffusion/completion.h"

typedef struct {
    bd_decoder *decoder;
    int64_t index; // of the text in this place
    int32_t next;  // chosen, not yet in the text
} place;

typedef struct {
    bd_model *target;
    bd_parallel_text *texts;
    int64_t count;   // of texts
    int64_t started; // texts that have had a place
    const bd_generation *options;
    bool (*done)(void *self, int64_t index);
    bd_parallel_report *report;
    place places[BD_MOST_PARALLEL];
    int64_t busy; // the first ones hold a text
    bool stopped; // by the caller
} run;

/* The token at `position` of a text, with the numbers that bd_generate draws for it. */
static int32_t choose(const run *r, const place *p, const float *logits, int64_t position)
{
    const bd_sampling *sampling = &r->options->sampling;
    const bd_draws u = bd_draws_at(sampling->seed, position);
    return bd_sampling_token(sampling, logits, r->target->config.vocabulary, u.sample,
                             bd_decoder_scratch(p->decoder));
}

/* The chosen token becomes text; does the text go on? */
static bool put(const run *r, const place *p)
{
    const bd_generation *o = r->options;
    bd_parallel_text *t = &r->texts[p->index];
    t->out[t->count++] = p->next;
    if (bd_stop_contains(o->stop, o->stop_count, p->next))
        t->ended = BD_ENDED_BY_STOP;
    else if (t->count < t->most)
        return true;
    return false;
}

/* Read prompts in this place until there is one whose text goes on after its first token; false: the
 * place stays empty (no prompts are left) or, with err filled in, an error. */
static bool fill(run *r, place *p, bool *failed, bd_error *err)
{
    while (r->started < r->count && !r->stopped) {
        p->index = r->started++;
        bd_parallel_text *t = &r->texts[p->index];
        double began = bd_seconds();
        t->prompt_read = t->prompt_count - bd_decoder_known(p->decoder, t->prompt, t->prompt_count);
        const float *logits = bd_decoder_follow(p->decoder, t->prompt, t->prompt_count, err);
        if (!logits) {
            *failed = true;
            return false;
        }
        p->next = choose(r, p, logits, t->prompt_count);
        r->report->prefill_seconds += bd_seconds() - began;
        if (put(r, p))
            return true;
        r->stopped = r->done && !r->done(r->options->self, p->index);
    }
    return false;
}

/* One pass: every text gets one more token. Those that ended stay in place, with their index. */
static bool step(run *r, bool *ended, bd_error *err)
{
    bd_decoder *decoders[BD_MOST_PARALLEL];
    int32_t tokens[BD_MOST_PARALLEL];
    int64_t vocabulary = r->target->config.vocabulary;
    double began = bd_seconds();
    for (int64_t i = 0; i < r->busy; i++) {
        decoders[i] = r->places[i].decoder;
        tokens[i] = r->places[i].next;
    }
    const float *logits = bd_decoders_try(decoders, r->busy, tokens, err);
    if (!logits)
        return false;
    for (int64_t i = 0; i < r->busy; i++) {
        place *p = &r->places[i];
        if (!bd_decoder_keep(p->decoder, 1, err))
            return false;
        p->next = choose(r, p, logits + i * vocabulary, bd_decoder_length(p->decoder));
        ended[i] = !put(r, p);
    }
    r->report->passes++;
    r->report->decode_seconds += bd_seconds() - began;
    return true;
}

/* Places whose text has ended get the next prompt; the last busy one moves to where there is none. */
static bool refill(run *r, const bool *ended, bd_error *err)
{
    bool failed = false;
    for (int64_t i = r->busy; i-- > 0;) {
        place *p = &r->places[i];
        if (!ended[i])
            continue;
        r->stopped = r->stopped || (r->done && !r->done(r->options->self, p->index));
        if (fill(r, p, &failed, err))
            continue;
        if (failed)
            return false;
        const place idle = *p;
        *p = r->places[--r->busy];
        r->places[r->busy] = idle;
    }
    return true;
}

/* Tokens of the longest text. A cache's layers lie `capacity` apart, and the first touch of each takes
 * a huge page: room that nobody uses would cost time in every place. */
static int64_t longest(const run *r)
{
    int64_t most = 1;
    for (int64_t i = 0; i < r->count; i++) {
        int64_t tokens = r->texts[i].prompt_count + r->texts[i].most;
        most = tokens > most ? tokens : most;
    }
    return most;
}

static bool go(run *r, int64_t places, bd_error *err)
{
    bool ended[BD_MOST_PARALLEL], failed = false;
    const int64_t capacity = longest(r);
    for (int64_t i = 0; i < places && i < r->count; i++) {
        place *p = &r->places[i];
        if (!(p->decoder = bd_decoder_create(r->target, NULL, capacity, err)))
            return false;
    }
    while (r->busy < places && r->busy < r->count && fill(r, &r->places[r->busy], &failed, err))
        r->busy++;
    r->report->most_at_once = r->busy;
    while (!failed && r->busy > 0 && !r->stopped)
        failed = !step(r, ended, err) || !refill(r, ended, err);
    return !failed;
}

static bool check(const run *r, int64_t capacity, bd_error *err)
{
    if (!bd_sampling_check(&r->options->sampling, err))
        return false;
    for (int64_t i = 0; i < r->count; i++)
        if (!bd_generation_fits(r->texts[i].prompt_count, r->texts[i].most, capacity, err))
            return bd_error_wrap(err, "prompt %lld", (long long)i + 1);
    return true;
}

bool bd_generate_parallel(bd_model *target, int64_t capacity, bd_parallel_text *texts,
                          int64_t count, int64_t places, const bd_generation *options,
                          bool (*done)(void *self, int64_t index), bd_parallel_report *report,
                          bd_error *err)
{
    assert(places >= 1 && places <= BD_MOST_PARALLEL);
    *report = (bd_parallel_report){0};
    run r = {.target = target,
             .texts = texts,
             .count = count,
             .options = options,
             .done = done,
             .report = report};
    for (int64_t i = 0; i < count; i++) {
        texts[i].count = 0;
        texts[i].ended = BD_ENDED_BY_LIMIT;
    }
    bool ok = check(&r, capacity, err) && go(&r, places, err);
    for (int64_t i = 0; i < places; i++)
        bd_decoder_free(r.places[i].decoder);
    return ok;
}
