#include "draft/convolution.h"

#include <assert.h>
#include <string.h>

#include "base/profile.h"
#include "base/threads.h"
#include "format/json.h"

// --- the arithmetic of one side ------------------------------------------------------------------

typedef struct {
    bd_parameter *base;
    const float *taps; // base of this side, [count, H]
    int64_t count, groups, block, side;
    bd_value *x, *delta, *y;
} side_note;

static const float *row_delta(const side_note *n, int64_t row)
{
    return n->delta->data + row * n->delta->width + n->side * n->count * n->groups;
}

static void apply_block(void *context, int64_t block)
{
    const side_note *n = context;
    int64_t width = n->x->width, group = width / n->groups;
    for (int64_t i = 0; i < n->block; i++) {
        int64_t row = block * n->block + i;
        const float *delta = row_delta(n, row);
        float *y = n->y->data + row * width;
        memset(y, 0, (size_t)width * sizeof *y);
        for (int64_t t = 0; t < n->count && t <= i; t++) {
            const float *x = n->x->data + (row - t) * width, *base = n->taps + t * width;
            for (int64_t g = 0; g < n->groups; g++)
                for (int64_t c = g * group; c < (g + 1) * group; c++) {
                    y[c] += base[c] * x[c];
                    y[c] += delta[t * n->groups + g] * x[c];
                }
        }
    }
}

// dx[i - t] += k[i, t] dy[i]; d delta[i, t, g] += sum over the group of dy[i] x[i - t].
static void block_back(void *context, int64_t block)
{
    const side_note *n = context;
    int64_t width = n->x->width, group = width / n->groups;
    for (int64_t i = 0; i < n->block; i++) {
        int64_t row = block * n->block + i;
        const float *delta = row_delta(n, row), *dy = n->y->gradient + row * width;
        float *d_delta = n->delta->gradient ? n->delta->gradient + (delta - n->delta->data) : NULL;
        for (int64_t t = 0; t < n->count && t <= i; t++) {
            const float *x = n->x->data + (row - t) * width, *base = n->taps + t * width;
            float *dx = n->x->gradient ? n->x->gradient + (row - t) * width : NULL;
            for (int64_t g = 0; g < n->groups; g++) {
                float sum = 0, shared = delta[t * n->groups + g];
                for (int64_t c = g * group; c < (g + 1) * group; c++) {
                    sum += dy[c] * x[c];
                    if (dx)
                        dx[c] += (base[c] + shared) * dy[c];
                }
                if (d_delta)
                    d_delta[t * n->groups + g] += sum;
            }
        }
    }
}

enum { STRIP = 64 }; // channels a thread owns where rows are summed

// d base[t, c] += sum over rows i of dy[i, c] x[i - t, c], in order of i.
static void base_strip_back(void *context, int64_t strip)
{
    const side_note *n = context;
    int64_t width = n->x->width, begin = strip * STRIP, end = begin + STRIP;
    if (end > width)
        end = width;
    float *d_base = n->base->gradient + n->side * n->count * width;
    for (int64_t row = 0; row < n->x->rows; row++) {
        const float *dy = n->y->gradient + row * width;
        for (int64_t t = 0; t < n->count && t <= row % n->block; t++) {
            const float *x = n->x->data + (row - t) * width;
            for (int64_t c = begin; c < end; c++)
                d_base[t * width + c] += dy[c] * x[c];
        }
    }
}

