#include "train/states_cache.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "base/file.h"
#include "format/json.h"
#include "train/checkpoint.h"

enum { VERSION = 1, MOST_ROWS = INT32_MAX };
#define MANIFEST      "cache.json"
#define FILE_BYTES    ((size_t)64 << 20)
#define MOST_PER_FILE (1 << 24)

/* What cache.json says. */
typedef struct {
    bd_states_layout layout;
    int64_t rows, per_file;
    char data[BD_SHA256_TEXT]; // SHA-256 of the tokens
    bool complete;
} manifest;

static int64_t file_count(const manifest *m)
{
    return (m->rows + m->per_file - 1) / m->per_file;
}

static int64_t rows_of_file(const manifest *m, int64_t file)
{
    int64_t left = m->rows - file * m->per_file;
    return left < m->per_file ? left : m->per_file;
}

static bool file_path(const char *folder, int64_t file, char out[BD_PATH], bd_error *err)
{
    char name[40];
    snprintf(name, sizeof name, "states-%05lld.bin", (long long)file);
    return bd_path_join(out, folder, name, err);
}

// --- cache.json ----------------------------------------------------------------------------------

static bool save_manifest(const char *folder, const manifest *m, bd_error *err)
{
    char path[BD_PATH];
    json_t *root = json_pack("{s:i,s:s,s:b,s:I,s:I,s:s,s:o}", "version", VERSION, "kind",
                             "hidden states", "complete", m->complete, "rows", (json_int_t)m->rows,
                             "rows_per_file", (json_int_t)m->per_file, "data_sha256", m->data,
                             "layout", bd_states_layout_to_json(&m->layout));
    bool ok = root ? bd_path_join(path, folder, MANIFEST, err) && bd_json_save(root, path, err)
                   : bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory for " MANIFEST, folder);
    json_decref(root);
    return ok;
}

static bool parse_manifest(json_t *root, const char *path, manifest *m, bd_error *err)
{
    int64_t version;
    const char *data = NULL;
    json_t *layout = NULL;
    if (!bd_json_int(root, path, "version", VERSION, VERSION, &version, err) ||
        !bd_json_bool(root, path, "complete", &m->complete, err) ||
        !bd_json_int(root, path, "rows", 1, MOST_ROWS, &m->rows, err) ||
        !bd_json_int(root, path, "rows_per_file", 1, MOST_PER_FILE, &m->per_file, err) ||
        !(data = bd_json_text(root, path, "data_sha256", err)) ||
        !(layout = bd_json_object(root, path, "layout", err)) ||
        !bd_states_layout_parse(layout, path, &m->layout, err))
        return false;
    if (strlen(data) != BD_SHA256_TEXT - 1)
        return bd_fail(err, "%s: data_sha256: found %zu digits, %d expected", path, strlen(data),
                       BD_SHA256_TEXT - 1);
    memcpy(m->data, data, BD_SHA256_TEXT);
    return true;
}

static bool load_manifest(const char *folder, manifest *m, bd_error *err)
{
    char path[BD_PATH];
    *m = (manifest){0};
    if (!bd_path_join(path, folder, MANIFEST, err))
        return false;
    json_t *root = bd_json_load(path, err);
    bool ok = root && parse_manifest(root, path, m, err);
    json_decref(root);
    return ok;
}

// --- writing -------------------------------------------------------------------------------------

double bd_states_cache_bytes(const bd_states_cache_about *about)
{
    return (double)bd_states_size(&about->layout) * (double)about->rows;
}

static manifest manifest_of(const bd_states_cache_about *about)
{
    size_t most = about->file_bytes ? about->file_bytes : FILE_BYTES;
    int64_t per_file = (int64_t)(most / bd_states_size(&about->layout));
    manifest m = {.layout = about->layout,
                  .rows = about->rows,
                  .per_file = per_file < 1               ? 1
                              : per_file > MOST_PER_FILE ? MOST_PER_FILE
                                                         : per_file};
    bd_sha256 *hash = bd_sha256_begin();
    size_t count = (size_t)(about->rows * about->layout.length);
    bd_sha256_add(hash, about->tokens, count * sizeof *about->tokens);
    if (about->loss_mask)
        bd_sha256_add(hash, about->loss_mask, count);
    bd_sha256_end(hash, m.data);
    return m;
}

static bool enough_room(const char *folder, double bytes, bd_error *err)
{
    struct statvfs disk;
    if (statvfs(folder, &disk) != 0)
        return true; // nothing known, nothing refused
    double free_bytes = (double)disk.f_bavail * (double)disk.f_frsize;
    return bytes <= free_bytes ||
           bd_fail(err, "%s: the cache takes %.2f GB, the disk has %.2f GB free", folder,
                   bytes / 1e9, free_bytes / 1e9);
}

