/* scratch.h - files that a test of the format room writes and reads again, and the fuzz corpora. */
#ifndef BD_TESTS_SCRATCH_H
#define BD_TESTS_SCRATCH_H

#include "check.h"

#include "base/file.h"

static char scratch_folder[64];

static inline int scratch_begin(void **state)
{
    (void)state;
    strcpy(scratch_folder, "/tmp/bdlm-test-XXXXXX");
    return mkdtemp(scratch_folder) ? 0 : -1;
}

static inline int scratch_end(void **state)
{
    (void)state;
    bd_error err = {0};
    return bd_folder_remove(scratch_folder, &err) ? 0 : -1;
}

/* The path of a scratch file; one of four buffers in turn. */
static inline const char *scratch_path(const char *name)
{
    static char paths[4][BD_PATH];
    static int turn;
    char *path = paths[turn++ % 4];
    snprintf(path, BD_PATH, "%s/%s", scratch_folder, name);
    return path;
}

static inline const char *scratch_write(const char *name, const void *bytes, size_t size)
{
    // Not bd_file_write: thousands of truncated files need no syncing.
    const char *path = scratch_path(name);
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    if (size)
        assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
    return path;
}

static inline const char *scratch_write_text(const char *name, const char *text)
{
    return scratch_write(name, text, strlen(text));
}

/* Every file of fuzz/corpus/NAME, and every beginning of the short ones, through an entry point. */
static inline void scratch_replay(const char *name, int (*entry)(const uint8_t *, size_t))
{
    bd_error err = {0};
    char folder[64], path[BD_PATH], **names;
    snprintf(folder, sizeof folder, "fuzz/corpus/%s", name);
    int64_t count = bd_folder_list(folder, &names, &err);
    if (count <= 0)
        fail_msg("%s: no seeds (%s)", folder, err.message);
    for (int64_t i = 0; i < count; i++) {
        size_t size;
        check_ok(bd_path_join(path, folder, names[i], &err), err);
        char *text = bd_file_read_text(path, 1 << 20, &size, &err);
        assert_non_null(text);
        for (size_t cut = size > 1000 ? size : 0; cut <= size; cut++) {
            uint8_t *exact = malloc(cut ? cut : 1); // no byte to spare behind the end
            memcpy(exact, text, cut);
            entry(exact, cut);
            free(exact);
        }
        free(text);
        free(names[i]);
    }
    free(names);
}

#endif
