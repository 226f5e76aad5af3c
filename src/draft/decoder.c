#include "draft/decoder.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/profile.h"
#include "base/progress.h"

struct bd_decoder {
    bd_model *target;
    bd_draft *draft;           // NULL: plain decoding
    bd_draft_session *session; // NULL without a draft
    bd_cache *cache;
    int32_t *tokens;       // [capacity]: those read
    int64_t length, tried; // read and kept; read tentatively after them
    bd_arena *arena;       // of one call, emptied by the next
    bd_arena *scratch;     // the caller's
    int64_t taps[BD_MOST_TAPS];
    const float *features; // [tried, taps * H], in the arena
    // Features of the last tokens kept, which the draft has not been told yet: it learns them
    // together when it is asked, so that plain decoding does not pay for a draft that rests.
    float *pending; // [PENDING, taps * H]
    int64_t pending_rows;
    bd_pace pace;
};

// Rows of a prompt that the target reads at once: enough to keep its products busy, few enough that
// their activations stay small. And rows of features that wait at most.
enum { CHUNK = 512, PENDING = 256 };

/* One proposal about nothing: weights are read and packed when they are first used, which takes as
 * long as dozens of passes and is no part of any text. */
static bool warm_up(bd_decoder *d, bd_error *err)
{
    const bd_hidden nothing = {.features = d->pending, .rows = 1};
    bd_proposal proposal = {0};
    if (!bd_draft_begin(d->session, &nothing, err) ||
        bd_draft_propose(d->session, 0, &proposal, err) < 0)
        return false;
    bd_draft_truncate(d->session, 0);
    return true;
}

bd_decoder *bd_decoder_create(bd_model *target, bd_draft *draft, int64_t capacity, bd_error *err)
{
    assert(capacity > 0 && (!draft || draft->target == target));
    bd_decoder *d = calloc(1, sizeof *d);
    int32_t *tokens = calloc((size_t)capacity, sizeof *tokens);
    if (!d || !tokens) {
        free(d);
        free(tokens);
        bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a decoder of %lld tokens",
                   (long long)capacity);
        return NULL;
    }
    int64_t block =
        draft ? bd_draft_variant_tokens(draft->config.variant, draft->config.block_size) : 0;
    *d = (bd_decoder){
        .target = target, .draft = draft, .tokens = tokens, .pace = bd_pace_new(block)};
    d->cache = bd_cache_create(target, capacity, err);
    d->scratch = d->cache ? bd_arena_create(0, err) : NULL;
    d->arena = d->scratch ? bd_arena_create(0, err) : NULL;
    if (d->arena && draft) {
        bd_draft_request(draft, d->taps);
        d->session = bd_draft_session_create(draft, capacity, err);
        d->pending = calloc((size_t)(PENDING * bd_draft_feature_width(draft)), sizeof(float));
        if (d->session && !d->pending)
            bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for the features of %d tokens", PENDING);
    }
    if (!d->arena || (draft && (!d->session || !d->pending || !warm_up(d, err)))) {
        bd_decoder_free(d);
        return NULL;
    }
    return d;
}

void bd_decoder_free(bd_decoder *d)
{
    if (!d)
        return;
    bd_draft_session_free(d->session);
    bd_cache_free(d->cache);
    bd_arena_destroy(d->arena);
    bd_arena_destroy(d->scratch);
    free(d->pending);
    free(d->tokens);
    free(d);
}

static bool check_tokens(const bd_decoder *d, const int32_t *tokens, int64_t count, bd_error *err)
{
    if (count > d->cache->capacity - d->length)
        return bd_fail(err, "the context of %lld tokens holds %lld, %lld more do not fit",
                       (long long)d->cache->capacity, (long long)d->length, (long long)count);
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= d->target->config.vocabulary)
            return bd_fail(err, "token %d at position %lld is not in a vocabulary of %lld",
                           tokens[i], (long long)(d->length + i),
                           (long long)d->target->config.vocabulary);
    return true;
}

/* What was read, tentatively as yet. */
static void note_tried(bd_decoder *d, const int32_t *tokens, int64_t count)
{
    memcpy(d->tokens + d->length, tokens, (size_t)count * sizeof *tokens);
    d->tried = count;
}

