/* bdlm convert - a target model from a Hugging Face folder to one GGUF file, and back. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/command.h"
#include "cli/options.h"
#include "model/gguf_model.h"

static bool to_gguf(const char *in, const char *out, const char *type_name, bd_error *err)
{
    bd_gguf_type type;
    bool keep = !bd_gguf_type_from_name(type_name, &type);
    bd_tokenizer *tokenizer = NULL;
    bd_model *model = bd_model_open(in, BD_F32, err);
    bool ok = model && (tokenizer = bd_tokenizer_open(in, err)) &&
              bd_model_save_gguf(model, tokenizer, out, keep ? NULL : &type, err);
    // Whoever wrote it reads it again: a file that cannot be opened is not left as if it were done.
    bd_gguf *again = ok ? bd_gguf_open(out, err) : NULL;
    if (again)
        fprintf(stderr, "%s: %lld tensors, %lld keys\n", out, (long long)bd_gguf_count(again),
                (long long)bd_gguf_key_count(again));
    if (ok && !again)
        remove(out);
    ok = ok && again;
    bd_gguf_close(again);
    bd_tokenizer_close(tokenizer);
    bd_model_close(model);
    return ok;
}

static bool to_folder(const char *in, const char *out, bd_error *err)
{
    char temporary[BD_PATH + 8];
    snprintf(temporary, sizeof temporary, "%s.tmp", out);
    bool ok = bd_folder_remove(temporary, err) && bd_gguf_to_folder(in, temporary, err) &&
              bd_folder_publish(temporary, out, err);
    if (!ok) {
        bd_error ignored = {0};
        bd_folder_remove(temporary, &ignored);
    }
    return ok;
}

int bd_command_convert(int argc, char **argv)
{
    const char *out = NULL, *type = "keep";
    bd_text_list words = {0};
    const bd_option list[] = {
        {"out", "o", BD_ARGUMENT_TEXT, "PATH", "the new file or folder", &out, 0, 0, true},
        {"dtype", NULL, BD_ARGUMENT_CHOICE, "keep|F32|F16|BF16|Q8_0",
         "of the matrices in the GGUF file; norms and vectors are F32", &type, 0, 0, false},
    };
    const bd_options options = {
        .command = "convert",
        .usage = "MODEL --out PATH",
        .summary = "A model folder becomes a GGUF file, a GGUF file a model folder.",
        .list = list,
        .count = 2,
        .arguments = &words};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("convert", &err);
    if (words.count != 1) {
        bd_fail(&err, "one model folder or GGUF file is wanted");
        return bd_usage_error("convert", &err);
    }
    bool folder = bd_folder_exists(words.items[0]);
    if (!folder && strcmp(type, "keep") != 0) {
        bd_fail(&err, "--dtype is for writing GGUF files; a folder keeps what the file has");
        return bd_usage_error("convert", &err);
    }
    bool ok = bd_file_exists(out) || bd_folder_exists(out)
                  ? bd_fail(&err, "%s: exists already", out)
              : folder ? to_gguf(words.items[0], out, type, &err)
                       : to_folder(words.items[0], out, &err);
    return ok ? 0 : bd_run_error("convert", &err);
}
