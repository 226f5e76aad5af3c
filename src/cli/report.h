/* report.h - the report page, also written by the demo. */
#ifndef BD_CLI_REPORT_H
#define BD_CLI_REPORT_H

#include "base/error.h"

/* One HTML page from run folders (their metrics.jsonl) and results of `generate --compare --json`
 * or `draft eval --json`. `table` is a JSON array of [label, value] rows shown first, or NULL. */
bool bd_report_write(const char *out, const char *title, const char *const *runs, int64_t run_count,
                     const char *const *results, int64_t result_count, const char *table,
                     bd_error *err);

#endif
