#include "draft/lattice.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/profile.h"
#include "base/threads.h"

enum { MOST_ROWS = 255 * BD_LATTICE_CANDIDATES }; // of a block; their scores are on the stack

typedef struct {
    bd_value *a, *b, *y;
    bd_parameter *weight, *bias;
    const int32_t *ids;
    float number;
    bd_lattice_shape shape;
} note;

static bd_value *leave_note(bd_tape *tape, void (*back)(bd_tape *, void *), const note *what)
{
    if (what->y->gradient) {
        note *n = bd_arena_alloc(tape->arena, sizeof *n);
        *n = *what;
        bd_tape_note(tape, back, n);
    }
    return what->y;
}

// --- sums ----------------------------------------------------------------------------------------

static void add_rows_back(bd_tape *tape, void *context)
{
    (void)tape;
    const note *n = context;
    if (n->a->gradient)
        bd_accumulate(n->y->gradient, n->y->rows * n->y->width, n->a->gradient);
    if (n->weight->gradient)
        bd_gather_backward(n->y->gradient, n->y->width, n->ids, n->y->rows, n->weight->gradient);
}

bd_value *bd_op_add_rows(bd_tape *tape, bd_value *x, bd_parameter *table, const int32_t *ids)
{
    assert(table->count % x->width == 0);
    note n = {.a = x, .weight = table, .ids = ids};
    n.y = bd_tape_value(tape, x->rows, x->width, x->gradient || table->gradient);
    bd_gather(table->data, table->dtype, x->width, ids, x->rows, n.y->data);
    bd_accumulate(x->data, x->rows * x->width, n.y->data);
    return leave_note(tape, add_rows_back, &n);
}

// --- norms ---------------------------------------------------------------------------------------

static void moments(const float *x, int64_t width, double *mean, double *inverse)
{
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < width; i++)
        sum += (double)x[i];
    *mean = sum / (double)width;
    for (int64_t i = 0; i < width; i++)
        squares += ((double)x[i] - *mean) * ((double)x[i] - *mean);
    *inverse = 1 / sqrt(squares / (double)width + 1e-5);
}

// dx = (dn - mean(dn) - n mean(dn n)) / deviation, with n the normed row and dn = dy * weight.
static void layer_norm_back(bd_tape *tape, void *context)
{
    (void)tape;
    const note *n = context;
    int64_t width = n->y->width;
    const float *weight = bd_parameter_values(n->weight);
    for (int64_t r = 0; r < n->y->rows; r++) {
        const float *x = n->a->data + r * width, *dy = n->y->gradient + r * width;
        double mean, inverse, sum = 0, along = 0;
        moments(x, width, &mean, &inverse);
        for (int64_t i = 0; i < width; i++) {
            double normed = ((double)x[i] - mean) * inverse, d = (double)(dy[i] * weight[i]);
            sum += d;
            along += d * normed;
            if (n->weight->gradient)
                n->weight->gradient[i] += dy[i] * (float)normed;
            if (n->bias->gradient)
                n->bias->gradient[i] += dy[i];
        }
        for (int64_t i = 0; n->a->gradient && i < width; i++) {
            double normed = ((double)x[i] - mean) * inverse, d = (double)(dy[i] * weight[i]);
            n->a->gradient[r * width + i] +=
                (float)(inverse * (d - sum / (double)width - normed * along / (double)width));
        }
    }
}

bd_value *bd_op_layer_norm(bd_tape *tape, bd_value *x, bd_parameter *weight, bd_parameter *bias)
{
    assert(weight->count == x->width && bias->count == x->width);
    note n = {.a = x, .weight = weight, .bias = bias};
    n.y = bd_tape_value(tape, x->rows, x->width, x->gradient || weight->gradient || bias->gradient);
    const float *w = bd_parameter_values(weight), *b = bd_parameter_values(bias);
    for (int64_t r = 0; r < x->rows; r++) {
        double mean, inverse;
        moments(x->data + r * x->width, x->width, &mean, &inverse);
        for (int64_t i = 0; i < x->width; i++)
            n.y->data[r * x->width + i] =
                (float)(((double)x->data[r * x->width + i] - mean) * inverse) * w[i] + b[i];
    }
    return leave_note(tape, layer_norm_back, &n);
}

