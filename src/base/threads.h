/* threads.h - one team of threads for the whole program.
 *
 * Work is split into tasks numbered 0 .. count-1; a task may run on any thread, so its result must
 * depend on its number alone. Sums over tasks are taken by the caller, in task order. Waiting spins
 * for a bounded time and then sleeps, because a spinning thread on a shared core costs more than it
 * gains. One runtime only: nothing else in the library starts threads.
 *
 *     static void scale_rows(void *context, int64_t task) { ... }
 *     bd_parallel(task_count, scale_rows, &job);            // returns when every task is done
 */
#ifndef BD_BASE_THREADS_H
#define BD_BASE_THREADS_H

#include <stdint.h>

typedef void bd_task_function(void *context, int64_t task);

/* Threads used from now on, the caller included. 0: OMP_NUM_THREADS if set, else the cores this
 * process may run on. Called before the first bd_parallel or between two of them. */
void bd_threads_set(int count);
int bd_threads_count(void);

/* Run tasks 0 .. count-1 and wait for all. Nested calls run their tasks in the calling thread. */
void bd_parallel(int64_t count, bd_task_function *run, void *context);

#endif
