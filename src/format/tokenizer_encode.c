#include "format/tokenizer_internal.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

// --- scratch memory ------------------------------------------------------------------------------

static void scratch_free(bd_scratch *s)
{
    if (!s)
        return;
    bd_matcher_close(&s->matcher);
    bd_merger_close(&s->merger);
    bd_text_free(&s->normal);
    bd_text_free(&s->prefixed);
    free(s->alignment.pieces);
    free(s);
}

void bd_scratch_free_all(bd_scratch *list)
{
    while (list) {
        bd_scratch *next = list->next;
        scratch_free(list);
        list = next;
    }
}

static bd_scratch *scratch_take(bd_tokenizer *t, bd_error *err)
{
    pthread_mutex_lock(&t->lock);
    bd_scratch *s = t->idle;
    if (s)
        t->idle = s->next;
    pthread_mutex_unlock(&t->lock);
    if (s)
        return s;
    s = calloc(1, sizeof *s);
    if (!s) {
        bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a tokenizer's working space");
        return NULL;
    }
    if (!bd_matcher_open(&s->matcher, err) || !bd_merger_open(&s->merger, err)) {
        scratch_free(s);
        return NULL;
    }
    return s;
}

static void scratch_return(bd_tokenizer *t, bd_scratch *s)
{
    pthread_mutex_lock(&t->lock);
    s->next = t->idle;
    t->idle = s;
    pthread_mutex_unlock(&t->lock);
}

// --- output --------------------------------------------------------------------------------------

void bd_tokens_free(bd_tokens *tokens)
{
    free(tokens->ids);
    free(tokens->spans);
    *tokens = (bd_tokens){0};
}

static bool tokens_reserve(bd_tokens *out, int64_t more, bool spans, bd_error *err)
{
    if (out->count + more <= out->room)
        return true;
    int64_t room = out->room ? out->room : 256;
    while (room < out->count + more)
        room *= 2;
    int32_t *ids = realloc(out->ids, (size_t)room * sizeof *ids);
    if (ids)
        out->ids = ids;
    bd_token_span *places = spans ? realloc(out->spans, (size_t)room * sizeof *places) : NULL;
    if (places)
        out->spans = places;
    if (!ids || (spans && !places))
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for %lld tokens", (long long)room);
    out->room = room;
    return true;
}

// --- the pipeline --------------------------------------------------------------------------------

typedef struct {
    const bd_tokenizer *t;
    bd_scratch *scratch;
    bd_tokens *out;
    bool spans, special_as_text;
    const char
        *base;      // what words point into: the caller's text, its normal form, or a prefixed word
    int64_t origin; // where base begins in the text (normal form: where its segment begins)
    bool aligned;   // base is a normal form; scratch->alignment leads back
    int64_t shift;  // from a prefixed word to what it was made of: added to places ...
    int64_t least;  // ... which the prefix itself would put before the word
} encoding;

static bool put(encoding *e, int32_t id, int64_t begin, int64_t end, bd_error *err)
{
    bd_tokens *out = e->out;
    if (!tokens_reserve(out, 1, e->spans, err))
        return false;
    if (e->spans) {
        begin = begin + e->shift > e->least ? begin + e->shift : e->least;
        end = end + e->shift > e->least ? end + e->shift : e->least;
        bd_token_span span = {begin, end};
        if (e->aligned)
            span = bd_alignment_span(&e->scratch->alignment, begin, end);
        out->spans[out->count] = (bd_token_span){span.begin + e->origin, span.end + e->origin};
    }
    out->ids[out->count++] = id;
    return true;
}

static bool put_word(encoding *e, const char *word, size_t size, bd_error *err)
{
    const int32_t *ids;
    size_t count;
    if (!bd_merger_run(&e->scratch->merger, &e->t->rules, word, size, &ids, &count, err))
        return false;
    if (!e->spans) {
        if (!tokens_reserve(e->out, (int64_t)count, false, err))
            return false;
        memcpy(e->out->ids + e->out->count, ids, count * sizeof *ids);
        e->out->count += (int64_t)count;
        return true;
    }
    int64_t at = word - e->base;
    for (size_t i = 0; i < count; i++) {
        bool unknown = ids[i] == e->t->rules.unknown;
        int64_t bytes = unknown ? 1 : e->t->vocabulary.tokens[ids[i]].size;
        if (!put(e, ids[i], at, at + bytes, err))
            return false;
        at += bytes;
    }
    return true;
}

typedef struct {
    encoding *e;
    int stage;
} stage_visit;

static bool run_stage(void *context, const char *text, size_t size, bd_error *err);

