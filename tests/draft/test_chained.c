/* DSpark and Domino: the micro model of draft-family 11.3 (M3, M4, M6 to M9), hand cases (T27, T31,
 * T33 to T35), zero steps (B1), and text that no draft changes. The golden cases: bdlm probe. */
#include "base/threads.h"
#include "draft/domino.h"
#include "draft/dspark.h"
#include "draft/speculative.h"
#include "micro.h"

enum { DOMINO = 3, FORMS = 4 }; // 0 to 2: DSpark by kind of its head

static void fill_head(micro *m, const char *name, int64_t tensor, double scale)
{
    bd_parameter *p = bd_parameters_find(&m->draft->parameters, name);
    if (p)
        micro_parameter(p, tensor, scale, 0);
}

static const struct {
    const char *name;
    int64_t tensor;
    double scale;
} head_tensors[] = {
    {"prefix_gru.weight_ih_l0", 70, .5}, {"prefix_gru.weight_hh_l0", 71, .5},
    {"embed_proj.0.weight", 72, .5},     {"embed_proj.2.weight", 73, .5},
    {"markov_w1.weight", 80, 1},         {"markov_w2.weight", 81, .5},
    {"gate_proj.weight", 82, .5},        {"gate_proj.bias", 83, .5},
    {"joint_proj.weight", 84, .5},       {"joint_proj.bias", 85, .5},
    {"confidence_proj.weight", 86, .5},  {"confidence_proj.bias", 87, .5},
};
enum { HEAD_TENSORS = sizeof head_tensors / sizeof head_tensors[0] };

static bd_draft_config form_config(int form, int64_t prefix)
{
    bd_draft_config config = micro_draft_config();
    config.variant = form == DOMINO ? &bd_draft_domino : &bd_draft_dspark;
    config.markov = (bd_markov_config){4, form == DOMINO ? 0 : (bd_markov_kind)form, true};
    config.domino = (bd_domino_config){.state = 6, .width = 5, .pure_prefix = prefix};
    return config;
}

static micro *open_form(int form, int64_t prefix)
{
    bd_error err = {0};
    micro *m = micro_open();
    bd_draft_close(m->draft);
    bd_draft_config config = form_config(form, prefix);
    check_ok(bd_draft_config_complete(&config, &m->target->config, &err), err);
    m->draft = bd_draft_create(&config, m->target, 1, BD_F32, &err);
    check_ok(m->draft && bd_draft_train(m->draft, &err), err);
    micro_weights(m);
    for (int i = 0; i < HEAD_TENSORS; i++)
        fill_head(m, head_tensors[i].name, head_tensors[i].tensor, head_tensors[i].scale);
    return m;
}

static bd_draft_objective form_objective(float lambda)
{
    bd_draft_objective o = bd_draft_objective_default();
    o.weighting = (bd_weighting){.objective = BD_WEIGHT_DECAY, .decay = 4, .alpha = .5f};
    o.confidence_alpha = 1;
    o.lambda = lambda;
    return o;
}

static bd_draft_loss step_with(micro *m, bd_draft_objective o, bd_draft_record *record)
{
    bd_error err = {0};
    bd_arena *arena = check_arena();
    bd_draft_loss loss;
    bd_parameters_zero_gradients(&m->draft->parameters);
    bd_tape tape = bd_tape_begin(arena, m->draft->compute, true);
    check_ok(bd_draft_step_run(m->draft, &tape, &m->batch, &o, BD_DRAFT_MEAN, record, &loss, &err),
             err);
    bd_arena_destroy(arena);
    return loss;
}

static double metric(const bd_draft_loss *loss, const char *name)
{
    for (int i = 0; i < loss->metric_count; i++)
        if (!strcmp(loss->metrics[i].name, name))
            return loss->metrics[i].weight > 0 ? loss->metrics[i].sum / loss->metrics[i].weight : 0;
    fail_msg("no metric %s", name);
    return 0;
}

