#include "train/metrics.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "format/json.h"

// --- weighted values -----------------------------------------------------------------------------

static double bounded_denominator(bd_weighted w)
{
    double d = w.denominator + w.eps;
    return d < w.min_denominator ? w.min_denominator : d;
}

double bd_weighted_value(bd_weighted weighted)
{
    double d = bounded_denominator(weighted);
    return d > weighted.threshold ? weighted.sum / d : 0;
}

double bd_weighted_factor(bd_weighted weighted)
{
    double d = bounded_denominator(weighted);
    return d > weighted.threshold ? 1 / d : 0;
}

static bool same_bounds(bd_weighted a, bd_weighted b)
{
    return a.eps == b.eps && a.min_denominator == b.min_denominator && a.threshold == b.threshold;
}

bool bd_weighted_add(bd_weighted *total, bd_weighted part, const char *name, bd_error *err)
{
    if (!same_bounds(*total, part))
        return bd_fail(
            err,
            "metric %s: denominator bounds differ: eps %g, minimum %g, threshold %g after "
            "eps %g, minimum %g, threshold %g",
            name, part.eps, part.min_denominator, part.threshold, total->eps,
            total->min_denominator, total->threshold);
    total->sum += part.sum;
    total->denominator += part.denominator;
    return true;
}

// --- metrics by name -----------------------------------------------------------------------------

bd_metric bd_metric_weighted(const char *name, bd_weighted value)
{
    bd_metric metric = {.kind = BD_METRIC_WEIGHTED, .value = value};
    snprintf(metric.name, sizeof metric.name, "%s", name);
    return metric;
}

bd_metric bd_metric_scalar(const char *name, double value)
{
    bd_metric metric = {.kind = BD_METRIC_SCALAR, .value = {.sum = value, .denominator = 1}};
    snprintf(metric.name, sizeof metric.name, "%s", name);
    return metric;
}

double bd_metric_value(const bd_metric *metric)
{
    return metric ? bd_weighted_value(metric->value) : 0;
}

static const char *kind_name(bd_metric_kind kind)
{
    return kind == BD_METRIC_WEIGHTED ? "weighted" : "scalar";
}

const bd_metric *bd_metrics_find(const bd_metrics *metrics, const char *name)
{
    for (int i = 0; i < metrics->count; i++)
        if (!strcmp(metrics->items[i].name, name))
            return &metrics->items[i];
    return NULL;
}

bool bd_metrics_add(bd_metrics *metrics, const bd_metric *value, bd_error *err)
{
    if (!(value->value.denominator >= 0 && isfinite(value->value.denominator)))
        return bd_fail(err, "metric %s: denominator %g, a number >= 0 expected", value->name,
                       value->value.denominator);
    bd_metric *total = (bd_metric *)bd_metrics_find(metrics, value->name);
    if (!total) {
        if (metrics->count == BD_MOST_METRICS)
            return bd_fail(err, "metric %s: one name too many, at most %d expected", value->name,
                           BD_MOST_METRICS);
        metrics->items[metrics->count++] = *value;
        return true;
    }
    if (total->kind != value->kind)
        return bd_fail_as(err, BD_ERROR_TYPE, "metric %s: a %s value after %s ones", value->name,
                          kind_name(value->kind), kind_name(total->kind));
    return bd_weighted_add(&total->value, value->value, value->name, err);
}

// --- in a checkpoint -----------------------------------------------------------------------------

json_t *bd_metrics_to_json(const bd_metrics *metrics)
{
    json_t *object = json_object();
    for (int i = 0; i < metrics->count; i++) {
        const bd_metric *m = &metrics->items[i];
        // A sum that is not a number becomes null: JSON has no word for it.
        json_object_set_new(
            object, m->name,
            json_pack("{s:s, s:o, s:f, s:f, s:f, s:f}", "kind", kind_name(m->kind), "sum",
                      isfinite(m->value.sum) ? json_real(m->value.sum) : json_null(), "denominator",
                      m->value.denominator, "eps", m->value.eps, "min_denominator",
                      m->value.min_denominator, "threshold", m->value.threshold));
    }
    return object;
}

static bool metric_from_json(json_t *entry, const char *where, const char *name, bd_metric *metric,
                             bd_error *err)
{
    if (!json_is_object(entry))
        return bd_fail(err, "%s: metric %s: an object expected", where, name);
    const char *kind = bd_json_text(entry, where, "kind", err);
    if (!kind)
        return false;
    if (strcmp(kind, "weighted") && strcmp(kind, "scalar"))
        return bd_fail(err, "%s: metric %s: kind \"%s\", weighted or scalar expected", where, name,
                       kind);
    bd_weighted w = {.sum = NAN};
    const double most = 1e300;
    if (bd_json_has(entry, "sum") && !bd_json_number(entry, where, "sum", -most, most, &w.sum, err))
        return false;
    if (!bd_json_number(entry, where, "denominator", 0, most, &w.denominator, err) ||
        !bd_json_number(entry, where, "eps", 0, most, &w.eps, err) ||
        !bd_json_number(entry, where, "min_denominator", 0, most, &w.min_denominator, err) ||
        !bd_json_number(entry, where, "threshold", 0, most, &w.threshold, err))
        return false;
    *metric = bd_metric_weighted(name, w);
    metric->kind = strcmp(kind, "weighted") ? BD_METRIC_SCALAR : BD_METRIC_WEIGHTED;
    return true;
}

bool bd_metrics_from_json(json_t *object, const char *where, bd_metrics *metrics, bd_error *err)
{
    bd_metrics read = {0};
    const char *name;
    json_t *entry;
    json_object_foreach(object, name, entry)
    {
        if (read.count == BD_MOST_METRICS || strlen(name) >= BD_METRIC_NAME)
            return bd_fail(err, "%s: metric %.60s: at most %d names of at most %d bytes expected",
                           where, name, BD_MOST_METRICS, BD_METRIC_NAME - 1);
        if (!metric_from_json(entry, where, name, &read.items[read.count], err))
            return false;
        read.count++;
    }
    *metrics = read;
    return true;
}
