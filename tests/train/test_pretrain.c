/* Causal pretraining on a stream of tokens: rows, evaluation, learning, resuming, threads, memory.
 */
#include "train/pretrain_task.h"

#include <malloc.h>
#include <unistd.h>

#include "base/file.h"
#include "base/threads.h"
#include "check.h"
#include "format/json.h"
#include "train/row_order.h"
#include "train/token_loss.h"
#include "train/trainer.h"

static const char *const text =
    "the cat sat on the mat. the dog sat on the log. the cat saw the dog, and the dog saw the cat. "
    "what did the cat say to the dog? sit on the mat! what did the dog say to the cat? sit on the "
    "log! ";

static bd_model *small_model(uint64_t seed, bd_dtype compute)
{
    bd_error err = {0};
    bd_model_config config = {.family = BD_FAMILY_QWEN3,
                              .vocabulary = 128,
                              .hidden = 32,
                              .layers = 2,
                              .query_heads = 4,
                              .key_heads = 2,
                              .head_size = 8,
                              .intermediate = 64,
                              .max_positions = 64,
                              .norm_eps = 1e-6,
                              .initializer_range = 0.05,
                              .tied_head = true,
                              .qk_norm = true,
                              .rope = {.theta = 10000, .factor = 1},
                              .dtype = BD_F32,
                              .bos = -1,
                              .pad = -1};
    bd_model *model;
    check_ok(model = bd_model_create(&config, seed, compute, &err), err);
    check_ok(bd_model_train(model, &err), err);
    return model;
}

enum { STREAM = 2401 };
static int32_t stream[STREAM];

static void fill_stream(void)
{
    for (int i = 0; i < STREAM; i++)
        stream[i] = text[(size_t)i % strlen(text)];
}

static bd_pretrain_options options_for(bd_model *model)
{
    fill_stream();
    return (bd_pretrain_options){.model = model,
                                 .tokens = stream,
                                 .token_count = STREAM,
                                 .sequence_length = 24,
                                 .batch_rows = 4,
                                 .micro_batches = 2,
                                 .evaluation_rows = 7,
                                 .seed = 5,
                                 .save_dtype = BD_F32};
}

static bd_trainer_options trainer_for(int64_t steps)
{
    bd_trainer_options o = bd_trainer_default();
    o.steps = steps;
    o.micro_batches = 2;
    o.compute = BD_F32;
    o.schedule.peak = 0.01;
    o.schedule.warmup = steps > 5 ? 5 : 0;
    return o;
}

static void test_row_order(void **state)
{
    (void)state;
    bd_error err = {0};
    enum { ROWS = 1000 };
    bd_row_order *a, *b;
    check_ok(a = bd_row_order_create(ROWS, 7, &err), err);
    check_ok(b = bd_row_order_create(ROWS, 7, &err), err);
    int64_t moved = 0, order[2][ROWS];
    for (int epoch = 0; epoch < 2; epoch++) {
        bool seen[ROWS] = {0};
        for (int64_t k = 0; k < ROWS; k++) {
            int64_t row = bd_row_order_at(a, epoch * ROWS + k);
            assert_true(row >= 0 && row < ROWS && !seen[row]); // each row once an epoch
            seen[row] = true;
            order[epoch][k] = row;
            moved += row != k;
        }
    }
    assert_true(moved > 1900);
    int64_t same = 0;
    for (int64_t k = 0; k < ROWS; k++)
        same += order[0][k] == order[1][k];
    assert_true(same < 20);                         // another order each epoch
    for (int64_t k = 2 * ROWS - 1; k >= 0; k -= 37) // in any order of asking
        assert_int_equal(bd_row_order_at(b, k), order[k / ROWS][k % ROWS]);
    bd_row_order_free(a);
    bd_row_order_free(b);
    check_refused(bd_row_order_create(0, 1, &err), err, "0 rows");
}

/* The first inputs of the rows in a task's prepared batch, read back from the case that it saves.
 */
