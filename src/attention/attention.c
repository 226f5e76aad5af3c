#include "attention/attention.h"

#include <assert.h>
#include <math.h>

#include "attention/kernel.h"
#include "base/profile.h"
#include "base/threads.h"

#define FORWARD(level)  &bd_attention_forward_##level,
#define BACKWARD(level) &bd_attention_backward_##level,
static const bd_attention_forward_kernels *const forward_kernels[] = {BD_FOR_EACH_ISA(FORWARD)};
static const bd_attention_backward_kernels *const backward_kernels[] = {BD_FOR_EACH_ISA(BACKWARD)};

// Rows of the batch are taken together until their packed arrays reach about this many floats.
#define PACKED_FLOATS ((int64_t)64 << 20)
// A call with fewer multiplications is over before another thread could wake up.
#define WORTH_THREADS ((int64_t)64 << 10)
// Units per key head up to which packing keys for all of them would not pay.
enum { FEW_UNITS = 2 };
// Tasks of the backward pass to aim at, and tiles that are worth one, because each sums d_query for
// itself. Constants: the order of sums must not depend on the threads.
enum { BACKWARD_TASKS = 32, TASK_TILES = 4 };

/* --- running tasks --------------------------------------------------------------------------- */

typedef struct {
    const bd_attention_job *job;
    bd_attention_task *run;
    int64_t heads; // groups of key heads
    int64_t count; // of indices per group
    bool backwards;
} task_list;

static void run_task(void *context, int64_t task)
{
    const task_list *list = context;
    int64_t index = task % list->count, head = task / list->count;
    if (list->backwards)
        index = list->count - 1 - index;
    list->run(list->job, head / list->heads, head % list->heads, index);
}

// For every (row of the batch, group of key heads, index < count). Later units have more keys in
// causal rows: `backwards` starts with them, so that no thread is left alone with a long one.
static void run_all(const bd_attention_job *job, bd_attention_task *run, int64_t heads_at_once,
                    int64_t count, bool backwards)
{
    task_list list = {.job = job, .run = run, .count = count, .backwards = backwards};
    list.heads = (job->a->key_heads + heads_at_once - 1) / heads_at_once;
    int64_t tasks = job->rows_of_batch * list.heads * count;
    const bd_attention *a = job->a;
    if (job->plan.rows * a->rule->key_length * a->head_size * a->key_heads * job->rows_of_batch <
        WORTH_THREADS) {
        for (int64_t task = 0; task < tasks; task++)
            run_task(&list, task);
        return;
    }
    bd_parallel(tasks, run_task, &list);
}

/* --- jobs ------------------------------------------------------------------------------------ */

static bd_attention_job start_job(const bd_attention *a, int64_t first_row, int64_t rows,
                                  const float *query, const float *key, const float *value,
                                  bd_arena *scratch)
{
    bd_attention_job job = {.a = a, .first_row = first_row, .rows_of_batch = rows};
    job.plan =
        bd_attention_plan_make(a->rule, first_row, rows, a->query_heads / a->key_heads, scratch);
    job.words = a->compute == BD_F32 ? BD_WORDS_F32 : forward_kernels[bd_isa()]->bf16_words;
    job.score_unit = (float)((double)a->scale * M_LOG2E);
    job.width = (a->head_size + BD_HEAD_PAD - 1) / BD_HEAD_PAD * BD_HEAD_PAD;
    job.head_steps = bd_words_of(job.words, a->head_size);
    job.row_words = bd_words_of(job.words, job.width);
    job.padded_rows = job.plan.units * BD_UNIT_ROWS;
    job.query = query;
    job.key = key;
    job.value = value;
    return job;
}

static bd_word *words(bd_arena *arena, int64_t count)
{
    return bd_arena_alloc(arena, (size_t)count * sizeof(bd_word));
}

// How many rows of the batch to take at once, when each needs arrays of this many floats.
static int64_t rows_at_once(const bd_attention *a, int64_t floats)
{
    int64_t rows = floats > 0 ? PACKED_FLOATS / floats : a->batch;
    return rows < 1 ? 1 : rows;
}

static void check_shape(const bd_attention *a)
{
    assert(a->compute == BD_F32 || a->compute == BD_BF16 || a->compute == BD_Q8_0);
    assert(a->key_heads > 0 && a->query_heads % a->key_heads == 0);
    assert(a->head_size > 0 && a->head_size <= BD_MOST_HEAD_SIZE && a->scale > 0);
    (void)a;
}

