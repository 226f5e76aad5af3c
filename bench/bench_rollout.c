/* bench_rollout - block rollout with exact KV caches against running the whole row every time.
 *
 *     bench_rollout [TOKENS...]                 default: 512 1024; OMP_NUM_THREADS sets the threads
 *
 * A random model of the demo's size fills rows of TOKENS tokens behind a prompt of one block, every
 * block in the same number of steps, as a trained model would at a threshold. Both ways commit the
 * same tokens. They take turns, and the ratio is of the best times.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "base/threads.h"
#include "bench.h"
#include "diffusion/generate.h"
#include "tensor/isa.h"

enum { BLOCK = 16, VOCABULARY = 4096, ROUNDS = 2, STEPS = 4, MOST_TOKENS = 4096 };

static bd_model *random_model(bd_error *err)
{
    bd_model_config config = {.family = BD_FAMILY_QWEN3,
                              .vocabulary = VOCABULARY,
                              .hidden = 256,
                              .layers = 10,
                              .query_heads = 4,
                              .key_heads = 2,
                              .head_size = 64,
                              .intermediate = 640,
                              .max_positions = MOST_TOKENS,
                              .norm_eps = 1e-6,
                              .initializer_range = 0.02,
                              .tied_head = true,
                              .qk_norm = true,
                              .rope = {.kind = BD_ROPE_DEFAULT, .theta = 10000},
                              .bos = -1,
                              .pad = -1};
    config.diffusion.block_size = BLOCK;
    config.diffusion.mask_id = VOCABULARY - 1;
    return bd_model_create(&config, 7, BD_BF16, err);
}

typedef struct {
    double seconds[ROUNDS];
    int32_t tokens[MOST_TOKENS];
    bd_block_generated result;
} way;

static double best(const way *w)
{
    double least = w->seconds[0];
    for (int i = 1; i < ROUNDS; i++)
        least = w->seconds[i] < least ? w->seconds[i] : least;
    return least;
}

static bool run(bd_model *model, int64_t length, bool plain, int round, way *w, bd_arena *arena,
                bd_error *err)
{
    bd_canvas canvas;
    int32_t prompt[BLOCK];
    for (int i = 0; i < BLOCK; i++)
        prompt[i] = 37 * i + 5;
    if (!bd_canvas_from_model(&model->config, &canvas, err))
        return false;
    bd_block_generation options = bd_block_generation_default(canvas, length - BLOCK);
    options.plain = plain;
    options.rollout.commit.strategy = BD_COMMIT_STATIC;
    options.rollout.commit.steps = STEPS;
    double began = bd_seconds();
    bool done =
        bd_block_generate(model, NULL, prompt, BLOCK, &options, w->tokens, &w->result, arena, err);
    w->seconds[round] = bd_seconds() - began;
    return done;
}

static bool compare(bd_model *model, int64_t length, bd_arena *arena, bd_error *err)
{
    static way cached, plain;
    for (int round = 0; round < ROUNDS; round++)
        if (!run(model, length, false, round, &cached, arena, err) ||
            !run(model, length, true, round, &plain, arena, err))
            return false;
    bool same =
        cached.result.count == plain.result.count &&
        !memcmp(cached.tokens, plain.tokens, (size_t)cached.result.count * sizeof *cached.tokens);
    double fast = best(&cached), slow = best(&plain), ratios[ROUNDS];
    for (int round = 0; round < ROUNDS; round++)
        ratios[round] = plain.seconds[round] / cached.seconds[round];
    char name[64];
    snprintf(name, sizeof name, "%lld tokens, cacheless over cached", (long long)length);
    bench_keep("rollout", name, bench_ratio_of(ratios, ROUNDS));
    printf("%6lld tokens: cached %8.3f s (%lld forwards, %lld tokens in them), cacheless %8.3f s "
           "(%lld, %lld): %.1fx, tokens %s\n",
           (long long)length, fast, (long long)cached.result.statistics.row_forwards,
           (long long)cached.result.statistics.forward_tokens, slow,
           (long long)plain.result.statistics.row_forwards,
           (long long)plain.result.statistics.forward_tokens, slow / fast,
           same ? "identical" : "DIFFER");
    return same || bd_fail(err, "cached and cacheless tokens differ");
}

int main(int argc, char **argv)
{
    bd_error err = {0};
    if (!bd_isa_init(&err)) {
        fprintf(stderr, "bench_rollout: %s\n", err.message);
        return 1;
    }
    bd_threads_set(0);
    bd_arena *arena = bd_arena_create(0, &err);
    bd_model *model = arena ? random_model(&err) : NULL;
    bool ok = model != NULL;
    static const int64_t lengths[] = {512, 1024};
    int count = argc > 1 ? argc - 1 : 2;
    if (ok)
        printf("block rollout, %.1f million parameters, blocks of %d in %d steps, "
               "%d threads\n",
               (double)bd_model_parameter_count(model) / 1e6, BLOCK, STEPS, bd_threads_count());
    for (int i = 0; ok && i < count; i++) {
        int64_t length = argc > 1 ? atoll(argv[i + 1]) : lengths[i];
        if (length <= BLOCK || length > MOST_TOKENS)
            ok = bd_fail(&err, "%lld tokens, wanted %d to %d", (long long)length, BLOCK + 1,
                         MOST_TOKENS);
        ok = ok && compare(model, length, arena, &err);
    }
    if (!ok)
        fprintf(stderr, "bench_rollout: %s\n", err.message);
    bd_model_close(model);
    bd_arena_destroy(arena);
    return !ok;
}
