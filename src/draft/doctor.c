#include "draft/doctor.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "draft/leak.h"
#include "draft/observe.h"
#include "draft/session.h"
#include "draft/targets.h"

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

// --- an examination ------------------------------------------------------------------------------

/* Every way of using the draft in one round; usages[0] is the one they are compared with. */
typedef struct {
    const bd_doctor *doctor;
    bd_draft *draft;
    bd_model *target;
    bd_arena *arena;
    int64_t spacing, anchors; // tokens from one anchor to the next; anchors of all texts
    bd_usage usages[BD_MOST_HYPOTHESES + 1];
    int64_t usage_count;
    int32_t *accepted; // [usages, anchors]
} examination;

/* What the target made of one text. */
typedef struct {
    const bd_doctor_text *text;
    int64_t layers[3 * BD_MOST_TAPS], layer_count; // of the target, as in a hidden request
    float *states;                                 // [count, layers * H]
    float *prenorm;                                // [count, H]
    int32_t *next, *unnormed_next; // [count]: its choice after each token; of un-normed states
    bd_anchors anchors;
} reading;

static int64_t text_anchors(const examination *e, const bd_doctor_text *text)
{
    int64_t first = text->first > 1 ? text->first : 1;
    int64_t room = text->count - e->draft->config.block_size - first;
    return room < 0 ? 0 : room / e->spacing + 1;
}

static void want_layer(reading *r, int64_t layer)
{
    for (int64_t i = 0; i < r->layer_count; i++)
        if (r->layers[i] == layer)
            return;
    r->layers[r->layer_count++] = layer;
}

/* next[i] = arg max of the target's head at row i of `hidden`. */
static void choices(const examination *e, const float *hidden, int64_t rows, int32_t *next)
{
    enum { PART = 64 };
    int64_t vocabulary = e->target->config.vocabulary, width = e->target->config.hidden;
    size_t mark = bd_arena_mark(e->arena);
    float *logits = bd_arena_floats(e->arena, PART * vocabulary);
    for (int64_t i = 0; i < rows; i += PART) {
        int64_t part = rows - i < PART ? rows - i : PART;
        bd_model_logits(e->target, hidden + i * width, part, logits, e->arena);
        bd_best_tokens(logits, part, vocabulary, next + i);
    }
    bd_arena_release(e->arena, mark);
}

static void read_text(const examination *e, const bd_doctor_text *text, reading *r)
{
    const bd_draft_config *config = &e->draft->config;
    int64_t width = e->target->config.hidden;
    *r = (reading){.text = text};
    for (int64_t u = 0; u < e->usage_count; u++)
        for (int64_t i = 0; i < config->tap_count; i++)
            want_layer(r, config->taps[i] + e->usages[u].tap_shift + 1);
    r->states = bd_arena_floats(e->arena, text->count * r->layer_count * width);
    r->prenorm = bd_arena_floats(e->arena, text->count * width);
    r->next = bd_arena_ints(e->arena, text->count);
    r->unnormed_next = bd_arena_ints(e->arena, text->count);
    float *final = bd_arena_floats(e->arena, text->count * width);
    const bd_observation out = {.features = r->states, .prenorm = r->prenorm, .final = final};
    bd_target_observe(e->target, r->layers, r->layer_count, text->tokens, 1, text->count, &out,
                      e->arena);
    choices(e, final, text->count, r->next);
    choices(e, r->prenorm, text->count, r->unnormed_next);

    int64_t count = text_anchors(e, text), first = text->first > 1 ? text->first : 1;
    int32_t *anchor = bd_arena_ints(e->arena, count);
    for (int64_t i = 0; i < count; i++)
        anchor[i] = (int32_t)(first + i * e->spacing);
    r->anchors =
        (bd_anchors){.blocks = count,
                     .anchor = anchor,
                     .keep = memset(bd_arena_alloc(e->arena, (size_t)count), 1, (size_t)count)};
}

// --- one way of using the draft ------------------------------------------------------------------

