#include "base/profile.h"

#include <assert.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/file.h"
#include "base/threads.h"

bool bd_profile_on;

enum { DEEPEST = 32 };

// An open scope.
typedef struct {
    int site, phase; // numbers; phase: the one that was current before
    bool again;      // nothing of its own: what is inside belongs to the scope around it
    int64_t began;   // nanoseconds
    int64_t inside;  // of them in scopes inside
    double flops, bytes;
} frame;

// What a site has done within a phase.
typedef struct {
    int64_t calls, total, self;
    double flops, bytes, total_flops, total_bytes;
} cell;

typedef struct {
    int site;
    int64_t began, length;
    double flops, bytes;
} event;

typedef struct {
    frame open[DEEPEST];
    int depth; // may be more than DEEPEST: deeper scopes are not recorded
    int phase; // the current one; 0: none
    cell cells[BD_PROFILE_SITES + 1][BD_PROFILE_SITES + 1]; // [phase][site]
    event *events; // a ring of BD_PROFILE_EVENTS; NULL without a trace
    int64_t event_count;
} recorder;

static struct {
    recorder *threads; // [thread_count]
    int thread_count;
    event *events;
    _Atomic int taken; // recorders that have a thread
    int run;           // counts starts
    int64_t began, ended;
} profile;

// Which recorder this thread has, and in which run it got it.
static _Thread_local recorder *mine;
static _Thread_local int mine_in_run;

static const bd_profile_site *sites[BD_PROFILE_SITES + 1]; // by number, from 1
static int site_count;
static pthread_mutex_t naming = PTHREAD_MUTEX_INITIALIZER;

static int64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

// --- recording -----------------------------------------------------------------------------------

/* Where there is no room for another site its number is -1. */
static int number_of(bd_profile_site *site)
{
    int number = atomic_load_explicit(&site->number, memory_order_acquire);
    if (number)
        return number;
    pthread_mutex_lock(&naming);
    number = atomic_load(&site->number);
    if (!number) {
        number = site_count < BD_PROFILE_SITES ? ++site_count : -1;
        if (number > 0)
            sites[number] = site;
        atomic_store_explicit(&site->number, number, memory_order_release);
    }
    pthread_mutex_unlock(&naming);
    return number;
}

/* The first call of a thread in a run takes a recorder; threads beyond the team have none. */
static recorder *my_recorder(void)
{
    if (mine_in_run == profile.run)
        return mine;
    int index = atomic_fetch_add(&profile.taken, 1);
    mine = index < profile.thread_count ? &profile.threads[index] : NULL;
    mine_in_run = profile.run;
    return mine;
}

void bd_profile_enter(bd_profile_site *site)
{
    recorder *r = my_recorder();
    int number = number_of(site);
    if (!r || number < 0 || r->depth++ >= DEEPEST)
        return;
    // Tasks on other threads belong to the phase of the thread that handed them out.
    if (r->depth == 1 && r != profile.threads)
        r->phase = profile.threads->phase;
    // A phase within itself is the same phase.
    bool again = site->kind == BD_PROFILE_PHASE && r->phase == number;
    r->open[r->depth - 1] =
        (frame){.site = number, .phase = r->phase, .again = again, .began = now()};
    if (site->kind == BD_PROFILE_PHASE)
        r->phase = number;
}

static void keep_event(recorder *r, const frame *f, int64_t length)
{
    r->events[r->event_count++ % BD_PROFILE_EVENTS] = (event){
        .site = f->site, .began = f->began, .length = length, .flops = f->flops, .bytes = f->bytes};
}

static void count_scope(recorder *r, const frame *f, int64_t length, double flops, double bytes)
{
    cell *c = &r->cells[r->phase][f->site]; // a phase stands under itself
    c->calls++;
    c->total += length;
    c->self += length - f->inside;
    c->flops += flops;
    c->bytes += bytes;
    c->total_flops += f->flops;
    c->total_bytes += f->bytes;
    if (r->events)
        keep_event(r, f, length);
}

void bd_profile_leave(bd_profile_site *site, double flops, double bytes)
{
    recorder *r = my_recorder();
    int number = number_of(site);
    if (!r || number < 0 || r->depth == 0 || --r->depth >= DEEPEST)
        return;
    frame *f = &r->open[r->depth];
    assert(f->site == number);
    int64_t length = now() - f->began;
    f->flops += flops;
    f->bytes += bytes;
    if (!f->again)
        count_scope(r, f, length, flops, bytes);
    r->phase = f->phase;
    if (r->depth == 0)
        return;
    frame *outer = &r->open[r->depth - 1];
    outer->inside += f->again ? f->inside : length;
    outer->flops += f->flops;
    outer->bytes += f->bytes;
}

// --- start and stop ------------------------------------------------------------------------------

