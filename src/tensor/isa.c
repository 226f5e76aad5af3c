#include "tensor/isa.h"

#include <assert.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NAME(level) #level,
static const char *const names[BD_ISA_COUNT] = {BD_FOR_EACH_ISA(NAME)};

static atomic_int chosen = -1; // a bd_isa_level, or -1: not decided yet

const char *bd_isa_name(bd_isa_level level)
{
    assert(level >= 0 && level < BD_ISA_COUNT);
    return names[level];
}

bool bd_isa_supported(bd_isa_level level)
{
    switch (level) {
    case BD_ISA_PORTABLE:
        return true;
#if defined(__x86_64__)
    case BD_ISA_AVX2:
        return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case BD_ISA_AVX512:
        return bd_isa_supported(BD_ISA_AVX2) && __builtin_cpu_supports("avx512f") &&
               __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("bmi2");
    case BD_ISA_AVX512BF16:
        return bd_isa_supported(BD_ISA_AVX512) && __builtin_cpu_supports("avx512bf16") &&
               __builtin_cpu_supports("avx512vnni");
#endif
    default:
        return false;
    }
}

static bd_isa_level best_level(void)
{
    int level = BD_ISA_COUNT - 1;
    while (!bd_isa_supported((bd_isa_level)level))
        level--;
    return (bd_isa_level)level;
}

// "portable, avx2": what a user may write into BDLM_ISA on this machine.
static void list_supported(char *text, size_t size)
{
    size_t used = 0;
    text[0] = 0;
    for (int level = 0; level < BD_ISA_COUNT && used < size; level++)
        if (bd_isa_supported((bd_isa_level)level))
            used +=
                (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", names[level]);
}

bool bd_isa_init(bd_error *err)
{
    const char *wanted = getenv("BDLM_ISA");
    if (!wanted || !*wanted) {
        atomic_store(&chosen, (int)best_level());
        return true;
    }
    char supported[128];
    list_supported(supported, sizeof supported);
    for (int level = 0; level < BD_ISA_COUNT; level++) {
        if (strcmp(wanted, names[level]) != 0)
            continue;
        if (!bd_isa_supported((bd_isa_level)level))
            return bd_fail(err, "BDLM_ISA: this CPU does not have %s; it has: %s", wanted,
                           supported);
        atomic_store(&chosen, level);
        return true;
    }
    return bd_fail(err, "BDLM_ISA: unknown instruction set \"%.100s\"; this CPU has: %s", wanted,
                   supported);
}

bd_isa_level bd_isa(void)
{
    int level = atomic_load_explicit(&chosen, memory_order_relaxed);
    if (level < 0) {
        bd_error ignored = {0};
        if (!bd_isa_init(&ignored))
            atomic_store(&chosen, (int)best_level());
        level = atomic_load(&chosen);
    }
    return (bd_isa_level)level;
}

void bd_isa_force(bd_isa_level level)
{
    assert(bd_isa_supported(level));
    atomic_store(&chosen, (int)level);
}
