#include "train/schedule.h"

#include <math.h>
#include <string.h>

static const char *const names[BD_SCHEDULE_COUNT] = {"constant", "linear", "cosine"};

const char *bd_schedule_name(bd_schedule_kind kind)
{
    return names[kind];
}

bool bd_schedule_from_name(const char *name, bd_schedule_kind *kind, bd_error *err)
{
    for (int i = 0; i < BD_SCHEDULE_COUNT; i++) {
        if (!strcmp(names[i], name)) {
            *kind = (bd_schedule_kind)i;
            return true;
        }
    }
    return bd_fail(err, "schedule: \"%s\", constant, linear or cosine expected", name);
}

bool bd_schedule_check(const bd_schedule *schedule, bd_error *err)
{
    if (!(schedule->peak >= 0 && isfinite(schedule->peak)))
        return bd_fail(err, "learning rate: %g, a number >= 0 expected", schedule->peak);
    if (!(schedule->final_fraction >= 0 && schedule->final_fraction <= 1))
        return bd_fail(err, "final_fraction: %g, 0 to 1 expected", schedule->final_fraction);
    if (schedule->total < 0 || schedule->warmup < 0 || schedule->warmup > schedule->total)
        return bd_fail(err, "warmup: %lld steps of %lld, 0 to all of them expected",
                       (long long)schedule->warmup, (long long)schedule->total);
    return true;
}

double bd_schedule_left(bd_schedule_kind kind, double x)
{
    switch (kind) {
    case BD_SCHEDULE_LINEAR:
        return 1 - x;
    case BD_SCHEDULE_COSINE:
        return 0.5 * (1 + cos(M_PI * x));
    default:
        return 1;
    }
}

double bd_schedule_rate(const bd_schedule *schedule, int64_t step)
{
    if (step >= schedule->total)
        return 0;
    if (step < schedule->warmup)
        return schedule->peak * (double)step / (double)schedule->warmup;
    if (schedule->kind == BD_SCHEDULE_CONSTANT)
        return schedule->peak;
    int64_t walked = step - schedule->warmup, way = schedule->total - schedule->warmup;
    double x; // 0 at the peak, 1 at the end
    if (schedule->endpoint)
        x = way > 1 ? (double)walked / (double)(way - 1) : 1;
    else
        x = (double)walked / (double)way;
    double left = bd_schedule_left(schedule->kind, x);
    return schedule->peak * (schedule->final_fraction + (1 - schedule->final_fraction) * left);
}
