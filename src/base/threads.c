#include "base/threads.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#define cpu_relax() _mm_pause()
#else
#define cpu_relax() atomic_signal_fence(memory_order_seq_cst)
#endif

enum { MOST_THREADS = 256 };
// About 50 microseconds on current machines: longer than the gap between two operations of a step,
// shorter than what a lost time slice costs.
enum { SPINS_BEFORE_SLEEP = 1500 };

static struct {
    int count; // threads of the team, the caller included; 0: not decided yet
    int started;
    pthread_t thread[MOST_THREADS];
    _Atomic uint32_t round; // every new value is one piece of work; helpers sleep on it
    _Atomic uint32_t sleepers;
    _Atomic int stop;
    // The current round.
    bd_task_function *run;
    void *context;
    int64_t tasks;
    _Atomic int64_t next;
    // The round's number, whether it may be entered, and how many helpers are inside. The caller
    // waits for those only: a helper that has lost its core and comes late finds the door closed.
    _Atomic uint64_t door;
} team;

#define DOOR_OPEN   ((uint64_t)1 << 31)
#define DOOR_INSIDE (DOOR_OPEN - 1)

static _Thread_local bool inside;

static void futex_wait(_Atomic uint32_t *word, uint32_t value)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}

static void futex_wake_all(_Atomic uint32_t *word)
{
    syscall(SYS_futex, (uint32_t *)word, FUTEX_WAKE_PRIVATE, MOST_THREADS, NULL, NULL, 0);
}

static void flush_denormals(void)
{
#if defined(__x86_64__)
    _mm_setcsr(_mm_getcsr() |
               0x8040); // flush to zero, denormals are zero; VDPBF16PS does so anyway
#endif
}

static void work_on_round(void)
{
    for (;;) {
        int64_t task = atomic_fetch_add_explicit(&team.next, 1, memory_order_relaxed);
        if (task >= team.tasks)
            return;
        team.run(team.context, task);
    }
}

static uint32_t wait_for_round(uint32_t seen)
{
    for (int spin = 0; spin < SPINS_BEFORE_SLEEP; spin++) {
        uint32_t now = atomic_load_explicit(&team.round, memory_order_acquire);
        if (now != seen)
            return now;
        cpu_relax();
    }
    atomic_fetch_add(&team.sleepers, 1);
    uint32_t now;
    while ((now = atomic_load(&team.round)) == seen)
        futex_wait(&team.round, seen);
    atomic_fetch_sub(&team.sleepers, 1);
    return now;
}

static bool enter(uint32_t round)
{
    uint64_t door = atomic_load_explicit(&team.door, memory_order_relaxed);
    while (door >> 32 == round && (door & DOOR_OPEN))
        if (atomic_compare_exchange_weak_explicit(&team.door, &door, door + 1, memory_order_acquire,
                                                  memory_order_relaxed))
            return true;
    return false;
}

static void *helper(void *argument)
{
    flush_denormals();
    inside = true;
    uint32_t seen = (uint32_t)(uintptr_t)argument;
    for (;;) {
        seen = wait_for_round(seen);
        if (atomic_load(&team.stop))
            return NULL;
        if (!enter(seen))
            continue;
        work_on_round();
        atomic_fetch_sub_explicit(&team.door, 1, memory_order_release);
    }
}

static void stop_helpers(void)
{
    if (team.started == 0)
        return;
    atomic_store(&team.stop, 1);
    atomic_fetch_add(&team.round, 1);
    futex_wake_all(&team.round);
    for (int i = 0; i < team.started; i++)
        pthread_join(team.thread[i], NULL);
    team.started = 0;
    atomic_store(&team.stop, 0);
}

static int cores_allowed(void)
{
    const char *text = getenv("OMP_NUM_THREADS");
    int wanted = text ? atoi(text) : 0;
    if (wanted > 0)
        return wanted;
    cpu_set_t set;
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        return CPU_COUNT(&set);
    return 1;
}

void bd_threads_set(int count)
{
    assert(!inside);
    if (count <= 0)
        count = cores_allowed();
    if (count > MOST_THREADS)
        count = MOST_THREADS;
    flush_denormals();
    if (count == team.count)
        return;
    stop_helpers();
    team.count = count;
}

int bd_threads_count(void)
{
    if (team.count == 0)
        bd_threads_set(0);
    return team.count;
}

static void start_helpers(void)
{
    while (team.started < team.count - 1) {
        uintptr_t seen = atomic_load(&team.round);
        if (pthread_create(&team.thread[team.started], NULL, helper, (void *)seen) != 0) {
            team.count = team.started + 1; // fewer threads give the same results
            return;
        }
        team.started++;
    }
}

void bd_parallel(int64_t count, bd_task_function *run, void *context)
{
    if (count <= 0)
        return;
    if (inside || count == 1 || bd_threads_count() == 1) {
        for (int64_t task = 0; task < count; task++)
            run(context, task);
        return;
    }
    if (team.started < team.count - 1)
        start_helpers();
    inside = true;
    team.run = run;
    team.context = context;
    team.tasks = count;
    atomic_store_explicit(&team.next, 0, memory_order_relaxed);
    uint32_t round = atomic_load_explicit(&team.round, memory_order_relaxed) + 1;
    atomic_store_explicit(&team.door, (uint64_t)round << 32 | DOOR_OPEN, memory_order_release);
    atomic_store(&team.round, round);
    if (atomic_load(&team.sleepers))
        futex_wake_all(&team.round);
    work_on_round();
    atomic_fetch_and_explicit(&team.door, ~DOOR_OPEN, memory_order_relaxed);
    for (int spin = 0; atomic_load_explicit(&team.door, memory_order_acquire) & DOOR_INSIDE;
         spin++) {
        if (spin < SPINS_BEFORE_SLEEP)
            cpu_relax();
        else
            sched_yield(); // a helper lost its core; give it ours
    }
    inside = false;
}
