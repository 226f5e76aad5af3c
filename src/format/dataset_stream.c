#include "format/dataset_stream.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

enum { PIECE = 1 << 16 };

struct bd_stream {
    const char *path;
    gzFile file; // reads plain files as they are
    size_t at, end;
    int64_t line;
    uint8_t piece[PIECE];
};

static bool names_gzip(const char *path)
{
    size_t length = strlen(path);
    return length > 3 && (!strcmp(path + length - 3, ".gz") || !strcmp(path + length - 3, ".dz"));
}

bd_stream *bd_stream_open(const char *path, bd_error *err)
{
    struct stat info;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        bd_fail_as(err, BD_ERROR_SYSTEM, "%s: cannot open: %s", path, strerror(errno));
        return NULL;
    }
    if (fstat(fd, &info) != 0 || S_ISDIR(info.st_mode)) {
        close(fd);
        bd_fail_as(err, BD_ERROR_SYSTEM, "%s: a folder, a file expected", path);
        return NULL;
    }
    bd_stream *stream = calloc(1, sizeof *stream);
    gzFile file = stream ? gzdopen(fd, "rb") : NULL;
    if (!file) {
        close(fd);
        free(stream);
        bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", path);
        return NULL;
    }
    gzbuffer(file, 2 * PIECE);
    stream->path = path;
    stream->file = file;
    if (names_gzip(path) && gzdirect(file)) {
        bd_fail(err, "%s: not gzip data, as its name says", path);
        bd_stream_close(stream);
        return NULL;
    }
    return stream;
}

void bd_stream_close(bd_stream *stream)
{
    if (!stream)
        return;
    gzclose(stream->file);
    free(stream);
}

/* Fill the piece again; 0 at the end, -1 for an error. */
static int refill(bd_stream *stream, bd_error *err)
{
    int got = gzread(stream->file, stream->piece, PIECE);
    int code = Z_OK;
    const char *message = gzerror(stream->file, &code);
    // At the end of a file that was cut short gzread returns what it has, and keeps an error.
    if (got < 0 || (got == 0 && code != Z_OK && code != Z_STREAM_END)) {
        if (code == Z_ERRNO)
            bd_fail_as(err, BD_ERROR_SYSTEM, "%s: cannot read: %s", stream->path, strerror(errno));
        else
            bd_fail(err, "%s: damaged gzip data: %s", stream->path,
                    code == Z_BUF_ERROR ? "it ends too early" : message);
        return -1;
    }
    stream->at = 0;
    stream->end = (size_t)got;
    return got > 0;
}

int64_t bd_stream_read(bd_stream *stream, void *out, size_t size, bd_error *err)
{
    if (stream->at == stream->end) {
        int more = refill(stream, err);
        if (more <= 0)
            return more;
    }
    size_t have = stream->end - stream->at;
    if (have > size)
        have = size;
    memcpy(out, stream->piece + stream->at, have);
    stream->at += have;
    return (int64_t)have;
}

int bd_stream_line(bd_stream *stream, bd_text *line, size_t most, bd_error *err)
{
    size_t before = line->size;
    for (;;) {
        if (stream->at == stream->end) {
            int more = refill(stream, err);
            if (more < 0)
                return -1;
            if (more == 0) {
                stream->line += line->size > before;
                return line->size > before;
            }
        }
        const uint8_t *from = stream->piece + stream->at;
        const uint8_t *newline = memchr(from, '\n', stream->end - stream->at);
        size_t have = newline ? (size_t)(newline - from) + 1 : stream->end - stream->at;
        if (have > most - (line->size - before)) {
            bd_fail(err, "%s:%lld: a line of more than %zu bytes", stream->path,
                    (long long)stream->line + 1, most);
            return -1;
        }
        bd_text_add(line, from, have);
        stream->at += have;
        if (!bd_text_check(line, err))
            return -1;
        if (newline) {
            stream->line++;
            return 1;
        }
    }
}
