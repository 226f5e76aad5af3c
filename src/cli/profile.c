#include "cli/profile.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/threads.h"
#include "tensor/burst.h"
#include "tensor/isa.h"

int bd_profile_options(bd_profile_choice *choice, bd_option *list)
{
    const bd_option options[BD_PROFILE_OPTIONS] = {
        {"profile", NULL, BD_ARGUMENT_FLAG, NULL, "tell at the end where the time went",
         &choice->table, 0, 0, false},
        {"profile-trace", NULL, BD_ARGUMENT_TEXT, "FILE.json",
         "the same, and every operation as a Chrome trace", &choice->trace, 0, 0, false},
    };
    memcpy(list, options, sizeof options);
    return BD_PROFILE_OPTIONS;
}

static bool chosen(const bd_profile_choice *choice)
{
    return choice->table || choice->trace;
}

bool bd_profile_chosen_start(const bd_profile_choice *choice, bd_error *err)
{
    if (!chosen(choice))
        return true;
    if (choice->trace) { // hours of training are not to end with a folder that is not there
        bd_writer *writer = bd_writer_open(choice->trace, err);
        if (!writer)
            return bd_error_wrap(err, "--profile-trace");
        bd_writer_abandon(writer);
    }
    return bd_profile_start(choice->trace != NULL, err);
}

// --- table ---------------------------------------------------------------------------------------

/* The time the work would take at the ceilings: that of its arithmetic or of its bytes, whichever is
 * longer. NAN: unknown. */
static double best_seconds(const bd_profile_row *row, const bd_ceilings *ceilings)
{
    if (row->kind == BD_PROFILE_PHASE)
        return NAN;
    double rate = row->kind == BD_PROFILE_BF16   ? ceilings->bf16
                  : row->kind == BD_PROFILE_INT8 ? ceilings->int8
                                                 : ceilings->f32;
    double reading = ceilings->read > 0 ? row->bytes / ceilings->read : 0;
    double best = fmax(row->flops / rate, reading);
    return best > 0 ? best : NAN;
}

/* A number in eight columns, or a dash where there is nothing to tell. */
static void print_rate(double value)
{
    if (value > 0 && isfinite(value))
        fprintf(stderr, " %8.1f", value);
    else
        fprintf(stderr, " %8s", "-");
}

static void print_row(const bd_profile_row *row, const bd_ceilings *ceilings, double wall)
{
    const bool phase = row->kind == BD_PROFILE_PHASE;
    char name[64];
    snprintf(name, sizeof name, "%s%s", phase || !row->phase ? "" : "  ", row->name);
    fprintf(stderr, "%-28s %8lld %11.1f %11.1f %6.1f%%", name, (long long)row->calls,
            row->total * 1e3, row->self * 1e3, 100 * row->self / wall);
    // A phase does nothing itself: its rates are those of all that is in it.
    double seconds = phase ? row->total : row->self;
    print_rate((phase ? row->total_flops : row->flops) / seconds * 1e-9);
    print_rate((phase ? row->total_bytes : row->bytes) / seconds * 1e-9);
    double share = best_seconds(row, ceilings) / row->self;
    if (isfinite(share))
        fprintf(stderr, " %6.0f%%\n", 100 * share);
    else
        fprintf(stderr, " %7s\n", "-");
}

static void print_table(void)
{
    static bd_profile_row rows[BD_PROFILE_ROWS];
    int count = bd_profile_table(rows);
    double wall = bd_profile_seconds(), inside = 0;
    bd_ceilings ceilings = bd_ceilings_measure();
    fprintf(stderr,
            "\nprofile: %.2f s, %s, %d thread%s; ceilings just measured: %.0f GFLOP/s f32, %.0f "
            "GFLOP/s bf16, %.0f Gop/s int8, %.1f GB/s read\n",
            wall, bd_isa_name(bd_isa()), bd_threads_count(), bd_threads_count() == 1 ? "" : "s",
            ceilings.f32 * 1e-9, ceilings.bf16 * 1e-9, ceilings.int8 * 1e-9, ceilings.read * 1e-9);
    fprintf(stderr, "%-28s %8s %11s %11s %7s %8s %8s %7s\n", "", "calls", "total ms", "self ms",
            "share", "GFLOP/s", "GB/s", "ceiling");
    for (int i = 0; i < count; i++) {
        inside += rows[i].self;
        print_row(&rows[i], &ceilings, wall);
    }
    fprintf(stderr, "%-28s %8s %11s %11.1f %6.1f%%\n", "outside", "", "", (wall - inside) * 1e3,
            100 * (wall - inside) / wall);
}

bool bd_profile_chosen_report(const bd_profile_choice *choice, bd_error *err)
{
    if (!chosen(choice))
        return true;
    bd_profile_stop();
    print_table();
    bool ok = true;
    if (choice->trace) {
        ok = bd_profile_write_trace(choice->trace, err);
        if (ok && bd_profile_dropped() > 0)
            fprintf(stderr,
                    "%s: the newest %d operations of each thread, %lld before them left out\n",
                    choice->trace, BD_PROFILE_EVENTS, (long long)bd_profile_dropped());
    }
    bd_profile_free();
    return ok;
}
