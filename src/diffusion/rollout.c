#include "diffusion/rollout.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/profile.h"
#include "base/random.h"
#include "base/threads.h"
#include "diffusion/proposal.h"

/* Logits are asked for and forgotten in chunks of about this many numbers. */
enum { LOGITS_AT_ONCE = 8 << 20 };

/* --- options and statistics ------------------------------------------------------------------ */

bd_rollout_options bd_rollout_default(bd_canvas canvas)
{
    return (bd_rollout_options){.canvas = canvas,
                                .commit = bd_commit_default(),
                                .temperature = 1,
                                .max_steps = -1,
                                .top_p = 1};
}

static bd_sampling sampling_of(const bd_rollout_options *o)
{
    bd_sampling sampling = bd_sampling_default();
    sampling.temperature = o->temperature;
    sampling.top_k = o->top_k;
    sampling.top_p = o->top_p;
    sampling.min_p = o->min_p;
    return sampling;
}

bool bd_rollout_check(const bd_rollout_options *o, int64_t vocabulary, bd_error *err)
{
    if (vocabulary < 2)
        return bd_fail(err, "vocabulary is %lld, wanted at least 2", (long long)vocabulary);
    if (!bd_canvas_check(&o->canvas, vocabulary, err) || !bd_commit_check(&o->commit, err))
        return false;
    if (!(o->temperature > 0) || isinf(o->temperature))
        return bd_fail(err, "rollout temperature is %g, wanted a finite number above 0",
                       (double)o->temperature);
    if (o->max_steps != -1 && o->max_steps < o->canvas.block_size)
        return bd_fail(err, "max_steps is %lld, wanted at least block size %lld, or -1 for that",
                       (long long)o->max_steps, (long long)o->canvas.block_size);
    if (o->commit.steps > o->canvas.block_size)
        return bd_fail(err, "steps is %lld, wanted at most block size %lld",
                       (long long)o->commit.steps, (long long)o->canvas.block_size);
    bd_sampling sampling = sampling_of(o);
    return bd_sampling_check(&sampling, err);
}

static double ratio(double sum, int64_t count)
{
    return count > 0 ? sum / (double)count : 0;
}

double bd_rollout_tokens_per_forward(const bd_rollout_statistics *s)
{
    return ratio((double)s->commits, s->row_forwards);
}

double bd_rollout_forced_fraction(const bd_rollout_statistics *s)
{
    return ratio((double)s->forced, s->commits);
}

double bd_rollout_mean_confidence(const bd_rollout_statistics *s)
{
    return ratio(s->confidence_sum, s->commits);
}

/* --- the state of one rollout ---------------------------------------------------------------- */

typedef struct {
    const bd_scorer *scorer;
    const bd_rollout_rows *rows;
    const bd_rollout_options *options;
    const bd_rollout_observer *observer;
    bd_rollout_result *result;
    bd_rollout_statistics *statistics;
    bd_arena *arena;
    bd_error *err;

    bd_logical_rows order;
    int64_t block;     /* the one being filled */
    int64_t begin;     /* its first logical position */
    int64_t width;     /* most tokens a row has in a block */
    int32_t *step;     /* [rows]: commits so far, counted in passes */
    uint8_t *finished; /* [rows]: the observer said so */
    uint8_t *open;     /* [rows, width]: by position - begin */
    int64_t *masked;   /* [rows]: open slots when denoising of the block began */

    /* One pass: slots row by row, and what is proposed for them. */
    int64_t count;
    bd_open_slot *slots;
    bd_proposed_token *proposed;
    float *confidence, *entropy;
    uint8_t *pick;

    /* Only for an observer of transitions: [rows, length]. */
    int32_t *before, *open_marks, *picks, *token;
    float *token_confidence;
} run;

static int64_t cells_of(const run *x)
{
    return x->order.rows * x->order.length;
}

static int64_t cell_of(const run *x, int64_t row, int64_t position)
{
    return row * x->order.length + x->order.slot[row * x->order.length + position];
}

/* Positions [*low, *high) of the row that this block generates; empty for a row with nothing to do.
 */
static bool block_span(const run *x, int64_t row, int64_t *low, int64_t *high)
{
    int64_t end = x->begin + x->options->canvas.block_size;
    *low = x->order.start[row] > x->begin ? x->order.start[row] : x->begin;
    *high = x->order.count[row] < end ? x->order.count[row] : end;
    return !x->finished[row] && *low < *high;
}

