#include "parallel/layout.h"

#include <assert.h>
#include <string.h>

static const char *const names[BD_LAYOUT_COUNT] = {
    [BD_LAYOUT_IN_ORDER] = "in_order",
    [BD_LAYOUT_DUAL_CHUNK_SWAP] = "dual_chunk_swap",
    [BD_LAYOUT_STRIPED] = "striped",
};

const char *bd_layout_name(bd_layout layout)
{
    assert(layout >= 0 && layout < BD_LAYOUT_COUNT);
    return names[layout];
}

bool bd_layout_from_name(const char *name, bd_layout *layout, bd_error *err)
{
    if (strcmp(name, "auto") == 0) {
        *layout = BD_LAYOUT_DUAL_CHUNK_SWAP;
        return true;
    }
    for (int i = 0; i < BD_LAYOUT_COUNT; i++) {
        if (strcmp(name, names[i]) == 0) {
            *layout = (bd_layout)i;
            return true;
        }
    }
    return bd_fail(err, "layout is \"%s\", wanted auto, in_order, dual_chunk_swap or striped",
                   name);
}

static bool check_sizes(bd_layout layout, int64_t length, int64_t shards, bd_error *err)
{
    if (shards < 1)
        return bd_fail(err, "shards is %lld, wanted at least 1", (long long)shards);
    if (length < 1 || length > INT32_MAX)
        return bd_fail(err, "row length is %lld, wanted 1 to %d", (long long)length, INT32_MAX);
    if (shards == 1)
        return true;
    if (layout == BD_LAYOUT_DUAL_CHUNK_SWAP && shards % 2 != 0)
        return bd_fail(err, "shards is %lld, wanted a multiple of 2 for layout dual_chunk_swap",
                       (long long)shards);
    int64_t pieces = layout == BD_LAYOUT_DUAL_CHUNK_SWAP ? 2 : 1;
    if (shards > length / pieces || length % (pieces * shards) != 0)
        return bd_fail(
            err, "row length is %lld, wanted a multiple of %s = %lld for layout %s on %lld shards",
            (long long)length, pieces == 2 ? "2 x shards" : "shards",
            (long long)(shards > INT32_MAX ? shards : pieces * shards), names[layout],
            (long long)shards);
    return true;
}

bool bd_layout_order(bd_layout layout, int64_t length, int64_t shards, int32_t *order,
                     bd_error *err)
{
    assert(layout >= 0 && layout < BD_LAYOUT_COUNT);
    if (!check_sizes(layout, length, shards, err))
        return false;
    if (shards == 1)
        layout = BD_LAYOUT_IN_ORDER;
    int64_t share = length / shards, chunk = share / 2;
    for (int64_t slot = 0; slot < length; slot++) {
        int64_t rank = slot / share, at = slot % share, logical = slot;
        if (layout == BD_LAYOUT_STRIPED)
            logical = rank + at * shards;
        if (layout == BD_LAYOUT_DUAL_CHUNK_SWAP)
            logical =
                at < chunk ? rank * chunk + at : (2 * shards - 1 - rank) * chunk + (at - chunk);
        order[slot] = (int32_t)logical;
    }
    return true;
}

void bd_layout_inverse(const int32_t *order, int64_t length, int32_t *inverse)
{
    for (int64_t slot = 0; slot < length; slot++) {
        assert(order[slot] >= 0 && order[slot] < length);
        inverse[order[slot]] = (int32_t)slot;
    }
}

void bd_layout_apply(const int32_t *order, int64_t rows, int64_t length, size_t size,
                     const void *from, void *to)
{
    for (int64_t r = 0; r < rows; r++) {
        const char *source = (const char *)from + (size_t)(r * length) * size;
        char *target = (char *)to + (size_t)(r * length) * size;
        for (int64_t slot = 0; slot < length; slot++)
            memcpy(target + (size_t)slot * size, source + (size_t)order[slot] * size, size);
    }
}
