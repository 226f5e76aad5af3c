#include "tensor/vocabulary.h"

#include <assert.h>

#include "base/profile.h"
#include "base/threads.h"
#include "tensor/isa/divergence.h"
#include "tensor/isa/vocabulary.h"
#include "tensor/rows.h"

// Logits of one chunk: large enough that reading and writing the head's gradient once per chunk
// does not outweigh the products, and about the size of one head's gradient at most. An even number
// of rows, so that pairs of rows in a bf16 head gradient are the same whatever the chunks are.
#define CHUNK_BYTES ((int64_t)160 << 20)
enum { LEAST_ROWS = 32, MOST_ROWS = 512 };
_Static_assert(LEAST_ROWS % 2 == 0 && MOST_ROWS % 2 == 0, "pairs of rows stay in one chunk");

#define ENTRY(level) bd_vocabulary_row_##level,
static void (*const row_kernels[BD_ISA_COUNT])(bd_vocabulary_row *) = {BD_FOR_EACH_ISA(ENTRY)};

#define DIVERGENCE(level) bd_divergence_row_##level,
static void (*const divergence_kernels[BD_ISA_COUNT])(bd_divergence_row *) = {
    BD_FOR_EACH_ISA(DIVERGENCE)};

static int64_t chunk_rows(int64_t vocabulary)
{
    int64_t rows = CHUNK_BYTES / 4 / vocabulary / LEAST_ROWS * LEAST_ROWS;
    return rows < LEAST_ROWS ? LEAST_ROWS : rows > MOST_ROWS ? MOST_ROWS : rows;
}

/* --- rows of logits --------------------------------------------------------------------------- */

// `count` rows of logits side by side, belonging to rows `index` of the loss (NULL: 0, 1, 2, ...).
typedef struct {
    const bd_vocabulary_loss *loss;
    const int64_t *index;
    int64_t count, step;
    const float *logits;
    const float *const *teacher; // per row of the chunk, or NULL
    float *d_logits;             // may be the logits, or NULL
} logits_job;

static void skip_row(const bd_vocabulary_loss *loss, int64_t r)
{
    if (loss->hard_loss)
        loss->hard_loss[r] = 0;
    if (loss->soft_loss)
        loss->soft_loss[r] = 0;
    if (loss->divergence_loss)
        loss->divergence_loss[r] = 0;
    if (loss->best)
        loss->best[r] = -1;
    if (loss->best_first)
        loss->best_first[r] = -1;
    if (loss->log_normalizer)
        loss->log_normalizer[r] = 0;
}

// The divergence reads the logits that the other losses have read, so their gradient stands
// elsewhere.
static void diverge(const logits_job *job, int64_t i, int64_t r)
{
    const bd_vocabulary_loss *loss = job->loss;
    const int64_t V = loss->vocabulary;
    assert(job->teacher && loss->temperature > 0 && job->d_logits != job->logits);
    int32_t kept[BD_MOST_TOP_K];
    float largest[BD_MOST_TOP_K];
    if (loss->divergence == BD_DIVERGENCE_TAIL_BUCKET) {
        assert(loss->top_k >= 1 && loss->top_k <= BD_MOST_TOP_K);
        bd_largest(job->teacher[i], V, loss->top_k, kept, largest);
    }
    bd_divergence_row row = {.logits = job->logits + i * V,
                             .teacher = job->teacher[i],
                             .vocabulary = V,
                             .kind = loss->divergence,
                             .temperature = loss->temperature,
                             .beta = loss->beta,
                             .kept = kept,
                             .top_k = loss->top_k,
                             .scale = loss->scale[r] * loss->divergence_weight,
                             .d_logits = job->d_logits ? job->d_logits + i * V : NULL};
    divergence_kernels[bd_isa()](&row);
    if (loss->divergence_loss)
        loss->divergence_loss[r] = (float)row.value;
}

static void loss_of_row(const logits_job *job, int64_t i)
{
    const bd_vocabulary_loss *loss = job->loss;
    const int64_t r = job->index ? job->index[i] : i, V = loss->vocabulary;
    if (loss->scale[r] == 0) {
        skip_row(loss, r);
        if (job->d_logits)
            memset(job->d_logits + i * V, 0, (size_t)V * sizeof *job->d_logits);
        return;
    }
    assert(loss->targets[r] >= 0 && loss->targets[r] < V);
    bd_vocabulary_row row = {
        .logits = job->logits + i * V,
        .teacher = job->teacher ? job->teacher[i] : NULL,
        .vocabulary = V,
        .target = loss->targets[r],
        .hard = loss->hard,
        .soft = loss->soft,
        .z_loss = loss->z_loss,
        .scale = loss->scale[r],
        .d_logits = job->d_logits ? job->d_logits + i * V : NULL,
    };
    row_kernels[bd_isa()](&row);
    if (loss->hard_loss)
        loss->hard_loss[r] = row.hard_loss;
    if (loss->soft_loss)
        loss->soft_loss[r] = row.soft_loss;
    if (loss->divergence != BD_DIVERGENCE_NONE)
        diverge(job, i, r);
    if (loss->best)
        loss->best[r] = row.best;
    if (loss->log_normalizer)
        loss->log_normalizer[r] = row.log_normalizer;
}

