/* stream.h - a trainer's end of a stream of hidden states.
 *
 * The trainer asks for rows by number, a bounded way ahead, over ZMQ_PUSH; whichever producer is
 * free takes a request, runs the target, and pushes the record to the trainer's ZMQ_PULL. So a slow
 * trainer slows its producers, and any number of them may come and go: what one took with it is
 * asked of the others, what comes twice is dropped by its number. A trainer that is killed asks
 * again from its checkpoint when it is resumed; nothing needs to be remembered outside.
 *
 *     bd_stream_options options = {.address = "tcp://127.0.0.1:5600", .ahead = 16};
 *     bd_states_stream *stream = bd_states_stream_open(&layout, &options, &err);
 *     bd_states_source source = bd_states_stream_source(stream);
 *     ...
 *     bd_states_stream_close(stream, true);       // producers learn that it is over
 */
#ifndef BD_TRAIN_STREAM_H
#define BD_TRAIN_STREAM_H

#include <signal.h>

#include "train/states.h"

typedef struct {
    const char *address; /* of wire.h; lives as long as the stream */
    int64_t ahead;       /* rows asked for before they are needed */
    double patience;     /* seconds without a record that fail a read; 0: wait for ever */
    const volatile sig_atomic_t *stop;          /* non-zero: a read that waits fails; NULL: never */
    void (*tell)(void *self, const char *line); /* who came, who left; NULL: nobody listens */
    void *self;
} bd_stream_options;

typedef struct {
    int64_t received; /* records that were used or wait to be */
    int64_t repeated; /* that came a second time, or for another session, and were dropped */
    int64_t asked_again;
    int64_t producers; /* there now */
    int64_t waiting;   /* asked for and not there, or there and not read */
} bd_stream_counts;

typedef struct bd_states_stream bd_states_stream;

bd_states_stream *bd_states_stream_open(const bd_states_layout *layout,
                                        const bd_stream_options *options, bd_error *err);
void bd_states_stream_close(bd_states_stream *stream, bool finished);

bd_states_source bd_states_stream_source(bd_states_stream *stream);
bd_stream_counts bd_states_stream_count(const bd_states_stream *stream);

#endif
