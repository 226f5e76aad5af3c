/* trace.h - which token a block-diffusion model committed at which step: in the terminal and as a
 * page with a slider.
 *
 *     bd_trace trace = {.block_size = 32, .length = prompt + tokens};
 *     options.transition = ...;                 // calls bd_trace_add, bd_trace_print_step
 *     json_t *json = bd_trace_json(&trace, tokenizer, "Once upon");
 *     bd_html_trace(page, json);
 *     bd_trace_free(&trace);
 */
#ifndef BD_CLI_TRACE_H
#define BD_CLI_TRACE_H

#include <jansson.h>
#include <stdio.h>

#include "base/file.h"
#include "diffusion/rollout.h"
#include "format/tokenizer.h"

/* What the model proposed for an open slot, and whether it was kept. */
typedef struct {
    int32_t position, token;
    float confidence;
    bool picked;
} bd_trace_slot;

typedef struct {
    int64_t block;
    int64_t step;         /* within its block, from 0 */
    bool seed;            /* the pass for the block's first token */
    int64_t first, count; /* its slots */
} bd_trace_step;

/* One row's steps. Set block_size and length (prompt and new tokens), the rest is 0. */
typedef struct {
    int64_t block_size, length;
    bd_trace_step *steps;
    bd_trace_slot *slots;
    int64_t step_count, step_room, slot_count, slot_room;
    bool failed; /* memory ran out; later steps are missing */
} bd_trace;

void bd_trace_add(bd_trace *trace, const bd_transition *transition);
void bd_trace_clear(bd_trace *trace); /* for another row; keeps the memory */
void bd_trace_free(bd_trace *trace);

/* The block of the newest step on one line: tokens in the colour of their step, masks as a shade.
 * tokenizer NULL: ids instead of text. */
void bd_trace_print_step(const bd_trace *trace, const bd_tokenizer *tokenizer, bool colour,
                         FILE *out);
/* All blocks, tokens in the colour of their step. */
void bd_trace_print_text(const bd_trace *trace, const bd_tokenizer *tokenizer, FILE *out);

/* {"prompt", "block_size", "steps": [{"block", "step", "seed", "slots": [[position, text,
 * confidence, kept], ...]}, ...]}. NULL: no memory. */
json_t *bd_trace_json(const bd_trace *trace, const bd_tokenizer *tokenizer, const char *prompt);

/* A section with a slider over the steps; works offline, and shows the final text without scripts.
 */
void bd_html_trace(bd_writer *out, json_t *trace);

#endif
