/* In place of distillation: what a program needs that is linked without src/distill. */
#include "cli/command.h"
#include "cli/options.h"
#include "cli/probe.h"

int bd_command_distill(int argc, char **argv)
{
    (void)argc, (void)argv;
    bd_error err = {0};
    bd_fail(&err, "not linked in");
    return bd_run_error("distill", &err);
}

bool bd_probe_distill(bd_probe *probe, bd_error *err)
{
    (void)probe;
    return bd_fail(err, "not linked in");
}

bool bd_probe_on_policy(bd_probe *probe, bd_error *err)
{
    return bd_probe_distill(probe, err);
}
