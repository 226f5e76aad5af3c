#include "train/optimizer.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "tensor/optimizer.h"
#include "tensor/rows.h"

bd_optimizer_options bd_optimizer_default(void)
{
    return (bd_optimizer_options){.b1 = 0.9,
                                  .b2 = 0.999,
                                  .eps = 1e-8,
                                  .decay_matrices_only = true,
                                  .clip = 1,
                                  .m_dtype = BD_F32,
                                  .v_dtype = BD_F32};
}

static bool check_range(const char *name, double value, double low, double high, bd_error *err)
{
    if (value >= low && value <= high)
        return true;
    return bd_fail(err, "optimizer: %s %g, %g to %g expected", name, value, low, high);
}

bool bd_optimizer_check(const bd_optimizer_options *o, bd_error *err)
{
    const double below_one = 1 - 1e-9; // b1 = 1 would divide by 1 - b1^t = 0
    if (!check_range("adam_b1", o->b1, 0, below_one, err) ||
        !check_range("adam_b2", o->b2, 0, below_one, err) ||
        !check_range("adam_eps", o->eps, 0, 1, err) ||
        !check_range("adam_eps_root", o->eps_root, 0, 1, err) ||
        !check_range("weight_decay", o->weight_decay, 0, 1e6, err) ||
        !check_range("clip", o->clip, 0, 1e30, err))
        return false;
    const bd_dtype kinds[2] = {o->m_dtype, o->v_dtype};
    for (int i = 0; i < 2; i++)
        if (kinds[i] != BD_F32 && kinds[i] != BD_BF16)
            return bd_fail_as(err, BD_ERROR_TYPE,
                              "optimizer: moment dtype %s, F32 or BF16 expected",
                              bd_dtype_name(kinds[i]));
    return true;
}

static size_t aligned(int64_t count, bd_dtype dtype)
{
    return ((size_t)count * bd_dtype_size(dtype) + 63) / 64 * 64;
}

bd_optimizer *bd_optimizer_create(const bd_parameters *parameters,
                                  const bd_optimizer_options *options, bd_error *err)
{
    if (!bd_optimizer_check(options, err))
        return NULL;
    size_t bytes = 64;
    for (int64_t i = 0; i < parameters->count; i++) {
        const bd_parameter *p = parameters->items[i];
        assert(p->value && p->gradient);
        bytes += aligned(p->count, options->m_dtype) + aligned(p->count, options->v_dtype);
    }
    bd_optimizer *o = calloc(1, sizeof *o);
    bd_moments *moments = calloc((size_t)parameters->count + 1, sizeof *moments);
    // Fresh pages are zero; huge ones, because first touches of small pages are what costs here.
    void *storage = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (!o || !moments || storage == MAP_FAILED) {
        if (storage != MAP_FAILED)
            munmap(storage, bytes);
        free(moments);
        free(o);
        bd_fail_as(err, BD_ERROR_SYSTEM, "optimizer: no memory for %zu bytes of moments", bytes);
        return NULL;
    }
    madvise(storage, bytes, MADV_HUGEPAGE);
    char *next = storage;
    for (int64_t i = 0; i < parameters->count; i++) {
        moments[i].m = next;
        next += aligned(parameters->items[i]->count, options->m_dtype);
        moments[i].v = next;
        next += aligned(parameters->items[i]->count, options->v_dtype);
    }
    *o = (bd_optimizer){.options = *options,
                        .parameters = parameters,
                        .moments = moments,
                        .storage = storage,
                        .bytes = bytes};
    return o;
}

void bd_optimizer_free(bd_optimizer *optimizer)
{
    if (!optimizer)
        return;
    munmap(optimizer->storage, optimizer->bytes);
    free(optimizer->moments);
    free(optimizer);
}

double bd_gradient_norm(const bd_parameters *parameters)
{
    double sum = 0;
    for (int64_t i = 0; i < parameters->count; i++)
        sum += bd_sum_of_squares(parameters->items[i]->gradient, parameters->items[i]->count);
    return sqrt(sum);
}

double bd_clip_factor(double norm, double limit)
{
    return limit > 0 && norm >= limit ? limit / norm : 1;
}

void bd_gradient_scale(const bd_parameters *parameters, double factor)
{
    if (factor == 0) {
        bd_parameters_zero_gradients(parameters);
        return;
    }
    for (int64_t i = 0; i < parameters->count; i++)
        bd_scale((float)factor, parameters->items[i]->count, parameters->items[i]->gradient);
}

double bd_optimizer_step(bd_optimizer *optimizer, bd_weighted total, double learning_rate)
{
    const bd_optimizer_options *o = &optimizer->options;
    double factor = bd_weighted_factor(total);
    if (factor == 0) // gradients of nothing are exact zeros, and the step is still made (D-07)
        bd_parameters_zero_gradients(optimizer->parameters);
    double norm = factor * bd_gradient_norm(optimizer->parameters);
    if (!isfinite(norm))
        return norm;
    optimizer->step++;
    for (int64_t i = 0; i < optimizer->parameters->count; i++) {
        bd_parameter *p = optimizer->parameters->items[i];
        bool decays = p->rank > 1 || !o->decay_matrices_only;
        bd_adamw update = {.b1 = o->b1,
                           .b2 = o->b2,
                           .eps = o->eps,
                           .eps_root = o->eps_root,
                           .learning_rate = learning_rate,
                           .weight_decay = decays ? o->weight_decay : 0,
                           .step = optimizer->step,
                           .gradient_factor = factor * bd_clip_factor(norm, o->clip)};
        bd_adamw_update(&update, p->count, p->value, p->gradient, o->m_dtype,
                        optimizer->moments[i].m, o->v_dtype, optimizer->moments[i].v);
        bd_parameter_changed(p);
    }
    return norm;
}
