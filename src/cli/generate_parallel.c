#include "cli/generate_parallel.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/progress.h"
#include "cli/command.h"
#include "draft/parallel.h"

typedef struct {
    const bd_parallel_request *request;
    bd_tokens *prompts;      // [count]
    bd_parallel_text *texts; // [count]
    bool *ended;             // [count]
    int64_t count, shown, ended_count;
    json_t *samples;
    bd_progress *progress;
    bd_error *err;
    bool failed; // err says why
} parallel;

/* The text of one prompt, once all before it are told. */
static bool tell(parallel *p, int64_t index)
{
    const bd_parallel_text *t = &p->texts[index];
    bd_token_stream stream = {.skip_special = true};
    bd_text shown = {0};
    bool ok = true;
    for (int64_t i = 0; ok && i < t->count; i++)
        ok = bd_token_stream_add(&stream, p->request->pair->text, t->out[i], &shown, p->err);
    if (ok)
        bd_token_stream_finish(&stream, &shown, p->err);
    if (ok && !p->request->json) {
        bd_generation_show_prompt(p->request->prompts, index);
        fwrite(shown.data, 1, shown.size, stdout);
        putchar('\n');
        fflush(stdout);
    }
    if (ok)
        bd_generation_sample(p->samples, p->request->prompts->items[index], &shown);
    bd_text_free(&shown);
    return ok;
}

static bool text_ended(void *self, int64_t index)
{
    parallel *p = self;
    p->ended[index] = true;
    p->ended_count++;
    while (p->shown < p->count && p->ended[p->shown] && !p->failed)
        p->failed = !tell(p, p->shown++);
    bd_progress_update(p->progress, p->ended_count, "prompts");
    return !p->failed && !bd_stop_requested;
}

static bool read_prompts(parallel *p, bd_error *err)
{
    const bd_parallel_request *r = p->request;
    for (int64_t i = 0; i < p->count; i++) {
        if (!bd_pair_encode(r->pair, r->prompts->items[i], &p->prompts[i], err))
            return bd_error_wrap(err, "prompt %lld", (long long)i + 1);
        int64_t room = r->pair->context - p->prompts[i].count;
        bd_parallel_text *t = &p->texts[i];
        *t = (bd_parallel_text){.prompt = p->prompts[i].ids, .prompt_count = p->prompts[i].count};
        t->most = r->options->most < room ? r->options->most : room;
        if (!(t->out = malloc((size_t)t->most * sizeof *t->out)))
            return bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for %lld tokens",
                              (long long)t->most);
    }
    return true;
}

static void add_totals(const parallel *p, const bd_parallel_report *report,
                       bd_generation_totals *totals)
{
    for (int64_t i = 0; i < p->count; i++) {
        totals->tokens += p->texts[i].count;
        totals->prompt_tokens += p->texts[i].prompt_read;
    }
    totals->prompts += p->count;
    totals->passes += report->passes;
    totals->seconds += report->decode_seconds;
    totals->prefill_seconds += report->prefill_seconds;
}

bool bd_generate_prompts(const bd_parallel_request *request, bd_generation_totals *totals,
                         json_t *samples, bd_error *err)
{
    int64_t count = request->prompts->count;
    parallel p = {.request = request,
                  .prompts = calloc((size_t)count, sizeof *p.prompts),
                  .texts = calloc((size_t)count, sizeof *p.texts),
                  .ended = calloc((size_t)count, sizeof *p.ended),
                  .count = count,
                  .samples = samples,
                  .err = err};
    bd_generation options = *request->options;
    options.self = &p;
    bd_parallel_report report = {0};
    bool ok = p.prompts && p.texts && p.ended;
    if (!ok)
        bd_fail_as(err, BD_ERROR_SYSTEM, "no memory for %lld prompts", (long long)count);
    ok = ok && read_prompts(&p, err);
    if (ok) {
        p.progress = bd_progress_begin("generate", count);
        ok = bd_generate_parallel(request->pair->target, request->pair->context + 2, p.texts, count,
                                  request->places, &options, text_ended, &report, err) &&
             !p.failed;
        bd_progress_end(p.progress);
    }
    if (ok)
        add_totals(&p, &report, totals);
    for (int64_t i = 0; i < count; i++) {
        if (p.prompts)
            bd_tokens_free(&p.prompts[i]);
        if (p.texts)
            free(p.texts[i].out);
    }
    free(p.prompts);
    free(p.texts);
    free(p.ended);
    return ok;
}
