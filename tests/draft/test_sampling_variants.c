/* Sampled text with a draft is distributed as sampled text without one: chi-square tests of many
 * short texts against the target's exact distribution, for every variant and several samplings.
 *
 * The model is the micro model with noise for weights, so drafts are often wrong. A text is four
 * tokens: the first is the prompt's, the draft proposes for the second and third, the fourth is the
 * bonus or comes in a cycle of its own. Seeds are fixed: the outcome is always the same. */
#include "base/threads.h"
#include "draft/speculative.h"
#include "micro.h"

enum { NEW = 4, TEXTS = 5000, PAIRS = MICRO_V * MICRO_V, PROMPT = 3 };
static const int32_t prompt[PROMPT] = {1, 5, 2};

// --- every variant -------------------------------------------------------------------------------

typedef struct {
    const char *name;
    const bd_draft_variant *variant;
    bd_markov_kind markov;
} form;

static const form forms[] = {{"dflash", &bd_draft_dflash, 0},
                             {"dspark vanilla", &bd_draft_dspark, BD_MARKOV_VANILLA},
                             {"dspark gated", &bd_draft_dspark, BD_MARKOV_GATED},
                             {"dspark rnn", &bd_draft_dspark, BD_MARKOV_RNN},
                             {"domino", &bd_draft_domino, 0},
                             {"dflash2", &bd_draft_dflash2, 0},
                             {"lilicorr", &bd_draft_lilicorr, 0}};
enum { FORMS = sizeof forms / sizeof forms[0] };

static bd_draft_config form_config(const form *f)
{
    bd_draft_config c = micro_draft_config();
    c.variant = f->variant;
    if (f->variant == &bd_draft_dspark)
        c.markov = (bd_markov_config){4, f->markov, true};
    if (f->variant == &bd_draft_domino)
        c.domino = (bd_domino_config){.state = 6, .width = 5, .pure_prefix = 1};
    if (f->variant == &bd_draft_dflash2) {
        c.convolution = (bd_convolution_config){.kernel_size = 2, .group_size = 4};
        c.selector = (bd_selector_config){.rank = 4, .top_k = 4};
    }
    if (f->variant == &bd_draft_lilicorr)
        c.lilicorr = (bd_lilicorr_config){.top_k = 4,
                                          .layers = 1,
                                          .heads = 2,
                                          .factor = 4,
                                          .mlp_ratio = 2,
                                          .vector_eps = 1e-3,
                                          .logit_scale = 3};
    return c;
}

static micro *open_form(const form *f)
{
    bd_error err = {0};
    micro *m = micro_open();
    bd_draft_close(m->draft);
    bd_draft_config config = form_config(f);
    check_ok(bd_draft_config_complete(&config, &m->target->config, &err), err);
    m->draft = bd_draft_create(&config, m->target, 1, BD_F32, &err);
    check_ok(m->draft && bd_draft_train(m->draft, &err), err);
    for (int64_t i = 0; i < m->draft->parameters.count; i++) {
        bd_parameter *p = m->draft->parameters.items[i];
        check_fill(p->value, p->count, 1000 + (uint64_t)i);
        bd_parameter_changed(p);
    }
    return m;
}

static bd_sampling sampling_at(int index)
{
    bd_sampling s = bd_sampling_default();
    s.temperature = index == 1 ? 0.6f : 1;
    if (index == 2) {
        s.top_k = 7;
        s.top_p = 0.8f;
        s.min_p = 0.05f;
    }
    return s;
}
enum { SAMPLINGS = 3 };

// --- seen against expected -----------------------------------------------------------------------

/* How often each pair of neighbouring tokens stands at each place of a text. */
typedef struct {
    double pair[NEW - 1][PAIRS];
} table;

static void count_text(table *t, const int32_t *text, double weight)
{
    for (int i = 0; i + 1 < NEW; i++)
        t->pair[i][text[i] * MICRO_V + text[i + 1]] += weight;
}

