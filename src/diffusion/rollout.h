/* rollout.h - generating the completion of rows block by block.
 *
 * All completion tokens are masked, then blocks are filled in order. Under seed_and_mask the first
 * tokens of a block are generated first, one pass for all rows; then every pass proposes a token
 * for each open slot of the block and the commit strategy keeps some (commit.h). What was kept is
 * never revisited. Blocks are those of logical positions, so slots may be reordered or padded on
 * any side.
 *
 * The algorithm knows no model: a scorer gives logits that predict the slots it is asked about.
 * scoring.h has two for models, a plain one and an exact one with KV caches.
 *
 *     bd_rollout_options options = bd_rollout_default(canvas);
 *     bd_rollout_result result = {.tokens = tokens, .steps = steps, .logps = logps};
 *     bd_rollout(&scorer, &rows, &options, NULL, &result, &statistics, arena, &err);
 *
 * Rows are independent: a row's result is what it would be alone. Greedy unless keys are given.
 * Source: block-diffusion F.
 */
#ifndef BD_DIFFUSION_ROLLOUT_H
#define BD_DIFFUSION_ROLLOUT_H

#include "diffusion/commit.h"
#include "diffusion/completion.h"

/* --- who gives logits ------------------------------------------------------------------------ */

typedef struct {
    int32_t row, slot; /* where it lies */
    int32_t position;  /* its logical position */
} bd_open_slot;

typedef struct {
    void *self;
    int64_t vocabulary;
    /* Make the logits of these slots ready; canvas is [rows, length]. Slots come row by row, in
     * logical order, all from one block; blocks before it are final. NULL: nothing to prepare. */
    bool (*forward)(void *self, const int32_t *canvas, const bd_open_slot *slots, int64_t count,
                    bd_error *err);
    /* Logits [count, vocabulary] of slots first .. first + count - 1 of the last forward. */
    void (*logits)(void *self, const bd_open_slot *slots, int64_t first, int64_t count, float *out);
} bd_scorer;

/* --- what goes in ---------------------------------------------------------------------------- */

typedef struct {
    bd_placement placement;    /* valid positions of each row are 0 .. n-1 */
    const int32_t *tokens;     /* [rows, length]; those under the completion are ignored */
    const int32_t *completion; /* [rows, length]: a suffix of each row; none: left as it is */
} bd_rollout_rows;

typedef struct {
    bd_canvas canvas;
    bd_commit_options commit;
    float temperature; /* > 0; divides the logits, greedy or not */
    int64_t max_steps; /* denoising passes per block, at least block_size; -1: block_size */
    /* Sampling: a key per row (bd_random_key); NULL: greedy. A token of logical position p that is
     * committed at a row's step g uses draw g * length + p of BD_STREAM_ROLLOUT, by inverse CDF in
     * id order; a row's draws depend on nothing but its own steps. */
    const uint64_t *row_keys;
    int64_t top_k; /* 0: all */
    float top_p;   /* 1: all */
    float min_p;   /* 0: off */
} bd_rollout_options;

/* low_confidence at 0.9, temperature 1, greedy. */
bd_rollout_options bd_rollout_default(bd_canvas canvas);
bool bd_rollout_check(const bd_rollout_options *options, int64_t vocabulary, bd_error *err);

/* --- what comes out -------------------------------------------------------------------------- */

typedef struct {
    int32_t *tokens; /* [rows, length] */
    int32_t *steps;  /* [rows, length]: the row's step that committed the slot, -1: none; or NULL */
    float *logps;    /* [rows, length]: log-probability of the committed token, 0: none; or NULL */
} bd_rollout_result;

typedef struct {
    int64_t transitions;     /* joint passes over the batch */
    int64_t commits, forced; /* tokens; those that did not meet the strategy's own test: taken so
                                that a block goes on, or as its first token */
    double confidence_sum;   /* over commits; non-finite ones count as 0 */
    int64_t row_forwards;    /* rows run through the model; counted by the scorers of scoring.h */
    int64_t forward_tokens;  /* tokens in them */
} bd_rollout_statistics;

double bd_rollout_tokens_per_forward(const bd_rollout_statistics *s);
double bd_rollout_forced_fraction(const bd_rollout_statistics *s);
double bd_rollout_mean_confidence(const bd_rollout_statistics *s);

/* --- watching -------------------------------------------------------------------------------- */

/* One pass over the batch; arrays are [rows, length] and live during the call only. */
typedef struct {
    bool seed; /* the pass that fills first tokens of a block, else a denoising pass */
    int64_t block;
    const int32_t *before, *after; /* the canvas */
    const int32_t *open, *picks;   /* slots open in the block; slots committed */
    const int32_t *token;          /* proposal at open slots, -1 elsewhere */
    const float *confidence;       /* its confidence, 0 elsewhere */
} bd_transition;

/* The tokens one row generated in one block, in logical order. */
typedef struct {
    int64_t row, block;
    int64_t position, count; /* of the first one; how many */
    const int32_t *tokens;
    const float *logps;
} bd_finished_block;

typedef struct {
    void *self;
    void (*transition)(void *self, const bd_transition *transition); /* NULL: not wanted */
    /* false: this row is finished; its later tokens stay masked with step -1. NULL: go on to the
     * end. */
    bool (*block)(void *self, const bd_finished_block *block);
} bd_rollout_observer;

/* Errors, all before the first pass: illegal options, positions that are not 0 .. n-1, a completion
 * that is no suffix or covers padding, shifted rows without a prompt token at position 0. observer
 * and statistics may be NULL; result->tokens must not be rows->tokens. */
bool bd_rollout(const bd_scorer *scorer, const bd_rollout_rows *rows,
                const bd_rollout_options *options, const bd_rollout_observer *observer,
                bd_rollout_result *result, bd_rollout_statistics *statistics, bd_arena *arena,
                bd_error *err);

#endif
