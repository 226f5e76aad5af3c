/* bdlm data inspect - rows as training sees them: tokens, and the four masks under them. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/file.h"
#include "cli/command.h"
#include "cli/conversation_data.h"
#include "cli/objective.h"
#include "cli/options.h"
#include "cli/recipe_options.h"
#include "cli/training.h"

typedef struct {
    bd_tokenizer *tokenizer;
    bd_model
        shape; // a model's description without weights: a task prepares batches from that alone
    bd_objective_choice objective;
    bd_conversation_data data;
    bd_corpus corpus;
    int64_t *ends;
    bd_token_documents documents;
    bd_task task;
} inspection;

// --- preparing -----------------------------------------------------------------------------------

static bool describe_model(inspection *p, const bd_recipe *recipe, bd_error *err)
{
    const char *folder = bd_recipe_text(recipe, "model.path");
    char path[BD_PATH];
    if (folder && (!bd_path_join(path, folder, "config.json", err) ||
                   !bd_model_config_read(path, &p->shape.config, err)))
        return false;
    if (!bd_objective_resolve(recipe, "data", p->tokenizer, folder ? &p->shape.config : NULL,
                              &p->objective, err))
        return false;
    int64_t tokens = bd_tokenizer_size(p->tokenizer);
    if (!folder)
        p->shape.config = (bd_model_config){.max_positions = INT32_MAX, .bos = -1, .pad = -1};
    if (p->shape.config.vocabulary < tokens)
        p->shape.config.vocabulary = tokens;
    return true;
}

static bool read_data(inspection *p, const bd_recipe *recipe, bd_error *err)
{
    int64_t block_size = p->objective.canvas.block_size;
    if (bd_recipe_has_conversations(recipe)) {
        if (!bd_conversation_data_read(recipe, "data", p->tokenizer, block_size, &p->data, err))
            return false;
        p->documents = bd_conversation_documents(&p->data.train);
        return true;
    }
    if (!bd_training_corpus(recipe, p->tokenizer, &p->corpus, err))
        return false;
    p->documents.tokens = p->corpus.tokens;
    p->documents.ends = p->ends =
        bd_document_ends(p->corpus.tokens, p->corpus.count,
                         bd_tokenizer_role(p->tokenizer, BD_ROLE_EOS), &p->documents.count, err);
    return p->ends != NULL;
}

static bool prepare(inspection *p, bd_recipe *recipe, bd_error *err)
{
    const char *words = bd_recipe_text(recipe, "model.tokenizer");
    if (!words)
        words = bd_recipe_text(recipe, "model.path");
    if (!words)
        return bd_fail_as(err, BD_ERROR_USAGE, "--tokenizer FOLDER or --path MODEL is required");
    if (bd_recipe_has_conversations(recipe) &&
        !strcmp(bd_recipe_origin(recipe, "data.completion_only"), "default") &&
        !bd_recipe_assign(recipe, "data.completion_only", "true", "conversations", err))
        return false;
    if (!(p->tokenizer = bd_tokenizer_open(words, err)) || !describe_model(p, recipe, err) ||
        !read_data(p, recipe, err))
        return false;
    bd_document_task_options options = bd_document_task_default(&p->shape, &p->documents);
    options.rows.cut = !bd_recipe_has_conversations(recipe);
    return bd_objective_options(recipe, &p->objective, p->tokenizer, &options, err) &&
           bd_document_task_create(&options, &p->task, err);
}

// --- printing ------------------------------------------------------------------------------------

enum { LABEL = 12 };

typedef struct {
    bd_text text;  // how files spell the token: one character a byte, no blanks
    int64_t width; // columns
} cell;

static cell spell(const bd_tokenizer *tokenizer, int32_t id)
{
    cell c = {0};
    bd_tokenizer_spell(tokenizer, id, &c.text);
    if (!c.text.data)
        bd_text_add_string(&c.text, "?");
    for (size_t i = 0; i < c.text.size; i++)
        c.width += (c.text.data[i] & 0xc0) != 0x80;
    return c;
}

static int64_t terminal_width(void)
{
    struct winsize size;
    return ioctl(1, TIOCGWINSZ, &size) == 0 && size.ws_col > LABEL + 20 ? size.ws_col : 100;
}

/* Prompt, answer, masked, a clean token that carries loss, padding. */
static const char *colour_of(const bd_diffusion_batch *b, int64_t at)
{
    if (b->targets_segmentation[at] == 0)
        return "\033[90m";
    if (b->corruption_mask[at])
        return "\033[30;43m";
    if (b->targets_loss_mask[at])
        return "\033[32m";
    return b->completion_mask[at] ? "\033[36m" : "";
}

static void print_mask(const char *name, const int32_t *mask, const cell *cells, int64_t count)
{
    printf("%-*s", LABEL, name);
    for (int64_t i = 0; i < count; i++)
        printf("%-*d ", (int)cells[i].width, mask[i]);
    printf("\n");
}

