/* What went wrong in drafter training elsewhere, and does not here. Numbers and links are those of
 * the project's list of field reports. */
#include <unistd.h>

#include "base/file.h"
#include "draft/anchors.h"
#include "draft/micro.h"
#include "draft/session.h"
#include "format/json.h"
#include "tensor/rows.h"

static const bd_weighting even = {.objective = BD_WEIGHT_DECAY, .alpha = .5f};

/* #1 SpecForge#455 (https://github.com/sgl-project/SpecForge/issues/455): labels and positions off
 * by one, with a loss that looked normal. Twelve tokens, written out by hand. */
static void labels_and_positions_by_hand(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    const int32_t tokens[12] = {100, 101, 102, 103, 104, 105, 106, 107, 108, 109, 110, 111};
    float mask[12];
    for (int i = 0; i < 12; i++)
        mask[i] = 1;
    const bd_anchors anchors = {.blocks = 1, .anchor = (int32_t[]){6}, .keep = (uint8_t[]){1}};
    const bd_block_batch batch = {.rows = 1,
                                  .length = 12,
                                  .block_size = 4,
                                  .tokens = tokens,
                                  .loss_mask = mask,
                                  .anchors = &anchors};
    int32_t ids[4], positions[4];
    bd_block_noise(&batch, 9, ids);
    bd_block_positions(&batch, positions);
    bd_block_targets t = bd_block_targets_make(&batch, 0, arena);
    // The draft reads 106 at position 6 and masks at 7, 8, 9; these learn 107, 108, 109, which the
    // target predicts at rows 6, 7, 8. The context is 100 to 105.
    check_ints("ids", ids, (int32_t[]){106, 9, 9, 9}, 4);
    check_ints("positions", positions, (int32_t[]){6, 7, 8, 9}, 4);
    check_ints("labels", t.token + 1, (int32_t[]){107, 108, 109}, 3);
    for (int k = 1; k < 4; k++)
        assert_int_equal(bd_teacher_row(t.position[k]), 5 + k);
    assert_true(t.supervised[0] == 0 && t.supervised[3] == 1);
    bd_draft_config config = micro_draft_config();
    bd_visibility rule = bd_draft_rule(&config, 0, 12, &anchors);
    for (int64_t k = 0; k < 12; k++)
        assert_int_equal(bd_visibility_allows(&rule, 0, 1, k), k < 6);
    bd_arena_destroy(arena);
}

/* #1, second part: with tied embeddings the head is the embedding, not left random; a head that is
 * neither in the file nor tied is refused. */
static void tied_heads(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_arena *arena = check_arena();
    char folder[BD_PATH], path[BD_PATH];
    snprintf(folder, sizeof folder, "/tmp/bdlm-tied-%ld", (long)getpid());
    bd_model_config config = micro_target_config();
    config.tied_head = true;
    bd_model *made = bd_model_create(&config, 3, BD_F32, &err);
    check_ok(bd_model_save(made, folder, BD_F32, &err), err);
    bd_model *target = bd_model_open(folder, BD_F32, &err);
    check_ok(target != NULL, err);
    assert_ptr_equal(target->head, target->embedding);

    bd_draft_config draft_config = micro_draft_config();
    check_ok(bd_draft_config_complete(&draft_config, &target->config, &err), err);
    bd_draft *draft = bd_draft_create(&draft_config, target, 1, BD_F32, &err);
    bd_draft_session *s = bd_draft_session_create(draft, 8, &err);
    check_ok(bd_draft_begin(s, &(bd_hidden){.rows = 0}, &err), err);
    bd_proposal p = {.limit = 1};
    assert_int_equal(bd_draft_propose(s, 4, &p, &err), 1);
    float logits[MICRO_V];
    for (int v = 0; v < MICRO_V; v++) {
        logits[v] = 0;
        for (int i = 0; i < MICRO_H; i++)
            logits[v] +=
                p.hidden[MICRO_H + i] * ((const float *)target->embedding->data)[v * MICRO_H + i];
    }
    assert_int_equal(p.tokens[0], bd_argmax(logits, MICRO_V));
    bd_draft_session_free(s);
    bd_draft_close(draft);
    bd_model_close(target);

    json_t *root =
        bd_model_config_to_json(&config); // the same file, but the configuration says untied
    json_object_set_new(root, "tie_word_embeddings", json_false());
    check_ok(bd_path_join(path, folder, "config.json", &err), err);
    check_ok(bd_json_save(root, path, &err), err);
    check_refused(bd_model_open(folder, BD_F32, &err) != NULL, err, "lm_head.weight");
    json_decref(root);
    bd_model_close(made);
    bd_folder_remove(folder, &err);
    bd_arena_destroy(arena);
}

/* #2 SpecForge#470 (https://github.com/sgl-project/SpecForge/issues/470): with overlapping anchors
 * later blocks saw earlier blocks' future, and more anchors made the loss look good. Each block's
 * loss is what it is alone, and nothing a block must not see moves it. */
