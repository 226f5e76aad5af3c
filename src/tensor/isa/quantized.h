/* isa/quantized.h - what one instruction set offers to quantized.c.
 *
 * A panel holds 32 columns (rows of the weight), block after block of 32 along `in`. A block is 8
 * groups of 32 x 4 bytes: for every column the four weights that one dot product step eats, as
 * int8 + 128, because the step multiplies unsigned with signed bytes. What the 128 adds is known
 * from the row alone and taken off at the start of a block.
 */
#ifndef BD_TENSOR_ISA_QUANTIZED_H
#define BD_TENSOR_ISA_QUANTIZED_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/isa.h"

enum {
    BD_QUANTIZED_COLUMNS = 32,
    BD_QUANTIZED_ROWS = 4, /* most rows of a tile */
    BD_QUANTIZED_GROUP = 32,
    BD_QUANTIZED_BLOCK = 1024 /* bytes of a block of a panel */
};

/* A row in blocks of 32: int8 values, their f32 scale, and -128 times their sum. */
typedef struct {
    int8_t *values; /* [blocks][32] */
    float *scales;  /* [blocks] */
    int32_t *starts;
} bd_quantized_row;

/* y[r, c] = sum over blocks of scale of row x scale of column x integer sum, then + bias, then
 * + y if `accumulate`. One chain of additions per element, in order of blocks. */
typedef struct {
    int rows, columns;           /* 1 .. BD_QUANTIZED_ROWS; columns to write, 1 .. 32 */
    int64_t blocks;              /* along `in` */
    const bd_quantized_row *row; /* [rows] */
    const uint8_t *weights;      /* [blocks][8][32][4] */
    const uint16_t *scales;      /* [blocks][32] f16 */
    float *y;
    int64_t y_stride;
    const float *bias; /* or NULL */
    bool accumulate;
    const uint8_t *prefetch; /* memory that will be needed soon */
    int64_t prefetch_lines;  /* 64-byte lines of it to fetch with every block */
} bd_quantized_tile;

typedef struct {
    void (*tile)(const bd_quantized_tile *tile);
    /* `count` values; what is missing of the last block is 0. No number in a block makes its scale
     * no number. */
    void (*quantize)(const float *x, int64_t count, const bd_quantized_row *row);
} bd_quantized_kernels;

#define BD_DECLARE_QUANTIZED(level) extern const bd_quantized_kernels bd_quantized_kernels_##level;
BD_FOR_EACH_ISA(BD_DECLARE_QUANTIZED)
#undef BD_DECLARE_QUANTIZED

#endif
