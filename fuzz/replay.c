/* replay FILE|FOLDER...: give every file to the entry point this is linked with, without a fuzzer.
 */
#include "fuzz.h"

#include "base/file.h"

static bool replay_file(const char *path, bd_error *err)
{
    size_t size;
    char *text = bd_file_read_text(path, (size_t)1 << 26, &size, err);
    if (!text)
        return false;
    // A copy of the exact size, so that a sanitizer sees a read behind the end.
    uint8_t *bytes = malloc(size ? size : 1);
    fuzz_promise(bytes);
    for (size_t i = 0; i < size; i++)
        bytes[i] = (uint8_t)text[i];
    LLVMFuzzerTestOneInput(bytes, size);
    free(bytes);
    free(text);
    return true;
}

static bool replay_folder(const char *folder, int *files, bd_error *err)
{
    char **names, path[BD_PATH];
    int64_t count = bd_folder_list(folder, &names, err);
    bool ok = count >= 0;
    for (int64_t i = 0; i < count; i++) {
        ok = ok && bd_path_join(path, folder, names[i], err) && replay_file(path, err);
        *files += ok;
        free(names[i]);
    }
    if (count >= 0)
        free(names);
    return ok;
}

int main(int argc, char **argv)
{
    bd_error err = {0};
    int files = 0;
    for (int i = 1; i < argc; i++) {
        bool folder = bd_folder_exists(argv[i]);
        if (!(folder ? replay_folder(argv[i], &files, &err) : replay_file(argv[i], &err))) {
            fprintf(stderr, "%s\n", err.message);
            return 1;
        }
        files += !folder;
    }
    printf("%d files replayed\n", files);
    return 0;
}
