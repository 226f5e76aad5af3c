/* The demo's fourth part: two drafters on one set of the target's hidden states with one budget. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/demo.h"
#include "format/json.h"

// Of what the target wrote: hidden states take some 750 times the room of their text.
enum { CACHED_BYTES = 120000 };

#define SHAPE                                                                                      \
    "--num-hidden-layers", "2", "--num-attention-heads", "6", "--num-key-value-heads", "2",        \
        "--head-dim", "64", "--intermediate-size", "1024", "--block-size", "8"
#define TRAINING                                                                                   \
    "--num-anchors", "24", "--self-logit-distillation", "false", BD_DEMO_BATCH, "--max-steps",     \
        "100", "--lr", "4e-3", BD_DEMO_SCHEDULE, "--dtype", "bf16", "--held-out-fraction", "0.05"
#define DOMINO "--emb-dim", "64", "--gru-hidden-dim", "128"

/* The first whole lines of what the target wrote. */
static bool write_some(const bd_demo *d, bd_error *err)
{
    size_t size;
    char *text = bd_file_read_text(bd_demo_path(d, "written.txt"), (size_t)1 << 30, &size, err);
    bd_writer *out = text ? bd_writer_open(bd_demo_path(d, "written-some.txt"), err) : NULL;
    if (size > CACHED_BYTES && out)
        for (size = CACHED_BYTES; size > 0 && text[size - 1] != '\n';)
            size--;
    if (out)
        bd_writer_write(out, text, size);
    free(text);
    return out && bd_writer_commit(out, err);
}

static bool cache(const bd_demo *d, bd_error *err)
{
    const char *const words[] = {"draft",
                                 "cache",
                                 "--path",
                                 bd_demo_path(d, "target/latest"),
                                 "--train-files",
                                 bd_demo_path(d, "written-some.txt"),
                                 "--out",
                                 bd_demo_path(d, "states"),
                                 SHAPE,
                                 TRAINING,
                                 NULL};
    return bd_demo_run(bd_command_draft_cache, NULL, words, err);
}

static bool compare(const bd_demo *d, bd_error *err)
{
    const char *const words[] = {"draft",
                                 "compare",
                                 "--path",
                                 bd_demo_path(d, "target/latest"),
                                 "--cache",
                                 bd_demo_path(d, "states"),
                                 "--variants",
                                 "dflash,domino",
                                 "--tokens",
                                 "96",
                                 "--out",
                                 bd_demo_path(d, "drafters"),
                                 bd_demo_path(d, "prompts.jsonl"),
                                 SHAPE,
                                 TRAINING,
                                 DOMINO,
                                 NULL};
    return bd_demo_run(bd_command_draft_compare, NULL, words, err);
}

bool bd_demo_compare(const bd_demo *d, bd_error *err)
{
    return write_some(d, err) && cache(d, err) && compare(d, err);
}

bool bd_demo_compare_rows(bd_demo *d, bd_error *err)
{
    json_t *result = bd_json_load(bd_demo_path(d, "drafters/compare.json"), err);
    json_t *draft, *share;
    size_t i, j;
    json_array_foreach(json_object_get(result, "drafts"), i, draft)
    {
        const char *name = json_string_value(json_object_get(draft, "variant"));
        char label[64], positions[200] = "";
        snprintf(label, sizeof label, "drafter %s", name);
        bd_demo_row(
            d, label, "acceptance %.2f, %.0f tokens/s, %.1f million parameters, %.0f s",
            bd_demo_number(draft, "acceptance_length"), bd_demo_number(draft, "tokens_per_second"),
            bd_demo_number(draft, "parameters") / 1e6, bd_demo_number(draft, "training_seconds"));
        json_array_foreach(json_object_get(draft, "acceptance_per_position"), j, share)
        {
            size_t end = strlen(positions);
            snprintf(positions + end, sizeof positions - end, "%s%.2f", j ? " " : "",
                     json_number_value(share));
        }
        snprintf(label, sizeof label, "drafter %s: per position", name);
        bd_demo_row(d, label, "%s", positions);
    }
    json_decref(result);
    return result != NULL;
}
