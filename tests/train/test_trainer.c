/* The loop: resuming to the same bits, logs, evaluation, stopping, and what goes wrong. */
#include "train/trainer.h"

#include <sys/stat.h>
#include <unistd.h>

#include "format/json.h"
#include "toy_task.h"
#include "train/checkpoint.h"
#include "train/run_folder.h"

static bd_trainer_options options_for(const char *run, int64_t steps)
{
    bd_trainer_options o = bd_trainer_default();
    o.steps = steps;
    o.micro_batches = 2;
    o.compute = BD_F32;
    o.schedule.peak = 0.05;
    o.schedule.warmup = 3;
    o.optimizer.weight_decay = 0.01;
    o.optimizer.m_dtype = BD_BF16;
    o.log_every = 3;
    o.evaluate_every = 4;
    o.checkpoint_every = 6;
    o.run = run;
    return o;
}

static void join(char out[BD_PATH], const char *folder, const char *name)
{
    bd_error err = {0};
    check_ok(bd_path_join(out, folder, name, &err), err);
}

/* metrics.jsonl as a JSON array. */
static json_t *read_whole_log(const char *run)
{
    char path[BD_PATH];
    bd_error err = {0};
    size_t size;
    join(path, run, "metrics.jsonl");
    char *text;
    check_ok(text = bd_file_read_text(path, 1 << 20, &size, &err), err);
    json_t *lines = json_array();
    for (char *line = text, *end; (end = strchr(line, '\n')); line = end + 1) {
        json_t *object;
        check_ok(object = bd_json_parse(line, (size_t)(end - line), path, &err), err);
        json_array_append_new(lines, object);
    }
    free(text);
    return lines;
}

/* The same without what depends on the clock. */
static json_t *read_log(const char *run)
{
    json_t *lines = read_whole_log(run), *line;
    size_t i;
    json_array_foreach(lines, i, line)
    {
        assert_int_equal(json_object_del(line, "seconds"), 0);
        assert_int_equal(json_object_del(line, "tokens_per_second"), 0);
    }
    return lines;
}

static double logged(json_t *lines, size_t line, const char *field)
{
    json_t *value = json_object_get(json_array_get(lines, line), field);
    if (!json_is_number(value))
        fail_msg("line %zu has no number %s", line, field);
    return json_number_value(value);
}

static void train_toy(toy *t, bd_trainer_options *o, bd_train_result *result)
{
    bd_error err = {0};
    bd_task task = toy_task(t);
    o->stop = &t->stop;
    check_ok(bd_train(&task, o, result, &err), err);
}

// H-10: 20 steps at once, and 10 with 10 more after a stop.
static void test_resume(void **state)
{
    (void)state;
    toy a, b, c;
    char run_a[BD_PATH], run_b[BD_PATH], latest[BD_PATH];
    bd_train_result result;
    toy_folder(run_a);
    toy_folder(run_b);
    toy_begin(&a, 3);
    bd_trainer_options o = options_for(run_a, 20);
    train_toy(&a, &o, &result);
    assert_int_equal(result.step, 20);
    assert_false(result.stopped);
    assert_int_equal(result.tokens, 400);

    toy_begin(&b, 3);
    b.stop_at = 9; // the tenth step is finished, then it stops
    o = options_for(run_b, 20);
    train_toy(&b, &o, &result);
    assert_int_equal(result.step, 10);
    assert_true(result.stopped);
    join(latest, run_b, "latest");
    char found[BD_PATH] = "";
    assert_true(readlink(latest, found, sizeof found - 1) > 0);
    assert_string_equal(found, "checkpoint-10");
    // It is not evaluated because of the stop, and does not carry the value of an earlier step.
    bd_error err = {0};
    char path[BD_PATH];
    json_t *trainer;
    join(path, run_b, "latest/trainer.json");
    check_ok(trainer = bd_json_load(path, &err), err);
    assert_true(json_is_null(json_object_get(trainer, "eval_loss")));
    assert_true(json_is_number(json_object_get(trainer, "best_eval_loss")));
    json_decref(trainer);
    // A crash can leave half a line.
    join(path, run_b, "metrics.jsonl");
    FILE *file = fopen(path, "a");
    fputs("{\"step\": 3, \"lo", file);
    fclose(file);

    toy_begin(&c, 3);
    o = options_for(run_b, 20);
    o.resume = latest;
    train_toy(&c, &o, &result);
    assert_int_equal(result.step, 20);
    assert_int_equal(result.tokens, 400);
    assert_true(toy_equal(&a, &c));
    assert_false(toy_equal(&a, &b));
    json_t *log_a = read_log(run_a), *log_b = read_log(run_b);
    assert_true(json_equal(log_a, log_b)); // also the windows across the stop
    json_decref(log_a);
    json_decref(log_b);

    // Nothing is left to do: no step, no error, the same weights.
    toy d;
    toy_begin(&d, 3);
    train_toy(&d, &o, &result);
    assert_int_equal(result.step, 20);
    assert_true(isnan(result.loss) && toy_equal(&a, &d));
    toy_end(&d);
    toy_end(&a);
    toy_end(&b);
    toy_end(&c);
    toy_folder_remove(run_a);
    toy_folder_remove(run_b);
}