static bool traced(const run *x)
{
    return x->observer && x->observer->transition;
}

static void start(run *x)
{
    int64_t rows = x->order.rows, length = x->order.length, cells = cells_of(x);
    int64_t size = x->options->canvas.block_size;
    x->width = size < length ? size : length;
    x->step = bd_arena_ints(x->arena, rows);
    memset(x->step, 0, (size_t)rows * sizeof *x->step);
    x->finished = bd_arena_alloc(x->arena, (size_t)rows);
    memset(x->finished, 0, (size_t)rows);
    x->masked = bd_arena_alloc(x->arena, (size_t)rows * sizeof *x->masked);
    int64_t most = rows * x->width;
    x->open = bd_arena_alloc(x->arena, (size_t)most);
    x->slots = bd_arena_alloc(x->arena, (size_t)most * sizeof *x->slots);
    x->proposed = bd_arena_alloc(x->arena, (size_t)most * sizeof *x->proposed);
    x->confidence = bd_arena_floats(x->arena, most);
    x->entropy = bd_arena_floats(x->arena, most);
    x->pick = bd_arena_alloc(x->arena, (size_t)most);
    if (traced(x)) {
        x->before = bd_arena_ints(x->arena, cells);
        x->open_marks = bd_arena_ints(x->arena, cells);
        x->picks = bd_arena_ints(x->arena, cells);
        x->token = bd_arena_ints(x->arena, cells);
        x->token_confidence = bd_arena_floats(x->arena, cells);
    }
    for (int64_t i = 0; i < cells; i++) {
        bool masked = x->rows->completion[i] != 0;
        x->result->tokens[i] = masked ? x->options->canvas.mask_id : x->rows->tokens[i];
        if (x->result->steps)
            x->result->steps[i] = -1;
        if (x->result->logps)
            x->result->logps[i] = 0;
    }
}

/* --- one pass -------------------------------------------------------------------------------- */

/* The open slots of the block, or (anchors_only) those at its first position. */
static void list_slots(run *x, bool anchors_only)
{
    x->count = 0;
    for (int64_t r = 0; r < x->order.rows; r++) {
        int64_t low, high;
        if (!block_span(x, r, &low, &high))
            continue;
        if (anchors_only && high > x->begin + 1)
            high = x->begin + 1;
        for (int64_t p = low; p < high; p++)
            if (x->open[r * x->width + p - x->begin])
                x->slots[x->count++] =
                    (bd_open_slot){(int32_t)r, x->order.slot[r * x->order.length + p], (int32_t)p};
    }
}

typedef struct {
    run *x;
    int64_t first;
    const float *logits;
} proposal_job;

static void propose_one(void *context, int64_t task)
{
    const proposal_job *job = context;
    run *x = job->x;
    const bd_rollout_options *o = x->options;
    int64_t vocabulary = x->scorer->vocabulary;
    x->proposed[job->first + task] =
        bd_propose_greedy(job->logits + task * vocabulary, vocabulary, o->canvas.mask_id,
                          o->temperature, o->commit.strategy == BD_COMMIT_ENTROPY);
}

static void propose_sampled(run *x, int64_t slot, const float *logits)
{
    const bd_rollout_options *o = x->options;
    const bd_open_slot *s = &x->slots[slot];
    bd_sampling sampling = sampling_of(o);
    int64_t index = (int64_t)x->step[s->row] * x->order.length + s->position;
    float u = bd_random_uniform(o->row_keys[s->row], BD_STREAM_ROLLOUT, (uint32_t)index);
    x->proposed[slot] =
        bd_propose_sampled(logits, x->scorer->vocabulary, o->canvas.mask_id, &sampling, u,
                           o->commit.strategy == BD_COMMIT_ENTROPY, x->arena);
}

