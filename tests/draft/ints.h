/* ints.h - comparing token ids and positions. */
#ifndef BD_TESTS_DRAFT_INTS_H
#define BD_TESTS_DRAFT_INTS_H

#include "check.h"

static inline void check_ints(const char *what, const int32_t *got, const int32_t *want,
                              int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (got[i] != want[i])
            fail_msg("%s[%lld] is %d, wanted %d", what, (long long)i, got[i], want[i]);
}

#endif
