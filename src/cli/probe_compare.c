#include "cli/probe_compare.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* What the cases give; everything else in a case file is expected. `grad.` is an input of `clip`
 * only. */
static bool is_input(const bd_probe *probe, const char *name)
{
    static const char *const model[] = {"inputs",   "targets", "positions",
                                        "segments", "weights", NULL};
    static const char *const losses[] = {"logits", "targets", "weights", NULL};
    static const char *const distill[] = {"student_logits", "teacher_logits", "targets", "weights",
                                          NULL};
    static const char *const rollout[] = {"tokens", "positions", "segments", "completion", NULL};
    static const char *const on_policy[] = {"tokens",     "positions", "segments", "completion",
                                            "corruption", "loss_mask", NULL};
    static const char *const adamw[] = {"param0", "grads", NULL};
    static const char *const step[] = {"input_ids",  "loss_mask",      "anchors",        "keep",
                                       "aux_hidden", "teacher_logits", "teacher_hidden", NULL};
    const char *const *list = losses;
    if (json_object_get(probe->json, "type")) {
        const char *last = strrchr(name, '/');
        const char *base = last ? last + 1 : name;
        if (!strcmp(base, "loss_mask") || !strcmp(base, "uniforms"))
            return true;
        list = step;
    } else if (bd_probe_has(probe, "inputs"))
        list = model;
    else if (bd_probe_has(probe, "tokens"))
        list = bd_probe_has(probe, "corruption") ? on_policy : rollout;
    else if (bd_probe_has(probe, "student_logits"))
        list = distill;
    else if (bd_probe_has(probe, "param0"))
        list = adamw;
    else if (bd_probe_has(probe, "grad.0"))
        return strncmp(name, "grad.", 5) == 0;
    for (; *list; list++)
        if (!strcmp(*list, name))
            return true;
    return false;
}

static const bd_tensor *computed(const bd_probe *probe, const char *name)
{
    for (int64_t i = 0; i < probe->count; i++)
        if (!strcmp(probe->tensors[i].name, name))
            return &probe->tensors[i];
    return NULL;
}

static void fail(bd_probe_result *result, const char *what, const char *detail)
{
    if (result->failures++ == 0)
        snprintf(result->first_failure, sizeof result->first_failure, "%s: %s", what, detail);
}

static double value_at(const bd_tensor *tensor, int64_t i)
{
    float single;
    switch (tensor->dtype) {
    case BD_F64: {
        double wide;
        memcpy(&wide, (const char *)tensor->data + 8 * i, 8);
        return wide;
    }
    case BD_I64: {
        int64_t wide;
        memcpy(&wide, (const char *)tensor->data + 8 * i, 8);
        return (double)wide;
    }
    case BD_I32: {
        int32_t whole;
        memcpy(&whole, (const char *)tensor->data + 4 * i, 4);
        return whole;
    }
    case BD_U8:
    case BD_BOOL:
        return ((const uint8_t *)tensor->data)[i];
    default:
        bd_to_f32(tensor->dtype,
                  (const char *)tensor->data + (size_t)i * bd_dtype_size(tensor->dtype), &single,
                  1);
        return (double)single;
    }
}

static bool same_shape(const bd_tensor *a, const bd_tensor *b)
{
    if (a->rank != b->rank)
        return false;
    for (int i = 0; i < a->rank; i++)
        if (a->shape[i] != b->shape[i])
            return false;
    return true;
}