static bool propose_all(run *x)
{
    static bd_profile_site site = {.name = "proposals", .kind = BD_PROFILE_MEMORY};
    const bd_scorer *scorer = x->scorer;
    if (scorer->forward &&
        !scorer->forward(scorer->self, x->result->tokens, x->slots, x->count, x->err))
        return false;
    int64_t chunk = LOGITS_AT_ONCE / scorer->vocabulary;
    chunk = chunk < 1 ? 1 : chunk < x->count ? chunk : x->count;
    size_t mark = bd_arena_mark(x->arena);
    float *logits = bd_arena_floats(x->arena, chunk * scorer->vocabulary);
    for (int64_t first = 0; first < x->count; first += chunk) {
        int64_t count = x->count - first < chunk ? x->count - first : chunk;
        scorer->logits(scorer->self, x->slots, first, count, logits);
        proposal_job job = {x, first, logits};
        bd_profile_begin(&site);
        if (!x->options->row_keys)
            bd_parallel(count, propose_one, &job);
        for (int64_t n = 0; x->options->row_keys && n < count; n++)
            propose_sampled(x, first + n, logits + n * scorer->vocabulary);
        bd_profile_end(&site, 0, 4 * (double)(count * scorer->vocabulary));
    }
    bd_arena_release(x->arena, mark);
    x->statistics->transitions++;
    return true;
}

static bool propose(run *x)
{
    static bd_profile_site site = {.name = "denoising pass", .kind = BD_PROFILE_PHASE};
    bd_profile_begin(&site);
    bool ok = propose_all(x);
    bd_profile_end(&site, 0, 0);
    return ok;
}

static void commit(run *x, int64_t slot)
{
    const bd_open_slot *s = &x->slots[slot];
    const bd_proposed_token *proposed = &x->proposed[slot];
    int64_t cell = s->row * x->order.length + s->slot;
    x->result->tokens[cell] = proposed->token;
    if (x->result->steps)
        x->result->steps[cell] = x->step[s->row];
    if (x->result->logps)
        x->result->logps[cell] = proposed->log_probability;
    x->open[s->row * x->width + s->position - x->begin] = 0;
    x->statistics->commits++;
    if (isfinite(proposed->confidence))
        x->statistics->confidence_sum += (double)proposed->confidence;
}

/* Commit what `pick` says; the rows it touches go on by one step. */
static void commit_picks(run *x)
{
    for (int64_t n = 0; n < x->count; n++) {
        if (x->pick[n])
            commit(x, n);
        bool last_of_row = n + 1 == x->count || x->slots[n + 1].row != x->slots[n].row;
        if (!last_of_row)
            continue;
        bool any = false;
        for (int64_t k = n; k >= 0 && x->slots[k].row == x->slots[n].row; k--)
            any |= x->pick[k] != 0;
        x->step[x->slots[n].row] += any;
    }
}

static void show_transition(run *x, bool seed)
{
    if (!traced(x))
        return;
    int64_t cells = cells_of(x);
    for (int64_t i = 0; i < cells; i++) {
        x->open_marks[i] = x->picks[i] = 0;
        x->token[i] = -1;
        x->token_confidence[i] = 0;
    }
    for (int64_t n = 0; n < x->count; n++) {
        int64_t cell = x->slots[n].row * x->order.length + x->slots[n].slot;
        x->open_marks[cell] = 1;
        x->picks[cell] = x->pick[n] != 0;
        x->token[cell] = x->proposed[n].token;
        x->token_confidence[cell] = x->proposed[n].confidence;
    }
    bd_transition transition = {seed,          x->block, x->before, x->result->tokens,
                                x->open_marks, x->picks, x->token,  x->token_confidence};
    x->observer->transition(x->observer->self, &transition);
}

/* --- the passes of one block ----------------------------------------------------------------- */

static void remember_canvas(run *x)
{
    if (traced(x))
        memcpy(x->before, x->result->tokens, (size_t)cells_of(x) * sizeof(int32_t));
}

/* Slots first .. first + count - 1 are one row's: let the strategy pick among them. Returns how
 * many met its test. */
static int64_t pick_row(run *x, int64_t first, int64_t count, int64_t scheduled)
{
    for (int64_t n = first; n < first + count; n++) {
        x->confidence[n] = x->proposed[n].confidence;
        x->entropy[n] = x->proposed[n].entropy;
    }
    return bd_commit_pick(&x->options->commit, count, scheduled, x->confidence + first,
                          x->entropy + first, x->pick + first);
}

/* The first tokens of the block, whatever their confidence. Rows whose prompt ends inside the block
 * have none and wait. */
static bool seed_pass(run *x)
{
    if (x->options->canvas.policy != BD_SEED_AND_MASK)
        return true;
    list_slots(x, true);
    if (x->count == 0)
        return true;
    if (traced(x)) // a trace shows what the other open slots would have become
        list_slots(x, false);
    remember_canvas(x);
    if (!propose(x))
        return false;
    for (int64_t n = 0; n < x->count; n++) {
        bool anchor = x->slots[n].position == x->begin;
        if (anchor && pick_row(x, n, 1, 1) == 0)
            x->statistics->forced++;
        x->pick[n] = anchor;
    }
    commit_picks(x);
    show_transition(x, true);
    return true;
}