static void dspark_losses(void **state) // M3
{
    (void)state;
    const double want[3][6] = {
        {2.622750660970, 3.983622835397, 1.343198060759, 1.015510122748, .133333324444, .1333333},
        {2.628096276270, 3.950373617198, 1.348150670081, 1.019723311477, .066666662222, .1333333},
        {2.692683809258, 3.958820675189, 1.391198330369, 1.044723244407, .133333324444, .1333333}};
    for (int form = 0; form < 3; form++) {
        micro *m = open_form(form, 1);
        for (int distill = 0; distill < 2; distill++) { // B8
            bd_draft_objective o = form_objective(1);
            o.distill = distill;
            if (distill)
                o.weighting.objective = BD_WEIGHT_DPACE;
            bd_draft_loss loss = step_with(m, o, NULL);
            check_near(bd_draft_loss_mean(&loss), want[form][0], 2e-6);
            check_near(metric(&loss, "ce_loss"), want[form][1], 2e-6);
            check_near(metric(&loss, "l1_loss"), want[form][2], 2e-6);
            check_near(metric(&loss, "confidence_loss"), want[form][3], 2e-6);
            check_near(bd_top1(loss.correct, loss.supervised), want[form][4], 1e-6);
            check_near(metric(&loss, "base_accuracy"), want[form][5], 1e-6);
        }
        micro_close(m);
    }
}

static void domino_losses(void **state) // M4
{
    (void)state;
    const double final[4] = {3.885865615141, 3.884993225682, 3.965524516483, 3.935378045686};
    for (int prefix = 0; prefix < 4; prefix++) {
        micro *m = open_form(DOMINO, prefix);
        bd_draft_loss loss = step_with(m, form_objective(.25f), NULL);
        check_near(metric(&loss, "final_loss"), final[prefix], 2e-6);
        check_near(metric(&loss, "base_loss"), 3.944878484216, 2e-6);
        if (prefix == 1)
            check_near(bd_draft_loss_mean(&loss), 3.899964540315, 2e-6);
        micro_close(m);
    }
}

static const struct {
    int form;
    const char *name;
    double norm, dot;
    int64_t tensor;
} gradients[] = {
    // M9
    {2, "fc.weight", 0.39241215, 0.45779494, 10},
    {2, "norm.weight", 0.41833168, 0.34989098, 12},
    {2, "layers.0.self_attn.v_proj.weight", 0.32706301, 0.23460605, 22},
    {3, "fc.weight", 0.89314612, 0.19701755, 10},
    {3, "norm.weight", 0.99691827, 0.56071431, 12},
    {3, "layers.0.self_attn.v_proj.weight", 1.09710980, 1.18957359, 22},
    {0, "markov_w1.weight", 0.13172433, -0.00603647, 80},
    {0, "markov_w2.weight", 0.10165883, -0.04436175, 81},
    {0, "confidence_proj.weight", 0.61489195, 0.02385954, 86},
    {0, "confidence_proj.bias", 0.36497274, 0.15568767, 87},
    {1, "markov_w1.weight", 0.13355361, -0.00280464, 80},
    {1, "markov_w2.weight", 0.05613483, -0.02404461, 81},
    {1, "gate_proj.weight", 0.01057787, -0.01344663, 82},
    {1, "gate_proj.bias", 0.00361072, -0.00106402, 83},
    {2, "markov_w1.weight", 0.14228304, 0.03053522, 80},
    {2, "markov_w2.weight", 0.10073941, 0.05168985, 81},
    {2, "joint_proj.weight", 0.08731489, 0.00026273, 84},
    {2, "joint_proj.bias", 0.02096254, 0.00958446, 85},
    {3, "prefix_gru.weight_ih_l0", 0.03478196, 0.00105039, 70},
    {3, "prefix_gru.weight_hh_l0", 0.00597449, 0.00015890, 71},
    {3, "embed_proj.0.weight", 0.15952653, -0.11731464, 72},
    {3, "embed_proj.2.weight", 0.12159245, 0.07363483, 73},
};

