#include "tensor/matmul.h"

#include <assert.h>

#include "base/profile.h"
#include "base/threads.h"
#include "tensor/isa/matmul.h"
#include "tensor/quantized.h"
#include "tensor/split.h"

// A tile walks over some steps of a panel before the next rows do, which find them in a cache: 256
// steps are 64 KB at the widest. Two tiles take turns faster, so that reading ahead (below) stays
// smooth.
enum { BLOCK_STEPS = 256, TWO_TILES_STEPS = 64, BLOCK_ROWS = 96, WIDEST_PANEL = 64 };

#define ENTRY(level) &bd_matmul_kernels_##level,
static const bd_matmul_kernels *const tables[BD_ISA_COUNT] = {BD_FOR_EACH_ISA(ENTRY)};

static const bd_matmul_kernels *kernels(void)
{
    return tables[bd_isa()];
}

static int64_t smaller(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

// A matrix [summed, columns] cut into panels in one of the formats.
typedef struct {
    bd_tile_format format;
    int64_t columns, panel_columns, vector_columns;
    int64_t steps;
    int64_t step_bytes; // of one column
} panels;

static panels panels_of(const bd_matmul_kernels *table, bd_tile_format format, int64_t columns,
                        int64_t panel_columns, int64_t summed)
{
    return (panels){
        .format = format,
        .columns = columns,
        .panel_columns = panel_columns,
        .vector_columns = table->vector_columns,
        .steps = format == BD_TILE_PAIRS ? bd_ceil_div(summed, 2) : summed,
        .step_bytes = format == BD_TILE_WIDEN ? 2 : 4,
    };
}

static int64_t panel_count(const panels *p)
{
    return bd_ceil_div(p->columns, p->panel_columns);
}

static int64_t panel_width(const panels *p, int64_t panel)
{
    int64_t left = p->columns - panel * p->panel_columns;
    return smaller(p->panel_columns, bd_ceil_div(left, p->vector_columns) * p->vector_columns);
}

static int64_t panel_used(const panels *p, int64_t panel)
{
    return smaller(p->panel_columns, p->columns - panel * p->panel_columns);
}

// All panels before this one are full.
static char *panel_start(const panels *p, const void *data, int64_t panel)
{
    return (char *)data + panel * p->panel_columns * p->steps * p->step_bytes;
}

static bd_tile_format format_of(const bd_matmul_kernels *table, bd_dtype dtype)
{
    assert(dtype == BD_F32 || dtype == BD_BF16);
    return dtype == BD_F32 ? BD_TILE_F32 : table->bf16_format;
}

/* --- packing ---------------------------------------------------------------------------------- */

size_t bd_packed_bytes(bd_dtype dtype, int64_t out, int64_t in)
{
    if (dtype == BD_Q8_0)
        return bd_quantized_bytes(out, in);
    // The widest vectors have 16 columns; a pair of bf16 is never cut.
    size_t columns = (size_t)bd_ceil_div(out, 16) * 16;
    return columns * (size_t)(in + (in & 1)) * bd_dtype_size(dtype);
}

typedef struct {
    const bd_matmul_kernels *table;
    panels panels;
    const char *w;
    bd_dtype w_dtype;
    int64_t out, in;
    bd_pack_order order;
    void *storage;
} pack_job;

_Static_assert(WIDEST_PANEL <= 64, "a converted row holds a panel");
enum { CONVERTED = 64 }; // elements along `in` that are converted to f32 at a time

// `count` elements along `in` from k on, of the columns of one panel, as f32; in place if they are.
static const float *source_block(const pack_job *job, int64_t first, int64_t used, int64_t k,
                                 int64_t count, float *converted, int64_t *stride)
{
    const bool stored = job->order == BD_AS_STORED;
    const int64_t outer = stored ? used : count, inner = stored ? count : used;
    const int64_t row = stored ? job->in : job->out,
                  at = stored ? first * row + k : k * row + first;
    const int64_t size = (int64_t)bd_dtype_size(job->w_dtype);
    *stride = job->w_dtype == BD_F32 ? row : CONVERTED;
    if (job->w_dtype == BD_F32)
        return (const float *)(const void *)job->w + at;
    for (int64_t i = 0; i < outer; i++)
        bd_to_f32(job->w_dtype, job->w + (at + i * row) * size, converted + i * CONVERTED, inner);
    return converted;
}

static void pack_panel(void *context, int64_t panel)
{
    const pack_job *job = context;
    const panels *p = &job->panels;
    const int64_t first = panel * p->panel_columns, used = panel_used(p, panel);
    const int64_t width = panel_width(p, panel);
    const int64_t block = job->w_dtype == BD_F32 ? job->in : CONVERTED;
    float converted[CONVERTED * WIDEST_PANEL];
    char *to = panel_start(p, job->storage, panel);
    for (int64_t k = 0; k < job->in; k += block) {
        int64_t count = smaller(block, job->in - k), stride;
        const float *from = source_block(job, first, used, k, count, converted, &stride);
        if (job->order == BD_AS_STORED)
            job->table->pack_columns(p->format, from, stride, count, used, width, to);
        else
            job->table->pack_rows(p->format, false, from, stride, count, used, width, to);
        to += (p->format == BD_TILE_PAIRS ? block / 2 : block) * width * p->step_bytes;
    }
}

static bd_packed pack_dense(bd_dtype dtype, const void *w, bd_dtype w_dtype, int64_t out,
                            int64_t in, bd_pack_order order, void *storage)
{
    const bd_matmul_kernels *table = kernels();
    pack_job job = {
        .table = table,
        .panels = panels_of(table, format_of(table, dtype), out, table->panel_columns, in),
        .w = w,
        .w_dtype = w_dtype,
        .out = out,
        .in = in,
        .order = order,
        .storage = storage,
    };
    int64_t count = panel_count(&job.panels);
    if (out * in < 16384) {
        for (int64_t panel = 0; panel < count; panel++)
            pack_panel(&job, panel);
    } else {
        bd_parallel(count, pack_panel, &job);
    }
    return (bd_packed){.dtype = dtype, .out = out, .in = in, .data = storage};
}

bd_packed bd_pack(bd_dtype dtype, const void *w, bd_dtype w_dtype, int64_t out, int64_t in,
                  bd_pack_order order, void *storage)
{
    static bd_profile_site site = {.name = "pack weights", .kind = BD_PROFILE_MEMORY};
    assert(out >= 0 && in >= 0 && (dtype != BD_Q8_0 || order == BD_AS_STORED));
    bd_packed packed = {.dtype = dtype, .out = out, .in = in, .data = storage};
    bd_profile_begin(&site);
    if (dtype == BD_Q8_0)
        bd_quantized_pack(w, w_dtype, out, in, storage);
    else
        packed = pack_dense(dtype, w, w_dtype, out, in, order, storage);
    bd_profile_end(&site, 0,
                   (double)(out * in) * (double)bd_dtype_size(w_dtype) +
                       (double)bd_packed_bytes(dtype, out, in));
    return packed;
}

/* --- product ---------------------------------------------------------------------------------- */

// One of the products with the same left-hand matrix.
typedef struct {
    panels panels;
    const void *b;
    const float *bias;
    float *y;
    int64_t y_stride;
    int64_t first_panel; // where its panels come in a row of all products' panels
} product_part;

typedef struct {
    const bd_matmul_kernels *table;
    product_part part[BD_MOST_PRODUCTS];
    int parts;
    int64_t panel_count; // of all parts
    const char *a;       // in the format's left-hand form
    int64_t a_row;
    int64_t rows;
    bool accumulate;
    int64_t row_blocks, groups; // tasks = groups * row_blocks
} product_job;

// Rows first .. first+rows-1 of one panel. more: the next panel comes right after this one.
static void multiply_panel(const product_job *job, const product_part *part, int64_t panel,
                           int64_t first, int64_t rows, bool more)
{
    const panels *p = &part->panels;
    float partial[BLOCK_ROWS * WIDEST_PANEL];
    const int64_t column = panel * p->panel_columns, width = panel_width(p, panel);
    const int64_t tiles = bd_ceil_div(rows, BD_TILE_ROWS);
    const int64_t block = tiles == 2 ? TWO_TILES_STEPS : BLOCK_STEPS;
    // While tiles work on one block they read the next one ahead, each its share of the four cache
    // lines of a step: memory and arithmetic overlap. A single tile streams; the hardware sees
    // that.
    const int64_t share = tiles > 1 && tiles <= 16 ? bd_ceil_div(4, tiles) : 0;
    const char *b = panel_start(p, part->b, panel);
    for (int64_t s = 0; s == 0 || s < p->steps; s += block) {
        const int64_t steps = smaller(block, p->steps - s);
        const bool last = s + steps == p->steps;
        const int64_t lines = last && !more ? 0 : share;
        const char *next = b + steps * width * p->step_bytes;
        for (int64_t i = 0; i < tiles; i++) {
            int64_t r = i * rows / tiles, end = (i + 1) * rows / tiles;
            float *sums = partial + r * WIDEST_PANEL;
            float *y = part->y + (first + r) * part->y_stride + column;
            bd_tile tile = {
                .rows = (int)(end - r),
                .columns = panel_used(p, panel),
                .steps = steps,
                .a = job->a + ((first + r) * job->a_row + s) * 4,
                .a_row = job->a_row,
                .a_step = 1,
                .b = b,
                .width = width,
                .start = s == 0 ? NULL : sums,
                .start_stride = WIDEST_PANEL,
                .y = last ? y : sums,
                .y_stride = last ? part->y_stride : WIDEST_PANEL,
                .bias = last && part->bias ? part->bias + column : NULL,
                .accumulate = last && job->accumulate,
                .prefetch = next + i * steps * lines * 64,
                .prefetch_lines = lines,
            };
            job->table->tile[p->format](&tile);
        }
        b = next;
    }
}

static void multiply_task(void *context, int64_t task)
{
    const product_job *job = context;
    const int64_t group = task / job->row_blocks, block = task % job->row_blocks;
    const int64_t count = job->panel_count;
    const int64_t first = block * job->rows / job->row_blocks;
    const int64_t rows = (block + 1) * job->rows / job->row_blocks - first;
    const int64_t end = (group + 1) * count / job->groups;
    const product_part *part = job->part;
    for (int64_t p = group * count / job->groups; p < end; p++) {
        while (p >= part->first_panel + panel_count(&part->panels))
            part++;
        const int64_t panel = p - part->first_panel;
        const bool more = p + 1 < end && panel + 1 < panel_count(&part->panels);
        multiply_panel(job, part, panel, first, rows, more);
    }
}

static void split_product(product_job *job)
{
    const panels *widest = &job->part[0].panels;
    const int64_t cells = widest->panel_columns * widest->steps;
    job->row_blocks = bd_ceil_div(job->rows, BLOCK_ROWS);
    job->groups = bd_split_panels(job->panel_count, cells * widest->step_bytes,
                                  2.0 * (double)(cells * job->rows), job->row_blocks);
}

typedef struct {
    const bd_matmul_kernels *table;
    bd_tile_format format;
    const float *x;
    int64_t rows, count, x_stride;
    char *to;
    int64_t to_stride; // in units of 4 bytes
} round_job;

enum { ROUNDED_ROWS = 16 }; // rows in one task

static void round_task(void *context, int64_t task)
{
    const round_job *job = context;
    int64_t end = smaller(job->rows, (task + 1) * ROUNDED_ROWS);
    for (int64_t r = task * ROUNDED_ROWS; r < end; r++)
        job->table->round_row(job->format, job->x + r * job->x_stride, job->count,
                              job->to + r * job->to_stride * 4);
}

// x in the form that tiles read; the caller's rows where they are that already.
static void set_left(product_job *job, bd_tile_format format, int64_t in, const float *x,
                     int64_t x_stride, bool rounded, bd_arena *scratch)
{
    job->a = (const char *)x;
    job->a_row = x_stride;
    if (!rounded)
        return;
    // Rows a multiple of 4 KB apart would fight for the same cache sets.
    job->a_row = bd_ceil_div(job->part[0].panels.steps, 16) * 16 + 16;
    round_job round = {.table = job->table,
                       .format = format,
                       .x = x,
                       .rows = job->rows,
                       .count = in,
                       .x_stride = x_stride,
                       .to_stride = job->a_row};
    round.to = bd_arena_alloc(scratch, (size_t)(job->rows * job->a_row) * 4);
    job->a = round.to;
    if (job->rows * in < 16384)
        for (int64_t task = 0; task < bd_ceil_div(job->rows, ROUNDED_ROWS); task++)
            round_task(&round, task);
    else
        bd_parallel(bd_ceil_div(job->rows, ROUNDED_ROWS), round_task, &round);
}

static void dense_products(const bd_product *products, int count, const float *x, int64_t rows,
                           int64_t x_stride, bd_matmul_mode mode, bd_arena *scratch)
{
    const size_t mark = bd_arena_mark(scratch);
    const bd_matmul_kernels *table = kernels();
    const bd_dtype dtype = products[0].w->dtype;
    const bd_tile_format format = format_of(table, dtype);
    const int64_t in = products[0].w->in;
    product_job job = {.table = table, .rows = rows, .accumulate = mode == BD_ACCUMULATE};
    for (int i = 0; i < count; i++) {
        const bd_packed *w = products[i].w;
        assert(w->dtype == dtype && w->in == in);
        if (w->out <= 0)
            continue;
        product_part *part = &job.part[job.parts++];
        *part = (product_part){.panels = panels_of(table, format, w->out, table->panel_columns, in),
                               .b = w->data,
                               .bias = products[i].bias,
                               .y = products[i].y,
                               .y_stride = products[i].y_stride,
                               .first_panel = job.panel_count};
        job.panel_count += panel_count(&part->panels);
    }
    if (job.parts > 0) {
        set_left(&job, format, in, x, x_stride, dtype == BD_BF16, scratch);
        split_product(&job);
        bd_parallel(job.groups * job.row_blocks, multiply_task, &job);
    }
    bd_arena_release(scratch, mark);
}

// Weights, x and y pass once.
static double bytes_of(const bd_product *products, int count, int64_t rows, bd_matmul_mode mode)
{
    double bytes = 4.0 * (double)rows * (double)products[0].w->in;
    for (int i = 0; i < count; i++) {
        const bd_packed *w = products[i].w;
        bytes += (double)bd_packed_bytes(w->dtype, w->out, w->in) +
                 (mode == BD_STORE ? 4.0 : 8.0) * (double)rows * (double)w->out;
    }
    return bytes;
}

void bd_matmul_several(const bd_product *products, int count, const float *x, int64_t rows,
                       int64_t x_stride, bd_matmul_mode mode, bd_arena *scratch)
{
    assert(count > 0 && count <= BD_MOST_PRODUCTS);
    if (rows <= 0)
        return;
    static bd_profile_site f32 = {.name = "matmul f32", .kind = BD_PROFILE_F32},
                           bf16 = {.name = "matmul bf16", .kind = BD_PROFILE_BF16},
                           int8 = {.name = "matmul q8_0", .kind = BD_PROFILE_INT8};
    const bd_dtype dtype = products[0].w->dtype;
    bd_profile_site *site = dtype == BD_F32 ? &f32 : dtype == BD_BF16 ? &bf16 : &int8;
    bd_profile_begin(site);
    if (dtype == BD_Q8_0)
        bd_quantized_products(products, count, x, rows, x_stride, mode, scratch);
    else
        dense_products(products, count, x, rows, x_stride, mode, scratch);
    if (!bd_profile_on)
        return;
    int64_t columns = 0;
    for (int i = 0; i < count; i++)
        columns += products[i].w->out;
    bd_profile_end(site, 2.0 * (double)rows * (double)products[0].w->in * (double)columns,
                   bytes_of(products, count, rows, mode));
}

void bd_matmul(const bd_packed *w, const float *x, int64_t rows, int64_t x_stride,
               const float *bias, float *y, int64_t y_stride, bd_matmul_mode mode,
               bd_arena *scratch)
{
    const bd_product product = {.w = w, .bias = bias, .y = y, .y_stride = y_stride};
    bd_matmul_several(&product, 1, x, rows, x_stride, mode, scratch);
}

/* --- gradient of a weight --------------------------------------------------------------------- */

// dw is a product whose left-hand matrix is dy transposed. Both are packed the same way, in chunks
// of rows; every element of dw is one chain of additions over all rows, whatever the chunks are.
enum { CHUNK_ROWS = 512, PACKED_ROWS = 8, LEFT_COLUMNS = 48 }; // 48 = 8 tiles of 6 rows

typedef struct {
    const bd_matmul_kernels *table;
    bool round;
    panels left, right;
    const float *dy, *x;
    int64_t dy_stride, x_stride, rows;
    char *left_data, *right_data;
    float *dw;
    int64_t in;
} gradient_job;

// Some rows of one matrix into all of its panels, front to back in memory.
static void pack_gradient_rows(const gradient_job *job, const panels *p, const float *from,
                               int64_t stride, int64_t first, int64_t count, char *data)
{
    const int64_t step = p->format == BD_TILE_PAIRS ? first / 2 : first;
    for (int64_t panel = 0; panel < panel_count(p); panel++) {
        const int64_t width = panel_width(p, panel);
        job->table->pack_rows(p->format, job->round,
                              from + first * stride + panel * p->panel_columns, stride, count,
                              panel_used(p, panel), width,
                              panel_start(p, data, panel) + step * width * p->step_bytes);
    }
}

static void pack_gradient_task(void *context, int64_t task)
{
    const gradient_job *job = context;
    const int64_t first = task * PACKED_ROWS, count = smaller(PACKED_ROWS, job->rows - first);
    pack_gradient_rows(job, &job->left, job->dy, job->dy_stride, first, count, job->left_data);
    pack_gradient_rows(job, &job->right, job->x, job->x_stride, first, count, job->right_data);
}

// The sums of a tile lie far apart; fetch them while another one works.
static void prefetch_sums(const float *dw, int64_t stride, int64_t rows, int64_t columns)
{
    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < columns; c += 16)
            __builtin_prefetch(dw + r * stride + c, 1);
}

