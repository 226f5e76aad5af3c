/* Documents laid into rows and trained on: the four masks through the real pipeline, corruption
 * that depends on nothing but its key, learning, resuming, and what is refused. */
#include "train/document_task.h"

#include "base/file.h"
#include "base/threads.h"
#include "check.h"
#include "train/conversations.h"
#include "train/trainer.h"

enum { VOCABULARY = 32, MASK = 31, END = 30, PAD = 0, BLOCK = 4 };

static bd_model *small_model(uint64_t seed)
{
    bd_error err = {0};
    bd_model_config config = {.family = BD_FAMILY_QWEN3,
                              .vocabulary = VOCABULARY,
                              .hidden = 32,
                              .layers = 2,
                              .query_heads = 2,
                              .key_heads = 1,
                              .head_size = 16,
                              .intermediate = 64,
                              .max_positions = 64,
                              .norm_eps = 1e-6,
                              .initializer_range = 0.1,
                              .tied_head = true,
                              .qk_norm = true,
                              .rope = {.theta = 10000, .factor = 1},
                              .dtype = BD_F32,
                              .bos = -1,
                              .pad = PAD,
                              .stop = {END},
                              .stop_count = 1};
    bd_model *model;
    check_ok(model = bd_model_create(&config, seed, BD_F32, &err), err);
    check_ok(bd_model_train(model, &err), err);
    return model;
}

static bd_canvas canvas_for(bool shifted)
{
    return (bd_canvas){.alignment = shifted ? BD_SHIFTED : BD_SAME_POSITION,
                       .policy = shifted ? BD_SEED_AND_MASK : BD_ALL_MASKED,
                       .block_size = BLOCK,
                       .mask_id = MASK};
}

/* Eight conversations: a prompt of three tokens that says what the answer of three is. */
static bd_conversation_set exercises(void)
{
    bd_error err = {0};
    bd_conversation_set set = {0};
    for (int32_t k = 0; k < 8; k++) {
        int32_t tokens[] = {1, 2 + k, 3 + k, 10 + k, 18 + k, END};
        const uint8_t marks[] = {0, 0, 0, 1, 1, 1};
        check_ok(bd_conversation_set_add(&set, tokens, marks, 6, &err), err);
    }
    return set;
}

static bd_document_task_options options_for(bd_model *model, const bd_token_documents *documents,
                                            int64_t length)
{
    bd_document_task_options o = bd_document_task_default(model, documents);
    o.rows = (bd_row_layout){.length = length, .padding = {.pad_id = PAD, .end_id = END}};
    o.canvas = canvas_for(false);
    o.completion_only = true;
    o.batch_rows = 8;
    o.seed = 7;
    return o;
}

static void check_ints(const int32_t *got, const int32_t *want, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        if (got[i] != want[i])
            fail_msg("element %lld is %d, wanted %d", (long long)i, got[i], want[i]);
}

// --- rows ----------------------------------------------------------------------------------------

/* T-12, and the same row cut at 4. */
static void test_roles(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_conversation_set set = {0};
    const int32_t tokens[] = {11, 12, 21, 22, 31, 41, 42};
    const uint8_t marks[] = {0, 0, 1, 1, 0, 1, 1};
    check_ok(bd_conversation_set_add(&set, tokens, marks, 7, &err), err);
    bd_token_documents documents = bd_conversation_documents(&set);
    bd_arena *arena = check_arena();
    for (int64_t length = 8; length >= 4; length -= 4) {
        bd_row_layout layout = {.length = length, .padding = {.end_id = -1}};
        bd_row_plan *plan;
        check_ok(plan = bd_row_plan_create(&documents, &layout, &err), err);
        assert_int_equal(bd_row_plan_rows(plan), 1);
        assert_int_equal(bd_row_plan_lost(plan), length == 8 ? 0 : 3);
        bd_diffusion_batch b = bd_diffusion_batch_allocate(arena, 1, length);
        bd_row_plan_fill(plan, 0, &b, 0);
        check_ints(b.targets, (int32_t[]){11, 12, 21, 22, 31, 41, 42, 0}, length);
        check_ints(b.inputs, b.targets, length);
        check_ints(b.completion_mask, (int32_t[]){0, 0, 1, 1, 0, 1, 1, 0}, length);
        check_ints(b.targets_segmentation, (int32_t[]){1, 1, 1, 1, 1, 1, 1, 0}, length);
        bd_row_plan_free(plan);
    }
    bd_arena_destroy(arena);
    bd_conversation_set_free(&set);
}

