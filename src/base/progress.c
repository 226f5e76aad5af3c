#include "base/progress.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

struct bd_progress {
    char what[64];
    char detail[256];
    int64_t total, done, earlier; // earlier: done before the clock began
    double began, shown;
    bool terminal, printed;
};

double bd_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

bd_progress *bd_progress_begin(const char *what, int64_t total)
{
    bd_progress *bar = calloc(1, sizeof *bar);
    if (!bar)
        return NULL;
    snprintf(bar->what, sizeof bar->what, "%s", what);
    bar->total = total;
    bar->began = bar->shown = bd_seconds();
    bar->terminal = isatty(2);
    return bar;
}

void bd_progress_resume(bd_progress *bar, int64_t done)
{
    if (bar)
        bar->done = bar->earlier = done;
}

static void print_duration(char *out, size_t size, double seconds)
{
    int64_t s = seconds > 0 ? (int64_t)(seconds + 0.5) : 0;
    if (s >= 3600)
        snprintf(out, size, "%lldh%02lldm", (long long)(s / 3600), (long long)(s / 60 % 60));
    else if (s >= 60)
        snprintf(out, size, "%lldm%02llds", (long long)(s / 60), (long long)(s % 60));
    else
        snprintf(out, size, "%llds", (long long)s);
}

static void show(bd_progress *bar, double now)
{
    enum { WIDTH = 20 };
    char cells[WIDTH + 1], left[32];
    double part = bar->total > 0 ? (double)bar->done / (double)bar->total : 0;
    int filled = (int)(part * WIDTH);
    for (int i = 0; i < WIDTH; i++)
        cells[i] = i < filled ? '#' : '.';
    cells[WIDTH] = 0;
    double spent = now - bar->began, each = 0;
    if (bar->done > bar->earlier)
        each = spent / (double)(bar->done - bar->earlier);
    print_duration(left, sizeof left, each * (double)(bar->total - bar->done));
    fprintf(stderr, "%s%s [%s] %lld/%lld  %s  %s left%s", bar->terminal ? "\r\033[K" : "",
            bar->what, cells, (long long)bar->done, (long long)bar->total, bar->detail, left,
            bar->terminal ? "" : "\n");
    fflush(stderr);
    bar->shown = now;
    bar->printed = true;
}

void bd_progress_update(bd_progress *bar, int64_t done, const char *format, ...)
{
    if (!bar)
        return;
    bar->done = done;
    double now = bd_seconds();
    double pause = bar->terminal ? 0.25 : 5.0;
    va_list list;
    va_start(list, format);
    vsnprintf(bar->detail, sizeof bar->detail, format, list);
    va_end(list);
    if (now - bar->shown >= pause || (done == 1 && now - bar->began > 2))
        show(bar, now);
}

void bd_progress_end(bd_progress *bar)
{
    if (!bar)
        return;
    double now = bd_seconds();
    if (now - bar->began > 2 || bar->printed) {
        show(bar, now);
        if (bar->terminal)
            fputc('\n', stderr);
    }
    free(bar);
}
