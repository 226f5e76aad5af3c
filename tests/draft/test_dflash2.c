/* DFlash2: golden steps; the selector's hand-computed values (T5 to T7, T10, T11 of the spec);
 * files, refusals; the text stays that of plain decoding. */
#include <math.h>

#include "base/threads.h"
#include "draft/dflash2.h"
#include "draft/speculative.h"
#include "golden.h"

static const char *const cases[] = {"dflash2-ce", "dflash2-lambda", "dflash2-tv-dpace"};

static void set_options(golden_case *c)
{
    json_t *o = json_object_get(c->json, "options"), *value;
    const char *type = json_string_value(json_object_get(o, "dflash_lk_loss_type"));
    bd_draft_objective *to = &c->objective;
    to->slot_loss = !type ? BD_SLOT_CE : !strcmp(type, "tv") ? BD_SLOT_TV : BD_SLOT_LAMBDA;
    value = json_object_get(o, "dflash_lk_ce_scale");
    to->ce_scale = value ? (float)json_number_value(value) : 1;
    value = json_object_get(o, "dflash_lk_ce_decay");
    to->ce_decay = value ? (float)json_number_value(value) : 1;
    value = json_object_get(o, "dflash_selector_loss_alpha");
    to->selector_alpha = value ? (float)json_number_value(value) : 1;
}

static void golden_steps(void **state)
{
    (void)state;
    for (size_t n = 0; n < 3; n++)
        for (int form = 0; form < 2; form++) {
            golden_case c = golden_open(cases[n], BD_F32);
            bd_error err = {0};
            bd_draft_loss loss;
            set_options(&c);
            bd_tape tape = bd_tape_begin(c.arena, BD_F32, true);
            check_ok(bd_draft_step_run(c.draft, &tape, &c.batch, &c.objective,
                                       form ? BD_DRAFT_MEAN : BD_DRAFT_SUM, NULL, &loss, &err),
                     err);
            json_t *expected = json_object_get(c.json, "expected");
            check_near(bd_draft_loss_mean(&loss),
                       json_number_value(json_object_get(expected, "loss")), 1e-5);
            for (int i = 0; i < loss.metric_count; i++) {
                const bd_draft_metric *m = &loss.metrics[i];
                check_near(m->sum / m->weight,
                           json_number_value(json_object_get(expected, m->name)), 1e-5);
            }
            assert_int_equal(loss.metric_count, json_object_size(expected) - 2);
            for (int64_t i = 0; i < c.draft->parameters.count; i++) {
                const bd_parameter *p = c.draft->parameters.items[i];
                char name[200];
                snprintf(name, sizeof name, "grads/%s", p->name);
                // The sum's gradient is the mean's times the denominator.
                if (!form)
                    bd_scale((float)(1 / bd_weight_denominator(loss.weight)), p->count,
                             p->gradient);
                check_array(p->gradient, golden_floats(c.tensors, name, c.arena), p->count, 1e-4);
            }
            golden_close(&c);
        }
}

// --- the selector by hand ------------------------------------------------------------------------

typedef struct {
    bd_parameter predecessor, successor, projection;
    bd_selector selector;
} by_hand;

static const float identity[4] = {1, 0, 0, 1};

static void hand_open(by_hand *h, const float *a, const float *b, int64_t vocabulary)
{
    const int64_t book[2] = {vocabulary, 2}, square[2] = {2, 2};
    bd_parameter_map(&h->predecessor, "predecessor", 2, book, BD_F32, a);
    bd_parameter_map(&h->successor, "successor", 2, book, BD_F32, b);
    bd_parameter_map(&h->projection, "projection", 2, square, BD_F32, identity);
    h->selector = (bd_selector){&h->predecessor, &h->successor, &h->projection};
}

static void hand_close(by_hand *h)
{
    bd_parameter_free(&h->predecessor);
    bd_parameter_free(&h->successor);
    bd_parameter_free(&h->projection);
}