static void check_row(const bd_token_documents *documents, const bd_row_layout *layout,
                      int64_t rows, int64_t row, const int32_t *tokens, const int32_t *segments)
{
    bd_error err = {0};
    bd_arena *arena = check_arena();
    bd_row_plan *plan;
    check_ok(plan = bd_row_plan_create(documents, layout, &err), err);
    assert_int_equal(bd_row_plan_rows(plan), rows);
    bd_diffusion_batch b = bd_diffusion_batch_allocate(arena, 1, layout->length);
    bd_row_plan_fill(plan, row, &b, 0);
    check_ints(b.targets, tokens, layout->length);
    check_ints(b.targets_segmentation, segments, layout->length);
    for (int64_t i = 0; i < layout->length; i++) { // positions count from 0 in every document
        bool first = i == 0 || segments[i] != segments[i - 1];
        int32_t want = segments[i] == 0 || first ? 0 : b.targets_position[i - 1] + 1;
        assert_int_equal(b.targets_position[i], want);
    }
    bd_row_plan_free(plan);
    bd_arena_destroy(arena);
}

static void test_packing(void **state)
{
    (void)state;
    const int32_t tokens[] = {1, 2, END, 4, 5, 6, 7, END, 9, END};
    int64_t count;
    bd_error err = {0};
    int64_t *ends;
    check_ok(ends = bd_document_ends(tokens, 10, END, &count, &err), err);
    assert_true(count == 3 && ends[0] == 3 && ends[1] == 8 && ends[2] == 10);
    bd_token_documents d = {.tokens = tokens, .ends = ends, .count = count};
    bd_row_layout layout = {.length = 5, .padding = {.pad_id = 0, .end_id = END, .block_size = 4}};
    // One document a row, then as many as fit, then a stream cut anywhere.
    check_row(&d, &layout, 3, 0, (int32_t[]){1, 2, END, 0, 0}, (int32_t[]){1, 1, 1, 0, 0});
    layout.packing = true;
    check_row(&d, &layout, 3, 1, (int32_t[]){4, 5, 6, 7, END}, (int32_t[]){1, 1, 1, 1, 1});
    layout.length = 8;
    check_row(&d, &layout, 2, 0, (int32_t[]){1, 2, END, 4, 5, 6, 7, END},
              (int32_t[]){1, 1, 1, 2, 2, 2, 2, 2});
    layout.length = 5;
    layout.cut = true;
    check_row(&d, &layout, 2, 0, (int32_t[]){1, 2, END, 4, 5}, (int32_t[]){1, 1, 1, 2, 2});
    check_row(&d, &layout, 2, 1, (int32_t[]){6, 7, END, 9, END}, (int32_t[]){1, 1, 1, 2, 2});
    // End tokens fill the last block of a document, and count when rows are planned.
    layout.cut = false;
    layout.length = 8;
    layout.padding.policy = BD_PAD_TO_BLOCK_END;
    check_row(&d, &layout, 3, 0, (int32_t[]){1, 2, END, END, 0, 0, 0, 0},
              (int32_t[]){1, 1, 1, 1, 0, 0, 0, 0});
    check_row(&d, &layout, 3, 1, (int32_t[]){4, 5, 6, 7, END, END, END, END},
              (int32_t[]){1, 1, 1, 1, 1, 1, 1, 1});
    layout.padding.policy = BD_PAD_IN_LOSS;
    check_refused(bd_row_plan_create(&d, &layout, &err), err, "eos-in-loss with packing");
    layout.packing = false;
    check_row(&d, &layout, 3, 2, (int32_t[]){9, END, END, END, END, END, END, END},
              (int32_t[]){1, 1, 1, 1, 1, 1, 1, 1});
    free(ends);
}

// --- corruption ----------------------------------------------------------------------------------

/* Masks depend on the row's place in the step's whole batch, not on micro-batches; on the step; and
 * held-out rows are always corrupted alike. */
