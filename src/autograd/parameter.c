#include "autograd/parameter.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/huge.h"
#include "base/profile.h"
#include "base/random.h"
#include "base/threads.h"

void bd_parameter_map(bd_parameter *p, const char *name, int rank, const int64_t *shape,
                      bd_dtype dtype, const void *data)
{
    assert(rank >= 0 && rank <= BD_PARAMETER_RANK && bd_dtype_is_float(dtype));
    *p = (bd_parameter){.name = name, .rank = rank, .count = 1, .dtype = dtype, .data = data};
    for (int i = 0; i < rank; i++) {
        p->shape[i] = shape[i];
        p->count *= shape[i];
    }
}

bool bd_parameter_create(bd_parameter *p, const char *name, int rank, const int64_t *shape,
                         float fill, bd_error *err)
{
    bd_parameter_map(p, name, rank, shape, BD_F32, NULL);
    p->value = bd_huge_alloc((size_t)p->count * sizeof(float));
    if (!p->value)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory for %lld values", name,
                          (long long)p->count);
    for (int64_t i = 0; i < p->count; i++)
        p->value[i] = fill;
    p->data = p->value;
    return true;
}

// --- initial values ------------------------------------------------------------------------------

enum { INITIAL_CHUNK = 1 << 16, INDEX_BITS = 30 };

typedef struct {
    bd_parameter *p;
    uint64_t seed;
    int64_t tensor;
    float scale;
    float (*draw)(uint64_t key, uint32_t stream, uint32_t index);
} initial_job;

static float draw_symmetric(uint64_t key, uint32_t stream, uint32_t index)
{
    return 2 * bd_random_uniform(key, stream, index) - 1;
}

static void fill_initial(void *context, int64_t task)
{
    const initial_job *job = context;
    int64_t begin = task * INITIAL_CHUNK, end = begin + INITIAL_CHUNK;
    if (end > job->p->count)
        end = job->p->count;
    // A draw's index has 31 usable bits; what is above goes into the key, so that no two values of
    // a huge tensor are the same draw.
    uint64_t key =
        bd_random_key(job->seed, 0, (uint64_t)job->tensor, (uint64_t)begin >> INDEX_BITS);
    for (int64_t i = begin; i < end; i++) {
        uint32_t index = (uint32_t)(i & (((int64_t)1 << INDEX_BITS) - 1));
        job->p->value[i] = job->scale * job->draw(key, BD_STREAM_INITIAL, index);
    }
}

static void fill(initial_job job)
{
    assert(job.p->value);
    bd_parallel((job.p->count + INITIAL_CHUNK - 1) / INITIAL_CHUNK, fill_initial, &job);
    bd_parameter_changed(job.p);
}

void bd_parameter_normal(bd_parameter *p, uint64_t seed, int64_t tensor, double deviation)
{
    fill((initial_job){p, seed, tensor, (float)deviation, bd_random_normal});
}

void bd_parameter_uniform(bd_parameter *p, uint64_t seed, int64_t tensor, double bound)
{
    fill((initial_job){p, seed, tensor, (float)bound, draw_symmetric});
}

// --- panels --------------------------------------------------------------------------------------

// Running out of memory here has nobody to recover to, as in an arena: panels are made in the
// middle of a step.
static void *resize(void *storage, size_t *have, size_t need, const char *name)
{
    if (*have >= need && storage)
        return storage;
    bd_huge_free(storage);
    storage = bd_huge_alloc(need);
    if (!storage) {
        fprintf(stderr, "bdlm: out of memory: %s needs %zu bytes of packed weights\n", name, need);
        abort();
    }
    *have = need;
    return storage;
}

const bd_packed *bd_parameter_forward(bd_parameter *p, bd_dtype compute)
{
    if (p->forward_version == p->version + 1 && p->forward.dtype == compute)
        return &p->forward;
    assert(p->rank == 2);
    int64_t out = p->shape[0], in = p->shape[1];
    size_t need = bd_packed_bytes(compute, out, in);
    p->forward_storage = resize(p->forward_storage, &p->forward_bytes, need, p->name);
    p->forward = bd_pack(compute, p->data, p->dtype, out, in, BD_AS_STORED, p->forward_storage);
    p->forward_version = p->version + 1;
    return &p->forward;
}

