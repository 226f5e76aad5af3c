#include "draft/session.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#include "base/profile.h"
#include "base/random.h"
#include "base/threads.h"
#include "tensor/rows.h"

struct bd_draft_session {
    bd_draft *draft;
    bd_draft_cache *cache;
    bd_arena *arena; // of one call, emptied by the next
};

bd_draft_session *bd_draft_session_create(bd_draft *draft, int64_t capacity, bd_error *err)
{
    bd_draft_session *session = calloc(1, sizeof *session);
    if (!session) {
        bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for a draft session");
        return NULL;
    }
    session->draft = draft;
    session->cache = bd_draft_cache_create(draft, capacity, err);
    session->arena = session->cache ? bd_arena_create(0, err) : NULL;
    if (!session->arena) {
        bd_draft_session_free(session);
        return NULL;
    }
    return session;
}

void bd_draft_session_free(bd_draft_session *session)
{
    if (!session)
        return;
    bd_draft_cache_free(session->cache);
    bd_arena_destroy(session->arena);
    free(session);
}

bool bd_draft_begin(bd_draft_session *session, const bd_hidden *prompt_features, bd_error *err)
{
    session->cache->length = 0;
    return bd_draft_commit(session, prompt_features, err);
}

bool bd_draft_commit(bd_draft_session *session, const bd_hidden *accepted_features, bd_error *err)
{
    bd_draft_cache *cache = session->cache;
    if (accepted_features->rows > cache->capacity - cache->length)
        return bd_fail(err, "a draft session for %lld tokens holds %lld, %lld more do not fit",
                       (long long)cache->capacity, (long long)cache->length,
                       (long long)accepted_features->rows);
    bd_arena_release(session->arena, 0);
    bd_draft_cache_extend(session->draft, cache, accepted_features->features,
                          accepted_features->rows, session->arena);
    return true;
}

void bd_draft_truncate(bd_draft_session *session, int64_t length)
{
    assert(length >= 0 && length <= session->cache->length);
    session->cache->length = length;
}

int64_t bd_draft_length(const bd_draft_session *session)
{
    return session->cache->length;
}

static const float *newest_context(const bd_draft_session *session)
{
    const bd_draft_cache *cache = session->cache;
    if (!cache->context || cache->length == 0)
        return NULL;
    return cache->context + (cache->length - 1) * session->draft->config.stack.hidden;
}

int64_t bd_draft_propose(bd_draft_session *session, int32_t last_token, bd_proposal *out,
                         bd_error *err)
{
    const bd_draft_config *config = &session->draft->config;
    if (last_token < 0 || last_token >= config->stack.vocabulary) {
        bd_fail(err, "token %d is not in a vocabulary of %lld", last_token,
                (long long)config->stack.vocabulary);
        return -1;
    }
    int64_t most = bd_draft_variant_tokens(config->variant, config->block_size);
    int64_t count = out->limit > 0 && out->limit < most ? out->limit : most;
    bd_arena_release(session->arena, 0);
    out->count = count;
    out->tokens = NULL;
    out->q = NULL;
    out->hidden = NULL;
    out->logits = out->confidence = NULL;
    out->slots = 0;
    if (count <= 0) // a block of one slot that is its anchor
        return 0;

    // Slots see each other, so the whole block is read, as it was in training; only where no layer
    // looks ahead can the tail be left out.
    int64_t slots = config->block_size;
    if (config->causality == BD_DRAFT_CAUSAL && !config->variant->reads_context)
        slots = bd_draft_variant_first_slot(config->variant) + count;
    int32_t *block = bd_arena_ints(session->arena, slots);
    block[0] = last_token;
    for (int64_t k = 1; k < slots; k++)
        block[k] = (int32_t)config->mask_id;
    bd_tape tape = bd_tape_begin(session->arena, session->draft->compute, false);
    bd_value *hidden = bd_draft_forward_cached(session->draft, &tape, session->cache, block, slots);

    size_t bytes = (size_t)count * sizeof(float *);
    bd_draft_decoding decoding = {.draft = session->draft,
                                  .hidden = hidden->data,
                                  .slots = slots,
                                  .context = newest_context(session),
                                  .last_token = last_token,
                                  .position = session->cache->length,
                                  .sampling = out->sampling,
                                  .count = count,
                                  .tokens = bd_arena_ints(session->arena, count),
                                  .q = memset(bd_arena_alloc(session->arena, bytes), 0, bytes),
                                  .arena = session->arena};
    if (out->backbone_only)
        bd_draft_decode_greedy(&decoding, bd_draft_variant_first_slot(config->variant));
    else
        config->variant->decode(&decoding);
    out->tokens = decoding.tokens;
    out->q = decoding.q[0] ? decoding.q : NULL;
    out->hidden = hidden->data;
    out->context = decoding.context;
    out->logits = decoding.logits;
    out->confidence = decoding.confidence;
    out->slots = slots;
    return count;
}