/* A draft whose description and target are those of a usage; the weights are shared. */
typedef struct {
    bd_draft draft;
    bd_model target;
} disguise;

static bd_draft *disguised(const examination *e, const bd_usage *usage)
{
    const bd_patient *patient = e->doctor->patient;
    int64_t width = e->target->config.hidden, size = e->draft->config.stack.head_size;
    disguise *d = bd_arena_alloc(e->arena, sizeof *d);
    d->draft = *e->draft;
    d->target = *e->target;
    d->draft.target = &d->target;
    bd_draft_config *config = &d->draft.config;
    config->mask_id = usage->mask_id;
    config->causality = usage->causality;
    config->window = usage->windows_off ? 0 : usage->window;
    if (usage->windows_off)
        memset(config->stack.layer_window, 0, sizeof config->stack.layer_window);
    if (usage->zero_mask)
        d->draft.mask_row = bd_arena_zeros(e->arena, width);
    if (usage->head != BD_HEAD_TARGET)
        d->target.head = usage->head == BD_HEAD_OWN ? patient->head : d->target.embedding;
    if (usage->own_embedding)
        d->target.embedding = patient->embedding;
    double *frequencies = bd_arena_alloc(e->arena, (size_t)size / 2 * sizeof *frequencies);
    bd_rope_frequencies(&usage->rope, size, frequencies, &d->draft.rope.factor);
    d->draft.rope.inverse_frequency = frequencies;
    return &d->draft;
}

/* The draft's features of a text, [count, taps * H]. */
static float *features_of(const examination *e, const reading *r, const bd_usage *usage)
{
    const bd_draft_config *config = &e->draft->config;
    int64_t width = e->target->config.hidden, taps = config->tap_count;
    int64_t rows = r->text->count, highest = config->taps[0];
    for (int64_t i = 1; i < taps; i++)
        highest = config->taps[i] > highest ? config->taps[i] : highest;
    float *out = bd_arena_floats(e->arena, rows * taps * width);
    const float *weight = bd_parameter_values(e->target->norm);
    for (int64_t i = 0; i < taps; i++) {
        int64_t layer = config->taps[i] + usage->tap_shift + 1, place = 0;
        bool last = layer == e->target->config.layers;
        bool normed = usage->norm == BD_STATES_ALL_AFTER ||
                      (usage->norm == BD_STATES_HIGHEST_AFTER && config->taps[i] == highest);
        while (r->layers[place] != layer)
            place++;
        for (int64_t row = 0; row < rows; row++) {
            const float *from = r->states + (row * r->layer_count + place) * width;
            float *to = out + (row * taps + i) * width;
            if (last && usage->norm == BD_STATES_LAST_BEFORE)
                from = r->prenorm + row * width;
            if (!last && normed)
                bd_rms_norm(from, weight, (float)e->target->config.norm_eps, 1, width, to, NULL);
            else
                memcpy(to, from, (size_t)width * sizeof *to);
        }
    }
    return out;
}

/* The block's tokens, and how many; they follow the anchor. */
static const int32_t *decode(const examination *e, bd_draft *draft, const bd_usage *usage,
                             const bd_value *hidden, const bd_value *context, const reading *r,
                             int64_t block, int64_t *count)
{
    const bd_draft_variant *variant = draft->config.variant;
    int64_t size = draft->config.block_size, anchor = r->anchors.anchor[block];
    int64_t width = draft->config.stack.hidden;
    bool chained = variant->label_shift == 1 || usage->shift == 0;
    *count = chained ? bd_draft_variant_tokens(variant, size) : size;
    bd_draft_decoding decoding = {
        .draft = draft,
        .hidden = hidden->data + block * size * width,
        .slots = size,
        .context = variant->reads_context ? context->data + (anchor - 1) * width : NULL,
        .last_token = r->text->tokens[anchor],
        .position = anchor,
        .count = *count,
        .tokens = bd_arena_ints(e->arena, *count + 1),
        .q = memset(bd_arena_alloc(e->arena, (size_t)(*count + 1) * sizeof(float *)), 0,
                    (size_t)(*count + 1) * sizeof(float *)),
        .arena = e->arena};
    if (chained && *count > 0)
        variant->decode(&decoding);
    else if (*count > 0)
        bd_draft_decode_greedy(&decoding, 0);
    // A variant whose slot 0 predicts, read as if it were the anchor.
    int64_t skip = variant->label_shift == 1 && usage->shift == 0;
    *count -= skip;
    return decoding.tokens + skip;
}

