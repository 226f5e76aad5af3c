/* levels.h - run a test at every instruction set this CPU has. */
#ifndef BD_TESTS_TENSOR_LEVELS_H
#define BD_TESTS_TENSOR_LEVELS_H

#include "check.h"
#include "tensor/isa.h"

/* for_each_level (level) { ... }: the level is in force inside, the best one again afterwards. */
static inline int level_next(int level)
{
    while (level < BD_ISA_COUNT && !bd_isa_supported((bd_isa_level)level))
        level++;
    if (level < BD_ISA_COUNT) {
        bd_isa_force((bd_isa_level)level);
        return level;
    }
    for (int best = BD_ISA_COUNT - 1; best >= 0; best--)
        if (bd_isa_supported((bd_isa_level)best)) {
            bd_isa_force((bd_isa_level)best);
            break;
        }
    return BD_ISA_COUNT;
}

#define for_each_level(level)                                                                      \
    for (int level = level_next(0); level < BD_ISA_COUNT; level = level_next(level + 1))

#endif
