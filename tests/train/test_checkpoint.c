/* Checkpoints: round trip, what is refused, links, pruning, failures while writing. */
#include "train/checkpoint.h"

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "format/json.h"
#include "toy_task.h"

/* A toy, its optimizer after one step, and a contract. */
typedef struct {
    toy t;
    bd_task task;
    bd_optimizer *optimizer;
    bd_contract *contract;
    char run[BD_PATH];
} fixture;

static void begin(fixture *f, uint64_t seed, bd_dtype m_dtype)
{
    bd_error err = {0};
    toy_begin(&f->t, seed);
    f->task = toy_task(&f->t);
    bd_optimizer_options options = bd_optimizer_default();
    options.m_dtype = m_dtype;
    check_ok(f->optimizer = bd_optimizer_create(&f->t.parameters, &options, &err), err);
    for (int i = 0; i < TOY_TENSORS; i++)
        check_fill(f->t.tensor[i].gradient, f->t.tensor[i].count, seed + (uint64_t)i);
    bd_optimizer_step(f->optimizer, (bd_weighted){.sum = 1, .denominator = 1}, 0.01);
    f->contract = bd_contract_create();
    bd_contract_int(f->contract, "block_size", 4);
    bd_contract_text(f->contract, "task", "toy");
    toy_folder(f->run);
    check_ok(bd_folder_make(f->run, &err), err);
}

static void end(fixture *f)
{
    bd_optimizer_free(f->optimizer);
    bd_contract_free(f->contract);
    toy_end(&f->t);
    toy_folder_remove(f->run);
}

static void write_at(fixture *f, int64_t step, int64_t best_step, int64_t keep)
{
    bd_error err = {0};
    bd_run_state state = bd_run_state_begin();
    state.step = step;
    state.best_step = best_step;
    state.micro_batches = 2 * step;
    state.tokens = 12345678901;
    state.seconds = 1.25;
    state.window_tokens = 17;
    bd_metric m = bd_metric_weighted("loss", (bd_weighted){.sum = 0.1, .denominator = 3});
    check_ok(bd_metrics_add(&state.window, &m, &err), err);
    f->optimizer->step = step;
    check_ok(bd_checkpoint_write(f->run, &f->task, f->optimizer, f->contract, &state, keep, &err),
             err);
}

static void path_of(const fixture *f, const char *name, char out[BD_PATH])
{
    bd_error err = {0};
    check_ok(bd_path_join(out, f->run, name, &err), err);
}

static bool exists(const fixture *f, const char *name)
{
    char path[BD_PATH];
    path_of(f, name, path);
    return access(path, F_OK) == 0;
}

static void check_link(const fixture *f, const char *name, const char *target)
{
    char path[BD_PATH], found[BD_PATH] = "";
    path_of(f, name, path);
    assert_true(readlink(path, found, sizeof found - 1) > 0);
    assert_string_equal(found, target);
}

static void round_trip(bd_dtype save_dtype, bd_dtype m_dtype, bool rounded)
{
    fixture a, b;
    bd_error err = {0};
    begin(&a, 1, m_dtype);
    begin(&b, 2, m_dtype);
    a.t.save_dtype = save_dtype;
    a.t.save_rounded = rounded;
    write_at(&a, 7, -1, 0);
    char latest[BD_PATH];
    path_of(&a, "latest", latest);
    bd_run_state state;
    uint64_t version = b.t.tensor[0].version;
    check_ok(bd_checkpoint_verify(latest, &err), err);
    check_ok(bd_checkpoint_read(latest, &b.task, b.optimizer, a.contract, &state, &err), err);
    assert_true(toy_equal(&a.t, &b.t));
    assert_true(b.t.tensor[0].version > version);
    assert_int_equal(b.optimizer->step, 7);
    for (int i = 0; i < TOY_TENSORS; i++) {
        size_t count = (size_t)a.t.tensor[i].count;
        assert_memory_equal(a.optimizer->moments[i].m, b.optimizer->moments[i].m,
                            count * bd_dtype_size(m_dtype));
        assert_memory_equal(a.optimizer->moments[i].v, b.optimizer->moments[i].v, count * 4);
    }
    assert_int_equal(state.step, 7);
    assert_int_equal(state.micro_batches, 14);
    assert_true(state.tokens == 12345678901 && state.seconds == 1.25 && state.window_tokens == 17);
    assert_true(isnan(state.evaluation) && isnan(state.best) && state.best_step == -1);
    check_near(bd_metric_value(bd_metrics_find(&state.window, "loss")), 0.1 / 3, 0);
    check_link(&a, "latest", "checkpoint-7");
    assert_false(exists(&a, "best"));
    end(&a);
    end(&b);
}

