#include "format/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

// Text is normalized in segments that no rule reaches across: a segment begins with a character
// whose decomposition starts with a starter (combining class 0) that never joins the character
// before it. Decomposing, ordering and composing one segment is then the same as doing it to the
// whole text, and each piece of the result has an exact origin.

// Starters that compose with the character before them, from Unicode's list of characters that may
// not appear as they are in NFC: vowel signs of Indic scripts, and Korean medial vowels and final
// consonants.
static bool joins_previous(int32_t c)
{
    static const int32_t joining[] = {
        0x09be,  0x09d7,  0x0b3e,  0x0b56,  0x0b57,  0x0bbe,  0x0bd7,  0x0cc2,  0x0cd5,  0x0cd6,
        0x0d3e,  0x0d57,  0x0dcf,  0x0ddf,  0x102e,  0x1b35,  0x11127, 0x1133e, 0x11357, 0x113b8,
        0x113bb, 0x113c2, 0x113c5, 0x113c7, 0x113c8, 0x113c9, 0x114b0, 0x114ba, 0x114bd, 0x115af,
        0x11930, 0x1611e, 0x1611f, 0x16120, 0x16129, 0x16d63, 0x16d67};
    if (c < 0x09be)
        return false;
    if ((c >= 0x1161 && c <= 0x1175) || (c >= 0x11a8 && c <= 0x11c2))
        return true;
    for (size_t i = 0; i < sizeof joining / sizeof *joining; i++)
        if (joining[i] == c)
            return true;
    return false;
}

static int combining_class(int32_t c)
{
    return c < 0x300 ? 0 : utf8proc_get_property(c)->combining_class;
}

// How far do characters go that are their own normal form and start a segment, whatever surrounds
// them? Those below U+0300 in NFC (its first byte is 0xcc), ASCII in the other forms.
static size_t plain_run(bd_normal_form form, const char *text, size_t at, size_t size)
{
    uint8_t limit = form == BD_NFC ? 0xcc : 0x80;
    while (at < size && (uint8_t)text[at] < limit)
        at++;
    return at;
}

bool bd_normal_already(bd_normal_form form, const char *text, size_t size)
{
    return plain_run(form, text, 0, size) == size;
}

// --- one segment ---------------------------------------------------------------------------------

typedef struct {
    int32_t *points; // decomposed
    size_t count, room;
} segment;

static bool segment_append(segment *s, const int32_t *points, size_t count, bd_error *err)
{
    if (s->count + count > s->room) {
        size_t room = (s->count + count) * 2 + 64;
        int32_t *larger = realloc(s->points, room * sizeof *larger);
        if (!larger)
            return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory to normalize a text");
        s->points = larger;
        s->room = room;
    }
    memcpy(s->points + s->count, points, count * sizeof *points);
    s->count += count;
    return true;
}

typedef struct {
    int32_t point;
    uint32_t order; // class << 24 | place: sorting by it is stable
} ordered_mark;

static int compare_marks(const void *a, const void *b)
{
    uint32_t x = ((const ordered_mark *)a)->order, y = ((const ordered_mark *)b)->order;
    return (x > y) - (x < y);
}

// Put a run of combining marks into the order of their classes, equal ones as they stand. Texts
// have runs of one to four; a hostile one can be as long as the text, so no insertion sort there.
static bool order_marks(int32_t *points, size_t count, bd_error *err)
{
    if (count < 32) {
        for (size_t i = 1; i < count; i++)
            for (size_t j = i; j > 0 && combining_class(points[j - 1]) > combining_class(points[j]);
                 j--) {
                int32_t swap = points[j];
                points[j] = points[j - 1];
                points[j - 1] = swap;
            }
        return true;
    }
    ordered_mark *marks = count < (1 << 24) ? malloc(count * sizeof *marks) : NULL;
    if (!marks)
        return bd_fail(err, "a text with %zu combining marks in a row", count);
    for (size_t i = 0; i < count; i++)
        marks[i] =
            (ordered_mark){points[i], (uint32_t)combining_class(points[i]) << 24 | (uint32_t)i};
    qsort(marks, count, sizeof *marks, compare_marks);
    for (size_t i = 0; i < count; i++)
        points[i] = marks[i].point;
    free(marks);
    return true;
}

static bool order_segment(segment *s, bd_error *err)
{
    for (size_t i = 0; i < s->count;) {
        size_t end = i;
        while (end < s->count && combining_class(s->points[end]) > 0)
            end++;
        if (end - i > 1 && !order_marks(s->points + i, end - i, err))
            return false;
        i = end + 1;
    }
    return true;
}

// --- the text ------------------------------------------------------------------------------------