// Over the floor: dx = (dy - n (n . dy)) / |x|, else dy / eps.
static void normalize_back(bd_tape *tape, void *context)
{
    (void)tape;
    const note *n = context;
    int64_t width = n->y->width;
    for (int64_t r = 0; r < n->y->rows; r++) {
        const float *y = n->y->data + r * width, *dy = n->y->gradient + r * width;
        double norm = sqrt(bd_sum_of_squares(n->a->data + r * width, width)), along = 0;
        double size = fmax(norm, (double)n->number);
        for (int64_t i = 0; norm > (double)n->number && i < width; i++)
            along += (double)y[i] * (double)dy[i];
        for (int64_t i = 0; i < width; i++)
            n->a->gradient[r * width + i] += (float)(((double)dy[i] - (double)y[i] * along) / size);
    }
}

bd_value *bd_op_normalize(bd_tape *tape, bd_value *x, float eps)
{
    note n = {.a = x, .number = eps};
    n.y = bd_tape_value(tape, x->rows, x->width, x->gradient != NULL);
    for (int64_t r = 0; r < x->rows; r++) {
        const float *from = x->data + r * x->width;
        double size = fmax(sqrt(bd_sum_of_squares(from, x->width)), (double)eps);
        for (int64_t i = 0; i < x->width; i++)
            n.y->data[r * x->width + i] = (float)((double)from[i] / size);
    }
    return leave_note(tape, normalize_back, &n);
}

// --- attention without a mask --------------------------------------------------------------------

typedef struct {
    bd_value *qkv, *y;
    bd_parameter *relative, *same;
    const float *relative_values, *same_values;
    bd_lattice_shape shape;
    int64_t heads, width, size, rows; // D, D / heads, rows of a block
    float *bias_gradient; // [blocks, heads, 2 slots + 2]: of the relative row, then of same
} attention;

static const float *part(const attention *a, int64_t block, int64_t row, int which, int64_t head)
{
    return a->qkv->data + (block * a->rows + row) * 3 * a->width + which * a->width +
           head * a->size;
}

/* p[keys] of one query, and the index of each key's bias. */
static void probabilities(const attention *a, int64_t block, int64_t head, int64_t query, float *p)
{
    int64_t distances = 2 * a->shape.slots + 1, slot = query / a->shape.candidates;
    const float *q = part(a, block, query, 0, head);
    double scale = 1 / sqrt((double)a->size);
    for (int64_t k = 0; k < a->rows; k++) {
        int64_t other = k / a->shape.candidates;
        const float *key = part(a, block, k, 1, head);
        double dot = 0;
        for (int64_t i = 0; i < a->size; i++)
            dot += (double)q[i] * (double)key[i];
        p[k] = (float)(dot * scale) +
               a->relative_values[head * distances + slot - other + a->shape.slots] +
               (slot == other ? a->same_values[head] : 0);
    }
    bd_softmax(p, a->rows, p);
}

static void attend(void *context, int64_t task)
{
    const attention *a = context;
    int64_t block = task / a->heads, head = task % a->heads;
    float p[MOST_ROWS];
    for (int64_t q = 0; q < a->rows; q++) {
        float *y = a->y->data + (block * a->rows + q) * a->width + head * a->size;
        probabilities(a, block, head, q, p);
        memset(y, 0, (size_t)a->size * sizeof *y);
        for (int64_t k = 0; k < a->rows; k++) {
            const float *value = part(a, block, k, 2, head);
            for (int64_t i = 0; i < a->size; i++)
                y[i] += p[k] * value[i];
        }
    }
}

