/* burst.h - what the cores and the memory can do at best: the ceilings products are measured by.
 *
 * A burst is multiply-adds that touch no memory, on all threads of the team, at the instruction set in
 * use. Neighbours on the same machine take their share of every measurement, so a ceiling is worth
 * something beside a rate that was taken in the same minute by the same process.
 *
 *     double most = bd_burst_rate(BD_F32, 0.01);
 */
#ifndef BD_TENSOR_BURST_H
#define BD_TENSOR_BURST_H

#include "tensor/dtype.h"

/* Floating point operations per second of all threads together, over at least so many seconds; a
 * multiply-add is two. BD_BF16: dot products of bf16 where the level has an instruction for them,
 * BD_Q8_0: of int8. Otherwise the same as BD_F32. */
double bd_burst_rate(bd_dtype dtype, double seconds);

/* Bytes per second of one plain read of the data on all threads; it should be larger than the caches. */
double bd_read_rate(const void *data, size_t bytes);

typedef struct {
    double f32, bf16, int8; /* operations per second */
    double read;            /* bytes per second; 0: there was no memory to read */
} bd_ceilings;

/* The best of several short bursts and reads of each kind, some 0.2 seconds in all. */
bd_ceilings bd_ceilings_measure(void);

#endif
