#include "format/tokenizer_learn.h"

#include <stdlib.h>
#include <string.h>

// The words are sequences of token ids. Every pair of neighbours has a count and a list of the
// words it was ever seen in; merging a pair visits those words and changes the counts around each
// place it finds. A heap offers the pairs by count. Counts that fell since a pair was offered are
// noticed when it comes up; only pairs with the new token can rise, and those are offered again.

typedef struct {
    uint64_t pair; // left << 32 | right
    int64_t count;
    int64_t first; // of its places, -1: none
    int64_t round; // the merge that last offered it
} counted_pair;

typedef struct {
    int32_t word;
    int64_t next;
} place;

typedef struct {
    int64_t count;
    int32_t pair; // index
} offered_pair;

typedef struct {
    int32_t *ids; // all words behind one another
    size_t *begin;
    uint32_t *length;
    const bd_word_counts *words;

    counted_pair *pairs;
    int64_t pair_count, pair_room;
    int32_t *bucket;
    uint64_t mask;

    place *places;
    int64_t place_count, place_room;

    offered_pair *heap;
    int64_t heap_count, heap_room;

    int32_t *touched; // pairs that rose in this round
    int64_t touched_count, touched_room;
    int64_t round;
} learner;

static bool no_memory(bd_error *err)
{
    return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory to learn a tokenizer from this much text");
}

// Make room for one more element in a list that doubles.
static bool room_for(void **list, int64_t count, int64_t *room, size_t size)
{
    if (count < *room)
        return true;
    int64_t larger_room = *room ? *room * 2 : 4096;
    void *larger = realloc(*list, (size_t)larger_room * size);
    if (!larger)
        return false;
    *list = larger;
    *room = larger_room;
    return true;
}

