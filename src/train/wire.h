/* wire.h - what trainers and producers of hidden states say to each other over ZeroMQ.
 *
 * One address names two sockets of a trainer: records come in at the address itself, requests go
 * out at its neighbour (the next port, or the path with ".requests"). A request is three frames: a
 * head, the layout as JSON, the tokens i32[L]. A record is one frame (states.h). Used by stream.c
 * and producer.c.
 */
#ifndef BD_TRAIN_WIRE_H
#define BD_TRAIN_WIRE_H

#include "base/file.h"
#include "train/states.h"

enum { BD_WIRE_TEXT = 8192 }; /* bytes of a layout, at most */

typedef struct {
    char magic[8];
    uint64_t key, session;
} bd_wire_head;

/* As key: nothing more will be asked. */
#define BD_WIRE_END UINT64_MAX

typedef struct {
    char records[BD_PATH], requests[BD_PATH];
} bd_wire_address;

/* "tcp://HOST:PORT" or "ipc://PATH". */
bool bd_wire_address_parse(const char *text, bd_wire_address *out, bd_error *err);

/* A socket of `type` (ZMQ_PUSH, ZMQ_PULL) that queues at most `most` messages, bound or connected,
 * with heartbeats so that a peer that vanished is noticed. */
void *bd_wire_socket(void *context, int type, const char *address, bool bind, int most,
                     bd_error *err);
void bd_wire_close(void *socket, int linger_ms); /* NULL: nothing */

bool bd_wire_fail(const char *address, const char *what, bd_error *err); /* errno in words */

/* The peers of a socket as they come and go. */
typedef struct {
    void *socket;  /* ZMQ_PAIR to poll */
    void *watched; /* not owned; open until the watch is closed */
    int64_t peers;
} bd_wire_watch;
bool bd_wire_watch_open(void *context, void *socket, const char *name, bd_wire_watch *watch,
                        bd_error *err);
void bd_wire_watch_close(bd_wire_watch *watch);

typedef enum { BD_WIRE_QUIET, BD_WIRE_CAME, BD_WIRE_LEFT } bd_wire_event;
bd_wire_event bd_wire_watch_next(bd_wire_watch *watch); /* does not wait */

#endif
