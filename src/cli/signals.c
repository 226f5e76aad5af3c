/* signals.c - SIGINT and SIGTERM ask for a clean stop; the second one ends the program at once. */
#include <signal.h>
#include <string.h>

#include "cli/command.h"

volatile sig_atomic_t bd_stop_requested;

static void request_stop(int number)
{
    bd_stop_requested = 1;
    signal(number, SIG_DFL);
}

void bd_catch_signals(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = request_stop;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
}
