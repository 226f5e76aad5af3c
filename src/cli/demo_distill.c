/* The demo's third part: a causal model becomes a block-diffusion student on few answers, then learns from
 * its causal self on its own rollouts, beside as many updates of plain fine-tuning. */
#include <string.h>

#include "base/file.h"
#include "cli/demo.h"
#include "cli/exercises.h"
#include "format/json.h"

/* The student has answers to FEW exercises; the causal teacher has learnt from MANY; for
 * distillation their prompts are enough: the student writes the answers. */
enum { MANY = 4000, FEW = 300, ASKED = 300, ASKED_SEED = 99 };

#define STEPS_START   "100"
#define STEPS_TEACHER "1000"
#define STEPS_STUDENT "50"
#define STEPS_FURTHER "150"

#define SCHEDULE                                                                                   \
    "--sequence-length", "32", "--batch-size", "64", "--warmup-ratio", "0.05", "--schedule",       \
        "cosine", "--dtype", "bf16"
#define BLOCKS                                                                                     \
    "--block-size", "4", "--logit-alignment", "shifted", "--canvas-policy", "seed_and_mask"

// --- exercises -----------------------------------------------------------------------------------

/* `count` exercises as conversations, or as text to pretrain on. */
static bool write_exercises(const bd_demo *d, const char *name, int64_t count, int64_t seed,
                            bool text, bd_error *err)
{
    bd_writer *out = bd_writer_open(bd_demo_path(d, name), err);
    if (!out)
        return false;
    bd_exercises source = bd_exercises_begin(seed);
    for (int64_t i = 0; i < count; i++) {
        bd_exercise e = bd_exercises_next(&source);
        char line[BD_EXERCISE_LINE];
        bd_exercise_format(&e, text, line);
        bd_writer_write(out, line, strlen(line));
    }
    return bd_writer_commit(out, err);
}

static bool write_all(const bd_demo *d, bd_error *err)
{
    return write_exercises(d, "exercises.txt", MANY, 1, true, err) &&
           write_exercises(d, "many.jsonl", MANY, 1, false, err) &&
           write_exercises(d, "few.jsonl", FEW, 1, false, err) &&
           write_exercises(d, "asked.jsonl", ASKED, ASKED_SEED, false, err);
}

// --- models --------------------------------------------------------------------------------------

static bool make_start(const bd_demo *d, bd_error *err)
{
    const char *const tokenizer[] = {"tokenizer",
                                     "train",
                                     bd_demo_path(d, "exercises.txt"),
                                     "--out",
                                     bd_demo_path(d, "exercises-tokenizer"),
                                     "--vocab-size",
                                     "400",
                                     NULL};
    const char *const start[] = {"pretrain",
                                 "--train-files",
                                 bd_demo_path(d, "exercises.txt"),
                                 "--documents",
                                 "entries",
                                 "--tokenizer",
                                 bd_demo_path(d, "exercises-tokenizer"),
                                 "--out",
                                 bd_demo_path(d, "exercises-start"),
                                 "--hidden-size",
                                 "128",
                                 "--num-hidden-layers",
                                 "4",
                                 "--num-attention-heads",
                                 "4",
                                 "--num-key-value-heads",
                                 "2",
                                 "--intermediate-size",
                                 "384",
                                 "--sequence-length",
                                 "32",
                                 "--batch-size",
                                 "64",
                                 "--lr",
                                 "2e-3",
                                 "--max-steps",
                                 STEPS_START,
                                 NULL};
    return bd_demo_run(bd_command_tokenizer_train, NULL, tokenizer, err) &&
           bd_demo_run(bd_command_pretrain, NULL, start, err);
}