const bd_packed *bd_parameter_backward(bd_parameter *p, bd_dtype compute)
{
    if (p->backward_version == p->version + 1 && p->backward.dtype == compute)
        return &p->backward;
    assert(p->rank == 2);
    int64_t out = p->shape[1], in = p->shape[0]; // of dx = dy W
    size_t need = bd_packed_bytes(compute, out, in);
    p->backward_storage = resize(p->backward_storage, &p->backward_bytes, need, p->name);
    p->backward = bd_pack(compute, p->data, p->dtype, out, in, BD_TRANSPOSED, p->backward_storage);
    p->backward_version = p->version + 1;
    return &p->backward;
}

const float *bd_parameter_values(bd_parameter *p)
{
    if (p->dtype == BD_F32)
        return p->data;
    assert(p->rank <= 1); // a matrix keeps panels in this storage
    if (p->forward_version != p->version + 1) {
        size_t need = (size_t)p->count * sizeof(float);
        p->forward_storage = resize(p->forward_storage, &p->forward_bytes, need, p->name);
        bd_to_f32(p->dtype, p->data, p->forward_storage, p->count);
        p->forward_version = p->version + 1;
    }
    return p->forward_storage;
}

// --- training ------------------------------------------------------------------------------------

bool bd_parameter_train(bd_parameter *p, bd_error *err)
{
    size_t bytes = (size_t)p->count * sizeof(float);
    float *value = p->value ? p->value : bd_huge_alloc(bytes);
    float *gradient = p->gradient ? p->gradient : bd_huge_alloc(bytes);
    if (!value || !gradient) {
        if (value != p->value)
            bd_huge_free(value);
        if (gradient != p->gradient)
            bd_huge_free(gradient);
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory to train %lld values", p->name,
                          (long long)p->count);
    }
    if (!p->value)
        bd_to_f32(p->dtype, p->data, value, p->count);
    memset(gradient, 0, bytes);
    p->value = value;
    p->gradient = gradient;
    p->data = value;
    p->dtype = BD_F32;
    return true; // the same numbers as before: panels stay valid
}

void bd_parameter_freeze(bd_parameter *p)
{
    bd_huge_free(p->gradient);
    bd_huge_free(p->backward_storage);
    p->gradient = NULL;
    p->backward_storage = NULL;
    p->backward_bytes = 0;
    p->backward_version = 0;
}

void bd_parameter_free(bd_parameter *p)
{
    bd_parameter_freeze(p);
    bd_huge_free(p->value);
    bd_huge_free(p->forward_storage);
    *p = (bd_parameter){0};
}

void bd_parameter_changed(bd_parameter *p)
{
    p->version++;
}

// --- lists ---------------------------------------------------------------------------------------

bd_parameter *bd_parameters_find(const bd_parameters *list, const char *name)
{
    for (int64_t i = 0; i < list->count; i++)
        if (strcmp(list->items[i]->name, name) == 0)
            return list->items[i];
    return NULL;
}

void bd_parameters_zero_gradients(const bd_parameters *list)
{
    static bd_profile_site site = {.name = "zero weight gradients", .kind = BD_PROFILE_MEMORY};
    bd_profile_begin(&site);
    for (int64_t i = 0; i < list->count; i++)
        if (list->items[i]->gradient)
            memset(list->items[i]->gradient, 0, (size_t)list->items[i]->count * sizeof(float));
    bd_profile_end(&site, 0, 4 * (double)bd_parameters_total(list));
}

int64_t bd_parameters_total(const bd_parameters *list)
{
    int64_t total = 0;
    for (int64_t i = 0; i < list->count; i++)
        total += list->items[i]->count;
    return total;
}
