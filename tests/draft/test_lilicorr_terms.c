/* LiLiCorr's calibration and the start of its convolutions: the hand-computed lattice of
 * dflash2-lilicorr T15, numeric gradients, and what is refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "draft/convolution.h"
#include "draft/lattice.h"
#include "micro.h"

// --- T15 -----------------------------------------------------------------------------------------

static const int32_t candidates[] = {4, 1, 6, 2, 5, 0, 7, 3, 1, 0, 2, 3, 5, 6, 1, 1, 4, 2};
static const int32_t labels[] = {1, 2, 1, 2, 7, 4};
static const uint8_t valid[] = {1, 1};
static const float start[] = {2, 1, -1, .5F, 3, .5F};
static const float pair[] = {1, 0, -1, 3, 2, 0, 0, 0, 1, 0, 2, 1.5F, 1, 1, 1, 2, 0, -2,
                             0, 0, 0,  1, 2, 3, 2, 1, 0, 1, 0, 2,    0, 1, 0, 3, 0, 0};
static const float teacher[] = {1, 3, 0, 2.5F, 2, 0, 0, 1, 4, 0, 2, 3, 9, 9, 9, 9, 9, 9};

enum { STARTS = 6, PAIRS = 36, SLOT_1 = 3 }; // block 0's slot 1 after candidate 1

static double judge(const bd_lattice_weights *weights, const float *from, const float *to,
                    double factor, float *d_start, float *d_pair, bd_lattice_result *result)
{
    const bd_lattice_blocks blocks = {.shape = {2, 3, 3},
                                      .candidates = candidates,
                                      .labels = labels,
                                      .valid = valid,
                                      .start = from,
                                      .pair = to,
                                      .teacher = teacher};
    return bd_lattice_judge(weights, &blocks, factor, d_start, d_pair, result);
}

static void calibration_by_hand(void **state)
{
    (void)state;
    const bd_lattice_weights alone = {.calibration = 1}, mixed = {.ce = .25, .calibration = .5},
                             base = {.ce = .25, .penalty = .25};
    bd_lattice_result r;
    float d_start[STARTS] = {0}, d_pair[PAIRS] = {0};
    check_near(judge(&alone, start, pair, 1, d_start, d_pair, &r), .724008477, 1e-6);
    check_near(r.calibration, .794571 + .029003 + .783059 + 1.289401, 2e-6);
    check_near(r.used, 4, 0);
    check_near(d_pair[SLOT_1], .02829586, 1e-6);
    check_near(d_pair[SLOT_1 + 1], -.02492291, 1e-6);
    check_near(d_pair[SLOT_1 + 2], -.00337295, 1e-6);
    check_near(judge(&mixed, start, pair, 1, NULL, NULL, &r), .543566097, 1e-6);
    // Without its weight the term is neither computed nor added.
    check_near(judge(&base, start, pair, 1, NULL, NULL, &r), .425797116, 1e-6);
    check_near(r.calibration, 0, 0);
}

static void numeric_gradient(void **state)
{
    (void)state;
    const bd_lattice_weights w = {.ce = .25, .penalty = .125, .calibration = .5};
    const double step = 1. / 64, factor = 3;
    bd_lattice_result r;
    float d[STARTS + PAIRS] = {0}, x[STARTS + PAIRS];
    memcpy(x, start, sizeof start);
    memcpy(x + STARTS, pair, sizeof pair);
    judge(&w, x, x + STARTS, factor, d, d + STARTS, &r);
    for (int i = 0; i < STARTS + PAIRS; i++) {
        float kept = x[i];
        x[i] = kept + (float)step;
        double up = judge(&w, x, x + STARTS, 1, NULL, NULL, &r);
        x[i] = kept - (float)step;
        double down = judge(&w, x, x + STARTS, 1, NULL, NULL, &r);
        x[i] = kept;
        check_near((double)d[i], factor * (up - down) / (2 * step), 1e-4);
    }
}

// --- options -------------------------------------------------------------------------------------

static void weights_are_checked(void **state)
{
    (void)state;
    bd_draft_objective o = bd_draft_objective_default();
    bd_draft_config config = bd_draft_config_default();
    const bd_draft_variant *v = &bd_draft_lilicorr;
    bd_error err = {0};
    check_near((double)o.lattice_calibration, 0, 0);
    o.lattice_calibration = 1;
    o.lattice_ce = o.lattice_margin_weight = o.lattice_penalty = -1;
    // Outside the all-or-nothing rule: it does not stand in for the three.
    check_refused(v->check_objective(&config, &o, &err), err,
                  "lilicorr_w_ce, lilicorr_w_margin, lilicorr_w_pen");
    o.lattice_ce = o.lattice_margin_weight = o.lattice_penalty = 0;
    check_ok(v->check_objective(&config, &o, &err), err);
    assert_true(v->reads_teacher(&o));
    o.lattice_calibration = 0;
    assert_false(v->reads_teacher(&o));
    check_refused(v->check_objective(&config, &o, &err), err, "all of its weights are 0");
    const float wrong[] = {-.5F, NAN, INFINITY};
    for (int i = 0; i < 3; i++) {
        o.lattice_calibration = wrong[i];
        check_refused(v->check_objective(&config, &o, &err), err,
                      i < 2 ? "lilicorr_w_cal" : "infinite");
    }
}

// --- conv_projection_init_std --------------------------------------------------------------------

static bd_draft_config with_convolutions(double std)
{
    bd_draft_config c = micro_draft_config();
    c.variant = &bd_draft_lilicorr;
    c.convolution = (bd_convolution_config){2, 4, std};
    c.lilicorr = (bd_lilicorr_config){.top_k = 3,
                                      .hidden = 8,
                                      .layers = 1,
                                      .heads = 2,
                                      .factor = 8,
                                      .mlp_ratio = 2,
                                      .vector_eps = 1e-4,
                                      .logit_scale = 8};
    return c;
}

static bd_draft *created(bd_model *target, double std, uint64_t seed)
{
    bd_error err = {0};
    bd_draft_config c = with_convolutions(std);
    check_ok(bd_draft_config_complete(&c, &target->config, &err), err);
    bd_draft *draft = bd_draft_create(&c, target, seed, BD_F32, &err);
    check_ok(draft != NULL, err);
    return draft;
}

static bool is_projection(const bd_parameter *p)
{
    return strstr(p->name, "kernel_projection") != NULL;
}

static void projection_start(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model_config config = micro_target_config();
    bd_model *target = bd_model_create(&config, 1, BD_F32, &err);
    check_ok(target != NULL, err);
    bd_draft *zero = created(target, 0, 5), *some = created(target, .5, 5),
             *twice = created(target, 1, 5);
    double squares = 0, count = 0;
    for (int64_t i = 0; i < zero->parameters.count; i++) {
        const bd_parameter *z = zero->parameters.items[i], *s = some->parameters.items[i],
                           *t = twice->parameters.items[i];
        if (!is_projection(z)) { // nothing else moves with it
            assert_memory_equal(z->value, s->value, (size_t)z->count * sizeof *z->value);
            continue;
        }
        for (int64_t j = 0; j < z->count; j++) {
            check_near((double)z->value[j], 0, 0);
            check_near((double)t->value[j], 2 * (double)s->value[j], 1e-6);
            squares += (double)s->value[j] * (double)s->value[j];
            count += 1;
        }
    }
    check_near(count, 4 * (2 * 2 * 2) * 8, 0); // two of each of two layers, [2 taps groups, H]
    check_near(sqrt(squares / count), .5, .1);
    bd_draft_close(zero);
    bd_draft_close(some);
    bd_draft_close(twice);
    bd_model_close(target);
}

static void projection_refused(void **state)
{
    (void)state;
    static const struct {
        double std;
        bool convolutions;
        const char *words;
    } cases[] = {{-.1, true, "conv_projection_init_std must be >= 0"},
                 {NAN, true, "conv_projection_init_std must be >= 0"},
                 {INFINITY, true, "conv_projection_init_std must be >= 0"},
                 {.1, false, "conv_projection_init_std without conv_kernel_size"}};
    bd_model_config target = micro_target_config();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        bd_error err = {0};
        bd_draft_config c = with_convolutions(cases[i].std);
        if (!cases[i].convolutions)
            c.convolution.kernel_size = c.convolution.group_size = 0;
        check_refused(bd_draft_config_complete(&c, &target, &err), err, cases[i].words);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calibration_by_hand), cmocka_unit_test(numeric_gradient),
        cmocka_unit_test(weights_are_checked), cmocka_unit_test(projection_start),
        cmocka_unit_test(projection_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