// Going back to an earlier checkpoint drops the lines after it and replaces what came later.
static void test_go_back(void **state)
{
    (void)state;
    toy a, b;
    char run[BD_PATH], early[BD_PATH], late[BD_PATH];
    bd_train_result result;
    bd_error err = {0};
    toy_folder(run);
    toy_begin(&a, 3);
    bd_trainer_options o = options_for(run, 20);
    o.keep = 0;
    train_toy(&a, &o, &result);
    json_t *log_a = read_log(run);

    toy_begin(&b, 3);
    join(early, run, "checkpoint-6");
    join(late, run, "checkpoint-18");
    o.resume = early;
    b.stop = 1; // before the first step
    train_toy(&b, &o, &result);
    assert_int_equal(result.step, 6);
    char latest[BD_PATH], found[BD_PATH] = "";
    join(latest, run, "latest");
    assert_true(readlink(latest, found, sizeof found - 1) > 0);
    assert_string_equal(found, "checkpoint-6"); // not one that this run is going to replace

    toy_end(&b);
    toy_begin(&b, 3);
    b.stop_at = 7;
    train_toy(&b, &o, &result);
    assert_int_equal(result.step, 8);
    json_t *log_b = read_log(run);
    assert_int_equal(logged(log_b, json_array_size(log_b) - 1, "step"), 8);
    check_ok(bd_checkpoint_verify(late, &err), err); // later ones stay until they are replaced
    json_decref(log_b);

    toy_end(&b);
    toy_begin(&b, 3);
    o.resume = latest;
    train_toy(&b, &o, &result);
    assert_true(toy_equal(&a, &b));
    log_b = read_log(run);
    assert_true(json_equal(log_a, log_b));
    json_decref(log_a);
    json_decref(log_b);
    toy_end(&a);
    toy_end(&b);
    toy_folder_remove(run);
}

static void test_log(void **state)
{
    (void)state;
    toy t;
    char run[BD_PATH];
    bd_train_result result;
    toy_folder(run);
    toy_begin(&t, 3);
    bd_trainer_options o = options_for(run, 10);
    train_toy(&t, &o, &result);
    json_t *log = read_log(run);
    const int steps[6] = {3, 4, 6,
                          8, 9, 10}; // every third, every evaluation, the checkpoint, the last
    assert_int_equal(json_array_size(log), 6);
    for (size_t i = 0; i < 6; i++) {
        int step = steps[i], since = i ? steps[i - 1] : 0;
        json_t *line = json_array_get(log, i);
        assert_int_equal(logged(log, i, "step"), step);
        assert_int_equal(logged(log, i, "tokens"), 20 * step);
        check_near(logged(log, i, "weight"), 1.5 * 1447 * (step - since), 1e-9);
        check_near(logged(log, i, "micro"), 0.5, 0); // a scalar: the mean over micro-batches
        check_near(logged(log, i, "closeness"), logged(log, i, "loss"), 1e-9);
        assert_null(json_object_get(line, "untrained_share"));
        check_near(logged(log, i, "perplexity"), exp(logged(log, i, "loss")), 1e-8);
        check_near(
            logged(log, i, "lr"),
            bd_schedule_rate(
                &(bd_schedule){.kind = BD_SCHEDULE_COSINE, .peak = 0.05, .warmup = 3, .total = 10},
                step - 1),
            1e-9);
        assert_true(logged(log, i, "grad_norm") > 0);
        bool evaluated = step == 4 || step == 6 || step == 8 || step == 10;
        assert_int_equal(json_object_get(line, "eval_loss") != NULL, evaluated);
        if (evaluated)
            check_near(logged(log, i, "eval_perplexity"), exp(logged(log, i, "eval_loss")), 1e-8);
    }
    assert_true(logged(log, 5, "loss") < logged(log, 0, "loss"));
    check_near(result.evaluation, logged(log, 5, "eval_loss"), 1e-9);
    json_decref(log);
    log = read_whole_log(run);
    for (size_t i = 1; i < 6; i++) {
        double tokens = logged(log, i, "tokens") - logged(log, i - 1, "tokens");
        double seconds = logged(log, i, "seconds") - logged(log, i - 1, "seconds");
        assert_true(seconds > 0);
        check_near(logged(log, i, "tokens_per_second") * seconds, tokens, 1e-3);
    }
    json_decref(log);
    toy_end(&t);
    toy_folder_remove(run);
}

