#include "base/arena.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct bd_arena {
    char *base;
    size_t reserved;
    size_t used;
    size_t peak;
};

enum { ALIGNMENT = 64 };
#define HUGE_PAGE ((size_t)2 << 20)

bd_arena *bd_arena_create(size_t reserve, bd_error *err)
{
    if (reserve == 0)
        reserve = (size_t)sysconf(_SC_PHYS_PAGES) * (size_t)sysconf(_SC_PAGESIZE);
    reserve = (reserve + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    bd_arena *arena = calloc(1, sizeof *arena);
    char *base = MAP_FAILED;
    if (arena)
        base = mmap(NULL, reserve + HUGE_PAGE, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) {
        free(arena);
        bd_fail_as(err, BD_ERROR_SYSTEM, "cannot reserve %zu bytes of address space", reserve);
        return NULL;
    }
    // Start on a huge-page border so that the first pages are huge as well.
    size_t skip = (HUGE_PAGE - (size_t)base % HUGE_PAGE) % HUGE_PAGE;
    if (skip)
        munmap(base, skip);
    if (HUGE_PAGE - skip)
        munmap(base + skip + reserve, HUGE_PAGE - skip);
    arena->base = base + skip;
    arena->reserved = reserve;
    madvise(arena->base, reserve, MADV_HUGEPAGE); // a wish; without it everything still works
    return arena;
}

void bd_arena_destroy(bd_arena *arena)
{
    if (!arena)
        return;
    munmap(arena->base, arena->reserved);
    free(arena);
}

void *bd_arena_alloc(bd_arena *arena, size_t bytes)
{
    if (bytes > arena->reserved - arena->used || bytes > SIZE_MAX - ALIGNMENT) {
        fprintf(stderr, "bdlm: out of memory: an arena of %zu bytes has %zu left, %zu wanted\n",
                arena->reserved, arena->reserved - arena->used, bytes);
        abort();
    }
    void *result = arena->base + arena->used;
    size_t step = (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    arena->used = arena->used + step > arena->reserved ? arena->reserved : arena->used + step;
    if (arena->used > arena->peak)
        arena->peak = arena->used;
    return result;
}

float *bd_arena_floats(bd_arena *arena, int64_t count)
{
    assert(count >= 0);
    return bd_arena_alloc(arena, (size_t)count * sizeof(float));
}

float *bd_arena_zeros(bd_arena *arena, int64_t count)
{
    float *result = bd_arena_floats(arena, count);
    memset(result, 0, (size_t)count * sizeof(float));
    return result;
}

int32_t *bd_arena_ints(bd_arena *arena, int64_t count)
{
    assert(count >= 0);
    return bd_arena_alloc(arena, (size_t)count * sizeof(int32_t));
}

char *bd_arena_text(bd_arena *arena, const char *text)
{
    size_t bytes = strlen(text) + 1;
    return memcpy(bd_arena_alloc(arena, bytes), text, bytes);
}

size_t bd_arena_mark(const bd_arena *arena)
{
    return arena->used;
}

void bd_arena_release(bd_arena *arena, size_t mark)
{
    assert(mark <= arena->used);
    arena->used = mark;
}

size_t bd_arena_peak(const bd_arena *arena)
{
    return arena->peak;
}