static void gradients_of_every_form(void **state)
{
    (void)state;
    for (int form = 0; form < FORMS; form++) {
        micro *m = open_form(form, 1);
        step_with(m, form_objective(.25f), NULL);
        for (size_t i = 0; i < sizeof gradients / sizeof gradients[0]; i++) {
            if (gradients[i].form != form)
                continue;
            const bd_parameter *p = bd_parameters_find(&m->draft->parameters, gradients[i].name);
            double squares = 0, dot = 0;
            for (int64_t n = 0; n < p->count; n++) {
                squares += (double)p->gradient[n] * (double)p->gradient[n];
                dot += (double)p->gradient[n] * micro_value(gradients[i].tensor + 1000, n, 1, 0);
            }
            check_near(sqrt(squares), gradients[i].norm, 5e-6);
            check_near(dot, gradients[i].dot, 5e-6);
        }
        micro_close(m);
    }
}

static void nothing_to_supervise_is_a_step_of_zeros(void **state) // B1
{
    (void)state;
    for (int form = 0; form < FORMS; form++)
        for (int kept = 0; kept < 2; kept++) {
            micro *m = open_form(form, 1);
            memset(m->keep, 0, sizeof m->keep);
            memset(m->loss_mask, 0, sizeof m->loss_mask);
            m->keep[0] = (uint8_t)kept;
            m->loss_mask[m->anchor[0] + 2] = 1; // slot 1: a weight of e^(-1/4)
            bd_draft_loss loss = step_with(m, form_objective(.25f), NULL);
            assert_true(bd_draft_loss_mean(&loss) == 0 && loss.metric_count == 4);
            for (int64_t i = 0; i < m->draft->parameters.count; i++) {
                const bd_parameter *p = m->draft->parameters.items[i];
                for (int64_t n = 0; n < p->count; n++)
                    assert_true(p->gradient[n] == 0);
            }
            micro_close(m);
        }
}

// --- drafting ------------------------------------------------------------------------------------

static void expect_drafts(micro *m, int64_t context, int32_t token, const int32_t want[4])
{
    bd_error err = {0};
    bd_draft_session *s = bd_draft_session_create(m->draft, 32, &err);
    check_ok(bd_draft_begin(s, &(bd_hidden){m->features, context}, &err), err);
    bd_proposal p = {.limit = 9};
    assert_int_equal(bd_draft_propose(s, token, &p, &err), 4);
    check_ints("drafts", p.tokens, want, 4);
    bd_draft_session_free(s);
}

static void micro_drafts(void **state) // M6, M7
{
    (void)state;
    const int32_t first[FORMS][4] = {{4, 8, 2, 6}, {4, 8, 2, 6}, {10, 8, 8, 3}, {10, 8, 8, 6}};
    const int32_t second[3][4] = {{1, 10, 8, 2}, {1, 8, 2, 8}, {3, 8, 8, 3}};
    for (int form = 0; form < FORMS; form++) {
        micro *m = open_form(form, 1);
        fill_head(m, "markov_w2.weight", 81, 2);
        fill_head(m, "embed_proj.2.weight", 73, 4);
        expect_drafts(m, 1, 7, first[form]);
        if (form < DOMINO)
            expect_drafts(m, 5, 2, second[form]);
        else
            expect_drafts(m, 1, 2, (int32_t[]){1, 2, 2, 6});
        micro_close(m);
    }
    micro *m = open_form(DOMINO, 0);
    fill_head(m, "embed_proj.2.weight", 73, 4);
    expect_drafts(m, 1, 7, (int32_t[]){7, 8, 8, 10});
    micro_close(m);
}

