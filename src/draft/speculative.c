#include "draft/speculative.h"

#include <assert.h>
#include <string.h>

#include "base/progress.h"
#include "base/random.h"
#include "diffusion/completion.h"

bd_generation bd_generation_default(void)
{
    return (bd_generation){.sampling = bd_sampling_default(), .most = 128, .most_proposed = -1};
}

// --- acceptance ----------------------------------------------------------------------------------

bd_draws bd_draws_at(uint64_t seed, int64_t position)
{
    uint64_t key = bd_random_key(seed, 0, 0, 0);
    uint32_t index = (uint32_t)position;
    return (bd_draws){.sample = bd_random_uniform(key, BD_STREAM_SAMPLE, index),
                      .accept = bd_random_uniform(key, BD_STREAM_ACCEPT, index),
                      .residual = bd_random_uniform(key, BD_STREAM_RESIDUAL, index)};
}

static int32_t pick_residual(const float *p, const float *q, int64_t vocabulary, float u,
                             float *scratch)
{
    double sum = 0;
    for (int64_t i = 0; i < vocabulary; i++) {
        scratch[i] = p[i] > q[i] ? p[i] - q[i] : 0;
        sum += (double)scratch[i];
    }
    if (!(sum > 0))
        return bd_sampling_pick(p, vocabulary, u);
    for (int64_t i = 0; i < vocabulary; i++)
        scratch[i] = (float)((double)scratch[i] / sum);
    return bd_sampling_pick(scratch, vocabulary, u);
}

bool bd_accept_token(const float *p, const float *q, int64_t vocabulary, int32_t proposed,
                     const bd_draws *u, float *scratch, int32_t *token)
{
    if (!q) {
        *token = bd_sampling_pick(p, vocabulary, u->sample);
        return *token == proposed;
    }
    if (u->accept * q[proposed] < p[proposed]) {
        *token = proposed;
        return true;
    }
    *token = pick_residual(p, q, vocabulary, u->residual, scratch);
    return false;
}

// --- one text ------------------------------------------------------------------------------------

typedef struct {
    bd_decoder *decoder;
    const bd_generation *options;
    bd_generation_report *report;
    bd_pace *pace;   // the decoder's
    bd_arena *arena; // the decoder's
    int32_t *out;
    int64_t count;    // tokens in out
    int32_t next;     // chosen, not yet in out
    int64_t position; // of next
    bool ended;
} text;

/* Put tokens into the text until it ends; returns how many went in. */
static int64_t put(text *t, const int32_t *tokens, int64_t count)
{
    const bd_generation *o = t->options;
    int64_t done = 0;
    while (done < count && !t->ended) {
        int32_t token = tokens[done++];
        t->out[t->count++] = token;
        t->ended = bd_stop_contains(o->stop, o->stop_count, token);
        if (t->ended)
            t->report->ended = BD_ENDED_BY_STOP;
        t->ended = t->ended || t->count == o->most;
    }
    if (done > 0 && o->emit && !o->emit(o->self, t->out + t->count - done, done)) {
        t->report->ended = BD_ENDED_BY_CALLER;
        t->ended = true;
    }
    return done;
}

/* How many of the proposed tokens stand, and the target's own token after them. Row i of the logits
 * decides about the token at position + 1 + i. */
static int64_t judge(text *t, const bd_proposal *proposal, const float *logits, int32_t *bonus)
{
    const bd_sampling *sampling = &t->options->sampling;
    int64_t vocabulary = bd_decoder_target(t->decoder)->config.vocabulary, accepted = 0;
    if (!(sampling->temperature > 0)) {
        int32_t *best = bd_arena_ints(t->arena, proposal->count + 1);
        bd_best_tokens(logits, proposal->count + 1, vocabulary, best);
        while (accepted < proposal->count && best[accepted] == proposal->tokens[accepted])
            accepted++;
        *bonus = best[accepted];
        return accepted;
    }
    float *p = bd_arena_floats(t->arena, vocabulary),
          *scratch = bd_arena_floats(t->arena, vocabulary);
    for (;; accepted++) {
        const bd_draws u = bd_draws_at(sampling->seed, t->position + 1 + accepted);
        bd_sampling_probabilities(sampling, logits + accepted * vocabulary, vocabulary, p,
                                  t->arena);
        if (accepted == proposal->count) {
            *bonus = bd_sampling_pick(p, vocabulary, u.sample);
            return accepted;
        }
        const float *q = proposal->q ? proposal->q[accepted] : NULL;
        if (!bd_accept_token(p, q, vocabulary, proposal->tokens[accepted], &u, scratch, bonus))
            return accepted;
    }
}

