/* lattice.h - operations over a lattice of candidates: K candidates in each of a block's slots.
 *
 * Rows of a lattice are slot-major: row (block * slots + s) * K + j is candidate j of slot s. The
 * values here are those of LiLiCorr's head; going back adds gradients as in tape.h. Source:
 * dflash2-lilicorr 5.3 to 5.5.
 *
 *     bd_value *seen = bd_lattice_attention(&tape, qkv, relative, same, &shape);
 *     bd_value *unit = bd_op_normalize(&tape, x, eps);
 *     bd_lattice_judge(&options, &blocks, &result);
 */
#ifndef BD_DRAFT_LATTICE_H
#define BD_DRAFT_LATTICE_H

#include "autograd/tape.h"

/* What is held on the stack bounds a slot's candidates. */
enum { BD_LATTICE_CANDIDATES = 64 };

typedef struct {
    int64_t blocks, slots, candidates; /* slots: bs - 1 */
} bd_lattice_shape;

/* --- operations ------------------------------------------------------------------------------- */

/* y = x + row ids[r] of a table whose rows have x's width; ids must outlive the tape. */
bd_value *bd_op_add_rows(bd_tape *tape, bd_value *x, bd_parameter *table, const int32_t *ids);

/* Layer norm of rows: (x - mean) / sqrt(variance + 1e-5) * weight + bias. */
bd_value *bd_op_layer_norm(bd_tape *tape, bd_value *x, bd_parameter *weight, bd_parameter *bias);

/* y = x / max(|x|, eps), row by row. */
bd_value *bd_op_normalize(bd_tape *tape, bd_value *x, float eps);

/* All rows of a block see each other: qkv [rows, 3 D] with queries, keys, values side by side, each
 * of `heads` heads; scores q.k / sqrt(D / heads) + relative[head, slot_q - slot_k + slots] +
 * (same slot) same[head], where relative is [heads, 2 slots + 1]. -> [rows, D]. */
bd_value *bd_lattice_attention(bd_tape *tape, bd_value *qkv, bd_parameter *relative,
                               bd_parameter *same, const bd_lattice_shape *shape);

/* [rows, 5] of the log-probabilities logp [blocks * slots, K] of a slot's candidates, falling:
 * logp, exp(logp), logp - the first's, rank / max(K - 1, 1), is the first. */
bd_value *bd_lattice_features(bd_tape *tape, bd_value *logp);

/* start [blocks, K] = anchor[block] . in[slot 0], pair [blocks, (slots - 1) * K * K] =
 * out[slot s, i] . in[slot s + 1, j], both times scale. out, in: [rows, F]; anchor [blocks, F]. */
bd_value *bd_lattice_start(bd_tape *tape, bd_value *anchor, bd_value *in, float scale,
                           const bd_lattice_shape *shape);
bd_value *bd_lattice_pair(bd_tape *tape, bd_value *out, bd_value *in, float scale,
                          const bd_lattice_shape *shape);

/* --- what a step makes of the scores ---------------------------------------------------------- */

typedef struct {
    double ce, margin_weight, penalty, calibration; /* weights of the four terms */
    double margin;
} bd_lattice_weights;

/* Labels and scores of some blocks. */
typedef struct {
    bd_lattice_shape shape;
    const int32_t *candidates; /* [blocks, slots, K] */
    const int32_t *labels;     /* [blocks, slots] */
    const uint8_t *valid;      /* [blocks]: supervised in all slots */
    const float *start, *pair; /* [blocks, K], [blocks, slots - 1, K, K] */
    const float *teacher; /* [blocks, slots, K] logits of the candidates; NULL: neither penalty nor
                            calibration */
} bd_lattice_blocks;

/* Sums over used slots, resp. valid blocks. */
typedef struct {
    double used, ce, margin, penalty, calibration;
    double valid, selected, top1, oracle, exact, zero;
    double slots, in_lattice; /* over slots of valid blocks */
    double right, gap, gap_hit;
} bd_lattice_result;

/* The four means' weighted sum, [used slots at least 1] in the denominator. Gradients of it times
 * `factor` are added to d_start and d_pair (NULL: not wanted). */
double bd_lattice_judge(const bd_lattice_weights *weights, const bd_lattice_blocks *blocks,
                        double factor, float *d_start, float *d_pair, bd_lattice_result *result);

/* The greedy walk of one block: path[s] is the candidate of slot s. */
void bd_lattice_walk(const bd_lattice_shape *shape, const float *start, const float *pair,
                     int64_t *path);

#endif
