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

bool bd_draft_config_read(const char *path, bd_draft_config *config, bd_error *err);
bool bd_draft_config_parse(json_t *root, const char *where, bd_draft_config *config, bd_error *err);
json_t *bd_draft_config_to_json(const bd_draft_config *config);

/* Does the draft fit this target: hidden size, vocabulary, taps and mask token inside it. */
bool bd_draft_config_fits(const bd_draft_config *config, const bd_model_config *target,
                          const char *where, bd_error *err);

/* A mask token for a new draft: a row of the embedding that is not pad, bos or a stop token. */
bool bd_draft_mask_check(int64_t mask_id, const bd_model_config *target, bd_error *err);

/* The window (0: none) and the causality of one layer. */
int64_t bd_draft_layer_window(const bd_draft_config *config, int64_t layer);
bool bd_draft_layer_causal(const bd_draft_config *config, int64_t layer);

#endif