// ByteLevel with add_prefix_space: the word is split and merged with a space before it.
static bool run_prefixed(encoding *e, int stage, const char *text, size_t size, bd_error *err)
{
    encoding inner = *e;
    bd_text *prefixed = &e->scratch->prefixed;
    bd_text_clear(prefixed);
    bd_text_add_byte(prefixed, ' ');
    bd_text_add(prefixed, text, size);
    if (!bd_text_check(prefixed, err))
        return false;
    inner.base = prefixed->data;
    inner.least = text - e->base;
    inner.shift = inner.least - 1;
    stage_visit next = {&inner, stage + 1};
    return bd_stage_split(&e->t->stages[stage], &e->scratch->matcher, prefixed->data,
                          prefixed->size, run_stage, &next, err);
}

static bool run_stage(void *context, const char *text, size_t size, bd_error *err)
{
    stage_visit *visit = context;
    encoding *e = visit->e;
    if (visit->stage == e->t->stage_count)
        return put_word(e, text, size, err);
    const bd_stage *stage = &e->t->stages[visit->stage];
    if (stage->prefix_space && text[0] != ' ')
        return run_prefixed(e, visit->stage, text, size, err);
    stage_visit next = {e, visit->stage + 1};
    return bd_stage_split(stage, &e->scratch->matcher, text, size, run_stage, &next, err);
}

static bool encode_words(encoding *e, int64_t begin, int64_t end, bd_error *err)
{
    stage_visit first = {e, 0};
    return begin >= end || run_stage(&first, e->base + begin, (size_t)(end - begin), err);
}

// Cut the added tokens of one trie out of base[begin, end) and give what is between them to `rest`.
static bool encode_around(encoding *e, const bd_trie *trie, int64_t begin, int64_t end,
                          bool (*rest)(encoding *, int64_t, int64_t, bd_error *), bd_error *err)
{
    const char *text = e->base + begin;
    int64_t size = end - begin, from = 0, done = 0;
    for (;;) {
        bd_added_match match =
            bd_added_next(trie, e->t->added, text, size, e->special_as_text, done, &from);
        if (match.token < 0)
            break;
        if (done < match.begin && !rest(e, begin + done, begin + match.begin, err))
            return false;
        if (!put(e, e->t->added[match.token].id, begin + match.begin, begin + match.end, err))
            return false;
        done = match.end;
    }
    return done >= size || rest(e, begin + done, end, err);
}

// Text between the added tokens that are looked for in the text as it is.
static bool encode_plain(encoding *e, int64_t begin, int64_t end, bd_error *err)
{
    const bd_tokenizer *t = e->t;
    size_t size = (size_t)(end - begin);
    if (!t->normalizes || bd_normal_already(t->form, e->base + begin, size))
        return encode_around(e, &t->normal_trie, begin, end, encode_words, err);
    bd_scratch *s = e->scratch;
    bd_text_clear(&s->normal);
    s->alignment.count = 0;
    s->alignment.failed = false;
    if (!bd_normalize(t->form, e->base + begin, size, &s->normal, e->spans ? &s->alignment : NULL,
                      err))
        return false;
    encoding normal = *e;
    normal.base = s->normal.data;
    normal.origin = begin;
    normal.aligned = true;
    return encode_around(&normal, &t->normal_trie, 0, (int64_t)s->normal.size, encode_words, err);
}

static bool encode_automatic(encoding *e, const int32_t *ids, int count, int64_t at, bd_error *err)
{
    for (int i = 0; i < count; i++)
        if (!put(e, ids[i], at, at, err))
            return false;
    return true;
}

bool bd_tokenizer_encode(const bd_tokenizer *tokenizer, const char *text, size_t size,
                         const bd_encode_options *options, bd_tokens *out, bd_error *err)
{
    static const bd_encode_options none = {0};
    if (!options)
        options = &none;
    assert(out->count == 0 || options->spans == (out->spans != NULL));
    size_t good = bd_utf8_valid(text, size);
    if (good < size)
        return bd_fail(err, "the text is not UTF-8 at byte %zu (0x%02x)", good,
                       (uint8_t)text[good]);
    // The lock and the list of idle scratch are the one part of a tokenizer that encoding changes.
    bd_tokenizer *t = (bd_tokenizer *)tokenizer;
    bd_scratch *scratch = scratch_take(t, err);
    if (!scratch)
        return false;
    bd_matcher_limit(&scratch->matcher, size);
    encoding e = {.t = t,
                  .scratch = scratch,
                  .out = out,
                  .spans = options->spans,
                  .special_as_text = options->special_as_text,
                  .base = text};
    int64_t count = out->count;
    bool ok = (!options->add_special || encode_automatic(&e, t->before, t->before_count, 0, err)) &&
              encode_around(&e, &t->plain_trie, 0, (int64_t)size, encode_plain, err) &&
              (!options->add_special ||
               encode_automatic(&e, t->after, t->after_count, (int64_t)size, err));
    if (!ok)
        out->count = count;
    scratch_return(t, scratch);
    return ok;
}