/* Read tokens behind those kept; logits of the last `rows` of them. The caller's phase. */
static const float *read_tokens(bd_decoder *d, const int32_t *tokens, int64_t count, int64_t rows,
                                bd_error *err)
{
    const bd_model_config *config = &d->target->config;
    if (!check_tokens(d, tokens, count, err))
        return NULL;
    bd_cache_truncate(d->cache, d->length); // forgets what was tried and not kept
    bd_arena_release(d->arena, 0);
    float *features =
        d->draft ? bd_arena_floats(d->arena, count * bd_draft_feature_width(d->draft)) : NULL;
    float *logits = bd_arena_floats(d->arena, rows * config->vocabulary);
    bd_tape tape = bd_tape_begin(d->arena, d->target->compute, false);
    bd_hidden_request request = {.layers = d->taps, .out = features};
    request.count = d->draft ? d->draft->config.tap_count : 0;
    const bd_forward input = {.tokens = tokens,
                              .rows = 1,
                              .length = count,
                              .cache = d->cache,
                              .hidden = d->draft ? &request : NULL};
    const bd_value *hidden = bd_model_forward(d->target, &tape, &input);
    if (rows > 0)
        bd_model_logits(d->target, hidden->data + (count - rows) * config->hidden, rows, logits,
                        d->arena);
    note_tried(d, tokens, count);
    d->features = features;
    return logits;
}

// A step of plain decoding is a phase of its own: of one sequence or of several.
static bd_profile_site decoding = {.name = "decode", .kind = BD_PROFILE_PHASE};

const float *bd_decoder_try(bd_decoder *d, const int32_t *tokens, int64_t count, bd_error *err)
{
    assert(count > 0);
    static bd_profile_site verifying = {.name = "verify", .kind = BD_PROFILE_PHASE};
    bd_profile_site *phase = count > 1 ? &verifying : &decoding;
    bd_profile_begin(phase);
    const float *logits = read_tokens(d, tokens, count, count, err);
    bd_profile_end(phase, 0, 0);
    return logits;
}

const float *bd_decoders_try(bd_decoder *const *decoders, int64_t count, const int32_t *tokens,
                             bd_error *err)
{
    assert(count > 0);
    bd_model *target = decoders[0]->target;
    bd_arena *arena = decoders[0]->arena;
    for (int64_t i = 0; i < count; i++) {
        assert(decoders[i]->target == target && !decoders[i]->draft);
        if (!check_tokens(decoders[i], tokens + i, 1, err))
            return NULL;
    }
    bd_profile_begin(&decoding);
    bd_arena_release(arena, 0);
    float *logits = bd_arena_floats(arena, count * target->config.vocabulary);
    bd_cache **caches = bd_arena_alloc(arena, (size_t)count * sizeof *caches);
    bd_arena **scratch = bd_arena_alloc(arena, (size_t)count * sizeof *scratch);
    for (int64_t i = 0; i < count; i++) {
        caches[i] = decoders[i]->cache;
        scratch[i] = decoders[i]->scratch;
        bd_cache_truncate(caches[i], decoders[i]->length);
    }
    bd_tape tape = bd_tape_begin(arena, target->compute, false);
    const bd_forward input = {
        .tokens = tokens, .rows = count, .length = 1, .caches = caches, .scratch = scratch};
    const bd_value *hidden = bd_model_forward(target, &tape, &input);
    bd_model_logits(target, hidden->data, count, logits, arena);
    for (int64_t i = 0; i < count; i++)
        note_tried(decoders[i], tokens + i, 1);
    bd_profile_end(&decoding, 0, 0);
    return logits;
}

static bool tell_draft(bd_decoder *d, const float *features, int64_t rows, bd_error *err)
{
    const bd_hidden hidden = {.features = features, .rows = rows};
    return rows == 0 || bd_draft_commit(d->session, &hidden, err);
}

static bool tell_pending(bd_decoder *d, bd_error *err)
{
    int64_t rows = d->pending_rows;
    d->pending_rows = 0;
    return tell_draft(d, d->pending, rows, err);
}

