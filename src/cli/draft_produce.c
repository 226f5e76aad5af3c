/* bdlm draft produce - runs a target for trainers elsewhere: their requests in, hidden states out.
 */
#include <stdio.h>
#include <string.h>

#include "base/progress.h"
#include "base/threads.h"
#include "cli/command.h"
#include "cli/options.h"
#include "train/producer.h"

typedef struct {
    const char *model, *dtype;
    bd_text_list to;
    double patience;
    int64_t threads;
    double last;
} produce;

static void tell(void *self, const char *line)
{
    (void)self;
    fprintf(stderr, "draft produce: %s\n", line);
}

static void made(void *self, int64_t records)
{
    produce *p = self;
    enum { EVERY = 10 };
    if (bd_seconds() - p->last < EVERY)
        return;
    p->last = bd_seconds();
    fprintf(stderr, "draft produce: %lld records\n", (long long)records);
}

static bool run(produce *p, bd_error *err)
{
    bd_producer_options options = {
        .patience = p->patience, .stop = &bd_stop_requested, .tell = tell, .made = made, .self = p};
    bd_producer_report report;
    if (p->to.count < 1 || p->to.count > BD_MOST_TRAINERS)
        return bd_fail_as(err, BD_ERROR_USAGE, "--to: %lld addresses, 1 to %d expected",
                          (long long)p->to.count, BD_MOST_TRAINERS);
    for (int64_t i = 0; i < p->to.count; i++)
        options.addresses[options.count++] = p->to.items[i];
    if (p->threads > 0)
        bd_threads_set((int)p->threads);
    bd_catch_signals();
    bd_model *target = bd_model_open(p->model, bd_compute_from_name(p->dtype), err);
    if (!target)
        return false;
    p->last = bd_seconds();
    bool ok = bd_producer_run(target, &options, &report, err);
    bd_model_close(target);
    fprintf(stderr,
            "draft produce: %lld records, %lld tokens; %.1f s running the target, %.1f s waiting "
            "for room\n",
            (long long)report.records, (long long)report.tokens, report.working, report.sending);
    return ok;
}

int bd_command_draft_produce(int argc, char **argv)
{
    produce p = {.dtype = "fp32"};
    const bd_option list[] = {
        {"path", "m", BD_ARGUMENT_TEXT, "TARGET", "the target model", &p.model, 0, 0, true},
        {"to", NULL, BD_ARGUMENT_LIST, "ADDRESS",
         "a trainer's --listen address; may be given several times", &p.to, 0, 0, true},
        {"dtype", NULL, BD_ARGUMENT_CHOICE, "fp32|bf16",
         "what matrix products round their inputs to, as the trainer's --dtype (fp32)", &p.dtype, 0,
         0, false},
        {"patience", NULL, BD_ARGUMENT_NUMBER, "SECONDS",
         "fail after so long without a request; 0: wait for ever (0)", &p.patience, 0, 1e9, false},
        {"threads", "t", BD_ARGUMENT_INT, "N", "threads (all cores, or OMP_NUM_THREADS)",
         &p.threads, 1, 256, false},
    };
    const bd_options options = {
        .command = "draft produce",
        .usage = "--path TARGET --to tcp://HOST:PORT",
        .summary = "Runs a target for the drafters that train elsewhere (draft train --listen): "
                   "takes rows, gives hidden states, until the trainer is done. Start as many as "
                   "there are machines.",
        .list = list,
        .count = sizeof list / sizeof *list};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("draft produce", &err);
    return run(&p, &err) ? 0 : bd_run_error("draft produce", &err);
}
