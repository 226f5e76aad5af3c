/* UTF-8 and normalization under the tokenizer. */
#include <utf8proc.h>

#include "check.h"
#include "format/tokenizer_internal.h"

static void valid_utf8(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t good;
    } cases[] = {{"", 0},
                 {"plain ascii, longer than eight", 30},
                 {"\u00e9\u4e2d\U0001f642", 9},
                 {"\xf4\x8f\xbf\xbf", 4}, // U+10FFFF
                 {"\xf4\x90\x80\x80", 0}, // beyond
                 {"ab\x80", 2},           // a continuation on its own
                 {"abcdefgh\xc0\xaf", 8}, // overlong
                 {"\xe0\x9f\xbf", 0},     // overlong
                 {"\xf0\x8f\xbf\xbf", 0}, // overlong
                 {"\xed\x9f\xbf", 3},     // the last before the surrogates
                 {"\xed\xa0\x80", 0},     // a surrogate
                 {"a\xe4\xb8", 1},        // cut
                 {"\xc3\xa9\xff", 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(bd_utf8_valid(cases[i].text, strlen(cases[i].text)), cases[i].good);
    assert_int_equal(bd_utf8_valid("a\0b", 3), 3);
}

static void repair(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"ok\u00e9", "ok\u00e9"},
        {"a\xff"
         "b",
         "a\ufffdb"},
        {"\xe4\xb8"
         "x",
         "\ufffdx"}, // one for the cut character
        {"\xe4\xb8\xe4\xb8\xad", "\ufffd\u4e2d"},
        {"\xf0\x9f\x99", "\ufffd"},
        {"\xed\xa0\x80", "\ufffd\ufffd\ufffd"}, // no character starts so: each byte for itself
        {"\xc0\x80", "\ufffd\ufffd"},
        {"\xf0\x80\x80", "\ufffd\ufffd\ufffd"},
        {"\x80\x80", "\ufffd\ufffd"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bd_text out = {0};
        assert_int_equal(bd_utf8_repair(&out, cases[i][0], strlen(cases[i][0]), false),
                         strlen(cases[i][0]));
        assert_string_equal(out.data, cases[i][1]);
        bd_text_free(&out);
    }
    bd_text out = {0};
    assert_int_equal(bd_utf8_repair(&out, "a\xf0\x9f", 3, true), 1); // may go on
    assert_int_equal(bd_utf8_repair(&out, "\xf0\x80", 2, true), 2);  // may not
    assert_string_equal(out.data, "a\ufffd\ufffd");
    bd_text_free(&out);
}

static void characters(void **state)
{
    (void)state;
    bd_text text = {0};
    for (int32_t c = 1; c < 0x110000; c += c < 0x3000 ? 1 : 251) {
        if (c >= 0xd800 && c < 0xe000)
            continue;
        bd_text_clear(&text);
        bd_text_add_character(&text, c);
        size_t at = 0;
        assert_int_equal(bd_utf8_next(text.data, &at), c);
        assert_int_equal(at, text.size);
        assert_int_equal(bd_utf8_valid(text.data, text.size), text.size);
        assert_int_equal(bd_utf8_count(text.data, text.size), 1);
    }
    bd_text_free(&text);
    int spaces = 0;
    for (int32_t c = 0; c < 0x110000; c++)
        spaces += bd_character_is_space(c);
    assert_int_equal(spaces, 25); // as Unicode counts White_Space
}

// Characters that compose, decompose, reorder, join across starters, or only look plain.
static int32_t odd_character(uint64_t *noise)
{
    static const int32_t odd[] = {
        'e',    'A',     ' ',     0xe9,         0x301,  0x323,  0x327,  0x345,  0x308,
        0x344,  0x1e9b,  0x212b,  0xf71,        0xf72,  0xf73,  0xf75,  0xf81,  0x9c7,
        0x9be,  0x9d7,   0xb47,   0xb56,        0xbc6,  0xbbe,  0xdd9,  0xdcf,  0xdca,
        0x1100, 0x1161,  0x11a8,  0xac00,       0xac01, 0x3042, 0x3099, 0xff9e, 0xfb01,
        0x4e2d, 0x2f800, 0x1d15e, 0x1f642,      0x958,  0x93c,  0x2adc, 0x338,  0x1b06,
        0x1b35, 0x11131, 0x11127, 0x110000 - 1, 0xfdfa, 0x2126, 0x3ba};
    return odd[(size_t)((check_noise(noise) + 1) / 2 * (float)(sizeof odd / sizeof *odd))];
}

