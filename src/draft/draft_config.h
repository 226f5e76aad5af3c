/* draft_config.h - config.json of a draft folder.
 *
 * A draft is a small Qwen3-like stack plus what its blocks look like. Fields are looked up in
 * dflash_config first and at the top level second, as the programs that serve such files do.
 * Nothing is guessed: the layers a draft reads from its target and its mask token must be in the
 * file, and a field that would change the computation in a way bdlm does not know is refused by
 * name. Source: draft-family 1.4, 2.1, 8.2 to 8.5; decisions 13 to 16.
 *
 *     bd_draft_config config;
 *     if (!bd_draft_config_read("draft/config.json", &config, &err)) ...
 *     bd_draft_config new = bd_draft_config_default();     // then set the dimensions, and
 *     if (!bd_draft_config_complete(&new, &target->config, &err)) ...
 */
#ifndef BD_DRAFT_DRAFT_CONFIG_H
#define BD_DRAFT_DRAFT_CONFIG_H

#include "draft/variant.h"
#include "format/model_config.h"

enum { BD_MOST_BLOCK = 256, BD_MOST_TAPS = 64 };

/* Whether a slot sees the slots after it in its own block. BY_LAYER: in layers without a window, as
 * files that do not say it are served. */
typedef enum { BD_DRAFT_BIDIRECTIONAL, BD_DRAFT_CAUSAL, BD_DRAFT_BY_LAYER } bd_draft_causality;

/* Convolutions around the sublayers (convolution.h); kernel_size 0: none. */
typedef struct {
    int64_t kernel_size, group_size; /* taps, channels that share their dynamic coefficients */
    double projection_std; /* deviation of a new draft's dynamic coefficients; 0: they start at 0 */
} bd_convolution_config;

/* DFlash2's selector (selector.h). */
typedef struct {
    int64_t rank, top_k;
} bd_selector_config;

/* LiLiCorr's head (lilicorr.h); hidden 0: the draft's own width. */
typedef struct {
    int64_t top_k, hidden, layers, heads, factor;
    double mlp_ratio, vector_eps, logit_scale;
} bd_lilicorr_config;

/* DSpark's head (dspark.h). */
typedef enum { BD_MARKOV_VANILLA, BD_MARKOV_GATED, BD_MARKOV_RNN } bd_markov_kind;
typedef struct {
    int64_t rank;
    bd_markov_kind kind;
    bool confidence; /* a confidence head beside it */
} bd_markov_config;

/* Domino's head (domino.h); the first `pure_prefix` slots go without it. */
typedef struct {
    int64_t state, width, pure_prefix;
} bd_domino_config;

typedef struct bd_draft_config {
    const bd_draft_variant *variant;
    bd_model_config stack; /* dimensions of the draft's layers; layer_window of sliding layers */
    int64_t block_size, mask_id;
    int64_t tap_count;
    int64_t taps[BD_MOST_TAPS]; /* tap i: the target's residual stream after layer i; -1: its
                                   embedding */
    int64_t target_layers;      /* of the target; 0: the file does not say */
    int64_t window;             /* context tokens all layers look back on; 0: all */
    bd_draft_causality causality;
    bool sink;      /* one sink logit per head in every layer */
    double dropout; /* attention_dropout: kept for the file; nothing here applies it */
    bd_markov_config markov;
    bd_domino_config domino;
    bd_convolution_config convolution;
    bd_selector_config selector;
    bd_lilicorr_config lilicorr;
} bd_draft_config;

/* Five layers, block 8, plain DFlash; the dimensions, block tokens and taps are left 0. */
bd_draft_config bd_draft_config_default(void);

/* Fill in what a draft takes from its target (hidden size, vocabulary, rotary base, positions,
 * default taps) and check everything: dimensions given, explicit taps, block size, window, mask
 * token. */
bool bd_draft_config_complete(bd_draft_config *config, const bd_model_config *target,
                              bd_error *err);

/* The taps for `draft_layers` layers spread over a target of `target_layers` (half to even). */
bool bd_draft_taps(int64_t target_layers, int64_t draft_layers, int64_t *taps, bd_error *err);

/* The tap nearest to the target's output. */
int64_t bd_draft_highest_tap(const bd_draft_config *config);

bool bd_draft_config_read(const char *path, bd_draft_config *config, bd_error *err);
bool bd_draft_config_parse(json_t *root, const char *where, bd_draft_config *config, bd_error *err);
json_t *bd_draft_config_to_json(const bd_draft_config *config);

/* Does the draft fit this target: hidden size, vocabulary, taps and mask token inside it. */
bool bd_draft_config_fits(const bd_draft_config *config, const bd_model_config *target,
                          const char *where, bd_error *err);

/* A mask token for a new draft: a row of the embedding that is not pad, bos or a stop token. */
bool bd_draft_mask_check(int64_t mask_id, const bd_model_config *target, bd_error *err);

/* Where a field of a draft's config.json stands: in dflash_config if it is there, else at the top
 * level. */
json_t *bd_draft_field_home(json_t *root, const char *field);

/* The window (0: none) and the causality of one layer. */
int64_t bd_draft_layer_window(const bd_draft_config *config, int64_t layer);
bool bd_draft_layer_causal(const bd_draft_config *config, int64_t layer);

#endif