static void logits_task(void *context, int64_t task)
{
    const logits_job *job = context;
    const int64_t end = (task + 1) * job->step < job->count ? (task + 1) * job->step : job->count;
    for (int64_t i = task * job->step; i < end; i++)
        loss_of_row(job, i);
}

static void losses_of_logits(logits_job *job)
{
    job->step = 1 + 16384 / job->loss->vocabulary; // tens of microseconds of work per task
    bd_parallel((job->count + job->step - 1) / job->step, logits_task, job);
}

void bd_vocabulary_loss_on_logits(const bd_vocabulary_loss *loss, const float *logits,
                                  float *d_logits)
{
    logits_job job = {.loss = loss,
                      .count = loss->rows,
                      .logits = logits,
                      .teacher = loss->teacher_logits,
                      .d_logits = d_logits};
    losses_of_logits(&job);
}

/* --- chunks ----------------------------------------------------------------------------------- */

typedef struct {
    const bd_vocabulary_loss *loss;
    bd_arena *scratch;
    int64_t most;   // rows of a full chunk
    int64_t *index; // rows of the loss in this chunk, ascending; none of scale 0
    int64_t count;
    float *logits;
    float *d_logits;       // the same array, unless a divergence needs both; NULL: no gradient
    const float **teacher; // [count], or NULL without soft labels
    float *teacher_logits; // room for them where they are computed here
} chunk;

static bool wants_gradient(const bd_vocabulary_loss *loss)
{
    for (int i = 0; i < loss->term_count; i++)
        if (loss->terms[i].d_features || loss->terms[i].d_head)
            return true;
    return false;
}

// Take the next rows that count, from row r on; returns where to go on.
static int64_t take_rows(chunk *c, int64_t r)
{
    const bd_vocabulary_loss *loss = c->loss;
    for (c->count = 0; r < loss->rows && c->count < c->most; r++)
        if (loss->scale[r] != 0)
            c->index[c->count++] = r;
        else
            skip_row(loss, r);
    return r;
}

static bool contiguous(const chunk *c)
{
    return c->index[c->count - 1] - c->index[0] == c->count - 1;
}

// The chunk's rows of a [rows, width] array, side by side: in place, or copied.
static const float *chunk_features(const chunk *c, const float *features, int64_t width)
{
    if (contiguous(c))
        return features + c->index[0] * width;
    float *copy = bd_arena_floats(c->scratch, c->count * width);
    for (int64_t i = 0; i < c->count; i++)
        memcpy(copy + i * width, features + c->index[i] * width, (size_t)width * sizeof *copy);
    return copy;
}

static void best_of_first_term(void *context, int64_t i)
{
    const chunk *c = context;
    const int64_t V = c->loss->vocabulary;
    c->loss->best_first[c->index[i]] = (int32_t)bd_argmax(c->logits + i * V, V);
}

static void compute_logits(chunk *c)
{
    for (int i = 0; i < c->loss->term_count; i++) {
        const bd_vocabulary_term *term = &c->loss->terms[i];
        const size_t mark = bd_arena_mark(c->scratch);
        assert(term->head->out == c->loss->vocabulary && term->head->in == term->width);
        bd_matmul(term->head, chunk_features(c, term->features, term->width), c->count, term->width,
                  NULL, c->logits, c->loss->vocabulary, i == 0 ? BD_STORE : BD_ACCUMULATE,
                  c->scratch);
        bd_arena_release(c->scratch, mark);
        if (i == 0 && c->loss->best_first)
            bd_parallel(c->count, best_of_first_term, c);
    }
}

// Where `pointer` is among the keys of a hash table of 2^bits slots, or belongs.
static size_t find_slot(const float *const *keys, int bits, const float *pointer)
{
    const size_t mask = ((size_t)1 << bits) - 1;
    size_t slot = ((uintptr_t)pointer * 0x9e3779b97f4a7c15u) >> (64 - bits);
    while (keys[slot] && keys[slot] != pointer)
        slot = (slot + 1) & mask;
    return slot;
}

