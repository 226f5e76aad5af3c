#include "draft/trial.h"

#include <stdlib.h>
#include <string.h>

#include "draft/observe.h"
#include "draft/session.h"
#include "draft/targets.h"

/* What the target made of one text. */
typedef struct {
    const bd_trial_text *text;
    int64_t layers[3 * BD_MOST_TAPS], layer_count; // of the target, as in a hidden request
    float *states;                                 // [count, layers * H]
    float *prenorm;                                // [count, H]
    int32_t *next, *unnormed_next; // [count]: its choice after each token; of un-normed states
    bd_anchors anchors;
} reading;

static int64_t text_anchors(const bd_trial *t, const bd_trial_text *text)
{
    int64_t first = text->first > 1 ? text->first : 1;
    int64_t room = text->count - t->draft->config.block_size - first;
    return room < 0 ? 0 : room / t->spacing + 1;
}

static void want_layer(reading *r, int64_t layer)
{
    for (int64_t i = 0; i < r->layer_count; i++)
        if (r->layers[i] == layer)
            return;
    r->layers[r->layer_count++] = layer;
}

/* next[i] = arg max of the target's head at row i of `hidden`. */
static void choices(const bd_trial *t, const float *hidden, int64_t rows, int32_t *next)
{
    enum { PART = 64 };
    int64_t vocabulary = t->target->config.vocabulary, width = t->target->config.hidden;
    size_t mark = bd_arena_mark(t->arena);
    float *logits = bd_arena_floats(t->arena, PART * vocabulary);
    for (int64_t i = 0; i < rows; i += PART) {
        int64_t part = rows - i < PART ? rows - i : PART;
        bd_model_logits(t->target, hidden + i * width, part, logits, t->arena);
        bd_best_tokens(logits, part, vocabulary, next + i);
    }
    bd_arena_release(t->arena, mark);
}

static void read_text(const bd_trial *t, const bd_trial_text *text, reading *r)
{
    const bd_draft_config *config = &t->draft->config;
    int64_t width = t->target->config.hidden;
    *r = (reading){.text = text};
    for (int64_t u = 0; u < t->usage_count; u++)
        for (int64_t i = 0; i < config->tap_count; i++)
            want_layer(r, config->taps[i] + t->usages[u].tap_shift + 1);
    r->states = bd_arena_floats(t->arena, text->count * r->layer_count * width);
    r->prenorm = bd_arena_floats(t->arena, text->count * width);
    r->next = bd_arena_ints(t->arena, text->count);
    r->unnormed_next = bd_arena_ints(t->arena, text->count);
    float *final = bd_arena_floats(t->arena, text->count * width);
    const bd_observation out = {.features = r->states, .prenorm = r->prenorm, .final = final};
    bd_target_observe(t->target, r->layers, r->layer_count, text->tokens, 1, text->count, &out,
                      t->arena);
    choices(t, final, text->count, r->next);
    choices(t, r->prenorm, text->count, r->unnormed_next);

    int64_t count = text_anchors(t, text), first = text->first > 1 ? text->first : 1;
    int32_t *anchor = bd_arena_ints(t->arena, count);
    for (int64_t i = 0; i < count; i++)
        anchor[i] = (int32_t)(first + i * t->spacing);
    r->anchors =
        (bd_anchors){.blocks = count,
                     .anchor = anchor,
                     .keep = memset(bd_arena_alloc(t->arena, (size_t)count), 1, (size_t)count)};
}

// --- one way of using the draft ------------------------------------------------------------------

/* A draft whose description and target are those of a usage; the weights are shared. */
typedef struct {
    bd_draft draft;
    bd_model target;
} disguise;

static bd_draft *disguised(const bd_trial *t, const bd_usage *usage)
{
    const bd_patient *patient = t->patient;
    int64_t width = t->target->config.hidden, size = t->draft->config.stack.head_size;
    disguise *d = bd_arena_alloc(t->arena, sizeof *d);
    d->draft = *t->draft;
    d->target = *t->target;
    d->draft.target = &d->target;
    bd_draft_config *config = &d->draft.config;
    config->mask_id = usage->mask_id;
    config->causality = usage->causality;
    config->window = usage->windows_off ? 0 : usage->window;
    if (usage->windows_off)
        memset(config->stack.layer_window, 0, sizeof config->stack.layer_window);
    if (usage->zero_mask)
        d->draft.mask_row = bd_arena_zeros(t->arena, width);
    if (usage->head != BD_HEAD_TARGET)
        d->target.head = usage->head == BD_HEAD_OWN ? patient->head : d->target.embedding;
    if (usage->own_embedding)
        d->target.embedding = patient->embedding;
    double *frequencies = bd_arena_alloc(t->arena, (size_t)size / 2 * sizeof *frequencies);
    bd_rope_frequencies(&usage->rope, size, frequencies, &d->draft.rope.factor);
    d->draft.rope.inverse_frequency = frequencies;
    return &d->draft;
}

