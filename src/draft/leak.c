#include "draft/leak.h"

#include <stdio.h>
#include <string.h>

#include "draft/step.h"

enum { BLOCKS = 4 };

typedef struct {
    bd_draft *draft;
    bd_arena *arena;
    int64_t length; // of the row: a multiple of the block size
    const int32_t *tokens;
    int32_t anchor[BLOCKS];
    uint8_t keep[BLOCKS];
    bd_anchors anchors;
    bd_leak *leak;
} test;

/* The row with the token at `place` changed. */
static int32_t *changed(const test *t, int64_t place)
{
    int32_t *row = bd_arena_ints(t->arena, t->length);
    int64_t vocabulary = t->draft->target->config.vocabulary;
    memcpy(row, t->tokens, (size_t)t->length * sizeof *row);
    row[place] = (int32_t)((row[place] + 1 + vocabulary / 2) % vocabulary);
    return row;
}

static float *features_of(const test *t, const int32_t *row)
{
    float *features = bd_arena_floats(t->arena, t->length * bd_draft_feature_width(t->draft));
    bd_draft_observe(t->draft, row, 1, t->length, features, NULL, t->arena);
    return features;
}

/* Logits of all slots, [BLOCKS * bs, V], from the features of the row; with block inputs given or
 * (NULL) made from the row. */
static const float *logits_of(const test *t, const int32_t *row, const float *features,
                              const int32_t *inputs)
{
    const bd_draft_config *config = &t->draft->config;
    const bd_block_batch batch = {.rows = 1,
                                  .length = t->length,
                                  .block_size = config->block_size,
                                  .tokens = row,
                                  .anchors = &t->anchors};
    int64_t slots = bd_block_slots(&batch);
    int32_t *noise = bd_arena_ints(t->arena, slots), *positions = bd_arena_ints(t->arena, slots);
    bd_block_noise(&batch, (int32_t)config->mask_id, noise);
    bd_block_positions(&batch, positions);
    bd_tape tape = bd_tape_begin(t->arena, t->draft->compute, false);
    const bd_draft_blocks blocks = {.rows = 1,
                                    .length = t->length,
                                    .anchors = &t->anchors,
                                    .context =
                                        bd_draft_context(t->draft, &tape, features, t->length),
                                    .tokens = inputs ? inputs : noise,
                                    .positions = positions};
    const bd_value *hidden = bd_draft_forward(t->draft, &tape, &blocks);
    float *logits = bd_arena_floats(t->arena, slots * config->stack.vocabulary);
    bd_model_logits(t->draft->target, hidden->data, slots, logits, t->arena);
    return logits;
}

/* Block j of two runs must be the same to the bit. */
static void compare(test *t, const float *a, const float *b, int64_t block, const char *why)
{
    int64_t vocabulary = t->draft->config.stack.vocabulary, size = t->draft->config.block_size;
    for (int64_t i = 0; i < size * vocabulary; i++) {
        int64_t at = block * size * vocabulary + i;
        t->leak->compared++;
        if (memcmp(a + at, b + at, sizeof *a) == 0 || t->leak->count++ > 0)
            continue;
        snprintf(t->leak->text, sizeof t->leak->text,
                 "the block at token %d moves with %s: slot %lld, logit %lld", t->anchor[block],
                 why, (long long)(i / vocabulary), (long long)(i % vocabulary));
    }
}

static void test_later_tokens(test *t, const float *plain)
{
    for (int64_t j = 0; j < BLOCKS; j++) {
        if (t->anchor[j] + 1 >= t->length) // the last block, of one slot
            continue;
        size_t mark = bd_arena_mark(t->arena);
        const int32_t *row = changed(t, t->anchor[j] + 1);
        const float *moved = logits_of(t, row, features_of(t, row), NULL);
        for (int64_t i = 0; i <= j; i++) // anchors rise
            compare(t, plain, moved, i, "a token behind its anchor");
        bd_arena_release(t->arena, mark);
    }
}

/* The target reads the anchor only when the block is drafted: its state there, which all but tells
 * the next token, is as hidden as the later ones. */
static void test_states(test *t, const float *plain)
{
    int64_t width = bd_draft_feature_width(t->draft);
    for (int64_t j = 0; j < BLOCKS; j++) {
        size_t mark = bd_arena_mark(t->arena);
        float *features = features_of(t, t->tokens);
        for (int64_t i = t->anchor[j] * width; i < t->length * width; i++)
            features[i] += 1;
        const float *moved = logits_of(t, t->tokens, features, NULL);
        for (int64_t i = 0; i <= j; i++)
            compare(t, plain, moved, i, "the target's states from its anchor on");
        bd_arena_release(t->arena, mark);
    }
}

