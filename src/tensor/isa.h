/* isa.h - which instruction set the kernels use.
 *
 * Every file src/ROOM/isa/NAME.c is compiled once per level (with tensor/isa/vector.h); a room
 * keeps a table of its kernels per level and asks bd_isa() which one to use. The level is picked
 * once from the CPU; the environment variable BDLM_ISA forces a lower one.
 *
 *     typedef struct { void (*scale)(float *x, int64_t count, float factor); } kernels;
 *     #define DECLARE(level) void scale_##level(float *x, int64_t count, float factor);
 *     #define ENTRY(level)   {.scale = scale_##level},
 *     BD_FOR_EACH_ISA(DECLARE)
 *     static const kernels table[BD_ISA_COUNT] = {BD_FOR_EACH_ISA(ENTRY)};
 *     table[bd_isa()].scale(x, count, factor);
 */
#ifndef BD_TENSOR_ISA_H
#define BD_TENSOR_ISA_H

#include "base/error.h"

typedef enum {
    BD_ISA_PORTABLE,
    BD_ISA_AVX2,
    BD_ISA_AVX512,
    BD_ISA_AVX512BF16,
    BD_ISA_COUNT
} bd_isa_level;

/* The levels in the order of bd_isa_level, under the names their files' symbols end with. */
#define BD_FOR_EACH_ISA(X) X(portable) X(avx2) X(avx512) X(avx512bf16)

bd_isa_level bd_isa(void);                   /* the level in use */
const char *bd_isa_name(bd_isa_level level); /* "portable", "avx2", "avx512", "avx512bf16" */
bool bd_isa_supported(bd_isa_level level);   /* by this CPU */

/* Reads BDLM_ISA; an unknown name or a level this CPU lacks is an error that lists what it has.
 * Programs call it at start; without the call bd_isa() falls back to the best level silently. */
bool bd_isa_init(bd_error *err);

/* For tests: use this level from now on. It must be supported. */
void bd_isa_force(bd_isa_level level);

#endif