static void walk(bd_decoder *d, const bd_sampling *s, int32_t *text, int64_t made, double weight,
                 table *t, bd_arena *arena)
{
    if (made == NEW) {
        count_text(t, text + PROMPT, weight);
        return;
    }
    bd_error err = {0};
    float p[MICRO_V];
    bd_sampling_probabilities(s, bd_decoder_follow(d, text, PROMPT + made, &err), MICRO_V, p,
                              arena);
    for (int32_t token = 0; token < MICRO_V; token++) {
        text[PROMPT + made] = token;
        if (p[token] > 0)
            walk(d, s, text, made + 1, weight * (double)p[token], t, arena);
    }
}

/* What the target says about all texts, times TEXTS. */
static table *expected_of(bd_model *target, const bd_sampling *s, bd_arena *arena)
{
    bd_error err = {0};
    bd_decoder *d = bd_decoder_create(target, NULL, 32, &err);
    check_ok(d != NULL, err);
    int32_t text[PROMPT + NEW];
    memcpy(text, prompt, sizeof prompt);
    table *t = memset(bd_arena_alloc(arena, sizeof *t), 0, sizeof *t);
    walk(d, s, text, 0, TEXTS, t, arena);
    bd_decoder_free(d);
    return t;
}

/* Chi-square of one table over what chance leaves above it once in ten thousand (Wilson and
 * Hilferty); cells that are rarer than five are taken together. Above 1: not the same thing. */
static double excess(const double *seen, const double *expected)
{
    double chi = 0, rare_seen = 0, rare = 0;
    int cells = 0;
    for (int i = 0; i < PAIRS; i++) {
        if (expected[i] < 5) {
            rare_seen += seen[i];
            rare += expected[i];
            if (expected[i] == 0)
                assert_true(seen[i] == 0); // cut off by top-k, top-p or min-p
            continue;
        }
        chi += (seen[i] - expected[i]) * (seen[i] - expected[i]) / expected[i];
        cells++;
    }
    if (rare >= 1) {
        chi += (rare_seen - rare) * (rare_seen - rare) / rare;
        cells++;
    }
    assert_true(cells > 3);
    double degrees = cells - 1, z = 3.719, spread = 2 / (9 * degrees);
    return chi / (degrees * pow(1 - spread + z * sqrt(spread), 3));
}

static double worst_excess(const table *seen, const table *expected)
{
    double worst = 0;
    for (int i = 0; i + 1 < NEW; i++)
        worst = fmax(worst, excess(seen->pair[i], expected->pair[i]));
    return worst;
}

typedef struct {
    int64_t tested, accepted, second; // first places tested and accepted; second ones tested
} share;

/* Costs at which the confidence head often decides, held so that no clock does. */
static void hold_pace(bd_pace *pace)
{
    for (int64_t rows = 1; rows <= MICRO_BS + 1; rows++)
        pace->pass[rows] = (bd_duration){1 + 0.05 * (double)(rows - 1), 10};
    pace->tokens = 1;
    pace->seconds = 1;
    pace->held = true;
}

/* TEXTS texts, plain without a draft. */
static table *sample(bd_model *target, bd_draft *draft, bd_draft_schedule schedule, bd_sampling s,
                     share *drafted, bd_arena *arena)
{
    bd_error err = {0};
    bd_decoder *d = bd_decoder_create(target, draft, 32, &err);
    check_ok(d != NULL, err);
    hold_pace(bd_decoder_pace(d));
    table *t = memset(bd_arena_alloc(arena, sizeof *t), 0, sizeof *t);
    *drafted = (share){0};
    for (int64_t i = 0; i < TEXTS; i++) {
        int32_t text[NEW];
        bd_generation_report report;
        bd_generation g = bd_generation_default();
        g.sampling = s;
        g.sampling.seed = (uint64_t)i;
        g.most = NEW;
        g.schedule = schedule;
        assert_int_equal(bd_generate(d, prompt, PROMPT, &g, text, &report, &err), NEW);
        count_text(t, text, 1);
        drafted->tested += report.tested[0];
        drafted->accepted += report.accepted[0];
        drafted->second += report.tested[1];
    }
    bd_decoder_free(d);
    return t;
}