static void test_run_json(void **state)
{
    (void)state;
    toy t;
    char run[BD_PATH], path[BD_PATH], latest[BD_PATH];
    bd_train_result result;
    bd_error err = {0};
    toy_folder(run);
    join(path, run, "run.json");
    join(latest, run, "latest");
    json_t *recipe = json_pack("{s:i}", "answer", 42);
    for (int session = 0; session < 2; session++) {
        toy_begin(&t, 3);
        t.stop_at = session ? -1 : 4;
        bd_trainer_options o = options_for(run, 10);
        o.recipe = recipe;
        o.command = (const char *const[]){"bdlm", "pretrain", "\xff", NULL};
        o.resume = session ? latest : NULL;
        train_toy(&t, &o, &result);
        toy_end(&t);
    }
    json_t *root;
    check_ok(root = bd_json_load(path, &err), err);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(root, "recipe"), "answer")),
                     42);
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(root, "contract"), "target")), "noise");
    assert_int_equal(json_string_length(json_object_get(root, "contract_sha256")), 64);
    json_t *sessions = json_object_get(root, "sessions");
    assert_int_equal(json_array_size(sessions), 2);
    for (size_t i = 0; i < 2; i++) {
        json_t *s = json_array_get(sessions, i);
        assert_int_equal(json_integer_value(json_object_get(s, "from_step")), i ? 5 : 0);
        assert_string_equal(json_string_value(json_array_get(json_object_get(s, "command"), 1)),
                            "pretrain");
        assert_true(json_string_length(json_object_get(s, "cpu")) > 0);
        assert_true(json_string_length(json_object_get(s, "isa")) > 0);
        assert_true(json_integer_value(json_object_get(s, "threads")) >= 1);
    }
    json_decref(root);
    json_decref(recipe);
    toy_folder_remove(run);
}

// `best` leads to the checkpoint with the lowest evaluation loss, and pruning spares it.
static void test_best(void **state)
{
    (void)state;
    toy t;
    char run[BD_PATH], best[BD_PATH], found[BD_PATH] = "";
    bd_train_result result;
    bd_error err = {0};
    toy_folder(run);
    toy_begin(&t, 3);
    t.best_at = 4;
    bd_trainer_options o = options_for(run, 12);
    o.evaluate_every = 100; // a checkpoint is evaluated anyway
    o.checkpoint_every = 1;
    train_toy(&t, &o, &result);
    check_near(result.evaluation, 3.5, 0);
    join(best, run, "best");
    assert_true(readlink(best, found, sizeof found - 1) > 0);
    assert_string_equal(found, "checkpoint-5"); // step 4 counts from 0, checkpoints count updates
    check_ok(bd_checkpoint_verify(best, &err), err);
    toy_end(&t);
    toy_folder_remove(run);
}

static void test_refusals(void **state)
{
    (void)state;
    toy t;
    char run[BD_PATH], latest[BD_PATH];
    bd_train_result result;
    bd_error err = {0};
    toy_folder(run);
    join(latest, run, "latest");
    toy_begin(&t, 3);
    bd_trainer_options o = options_for(run, 6);
    train_toy(&t, &o, &result);
    bd_task task = toy_task(&t);

    check_refused(bd_train(&task, &o, NULL, &err), err, "already holds a run; resume it");
    assert_int_equal(err.kind, BD_ERROR_STATE);
    o.resume = latest;
    o.steps = 7;
    t.seed = 4;
    check_refused(bd_train(&task, &o, NULL, &err), err, "steps: checkpoint has 6, this run has 7");
    assert_non_null(strstr(err.message, "seed: checkpoint has 3, this run has 4"));
    t.seed = 3;
    o.steps = 6;
    task.name = "distill"; // H-04
    check_refused(bd_train(&task, &o, NULL, &err), err,
                  "task: checkpoint has toy, this run has distill");
    task.name = "toy";

    bd_run *other;
    check_ok(other = bd_run_open(run, true, &err), err);
    check_refused(bd_train(&task, &o, NULL, &err), err, "another process is training here");
    bd_run_close(other);

    o.steps = 0;
    check_refused(bd_train(&task, &o, NULL, &err), err, "steps: 0");
    o.steps = 6;
    o.micro_batches = 0;
    check_refused(bd_train(&task, &o, NULL, &err), err, "micro_batches: 0");
    o.micro_batches = 2;
    o.compute = BD_I32;
    check_refused(bd_train(&task, &o, NULL, &err), err, "compute: I32");
    toy_end(&t);
    toy_folder_remove(run);
}

