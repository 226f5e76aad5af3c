/* generate_parallel.h - generate with --parallel: several prompts at once, told in their order. */
#ifndef BD_CLI_GENERATE_PARALLEL_H
#define BD_CLI_GENERATE_PARALLEL_H

#include "cli/generate.h"

typedef struct {
    const bd_pair *pair; /* open, without a draft */
    const bd_prompts *prompts;
    const bd_generation *options; /* sampling, stop tokens, `most` new tokens of each prompt */
    int64_t places;               /* prompts at once */
    bool json;                    /* no text on standard output */
} bd_parallel_request;

/* Texts on standard output, byte for byte those of one prompt after the other; the first few into
 * `samples` as well. */
bool bd_generate_prompts(const bd_parallel_request *request, bd_generation_totals *totals,
                         json_t *samples, bd_error *err);

#endif
