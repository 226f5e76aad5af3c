#include "draft/doctor.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "draft/leak.h"

// --- the rule ------------------------------------------------------------------------------------

bd_paired bd_paired_make(const int32_t *accepted, const int32_t *other, int64_t anchors)
{
    bd_paired p = {.anchors = anchors};
    if (anchors == 0)
        return p;
    double a = 0, b = 0, squares = 0, n = (double)anchors;
    for (int64_t i = 0; i < anchors; i++) {
        a += accepted[i];
        b += other[i];
    }
    p.acceptance = 1 + a / n;
    p.other = 1 + b / n;
    p.difference = (b - a) / n;
    for (int64_t i = 0; i < anchors; i++) {
        double d = (double)(other[i] - accepted[i]) - p.difference;
        squares += d * d;
    }
    p.error = anchors > 1 ? sqrt(squares / (n * (n - 1))) : 0;
    return p;
}

static bool is_clear(double from, double to, double error)
{
    double difference = to - from;
    return (to > 1.15 * from && difference > 0.2 && difference > 3 * error) ||
           (to > 1.04 * from && difference > 0.08 && difference > 5 * error);
}

bool bd_paired_is_larger(const bd_paired *p)
{
    return p->anchors >= BD_DOCTOR_LEAST_ANCHORS && p->other >= BD_DOCTOR_LEAST_ACCEPTANCE &&
           is_clear(p->acceptance, p->other, p->error);
}

bool bd_paired_is_smaller(const bd_paired *p)
{
    return p->anchors >= BD_DOCTOR_LEAST_ANCHORS && is_clear(p->other, p->acceptance, p->error);
}

/* Might be better, but it would take more anchors to know. */
static bool may_be_larger(const bd_paired *p)
{
    return p->difference > 0.05 && p->difference > 2.5 * p->error;
}

static bd_verdict verdict_of(const bd_paired *p)
{
    if (bd_paired_is_larger(p))
        return BD_VERDICT_SHADOW;
    if (may_be_larger(p))
        return BD_VERDICT_PERHAPS;
    return p->difference >= -2 * p->error ? BD_VERDICT_SAME : BD_VERDICT_WELL;
}

bd_doctor bd_doctor_default(void)
{
    return (bd_doctor){0};
}

// --- what is seen without measuring --------------------------------------------------------------

static bd_finding *add(bd_diagnosis *d, bd_part part, bd_verdict verdict)
{
    assert(d->count < BD_MOST_FINDINGS); // one round of hypotheses and a few lines
    bd_finding *f = &d->items[d->count++];
    *f = (bd_finding){.part = part, .verdict = verdict};
    d->faults += verdict == BD_VERDICT_FAULT;
    return f;
}

#define WHAT(f, ...) snprintf((f)->what, sizeof(f)->what, __VA_ARGS__)
#define FIX(f, ...)  snprintf((f)->fix, sizeof(f)->fix, __VA_ARGS__)

static void look_at_vocabulary(const bd_trial *t, bd_diagnosis *d)
{
    long long stated = t->patient->vocabulary, real = t->target->config.vocabulary;
    bd_finding *f = add(d, BD_PART_VOCABULARY, stated == real ? BD_VERDICT_WELL : BD_VERDICT_FAULT);
    WHAT(f, "%lld tokens, the target has %lld", stated, real);
    if (stated != real)
        FIX(f, "config.json: set \"vocab_size\" to %lld", real);
}

static void look_at_taps(const bd_trial *t, bd_diagnosis *d)
{
    const bd_draft_config *config = &t->draft->config;
    long long layers = t->target->config.layers;
    if (!t->patient->taps_lowered)
        return;
    bd_finding *f = add(d, BD_PART_TAPS, BD_VERDICT_FAULT);
    WHAT(f, "layer %lld of a target with layers 0 to %lld", layers, layers - 1);
    FIX(f, "config.json: lower \"target_layer_ids\" by one; examined with [");
    for (int64_t i = 0; i < config->tap_count; i++) {
        size_t used = strlen(f->fix);
        snprintf(f->fix + used, sizeof f->fix - used, "%s%lld%s", i ? ", " : "",
                 (long long)config->taps[i], i + 1 < config->tap_count ? "" : "]");
    }
}