static void read_batch(const bd_task *task, int rows, int32_t *first, const char *folder)
{
    bd_error err = {0};
    char path[BD_PATH];
    check_ok(task->save_batch(task->self, folder, &err), err);
    check_ok(bd_path_join(path, folder, "batch.safetensors", &err), err);
    bd_safetensors *file;
    check_ok(file = bd_safetensors_open(path, &err), err);
    const int32_t *in = bd_safetensors_find(file, "inputs")->data;
    const int32_t *out = bd_safetensors_find(file, "targets")->data;
    const float *weights = bd_safetensors_find(file, "weights")->data;
    for (int r = 0; r < rows; r++) {
        first[r] = in[r * 24];
        for (int i = 0; i < 24; i++) {
            assert_true(weights[r * 24 + i] == 1);
            assert_int_equal(in[r * 24 + i], first[r]);
            assert_int_equal(out[r * 24 + i], first[r] + (i == 23)); // the next row begins
        }
    }
    bd_safetensors_close(file);
}

/* Every row once an epoch, whatever the micro-batch; targets are the next tokens; held-out rows are
 * not among them. */
static void test_rows(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model *model = small_model(1, BD_F32);
    bd_pretrain_options options = options_for(model);
    assert_int_equal(bd_pretrain_rows(&options), 100 - 7);
    assert_int_equal(bd_pretrain_steps_per_epoch(&options), 11);
    for (int i = 0; i < STREAM; i++)
        stream[i] = i / 24; // every row is full of its own number
    bd_task task;
    check_ok(bd_pretrain_task_create(&options, &task, &err), err);
    char folder[BD_PATH], path[BD_PATH];
    snprintf(folder, sizeof folder, "%s/bdlm-rows-XXXXXX",
             bd_folder_exists("/dev/shm") ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(folder));
    bool seen[100] = {0};
    int32_t first[4];
    for (int64_t micro = 0; micro < 22; micro++) {
        check_ok(task.next(task.self, micro / 2, micro % 2, &err), err);
        read_batch(&task, 4, first, folder);
        for (int r = 0; r < 4; r++) {
            assert_true(first[r] >= 0 && first[r] < 93 && !seen[first[r]]);
            seen[first[r]] = true;
        }
    }
    json_t *json;
    check_ok(bd_path_join(path, folder, "batch.json", &err), err);
    check_ok(json = bd_json_load(path, &err), err);
    assert_string_equal(json_string_value(json_object_get(json, "attention")), "causal");
    assert_string_equal(json_string_value(json_object_get(json, "alignment")), "same_position");
    assert_string_equal(json_string_value(json_object_get(json, "model")), "models/current");
    json_decref(json);
    bd_model *saved; // as `bdlm probe` opens it
    check_ok(bd_path_join(path, folder, "models/current", &err), err);
    check_ok(saved = bd_model_open(path, BD_F32, &err), err);
    bd_model_close(saved);
    bd_pretrain_task_free(&task);
    check_ok(bd_folder_remove(folder, &err), err);
    bd_model_close(model);
}

static void test_refusals(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_task task;
    bd_model *model = small_model(1, BD_F32);
    bd_pretrain_options o = options_for(model);
    o.token_count = 24 * 7 + 24;
    check_refused(bd_pretrain_task_create(&o, &task, &err), err, "make 7 rows of 24 tokens");
    o = options_for(model);
    o.sequence_length = 65;
    check_refused(bd_pretrain_task_create(&o, &task, &err), err,
                  "sequence_length: 65, 1 to the model's 64");
    o = options_for(model);
    stream[17] = 128;
    check_refused(bd_pretrain_task_create(&o, &task, &err), err,
                  "token 17 is 128, 0 to 127 expected");
    stream[17] = -1;
    check_refused(bd_pretrain_task_create(&o, &task, &err), err, "token 17 is -1");
    o = options_for(model);
    o.batch_rows = 0;
    check_refused(bd_pretrain_task_create(&o, &task, &err), err, "batch_rows: 0");
    // H-11: a data set that is too small is an error, never a silent early end.
    o = options_for(model);
    o.epochs = 2; // 186 rows, 8 a step: 23 steps and a quarter
    check_ok(bd_pretrain_task_create(&o, &task, &err), err);
    bd_trainer_options t = trainer_for(24);
    bd_train_result result;
    check_refused(bd_train(&task, &t, &result, &err), err,
                  "2 epochs of 93 rows end before step 23");
    assert_int_equal(err.kind, BD_ERROR_EXHAUSTED);
    assert_int_equal(result.step, 23);
    bd_pretrain_task_free(&task);
    bd_model_close(model);
}