// Apply the teacher's head to the teacher rows of this chunk, to equal ones once.
static void compute_teacher_logits(chunk *c)
{
    const bd_vocabulary_loss *loss = c->loss;
    const int64_t width = loss->teacher_head->in, V = loss->vocabulary;
    const size_t mark = bd_arena_mark(c->scratch);
    enum { BITS = 10 };
    _Static_assert((1 << BITS) >= 2 * MOST_ROWS, "the table has room");
    const float *keys[1 << BITS] = {0};
    int64_t number[1 << BITS];
    float *features = bd_arena_floats(c->scratch, c->count * width);
    int64_t unique = 0;
    for (int64_t i = 0; i < c->count; i++) {
        const float *row = loss->teacher_features[c->index[i]];
        size_t slot = find_slot(keys, BITS, row);
        if (!keys[slot]) {
            keys[slot] = row;
            number[slot] = unique;
            memcpy(features + unique++ * width, row, (size_t)width * sizeof *features);
        }
        c->teacher[i] = c->teacher_logits + number[slot] * V;
    }
    bd_matmul(loss->teacher_head, features, unique, width, NULL, c->teacher_logits, V, BD_STORE,
              c->scratch);
    bd_arena_release(c->scratch, mark);
}

static void collect_teacher(chunk *c)
{
    if (!c->teacher)
        return;
    if (c->loss->teacher_features)
        compute_teacher_logits(c);
    else
        for (int64_t i = 0; i < c->count; i++)
            c->teacher[i] = c->loss->teacher_logits[c->index[i]];
}

static void add_feature_gradient(const chunk *c, const bd_vocabulary_term *term)
{
    const int64_t width = term->width, V = c->loss->vocabulary;
    assert(term->head_backward && term->head_backward->out == width &&
           term->head_backward->in == V);
    if (contiguous(c)) {
        bd_matmul(term->head_backward, c->d_logits, c->count, V, NULL,
                  term->d_features + c->index[0] * width, width, BD_ACCUMULATE, c->scratch);
        return;
    }
    float *gradient = bd_arena_floats(c->scratch, c->count * width);
    bd_matmul(term->head_backward, c->d_logits, c->count, V, NULL, gradient, width, BD_STORE,
              c->scratch);
    for (int64_t i = 0; i < c->count; i++)
        bd_accumulate(gradient + i * width, width, term->d_features + c->index[i] * width);
}

static void add_gradients(const chunk *c)
{
    for (int i = 0; i < c->loss->term_count; i++) {
        const bd_vocabulary_term *term = &c->loss->terms[i];
        const size_t mark = bd_arena_mark(c->scratch);
        if (term->d_features)
            add_feature_gradient(c, term);
        if (term->d_head)
            bd_matmul_weight_gradient(term->compute, c->d_logits, c->loss->vocabulary,
                                      chunk_features(c, term->features, term->width), term->width,
                                      c->count, c->loss->vocabulary, term->width, term->d_head,
                                      c->scratch);
        bd_arena_release(c->scratch, mark);
    }
}

void bd_vocabulary_forward_backward(const bd_vocabulary_loss *loss, bd_arena *scratch)
{
    assert(loss->term_count >= 1 && loss->term_count <= BD_VOCABULARY_TERMS);
    static bd_profile_site site = {.name = "vocabulary loss", .kind = BD_PROFILE_MEMORY};
    bd_profile_begin(&site);
    int64_t counted = 0; // rows
    const size_t mark = bd_arena_mark(scratch);
    const int64_t V = loss->vocabulary;
    const bool soft = loss->teacher_logits || loss->teacher_features,
               gradient = wants_gradient(loss);
    chunk c = {.loss = loss, .scratch = scratch, .most = chunk_rows(V)};
    if (c.most > loss->rows)
        c.most = loss->rows;
    c.index = bd_arena_alloc(scratch, (size_t)c.most * sizeof *c.index);
    c.logits = bd_arena_floats(scratch, c.most * V);
    if (gradient)
        c.d_logits = loss->divergence == BD_DIVERGENCE_NONE ? c.logits
                                                            : bd_arena_floats(scratch, c.most * V);
    if (soft)
        c.teacher = bd_arena_alloc(scratch, (size_t)c.most * sizeof *c.teacher);
    if (loss->teacher_features)
        c.teacher_logits = bd_arena_floats(scratch, c.most * V);
    for (int64_t r = 0; r < loss->rows;) {
        r = take_rows(&c, r);
        if (c.count == 0)
            break;
        counted += c.count;
        compute_logits(&c);
        collect_teacher(&c);
        logits_job job = {.loss = loss,
                          .index = c.index,
                          .count = c.count,
                          .logits = c.logits,
                          .teacher = c.teacher,
                          .d_logits = c.d_logits};
        losses_of_logits(&job);
        if (gradient)
            add_gradients(&c);
    }
    bd_arena_release(scratch, mark);
    // Logits are read, and their gradient is written in their place; the products are scopes inside.
    bd_profile_end(&site, 10 * (double)(counted * V),
                   (4 + 4 * gradient + 4 * soft) * (double)(counted * V));
}
