/* scoring.h - a model as the scorer of a rollout, plain or with exact KV caches.
 *
 * Attention is causal from block to block, so keys and values of a finished block never change:
 * caching them is exact, not an approximation. Plain: one forward pass of all rows for every pass
 * of the rollout. Cached: a pass runs the row's current block against the cache and then forgets
 * the block again; the clean tokens of a finished block are stored together with the next block's
 * first pass, and a shifted first token needs no pass of its own: the output that predicts it comes
 * from the token before it, which was just stored. Both give the same bits for rows stored in
 * logical order.
 *
 *     bd_rollout_caches *caches = bd_rollout_caches_create(model, rows, L, &err);
 *     bd_rollout_model(model, caches, &rows, &options, NULL, &result, &statistics, arena, &err);
 *     bd_rollout_caches_free(caches);
 *
 * Source: block-diffusion F-28..F-34, N-07.
 */
#ifndef BD_DIFFUSION_SCORING_H
#define BD_DIFFUSION_SCORING_H

#include "diffusion/rollout.h"
#include "model/model.h"

/* A cache per row. They may serve many rollouts: each starts by forgetting the one before it,
 * because the model may have changed. */
typedef struct bd_rollout_caches bd_rollout_caches;
bd_rollout_caches *bd_rollout_caches_create(const bd_model *model, int64_t rows, int64_t length,
                                            bd_error *err);
void bd_rollout_caches_free(bd_rollout_caches *caches);

/* bd_rollout on a model. caches: at least as many rows and tokens as the rollout has, or NULL for
 * the plain form. Also an error: a token outside the model's vocabulary. */
bool bd_rollout_model(bd_model *model, bd_rollout_caches *caches, const bd_rollout_rows *rows,
                      const bd_rollout_options *options, const bd_rollout_observer *observer,
                      bd_rollout_result *result, bd_rollout_statistics *statistics, bd_arena *arena,
                      bd_error *err);

#endif