static void check_same(const bd_model *a, const bd_model *b)
{
    for (int64_t i = 0; i < a->parameters.count; i++) {
        const bd_parameter *p = a->parameters.items[i], *q = b->parameters.items[i];
        if (memcmp(p->value, q->value, (size_t)p->count * 4))
            fail_msg("%s differs", p->name);
    }
}

static bd_train_result train(bd_model *model, const bd_trainer_options *trainer)
{
    bd_error err = {0};
    bd_task task;
    bd_train_result result;
    bd_pretrain_options options = options_for(model);
    check_ok(bd_pretrain_task_create(&options, &task, &err), err);
    check_ok(bd_train(&task, trainer, &result, &err), err);
    bd_pretrain_task_free(&task);
    return result;
}

static void test_threads(void **state)
{
    (void)state;
    for (int compute = BD_F32; compute <= BD_BF16; compute++) {
        bd_model *models[2];
        for (int i = 0; i < 2; i++) {
            bd_threads_set(i + 1);
            models[i] = small_model(1, (bd_dtype)compute);
            bd_trainer_options trainer = trainer_for(4);
            trainer.compute = (bd_dtype)compute;
            train(models[i], &trainer);
        }
        check_same(models[0], models[1]);
        bd_model_close(models[0]);
        bd_model_close(models[1]);
    }
    bd_threads_set(0);
}

// Field report 15: looking at held-out rows changes nothing about training.
static void test_evaluation_is_apart(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model *models[2];
    for (int i = 0; i < 2; i++) {
        models[i] = small_model(1, BD_F32);
        bd_pretrain_options options = options_for(models[i]);
        bd_task task;
        check_ok(bd_pretrain_task_create(&options, &task, &err), err);
        if (i == 1)
            task.evaluate = NULL;
        bd_trainer_options trainer = trainer_for(4);
        trainer.evaluate_every = 1;
        bd_train_result result;
        check_ok(bd_train(&task, &trainer, &result, &err), err);
        assert_int_equal(isfinite(result.evaluation), i == 0);
        bd_pretrain_task_free(&task);
    }
    check_same(models[0], models[1]);
    bd_model_close(models[0]);
    bd_model_close(models[1]);
}

/* It learns: from about log(128) to far below what single letters allow, held-out rows included. */
static void test_learns(void **state)
{
    (void)state;
    bd_model *model = small_model(1, BD_F32);
    bd_trainer_options trainer = trainer_for(60);
    trainer.evaluate_every = 60;
    bd_train_result result = train(model, &trainer);
    assert_true(result.loss < 1.2);
    assert_true(result.evaluation < 1.3);
    assert_int_equal(result.tokens, 60 * 2 * 4 * 24);
    bd_model_close(model);
}

/* Evaluation is the exact ratio of sums over all held-out rows, also when they fill no whole batch.
 */
static void test_evaluation(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model *model = small_model(1, BD_F32);
    bd_pretrain_options options = options_for(model);
    bd_arena *arena = check_arena();
    double values[2];
    for (int i = 0; i < 2; i++) {
        options.batch_rows = i == 0 ? 4 : 7;
        bd_task task;
        check_ok(bd_pretrain_task_create(&options, &task, &err), err);
        bd_tape tape = bd_tape_begin(arena, BD_F32, false);
        bd_loss loss = {0};
        check_ok(task.evaluate(task.self, &tape, &loss, &err), err);
        assert_true(loss.loss.denominator == 7 * 24 && loss.tokens == 7 * 24);
        values[i] = loss.loss.sum;
        assert_true(bd_arena_mark(arena) == 0);
        bd_pretrain_task_free(&task);
    }
    assert_true(values[0] == values[1]); // batch-invariant, summed in the order of the rows
    for (int64_t i = 0; i < model->parameters.count; i++)
        for (int64_t j = 0; j < model->parameters.items[i]->count; j++)
            assert_true(model->parameters.items[i]->gradient[j] == 0);
    bd_arena_destroy(arena);
    bd_model_close(model);
}

