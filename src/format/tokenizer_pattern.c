#include "format/tokenizer_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

const char *const bd_pattern_gpt2 =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
// Qwen and Llama 3 differ in how many digits make a word.
#define TO_DIGITS   "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}"
#define FROM_DIGITS "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
const char *const bd_pattern_qwen = TO_DIGITS FROM_DIGITS;
const char *const bd_pattern_llama3 = TO_DIGITS "{1,3}" FROM_DIGITS;

// --- from Oniguruma's Ruby syntax to PCRE2 -------------------------------------------------------
//
// Tokenizer files are written for Oniguruma. The two engines agree on almost all of what the files
// use; the rest is rewritten, or refused where a rewriting would be a guess:
//   \s \d \w    White_Space, Nd, and Alphabetic|M|Nd|Pc with the Latin-1 numbers
//   [:alpha:]   and its like: Unicode's Alphabetic, not only letters
//   \b          between \w and not \w
//   \p{Han}     a script, where PCRE2 takes script extensions
//   (?m)        "." matches newline, which PCRE2 calls (?s); "^" and "$" always work on lines
//   \u4e00      \x{4e00}
//   {,3}        {0,3}

typedef struct {
    const char *pattern, *at; // what is translated, the next character
    const char *where;
    bool in_class;
    bd_text out;
    bd_error *err;
} translation;

static bool refuse(translation *t, const char *what)
{
    return bd_fail(t->err, "%s: pattern \"%.200s\", byte %td: %s is not supported", t->where,
                   t->pattern, t->at - t->pattern, what);
}

static bool property_exists(const char *name, int size)
{
    char pattern[64];
    int error;
    size_t offset;
    snprintf(pattern, sizeof pattern, "\\p{sc:%.*s}", size, name);
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, PCRE2_UTF, &error, &offset, NULL);
    pcre2_code_free(code);
    return code != NULL;
}

static bool translate_property(translation *t)
{
    char sign = t->at[1];
    const char *name = t->at + 2;
    if (*name != '{') {
        bd_text_add(&t->out, t->at, 2);
        t->at += 2;
        return true;
    }
    const char *end = strchr(++name, '}');
    if (!end || end - name > 40)
        return refuse(t, "a property without a closing brace");
    bool negated = *name == '^';
    name += negated;
    int size = (int)(end - name);
    const char *prefix = size > 2 && property_exists(name, size) ? "sc:" : "";
    bd_text_print(&t->out, "\\%c{%s%s%.*s}", sign, negated ? "^" : "", prefix, size, name);
    t->at = end + 1;
    return true;
}

#define JUST_WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
#define WORD      JUST_WORD "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}"

static bool translate_escape(translation *t)
{
    const char *simple = NULL;
    switch (t->at[1]) {
    case 0:
        return refuse(t, "a backslash at the end");
    case 'p':
    case 'P':
        return translate_property(t);
    case 's':
        simple = "\\p{White_Space}";
        break;
    case 'S':
        simple = "\\P{White_Space}";
        break;
    case 'd':
        simple = "\\p{Nd}";
        break;
    case 'D':
        simple = "\\P{Nd}";
        break;
    case 'w':
        simple = t->in_class ? WORD : "[" WORD "]";
        break;
    case 'W':
        if (t->in_class)
            return refuse(t, "\\W inside a class");
        simple = "[^" WORD "]";
        break;
    case 'b':
        simple =
            t->in_class ? "\\b" : "(?:(?<=[" WORD "])(?![" WORD "])|(?<![" WORD "])(?=[" WORD "]))";
        break;
    case 'B':
        simple = "(?:(?<=[" WORD "])(?=[" WORD "])|(?<![" WORD "])(?![" WORD "]))";
        break;
    case 'h':
    case 'H':
        return refuse(t, "\\h (a hexadecimal digit to one engine, a blank to another)");
    case 'K':
    case 'G':
    case 'C':
        return refuse(t, "\\K, \\G or \\C");
    case 'u':
        for (int i = 2; i < 6; i++)
            if (!isxdigit((unsigned char)t->at[i]))
                return refuse(t, "\\u without four hexadecimal digits");
        bd_text_print(&t->out, "\\x{%.4s}", t->at + 2);
        t->at += 6;
        return true;
    default:
        bd_text_add(&t->out, t->at, 2);
        t->at += 2;
        return true;
    }
    bd_text_add_string(&t->out, simple);
    t->at += 2;
    return true;
}

static bool translate_posix_class(translation *t)
{
    static const char *const meaning[][2] = {
        {"[:alpha:]", "\\p{Alphabetic}"}, {"[:alnum:]", "\\p{Alphabetic}\\p{Nd}"},
        {"[:digit:]", "\\p{Nd}"},         {"[:space:]", "\\p{White_Space}"},
        {"[:upper:]", "\\p{Uppercase}"},  {"[:lower:]", "\\p{Lowercase}"},
        {"[:punct:]", "\\p{P}\\p{S}"},    {"[:word:]", WORD}};
    for (size_t i = 0; i < sizeof meaning / sizeof *meaning; i++) {
        size_t size = strlen(meaning[i][0]);
        if (strncmp(t->at, meaning[i][0], size) == 0) {
            bd_text_add_string(&t->out, meaning[i][1]);
            t->at += size;
            return true;
        }
    }
    return refuse(t, "this named class, or a class inside a class,");
}

