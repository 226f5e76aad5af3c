#include "cli/probe_lattice.h"

#include <stdio.h>
#include <string.h>

#include "draft/dflash2.h"
#include "draft/lilicorr.h"

void bd_probe_lattice_objective(bd_probe *probe, json_t *options, bd_draft_objective *objective)
{
    const char *type = bd_probe_word(options, "dflash_lk_loss_type", "ce");
    objective->slot_loss = !strcmp(type, "tv")       ? BD_SLOT_TV
                           : !strcmp(type, "lambda") ? BD_SLOT_LAMBDA
                                                     : BD_SLOT_CE;
    objective->ce_scale = (float)bd_probe_option(probe, options, "dflash_lk_ce_scale", 1);
    objective->ce_decay = (float)bd_probe_option(probe, options, "dflash_lk_ce_decay", 1);
    objective->selector_alpha =
        (float)bd_probe_option(probe, options, "dflash_selector_loss_alpha", 1);
    objective->lattice_ce = (float)bd_probe_option(probe, options, "dflash_lilicorr_w_ce", 0.25);
    objective->lattice_margin_weight =
        (float)bd_probe_option(probe, options, "dflash_lilicorr_w_margin", 0);
    objective->lattice_penalty =
        (float)bd_probe_option(probe, options, "dflash_lilicorr_w_pen", 0.25);
    objective->lattice_calibration =
        (float)bd_probe_option(probe, options, "dflash_lilicorr_w_cal", 0);
    objective->lattice_margin = (float)bd_probe_option(probe, options, "dflash_lilicorr_margin", 2);
}

static bool is(const bd_draft *draft, const bd_draft_variant *variant)
{
    return draft->config.variant == variant;
}

// --- DFlash2 -------------------------------------------------------------------------------------

static bd_value *project(bd_draft *draft, bd_tape *tape, const float *hidden, int64_t rows)
{
    const bd_selector *selector = draft->head;
    return bd_op_linear(tape, bd_tape_constant(tape, hidden, rows, draft->config.stack.hidden),
                        selector->projection, NULL);
}

static void selector_step(bd_probe *probe, bd_draft *draft, const bd_draft_batch *batch,
                          const float *hidden)
{
    int64_t bs = draft->config.block_size, top = draft->config.selector.top_k,
            rank = draft->config.selector.rank;
    const bd_block_batch blocks = {batch->rows,   batch->length,    bs,
                                   batch->tokens, batch->loss_mask, batch->anchors};
    int64_t slots = bd_block_slots(&blocks);
    const int64_t shape[4] = {batch->rows, batch->anchors->blocks, bs, top};
    bd_candidates c = bd_candidates_find(draft->target, hidden, slots, top, probe->arena);
    bd_tape tape = bd_tape_begin(probe->arena, draft->compute, false);
    const bd_value *context = project(draft, &tape, hidden, slots);
    int32_t *previous = bd_arena_ints(probe->arena, slots);
    float *scores = bd_arena_floats(probe->arena, slots * top);
    bd_dflash2_previous(&blocks, previous);
    for (int64_t i = 0; i < slots; i++)
        bd_selector_scores(draft->head, &c, i, context->data + i * rank, previous[i],
                           scores + i * top);
    // Rows of blocks that are not kept are zeros in the cases.
    for (int64_t i = 0; i < slots; i++)
        if (!batch->anchors->keep[i / bs]) {
            memset(scores + i * top, 0, (size_t)top * sizeof *scores);
            memset(c.token + i * top, 0, (size_t)top * sizeof *c.token);
        }
    bd_probe_put_ints(probe, "candidates", BD_I64, 4, shape, c.token);
    bd_probe_put(probe, "selector_scores", BD_F32, 4, shape, scores);
}

/* Scores along the drafted path. */
static void selector_draft(bd_probe *probe, bd_draft *draft, size_t index, int32_t base,
                           const bd_proposal *proposal)
{
    int64_t top = draft->config.selector.top_k, rank = draft->config.selector.rank,
            count = proposal->count;
    const float *hidden = proposal->hidden + draft->config.stack.hidden;
    bd_candidates c = bd_candidates_find(draft->target, hidden, count, top, probe->arena);
    bd_tape tape = bd_tape_begin(probe->arena, draft->compute, false);
    const bd_value *context = project(draft, &tape, hidden, count);
    float *scores = bd_arena_floats(probe->arena, count * top);
    for (int64_t i = 0; i < count; i++)
        bd_selector_scores(draft->head, &c, i, context->data + i * rank,
                           i ? proposal->tokens[i - 1] : base, scores + i * top);
    char name[64];
    snprintf(name, sizeof name, "%zu/selector_scores", index);
    bd_probe_put(probe, name, BD_F32, 3, (int64_t[]){1, count, top}, scores);
}

