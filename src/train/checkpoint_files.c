#include "train/checkpoint_files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/sha256.h"
#include "format/json.h"

static bool refuse(bd_error *err, const char *folder, const char *file, const char *why)
{
    return bd_fail_as(err, BD_ERROR_STATE, "%s/%s: %s", folder, file, why);
}

static void free_names(char **names, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        free(names[i]);
    free(names);
}

/* The hash of the document without its own "sha256". */
static bool own_hash(json_t *root, char out[BD_SHA256_TEXT])
{
    json_t *bare = json_copy(root);
    json_object_del(bare, "sha256");
    char *text = json_dumps(bare, JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(bare);
    if (text)
        bd_sha256_bytes(text, strlen(text), out);
    free(text);
    return text != NULL;
}

// --- sealing -------------------------------------------------------------------------------------

static bool sync_file(const char *path, bd_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool ok = fd >= 0 && fsync(fd) == 0;
    if (!ok)
        bd_fail_as(err, BD_ERROR_SYSTEM, "%s: cannot sync: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    return ok;
}

static bool add_file(json_t *files, const char *folder, const char *name, bd_error *err)
{
    char path[BD_PATH], hash[BD_SHA256_TEXT];
    struct stat info;
    if (!bd_path_join(path, folder, name, err))
        return false;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
        return refuse(err, folder, name, "a checkpoint holds plain files only");
    if (!bd_sha256_file(path, hash, err) || !sync_file(path, err))
        return false;
    return json_object_set_new(
               files, name,
               json_pack("{s:I, s:s}", "size", (json_int_t)info.st_size, "sha256", hash)) == 0 ||
           refuse(err, folder, name, "a name that is not UTF-8");
}

bool bd_checkpoint_seal(const char *folder, json_t *root, bd_error *err)
{
    char **names = NULL, path[BD_PATH], hash[BD_SHA256_TEXT];
    int64_t count = bd_folder_list(folder, &names, err);
    json_t *files = json_object();
    bool ok = count >= 0;
    for (int64_t i = 0; ok && i < count; i++)
        ok = add_file(files, folder, names[i], err);
    free_names(names, count);
    json_object_set_new(root, "files", files);
    if (!ok)
        return false;
    if (!own_hash(root, hash))
        return bd_fail(err, "%s/%s: cannot be written as JSON", folder, BD_TRAINER_JSON);
    json_object_set_new(root, "sha256", json_string(hash));
    return bd_path_join(path, folder, BD_TRAINER_JSON, err) && bd_json_save(root, path, err);
}

// --- checking ------------------------------------------------------------------------------------

static bool check_file(json_t *entry, const char *folder, const char *name, bd_error *err)
{
    char path[BD_PATH], hash[BD_SHA256_TEXT];
    if (strchr(name, '/') || !strcmp(name, "..") || !bd_path_join(path, folder, name, err))
        return refuse(err, folder, BD_TRAINER_JSON, "lists a file outside of its folder");
    int64_t size;
    const char *wanted = bd_json_text(entry, path, "sha256", err);
    if (!wanted || !bd_json_int(entry, path, "size", 0, INT64_MAX, &size, err))
        return false;
    struct stat info;
    if (stat(path, &info) != 0 || !S_ISREG(info.st_mode))
        return refuse(err, folder, name, "missing");
    if (info.st_size != size)
        return bd_fail_as(err, BD_ERROR_STATE,
                          "%s: %lld bytes, %lld expected: truncated or changed", path,
                          (long long)info.st_size, (long long)size);
    if (!bd_sha256_file(path, hash, err))
        return false;
    if (strcmp(hash, wanted))
        return bd_fail_as(err, BD_ERROR_STATE, "%s: SHA-256 %.16s..., %.16s... expected: changed",
                          path, hash, wanted);
    return true;
}

/* A tensor file that nobody hashed could be read in place of one that was. */
static bool check_unlisted(json_t *files, const char *folder, bd_error *err)
{
    char **names = NULL;
    int64_t count = bd_folder_list(folder, &names, err);
    bool ok = count >= 0;
    for (int64_t i = 0; ok && i < count; i++)
        if (strstr(names[i], ".safetensors") && !json_object_get(files, names[i]))
            ok = refuse(err, folder, names[i], "a tensor file that trainer.json does not list");
    free_names(names, count);
    return ok;
}

static bool check_all(json_t *root, const char *folder, const char *path, bd_error *err)
{
    char hash[BD_SHA256_TEXT];
    const char *written = bd_json_text(root, path, "sha256", err);
    if (!written)
        return false;
    if (!own_hash(root, hash) || strcmp(hash, written))
        return refuse(err, folder, BD_TRAINER_JSON, "its own SHA-256 does not fit: changed");
    json_t *files = bd_json_object(root, path, "files", err), *entry;
    const char *name;
    if (!files)
        return false;
    json_object_foreach(files, name, entry)
    {
        if (!check_file(entry, folder, name, err))
            return false;
    }
    return check_unlisted(files, folder, err);
}

json_t *bd_checkpoint_unseal(const char *folder, bd_error *err)
{
    char path[BD_PATH];
    if (!bd_path_join(path, folder, BD_TRAINER_JSON, err))
        return NULL;
    json_t *root = bd_json_load(path, err);
    if (root && check_all(root, folder, path, err))
        return root;
    json_decref(root);
    if (err)
        err->kind = BD_ERROR_STATE;
    return NULL;
}
