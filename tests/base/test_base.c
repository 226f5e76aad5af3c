/* Arena, threads, files, hashes, errors. */
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/huge.h"
#include "base/sha256.h"
#include "base/threads.h"
#include "check.h"

static void arena_marks(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    float *a = bd_arena_zeros(arena, 100);
    size_t mark = bd_arena_mark(arena);
    float *b = bd_arena_floats(arena, 7);
    assert_int_equal((uintptr_t)b % 64, 0);
    b[0] = 3;
    bd_arena_release(arena, mark);
    float *c = bd_arena_floats(arena, 7);
    assert_ptr_equal(b, c);
    assert_true(a[99] == 0);
    assert_string_equal(bd_arena_text(arena, "block"), "block");
    assert_true(bd_arena_peak(arena) >= 100 * sizeof(float));
    bd_arena_destroy(arena);
}

typedef struct {
    double *out;
    int64_t calls[4096];
} square_job;

static void square(void *context, int64_t task)
{
    square_job *job = context;
    job->out[task] = (double)task * (double)task;
    __atomic_fetch_add(&job->calls[task], 1, __ATOMIC_RELAXED);
}

static void every_task_once(void **state)
{
    (void)state;
    static square_job job;
    static double out[4096];
    job.out = out;
    for (int threads = 1; threads <= 4; threads++) {
        bd_threads_set(threads);
        assert_int_equal(bd_threads_count(), threads);
        for (int round = 0; round < 300; round++) {
            int64_t count = 1 + (round * 37) % 4096;
            memset(job.calls, 0, sizeof job.calls);
            bd_parallel(count, square, &job);
            for (int64_t i = 0; i < 4096; i++)
                assert_int_equal(job.calls[i], i < count);
        }
        if (threads == 2)
            usleep(20000); // long enough that helpers sleep; the next round must wake them
    }
    bd_threads_set(0);
}

static void nest(void *context, int64_t task)
{
    (void)task;
    bd_parallel(8, square, context);
}

static void nested_regions_run_inside(void **state)
{
    (void)state;
    static square_job job;
    static double out[8];
    job.out = out;
    memset(job.calls, 0, sizeof job.calls);
    bd_threads_set(2);
    bd_parallel(5, nest, &job);
    for (int i = 0; i < 8; i++)
        assert_int_equal(job.calls[i], 5);
}

static void files_are_whole_or_absent(void **state)
{
    (void)state;
    bd_error err = {0};
    char folder[] = "/tmp/bdlm-test-XXXXXX";
    assert_non_null(mkdtemp(folder));
    char path[BD_PATH], nested[BD_PATH];
    check_ok(bd_path_join(path, folder, "file.txt", &err), err);
    bd_writer *writer = bd_writer_open(path, &err);
    assert_non_null(writer);
    bd_writer_print(writer, "block %d\n", 8);
    assert_false(bd_file_exists(path)); // not before commit
    check_ok(bd_writer_commit(writer, &err), err);
    size_t size;
    char *text = bd_file_read_text(path, 100, &size, &err);
    assert_string_equal(text, "block 8\n");
    assert_int_equal(size, 8);
    free(text);
    check_refused(bd_file_read_text(path, 4, NULL, &err) != NULL, err,
                  "8 bytes, at most 4 expected");
    writer = bd_writer_open(path, &err);
    bd_writer_write(writer, "other", 5);
    bd_writer_abandon(writer);
    bd_map map;
    check_ok(bd_map_open(&map, path, &err), err);
    assert_memory_equal(map.data, "block 8\n", 8);
    bd_map_close(&map);
    check_refused(bd_map_open(&map, "/nonexistent/x", &err), err, "/nonexistent/x: cannot open");
    check_refused(bd_map_open(&map, folder, &err), err, "not a regular file");
    check_ok(bd_path_join(nested, folder, "a/b/c", &err), err);
    check_ok(bd_folder_make(nested, &err), err);
    char **names;
    assert_int_equal(bd_folder_list(folder, &names, &err), 2);
    assert_string_equal(names[0], "a");
    free(names[0]);
    free(names[1]);
    free(names);
    check_ok(bd_folder_remove(folder, &err), err);
    assert_false(bd_folder_exists(folder));
}

static void hashes(void **state)
{
    (void)state;
    char text[BD_SHA256_TEXT];
    bd_sha256_bytes("abc", 3, text);
    assert_string_equal(text, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

static void errors_are_one_line(void **state)
{
    (void)state;
    bd_error err = {0};
    assert_false(bd_fail(&err, "name \"%s\"", "a\nb"));
    assert_string_equal(err.message, "name \"a?b\"");
    assert_false(bd_error_wrap(&err, "%s", "config.json"));
    assert_string_equal(err.message, "config.json: name \"a?b\"");
    assert_int_equal(err.kind, BD_ERROR_VALUE);
}

// Small blocks share pages and come back aligned; a chunk is used again once all of its blocks are
// free, and a block larger than a chunk works as well.
static void huge_blocks(void **state)
{
    (void)state;
    enum { BLOCKS = 100 };
    char *block[BLOCKS];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < BLOCKS; i++) {
            block[i] = bd_huge_alloc((size_t)i * 20000);
            assert_non_null(block[i]);
            assert_int_equal((uintptr_t)block[i] % 64, 0);
            memset(block[i], i, (size_t)i * 20000);
        }
        for (int i = 1; i < BLOCKS; i++) {
            assert_int_equal(block[i][0], i);
            assert_int_equal(block[i][(size_t)i * 20000 - 1], i);
        }
        for (int i = 0; i < BLOCKS; i++)
            bd_huge_free(block[(i * 37) % BLOCKS]);
    }
    char *large = bd_huge_alloc((size_t)50 << 20);
    assert_non_null(large);
    large[((size_t)50 << 20) - 1] = 1;
    bd_huge_free(large);
    bd_huge_free(NULL);
    assert_null(bd_huge_alloc(SIZE_MAX));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(arena_marks),
                                       cmocka_unit_test(every_task_once),
                                       cmocka_unit_test(nested_regions_run_inside),
                                       cmocka_unit_test(files_are_whole_or_absent),
                                       cmocka_unit_test(huge_blocks),
                                       cmocka_unit_test(hashes),
                                       cmocka_unit_test(errors_are_one_line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
