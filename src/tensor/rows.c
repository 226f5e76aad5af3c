#include "tensor/rows.h"

#include <assert.h>
#include <math.h>

#include "base/profile.h"
#include "base/threads.h"
#include "tensor/isa/rows.h"

// Elements that one task handles: 10 to 50 microseconds of work. Anything smaller stays on the
// calling thread.
enum { TASK_ELEMENTS = 32768 };

#define ENTRY(level) &bd_row_kernels_##level,
static const bd_row_kernels *const tables[BD_ISA_COUNT] = {BD_FOR_EACH_ISA(ENTRY)};

const bd_row_kernels *bd_row_kernels_now(void)
{
    return tables[bd_isa()];
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

// A range 0 .. count-1 cut into tasks of `step`.
static int64_t task_count(int64_t count, int64_t step)
{
    return (count + step - 1) / step;
}

// Rows of a task; a multiple of `unit`.
static int64_t rows_per_task(int64_t width, int64_t unit)
{
    int64_t rows = TASK_ELEMENTS / larger(1, width);
    return larger(1, rows / unit) * unit;
}

/* --- norm ------------------------------------------------------------------------------------- */

// Rows whose contributions to dweight are summed before they meet the others.
enum { SUMMED_ROWS = 64 };

typedef struct {
    const float *x, *weight, *inverse, *dy;
    float eps;
    int64_t rows, width, step;
    float *y, *inverse_out, *dx, *partial;
} norm_job;

static void norm_task(void *context, int64_t task)
{
    const norm_job *job = context;
    const int64_t first = task * job->step, rows = smaller(job->step, job->rows - first);
    bd_row_kernels_now()->rms_norm(job->x + first * job->width, job->weight, job->eps, rows,
                                   job->width, job->y + first * job->width,
                                   job->inverse_out ? job->inverse_out + first : NULL);
}

void bd_rms_norm(const float *x, const float *weight, float eps, int64_t rows, int64_t width,
                 float *y, float *inverse)
{
    static bd_profile_site site = {.name = "rms norm", .kind = BD_PROFILE_MEMORY};
    bd_profile_begin(&site);
    norm_job job = {.x = x,
                    .weight = weight,
                    .eps = eps,
                    .rows = rows,
                    .width = width,
                    .step = rows_per_task(width, 1),
                    .y = y,
                    .inverse_out = inverse};
    bd_parallel(task_count(rows, job.step), norm_task, &job);
    bd_profile_end(&site, 4 * (double)(rows * width), 8 * (double)(rows * width));
}

static void norm_backward_task(void *context, int64_t task)
{
    const norm_job *job = context;
    const int64_t end = smaller(job->rows, (task + 1) * job->step), width = job->width;
    for (int64_t r = task * job->step; r < end; r += SUMMED_ROWS)
        bd_row_kernels_now()->rms_norm_backward(
            job->x + r * width, job->weight, job->inverse + r, job->dy + r * width,
            smaller(SUMMED_ROWS, end - r), width, job->dx ? job->dx + r * width : NULL,
            job->partial ? job->partial + r / SUMMED_ROWS * width : NULL);
}

void bd_rms_norm_backward(const float *x, const float *weight, const float *inverse,
                          const float *dy, int64_t rows, int64_t width, float *dx, float *dweight,
                          bd_arena *scratch)
{
    static bd_profile_site site = {.name = "rms norm, back", .kind = BD_PROFILE_MEMORY};
    bd_profile_begin(&site);
    const size_t mark = bd_arena_mark(scratch);
    const int64_t sums = task_count(rows, SUMMED_ROWS);
    norm_job job = {.x = x,
                    .weight = weight,
                    .inverse = inverse,
                    .dy = dy,
                    .rows = rows,
                    .width = width,
                    .step = rows_per_task(width, SUMMED_ROWS),
                    .dx = dx};
    if (dweight)
        job.partial = bd_arena_floats(scratch, sums * width);
    bd_parallel(task_count(rows, job.step), norm_backward_task, &job);
    if (dweight)
        bd_sum_rows(job.partial, sums, width, dweight);
    bd_arena_release(scratch, mark);
    bd_profile_end(&site, 10 * (double)(rows * width), 16 * (double)(rows * width));
}

/* --- rotary positions ------------------------------------------------------------------------- */

typedef struct {
    const bd_rope *rope;
    double direction;
    const float *x;
    const int32_t *positions;
    int64_t rows, heads, step;
    float *y;
    bool add;
} rope_job;

static void rope_task(void *context, int64_t task)
{
    const rope_job *job = context;
    const int64_t first = task * job->step, rows = smaller(job->step, job->rows - first);
    const int64_t at = first * job->heads * job->rope->head_size;
    bd_row_kernels_now()->rotate(job->rope, job->direction, job->x + at, job->positions + first,
                                 rows, job->heads, job->y + at, job->add);
}

static void rotate(rope_job job)
{
    static bd_profile_site site = {.name = "rope", .kind = BD_PROFILE_MEMORY};
    bd_profile_begin(&site);
    assert(job.rope->head_size % 2 == 0);
    job.step = rows_per_task(job.heads * job.rope->head_size, 1);
    bd_parallel(task_count(job.rows, job.step), rope_task, &job);
    bd_profile_end(&site, 3 * (double)(job.rows * job.heads * job.rope->head_size),
                   (job.add ? 12 : 8) * (double)(job.rows * job.heads * job.rope->head_size));
}

void bd_rope_forward(const bd_rope *rope, const float *x, const int32_t *positions, int64_t rows,
                     int64_t heads, float *y)
{
    rotate((rope_job){.rope = rope,
                      .direction = 1,
                      .x = x,
                      .positions = positions,
                      .rows = rows,
                      .heads = heads,
                      .y = y});
}

void bd_rope_backward(const bd_rope *rope, const float *dy, const int32_t *positions, int64_t rows,
                      int64_t heads, float *dx)
{
    rotate((rope_job){.rope = rope,
                      .direction = -1,
                      .x = dy,
                      .positions = positions,
                      .rows = rows,
                      .heads = heads,
                      .y = dx,
                      .add = true});
}

/* --- element by element ----------------------------------------------------------------------- */

typedef struct {
    const float *a, *b, *dy;
    float factor;
    int64_t count;
    float *y, *z;
} element_job;

// Where a task starts and how many elements it has.
static int64_t range(const element_job *job, int64_t task, int64_t *count)
{
    *count = smaller(TASK_ELEMENTS, job->count - task * TASK_ELEMENTS);
    return task * TASK_ELEMENTS;
}

static void swiglu_task(void *context, int64_t task)
{
    const element_job *job = context;
    int64_t count, at = range(job, task, &count);
    bd_row_kernels_now()->swiglu(job->a + at, job->b + at, count, job->y + at);
}

void bd_swiglu(const float *gate, const float *up, int64_t count, float *y)
{
    static bd_profile_site site = {.name = "swiglu", .kind = BD_PROFILE_MEMORY};
    bd_profile_begin(&site);
    element_job job = {.a = gate, .b = up, .count = count, .y = y};
    bd_parallel(task_count(count, TASK_ELEMENTS), swiglu_task, &job);
    bd_profile_end(&site, 5 * (double)count, 12 * (double)count);
}

static void swiglu_backward_task(void *context, int64_t task)
{
    const element_job *job = context;
    int64_t count, at = range(job, task, &count);
    bd_row_kernels_now()->swiglu_backward(job->a + at, job->b + at, job->dy + at, count,
                                          job->y ? job->y + at : NULL, job->z ? job->z + at : NULL);
}

void bd_swiglu_backward(const float *gate, const float *up, const float *dy, int64_t count,
                        float *dgate, float *dup)
{
    static bd_profile_site site = {.name = "swiglu, back", .kind = BD_PROFILE_MEMORY};
    bd_profile_begin(&site);
    element_job job = {.a = gate, .b = up, .dy = dy, .count = count, .y = dgate, .z = dup};
    bd_parallel(task_count(count, TASK_ELEMENTS), swiglu_backward_task, &job);
    bd_profile_end(&site, 10 * (double)count, 28 * (double)count);
}

static void add_task(void *context, int64_t task)
{
    const element_job *job = context;
    int64_t count, at = range(job, task, &count);
    bd_row_kernels_now()->add(job->a + at, job->b + at, count, job->y + at);
}

void bd_add(const float *a, const float *b, int64_t count, float *y)
{
    static bd_profile_site site = {.name = "add", .kind = BD_PROFILE_MEMORY};
    bd_profile_begin(&site);
    element_job job = {.a = a, .b = b, .count = count, .y = y};
    bd_parallel(task_count(count, TASK_ELEMENTS), add_task, &job);
    bd_profile_end(&site, (double)count, 12 * (double)count);
}

void bd_accumulate(const float *x, int64_t count, float *y)
{
    bd_add(x, y, count, y);
}

static void scale_task(void *context, int64_t task)
{
    const element_job *job = context;
    int64_t count, at = range(job, task, &count);
    bd_row_kernels_now()->scale(job->factor, count, job->y + at);
}

void bd_scale(float factor, int64_t count, float *x)
{
    static bd_profile_site site = {.name = "scale", .kind = BD_PROFILE_MEMORY};
    bd_profile_begin(&site);
    element_job job = {.factor = factor, .count = count, .y = x};
    bd_parallel(task_count(count, TASK_ELEMENTS), scale_task, &job);
    bd_profile_end(&site, (double)count, 8 * (double)count);
}

/* --- tables and sums over rows ---------------------------------------------------------------- */

typedef struct {
    const char *table;
    bd_dtype dtype;
    const int32_t *ids;
    const float *x;
    int64_t rows, width, step;
    float *y;
} table_job;

static void gather_task(void *context, int64_t task)
{
    const table_job *job = context;
    const int64_t end = smaller(job->rows, (task + 1) * job->step), width = job->width;
    const int64_t bytes = width * (int64_t)bd_dtype_size(job->dtype);
    for (int64_t r = task * job->step; r < end; r++)
        bd_to_f32(job->dtype, job->table + job->ids[r] * bytes, job->y + r * width, width);
}

void bd_gather(const void *table, bd_dtype dtype, int64_t width, const int32_t *ids, int64_t rows,
               float *y)
{
    static bd_profile_site site = {.name = "embedding", .kind = BD_PROFILE_MEMORY};
    bd_profile_begin(&site);
    table_job job = {.table = table,
                     .dtype = dtype,
                     .ids = ids,
                     .rows = rows,
                     .width = width,
                     .step = rows_per_task(width, 1),
                     .y = y};
    bd_parallel(task_count(rows, job.step), gather_task, &job);
    bd_profile_end(&site, 0, (double)(rows * width) * (double)(4 + bd_dtype_size(dtype)));
}

// Rows may meet in one row of the result, so tasks are ranges of columns: every element is a sum in
// order of r.
static void add_rows_task(void *context, int64_t task)
{
    const table_job *job = context;
    const int64_t first = task * job->step, count = smaller(job->step, job->width - first);
    const bd_row_kernels *kernels = bd_row_kernels_now();
    for (int64_t r = 0; r < job->rows; r++) {
        float *y = job->y + (job->ids ? job->ids[r] * job->width : 0) + first;
        kernels->add(job->x + r * job->width + first, y, count, y);
    }
}

static void add_rows(table_job job)
{
    const int64_t columns = TASK_ELEMENTS / larger(1, job.rows) / 64 * 64;
    job.step = larger(64, columns); // whole cache lines
    bd_parallel(task_count(job.width, job.step), add_rows_task, &job);
}

void bd_gather_backward(const float *dy, int64_t width, const int32_t *ids, int64_t rows,
                        float *dtable)
{
    static bd_profile_site site = {.name = "embedding, back", .kind = BD_PROFILE_MEMORY};
    bd_profile_begin(&site);
    add_rows((table_job){.ids = ids, .x = dy, .rows = rows, .width = width, .y = dtable});
    bd_profile_end(&site, (double)(rows * width), 12 * (double)(rows * width));
}

void bd_sum_rows(const float *x, int64_t rows, int64_t width, float *out)
{
    static bd_profile_site site = {.name = "sum of rows", .kind = BD_PROFILE_MEMORY};
    bd_profile_begin(&site);
    add_rows((table_job){.x = x, .rows = rows, .width = width, .y = out});
    bd_profile_end(&site, (double)(rows * width), 4 * (double)(rows * width));
}

/* --- over a row ------------------------------------------------------------------------------- */

int64_t bd_argmax(const float *x, int64_t count)
{
    const bd_row_kernels *kernels = bd_row_kernels_now();
    const int64_t index = kernels->find(x, kernels->largest(x, count), count);
    return index < 0 ? 0 : index; // nothing but NaN
}

// Insertion into a short falling list: with indices visited in order, a later equal value stays
// behind.
void bd_largest(const float *x, int64_t count, int64_t most, int32_t *index, float *value)
{
    assert(most >= 1 && most <= count);
    int64_t found = 0;
    for (int64_t v = 0; v < count; v++) {
        if (found == most && !(x[v] > value[most - 1]))
            continue;
        int64_t at = found < most ? found++ : most - 1;
        for (; at > 0 && !(x[v] <= value[at - 1]); at--) {
            value[at] = value[at - 1];
            index[at] = index[at - 1];
        }
        value[at] = x[v];
        index[at] = (int32_t)v;
    }
}

float bd_log_sum_exp(const float *x, int64_t count)
{
    const bd_row_kernels *kernels = bd_row_kernels_now();
    float shift = kernels->largest(x, count);
    if (!isfinite(shift))
        shift = 0; // infinite elements decide by themselves: log(0) or log(inf)
    return (float)((double)shift + log(kernels->sum_exp(x, shift, count, NULL)));
}

void bd_softmax(const float *x, int64_t count, float *y)
{
    const bd_row_kernels *kernels = bd_row_kernels_now();
    const double sum = kernels->sum_exp(x, kernels->largest(x, count), count, y);
    kernels->scale((float)(1 / sum), count, y);
}

typedef struct {
    const float *x;
    int64_t count;
    double sum[256];
} square_job;

static void square_task(void *context, int64_t task)
{
    square_job *job = context;
    const int64_t first = task * TASK_ELEMENTS;
    job->sum[task] = bd_row_kernels_now()->sum_of_squares(
        job->x + first, smaller(TASK_ELEMENTS, job->count - first));
}

double bd_sum_of_squares(const float *x, int64_t count)
{
    static bd_profile_site site = {.name = "gradient norm", .kind = BD_PROFILE_MEMORY};
    bd_profile_begin(&site);
    square_job job;
    const int64_t most = (int64_t)(sizeof job.sum / sizeof *job.sum) * TASK_ELEMENTS;
    double total = 0;
    for (int64_t first = 0; first < count; first += most) {
        job.x = x + first;
        job.count = smaller(most, count - first);
        const int64_t tasks = task_count(job.count, TASK_ELEMENTS);
        bd_parallel(tasks, square_task, &job);
        for (int64_t i = 0; i < tasks; i++)
            total += job.sum[i];
    }
    bd_profile_end(&site, 2 * (double)count, 4 * (double)count);
    return total;
}
