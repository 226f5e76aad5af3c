/* The demo's second part: the causal target becomes a block-diffusion model. */
#include "cli/demo.h"

#include <stdio.h>

#include "format/json.h"

/* The shifted contract fits a causal start: outputs keep predicting the token that follows. */
static bool train_student(const bd_demo *d, bd_error *err)
{
    char steps[32];
    snprintf(steps, sizeof steps, "%lld", (long long)d->student_steps);
    const char *const words[] = {"pretrain",
                                 "--path",
                                 bd_demo_path(d, "target/latest"),
                                 "--train-files",
                                 bd_demo_path(d, "train.txt"),
                                 "--out",
                                 bd_demo_path(d, "student"),
                                 "--set",
                                 "objective.kind=block_diffusion",
                                 "--set",
                                 "objective.block_size=8",
                                 "--set",
                                 "objective.logit_alignment=shifted",
                                 "--set",
                                 "objective.canvas_policy=seed_and_mask",
                                 "--set",
                                 "train.eval_every=50",
                                 BD_DEMO_BATCH,
                                 "--max-steps",
                                 steps,
                                 "--lr",
                                 "1e-3",
                                 BD_DEMO_SCHEDULE,
                                 "--weight-decay",
                                 "0.1",
                                 "--adam-b2",
                                 "0.98",
                                 "--dtype",
                                 "bf16",
                                 NULL};
    return bd_demo_run(bd_command_pretrain, NULL, words, err);
}

/* Four steps a block: two tokens a forward and more, whatever the model is sure of. */
static bool generate(const bd_demo *d, bd_error *err)
{
    const char *const words[] = {"generate",
                                 "--model",
                                 bd_demo_path(d, "student/latest"),
                                 "--prompts",
                                 bd_demo_path(d, "prompts.jsonl"),
                                 "--tokens",
                                 "96",
                                 "--ignore-eos",
                                 "--schedule",
                                 "static",
                                 "--steps",
                                 "4",
                                 "--compare",
                                 "--trace-html",
                                 bd_demo_path(d, "trace.html"),
                                 "--json",
                                 NULL};
    return bd_demo_run(bd_command_generate, bd_demo_path(d, "blocks.json"), words, err);
}

bool bd_demo_blocks(const bd_demo *d, bd_error *err)
{
    return train_student(d, err) && generate(d, err);
}

bool bd_demo_blocks_rows(bd_demo *d, bd_error *err)
{
    json_t *result = bd_json_load(bd_demo_path(d, "blocks.json"), err);
    if (!result)
        return false;
    json_t *first = bd_demo_line(d, "student", "eval_loss", true);
    json_t *last = bd_demo_line(d, "student", "eval_loss", false);
    bd_demo_row(d, "blocks: denoising loss held out", "%.3f after %.0f steps, %.3f after %.0f",
                bd_demo_number(first, "eval_loss"), bd_demo_number(first, "step"),
                bd_demo_number(last, "eval_loss"), bd_demo_number(last, "step"));
    json_decref(first);
    json_decref(last);
    bd_demo_row(d, "blocks: tokens per forward", "%.2f",
                bd_demo_number(result, "tokens_per_forward"));
    bd_demo_row(d, "blocks: cached, tokens/s", "%.1f", bd_demo_number(result, "tokens_per_second"));
    bd_demo_row(d, "blocks: cacheless, tokens/s", "%.1f",
                bd_demo_number(result, "cacheless_tokens_per_second"));
    bd_demo_row(d, "blocks: cached against cacheless", "%.2fx", bd_demo_number(result, "speedup"));
    bool same = json_is_true(json_object_get(result, "identical"));
    bd_demo_row(d, "blocks: identical", "%s", same ? "yes" : "NO");
    d->identical = d->identical && same;
    json_decref(result);
    return true;
}