bool bd_decoder_keep(bd_decoder *d, int64_t count, bd_error *err)
{
    assert(count >= 0 && count <= d->tried);
    d->length += count; // the cache is cut back when the next tokens are read
    d->tried = 0;
    if (!d->session || count == 0)
        return true;
    if (d->pending_rows + count > PENDING && !tell_pending(d, err))
        return false;
    if (count > PENDING)
        return tell_draft(d, d->features, count, err);
    int64_t width = bd_draft_feature_width(d->draft);
    memcpy(d->pending + d->pending_rows * width, d->features,
           (size_t)(count * width) * sizeof(float));
    d->pending_rows += count;
    return true;
}

/* Cut the draft's knowledge back to the first `length` tokens. */
static void cut_draft(bd_decoder *d, int64_t length)
{
    int64_t known = bd_draft_length(d->session);
    d->pending_rows = length > known ? length - known : 0;
    if (length < known)
        bd_draft_truncate(d->session, length);
}

int64_t bd_decoder_known(const bd_decoder *d, const int32_t *tokens, int64_t count)
{
    int64_t same = 0;
    // The last token is read in any case: its logits are wanted.
    while (same < d->length && same < count - 1 && d->tokens[same] == tokens[same])
        same++;
    return same;
}

const float *bd_decoder_follow(bd_decoder *d, const int32_t *tokens, int64_t count, bd_error *err)
{
    assert(count > 0);
    static bd_profile_site site = {.name = "prompt", .kind = BD_PROFILE_PHASE};
    int64_t same = bd_decoder_known(d, tokens, count);
    d->length = same;
    d->tried = 0;
    if (d->session)
        cut_draft(d, same);
    const float *logits = NULL;
    bool ok = true;
    bd_profile_begin(&site);
    while (ok && d->length < count) {
        int64_t left = count - d->length, part = left < CHUNK ? left : CHUNK;
        logits = read_tokens(d, tokens + d->length, part, part == left, err);
        ok = logits && bd_decoder_keep(d, part, err);
    }
    bd_profile_end(&site, 0, 0);
    return ok ? logits : NULL;
}

int64_t bd_decoder_propose(bd_decoder *d, int32_t last_token, bd_proposal *proposal, bd_error *err)
{
    proposal->count = 0;
    if (!d->session)
        return 0;
    static bd_profile_site site = {.name = "draft", .kind = BD_PROFILE_PHASE};
    bd_profile_begin(&site);
    int64_t count =
        tell_pending(d, err) ? bd_draft_propose(d->session, last_token, proposal, err) : -1;
    bd_profile_end(&site, 0, 0);
    return count;
}

int64_t bd_decoder_length(const bd_decoder *d)
{
    return d->length;
}

int64_t bd_decoder_capacity(const bd_decoder *d)
{
    return d->cache->capacity;
}

bd_model *bd_decoder_target(const bd_decoder *d)
{
    return d->target;
}

bd_arena *bd_decoder_scratch(bd_decoder *d)
{
    return d->scratch;
}

bd_pace *bd_decoder_pace(bd_decoder *d)
{
    return &d->pace;
}

bd_draft *bd_decoder_draft(const bd_decoder *d)
{
    return d->draft;
}

// --- what reading costs --------------------------------------------------------------------------

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

double bd_decoder_cost(bd_decoder *d, int64_t rows, int64_t repeats, bd_error *err)
{
    assert(rows > 0 && repeats > 0);
    int32_t *tokens = calloc((size_t)rows, sizeof *tokens);
    double *seconds = calloc((size_t)repeats, sizeof *seconds), median = -1;
    bool ok = tokens && seconds;
    if (!ok)
        bd_fail_as(err, BD_ERROR_SYSTEM, "no memory to measure %lld rows", (long long)rows);
    for (int64_t i = 0; i < repeats && ok; i++) {
        double start = bd_seconds();
        ok = bd_decoder_try(d, tokens, rows, err) != NULL;
        seconds[i] = bd_seconds() - start;
        d->tried = 0;
    }
    if (ok) {
        qsort(seconds, (size_t)repeats, sizeof *seconds, by_size);
        median = seconds[repeats / 2];
    }
    free(tokens);
    free(seconds);
    return median;
}