#define ROOM_FOR(l, name)                                                                          \
    room_for((void **)&(l)->name##s, (l)->name##_count, &(l)->name##_room, sizeof *(l)->name##s)

// --- the heap ------------------------------------------------------------------------------------

static bool before(const learner *l, offered_pair a, offered_pair b)
{
    if (a.count != b.count)
        return a.count > b.count;
    return l->pairs[a.pair].pair < l->pairs[b.pair].pair;
}

static bool offer(learner *l, int32_t pair)
{
    if (l->pairs[pair].count <= 0)
        return true;
    if (!room_for((void **)&l->heap, l->heap_count, &l->heap_room, sizeof *l->heap))
        return false;
    offered_pair item = {l->pairs[pair].count, pair};
    int64_t at = l->heap_count++;
    while (at > 0 && before(l, item, l->heap[(at - 1) / 2])) {
        l->heap[at] = l->heap[(at - 1) / 2];
        at = (at - 1) / 2;
    }
    l->heap[at] = item;
    return true;
}

static offered_pair take_best(learner *l)
{
    offered_pair best = l->heap[0], last = l->heap[--l->heap_count];
    int64_t at = 0;
    for (int64_t child = 1; child < l->heap_count; child = 2 * at + 1) {
        if (child + 1 < l->heap_count && before(l, l->heap[child + 1], l->heap[child]))
            child++;
        if (!before(l, l->heap[child], last))
            break;
        l->heap[at] = l->heap[child];
        at = child;
    }
    l->heap[at] = last;
    return best;
}

// --- pairs ---------------------------------------------------------------------------------------

static uint64_t bucket_of(const learner *l, uint64_t pair)
{
    uint64_t at = bd_hash_bytes((const char *)&pair, sizeof pair) & l->mask;
    while (l->bucket[at] >= 0 && l->pairs[l->bucket[at]].pair != pair)
        at = (at + 1) & l->mask;
    return at;
}

static bool buckets_grow(learner *l)
{
    if ((uint64_t)l->pair_count * 2 < l->mask)
        return true;
    uint64_t size = l->mask ? (l->mask + 1) * 2 : 1 << 16;
    int32_t *bucket = size <= (uint64_t)1 << 31 ? malloc(size * sizeof *bucket) : NULL;
    if (!bucket)
        return false;
    memset(bucket, 0xff, size * sizeof *bucket);
    free(l->bucket);
    l->bucket = bucket;
    l->mask = size - 1;
    for (int64_t i = 0; i < l->pair_count; i++)
        l->bucket[bucket_of(l, l->pairs[i].pair)] = (int32_t)i;
    return true;
}

// The index of a pair, made if it is new; -1 without memory.
static int32_t pair_index(learner *l, int32_t left, int32_t right)
{
    uint64_t pair = (uint64_t)left << 32 | (uint32_t)right;
    if (!buckets_grow(l))
        return -1;
    uint64_t at = bucket_of(l, pair);
    if (l->bucket[at] >= 0)
        return l->bucket[at];
    if (!ROOM_FOR(l, pair))
        return -1;
    l->pairs[l->pair_count] = (counted_pair){.pair = pair, .first = -1, .round = -1};
    l->bucket[at] = (int32_t)l->pair_count;
    return (int32_t)l->pair_count++;
}

// A pair lies `times` times more often in a word than before.
static bool count_pair(learner *l, int32_t left, int32_t right, int32_t word, int64_t times)
{
    int32_t index = pair_index(l, left, right);
    if (index < 0)
        return false;
    counted_pair *pair = &l->pairs[index];
    pair->count += times * l->words->words[word].count;
    if (times < 0)
        return true;
    if (pair->first < 0 || l->places[pair->first].word != word) {
        if (!ROOM_FOR(l, place))
            return false;
        l->places[l->place_count] = (place){word, pair->first};
        pair->first = l->place_count++;
    }
    if (pair->round == l->round)
        return true;
    pair->round = l->round;
    if (!room_for((void **)&l->touched, l->touched_count, &l->touched_room, sizeof *l->touched))
        return false;
    l->touched[l->touched_count++] = index;
    return true;
}

static bool offer_touched(learner *l)
{
    for (int64_t i = 0; i < l->touched_count; i++)
        if (!offer(l, l->touched[i]))
            return false;
    l->touched_count = 0;
    l->round++;
    return true;
}

// --- words ---------------------------------------------------------------------------------------

static bool start(learner *l, const bd_word_counts *words, const int32_t byte[256])
{
    l->words = words;
    l->ids = malloc((words->bytes.size + 1) * sizeof *l->ids);
    l->begin = malloc(((size_t)words->count + 1) * sizeof *l->begin);
    l->length = malloc(((size_t)words->count + 1) * sizeof *l->length);
    if (!l->ids || !l->begin || !l->length)
        return false;
    for (size_t i = 0; i < words->bytes.size; i++)
        l->ids[i] = byte[(uint8_t)words->bytes.data[i]];
    for (int32_t w = 0; w < words->count; w++) {
        l->begin[w] = words->words[w].begin;
        l->length[w] = words->words[w].size;
        const int32_t *ids = l->ids + l->begin[w];
        for (uint32_t i = 0; i + 1 < l->length[w]; i++)
            if (!count_pair(l, ids[i], ids[i + 1], w, 1))
                return false;
    }
    return offer_touched(l);
}

// Replace left, right by `merged` everywhere in a word, from the left.
static bool merge_in_word(learner *l, int32_t word, int32_t left, int32_t right, int32_t merged)
{
    int32_t *ids = l->ids + l->begin[word];
    uint32_t length = l->length[word], to = 0;
    for (uint32_t from = 0; from < length;) {
        if (from + 1 >= length || ids[from] != left || ids[from + 1] != right) {
            ids[to++] = ids[from++];
            continue;
        }
        if (to > 0 && (!count_pair(l, ids[to - 1], left, word, -1) ||
                       !count_pair(l, ids[to - 1], merged, word, 1)))
            return false;
        if (from + 2 < length && (!count_pair(l, right, ids[from + 2], word, -1) ||
                                  !count_pair(l, merged, ids[from + 2], word, 1)))
            return false;
        ids[to++] = merged;
        from += 2;
    }
    l->length[word] = to;
    return true;
}

static bool merge_everywhere(learner *l, int32_t pair, int32_t left, int32_t right, int32_t merged)
{
    int64_t at = l->pairs[pair].first;
    l->pairs[pair].first = -1;
    for (; at >= 0; at = l->places[at].next)
        if (!merge_in_word(l, l->places[at].word, left, right, merged))
            return false;
    l->pairs[pair].count = 0;
    return offer_touched(l);
}

// --- learning ------------------------------------------------------------------------------------

// The token that two make together, which may exist already: "a"+"bc" and "ab"+"c".
static int32_t merged_token(bd_vocabulary *v, bd_text *bytes, int32_t left, int32_t right,
                            bd_error *err)
{
    bd_text_clear(bytes);
    bd_text_add(bytes, v->pool.data + v->tokens[left].begin, v->tokens[left].size);
    bd_text_add(bytes, v->pool.data + v->tokens[right].begin, v->tokens[right].size);
    if (!bd_text_check(bytes, err))
        return -1;
    int32_t id = bd_vocabulary_find(v, bytes->data, bytes->size, false);
    if (id >= 0)
        return id;
    id = (int32_t)v->size;
    return bd_vocabulary_put(v, id, bytes->data, bytes->size, BD_TOKEN_IN_MODEL, err) ? id : -1;
}

static bool learn(learner *l, const bd_learn_limits *limits, bd_vocabulary *v,
                  bd_progress *progress, bd_error *err)
{
    bd_text bytes = {0};
    bool ok = true;
    while (ok && v->size < limits->tokens && l->heap_count) {
        offered_pair best = take_best(l);
        counted_pair pair = l->pairs[best.pair];
        if (pair.count != best.count) {
            ok = offer(l, best.pair) || no_memory(err);
            continue;
        }
        if (pair.count < limits->least_count)
            break;
        int32_t left = (int32_t)(pair.pair >> 32), right = (int32_t)(uint32_t)pair.pair;
        int64_t size = (int64_t)v->tokens[left].size + v->tokens[right].size;
        if (limits->longest_token && size > limits->longest_token)
            continue;
        int32_t merged = merged_token(v, &bytes, left, right, err);
        // Two ways to one token can bring a pair back that was merged before; its rank stays.
        bool again = bd_vocabulary_merge_of(v, left, right) != NULL;
        ok = merged >= 0 && (again || bd_vocabulary_merge(v, left, right, merged, err)) &&
             (merge_everywhere(l, best.pair, left, right, merged) || no_memory(err));
        if (progress)
            bd_progress_update(progress, v->size, "pair seen %lld times", (long long)pair.count);
    }
    bd_text_free(&bytes);
    return ok;
}

// The 256 bytes, ordered by the character that files spell them with.
static bool put_bytes(bd_vocabulary *v, bd_error *err)
{
    int32_t id = 0;
    for (int32_t c = 0; c < 256 + 68; c++)
        for (int byte = 0; byte < 256; byte++)
            if (bd_byte_character((uint8_t)byte) == c) {
                char one = (char)byte;
                if (!bd_vocabulary_put(v, id++, &one, 1, BD_TOKEN_IN_MODEL, err))
                    return false;
            }
    return true;
}

bool bd_learn_merges(const bd_word_counts *words, const bd_learn_limits *limits, bd_vocabulary *v,
                     bd_progress *progress, bd_error *err)
{
    learner l = {0};
    bool ok = bd_vocabulary_start(v, err) && put_bytes(v, err) &&
              (start(&l, words, v->byte) || no_memory(err)) && learn(&l, limits, v, progress, err);
    free(l.ids);
    free(l.begin);
    free(l.length);
    free(l.pairs);
    free(l.bucket);
    free(l.places);
    free(l.heap);
    free(l.touched);
    return ok;
}