// --- greedy --------------------------------------------------------------------------------------

typedef struct {
    const float *logits;
    int64_t vocabulary;
    int32_t *best;
} argmax_job;

static void argmax_row(void *context, int64_t row)
{
    const argmax_job *job = context;
    job->best[row] = (int32_t)bd_argmax(job->logits + row * job->vocabulary, job->vocabulary);
}

void bd_best_tokens(const float *logits, int64_t rows, int64_t vocabulary, int32_t *best)
{
    argmax_job job = {logits, vocabulary, best};
    static bd_profile_site site = {.name = "best tokens", .kind = BD_PROFILE_MEMORY};
    bd_profile_begin(&site);
    bd_parallel(rows, argmax_row, &job);
    bd_profile_end(&site, 0, 4 * (double)(rows * vocabulary));
}

void bd_draft_decode_greedy(const bd_draft_decoding *decoding, int64_t first)
{
    assert(first + decoding->count <= decoding->slots);
    bd_model *target = decoding->draft->target;
    int64_t vocabulary = target->config.vocabulary;
    float *logits = bd_arena_floats(decoding->arena, decoding->count * vocabulary);
    bd_model_logits(target, decoding->hidden + first * target->config.hidden, decoding->count,
                    logits, decoding->arena);
    bd_best_tokens(logits, decoding->count, vocabulary, decoding->tokens);
}

// --- among candidates ----------------------------------------------------------------------------

int64_t bd_draft_decode_choose(bd_draft_decoding *d, int64_t i, const int32_t *candidates,
                               const float *scores, int64_t count)
{
    // Below this, softmax over temperature is one-hot but for rounding.
    if (!d->sampling || !(d->sampling->temperature >= 1e-3f))
        return bd_argmax(scores, count);
    float *p = bd_arena_floats(d->arena, count);
    for (int64_t j = 0; j < count; j++)
        p[j] = scores[j] / d->sampling->temperature;
    bd_softmax(p, count, p);
    float *q = bd_arena_zeros(d->arena, d->draft->config.stack.vocabulary);
    for (int64_t j = 0; j < count; j++)
        q[candidates[j]] = p[j];
    d->q[i] = q;
    uint64_t key = bd_random_key(d->sampling->seed, 0, 0, 0);
    uint32_t position = (uint32_t)(d->position + 1 + i);
    return bd_sampling_pick(p, count, bd_random_uniform(key, BD_STREAM_DRAFT, position));
}

// --- slot after slot -----------------------------------------------------------------------------

/* A token drawn from the logits, and what it was drawn from. */
static int32_t draw(const bd_draft_decoding *d, int64_t slot, const float *logits)
{
    int64_t vocabulary = d->draft->config.stack.vocabulary;
    float *q = bd_arena_floats(d->arena, vocabulary);
    bd_sampling_probabilities(d->sampling, logits, vocabulary, q, d->arena);
    d->q[slot] = q;
    uint64_t key = bd_random_key(d->sampling->seed, 0, 0, 0);
    uint32_t position = (uint32_t)(d->position + 1 + slot);
    return bd_sampling_pick(q, vocabulary, bd_random_uniform(key, BD_STREAM_DRAFT, position));
}

void bd_draft_decode_chain(bd_draft_decoding *d,
                           void (*correct)(void *self, int64_t slot, int32_t previous,
                                           float *logits),
                           void *self)
{
    assert(d->count <= d->slots);
    int64_t vocabulary = d->draft->config.stack.vocabulary;
    bool sampled = d->sampling && d->sampling->temperature > 0;
    d->logits = bd_arena_floats(d->arena, d->count * vocabulary);
    bd_model_logits(d->draft->target, d->hidden, d->count, d->logits, d->arena);
    int32_t previous = d->last_token;
    for (int64_t slot = 0; slot < d->count; slot++) {
        float *logits = d->logits + slot * vocabulary;
        correct(self, slot, previous, logits);
        previous = sampled ? draw(d, slot, logits) : (int32_t)bd_argmax(logits, vocabulary);
        d->tokens[slot] = previous;
    }
}
