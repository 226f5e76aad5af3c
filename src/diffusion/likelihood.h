/* likelihood.h - how likely a block-diffusion model finds a text: a bound in nats.
 *
 * Within a block the model may fill in tokens in any order; averaged over orders,
 *
 *     -log p(block | text before it)  <=  sum over k = 1 .. n of  1/k  E over sets S of k of its n
 *                                         tokens [ sum over i in S of -log p(i | the others,
 * before) ]
 *
 * Drawing noise levels at random would add most of the estimate's variance, so every count k is
 * used once per round and only the sets are random: nested ones, the first k of a random order. The
 * blocks before are clean (the doubled layout). Rounds differ in their orders alone; their spread
 * gives the standard error. Under seed_and_mask an anchor is predicted on its own, exactly; the
 * first token of a document is predicted by nothing and is not counted.
 *
 *     bd_likelihood bound;
 *     bd_likelihood_bound(model, &canvas, &rows, 4, seed, &bound, arena, &err);
 *     bits_per_byte = bound.nats / log(2) / bytes;
 */
#ifndef BD_DIFFUSION_LIKELIHOOD_H
#define BD_DIFFUSION_LIKELIHOOD_H

#include "diffusion/objective.h"

/* All arrays are [rows, length], in stored order: positions rise by one within a document. */
typedef struct {
    bd_placement placement;
    const int32_t *tokens;
    const int32_t *completion; /* tokens to score, the others are context; NULL: all but padding */
} bd_likelihood_rows;

typedef struct {
    double nats;           /* mean over rounds of the bound, summed over the tokens */
    double standard_error; /* of nats; 0 with one round */
    int64_t tokens;        /* that were scored */
    int64_t passes;        /* forward passes over the batch */
} bd_likelihood;

/* rounds >= 1; each takes as many passes as a block has tokens. */
bool bd_likelihood_bound(bd_model *model, const bd_canvas *canvas, const bd_likelihood_rows *rows,
                         int64_t rounds, uint64_t seed, bd_likelihood *result, bd_arena *arena,
                         bd_error *err);

/* The bound itself: every set of every block, 2^n - 1 passes for blocks of n tokens that can be
 * masked, at most BD_LIKELIHOOD_EXACT of them. standard_error is 0. */
enum { BD_LIKELIHOOD_EXACT = 10 };
bool bd_likelihood_exact(bd_model *model, const bd_canvas *canvas, const bd_likelihood_rows *rows,
                         bd_likelihood *result, bd_arena *arena, bd_error *err);

/* Loss of the masked tokens when `level` of each block, in (0, 1], is masked (rounded, at least one
 * token), the blocks before being clean. Which tokens depends on seed, row and slot alone, and a
 * higher level masks the same ones and more. */
typedef struct {
    double nats;    /* summed over the masked tokens */
    double correct; /* of them, predicted as the most likely token */
    int64_t tokens; /* masked */
} bd_denoising;
bool bd_denoising_loss(bd_model *model, const bd_canvas *canvas, const bd_likelihood_rows *rows,
                       double level, uint64_t seed, bd_denoising *result, bd_arena *arena,
                       bd_error *err);

#endif
