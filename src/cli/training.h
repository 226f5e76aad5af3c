/* training.h - what every training command shares: recipe to trainer options, the run, the last
 * words. */
#ifndef BD_CLI_TRAINING_H
#define BD_CLI_TRAINING_H

#include "base/file.h"
#include "cli/profile.h"
#include "format/corpus.h"
#include "format/recipe.h"
#include "train/trainer.h"

/* Options that are no part of a recipe: where the run goes and whether it goes on. */
typedef struct {
    const char *run;           /* --out */
    bool resume;               /* --resume */
    bd_profile_choice profile; /* --profile, --profile-trace */
    int argc;
    char **argv;
} bd_run_arguments;

/* They and --profile as options; room for them at `list`. Returns how many. */
enum { BD_RUN_OPTIONS = 2 + BD_PROFILE_OPTIONS };
int bd_run_options(bd_run_arguments *run, bd_option *list);

/* The trainer's options of a recipe. The strings live as long as the recipe. */
bool bd_training_options(const bd_recipe *recipe, const bd_run_arguments *run,
                         bd_trainer_options *options, bd_error *err);

/* The checkpoint that a run goes on from, RUN/latest; *resumed NULL: it begins. */
bool bd_training_resumed(const bd_run_arguments *run, bd_trainer_options *options,
                         char path[BD_PATH], const char **resumed, bd_error *err);

/* Train, with progress, signals and a line at the end on stderr. Exit status. */
int bd_training_run(const char *command, const bd_task *task, bd_trainer_options *options,
                    const bd_recipe *recipe, const bd_run_arguments *run);

/* The same for a command that goes on afterwards: an error instead of an exit status. */
bool bd_training_run_to(const char *name, const bd_task *task, bd_trainer_options *options,
                        const bd_recipe *recipe, const bd_run_arguments *run,
                        bd_train_result *result, bd_error *err);

bd_dtype bd_recipe_dtype(const bd_recipe *recipe, const char *name); /* "fp32", "bf16" */

bd_dtype bd_recipe_states_dtype(const bd_recipe *recipe); /* data.states_dtype; unset: F32 */

void bd_recipe_threads(const bd_recipe *recipe); /* parallel.threads, if given */

/* data.train_files as tokens, with progress. */
bool bd_training_corpus(const bd_recipe *recipe, const bd_tokenizer *tokenizer, bd_corpus *out,
                        bd_error *err);

/* Rows held out for evaluation: data.held_out_fraction of them, at most `most`. */
int64_t bd_training_held_out(const bd_recipe *recipe, int64_t rows, int64_t most);

#endif
