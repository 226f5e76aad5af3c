#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static bool system_error(bd_error *err, const char *path, const char *what)
{
    return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: %s: %s", path, what, strerror(errno));
}

// --- reading ---------------------------------------------------------------------------------------

static int open_regular(const char *path, struct stat *info, bd_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        system_error(err, path, "cannot open");
        return -1;
    }
    if (fstat(fd, info) != 0 || !S_ISREG(info->st_mode)) {
        close(fd);
        bd_fail_as(err, BD_ERROR_SYSTEM, "%s: not a regular file", path);
        return -1;
    }
    return fd;
}

bool bd_map_open(bd_map *map, const char *path, bd_error *err)
{
    struct stat info;
    int fd = open_regular(path, &info, err);
    if (fd < 0)
        return false;
    map->size = (size_t)info.st_size;
    map->data = NULL;
    if (map->size > 0) {
        void *data = mmap(NULL, map->size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (data == MAP_FAILED) {
            system_error(err, path, "cannot map");
            close(fd);
            return false;
        }
        map->data = data;
    }
    close(fd);
    return true;
}

void bd_map_close(bd_map *map)
{
    if (map->data)
        munmap((void *)map->data, map->size);
    *map = (bd_map){0};
}

char *bd_file_read_text(const char *path, size_t limit, size_t *size, bd_error *err)
{
    struct stat info;
    int fd = open_regular(path, &info, err);
    if (fd < 0)
        return NULL;
    char *text = NULL;
    size_t wanted = (size_t)info.st_size, got = 0;
    if (wanted > limit) {
        bd_fail(err, "%s: %zu bytes, at most %zu expected", path, wanted, limit);
    } else if (!(text = malloc(wanted + 1))) {
        bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory for %zu bytes", path, wanted);
    } else {
        while (got < wanted) {
            ssize_t n = read(fd, text + got, wanted - got);
            if (n < 0 && errno == EINTR)
                continue;
            if (n <= 0)
                break;
            got += (size_t)n;
        }
        if (got < wanted) {
            bd_fail_as(err, BD_ERROR_SYSTEM, "%s: read %zu of %zu bytes", path, got, wanted);
            free(text);
            text = NULL;
        } else {
            text[got] = 0;
            if (size)
                *size = got;
        }
    }
    close(fd);
    return text;
}

// --- writing ---------------------------------------------------------------------------------------

struct bd_writer {
    FILE *file;
    char path[BD_PATH];
    char temporary[BD_PATH + 32];
    int failed; // errno of the first failure
};

bd_writer *bd_writer_open(const char *path, bd_error *err)
{
    bd_writer *writer = calloc(1, sizeof *writer);
    if (!writer || strlen(path) >= BD_PATH) {
        free(writer);
        bd_fail_as(err, BD_ERROR_SYSTEM, "%.200s: cannot open for writing", path);
        return NULL;
    }
    strcpy(writer->path, path);
    snprintf(writer->temporary, sizeof writer->temporary, "%s.tmp-%ld", path, (long)getpid());
    writer->file = fopen(writer->temporary, "wb");
    if (!writer->file) {
        system_error(err, path, "cannot write");
        free(writer);
        return NULL;
    }
    return writer;
}

void bd_writer_write(bd_writer *writer, const void *bytes, size_t size)
{
    if (!writer->failed && size && fwrite(bytes, 1, size, writer->file) != size)
        writer->failed = errno ? errno : EIO;
}

void bd_writer_print(bd_writer *writer, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    if (!writer->failed && vfprintf(writer->file, format, list) < 0)
        writer->failed = errno ? errno : EIO;
    va_end(list);
}

static void parent_of(const char *path, char out[BD_PATH])
{
    snprintf(out, BD_PATH, "%s", path);
    char *slash = strrchr(out, '/');
    if (!slash)
        strcpy(out, ".");
    else if (slash == out)
        out[1] = 0;
    else
        *slash = 0;
}

bool bd_writer_commit(bd_writer *writer, bd_error *err)
{
    bool ok = !writer->failed;
    if (ok && (fflush(writer->file) != 0 || fsync(fileno(writer->file)) != 0)) {
        writer->failed = errno;
        ok = false;
    }
    if (fclose(writer->file) != 0 && ok) {
        writer->failed = errno;
        ok = false;
    }
    if (ok && rename(writer->temporary, writer->path) != 0) {
        writer->failed = errno;
        ok = false;
    }
    if (ok) {
        char parent[BD_PATH];
        parent_of(writer->path, parent);
        ok = bd_folder_sync(parent, err);
    } else {
        errno = writer->failed;
        system_error(err, writer->path, "cannot write");
        unlink(writer->temporary);
    }
    free(writer);
    return ok;
}

void bd_writer_abandon(bd_writer *writer)
{
    if (!writer)
        return;
    fclose(writer->file);
    unlink(writer->temporary);
    free(writer);
}

bool bd_file_write(const char *path, const void *bytes, size_t size, bd_error *err)
{
    bd_writer *writer = bd_writer_open(path, err);
    if (!writer)
        return false;
    bd_writer_write(writer, bytes, size);
    return bd_writer_commit(writer, err);
}

// --- folders ---------------------------------------------------------------------------------------

bool bd_file_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

bool bd_folder_exists(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool bd_folder_make(const char *path, bd_error *err)
{
    char partial[BD_PATH];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof partial)
        return bd_fail(err, "folder name of %zu bytes, 1 to %d expected", length, BD_PATH - 1);
    for (size_t i = 1; i <= length; i++) {
        if (path[i] != '/' && path[i] != 0)
            continue;
        memcpy(partial, path, i);
        partial[i] = 0;
        if (mkdir(partial, 0777) != 0 && errno != EEXIST)
            return system_error(err, partial, "cannot make folder");
    }
    if (!bd_folder_exists(path))
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: exists and is not a folder", path);
    return true;
}

static int remove_one(const char *path, const struct stat *info, int kind, struct FTW *walk)
{
    (void)info;
    (void)kind;
    (void)walk;
    return remove(path);
}

bool bd_folder_remove(const char *path, bd_error *err)
{
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0 && errno != ENOENT)
        return system_error(err, path, "cannot remove");
    return true;
}