static void test_bad_loss(void **state)
{
    (void)state;
    toy t, good;
    char run[BD_PATH], path[BD_PATH];
    bd_error err = {0};
    bd_train_result result;
    toy_folder(run);
    toy_begin(&t, 3);
    t.bad_loss_at = 7;
    bd_trainer_options o = options_for(run, 20);
    bd_task task = toy_task(&t);
    check_refused(bd_train(&task, &o, &result, &err), err,
                  "step 7, micro-batch 1: the loss is nan");
    assert_non_null(strstr(err.message, "its batch is in"));
    assert_int_equal(result.step, 7);
    join(path, run, "bad-step-7/micro-1/batch.txt");
    size_t size;
    char *text;
    check_ok(text = bd_file_read_text(path, 100, &size, &err), err);
    assert_string_equal(text, "7 1\n");
    free(text);
    join(path, run, "latest");
    check_ok(bd_checkpoint_verify(path, &err), err);
    // The parameters are those after the seventh step.
    toy_begin(&good, 3);
    good.stop_at = 6;
    o.run = NULL;
    train_toy(&good, &o, &result);
    assert_true(toy_equal(&t, &good));
    toy_end(&t);
    toy_end(&good);
    toy_folder_remove(run);
}

static void test_bad_gradient(void **state)
{
    (void)state;
    toy t;
    char run[BD_PATH], path[BD_PATH];
    bd_error err = {0};
    toy_folder(run);
    toy_begin(&t, 3);
    t.bad_gradient_at = 2;
    bd_trainer_options o = options_for(run, 20);
    bd_task task = toy_task(&t);
    check_refused(bd_train(&task, &o, NULL, &err), err,
                  "step 2: the gradient norm is inf (first in norm.weight)");
    for (int micro = 0; micro < 2; micro++) {
        char name[64];
        snprintf(name, sizeof name, "bad-step-2/micro-%d/batch.txt", micro);
        join(path, run, name);
        assert_true(bd_file_exists(path));
    }
    for (int i = 0; i < TOY_TENSORS; i++)
        for (int64_t j = 0; j < t.tensor[i].count; j++)
            assert_true(isfinite(t.tensor[i].value[j]));
    toy_end(&t);
    toy_folder_remove(run);
}

// Decision 10: steps with nothing to supervise are made like any other.
static void test_nothing_to_train(void **state)
{
    (void)state;
    toy t, before;
    bd_train_result result;
    toy_begin(&t, 3);
    toy_begin(&before, 3);
    t.weight = 0;
    char run[BD_PATH];
    toy_folder(run);
    bd_trainer_options o = options_for(run, 5);
    o.optimizer.weight_decay = 0;
    train_toy(&t, &o, &result);
    assert_int_equal(result.step, 5);
    assert_true(result.loss == 0);
    json_t *log = read_log(run);
    check_near(logged(log, 0, "untrained_share"), 1, 0); // and the log says so
    json_decref(log);
    toy_folder_remove(run);
    assert_true(toy_equal(&t, &before));
    for (int i = 0; i < TOY_TENSORS; i++)
        for (int64_t j = 0; j < t.tensor[i].count; j++)
            assert_true(t.tensor[i].gradient[j] == 0);
    toy_end(&t);
    toy_end(&before);
}

// T-24: a loss that is a plain mean has denominator 1; the gradient is the mean over micro-batches.
static bool mean_forward(void *self, bd_tape *tape, bd_loss *loss, bd_error *err)
{
    toy *t = self;
    if (!toy_forward(self, tape, loss, err))
        return false;
    for (int i = 0; i < TOY_TENSORS; i++)
        for (int64_t j = 0; j < t->tensor[i].count; j++)
            t->tensor[i].gradient[j] = (float)(t->micro == 0 ? 1 : 1 + 3);
    *loss = (bd_loss){.loss = {.sum = t->micro == 0 ? 1 : 3, .denominator = 1}};
    return true;
}

static void test_scalar_loss(void **state)
{
    (void)state;
    toy t;
    bd_train_result result;
    bd_error err = {0};
    toy_begin(&t, 3);
    bd_task task = toy_task(&t);
    task.forward = mean_forward;
    task.evaluate = NULL;
    char run[BD_PATH];
    toy_folder(run);
    bd_trainer_options o = options_for(run, 1);
    o.schedule.warmup = 0;
    check_ok(bd_train(&task, &o, &result, &err), err);
    check_near(result.loss, 2, 0);
    json_t *log = read_log(run);
    check_near(logged(log, 0, "grad_norm"), 2 * sqrt(1440), 1e-6); // (1 + 3) / 2 in every element
    json_decref(log);
    toy_end(&t);
    toy_folder_remove(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_go_back),
        cmocka_unit_test(test_log),
        cmocka_unit_test(test_run_json),
        cmocka_unit_test(test_best),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_bad_loss),
        cmocka_unit_test(test_bad_gradient),
        cmocka_unit_test(test_nothing_to_train),
        cmocka_unit_test(test_scalar_loss),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
