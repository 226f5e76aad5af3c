#include "format/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

// --- the trie ------------------------------------------------------------------------------------

static int32_t trie_node(bd_trie *trie, uint8_t byte)
{
    if (trie->count == trie->room) {
        int32_t room = trie->room ? trie->room * 2 : 256;
        bd_trie_node *larger = realloc(trie->nodes, (size_t)room * sizeof *larger);
        if (!larger)
            return -1;
        trie->nodes = larger;
        trie->room = room;
    }
    trie->nodes[trie->count] =
        (bd_trie_node){.child = -1, .sibling = -1, .token = -1, .byte = byte};
    return trie->count++;
}

static int32_t trie_step(const bd_trie *trie, int32_t node, uint8_t byte)
{
    int32_t child = trie->nodes[node].child;
    while (child >= 0 && trie->nodes[child].byte != byte)
        child = trie->nodes[child].sibling;
    return child;
}

bool bd_trie_add(bd_trie *trie, const char *bytes, size_t size, int32_t token, bd_error *err)
{
    int32_t node = trie->count ? 0 : trie_node(trie, 0);
    if (trie->count == 1)
        memset(trie->first, 0xff, sizeof trie->first);
    for (size_t i = 0; node >= 0 && i < size; i++) {
        int32_t next = trie_step(trie, node, (uint8_t)bytes[i]);
        if (next < 0 && (next = trie_node(trie, (uint8_t)bytes[i])) >= 0) {
            trie->nodes[next].sibling = trie->nodes[node].child;
            trie->nodes[node].child = next;
            if (node == 0)
                trie->first[(uint8_t)bytes[i]] = next;
        }
        node = next;
    }
    if (node < 0)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for an added token");
    trie->nodes[node].token = token;
    return true;
}

void bd_trie_free(bd_trie *trie)
{
    free(trie->nodes);
    *trie = (bd_trie){0};
}

// The token with the longest text at `text`, -1: none. *length is its size.
static int32_t longest_at(const bd_trie *trie, const char *text, int64_t size, int64_t *length)
{
    int32_t found = -1, node = trie->first[(uint8_t)text[0]];
    for (int64_t i = 1; node >= 0; i++) {
        if (trie->nodes[node].token >= 0) {
            found = trie->nodes[node].token;
            *length = i;
        }
        if (i >= size)
            break;
        node = trie_step(trie, node, (uint8_t)text[i]);
    }
    return found;
}

// --- what surrounds a match ----------------------------------------------------------------------

static int32_t character_before(const char *text, int64_t at, int64_t *start)
{
    do
        at--;
    while (at > 0 && ((uint8_t)text[at] & 0xc0) == 0x80);
    *start = at;
    size_t next = (size_t)at;
    return bd_utf8_next(text, &next);
}

static bool is_word_character(int32_t c)
{
    switch (utf8proc_category(c)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_PC:
        return true;
    default:
        return c == 0x200c || c == 0x200d || // joiners
               (c >= 0x24b6 && c <= 0x24e9) ||
               (c >= 0x1f130 && c <= 0x1f149) || // letters in frames
               (c >= 0x1f150 && c <= 0x1f169) || (c >= 0x1f170 && c <= 0x1f189);
    }
}

static bool stands_alone(const char *text, int64_t size, int64_t begin, int64_t end)
{
    int64_t start;
    if (begin > 0 && is_word_character(character_before(text, begin, &start)))
        return false;
    size_t after = (size_t)end;
    return end >= size || !is_word_character(bd_utf8_next(text, &after));
}

static int64_t spaces_start(const char *text, int64_t done, int64_t begin)
{
    int64_t start;
    while (begin > done && bd_character_is_space(character_before(text, begin, &start)))
        begin = start;
    return begin > done ? begin : done;
}

static int64_t spaces_end(const char *text, int64_t size, int64_t end)
{
    while (end < size) {
        size_t next = (size_t)end;
        if (!bd_character_is_space(bd_utf8_next(text, &next)))
            break;
        end = (int64_t)next;
    }
    return end;
}

bd_added_match bd_added_next(const bd_trie *trie, const bd_added_token *added, const char *text,
                             int64_t size, bool skip_special, int64_t done, int64_t *from)
{
    bd_added_match match;
    if (trie->count == 0)
        return (bd_added_match){size, size, -1};
    for (int64_t at = *from; at < size; at++) {
        if (trie->first[(uint8_t)text[at]] < 0)
            continue;
        int64_t length = 0;
        int32_t found = longest_at(trie, text + at, size - at, &length);
        if (found < 0)
            continue;
        const bd_added_token *token = &added[found];
        int64_t end = at + length;
        match.token = found;
        match.begin = token->lstrip ? spaces_start(text, done, at) : at;
        match.end = token->rstrip ? spaces_end(text, size, end) : end;
        *from = end;
        // A match that does not count still hides shorter ones inside it. Tokens made of spaces may
        // lie in what an rstrip took: with lstrip nothing is left of them, without they count all
        // the same.
        if (match.begin < match.end && !(skip_special && token->special) &&
            !(token->single_word && !stands_alone(text, size, at, end)))
            return match;
        at = end - 1;
    }
    *from = size;
    return (bd_added_match){size, size, -1};
}
