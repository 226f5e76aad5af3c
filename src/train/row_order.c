#include "train/row_order.h"

#include <assert.h>
#include <stdlib.h>

#include "base/random.h"

struct bd_row_order {
    int64_t rows, epoch; // epoch -1: none shuffled yet
    uint64_t seed;
    int32_t *order; // [rows]
};

bd_row_order *bd_row_order_create(int64_t rows, uint64_t seed, bd_error *err)
{
    if (rows < 1 || rows > INT32_MAX) {
        bd_fail(err, "data: %lld rows, 1 to %d expected", (long long)rows, INT32_MAX);
        return NULL;
    }
    bd_row_order *order = malloc(sizeof *order);
    int32_t *list = malloc((size_t)rows * sizeof *list);
    if (!order || !list) {
        free(order);
        free(list);
        bd_fail_as(err, BD_ERROR_SYSTEM, "data: no memory for the order of %lld rows",
                   (long long)rows);
        return NULL;
    }
    *order = (bd_row_order){.rows = rows, .epoch = -1, .seed = seed, .order = list};
    return order;
}

void bd_row_order_free(bd_row_order *order)
{
    if (!order)
        return;
    free(order->order);
    free(order);
}

static void shuffle(bd_row_order *o, int64_t epoch)
{
    uint64_t key = bd_random_key(o->seed, (uint64_t)epoch, 0, 0);
    for (int64_t i = 0; i < o->rows; i++)
        o->order[i] = (int32_t)i;
    for (int64_t i = o->rows - 1; i > 0; i--) {
        // 48 bits from two draws: against 2^31 rows the remainder's bias is below 2^-17.
        uint64_t high = bd_random_bits(key, BD_STREAM_SHUFFLE, (uint32_t)(2 * i));
        uint64_t low = bd_random_bits(key, BD_STREAM_SHUFFLE, (uint32_t)(2 * i + 1));
        int64_t j = (int64_t)((high << 24 | low) % (uint64_t)(i + 1));
        int32_t row = o->order[i];
        o->order[i] = o->order[j];
        o->order[j] = row;
    }
    o->epoch = epoch;
}

int64_t bd_row_order_at(bd_row_order *order, int64_t k)
{
    assert(k >= 0);
    if (k / order->rows != order->epoch)
        shuffle(order, k / order->rows);
    return order->order[k % order->rows];
}