/* A folder to write into: new, or one that this very cache was begun in. */
static bool begin(const char *folder, const manifest *m, bool resume, bd_error *err)
{
    char path[BD_PATH];
    if (!bd_path_join(path, folder, MANIFEST, err))
        return false;
    if (!bd_folder_exists(folder) || (resume && !bd_file_exists(path)))
        return bd_folder_make(folder, err) && save_manifest(folder, m, err);
    if (!resume)
        return bd_fail(err, "%s: exists already; an unfinished cache goes on with --resume",
                       folder);
    manifest old;
    if (!load_manifest(folder, &old, err) ||
        !bd_states_layout_match(&old.layout, &m->layout, path, err))
        return false;
    if (old.rows != m->rows || strcmp(old.data, m->data) != 0)
        return bd_fail_as(err, BD_ERROR_STATE,
                          "%s: data_sha256: found %lld rows of %.16s..., %lld of %.16s... expected",
                          path, (long long)old.rows, old.data, (long long)m->rows, m->data);
    if (old.per_file != m->per_file)
        return bd_fail_as(err, BD_ERROR_STATE, "%s: rows_per_file: found %lld, %lld expected", path,
                          (long long)old.per_file, (long long)m->per_file);
    return bd_checkpoint_clean(folder, err);
}

static bool is_whole(const char *path, size_t bytes)
{
    bd_map map;
    bd_error ignored = {0};
    if (!bd_file_exists(path) || !bd_map_open(&map, path, &ignored))
        return false;
    bool whole = map.size == bytes;
    bd_map_close(&map);
    return whole;
}

/* One file, all of it or, with *stopped, nothing. */
static bool write_file(const char *path, bd_model *target, const bd_states_cache_about *about,
                       int64_t first, int64_t count, bd_progress *progress,
                       const volatile sig_atomic_t *stop, bool *stopped, bd_arena *arena,
                       bd_error *err)
{
    const bd_states_layout *l = &about->layout;
    size_t size = bd_states_size(l), mark = bd_arena_mark(arena);
    void *record = bd_arena_alloc(arena, size);
    bd_writer *out = bd_writer_open(path, err);
    for (int64_t row = first; out && row < first + count; row++) {
        if ((*stopped = stop && *stop))
            break;
        const uint8_t *mask = about->loss_mask ? about->loss_mask + row * l->length : NULL;
        bd_states_observe(target, l, about->tokens + row * l->length, mask, (uint64_t)row, 0,
                          record, arena);
        bd_writer_write(out, record, size);
        bd_progress_update(progress, row + 1, "%.1f MB", (double)size * (double)(row + 1) / 1e6);
    }
    bd_arena_release(arena, mark);
    if (out && *stopped)
        bd_writer_abandon(out);
    return out && (*stopped || bd_writer_commit(out, err));
}

bool bd_states_cache_write(const char *folder, bd_model *target, const bd_states_cache_about *about,
                           bool resume, bd_progress *progress, const volatile sig_atomic_t *stop,
                           bool *stopped, bd_error *err)
{
    char path[BD_PATH];
    *stopped = false;
    if (about->rows < 1 || about->rows > MOST_ROWS)
        return bd_fail(err, "data: %lld rows of %lld tokens, 1 to %d expected",
                       (long long)about->rows, (long long)about->layout.length, MOST_ROWS);
    manifest m = manifest_of(about);
    if (!begin(folder, &m, resume, err))
        return false;
    size_t size = bd_states_size(&m.layout);
    bd_arena *arena = bd_arena_create(0, err);
    bool ok = arena != NULL, first_made = true;
    for (int64_t file = 0; ok && !*stopped && file < file_count(&m); file++) {
        int64_t first = file * m.per_file, count = rows_of_file(&m, file);
        if (!(ok = file_path(folder, file, path, err)))
            break;
        if (is_whole(path, (size_t)count * size)) {
            bd_progress_resume(progress, first + count);
            continue;
        }
        if (first_made && !(ok = enough_room(folder, (double)size * (double)(m.rows - first), err)))
            break;
        first_made = false;
        ok = write_file(path, target, about, first, count, progress, stop, stopped, arena, err);
    }
    bd_arena_destroy(arena);
    m.complete = true;
    return ok && (*stopped || save_manifest(folder, &m, err));
}