static bool translate_in_class(translation *t)
{
    if (*t->at == '[')
        return translate_posix_class(t);
    if (t->at[0] == '&' && t->at[1] == '&')
        return refuse(t, "an intersection of classes (&&)");
    t->in_class = *t->at != ']';
    bd_text_add_byte(&t->out, *t->at++);
    return true;
}

static void open_class(translation *t)
{
    t->in_class = true;
    bd_text_add_byte(&t->out, *t->at++);
    if (*t->at == '^')
        bd_text_add_byte(&t->out, *t->at++);
    if (*t->at == ']') { // first in a class it is itself
        bd_text_add_string(&t->out, "\\]");
        t->at++;
    }
}

// "(?" and what follows when it sets options: Ruby's m is PCRE2's s.
static void translate_group(translation *t)
{
    size_t flags = strspn(t->at + 2, "imx-");
    char after = t->at[2 + flags];
    bd_text_add(&t->out, t->at, 2);
    if (flags && (after == ':' || after == ')'))
        for (size_t i = 0; i < flags; i++)
            bd_text_add_byte(&t->out, (char)(t->at[2 + i] == 'm' ? 's' : t->at[2 + i]));
    else
        flags = 0;
    t->at += 2 + flags;
}

static bool translate_braces(translation *t)
{
    size_t inside = strspn(t->at + 1, "0123456789,");
    if (t->at[1 + inside] != '}' || inside == 0) { // a brace that is itself
        bd_text_add_string(&t->out, "\\{");
        t->at++;
        return true;
    }
    if (t->at[2 + inside] == '+')
        return refuse(t, "\"+\" after {n,m} (possessive to one engine, a repetition to another)");
    bd_text_add_string(&t->out, t->at[1] == ',' ? "{0" : "{");
    bd_text_add(&t->out, t->at + 1, inside + 1);
    t->at += inside + 2;
    return true;
}

static bool translate(translation *t)
{
    while (*t->at) {
        bool ok = true;
        if (*t->at == '\\')
            ok = translate_escape(t);
        else if (t->in_class)
            ok = translate_in_class(t);
        else if (*t->at == '[')
            open_class(t);
        else if (t->at[0] == '(' && t->at[1] == '?')
            translate_group(t);
        else if (t->at[0] == '(' && t->at[1] == '*')
            ok = refuse(t, "a verb such as (*ACCEPT)");
        else if (*t->at == '{')
            ok = translate_braces(t);
        else
            bd_text_add_byte(&t->out, *t->at++);
        if (!ok)
            return false;
    }
    return bd_text_check(&t->out, t->err);
}

// --- compiling -----------------------------------------------------------------------------------

static bool compile(bd_stage *stage, const char *pattern, uint32_t options, const char *where,
                    bd_error *err)
{
    int error;
    size_t offset;
    stage->code =
        pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED, options, &error, &offset, NULL);
    if (!stage->code) {
        char reason[200];
        pcre2_get_error_message(error, (PCRE2_UCHAR *)reason, sizeof reason);
        return bd_fail(err, "%s: pattern \"%.200s\", byte %zu: %s", where, pattern, offset, reason);
    }
    stage->jit = pcre2_jit_compile(stage->code, PCRE2_JIT_COMPLETE) == 0;
    return true;
}

bool bd_stage_compile(bd_stage *stage, const char *pattern, const char *where, bd_error *err)
{
    if (strlen(pattern) > 65536)
        return bd_fail(err, "%s: a pattern of %zu bytes, at most 65536 expected", where,
                       strlen(pattern));
    translation t = {.pattern = pattern, .at = pattern, .where = where, .err = err};
    bd_text_add_string(&t.out, "");
    bool ok = translate(&t) &&
              compile(stage, t.out.data, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE, where, err);
    bd_text_free(&t.out);
    return ok;
}

bool bd_stage_words(bd_stage *stage, const char *where, bd_error *err)
{
    static const char pattern[] =
        "[" JUST_WORD "\\x{200c}\\x{200d}]+|[^" JUST_WORD "\\x{200c}\\x{200d}\\p{White_Space}]+";
    return compile(stage, pattern, PCRE2_UTF | PCRE2_UCP, where, err);
}

bool bd_stage_literal(bd_stage *stage, const char *text, const char *where, bd_error *err)
{
    return compile(stage, text, PCRE2_UTF | PCRE2_LITERAL, where, err);
}

void bd_stage_free(bd_stage *stage)
{
    pcre2_code_free(stage->code);
    stage->code = NULL;
}