bool bd_folder_sync(const char *path, bd_error *err)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return system_error(err, path, "cannot open folder");
    // Some file systems refuse to sync a folder; that is not a failure of ours.
    bool ok = fsync(fd) == 0 || errno == EINVAL || errno == EROFS;
    if (!ok)
        system_error(err, path, "cannot sync folder");
    close(fd);
    return ok;
}

bool bd_folder_publish(const char *temporary, const char *path, bd_error *err)
{
    if (!bd_folder_sync(temporary, err))
        return false;
    char old[BD_PATH + 8];
    snprintf(old, sizeof old, "%s.old", path);
    bool replaced = bd_folder_exists(path);
    if (replaced && (!bd_folder_remove(old, err) || rename(path, old) != 0))
        return system_error(err, path, "cannot replace folder");
    if (rename(temporary, path) != 0)
        return system_error(err, path, "cannot rename folder into place");
    char parent[BD_PATH];
    parent_of(path, parent);
    if (!bd_folder_sync(parent, err))
        return false;
    return replaced ? bd_folder_remove(old, err) : true;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

int64_t bd_folder_list(const char *path, char ***names, bd_error *err)
{
    DIR *folder = opendir(path);
    if (!folder) {
        system_error(err, path, "cannot open folder");
        return -1;
    }
    char **list = NULL;
    int64_t count = 0, room = 0;
    for (struct dirent *entry; (entry = readdir(folder));) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, ".."))
            continue;
        if (count == room) {
            room = room ? 2 * room : 16;
            char **larger = realloc(list, (size_t)room * sizeof *list);
            if (!larger)
                break;
            list = larger;
        }
        list[count++] = strdup(entry->d_name);
    }
    closedir(folder);
    if (count > 0)
        qsort(list, (size_t)count, sizeof *list, by_name);
    *names = list;
    return count;
}

bool bd_path_join(char out[BD_PATH], const char *folder, const char *name, bd_error *err)
{
    int n = snprintf(out, BD_PATH, "%s/%s", folder, name);
    if (n < 0 || n >= BD_PATH)
        return bd_fail(err, "path of %d bytes, at most %d expected", n, BD_PATH - 1);
    return true;
}
