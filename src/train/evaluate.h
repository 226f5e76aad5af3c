/* evaluate.h - how well a model knows a text: losses over windows of one long run of tokens.
 *
 * A window is a row; the next one begins `stride` tokens later and scores only what no window
 * before it did, so every token is scored once, with at least window - stride tokens before it
 * (the first window's apart). A token that nothing can predict is not scored: the first of the text
 * for a causal model and for shifted blocks.
 *
 *     bd_evaluation e = {.window = 512, .stride = 256};
 *     bd_causal_score score;
 *     bd_evaluate_causal(model, tokens, count, &e, &score, arena, &err);
 *     perplexity = exp(score.nats / score.tokens);
 *
 * Windows are run one by one and keyed by their number: a longer text does not change the losses of
 * its beginning. Source: block-diffusion A-34.
 */
#ifndef BD_TRAIN_EVALUATE_H
#define BD_TRAIN_EVALUATE_H

#include "base/progress.h"
#include "diffusion/likelihood.h"

enum { BD_MOST_LEVELS = 16 };

typedef struct {
    int64_t window, stride; /* stride < window; with blocks both are multiples of block_size */
    bd_progress *progress;  /* counts tokens; NULL: none */
    /* The rest is for block diffusion. */
    double levels[BD_MOST_LEVELS]; /* shares of a block that are masked, each in (0, 1] */
    int level_count;
    int64_t rounds; /* of the estimated bound, at least 2; 0: the exact bound */
    uint64_t seed;
} bd_evaluation;

typedef struct {
    double nats, correct;  /* sums over the scored tokens */
    int64_t tokens, first; /* scored; the first of them, the others follow */
} bd_causal_score;

bool bd_evaluate_causal(bd_model *model, const int32_t *tokens, int64_t count,
                        const bd_evaluation *options, bd_causal_score *score, bd_arena *arena,
                        bd_error *err);

typedef struct {
    bd_denoising level[BD_MOST_LEVELS];
    double nats, margin;   /* the bound, summed; half its 95% interval (0: exact) */
    int64_t tokens, first; /* scored; the first of them */
    int64_t passes;
} bd_block_score;

/* The margin tells how far the estimate may be from the bound of this text, not what another text
 * would give. */
bool bd_evaluate_blocks(bd_model *model, const bd_canvas *canvas, const int32_t *tokens,
                        int64_t count, const bd_evaluation *options, bd_block_score *score,
                        bd_arena *arena, bd_error *err);

/* Half of a 95% interval in standard errors (Student's t). */
double bd_interval_factor(int64_t degrees_of_freedom);

#endif