static void attend_back(void *context, int64_t task)
{
    const attention *a = context;
    int64_t block = task / a->heads, head = task % a->heads, slots = a->shape.slots;
    float p[MOST_ROWS], dp[MOST_ROWS], scale = 1 / sqrtf((float)a->size);
    float *bias = a->bias_gradient + task * (2 * slots + 2);
    const int64_t to_gradient = a->qkv->gradient - a->qkv->data;
    for (int64_t q = 0; q < a->rows; q++) {
        const float *query = part(a, block, q, 0, head);
        const float *dy = a->y->gradient + (block * a->rows + q) * a->width + head * a->size;
        float *d_query = (float *)(uintptr_t)query + to_gradient;
        double along = 0;
        probabilities(a, block, head, q, p);
        for (int64_t k = 0; k < a->rows; k++) {
            const float *value = part(a, block, k, 2, head);
            float *d_value = (float *)(uintptr_t)value + to_gradient;
            double dot = 0;
            for (int64_t i = 0; i < a->size; i++) {
                dot += (double)dy[i] * (double)value[i];
                d_value[i] += p[k] * dy[i];
            }
            dp[k] = (float)dot;
            along += dot * (double)p[k];
        }
        for (int64_t k = 0; k < a->rows; k++) {
            const float *key = part(a, block, k, 1, head);
            float *d_key = (float *)(uintptr_t)key + to_gradient;
            float d = p[k] * (dp[k] - (float)along);
            int64_t distance = q / a->shape.candidates - k / a->shape.candidates;
            bias[distance + slots] += d;
            if (distance == 0)
                bias[2 * slots + 1] += d;
            for (int64_t i = 0; i < a->size; i++) {
                d_query[i] += d * scale * key[i];
                d_key[i] += d * scale * query[i];
            }
        }
    }
}

static void attention_back(bd_tape *tape, void *context)
{
    attention *a = context;
    int64_t distances = 2 * a->shape.slots + 1, tasks = a->shape.blocks * a->heads;
    a->bias_gradient = bd_arena_zeros(tape->arena, tasks * (distances + 1));
    static bd_profile_site site = {.name = "lattice attention, back", .kind = BD_PROFILE_F32};
    bd_profile_begin(&site);
    bd_parallel(tasks, attend_back, a);
    bd_profile_end(&site, 10 * (double)(a->rows * a->rows * a->size * tasks),
                   28 * (double)(a->qkv->rows * a->width));
    for (int64_t task = 0; task < tasks; task++) {
        int64_t head = task % a->heads;
        const float *bias = a->bias_gradient + task * (distances + 1);
        for (int64_t i = 0; a->relative->gradient && i < distances; i++)
            a->relative->gradient[head * distances + i] += bias[i];
        if (a->same->gradient)
            a->same->gradient[head] += bias[distances];
    }
}

/* fp32 values of a small table of any rank; a copy in the arena where the file has another dtype.
 */
static const float *table_values(bd_tape *tape, const bd_parameter *p)
{
    if (p->dtype == BD_F32)
        return p->data;
    float *values = bd_arena_floats(tape->arena, p->count);
    bd_to_f32(p->dtype, p->data, values, p->count);
    return values;
}

bd_value *bd_lattice_attention(bd_tape *tape, bd_value *qkv, bd_parameter *relative,
                               bd_parameter *same, const bd_lattice_shape *shape)
{
    attention *a = bd_arena_alloc(tape->arena, sizeof *a);
    *a = (attention){.qkv = qkv,
                     .relative = relative,
                     .same = same,
                     .relative_values = table_values(tape, relative),
                     .same_values = table_values(tape, same),
                     .shape = *shape,
                     .heads = same->count,
                     .width = qkv->width / 3,
                     .rows = shape->slots * shape->candidates};
    a->size = a->width / a->heads;
    assert(qkv->rows == shape->blocks * a->rows && a->rows <= MOST_ROWS);
    assert(relative->count == a->heads * (2 * shape->slots + 1));
    assert(!tape->recording || qkv->gradient);
    a->y = bd_tape_value(tape, qkv->rows, a->width, qkv->gradient != NULL);
    static bd_profile_site site = {.name = "lattice attention", .kind = BD_PROFILE_F32};
    bd_profile_begin(&site);
    bd_parallel(shape->blocks * a->heads, attend, a);
    bd_profile_end(&site, 4 * (double)(a->rows * a->rows * a->width * shape->blocks),
                   16 * (double)(qkv->rows * a->width));
    if (a->y->gradient)
        bd_tape_note(tape, attention_back, a);
    return a->y;
}

// --- what the backbone says about a candidate ----------------------------------------------------

static void features_back(bd_tape *tape, void *context)
{
    (void)tape;
    const note *n = context;
    int64_t count = n->a->width;
    for (int64_t row = 0; row < n->a->rows; row++) {
        const float *logp = n->a->data + row * count;
        float *d = n->a->gradient + row * count;
        for (int64_t j = 0; j < count; j++) {
            const float *dy = n->y->gradient + (row * count + j) * 5;
            d[j] += dy[0] + dy[1] * expf(logp[j]) + dy[2];
            d[0] -= dy[2]; // the first is the largest
        }
    }
}