/* Drafts are the arg max of the training head, fed the drafts themselves (M8, B9). */
static void drafts_are_the_trained_head(void **state)
{
    (void)state;
    for (int form = 0; form < FORMS; form++) {
        bd_error err = {0};
        micro *m = open_form(form, 1);
        static float logits[4 * MICRO_V];
        int32_t anchor = 5;
        bd_draft_session *s = bd_draft_session_create(m->draft, 32, &err);
        check_ok(bd_draft_begin(s, &(bd_hidden){m->features, anchor}, &err), err);
        bd_proposal p = {.limit = 0};
        assert_int_equal(bd_draft_propose(s, m->tokens[anchor], &p, &err), 4);
        memcpy(m->tokens + anchor + 1, p.tokens, 3 * sizeof *p.tokens);
        const bd_anchors one = {.blocks = 1, .anchor = &anchor, .keep = (uint8_t[]){1}};
        m->batch.rows = 1;
        m->batch.anchors = &one;
        bd_draft_record record = {.final_logits = logits};
        step_with(m, form_objective(.25f), &record);
        check_array(p.logits, logits, 4 * MICRO_V, 1e-5);
        int32_t best[4];
        bd_best_tokens(logits, 4, MICRO_V, best);
        check_ints("drafts", p.tokens, best, 4);
        bd_draft_session_free(s);
        micro_close(m);
    }
}

static void drafts_never_change_the_text(void **state)
{
    (void)state;
    enum { NEW = 24 };
    const int32_t prompt[3] = {3, 1, 4};
    for (int i = 0; i < 2 * FORMS; i++) {
        bd_error err = {0};
        micro *m = open_form(i / 2, 1);
        m->target->compute = m->draft->compute = i % 2 ? BD_BF16 : BD_F32;
        bd_generation g = bd_generation_default();
        g.most = NEW;
        int32_t plain[NEW], drafted[NEW];
        for (int threads = 1; threads <= 2; threads++) {
            bd_threads_set(threads);
            bd_decoder *d = bd_decoder_create(m->target, m->draft, 64, &err);
            g.most_proposed = 0;
            assert_int_equal(bd_generate(d, prompt, 3, &g, plain, NULL, &err), NEW);
            g.most_proposed = -1;
            assert_int_equal(bd_generate(d, prompt, 3, &g, drafted, NULL, &err), NEW);
            assert_memory_equal(plain, drafted, sizeof plain);
            bd_decoder_free(d);
        }
        micro_close(m);
    }
}

/* The second new token follows the target's distribution, whatever the draft proposes for it. */
static void sampled_text_follows_the_target(void **state)
{
    (void)state;
    enum { RUNS = 3000 };
    const int32_t prompt[3] = {3, 1, 4};
    for (int form = 2; form < FORMS; form++) {
        bd_error err = {0};
        micro *m = open_form(form, 1);
        bd_decoder *d = bd_decoder_create(m->target, m->draft, 64, &err);
        double count[2][MICRO_V] = {{0}}, chi = 0;
        for (int run = 0; run < 2 * RUNS; run++) {
            bd_generation g = bd_generation_default();
            int32_t out[2 + 1];
            g.most = 3;
            g.sampling.temperature = 1;
            g.sampling.seed = (uint64_t)run;
            g.most_proposed = run < RUNS ? -1 : 0;
            assert_int_equal(bd_generate(d, prompt, 3, &g, out, NULL, &err), 3);
            count[run >= RUNS][out[1]]++;
        }
        for (int v = 0; v < MICRO_V; v++)
            if (count[0][v] + count[1][v] > 0)
                chi += (count[0][v] - count[1][v]) * (count[0][v] - count[1][v]) /
                       (count[0][v] + count[1][v]);
        assert_true(chi < 35); // 10 degrees of freedom: beyond 35 once in 8000
        bd_decoder_free(d);
        micro_close(m);
    }
}

// --- by hand -------------------------------------------------------------------------------------

