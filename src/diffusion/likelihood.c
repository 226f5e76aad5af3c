#include "diffusion/likelihood.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/random.h"

typedef struct {
    const bd_canvas *canvas;
    const bd_likelihood_rows *rows;
    /* [rows, length] each. */
    int32_t *rank;   /* 0 for the first of its block's order, ...; -1: not masked in any pass */
    int32_t *count;  /* n of its block */
    bool *anchor;    /* predicted on its own */
    int32_t *inputs; /* of one pass */
    float *weights;
    int64_t tokens, most; /* scored tokens; the largest n */
} scoring;

static int32_t position_of(const bd_placement *p, int64_t cell)
{
    return p->positions ? p->positions[cell] : (int32_t)(cell % p->length);
}

static int32_t segment_of(const bd_placement *p, int64_t cell)
{
    return p->segments ? p->segments[cell] : 1;
}

/* What becomes of each token: masked in some passes (rank 0 for now), an anchor, or context. */
static void choose_tokens(scoring *s)
{
    const bd_placement *p = &s->rows->placement;
    s->tokens = 0;
    for (int64_t at = 0; at < p->rows * p->length; at++) {
        int32_t position = position_of(p, at);
        bool scored = segment_of(p, at) != 0 && (!s->rows->completion || s->rows->completion[at]);
        bool is_anchor = bd_canvas_is_anchor(s->canvas, position);
        if (s->canvas->alignment == BD_SHIFTED && position == 0)
            scored = false;
        s->anchor[at] = scored && is_anchor;
        s->rank[at] = scored && !is_anchor ? 0 : -1;
        s->count[at] = 0;
        s->tokens += scored;
    }
}

/* Draw an order for the maskable tokens of slots [begin, end), which are one block. */
static void order_block(scoring *s, uint64_t key, int64_t row, int64_t begin, int64_t end)
{
    int32_t *rank = s->rank + row * s->rows->placement.length;
    int32_t *count = s->count + row * s->rows->placement.length;
    int32_t n = 0;
    for (int64_t i = begin; i < end; i++) {
        if (rank[i] < 0)
            continue;
        n++;
        uint32_t draw = bd_random_bits(key, BD_STREAM_SELECTION, (uint32_t)i);
        rank[i] = 0;
        for (int64_t k = begin; k < end; k++) {
            uint32_t other = bd_random_bits(key, BD_STREAM_SELECTION, (uint32_t)k);
            rank[i] += rank[k] >= 0 && (other < draw || (other == draw && k < i));
        }
    }
    for (int64_t i = begin; i < end; i++)
        count[i] = n;
    if (n > s->most)
        s->most = n;
}

static void draw_orders(scoring *s, uint64_t seed, int64_t round)
{
    const bd_placement *p = &s->rows->placement;
    s->most = 0;
    for (int64_t r = 0; r < p->rows; r++) {
        uint64_t key = bd_random_key(seed, (uint64_t)round, 0, (uint64_t)r);
        for (int64_t begin = 0, end; begin < p->length; begin = end) {
            int64_t at = r * p->length, size = s->canvas->block_size;
            int64_t block = position_of(p, at + begin) / size;
            end = begin + 1;
            while (end < p->length && segment_of(p, at + end) == segment_of(p, at + begin) &&
                   position_of(p, at + end) / size == block)
                end++;
            order_block(s, key, r, begin, end);
        }
    }
}

/* Pass k masks the first k tokens of every order; anchors are scored in the first pass. */
static void prepare_pass(scoring *s, int64_t k)
{
    const bd_placement *p = &s->rows->placement;
    for (int64_t at = 0; at < p->rows * p->length; at++) {
        bool masked = s->rank[at] >= 0 && k <= s->count[at] && s->rank[at] < k;
        s->inputs[at] = masked ? s->canvas->mask_id : s->rows->tokens[at];
        s->weights[at] = masked ? 1 / (float)k : s->anchor[at] && k == 1 ? 1 : 0;
    }
}

/* One forward pass over s->inputs; the loss is weighted by s->weights. */
static bool run_pass(const scoring *s, bd_model *model, bd_objective_result *got, bd_arena *arena,
                     bd_error *err)
{
    const bd_objective objective = {.alignment = s->canvas->alignment,
                                    .block_size = s->canvas->block_size,
                                    .layout = BD_TRAIN_DOUBLED};
    const bd_objective_rows rows = {s->rows->placement, s->inputs, s->rows->tokens, s->weights};
    size_t mark = bd_arena_mark(arena);
    bd_tape tape = bd_tape_begin(arena, model->compute, false);
    bool done = bd_objective_loss(&objective, &rows, model, &tape, NULL, got, err);
    bd_arena_release(arena, mark);
    return done;
}

static bool score_round(scoring *s, bd_model *model, int64_t *passes, double *nats, bd_arena *arena,
                        bd_error *err)
{
    *nats = 0;
    int64_t most = s->most > 0 ? s->most : 1; // anchors alone still take a pass
    for (int64_t k = 1; k <= most; k++) {
        bd_objective_result got;
        prepare_pass(s, k);
        if (!run_pass(s, model, &got, arena, err))
            return false;
        *nats += got.sum;
        (*passes)++;
    }
    return true;
}

