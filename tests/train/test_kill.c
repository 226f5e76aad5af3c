/* A process killed at any moment leaves a run that goes on to the same bits. */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "toy_task.h"
#include "train/checkpoint.h"
#include "train/trainer.h"

enum { STEPS = 1000, KILLS = 40 };

static bool train(const char *run, const char *resume, toy *t, bd_error *err)
{
    toy_begin(t, 3);
    bd_trainer_options o = bd_trainer_default();
    o.steps = STEPS;
    o.micro_batches = 2;
    o.compute = BD_F32;
    o.schedule.peak = 0.05;
    o.evaluate_every = 2;
    o.checkpoint_every = 1; // so that most kills hit the writing of one
    o.keep = 2;
    o.run = run;
    o.resume = resume;
    bd_task task = toy_task(t);
    return bd_train(&task, &o, NULL, err);
}

static void wait_microseconds(long long microseconds)
{
    nanosleep(&(struct timespec){microseconds / 1000000, microseconds % 1000000 * 1000}, NULL);
}

/* Train in a process of its own, killed after a while. Returns whether it got to the end. */
static bool train_and_kill(const char *run, const char *resume, long long microseconds)
{
    fflush(NULL);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        toy t;
        bd_error err = {0};
        if (!train(run, resume, &t, &err)) {
            fprintf(stderr, "%s\n", err.message);
            _exit(1);
        }
        _exit(0);
    }
    wait_microseconds(microseconds);
    kill(child, SIGKILL);
    int status;
    assert_true(waitpid(child, &status, 0) == child);
    assert_true(WIFSIGNALED(status) || WEXITSTATUS(status) == 0); // killed or done, never failed
    return WIFEXITED(status);
}

static void test_kill(void **state)
{
    (void)state;
    char run[BD_PATH], whole[BD_PATH], latest[BD_PATH], best[BD_PATH];
    bd_error err = {0};
    toy_folder(run);
    toy_folder(whole);
    check_ok(bd_path_join(latest, run, "latest", &err), err);
    check_ok(bd_path_join(best, run, "best", &err), err);
    bool begun = false, done = false;
    int killed = 0;
    for (int i = 0; i < KILLS && !done; i++) {
        uint64_t key = bd_random_key(11, 0, 0, 0);
        long long pause = 3000 + (long long)(bd_random_uniform(key, 0, (uint32_t)i) * 40000);
        if (!begun) { // killed before the first checkpoint: there is nothing to go on from
            bd_folder_remove(run, &err);
            pause += 20000;
        }
        done = train_and_kill(run, begun ? latest : NULL, pause);
        killed += !done;
        begun = bd_folder_exists(latest);
        if (begun)
            check_ok(bd_checkpoint_verify(latest, &err), err);
        if (bd_folder_exists(best))
            check_ok(bd_checkpoint_verify(best, &err), err);
    }
    assert_true(begun && killed > 5);
    toy a, b;
    check_ok(train(run, latest, &a, &err), err);
    check_ok(train(whole, NULL, &b, &err), err);
    assert_true(toy_equal(&a, &b));
    toy_end(&a);
    toy_end(&b);
    toy_folder_remove(run);
    toy_folder_remove(whole);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_kill),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