static volatile sig_atomic_t stop;
static bool (*inner_next)(void *, int64_t, int64_t, bd_error *);
static bool stopping_next(void *self, int64_t step, int64_t micro, bd_error *err)
{
    if (step == 9)
        stop = 1;
    return inner_next(self, step, micro, err);
}

// Field report 24, on a model: 20 steps == 10 + 10, with weights saved in bf16 and bf16 moments.
static void test_resume(void **state)
{
    (void)state;
    char folder[BD_PATH] = "/tmp/bdlm-pretrain-XXXXXX", run[BD_PATH], latest[BD_PATH];
    bd_error err = {0};
    assert_non_null(mkdtemp(folder));
    check_ok(bd_path_join(run, folder, "run", &err), err);
    check_ok(bd_path_join(latest, run, "latest", &err), err);
    bd_trainer_options trainer = trainer_for(20);
    trainer.optimizer.m_dtype = trainer.optimizer.v_dtype = BD_BF16;
    bd_model *whole = small_model(1, BD_F32);
    train(whole, &trainer);

    bd_model *parts[2] = {small_model(1, BD_F32),
                          small_model(2, BD_F32)}; // the second is overwritten
    for (int i = 0; i < 2; i++) {
        bd_pretrain_options options = options_for(parts[i]);
        options.save_dtype = BD_BF16;
        bd_task task;
        check_ok(bd_pretrain_task_create(&options, &task, &err), err);
        inner_next = task.next;
        if (i == 0)
            task.next = stopping_next;
        bd_train_result result;
        trainer.run = run;
        trainer.resume = i ? latest : NULL;
        stop = 0;
        trainer.stop = &stop;
        check_ok(bd_train(&task, &trainer, &result, &err), err);
        assert_int_equal(result.step, i ? 20 : 10);
        bd_pretrain_task_free(&task);
    }
    check_same(whole, parts[1]);
    // The checkpoint is a model folder that opens like any other.
    bd_model *opened;
    check_ok(opened = bd_model_open(latest, BD_F32, &err), err);
    assert_int_equal(opened->config.hidden, 32);
    bd_model_close(opened);
    bd_model_close(whole);
    bd_model_close(parts[0]);
    bd_model_close(parts[1]);
    check_ok(bd_folder_remove(folder, &err), err);
}

/* --- memory: after the first steps nothing grows --- */

static size_t resident_pages[60], heap_bytes[60];

static bool measuring_next(void *self, int64_t step, int64_t micro, bd_error *err)
{
    if (micro == 0 && step < 60) {
        FILE *file = fopen("/proc/self/statm", "r");
        unsigned long total, resident = 0;
        if (file && fscanf(file, "%lu %lu", &total, &resident) != 2)
            resident = 0;
        if (file)
            fclose(file);
        resident_pages[step] = resident;
        heap_bytes[step] = mallinfo2().uordblks;
    }
    return inner_next(self, step, micro, err);
}

static void test_flat_memory(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model *model = small_model(1, BD_F32);
    bd_pretrain_options options = options_for(model);
    bd_task task;
    check_ok(bd_pretrain_task_create(&options, &task, &err), err);
    inner_next = task.next;
    task.next = measuring_next;
    bd_trainer_options trainer = trainer_for(60);
    trainer.evaluate_every = 4;
    bd_train_result result;
    check_ok(bd_train(&task, &trainer, &result, &err), err);
    assert_true(heap_bytes[59] <=
                heap_bytes[6] + 2048); // what the allocator keeps at hand moves a bit
#if !defined(__SANITIZE_ADDRESS__)     // it keeps what was freed
    assert_true(resident_pages[59] <= resident_pages[6] + 64); // 256 KB for stacks and the like
#endif
    assert_true(result.arena_peak > 0 && result.arena_peak < (size_t)64 << 20);
    bd_pretrain_task_free(&task);
    bd_model_close(model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_row_order),
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_learns),
        cmocka_unit_test(test_evaluation),
        cmocka_unit_test(test_evaluation_is_apart),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_flat_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
