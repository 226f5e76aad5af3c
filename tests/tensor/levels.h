/* levels.h - run a test at every instruction set this CPU has. */
#ifndef BD_TESTS_TENSOR_LEVELS_H
#define BD_TESTS_TENSOR_LEVELS_H

#include "check.h"
#include "tensor/isa.h"

/* for (int level = level_first(); level >= 0; level = level_next(level)) { ... }: the level is in
 * force inside the loop, the best one again afterwards. */
static inline int level_next(int level)
{
    for (level++; level < BD_ISA_COUNT; level++)
        if (bd_isa_supported((bd_isa_level)level)) {
            bd_isa_force((bd_isa_level)level);
            return level;
        }
    return -1; // the last one supported is still in force
}

static inline int level_first(void)
{
    return level_next(-1);
}

#endif
