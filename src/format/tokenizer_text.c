#include "format/tokenizer_text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// --- growing -------------------------------------------------------------------------------------

bool bd_text_reserve(bd_text *text, size_t more)
{
    if (text->failed || more > SIZE_MAX / 4 || text->size > SIZE_MAX / 4) {
        text->failed = true;
        return false;
    }
    size_t wanted = text->size + more + 1;
    if (wanted <= text->room)
        return true;
    size_t room = text->room ? text->room : 64;
    while (room < wanted)
        room *= 2;
    char *larger = realloc(text->data, room);
    if (!larger) {
        text->failed = true;
        return false;
    }
    text->data = larger;
    text->room = room;
    return true;
}

void bd_text_add(bd_text *text, const void *bytes, size_t size)
{
    if (!bd_text_reserve(text, size))
        return;
    if (size)
        memcpy(text->data + text->size, bytes, size);
    text->size += size;
    text->data[text->size] = 0;
}

void bd_text_add_byte(bd_text *text, char byte)
{
    bd_text_add(text, &byte, 1);
}

void bd_text_add_string(bd_text *text, const char *string)
{
    bd_text_add(text, string, strlen(string));
}

void bd_text_add_character(bd_text *text, int32_t c)
{
    char out[4];
    size_t size = 0;
    if (c < 0x80) {
        out[size++] = (char)c;
    } else if (c < 0x800) {
        out[size++] = (char)(0xc0 | c >> 6);
        out[size++] = (char)(0x80 | (c & 0x3f));
    } else if (c < 0x10000) {
        out[size++] = (char)(0xe0 | c >> 12);
        out[size++] = (char)(0x80 | (c >> 6 & 0x3f));
        out[size++] = (char)(0x80 | (c & 0x3f));
    } else {
        out[size++] = (char)(0xf0 | c >> 18);
        out[size++] = (char)(0x80 | (c >> 12 & 0x3f));
        out[size++] = (char)(0x80 | (c >> 6 & 0x3f));
        out[size++] = (char)(0x80 | (c & 0x3f));
    }
    bd_text_add(text, out, size);
}

void bd_text_print(bd_text *text, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    va_list again;
    va_copy(again, list);
    int size = vsnprintf(NULL, 0, format, list);
    va_end(list);
    if (size < 0) {
        text->failed = true;
    } else if (bd_text_reserve(text, (size_t)size)) {
        vsnprintf(text->data + text->size, (size_t)size + 1, format, again);
        text->size += (size_t)size;
    }
    va_end(again);
}

void bd_text_clear(bd_text *text)
{
    text->size = 0;
    if (text->data)
        text->data[0] = 0;
}

void bd_text_free(bd_text *text)
{
    free(text->data);
    *text = (bd_text){0};
}

bool bd_text_check(const bd_text *text, bd_error *err)
{
    if (!text->failed)
        return true;
    return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a text of more than %zu bytes",
                      text->size);
}

// --- UTF-8 ---------------------------------------------------------------------------------------

// How many bytes of a character start at `bytes`, and is it whole? The second byte's range depends
// on the first: that is where overlong forms, surrogates and values past U+10FFFF are caught.
static size_t character_bytes(const uint8_t *bytes, size_t size, bool *whole)
{
    uint8_t first = bytes[0], low = 0x80, high = 0xbf;
    size_t wanted;
    *whole = false;
    if (first < 0x80)
        wanted = 1;
    else if (first >= 0xc2 && first <= 0xdf)
        wanted = 2;
    else if ((first & 0xf0) == 0xe0)
        wanted = 3;
    else if (first >= 0xf0 && first <= 0xf4)
        wanted = 4;
    else
        return 1;
    if (first == 0xe0)
        low = 0xa0;
    else if (first == 0xed)
        high = 0x9f;
    else if (first == 0xf0)
        low = 0x90;
    else if (first == 0xf4)
        high = 0x8f;
    size_t have = 1;
    while (have < wanted && have < size && bytes[have] >= low && bytes[have] <= high) {
        have++;
        low = 0x80;
        high = 0xbf;
    }
    *whole = have == wanted;
    return have;
}

size_t bd_utf8_valid(const char *text, size_t size)
{
    const uint8_t *bytes = (const uint8_t *)text;
    size_t at = 0;
    while (at < size) {
        uint64_t eight;
        if (size - at >= 8 && (memcpy(&eight, bytes + at, 8), !(eight & 0x8080808080808080u))) {
            at += 8;
            continue;
        }
        bool whole;
        size_t have = character_bytes(bytes + at, size - at, &whole);
        if (!whole)
            return at;
        at += have;
    }
    return size;
}

// May the bytes from `bytes` to the end become a character when more arrive?
static bool may_continue(const uint8_t *bytes, size_t have, size_t size)
{
    if (have < size)
        return false; // a byte that does not fit follows already
    uint8_t first = bytes[0];
    size_t wanted = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : 2;
    return first >= 0xc2 && first <= 0xf4 && have < wanted;
}

size_t bd_utf8_repair(bd_text *out, const char *text, size_t size, bool more)
{
    const uint8_t *bytes = (const uint8_t *)text;
    size_t at = 0;
    while (at < size) {
        size_t good = bd_utf8_valid(text + at, size - at);
        bd_text_add(out, text + at, good);
        at += good;
        if (at == size)
            break;
        bool whole;
        size_t have = character_bytes(bytes + at, size - at, &whole);
        if (more && may_continue(bytes + at, have, size - at))
            return at;
        bd_text_add_character(out, 0xfffd);
        at += have;
    }
    return size;
}

int32_t bd_utf8_next(const char *text, size_t *at)
{
    const uint8_t *b = (const uint8_t *)text + *at;
    if (b[0] < 0x80) {
        *at += 1;
        return b[0];
    }
    if (b[0] < 0xe0) {
        *at += 2;
        return (b[0] & 0x1f) << 6 | (b[1] & 0x3f);
    }
    if (b[0] < 0xf0) {
        *at += 3;
        return (b[0] & 0x0f) << 12 | (b[1] & 0x3f) << 6 | (b[2] & 0x3f);
    }
    *at += 4;
    return (b[0] & 0x07) << 18 | (b[1] & 0x3f) << 12 | (b[2] & 0x3f) << 6 | (b[3] & 0x3f);
}

size_t bd_utf8_count(const char *bytes, size_t size)
{
    size_t count = 0;
    for (size_t i = 0; i < size; i++)
        count += ((uint8_t)bytes[i] & 0xc0) != 0x80;
    return count;
}

bool bd_character_is_space(int32_t c)
{
    return (c >= 9 && c <= 13) || c == 0x20 || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}
