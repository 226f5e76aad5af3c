/* Hand cases of draft-family: norms and rotary positions (T03, T36), losses and totals (T24 to T26, T28 to T30), heads (T32 to T35), how
 * many tokens a block gives (T39), a chain (T40), tensor counts of the heads (T44). Each runs the
 * code that training and drafting run, on a head written out here. */
#include "draft/domino.h"
#include "draft/dspark.h"
#include "draft/lambda.h"
#include "ints.h"
#include "tensor/rows.h"
#include "tensor/vocabulary.h"

enum { MOST = 9 };

/* A target that is all head, and a draft that is all correction. */
typedef struct {
    bd_arena *arena;
    bd_tape tape;
    bd_model target;
    bd_draft draft;
    bd_parameter tensor[8];
    int tensors;
} hand;

static bd_parameter *tensor_of(hand *h, int64_t rows, int64_t columns, const float *values)
{
    bd_parameter *p = &h->tensor[h->tensors++];
    bd_parameter_map(p, "by hand", rows ? 2 : 1,
                     rows ? (int64_t[]){rows, columns} : (int64_t[]){columns}, BD_F32, values);
    return p;
}

static const float zeros[MOST * MOST] = {0};

static const float *identity(int64_t n)
{
    static float one[MOST * MOST];
    memset(one, 0, sizeof one);
    for (int64_t i = 0; i < n; i++)
        one[i * n + i] = 1;
    return one;
}

static void hand_open(hand *h, const bd_draft_variant *variant, int64_t vocabulary, int64_t hidden,
                      const float *target_head)
{
    *h = (hand){.arena = check_arena()};
    h->tape = bd_tape_begin(h->arena, BD_F32, false);
    h->target.compute = h->draft.compute = BD_F32;
    h->target.config.vocabulary = vocabulary;
    h->target.config.hidden = hidden;
    h->target.head = tensor_of(h, vocabulary, hidden, target_head);
    h->draft.target = &h->target;
    h->draft.config.variant = variant;
    h->draft.config.block_size = 4;
    h->draft.config.stack.vocabulary = vocabulary;
    h->draft.config.stack.hidden = hidden;
}

static void hand_close(hand *h)
{
    for (int i = 0; i < h->tensors; i++)
        bd_parameter_free(&h->tensor[i]);
    bd_arena_destroy(h->arena);
}

/* The loss of one block of two supervised slots in a row of four tokens, all of them `token`. */
static bd_draft_loss loss_of(hand *h, const float *hidden, int32_t token, bd_draft_objective o)
{
    int32_t tokens[4] = {token, token, token, token}, anchor = 0;
    float mask[4] = {1, 1, 1, 1}, teacher[8] = {0}, weights[2] = {0};
    const bd_anchors anchors = {.blocks = 1, .anchor = &anchor, .keep = (uint8_t[]){1}};
    const bd_draft_batch batch = {.rows = 1,
                                  .length = 4,
                                  .tokens = tokens,
                                  .loss_mask = mask,
                                  .anchors = &anchors,
                                  .teacher_kind = BD_TEACHER_LOGITS,
                                  .teacher = teacher};
    bd_draft_loss loss = {0};
    h->draft.config.block_size = 2;
    bd_draft_step step = {.draft = &h->draft,
                          .tape = &h->tape,
                          .batch = &batch,
                          .objective = &o,
                          .form = BD_DRAFT_MEAN,
                          .blocks = {1, 4, 2, tokens, mask, &anchors},
                          .slots = 2,
                          .hidden = bd_tape_constant(&h->tape, hidden, 2, h->target.config.hidden),
                          .weights = weights};
    step.targets = bd_block_targets_make(&step.blocks, 1, h->arena);
    h->draft.config.variant->loss(&step, &loss);
    return loss;
}

static bd_draft_objective unweighted(void)
{
    bd_draft_objective o = bd_draft_objective_default();
    o.weighting = (bd_weighting){.objective = BD_WEIGHT_DECAY};
    return o;
}

// --- rows ------------------------------------------------------------------------------------------

static void norms(void **state) // T03; a gemma norm's weights 0, 1 are 1, 2 here
{
    (void)state;
    const float x[2] = {3, 4};
    const struct {
        float weight[2], want[2];
    } cases[3] = {{{1, 1}, {.8485281f, 1.1313708f}},
                  {{2, .5f}, {1.6970563f, .5656854f}},
                  {{1, 2}, {.8485281f, 2.2627417f}}};
    for (int i = 0; i < 3; i++) {
        float y[2];
        bd_rms_norm(x, cases[i].weight, 0, 1, 2, y, NULL);
        check_array(y, cases[i].want, 2, 2e-7);
    }
}