bool bd_profile_start(bool trace, bd_error *err)
{
    bd_profile_free();
    int count = bd_threads_count();
    // Pages that are never touched are never taken: the rings of idle threads cost nothing.
    profile.threads = calloc((size_t)count, sizeof *profile.threads);
    size_t events = (size_t)count * BD_PROFILE_EVENTS;
    profile.events = trace ? calloc(events, sizeof *profile.events) : NULL;
    if (!profile.threads || (trace && !profile.events)) {
        bd_profile_free();
        return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory to profile %d threads", count);
    }
    for (int i = 0; trace && i < count; i++)
        profile.threads[i].events = profile.events + (int64_t)i * BD_PROFILE_EVENTS;
    profile.thread_count = count;
    profile.run++;
    profile.taken = 0;
    my_recorder(); // the first one: its times are those of the table
    profile.ended = 0;
    profile.began = now();
    bd_profile_on = true;
    return true;
}

void bd_profile_stop(void)
{
    if (bd_profile_on)
        profile.ended = now();
    bd_profile_on = false;
}

void bd_profile_free(void)
{
    bd_profile_on = false;
    free(profile.threads);
    free(profile.events);
    profile.threads = NULL;
    profile.events = NULL;
    profile.thread_count = 0;
    profile.began = profile.ended = 0;
}

// --- table ---------------------------------------------------------------------------------------

static cell sum_of(int phase, int site)
{
    cell sum = {0};
    for (int i = 0; i < profile.thread_count; i++) {
        const cell *c = &profile.threads[i].cells[phase][site];
        sum.calls += c->calls;
        sum.total += i == 0 ? c->total : 0;
        sum.self += i == 0 ? c->self : 0;
        sum.flops += c->flops;
        sum.bytes += c->bytes;
        sum.total_flops += c->total_flops;
        sum.total_bytes += c->total_bytes;
    }
    return sum;
}

static int by_self_time(const void *a, const void *b)
{
    const bd_profile_row *x = a, *y = b;
    return (x->self < y->self) - (x->self > y->self);
}

static void add_row(bd_profile_row *rows, int *count, int phase, int site)
{
    cell c = sum_of(phase, site);
    if (c.calls == 0 || *count == BD_PROFILE_ROWS)
        return;
    rows[(*count)++] = (bd_profile_row){.name = sites[site]->name,
                                        .phase = phase ? sites[phase]->name : NULL,
                                        .kind = sites[site]->kind,
                                        .calls = c.calls,
                                        .total = (double)c.total * 1e-9,
                                        .self = (double)c.self * 1e-9,
                                        .flops = c.flops,
                                        .bytes = c.bytes,
                                        .total_flops = c.total_flops,
                                        .total_bytes = c.total_bytes};
}

int bd_profile_table(bd_profile_row *rows)
{
    int count = 0;
    for (int phase = 0; phase <= site_count; phase++) {
        if (phase > 0 && sites[phase]->kind == BD_PROFILE_PHASE)
            add_row(rows, &count, phase, phase);
        int first = count;
        for (int site = 1; site <= site_count; site++)
            if (site != phase)
                add_row(rows, &count, phase, site);
        qsort(rows + first, (size_t)(count - first), sizeof *rows, by_self_time);
    }
    return count;
}

double bd_profile_seconds(void)
{
    int64_t end = bd_profile_on ? now() : profile.ended;
    return (double)(end - profile.began) * 1e-9;
}

// --- trace ---------------------------------------------------------------------------------------

static int64_t lost(const recorder *r)
{
    return r->event_count > BD_PROFILE_EVENTS ? r->event_count - BD_PROFILE_EVENTS : 0;
}

int64_t bd_profile_dropped(void)
{
    int64_t sum = 0;
    for (int i = 0; i < profile.thread_count; i++)
        sum += lost(&profile.threads[i]);
    return sum;
}

/* Names are ours: no character in them needs escaping in JSON. */
static void write_event(bd_writer *w, const event *e, int thread, bool *first)
{
    const bd_profile_site *site = sites[e->site];
    bd_writer_print(
        w,
        "%s{\"name\": \"%s\", \"cat\": \"%s\", \"ph\": \"X\", \"ts\": %.3f, \"dur\": %.3f, "
        "\"pid\": 1, \"tid\": %d, \"args\": {\"flops\": %.0f, \"bytes\": %.0f}}",
        *first ? "\n" : ",\n", site->name, site->kind == BD_PROFILE_PHASE ? "phase" : "operation",
        (double)(e->began - profile.began) * 1e-3, (double)e->length * 1e-3, thread, e->flops,
        e->bytes);
    *first = false;
}

bool bd_profile_write_trace(const char *path, bd_error *err)
{
    bd_writer *w = bd_writer_open(path, err);
    if (!w)
        return false;
    bool first = true;
    bd_writer_print(w, "[");
    for (int i = 0; i < profile.thread_count; i++) {
        const recorder *r = &profile.threads[i];
        for (int64_t n = lost(r); r->events && n < r->event_count; n++)
            write_event(w, &r->events[n % BD_PROFILE_EVENTS], i, &first);
    }
    bd_writer_print(w, "\n]\n");
    return bd_writer_commit(w, err);
}
