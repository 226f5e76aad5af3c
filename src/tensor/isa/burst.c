// Twelve chains of multiply-adds hide the latency of each; the empty asm keeps the compiler from
// reasoning about them.
#include "tensor/isa/burst.h"

#include "tensor/isa/vector.h"

enum { CHAINS = 12, ROUNDS = 10000 };

#if !defined(__x86_64__) && !defined(__aarch64__)
#define KEEP "+m"
#elif defined(__x86_64__)
#define KEEP "+v"
#else
#define KEEP "+w"
#endif

#define BURST(name, step)                                                                          \
    static float name(void)                                                                        \
    {                                                                                              \
        vf c0 = vf_set1(0), c1 = c0, c2 = c0, c3 = c0, c4 = c0, c5 = c0;                           \
        vf c6 = c0, c7 = c0, c8 = c0, c9 = c0, c10 = c0, c11 = c0;                                 \
        for (int n = 0; n < ROUNDS; n++) {                                                         \
            c0 = step(c0), c1 = step(c1), c2 = step(c2), c3 = step(c3);                            \
            c4 = step(c4), c5 = step(c5), c6 = step(c6), c7 = step(c7);                            \
            c8 = step(c8), c9 = step(c9), c10 = step(c10), c11 = step(c11);                        \
            __asm__("" : KEEP(c0), KEEP(c1), KEEP(c2), KEEP(c3), KEEP(c4), KEEP(c5));              \
            __asm__("" : KEEP(c6), KEEP(c7), KEEP(c8), KEEP(c9), KEEP(c10), KEEP(c11));            \
        }                                                                                          \
        return vf_sum(((c0 + c1) + (c2 + c3)) + ((c4 + c5) + (c6 + c7)) +                          \
                      ((c8 + c9) + (c10 + c11)));                                                  \
    }

static inline vf multiply_add(vf c)
{
    return vf_fma(c, vf_set1(0.5f), vf_set1(1));
}
BURST(burst_f32, multiply_add)

#if defined(BD_ISA_avx512bf16)
static inline vf dot(vf c)
{
    const uint16_t ones[2] = {0x3f80, 0x3f80};
    return vf_dot_bf16(c, vb_set1(ones), vb_set1(ones));
}
BURST(burst_bf16, dot)

static inline vf dot_bytes(vf c)
{
    return (vf)_mm512_dpbusd_epi32((__m512i)c, _mm512_set1_epi8(1), _mm512_set1_epi8(1));
}
BURST(burst_int8, dot_bytes)
#endif

const bd_burst_kernels BD_ISA_NAME(bd_burst_kernels) = {
    .f32 = burst_f32,
    .f32_operations = 2.0 * VF_WIDTH * CHAINS * ROUNDS,
#if defined(BD_ISA_avx512bf16)
    .bf16 = burst_bf16,
    .bf16_operations = 4.0 * VF_WIDTH * CHAINS * ROUNDS,
    .int8 = burst_int8,
    .int8_operations = 8.0 * VF_WIDTH * CHAINS * ROUNDS,
#endif
};