// --- LiLiCorr ------------------------------------------------------------------------------------

/* Zeros where blocks are not kept, as in the cases. */
static void blank(const uint8_t *keep, int64_t blocks, int64_t width, void *values)
{
    for (int64_t n = 0; n < blocks; n++)
        if (!keep[n])
            memset((char *)values + n * width * 4, 0, (size_t)width * 4);
}

static void lattice_step(bd_probe *probe, bd_draft *draft, const bd_draft_batch *batch,
                         const float *hidden)
{
    const bd_anchors *anchors = batch->anchors;
    int64_t bs = draft->config.block_size, K = draft->config.lilicorr.top_k,
            width = draft->config.stack.hidden;
    int64_t blocks = batch->rows * anchors->blocks, slots = bs - 1;
    int32_t *context_row = bd_arena_ints(probe->arena, blocks);
    float *own = bd_arena_floats(probe->arena, blocks * slots * width);
    for (int64_t n = 0; n < blocks; n++) {
        memcpy(own + n * slots * width, hidden + (n * bs + 1) * width,
               (size_t)(slots * width) * sizeof *own);
        context_row[n] =
            anchors->anchor[n] > 0
                ? (int32_t)(n / anchors->blocks * batch->length + anchors->anchor[n] - 1)
                : -1;
    }
    bd_tape tape = bd_tape_begin(probe->arena, draft->compute, false);
    bd_value *context =
        bd_draft_context(draft, &tape, batch->features, batch->rows * batch->length);
    bd_lilicorr_scores s = bd_lilicorr_score(
        draft, &tape, bd_tape_constant(&tape, own, blocks * slots, width), context, context_row);
    blank(anchors->keep, blocks, slots * K, s.candidates.token);
    blank(anchors->keep, blocks, K, s.start->data);
    blank(anchors->keep, blocks, (slots - 1) * K * K, s.pair->data);
    bd_probe_put_ints(probe, "candidates", BD_I64, 4,
                      (int64_t[]){batch->rows, anchors->blocks, slots, K}, s.candidates.token);
    bd_probe_put(probe, "start_scores", BD_F32, 3, (int64_t[]){batch->rows, anchors->blocks, K},
                 s.start->data);
    bd_probe_put(probe, "pair_scores", BD_F32, 5,
                 (int64_t[]){batch->rows, anchors->blocks, slots - 1, K, K}, s.pair->data);
}

static void lattice_draft(bd_probe *probe, bd_draft *draft, size_t index,
                          const bd_proposal *proposal)
{
    int64_t slots = draft->config.block_size - 1, K = draft->config.lilicorr.top_k;
    int64_t width = draft->config.stack.hidden;
    char name[64];
    bd_tape tape = bd_tape_begin(probe->arena, draft->compute, false);
    bd_value *hidden = bd_tape_constant(&tape, proposal->hidden + width, slots, width);
    bd_value *context = bd_tape_constant(&tape, proposal->context, 1, width);
    const int32_t row = 0;
    bd_lilicorr_scores s = bd_lilicorr_score(draft, &tape, hidden, context, &row);
    snprintf(name, sizeof name, "%zu/candidates", index);
    bd_probe_put_ints(probe, name, BD_I64, 3, (int64_t[]){1, slots, K}, s.candidates.token);
    snprintf(name, sizeof name, "%zu/start_scores", index);
    bd_probe_put(probe, name, BD_F32, 2, (int64_t[]){1, K}, s.start->data);
    snprintf(name, sizeof name, "%zu/pair_scores", index);
    bd_probe_put(probe, name, BD_F32, 4, (int64_t[]){1, slots - 1, K, K}, s.pair->data);
}

// --- either --------------------------------------------------------------------------------------

void bd_probe_lattice_step(bd_probe *probe, bd_draft *draft, const bd_draft_batch *batch,
                           const float *hidden)
{
    if (is(draft, &bd_draft_dflash2))
        selector_step(probe, draft, batch, hidden);
    if (is(draft, &bd_draft_lilicorr))
        lattice_step(probe, draft, batch, hidden);
}

void bd_probe_lattice_draft(bd_probe *probe, bd_draft *draft, size_t index, int32_t base,
                            const bd_proposal *proposal)
{
    if (is(draft, &bd_draft_dflash2))
        selector_draft(probe, draft, index, base, proposal);
    if (is(draft, &bd_draft_lilicorr))
        lattice_draft(probe, draft, index, proposal);
}
