/* split.h - how a product is cut into tasks for the team of threads. */
#ifndef BD_TENSOR_SPLIT_H
#define BD_TENSOR_SPLIT_H

#include <stdint.h>

static inline int64_t bd_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Into how many groups of neighbouring panels: enough to keep every thread busy to the end, few
 * enough to reuse what the caches hold. A short product is cut once for each thread: its panels are
 * read in as long stretches as they can be. operations: multiplications and additions of one panel
 * with all rows; row_blocks: into how many pieces the rows are cut besides. */
int64_t bd_split_panels(int64_t panels, int64_t panel_bytes, double operations, int64_t row_blocks);

#endif