static bool make_teacher(const bd_demo *d, bd_error *err)
{
    const char *const words[] = {"sft",
                                 "--path",
                                 bd_demo_path(d, "exercises-start/latest"),
                                 "--train-files",
                                 bd_demo_path(d, "many.jsonl"),
                                 "--kind",
                                 "causal_lm",
                                 "--out",
                                 bd_demo_path(d, "teacher"),
                                 SCHEDULE,
                                 "--lr",
                                 "2e-3",
                                 "--max-steps",
                                 STEPS_TEACHER,
                                 NULL};
    return bd_demo_run(bd_command_sft, NULL, words, err);
}

/* Fine-tuning in blocks on the few answers there are. */
static bool fine_tune(const bd_demo *d, const char *from, const char *to, const char *steps,
                      bd_error *err)
{
    const char *const words[] = {"sft",
                                 "--path",
                                 bd_demo_path(d, from),
                                 "--train-files",
                                 bd_demo_path(d, "few.jsonl"),
                                 "--kind",
                                 "block_diffusion",
                                 BLOCKS,
                                 "--out",
                                 bd_demo_path(d, to),
                                 SCHEDULE,
                                 "--lr",
                                 "1e-3",
                                 "--max-steps",
                                 steps,
                                 NULL};
    return bd_demo_run(bd_command_sft, NULL, words, err);
}

static bool distill(const bd_demo *d, bd_error *err)
{
    const char *const words[] = {"distill",
                                 "--path",
                                 bd_demo_path(d, "apprentice/latest"),
                                 "--teacher",
                                 bd_demo_path(d, "teacher/latest"),
                                 "--train-files",
                                 bd_demo_path(d, "many.jsonl"),
                                 "--data-source",
                                 "student_rollout",
                                 "--alpha",
                                 "1",
                                 BLOCKS,
                                 "--out",
                                 bd_demo_path(d, "distilled"),
                                 SCHEDULE,
                                 "--lr",
                                 "1e-3",
                                 "--max-steps",
                                 STEPS_FURTHER,
                                 NULL};
    return bd_demo_run(bd_command_distill, NULL, words, err);
}

// --- questions nobody was trained on -------------------------------------------------------------

static const struct {
    const char *run, *result, *label;
} asked[] = {
    {"teacher/latest", "asked-teacher.json", "exercises: causal teacher, exact"},
    {"apprentice/latest", "asked-apprentice.json", "exercises: student in blocks, exact"},
    {"fine-tuned/latest", "asked-fine-tuned.json", "exercises: " STEPS_FURTHER " updates plain"},
    {"distilled/latest", "asked-distilled.json", "exercises: " STEPS_FURTHER " updates distilled"},
};

enum { MODELS = sizeof asked / sizeof *asked };

static bool ask(const bd_demo *d, bd_error *err)
{
    for (int i = 0; i < MODELS; i++) {
        const char *const words[] = {"eval",
                                     "--model",
                                     bd_demo_path(d, asked[i].run),
                                     "--answers",
                                     bd_demo_path(d, "asked.jsonl"),
                                     "--chat",
                                     "--tokens",
                                     "12",
                                     "--json",
                                     NULL};
        if (!bd_demo_run(bd_command_eval, bd_demo_path(d, asked[i].result), words, err))
            return false;
    }
    return true;
}

bool bd_demo_distill(const bd_demo *d, bd_error *err)
{
    return write_all(d, err) && make_start(d, err) && make_teacher(d, err) &&
           fine_tune(d, "teacher/latest", "apprentice", STEPS_STUDENT, err) && distill(d, err) &&
           fine_tune(d, "apprentice/latest", "fine-tuned", STEPS_FURTHER, err) && ask(d, err);
}

bool bd_demo_distill_rows(bd_demo *d, bd_error *err)
{
    for (int i = 0; i < MODELS; i++) {
        json_t *result = bd_json_load(bd_demo_path(d, asked[i].result), err);
        if (!result)
            return false;
        json_t *answers = json_object_get(result, "answers");
        bd_demo_row(d, asked[i].label, "%.1f %% of %.0f",
                    100 * bd_demo_number(answers, "exact_match"),
                    bd_demo_number(answers, "records"));
        json_decref(result);
    }
    return true;
}
