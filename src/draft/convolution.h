/* convolution.h - grouped dynamic causal convolutions around the sublayers of a draft's layers.
 *
 * Attention inside a block sees both ways; these look back over the last few slots of the block
 * alone, with coefficients that are part learned per channel (base) and part computed from the row
 * (dynamic, shared by the channels of a group). A convolution has two sides: side 0 is applied to
 * what enters the sublayer, side 1 to what leaves it, both with coefficients from what enters. With
 * fresh weights both return their input exactly. Source: dflash2-lilicorr 3.
 *
 *     bd_value *delta = bd_convolution_coefficients(conv, tape, h);
 *     bd_value *x = bd_convolution_apply(conv, tape, 0, h, delta, block_size);
 *     ... y = the sublayer of x ...
 *     y = bd_convolution_apply(conv, tape, 1, y, delta, block_size);
 */
#ifndef BD_DRAFT_CONVOLUTION_H
#define BD_DRAFT_CONVOLUTION_H

#include "draft/draft.h"

typedef struct bd_convolution {
    bd_parameter *base; /* [2, taps, H] */
    bd_parameter
        *projection; /* [2 * taps * groups, H]: row side * taps * groups + tap * groups + g */
} bd_convolution;

/* What rows say about their coefficients: h [rows, H] -> [rows, 2 * taps * groups]. */
bd_value *bd_convolution_coefficients(const bd_convolution *conv, bd_tape *tape, bd_value *h);

/* y[i, c] = sum over taps t of (base[side, t, c] + delta[i, side, t, c / group]) x[i - t, c], where
 * rows i - t before the start of i's block of `block` rows count as 0. */
bd_value *bd_convolution_apply(const bd_convolution *conv, bd_tape *tape, int side, bd_value *x,
                               bd_value *delta, int64_t block);

/* --- for variants that have them -------------------------------------------------------------- */

/* conv_kernel_size and conv_group_size; 0 where a field is not there. */
bool bd_convolution_read_config(bd_draft_config *config, json_t *root, const char *where,
                                bd_error *err);
void bd_convolution_write_config(const bd_draft_config *config, json_t *nested);
bool bd_convolution_check_config(const bd_draft_config *config, const char *where, bd_error *err);

/* The tensors of all layers, and their start: identities as long as projection_std is 0, which
 * only lilicorr sets (dflash2-lilicorr 5.8). */
void bd_convolution_build(bd_draft *draft, bd_draft_builder *builder);
void bd_convolution_initialize(bd_draft *draft, uint64_t seed);

#endif
