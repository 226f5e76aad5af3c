#include "format/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>

// --- the byte alphabet ---------------------------------------------------------------------------

static bool shows_itself(int byte)
{
    return (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
}

// Bytes without a printable character of their own take U+0100, U+0101, ... in their order: the
// control characters and space (0-32), then 127-160, then 173.
int32_t bd_byte_character(uint8_t byte)
{
    if (shows_itself(byte))
        return byte;
    if (byte <= 32)
        return 256 + byte;
    return byte == 173 ? 256 + 67 : 256 + 33 + byte - 127;
}

static int byte_of_character(int32_t c)
{
    if (c < 256)
        return shows_itself(c) ? c : -1;
    if (c <= 256 + 32)
        return c - 256;
    if (c < 256 + 67)
        return c - 256 - 33 + 127;
    return c == 256 + 67 ? 173 : -1;
}

bool bd_unspell(const char *spelled, size_t size, bd_text *bytes)
{
    if (!bd_text_reserve(bytes, size))
        return true;
    char *out = bytes->data + bytes->size;
    for (size_t at = 0; at < size;) {
        int byte = byte_of_character(bd_utf8_next(spelled, &at));
        if (byte < 0) {
            bd_text_add(bytes, spelled, size);
            return false;
        }
        *out++ = (char)byte;
    }
    *out = 0;
    bytes->size = (size_t)(out - bytes->data);
    return true;
}

// --- hashing -------------------------------------------------------------------------------------

static uint64_t mix(uint64_t x)
{
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    x ^= x >> 32;
    x *= 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

uint64_t bd_hash_bytes(const char *bytes, size_t size)
{
    uint64_t hash = size * 0x9e3779b97f4a7c15u;
    while (size >= 8) {
        uint64_t eight;
        memcpy(&eight, bytes, 8);
        hash = (hash ^ eight) * 0x9fb21c651e98df25u;
        hash ^= hash >> 29;
        bytes += 8;
        size -= 8;
    }
    uint64_t rest = 0;
    if (size)
        memcpy(&rest, bytes, size);
    return mix(hash ^ rest);
}

static uint64_t power_of_two_above(int64_t count)
{
    uint64_t room = 16;
    while (room < (uint64_t)count)
        room *= 2;
    return room;
}

// --- tokens --------------------------------------------------------------------------------------

static bool no_memory(bd_error *err)
{
    return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a vocabulary");
}

static void bucket_insert(bd_vocabulary *v, int32_t id)
{
    const bd_token *token = &v->tokens[id];
    uint64_t at = bd_hash_bytes(v->pool.data + token->begin, token->size) & v->bucket_mask;
    while (v->bucket[at] >= 0)
        at = (at + 1) & v->bucket_mask;
    v->bucket[at] = id;
}

static bool buckets_make(bd_vocabulary *v, int64_t tokens, bd_error *err)
{
    uint64_t room = power_of_two_above(tokens * 2 + 16);
    int32_t *bucket = malloc(room * sizeof *bucket);
    if (!bucket)
        return no_memory(err);
    memset(bucket, 0xff, room * sizeof *bucket);
    free(v->bucket);
    v->bucket = bucket;
    v->bucket_mask = room - 1;
    for (int64_t id = 0; id < v->size; id++)
        if (v->tokens[id].flags & BD_TOKEN_IN_MODEL)
            bucket_insert(v, (int32_t)id);
    return true;
}

static uint64_t slot_of(const bd_vocabulary *v, uint64_t pair)
{
    uint64_t at = mix(pair) & v->slot_mask;
    while (v->slots[at].result >= 0 && v->slots[at].pair != pair)
        at = (at + 1) & v->slot_mask;
    return at;
}

static bool slots_make(bd_vocabulary *v, int64_t merges, bd_error *err)
{
    uint64_t room = power_of_two_above(merges * 2 + 16);
    bd_merge_slot *old = v->slots, *slots = malloc(room * sizeof *slots);
    uint64_t old_room = old ? v->slot_mask + 1 : 0;
    if (!slots)
        return no_memory(err);
    for (uint64_t i = 0; i < room; i++)
        slots[i].result = -1;
    v->slots = slots;
    v->slot_mask = room - 1;
    for (uint64_t i = 0; i < old_room; i++)
        if (old[i].result >= 0)
            slots[slot_of(v, old[i].pair)] = old[i];
    free(old);
    return true;
}

bool bd_vocabulary_start(bd_vocabulary *v, bd_error *err)
{
    memset(v->byte, 0xff, sizeof v->byte);
    return buckets_make(v, 1024, err) && slots_make(v, 1024, err);
}

static bool tokens_grow(bd_vocabulary *v, int32_t id, bd_error *err)
{
    if (id < v->size)
        return true;
    if (id >= v->room) {
        int64_t room = v->room ? v->room : 1024;
        while (room <= id)
            room *= 2;
        bd_token *larger = realloc(v->tokens, (size_t)room * sizeof *larger);
        if (!larger)
            return no_memory(err);
        v->tokens = larger;
        v->room = room;
    }
    memset(v->tokens + v->size, 0, (size_t)(id + 1 - v->size) * sizeof *v->tokens);
    v->size = id + 1;
    return true;
}

bool bd_vocabulary_put(bd_vocabulary *v, int32_t id, const char *bytes, size_t size, uint8_t flags,
                       bd_error *err)
{
    if (v->pool.size + size > UINT32_MAX)
        return bd_fail(err, "a vocabulary of more than 4 GB");
    size_t begin = v->pool.size;
    bd_text_add(&v->pool, bytes, size);
    bd_text_add_byte(&v->pool, 0); // so that a token's text can be printed
    if (v->pool.failed || !tokens_grow(v, id, err))
        return v->pool.failed ? no_memory(err) : false;
    v->tokens[id] = (bd_token){(uint32_t)begin, (uint32_t)size, flags};
    if (!(flags & BD_TOKEN_IN_MODEL))
        return true;
    if (size == 1 && !(flags & BD_TOKEN_RAW))
        v->byte[(uint8_t)bytes[0]] = id;
    if (++v->bucket_used * 2 > (int64_t)v->bucket_mask)
        return buckets_make(v, v->bucket_used * 2, err);
    bucket_insert(v, id);
    return true;
}

int32_t bd_vocabulary_find(const bd_vocabulary *v, const char *bytes, size_t size, bool raw)
{
    uint64_t at = bd_hash_bytes(bytes, size) & v->bucket_mask;
    for (; v->bucket[at] >= 0; at = (at + 1) & v->bucket_mask) {
        const bd_token *token = &v->tokens[v->bucket[at]];
        if (token->size == size && !(token->flags & BD_TOKEN_RAW) == !raw &&
            memcmp(v->pool.data + token->begin, bytes, size) == 0)
            return v->bucket[at];
    }
    return -1;
}

// --- merges --------------------------------------------------------------------------------------

// A pair that is listed twice has the later rank, as in other libraries.
bool bd_vocabulary_merge(bd_vocabulary *v, int32_t left, int32_t right, int32_t result,
                         bd_error *err)
{
    if (v->merge_count == v->merge_room) {
        int64_t room = v->merge_room ? v->merge_room * 2 : 1024;
        uint64_t *larger =
            room < INT32_MAX ? realloc(v->merges, (size_t)room * sizeof *larger) : NULL;
        if (!larger)
            return no_memory(err);
        v->merges = larger;
        v->merge_room = room;
    }
    if (v->merge_count * 2 >= (int64_t)v->slot_mask && !slots_make(v, v->merge_count * 2, err))
        return false;
    uint64_t pair = (uint64_t)left << 32 | (uint32_t)right;
    v->slots[slot_of(v, pair)] = (bd_merge_slot){pair, (uint32_t)v->merge_count, result};
    v->merges[v->merge_count++] = pair;
    return true;
}

const bd_merge_slot *bd_vocabulary_merge_of(const bd_vocabulary *v, int32_t left, int32_t right)
{
    const bd_merge_slot *slot = &v->slots[slot_of(v, (uint64_t)left << 32 | (uint32_t)right)];
    return slot->result >= 0 ? slot : NULL;
}

void bd_vocabulary_free(bd_vocabulary *v)
{
    bd_text_free(&v->pool);
    free(v->tokens);
    free(v->bucket);
    free(v->merges);
    free(v->slots);
    *v = (bd_vocabulary){0};
}