static int64_t wanted(const text *t)
{
    const bd_generation *o = t->options;
    int64_t limit = BD_MOST_BLOCK;
    if (o->most_proposed >= 0 && o->most_proposed < limit)
        limit = o->most_proposed;
    // A token at the last place comes from the target anyway.
    int64_t room = o->most - t->count - 1;
    if (!o->whole_blocks && room < limit)
        limit = room;
    if (limit > t->pace->block)
        limit = t->pace->block;
    const bd_draft *draft = bd_decoder_draft(t->decoder);
    return bd_pace_plan(t->pace, o->schedule, limit, draft && bd_draft_has_confidence(draft));
}

static void count_cycle(text *t, const bd_cycle *c, bd_pace_cycle *timing)
{
    bd_generation_report *r = t->report;
    r->cycles++;
    r->drafted_cycles += c->count > 0;
    r->draft_seconds += c->draft_seconds;
    r->verify_seconds += c->verify_seconds;
    for (int64_t i = 0; i < c->count && i <= c->accepted; i++) {
        r->tested[i]++;
        r->accepted[i] += i < c->accepted;
    }
    // The base was brought by the pass before; the bonus is this pass's, if the text goes on.
    int64_t produced = c->emitted - 1 + !t->ended;
    r->produced[produced]++;
    timing->verified = c->count;
    timing->accepted = c->accepted;
    timing->made = produced;
    timing->draft_seconds = c->draft_seconds;
    timing->pass_seconds = c->verify_seconds;
    bd_pace_note(t->pace, timing);
    if (t->options->cycle)
        t->options->cycle(t->options->self, c);
}

/* Ask the draft, and leave out of its tokens what is not worth verifying. */
static bool propose(text *t, bd_proposal *proposal, bd_pace_cycle *timing, bd_error *err)
{
    proposal->limit = wanted(t);
    proposal->sampling = &t->options->sampling;
    proposal->backbone_only = t->options->backbone_only;
    if (proposal->limit <= 0)
        return true;
    if (bd_decoder_propose(t->decoder, t->next, proposal, err) < 0)
        return false;
    timing->proposed = proposal->count;
    if (!proposal->confidence || t->options->schedule == BD_DRAFT_FIXED)
        return true;
    proposal->count = bd_pace_cut(t->pace, proposal->confidence, proposal->count);
    // The session's memory is free for other things by the time the cycle is noted.
    size_t bytes = (size_t)proposal->count * sizeof(float);
    timing->confidence =
        memcpy(bd_arena_floats(t->arena, proposal->count), proposal->confidence, bytes);
    return true;
}