static void rotary_positions(void **state) // T36
{
    (void)state;
    const double frequency[2] = {1, .01}; // of theta 10,000 and four values
    const bd_rope rope = {.head_size = 4, .inverse_frequency = frequency, .factor = 1};
    const float unit[8] = {1, 0, 0, 0, 0, 1, 0, 0};
    const float want[8] = {.5403023f, 0, .8414710f, 0, 0, .9999500f, 0, .0099998f};
    float y[8];
    bd_rope_forward(&rope, unit, (const int32_t[]){1}, 1, 2, y);
    check_array(y, want, 8, 1e-7);
}

// --- losses --------------------------------------------------------------------------------------

/* One row of logits [2] against a label or a teacher; its gradient goes to d. */
static void judge(const float *logits, int32_t label, const float *teacher, bool distance,
                  float *loss, float *d)
{
    const float one = 1;
    bd_vocabulary_loss pass = {.rows = 1, .vocabulary = 2, .scale = &one, .targets = &label};
    const float *const rows[1] = {teacher};
    pass.teacher_logits = teacher ? rows : NULL;
    pass.temperature = 1;
    if (!teacher) {
        pass.hard = 1;
        pass.hard_loss = loss;
    } else if (distance) {
        pass.divergence = BD_DIVERGENCE_TOTAL_VARIATION;
        pass.divergence_weight = 1;
        pass.divergence_loss = loss;
    } else {
        pass.soft = 1;
        pass.soft_loss = loss;
    }
    bd_vocabulary_loss_on_logits(&pass, logits, d);
}

static const float even[2] = {0, 0}, first[2] = {1.0986123f, 0}, second[2] = {0, 1.0986123f};

static void one_row_losses(void **state)
{
    (void)state;
    float loss, d[2];
    judge(second, 1, NULL, false, &loss, d); // T24
    check_near(loss, .2876821, 5e-7);
    judge(second, 0, NULL, false, &loss, d);
    check_near(loss, 1.3862944, 5e-7);
    judge(even, 0, second, false, &loss, d); // T25
    check_near(loss, .6931472, 5e-7);
    judge(first, 0, second, false, &loss, d);
    check_near(loss, 1.1116413, 5e-7);
    check_array(d, ((float[]){.5f, -.5f}), 2, 1e-6);
    judge(second, 0, second, false, &loss, d);
    check_near(loss, .5623351, 5e-7);      // the entropy, not 0
    judge(first, 0, even, true, &loss, d); // T26
    check_near(loss, .5, 5e-7);
    check_near(1 - (double)loss / 2, .75, 5e-7);
    check_array(d, ((float[]){.375f, -.375f}), 2, 1e-6);
}

// T28: two equal slots: CE .2876821, L1 .5, BCE ln 2, weighted .1, .9 and 1.
static void dspark_total(void **state)
{
    (void)state;
    hand h;
    const float hidden[4] = {1.0986123f, 0, 1.0986123f, 0};
    hand_open(&h, &bd_draft_dspark, 2, 2, identity(2));
    h.draft.config.markov = (bd_markov_config){1, BD_MARKOV_VANILLA, true};
    bd_dspark_head head = {.w1 = tensor_of(&h, 2, 1, zeros),
                           .w2 = tensor_of(&h, 2, 1, zeros),
                           .confidence = tensor_of(&h, 1, 3, zeros),
                           .confidence_bias = tensor_of(&h, 0, 1, zeros)};
    h.draft.head = &head;
    bd_draft_objective o = unweighted();
    o.ce_alpha = .1f;
    o.l1_alpha = .9f;
    o.confidence_alpha = 1;
    bd_draft_loss loss = loss_of(&h, hidden, 0, o);
    assert_true(loss.weight == 2);
    check_near(loss.sum / loss.weight, 1.1719154, 2e-7);
    check_near(bd_draft_loss_mean(&loss), 1.1719148, 2e-7); // times 2 / 2.000001
    hand_close(&h);
}

// T30: lambda .25 of the backbone's 2.0 and the rest of the final 1.2.
static void domino_total(void **state)
{
    (void)state;
    hand h;
    // With logits [0, x] the first token's cross entropy is log(1 + e^x).
    const float base = (float)log(exp(2.0) - 1), final = (float)log(exp(1.2) - 1);
    const float hidden[4] = {0, base, 0, base};
    // The head's one feature is silu(base), whatever the state; its weight makes up the rest.
    const double feature = (double)base / (1 + exp(-(double)base));
    const float outer[2] = {0, (float)((double)(final - base) / feature)};
    hand_open(&h, &bd_draft_domino, 2, 2, identity(2));
    h.draft.config.domino = (bd_domino_config){.state = 1, .width = 1, .pure_prefix = 0};
    h.target.embedding = tensor_of(&h, 2, 2, zeros);
    bd_domino_head head = {.input = tensor_of(&h, 3, 2, zeros),
                           .recurrent = tensor_of(&h, 3, 1, zeros),
                           .inner = tensor_of(&h, 1, 3, (const float[]){0, 1, 0}),
                           .outer = tensor_of(&h, 2, 1, outer)};
    h.draft.head = &head;
    bd_draft_objective o = unweighted();
    o.lambda = .25f;
    bd_draft_loss loss = loss_of(&h, hidden, 0, o);
    check_near(loss.metrics[0].sum / loss.metrics[0].weight, 1.2, 1e-6);
    check_near(loss.metrics[1].sum / loss.metrics[1].weight, 2.0, 1e-6);
    check_near(bd_draft_loss_mean(&loss), 1.4, 2e-6);
    hand_close(&h);
}