static void test_keys(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model *model = small_model(1);
    bd_conversation_set set = exercises();
    bd_token_documents documents = bd_conversation_documents(&set);
    enum { LENGTH = 8, CELLS = 8 * LENGTH };
    int32_t masks[3][CELLS], inputs[CELLS];
    for (int run = 0; run < 3; run++) { // one micro-batch of 8, four of 2, the next epoch
        bd_document_task_options o = options_for(model, &documents, LENGTH);
        o.batch_rows = run == 1 ? 2 : 8;
        o.micro_batches = run == 1 ? 4 : 1;
        bd_task task;
        check_ok(bd_document_task_create(&o, &task, &err), err);
        for (int64_t micro = 0; micro < o.micro_batches; micro++) {
            check_ok(task.next(task.self, run == 2, micro, &err), err);
            const bd_diffusion_batch *b = bd_document_task_batch(&task, NULL);
            size_t part = (size_t)(o.batch_rows * LENGTH);
            memcpy(masks[run] + (size_t)micro * part, b->corruption_mask, part * 4);
            memcpy(inputs + (size_t)micro * part, b->inputs, part * 4);
            for (size_t i = 0; i < part; i++) {
                assert_true(!b->corruption_mask[i] || b->completion_mask[i]);
                assert_int_equal(b->inputs[i], b->corruption_mask[i] ? MASK : b->targets[i]);
            }
        }
        bd_document_task_free(&task);
    }
    assert_memory_equal(masks[0], masks[1], sizeof masks[0]);
    assert_memory_not_equal(masks[0], masks[2], sizeof masks[0]);
    bd_conversation_set_free(&set);
    bd_model_close(model);
}

static bd_loss evaluate(bd_model *model, const bd_document_task_options *o)
{
    bd_error err = {0};
    bd_task task;
    bd_arena *arena = check_arena();
    check_ok(bd_document_task_create(o, &task, &err), err);
    bd_tape tape = bd_tape_begin(arena, BD_F32, false);
    bd_loss loss = {0};
    check_ok(task.next(task.self, 0, 0, &err), err); // training in between changes nothing
    check_ok(task.evaluate(task.self, &tape, &loss, &err), err);
    bd_document_task_free(&task);
    bd_arena_destroy(arena);
    model->config.diffusion.block_size = 0;
    return loss;
}

/* D-16: evaluation is one ratio of sums, however its rows fill batches. */
static void test_evaluation(void **state)
{
    (void)state;
    bd_model *model = small_model(1);
    bd_conversation_set set = exercises();
    bd_token_documents documents = bd_conversation_documents(&set);
    bd_document_task_options o = options_for(model, &documents, 8);
    o.evaluation = &documents;
    o.evaluation_rows = 100;
    o.inverse_noise = true;
    bd_loss whole = evaluate(model, &o);
    o.batch_rows = 3;
    bd_loss parts = evaluate(model, &o);
    assert_true(whole.loss.denominator > 8);
    check_near(parts.loss.sum, whole.loss.sum, 1e-12);
    check_near(parts.loss.denominator, whole.loss.denominator, 1e-12);
    assert_int_equal(whole.tokens, 48);
    o.inverse_noise = false;
    whole = evaluate(model, &o);
    assert_true(whole.loss.denominator == floor(whole.loss.denominator));
    // Causally every token but the first of a document is predicted once.
    o.canvas = (bd_canvas){0};
    o.completion_only = false;
    whole = evaluate(model, &o);
    assert_true(whole.loss.denominator == 8 * 5);
    bd_conversation_set_free(&set);
    bd_model_close(model);
}

/* A document's loss does not depend on what shares its row. With min_noise 1 every answer token is
 * masked, so the rows of both layouts hold the same tokens. */