static void apply_back(bd_tape *tape, void *context)
{
    (void)tape;
    const side_note *n = context;
    static bd_profile_site site = {.name = "convolution, back", .kind = BD_PROFILE_F32};
    bd_profile_begin(&site);
    bd_parallel(n->x->rows / n->block, block_back, context);
    if (n->base->gradient)
        bd_parallel((n->x->width + STRIP - 1) / STRIP, base_strip_back, context);
    bd_profile_end(&site, 6 * (double)(n->x->rows * n->x->width * n->count),
                   16 * (double)(n->x->rows * n->x->width));
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

bd_value *bd_convolution_coefficients(const bd_convolution *conv, bd_tape *tape, bd_value *h)
{
    return bd_op_linear(tape, h, conv->projection, NULL);
}

bd_value *bd_convolution_apply(const bd_convolution *conv, bd_tape *tape, int side, bd_value *x,
                               bd_value *delta, int64_t block)
{
    bd_parameter *base = conv->base;
    int64_t count = base->shape[1];
    assert(block > 0 && x->rows % block == 0 && x->rows == delta->rows);
    assert(base->shape[2] == x->width && delta->width % (2 * count) == 0);
    side_note *n = bd_arena_alloc(tape->arena, sizeof *n);
    *n = (side_note){.base = base,
                     .taps = table_values(tape, base) + side * count * x->width,
                     .count = count,
                     .groups = delta->width / (2 * count),
                     .block = block,
                     .side = side,
                     .x = x,
                     .delta = delta,
                     .y = bd_tape_value(tape, x->rows, x->width,
                                        x->gradient || delta->gradient || base->gradient)};
    static bd_profile_site site = {.name = "convolution", .kind = BD_PROFILE_F32};
    bd_profile_begin(&site);
    bd_parallel(x->rows / block, apply_block, n);
    bd_profile_end(&site, 2 * (double)(x->rows * x->width * count),
                   8 * (double)(x->rows * x->width));
    if (n->y->gradient)
        bd_tape_note(tape, apply_back, n);
    return n->y;
}

// --- configuration -------------------------------------------------------------------------------

bool bd_convolution_read_config(bd_draft_config *config, json_t *root, const char *where,
                                bd_error *err)
{
    bd_convolution_config *c = &config->convolution;
    return bd_json_int_if(bd_draft_field_home(root, "conv_kernel_size"), where, "conv_kernel_size",
                          1, INT32_MAX, &c->kernel_size, err) &&
           bd_json_int_if(bd_draft_field_home(root, "conv_group_size"), where, "conv_group_size", 1,
                          INT32_MAX, &c->group_size, err);
}

void bd_convolution_write_config(const bd_draft_config *config, json_t *nested)
{
    if (config->convolution.kernel_size == 0)
        return;
    json_object_set_new(nested, "conv_kernel_size", json_integer(config->convolution.kernel_size));
    json_object_set_new(nested, "conv_group_size", json_integer(config->convolution.group_size));
}

bool bd_convolution_check_config(const bd_draft_config *config, const char *where, bd_error *err)
{
    const bd_convolution_config *c = &config->convolution;
    if (c->kernel_size < 1)
        return bd_fail(err, "%s: conv_kernel_size must be >= 1, got %lld", where,
                       (long long)c->kernel_size);
    if (c->kernel_size > config->block_size)
        return bd_fail(err, "%s: conv_kernel_size (%lld) must not exceed block_size (%lld)", where,
                       (long long)c->kernel_size, (long long)config->block_size);
    if (c->group_size < 1 || config->stack.hidden % c->group_size)
        return bd_fail(err, "%s: conv_group_size (%lld) must be >= 1 and divide hidden_size (%lld)",
                       where, (long long)c->group_size, (long long)config->stack.hidden);
    return true;
}

// --- tensors -------------------------------------------------------------------------------------

void bd_convolution_build(bd_draft *draft, bd_draft_builder *builder)
{
    static const char *const names[] = {"attention_conv", "mlp_conv"};
    const bd_draft_config *config = &draft->config;
    int64_t hidden = config->stack.hidden, taps = config->convolution.kernel_size;
    int64_t outputs = 2 * taps * (hidden / config->convolution.group_size);
    size_t bytes = 2 * (size_t)config->stack.layers * sizeof *draft->convolutions;
    draft->convolutions = memset(bd_arena_alloc(draft->owned, bytes), 0, bytes);
    for (int64_t i = 0; i < 2 * config->stack.layers; i++) {
        bd_convolution *conv = &draft->convolutions[i];
        bd_draft_builder_add(builder, &conv->base, BD_INITIAL_ZERO, 3, (int64_t[]){2, taps, hidden},
                             "layers.%lld.%s.base_kernel", (long long)(i / 2), names[i % 2]);
        bd_draft_builder_add(
            builder, &conv->projection, BD_INITIAL_ZERO, 2, (int64_t[]){outputs, hidden},
            "layers.%lld.%s.kernel_projection.weight", (long long)(i / 2), names[i % 2]);
    }
}

void bd_convolution_initialize(bd_draft *draft, uint64_t seed)
{
    int64_t hidden = draft->config.stack.hidden, taps = draft->config.convolution.kernel_size;
    for (int64_t i = 0; i < 2 * draft->config.stack.layers; i++) {
        bd_parameter *base = draft->convolutions[i].base;
        for (int64_t side = 0; side < 2; side++)
            for (int64_t c = 0; c < hidden; c++)
                base->value[side * taps * hidden + c] = 1; // tap 0: the row itself
        bd_parameter_changed(base);
    }
    if (!(draft->config.convolution.projection_std > 0))
        return;
    // Keyed by the place in the list, as all starting values are (draft.c).
    for (int64_t i = 0; i < draft->parameters.count; i++)
        for (int64_t k = 0; k < 2 * draft->config.stack.layers; k++)
            if (draft->parameters.items[i] == draft->convolutions[k].projection)
                bd_parameter_normal(draft->parameters.items[i], seed, i,
                                    draft->config.convolution.projection_std);
}
