#include "tensor/isa/divergence.h"

#include "tensor/isa/rows.h"
#include "tensor/isa/vector.h"

enum { SUM_BLOCK = 1024 }; // floats within a block, doubles over the blocks

// softmax(x / T)_v = exp(x_v / T - shift) * inverse; its logarithm is x_v / T - shift + log(inverse).
typedef struct {
    float cool, shift, inverse, log_inverse;
} softened;

static softened soften(const float *x, int64_t count, float temperature)
{
    const float cool = 1 / temperature;
    const float shift = BD_ISA_NAME(bd_row_kernels).largest(x, count) * cool;
    const vf cooling = vf_set1(cool), most = vf_set1(shift);
    double sum = 0;
    for (int64_t block = 0; block < count; block += SUM_BLOCK) {
        const int64_t left = count - block, size = left < SUM_BLOCK ? left : SUM_BLOCK;
        vf part = vf_zero();
        VF_EACH(i, n, size, {
            vf e = vf_exp(vf_load_n(x + block + i, n) * cooling - most);
            part += n < VF_WIDTH ? vf_select(vi_count() < (int32_t)n, e, vf_zero()) : e;
        });
        sum += (double)vf_sum(part);
    }
    return (softened){cool, shift, (float)(1 / sum), (float)-log(sum)};
}

// sum_v p_v (log p_v - log q_v); a probability of 0 counts as 0 whatever the other is.
static double relative_entropy(const float *x, softened p, const float *y, softened q,
                               int64_t count)
{
    const vf cooling = vf_set1(p.cool), inverse = vf_set1(p.inverse);
    const vf p_shift = vf_set1(p.shift), q_shift = vf_set1(q.shift);
    const vf apart = vf_set1(p.log_inverse - q.log_inverse);
    double sum = 0;
    for (int64_t block = 0; block < count; block += SUM_BLOCK) {
        const int64_t left = count - block, size = left < SUM_BLOCK ? left : SUM_BLOCK;
        vf part = vf_zero();
        VF_EACH(i, n, size, {
            vf a = vf_load_n(x + block + i, n) * cooling - p_shift;
            vf b = vf_load_n(y + block + i, n) * cooling - q_shift;
            vf probability = vf_exp(a) * inverse;
            if (n < VF_WIDTH)
                probability = vf_select(vi_count() < (int32_t)n, probability, vf_zero());
            part += vf_select(probability == 0, vf_zero(), probability * (a - b + apart));
        });
        sum += (double)vf_sum(part);
    }
    return sum;
}

// T^2 KL(teacher, student); gradient T (p_s - p_t).
static void forward_kl(bd_divergence_row *row, softened s, softened t)
{
    const float temperature = row->temperature;
    row->value = (double)temperature * (double)temperature *
                 relative_entropy(row->teacher, t, row->logits, s, row->vocabulary);
    if (!row->d_logits)
        return;
    const vf cooling = vf_set1(s.cool), s_shift = vf_set1(s.shift), t_shift = vf_set1(t.shift);
    const vf s_factor = vf_set1(row->scale * temperature * s.inverse);
    const vf t_factor = vf_set1(row->scale * temperature * t.inverse);
    float *dz = row->d_logits;
    VF_EACH(i, n, row->vocabulary, {
        vf own = vf_exp(vf_load_n(row->logits + i, n) * cooling - s_shift) * s_factor;
        vf other = vf_exp(vf_load_n(row->teacher + i, n) * cooling - t_shift) * t_factor;
        vf_store_n(dz + i, vf_load_n(dz + i, n) + (own - other), n);
    });
}

// T^2 KL(student, teacher); gradient T p_s ((log p_s - log p_t) - KL).
static void reverse_kl(bd_divergence_row *row, softened s, softened t)
{
    const float temperature = row->temperature;
    const double kl = relative_entropy(row->logits, s, row->teacher, t, row->vocabulary);
    row->value = (double)temperature * (double)temperature * kl;
    if (!row->d_logits)
        return;
    const vf cooling = vf_set1(s.cool), s_shift = vf_set1(s.shift), t_shift = vf_set1(t.shift);
    const vf factor = vf_set1(row->scale * temperature * s.inverse);
    const vf apart = vf_set1((float)((double)s.log_inverse - (double)t.log_inverse - kl));
    float *dz = row->d_logits;
    VF_EACH(i, n, row->vocabulary, {
        vf a = vf_load_n(row->logits + i, n) * cooling - s_shift;
        vf b = vf_load_n(row->teacher + i, n) * cooling - t_shift;
        vf own = vf_exp(a) * factor;
        vf change = vf_select(own == 0, vf_zero(), own * (a - b + apart));
        vf_store_n(dz + i, vf_load_n(dz + i, n) + change, n);
    });
}

// T^2 (beta KL(p_t, m) + (1 - beta) KL(p_s, m)), m = beta p_t + (1 - beta) p_s; with
// g = (1 - beta) log(p_s / m) the gradient is T p_s (g - sum p_s g).
static void jensen_shannon(bd_divergence_row *row, softened s, softened t)
{
    const double beta = (double)row->beta, temperature = (double)row->temperature;
    double value = 0, mean = 0;
    for (int pass = 0; pass < (row->d_logits ? 2 : 1); pass++)
        for (int64_t i = 0; i < row->vocabulary; i++) {
            double own =
                exp((double)row->logits[i] * (double)s.cool - (double)s.shift) * (double)s.inverse;
            double other =
                exp((double)row->teacher[i] * (double)t.cool - (double)t.shift) * (double)t.inverse;
            double middle = beta * other + (1 - beta) * own;
            double g = own > 0 ? (1 - beta) * log(own / middle) : 0;
            if (pass == 1) {
                row->d_logits[i] += (float)((double)row->scale * temperature * own * (g - mean));
                continue;
            }
            mean += own * g;
            value += own * g + (other > 0 ? beta * other * log(other / middle) : 0);
        }
    row->value = temperature * temperature * value;
}

