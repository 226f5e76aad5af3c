#include "tensor/quantized.h"

#include <assert.h>
#include <math.h>

#include "base/threads.h"
#include "tensor/isa/quantized.h"
#include "tensor/split.h"

_Static_assert((int)BD_Q8_GROUP == (int)BD_QUANTIZED_GROUP, "one size of blocks");

#define ENTRY(level) &bd_quantized_kernels_##level,
static const bd_quantized_kernels *const tables[BD_ISA_COUNT] = {BD_FOR_EACH_ISA(ENTRY)};

enum {
    COLUMNS = BD_QUANTIZED_COLUMNS,
    GROUP = BD_Q8_GROUP,
    BLOCK_ROWS = 96,
    QUANTIZED_ROWS = 16, // in one task
    AHEAD_BLOCKS = 8
};

/* --- blocks of files -------------------------------------------------------------------------- */

/* Halves away from zero; what is no number becomes 0. */
static int8_t round_to_int8(float value)
{
    return (int8_t)(value >= -127.5f && value <= 127.5f ? roundf(value) : 0);
}

/* Values are divided by the fp32 scale; only what is stored is rounded to f16. */
static void quantize_group(const float *source, uint16_t *scale_out, int8_t out[GROUP])
{
    float most = 0;
    for (int j = 0; j < GROUP; j++)
        most = fmaxf(most, fabsf(source[j]));
    float scale = most / 127, inverse = scale != 0 ? 1 / scale : 0;
    bd_from_f32(BD_F16, &scale, scale_out, 1);
    for (int j = 0; j < GROUP; j++)
        out[j] = round_to_int8(source[j] * inverse);
}

void bd_q8_from_f32(const float *source, void *target, int64_t count)
{
    char *out = target;
    for (int64_t i = 0; i < count; i += GROUP, out += BD_Q8_BYTES) {
        uint16_t scale;
        int8_t values[GROUP];
        quantize_group(source + i, &scale, values);
        memcpy(out, &scale, 2);
        memcpy(out + 2, values, GROUP);
    }
}

void bd_q8_to_f32(const void *source, float *target, int64_t count)
{
    const char *in = source;
    for (int64_t i = 0; i < count; i += GROUP, in += BD_Q8_BYTES) {
        float scale;
        bd_to_f32(BD_F16, in, &scale, 1);
        for (int j = 0; j < GROUP; j++)
            target[i + j] = scale * (float)(int8_t)in[2 + j];
    }
}

/* --- packing ---------------------------------------------------------------------------------- */

// All panels' weights, then all panels' scales.
typedef struct {
    int64_t panels, blocks;
    uint8_t *weights;
    uint16_t *scales;
} layout;

static layout layout_of(int64_t out, int64_t in, void *data)
{
    layout l = {
        .panels = bd_ceil_div(out, COLUMNS), .blocks = bd_ceil_div(in, GROUP), .weights = data};
    l.scales = (uint16_t *)(void *)(l.weights + l.panels * l.blocks * BD_QUANTIZED_BLOCK);
    return l;
}

size_t bd_quantized_bytes(int64_t out, int64_t in)
{
    const layout l = layout_of(out, in, NULL);
    return (size_t)(l.panels * l.blocks) * (BD_QUANTIZED_BLOCK + COLUMNS * sizeof(uint16_t));
}

typedef struct {
    layout layout;
    const char *w;
    bd_dtype w_dtype;
    int64_t out, in;
} pack_job;

static void pack_panel(void *context, int64_t panel)
{
    const pack_job *job = context;
    const layout *l = &job->layout;
    const int64_t size = (int64_t)bd_dtype_size(job->w_dtype);
    uint8_t *weights = l->weights + panel * l->blocks * BD_QUANTIZED_BLOCK;
    uint16_t *scales = l->scales + panel * l->blocks * COLUMNS;
    for (int64_t i = 0; i < l->blocks; i++, weights += BD_QUANTIZED_BLOCK, scales += COLUMNS)
        for (int64_t c = 0; c < COLUMNS; c++) {
            const int64_t column = panel * COLUMNS + c, first = i * GROUP;
            const int64_t count = job->in - first < GROUP ? job->in - first : GROUP;
            float values[GROUP] = {0};
            int8_t rounded[GROUP];
            if (column < job->out)
                bd_to_f32(job->w_dtype, job->w + (column * job->in + first) * size, values, count);
            quantize_group(values, &scales[c], rounded);
            for (int k = 0; k < GROUP; k++)
                weights[k / 4 * 4 * COLUMNS + c * 4 + k % 4] = (uint8_t)(rounded[k] + 128);
        }
}

void bd_quantized_pack(const void *w, bd_dtype w_dtype, int64_t out, int64_t in, void *storage)
{
    pack_job job = {
        .layout = layout_of(out, in, storage), .w = w, .w_dtype = w_dtype, .out = out, .in = in};
    bd_parallel(job.layout.panels, pack_panel, &job);
}

/* --- products --------------------------------------------------------------------------------- */

typedef struct {
    const bd_quantized_kernels *table;
    const bd_product *products;
    int64_t panels; // of all products, one after another
    int64_t rows, in, blocks;
    const float *x;
    int64_t x_stride;
    bd_quantized_row *row;
    bool accumulate;
    int64_t row_blocks, groups; // tasks = groups * row_blocks
} product_job;

