/* tokenizer_text.h - growing byte strings, and the little of UTF-8 that tokenizers and templates
 * need.
 *
 * A bd_text starts as {0} and grows as bytes are added; running out of memory is remembered and
 * told once, by bd_text_check, so that a chain of additions needs no test after each.
 *
 *     bd_text text = {0};
 *     bd_text_add(&text, bytes, size);
 *     bd_text_print(&text, "%d", n);
 *     if (!bd_text_check(&text, &err)) ...
 *     bd_text_free(&text);
 */
#ifndef BD_FORMAT_TOKENIZER_TEXT_H
#define BD_FORMAT_TOKENIZER_TEXT_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct {
    char *data; /* NULL while nothing was ever added, else with a NUL after the last byte */
    size_t size, room;
    bool failed; /* memory ran out; what was added since is lost */
} bd_text;

bool bd_text_reserve(bd_text *text, size_t more);
void bd_text_add(bd_text *text, const void *bytes, size_t size);
void bd_text_add_byte(bd_text *text, char byte);
void bd_text_add_string(bd_text *text, const char *string);
void bd_text_add_character(bd_text *text, int32_t code_point);
void bd_text_print(bd_text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
void bd_text_clear(bd_text *text); /* keeps the memory */
void bd_text_free(bd_text *text);
bool bd_text_check(const bd_text *text, bd_error *err);

/* Where the first malformed sequence starts; `size` when there is none. Surrogates, overlong forms
 * and values past U+10FFFF are malformed. */
size_t bd_utf8_valid(const char *bytes, size_t size);

/* Append `bytes` with every malformed part replaced by one U+FFFD, a part being the longest start
 * of a character that no character continues (Unicode 3.9, "maximal subpart"). Returns how many
 * bytes were used: all, unless `more` says that bytes may follow and the last ones are the start of
 * a character. */
size_t bd_utf8_repair(bd_text *out, const char *bytes, size_t size, bool more);

/* The character at *at of well-formed text, and *at moved past it. */
int32_t bd_utf8_next(const char *bytes, size_t *at);

/* How many characters are there in well-formed text? */
size_t bd_utf8_count(const char *bytes, size_t size);

/* Unicode White_Space, the meaning of \s in tokenizer files. */
bool bd_character_is_space(int32_t code_point);

#endif