static void test_other_blocks(test *t, const float *plain)
{
    int64_t size = t->draft->config.block_size;
    const bd_block_batch batch = {.rows = 1,
                                  .length = t->length,
                                  .block_size = size,
                                  .tokens = t->tokens,
                                  .anchors = &t->anchors};
    for (int64_t j = 0; j < BLOCKS; j++) {
        size_t mark = bd_arena_mark(t->arena);
        int32_t *inputs = bd_arena_ints(t->arena, bd_block_slots(&batch));
        bd_block_noise(&batch, (int32_t)t->draft->config.mask_id, inputs);
        for (int64_t k = 0; k < size; k++)
            inputs[j * size + k] =
                (int32_t)((inputs[j * size + k] + 1) % t->draft->config.stack.vocabulary);
        const float *moved = logits_of(t, t->tokens, features_of(t, t->tokens), inputs);
        for (int64_t i = 0; i < BLOCKS; i++)
            if (i != j)
                compare(t, plain, moved, i, "another block's tokens");
        bd_arena_release(t->arena, mark);
    }
}

/* The loss of the first block alone. */
static bool loss_of(const test *t, const int32_t *row, bd_draft_loss *loss, bd_error *err)
{
    size_t mark = bd_arena_mark(t->arena);
    float *features = bd_arena_floats(t->arena, t->length * bd_draft_feature_width(t->draft));
    float *final = bd_arena_floats(t->arena, t->length * t->draft->config.stack.hidden);
    float *counts = bd_arena_floats(t->arena, t->length);
    for (int64_t i = 0; i < t->length; i++)
        counts[i] = 1;
    bd_draft_observe(t->draft, row, 1, t->length, features, final, t->arena);
    bd_anchors first = t->anchors;
    first.blocks = 1;
    const bd_draft_batch batch = {.rows = 1,
                                  .length = t->length,
                                  .tokens = row,
                                  .loss_mask = counts,
                                  .anchors = &first,
                                  .features = features,
                                  .teacher_kind = BD_TEACHER_HIDDEN,
                                  .teacher = final};
    bd_draft_objective objective = bd_draft_objective_default();
    objective.lattice_ce = 1;
    bd_tape tape = bd_tape_begin(t->arena, t->draft->compute, false);
    bool ok = bd_draft_step_run(t->draft, &tape, &batch, &objective, BD_DRAFT_SUM, NULL, loss, err);
    bd_arena_release(t->arena, mark);
    return ok;
}

/* Behind the last token it learns, nothing matters to a block's loss. */
static bool test_loss(test *t, bd_error *err)
{
    bd_draft_loss plain, moved;
    int64_t after = t->anchor[0] + t->draft->config.block_size + 1;
    if (!loss_of(t, t->tokens, &plain, err) || !loss_of(t, changed(t, after), &moved, err))
        return false;
    t->leak->compared++;
    if (memcmp(&plain.sum, &moved.sum, sizeof plain.sum) && t->leak->count++ == 0)
        snprintf(t->leak->text, sizeof t->leak->text,
                 "the loss of the block at token %d moves with token %lld: %.9g and %.9g",
                 t->anchor[0], (long long)after, plain.sum, moved.sum);
    return true;
}

bool bd_draft_leak(bd_draft *draft, const int32_t *tokens, int64_t count, bd_leak *out,
                   bd_error *err)
{
    int64_t size = draft->config.block_size, length = count / size * size;
    *out = (bd_leak){0};
    if (length < 4 * size)
        return bd_fail(err, "a row of %lld tokens: at least 4 blocks of %lld wanted to test leaks",
                       (long long)count, (long long)size);
    if (length > 16 * size) // enough; longer ones only cost
        length = 16 * size;
    test t = {.draft = draft, .length = length, .tokens = tokens, .leak = out};
    // Two that overlap, and two that do not, the first with room for its labels and one token more.
    const int32_t place[BLOCKS] = {(int32_t)size, (int32_t)(size + 1), (int32_t)(2 * size + 1),
                                   (int32_t)(length - size)};
    for (int j = 0; j < BLOCKS; j++) {
        t.anchor[j] = place[j];
        t.keep[j] = 1;
    }
    t.anchors = (bd_anchors){.blocks = BLOCKS, .anchor = t.anchor, .keep = t.keep};
    if (!(t.arena = bd_arena_create(0, err)))
        return false;
    const float *plain = logits_of(&t, tokens, features_of(&t, tokens), NULL);
    test_later_tokens(&t, plain);
    test_states(&t, plain);
    test_other_blocks(&t, plain);
    bool ok = test_loss(&t, err);
    bd_arena_destroy(t.arena);
    return ok;
}