static void scores(void **state)
{
    (void)state;
    by_hand h;
    const float a[10] = {0, 0, 2, 3}, b[10] = {0, 0, 0, 0, 5, 7, 0, 0, 11, 13},
                context[2] = {17, 19};
    int32_t token[2] = {2, 4};
    float logit[2] = {.5f, 1.5f}, out[2];
    const bd_candidates c = {.rows = 1, .count = 2, .token = token, .logit = logit};
    hand_open(&h, a, b, 5);
    bd_selector_scores(&h.selector, &c, 0, context, 1, out);
    check_near(out[0], 569.5, 0);
    check_near(out[1], 1116.5, 0);
    hand_close(&h);
}

// T6: a walk with a tie, which the lower index wins.
static void walk(void **state)
{
    (void)state;
    by_hand h;
    const float a[12] = {0, 0, 1, 0, 0, 1, 1, 1, 2, 0, 0, -1},
                b[12] = {1, 0, 0, 1, 1, 1, 0, 0, -1, 0, 0, 2};
    const float context[6] = {1, 1, 2, -1, 1, 2};
    int32_t token[9] = {2, 0, 4, 1, 5, 3, 5, 0, 2};
    float logit[9] = {3, 2.5f, 1, 2, 2, 0, 1.5f, 1, .5f};
    const float want[9] = {4, 3.5f, 0, 1, 0, 0, 1.5f, 2, 1.5f};
    const int32_t path[3] = {2, 1, 0};
    const bd_candidates c = {.rows = 3, .count = 3, .token = token, .logit = logit};
    hand_open(&h, a, b, 6);
    int32_t previous = 1;
    for (int64_t s = 0; s < 3; s++) {
        float out[3];
        bd_selector_scores(&h.selector, &c, s, context + 2 * s, previous, out);
        check_array(out, want + 3 * s, 3, 0);
        previous = token[3 * s + bd_argmax(out, 3)];
        assert_int_equal(previous, path[s]);
    }
    float tied[3];
    bd_selector_scores(&h.selector, &c, 1, context + 2, 0,
                       tied); // after token 0: equal logits win by order
    check_near(tied[0], 2, 0);
    check_near(tied[1], 2, 0);
    assert_int_equal(bd_argmax(tied, 3), 0);
    hand_close(&h);
}

// T7: with a fresh selector only the successors learn.
static void first_step(void **state)
{
    (void)state;
    by_hand h;
    bd_error err = {0};
    const float a[10] = {0, 0, 2, 3}, b[10] = {0}, context[2] = {17, 19};
    int32_t token[2] = {2, 4};
    float logit[2] = {.5f, 1.5f}, out[2], d[2], d_context[2] = {0};
    const bd_candidates c = {.rows = 1, .count = 2, .token = token, .logit = logit};
    hand_open(&h, a, b, 5);
    check_ok(bd_parameter_train(&h.predecessor, &err) && bd_parameter_train(&h.successor, &err),
             err);
    bd_selector_scores(&h.selector, &c, 0, context, 1, out);
    check_near((double)bd_log_sum_exp(out, 2) - (double)out[0], 1.313260374, 1e-6);
    bd_softmax(out, 2, d);
    d[0] -= 1;
    check_near(d[0], -.731057850, 1e-6);
    bd_selector_back(&h.selector, &c, 0, context, 1, d, d_context);
    check_near(h.successor.gradient[4], -24.85596682, 1e-5);
    check_near(h.successor.gradient[5], -41.67029731, 1e-5);
    check_near(h.successor.gradient[8], 24.85596682, 1e-5);
    check_near(h.predecessor.gradient[2], 0, 0);
    check_near(d_context[0], 0, 0);
    for (int i = 0; i < 10; i++)
        h.successor.value[i] -= .01f * h.successor.gradient[i];
    bd_selector_scores(&h.selector, &c, 0, context, 1, out);
    check_near(out[0], 32.70309819, 1e-5);
    check_near(out[1], -30.70309819, 1e-5);
    hand_close(&h);
}

