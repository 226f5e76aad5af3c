/* pair.h - a target model with its tokenizer and perhaps a draft, opened for generation. */
#ifndef BD_CLI_PAIR_H
#define BD_CLI_PAIR_H

#include "cli/options.h"
#include "draft/speculative.h"
#include "format/tokenizer.h"

typedef struct {
    const char *model, *draft, *tokenizer; /* folders; tokenizer NULL: the model's */
    const char *dtype;                     /* "f32" or "bf16" */
    int64_t context;           /* tokens of KV cache; 0: the model's positions, at most 8192 */
    int64_t threads;           /* 0: all */
    const char *schedule_name; /* "fixed" (also NULL), "confidence" or "auto" */
    /* Opened by bd_pair_open. */
    bd_model *target;
    bd_draft *drafter; /* NULL: no draft */
    bd_tokenizer *text;
    bd_decoder *decoder;
    bd_draft_schedule schedule; /* the one named */
} bd_pair;

/* The options every generating command has; room for them at `list`. Returns how many. */
enum { BD_PAIR_OPTIONS = 6 };
int bd_pair_options(bd_pair *pair, bd_option *list);
/* Of --schedule, which sets schedule_name. */
#define BD_SCHEDULE_HELP                                                                           \
    "drafted tokens to verify: fixed (all; so if nothing is said), confidence (as far as the "     \
    "confidence head makes it worthwhile), auto (what pays best, plainly where nothing does)"

/* A causal target with tokenizer, draft and decoder; a block-diffusion folder is refused, and a
 * schedule that the draft cannot follow. */
bool bd_pair_open(bd_pair *pair, bd_error *err);
/* Model, context and (unless `text` is false) tokenizer alone, of either kind. */
bool bd_pair_open_model(bd_pair *pair, bool text, bd_error *err);
void bd_pair_close(bd_pair *pair);

/* A prompt's ids, with the tokens that the tokenizer puts around a text. Text that is not UTF-8,
 * that has no tokens, or that leaves no room in the context is refused. */
bool bd_pair_encode(const bd_pair *pair, const char *text, bd_tokens *tokens, bd_error *err);

/* A file of token ids, separated by blanks or commas, appended to `tokens`. */
bool bd_token_ids_read(const char *path, bd_tokens *tokens, bd_error *err);

/* Stop tokens of the target's config. */
int64_t bd_pair_stops(const bd_pair *pair, int32_t stops[BD_MOST_STOPS]);

/* What draft and verification of a whole block cost against one token, measured now. */
typedef struct {
    double single, block; /* seconds of the target for 1 token and for a block */
    double draft;         /* seconds of a proposal, from the report */
    double break_even;    /* accept length from which drafting pays */
} bd_pair_cost;
bool bd_pair_measure(bd_pair *pair, const bd_generation_report *report, bd_pair_cost *cost,
                     bd_error *err);

/* A list of prompts: one text, or JSONL records ("turns", "prompt", "text", "messages"). */
typedef struct {
    char **items;
    char **categories; /* a record's "category", else the name of its file; NULL: of no file */
    int64_t count;
} bd_prompts;
bool bd_prompts_add(bd_prompts *prompts, const char *text, const char *category);
/* First user turn of each record, at most `most`; a text record is cut after `cut` bytes at a
 * space. */
bool bd_prompts_read(bd_prompts *prompts, const char *path, int64_t most, bd_error *err);
void bd_prompts_free(bd_prompts *prompts);

#endif
