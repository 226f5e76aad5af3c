#include "draft/lambda.h"

#include <math.h>

double bd_draft_lambda(int64_t step, int64_t total, double start, double ratio)
{
    if (total <= 0)
        total = 1;
    double decay = fmax(1, trunc((double)total * ratio));
    double lambda = start * (1 - fmin((double)step / decay, 1));
    return fmin(fmax(lambda, 0), 1);
}