static bool look_for_leaks(const bd_trial *t, bd_diagnosis *d, bd_error *err)
{
    const bd_trial_text *longest = &t->texts[0];
    for (int64_t i = 0; i < t->text_count; i++)
        if (t->texts[i].count > longest->count)
            longest = &t->texts[i];
    bd_leak leak;
    if (!bd_draft_leak(t->draft, longest->tokens, longest->count, &leak, err))
        return false;
    bd_finding *f = add(d, BD_PART_LEAK, leak.count ? BD_VERDICT_FAULT : BD_VERDICT_WELL);
    WHAT(f, "%lld of %lld values move with hidden tokens", (long long)leak.count,
         (long long)leak.compared);
    if (leak.count)
        FIX(f, "a block sees what it must not: %s", leak.text);
    return true;
}

/* A tensor that programs may load in place of the target's, though the draft is no better for it. */
static void look_at_tables(const bd_patient *p, bd_diagnosis *d, const bd_usage *usage)
{
    const bd_parameter *tables[] = {usage->head == BD_HEAD_OWN ? NULL : p->head,
                                    usage->own_embedding ? NULL : p->embedding};
    for (int i = 0; i < 2; i++) {
        if (!tables[i])
            continue;
        bd_finding *f = add(d, BD_PART_HEAD, BD_VERDICT_FAULT);
        WHAT(f, "\"%.50s\" is not the target's", tables[i]->name);
        FIX(f, "remove \"%.50s\" from the draft's folder: it was trained with the target's",
            tables[i]->name);
    }
}

// --- rounds --------------------------------------------------------------------------------------

typedef struct {
    bd_hypotheses list;
    bd_paired paired[BD_MOST_HYPOTHESES];
    int64_t best; // of the list: clearly larger, and the largest; -1: none
} round_result;

static void run_round(const bd_doctor *doctor, bd_trial *t, const bd_usage *usage, round_result *r)
{
    bd_hypotheses_make(t->patient, usage, doctor->masks, doctor->mask_count, &r->list);
    t->usages[0] = *usage;
    t->usage_count = 1 + r->list.count;
    for (int64_t i = 0; i < r->list.count; i++) {
        t->usages[i + 1] = *usage;
        bd_hypothesis_apply(&r->list.items[i], &t->usages[i + 1]);
    }
    bd_progress *bar =
        doctor->progress ? doctor->progress("drafting", t->text_count * t->usage_count) : NULL;
    bd_trial_run(t, bar);
    if (bar)
        bd_progress_end(bar);
    r->best = -1;
    for (int64_t i = 0; i < r->list.count; i++) {
        r->paired[i] = bd_paired_make(t->accepted, t->accepted + (i + 1) * t->anchors, t->anchors);
        if (bd_paired_is_larger(&r->paired[i]) &&
            (r->best < 0 || r->paired[i].other > r->paired[r->best].other))
            r->best = i;
    }
}

static void add_measured(bd_diagnosis *d, const round_result *r, int64_t i, int number,
                         bd_verdict verdict)
{
    const bd_hypothesis *h = &r->list.items[i];
    bd_finding *f = add(d, h->part, verdict);
    WHAT(f, "%s", h->what);
    if (verdict == BD_VERDICT_FAULT)
        FIX(f, "%s", h->fix);
    f->measured = true;
    f->paired = r->paired[i];
    f->round = number;
}

/* All of the first round; of later ones what they find. */
static void add_round(bd_diagnosis *d, const round_result *r, int number)
{
    for (int64_t i = 0; i < r->list.count; i++) {
        if (i == r->best)
            add_measured(d, r, i, number, BD_VERDICT_FAULT);
        else if (number == 0)
            add_measured(d, r, i, number, verdict_of(&r->paired[i]));
    }
}

