/* Every system call of a run that changes files: what is left if the process dies right before it,
 * and what happens if it fails.
 *
 * The library is linked statically, so the definitions below stand in for those of the C library.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sha256.h"
#include "toy_task.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

static int calls_left = -1; // until the fault; -1: never
static bool dies;           // at the fault: die, or fail with EIO

static bool fault(void)
{
    if (calls_left < 0 || calls_left-- > 0)
        return false;
    if (dies)
        kill(getpid(), SIGKILL);
    errno = EIO;
    return true;
}

int rename(const char *from, const char *to)
{
    return fault() ? -1 : (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat2(int from_folder, const char *from, int to_folder, const char *to, unsigned flags)
{
    return fault() ? -1 : (int)syscall(SYS_renameat2, from_folder, from, to_folder, to, flags);
}
int symlink(const char *target, const char *path)
{
    return fault() ? -1 : (int)syscall(SYS_symlinkat, target, AT_FDCWD, path);
}
int unlink(const char *path)
{
    return fault() ? -1 : (int)syscall(SYS_unlinkat, AT_FDCWD, path, 0);
}
int remove(const char *path)
{
    if (fault())
        return -1;
    if (syscall(SYS_unlinkat, AT_FDCWD, path, 0) == 0)
        return 0;
    return errno == EISDIR ? (int)syscall(SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR) : -1;
}
int mkdir(const char *path, mode_t mode)
{
    return fault() ? -1 : (int)syscall(SYS_mkdirat, AT_FDCWD, path, mode);
}
int fsync(int fd)
{
    return fault() ? -1 : (int)syscall(SYS_fsync, fd);
}
int ftruncate(int fd, off_t size)
{
    return fault() ? -1 : (int)syscall(SYS_ftruncate, fd, size);
}
ssize_t write(int fd, const void *bytes, size_t size)
{
    return fault() ? -1 : syscall(SYS_write, fd, bytes, size);
}

// --- a run of two steps in a process of its own --------------------------------------------------

// DONE: the fault lay further on than the run. DONE_ANYWAY: it was met and did no harm.
enum { STEPS = 2, DONE, FAILED, KILLED, DONE_ANYWAY };

static bool train(const char *run, const char *resume, bd_error *err)
{
    toy t;
    toy_begin(&t, 3);
    bd_trainer_options o = bd_trainer_default();
    o.steps = STEPS;
    o.micro_batches = 2;
    o.compute = BD_F32;
    o.schedule.peak = 0.05;
    o.checkpoint_every = 1;
    o.keep = 1;
    o.run = run;
    o.resume = resume;
    bd_task task = toy_task(&t);
    bool ok = bd_train(&task, &o, NULL, err);
    toy_end(&t);
    return ok;
}

static int train_apart(const char *run, const char *resume, int calls)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        bd_error err = {0};
        calls_left = calls;
        bool ok = train(run, resume, &err), met = calls >= 0 && calls_left < 0;
        calls_left = -1;
        if (!ok && calls < 0)
            fprintf(stderr, "%s\n", err.message);
        _exit(!ok ? FAILED : met ? DONE_ANYWAY : DONE);
    }
    int status;
    assert_true(waitpid(child, &status, 0) == child);
    return WIFSIGNALED(status) ? KILLED : WEXITSTATUS(status);
}

static void join(char out[BD_PATH], const char *folder, const char *name)
{
    bd_error err = {0};
    check_ok(bd_path_join(out, folder, name, &err), err);
}

/* What the last checkpoint holds, in one hash. */
static void last_hash(const char *run, char out[BD_SHA256_TEXT])
{
    static const char *const names[] = {"model.safetensors", "trainer_state.safetensors"};
    char all[2 * BD_SHA256_TEXT], path[BD_PATH], latest[BD_PATH];
    bd_error err = {0};
    join(latest, run, "checkpoint-2");
    for (int i = 0; i < 2; i++) {
        join(path, latest, names[i]);
        check_ok(bd_sha256_file(path, all + i * BD_SHA256_TEXT, &err), err);
    }
    bd_sha256_bytes(all, sizeof all, out);
}

/* If there is a link of that name, it leads to a whole checkpoint. */
static void check_whole(const char *run, const char *name)
{
    char path[BD_PATH];
    bd_error err = {0};
    struct stat info;
    join(path, run, name);
    if (lstat(path, &info) == 0)
        check_ok(bd_checkpoint_verify(path, &err), err);
}

/* One fault after another until a run needs no more calls than that; each then goes on to the end.
 */
static int every_call(bool kills)
{
    char run[BD_PATH], whole[BD_PATH], latest[BD_PATH];
    char want[BD_SHA256_TEXT], got[BD_SHA256_TEXT];
    bd_error err = {0};
    toy_folder(whole);
    assert_int_equal(train_apart(whole, NULL, -1), DONE);
    last_hash(whole, want);
    toy_folder_remove(whole);
    int calls = 0;
    for (int outcome = KILLED; outcome != DONE; calls++) {
        toy_folder(run);
        join(latest, run, "latest");
        dies = kills;
        outcome = train_apart(run, NULL, calls);
        assert_true(outcome == DONE || outcome == (kills ? KILLED : FAILED) ||
                    (outcome == DONE_ANYWAY && !kills));
        check_whole(run, "latest");
        check_whole(run, "best");
        bool begun = access(latest, F_OK) == 0;
        if (!begun)
            check_ok(bd_folder_remove(run, &err), err);
        assert_int_equal(train_apart(run, begun ? latest : NULL, -1), DONE);
        last_hash(run, got);
        assert_string_equal(got, want);
        toy_folder_remove(run);
    }
    return calls;
}

static void test_dies(void **state)
{
    (void)state;
    assert_true(every_call(true) > 60);
}

static void test_fails(void **state)
{
    (void)state;
    assert_true(every_call(false) > 60);
}

// Replacing a checkpoint that a link leads to: whole before, whole after, whole in between.
static void test_replaced(void **state)
{
    (void)state;
    bd_error err = {0};
    char run[BD_PATH];
    toy_folder(run);
    check_ok(bd_folder_make(run, &err), err);
    toy t;
    toy_begin(&t, 3);
    bd_task task = toy_task(&t);
    bd_optimizer_options options = bd_optimizer_default();
    bd_optimizer *o;
    check_ok(o = bd_optimizer_create(&t.parameters, &options, &err), err);
    bd_contract *contract = bd_contract_create();
    bd_run_state s = bd_run_state_begin();
    s.step = s.best_step = 5;
    check_ok(bd_checkpoint_write(run, &task, o, contract, &s, 1, &err), err);
    int outcome = KILLED, calls = 0;
    for (; outcome == KILLED; calls++) {
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            dies = true;
            calls_left = calls;
            _exit(bd_checkpoint_write(run, &task, o, contract, &s, 1, &err) ? DONE : FAILED);
        }
        int status;
        assert_true(waitpid(child, &status, 0) == child);
        outcome = WIFSIGNALED(status) ? KILLED : WEXITSTATUS(status);
        check_whole(run, "latest");
        check_whole(run, "best");
        char path[BD_PATH];
        join(path, run, "latest");
        assert_true(access(path, F_OK) == 0);
        check_ok(bd_checkpoint_clean(run, &err), err);
    }
    assert_int_equal(outcome, DONE);
    assert_true(calls > 20);
    bd_contract_free(contract);
    bd_optimizer_free(o);
    toy_end(&t);
    toy_folder_remove(run);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dies),
        cmocka_unit_test(test_fails),
        cmocka_unit_test(test_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
