#include "tensor/split.h"

#include <math.h>

#include "base/threads.h"

// Less work than this (about 1.5 microseconds) is not worth waking a second thread. A byte of weights
// takes as long as this many operations, on caches' and memory's side alike.
#define SMALL_PRODUCT 3e5
#define BYTE_WORK     4.0
// Less than this (about 50 microseconds) is over before a thread that lost its core comes back.
#define SHORT_PRODUCT 2e7

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

int64_t bd_split_panels(int64_t panels, int64_t panel_bytes, double operations, int64_t row_blocks)
{
    const int64_t threads = bd_threads_count();
    const double work = (double)panels * fmax(operations, BYTE_WORK * (double)panel_bytes);
    if (threads == 1 || work < SMALL_PRODUCT)
        return 1;
    const int64_t fit = larger(1, ((int64_t)1 << 20) / larger(1, panel_bytes));
    const int64_t tasks = work < SHORT_PRODUCT ? threads : 8 * threads;
    const int64_t wanted = larger(bd_ceil_div(tasks, row_blocks), bd_ceil_div(panels, fit));
    return larger(1, wanted < panels ? wanted : panels);
}