static void align(bd_alignment *a, size_t to, size_t from, bool replaced)
{
    if (!a || a->failed)
        return;
    if (!replaced && a->count && !a->pieces[a->count - 1].replaced)
        return; // the copy goes on
    if (a->count == a->room) {
        int64_t room = a->room ? a->room * 2 : 64;
        bd_aligned_piece *larger = realloc(a->pieces, (size_t)room * sizeof *larger);
        if (!larger) {
            a->failed = true;
            return;
        }
        a->pieces = larger;
        a->room = room;
    }
    a->pieces[a->count++] = (bd_aligned_piece){(int64_t)to, (int64_t)from, replaced};
}

// Order, compose and append the segment that came from text[begin, end).
static bool flush(segment *s, bd_normal_form form, const char *text, size_t begin, size_t end,
                  bd_text *out, bd_alignment *alignment, bd_error *err)
{
    if (begin == end)
        return true;
    if (!order_segment(s, err))
        return false;
    if ((form == BD_NFC || form == BD_NFKC) && s->count > 1) {
        utf8proc_ssize_t left = utf8proc_normalize_utf32(s->points, (utf8proc_ssize_t)s->count,
                                                         UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        s->count = left < 0 ? 0 : (size_t)left;
    }
    size_t start = out->size;
    for (size_t i = 0; i < s->count; i++)
        bd_text_add_character(out, s->points[i]);
    s->count = 0;
    if (!bd_text_check(out, err))
        return false;
    bool same =
        out->size - start == end - begin && !memcmp(out->data + start, text + begin, end - begin);
    align(alignment, start, begin, !same);
    return true;
}

static bool decompose(bd_normal_form form, int32_t c, int32_t out[32], size_t *count, bd_error *err)
{
    utf8proc_option_t options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE;
    if (form == BD_NFKC || form == BD_NFKD)
        options |= UTF8PROC_COMPAT;
    int last_class = 0;
    utf8proc_ssize_t n = utf8proc_decompose_char(c, out, 32, options, &last_class);
    if (n < 1 || n > 32)
        return bd_fail(err, "U+%04X cannot be normalized", (unsigned)c);
    *count = (size_t)n;
    return true;
}

// Append plain characters up to, not including, the last of the run: a mark may follow that one.
// Returns where it starts.
static size_t copy_plain(bd_normal_form form, const char *text, size_t at, size_t size,
                         bd_text *out, bd_alignment *alignment)
{
    size_t last = plain_run(form, text, at, size);
    if (last == at)
        return at;
    last--;
    while (last > at && ((uint8_t)text[last] & 0xc0) == 0x80)
        last--;
    if (last > at) {
        align(alignment, out->size, at, false);
        bd_text_add(out, text + at, last - at);
    }
    return last;
}

bool bd_normalize(bd_normal_form form, const char *text, size_t size, bd_text *out,
                  bd_alignment *alignment, bd_error *err)
{
    segment s = {0};
    size_t begin = 0; // of the segment that is being collected
    bool ok = bd_text_reserve(out, size) || bd_text_check(out, err);
    for (size_t at = 0; ok && at < size;) {
        size_t here = at;
        int32_t c = bd_utf8_next(text, &at), parts[32];
        size_t count = 0;
        ok = decompose(form, c, parts, &count, err);
        if (ok && combining_class(parts[0]) == 0 && !joins_previous(parts[0])) {
            ok = flush(&s, form, text, begin, here, out, alignment, err);
            begin = copy_plain(form, text, here, size, out, alignment);
            if (begin > here) { // the segment starts with a later character than c
                at = begin;
                continue;
            }
        }
        ok = ok && segment_append(&s, parts, count, err);
    }
    ok = ok && flush(&s, form, text, begin, size, out, alignment, err);
    free(s.points);
    align(alignment, out->size, size, false); // a replaced piece ends where the next one begins
    if (ok && alignment && alignment->failed)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory to align a text");
    return ok && bd_text_check(out, err);
}

// The piece that holds byte `at` of the normalized text.
static int64_t piece_at(const bd_alignment *a, int64_t at)
{
    int64_t low = 0, high = a->count;
    while (high - low > 1) {
        int64_t middle = (low + high) / 2;
        if (a->pieces[middle].to <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

bd_token_span bd_alignment_span(const bd_alignment *a, int64_t begin, int64_t end)
{
    if (a->count == 0)
        return (bd_token_span){begin, end};
    bd_aligned_piece first = a->pieces[piece_at(a, begin)];
    int64_t last_index = piece_at(a, end > begin ? end - 1 : end);
    bd_aligned_piece last = a->pieces[last_index];
    bd_token_span span = {first.from + (first.replaced ? 0 : begin - first.to),
                          last.from + (end - last.to)};
    if (last.replaced)
        span.end = a->pieces[last_index + 1].from;
    return span;
}
