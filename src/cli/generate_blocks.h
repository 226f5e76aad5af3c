/* generate_blocks.h - `bdlm generate` on a block-diffusion folder. */
#ifndef BD_CLI_GENERATE_BLOCKS_H
#define BD_CLI_GENERATE_BLOCKS_H

#include "cli/pair.h"

/* Options that only these models have, and --schedule, which drafts have too. */
typedef struct {
    const char *schedule;  /* a commit strategy; NULL: low_confidence */
    const char *tokens_in; /* file with the prompt's token ids, or NULL */
    const char *trace_html;
    double threshold, factor, entropy_bound; /* negative: the default */
    int64_t steps;                           /* 0: one per token of a block */
    bool cacheless, trace;
} bd_block_choices;

bd_block_choices bd_block_choices_default(void);

/* Room for BD_BLOCK_OPTIONS at `list`; all but --schedule. Returns how many. */
enum { BD_BLOCK_OPTIONS = 8 };
int bd_block_options(bd_block_choices *choices, bd_option *list);

/* The first of these options that was given, for the error on a causal folder; NULL: none. */
const char *bd_block_choices_given(const bd_block_choices *choices);

/* Does the folder hold a block-diffusion model? False also when it cannot be read. */
bool bd_block_folder(const char *folder);

typedef struct {
    bd_pair *pair; /* named, not opened */
    const bd_prompts *prompts;
    const bd_block_choices *choices;
    bd_sampling sampling;
    int64_t tokens;
    bool json, ignore_eos;
    bool compare; /* also without caches */
} bd_block_request;

/* Text on stdout, statistics on stderr; with json one object on stdout. */
bool bd_generate_blocks(const bd_block_request *request, bd_error *err);

#endif