static void print_line(const bd_diffusion_batch *b, int64_t at, const cell *cells, int64_t count,
                       bool colour)
{
    printf("%-*s", LABEL, "token");
    for (int64_t i = 0; i < count; i++)
        printf("%s%.*s%s ", colour ? colour_of(b, at + i) : "", (int)cells[i].text.size,
               cells[i].text.data, colour ? "\033[0m" : "");
    printf("\n");
    print_mask("document", b->targets_segmentation + at, cells, count);
    print_mask("position", b->targets_position + at, cells, count);
    print_mask("completion", b->completion_mask + at, cells, count);
    print_mask("corruption", b->corruption_mask + at, cells, count);
    print_mask("loss", b->targets_loss_mask + at, cells, count);
    printf("\n");
}

static void print_row(const inspection *p, const bd_diffusion_batch *b, int64_t r, int64_t number)
{
    bool colour = isatty(1) && !getenv("NO_COLOR");
    int64_t begin = r * b->length, room = terminal_width() - LABEL, documents = 0, weighted = 0,
            valid = 0;
    for (int64_t i = begin; i < begin + b->length; i++) {
        documents = b->targets_segmentation[i] > documents ? b->targets_segmentation[i] : documents;
        valid += b->targets_segmentation[i] != 0;
        weighted += b->targets_loss_mask[i] != 0;
    }
    printf("row %lld: %lld documents, %lld tokens, %lld of padding, loss on %lld\n",
           (long long)number, (long long)documents, (long long)valid,
           (long long)(b->length - valid), (long long)weighted);
    cell cells[256];
    for (int64_t i = 0; i < valid;) {
        int64_t count = 0, used = 0;
        while (i + count < valid && count < 256) {
            cell c = spell(p->tokenizer, b->targets[begin + i + count]);
            int64_t position = b->targets_position[begin + i + count];
            int64_t digits = position > 9999  ? 5
                             : position > 999 ? 4
                             : position > 99  ? 3
                             : position > 9   ? 2
                                              : 1;
            while (c.width < digits) {
                bd_text_add_byte(&c.text, ' ');
                c.width++;
            }
            if (count > 0 && used + c.width + 1 > room) {
                bd_text_free(&c.text);
                break;
            }
            used += c.width + 1;
            cells[count++] = c;
        }
        print_line(b, begin + i, cells, count, colour);
        for (int64_t k = 0; k < count; k++)
            bd_text_free(&cells[k].text);
        i += count;
    }
}

static json_t *list(const int32_t *values, int64_t count)
{
    json_t *array = json_array();
    for (int64_t i = 0; i < count; i++)
        json_array_append_new(array, json_integer(values[i]));
    return array;
}

/* One object a line, the fields of a batch by their names. */
static void print_json(const bd_diffusion_batch *b, int64_t r)
{
    int64_t at = r * b->length, n = b->length;
    json_t *row = json_pack(
        "{s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "inputs", list(b->inputs + at, n), "targets",
        list(b->targets + at, n), "targets_position", list(b->targets_position + at, n),
        "targets_segmentation", list(b->targets_segmentation + at, n), "completion_mask",
        list(b->completion_mask + at, n), "corruption_mask", list(b->corruption_mask + at, n),
        "targets_loss_mask", list(b->targets_loss_mask + at, n));
    json_dumpf(row, stdout, JSON_COMPACT);
    printf("\n");
    json_decref(row);
}

static bool print_rows(inspection *p, int64_t wanted, bool as_json, bd_error *err)
{
    int64_t shown = 0;
    for (int64_t step = 0; shown < wanted; step++) {
        if (!p->task.next(p->task.self, step, 0, err))
            return false;
        const bd_diffusion_batch *b = bd_document_task_batch(&p->task, NULL);
        for (int64_t r = 0; r < b->rows && shown < wanted; r++, shown++) {
            if (as_json)
                print_json(b, r);
            else
                print_row(p, b, r, shown);
        }
    }
    return true;
}

int bd_command_data_inspect(int argc, char **argv)
{
    int64_t rows = 2;
    bool as_json = false;
    bd_recipe_arguments recipe = {.sections = {"data", "objective", "model", "train"}};
    const bd_option list_of_options[] = {
        {"rows", "n", BD_ARGUMENT_INT, "N", "rows to print (2)", &rows, 1, 1e9, false},
        {"json", NULL, BD_ARGUMENT_FLAG, NULL, "one JSON object a row", &as_json, 0, 0, false},
    };
    const bd_options options = {
        .command = "data inspect",
        .usage = "--train-files FILE --tokenizer FOLDER [options]",
        .summary = "Prints rows as the first steps of pretrain (text) or sft (.jsonl) see "
                   "them: tokens, and under each its document, position, and whether it is "
                   "of a completion, corrupted, and counted in the loss.",
        .list = list_of_options,
        .count = 2,
        .other = bd_recipe_arguments_take,
        .self = &recipe,
        .more_help = bd_recipe_arguments_help};
    bd_error err = {0};
    inspection p = {0};
    int status = 0;
    if (!bd_recipe_arguments_begin(&recipe, argc, argv, &err) ||
        !bd_options_parse(&options, argc, argv, &err) || !prepare(&p, recipe.recipe, &err) ||
        !print_rows(&p, rows, as_json, &err))
        status = bd_run_error("data inspect", &err);
    bd_document_task_free(&p.task);
    bd_conversation_data_free(&p.data);
    bd_corpus_free(&p.corpus);
    free(p.ends);
    bd_tokenizer_close(p.tokenizer);
    bd_recipe_free(recipe.recipe);
    return status;
}