// T10: decay gamma 2 and the mix of the two losses on given probabilities.
static void shares(void **state)
{
    (void)state;
    const double q[3] = {.027745065, .537705028, .149047011}, w[3] = {1, .606530660, .367879441};
    double sum = q[0] + q[1] + q[2], weight = w[0] + w[1] + w[2], ce = 0, tv = 0;
    for (int i = 0; i < 3; i++) {
        ce += w[i] * -log(q[i]) / bd_weight_denominator(weight);
        tv += w[i] * (1 - q[i]) / bd_weight_denominator(weight);
    }
    check_near(ce, 2.360841854, 1e-6);
    check_near(tv, .792995500, 1e-6);
    double share = bd_dflash2_share(1, 1, sum, 3);
    check_near(share, .788072158, 1e-7);
    check_near(share * ce + (1 - share) * tv, 2.028571560, 1e-6);
    share = bd_dflash2_share(.5, 2, sum, 3);
    check_near(share * ce + (1 - share) * tv, 1.279857047, 1e-6);
    check_near(bd_dflash2_share(1, 0, sum, 3), 1, 0);
    check_near(bd_dflash2_share(0, 2, sum, 3), 0, 0);
    check_near(bd_dflash2_share(1, 1, .268663645, 1), .764400528, 1e-6);
}

// --- candidates ----------------------------------------------------------------------------------

static void candidates_are_sorted(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    bd_model *target = golden_target("target-llama-tiny", BD_F32);
    int64_t V = target->config.vocabulary, H = target->config.hidden;
    enum { ROWS = 7 };
    float *hidden = bd_arena_floats(arena, ROWS * H), *logits = bd_arena_floats(arena, ROWS * V);
    check_fill(hidden, ROWS * H, 5);
    memset(hidden + 3 * H, 0, (size_t)H * sizeof *hidden); // all logits equal: by token id
    bd_model_logits(target, hidden, ROWS, logits, arena);
    bd_candidates some = bd_candidates_find(target, hidden, ROWS, 9, arena);
    bd_candidates all = bd_candidates_find(target, hidden, ROWS, V, arena);
    for (int64_t r = 0; r < ROWS; r++) {
        check_near(some.log_normalizer[r], bd_log_sum_exp(logits + r * V, V), 0);
        for (int64_t j = 0; j < V; j++) {
            int32_t token = all.token[r * V + j];
            assert_true(all.logit[r * V + j] == logits[r * V + token]);
            if (j < 9)
                assert_int_equal(some.token[r * 9 + j], token);
            if (j == 0)
                continue;
            float above = all.logit[r * V + j - 1], own = all.logit[r * V + j];
            assert_true(above > own || (above == own && all.token[r * V + j - 1] < token));
        }
    }
    for (int32_t j = 0; j < 9; j++)
        assert_int_equal(some.token[3 * 9 + j], j);
    assert_int_equal(bd_candidates_place(&some, 3, 8), 8);
    assert_int_equal(bd_candidates_place(&some, 3, 9), -1);
    bd_model_close(target);
    bd_arena_destroy(arena);
}

// --- files and refusals --------------------------------------------------------------------------

static void expect_refusal(json_t *config, const char *words)
{
    bd_error err = {0};
    bd_draft_config read;
    assert_false(bd_draft_config_parse(config, "config.json", &read, &err));
    if (!strstr(err.message, words))
        fail_msg("\"%s\" does not say \"%s\"", err.message, words);
    json_decref(config);
}

static json_t *changed(const char *field, json_t *value)
{
    json_t *config = golden_json("draft-dflash2/config"),
           *nested = json_object_get(config, "dflash_config");
    if (value)
        json_object_set_new(nested, field, value);
    else
        json_object_del(nested, field);
    return config;
}

static void configurations(void **state)
{
    (void)state;
    expect_refusal(changed("selector_rank", NULL), "requires [selector_rank]");
    expect_refusal(changed("conv_kernel_size", json_null()), "requires [conv_kernel_size]");
    expect_refusal(changed("conv_kernel_size", json_integer(5)), "must not exceed block_size (4)");
    expect_refusal(changed("conv_group_size", json_integer(5)), "divide hidden_size (32)");
    expect_refusal(changed("selector_top_k", json_integer(114)), "in [1, 113], got 114");
    expect_refusal(changed("selector_top_k", json_true()), "selector_top_k");
    expect_refusal(changed("markov_rank", json_integer(4)), "markov_rank");

    bd_draft_objective o = bd_draft_objective_default();
    bd_draft_config config = {.variant = &bd_draft_dflash2};
    bd_error err = {0};
    assert_true(bd_draft_objective_check(&config, &o, &err)); // distilled with ce
    o.slot_loss = BD_SLOT_TV;
    assert_false(bd_draft_objective_check(&config, &o, &err));
    assert_non_null(strstr(err.message, "self_logit_distillation"));
    o.distill = false;
    assert_true(bd_draft_objective_check(&config, &o, &err));
    o.selector_alpha = -1;
    assert_false(bd_draft_objective_check(&config, &o, &err));
}