static void test_packing_is_apart(void **state)
{
    (void)state;
    bd_model *model = small_model(1);
    bd_conversation_set set = exercises();
    bd_token_documents documents = bd_conversation_documents(&set);
    for (int kind = 0; kind < 4; kind++) { // causal, same position, shifted, shifted and doubled
        bd_document_task_options o = options_for(model, &documents, 24);
        o.canvas = kind ? canvas_for(kind > 1) : (bd_canvas){0};
        o.layout = kind == 3 ? BD_TRAIN_DOUBLED : BD_TRAIN_SINGLE;
        o.min_noise = 1;
        o.evaluation = &documents;
        o.evaluation_rows = 100;
        o.rows.padding.policy = kind ? BD_PAD_TO_BLOCK_END : BD_PAD_NONE;
        o.rows.padding.block_size = kind ? BLOCK : 0;
        bd_loss apart = evaluate(model, &o);
        o.rows.packing = true;
        o.batch_rows = 2;
        bd_loss packed = evaluate(model, &o);
        assert_true(apart.loss.denominator == (kind ? 8 * 5 : 8 * 3));
        assert_true(packed.loss.denominator == apart.loss.denominator);
        assert_true(packed.tokens == apart.tokens);
        check_near(packed.loss.sum, apart.loss.sum, 1e-6);
    }
    bd_conversation_set_free(&set);
    bd_model_close(model);
}

// --- training ------------------------------------------------------------------------------------

static bd_trainer_options trainer_for(int64_t steps)
{
    bd_trainer_options o = bd_trainer_default();
    o.steps = steps;
    o.compute = BD_F32;
    o.schedule.peak = 0.01;
    o.schedule.warmup = steps > 20 ? 10 : 0;
    return o;
}

static bd_train_result train(bd_model *model, const bd_document_task_options *o,
                             const bd_trainer_options *trainer)
{
    bd_error err = {0};
    bd_task task;
    bd_train_result result;
    check_ok(bd_document_task_create(o, &task, &err), err);
    check_ok(bd_train(&task, trainer, &result, &err), err);
    bd_document_task_free(&task);
    assert_int_equal(model->config.diffusion.block_size, o->canvas.block_size);
    return result;
}

/* N-05: eight rows are learned by heart, under every objective and layout. */
static void test_overfits(void **state)
{
    (void)state;
    for (int kind = 0; kind < 4; kind++) {
        bd_model *model = small_model(3);
        bd_conversation_set set = exercises();
        bd_token_documents documents = bd_conversation_documents(&set);
        bd_document_task_options o = options_for(model, &documents, 8);
        o.canvas = kind ? canvas_for(kind > 1) : (bd_canvas){0};
        o.layout = kind == 3 ? BD_TRAIN_DOUBLED : BD_TRAIN_SINGLE;
        bd_trainer_options trainer = trainer_for(150);
        bd_train_result result = train(model, &o, &trainer);
        if (!(result.loss < 0.02))
            fail_msg("kind %d: loss %g after %lld steps", kind, result.loss,
                     (long long)result.step);
        bd_conversation_set_free(&set);
        bd_model_close(model);
    }
}

static void check_same(const bd_model *a, const bd_model *b)
{
    for (int64_t i = 0; i < a->parameters.count; i++) {
        const bd_parameter *p = a->parameters.items[i], *q = b->parameters.items[i];
        if (memcmp(p->value, q->value, (size_t)p->count * 4))
            fail_msg("%s differs", p->name);
    }
}

static void test_threads(void **state)
{
    (void)state;
    bd_model *models[2];
    bd_conversation_set set = exercises();
    bd_token_documents documents = bd_conversation_documents(&set);
    for (int i = 0; i < 2; i++) {
        bd_threads_set(i + 1);
        models[i] = small_model(1);
        bd_document_task_options o = options_for(models[i], &documents, 16);
        o.rows.packing = true;
        o.batch_rows = 2;
        bd_trainer_options trainer = trainer_for(4);
        train(models[i], &o, &trainer);
    }
    check_same(models[0], models[1]);
    bd_model_close(models[0]);
    bd_model_close(models[1]);
    bd_conversation_set_free(&set);
    bd_threads_set(0);
}

static volatile sig_atomic_t stop;
static bool (*inner_next)(void *, int64_t, int64_t, bd_error *);
static bool stopping_next(void *self, int64_t step, int64_t micro, bd_error *err)
{
    stop = step == 4;
    return inner_next(self, step, micro, err);
}

/* 10 steps == 5 + 5, to the bit; the checkpoint says what it was trained as, and a run with other
 * blocks does not go on from it. */