// What a profile counts: pairs of all heads, numbers in queries, numbers in keys.
static double visible_pairs(const bd_attention_job *job)
{
    if (!bd_profile_on)
        return 0;
    return (double)job->a->key_heads * (double)bd_attention_plan_pairs(&job->plan,
                                                                       job->rows_of_batch,
                                                                       job->a->rule->key_length);
}

static double query_numbers(const bd_attention *a)
{
    return (double)(a->batch * a->rule->query_length * a->query_heads * a->head_size);
}

static double key_numbers(const bd_attention *a)
{
    return (double)(a->batch * a->rule->key_length * a->key_heads * a->head_size);
}

/* --- forward --------------------------------------------------------------------------------- */

// Tiles of this many numbers of keys, and as many of values, stay in the second-level cache.
enum { TILE_NUMBERS = 64 << 10 };
// Keys and values up to this many numbers are probably in a cache already.
enum { CACHED_NUMBERS = 128 << 10 };

// Keys and values are read once, where they lie. Neighbouring heads lie side by side: a task takes
// as many as its space, the cache and the number of threads allow. Results do not depend on it.
static void read_in_place(bd_attention_job *job)
{
    const bd_attention *a = job->a;
    int64_t rows = job->plan.rows < BD_UNIT_ROWS ? job->plan.rows : BD_UNIT_ROWS;
    int64_t groups = (rows + BD_ROW_GROUP - 1) / BD_ROW_GROUP, heads = BD_MOST_GROUPS / groups;
    int64_t threads = bd_threads_count(), all = job->rows_of_batch * a->key_heads;
    int64_t limits[] = {
        BD_MOST_SLOT_NUMBERS / (groups * BD_ROW_GROUP * job->width),
        TILE_NUMBERS / (BD_KEY_TILE * a->head_size),
        (all + threads - 1) / threads,
        a->key_heads,
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++)
        heads = heads < limits[i] ? heads : limits[i];
    job->heads_at_once = heads < 1 ? 1 : heads;
    job->fetch_ahead = 2 * all * a->rule->key_length * a->head_size > CACHED_NUMBERS;
}

void bd_attention_forward(const bd_attention *a, const float *query, const float *key,
                          const float *value, float *out, float *log_sum, bd_arena *scratch)
{
    check_shape(a);
    static bd_profile_site sites[2] = {{.name = "attention f32", .kind = BD_PROFILE_F32},
                                       {.name = "attention bf16", .kind = BD_PROFILE_BF16}};
    bd_profile_site *site = &sites[a->compute != BD_F32];
    bd_profile_begin(site);
    double pairs = 0;
    const bd_attention_forward_kernels *kernels = forward_kernels[bd_isa()];
    size_t mark = bd_arena_mark(scratch);
    int64_t step = rows_at_once(a, 2 * a->rule->key_length * a->key_heads * a->head_size);
    for (int64_t first = 0; first < a->batch; first += step) {
        int64_t rows = a->batch - first < step ? a->batch - first : step;
        bd_attention_job job = start_job(a, first, rows, query, key, value, scratch);
        job.out = out;
        job.log_sum = log_sum;
        job.heads_at_once = 1;
        if (job.plan.units <= FEW_UNITS) {
            read_in_place(&job);
        } else {
            int64_t tiles = rows * a->key_heads * job.plan.tiles;
            job.key_columns = words(scratch, tiles * bd_job_column_words(&job));
            job.value_rows = words(scratch, tiles * bd_job_row_words(&job));
            run_all(&job, kernels->pack_tile, 1, job.plan.tiles, false);
        }
        run_all(&job, kernels->forward_unit, job.heads_at_once, job.plan.units, true);
        pairs += visible_pairs(&job);
        bd_arena_release(scratch, mark);
    }
    bd_profile_end(site, 4 * (double)a->head_size * pairs,
                   8 * (query_numbers(a) + key_numbers(a))); // two of each are touched
}

/* --- backward -------------------------------------------------------------------------------- */