static void compare_tensor(const bd_probe *probe, const bd_tensor *want, bd_probe_result *result)
{
    result->compared++;
    char text[200];
    const bd_tensor *got = computed(probe, want->name);
    if (!got)
        return fail(result, want->name, "absent");
    if (!same_shape(want, got))
        return fail(result, want->name, "another shape");
    bool exact = !bd_dtype_is_float(want->dtype);
    double worst = 0, scale = 0;
    for (int64_t i = 0; i < want->count; i++) {
        double w = value_at(want, i), g = value_at(got, i);
        if (isfinite(w) != isfinite(g))
            return fail(result, want->name, "finite in one, not in the other");
        if (!isfinite(w))
            continue;
        worst = fmax(worst, fabs(w - g));
        scale = fmax(scale, fabs(w));
    }
    // README of block-diffusion: bf16 moments after whole updates may be one bf16 step apart.
    bool stored_moment = want->dtype == BD_BF16 && bd_probe_has(probe, "inputs");
    bool moment_bits = want->dtype == BD_BF16 && !stored_moment;
    json_t *tolerance = json_object_get(probe->json, "tolerance");
    double relative = stored_moment ? 1.0 / 128 : bd_probe_option(probe, tolerance, "rel", 1e-4);
    double limit =
        relative * scale + bd_probe_option(probe, tolerance, "abs", scale > 0 ? 0 : 1e-6);
    if (exact || moment_bits)
        limit = 0;
    if (!exact && scale > 0 && !stored_moment)
        result->worst = fmax(result->worst, worst / scale);
    if (worst <= limit)
        return;
    snprintf(text, sizeof text, "differs by %.3g, largest value %.3g", worst, scale);
    fail(result, want->name, text);
}

/* Scalars beside the tensors that a probe must reproduce. */
static void compare_number(const bd_probe *probe, const char *name, json_t *want,
                           bd_probe_result *result)
{
    result->compared++;
    json_t *got = json_object_get(probe->answer, name);
    if (!got)
        return fail(result, name, "absent");
    if (!json_is_number(want)) {
        if (!json_equal(want, got))
            fail(result, name, "another value");
        return;
    }
    json_t *tolerance = json_object_get(probe->json, "tolerance");
    double w = json_number_value(want), g = json_number_value(got);
    double difference = fabs(w - g);
    double limit = bd_probe_option(probe, tolerance, "rel", 1e-4) * fabs(w) +
                   bd_probe_option(probe, tolerance, "abs", w == 0 ? 1e-6 : 0);
    if (fabs(w) > 1e-6)
        result->worst = fmax(result->worst, difference / fabs(w));
    char text[200];
    if (difference <= limit)
        return;
    snprintf(text, sizeof text, "%.9g, wanted %.9g", g, w);
    fail(result, name, text);
}

static void compare_list(const char *name, json_t *want, json_t *got, double relative,
                         bd_probe_result *result);

/* Every field of `want` must be in `got`, numbers within the tolerance, the rest equal. */
static void compare_value(const char *name, json_t *want, json_t *got, double relative,
                          bd_probe_result *result)
{
    if (json_is_object(want)) {
        const char *key;
        json_t *value;
        json_object_foreach(want, key, value)
        {
            // Told in chat.json for the reader: what another template engine prints.
            if (strcmp(key, "other_engine_text") != 0)
                compare_value(key, value, json_object_get(got, key), relative, result);
        }
        return;
    }
    if (json_is_array(want)) {
        compare_list(name, want, got, relative, result);
        return;
    }
    if (json_is_real(want) && json_is_number(got)) {
        double w = json_number_value(want), difference = fabs(w - json_number_value(got));
        if (fabs(w) > 1e-6)
            result->worst = fmax(result->worst, difference / fabs(w));
        if (!(difference <= relative * fabs(w) + 1e-9))
            fail(result, name, "another number");
    } else if (!json_equal(want, got)) {
        fail(result, name, got ? "another value" : "absent");
    }
}

static void compare_list(const char *name, json_t *want, json_t *got, double relative,
                         bd_probe_result *result)
{
    if (json_array_size(want) != json_array_size(got))
        return fail(result, name, "another length");
    size_t i;
    json_t *value;
    json_array_foreach(want, i, value)
        compare_value(name, value, json_array_get(got, i), relative, result);
}

/* Tables: the answer has the case's result fields under the same names; `error: true` where
 * refused. */
static void compare_cases(const bd_probe *probe, const char *list, bd_probe_result *result)
{
    json_t *wanted = json_object_get(probe->json, list),
           *found = json_object_get(probe->answer, list);
    size_t i;
    json_t *want;
    if (json_array_size(wanted) != json_array_size(found))
        return fail(result, list, "another number of cases");
    json_array_foreach(wanted, i, want)
    {
        result->compared++;
        json_t *got = json_array_get(found, i);
        char name[80];
        snprintf(name, sizeof name, "%s[%zu]", list, i);
        if (json_is_true(json_object_get(want, "error")) !=
            json_is_true(json_object_get(got, "error"))) {
            fail(result, name, "refused in one, not in the other");
            continue;
        }
        // The answer holds results only, so each of its fields must be what the case says.
        const char *key;
        json_t *value;
        if (json_object_size(got) == 0)
            fail(result, name, "no result");
        json_object_foreach(got, key, value)
        {
            int64_t before = result->failures;
            compare_value(key, json_object_get(want, key), value, 1e-6, result);
            if (result->failures > before && before == 0 && strlen(result->first_failure) < 400) {
                char text[1200];
                snprintf(text, sizeof text, "%s %s", name, result->first_failure);
                snprintf(result->first_failure, sizeof result->first_failure, "%.1000s", text);
            }
        }
    }
}