static void test_resume(void **state)
{
    (void)state;
    char folder[BD_PATH] = "/tmp/bdlm-documents-XXXXXX", run[BD_PATH], latest[BD_PATH];
    bd_error err = {0};
    assert_non_null(mkdtemp(folder));
    check_ok(bd_path_join(run, folder, "run", &err), err);
    check_ok(bd_path_join(latest, run, "latest", &err), err);
    bd_conversation_set set = exercises();
    bd_token_documents documents = bd_conversation_documents(&set);
    bd_trainer_options trainer = trainer_for(10);
    bd_model *whole = small_model(1);
    bd_document_task_options o = options_for(whole, &documents, 8);
    o.batch_rows = 3; // epochs end within steps
    train(whole, &o, &trainer);
    bd_model *parts[2] = {small_model(1), small_model(2)}; // the second is overwritten
    bd_task task;
    bd_train_result result;
    for (int i = 0; i < 2; i++) {
        o.model = parts[i];
        check_ok(bd_document_task_create(&o, &task, &err), err);
        inner_next = task.next;
        if (i == 0)
            task.next = stopping_next;
        stop = 0;
        trainer.run = run;
        trainer.resume = i ? latest : NULL;
        trainer.stop = &stop;
        check_ok(bd_train(&task, &trainer, &result, &err), err);
        assert_int_equal(result.step, i ? 10 : 5);
        bd_document_task_free(&task);
    }
    check_same(whole, parts[1]);
    bd_model *opened;
    bd_canvas canvas;
    check_ok(opened = bd_model_open(latest, BD_F32, &err), err);
    check_ok(bd_canvas_from_model(&opened->config, &canvas, &err), err);
    assert_true(canvas.block_size == BLOCK && canvas.mask_id == MASK);
    bd_model_close(opened);
    o.canvas.block_size = 2;
    check_ok(bd_document_task_create(&o, &task, &err), err);
    check_refused(bd_train(&task, &trainer, &result, &err), err, "block_size");
    bd_document_task_free(&task);
    bd_model_close(whole);
    bd_model_close(parts[0]);
    bd_model_close(parts[1]);
    bd_conversation_set_free(&set);
    check_ok(bd_folder_remove(folder, &err), err);
}

static void test_refusals(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_task task;
    bd_model *model = small_model(1);
    bd_conversation_set set = exercises();
    bd_token_documents d = bd_conversation_documents(&set);
    bd_document_task_options o = options_for(model, &d, 8);
    o.canvas.mask_id = END;
    check_refused(bd_document_task_create(&o, &task, &err), err, "mask_id 30 is the model's stop");
    o.canvas.mask_id = VOCABULARY;
    check_refused(bd_document_task_create(&o, &task, &err), err, "mask_id is 32");
    o = options_for(model, &d, 8);
    o.canvas.policy = BD_SEED_AND_MASK;
    check_refused(bd_document_task_create(&o, &task, &err), err, "logit_alignment same_position");
    o = options_for(model, &d, 8);
    o.canvas = canvas_for(true);
    o.canvas.block_size = 1;
    check_refused(bd_document_task_create(&o, &task, &err), err, "block_size is 1");
    o = options_for(model, &d, 8);
    o.min_noise = 0;
    check_refused(bd_document_task_create(&o, &task, &err), err, "min_noise is 0");
    o = options_for(model, &d, 8);
    o.evaluation_rows = 8;
    check_refused(bd_document_task_create(&o, &task, &err), err, "8 rows of 8 tokens");
    o = options_for(model, &d, 65);
    check_refused(bd_document_task_create(&o, &task, &err), err, "sequence_length: 65");
    for (int32_t mark = 0; mark <= 1; mark++) {
        memset(set.completion, mark, (size_t)set.token_count);
        o = options_for(model, &d, 8);
        check_refused(bd_document_task_create(&o, &task, &err), err,
                      mark ? "every token of the data is of an answer" : "no token of the data");
    }
    o.canvas = (bd_canvas){0};
    o.completion_only = false;
    model->config.diffusion.block_size = 4;
    check_refused(bd_document_task_create(&o, &task, &err), err, "causal_lm on a block-diffusion");
    set.tokens[5] = VOCABULARY;
    model->config.diffusion.block_size = 0;
    check_refused(bd_document_task_create(&o, &task, &err), err, "token 5 is 32");
    bd_conversation_set_free(&set);
    bd_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_roles),
        cmocka_unit_test(test_packing),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_evaluation),
        cmocka_unit_test(test_packing_is_apart),
        cmocka_unit_test(test_overfits),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