bd_value *bd_lattice_features(bd_tape *tape, bd_value *logp)
{
    int64_t count = logp->width;
    note n = {.a = logp};
    n.y = bd_tape_value(tape, logp->rows * count, 5, logp->gradient != NULL);
    for (int64_t i = 0; i < logp->rows * count; i++) {
        int64_t j = i % count;
        float own = logp->data[i], *f = n.y->data + i * 5;
        f[0] = own;
        f[1] = expf(own);
        f[2] = own - logp->data[i - j];
        f[3] = count > 1 ? (float)j / (float)(count - 1) : 0;
        f[4] = j == 0;
    }
    return leave_note(tape, features_back, &n);
}

// --- scores --------------------------------------------------------------------------------------

static float dot(const float *a, const float *b, int64_t width)
{
    double sum = 0;
    for (int64_t i = 0; i < width; i++)
        sum += (double)a[i] * (double)b[i];
    return (float)sum;
}

/* da += d b, db += d a. */
static void dot_back(float d, const float *a, const float *b, int64_t width, float *da, float *db)
{
    for (int64_t i = 0; i < width; i++) {
        if (da)
            da[i] += d * b[i];
        if (db)
            db[i] += d * a[i];
    }
}

static float *offset(float *gradient, int64_t by)
{
    return gradient ? gradient + by : NULL;
}

static void start_back(bd_tape *tape, void *context)
{
    (void)tape;
    const note *n = context;
    int64_t width = n->a->width, K = n->shape.candidates;
    for (int64_t i = 0; i < n->shape.blocks * K; i++) {
        int64_t from = i / K * width, to = (i / K * n->shape.slots * K + i % K) * width;
        dot_back(n->number * n->y->gradient[i], n->a->data + from, n->b->data + to, width,
                 offset(n->a->gradient, from), offset(n->b->gradient, to));
    }
}

bd_value *bd_lattice_start(bd_tape *tape, bd_value *anchor, bd_value *in, float scale,
                           const bd_lattice_shape *shape)
{
    int64_t width = in->width, K = shape->candidates;
    note n = {.a = anchor, .b = in, .number = scale, .shape = *shape};
    n.y = bd_tape_value(tape, shape->blocks, K, anchor->gradient || in->gradient);
    for (int64_t i = 0; i < shape->blocks * K; i++)
        n.y->data[i] = scale * dot(anchor->data + i / K * width,
                                   in->data + (i / K * shape->slots * K + i % K) * width, width);
    return leave_note(tape, start_back, &n);
}

/* The two candidates that pair score i joins, as rows. */
static void joined(const bd_lattice_shape *shape, int64_t i, int64_t *from, int64_t *to)
{
    int64_t K = shape->candidates, step = i / (K * K); // block * (slots - 1) + slot
    int64_t slot = step / (shape->slots - 1) * shape->slots + step % (shape->slots - 1);
    *from = slot * K + i / K % K;
    *to = (slot + 1) * K + i % K;
}

static void pair_back(bd_tape *tape, void *context)
{
    (void)tape;
    const note *n = context;
    int64_t width = n->a->width, from, to;
    for (int64_t i = 0; i < n->y->rows * n->y->width; i++) {
        joined(&n->shape, i, &from, &to);
        dot_back(n->number * n->y->gradient[i], n->a->data + from * width, n->b->data + to * width,
                 width, offset(n->a->gradient, from * width), offset(n->b->gradient, to * width));
    }
}

bd_value *bd_lattice_pair(bd_tape *tape, bd_value *out, bd_value *in, float scale,
                          const bd_lattice_shape *shape)
{
    int64_t width = in->width, from, to;
    int64_t pairs = (shape->slots - 1) * shape->candidates * shape->candidates;
    note n = {.a = out, .b = in, .number = scale, .shape = *shape};
    n.y = bd_tape_value(tape, shape->blocks, pairs, out->gradient || in->gradient);
    for (int64_t i = 0; i < shape->blocks * pairs; i++) {
        joined(shape, i, &from, &to);
        n.y->data[i] = scale * dot(out->data + from * width, in->data + to * width, width);
    }
    return leave_note(tape, pair_back, &n);
}