static void lambda_falls(void **state) // T29
{
    (void)state;
    const double long_run[4] = {1, .75, 0, 0}, half[4] = {1, .5, 0, 0};
    for (int i = 0; i < 4; i++) {
        check_near(bd_draft_lambda((int64_t[]){0, 25, 100, 200}[i], 100, 1, 1), long_run[i], 1e-12);
        check_near(bd_draft_lambda((int64_t[]){0, 25, 50, 60}[i], 100, 1, .5), half[i], 1e-12);
    }
    check_near(bd_draft_lambda(0, 1, 1, 1), 1, 0);
    check_near(bd_draft_lambda(1, 1, 1, 1), 0, 0);
    check_near(bd_draft_lambda(3, 10, .8, .75), .4571429, 5e-8); // falls over int(7.5) = 7
}

// --- heads ---------------------------------------------------------------------------------------

static void domino_head(void **state) // T32
{
    (void)state;
    hand h;
    hand_open(&h, &bd_draft_domino, 2, 2, identity(2));
    bd_domino_head head = {.inner = tensor_of(&h, 1, 3, (const float[]){1, -1, 2}),
                           .outer = tensor_of(&h, 2, 1, (const float[]){1, -2})};
    h.draft.head = &head;
    bd_value *hidden = bd_tape_constant(&h.tape, (const float[]){1, .5f}, 1, 2);
    bd_value *unit = bd_tape_constant(&h.tape, (const float[]){.25f}, 1, 1);
    bd_value *features = bd_domino_features(&h.draft, &h.tape, hidden, unit);
    check_near(features->data[0], .7310586, 5e-7);
    const float *bias = bd_op_linear(&h.tape, features, head.outer, NULL)->data;
    check_array(bias, ((float[]){.7310586f, -1.4621172f}), 2, 5e-7);
    hand_close(&h);
}

/* What a Markov head of rank 2 adds to two slots' logits, the tokens before them given. */
static void expect_bias(bd_markov_kind kind, const int32_t before[2], const float want[4])
{
    hand h;
    static const float joint[6 * 5] = {0}, joint_bias[6] = {0, 0, .5f, -.5f, 1, 0};
    hand_open(&h, &bd_draft_dspark, 2, 1, identity(1));
    h.draft.config.markov = (bd_markov_config){2, kind, false};
    bd_dspark_head head = {.w1 = tensor_of(&h, 2, 2, (const float[]){1, 0, .5f, -1}),
                           .w2 = tensor_of(&h, 2, 2, (const float[]){1, 1, 2, 0}),
                           .gate = tensor_of(&h, 2, 3, (const float[]){1, 0, 0, 0, 0, 1}),
                           .gate_bias = tensor_of(&h, 0, 2, (const float[]){0, 1}),
                           .joint = tensor_of(&h, 6, 5, joint),
                           .joint_bias = tensor_of(&h, 0, 6, joint_bias)};
    h.draft.head = &head;
    bd_value *hidden = bd_tape_constant(&h.tape, zeros, 2, 1);
    bd_value *e = bd_op_embedding(&h.tape, head.w1, before, 2);
    bd_value *features = bd_dspark_features(&h.draft, &h.tape, hidden, e, 2, NULL);
    check_array(bd_op_linear(&h.tape, features, head.w2, NULL)->data, want, 4, 5e-7);
    hand_close(&h);
}

static void markov_heads(void **state)
{
    (void)state;
    const int32_t same[2] = {1, 1}, both[2] = {1, 0};
    expect_bias(BD_MARKOV_VANILLA, same, (const float[]){-.5f, 1, -.5f, 1});     // T33
    expect_bias(BD_MARKOV_GATED, same, (const float[]){-.25f, .5f, -.25f, .5f}); // T34
    expect_bias(BD_MARKOV_RNN, both,
                (const float[]){.7615942f, 1.5231883f, .7615942f, 1.5231883f}); // T35
}

