/* main.c - finds the command and runs it. */
#include <stdio.h>
#include <string.h>

#include "base/threads.h"
#include "cli/command.h"
#include "cli/options.h"
#include "tensor/isa.h"

typedef struct {
    const char *noun, *verb; /* verb NULL: the noun alone is the command */
    bd_command_function *run;
    const char *summary;
} bd_command;

static const bd_command commands[] = {
    {"demo", NULL, bd_command_demo, "train, draft, compare, report: the whole story in minutes"},
    {"init", NULL, bd_command_init, "a model folder with random weights from a size description"},
    {"tokenizer", "train", bd_command_tokenizer_train, "a byte-level BPE tokenizer from text"},
    {"tokenizer", "encode", bd_command_tokenizer_encode, "text to token ids"},
    {"tokenizer", "decode", bd_command_tokenizer_decode, "token ids to text"},
    {"pretrain", NULL, bd_command_pretrain, "a language model from text"},
    {"sft", NULL, bd_command_sft, "fine-tune a model on conversations"},
    {"distill", NULL, bd_command_distill,
     "a student from a causal teacher, on its own answers or on given ones"},
    {"data", "exercises", bd_command_data_exercises,
     "short exercises with one right answer, to try training"},
    {"data", "inspect", bd_command_data_inspect, "rows as training sees them, with their masks"},
    {"generate", NULL, bd_command_generate,
     "text from a model: causal, speculative (--draft), block diffusion"},
    {"eval", NULL, bd_command_eval, "perplexity, denoising loss and likelihood bound, exact match"},
    {"draft", "train", bd_command_draft_train, "a DFlash drafter for a causal target"},
    {"draft", "cache", bd_command_draft_cache, "hidden states of a target, written once"},
    {"draft", "produce", bd_command_draft_produce,
     "runs a target for drafters that train elsewhere"},
    {"draft", "compare", bd_command_draft_compare,
     "several drafters on one cache with one budget, side by side"},
    {"draft", "eval", bd_command_draft_eval, "acceptance length of a drafter on prompts"},
    {"draft", "doctor", bd_command_draft_doctor,
     "what is wrong between a drafter and its target, by measuring"},
    {"draft", "export", bd_command_draft_export, "a drafter in the form other programs load"},
    {"draft", "import", bd_command_draft_import, "a drafter of another program, or a GGUF file"},
    {"convert", NULL, bd_command_convert, "a model folder to a GGUF file, and back"},
    {"mask", NULL, bd_command_mask, "picture of an attention rule"},
    {"inspect", NULL, bd_command_inspect,
     "what is in a model, a draft, a run; the difference of two"},
    {"report", NULL, bd_command_report, "one HTML page from runs"},
    {"probe", NULL, bd_command_probe, "one golden case in, every computed tensor out"},
    {"version", NULL, bd_command_version, "version, instruction set, libraries"},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static void print_commands(FILE *out)
{
    fprintf(
        out,
        "bdlm - block-diffusion language models and drafters\n\nusage: bdlm COMMAND [options]\n\n");
    for (int i = 0; i < COMMANDS; i++) {
        char name[40];
        snprintf(name, sizeof name, "%s%s%s", commands[i].noun, commands[i].verb ? " " : "",
                 commands[i].verb ? commands[i].verb : "");
        fprintf(out, "  %-18s %s\n", name, commands[i].summary);
    }
    fprintf(out, "\nbdlm COMMAND --help shows a command's options.\n");
}

static const bd_command *find(int argc, char **argv, int *words)
{
    for (int i = 0; i < COMMANDS; i++) {
        const bd_command *command = &commands[i];
        if (strcmp(command->noun, argv[1]) != 0)
            continue;
        if (!command->verb || (argc > 2 && strcmp(command->verb, argv[2]) == 0)) {
            *words = command->verb ? 2 : 1;
            return command;
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        print_commands(stderr);
        return 2;
    }
    if (!strcmp(argv[1], "--help") || !strcmp(argv[1], "-h") || !strcmp(argv[1], "help")) {
        print_commands(stdout);
        return 0;
    }
    if (!strcmp(argv[1], "--version"))
        argv[1] = "version";
    int words = 1;
    const bd_command *command = find(argc, argv, &words);
    if (!command) {
        fprintf(stderr, "bdlm: unknown command %s%s%s\nbdlm --help lists the commands\n", argv[1],
                argc > 2 && argv[2][0] != '-' ? " " : "",
                argc > 2 && argv[2][0] != '-' ? argv[2] : "");
        return 2;
    }
    bd_error err = {0};
    if (!bd_isa_init(&err))
        return bd_run_error(command->noun, &err);
    bd_threads_set(0);
    return command->run(argc - words, argv + words);
}