/* Tokens that stand: each the target's choice, as long as the text is on the target's own path. */
static int32_t standing(const reading *r, const bd_usage *usage, int64_t anchor,
                        const int32_t *tokens, int64_t count)
{
    const int32_t *wanted = usage->unnormed_teacher ? r->unnormed_next : r->next;
    int32_t stand = 0;
    for (int64_t k = 0; k < count && tokens[k] == wanted[anchor + k]; k++) {
        stand++;
        if (anchor + k + 1 >= r->text->count ||
            r->text->tokens[anchor + k + 1] != r->next[anchor + k])
            break;
    }
    return stand;
}

static void draft_blocks(const examination *e, const reading *r, const bd_usage *usage,
                         int32_t *accepted)
{
    size_t mark = bd_arena_mark(e->arena);
    bd_draft *draft = disguised(e, usage);
    const bd_block_batch batch = {.rows = 1,
                                  .length = r->text->count,
                                  .block_size = draft->config.block_size,
                                  .tokens = r->text->tokens,
                                  .anchors = &r->anchors};
    int64_t slots = bd_block_slots(&batch);
    int32_t *noise = bd_arena_ints(e->arena, slots), *positions = bd_arena_ints(e->arena, slots);
    bd_block_noise(&batch, (int32_t)draft->config.mask_id, noise);
    bd_block_positions(&batch, positions);
    bd_tape tape = bd_tape_begin(e->arena, draft->compute, false);
    bd_value *context = bd_draft_context(draft, &tape, features_of(e, r, usage), r->text->count);
    const bd_draft_blocks blocks = {.rows = 1,
                                    .length = r->text->count,
                                    .anchors = &r->anchors,
                                    .context = context,
                                    .tokens = noise,
                                    .positions = positions};
    const bd_value *hidden = bd_draft_forward(draft, &tape, &blocks);
    for (int64_t j = 0; j < r->anchors.blocks; j++) {
        size_t block_mark = bd_arena_mark(e->arena);
        int64_t count;
        const int32_t *tokens = decode(e, draft, usage, hidden, context, r, j, &count);
        accepted[j] = standing(r, usage, r->anchors.anchor[j], tokens, count);
        bd_arena_release(e->arena, block_mark);
    }
    bd_arena_release(e->arena, mark);
}

