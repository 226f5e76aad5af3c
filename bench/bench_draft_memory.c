/* bench_draft_memory - what a drafter's training step holds in memory at a large vocabulary.
 *
 *     bench_draft_memory [PROJECTOR_TYPE [ANCHORS ...]]     default: dflash 64 128 256 512
 *
 * One row of 2,048 tokens, blocks of 8, a vocabulary of 151,936 with a frozen head of width 256,
 * cross entropy and distillation from the target's hidden states (dflash), forward and backward.
 * The peak is that of the step's arena beyond what the model and the batch take. If logits were
 * held, each further block would cost 8 x 151,936 x 4 bytes and as much again for their gradient.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/progress.h"
#include "base/threads.h"
#include "draft/anchors.h"
#include "draft/step.h"
#include "tensor/isa.h"

enum { LENGTH = 2048, VOCABULARY = 151936, HIDDEN = 256, LAYERS = 8, BLOCK = 8, SIZES = 16 };

typedef struct {
    bd_model *target;
    bd_draft *draft;
    bd_arena *arena; // the batch
    bd_draft_batch batch;
} subject;

static bool make(subject *s, const char *projector_type, bd_error *err)
{
    const bd_model_config target = {.family = BD_FAMILY_QWEN3,
                                    .vocabulary = VOCABULARY,
                                    .hidden = HIDDEN,
                                    .layers = LAYERS,
                                    .query_heads = 4,
                                    .key_heads = 2,
                                    .head_size = 64,
                                    .intermediate = 640,
                                    .max_positions = LENGTH,
                                    .norm_eps = 1e-6,
                                    .initializer_range = 0.02,
                                    .tied_head = true,
                                    .qk_norm = true,
                                    .rope = {.kind = BD_ROPE_DEFAULT, .theta = 10000},
                                    .bos = -1,
                                    .pad = -1};
    s->arena = bd_arena_create(0, err);
    s->target = s->arena ? bd_model_create(&target, 7, BD_BF16, err) : NULL;
    if (!s->target)
        return false;
    bd_draft_config config = bd_draft_config_default();
    config.variant = bd_draft_variant_find(projector_type, err);
    if (!config.variant)
        return false;
    config.stack.layers = 2;
    config.stack.query_heads = 4;
    config.stack.key_heads = 2;
    config.stack.head_size = 64;
    config.stack.intermediate = 640;
    config.block_size = BLOCK;
    config.mask_id = VOCABULARY - 1;
    // What the heads of the other variants need; a variant reads its own.
    config.markov.rank = 64;
    config.domino.state = config.domino.width = 64;
    config.convolution = (bd_convolution_config){.kernel_size = 2, .group_size = 64};
    config.selector = (bd_selector_config){.rank = 64, .top_k = 8};
    config.lilicorr = (bd_lilicorr_config){.top_k = 8,
                                           .layers = 1,
                                           .heads = 4,
                                           .factor = 32,
                                           .mlp_ratio = 2,
                                           .vector_eps = 1e-3,
                                           .logit_scale = 1};
    if (!bd_draft_config_complete(&config, &s->target->config, err))
        return false;
    s->draft = bd_draft_create(&config, s->target, 1, BD_BF16, err);
    return s->draft && bd_draft_train(s->draft, err);
}

static bool fill(subject *s, bd_error *err)
{
    int32_t *tokens = bd_arena_ints(s->arena, LENGTH);
    float *mask = bd_arena_floats(s->arena, LENGTH);
    for (int i = 0; i < LENGTH; i++) {
        tokens[i] = (7919 * i + 13) % (VOCABULARY - 1);
        mask[i] = 1;
    }
    float *features = bd_arena_floats(s->arena, LENGTH * bd_draft_feature_width(s->draft));
    float *hidden = bd_arena_floats(s->arena, (int64_t)LENGTH * HIDDEN);
    bd_arena *scratch = bd_arena_create(0, err);
    if (!scratch)
        return false;
    bd_draft_observe(s->draft, tokens, 1, LENGTH, features, hidden, scratch);
    bd_arena_destroy(scratch);
    s->batch = (bd_draft_batch){.rows = 1,
                                .length = LENGTH,
                                .tokens = tokens,
                                .loss_mask = mask,
                                .features = features,
                                .teacher_kind = BD_TEACHER_HIDDEN,
                                .teacher = hidden};
    return true;
}

/* A step on an arena of its own, so that its peak is the step's. */
static bool step(subject *s, int64_t blocks, double *peak, double *seconds, bd_error *err)
{
    bd_arena *arena = bd_arena_create(0, err);
    if (!arena)
        return false;
    const bd_anchor_sampling sampling = {.rows = 1,
                                         .length = LENGTH,
                                         .block_size = BLOCK,
                                         .most = blocks,
                                         .loss_mask = s->batch.loss_mask,
                                         .fixed_width = true};
    bd_draft_objective objective = bd_draft_objective_default();
    objective.lattice_ce = 1;
    bd_draft_loss loss;
    bool ok = true;
    for (int round = 0; ok && round < 2; round++) { // the first one touches the pages
        bd_arena_release(arena, 0);
        bd_anchors anchors = bd_anchors_draw(&sampling, 1, 0, 0, 0, arena);
        s->batch.anchors = &anchors;
        bd_tape tape = bd_tape_begin(arena, BD_BF16, true);
        double began = bd_seconds();
        ok = bd_draft_step_run(s->draft, &tape, &s->batch, &objective, BD_DRAFT_SUM, NULL, &loss,
                               err);
        *seconds = bd_seconds() - began;
    }
    *peak = (double)bd_arena_peak(arena);
    bd_arena_destroy(arena);
    return ok;
}

static bool measure(subject *s, const int64_t *blocks, int count, bd_error *err)
{
    printf("anchors   slots     peak MB   MB per further block   with logits held   seconds\n");
    double first = 0;
    for (int i = 0; i < count; i++) {
        double peak, seconds;
        if (!step(s, blocks[i], &peak, &seconds, err))
            return false;
        if (i == 0)
            first = peak;
        double logits = 2.0 * (double)(blocks[i] * BLOCK) * VOCABULARY * sizeof(float);
        printf("%7lld %7lld %11.1f", (long long)blocks[i], (long long)blocks[i] * BLOCK,
               peak / 1e6);
        if (i > 0)
            printf(" %22.3f", (peak - first) / 1e6 / (double)(blocks[i] - blocks[0]));
        else
            printf(" %22s", "");
        printf(" %15.0f MB %9.3f\n", (peak + logits) / 1e6, seconds);
    }
    printf("a block's logits and their gradient: %.3f MB\n", 2.0 * BLOCK * VOCABULARY * 4 / 1e6);
    return true;
}

int main(int argc, char **argv)
{
    bd_error err = {0};
    int64_t blocks[SIZES] = {64, 128, 256, 512};
    int count = argc > 2 ? 0 : 4;
    for (int i = 2; i < argc && count < SIZES; i++)
        blocks[count++] = atoll(argv[i]);
    bd_threads_set(0);
    subject s = {0};
    bool ok = bd_isa_init(&err) && make(&s, argc > 1 ? argv[1] : "dflash", &err) &&
              fill(&s, &err) && measure(&s, blocks, count, &err);
    if (!ok)
        fprintf(stderr, "bench_draft_memory: %s\n", err.message);
    bd_draft_close(s.draft);
    bd_model_close(s.target);
    bd_arena_destroy(s.arena);
    return !ok;
}
