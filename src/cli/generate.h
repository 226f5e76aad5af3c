/* generate.h - many prompts, plain and speculative, and what came of it. Shared by generate and
 * eval. */
#ifndef BD_CLI_GENERATE_H
#define BD_CLI_GENERATE_H

#include <jansson.h>

#include "cli/pair.h"

/* Sums over prompts. */
typedef struct {
    int64_t prompts, tokens, passes, identical;
    double seconds; /* of decoding, without the prompts */
    bd_generation_report last;
    int64_t tested[BD_MOST_BLOCK], accepted[BD_MOST_BLOCK];
    int64_t cycles, produced; /* passes in decoding and tokens they brought */
    int64_t drafted_cycles;
    double draft_seconds, prefill_seconds;
    int64_t prompt_tokens;
} bd_generation_totals;

void bd_generation_totals_add(bd_generation_totals *totals, const bd_generation_report *report);
double bd_generation_rate(const bd_generation_totals *totals);          /* tokens/s of decoding */
double bd_generation_accept_length(const bd_generation_totals *totals); /* tokens per target pass */

/* Above a prompt's text on standard output: what separates it from the one before, and the prompt. */
void bd_generation_show_prompt(const bd_prompts *prompts, int64_t index);
/* Prompt and text into a list of the first few; NULL: not wanted. */
void bd_generation_sample(json_t *samples, const char *prompt, const bd_text *text);

/* [accepted / tested] of each place that was tested. */
json_t *bd_generation_positions(const bd_generation_totals *totals);
void bd_generation_print_positions(const bd_generation_totals *totals); /* on stderr */

#endif
