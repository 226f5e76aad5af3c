#include "tensor/isa/optimizer.h"

#include "tensor/isa/vector.h"

static inline vf load_moment(bd_dtype dtype, const void *x, int64_t i, int64_t n)
{
    return dtype == BD_BF16 ? vf_load_bf16_n((const uint16_t *)x + i, n)
                            : vf_load_n((const float *)x + i, n);
}

static inline void store_moment(bd_dtype dtype, void *x, int64_t i, vf value, int64_t n)
{
    if (dtype == BD_BF16)
        vf_store_bf16_n((uint16_t *)x + i, value, n);
    else
        vf_store_n((float *)x + i, value, n);
}

static inline __attribute__((always_inline)) void update(const bd_adamw *o, float m_unbias,
                                                         float v_unbias, int64_t count,
                                                         float *parameter, const float *gradient,
                                                         bd_dtype m_dtype, void *m,
                                                         bd_dtype v_dtype, void *v)
{
    const float b1 = (float)o->b1, rest1 = (float)(1 - o->b1);
    const float b2 = (float)o->b2, rest2 = (float)(1 - o->b2);
    const float factor = (float)o->gradient_factor, eps = (float)o->eps;
    const vf decay = vf_set1((float)o->weight_decay), rate = vf_set1((float)o->learning_rate);
    const vf unbias = vf_set1(v_unbias), eps_root = vf_set1((float)o->eps_root);
    VF_EACH(i, n, count, {
        vf g = vf_load_n(gradient + i, n) * factor;
        vf first = load_moment(m_dtype, m, i, n) * b1 + g * rest1;
        vf second = load_moment(v_dtype, v, i, n) * b2 + g * g * rest2;
        vf step = first * m_unbias / (vf_sqrt(vf_fma(second, unbias, eps_root)) + eps);
        vf p = vf_load_n(parameter + i, n);
        vf_store_n(parameter + i, vf_fnma(vf_fma(p, decay, step), rate, p), n);
        store_moment(m_dtype, m, i, first, n);
        store_moment(v_dtype, v, i, second, n);
    });
}

void BD_ISA_NAME(bd_adamw)(const bd_adamw *o, float m_unbias, float v_unbias, int64_t count,
                           float *parameter, const float *gradient, bd_dtype m_dtype, void *m,
                           bd_dtype v_dtype, void *v)
{
    // One loop for each pair of dtypes.
    if (m_dtype == BD_F32 && v_dtype == BD_F32)
        update(o, m_unbias, v_unbias, count, parameter, gradient, BD_F32, m, BD_F32, v);
    else if (m_dtype == BD_F32)
        update(o, m_unbias, v_unbias, count, parameter, gradient, BD_F32, m, BD_BF16, v);
    else if (v_dtype == BD_F32)
        update(o, m_unbias, v_unbias, count, parameter, gradient, BD_BF16, m, BD_F32, v);
    else
        update(o, m_unbias, v_unbias, count, parameter, gradient, BD_BF16, m, BD_BF16, v);
}
