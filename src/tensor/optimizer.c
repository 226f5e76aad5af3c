#include "tensor/optimizer.h"

#include <assert.h>
#include <math.h>

#include "base/profile.h"
#include "base/threads.h"
#include "tensor/isa/optimizer.h"

#define ENTRY(level) bd_adamw_##level,
static bd_adamw_kernel *const tables[BD_ISA_COUNT] = {BD_FOR_EACH_ISA(ENTRY)};

enum { TASK_ELEMENTS = 32768 };

typedef struct {
    const bd_adamw *options;
    float m_unbias, v_unbias;
    int64_t count;
    float *parameter;
    const float *gradient;
    bd_dtype m_dtype, v_dtype;
    char *m, *v;
} job;

static void update_task(void *context, int64_t task)
{
    const job *j = context;
    const int64_t at = task * TASK_ELEMENTS, left = j->count - at;
    tables[bd_isa()](j->options, j->m_unbias, j->v_unbias,
                     left < TASK_ELEMENTS ? left : TASK_ELEMENTS, j->parameter + at,
                     j->gradient + at, j->m_dtype, j->m + at * (int64_t)bd_dtype_size(j->m_dtype),
                     j->v_dtype, j->v + at * (int64_t)bd_dtype_size(j->v_dtype));
}

void bd_adamw_update(const bd_adamw *options, int64_t count, float *parameter,
                     const float *gradient, bd_dtype m_dtype, void *m, bd_dtype v_dtype, void *v)
{
    static bd_profile_site site = {.name = "adamw", .kind = BD_PROFILE_MEMORY};
    bd_profile_begin(&site);
    assert(options->step >= 1);
    assert(m_dtype == BD_F32 || m_dtype == BD_BF16);
    assert(v_dtype == BD_F32 || v_dtype == BD_BF16);
    const double t = (double)options->step;
    job j = {
        .options = options,
        .m_unbias = (float)(1 / (1 - pow(options->b1, t))),
        .v_unbias = (float)(1 / (1 - pow(options->b2, t))),
        .count = count,
        .parameter = parameter,
        .gradient = gradient,
        .m_dtype = m_dtype,
        .v_dtype = v_dtype,
        .m = m,
        .v = v,
    };
    bd_parallel((count + TASK_ELEMENTS - 1) / TASK_ELEMENTS, update_task, &j);
    bd_profile_end(&site, 15 * (double)count,
                   (double)count *
                       (double)(12 + 2 * bd_dtype_size(m_dtype) + 2 * bd_dtype_size(v_dtype)));
}