static void confidence_by_hand(void **state) // T27
{
    (void)state;
    double slope;
    check_near(bd_dspark_confidence_loss(0, .75, &slope), .6931472, 5e-7);
    check_near(slope, -.25, 1e-12);
    check_near(bd_dspark_confidence_loss(log(3), .75, &slope), .5623351, 5e-7);
    check_near(bd_dspark_confidence_loss(-log(3), .75, &slope), 1.1116413, 5e-7);
}

static void recurrences_by_hand(void **state) // T31, T35
{
    (void)state;
    bd_arena *arena = check_arena();
    bd_tape tape = bd_tape_begin(arena, BD_F32, false);
    bd_parameter u, j, b;
    bd_parameter_map(&u, "u", 2, (int64_t[]){3, 1}, BD_F32, (float[]){1, 1, 2});
    float x[3] = {.5f, -.5f, 1}, h = .5f, zero = 0;
    bd_value *input = bd_tape_constant(&tape, x, 1, 3);
    check_near(bd_op_gru(&tape, input, &u, 1, &h)->data[0], .7195905, 5e-7);
    check_near(h, .7195905, 5e-7);
    check_near(bd_op_gru(&tape, input, &u, 1, &zero)->data[0], .4740614, 5e-7);
    float weight[6 * 3] = {0};
    bd_parameter_map(&j, "j", 2, (int64_t[]){6, 3}, BD_F32, weight);
    bd_parameter_map(&b, "b", 1, (int64_t[]){6}, BD_F32, (float[]){0, 0, .5f, -.5f, 1, 0});
    float seen[2] = {0}, memory[2] = {0};
    bd_op_gated_memory(&tape, bd_tape_constant(&tape, seen, 1, 1), &j, &b, 1, memory);
    check_array(memory, ((float[]){.2310586f, -.2310586f}), 2, 5e-7);
    bd_value *y = bd_op_gated_memory(&tape, bd_tape_constant(&tape, seen, 1, 1), &j, &b, 1, memory);
    check_array(memory, ((float[]){.3465879f, -.3465879f}), 2, 5e-7);
    check_array(y->data, ((float[]){.7615942f, 0}), 2, 5e-7);
    bd_parameter_free(&u);
    bd_parameter_free(&j);
    bd_parameter_free(&b);
    bd_arena_destroy(arena);
}

static void bad_heads_are_refused(void **state)
{
    (void)state;
    bd_error err = {0};
    micro *m = open_form(0, 1);
    bd_draft_config config = form_config(0, 1);
    config.markov.rank = 0;
    check_refused(bd_draft_config_complete(&config, &m->target->config, &err), err,
                  "markov_rank > 0, got 0");
    config = form_config(DOMINO, MICRO_BS);
    check_refused(bd_draft_config_complete(&config, &m->target->config, &err), err,
                  "pure_draft_prefix_len must be in [0, 3]");
    config.domino.state = config.domino.width = 0;
    check_refused(bd_draft_config_complete(&config, &m->target->config, &err), err,
                  "emb_dim and gru_hidden_dim");
    config = m->draft->config;
    config.markov.confidence = false;
    bd_draft_objective o = form_objective(1);
    check_refused(bd_draft_objective_check(&config, &o, &err), err,
                  "confidence head was not built");
    bd_markov_kind kind;
    check_refused(bd_markov_from_name("other", &kind, &err), err, "vanilla, gated or rnn");
    assert_true(bd_markov_from_name("RNN", &kind, &err) && kind == BD_MARKOV_RNN);
    micro_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dspark_losses),
        cmocka_unit_test(domino_losses),
        cmocka_unit_test(gradients_of_every_form),
        cmocka_unit_test(nothing_to_supervise_is_a_step_of_zeros),
        cmocka_unit_test(micro_drafts),
        cmocka_unit_test(drafts_are_the_trained_head),
        cmocka_unit_test(drafts_never_change_the_text),
        cmocka_unit_test(sampled_text_follows_the_target),
        cmocka_unit_test(confidence_by_hand),
        cmocka_unit_test(recurrences_by_hand),
        cmocka_unit_test(bad_heads_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
