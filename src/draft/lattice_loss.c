#include <assert.h>
#include <math.h>

#include "draft/lattice.h"
#include "tensor/rows.h"

void bd_lattice_walk(const bd_lattice_shape *shape, const float *start, const float *pair,
                     int64_t *path)
{
    int64_t K = shape->candidates;
    path[0] = bd_argmax(start, K);
    for (int64_t s = 1; s < shape->slots; s++)
        path[s] = bd_argmax(pair + ((s - 1) * K + path[s - 1]) * K, K);
}

/* One block's arrays, and where its labels are among the candidates (-1: nowhere). */
typedef struct {
    int64_t slots, K;
    const int32_t *candidates, *labels;
    const float *start, *pair, *teacher;
    float *d_start, *d_pair;
    int64_t *gold;
} block_view;

/* The scores a slot's label is chosen by: after the label before it. */
static int64_t node(const block_view *b, int64_t slot)
{
    return slot ? ((slot - 1) * b->K + b->gold[slot - 1]) * b->K : 0;
}

static int64_t best_rival(const float *scores, int64_t K, int64_t gold)
{
    int64_t best = -1;
    for (int64_t j = 0; j < K; j++)
        if (j != gold && (best < 0 || scores[j] > scores[best]))
            best = j;
    return best;
}

/* sum over j of p_j w_j, w_j how much the teacher prefers the label to j; gradient p_j (w_j - sum).
 */
static double penalty(const block_view *b, int64_t slot, const float *scores, double weight,
                      float *d_scores)
{
    const float *t = b->teacher + slot * b->K;
    double sum = 0, largest = (double)scores[bd_argmax(scores, b->K)], total = 0;
    for (int64_t j = 0; j < b->K; j++)
        total += exp((double)scores[j] - largest);
    for (int64_t j = 0; j < b->K; j++)
        sum += exp((double)scores[j] - largest) / total *
               fmax(0, (double)t[b->gold[slot]] - (double)t[j]);
    for (int64_t j = 0; d_scores && j < b->K; j++)
        d_scores[j] += (float)(weight * exp((double)scores[j] - largest) / total *
                               (fmax(0, (double)t[b->gold[slot]] - (double)t[j]) - sum));
    return sum;
}

/* KL(q, p) of q = softmax(t), the teacher among the candidates, and p = softmax(scores); gradient
 * p - q. */
static double calibration(const block_view *b, int64_t slot, const float *scores, double weight,
                          float *d_scores)
{
    const float *t = b->teacher + slot * b->K;
    double of_teacher = (double)bd_log_sum_exp(t, b->K), sum = 0;
    double of_scores = (double)bd_log_sum_exp(scores, b->K);
    for (int64_t j = 0; j < b->K; j++) {
        double log_q = (double)t[j] - of_teacher, log_p = (double)scores[j] - of_scores;
        sum += exp(log_q) * (log_q - log_p);
        if (d_scores)
            d_scores[j] += (float)(weight * (exp(log_p) - exp(log_q)));
    }
    return sum;
}

static void judge_slot(const bd_lattice_weights *weights, const block_view *b, int64_t slot,
                       double factor, bd_lattice_result *result)
{
    const float *scores = (slot ? b->pair : b->start) + node(b, slot);
    float *d = slot ? b->d_pair : b->d_start;
    int64_t gold = b->gold[slot], rival = best_rival(scores, b->K, gold);
    d = d ? d + node(b, slot) : NULL;
    double sum = (double)bd_log_sum_exp(scores, b->K);
    double gap = rival < 0 ? 0 : (double)scores[gold] - (double)scores[rival];
    result->used += 1;
    result->ce += sum - (double)scores[gold];
    result->gap += gap;
    result->gap_hit += gap > 0;
    for (int64_t j = 0; d && j < b->K; j++)
        d[j] += (float)(factor * weights->ce * (exp((double)scores[j] - sum) - (j == gold)));
    if (weights->margin_weight > 0 && rival >= 0 && gap < weights->margin) {
        result->margin += weights->margin - gap;
        if (d) {
            d[gold] -= (float)(factor * weights->margin_weight);
            d[rival] += (float)(factor * weights->margin_weight);
        }
    }
    if (weights->penalty > 0)
        result->penalty += penalty(b, slot, scores, factor * weights->penalty, d);
    if (weights->calibration > 0)
        result->calibration += calibration(b, slot, scores, factor * weights->calibration, d);
}

