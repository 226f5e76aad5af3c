#include "diffusion/generate.h"

#include <assert.h>
#include <string.h>

#include "base/random.h"

bd_block_generation bd_block_generation_default(bd_canvas canvas, int64_t max_tokens)
{
    return (bd_block_generation){.rollout = bd_rollout_default(canvas), .max_tokens = max_tokens};
}

/* What the observer collects. */
typedef struct {
    const bd_block_generation *options;
    int32_t *out;
    bd_block_generated *result;
} collector;

static bool collect_block(void *self, const bd_finished_block *block)
{
    collector *c = self;
    const bd_block_generation *o = c->options;
    int64_t count = 0;
    while (count < block->count && !c->result->stopped)
        c->result->stopped = bd_stop_contains(o->stop, o->stop_count, block->tokens[count++]);
    memcpy(c->out + c->result->count, block->tokens, (size_t)count * sizeof *c->out);
    c->result->count += count;
    if (o->stream && !o->stream(o->self, block->tokens, count))
        c->result->cancelled = true;
    return !c->result->stopped && !c->result->cancelled;
}

static void pass_transition(void *self, const bd_transition *transition)
{
    const collector *c = self;
    c->options->transition(c->options->self, transition);
}

static bool check(const bd_model *model, int64_t prompt_count, const bd_block_generation *o,
                  bd_error *err)
{
    if (o->max_tokens < 1)
        return bd_fail(err, "max_tokens is %lld, wanted at least 1", (long long)o->max_tokens);
    if (prompt_count < 0 || o->max_tokens > INT32_MAX || prompt_count > INT32_MAX ||
        (model->config.max_positions > 0 &&
         prompt_count + o->max_tokens > model->config.max_positions))
        return bd_fail(err,
                       "a prompt of %lld tokens and %lld new ones, wanted at most the model's %lld "
                       "positions",
                       (long long)prompt_count, (long long)o->max_tokens,
                       (long long)model->config.max_positions);
    return bd_stop_check(o->stop, o->stop_count, model->config.vocabulary,
                         o->rollout.canvas.mask_id, err);
}

bool bd_block_generate(bd_model *model, bd_rollout_caches *caches, const int32_t *prompt,
                       int64_t prompt_count, const bd_block_generation *options, int32_t *out,
                       bd_block_generated *result, bd_arena *arena, bd_error *err)
{
    *result = (bd_block_generated){0};
    if (!check(model, prompt_count, options, err))
        return false;
    int64_t length = prompt_count + options->max_tokens;
    bd_rollout_caches *own = NULL;
    if (!caches && !options->plain) {
        own = bd_rollout_caches_create(model, 1, length, err);
        if (!own)
            return false;
    }
    size_t mark = bd_arena_mark(arena);
    int32_t *tokens = bd_arena_ints(arena, length), *completion = bd_arena_ints(arena, length);
    for (int64_t i = 0; i < length; i++) {
        completion[i] = i >= prompt_count;
        tokens[i] = completion[i] ? 0 : prompt[i];
    }
    uint64_t key = bd_random_key(options->seed, 0, 0, 0);
    bd_rollout_options rollout = options->rollout;
    rollout.row_keys = options->sample ? &key : NULL;
    collector c = {options, out, result};
    bd_rollout_observer observer = {.self = &c,
                                    .transition = options->transition ? pass_transition : NULL,
                                    .block = collect_block};
    bd_rollout_rows rows = {{1, length, NULL, NULL}, tokens, completion};
    bd_rollout_result canvas = {.tokens = bd_arena_ints(arena, length)};
    bool done =
        bd_rollout_model(model,
                         options->plain ? NULL
                         : own          ? own
                                        : caches,
                         &rows, &rollout, &observer, &canvas, &result->statistics, arena, err);
    bd_arena_release(arena, mark);
    bd_rollout_caches_free(own);
    return done;
}