static void more_anchors_do_not_help_each_other(void **state)
{
    (void)state;
    micro *m = micro_open();
    bd_draft_loss together = micro_step(m, true, even, NULL);
    double sum = 0;
    for (int j = 0; j < MICRO_B * MICRO_N; j++) {
        if (!m->keep[j])
            continue;
        uint8_t keep[MICRO_B * MICRO_N] = {0};
        keep[j] = 1;
        const bd_anchors alone = {.blocks = MICRO_N, .anchor = m->anchor, .keep = keep};
        m->batch.anchors = &alone;
        sum += micro_step(m, true, even, NULL).sum;
        m->batch.anchors = &m->anchors;
    }
    check_near(sum, together.sum, 1e-5);
    micro_close(m);
}

static void the_future_does_not_leak(void **state)
{
    (void)state;
    micro *m = micro_open();
    const uint8_t keep[MICRO_B * MICRO_N] = {0, 1, 0, 0, 0, 0}; // the block at 5 of row 0
    const bd_anchors one = {.blocks = MICRO_N, .anchor = m->anchor, .keep = keep};
    m->batch.anchors = &one;
    m->batch.teacher_kind = BD_TEACHER_NONE;
    bd_draft_loss before = micro_step(m, false, even, NULL);
    for (int p = 5; p < MICRO_S; p++) // the anchor's own feature and all later ones
        for (int i = 0; i < 2 * MICRO_H; i++)
            m->features[p * 2 * MICRO_H + i] = 1000;
    m->tokens[4] = 9; // known through features alone
    m->tokens[10] = 9;
    bd_draft_loss after = micro_step(m, false, even, NULL);
    assert_memory_equal(&before, &after, sizeof before);
    m->features[4 * 2 * MICRO_H] += 1; // the last token it may see
    after = micro_step(m, false, even, NULL);
    assert_true(after.sum != before.sum);
    micro_close(m);
}

/* #3 SpecForge#463 (https://github.com/sgl-project/SpecForge/pull/463): blocks cut uniformly
 * instead of at random anchors of the answer, and slots that all count the same. */
static void anchors_are_random_and_in_the_answer(void **state)
{
    (void)state;
    enum { LENGTH = 64, FIRST = 24, END = 50, STEPS = 400 };
    bd_arena *arena = check_arena();
    float mask[LENGTH] = {0};
    for (int i = FIRST; i < END; i++)
        mask[i] = 1;
    const bd_anchor_sampling s = {.rows = 1,
                                  .length = LENGTH,
                                  .block_size = 4,
                                  .most = 5,
                                  .loss_mask = mask,
                                  .fixed_width = true};
    int seen[LENGTH] = {0};
    for (int step = 0; step < STEPS; step++) {
        size_t mark = bd_arena_mark(arena);
        bd_anchors a = bd_anchors_draw(&s, 1, 0, (uint64_t)step, 0, arena);
        for (int j = 0; j < 5; j++) {
            assert_true(a.keep[j]);
            seen[a.anchor[j]]++;
        }
        bd_arena_release(arena, mark);
    }
    double expected = 5.0 * STEPS / (END - FIRST), square = 0;
    for (int p = 0; p < LENGTH; p++)
        if (p < FIRST || p >= END)
            assert_int_equal(seen[p], 0);
        else
            square += (seen[p] - expected) * (seen[p] - expected) / expected;
    assert_true(square < 52.6); // chi-square, 25 degrees, 99.9 %
    bd_draft_objective o = bd_draft_objective_default();
    assert_int_equal(o.weighting.objective,
                     BD_WEIGHT_DPACE); // slots are weighed unless told otherwise
    bd_arena_destroy(arena);
}

/* #13 speculators#720 (https://github.com/vllm-project/speculators/pull/720): the decay changed the
 * effective learning rate, because the loss was divided by a token count. With a head of zeros
 * every slot's loss is ln V, and so is the mean, whatever the decay. */
static void decay_does_not_change_the_scale(void **state)
{
    (void)state;
    micro *m = micro_open();
    memset(m->target->head->value, 0, (size_t)m->target->head->count * sizeof(float));
    bd_parameter_changed(m->target->head);
    for (int i = 0; i < 4; i++) {
        bd_weighting w = {.objective = BD_WEIGHT_DECAY, .alpha = .5f};
        w.decay = (float[]){0, 0.7f, 2, 7}[i];
        bd_draft_loss loss = micro_step(m, false, w, NULL);
        assert_true(loss.weight > 1);
        check_near(bd_weighted_mean(loss.sum, loss.weight), log(MICRO_V), 2e-6);
    }
    micro_close(m);
}

