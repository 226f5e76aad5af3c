/* bdlm tokenizer train | encode | decode */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "cli/command.h"
#include "cli/options.h"
#include "format/corpus.h"
#include "format/json.h"
#include "format/tokenizer_train.h"

// --- train ---------------------------------------------------------------------------------------

static bool feed(bd_tokenizer_trainer *trainer, const bd_text_list *files,
                 bd_document_options options, bd_error *err)
{
    int64_t size = bd_corpus_size(files->items, files->count, err);
    bd_documents *documents =
        size < 0 ? NULL : bd_documents_open(files->items, files->count, options, err);
    if (!documents)
        return false;
    bd_progress *progress = bd_progress_begin("count words", size);
    bd_document document;
    int64_t done = 0;
    int got;
    while ((got = bd_documents_next(documents, &document, err)) > 0) {
        if (!bd_tokenizer_trainer_feed(trainer, document.text, document.size, err)) {
            got = -1;
            break;
        }
        done += (int64_t)document.size;
        bd_progress_update(progress, done, "%.1f MB", (double)done / 1e6);
    }
    bd_progress_end(progress);
    bd_documents_close(documents);
    return got == 0;
}

int bd_command_tokenizer_train(int argc, char **argv)
{
    bd_tokenizer_recipe recipe = bd_tokenizer_recipe_default();
    const char *out = NULL;
    bool entries = false, replace = false;
    bd_text_list files = {0};
    const bd_option list[] = {
        {"out", "o", BD_ARGUMENT_TEXT, "FOLDER", "where tokenizer.json goes", &out, 0, 0, true},
        {"vocab-size", NULL, BD_ARGUMENT_INT, "N", "tokens in all (8192)", &recipe.vocabulary, 260,
         1e7, false},
        {"min-frequency", NULL, BD_ARGUMENT_INT, "N", "rarer pairs are not merged (2)",
         &recipe.least_count, 1, 1e9, false},
        {"entries", NULL, BD_ARGUMENT_FLAG, NULL, "documents are entries between blank lines",
         &entries, 0, 0, false},
        {"replace-invalid", NULL, BD_ARGUMENT_FLAG, NULL, "bytes that are not UTF-8 become U+FFFD",
         &replace, 0, 0, false},
    };
    const bd_options options = {
        .command = "tokenizer train",
        .usage = "FILE... --out FOLDER [options]",
        .summary = "Learns a byte-level BPE from text (.txt, .gz, .dz) and writes a "
                   "tokenizer.json that other libraries load.",
        .list = list,
        .count = 5,
        .arguments = &files};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("tokenizer train", &err);
    if (files.count == 0) {
        bd_fail(&err, "at least one text file is wanted");
        return bd_usage_error("tokenizer train", &err);
    }
    bd_tokenizer_trainer *trainer = bd_tokenizer_trainer_create(&recipe, &err);
    bd_tokenizer *tokenizer = NULL;
    bool ok = trainer && feed(trainer, &files,
                              (bd_document_options){.entries = entries, .replace = replace}, &err);
    if (ok) {
        bd_progress *progress = bd_progress_begin("merge", recipe.vocabulary);
        tokenizer = bd_tokenizer_trainer_finish(trainer, progress, &err);
        bd_progress_end(progress);
        ok = tokenizer && bd_tokenizer_save(tokenizer, out, &err);
    }
    if (ok)
        fprintf(stderr, "%s: %lld tokens\n", out, (long long)bd_tokenizer_size(tokenizer));
    bd_tokenizer_close(tokenizer);
    bd_tokenizer_trainer_destroy(trainer);
    return ok ? 0 : bd_run_error("tokenizer train", &err);
}

// --- encode and decode ---------------------------------------------------------------------------

static char *read_input(const bd_text_list *words, const char *file, size_t *size, bd_error *err)
{
    if (file)
        return bd_file_read_text(file, (size_t)1 << 30, size, err);
    if (words->count == 1) {
        *size = strlen(words->items[0]);
        return strdup(words->items[0]);
    }
    char *text = NULL;
    FILE *memory = open_memstream(&text, size);
    for (int c; memory && (c = getchar()) != EOF;)
        fputc(c, memory);
    if (memory)
        fclose(memory);
    if (!text)
        bd_fail_as(err, BD_ERROR_SYSTEM, "cannot read standard input");
    return text;
}

