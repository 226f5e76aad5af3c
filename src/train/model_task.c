#include "train/model_task.h"

#include <stdlib.h>
#include <string.h>

#include "base/file.h"

bool bd_model_output_check(const bd_model_output *output, bd_error *err)
{
    return bd_dtype_is_float(output->save_dtype) ||
           bd_fail_as(err, BD_ERROR_TYPE, "save_dtype: %s, a float type expected",
                      bd_dtype_name(output->save_dtype));
}

bool bd_model_task_identity(const bd_model *model, const bd_model_output *output,
                            bd_contract *contract, bd_error *err)
{
    bd_contract_int(contract, "vocab_size", model->config.vocabulary);
    bd_contract_text(contract, "start", output->start ? output->start : "not told");
    bd_contract_text(contract, "save_dtype", bd_dtype_name(output->save_dtype));
    json_t *config = bd_model_config_to_json(&model->config);
    char *text = config ? json_dumps(config, JSON_COMPACT | JSON_SORT_KEYS) : NULL;
    json_decref(config);
    if (!text)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "contract: no memory for the model's config");
    bd_contract_hash(contract, "model_config", text, strlen(text));
    free(text);
    return true;
}

/* The files that make a folder of weights one that a user can talk to; copied if they are there. */
static bool copy_companions(const char *from, const char *to, bool with_template, bd_error *err)
{
    static const char *const names[] = {
        "tokenizer.json",      "tokenizer_config.json",   "vocab.json",
        "merges.txt",          "special_tokens_map.json", "added_tokens.json",
        "chat_template.jinja", "generation_config.json"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char source[BD_PATH], target[BD_PATH];
        if (!with_template && !strcmp(names[i], "chat_template.jinja"))
            continue; // it would go before the one that the tokenizer saves
        if (!bd_path_join(source, from, names[i], err) || !bd_path_join(target, to, names[i], err))
            return false;
        if (!bd_file_exists(source))
            continue;
        bd_map map;
        if (!bd_map_open(&map, source, err))
            return false;
        bool ok = bd_file_write(target, map.data, map.size, err);
        bd_map_close(&map);
        if (!ok)
            return false;
    }
    return true;
}

bool bd_model_task_save(const bd_model *model, const bd_model_output *output, const char *folder,
                        bd_error *err)
{
    return bd_model_save(model, folder, output->save_dtype, err) &&
           (!output->companions ||
            copy_companions(output->companions, folder, !output->tokenizer, err)) &&
           (!output->tokenizer || bd_tokenizer_save(output->tokenizer, folder, err));
}
