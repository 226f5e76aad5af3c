#include "tensor/isa/vocabulary.h"

#include "tensor/isa/rows.h"
#include "tensor/isa/vector.h"

// softmax(x)_v = exp(x_v - shift) / sum.
typedef struct {
    float shift;
    double sum;
} normalizer;

static normalizer normalize(const float *x, int64_t count)
{
    const bd_row_kernels *kernels = &BD_ISA_NAME(bd_row_kernels);
    const float shift = kernels->largest(x, count);
    return (normalizer){shift, kernels->sum_exp(x, shift, count, NULL)};
}

enum { SUM_BLOCK = 1024 }; // floats within a block, doubles over the blocks

// sum_v exp(t_v - shift), and sum_v exp(t_v - shift) (largest - z_v): with no negative term, so
// that small cross entropies keep their digits. A probability of 0 counts as 0 whatever z is.
static normalizer normalize_teacher(const bd_vocabulary_row *row, float largest, double *distance)
{
    const float shift = BD_ISA_NAME(bd_row_kernels).largest(row->teacher, row->vocabulary);
    const vf s = vf_set1(shift), most = vf_set1(largest);
    normalizer teacher = {shift, 0};
    *distance = 0;
    for (int64_t block = 0; block < row->vocabulary; block += SUM_BLOCK) {
        const float *t = row->teacher + block, *z = row->logits + block;
        const int64_t left = row->vocabulary - block, size = left < SUM_BLOCK ? left : SUM_BLOCK;
        vf sum = vf_zero(), far = vf_zero();
        VF_EACH(i, n, size, {
            vf p = vf_exp(vf_load_n(t + i, n) - s);
            if (n < VF_WIDTH)
                p = vf_select(vi_count() < (int32_t)n, p, vf_zero());
            sum += p;
            far += vf_select(p == 0, vf_zero(), p * (most - vf_load_n(z + i, n)));
        });
        teacher.sum += (double)vf_sum(sum);
        *distance += (double)vf_sum(far);
    }
    return teacher;
}

void BD_ISA_NAME(bd_vocabulary_row)(bd_vocabulary_row *row)
{
    const float *z = row->logits;
    const normalizer own = normalize(z, row->vocabulary);
    const double lse = (double)own.shift + log(own.sum);
    row->log_normalizer = (float)lse;
    row->hard_loss = (float)(((double)own.shift - (double)z[row->target]) + log(own.sum));
    const int64_t best = BD_ISA_NAME(bd_row_kernels).find(z, own.shift, row->vocabulary);
    row->best = best < 0 ? 0 : (int32_t)best;
    row->soft_loss = 0;
    normalizer teacher = {0, 1};
    if (row->teacher) { // sum_v p_v (lse - z_v)
        double distance;
        teacher = normalize_teacher(row, own.shift, &distance);
        row->soft_loss = (float)(log(own.sum) + distance / teacher.sum);
    }
    if (!row->d_logits)
        return;

    const float soft = row->teacher ? row->soft : 0;
    const double all = (double)row->hard + (double)soft + 2.0 * (double)row->z_loss * lse;
    const vf factor = vf_set1((float)((double)row->scale * all / own.sum)),
             shift = vf_set1(own.shift);
    const float at_target = row->scale * row->hard;
    float *dz = row->d_logits;
    if (row->teacher) {
        const vf pull = vf_set1((float)((double)row->scale * (double)soft / teacher.sum));
        const vf teacher_shift = vf_set1(teacher.shift);
        const float *t = row->teacher;
        VF_EACH(i, n, row->vocabulary, {
            vf p = vf_exp(vf_load_n(t + i, n) - teacher_shift) * pull;
            vf_store_n(dz + i, vf_exp(vf_load_n(z + i, n) - shift) * factor - p, n);
        });
    } else {
        VF_EACH(i, n, row->vocabulary,
                { vf_store_n(dz + i, vf_exp(vf_load_n(z + i, n) - shift) * factor, n); });
    }
    dz[row->target] -= at_target;
}