static void test_round_trip(void **state)
{
    (void)state;
    round_trip(BD_F32, BD_F32, false);
    round_trip(BD_BF16, BD_BF16, false); // then the fp32 values are in the trainer's own file
    round_trip(BD_F32, BD_BF16, true);   // and then as well
}

static off_t size_of(const fixture *f, const char *name)
{
    char path[BD_PATH];
    struct stat info;
    path_of(f, name, path);
    assert_true(stat(path, &info) == 0);
    return info.st_size;
}

// Values that the saved weights hold exactly are not stored a second time.
static void test_no_second_copy(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 1, BD_F32);
    write_at(&f, 1, -1, 0);
    f.t.save_dtype = BD_BF16;
    write_at(&f, 2, -1, 0);
    off_t alone = size_of(&f, "checkpoint-1/trainer_state.safetensors");
    off_t with = size_of(&f, "checkpoint-2/trainer_state.safetensors");
    assert_true(with - alone > 1440 * 4 && with - alone < 1440 * 4 + 600);
    end(&f);
}

/* Damage one byte (from the end, if negative) or cut the file. */
static void damage(const char *path, long at, bool cut)
{
    if (cut) {
        assert_true(truncate(path, at) == 0);
        return;
    }
    FILE *file = fopen(path, "r+b");
    assert_non_null(file);
    assert_true(fseek(file, at, at < 0 ? SEEK_END : SEEK_SET) == 0);
    int byte = fgetc(file);
    assert_true(fseek(file, -1, SEEK_CUR) == 0);
    fputc(byte ^ 1, file);
    fclose(file);
}

static void check_damage(const char *name, long at, bool cut, const char *message)
{
    fixture a, b;
    bd_error err = {0};
    begin(&a, 1, BD_F32);
    begin(&b, 2, BD_F32);
    write_at(&a, 3, -1, 0);
    float *before = malloc((size_t)b.t.tensor[0].count * 4);
    memcpy(before, b.t.tensor[0].value, (size_t)b.t.tensor[0].count * 4);
    char path[BD_PATH], latest[BD_PATH];
    path_of(&a, "latest", latest);
    path_of(&a, name, path);
    damage(path, at, cut);
    bd_run_state state = bd_run_state_begin();
    check_refused(bd_checkpoint_read(latest, &b.task, b.optimizer, a.contract, &state, &err), err,
                  message);
    assert_int_equal(err.kind, BD_ERROR_STATE);
    const char *file = strrchr(name, '/') + 1;
    if (!strstr(err.message, file))
        fail_msg("\"%s\" does not name %s", err.message, file);
    assert_memory_equal(before, b.t.tensor[0].value, (size_t)b.t.tensor[0].count * 4); // untouched
    assert_int_equal(b.optimizer->step, 1);
    assert_int_equal(state.step, 0);
    free(before);
    end(&a);
    end(&b);
}

static void test_damage(void **state)
{
    (void)state;
    check_damage("checkpoint-3/model.safetensors", -1, false, "changed");
    check_damage("checkpoint-3/model.safetensors", 200, true, "200 bytes");
    check_damage("checkpoint-3/trainer_state.safetensors", -5, false, "SHA-256");
    check_damage("checkpoint-3/trainer_state.safetensors", 0, true, "truncated");
    check_damage("checkpoint-3/config.json", 1, false, "changed");
    check_damage("checkpoint-3/trainer.json", 100, true, "trainer.json");
    check_damage("checkpoint-3/trainer.json", 0, true, "trainer.json");
}