static bool denoise_pass(run *x, int64_t pass)
{
    int64_t steps = x->options->commit.steps > 0 ? x->options->commit.steps : x->width;
    remember_canvas(x);
    if (!propose(x))
        return false;
    for (int64_t first = 0, n = 1; n <= x->count; n++) {
        if (n < x->count && x->slots[n].row == x->slots[first].row)
            continue;
        int64_t masked = x->masked[x->slots[first].row], picked = 0;
        int64_t met = pick_row(x, first, n - first, bd_commit_schedule(masked, steps, pass));
        for (int64_t k = first; k < n; k++)
            picked += x->pick[k];
        x->statistics->forced += picked - met;
        first = n;
    }
    commit_picks(x);
    show_transition(x, false);
    return true;
}

static void report_block(run *x, int64_t row, int64_t low, int64_t high)
{
    size_t mark = bd_arena_mark(x->arena);
    int32_t *tokens = bd_arena_ints(x->arena, high - low);
    float *logps = bd_arena_floats(x->arena, high - low);
    for (int64_t p = low; p < high; p++) {
        int64_t cell = cell_of(x, row, p);
        tokens[p - low] = x->result->tokens[cell];
        logps[p - low] = x->result->logps ? x->result->logps[cell] : 0;
    }
    bd_finished_block block = {row, x->block, low, high - low, tokens, logps};
    x->finished[row] = !x->observer->block(x->observer->self, &block);
    bd_arena_release(x->arena, mark);
}

static bool fill_block(run *x)
{
    int64_t low, high, most_passes = x->options->max_steps;
    if (most_passes < 0)
        most_passes = x->options->canvas.block_size;
    bool any = false;
    memset(x->open, 0, (size_t)(x->order.rows * x->width));
    for (int64_t r = 0; r < x->order.rows; r++) {
        if (!block_span(x, r, &low, &high))
            continue;
        any = true;
        memset(x->open + r * x->width + low - x->begin, 1, (size_t)(high - low));
    }
    if (!any)
        return true;
    if (!seed_pass(x))
        return false;
    list_slots(x, false);
    memset(x->masked, 0, (size_t)x->order.rows * sizeof *x->masked);
    for (int64_t n = 0; n < x->count; n++)
        x->masked[x->slots[n].row]++;
    for (int64_t pass = 0; pass < most_passes && x->count > 0; pass++) {
        if (!denoise_pass(x, pass))
            return false;
        list_slots(x, false);
    }
    for (int64_t r = 0; x->observer && x->observer->block && r < x->order.rows; r++)
        if (block_span(x, r, &low, &high))
            report_block(x, r, low, high);
    return true;
}

bool bd_rollout(const bd_scorer *scorer, const bd_rollout_rows *rows,
                const bd_rollout_options *options, const bd_rollout_observer *observer,
                bd_rollout_result *result, bd_rollout_statistics *statistics, bd_arena *arena,
                bd_error *err)
{
    const bd_placement *p = &rows->placement;
    if (p->rows < 1 || p->length < 1 || p->length > INT32_MAX)
        return bd_fail(err, "a rollout of %lld rows of %lld tokens, wanted at least 1 of each",
                       (long long)p->rows, (long long)p->length);
    if (!bd_rollout_check(options, scorer->vocabulary, err))
        return false;
    assert(result->tokens != rows->tokens);
    size_t mark = bd_arena_mark(arena);
    bd_rollout_statistics unused = {0};
    run x = {.scorer = scorer,
             .rows = rows,
             .options = options,
             .observer = observer,
             .result = result,
             .statistics = statistics ? statistics : &unused,
             .arena = arena,
             .err = err};
    bool done = bd_logical_rows_make(p, rows->completion, options->canvas.alignment == BD_SHIFTED,
                                     arena, &x.order, err);
    if (done) {
        start(&x);
        int64_t size = options->canvas.block_size, last = (p->length - 1) / size;
        for (x.block = 0; done && x.block <= last; x.block++) {
            x.begin = x.block * size;
            done = fill_block(&x);
        }
    }
    bd_arena_release(arena, mark);
    return done;
}