int bd_command_tokenizer_encode(int argc, char **argv)
{
    const char *folder = NULL, *file = NULL;
    bool show = false;
    bd_text_list words = {0};
    const bd_option list[] = {
        {"tokenizer", "m", BD_ARGUMENT_TEXT, "FOLDER", "tokenizer or model folder", &folder, 0, 0,
         true},
        {"file", "f", BD_ARGUMENT_TEXT, "FILE",
         "text to encode; neither text nor file: standard input", &file, 0, 0, false},
        {"show", NULL, BD_ARGUMENT_FLAG, NULL, "one token a line with its text", &show, 0, 0,
         false},
    };
    const bd_options options = {.command = "tokenizer encode",
                                .usage = "-m FOLDER [TEXT]",
                                .summary = "Prints the token ids of a text.",
                                .list = list,
                                .count = 3,
                                .arguments = &words};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("tokenizer encode", &err);
    size_t size;
    bd_tokens tokens = {0};
    bd_tokenizer *tokenizer = bd_tokenizer_open(folder, &err);
    char *text = tokenizer ? read_input(&words, file, &size, &err) : NULL;
    bool ok = text && bd_tokenizer_encode(tokenizer, text, size, NULL, &tokens, &err);
    for (int64_t i = 0; ok && i < tokens.count; i++) {
        size_t bytes;
        const char *piece = bd_tokenizer_token(tokenizer, tokens.ids[i], &bytes);
        if (show)
            printf("%d\t%.*s\n", tokens.ids[i], piece ? (int)bytes : 0, piece ? piece : "");
        else
            printf("%s%d", i ? " " : "", tokens.ids[i]);
    }
    if (ok && !show)
        putchar('\n');
    free(text);
    bd_tokens_free(&tokens);
    bd_tokenizer_close(tokenizer);
    return ok ? 0 : bd_run_error("tokenizer encode", &err);
}

int bd_command_tokenizer_decode(int argc, char **argv)
{
    const char *folder = NULL;
    bool skip = false;
    bd_text_list words = {0};
    const bd_option list[] = {
        {"tokenizer", "m", BD_ARGUMENT_TEXT, "FOLDER", "tokenizer or model folder", &folder, 0, 0,
         true},
        {"skip-special", NULL, BD_ARGUMENT_FLAG, NULL, "leave special tokens out", &skip, 0, 0,
         false},
    };
    const bd_options options = {.command = "tokenizer decode",
                                .usage = "-m FOLDER ID... (no ids: standard input)",
                                .summary = "Prints the text of token ids.",
                                .list = list,
                                .count = 2,
                                .arguments = &words};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("tokenizer decode", &err);
    bd_tokenizer *tokenizer = bd_tokenizer_open(folder, &err);
    bd_token_stream stream = {.skip_special = skip};
    bd_text text = {0};
    bool ok = tokenizer != NULL;
    char word[32];
    for (int64_t i = 0; ok; i++) {
        if (words.count ? i == words.count : scanf("%31s", word) != 1)
            break;
        const char *digits = words.count ? words.items[i] : word;
        char *end;
        long id = strtol(digits, &end, 10);
        if (end == digits || *end || id < 0 || id >= bd_tokenizer_size(tokenizer))
            ok = bd_fail(&err, "id %s: 0 to %lld expected", digits,
                         (long long)bd_tokenizer_size(tokenizer) - 1);
        else
            ok = bd_token_stream_add(&stream, tokenizer, (int32_t)id, &text, &err);
    }
    ok = ok && bd_token_stream_finish(&stream, &text, &err);
    if (ok)
        printf("%.*s\n", (int)text.size, text.data ? text.data : "");
    bd_text_free(&text);
    bd_tokenizer_close(tokenizer);
    return ok ? 0 : bd_run_error("tokenizer decode", &err);
}