static void quantize_task(void *context, int64_t task)
{
    const product_job *job = context;
    for (int64_t r = task * QUANTIZED_ROWS; r < job->rows && r < (task + 1) * QUANTIZED_ROWS; r++)
        job->table->quantize(job->x + r * job->x_stride, job->in, &job->row[r]);
}

// x, rounded block by block. Every row starts in a cache line of its own.
static void quantize_rows(product_job *job, bd_arena *scratch)
{
    const size_t values = (size_t)job->blocks * GROUP, line = 64,
                 numbers = ((size_t)job->blocks * 4 + line - 1) / line * line,
                 stride = values + line + 2 * numbers; // no multiple of 4 KB for common sizes
    job->row = bd_arena_alloc(scratch, (size_t)job->rows * sizeof *job->row);
    char *data = bd_arena_alloc(scratch, (size_t)job->rows * stride);
    for (int64_t r = 0; r < job->rows; r++, data += stride)
        job->row[r] = (bd_quantized_row){(int8_t *)data, (float *)(void *)(data + values),
                                         (int32_t *)(void *)(data + values + numbers)};
    const int64_t tasks = bd_ceil_div(job->rows, QUANTIZED_ROWS);
    if (tasks == 1)
        quantize_task(job, 0);
    else
        bd_parallel(tasks, quantize_task, job);
}

static void multiply_panel(const product_job *job, const bd_product *product, int64_t panel,
                           int64_t first, int64_t rows)
{
    const layout l = layout_of(product->w->out, job->in, product->w->data);
    const int64_t column = panel * COLUMNS, left = product->w->out - column;
    const int64_t tiles = bd_ceil_div(rows, BD_QUANTIZED_ROWS);
    const uint8_t *weights = l.weights + panel * l.blocks * BD_QUANTIZED_BLOCK;
    // What is computed with a block takes the place of loads that would be under way. A single tile
    // reads its own panel ahead; several fetch the next panel while they work, each its share.
    const int64_t lines = BD_QUANTIZED_BLOCK / 64,
                  share = tiles <= 16 ? bd_ceil_div(lines, tiles) : 0;
    const uint8_t *next = weights + (tiles > 1 ? l.blocks : AHEAD_BLOCKS) * BD_QUANTIZED_BLOCK;
    for (int64_t i = 0; i < tiles; i++) {
        const int64_t r = first + i * rows / tiles, end = first + (i + 1) * rows / tiles;
        const bd_quantized_tile tile = {
            .rows = (int)(end - r),
            .columns = (int)(left < COLUMNS ? left : COLUMNS),
            .blocks = l.blocks,
            .row = job->row + r,
            .weights = weights,
            .scales = l.scales + panel * l.blocks * COLUMNS,
            .y = product->y + r * product->y_stride + column,
            .y_stride = product->y_stride,
            .bias = product->bias ? product->bias + column : NULL,
            .accumulate = job->accumulate,
            .prefetch = next + i * l.blocks * share * 64,
            .prefetch_lines = share,
        };
        job->table->tile(&tile);
    }
}

static void multiply_task(void *context, int64_t task)
{
    const product_job *job = context;
    const int64_t group = task / job->row_blocks, block = task % job->row_blocks;
    const int64_t first = block * job->rows / job->row_blocks,
                  rows = (block + 1) * job->rows / job->row_blocks - first,
                  end = (group + 1) * job->panels / job->groups;
    const bd_product *product = job->products;
    int64_t before = 0; // panels of the products before this one
    for (int64_t p = group * job->panels / job->groups; p < end; p++) {
        while (p - before >= bd_ceil_div(product->w->out, COLUMNS))
            before += bd_ceil_div(product++->w->out, COLUMNS);
        multiply_panel(job, product, p - before, first, rows);
    }
}

void bd_quantized_products(const bd_product *products, int count, const float *x, int64_t rows,
                           int64_t x_stride, bd_matmul_mode mode, bd_arena *scratch)
{
    const size_t mark = bd_arena_mark(scratch);
    product_job job = {.table = tables[bd_isa()],
                       .products = products,

                       .rows = rows,
                       .in = products[0].w->in,
                       .blocks = bd_ceil_div(products[0].w->in, GROUP),
                       .x = x,
                       .x_stride = x_stride,
                       .accumulate = mode == BD_ACCUMULATE};
    for (int i = 0; i < count; i++) {
        assert(products[i].w->dtype == BD_Q8_0 && products[i].w->in == job.in);
        job.panels += bd_ceil_div(products[i].w->out, COLUMNS);
    }
    quantize_rows(&job, scratch);
    job.row_blocks = bd_ceil_div(rows, BLOCK_ROWS);
    job.groups =
        bd_split_panels(job.panels, job.blocks * BD_QUANTIZED_BLOCK,
                        2.0 * (double)(COLUMNS * job.blocks * GROUP * rows), job.row_blocks);
    bd_parallel(job.groups * job.row_blocks, multiply_task, &job);
    bd_arena_release(scratch, mark);
}