// What normalizing whole texts at once gives, from utf8proc.
static char *whole_text_form(bd_normal_form form, const char *text, size_t size)
{
    utf8proc_option_t options = UTF8PROC_STABLE;
    options |= form == BD_NFC || form == BD_NFKC ? UTF8PROC_COMPOSE : UTF8PROC_DECOMPOSE;
    if (form == BD_NFKC || form == BD_NFKD)
        options |= UTF8PROC_COMPAT;
    utf8proc_uint8_t *out = NULL;
    assert_true(
        utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)size, &out, options) >= 0);
    return (char *)out;
}

// Each piece of the result and of the source normalize to the same thing on their own.
static void check_alignment(bd_normal_form form, const bd_text *text, const bd_text *normal,
                            const bd_alignment *a)
{
    for (int64_t i = 0; i < a->count; i++) {
        bool last = i + 1 == a->count;
        int64_t to = a->pieces[i].to, to_end = last ? (int64_t)normal->size : a->pieces[i + 1].to;
        int64_t from = a->pieces[i].from,
                from_end = last ? (int64_t)text->size : a->pieces[i + 1].from;
        assert_true(to <= to_end && from <= from_end);
        if (!a->pieces[i].replaced) {
            assert_int_equal(to_end - to, from_end - from);
            assert_memory_equal(normal->data + to, text->data + from, (size_t)(to_end - to));
        }
        char *part = whole_text_form(form, text->data + from, (size_t)(from_end - from));
        assert_int_equal(strlen(part), to_end - to);
        assert_memory_equal(part, normal->data + to, (size_t)(to_end - to));
        free(part);
    }
}

static void normal_forms(void **state)
{
    (void)state;
    uint64_t noise = 11;
    for (int round = 0; round < 20000; round++) {
        bd_normal_form form = (bd_normal_form)(round % 4);
        bd_text text = {0}, normal = {0};
        bd_alignment alignment = {0};
        bd_error err = {0};
        for (int i = 0; i < 1 + round % 9; i++)
            bd_text_add_character(&text, odd_character(&noise));
        check_ok(bd_normalize(form, text.data, text.size, &normal, &alignment, &err), err);
        char *want = whole_text_form(form, text.data, text.size);
        if (strcmp(normal.data, want) != 0)
            fail_msg("form %d of \"%s\" is \"%s\", wanted \"%s\"", form, text.data, normal.data,
                     want);
        check_alignment(form, &text, &normal, &alignment);
        if (bd_normal_already(form, text.data, text.size))
            assert_string_equal(want, text.data);
        free(want);
        free(alignment.pieces);
        bd_text_free(&text);
        bd_text_free(&normal);
    }
}

// Every character alone, and behind a letter.
static void all_characters(void **state)
{
    (void)state;
    bd_text text = {0}, normal = {0};
    bd_error err = {0};
    for (int32_t c = 1; c < 0x30000; c++) {
        if (c >= 0xd800 && c < 0xe000)
            continue;
        bd_text_clear(&text);
        bd_text_clear(&normal);
        bd_text_add_byte(&text, 'e');
        bd_text_add_character(&text, c);
        bd_normal_form form = c % 2 ? BD_NFC : BD_NFKD;
        check_ok(bd_normalize(form, text.data, text.size, &normal, NULL, &err), err);
        char *want = whole_text_form(form, text.data, text.size);
        if (strcmp(normal.data, want) != 0)
            fail_msg("U+%04X: \"%s\", wanted \"%s\"", (unsigned)c, normal.data, want);
        free(want);
    }
    bd_text_free(&text);
    bd_text_free(&normal);
}

// Marks in descending order are the worst case for ordering by exchange: 10^10 steps for this text.
static void hostile_marks(void **state)
{
    (void)state;
    bd_text text = {0}, normal = {0};
    bd_error err = {0};
    bd_text_add_byte(&text, 'e');
    for (int i = 0; i < 200000; i++)
        bd_text_add_character(&text, i < 100000 ? 0x345 : 0x323); // classes 240 and 220
    check_ok(bd_normalize(BD_NFC, text.data, text.size, &normal, NULL, &err), err);
    size_t at = 0;
    assert_int_equal(bd_utf8_next(normal.data, &at), 0x1eb9); // e with the first dot below
    assert_int_equal(bd_utf8_next(normal.data, &at), 0x323);
    assert_int_equal(normal.size, 3 + 2 * 199999);
    bd_text_free(&text);
    bd_text_free(&normal);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid_utf8),     cmocka_unit_test(repair),
        cmocka_unit_test(characters),     cmocka_unit_test(normal_forms),
        cmocka_unit_test(all_characters), cmocka_unit_test(hostile_marks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