// A fresh draft's convolutions are identities and its selector silent: it drafts as plain DFlash
// would.
static void fresh_is_plain(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_arena *arena = check_arena();
    bd_model *target = golden_target("target-llama-tiny", BD_F32);
    bd_draft *golden = golden_draft("draft-dflash2", target, BD_F32);
    bd_draft_config with = golden->config, without = golden->config;
    without.variant = &bd_draft_dflash;
    bd_draft *draft = bd_draft_create(&with, target, 3, BD_F32, &err);
    check_ok(draft != NULL, err);
    bd_draft *plain = bd_draft_create(&without, target, 3, BD_F32, &err);
    check_ok(plain != NULL, err);
    float features[6 * 64];
    check_fill(features, 6 * bd_draft_feature_width(draft), 9);
    const bd_hidden prompt = {features, 6};
    bd_draft *both[2] = {draft, plain};
    int32_t tokens[2][3];
    float hidden[2][4 * 32];
    for (int i = 0; i < 2; i++) {
        bd_draft_session *session = bd_draft_session_create(both[i], 16, &err);
        check_ok(session && bd_draft_begin(session, &prompt, &err), err);
        bd_proposal p = {0};
        assert_int_equal(bd_draft_propose(session, 7, &p, &err), 3);
        memcpy(tokens[i], p.tokens, sizeof tokens[i]);
        memcpy(hidden[i], p.hidden, sizeof hidden[i]);
        bd_draft_session_free(session);
    }
    check_ints("tokens", tokens[0], tokens[1], 3);
    assert_memory_equal(hidden[0], hidden[1], sizeof hidden[0]);
    bd_draft_close(draft);
    bd_draft_close(plain);
    bd_draft_close(golden);
    bd_model_close(target);
    bd_arena_destroy(arena);
}

// --- drafting ------------------------------------------------------------------------------------

static void drafts_never_change_the_text(void **state)
{
    (void)state;
    enum { NEW = 40 };
    bd_error err = {0};
    const int32_t prompt[5] = {55, 82, 92, 48, 32};
    for (int half = 0; half < 2; half++) {
        bd_dtype compute = half ? BD_BF16 : BD_F32;
        bd_model *target = golden_target("target-llama-tiny", compute);
        bd_draft *draft = golden_draft("draft-dflash2", target, compute);
        bd_generation g = bd_generation_default();
        int32_t plain[NEW], first[NEW], text[NEW];
        g.most = NEW;
        for (int threads = 1; threads <= 2; threads++)
            for (int sampled = 0; sampled < 2; sampled++) {
                bd_threads_set(threads);
                g.sampling.temperature = sampled ? .8f : 0;
                g.sampling.seed = 4;
                bd_decoder *decoder = bd_decoder_create(target, draft, 96, &err);
                bd_generation_report report;
                g.most_proposed = 0;
                assert_int_equal(bd_generate(decoder, prompt, 5, &g, plain, &report, &err), NEW);
                g.most_proposed = -1;
                assert_int_equal(bd_generate(decoder, prompt, 5, &g, text, &report, &err), NEW);
                if (!sampled) {
                    check_ints("text", text, plain, NEW);
                    assert_true(bd_accept_length(&report) > 1.5);
                } else if (threads == 1) // with a joint, the law is the target's, not the draw
                    memcpy(first, text, sizeof first);
                else
                    check_ints("sampled text", text, first, NEW);
                bd_decoder_free(decoder);
            }
        bd_threads_set(0);
        bd_draft_close(draft);
        bd_model_close(target);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_steps),
        cmocka_unit_test(scores),
        cmocka_unit_test(walk),
        cmocka_unit_test(first_step),
        cmocka_unit_test(shares),
        cmocka_unit_test(candidates_are_sorted),
        cmocka_unit_test(configurations),
        cmocka_unit_test(fresh_is_plain),
        cmocka_unit_test(drafts_never_change_the_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
