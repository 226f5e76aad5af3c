#include "attention/attention.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/threads.h"

/* The reference: for each query and head, one row of scores over all keys, in float64, each pair
 * asked of the rule. It shares nothing with the sparse kernels but that rule. One task is one key
 * head of one row of the batch; inside it everything runs in order of heads, queries, keys. */

typedef struct {
    const bd_attention *a;
    const float *query, *key, *value, *d_out;
    float *out, *log_sum;
    float *d_query, *d_key, *d_value;
    double *probability; // [tasks, key_length]: scores, then probabilities
    double *slope;       // [tasks, key_length]: d probability, then d score
    double *key_sums;    // [tasks, 2, key_length, head_size]: d_key and d_value of the task
    double *sink_sums;   // [batch, query_heads]
} dense_job;

// One (row, key head): where its heads and keys start.
typedef struct {
    int64_t b, key_head, group; // query heads key_head * group .. + group - 1
    int64_t query_stride, key_stride;
    const float *key, *value;
} dense_task;

static dense_task task_of(const bd_attention *a, const float *key, const float *value, int64_t task)
{
    dense_task t = {.b = task / a->key_heads, .key_head = task % a->key_heads};
    t.group = a->query_heads / a->key_heads;
    t.query_stride = a->query_heads * a->head_size;
    t.key_stride = a->key_heads * a->head_size;
    int64_t first = t.b * a->rule->key_length * t.key_stride + t.key_head * a->head_size;
    t.key = key + first;
    t.value = value + first;
    return t;
}

static int64_t query_at(const bd_attention *a, const dense_task *t, int64_t head, int64_t q)
{
    return (t->b * a->rule->query_length + q) * t->query_stride + head * a->head_size;
}

static double as_input(const bd_attention *a, float x)
{
    return (double)(a->compute == BD_F32 ? x : bd_bf16_to_f32(bd_bf16_from_f32(x)));
}

static double dot(const bd_attention *a, const float *x, const float *y)
{
    double sum = 0;
    for (int64_t i = 0; i < a->head_size; i++)
        sum += as_input(a, x[i]) * as_input(a, y[i]);
    return sum;
}

/* p[k] = the probability of key k for this query, 0 where hidden; *sink gets the sink's. Returns
 * the logsumexp of the visible scores and the sink, -inf when nothing is visible. */
static double probabilities(const bd_attention *a, const dense_task *t, int64_t head, int64_t q,
                            const float *query, double *p, double *sink)
{
    int64_t keys = a->rule->key_length;
    double largest = -INFINITY;
    for (int64_t k = 0; k < keys; k++) {
        p[k] = -INFINITY;
        if (bd_visibility_allows(a->rule, t->b, q, k))
            p[k] = (double)a->scale * dot(a, query, t->key + k * t->key_stride);
        largest = p[k] > largest || isnan(p[k]) ? p[k] : largest;
    }
    *sink = 0;
    if (largest == -INFINITY) {
        memset(p, 0, (size_t)keys * sizeof *p);
        return -INFINITY;
    }
    double sum = 0;
    if (a->sink) {
        largest = fmax(largest, (double)a->sink[head]);
        *sink = exp((double)a->sink[head] - largest);
        sum = *sink;
    }
    for (int64_t k = 0; k < keys; k++) {
        p[k] = p[k] == -INFINITY ? 0 : exp(p[k] - largest);
        sum += p[k];
    }
    for (int64_t k = 0; k < keys; k++)
        p[k] /= sum;
    *sink /= sum;
    return largest + log(sum);
}

static void forward_task(void *context, int64_t task)
{
    const dense_job *job = context;
    const bd_attention *a = job->a;
    dense_task t = task_of(a, job->key, job->value, task);
    double *p = job->probability + task * a->rule->key_length;
    for (int64_t head = t.key_head * t.group; head < (t.key_head + 1) * t.group; head++)
        for (int64_t q = 0; q < a->rule->query_length; q++) {
            int64_t at = query_at(a, &t, head, q);
            double sink, log_sum = probabilities(a, &t, head, q, job->query + at, p, &sink);
            if (job->log_sum)
                job->log_sum[(t.b * a->query_heads + head) * a->rule->query_length + q] =
                    (float)log_sum;
            double sum[BD_MOST_HEAD_SIZE] = {0};
            for (int64_t k = 0; k < a->rule->key_length; k++)
                for (int64_t i = 0; p[k] != 0 && i < a->head_size; i++)
                    sum[i] += p[k] * as_input(a, t.value[k * t.key_stride + i]);
            for (int64_t i = 0; i < a->head_size; i++)
                job->out[at + i] = (float)sum[i];
        }
}

/* With go = d_out[q]: d_value[k] += p[k] go, d p[k] = <go, v[k]>, d score[k] = p[k] (d p[k] - sum_j
 * p[j] d p[j]), and from it d_query and d_key. Returns what the query adds to the sink's gradient.
 */
