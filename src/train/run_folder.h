/* run_folder.h - RUN/run.json and RUN/metrics.jsonl: what a run is, and how it went.
 *
 *     bd_run *run = bd_run_open("runs/a", resuming, &err);            // locked against a second
 * process bd_run_describe(run, &about, step, &err);                       // run.json
 *     bd_run_cut(run, step, &err);                                    // drop lines after the
 * resumed step bd_run_log(run, line, &err);                                    // one object, one
 * line, one write bd_run_close(run);
 *
 * Source: cli.md "A run folder".
 */
#ifndef BD_TRAIN_RUN_FOLDER_H
#define BD_TRAIN_RUN_FOLDER_H

#include <jansson.h>

#include "train/contract.h"

typedef struct bd_run bd_run;

/* Make or open a run folder and take its lock; clean up after a killed process. Without `resuming`
 * a folder that already holds a run is refused. */
bd_run *bd_run_open(const char *folder, bool resuming, bd_error *err);
void bd_run_close(bd_run *run);

/* What stands in run.json. Every part may be NULL. */
typedef struct {
    json_t *recipe;             /* the resolved recipe with where each value came from */
    const char *const *command; /* the command line, ended by NULL */
    const bd_contract *contract;
} bd_run_about;

/* Is the run that run.json tells of, if there is one, a run under this contract? If not: every
 * difference. */
bool bd_run_same(const bd_run *run, const bd_contract *contract, bd_error *err);

/* Write run.json; when it is there already, only a session is added to its list: command line,
 * version, processor, instruction set, threads, the step it starts at. */
bool bd_run_describe(bd_run *run, const bd_run_about *about, int64_t step, bd_error *err);

/* Remove lines of metrics.jsonl from the first one of a step after `step` on, and a line without
 * end. */
bool bd_run_cut(bd_run *run, int64_t step, bd_error *err);

/* Append one line. Takes over the reference. */
bool bd_run_log(bd_run *run, json_t *line, bd_error *err);
bool bd_run_sync(bd_run *run, bd_error *err); /* lines so far survive a power failure */

#endif