// --- matching ------------------------------------------------------------------------------------

bool bd_matcher_open(bd_matcher *matcher, bd_error *err)
{
    matcher->match = pcre2_match_data_create(1, NULL);
    matcher->context = pcre2_match_context_create(NULL);
    matcher->stack = pcre2_jit_stack_create(32 << 10, 8 << 20, NULL);
    if (!matcher->match || !matcher->context)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a pattern matcher");
    if (matcher->stack)
        pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    return true;
}

void bd_matcher_close(bd_matcher *matcher)
{
    pcre2_match_data_free(matcher->match);
    pcre2_match_context_free(matcher->context);
    pcre2_jit_stack_free(matcher->stack);
    *matcher = (bd_matcher){0};
}

// An honest pattern takes a few steps a byte, and at worst goes over the rest of the text once.
void bd_matcher_limit(bd_matcher *matcher, size_t text_size)
{
    size_t steps = 1000000 + text_size * 8;
    pcre2_set_match_limit(matcher->context, steps > UINT32_MAX ? UINT32_MAX : (uint32_t)steps);
    pcre2_set_heap_limit(matcher->context, 64 << 10); // in KB
}

typedef struct {
    size_t begin, end;
    bool match;
} piece;

typedef struct {
    const bd_stage *stage;
    const char *text;
    bd_word_visitor word;
    void *context;
    piece held; // may still grow; empty while there is none
    bool holding;
} splitter;

static bool emit(splitter *s, piece p, bd_error *err)
{
    return p.begin == p.end || s->word(s->context, s->text + p.begin, p.end - p.begin, err);
}

// One stretch of text that is a match or lies between matches, in order.
static bool take(splitter *s, size_t begin, size_t end, bool match, bd_error *err)
{
    piece p = {begin, end, match != s->stage->invert};
    bool join = false;
    switch (s->stage->behavior) {
    case BD_SPLIT_ISOLATED:
        return emit(s, p, err);
    case BD_SPLIT_REMOVED:
        return p.match || emit(s, p, err);
    case BD_SPLIT_CONTIGUOUS:
        join = s->holding && s->held.match == p.match;
        break;
    case BD_SPLIT_WITH_PREVIOUS:
        join = s->holding && p.match && !s->held.match;
        break;
    case BD_SPLIT_WITH_NEXT:
        join = s->holding && s->held.match && !p.match;
        break;
    }
    if (join) {
        s->held.end = p.end;
        s->held.match = p.match;
        return true;
    }
    bool ok = !s->holding || emit(s, s->held, err);
    s->held = p;
    s->holding = true;
    return ok;
}

static int find(const bd_stage *stage, bd_matcher *matcher, const char *text, size_t size,
                size_t from)
{
    // The text was checked once, as a whole.
    if (stage->jit)
        return pcre2_jit_match(stage->code, (PCRE2_SPTR)text, size, from, PCRE2_NO_UTF_CHECK,
                               matcher->match, matcher->context);
    return pcre2_match(stage->code, (PCRE2_SPTR)text, size, from, PCRE2_NO_UTF_CHECK,
                       matcher->match, matcher->context);
}

static bool match_failed(int code, size_t at, bd_error *err)
{
    if (code == PCRE2_ERROR_MATCHLIMIT || code == PCRE2_ERROR_JIT_STACKLIMIT ||
        code == PCRE2_ERROR_HEAPLIMIT || code == PCRE2_ERROR_DEPTHLIMIT)
        return bd_fail(
            err, "the pre-tokenizer's pattern needs too many steps %zu bytes into a piece of text",
            at);
    char reason[200];
    pcre2_get_error_message(code, (PCRE2_UCHAR *)reason, sizeof reason);
    return bd_fail(err, "the pre-tokenizer's pattern failed: %s", reason);
}

bool bd_stage_split(const bd_stage *stage, bd_matcher *matcher, const char *text, size_t size,
                    bd_word_visitor word, void *context, bd_error *err)
{
    if (!stage->code)
        return size == 0 || word(context, text, size, err);
    splitter s = {.stage = stage, .text = text, .word = word, .context = context};
    size_t taken = 0, from = 0, last_end = SIZE_MAX;
    while (from <= size) {
        int code = find(stage, matcher, text, size, from);
        if (code == PCRE2_ERROR_NOMATCH)
            break;
        if (code < 0)
            return match_failed(code, from, err);
        const size_t *found = pcre2_get_ovector_pointer(matcher->match);
        size_t begin = found[0], end = found[1];
        if (begin == end && end == last_end) {
            // Nothing, right behind the last match: look again one character on.
            if (from >= size)
                break;
            bd_utf8_next(text, &from);
            continue;
        }
        if (taken < begin && !take(&s, taken, begin, false, err))
            return false;
        if (!take(&s, begin, end, true, err))
            return false;
        taken = from = last_end = end;
    }
    if (taken < size && !take(&s, taken, size, false, err))
        return false;
    return !s.holding || emit(&s, s.held, err);
}