static bool begin_scoring(scoring *s, const bd_model *model, const bd_canvas *canvas,
                          const bd_likelihood_rows *rows, bd_arena *arena, bd_error *err)
{
    const bd_placement *p = &rows->placement;
    int64_t cells = p->rows * p->length;
    if (p->rows < 1 || p->length < 1)
        return bd_fail(err, "a batch of %lld rows of %lld tokens, wanted at least 1 of each",
                       (long long)p->rows, (long long)p->length);
    if (!bd_canvas_check(canvas, model->config.vocabulary, err))
        return false;
    *s = (scoring){.canvas = canvas,
                   .rows = rows,
                   .rank = bd_arena_ints(arena, cells),
                   .count = bd_arena_ints(arena, cells),
                   .anchor = bd_arena_alloc(arena, (size_t)cells * sizeof(bool)),
                   .inputs = bd_arena_ints(arena, cells),
                   .weights = bd_arena_floats(arena, cells)};
    return true;
}

bool bd_likelihood_bound(bd_model *model, const bd_canvas *canvas, const bd_likelihood_rows *rows,
                         int64_t rounds, uint64_t seed, bd_likelihood *result, bd_arena *arena,
                         bd_error *err)
{
    if (rounds < 1)
        return bd_fail(err, "rounds is %lld, wanted at least 1", (long long)rounds);
    size_t mark = bd_arena_mark(arena);
    scoring s;
    if (!begin_scoring(&s, model, canvas, rows, arena, err))
        return false;
    *result = (bd_likelihood){0};
    double mean = 0, squares = 0; // squares: of the distances to the mean
    bool done = true;
    for (int64_t round = 0; done && round < rounds; round++) {
        double nats;
        choose_tokens(&s);
        draw_orders(&s, seed, round);
        done = score_round(&s, model, &result->passes, &nats, arena, err);
        double step = nats - mean;
        mean += step / (double)(round + 1);
        squares += step * (nats - mean);
    }
    bd_arena_release(arena, mark);
    if (!done)
        return false;
    double n = (double)rounds;
    result->nats = mean;
    result->standard_error = rounds > 1 ? sqrt(squares / (n - 1) / n) : 0;
    result->tokens = s.tokens;
    return true;
}

// --- every set ---------------------------------------------------------------------------------

static double choices(int64_t n, int64_t k)
{
    double count = 1;
    for (int64_t i = 1; i <= k; i++)
        count = count * (double)(n - k + i) / (double)i;
    return count;
}

/* Masks the tokens whose rank is a bit of `set`, in the blocks that have a token for its highest
 * bit: each of a block's sets comes up once. A set of k among n stands for all of its size, so it
 * weighs 1 / k divided by their number. */
static void prepare_set(scoring *s, unsigned set)
{
    const bd_placement *p = &s->rows->placement;
    int64_t k = __builtin_popcount(set);
    for (int64_t at = 0; at < p->rows * p->length; at++) {
        bool reached = s->rank[at] >= 0 && set < 1u << s->count[at];
        bool masked = reached && (set >> s->rank[at] & 1) != 0;
        s->inputs[at] = masked ? s->canvas->mask_id : s->rows->tokens[at];
        s->weights[at] = masked ? (float)(1 / (double)k / choices(s->count[at], k))
                         : s->anchor[at] && set == 1 ? 1
                                                     : 0;
    }
}

bool bd_likelihood_exact(bd_model *model, const bd_canvas *canvas, const bd_likelihood_rows *rows,
                         bd_likelihood *result, bd_arena *arena, bd_error *err)
{
    size_t mark = bd_arena_mark(arena);
    scoring s;
    if (!begin_scoring(&s, model, canvas, rows, arena, err))
        return false;
    *result = (bd_likelihood){0};
    choose_tokens(&s);
    draw_orders(&s, 0, 0); // any order serves to number the tokens of a block
    bool done = s.most <= BD_LIKELIHOOD_EXACT ||
                bd_fail(err, "a block with %lld tokens to mask, at most %d for the exact bound",
                        (long long)s.most, BD_LIKELIHOOD_EXACT);
    unsigned sets = done && s.most > 0 ? 1u << s.most : 2; // anchors alone still take a pass
    for (unsigned set = 1; done && set < sets; set++) {
        bd_objective_result got = {0};
        prepare_set(&s, set);
        done = run_pass(&s, model, &got, arena, err);
        result->nats += got.sum;
        result->passes++;
    }
    result->tokens = s.tokens;
    bd_arena_release(arena, mark);
    return done;
}

// --- one noise level ----------------------------------------------------------------------------

bool bd_denoising_loss(bd_model *model, const bd_canvas *canvas, const bd_likelihood_rows *rows,
                       double level, uint64_t seed, bd_denoising *result, bd_arena *arena,
                       bd_error *err)
{
    if (!(level > 0 && level <= 1))
        return bd_fail(err, "noise level is %g, wanted above 0 and at most 1", level);
    size_t mark = bd_arena_mark(arena);
    scoring s;
    if (!begin_scoring(&s, model, canvas, rows, arena, err))
        return false;
    choose_tokens(&s);
    draw_orders(&s, seed, 0);
    const bd_placement *p = &rows->placement;
    *result = (bd_denoising){0};
    for (int64_t at = 0; at < p->rows * p->length; at++) {
        int64_t k = lround(level * (double)s.count[at]);
        bool masked = s.rank[at] >= 0 && s.rank[at] < (k > 0 ? k : 1);
        s.inputs[at] = masked ? canvas->mask_id : rows->tokens[at];
        s.weights[at] = masked ? 1 : 0;
        result->tokens += masked;
    }
    bd_objective_result got = {0};
    bool done = run_pass(&s, model, &got, arena, err);
    result->nats = got.sum;
    result->correct = got.correct;
    bd_arena_release(arena, mark);
    return done;
}
