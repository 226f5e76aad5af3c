/* isa/matmul.h - what one instruction set offers to matmul.c.
 *
 * A panel holds `panel_columns` columns of the right-hand matrix, step after step of the summed
 * dimension, so that a tile reads it front to back. A step is one element of k, or, where the level
 * multiplies bf16 natively, a pair (2s, 2s + 1) of them side by side. The left-hand matrix is read
 * 4 bytes a step: one f32, or one pair of bf16.
 *
 *     format         right-hand panel            left-hand matrix
 *     BD_TILE_F32    [k][columns] f32            f32
 *     BD_TILE_WIDEN  [k][columns] bf16           f32 (rounded to bf16)
 *     BD_TILE_PAIRS  [k/2][columns][2] bf16      pairs of bf16
 *
 * Matrices are cut into panels from the left; the last panel is only as wide as its columns,
 * rounded up to whole vectors.
 */
#ifndef BD_TENSOR_ISA_MATMUL_H
#define BD_TENSOR_ISA_MATMUL_H

#include <stdbool.h>
#include <stdint.h>

#include "tensor/isa.h"

enum { BD_TILE_ROWS = 6 }; /* most rows of a tile, at every level */

typedef enum { BD_TILE_F32, BD_TILE_WIDEN, BD_TILE_PAIRS, BD_TILE_FORMATS } bd_tile_format;

/* y[r, c] = start[r, c] + sum_s a[r, s] b[s, c], then + bias[c], then + y[r, c] if `accumulate`.
 * One chain of additions per element, in order of s: cutting the steps in two, with the first sum
 * passed on as `start`, does not change a bit. */
typedef struct {
    int rows;               /* 1 .. BD_TILE_ROWS */
    int64_t columns, steps; /* columns: those to write, 1 .. width */
    const void *a;
    int64_t a_row, a_step; /* strides in units of 4 bytes */
    const void *b;
    int64_t width;      /* of the panel */
    const float *start; /* or NULL: 0 */
    int64_t start_stride;
    float *y;
    int64_t y_stride;
    const float *bias; /* or NULL */
    bool accumulate;
    const char *prefetch;   /* memory that will be needed soon */
    int64_t prefetch_lines; /* 64-byte lines of it to fetch in every step; 0: none */
} bd_tile;

typedef struct {
    int64_t panel_columns, vector_columns;
    bd_tile_format bf16_format; /* BD_TILE_WIDEN or BD_TILE_PAIRS */
    void (*tile[BD_TILE_FORMATS])(const bd_tile *tile);
    /* Fill steps for k = 0 .. count-1 of a panel of `width` columns. From w[k, c] (row stride
     * `stride`): by rows; from w[c, k]: by columns. Columns beyond `columns` and the second half of
     * an odd last pair are 0. `round` rounds to bf16 first where the format is BD_TILE_F32. */
    void (*pack_rows)(bd_tile_format format, bool round, const float *w, int64_t stride,
                      int64_t count, int64_t columns, int64_t width, void *panel);
    void (*pack_columns)(bd_tile_format format, const float *w, int64_t stride, int64_t count,
                         int64_t columns, int64_t width, void *panel);
    /* One row of a left-hand matrix: rounded to bf16 and kept as f32, or as pairs (0 after the
     * end). */
    void (*round_row)(bd_tile_format format, const float *x, int64_t count, void *row);
} bd_matmul_kernels;

#define BD_DECLARE_MATMUL(level) extern const bd_matmul_kernels bd_matmul_kernels_##level;
BD_FOR_EACH_ISA(BD_DECLARE_MATMUL)
#undef BD_DECLARE_MATMUL

#endif
