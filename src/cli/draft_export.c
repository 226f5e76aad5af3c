/* bdlm draft export and import - drafts in the forms other programs load, and back. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "cli/command.h"
#include "cli/options.h"
#include "draft/export.h"

typedef struct {
    const char *model, *draft, *tokenizer, *out, *to, *layout, *flavor, *type;
} arguments;

static bool is_new(const char *out, bd_error *err)
{
    return (!bd_file_exists(out) && !bd_folder_exists(out)) ||
           bd_fail(err, "%s: exists already", out);
}

static int position(const char *word, const char *const *words, int count)
{
    for (int i = 0; i < count; i++)
        if (!strcmp(word, words[i]))
            return i;
    return 0;
}

/* An exported folder appears whole, after it has been opened again as a draft of this target. */
static bool write_folder(const bd_draft *draft, bd_draft_layout layout, const char *out,
                         bd_error *err)
{
    char temporary[BD_PATH + 8];
    snprintf(temporary, sizeof temporary, "%s.tmp", out);
    bd_draft *again = NULL;
    bool ok = bd_folder_remove(temporary, err) && bd_draft_export(draft, layout, temporary, err) &&
              (again = bd_draft_open(temporary, draft->target, BD_F32, err));
    bd_draft_close(again);
    ok = ok && bd_folder_publish(temporary, out, err);
    bd_error ignored = {0};
    if (!ok)
        bd_folder_remove(temporary, &ignored);
    return ok;
}

static bool write_gguf(const bd_draft *draft, const arguments *a, bd_error *err)
{
    bd_gguf_type type;
    bool keep = !bd_gguf_type_from_name(a->type, &type);
    bd_tokenizer *tokenizer = bd_tokenizer_open(a->tokenizer ? a->tokenizer : a->model, err);
    bool ok = tokenizer &&
              bd_draft_export_gguf(draft, tokenizer,
                                   strcmp(a->flavor, "ik") ? BD_FLAVOR_MAINLINE : BD_FLAVOR_IK,
                                   keep ? NULL : &type, a->out, err);
    bd_tokenizer_close(tokenizer);
    bd_gguf *again = ok ? bd_gguf_open(a->out, err) : NULL;
    if (ok && !again)
        remove(a->out);
    ok = ok && again;
    bd_gguf_close(again);
    return ok;
}

int bd_command_draft_export(int argc, char **argv)
{
    static const char *const layouts[] = {"modelopt", "vllm", "specforge", "zlab"};
    arguments a = {.to = "folder", .layout = "modelopt", .flavor = "mainline", .type = "keep"};
    const bd_option list[] = {
        {"model", "m", BD_ARGUMENT_TEXT, "FOLDER", "the target", &a.model, 0, 0, true},
        {"draft", "md", BD_ARGUMENT_TEXT, "FOLDER", "the draft", &a.draft, 0, 0, true},
        {"out", "o", BD_ARGUMENT_TEXT, "PATH", "the new folder or file", &a.out, 0, 0, true},
        {"to", NULL, BD_ARGUMENT_CHOICE, "folder|gguf", "what to write", &a.to, 0, 0, false},
        {"layout", NULL, BD_ARGUMENT_CHOICE, "modelopt|vllm|specforge|zlab", "of a folder",
         &a.layout, 0, 0, false},
        {"flavor", NULL, BD_ARGUMENT_CHOICE, "mainline|ik", "of a GGUF file", &a.flavor, 0, 0,
         false},
        {"dtype", NULL, BD_ARGUMENT_CHOICE, "keep|F32|F16|BF16|Q8_0", "of a GGUF file's matrices",
         &a.type, 0, 0, false},
        {"tokenizer", NULL, BD_ARGUMENT_TEXT, "FOLDER", "of a GGUF file (the target's)",
         &a.tokenizer, 0, 0, false},
    };
    const bd_options options = {.command = "draft export",
                                .usage = "-m TARGET -md DRAFT --out PATH [--layout L | --to gguf]",
                                .summary = "A draft in the form another program loads.",
                                .list = list,
                                .count = sizeof list / sizeof *list};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("draft export", &err);
    bd_model *target = NULL;
    bd_draft *draft = NULL;
    bool ok = is_new(a.out, &err) && (target = bd_model_open(a.model, BD_F32, &err)) &&
              (draft = bd_draft_open(a.draft, target, BD_F32, &err));
    ok = ok &&
         (strcmp(a.to, "gguf")
              ? write_folder(draft, (bd_draft_layout)position(a.layout, layouts, 4), a.out, &err)
              : write_gguf(draft, &a, &err));
    if (ok)
        fprintf(stderr, "%s: %lld tensors\n", a.out, (long long)draft->parameters.count);
    bd_draft_close(draft);
    bd_model_close(target);
    return ok ? 0 : bd_run_error("draft export", &err);
}

/* Reads any folder layout or a GGUF file and leaves a draft folder as bdlm writes it. */
static bool import(const char *in, bd_model *target, const char *folder, bd_error *err)
{
    char side[BD_PATH];
    if (!bd_folder_exists(in))
        return bd_draft_import_gguf(in, target, folder, err);
    if (bd_path_join(side, in, "mask_embedding.pt", err) && bd_file_exists(side))
        return bd_fail(err, "%s: a mask row of the draft's own, which bdlm does not use", side);
    bd_draft *draft = bd_draft_open(in, target, BD_F32, err);
    bool ok = draft && bd_draft_export(draft, BD_LAYOUT_MODELOPT, folder, err);
    bd_draft_close(draft);
    return ok;
}

int bd_command_draft_import(int argc, char **argv)
{
    const char *model = NULL, *out = NULL;
    bd_text_list words = {0};
    const bd_option list[] = {
        {"model", "m", BD_ARGUMENT_TEXT, "FOLDER", "the target", &model, 0, 0, true},
        {"out", "o", BD_ARGUMENT_TEXT, "FOLDER", "the new draft folder", &out, 0, 0, true},
    };
    const bd_options options = {.command = "draft import",
                                .usage = "DRAFT -m TARGET --out FOLDER",
                                .summary =
                                    "A draft folder of any layout, or a GGUF draft of either "
                                    "flavour, as a draft folder in modelopt's layout.",
                                .list = list,
                                .count = 2,
                                .arguments = &words};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("draft import", &err);
    if (words.count != 1) {
        bd_fail(&err, "one draft folder or GGUF file is wanted");
        return bd_usage_error("draft import", &err);
    }
    char temporary[BD_PATH + 8];
    snprintf(temporary, sizeof temporary, "%s.tmp", out);
    bd_model *target = NULL;
    bool ok = is_new(out, &err) && (target = bd_model_open(model, BD_F32, &err)) &&
              bd_folder_remove(temporary, &err) &&
              import(words.items[0], target, temporary, &err) &&
              bd_folder_publish(temporary, out, &err);
    bd_error ignored = {0};
    if (!ok)
        bd_folder_remove(temporary, &ignored);
    bd_model_close(target);
    return ok ? 0 : bd_run_error("draft import", &err);
}
