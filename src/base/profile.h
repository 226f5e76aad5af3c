/* profile.h - where the time goes: scopes around operations, added up in a table, kept as a trace.
 *
 * A scope is one call of an operation ("matmul bf16") or a phase of a step ("forward"). Operations are
 * added up under the innermost phase around them, so the same product counts apart on the way there
 * and back. Self time is what no scope inside a scope accounts for; all self times and the time
 * outside all scopes add up to the wall time.
 *
 *     static bd_profile_site site = {.name = "rms norm", .kind = BD_PROFILE_MEMORY};
 *     bd_profile_begin(&site);
 *     ... rows ...
 *     bd_profile_end(&site, 4 * count, 8 * count);          // operations, bytes
 *
 * Off, which is the normal state, a scope costs two tests of one flag. On, it costs two looks at the
 * clock and an entry of a table that exists already: nothing is allocated between start and stop.
 * Every thread has its own table; phases are opened outside bd_parallel. Calls and work are those of all threads; times are those of the
 * thread that started, which waits for the others or works beside them.
 */
#ifndef BD_BASE_PROFILE_H
#define BD_BASE_PROFILE_H

#include <stdint.h>

#include "base/error.h"

/* What an operation is held up by at best: the ceiling it is compared with. */
typedef enum {
    BD_PROFILE_PHASE,  /* holds other scopes */
    BD_PROFILE_F32,    /* multiply-adds in f32 */
    BD_PROFILE_BF16,   /* multiply-adds of bf16 */
    BD_PROFILE_INT8,   /* multiply-adds of int8 */
    BD_PROFILE_MEMORY, /* bytes */
} bd_profile_kind;

/* One place in the program; static storage, since it is remembered. */
typedef struct {
    const char *name;
    bd_profile_kind kind;
    _Atomic int number; /* 0 until first used */
} bd_profile_site;

enum {
    BD_PROFILE_SITES =
        64, /* sites in the program at most; scopes of further ones are not recorded */
    BD_PROFILE_ROWS = 512,       /* rows of the table at most */
    BD_PROFILE_EVENTS = 1 << 18, /* a trace keeps so many of the newest scopes of each thread */
};

/* Forget what was recorded and record from now on; `trace`: each scope as well. Called where no
 * scope is open and no bd_parallel runs, like bd_profile_stop and bd_profile_free. */
bool bd_profile_start(bool trace, bd_error *err);
void bd_profile_stop(void); /* what was recorded stays readable */
void bd_profile_free(void);

extern bool bd_profile_on; /* read it, e.g. before counting work; start and stop set it */

void bd_profile_enter(bd_profile_site *site);
void bd_profile_leave(bd_profile_site *site, double flops, double bytes);

static inline void bd_profile_begin(bd_profile_site *site)
{
    if (__builtin_expect(bd_profile_on, 0))
        bd_profile_enter(site);
}

/* flops: floating point operations, a multiply-add counts two. bytes: read and written once, as far as
 * the operation itself has to. Of the scope's own work, without the scopes inside it. */
static inline void bd_profile_end(bd_profile_site *site, double flops, double bytes)
{
    if (__builtin_expect(bd_profile_on, 0))
        bd_profile_leave(site, flops, bytes);
}

/* --- what was recorded ------------------------------------------------------------------------ */

typedef struct {
    const char *name, *phase; /* phase: innermost one around; of a phase: its own name; or NULL */
    bd_profile_kind kind;
    int64_t calls;
    double total, self;              /* seconds */
    double flops, bytes;             /* its own */
    double total_flops, total_bytes; /* with all scopes inside */
} bd_profile_row;

/* The table into rows [BD_PROFILE_ROWS]: operations outside phases, then each phase in the order of
 * first use with its operations behind it, those by falling self time. Returns how many. */
int bd_profile_table(bd_profile_row *rows);

double bd_profile_seconds(void);  /* from start to stop, or until now */
int64_t bd_profile_dropped(void); /* scopes that a trace no longer holds */

/* The newest scopes as a Chrome trace: a JSON array of complete events ("ph": "X"), times in
 * microseconds, one "tid" a thread. Atomic. */
bool bd_profile_write_trace(const char *path, bd_error *err);

#endif
