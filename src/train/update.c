#include "train/update.h"

#include <assert.h>
#include <math.h>
#include <string.h>

#include "base/profile.h"

static bool add_micro_batch(bd_update *update, const bd_loss *loss, int64_t micro, bd_error *err)
{
    if (micro == 0)
        update->loss = loss->loss;
    else if (!bd_weighted_add(&update->loss, loss->loss, "loss", err))
        return false;
    for (int i = 0; i < loss->metric_count; i++) {
        assert(strcmp(loss->metrics[i].name, "loss")); // it would be added to the loss itself
        if (!bd_metrics_add(&update->metrics, &loss->metrics[i], err))
            return false;
    }
    update->tokens += loss->tokens;
    return true;
}

bool bd_update_accumulate(const bd_task *task, int64_t step, int64_t micro_batches,
                          bd_dtype compute, bd_arena *arena, bd_update *update, bd_error *err)
{
    static bd_profile_site batch = {.name = "batch", .kind = BD_PROFILE_PHASE};
    static bd_profile_site forward = {.name = "forward", .kind = BD_PROFILE_PHASE};
    *update = (bd_update){.bad_micro = -1};
    // Also where nothing will be added: every parameter ends the step with an allocated gradient.
    bd_parameters_zero_gradients(task->parameters);
    for (int64_t micro = 0; micro < micro_batches; micro++) {
        bd_profile_begin(&batch);
        bool ok = task->next(task->self, step, micro, err);
        bd_profile_end(&batch, 0, 0);
        if (!ok)
            return false;
        size_t mark = bd_arena_mark(arena);
        bd_tape tape = bd_tape_begin(arena, compute, true);
        bd_loss loss = {0};
        bd_profile_begin(&forward);
        ok = task->forward(task->self, &tape, &loss, err);
        bd_profile_end(&forward, 0, 0);
        bd_arena_release(arena, mark);
        if (!ok)
            return false;
        if (!isfinite(loss.loss.sum) || !isfinite(loss.loss.denominator)) {
            update->bad_micro = micro;
            return bd_fail(err, "step %lld, micro-batch %lld: the loss is %g over weight %g",
                           (long long)step, (long long)micro, loss.loss.sum, loss.loss.denominator);
        }
        if (!add_micro_batch(update, &loss, micro, err))
            return false;
    }
    return true;
}

static const char *first_bad_gradient(const bd_parameters *parameters)
{
    for (int64_t i = 0; i < parameters->count; i++)
        for (int64_t j = 0; j < parameters->items[i]->count; j++)
            if (!isfinite(parameters->items[i]->gradient[j]))
                return parameters->items[i]->name;
    return "their sum of squares";
}

bool bd_update_run(const bd_task *task, bd_optimizer *optimizer, int64_t step,
                   int64_t micro_batches, double learning_rate, bd_dtype compute, bd_arena *arena,
                   bd_update *update, bd_error *err)
{
    if (!bd_update_accumulate(task, step, micro_batches, compute, arena, update, err))
        return false;
    update->learning_rate = learning_rate;
    static bd_profile_site site = {.name = "update", .kind = BD_PROFILE_PHASE};
    bd_profile_begin(&site);
    update->gradient_norm = bd_optimizer_step(optimizer, update->loss, learning_rate);
    bd_profile_end(&site, 0, 0);
    if (isfinite(update->gradient_norm))
        return true;
    update->bad_gradient = true;
    return bd_fail(err, "step %lld: the gradient norm is %g (first in %s); loss %g, weight %g",
                   (long long)step, update->gradient_norm, first_bad_gradient(task->parameters),
                   bd_weighted_value(update->loss), update->loss.denominator);
}