static void gradient_task(void *context, int64_t task)
{
    const gradient_job *job = context;
    const panels *left = &job->left, *right = &job->right;
    const int64_t right_count = panel_count(right);
    const int64_t l = task / right_count, p = task % right_count;
    const int64_t rows = panel_used(left, l), columns = panel_used(right, p);
    float *dw = job->dw + l * left->panel_columns * job->in + p * right->panel_columns;
    for (int64_t r = 0; r < rows; r += BD_TILE_ROWS) {
        prefetch_sums(dw + (r + BD_TILE_ROWS) * job->in, job->in,
                      smaller(BD_TILE_ROWS, rows - r - BD_TILE_ROWS), columns);
        bd_tile tile = {
            .rows = (int)smaller(BD_TILE_ROWS, rows - r),
            .columns = columns,
            .steps = right->steps,
            .a = panel_start(left, job->left_data, l) + r * 4,
            .a_row = 1,
            .a_step = panel_width(left, l),
            .b = panel_start(right, job->right_data, p),
            .width = panel_width(right, p),
            .start = dw + r * job->in,
            .start_stride = job->in,
            .y = dw + r * job->in,
            .y_stride = job->in,
        };
        job->table->tile[right->format](&tile);
    }
}

void bd_matmul_weight_gradient(bd_dtype compute, const float *dy, int64_t dy_stride, const float *x,
                               int64_t x_stride, int64_t rows, int64_t out, int64_t in, float *dw,
                               bd_arena *scratch)
{
    static bd_profile_site sites[2] = {{.name = "weight gradient f32", .kind = BD_PROFILE_F32},
                                       {.name = "weight gradient bf16", .kind = BD_PROFILE_BF16}};
    bd_profile_site *site = &sites[compute == BD_BF16];
    bd_profile_begin(site);
    const size_t mark = bd_arena_mark(scratch);
    const bd_matmul_kernels *table = kernels();
    bd_tile_format format = format_of(table, compute);
    if (format == BD_TILE_WIDEN)
        format = BD_TILE_F32; // panels that live for one call need not be small
    const int64_t most = smaller(rows, CHUNK_ROWS);
    gradient_job job = {
        .table = table,
        .round = compute == BD_BF16,
        .left_data = bd_arena_alloc(scratch, bd_packed_bytes(BD_F32, out, most)),
        .right_data = bd_arena_alloc(scratch, bd_packed_bytes(BD_F32, in, most)),
        .dy_stride = dy_stride,
        .x_stride = x_stride,
        .dw = dw,
        .in = in,
    };
    for (int64_t r = 0; r < rows; r += CHUNK_ROWS) {
        job.rows = smaller(CHUNK_ROWS, rows - r);
        job.left = panels_of(table, format, out, LEFT_COLUMNS, job.rows);
        job.right = panels_of(table, format, in, table->panel_columns, job.rows);
        job.dy = dy + r * dy_stride;
        job.x = x + r * x_stride;
        bd_parallel(bd_ceil_div(job.rows, PACKED_ROWS), pack_gradient_task, &job);
        bd_parallel(panel_count(&job.left) * panel_count(&job.right), gradient_task, &job);
    }
    bd_arena_release(scratch, mark);
    bd_profile_end(site, 2.0 * (double)rows * (double)out * (double)in,
                   4.0 * (double)rows * (double)(out + in) + 8.0 * (double)out * (double)in);
}