/* The draft's features of a text, [count, taps * H]. */
static float *features_of(const bd_trial *t, const reading *r, const bd_usage *usage)
{
    const bd_draft_config *config = &t->draft->config;
    int64_t width = t->target->config.hidden, taps = config->tap_count;
    int64_t rows = r->text->count, highest = bd_draft_highest_tap(config);
    float *out = bd_arena_floats(t->arena, rows * taps * width);
    const float *weight = bd_parameter_values(t->target->norm);
    for (int64_t i = 0; i < taps; i++) {
        int64_t layer = config->taps[i] + usage->tap_shift + 1, place = 0;
        bool last = layer == t->target->config.layers;
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
                bd_rms_norm(from, weight, (float)t->target->config.norm_eps, 1, width, to, NULL);
            else
                memcpy(to, from, (size_t)width * sizeof *to);
        }
    }
    return out;
}

/* The block's tokens, and how many; they follow the anchor. */
static const int32_t *decode(const bd_trial *t, bd_draft *draft, const bd_usage *usage,
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
        .tokens = bd_arena_ints(t->arena, *count + 1),
        .q = memset(bd_arena_alloc(t->arena, (size_t)(*count + 1) * sizeof(float *)), 0,
                    (size_t)(*count + 1) * sizeof(float *)),
        .arena = t->arena};
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

static void draft_blocks(const bd_trial *t, const reading *r, const bd_usage *usage,
                         int32_t *accepted)
{
    size_t mark = bd_arena_mark(t->arena);
    bd_draft *draft = disguised(t, usage);
    const bd_block_batch batch = {.rows = 1,
                                  .length = r->text->count,
                                  .block_size = draft->config.block_size,
                                  .tokens = r->text->tokens,
                                  .anchors = &r->anchors};
    int64_t slots = bd_block_slots(&batch);
    int32_t *noise = bd_arena_ints(t->arena, slots), *positions = bd_arena_ints(t->arena, slots);
    bd_block_noise(&batch, (int32_t)draft->config.mask_id, noise);
    bd_block_positions(&batch, positions);
    bd_tape tape = bd_tape_begin(t->arena, draft->compute, false);
    bd_value *context = bd_draft_context(draft, &tape, features_of(t, r, usage), r->text->count);
    const bd_draft_blocks blocks = {.rows = 1,
                                    .length = r->text->count,
                                    .anchors = &r->anchors,
                                    .context = context,
                                    .tokens = noise,
                                    .positions = positions};
    const bd_value *hidden = bd_draft_forward(draft, &tape, &blocks);
    for (int64_t j = 0; j < r->anchors.blocks; j++) {
        size_t block_mark = bd_arena_mark(t->arena);
        int64_t count;
        const int32_t *tokens = decode(t, draft, usage, hidden, context, r, j, &count);
        accepted[j] = standing(r, usage, r->anchors.anchor[j], tokens, count);
        bd_arena_release(t->arena, block_mark);
    }
    bd_arena_release(t->arena, mark);
}

bool bd_trial_begin(bd_trial *t, const bd_patient *patient, const bd_trial_text *texts,
                    int64_t text_count, bd_error *err)
{
    int64_t size = patient->draft->config.block_size;
    *t = (bd_trial){.patient = patient,
                    .draft = patient->draft,
                    .target = patient->draft->target,
                    .texts = texts,
                    .text_count = text_count,
                    .spacing = size < 8 ? size : 8};
    for (int64_t i = 0; i < text_count; i++)
        t->anchors += text_anchors(t, &texts[i]);
    size_t count = (size_t)(t->anchors * (BD_MOST_HYPOTHESES + 1));
    t->accepted = calloc(count + 1, sizeof *t->accepted);
    if (!t->accepted)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for %lld blocks", (long long)t->anchors);
    t->arena = bd_arena_create(0, err);
    if (!t->arena)
        bd_trial_end(t);
    return t->arena != NULL;
}

void bd_trial_end(bd_trial *t)
{
    free(t->accepted);
    bd_arena_destroy(t->arena);
    *t = (bd_trial){0};
}

void bd_trial_run(bd_trial *t, bd_progress *bar)
{
    int64_t done = 0, first = 0;
    for (int64_t i = 0; i < t->text_count; i++) {
        reading r;
        if (text_anchors(t, &t->texts[i]) == 0)
            continue;
        read_text(t, &t->texts[i], &r);
        for (int64_t u = 0; u < t->usage_count; u++) {
            draft_blocks(t, &r, &t->usages[u], t->accepted + u * t->anchors + first);
            if (bar)
                bd_progress_update(bar, ++done, "text %lld", (long long)i + 1);
        }
        first += r.anchors.blocks;
        bd_arena_release(t->arena, 0);
    }
}
