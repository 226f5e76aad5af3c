/* generate.h - text from a block-diffusion model: a prompt in, tokens out, block by block.
 *
 *     bd_block_generation options = bd_block_generation_default(canvas, max_tokens);
 *     options.stop = stops; options.stop_count = n;
 *     bd_block_generate(model, NULL, prompt, count, &options, out, &result, arena, &err);
 *
 * A stop token is looked for when a block is finished: nothing is generated beyond the block that
 * holds one, and the tokens end with it. Source: block-diffusion F-39, F-40, G-09.
 */
#ifndef BD_DIFFUSION_GENERATE_H
#define BD_DIFFUSION_GENERATE_H

#include "diffusion/scoring.h"

typedef struct {
    bd_rollout_options rollout; /* row_keys is ignored: see sample */
    int64_t max_tokens;         /* at least 1 */
    const int32_t *stop;        /* [stop_count]; may be none */
    int64_t stop_count;
    bool sample; /* draw tokens with `seed`; else greedy */
    uint64_t seed;
    bool plain; /* without caches: the slow reference, same tokens */
    /* Called with the new tokens of every finished block, up to and with a stop token. Return false
     * to end here. NULL: not wanted. */
    bool (*stream)(void *self, const int32_t *tokens, int64_t count);
    void (*transition)(void *self, const bd_transition *transition); /* NULL: not wanted */
    void *self;                                                      /* of both */
} bd_block_generation;

bd_block_generation bd_block_generation_default(bd_canvas canvas, int64_t max_tokens);

typedef struct {
    int64_t count;  /* tokens generated, a stop token included */
    bool stopped;   /* the last of them is a stop token */
    bool cancelled; /* stream said so */
    bd_rollout_statistics statistics;
} bd_block_generated;

/* out: [max_tokens]. caches: made for one row of at least prompt + max_tokens tokens, or NULL to
 * make them here. Errors: illegal options, stop tokens that are no tokens or the mask, more tokens
 * than the model has positions, an empty prompt when shifted. */
bool bd_block_generate(bd_model *model, bd_rollout_caches *caches, const int32_t *prompt,
                       int64_t prompt_count, const bd_block_generation *options, int32_t *out,
                       bd_block_generated *result, bd_arena *arena, bd_error *err);

#endif
