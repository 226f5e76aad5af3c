/* arena.h - memory that is reset, not freed.
 *
 * An arena reserves address space once and hands it out by moving a mark. The first touch of a 4 KB
 * page costs microseconds, so the range asks for huge pages; resetting keeps the pages. A training
 * step takes a mark, allocates everything it needs and goes back to the mark.
 *
 *     bd_arena *arena = bd_arena_create(0, &err);           // grows up to the machine's memory
 *     size_t mark = bd_arena_mark(arena);
 *     float *x = bd_arena_floats(arena, rows * cols);       // 64-byte aligned, not cleared
 *     bd_arena_release(arena, mark);
 */
#ifndef BD_BASE_ARENA_H
#define BD_BASE_ARENA_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct bd_arena bd_arena;

/* `reserve` bytes of address space (0: as much as the machine has memory). Pages are only taken when
 * touched. Returns NULL and fills in err when the system refuses. */
bd_arena *bd_arena_create(size_t reserve, bd_error *err);
void bd_arena_destroy(bd_arena *arena);

/* 64-byte aligned, contents undefined. Running out of the reserved range ends the program with a
 * message: an arena is sized for the whole machine, so there is nothing to recover to. */
void *bd_arena_alloc(bd_arena *arena, size_t bytes);
float *bd_arena_floats(bd_arena *arena, int64_t count);
float *bd_arena_zeros(bd_arena *arena, int64_t count);
int32_t *bd_arena_ints(bd_arena *arena, int64_t count);
char *bd_arena_text(bd_arena *arena, const char *text); /* a copy */

size_t bd_arena_mark(const bd_arena *arena);
void bd_arena_release(bd_arena *arena, size_t mark); /* everything allocated after mark is gone */
size_t bd_arena_peak(const bd_arena *arena);         /* most bytes ever in use */

#endif