/* Every byte of trainer.json matters, white space aside. */
static void test_every_byte(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 1, BD_F32);
    write_at(&f, 3, -1, 0);
    bd_error err = {0};
    char path[BD_PATH], latest[BD_PATH];
    path_of(&f, "latest", latest);
    path_of(&f, "latest/trainer.json", path);
    size_t size;
    char *text;
    check_ok(text = bd_file_read_text(path, 1 << 20, &size, &err), err);
    for (size_t at = 0; at < size; at += 7) {
        if (text[at] == ' ' || text[at] == '\n')
            continue;
        text[at] ^= 2;
        check_ok(bd_file_write(path, text, size, &err), err);
        text[at] ^= 2;
        if (bd_checkpoint_verify(latest, &err))
            fail_msg("a change of byte %zu of trainer.json was not seen", at);
        assert_int_equal(err.kind, BD_ERROR_STATE);
    }
    check_ok(bd_file_write(path, text, size, &err), err);
    check_ok(bd_checkpoint_verify(latest, &err), err);
    free(text);
    end(&f);
}

static void test_missing_and_unlisted(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 1, BD_F32);
    write_at(&f, 3, -1, 0);
    bd_error err = {0};
    char path[BD_PATH], latest[BD_PATH];
    path_of(&f, "latest", latest);
    path_of(&f, "latest/README.md", path);
    check_ok(bd_file_write(path, "mine\n", 5, &err), err);
    check_ok(bd_checkpoint_verify(latest, &err), err); // a user's note is none of our business
    path_of(&f, "latest/model.safetensors.index.json", path);
    check_ok(bd_file_write(path, "{}\n", 3, &err), err);
    check_refused(bd_checkpoint_verify(latest, &err), err,
                  "model.safetensors.index.json: a tensor file that");
    unlink(path);
    path_of(&f, "latest/config.json", path);
    unlink(path);
    check_refused(bd_checkpoint_verify(latest, &err), err, "config.json: missing");
    path_of(&f, "nowhere", latest);
    check_refused(bd_checkpoint_verify(latest, &err), err, "nowhere/trainer.json");
    end(&f);
}

static void test_contract(void **state)
{
    (void)state;
    fixture a, b;
    bd_error err = {0};
    begin(&a, 1, BD_F32);
    begin(&b, 2, BD_F32);
    write_at(&a, 3, -1, 0);
    char latest[BD_PATH];
    path_of(&a, "latest", latest);
    bd_run_state state_read = bd_run_state_begin();
    bd_contract_int(b.contract, "seed", 5);
    check_refused(bd_checkpoint_read(latest, &b.task, b.optimizer, b.contract, &state_read, &err),
                  err, "seed: checkpoint has no such field, this run has 5");
    assert_int_equal(err.kind, BD_ERROR_STATE);
    assert_false(toy_equal(&a.t, &b.t));
    // Moments of another dtype, and a tensor of another shape, would be refused even then.
    b.optimizer->options.m_dtype = BD_BF16;
    check_refused(bd_checkpoint_read(latest, &b.task, b.optimizer, a.contract, &state_read, &err),
                  err, "m.first.weight is F32, BF16 expected");
    b.optimizer->options.m_dtype = BD_F32;
    b.t.tensor[2].shape[0] = 30, b.t.tensor[2].shape[1] = 7;
    check_refused(bd_checkpoint_read(latest, &b.task, b.optimizer, a.contract, &state_read, &err),
                  err, "m.last.weight has another shape");
    end(&a);
    end(&b);
}