static void allocate_backward(bd_attention_job *job, bd_arena *scratch)
{
    int64_t heads = job->rows_of_batch * job->a->key_heads, tiles = heads * job->plan.tiles;
    int64_t left = heads * job->padded_rows * job->row_words;
    int64_t right = heads * bd_words_of(job->words, job->padded_rows) * job->width;
    job->key_columns = words(scratch, tiles * bd_job_column_words(job));
    job->value_columns = words(scratch, tiles * bd_job_column_words(job));
    job->key_rows = words(scratch, tiles * bd_job_row_words(job));
    job->query_left = job->query_right = words(scratch, left);
    job->d_out_left = job->d_out_right = words(scratch, left);
    if (job->words == BD_WORDS_PAIRS) {
        job->query_right = words(scratch, right);
        job->d_out_right = words(scratch, right);
    }
    job->row_shift = bd_arena_floats(scratch, heads * job->padded_rows);
    job->row_factor = bd_arena_floats(scratch, heads * job->padded_rows);
    job->row_delta = bd_arena_floats(scratch, heads * job->padded_rows);
    int64_t all_heads = job->a->batch * job->a->key_heads;
    int64_t most = (job->plan.tiles + TASK_TILES - 1) / TASK_TILES;
    job->chunks = (BACKWARD_TASKS + all_heads - 1) / all_heads;
    job->chunks = job->chunks < most ? job->chunks : most;
    job->d_query_parts =
        bd_arena_floats(scratch, job->chunks * heads * job->padded_rows * job->width);
}

/* The sink is one more score whose value is 0, so its slope is p_sink (0 - delta). */
static void add_sink_gradient(const bd_attention_job *job, double *d_sink)
{
    const bd_attention *a = job->a;
    int64_t group = job->plan.group;
    for (int64_t head = 0; head < a->query_heads; head++)
        for (int64_t b = 0; b < job->rows_of_batch; b++) {
            int64_t line = (job->first_row + b) * a->query_heads + head;
            const float *log_sum = job->saved_log_sum + line * a->rule->query_length;
            const float *delta =
                job->row_delta + bd_job_head(job, b, head / group) * job->padded_rows;
            for (int64_t q = 0; q < a->rule->query_length; q++)
                if (log_sum[q] != -INFINITY)
                    d_sink[head] -= exp((double)a->sink[head] - (double)log_sum[q]) *
                                    (double)delta[q * group + head % group];
        }
}

void bd_attention_backward(const bd_attention *a, const float *query, const float *key,
                           const float *value, const float *out, const float *log_sum,
                           const float *d_out, float *d_query, float *d_key, float *d_value,
                           float *d_sink, bd_arena *scratch)
{
    check_shape(a);
    static bd_profile_site sites[2] = {{.name = "attention f32, back", .kind = BD_PROFILE_F32},
                                       {.name = "attention bf16, back", .kind = BD_PROFILE_BF16}};
    bd_profile_site *site = &sites[a->compute != BD_F32];
    bd_profile_begin(site);
    double pairs = 0;
    const bd_attention_backward_kernels *kernels = backward_kernels[bd_isa()];
    size_t start = bd_arena_mark(scratch);
    double *sink_sums = bd_arena_alloc(scratch, (size_t)a->query_heads * sizeof *sink_sums);
    for (int64_t head = 0; head < a->query_heads; head++)
        sink_sums[head] = 0;
    size_t mark = bd_arena_mark(scratch);
    int64_t keys = a->rule->key_length * a->key_heads, queries = a->rule->query_length;
    int64_t step = rows_at_once(a, 3 * a->head_size * (keys + queries * a->query_heads));
    for (int64_t first = 0; first < a->batch; first += step) {
        int64_t rows = a->batch - first < step ? a->batch - first : step;
        bd_attention_job job = start_job(a, first, rows, query, key, value, scratch);
        job.saved_out = out;
        job.saved_log_sum = log_sum;
        job.d_out = d_out;
        job.d_query = d_query;
        job.d_key = d_key;
        job.d_value = d_value;
        allocate_backward(&job, scratch);
        if (job.plan.tiles > 0) {
            run_all(&job, kernels->pack_tile, 1, job.plan.tiles, false);
            run_all(&job, kernels->prepare_unit, 1, job.plan.units, false);
            run_all(&job, kernels->backward_chunk, 1, job.chunks, false);
            run_all(&job, kernels->finish_unit, 1, job.plan.units, false);
            if (a->sink && d_sink)
                add_sink_gradient(&job, sink_sums);
        }
        pairs += visible_pairs(&job);
        bd_arena_release(scratch, mark);
    }
    for (int64_t head = 0; a->sink && d_sink && head < a->query_heads; head++)
        d_sink[head] += (float)sink_sums[head];
    bd_arena_release(scratch, start);
    // Five products; query, out, d_out are read and d_query is read and written, keys and values so too.
    bd_profile_end(site, 10 * (double)a->head_size * pairs,
                   20 * query_numbers(a) + 24 * key_numbers(a));
}
