/* corruption.h - which tokens of a training row are replaced by the mask token.
 *
 * Every block draws one noise level t in [min_noise, 1); an eligible token is masked when its own
 * draw is below t. A block with eligible tokens never goes without: if no draw was below t, the
 * eligible token with the largest fallback draw is masked. Under seed_and_mask a block's first
 * token is never masked; if it was eligible and is not the first token of its document, it carries
 * loss as a seed.
 *
 *     uint64_t keys[R];                                   // bd_random_key(seed, epoch, step, row)
 *     bd_corruption_draws draws = {.keys = keys};
 *     bd_corrupt(&canvas, min_noise, &placement, tokens, eligible, &draws, &out, &err);
 *
 * Corruption happens before a row is reordered over ranks, and `row` in the key is the row's number
 * in the step's whole batch: masks depend neither on the layout nor on ranks, micro-batches or
 * threads. Source: block-diffusion B.4, B.5.
 */
#ifndef BD_DIFFUSION_CORRUPTION_H
#define BD_DIFFUSION_CORRUPTION_H

#include "diffusion/batch.h"
#include "diffusion/completion.h"

/* Where the random numbers come from: one key per row, or numbers that were given. */
typedef struct {
    const uint64_t *keys;           /* [rows]; NULL: use the arrays */
    int64_t blocks;                 /* ceil(length / block_size) */
    const float *noise;             /* [rows, blocks] */
    const float *select, *fallback; /* [rows, blocks, block_size] */
} bd_corruption_draws;

typedef struct {
    int32_t *inputs, *corruption, *loss; /* [rows, length] */
    float *noise; /* [rows, length]: t of the slot's block; NULL: not wanted */
} bd_corruption;

/* Blocks are counted per document. placement NULL-positions, NULL-segments: blocks of block_size
 * slots, one document per row, and only then may numbers be given instead of keys. Errors: an
 * illegal canvas, min_noise outside (0, 1], an empty row. A token that happens to equal the mask id
 * is a token. */
bool bd_corrupt(const bd_canvas *canvas, double min_noise, const bd_placement *placement,
                const int32_t *tokens, const int32_t *eligible, const bd_corruption_draws *draws,
                const bd_corruption *out, bd_error *err);

typedef struct {
    double min_noise;     /* in (0, 1] */
    bool completion_only; /* only completion tokens are eligible; else all that are not padding */
    bool last_answer; /* first cut every row after its last answer (B-13); needs completion_only */
    int32_t pad_id;   /* what cut tokens become */
} bd_corruption_options;

bd_corruption_options bd_corruption_default(void); /* 1e-3, all tokens */
bool bd_corruption_check(const bd_canvas *canvas, const bd_corruption_options *options,
                         bd_error *err);

/* A whole batch whose inputs are clean: last answer, leak guard, corruption. Fills inputs,
 * corruption_mask and targets_loss_mask. Without completion_only a missing completion_mask is made
 * from the segmentation (its array then comes from the arena). noise: [rows, length] or NULL. */
bool bd_corrupt_batch(bd_diffusion_batch *batch, const bd_canvas *canvas,
                      const bd_corruption_options *options, const bd_corruption_draws *draws,
                      float *noise, bd_arena *arena, bd_error *err);

#endif
