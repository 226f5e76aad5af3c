/* dataset_stream.h - the bytes of a file, unpacked if it is a gzip file, a piece or a line at a
 * time. */
#ifndef BD_FORMAT_DATASET_STREAM_H
#define BD_FORMAT_DATASET_STREAM_H

#include <stddef.h>

#include "format/tokenizer_text.h"

typedef struct bd_stream bd_stream;

bd_stream *bd_stream_open(const char *path, bd_error *err);
void bd_stream_close(bd_stream *stream);

/* Up to `size` bytes: how many came, 0 at the end, -1 for an error. */
int64_t bd_stream_read(bd_stream *stream, void *out, size_t size, bd_error *err);

/* Append the next line to `line`, its newline included: 1; 0 at the end; -1 for an error, also when
 * the line would be longer than `most` bytes. */
int bd_stream_line(bd_stream *stream, bd_text *line, size_t most, bd_error *err);

#endif
