/* row_order.h - in which order an epoch visits the rows of a data set.
 *
 * Epoch e visits the rows in a permutation that depends on (seed, e) alone; sample k of a run is
 * row permutation[k % rows] of epoch k / rows. Nothing has to be remembered to go on at any k.
 *
 *     bd_row_order *order = bd_row_order_create(rows, seed, &err);
 *     int64_t row = bd_row_order_at(order, k);
 */
#ifndef BD_TRAIN_ROW_ORDER_H
#define BD_TRAIN_ROW_ORDER_H

#include "base/error.h"

typedef struct bd_row_order bd_row_order;

bd_row_order *bd_row_order_create(int64_t rows, uint64_t seed,
                                  bd_error *err); /* 1 to 2^31 - 1 rows */
void bd_row_order_free(bd_row_order *order);

/* The row of sample k >= 0. Shuffles when the epoch is another than that of the last call. */
int64_t bd_row_order_at(bd_row_order *order, int64_t k);

#endif