// Total of exp((x_v - shift) / T) over all tokens and over those kept; in double, because the tail
// is their difference.
static void mass(const float *x, softened s, const bd_divergence_row *row, double *all,
                 double *kept)
{
    *all = *kept = 0;
    for (int64_t v = 0; v < row->vocabulary; v++)
        *all += exp((double)x[v] * (double)s.cool - (double)s.shift);
    for (int64_t j = 0; j < row->top_k; j++)
        *kept += exp((double)x[row->kept[j]] * (double)s.cool - (double)s.shift);
}

// T^2 (sum over kept p_t log(p_t / p_s) + q_t log(q_t / q_s)), q what is not kept. The gradient is that
// of the full divergence from a teacher that spreads q_t over the tail as the student does.
static void tail_bucket(bd_divergence_row *row, softened s, softened t)
{
    const double temperature = (double)row->temperature, factor = (double)row->scale * temperature;
    double s_all, s_kept, t_all, t_kept, value = 0;
    mass(row->logits, s, row, &s_all, &s_kept);
    mass(row->teacher, t, row, &t_all, &t_kept);
    const bool tail = row->top_k < row->vocabulary && t_all > t_kept && s_all > s_kept;
    const double q_s = tail ? (s_all - s_kept) / s_all : 0,
                 q_t = tail ? (t_all - t_kept) / t_all : 0;
    const double spread = tail ? q_t / q_s : 0;
    for (int64_t v = 0; row->d_logits && v < row->vocabulary; v++) {
        double own = exp((double)row->logits[v] * (double)s.cool - (double)s.shift) / s_all;
        row->d_logits[v] += (float)(factor * own * (1 - spread));
    }
    for (int64_t j = 0; j < row->top_k; j++) {
        const int32_t v = row->kept[j];
        double a = (double)row->teacher[v] * (double)t.cool - (double)t.shift - log(t_all);
        double b = (double)row->logits[v] * (double)s.cool - (double)s.shift - log(s_all);
        double other = exp(a);
        value += other > 0 ? other * (a - b) : 0;
        if (row->d_logits)
            row->d_logits[v] += (float)(factor * (exp(b) * spread - other));
    }
    value += tail ? q_t * log(q_t / q_s) : 0;
    row->value = temperature * temperature * value;
}

// sum_v |p_s - p_t|, in 0..2; gradient p_s (sign - sum p_s sign), sign 0 where they are equal.
static void total_variation(bd_divergence_row *row, softened s, softened t)
{
    const vf s_shift = vf_set1(s.shift), t_shift = vf_set1(t.shift), cooling = vf_set1(s.cool);
    const vf s_inverse = vf_set1(s.inverse), t_inverse = vf_set1(t.inverse);
    const vf one = vf_set1(1), zero = vf_zero();
    double distance = 0, mean = 0;
    for (int64_t block = 0; block < row->vocabulary; block += SUM_BLOCK) {
        const int64_t left = row->vocabulary - block, size = left < SUM_BLOCK ? left : SUM_BLOCK;
        vf far = zero, drift = zero;
        VF_EACH(i, n, size, {
            vf own = vf_exp(vf_load_n(row->logits + block + i, n) * cooling - s_shift) * s_inverse;
            vf other =
                vf_exp(vf_load_n(row->teacher + block + i, n) * cooling - t_shift) * t_inverse;
            if (n < VF_WIDTH) {
                own = vf_select(vi_count() < (int32_t)n, own, zero);
                other = vf_select(vi_count() < (int32_t)n, other, zero);
            }
            vf sign = vf_select(own > other, one, vf_select(own < other, zero - one, zero));
            far += vf_abs(own - other);
            drift += own * sign;
        });
        distance += (double)vf_sum(far);
        mean += (double)vf_sum(drift);
    }
    row->value = distance;
    if (!row->d_logits)
        return;
    const vf factor = vf_set1(row->scale * s.cool), middle = vf_set1((float)mean);
    float *dz = row->d_logits;
    VF_EACH(i, n, row->vocabulary, {
        vf own = vf_exp(vf_load_n(row->logits + i, n) * cooling - s_shift) * s_inverse;
        vf other = vf_exp(vf_load_n(row->teacher + i, n) * cooling - t_shift) * t_inverse;
        vf sign = vf_select(own > other, one, vf_select(own < other, zero - one, zero));
        vf_store_n(dz + i, vf_load_n(dz + i, n) + own * (sign - middle) * factor, n);
    });
}

void BD_ISA_NAME(bd_divergence_row)(bd_divergence_row *row)
{
    const softened s = soften(row->logits, row->vocabulary, row->temperature);
    const softened t = soften(row->teacher, row->vocabulary, row->temperature);
    switch (row->kind) {
    case BD_DIVERGENCE_NONE:
        row->value = 0;
        break;
    case BD_DIVERGENCE_FORWARD_KL:
        forward_kl(row, s, t);
        break;
    case BD_DIVERGENCE_REVERSE_KL:
        reverse_kl(row, s, t);
        break;
    case BD_DIVERGENCE_JENSEN_SHANNON:
        jensen_shannon(row, s, t);
        break;
    case BD_DIVERGENCE_TAIL_BUCKET:
        tail_bucket(row, s, t);
        break;
    case BD_DIVERGENCE_TOTAL_VARIATION:
        total_variation(row, s, t);
        break;
    }
}