static double backward_row(const dense_job *job, const dense_task *t, int64_t head, int64_t q,
                           double *p, double *slope, double *d_key, double *d_value)
{
    const bd_attention *a = job->a;
    int64_t at = query_at(a, t, head, q), size = a->head_size, keys = a->rule->key_length;
    const float *query = job->query + at, *d_out = job->d_out + at;
    double sink, mean = 0;
    probabilities(a, t, head, q, query, p, &sink);
    for (int64_t k = 0; k < keys; k++) {
        slope[k] = p[k] != 0 ? dot(a, d_out, t->value + k * t->key_stride) : 0;
        mean += p[k] * slope[k];
    }
    double sum[BD_MOST_HEAD_SIZE] = {0};
    for (int64_t k = 0; k < keys; k++) {
        double ds = p[k] * (slope[k] - mean) * (double)a->scale;
        for (int64_t i = 0; p[k] != 0 && i < size; i++) {
            sum[i] += ds * as_input(a, t->key[k * t->key_stride + i]);
            d_key[k * size + i] += ds * as_input(a, query[i]);
            d_value[k * size + i] += p[k] * as_input(a, d_out[i]);
        }
    }
    for (int64_t i = 0; i < size; i++)
        job->d_query[at + i] += (float)sum[i];
    return -sink * mean;
}

static void backward_task(void *context, int64_t task)
{
    const dense_job *job = context;
    const bd_attention *a = job->a;
    int64_t keys = a->rule->key_length, size = a->head_size;
    dense_task t = task_of(a, job->key, job->value, task);
    double *p = job->probability + task * keys, *slope = job->slope + task * keys;
    double *d_key = job->key_sums + task * 2 * keys * size, *d_value = d_key + keys * size;
    memset(d_key, 0, (size_t)(2 * keys * size) * sizeof *d_key);
    for (int64_t head = t.key_head * t.group; head < (t.key_head + 1) * t.group; head++) {
        double sink = 0;
        for (int64_t q = 0; q < a->rule->query_length; q++)
            sink += backward_row(job, &t, head, q, p, slope, d_key, d_value);
        job->sink_sums[t.b * a->query_heads + head] = sink;
    }
    for (int64_t k = 0; k < keys; k++)
        for (int64_t i = 0; i < size; i++) {
            int64_t at = t.b * keys * t.key_stride + k * t.key_stride + t.key_head * size + i;
            job->d_key[at] += (float)d_key[k * size + i];
            job->d_value[at] += (float)d_value[k * size + i];
        }
}

static void check_shape(const bd_attention *a)
{
    assert(a->key_heads > 0 && a->query_heads % a->key_heads == 0);
    assert(a->head_size > 0 && a->head_size <= BD_MOST_HEAD_SIZE);
    (void)a;
}

static double *doubles(bd_arena *arena, int64_t count)
{
    return bd_arena_alloc(arena, (size_t)count * sizeof(double));
}

void bd_attention_dense_forward(const bd_attention *a, const float *query, const float *key,
                                const float *value, float *out, float *log_sum, bd_arena *scratch)
{
    check_shape(a);
    size_t mark = bd_arena_mark(scratch);
    int64_t tasks = a->batch * a->key_heads;
    dense_job job = {.a = a, .query = query, .key = key, .value = value, .out = out};
    job.log_sum = log_sum;
    job.probability = doubles(scratch, tasks * a->rule->key_length);
    bd_parallel(tasks, forward_task, &job);
    bd_arena_release(scratch, mark);
}

void bd_attention_dense_backward(const bd_attention *a, const float *query, const float *key,
                                 const float *value, const float *out, const float *log_sum,
                                 const float *d_out, float *d_query, float *d_key, float *d_value,
                                 float *d_sink, bd_arena *scratch)
{
    (void)out; // both are computed again, in float64
    (void)log_sum;
    check_shape(a);
    size_t mark = bd_arena_mark(scratch);
    int64_t tasks = a->batch * a->key_heads, keys = a->rule->key_length;
    dense_job job = {.a = a, .query = query, .key = key, .value = value, .d_out = d_out};
    job.d_query = d_query;
    job.d_key = d_key;
    job.d_value = d_value;
    job.probability = doubles(scratch, tasks * keys);
    job.slope = doubles(scratch, tasks * keys);
    job.key_sums = doubles(scratch, tasks * 2 * keys * a->head_size);
    job.sink_sums = doubles(scratch, a->batch * a->query_heads);
    bd_parallel(tasks, backward_task, &job);
    for (int64_t head = 0; a->sink && d_sink && head < a->query_heads; head++) {
        double sum = 0;
        for (int64_t b = 0; b < a->batch; b++)
            sum += job.sink_sums[b * a->query_heads + head];
        d_sink[head] += (float)sum;
    }
    bd_arena_release(scratch, mark);
}