void bd_probe_compare(const bd_probe *probe, bd_probe_result *result)
{
    static const char *const scalars[] = {
        "loss_sum",      "weight_sum",    "loss",         "grad_all_zero",
        "micro_sums",    "micro_weights", "weight_total", "mean_of_micro_means",
        "grad_norm",     "norm",          "log",          "confident_commits",
        "total_commits", "soft_sum",      "hard_sum",     "total_sum",
        "argmax",        "trace"};
    static const char *const lists[] = {"target_layer_ids", "lambda_base", "draft_cases",
                                        "speculative", "decode_only"};
    for (int64_t i = 0; probe->inputs && i < bd_safetensors_count(probe->inputs); i++) {
        const bd_tensor *tensor = bd_safetensors_at(probe->inputs, i);
        if (!is_input(probe, tensor->name))
            compare_tensor(probe, tensor, result);
    }
    json_t *expected = json_object_get(probe->json, "expected");
    const char *key;
    json_t *value;
    json_object_foreach(expected, key, value) compare_number(probe, key, value, result);
    for (size_t i = 0; i < sizeof scalars / sizeof *scalars; i++) {
        value = json_object_get(probe->json, scalars[i]);
        if (json_is_array(value)) {
            result->compared++;
            compare_value(scalars[i], value, json_object_get(probe->answer, scalars[i]), 1e-4,
                          result);
        } else if (value) {
            compare_number(probe, scalars[i], value, result);
        }
    }
    if (!json_object_get(probe->json, "type") && json_object_get(probe->json, "cases"))
        compare_cases(probe, "cases", result);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        if (json_object_get(probe->json, lists[i]))
            compare_cases(probe, lists[i], result);
    if (result->compared == 0)
        fail(result, probe->path, "nothing to compare");
}

void bd_probe_totals_add(bd_probe_totals *totals, const char *family, const char *path,
                         const bd_probe_result *result, const char *skipped)
{
    int64_t i = 0;
    while (i < totals->count && strcmp(totals->family[i].name, family) != 0)
        i++;
    if (i == BD_PROBE_FAMILIES)
        return;
    if (i == totals->count) {
        totals->count++;
        snprintf(totals->family[i].name, sizeof totals->family[i].name, "%s", family);
    }
    if (skipped) {
        totals->family[i].skipped++;
        snprintf(totals->family[i].skipped_why, sizeof totals->family[i].skipped_why, "%s",
                 skipped);
        return;
    }
    totals->family[i].cases++;
    totals->family[i].worst = fmax(totals->family[i].worst, result->worst);
    if (result->failures) {
        totals->family[i].failed_cases++;
        fprintf(stderr, "FAILED %s: %s%s\n", path, result->first_failure,
                result->failures > 1 ? " (and more)" : "");
    }
}

bool bd_probe_totals_print(const bd_probe_totals *totals)
{
    int64_t failed = 0, cases = 0;
    printf("%-14s %6s %8s %14s\n", "family", "cases", "failed", "worst relative");
    for (int64_t i = 0; i < totals->count; i++) {
        if (totals->family[i].cases)
            printf("%-14s %6lld %8lld %14.2e\n", totals->family[i].name,
                   (long long)totals->family[i].cases, (long long)totals->family[i].failed_cases,
                   totals->family[i].worst);
        if (totals->family[i].skipped)
            printf("%-14s %6lld skipped: %s\n", totals->family[i].name,
                   (long long)totals->family[i].skipped, totals->family[i].skipped_why);
        failed += totals->family[i].failed_cases;
        cases += totals->family[i].cases;
    }
    return failed == 0 && cases > 0;
}