/* One cycle: the newest token becomes text, tokens after it are proposed and verified. */
static bool run_cycle(text *t, bd_error *err)
{
    bd_cycle c = {.base = t->next};
    c.emitted = put(t, &t->next, 1);
    if (t->ended && !t->options->whole_blocks)
        return true;
    size_t mark = bd_arena_mark(t->arena);
    double start = bd_seconds();
    bd_proposal proposal = {0};
    bd_pace_cycle timing = {0};
    if (!propose(t, &proposal, &timing, err))
        return false;
    double drafted = bd_seconds();

    int32_t *block = bd_arena_ints(t->arena, proposal.count + 1);
    block[0] = t->next;
    if (proposal.count > 0)
        memcpy(block + 1, proposal.tokens, (size_t)proposal.count * sizeof *block);
    const float *logits = bd_decoder_try(t->decoder, block, proposal.count + 1, err);
    if (!logits)
        return false;
    int32_t bonus;
    int64_t accepted = judge(t, &proposal, logits, &bonus);
    c.proposed = block + 1;
    c.count = proposal.count;
    c.accepted = accepted;
    if (!bd_decoder_keep(t->decoder, accepted + 1, err))
        return false;
    c.draft_seconds = drafted - start;
    c.verify_seconds = bd_seconds() - drafted;
    c.emitted += put(t, block + 1, accepted);
    t->next = bonus;
    t->position += accepted + 1;
    count_cycle(t, &c, &timing);
    bd_arena_release(t->arena, mark);
    return true;
}

bool bd_generation_fits(int64_t prompt, int64_t most, int64_t capacity, bd_error *err)
{
    if (prompt < 1)
        return bd_fail(err, "the prompt is empty: at least one token expected");
    if (most < 1)
        return bd_fail(err, "%lld new tokens wanted, at least 1 expected", (long long)most);
    if (prompt > capacity || most > capacity - prompt)
        return bd_fail(err, "a prompt of %lld and %lld new tokens do not fit a context of %lld",
                       (long long)prompt, (long long)most, (long long)capacity);
    return true;
}

static bool check(const bd_decoder *decoder, int64_t count, const bd_generation *o, bd_error *err)
{
    const bd_draft *draft = bd_decoder_draft(decoder);
    if (o->schedule == BD_DRAFT_CONFIDENCE && !(draft && bd_draft_has_confidence(draft)))
        return bd_fail(err, "schedule confidence: the draft has no confidence head");
    int64_t extra = o->whole_blocks && draft ? draft->config.block_size : 0;
    return bd_sampling_check(&o->sampling, err) &&
           bd_generation_fits(count, o->most, bd_decoder_capacity(decoder) - extra, err);
}

int64_t bd_generate(bd_decoder *decoder, const int32_t *prompt, int64_t count,
                    const bd_generation *options, int32_t *out, bd_generation_report *report,
                    bd_error *err)
{
    bd_generation_report unwanted = {0};
    report = report ? report : &unwanted;
    *report = (bd_generation_report){.prompt_tokens = count};
    if (!check(decoder, count, options, err))
        return -1;
    report->prompt_read = count - bd_decoder_known(decoder, prompt, count);
    text t = {.decoder = decoder,
              .options = options,
              .report = report,
              .out = out,
              .position = count,
              .pace = bd_decoder_pace(decoder),
              .arena = bd_decoder_scratch(decoder)};
    size_t mark = bd_arena_mark(t.arena);
    bd_pace_begin(t.pace, options->most);
    double start = bd_seconds();
    const float *logits = bd_decoder_follow(decoder, prompt, count, err);
    bool ok = logits != NULL;
    if (ok) {
        const bd_draws u = bd_draws_at(options->sampling.seed, count);
        t.next =
            bd_sampling_token(&options->sampling, logits,
                              bd_decoder_target(decoder)->config.vocabulary, u.sample, t.arena);
    }
    report->prefill_seconds = bd_seconds() - start;
    while (ok && !t.ended)
        ok = run_cycle(&t, err);
    report->new_tokens = t.count;
    bd_arena_release(t.arena, mark);
    return ok ? t.count : -1;
}

// --- what it is worth ----------------------------------------------------------------------------

double bd_accept_length(const bd_generation_report *report)
{
    int64_t passes = 0, tokens = 0;
    for (int64_t n = 0; n <= BD_MOST_PRODUCED; n++) {
        passes += report->produced[n];
        tokens += n * report->produced[n];
    }
    return passes > 0 ? (double)tokens / (double)passes : 0;
}

double bd_break_even_length(double draft_seconds, double verify_seconds, double single_seconds)
{
    assert(single_seconds > 0);
    return (draft_seconds + verify_seconds) / single_seconds;
}
