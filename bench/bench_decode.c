/* bench_decode - one pass of a target over a few new tokens: what verifying a block costs.
 *
 *     bench_decode [--rounds N] [SHAPE ...]       shapes: demo, 0.6b; default: both
 *
 * A random model reads 1, 2, 4, 8 and 16 new tokens behind a KV cache of 256, final norm and all
 * logits included. The sizes take turns, so that a busy core slows all alike; medians over the
 * rounds. Beside the time stands the ratio to one token, and how fast the packed weights went by as
 * a share of a plain read of as many bytes on the same threads, taken in the same round.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "base/threads.h"
#include "bench.h"
#include "model/model.h"
#include "tensor/burst.h"
#include "tensor/isa.h"

enum { CONTEXT = 256, SIZES = 5, MOST_ROUNDS = 1000, LONGEST = 16 };

typedef struct {
    const char *name;
    int64_t hidden, layers, query_heads, key_heads, head_size, intermediate, vocabulary;
} shape;

static const shape shapes[] = {
    {"demo", 256, 8, 4, 2, 64, 640, 4096},
    {"0.6b", 1024, 28, 16, 8, 128, 3072, 151936},
};

static const int64_t sizes[SIZES] = {1, 2, 4, 8, 16};

static bd_model *random_model(const shape *s, bd_dtype compute, bd_error *err)
{
    const bd_model_config config = {.family = BD_FAMILY_QWEN3,
                                    .vocabulary = s->vocabulary,
                                    .hidden = s->hidden,
                                    .layers = s->layers,
                                    .query_heads = s->query_heads,
                                    .key_heads = s->key_heads,
                                    .head_size = s->head_size,
                                    .intermediate = s->intermediate,
                                    .max_positions = 1024,
                                    .norm_eps = 1e-6,
                                    .initializer_range = 0.02,
                                    .tied_head = true,
                                    .qk_norm = true,
                                    .rope = {.kind = BD_ROPE_DEFAULT, .theta = 10000},
                                    .bos = -1,
                                    .pad = -1};
    return bd_model_create(&config, 7, compute, err);
}

// --- passes

typedef struct {
    bd_model *model;
    bd_cache *cache;
    bd_arena *arena;
    float *logits;
    int32_t tokens[CONTEXT];
    void *plain;  // as many bytes as the weights
    double bytes; // of the weights a pass reads
} subject;

static double pass(subject *s, int64_t rows)
{
    size_t mark = bd_arena_mark(s->arena);
    double began = bd_seconds();
    bd_tape tape = bd_tape_begin(s->arena, s->model->compute, false);
    const bd_value *h = bd_model_forward(
        s->model, &tape,
        &(bd_forward){.tokens = s->tokens, .rows = 1, .length = rows, .cache = s->cache});
    if (rows <= LONGEST)
        bd_model_logits(s->model, h->data, rows, s->logits, s->arena);
    double seconds = bd_seconds() - began;
    bd_arena_release(s->arena, mark);
    if (rows <= LONGEST)
        bd_cache_truncate(s->cache, CONTEXT);
    return seconds;
}

static void measure(subject *s, const char *name, int rounds)
{
    static double seconds[SIZES][MOST_ROUNDS], to_one[SIZES][MOST_ROUNDS], share[MOST_ROUNDS];
    double reads[MOST_ROUNDS];
    for (int round = -1; round < rounds; round++) { // the first one warms up
        int at = round < 0 ? 0 : round;
        for (int i = 0; i < SIZES; i++) {
            seconds[i][at] = pass(s, sizes[i]);
            to_one[i][at] = seconds[i][at] / seconds[0][at];
        }
        reads[at] = s->bytes / bd_read_rate(s->plain, (size_t)s->bytes);
        share[at] = reads[at] / seconds[0][at];
    }
    double read = bench_ratio_of(reads, rounds).median;
    printf("  plain read %.1f GB/s\n", s->bytes / read / 1e9);
    for (int i = 0; i < SIZES; i++) {
        double t = bench_ratio_of(seconds[i], rounds).median;
        bench_ratio times = bench_ratio_of(to_one[i], rounds);
        printf("  %2lld tokens %10.1f us  %5.2f x one token  %5.1f GB/s of weights, %3.0f%% of the "
               "read\n",
               (long long)sizes[i], t * 1e6, times.median, s->bytes / t / 1e9, 100 * read / t);
        char label[96];
        snprintf(label, sizeof label, "%s %s, %lld tokens, times one", name,
                 bd_dtype_name(s->model->compute), (long long)sizes[i]);
        if (i > 0)
            bench_keep("decode", label, times);
    }
    char label[96];
    snprintf(label, sizeof label, "%s %s, one token, of a plain read", name,
             bd_dtype_name(s->model->compute));
    bench_keep("decode", label, bench_ratio_of(share, rounds));
}

/* Bytes of all matrices of a pass; the embedding is the head. */
static double weight_bytes(const bd_model *model)
{
    double bytes = 0;
    for (int64_t i = 0; i < model->parameters.count; i++)
        if (model->parameters.items[i]->rank == 2)
            bytes += (double)bd_packed_bytes(model->compute, model->parameters.items[i]->shape[0],
                                             model->parameters.items[i]->shape[1]);
    return bytes;
}

static bool bench(const shape *of, bd_dtype compute, int rounds, bd_error *err)
{
    subject s = {.arena = bd_arena_create(0, err)};
    s.model = s.arena ? random_model(of, compute, err) : NULL;
    s.cache = s.model ? bd_cache_create(s.model, CONTEXT + LONGEST, err) : NULL;
    if (s.cache) {
        for (int i = 0; i < CONTEXT; i++)
            s.tokens[i] = (int32_t)((37 * i + 5) % of->vocabulary);
        s.logits = bd_arena_floats(s.arena, LONGEST * of->vocabulary);
        s.bytes = weight_bytes(s.model);
        s.plain = bd_arena_alloc(s.arena, (size_t)s.bytes);
        memset(s.plain, 1, (size_t)s.bytes);
        pass(&s, CONTEXT);
        printf("%s, %s: %.1f MB of weights, %d thread%s\n", of->name, bd_dtype_name(compute),
               s.bytes / 1e6, bd_threads_count(), bd_threads_count() > 1 ? "s" : "");
        measure(&s, of->name, rounds);
    }
    bool ok = s.cache != NULL;
    bd_cache_free(s.cache);
    bd_model_close(s.model);
    bd_arena_destroy(s.arena);
    return ok;
}

static bool wanted(const char *name, int argc, char **argv)
{
    bool any = false;
    for (int i = 1; i < argc; i++) {
        if (!strcmp(argv[i], "--rounds")) {
            i++;
            continue;
        }
        any = true;
        if (!strcmp(argv[i], name))
            return true;
    }
    return !any;
}

int main(int argc, char **argv)
{
    bd_error err = {0};
    int rounds = 31;
    for (int i = 1; i + 1 < argc; i++)
        if (!strcmp(argv[i], "--rounds"))
            rounds = atoi(argv[i + 1]);
    rounds = rounds < 1 ? 1 : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds;
    bool ok = bd_isa_init(&err);
    bd_threads_set(0);
    for (size_t i = 0; ok && i < sizeof shapes / sizeof *shapes; i++)
        if (wanted(shapes[i].name, argc, argv))
            ok = bench(&shapes[i], BD_F32, rounds, &err) &&
                 bench(&shapes[i], BD_BF16, rounds, &err) &&
                 bench(&shapes[i], BD_Q8_0, rounds, &err);
    if (!ok)
        fprintf(stderr, "bench_decode: %s\n", err.message);
    return !ok;
}
