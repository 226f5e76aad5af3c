/* bdlm data exercises - conversations to try training out with. */
#include <stdio.h>

#include "cli/command.h"
#include "cli/exercises.h"
#include "cli/options.h"

int bd_command_data_exercises(int argc, char **argv)
{
    int64_t count = 1000, seed = 1;
    bool text = false;
    const bd_option list[] = {
        {"count", "n", BD_ARGUMENT_INT, "N", "how many (1000)", &count, 1, 1e9, false},
        {"seed", "s", BD_ARGUMENT_INT, "N", "other exercises (1)", &seed, 0, 1e12, false},
        {"text", NULL, BD_ARGUMENT_FLAG, NULL,
         "as text to pretrain on, prompt and answer, an empty line after each", &text, 0, 0, false},
    };
    const bd_options options = {
        .command = "data exercises",
        .usage = "[-n COUNT] [-s SEED] >FILE.jsonl",
        .summary = "Prints short exercises as conversations, {\"prompt\": ..., \"completion\": "
                   "...}: sums, and lists to turn around or to join. Each has one right answer, so "
                   "that eval --answers can count them. The same seed gives the same exercises.",
        .list = list,
        .count = sizeof list / sizeof *list};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("data exercises", &err);
    bd_exercises source = bd_exercises_begin(seed);
    for (int64_t i = 0; i < count; i++) {
        bd_exercise e = bd_exercises_next(&source);
        char line[BD_EXERCISE_LINE];
        bd_exercise_format(&e, text, line);
        fputs(line, stdout);
    }
    if (fflush(stdout) != 0) {
        bd_fail_as(&err, BD_ERROR_SYSTEM, "standard output: cannot write");
        return bd_run_error("data exercises", &err);
    }
    return 0;
}