/* accepted[usage, anchor] for all usages and texts. */
static void measure(examination *e)
{
    const bd_doctor *doctor = e->doctor;
    int64_t done = 0, first = 0;
    bd_progress *bar =
        doctor->progress ? doctor->progress("drafting", doctor->text_count * e->usage_count) : NULL;
    for (int64_t t = 0; t < doctor->text_count; t++) {
        reading r;
        if (text_anchors(e, &doctor->texts[t]) == 0)
            continue;
        read_text(e, &doctor->texts[t], &r);
        for (int64_t u = 0; u < e->usage_count; u++) {
            draft_blocks(e, &r, &e->usages[u], e->accepted + u * e->anchors + first);
            if (bar)
                bd_progress_update(bar, ++done, "text %lld", (long long)t + 1);
        }
        first += r.anchors.blocks;
        bd_arena_release(e->arena, 0);
    }
    if (bar)
        bd_progress_end(bar);
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

static void look_at_vocabulary(const examination *e, bd_diagnosis *d)
{
    long long stated = e->doctor->patient->vocabulary, real = e->target->config.vocabulary;
    bd_finding *f = add(d, BD_PART_VOCABULARY, stated == real ? BD_VERDICT_WELL : BD_VERDICT_FAULT);
    WHAT(f, "%lld tokens, the target has %lld", stated, real);
    if (stated != real)
        FIX(f, "config.json: set \"vocab_size\" to %lld", real);
}

static bool look_for_leaks(const examination *e, bd_diagnosis *d, bd_error *err)
{
    const bd_doctor_text *longest = &e->doctor->texts[0];
    for (int64_t i = 0; i < e->doctor->text_count; i++)
        if (e->doctor->texts[i].count > longest->count)
            longest = &e->doctor->texts[i];
    bd_leak leak;
    if (!bd_draft_leak(e->draft, longest->tokens, longest->count, &leak, err))
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

static void run_round(examination *e, const bd_usage *usage, round_result *r)
{
    bd_hypotheses_make(e->doctor->patient, usage, e->doctor->masks, e->doctor->mask_count,
                       &r->list);
    e->usages[0] = *usage;
    e->usage_count = 1 + r->list.count;
    for (int64_t i = 0; i < r->list.count; i++) {
        e->usages[i + 1] = *usage;
        bd_hypothesis_apply(&r->list.items[i], &e->usages[i + 1]);
    }
    measure(e);
    r->best = -1;
    for (int64_t i = 0; i < r->list.count; i++) {
        r->paired[i] = bd_paired_make(e->accepted, e->accepted + (i + 1) * e->anchors, e->anchors);
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
static void look_at_mask(const examination *e, bd_diagnosis *d, const round_result *first)
{
    const bd_draft_config *config = &e->draft->config;
    double ratio = bd_draft_mask_norm_ratio(e->target, config->mask_id, e->arena);
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

static void rounds(examination *e, bd_diagnosis *d)
{
    enum { ROUNDS = 4 };
    bd_usage usage = bd_usage_of(e->doctor->patient);
    round_result r, first;
    for (int number = 0; number < ROUNDS; number++) {
        run_round(e, &usage, &r);
        add_round(d, &r, number);
        double acceptance = bd_paired_make(e->accepted, e->accepted, e->anchors).acceptance;
        d->mended = r.best < 0 ? acceptance : r.paired[r.best].other;
        if (number == 0) {
            first = r;
            d->acceptance = acceptance;
        }
        if (r.best < 0)
            break;
        bd_hypothesis_apply(&r.list.items[r.best], &usage);
    }
    look_at_mask(e, d, &first);
    look_at_tables(e->doctor->patient, d, &usage);
}

bool bd_doctor_examine(const bd_doctor *doctor, bd_diagnosis *out, bd_error *err)
{
    bd_draft *draft = doctor->patient->draft;
    int64_t size = draft->config.block_size;
    examination e = {.doctor = doctor, .draft = draft, .target = draft->target};
    e.spacing = size < 8 ? size : 8;
    *out = (bd_diagnosis){0};
    for (int64_t i = 0; i < doctor->text_count; i++)
        e.anchors += text_anchors(&e, &doctor->texts[i]);
    if (e.anchors < BD_DOCTOR_LEAST_ANCHORS)
        return bd_fail(err,
                       "the text has room for %lld blocks of %lld tokens, at least %d wanted: give "
                       "more or longer text",
                       (long long)e.anchors, (long long)size, BD_DOCTOR_LEAST_ANCHORS);
    out->anchors = e.anchors;
    e.accepted = calloc((size_t)(e.anchors * (BD_MOST_HYPOTHESES + 1)), sizeof *e.accepted);
    e.arena = e.accepted ? bd_arena_create(0, err) : NULL;
    bool ok = e.arena != NULL;
    if (ok) {
        rounds(&e, out);
        look_at_vocabulary(&e, out);
        ok = look_for_leaks(&e, out, err);
        look_at_acceptance(out);
    } else if (!e.accepted) {
        bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for %lld blocks", (long long)e.anchors);
    }
    free(e.accepted);
    bd_arena_destroy(e.arena);
    return ok;
}
