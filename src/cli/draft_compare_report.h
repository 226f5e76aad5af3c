/* draft_compare_report.h - what draft compare found: as a table, as Markdown, as JSON. */
#ifndef BD_CLI_DRAFT_COMPARE_REPORT_H
#define BD_CLI_DRAFT_COMPARE_REPORT_H

#include "cli/generate.h"

/* One drafter: a variant trained with one seed. */
typedef struct {
    const char *variant;
    int64_t seed, parameters, steps;
    double training_seconds, loss, held_out; /* held_out NaN: nothing was held out */
    bd_generation_totals totals;             /* of speculative decoding */
} bd_compared;

typedef struct {
    const bd_compared *items; /* the seeds of a variant one after the other */
    int64_t count;
    bd_generation_totals plain; /* the target alone, on the same prompts */
    const char *target, *data, *dtype;
    int64_t prompts, failed, tokens;
} bd_comparison;

/* Lines on stdout, one a variant: means over its seeds, and the range where there are several. */
void bd_comparison_print(const bd_comparison *c);

json_t *bd_comparison_to_json(const bd_comparison *c);
bool bd_comparison_markdown(const bd_comparison *c, const char *path, bd_error *err);

#endif
