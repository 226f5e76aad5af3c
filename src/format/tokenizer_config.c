/* tokenizer_config.json and chat_template.jinja: which tokens play which part, and the template. */
#include "format/tokenizer_internal.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "format/json.h"

enum { MOST_CONFIG = 1 << 26 };

const char *bd_token_role_name(bd_token_role role)
{
    static const char *const names[BD_ROLE_COUNT] = {"bos", "eos", "pad", "unk", "mask"};
    return names[role];
}

static void role_field(bd_token_role role, char field[32])
{
    snprintf(field, 32, "%s_token", bd_token_role_name(role));
}

// Files say "model_max_length": 1000000000000000019884624838656 for "no limit". It is kept as a
// real number, since no integer type holds it.
static void soften_long_integers(const char *text, size_t size, bd_text *out)
{
    bool in_string = false;
    for (size_t i = 0; i < size;) {
        size_t digits = 0;
        while (!in_string && i + digits < size && isdigit((unsigned char)text[i + digits]))
            digits++;
        if (digits) {
            char after = i + digits < size ? text[i + digits] : 0;
            char before = i > 0 ? text[i - 1] : 0;
            bd_text_add(out, text + i, digits);
            if (digits >= 19 && !strchr(".eE", after) && before != '.')
                bd_text_add_string(out, ".0");
            i += digits;
            continue;
        }
        if (text[i] == '"')
            in_string = !in_string;
        else if (in_string && text[i] == '\\' && i + 1 < size)
            bd_text_add_byte(out, text[i++]);
        bd_text_add_byte(out, text[i++]);
    }
}

static json_t *load_config(const char *path, bd_error *err)
{
    size_t size;
    char *text = bd_file_read_text(path, MOST_CONFIG, &size, err);
    if (!text)
        return NULL;
    bd_text soft = {0};
    soften_long_integers(text, size, &soft);
    json_t *config = NULL;
    if (bd_text_check(&soft, err))
        config = bd_json_parse(soft.data ? soft.data : "", soft.size, path, err);
    bd_text_free(&soft);
    free(text);
    if (config && !json_is_object(config)) {
        bd_fail(err, "%s: not a JSON object", path);
        json_decref(config);
        return NULL;
    }
    return config;
}

// "<|im_end|>" or {"content": "<|im_end|>", ...}; null and absent are no token.
static bool read_role(bd_tokenizer *t, const char *path, bd_token_role role, bd_error *err)
{
    char field[32];
    role_field(role, field);
    json_t *value = json_object_get(t->config, field);
    if (json_is_object(value))
        value = json_object_get(value, "content");
    if (!value || json_is_null(value))
        return true;
    if (!json_is_string(value))
        return bd_fail(err, "%s: \"%s\" is not a text", path, field);
    t->role[role] = bd_tokenizer_find(t, json_string_value(value), json_string_length(value));
    return t->role[role] >= 0 || bd_fail(err, "%s: \"%s\" is \"%.80s\", which is not a token of %s",
                                         path, field, json_string_value(value), t->name);
}

// One text, or a list of named ones of which "default" is meant.
static bool read_template(bd_tokenizer *t, const char *path, bd_error *err)
{
    json_t *value = json_object_get(t->config, "chat_template");
    if (json_is_array(value)) {
        json_t *found = NULL;
        for (size_t i = 0; i < json_array_size(value); i++) {
            const char *name = json_string_value(json_object_get(json_array_get(value, i), "name"));
            if (name && strcmp(name, "default") == 0)
                found = json_object_get(json_array_get(value, i), "template");
        }
        if (!found)
            return bd_fail(err, "%s: \"chat_template\" is a list without a \"default\"", path);
        value = found;
    }
    if (!value || json_is_null(value))
        return true;
    if (!json_is_string(value))
        return bd_fail(err, "%s: \"chat_template\" is not a text", path);
    t->chat_template = strdup(json_string_value(value));
    return t->chat_template || bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", path);
}

bool bd_tokenizer_read_config(bd_tokenizer *t, const char *folder, bd_error *err)
{
    char path[BD_PATH];
    if (!bd_path_join(path, folder, "tokenizer_config.json", err))
        return false;
    if (bd_file_exists(path)) {
        t->config = load_config(path, err);
        if (!t->config || !read_template(t, path, err))
            return false;
        for (int role = 0; role < BD_ROLE_COUNT; role++)
            if (!read_role(t, path, (bd_token_role)role, err))
                return false;
    }
    if (!bd_path_join(path, folder, "chat_template.jinja", err))
        return false;
    if (!bd_file_exists(path))
        return true;
    char *source = bd_file_read_text(path, MOST_CONFIG, NULL, err);
    if (!source)
        return false;
    free(t->chat_template);
    t->chat_template = source;
    t->template_elsewhere = true;
    return true;
}

// Does the configuration name this token for the role already, as a text or as an object?
static bool names_token(json_t *value, const char *text, size_t size)
{
    if (json_is_object(value))
        value = json_object_get(value, "content");
    return json_is_string(value) && json_string_length(value) == size &&
           memcmp(json_string_value(value), text, size) == 0;
}

static bool write_roles(const bd_tokenizer *t, json_t *config)
{
    bool ok = true;
    for (int role = 0; role < BD_ROLE_COUNT; role++) {
        char field[32];
        size_t size;
        role_field((bd_token_role)role, field);
        const char *text = bd_tokenizer_token(t, t->role[role], &size);
        if (text && !names_token(json_object_get(config, field), text, size))
            ok = json_object_set_new(config, field, json_stringn(text, size)) == 0 && ok;
        else if (!text && json_object_get(config, field))
            ok = json_object_set_new(config, field, json_null()) == 0 && ok;
    }
    return ok;
}

bool bd_tokenizer_write_config(const bd_tokenizer *t, const char *folder, bd_error *err)
{
    char path[BD_PATH];
    if (!bd_path_join(path, folder, "tokenizer_config.json", err))
        return false;
    json_t *config =
        t->config ? json_deep_copy(t->config)
                  : json_pack("{s:s, s:b, s:f}", "tokenizer_class", "PreTrainedTokenizerFast",
                              "clean_up_tokenization_spaces", 0, "model_max_length", 1e30);
    bool ok = config && write_roles(t, config);
    if (ok && t->template_elsewhere)
        ok = json_object_set_new(config, "chat_template",
                                 t->chat_template ? json_string(t->chat_template) : json_null()) ==
             0;
    if (!ok)
        bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory, or a token that is not UTF-8", path);
    ok = ok && bd_json_save(config, path, err);
    json_decref(config);
    return ok;
}
