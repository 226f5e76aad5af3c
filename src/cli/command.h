/* command.h - the commands of the program: one file each, listed in main.c. */
#ifndef BD_CLI_COMMAND_H
#define BD_CLI_COMMAND_H

#include <signal.h>

/* argv[0] is the command's name; the result is the exit status: 0 done, 1 failed, 2 wrong usage. */
typedef int bd_command_function(int argc, char **argv);

bd_command_function bd_command_demo;
bd_command_function bd_command_init;
bd_command_function bd_command_tokenizer_train;
bd_command_function bd_command_tokenizer_encode;
bd_command_function bd_command_tokenizer_decode;
bd_command_function bd_command_pretrain;
bd_command_function bd_command_sft;
bd_command_function bd_command_distill;
bd_command_function bd_command_data_exercises;
bd_command_function bd_command_data_inspect;
bd_command_function bd_command_generate;
bd_command_function bd_command_draft_train;
bd_command_function bd_command_draft_eval;
bd_command_function bd_command_draft_cache;
bd_command_function bd_command_draft_produce;
bd_command_function bd_command_draft_compare;
bd_command_function bd_command_draft_doctor;
bd_command_function bd_command_inspect;
bd_command_function bd_command_mask;
bd_command_function bd_command_report;
bd_command_function bd_command_probe;
bd_command_function bd_command_version;
bd_command_function bd_command_eval;
bd_command_function bd_command_convert;
bd_command_function bd_command_draft_export;
bd_command_function bd_command_draft_import;

/* Set by SIGINT and SIGTERM: finish the step, write a checkpoint, stop. */
extern volatile sig_atomic_t bd_stop_requested;
void bd_catch_signals(void);

#endif