// --- reading -------------------------------------------------------------------------------------

struct bd_states_cache {
    manifest about;
    size_t size; // of a record
    char *folder;
    bd_map *files;
    int64_t opened;
    int32_t *tokens;
};

const bd_states_layout *bd_states_cache_layout(const bd_states_cache *cache)
{
    return &cache->about.layout;
}

int64_t bd_states_cache_rows(const bd_states_cache *cache)
{
    return cache->about.rows;
}

const int32_t *bd_states_cache_tokens(const bd_states_cache *cache)
{
    return cache->tokens;
}

void bd_states_cache_close(bd_states_cache *cache)
{
    if (!cache)
        return;
    for (int64_t i = 0; i < cache->opened; i++)
        bd_map_close(&cache->files[i]);
    free(cache->files);
    free(cache->tokens);
    free(cache->folder);
    free(cache);
}

static const void *at(const bd_states_cache *cache, int64_t row)
{
    int64_t per_file = cache->about.per_file;
    return cache->files[row / per_file].data + (size_t)(row % per_file) * cache->size;
}

static bool map_files(bd_states_cache *cache, bd_error *err)
{
    const manifest *m = &cache->about;
    char path[BD_PATH];
    cache->files = calloc((size_t)file_count(m), sizeof *cache->files);
    if (!cache->files)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory for %lld files", cache->folder,
                          (long long)file_count(m));
    for (int64_t file = 0; file < file_count(m); file++) {
        bd_map *map = &cache->files[file];
        size_t wanted = (size_t)rows_of_file(m, file) * cache->size;
        if (!file_path(cache->folder, file, path, err) || !bd_map_open(map, path, err))
            return false;
        cache->opened = file + 1;
        if (map->size != wanted)
            return bd_fail(err, "%s: found %zu bytes, %zu expected", path, map->size, wanted);
    }
    return true;
}

/* The tokens of all rows: they are few beside the states, and whoever trains wants them together.
 */
static bool gather_tokens(bd_states_cache *cache, bd_error *err)
{
    int64_t length = cache->about.layout.length, rows = cache->about.rows;
    size_t count = (size_t)(rows * length);
    cache->tokens = malloc(count * sizeof *cache->tokens);
    if (!cache->tokens)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory for %zu tokens", cache->folder,
                          count);
    for (int64_t row = 0; row < rows; row++)
        bd_states_take(&cache->about.layout, at(cache, row),
                       &(bd_states_row){.tokens = cache->tokens + row * length});
    return true;
}

bd_states_cache *bd_states_cache_open(const char *folder, bd_error *err)
{
    bd_states_cache *cache = calloc(1, sizeof *cache);
    if (!cache || !(cache->folder = strdup(folder))) {
        bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", folder);
        free(cache);
        return NULL;
    }
    bool ok = load_manifest(folder, &cache->about, err);
    if (ok && !cache->about.complete)
        ok = bd_fail_as(err, BD_ERROR_STATE,
                        "%s/" MANIFEST ": complete: found false, true expected (finish it with "
                        "bdlm draft cache --resume)",
                        folder);
    if (ok) {
        cache->size = bd_states_size(&cache->about.layout);
        if (cache->size > PTRDIFF_MAX / (size_t)cache->about.per_file)
            ok = bd_fail(err,
                         "%s/" MANIFEST ": rows_per_file: %lld records of %zu bytes do not "
                         "fit a file",
                         folder, (long long)cache->about.per_file, cache->size);
    }
    if (ok && map_files(cache, err) && gather_tokens(cache, err))
        return cache;
    bd_states_cache_close(cache);
    return NULL;
}

const void *bd_states_cache_record(const bd_states_cache *cache, int64_t row, bd_error *err)
{
    char path[BD_PATH];
    const void *record = at(cache, row);
    if (file_path(cache->folder, row / cache->about.per_file, path, err) &&
        bd_states_open(&cache->about.layout, record, cache->size, path, (uint64_t)row, 0, err))
        return record;
    return NULL;
}

static bool read_row(void *self, uint64_t key, int64_t row, const bd_states_row *out, bd_error *err)
{
    (void)key;
    const bd_states_cache *cache = self;
    const void *record = bd_states_cache_record(cache, row, err);
    if (record)
        bd_states_take(&cache->about.layout, record, out);
    return record != NULL;
}

bd_states_source bd_states_cache_source(bd_states_cache *cache)
{
    return (bd_states_source){.self = cache,
                              .mode = "offline",
                              .name = cache->folder,
                              .layout = cache->about.layout,
                              .read = read_row};
}
