#include "draft/hypothesis.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *bd_part_name(bd_part part)
{
    static const char *const names[BD_PARTS] = {"layout", "taps", "norm",   "mask", "head",
                                                "vocab",  "rope", "window", "leak", "draft"};
    return names[part];
}

bd_usage bd_usage_of(const bd_patient *patient)
{
    const bd_draft_config *config = &patient->draft->config;
    return (bd_usage){.shift = patient->shift,
                      .mask_id = config->mask_id,
                      .rope = config->stack.rope,
                      .window = config->window,
                      .causality = config->causality};
}

void bd_hypothesis_apply(const bd_hypothesis *h, bd_usage *usage)
{
    memcpy((char *)usage + h->offset, (const char *)&h->changed + h->offset, h->size);
}

// --- the list ------------------------------------------------------------------------------------

typedef struct {
    const bd_patient *patient;
    const bd_usage *usage;
    bd_hypotheses *out;
} listing;

static void say(char *out, size_t room, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void say(char *out, size_t room, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(out, room, format, arguments);
    va_end(arguments);
}

/* The next entry, about the field at offset; its caller fills in value and words. */
static bd_hypothesis *begin(listing *l, bd_part part, size_t offset, size_t size)
{
    static bd_hypothesis rest; // what does not fit is not examined
    bd_hypothesis *h = &rest;
    if (l->out->count < BD_MOST_HYPOTHESES)
        h = &l->out->items[l->out->count++];
    *h = (bd_hypothesis){.part = part, .changed = *l->usage, .offset = offset, .size = size};
    return h;
}

#define FIELD(name)  offsetof(bd_usage, name), sizeof(((bd_usage *)0)->name)
#define WHAT(h, ...) say((h)->what, sizeof(h)->what, __VA_ARGS__)
#define FIX(h, ...)  say((h)->fix, sizeof(h)->fix, __VA_ARGS__)

static void add_layout(listing *l)
{
    bd_hypothesis *h = begin(l, BD_PART_LAYOUT, FIELD(shift));
    h->changed.shift = !l->usage->shift;
    WHAT(h, h->changed.shift ? "slot 0 already predicts" : "slot 0 is the anchor");
    FIX(h, "config.json: set \"shift_label\" (\"sample_from_anchor\") to %s",
        h->changed.shift ? "true" : "false");
}

static void add_taps(listing *l, int64_t step)
{
    const bd_draft_config *config = &l->patient->draft->config;
    int64_t layers = l->patient->draft->target->config.layers, shift = l->usage->tap_shift + step;
    char list[120] = "";
    for (int64_t i = 0; i < config->tap_count; i++) {
        int64_t tap = config->taps[i] + shift;
        size_t used = strlen(list);
        if (tap < -1 || tap >= layers)
            return;
        say(list + used, sizeof list - used, "%s%lld", i ? ", " : "", (long long)tap);
    }
    bd_hypothesis *h = begin(l, BD_PART_TAPS, FIELD(tap_shift));
    h->changed.tap_shift = shift;
    WHAT(h, "target layers [%.60s]", list);
    FIX(h, "config.json: set \"target_layer_ids\" to [%s]", list);
}

static void add_norm(listing *l, bd_states_norm norm, const char *what)
{
    bd_hypothesis *h = begin(l, BD_PART_NORM, FIELD(norm));
    bool before = norm == BD_STATES_LAST_BEFORE;
    h->changed.norm = norm;
    WHAT(h, "%s %s the final norm", what, before ? "before" : "after");
    FIX(h,
        "the draft learned %s %s the target's final norm, programs feed it %s: export or train "
        "it again from states taken where they are served",
        what, before ? "before" : "after", before ? "after" : "before");
}

static void add_norms(listing *l)
{
    const bd_draft *draft = l->patient->draft;
    int64_t tap = bd_draft_highest_tap(&draft->config) + l->usage->tap_shift;
    char layer[40];
    snprintf(layer, sizeof layer, "layer %lld", (long long)tap);
    if (tap == draft->target->config.layers - 1)
        add_norm(l, BD_STATES_LAST_BEFORE, layer);
    else
        add_norm(l, BD_STATES_HIGHEST_AFTER, layer);
    if (draft->config.tap_count > 1)
        add_norm(l, BD_STATES_ALL_AFTER, "all tapped layers");
    bd_hypothesis *h = begin(l, BD_PART_NORM, FIELD(unnormed_teacher));
    h->changed.unnormed_teacher = true;
    WHAT(h, "taught by un-normed final states");
    FIX(h, "its teacher's states were pre-norm but taken as normed: mark the cache (\"prenorm\": "
           "true) and train again");
}

static void add_masks(listing *l, const int32_t *candidates, int64_t count)
{
    const bd_model_config *t = &l->patient->draft->target->config;
    int64_t ids[16], taken = 0, list[BD_MOST_CANDIDATES], mask = l->usage->mask_id;
    for (int64_t i = 0; i < count && i < BD_MOST_CANDIDATES; i++)
        ids[taken++] = candidates[i];
    const int64_t more[] = {t->vocabulary - 1, mask - 1, mask + 1, t->pad, t->stop[0], t->bos};
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        if (i != 4 || t->stop_count > 0)
            ids[taken++] = more[i];
    int64_t listed = 0;
    for (int64_t i = 0; i < taken && listed < BD_MOST_CANDIDATES; i++) {
        bool fresh = ids[i] >= 0 && ids[i] < t->vocabulary && ids[i] != mask;
        for (int64_t j = 0; j < listed; j++)
            fresh = fresh && list[j] != ids[i];
        if (!fresh)
            continue;
        list[listed++] = ids[i];
        bd_hypothesis *h = begin(l, BD_PART_MASK, FIELD(mask_id));
        h->changed.mask_id = ids[i];
        WHAT(h, "mask token %lld", (long long)ids[i]);
        FIX(h, "config.json: set \"mask_token_id\" to %lld", (long long)ids[i]);
    }
    bd_hypothesis *h = begin(l, BD_PART_MASK, FIELD(zero_mask));
    h->changed.zero_mask = true;
    WHAT(h, "a mask row of zeros");
    FIX(h, "the draft was trained with a mask row of zeros: the target's row %lld must be zero",
        (long long)mask);
}

static void add_heads(listing *l)
{
    const bd_patient *p = l->patient;
    bd_hypothesis *h;
    if (p->head) {
        h = begin(l, BD_PART_HEAD, FIELD(head));
        h->changed.head = BD_HEAD_OWN;
        WHAT(h, "the head in the draft's folder");
        FIX(h,
            "the draft was trained with the \"%.40s\" in its folder, programs use the "
            "target's: this is not its target, or train again",
            p->head->name);
    }
    if (p->embedding) {
        h = begin(l, BD_PART_HEAD, FIELD(own_embedding));
        h->changed.own_embedding = true;
        WHAT(h, "the embedding in the draft's folder");
        FIX(h,
            "the draft was trained with the \"%.40s\" in its folder, programs use the "
            "target's: this is not its target, or train again",
            p->embedding->name);
    }
    if (p->draft->target->head != p->draft->target->embedding) {
        h = begin(l, BD_PART_HEAD, FIELD(head));
        h->changed.head = BD_HEAD_EMBEDDING;
        WHAT(h, "the target's embedding as head");
        FIX(h, "the draft was trained with a tied head: look at \"tie_word_embeddings\" and "
               "lm_head.weight of the target");
    }
}

static void add_rope(listing *l, double theta, const char *whose)
{
    const bd_rope_config *now = &l->usage->rope;
    for (int64_t i = 0; i < l->out->count; i++)
        if (l->out->items[i].part == BD_PART_ROPE && l->out->items[i].changed.rope.theta == theta)
            return;
    if (theta == now->theta)
        return;
    bd_hypothesis *h = begin(l, BD_PART_ROPE, FIELD(rope));
    h->changed.rope.theta = theta;
    WHAT(h, "rotary base %.10g%s", theta, whose);
    FIX(h, "config.json: set \"rope_theta\" to %.10g (found %.10g)", theta, now->theta);
}

static void add_ropes(listing *l)
{
    const bd_rope_config *now = &l->usage->rope, *of = &l->patient->draft->target->config.rope;
    add_rope(l, of->theta, ", the target's");
    // What trainers fall back to when they miss the target's base.
    add_rope(l, 10000, "");
    add_rope(l, 1000000, "");
    if (now->kind != BD_ROPE_DEFAULT) {
        bd_hypothesis *h = begin(l, BD_PART_ROPE, FIELD(rope));
        h->changed.rope = (bd_rope_config){.theta = now->theta, .factor = 1};
        WHAT(h, "rotary positions without scaling");
        FIX(h, "config.json: set \"rope_scaling\" to null");
    }
}

static void add_windows(listing *l)
{
    const bd_draft_config *config = &l->patient->draft->config;
    bool any = false;
    for (int64_t i = 0; i < config->stack.layers; i++)
        any = any || bd_draft_layer_window(config, i) > 0;
    bd_hypothesis *h;
    if (any && !l->usage->windows_off) {
        h = begin(l, BD_PART_WINDOW, FIELD(windows_off));
        h->changed.windows_off = true;
        WHAT(h, "no window");
        FIX(h, "config.json: \"use_swa\" false, all \"layer_types\" full_attention");
    } else if (l->patient->window > 0 && l->usage->window == 0) {
        h = begin(l, BD_PART_WINDOW, FIELD(window));
        h->changed.window = l->patient->window;
        WHAT(h, "window of %lld in all layers", (long long)h->changed.window);
        FIX(h, "config.json: \"use_swa\" true, \"swa_window_size\" %lld",
            (long long)h->changed.window);
    }
    h = begin(l, BD_PART_WINDOW, FIELD(causality));
    bool causal = l->usage->causality == BD_DRAFT_BIDIRECTIONAL;
    h->changed.causality = causal ? BD_DRAFT_CAUSAL : BD_DRAFT_BIDIRECTIONAL;
    WHAT(h, "slots see %s", causal ? "no later slot of their block" : "all slots of their block");
    FIX(h, "config.json: set \"causal\" to %s", causal ? "true" : "false");
}

void bd_hypotheses_make(const bd_patient *patient, const bd_usage *usage, const int32_t *candidates,
                        int64_t count, bd_hypotheses *out)
{
    out->count = 0;
    listing l = {.patient = patient, .usage = usage, .out = out};
    add_layout(&l);
    add_taps(&l, -1);
    add_taps(&l, 1);
    if (usage->norm == BD_STATES_AS_SERVED && !usage->unnormed_teacher)
        add_norms(&l);
    if (!usage->zero_mask)
        add_masks(&l, candidates, count);
    if (usage->head == BD_HEAD_TARGET && !usage->own_embedding)
        add_heads(&l);
    add_ropes(&l);
    add_windows(&l);
}
