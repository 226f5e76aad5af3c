/* Hand cases of dflash2-lilicorr: the selector's loss (T11), and a lattice's walk, features,
 * objective and unit vectors (T13, T14, T15, T22), and the rule of acceptance (T20). */
#include "draft/dflash2.h"
#include "draft/lattice.h"
#include "draft/speculative.h"
#include "draft/step.h"
#include "ints.h"
#include "tensor/rows.h"

/* T11: fixture X; a label that is no candidate is left out, not put in place of one. The value
 * is the one covered slot's .974076984 over 1 + 1e-6. */
static void selector_loss(void **state)
{
    (void)state;
    enum { V = 6, BS = 4 };
    bd_arena *arena = check_arena();
    bd_tape tape = bd_tape_begin(arena, BD_F32, false);
    // Columns 0 and 1 are the hidden states of the selector's case; the rest are the logits.
    const float hidden[BS][2 + V] = {{0},
                                     {1, 1, 2, 1, 0, -1, .5f, -2},
                                     {2, -1, 0, 3, 1, 2.5f, -1, 0},
                                     {1, 2, 1, 0, 0, .5f, 2, 1.5f}};
    const float a[V * 2] = {0, 0, 1, 0, 0, 1, 1, 1, 2, 0, 0, -1},
                      b[V * 2] = {1, 0, 0, 1, 1, 1, 0, 0, -1, 0, 0, 2};
    float head[V * (2 + V)] = {0}, projection[2 * (2 + V)] = {0};
    for (int64_t v = 0; v < V; v++)
        head[v * (2 + V) + 2 + v] = 1;
    projection[0] = projection[2 + V + 1] = 1;
    bd_parameter parts[4];
    bd_parameter_map(&parts[0], "head", 2, (int64_t[]){V, 2 + V}, BD_F32, head);
    bd_parameter_map(&parts[1], "predecessor", 2, (int64_t[]){V, 2}, BD_F32, a);
    bd_parameter_map(&parts[2], "successor", 2, (int64_t[]){V, 2}, BD_F32, b);
    bd_parameter_map(&parts[3], "projection", 2, (int64_t[]){2, 2 + V}, BD_F32, projection);
    bd_model target = {.compute = BD_F32, .head = &parts[0]};
    target.config.vocabulary = V;
    target.config.hidden = 2 + V;
    bd_selector selector = {&parts[1], &parts[2], &parts[3]};
    bd_draft draft = {.target = &target, .compute = BD_F32, .head = &selector};
    draft.config.variant = &bd_draft_dflash2;
    draft.config.block_size = BS;
    draft.config.stack.hidden = 2 + V;
    draft.config.stack.vocabulary = V;
    draft.config.selector.top_k = 2;
    draft.config.selector.rank = 2;
    const int32_t tokens[8] = {3, 0, 3, 1, 0, 5, 2, 4};
    int32_t anchor = 1;
    const float mask[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const bd_anchors anchors = {.blocks = 1, .anchor = &anchor, .keep = (uint8_t[]){1}};
    const bd_draft_batch batch = {
        .rows = 1, .length = 8, .tokens = tokens, .loss_mask = mask, .anchors = &anchors};
    bd_draft_objective o = bd_draft_objective_default();
    o.weighting = (bd_weighting){.objective = BD_WEIGHT_DECAY};
    o.distill = false;
    o.slot_loss = BD_SLOT_CE;
    o.selector_alpha = 1;
    bd_draft_step step = {.draft = &draft,
                          .tape = &tape,
                          .batch = &batch,
                          .objective = &o,
                          .form = BD_DRAFT_MEAN,
                          .blocks = {1, 8, BS, tokens, mask, &anchors},
                          .slots = BS,
                          .hidden = bd_tape_constant(&tape, hidden[0], BS, 2 + V),
                          .weights = bd_arena_floats(arena, BS)};
    step.targets = bd_block_targets_make(&step.blocks, 0, arena);
    bd_draft_loss loss = {0};
    bd_draft_dflash2.loss(&step, &loss);
    double selected = NAN, accuracy = NAN, coverage = NAN, backbone = NAN;
    for (int i = 0; i < loss.metric_count; i++) {
        const bd_draft_metric *m = &loss.metrics[i];
        double value = m->weight > 0 ? m->sum / m->weight : 0;
        if (!strcmp(m->name, "selector_loss"))
            selected = value;
        else if (!strcmp(m->name, "selector_accuracy"))
            accuracy = value;
        else if (!strcmp(m->name, "selector_coverage"))
            coverage = value;
        else if (!strcmp(m->name, "backbone_loss"))
            backbone = value;
    }
    check_near(selected, .974076010, 2e-6);
    check_near(accuracy, 0, 0);
    check_near(coverage, .333333, 1e-6);
    check_near(backbone, 2.036211287, 2e-6); // T10, plain
    // Field report 12 (https://github.com/NVIDIA-NeMo/Automodel/pull/2572): two of the three labels
    // are no candidates, and D-PACE weighs the slots by the backbone's probabilities all the same.
    o.weighting = (bd_weighting){.objective = BD_WEIGHT_DPACE, .alpha = .5f};
    loss = (bd_draft_loss){0};
    bd_draft_dflash2.loss(&step, &loss);
    check_array(step.weights, ((float[]){0, 1.135954470f, .622081938f, .226989749f}), BS, 1e-6);
    check_near(loss.sum / loss.weight - .974076010, 2.463489760, 5e-6);
    for (int i = 0; i < 4; i++)
        bd_parameter_free(&parts[i]);
    bd_arena_destroy(arena);
}

static void walk_rows(void **state) // T13
{
    (void)state;
    const bd_lattice_shape shape = {1, 3, 2};
    const float start[2][2] = {{1, 4}, {5, 1}},
                pair[2][8] = {{8, 0, 2, 7, 4, 3, 6, 1}, {1, 9, 8, 0, 7, 2, 3, 8}};
    const int64_t want[2][3] = {{1, 1, 0}, {0, 1, 1}};
    for (int n = 0; n < 2; n++) {
        int64_t path[3];
        bd_lattice_walk(&shape, start[n], pair[n], path);
        assert_memory_equal(path, want[n], sizeof path);
    }
}

static void features_of_candidates(void **state) // T14
{
    (void)state;
    bd_arena *arena = check_arena();
    bd_tape tape = bd_tape_begin(arena, BD_F32, false);
    const float logp[3] = {logf(.5f), logf(.3f), logf(.1f)};
    const float want[15] = {-.693147f, .5f, 0,          0,   1,          -1.203973f, .3f, -.510826f,
                            .5f,       0,   -2.302585f, .1f, -1.609438f, 1,          0};
    bd_value *f = bd_lattice_features(&tape, bd_tape_constant(&tape, logp, 1, 3));
    check_array(f->data, want, 15, 1e-6);
    bd_parameter one, zero;
    bd_parameter_map(&one, "weight", 1, (int64_t[]){5}, BD_F32, (float[]){1, 1, 1, 1, 1});
    bd_parameter_map(&zero, "bias", 1, (int64_t[]){5}, BD_F32, (float[]){0, 0, 0, 0, 0});
    const float normed[5] = {-1.510446f, .598562f, -.285239f, -.285239f, 1.482362f};
    check_array(bd_op_layer_norm(&tape, f, &one, &zero)->data, normed, 5, 1e-6);
    const float logits[4] = {2, 1, 0, -1}; // of which two are kept
    double sum = (double)bd_log_sum_exp(logits, 4);
    check_near(sum, 2.440189699, 2e-7);
    const float kept[2] = {(float)(2 - sum), (float)(1 - sum)};
    f = bd_lattice_features(&tape, bd_tape_constant(&tape, kept, 1, 2));
    check_near(f->data[1], .643914260, 5e-7);
    check_near(f->data[6], .236882818, 5e-7);
    bd_parameter_free(&one);
    bd_parameter_free(&zero);
    bd_arena_destroy(arena);
}

static void unit_vectors(void **state) // T22
{
    (void)state;
    bd_arena *arena = check_arena();
    bd_tape tape = bd_tape_begin(arena, BD_F32, false);
    const float x[2] = {3e-5f, 4e-5f};
    const bd_value *y = bd_op_normalize(&tape, bd_tape_constant(&tape, x, 1, 2), 1e-4f);
    check_array(y->data, ((float[]){.3f, .4f}), 2, 1e-6); // not of unit length
    bd_arena_destroy(arena);
}

// --- T15 -----------------------------------------------------------------------------------------

static const int32_t candidates[18] = {4, 1, 6, 2, 5, 0, 7, 3, 1, 0, 2, 3, 5, 6, 1, 1, 4, 2},
                     labels[6] = {1, 2, 1, 2, 7, 4};
static const float start[6] = {2, 1, -1, .5f, 3, .5f};
static const float pair[36] = {1, 0, -1, 3, 2, 0, 0, 0, 1, 0, 2, 1.5f, 1, 1, 1, 2, 0, -2,
                               0, 0, 0,  1, 2, 3, 2, 1, 0, 1, 0, 2,    0, 1, 0, 3, 0, 0};
static const float teacher[18] = {1, 3, 0, 2.5f, 2, 0, 0, 1, 4, 0, 2, 3, 9, 9, 9, 9, 9, 9};

/* The weighted terms of the spec's two blocks, both supervised. */
static double judge(const bd_lattice_weights *weights, bd_lattice_result *r, float *d_pair)
{
    const bd_lattice_blocks blocks = {.shape = {2, 3, 3},
                                      .candidates = candidates,
                                      .labels = labels,
                                      .valid = (const uint8_t[]){1, 1},
                                      .start = start,
                                      .pair = pair,
                                      .teacher = teacher};
    float d_start[6] = {0};
    memset(d_pair, 0, 36 * sizeof *d_pair);
    return bd_lattice_judge(weights, &blocks, 1, d_start, d_pair, r);
}

static void lattice_objective(void **state)
{
    (void)state;
    bd_lattice_result r;
    float d[36];
    // Block 0, slot 1 is chosen after candidate 1: scores 3, 2, 0.
    double loss = judge(&(bd_lattice_weights){.ce = 1}, &r, d);
    check_near(loss, .726247434, 5e-7);
    check_array(d + 3, ((float[]){-.07365387f, .06487412f, .00877976f}), 3, 1e-6);
    loss = judge(&(bd_lattice_weights){.penalty = 1}, &r, d);
    check_near(loss, .976941030, 5e-7);
    check_array(d + 3, ((float[]){-.03836336f, .01832397f, .02003939f}), 3, 1e-6);
    loss = judge(&(bd_lattice_weights){.ce = .25, .penalty = .25}, &r, d);
    check_near(loss, .425797116, 5e-7);
    loss = judge(&(bd_lattice_weights){.margin_weight = 1, .margin = 2}, &r, d);
    check_near(loss, 1.625, 1e-7);
    check_near(r.used, 4, 0);
    check_near(r.valid, 2, 0);
    check_near(r.selected / r.valid, .5, 0);
    check_near(r.top1 / r.valid, 0, 0);
    check_near(r.oracle / r.valid, 2, 0);
    check_near(r.exact, 0, 0);
    check_near(r.zero, 0, 0);
    check_near(r.in_lattice / r.slots, .833333, 1e-6);
    check_near(r.right / r.used, .5, 0);
    check_near(r.gap / r.used, .5, 1e-7);
    check_near(r.gap_hit / r.used, .5, 0);
}

// --- acceptance ----------------------------------------------------------------------------------

/* T20: a token stands with probability min(1, p / q); else it comes from (.5, .5, 0). */
static void rejection(void **state)
{
    (void)state;
    const float p[3] = {.5f, .3f, .2f}, q[3] = {.2f, 0, .8f};
    float scratch[3];
    int32_t token;
    bd_draws u = {.accept = .999f};
    assert_true(bd_accept_token(p, q, 3, 0, &u, scratch, &token));
    assert_int_equal(token, 0);
    u.accept = .249f;
    assert_true(bd_accept_token(p, q, 3, 2, &u, scratch, &token));
    assert_int_equal(token, 2);
    u.accept = .251f;
    u.residual = .499f;
    assert_false(bd_accept_token(p, q, 3, 2, &u, scratch, &token));
    assert_int_equal(token, 0);
    u.residual = .501f;
    assert_false(bd_accept_token(p, q, 3, 2, &u, scratch, &token));
    assert_int_equal(token, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(selector_loss),          cmocka_unit_test(walk_rows),
        cmocka_unit_test(features_of_candidates), cmocka_unit_test(unit_vectors),
        cmocka_unit_test(lattice_objective),      cmocka_unit_test(rejection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
