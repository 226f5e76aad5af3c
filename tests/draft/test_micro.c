/* The micro model of draft-family 11.3: outputs (M1), losses (M2), drafts (M5) and gradients (M9).
 */
#include "draft/session.h"
#include "micro.h"

#define TOLERANCE 2e-6 // values were computed in double

static const bd_weighting decay = {.objective = BD_WEIGHT_DECAY, .decay = 4, .alpha = .5f};
static const bd_weighting dpace = {.objective = BD_WEIGHT_DPACE, .alpha = .5f};

static void formula(void **state)
{
    (void)state;
    const double want[4] = {.91808192, -.72327672, -.79020979, .71728272};
    for (int i = 0; i < 4; i++)
        check_near(micro_value(1, i, 1, 0), want[i], 5e-9);
    check_near(micro_value(90, 1, 1, 0), -.35464535, 5e-9);
    micro *m = micro_open();
    const int32_t tokens[24] = {0, 7, 0, 6, 5, 7, 5, 6, 0, 7, 7, 3,
                                2, 4, 9, 0, 1, 8, 1, 4, 0, 2, 7, 5};
    assert_memory_equal(m->tokens, tokens, sizeof tokens);
    micro_close(m);
}

static double sum_of(const float *x, int64_t count)
{
    double sum = 0;
    for (int64_t i = 0; i < count; i++)
        sum += (double)x[i];
    return sum;
}

static void outputs(void **state)
{
    (void)state;
    enum { VALUES = MICRO_B * MICRO_N * MICRO_BS * MICRO_H };
    micro *m = micro_open();
    static float hidden[VALUES];
    bd_draft_record record = {.hidden = hidden};
    micro_step(m, false, decay, &record);
    const float first[8] = {.79607575577f,   -.97359172131f, -.90627925206f, .27428372862f,
                            -1.11563704718f, -.97776918178f, 1.43049407691f, -.69850170489f};
    check_array(hidden, first, 8, TOLERANCE);
    check_near(hidden[(1 * MICRO_BS + 2) * MICRO_H], .78226531704, TOLERANCE);
    check_near(hidden[(1 * MICRO_BS + 2) * MICRO_H + 1], .76607370727, TOLERANCE);
    check_near(hidden[(4 * MICRO_BS + 3) * MICRO_H], -.98304792478, TOLERANCE);
    check_near(hidden[(4 * MICRO_BS + 3) * MICRO_H + 1], -.95765779195, TOLERANCE);
    double squares = 0;
    for (int i = 0; i < VALUES; i++)
        squares += (double)hidden[i] * (double)hidden[i];
    check_near(sum_of(hidden, VALUES), -40.11967438341, TOLERANCE); // blocks not kept are 0
    check_near(squares, 152.04054114300, TOLERANCE);

    m->draft->config.window = 5;
    micro_step(m, false, decay, &record);
    check_near(sum_of(hidden, VALUES), -42.28213057502, TOLERANCE);
    m->draft->config.causality = BD_DRAFT_CAUSAL;
    micro_step(m, false, decay, &record);
    check_near(sum_of(hidden, VALUES), -20.44037466913, TOLERANCE);
    m->draft->config.window = 0;
    micro_step(m, false, decay, &record);
    check_near(sum_of(hidden, VALUES), -30.01839649812, TOLERANCE);
    micro_close(m);
}

static double mean_loss(micro *m, bool distill, bd_weighting weighting, double weight)
{
    bd_draft_loss loss = micro_step(m, distill, weighting, NULL);
    check_near(loss.weight, weight, TOLERANCE);
    check_near(bd_top1(loss.correct, loss.supervised), .153846142012, 1e-9);
    return bd_weighted_mean(loss.sum, loss.weight);
}

static void losses(void **state)
{
    (void)state;
    micro *m = micro_open();
    check_near(mean_loss(m, false, decay, 10.320126554208), 3.549198153258, TOLERANCE);
    check_near(mean_loss(m, true, decay, 10.320126554208), 3.951514533935, TOLERANCE);
    check_near(mean_loss(m, false, dpace, 7.250716172811), 3.431915992554, TOLERANCE);
    check_near(mean_loss(m, true, dpace, 7.250716172811), 3.683159779923, TOLERANCE);
    float weights[MICRO_B * MICRO_N * MICRO_BS];
    bd_draft_record record = {.weights = weights};
    micro_step(m, false, dpace, &record);
    check_array(weights,
                ((float[]){0, 1.02437176023f, .48746892415f, .16971129548f, 0, 0, .78878433776f,
                           .26699656986f}),
                8, TOLERANCE);
    m->draft->config.window = 5;
    bd_draft_loss loss = micro_step(m, false, decay, NULL);
    check_near(bd_weighted_mean(loss.sum, loss.weight), 3.082254693189, TOLERANCE);
    m->draft->config.window = 0;
    m->draft->config.causality = BD_DRAFT_CAUSAL;
    loss = micro_step(m, false, decay, NULL);
    check_near(bd_weighted_mean(loss.sum, loss.weight), 3.590818700069, TOLERANCE);
    micro_close(m);
}

static void drafts(void **state)
{
    (void)state;
    bd_error err = {0};
    micro *m = micro_open();
    bd_draft_session *s = bd_draft_session_create(m->draft, 16, &err);
    check_ok(s != NULL, err);
    const bd_hidden five = {.features = m->features, .rows = 5};
    check_ok(bd_draft_begin(s, &five, &err), err);
    bd_proposal p = {.limit = 9};
    assert_int_equal(bd_draft_propose(s, 7, &p, &err), 3);
    check_ints("M5", p.tokens, (int32_t[]){8, 8, 8}, 3);
    assert_null(p.q);
    p.limit = 2;
    assert_int_equal(bd_draft_propose(s, 7, &p, &err), 2); // T39: at most as many as asked for
    m->draft->config.window = 5;
    p.limit = 0;
    assert_int_equal(bd_draft_propose(s, 7, &p, &err), 3);
    check_ints("M5 windowed", p.tokens, (int32_t[]){8, 3, 1}, 3);
    bd_draft_session_free(s);
    micro_close(m);
}

