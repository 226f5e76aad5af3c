#include "draft/selector.h"

#include <assert.h>
#include <math.h>

#include "base/threads.h"

// --- candidates ----------------------------------------------------------------------------------

// Logits that are held at a time.
#define CHUNK_VALUES ((int64_t)16 << 20)

typedef struct {
    const float *logits; // of the chunk's rows
    int64_t first, vocabulary;
    bd_candidates *out;
} top_job;

static void top_row(void *context, int64_t index)
{
    const top_job *job = context;
    int64_t row = job->first + index, most = job->out->count;
    const float *z = job->logits + index * job->vocabulary;
    bd_largest(z, job->vocabulary, most, job->out->token + row * most,
               job->out->logit + row * most);
    job->out->log_normalizer[row] = bd_log_sum_exp(z, job->vocabulary);
}

bd_candidates bd_candidates_find(bd_model *target, const float *hidden, int64_t rows, int64_t count,
                                 bd_arena *arena)
{
    int64_t vocabulary = target->config.vocabulary, width = target->config.hidden;
    assert(count >= 1 && count <= vocabulary);
    bd_candidates c = {.rows = rows,
                       .count = count,
                       .token = bd_arena_ints(arena, rows * count),
                       .logit = bd_arena_floats(arena, rows * count),
                       .log_normalizer = bd_arena_floats(arena, rows)};
    int64_t most = CHUNK_VALUES / vocabulary > 1 ? CHUNK_VALUES / vocabulary : 1;
    size_t mark = bd_arena_mark(arena);
    float *logits = bd_arena_floats(arena, (rows < most ? rows : most) * vocabulary);
    for (int64_t first = 0; first < rows; first += most) {
        int64_t part = rows - first < most ? rows - first : most;
        bd_model_logits(target, hidden + first * width, part, logits, arena);
        top_job job = {logits, first, vocabulary, &c};
        bd_parallel(part, top_row, &job);
    }
    bd_arena_release(arena, mark);
    return c;
}

int64_t bd_candidates_place(const bd_candidates *candidates, int64_t row, int32_t token)
{
    const int32_t *list = candidates->token + row * candidates->count;
    for (int64_t j = 0; j < candidates->count; j++)
        if (list[j] == token)
            return j;
    return -1;
}

typedef struct {
    const bd_candidates *candidates;
    const float *d_logit;
    const bd_parameter *head;
    int64_t width;
    float *gradient, *rows; // [rows, H]; [rows, H] of room for one head row each
} back_job;

static void back_row(void *context, int64_t row)
{
    const back_job *job = context;
    int64_t width = job->width, count = job->candidates->count;
    float *head = job->rows + row * width, *to = job->gradient + row * width;
    for (int64_t j = 0; j < count; j++) {
        float d = job->d_logit[row * count + j];
        if (d == 0)
            continue;
        bd_gather(job->head->data, job->head->dtype, width,
                  job->candidates->token + row * count + j, 1, head);
        for (int64_t i = 0; i < width; i++)
            to[i] += d * head[i];
    }
}

void bd_candidates_back(bd_model *target, const bd_candidates *candidates, const float *d_logit,
                        float *hidden_gradient, bd_arena *scratch)
{
    size_t mark = bd_arena_mark(scratch);
    int64_t width = target->config.hidden;
    back_job job = {candidates,      d_logit,
                    target->head,    width,
                    hidden_gradient, bd_arena_floats(scratch, candidates->rows * width)};
    bd_parallel(candidates->rows, back_row, &job);
    bd_arena_release(scratch, mark);
}

// --- the selector --------------------------------------------------------------------------------

// One value of a codebook in whatever dtype it is stored.
static float entry(const bd_parameter *codebook, int64_t index)
{
    float value;
    bd_to_f32(codebook->dtype,
              (const char *)codebook->data + (size_t)index * bd_dtype_size(codebook->dtype), &value,
              1);
    return value;
}

void bd_selector_scores(const bd_selector *selector, const bd_candidates *candidates, int64_t row,
                        const float *context, int32_t previous, float *scores)
{
    int64_t rank = selector->projection->shape[0], count = candidates->count;
    for (int64_t j = 0; j < count; j++) {
        int64_t token = candidates->token[row * count + j];
        double sum = 0;
        for (int64_t r = 0; r < rank; r++)
            sum += (double)entry(selector->predecessor, previous * rank + r) * (double)context[r] *
                   (double)entry(selector->successor, token * rank + r);
        scores[j] = (float)((double)candidates->logit[row * count + j] + sum);
    }
}

void bd_selector_back(const bd_selector *selector, const bd_candidates *candidates, int64_t row,
                      const float *context, int32_t previous, const float *d_scores,
                      float *d_context)
{
    int64_t rank = selector->projection->shape[0], count = candidates->count;
    float *d_predecessor = selector->predecessor->gradient,
          *d_successor = selector->successor->gradient;
    for (int64_t r = 0; r < rank; r++) {
        float p = entry(selector->predecessor, previous * rank + r), sum = 0;
        for (int64_t j = 0; j < count; j++) {
            int64_t at = candidates->token[row * count + j] * rank + r;
            sum += d_scores[j] * entry(selector->successor, at);
            if (d_successor)
                d_successor[at] += d_scores[j] * p * context[r];
        }
        if (d_predecessor)
            d_predecessor[previous * rank + r] += sum * context[r];
        if (d_context)
            d_context[r] += sum * p;
    }
}
