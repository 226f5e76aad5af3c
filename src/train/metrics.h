/* metrics.h - numbers that stay sums until the very end.
 *
 * Nobody averages early: a weighted value travels as (sum, denominator) from a micro-batch to the
 * log, to the evaluation and to the division of the gradients, and is divided once. A plain number
 * is averaged over the batches it was reported for. Which of the two a name is, its first value
 * decides.
 *
 *     bd_metrics window = {0};
 *     bd_metric accuracy = bd_metric_weighted("accuracy", (bd_weighted){.sum = 3, .denominator =
 * 4}); if (!bd_metrics_add(&window, &accuracy, &err)) ... double value =
 * bd_metric_value(bd_metrics_find(&window, "accuracy"));     // sum / denominator
 *
 * Source: block-diffusion D-01, D-13 to D-15; draft-family 5.2 for `threshold`.
 */
#ifndef BD_TRAIN_METRICS_H
#define BD_TRAIN_METRICS_H

#include <jansson.h>

#include "base/error.h"

typedef struct {
    double sum, denominator; /* denominator >= 0; may be fractional */
    /* Bounds, applied once, after everything has been added up. 0: none. */
    double eps;             /* added to the denominator (a denominator of 0 is then no longer 0) */
    double min_denominator; /* then the denominator is at least this */
    double threshold; /* then it must be above this: otherwise the value is 0, nothing is trained */
} bd_weighted;

/* sum / bounded denominator, or 0. */
double bd_weighted_value(bd_weighted weighted);

/* What a sum is multiplied by: 1 / bounded denominator, or 0. Gradients use it. */
double bd_weighted_factor(bd_weighted weighted);

/* total += part, where `total` started as the first part. Bounds that differ from the total's are
 * an error (BD_ERROR_VALUE) that names `name`. */
bool bd_weighted_add(bd_weighted *total, bd_weighted part, const char *name, bd_error *err);

enum { BD_MOST_METRICS = 40, BD_METRIC_NAME = 48 };

typedef enum { BD_METRIC_WEIGHTED, BD_METRIC_SCALAR } bd_metric_kind;

/* A reported value, or the total of several of one name. A scalar is kept as (sum, how many). */
typedef struct {
    char name[BD_METRIC_NAME];
    bd_metric_kind kind;
    bd_weighted value;
} bd_metric;

bd_metric bd_metric_weighted(const char *name, bd_weighted value);
bd_metric bd_metric_scalar(const char *name, double value);
double bd_metric_value(const bd_metric *metric); /* 0 for NULL: no values reduce to 0 */

/* Totals by name, in the order in which names first came. Starts as {0}. */
typedef struct {
    bd_metric items[BD_MOST_METRICS];
    int count;
} bd_metrics;

/* Add a value to the total of its name. A scalar where weighted values came before, or the other
 * way round, is a BD_ERROR_TYPE; differing bounds, a denominator that is no number >= 0, and too
 * many names are a BD_ERROR_VALUE. */
bool bd_metrics_add(bd_metrics *metrics, const bd_metric *value, bd_error *err);
const bd_metric *bd_metrics_find(const bd_metrics *metrics, const char *name);

/* Exact, for a checkpoint: {"name": {"kind": ..., "sum": ..., ...}}. `where` names the file in
 * errors. */
json_t *bd_metrics_to_json(const bd_metrics *metrics);
bool bd_metrics_from_json(json_t *object, const char *where, bd_metrics *metrics, bd_error *err);

#endif
