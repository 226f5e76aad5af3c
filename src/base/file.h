/* file.h - reading by mapping, writing all or nothing.
 *
 * A file is written under a temporary name in the same folder, synced, and renamed: whoever looks
 * sees the old file or the whole new one.
 *
 *     bd_map map;
 *     if (!bd_map_open(&map, path, &err)) return false;      // map.data, map.size
 *     bd_map_close(&map);
 *
 *     bd_writer *w = bd_writer_open(path, &err);
 *     bd_writer_write(w, bytes, size);                       // errors are remembered ...
 *     if (!bd_writer_commit(w, &err)) return false;          // ... and told here; w is gone
 */
#ifndef BD_BASE_FILE_H
#define BD_BASE_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"

typedef struct {
    const uint8_t *data; /* NULL only when size is 0 */
    size_t size;
} bd_map;

bool bd_map_open(bd_map *map, const char *path, bd_error *err);
void bd_map_close(bd_map *map);

/* The whole file as text with a final NUL (not counted in *size); free() it. At most `limit` bytes. */
char *bd_file_read_text(const char *path, size_t limit, size_t *size, bd_error *err);

typedef struct bd_writer bd_writer;
bd_writer *bd_writer_open(const char *path, bd_error *err);
void bd_writer_write(bd_writer *writer, const void *bytes, size_t size);
void bd_writer_print(bd_writer *writer, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
bool bd_writer_commit(bd_writer *writer, bd_error *err);
void bd_writer_abandon(bd_writer *writer); /* the temporary file is removed */

bool bd_file_write(const char *path, const void *bytes, size_t size, bd_error *err);

bool bd_file_exists(const char *path);
bool bd_folder_exists(const char *path);
bool bd_folder_make(const char *path, bd_error *err); /* with its parents; no error if it exists */
bool bd_folder_remove(const char *path, bd_error *err); /* and everything in it */
bool bd_folder_sync(const char *path, bd_error *err);

/* Rename a finished folder into place (replacing one of that name) and sync the parent. */
bool bd_folder_publish(const char *temporary, const char *path, bd_error *err);

/* Names in a folder, sorted, "." and ".." left out. free() each and the list; count < 0: error. */
int64_t bd_folder_list(const char *path, char ***names, bd_error *err);

/* "folder/name" in a static-size buffer; fails when it does not fit. */
enum { BD_PATH = 4096 };
bool bd_path_join(char out[BD_PATH], const char *folder, const char *name, bd_error *err);

#endif
