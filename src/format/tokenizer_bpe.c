#include "format/tokenizer_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

// Words repeat: a table of the last word seen per hash value answers most of them. An entry is
// whole or overwritten, there is no searching on; it is one cache line, so that a look costs one
// miss.
enum { CACHE_ENTRIES = 1 << 15, CACHED_BYTES = 30, CACHED_IDS = 8 };

typedef struct {
    uint8_t size, count; // size 0: empty
    char word[CACHED_BYTES];
    int32_t ids[CACHED_IDS];
} cached_word;
static_assert(sizeof(cached_word) == 64, "one cache line");

struct bd_word_cache {
    cached_word entry[CACHE_ENTRIES];
};

bool bd_merger_open(bd_merger *merger, bd_error *err)
{
    merger->cache = aligned_alloc(64, sizeof *merger->cache);
    if (merger->cache)
        memset(merger->cache, 0, sizeof *merger->cache);
    return merger->cache || bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a word cache");
}

void bd_merger_close(bd_merger *merger)
{
    free(merger->symbols);
    free(merger->heap);
    free(merger->ids);
    free(merger->cache);
    *merger = (bd_merger){0};
}

// A word of n bytes has n symbols; each pair is a candidate once at the start, and each of at most
// n - 1 merges makes two more.
static bool make_room(bd_merger *m, size_t size, bd_error *err)
{
    if (size <= m->room)
        return true;
    if (size > INT32_MAX / 4)
        return bd_fail(err, "a word of %zu bytes, at most %d expected", size, INT32_MAX / 4);
    size_t room = size + size / 2 + 64;
    free(m->symbols);
    free(m->heap);
    free(m->ids);
    m->symbols = malloc(room * sizeof *m->symbols);
    m->heap = malloc(room * 3 * sizeof *m->heap);
    m->ids = malloc(room * sizeof *m->ids);
    m->room = room;
    if (!m->symbols || !m->heap || !m->ids) {
        m->room = 0;
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a word of %zu bytes", size);
    }
    return true;
}

// --- a heap of candidate merges ------------------------------------------------------------------

static void heap_push(bd_candidate *heap, size_t *count, bd_candidate c)
{
    size_t at = (*count)++;
    while (at > 0 && heap[(at - 1) / 2].order > c.order) {
        heap[at] = heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    heap[at] = c;
}

static bd_candidate heap_pop(bd_candidate *heap, size_t *count)
{
    bd_candidate top = heap[0], last = heap[--*count];
    size_t at = 0;
    for (size_t child = 1; child < *count; child = 2 * at + 1) {
        if (child + 1 < *count && heap[child + 1].order < heap[child].order)
            child++;
        if (heap[child].order >= last.order)
            break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = last;
    return top;
}

static void offer(bd_merger *m, size_t *count, const bd_vocabulary *v, int32_t left)
{
    int32_t right = m->symbols[left].right;
    if (right < 0)
        return;
    const bd_merge_slot *merge =
        bd_vocabulary_merge_of(v, m->symbols[left].id, m->symbols[right].id);
    if (merge)
        heap_push(m->heap, count,
                  (bd_candidate){(uint64_t)merge->rank << 32 | (uint32_t)left, merge->result});
}

// --- one word ------------------------------------------------------------------------------------

static bool symbols_of(bd_merger *m, const bd_merge_rules *rules, const char *word, size_t size,
                       bd_error *err)
{
    for (size_t i = 0; i < size; i++) {
        int32_t id = rules->vocabulary->byte[(uint8_t)word[i]];
        if (id < 0)
            id = rules->unknown;
        if (id < 0)
            return bd_fail(err, "the vocabulary has no token for byte 0x%02x", (uint8_t)word[i]);
        m->symbols[i] = (bd_symbol){id, (int32_t)i - 1, i + 1 < size ? (int32_t)i + 1 : -1};
    }
    return true;
}

// The pair of lowest rank first, the leftmost of equal ones, until no pair has a merge.
static void merge_all(bd_merger *m, const bd_vocabulary *v, size_t size)
{
    size_t count = 0;
    for (size_t i = 0; i + 1 < size; i++)
        offer(m, &count, v, (int32_t)i);
    while (count) {
        bd_candidate next = heap_pop(m->heap, &count);
        int32_t left = (int32_t)(uint32_t)next.order;
        bd_symbol *a = &m->symbols[left];
        if (a->id < 0 || a->right < 0)
            continue;
        // The candidate is stale when one of its sides has grown since, unless they still make the
        // same token: other libraries merge then, so this does.
        const bd_merge_slot *merge = bd_vocabulary_merge_of(v, a->id, m->symbols[a->right].id);
        if (!merge || merge->result != next.result)
            continue;
        bd_symbol *b = &m->symbols[a->right];
        a->id = next.result;
        a->right = b->right;
        b->id = -1;
        if (a->right >= 0)
            m->symbols[a->right].left = left;
        if (a->left >= 0)
            offer(m, &count, v, a->left);
        offer(m, &count, v, left);
    }
}

bool bd_merger_run(bd_merger *m, const bd_merge_rules *rules, const char *word, size_t size,
                   const int32_t **ids, size_t *count, bd_error *err)
{
    cached_word *cached = NULL;
    if (size <= CACHED_BYTES) {
        cached = &m->cache->entry[bd_hash_bytes(word, size) % CACHE_ENTRIES];
        if (cached->size == size && memcmp(cached->word, word, size) == 0) {
            *ids = cached->ids;
            *count = cached->count;
            return true;
        }
    }
    if (!make_room(m, size, err))
        return false;
    size_t n = 0;
    int32_t whole =
        rules->whole_words ? bd_vocabulary_find(rules->vocabulary, word, size, false) : -1;
    if (whole >= 0) {
        m->ids[n++] = whole;
    } else {
        if (!symbols_of(m, rules, word, size, err))
            return false;
        merge_all(m, rules->vocabulary, size);
        for (int32_t i = size ? 0 : -1; i >= 0; i = m->symbols[i].right)
            m->ids[n++] = m->symbols[i].id;
    }
    if (cached && n <= CACHED_IDS) {
        cached->size = (uint8_t)size;
        cached->count = (uint8_t)n;
        memcpy(cached->word, word, size);
        memcpy(cached->ids, m->ids, n * sizeof *m->ids);
    }
    *ids = m->ids;
    *count = n;
    return true;
}
