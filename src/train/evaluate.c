#include "train/evaluate.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/profile.h"
#include "base/random.h"

double bd_interval_factor(int64_t degrees_of_freedom)
{
    static const double few[] = {12.706, 4.303, 3.182, 2.776, 2.571,
                                 2.447,  2.365, 2.306, 2.262, 2.228};
    enum { FEW = sizeof few / sizeof *few };
    assert(degrees_of_freedom > 0);
    if (degrees_of_freedom <= FEW)
        return few[degrees_of_freedom - 1];
    double n = (double)degrees_of_freedom; // the t quantile's expansion in 1 / n
    return 1.95996 + 2.3723 / n + 2.8225 / (n * n);
}

// --- windows ------------------------------------------------------------------------------------

/* One row: tokens from `begin` on, `length` of them, of which those from `scored` on count. */
typedef struct {
    int64_t number, begin, length, scored;
} window;

static bool check(const bd_evaluation *o, int64_t count, int64_t block_size, const bd_model *model,
                  bd_error *err)
{
    if (o->window % block_size != 0 || o->stride % block_size != 0)
        return bd_fail(err, "window %lld, stride %lld: multiples of the block size %lld wanted",
                       (long long)o->window, (long long)o->stride, (long long)block_size);
    if (o->stride < 1 || o->stride >= o->window)
        return bd_fail(err, "stride is %lld, wanted at least 1 and less than the window of %lld",
                       (long long)o->stride, (long long)o->window);
    if (model->config.max_positions > 0 && o->window > model->config.max_positions)
        return bd_fail(err, "window is %lld, wanted at most the model's %lld positions",
                       (long long)o->window, (long long)model->config.max_positions);
    if (count < 2)
        return bd_fail(err, "a text of %lld tokens, wanted at least 2", (long long)count);
    return true;
}

static bool next_window(const bd_evaluation *o, int64_t count, window *w)
{
    int64_t number = w->length ? w->number + 1 : 0;
    int64_t done = w->length ? w->begin + w->length : 0; // scored by the windows before
    if (done >= count)
        return false;
    *w = (window){.number = number, .begin = number * o->stride};
    w->length = count - w->begin < o->window ? count - w->begin : o->window;
    w->scored = done - w->begin;
    return true;
}

// --- causal models ------------------------------------------------------------------------------

static bd_profile_site window_site = {.name = "window of text", .kind = BD_PROFILE_PHASE};

static bool causal_window(bd_model *model, const int32_t *tokens, const window *w,
                          bd_causal_score *score, bd_arena *arena, bd_error *err)
{
    size_t mark = bd_arena_mark(arena);
    float *weights = bd_arena_zeros(arena, w->length);
    for (int64_t i = w->scored > 0 ? w->scored : 1; i < w->length; i++)
        weights[i] = 1;
    const bd_objective objective = {.alignment = BD_SHIFTED};
    const bd_objective_rows rows = {
        {1, w->length, NULL, NULL}, tokens + w->begin, tokens + w->begin, weights};
    bd_tape tape = bd_tape_begin(arena, model->compute, false);
    bd_objective_result got = {0};
    bd_profile_begin(&window_site);
    bool done = bd_objective_loss(&objective, &rows, model, &tape, NULL, &got, err);
    bd_profile_end(&window_site, 0, 0);
    bd_arena_release(arena, mark);
    score->nats += got.sum;
    score->correct += got.correct;
    score->tokens += (int64_t)got.weight;
    return done;
}

bool bd_evaluate_causal(bd_model *model, const int32_t *tokens, int64_t count,
                        const bd_evaluation *options, bd_causal_score *score, bd_arena *arena,
                        bd_error *err)
{
    *score = (bd_causal_score){.first = 1};
    if (!check(options, count, 1, model, err))
        return false;
    for (window w = {0}; next_window(options, count, &w);) {
        if (!causal_window(model, tokens, &w, score, arena, err))
            return false;
        bd_progress_update(options->progress, w.begin + w.length, "%.3f nats a token",
                           score->nats / fmax((double)score->tokens, 1));
    }
    return true;
}

// --- block diffusion ----------------------------------------------------------------------------

static bool block_window(bd_model *model, const bd_canvas *canvas, const int32_t *tokens,
                         const window *w, const bd_evaluation *o, bd_block_score *score,
                         double *variance, bd_arena *arena, bd_error *err)
{
    size_t mark = bd_arena_mark(arena);
    int32_t *completion = bd_arena_ints(arena, w->length);
    for (int64_t i = 0; i < w->length; i++)
        completion[i] = i >= w->scored;
    const bd_likelihood_rows rows = {{1, w->length, NULL, NULL}, tokens + w->begin, completion};
    uint64_t seed = bd_random_key(o->seed, 0, (uint64_t)w->number, 0);
    bd_likelihood bound;
    bool done = o->rounds > 0
                    ? bd_likelihood_bound(model, canvas, &rows, o->rounds, seed, &bound, arena, err)
                    : bd_likelihood_exact(model, canvas, &rows, &bound, arena, err);
    for (int i = 0; done && i < o->level_count; i++) {
        bd_denoising one;
        done = bd_denoising_loss(model, canvas, &rows, o->levels[i], seed, &one, arena, err);
        if (!done)
            break;
        score->level[i].nats += one.nats;
        score->level[i].correct += one.correct;
        score->level[i].tokens += one.tokens;
        score->passes++;
    }
    bd_arena_release(arena, mark);
    if (!done)
        return false;
    score->nats += bound.nats;
    score->tokens += bound.tokens;
    score->passes += bound.passes;
    *variance += bound.standard_error * bound.standard_error;
    return true;
}

bool bd_evaluate_blocks(bd_model *model, const bd_canvas *canvas, const int32_t *tokens,
                        int64_t count, const bd_evaluation *options, bd_block_score *score,
                        bd_arena *arena, bd_error *err)
{
    *score = (bd_block_score){.first = canvas->alignment == BD_SHIFTED};
    if (!check(options, count, canvas->block_size, model, err))
        return false;
    if (options->rounds == 1 || options->rounds < 0)
        return bd_fail(err, "rounds is %lld, wanted 0 or at least 2", (long long)options->rounds);
    double variance = 0;
    int64_t windows = 0;
    for (window w = {0}; next_window(options, count, &w); windows++) {
        bd_profile_begin(&window_site);
        bool done = block_window(model, canvas, tokens, &w, options, score, &variance, arena, err);
        bd_profile_end(&window_site, 0, 0);
        if (!done)
            return false;
        bd_progress_update(options->progress, w.begin + w.length, "at most %.3f nats a token",
                           score->nats / fmax((double)score->tokens, 1));
    }
    if (options->rounds > 0)
        score->margin = sqrt(variance) * bd_interval_factor(windows * (options->rounds - 1));
    return true;
}
