#include "base/huge.h"

#include <pthread.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

#define HUGE_PAGE  ((size_t)2 << 20)
#define CHUNK      ((size_t)32 << 20) // address space; pages are taken when touched
#define LARGEST    ((size_t)4 << 20)  // in a shared chunk
#define SIDE_BYTES ((size_t)64)       // before each block: where it comes from
#if defined(__SANITIZE_ADDRESS__)
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

typedef struct {
    size_t used, blocks; // bytes handed out, blocks not freed yet
} chunk;

typedef struct {
    chunk *from; // NULL: the block has its own pages
} side_note;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static chunk *open_chunk; // where the next blocks come from

static size_t round_up(size_t bytes, size_t unit)
{
    return (bytes + unit - 1) / unit * unit;
}

static void *huge_pages(size_t bytes)
{
    void *memory = aligned_alloc(HUGE_PAGE, round_up(bytes, HUGE_PAGE));
    if (memory)
        madvise(memory, round_up(bytes, HUGE_PAGE), MADV_HUGEPAGE); // a wish
    return memory;
}

static void *behind_note(char *at, chunk *from)
{
    ((side_note *)(void *)at)->from = from;
    return at + SIDE_BYTES;
}

// The chunk's own description takes the place of a first block.
static chunk *next_chunk(size_t need)
{
    if (open_chunk && open_chunk->used + need <= CHUNK)
        return open_chunk;
    chunk *fresh = huge_pages(CHUNK);
    if (!fresh)
        return NULL;
    *fresh = (chunk){.used = SIDE_BYTES};
    if (open_chunk && open_chunk->blocks == 0)
        free(open_chunk);
    open_chunk = fresh;
    return fresh;
}

static void *from_chunk(size_t need)
{
    pthread_mutex_lock(&lock);
    chunk *c = next_chunk(need);
    void *memory = NULL;
    if (c) {
        memory = behind_note((char *)c + c->used, c);
        c->used += need;
        c->blocks++;
    }
    pthread_mutex_unlock(&lock);
    return memory;
}

void *bd_huge_alloc(size_t bytes)
{
    if (bytes > SIZE_MAX - CHUNK)
        return NULL;
    size_t need = round_up(bytes ? bytes : 1, SIDE_BYTES) + SIDE_BYTES;
    // For the sanitizer every block is on its own, so that it sees overruns.
    if (need <= LARGEST && !SANITIZED)
        return from_chunk(need);
    char *own = SANITIZED ? aligned_alloc(SIDE_BYTES, need) : huge_pages(need);
    return own ? behind_note(own, NULL) : NULL;
}

void bd_huge_free(void *memory)
{
    if (!memory)
        return;
    char *at = (char *)memory - SIDE_BYTES;
    chunk *from = ((side_note *)(void *)at)->from;
    if (!from) {
        free(at);
        return;
    }
    pthread_mutex_lock(&lock);
    if (--from->blocks == 0) {
        if (from == open_chunk)
            from->used = SIDE_BYTES; // start over in the same pages
        else
            free(from);
    }
    pthread_mutex_unlock(&lock);
}