// --- drafting ------------------------------------------------------------------------------------

/* `steps` are asked for of a block whose slots' best tokens are 5, 6, 7, 8. */
static void expect_tokens(const bd_draft_variant *variant, int64_t steps, const int32_t *want,
                          int64_t count)
{
    hand h;
    hand_open(&h, variant, MOST, MOST, identity(MOST));
    h.draft.config.markov = (bd_markov_config){1, BD_MARKOV_VANILLA, false};
    bd_dspark_head head = {.w1 = tensor_of(&h, MOST, 1, zeros),
                           .w2 = tensor_of(&h, MOST, 1, zeros)};
    h.draft.head = &head;
    float hidden[4 * MOST] = {0};
    for (int64_t slot = 0; slot < 4; slot++)
        hidden[slot * MOST + 5 + slot] = 1;
    int64_t given = bd_draft_variant_tokens(variant, 4);
    int32_t tokens[4] = {0};
    const float *q[4] = {0};
    bd_draft_decoding d = {.draft = &h.draft,
                           .hidden = hidden,
                           .slots = 4,
                           .last_token = 3,
                           .count = steps < given ? steps : given,
                           .tokens = tokens,
                           .q = q,
                           .arena = h.arena};
    assert_int_equal(d.count, count);
    variant->decode(&d);
    check_ints("tokens", tokens, want, count);
    hand_close(&h);
}

static void tokens_of_a_block(void **state) // T39
{
    (void)state;
    const int32_t slots[4] = {5, 6, 7, 8};
    expect_tokens(&bd_draft_dflash, 2, slots + 1, 2);
    expect_tokens(&bd_draft_dflash, 9, slots + 1, 3);
    expect_tokens(&bd_draft_dspark, 2, slots, 2);
    expect_tokens(&bd_draft_dspark, 9, slots, 4);
}

// T40: slots whose own best tokens are 2, 1, 0 become 1, 2, 0, each because of the one before.
static void chain(void **state)
{
    (void)state;
    hand h;
    const float w2[9] = {0, 0, 3, 3, 0, 0, 0, 3, 0}; // [V, r], column: the token before
    const float hidden[9] = {0, 0, 1, 0, 1, 0, 1, 0, 0};
    hand_open(&h, &bd_draft_dspark, 3, 3, identity(3));
    h.draft.config.markov = (bd_markov_config){3, BD_MARKOV_VANILLA, false};
    bd_dspark_head head = {.w1 = tensor_of(&h, 3, 3, identity(3)), .w2 = tensor_of(&h, 3, 3, w2)};
    h.draft.head = &head;
    int32_t tokens[3];
    const float *q[3] = {0};
    bd_draft_decoding d = {.draft = &h.draft,
                           .hidden = hidden,
                           .slots = 3,
                           .last_token = 0,
                           .count = 3,
                           .tokens = tokens,
                           .q = q,
                           .arena = h.arena};
    bd_draft_decode_greedy(&d, 0);
    check_ints("backbone", tokens, (const int32_t[]){2, 1, 0}, 3);
    bd_draft_dspark.decode(&d);
    check_ints("chain", tokens, (const int32_t[]){1, 2, 0}, 3);
    hand_close(&h);
}

static void expect_count(const bd_draft_config *c, int64_t want)
{
    int64_t tensors, values;
    bd_draft_size(c, &tensors, &values);
    assert_int_equal(tensors, want);
}

static void tensors_of_heads(void **state) // T44; plain, sink and attention bias: test_draft_config
{
    (void)state;
    bd_draft_config c = bd_draft_config_default();
    c.tap_count = 5;
    c.stack.hidden = 32;
    c.stack.query_heads = 4;
    c.stack.key_heads = 2;
    c.stack.head_size = 8;
    c.stack.intermediate = 64;
    c.stack.vocabulary = 100;
    c.variant = &bd_draft_domino;
    c.domino = (bd_domino_config){.state = 6, .width = 5, .pure_prefix = 1};
    expect_count(&c, 62);
    c.variant = &bd_draft_dspark;
    c.markov = (bd_markov_config){4, BD_MARKOV_VANILLA, false};
    expect_count(&c, 60);
    c.markov = (bd_markov_config){4, BD_MARKOV_GATED, true};
    expect_count(&c, 64);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norms),
        cmocka_unit_test(rotary_positions),
        cmocka_unit_test(one_row_losses),
        cmocka_unit_test(dspark_total),
        cmocka_unit_test(domino_total),
        cmocka_unit_test(lambda_falls),
        cmocka_unit_test(domino_head),
        cmocka_unit_test(markov_heads),
        cmocka_unit_test(tokens_of_a_block),
        cmocka_unit_test(chain),
        cmocka_unit_test(tensors_of_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