/* The row that stands for the mask, beside what the first round made of other rows: one next to
 * zero was lost, unless every other token in its place is clearly worse, for then the draft was
 * trained with it. */
static void look_at_mask(const bd_trial *t, bd_diagnosis *d, const round_result *first)
{
    const bd_draft_config *config = &t->draft->config;
    double ratio = bd_draft_mask_norm_ratio(t->target, config->mask_id, t->arena);
    int64_t lost = -1; // the token that does best in its place
    for (int64_t i = 0; i < first->list.count && ratio < 0.01; i++) {
        const bd_hypothesis *h = &first->list.items[i];
        if (h->part == BD_PART_MASK && !h->changed.zero_mask &&
            !bd_paired_is_smaller(&first->paired[i]) &&
            (lost < 0 || first->paired[i].other > first->paired[lost].other))
            lost = i;
    }
    for (int64_t i = 0; i < d->count && lost >= 0;
         i++) // another token helps, but is not the remedy
        if (d->items[i].part == BD_PART_MASK && d->items[i].verdict == BD_VERDICT_FAULT) {
            d->items[i].verdict = BD_VERDICT_SHADOW;
            d->items[i].fix[0] = '\0';
            d->faults--;
        }
    bd_finding *f = add(d, BD_PART_MASK, lost >= 0 ? BD_VERDICT_FAULT : BD_VERDICT_WELL);
    WHAT(f, "row %lld has %.3f of the median norm", (long long)config->mask_id, ratio);
    if (lost >= 0)
        FIX(f,
            "row %lld of the target's embedding is next to zero, and the draft was not trained "
            "with that: restore the row (with token %lld's in its place: %.3f)",
            (long long)config->mask_id, (long long)first->list.items[lost].changed.mask_id,
            first->paired[lost].other);
}

static void look_at_acceptance(bd_diagnosis *d)
{
    if (d->mended >= BD_DOCTOR_NOTHING)
        return;
    bd_finding *f = add(d, BD_PART_DRAFT, BD_VERDICT_FAULT);
    WHAT(f, "next to nothing is accepted");
    FIX(f, d->faults > 1 ? "mend the faults above and examine again"
                         : "not trained, or for another target: nothing tried helps");
}

static void rounds(const bd_doctor *doctor, bd_trial *t, bd_diagnosis *d)
{
    enum { ROUNDS = 4 };
    bd_usage usage = bd_usage_of(t->patient);
    round_result r, first;
    for (int number = 0; number < ROUNDS; number++) {
        run_round(doctor, t, &usage, &r);
        add_round(d, &r, number);
        double acceptance = bd_paired_make(t->accepted, t->accepted, t->anchors).acceptance;
        d->mended = r.best < 0 ? acceptance : r.paired[r.best].other;
        if (number == 0) {
            first = r;
            d->acceptance = acceptance;
        }
        if (r.best < 0)
            break;
        bd_hypothesis_apply(&r.list.items[r.best], &usage);
    }
    look_at_mask(t, d, &first);
    look_at_tables(t->patient, d, &usage);
}

bool bd_doctor_examine(const bd_doctor *doctor, bd_diagnosis *out, bd_error *err)
{
    bd_trial trial;
    *out = (bd_diagnosis){0};
    if (!bd_trial_begin(&trial, doctor->patient, doctor->texts, doctor->text_count, err))
        return false;
    out->anchors = trial.anchors;
    bool ok = trial.anchors >= BD_DOCTOR_LEAST_ANCHORS ||
              bd_fail(err,
                      "the text has room for %lld blocks of %lld tokens, at least %d wanted: give "
                      "more or longer text",
                      (long long)trial.anchors, (long long)trial.draft->config.block_size,
                      BD_DOCTOR_LEAST_ANCHORS);
    if (ok) {
        rounds(doctor, &trial, out);
        look_at_vocabulary(&trial, out);
        look_at_taps(&trial, out);
        ok = look_for_leaks(&trial, out, err);
        look_at_acceptance(out);
    }
    bd_trial_end(&trial);
    return ok;
}
