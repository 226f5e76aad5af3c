/* canvas.h - how a block-diffusion model's rows are masked and how its outputs are read.
 *
 * A canvas is a row of tokens some of which are replaced by the mask token. Two questions decide
 * everything else: which output predicts a token (alignment), and may the first token of a block be
 * masked (policy)? Only two answers fit together:
 *
 *     same_position + all_masked       output i predicts token i; a whole block may be masked
 *     shifted       + seed_and_mask    output p-1 predicts token p, as in the causal model it came
 *                                      from; a block's first token, its anchor, stays clean in
 *                                      training and is generated before the rest of its block
 *
 * Blocks and anchors count logical positions within a document, not places in a stored row.
 *
 *     bd_canvas canvas;
 *     if (!bd_canvas_make("shifted", "seed_and_mask", 32, mask_id, &canvas, &err)) return false;
 *
 * Source: block-diffusion sections 0 and B.
 */
#ifndef BD_DIFFUSION_CANVAS_H
#define BD_DIFFUSION_CANVAS_H

#include "base/error.h"
#include "format/model_config.h"

typedef enum { BD_SAME_POSITION, BD_SHIFTED, BD_ALIGNMENT_COUNT } bd_alignment;
typedef enum { BD_ALL_MASKED, BD_SEED_AND_MASK, BD_CANVAS_POLICY_COUNT } bd_canvas_policy;

typedef struct {
    bd_alignment alignment;
    bd_canvas_policy policy;
    int64_t block_size;
    int32_t mask_id;
} bd_canvas;

/* "same_position", "shifted"; "all_masked", "seed_and_mask". */
const char *bd_alignment_name(bd_alignment alignment);
const char *bd_canvas_policy_name(bd_canvas_policy policy);
bool bd_alignment_from_name(const char *name, bd_alignment *alignment, bd_error *err);
bool bd_canvas_policy_from_name(const char *name, bd_canvas_policy *policy, bd_error *err);

bool bd_canvas_make(const char *alignment, const char *policy, int64_t block_size, int64_t mask_id,
                    bd_canvas *canvas, bd_error *err);

/* A legal pair, block_size at least 1 (2 with seed_and_mask, or nothing could be masked), mask_id
 * in [0, vocabulary); vocabulary 0: not known. */
bool bd_canvas_check(const bd_canvas *canvas, int64_t vocabulary, bd_error *err);

/* The same against a model: the mask token must also be none of its pad, bos and stop tokens. */
bool bd_canvas_check_model(const bd_canvas *canvas, const bd_model_config *config, bd_error *err);

/* What a model's config.json says it was trained for; a causal model is an error. */
bool bd_canvas_from_model(const bd_model_config *config, bd_canvas *canvas, bd_error *err);
void bd_canvas_to_model(const bd_canvas *canvas, bd_model_config *config);

/* Is the token at this logical position the clean first token of its block? */
static inline bool bd_canvas_is_anchor(const bd_canvas *canvas, int64_t position)
{
    return canvas->policy == BD_SEED_AND_MASK && position % canvas->block_size == 0;
}

#endif