static void test_links_and_pruning(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 1, BD_F32);
    write_at(&f, 10, 10, 2);
    check_link(&f, "best", "checkpoint-10");
    write_at(&f, 20, 10, 2);
    write_at(&f, 30, 10, 2);
    write_at(&f, 40, 10, 2);
    check_link(&f, "latest", "checkpoint-40");
    check_link(&f, "best", "checkpoint-10");
    assert_true(exists(&f, "checkpoint-10") && exists(&f, "checkpoint-30") &&
                exists(&f, "checkpoint-40"));
    assert_false(exists(&f, "checkpoint-20"));
    write_at(&f, 50, 50, 2);
    check_link(&f, "best", "checkpoint-50");
    assert_false(exists(&f, "checkpoint-10"));
    // Written again, also while a link leads to it: whole all the time.
    write_at(&f, 50, 50, 2);
    bd_error err = {0};
    char path[BD_PATH];
    path_of(&f, "best", path);
    check_ok(bd_checkpoint_verify(path, &err), err);
    check_ok(bd_checkpoint_link(f.run, "best", NULL, &err), err);
    check_ok(bd_checkpoint_link(f.run, "best", NULL, &err), err);
    assert_false(exists(&f, "best"));
    // Later ones than this one stay: the run was gone back in.
    write_at(&f, 41, -1, 1);
    assert_true(exists(&f, "checkpoint-50") && exists(&f, "checkpoint-41"));
    assert_false(exists(&f, "checkpoint-40") || exists(&f, "checkpoint-30"));
    char **names;
    int64_t count = bd_folder_list(f.run, &names, &err);
    for (int64_t i = 0; i < count; i++) {
        assert_null(strstr(names[i], ".tmp-"));
        free(names[i]);
    }
    free(names);
    end(&f);
}

static void test_clean(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 1, BD_F32);
    bd_error err = {0};
    char path[BD_PATH];
    path_of(&f, "checkpoint-5.tmp-new", path);
    check_ok(bd_folder_make(path, &err), err);
    path_of(&f, "run.json.tmp-123", path);
    check_ok(bd_file_write(path, "x", 1, &err), err);
    check_ok(bd_checkpoint_clean(f.run, &err), err);
    assert_false(exists(&f, "checkpoint-5.tmp-new") || exists(&f, "run.json.tmp-123"));
    end(&f);
}

static void test_failing_save(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 1, BD_F32);
    write_at(&f, 1, -1, 0);
    bd_error err = {0};
    bd_run_state s = bd_run_state_begin();
    s.step = 2;
    f.t.fail_save_at = f.t.saves;
    check_refused(bd_checkpoint_write(f.run, &f.task, f.optimizer, f.contract, &s, 0, &err), err,
                  "checkpoint of step 2: ");
    check_link(&f, "latest", "checkpoint-1");
    assert_false(exists(&f, "checkpoint-2") || exists(&f, "checkpoint-2.tmp-new"));
    end(&f);
}

/* Writes fail after so many bytes of a file, as on a full disk: an error, and `latest` stays whole.
 */
static void test_full_disk(void **state)
{
    (void)state;
    fixture f;
    begin(&f, 1, BD_F32);
    write_at(&f, 1, -1, 0);
    char latest[BD_PATH];
    path_of(&f, "latest", latest);
    for (rlim_t limit = 0; limit <= 16384; limit = limit ? 2 * limit : 16) {
        fflush(NULL);
        pid_t child = fork();
        if (child == 0) {
            struct rlimit most = {limit, limit};
            signal(SIGXFSZ, SIG_IGN);
            setrlimit(RLIMIT_FSIZE, &most);
            bd_error err = {0};
            bd_run_state s = bd_run_state_begin();
            s.step = 2;
            bool ok = bd_checkpoint_write(f.run, &f.task, f.optimizer, f.contract, &s, 0, &err);
            _exit(ok ? 0 : strstr(err.message, "checkpoint of step 2: ") ? 1 : 2);
        }
        int status;
        assert_true(waitpid(child, &status, 0) == child && WIFEXITED(status));
        bool whole = limit >= 16384; // the largest file has some 12 KB
        assert_int_equal(WEXITSTATUS(status), whole ? 0 : 1);
        bd_error err = {0};
        check_ok(bd_checkpoint_verify(latest, &err), err);
        check_link(&f, "latest", whole ? "checkpoint-2" : "checkpoint-1");
    }
    end(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_no_second_copy),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_every_byte),
        cmocka_unit_test(test_missing_and_unlisted),
        cmocka_unit_test(test_contract),
        cmocka_unit_test(test_links_and_pruning),
        cmocka_unit_test(test_clean),
        cmocka_unit_test(test_failing_save),
        cmocka_unit_test(test_full_disk),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