static block_view view(const bd_lattice_blocks *all, int64_t n, float *d_start, float *d_pair,
                       int64_t *gold)
{
    int64_t slots = all->shape.slots, K = all->shape.candidates, pairs = (slots - 1) * K * K;
    block_view b = {.slots = slots,
                    .K = K,
                    .candidates = all->candidates + n * slots * K,
                    .labels = all->labels + n * slots,
                    .start = all->start + n * K,
                    .pair = all->pair ? all->pair + n * pairs : NULL,
                    .teacher = all->teacher ? all->teacher + n * slots * K : NULL,
                    .d_start = d_start ? d_start + n * K : NULL,
                    .d_pair = d_pair ? d_pair + n * pairs : NULL,
                    .gold = gold};
    for (int64_t s = 0; s < slots; s++) {
        gold[s] = -1;
        for (int64_t j = K - 1; j >= 0; j--)
            if (b.candidates[s * K + j] == b.labels[s])
                gold[s] = j;
    }
    return b;
}

/* Prefixes of a valid block: how far the walk, the first candidates, any candidates go. */
static void count_block(const bd_lattice_shape *shape, const block_view *b,
                        bd_lattice_result *result)
{
    int64_t path[256], selected = 0, top1 = 0, oracle = 0;
    assert(b->slots <= 256);
    bd_lattice_walk(shape, b->start, b->pair, path);
    while (selected < b->slots && path[selected] == b->gold[selected])
        selected++;
    while (top1 < b->slots && b->gold[top1] == 0)
        top1++;
    while (oracle < b->slots && b->gold[oracle] >= 0)
        oracle++;
    result->valid += 1;
    result->selected += (double)selected;
    result->top1 += (double)top1;
    result->oracle += (double)oracle;
    result->exact += selected == b->slots;
    result->zero += oracle == 0;
    for (int64_t s = 0; s < b->slots; s++) {
        result->slots += 1;
        result->in_lattice += b->gold[s] >= 0;
        if (s < oracle)
            result->right += path[s] == b->gold[s];
    }
}

static double used_slots(const bd_lattice_blocks *blocks, int64_t *gold)
{
    double used = 0;
    for (int64_t n = 0; n < blocks->shape.blocks; n++) {
        if (!blocks->valid[n])
            continue;
        view(blocks, n, NULL, NULL, gold);
        for (int64_t s = 0; s < blocks->shape.slots && gold[s] >= 0; s++)
            used += 1;
    }
    return used;
}

double bd_lattice_judge(const bd_lattice_weights *weights, const bd_lattice_blocks *blocks,
                        double factor, float *d_start, float *d_pair, bd_lattice_result *result)
{
    int64_t gold[256];
    assert(blocks->shape.slots <= 256 &&
           (blocks->teacher || !(weights->penalty > 0 || weights->calibration > 0)));
    *result = (bd_lattice_result){0};
    double denominator = fmax(used_slots(blocks, gold), 1);
    for (int64_t n = 0; n < blocks->shape.blocks; n++) {
        if (!blocks->valid[n])
            continue;
        const block_view b = view(blocks, n, d_start, d_pair, gold);
        for (int64_t s = 0; s < b.slots && gold[s] >= 0; s++)
            judge_slot(weights, &b, s, factor / denominator, result);
        count_block(&blocks->shape, &b, result);
    }
    return (weights->ce * result->ce + weights->margin_weight * result->margin +
            weights->penalty * result->penalty + weights->calibration * result->calibration) /
           denominator;
}
