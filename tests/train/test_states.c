/* Hidden states kept for training: records, their damage, and the folder of a cache. */
#include "train/states_cache.h"

#include <unistd.h>

#include "base/file.h"
#include "draft/micro.h"
#include "format/json.h"
#include "tensor/rows.h"

enum { L = 12, ROWS = 5 };
static const int64_t taps[2] = {1, 2};
static const bd_dtype dtypes[] = {BD_F64, BD_F32, BD_BF16};

static char folder[64];
static int32_t tokens[ROWS * L];
static bd_model *target;

static int open_target(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model_config config = micro_target_config();
    snprintf(folder, sizeof folder, "/tmp/bdlm-states-%ld", (long)getpid());
    for (int i = 0; i < ROWS * L; i++)
        tokens[i] = (int32_t)(micro_hash(7, i) % 10);
    target = bd_model_create(&config, 1, BD_F32, &err);
    return target ? 0 : -1;
}

static int close_target(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_folder_remove(folder, &err);
    bd_model_close(target);
    return 0;
}

static bd_states_layout layout_of(bd_dtype dtype)
{
    bd_error err = {0};
    bd_states_layout layout;
    check_ok(bd_states_layout_make(target, taps, 2, L, dtype, &layout, &err), err);
    return layout;
}

/* What the record gives back is what the target computes: exactly, or rounded to bf16. */
static void records_hold_what_the_target_says(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_arena *arena = check_arena();
    float *want = bd_arena_floats(arena, L * 16), *final = bd_arena_floats(arena, L * 8);
    float *got = bd_arena_floats(arena, L * 16), *end = bd_arena_floats(arena, L * 8);
    const bd_observation out = {.features = want, .final = final};
    bd_target_observe(target, (int64_t[]){2, 3}, 2, tokens, 1, L, &out, arena);
    for (int d = 0; d < 3; d++) {
        bd_states_layout layout = layout_of(dtypes[d]);
        size_t size = bd_states_size(&layout);
        // head, tokens, mask, padding, states: written out by hand
        assert_int_equal(size, 32 + 4 * L + L + 4 + L * 24 * bd_dtype_size(dtypes[d]));
        void *record = bd_arena_alloc(arena, size);
        const uint8_t mask[L] = {0, 1, 1, 0, 1, 1, 1, 1, 1, 1, 1, 0};
        bd_states_observe(target, &layout, tokens, mask, 7, 3, record, arena);
        check_ok(bd_states_open(&layout, record, size, "x", 7, 3, &err), err);
        int32_t ids[L];
        float loss_mask[L];
        bd_states_take(&layout, record, &(bd_states_row){ids, loss_mask, got, end});
        assert_memory_equal(ids, tokens, sizeof ids);
        for (int i = 0; i < L; i++)
            assert_true(loss_mask[i] == (mask[i] ? 1 : 0));
        for (int i = 0; i < L * 16; i++)
            assert_true(got[i] == (dtypes[d] == BD_BF16 ? bd_bf16_to_f32(bd_bf16_from_f32(want[i]))
                                                        : want[i]));
        if (dtypes[d] != BD_BF16)
            assert_memory_equal(end, final, L * 8 * sizeof(float));
    }
    // From before the final norm, which then gives the same bits.
    bd_states_layout layout = layout_of(BD_F32);
    layout.prenorm = true;
    void *record = bd_arena_alloc(arena, bd_states_size(&layout));
    bd_states_observe(target, &layout, tokens, NULL, 0, 0, record, arena);
    bd_states_take(&layout, record, &(bd_states_row){.final = end});
    assert_memory_not_equal(end, final, L * 8 * sizeof(float));
    bd_rms_norm(end, bd_parameter_values(target->norm), 1e-6f, L, 8, got, NULL);
    assert_memory_equal(got, final, L * 8 * sizeof(float));
    bd_arena_destroy(arena);
}

/* No changed bit, other number or other size gets through. */
static void damage_is_found(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_arena *arena = check_arena();
    bd_states_layout layout = layout_of(BD_BF16);
    size_t size = bd_states_size(&layout);
    uint8_t *record = bd_arena_alloc(arena, size);
    bd_states_observe(target, &layout, tokens, NULL, 7, 3, record, arena);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        record[bit / 8] ^= (uint8_t)(1 << bit % 8);
        assert_false(bd_states_open(&layout, record, size, "x", 7, 3, &err));
        record[bit / 8] ^= (uint8_t)(1 << bit % 8);
    }
    check_ok(bd_states_open(&layout, record, size, "x", 7, 3, &err), err);
    for (size_t n = 0; n < size; n++)
        assert_false(bd_states_open(&layout, record, n, "x", 7, 3, &err));
    check_refused(bd_states_open(&layout, record, size, "x", 8, 3, &err), err, "number 7");
    check_refused(bd_states_open(&layout, record, size, "x", 7, 4, &err), err, "session");
    layout.vocabulary = 5; // well made, for another model
    check_refused(bd_states_open(&layout, record, size, "x", 7, 3, &err), err, "0 to 4 expected");
    bd_arena_destroy(arena);
}

static bool write_cache(bool resume, bd_dtype dtype, int64_t rows, bd_error *err)
{
    bool stopped;
    bd_states_cache_about about = {.layout = layout_of(dtype), .tokens = tokens, .rows = rows};
    about.file_bytes = 2 * bd_states_size(&about.layout) + 1; // two rows a file
    return bd_states_cache_write(folder, target, &about, resume, NULL, NULL, &stopped, err);
}