static const struct {
    const char *name;
    double ce_norm, ce_dot, kd_norm, kd_dot;
} gradients[] = {
    {"fc.weight", 2.36715909, 0.55349420, 1.29380181, 0.13780480},
    {"hidden_norm.weight", 1.03788566, 0.38434528, 0.36543571, 0.17729801},
    {"layers.0.self_attn.q_proj.weight", 1.72445529, 1.15370694, 1.01075320, 0.69681964},
    {"layers.0.self_attn.k_proj.weight", 0.86288870, -0.18194635, 0.73459715, 0.14890945},
    {"layers.0.self_attn.v_proj.weight", 2.90630192, 0.90251365, 1.28240716, 1.14508327},
    {"layers.0.self_attn.o_proj.weight", 2.30632273, 0.40381813, 1.54472342, -0.56870767},
    {"layers.0.self_attn.q_norm.weight", 0.38573512, -0.00154792, 0.28545994, -0.04110640},
    {"layers.0.self_attn.k_norm.weight", 0.56900033, -0.48192293, 0.38885936, -0.27395426},
    {"layers.0.mlp.gate_proj.weight", 2.13519169, 0.31534589, 1.38489170, 0.28950136},
    {"layers.0.mlp.up_proj.weight", 1.73568585, -2.19808639, 0.95790172, -0.22472696},
    {"layers.0.mlp.down_proj.weight", 1.80258220, -0.70230760, 1.52662693, 0.99273902},
    {"layers.0.input_layernorm.weight", 1.11082388, -0.99656300, 0.35109984, -0.34531706},
    {"layers.0.post_attention_layernorm.weight", 0.82379219, -0.51800376, 0.52013231, 0.02502765},
    {"layers.1.self_attn.q_proj.weight", 0.41109348, 0.11572698, 0.50603347, 0.15322448},
    {"layers.1.self_attn.k_proj.weight", 0.31290587, -0.21172008, 0.36404885, -0.16394866},
    {"layers.1.self_attn.v_proj.weight", 0.87927603, 1.34367614, 0.65264059, -0.13389333},
    {"layers.1.self_attn.o_proj.weight", 1.00181378, 0.42376651, 0.66045196, 0.44299005},
    {"layers.1.self_attn.q_norm.weight", 0.17445703, 0.09684253, 0.10049334, 0.06478616},
    {"layers.1.self_attn.k_norm.weight", 0.11112138, -0.00054761, 0.09463974, -0.06106246},
    {"layers.1.mlp.gate_proj.weight", 0.72629313, -0.57634782, 0.71153286, -0.27715705},
    {"layers.1.mlp.up_proj.weight", 1.11103812, 0.11105767, 0.69834989, 0.10321591},
    {"layers.1.mlp.down_proj.weight", 1.43071933, -0.76387904, 1.08923223, -0.78671153},
    {"layers.1.input_layernorm.weight", 0.21219707, 0.14701461, 0.32022936, 0.17094725},
    {"layers.1.post_attention_layernorm.weight", 0.32199061, -0.18763388, 0.41296039, -0.10727594},
    {"norm.weight", 1.13492623, 0.77153279, 1.02849537, 0.52230044},
};
enum { GRADIENTS = sizeof gradients / sizeof gradients[0] };

/* The number of the formula a parameter was filled with. */
static int64_t formula_of(const char *name)
{
    static const char *const parts[] = {"q_proj",    "k_proj",  "v_proj",   "o_proj",
                                        "q_norm",    "k_norm",  "input_",   "post_attention_",
                                        "gate_proj", "up_proj", "down_proj"};
    if (!strncmp(name, "layers.", 7))
        for (int i = 0; i < 11; i++)
            if (strstr(name, parts[i]))
                return 20 + 20 * (name[7] - '0') + i;
    return !strncmp(name, "fc", 2) ? 10 : !strncmp(name, "hidden", 6) ? 11 : 12;
}

static void check_gradient(const micro *m, int i, bool distill)
{
    const bd_parameter *p = bd_parameters_find(&m->draft->parameters, gradients[i].name);
    assert_non_null(p);
    double squares = 0, dot = 0;
    for (int64_t n = 0; n < p->count; n++) {
        squares += (double)p->gradient[n] * (double)p->gradient[n];
        dot += (double)p->gradient[n] * micro_value(formula_of(p->name) + 1000, n, 1, 0);
    }
    double norm = distill ? gradients[i].kd_norm : gradients[i].ce_norm;
    check_near(sqrt(squares), norm, 5e-6);
    check_near(dot, distill ? gradients[i].kd_dot : gradients[i].ce_dot, 5e-6);
}

static void gradients_of_both_losses(void **state)
{
    (void)state;
    micro *m = micro_open();
    assert_int_equal(m->draft->parameters.count, GRADIENTS);
    micro_step(m, false, decay, NULL);
    for (int i = 0; i < GRADIENTS; i++)
        check_gradient(m, i, false);
    micro_step(m, true, dpace, NULL);
    for (int i = 0; i < GRADIENTS; i++)
        check_gradient(m, i, true);
    micro_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formula),
        cmocka_unit_test(outputs),
        cmocka_unit_test(losses),
        cmocka_unit_test(drafts),
        cmocka_unit_test(gradients_of_both_losses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