static float *all_gradients(const micro *m, bd_arena *arena)
{
    float *all = bd_arena_floats(arena, bd_parameters_total(&m->draft->parameters)), *at = all;
    for (int64_t i = 0; i < m->draft->parameters.count; i++) {
        const bd_parameter *p = m->draft->parameters.items[i];
        memcpy(at, p->gradient, (size_t)p->count * sizeof(float));
        at += p->count;
    }
    return all;
}

/* #15 SpecForge#563 (https://github.com/sgl-project/SpecForge/pull/563): an evaluation left the
 * model in another state for the rest of the training. */
static void evaluation_changes_nothing(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_arena *arena = check_arena();
    micro *m = micro_open();
    bd_draft_loss before = micro_step(m, true, even, NULL), loss;
    float *first = all_gradients(m, arena);
    bd_tape tape = bd_tape_begin(arena, BD_F32, false);
    bd_draft_objective o = bd_draft_objective_default();
    check_ok(bd_draft_step_run(m->draft, &tape, &m->batch, &o, BD_DRAFT_SUM, NULL, &loss, &err),
             err);
    assert_true(loss.weight > 0);
    bd_draft_session *s = bd_draft_session_create(m->draft, 16, &err);
    check_ok(bd_draft_begin(s, &(bd_hidden){m->features, 5}, &err), err);
    bd_proposal p = {.limit = 0};
    assert_true(bd_draft_propose(s, 7, &p, &err) > 0);
    bd_draft_session_free(s);
    bd_draft_loss after = micro_step(m, true, even, NULL);
    float *second = all_gradients(m, arena);
    assert_memory_equal(&before, &after, sizeof before);
    size_t bytes = (size_t)bd_parameters_total(&m->draft->parameters) * sizeof(float);
    assert_memory_equal(first, second, bytes);
    micro_close(m);
    bd_arena_destroy(arena);
}

/* #22 SpecForge#521 (https://github.com/sgl-project/SpecForge/issues/521), Automodel#3899
 * (https://github.com/NVIDIA-NeMo/Automodel/pull/3899): logits of anchors x block x vocabulary did
 * not fit. They are never held together, and the gradients are those of the dense computation. */
static void fused_loss_is_the_dense_one(void **state)
{
    (void)state;
    enum { R = 2048, V = 3000, H = 24 };
    bd_error err = {0};
    bd_arena *arena = check_arena(), *fused = check_arena();
    bd_parameter head;
    check_ok(bd_parameter_create(&head, "head", 2, (int64_t[]){V, H}, 0, &err), err);
    check_fill(head.value, V * H, 1);
    float *x = bd_arena_floats(arena, R * H), *scale = bd_arena_floats(arena, R);
    check_fill(x, R * H, 2);
    int32_t *targets = bd_arena_ints(arena, R);
    for (int r = 0; r < R; r++) {
        targets[r] = (r * 7919) % V;
        scale[r] = r % 4 ? 1 : 0;
    }
    bd_tape tape = bd_tape_begin(fused, BD_F32, true);
    bd_value *h = bd_tape_value(&tape, R, H, true);
    memcpy(h->data, x, (size_t)(R * H) * sizeof(float));
    float *losses = bd_arena_floats(arena, R), *dense_losses = bd_arena_floats(arena, R);
    bd_vocabulary_loss loss = {.rows = R,
                               .vocabulary = V,
                               .scale = scale,
                               .targets = targets,
                               .hard = 1,
                               .hard_loss = losses};
    bd_op_vocabulary_loss(&tape, h, &head, &loss);
    assert_true(bd_arena_peak(fused) < sizeof(float) * R * V / 2);

    float *logits = bd_arena_floats(arena, (int64_t)R * V),
          *slopes = bd_arena_floats(arena, (int64_t)R * V);
    bd_matmul(bd_parameter_forward(&head, BD_F32), x, R, H, NULL, logits, V, BD_STORE, arena);
    loss.hard_loss = dense_losses;
    bd_vocabulary_loss_on_logits(&loss, logits, slopes);
    float *dense = bd_arena_zeros(arena, R * H);
    bd_matmul(bd_parameter_backward(&head, BD_F32), slopes, R, V, NULL, dense, H, BD_STORE, arena);
    check_array(losses, dense_losses, R, 1e-6);
    check_array(h->gradient, dense, R * H, 1e-5);
    bd_parameter_free(&head);
    bd_arena_destroy(arena);
    bd_arena_destroy(fused);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(labels_and_positions_by_hand),
        cmocka_unit_test(tied_heads),
        cmocka_unit_test(more_anchors_do_not_help_each_other),
        cmocka_unit_test(the_future_does_not_leak),
        cmocka_unit_test(anchors_are_random_and_in_the_answer),
        cmocka_unit_test(decay_does_not_change_the_scale),
        cmocka_unit_test(evaluation_changes_nothing),
        cmocka_unit_test(fused_loss_is_the_dense_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
