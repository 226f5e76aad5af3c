/* parallel.h - plain generation of many texts, several at a time through one pass of the target.
 *
 * A pass reads the target's weights once, whatever it is for: four texts that go on together cost
 * little more than one. Each has a place, with a decoder of its own; a text that ends leaves its place
 * to the next prompt at once. A row's result has the same bits in any batch, so every text is that of
 * bd_generate without a draft, whoever it shared its passes with.
 *
 *     bd_parallel_text texts[100] = {{.prompt = ids, .prompt_count = n, .out = out, .most = 64}, ...};
 *     bd_generate_parallel(target, 4096, texts, 100, 4, &options, &totals, &err);
 */
#ifndef BD_DRAFT_PARALLEL_H
#define BD_DRAFT_PARALLEL_H

#include "draft/speculative.h"

enum { BD_MOST_PARALLEL = 256 };

typedef struct {
    const int32_t *prompt;
    int64_t prompt_count;
    int32_t *out;  /* [most] */
    int64_t most;  /* new tokens at most */
    int64_t count; /* of them; from here on filled in */
    int64_t prompt_read;
    bd_generation_end ended;
} bd_parallel_text;

typedef struct {
    int64_t passes; /* of the target, after the prompts' */
    int64_t most_at_once;
    double prefill_seconds, decode_seconds;
} bd_parallel_report;

/* `places` at a time (1 .. BD_MOST_PARALLEL), in their order; capacity: tokens of prompt and text at most. Of the
 * options sampling and stop tokens are used. done(self, index), where wanted, is told each text that
 * ended, in no particular order; false ends the call without an error. */
bool bd_generate_parallel(bd_model *target, int64_t capacity, bd_parallel_text *texts,
                          int64_t count, int64_t places, const bd_generation *options,
                          bool (*done)(void *self, int64_t index), bd_parallel_report *report,
                          bd_error *err);

#endif