static void path_of(char path[BD_PATH], const char *name)
{
    snprintf(path, BD_PATH, "%s/%s", folder, name);
}

/* A killed writer leaves whole files; the rest is made, and what is there is not made again. */
static void writing_goes_on(void **state)
{
    (void)state;
    bd_error err = {0};
    char path[BD_PATH], first[BD_PATH], stray[BD_PATH];
    bd_folder_remove(folder, &err);
    check_ok(write_cache(false, BD_F32, ROWS, &err), err);
    check_refused(write_cache(false, BD_F32, ROWS, &err), err, "exists already");
    path_of(path, "cache.json");
    json_t *root = bd_json_load(path, &err);
    json_object_set_new(root, "complete", json_false());
    check_ok(bd_json_save(root, path, &err), err);
    json_decref(root);
    check_refused(bd_states_cache_open(folder, &err) != NULL, err, "complete");
    path_of(path, "states-00001.bin");
    path_of(first, "states-00000.bin");
    path_of(stray, "states-00001.bin.tmp-17");
    check_ok(bd_file_write(first, "marked", 6, &err) &&
                 truncate(first, 2 * (off_t)(96 + L * 96)) == 0,
             err);
    check_ok(bd_file_write(stray, "half", 4, &err), err);
    unlink(path);
    check_refused(write_cache(true, BD_BF16, ROWS, &err), err, "dtype: found F32, BF16 expected");
    check_refused(write_cache(true, BD_F32, ROWS - 1, &err), err, "data_sha256");
    check_ok(write_cache(true, BD_F32, ROWS, &err), err);
    assert_false(bd_file_exists(stray));
    bd_states_cache *cache = bd_states_cache_open(folder, &err);
    check_ok(cache != NULL, err);
    assert_int_equal(bd_states_cache_rows(cache), ROWS);
    check_refused(bd_states_cache_record(cache, 0, &err) != NULL, err, "states-00000.bin");
    for (int64_t row = 2; row < ROWS; row++)
        check_ok(bd_states_cache_record(cache, row, &err) != NULL, err);
    assert_memory_equal(bd_states_cache_tokens(cache) + 2 * L, tokens + 2 * L, 3 * L * 4);
    bd_states_cache_close(cache);
}

/* cache.json with one field of its layout or its own replaced: refused by name. */
static void hostile_manifests(void **state)
{
    (void)state;
    bd_error err = {0};
    char path[BD_PATH];
    bd_folder_remove(folder, &err);
    check_ok(write_cache(false, BD_F32, ROWS, &err), err);
    path_of(path, "cache.json");
    size_t size;
    char *whole = bd_file_read_text(path, 1 << 20, &size, &err);
    const struct {
        const char *field;
        bool inside;
        const char *value;
    } cases[] = {{"rows", false, "2147483647"},
                 {"rows", false, "-1"},
                 {"rows", false, "6"},
                 {"rows_per_file", false, "0"},
                 {"rows_per_file", false, "16777216"},
                 {"version", false, "2"},
                 {"data_sha256", false, "\"\""},
                 {"layout", false, "[]"},
                 {"target", true, "\"../../etc\""},
                 {"dtype", true, "\"I32\""},
                 {"compute", true, "\"F64\""},
                 {"target_layer_ids", true, "[]"},
                 {"target_layer_ids", true, "[-9]"},
                 {"target_layer_ids", true, "[\"1\"]"},
                 {"sequence_length", true, "9223372036854775807"},
                 {"sequence_length", true, "16777216"},
                 {"hidden_size", true, "16777216"},
                 {"vocab_size", true, "0"},
                 {"final_states", true, "1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        json_t *root = bd_json_parse(whole, size, "x", &err);
        json_t *home = cases[i].inside ? json_object_get(root, "layout") : root;
        assert_non_null(json_object_get(home, cases[i].field));
        json_object_set_new(home, cases[i].field,
                            json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        check_ok(bd_json_save(root, path, &err), err);
        json_decref(root);
        err = (bd_error){0};
        bd_states_cache *cache = bd_states_cache_open(folder, &err);
        if (cache || !strstr(err.message, folder))
            fail_msg("%s = %s: \"%s\"", cases[i].field, cases[i].value, err.message);
    }
    for (size_t n = 0; n + 2 < size; n += 7) { // cut short
        check_ok(bd_file_write(path, whole, n, &err), err);
        assert_null(bd_states_cache_open(folder, &err));
    }
    free(whole);
}

/* Field report 20: what it takes is known before it starts, and counts tapped layers alone. */
static void the_size_is_known(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_states_cache_about about = {.layout = layout_of(BD_BF16), .tokens = tokens, .rows = ROWS};
    assert_true(bd_states_cache_bytes(&about) == ROWS * (96 + L * 24 * 2));
    about.layout.final = false;
    assert_true(bd_states_cache_bytes(&about) == ROWS * (96 + L * 16 * 2));
    about.rows = 0;
    bool stopped;
    check_refused(bd_states_cache_write(folder, target, &about, false, NULL, NULL, &stopped, &err),
                  err, "0 rows");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_hold_what_the_target_says),
        cmocka_unit_test(damage_is_found),
        cmocka_unit_test(writing_goes_on),
        cmocka_unit_test(hostile_manifests),
        cmocka_unit_test(the_size_is_known),
    };
    return cmocka_run_group_tests(tests, open_target, close_target);
}
