/* demo.h - what the parts of `bdlm demo` share. */
#ifndef BD_CLI_DEMO_H
#define BD_CLI_DEMO_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/error.h"
#include "cli/command.h"

typedef struct {
    const char *out, *text;
    int64_t megabytes, target_steps, draft_steps, student_steps, prompts, regenerated;
    json_t *table;  /* [label, value] rows of the last page */
    bool identical; /* every comparison so far */
} bd_demo;

/* What all of its training has in common. */
#define BD_DEMO_BATCH "--sequence-length", "256", "--batch-size", "8"
#define BD_DEMO_SCHEDULE                                                                           \
    "--warmup-ratio", "0.05", "--schedule", "cosine", "--final-lr-fraction", "0.05"

/* OUT/name in one of a few rotating buffers: enough for the arguments of one command. */
const char *bd_demo_path(const bd_demo *demo, const char *name);

/* Show the command line, then run it; into: its standard output goes to this file, NULL: nowhere
 * else. */
bool bd_demo_run(bd_command_function *command, const char *into, const char *const *words,
                 bd_error *err);

/* A row of the closing table. */
void bd_demo_row(bd_demo *demo, const char *label, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

double bd_demo_number(json_t *object, const char *name);

/* The first or last line of RUN/metrics.jsonl that has this field; NULL: none. */
json_t *bd_demo_line(const bd_demo *demo, const char *run, const char *field, bool first);

/* --- parts ------------------------------------------------------------------------------------ */

/* The causal target goes on as a block-diffusion student, which then generates with and without
 * caches; its rows of the table. */
bool bd_demo_blocks(const bd_demo *demo, bd_error *err);
bool bd_demo_blocks_rows(bd_demo *demo, bd_error *err);

/* A student with few answers goes on with a causal teacher, and without; its rows of the table. */
bool bd_demo_distill(const bd_demo *demo, bd_error *err);
bool bd_demo_distill_rows(bd_demo *demo, bd_error *err);

/* Two drafters with one budget; their rows of the table. */
bool bd_demo_compare(const bd_demo *demo, bd_error *err);
bool bd_demo_compare_rows(bd_demo *demo, bd_error *err);

#endif
