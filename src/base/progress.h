/* progress.h - one line on stderr that says how far a long job is.
 *
 * On a terminal the line is redrawn in place about four times a second; otherwise a plain line is
 * printed every few seconds, so that a log stays readable. Only programs use this room's output;
 * library code takes a bd_progress * that may be NULL.
 *
 *     bd_progress *bar = bd_progress_begin("pretrain", steps);
 *     bd_progress_update(bar, step, "loss %.3f  %.0f tokens/s", loss, rate);
 *     bd_progress_end(bar);
 */
#ifndef BD_BASE_PROGRESS_H
#define BD_BASE_PROGRESS_H

#include <stdint.h>

typedef struct bd_progress bd_progress;

bd_progress *bd_progress_begin(const char *what, int64_t total);
void bd_progress_update(bd_progress *bar, int64_t done, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void bd_progress_end(bd_progress *bar); /* the last state stays visible */

/* Say before the first update that `done` was done earlier: the time left is reckoned from the rest. */
void bd_progress_resume(bd_progress *bar, int64_t done);

double bd_seconds(void); /* a monotonic clock */

#endif