// --- tests ---------------------------------------------------------------------------------------

static void speculative_text_follows_the_target(void **state)
{
    (void)state;
    for (int i = 0; i < SAMPLINGS; i++) {
        bd_arena *arena = check_arena();
        bd_sampling s = sampling_at(i);
        for (int n = -1; n < FORMS; n++) { // -1: plain, which the test itself must find right
            micro *m = open_form(&forms[n < 0 ? 0 : n]);
            share drafted;
            const table *expected = expected_of(m->target, &s, arena);
            const table *seen =
                sample(m->target, n < 0 ? NULL : m->draft, BD_DRAFT_FIXED, s, &drafted, arena);
            double worst = worst_excess(seen, expected);
            if (worst > 1)
                fail_msg("%s, sampling %d: chi-square is %.2f of the largest that chance explains",
                         n < 0 ? "plain" : forms[n].name, i, worst);
            // Draft and target disagree and agree often enough for both ways to be tried.
            if (n >= 0)
                assert_true(drafted.accepted > TEXTS / 50 &&
                            drafted.tested - drafted.accepted > TEXTS / 50);
            micro_close(m);
        }
        bd_arena_destroy(arena);
    }
}

/* Nor does it change what is sampled when the confidence head decides what is verified. */
static void the_confidence_schedule_is_unbiased(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    bd_sampling s = sampling_at(0);
    for (int n = 1; n <= 3; n++) { // DSpark's
        micro *m = open_form(&forms[n]);
        share all, some;
        const table *expected = expected_of(m->target, &s, arena);
        sample(m->target, m->draft, BD_DRAFT_FIXED, s, &all, arena);
        double worst = worst_excess(
            sample(m->target, m->draft, BD_DRAFT_CONFIDENCE, s, &some, arena), expected);
        if (worst > 1)
            fail_msg("%s: chi-square is %.2f of the largest that chance explains", forms[n].name,
                     worst);
        // The second place is verified in some cycles and left out in others.
        assert_true(some.second > TEXTS / 20 && some.second < all.second - TEXTS / 20);
        micro_close(m);
    }
    bd_arena_destroy(arena);
}

/* A draft that is wrong about what its tokens were drawn from: flatter than it says. */
static void (*honest)(bd_draft_decoding *);
static void lie(bd_draft_decoding *d)
{
    honest(d);
    for (int64_t i = 0; i < d->count && d->q[i]; i++) {
        float *flatter = bd_arena_floats(d->arena, MICRO_V);
        for (int v = 0; v < MICRO_V; v++)
            flatter[v] = 0.5f * d->q[i][v] + 0.5f / MICRO_V;
        d->q[i] = flatter;
    }
}

/* The power of the test: the same numbers of texts show up a small fault in every variant. */
static void a_wrong_q_is_noticed(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    bd_sampling s = sampling_at(0);
    for (int n = 1; n < FORMS; n++) {
        micro *m = open_form(&forms[n]);
        bd_draft_variant lying = *forms[n].variant;
        share drafted;
        honest = lying.decode;
        lying.decode = lie;
        const table *expected = expected_of(m->target, &s, arena);
        m->draft->config.variant = &lying;
        double worst =
            worst_excess(sample(m->target, m->draft, BD_DRAFT_FIXED, s, &drafted, arena), expected);
        m->draft->config.variant = forms[n].variant;
        if (worst < 1.5)
            fail_msg("%s: chi-square with a wrong q is only %.2f of the largest that chance "
                     "explains",
                     forms[n].name, worst);
        micro_close(m);
    }
    bd_arena_destroy(arena);
}

int main(void)
{
    bd_threads_set(1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(speculative_text_follows_the_target),
        cmocka_unit_test(the_confidence_schedule_is_unbiased),
        cmocka_unit_test(a_wrong_q_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
