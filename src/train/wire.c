#include "train/wire.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

enum { HEARTBEAT_MS = 2000, SILENCE_MS = 20000, RECONNECT_MS = 100, RECONNECT_MOST_MS = 2000 };

bool bd_wire_fail(const char *address, const char *what, bd_error *err)
{
    return bd_fail_as(err, BD_ERROR_SYSTEM, "%.200s: %s: %s", address, what, zmq_strerror(errno));
}

bool bd_wire_address_parse(const char *text, bd_wire_address *out, bd_error *err)
{
    size_t length = strlen(text);
    const char *colon = strrchr(text, ':');
    if (length > BD_PATH - 20)
        return bd_fail(err, "address of %zu bytes, at most %d expected", length, BD_PATH - 20);
    strcpy(out->records, text);
    if (!strncmp(text, "ipc://", 6) && length > 6) {
        snprintf(out->requests, sizeof out->requests, "%.4000s.requests", text);
        return true;
    }
    char *end = NULL;
    long port = !strncmp(text, "tcp://", 6) && colon > text + 6 ? strtol(colon + 1, &end, 10) : 0;
    if (!end || *end || end == colon + 1 || port < 1 || port > 65534)
        return bd_fail(err,
                       "address: found \"%.200s\", tcp://HOST:PORT (1 to 65534; the next port is "
                       "used too) or ipc://PATH expected",
                       text);
    snprintf(out->requests, sizeof out->requests, "%.*s:%ld", (int)(colon - text), text, port + 1);
    return true;
}

static bool set(void *socket, int option, int value)
{
    return zmq_setsockopt(socket, option, &value, sizeof value) == 0;
}

void *bd_wire_socket(void *context, int type, const char *address, bool bind, int most,
                     bd_error *err)
{
    void *socket = zmq_socket(context, type);
    bool ok = socket && set(socket, type == ZMQ_PUSH ? ZMQ_SNDHWM : ZMQ_RCVHWM, most) &&
              set(socket, ZMQ_LINGER, 0) && set(socket, ZMQ_HEARTBEAT_IVL, HEARTBEAT_MS) &&
              set(socket, ZMQ_HEARTBEAT_TIMEOUT, SILENCE_MS) &&
              set(socket, ZMQ_RECONNECT_IVL, RECONNECT_MS) &&
              set(socket, ZMQ_RECONNECT_IVL_MAX, RECONNECT_MOST_MS);
    // Only to who is there: what waits for a peer that may never come back would be lost with it.
    if (ok && type == ZMQ_PUSH)
        ok = set(socket, ZMQ_IMMEDIATE, 1);
    if (!ok)
        bd_wire_fail(address, "cannot make a socket", err);
    else if ((bind ? zmq_bind(socket, address) : zmq_connect(socket, address)) != 0)
        ok = bd_wire_fail(address, bind ? "cannot listen" : "cannot connect", err);
    if (ok)
        return socket;
    bd_wire_close(socket, 0);
    return NULL;
}

void bd_wire_close(void *socket, int linger_ms)
{
    if (!socket)
        return;
    set(socket, ZMQ_LINGER, linger_ms);
    zmq_close(socket);
}

// --- peers ---------------------------------------------------------------------------------------

bool bd_wire_watch_open(void *context, void *socket, const char *name, bd_wire_watch *watch,
                        bd_error *err)
{
    char address[80];
    snprintf(address, sizeof address, "inproc://%.60s", name);
    *watch = (bd_wire_watch){.watched = socket};
    if (zmq_socket_monitor(socket, address,
                           ZMQ_EVENT_HANDSHAKE_SUCCEEDED | ZMQ_EVENT_DISCONNECTED) != 0 ||
        !(watch->socket = zmq_socket(context, ZMQ_PAIR)) ||
        zmq_connect(watch->socket, address) != 0)
        return bd_wire_fail(name, "cannot watch a socket", err);
    return true;
}

void bd_wire_watch_close(bd_wire_watch *watch)
{
    if (watch->socket) {
        // No more events, and those that are there taken: the library forgets to free what a closed
        // watch leaves behind.
        char rest[256];
        zmq_socket_monitor(watch->watched, NULL, 0);
        while (zmq_recv(watch->socket, rest, sizeof rest, ZMQ_DONTWAIT) >= 0)
            continue;
    }
    bd_wire_close(watch->socket, 0);
    *watch = (bd_wire_watch){0};
}

bd_wire_event bd_wire_watch_next(bd_wire_watch *watch)
{
    struct {
        uint16_t event;
        uint32_t value;
    } __attribute__((packed)) event;
    char address[256];
    if (zmq_recv(watch->socket, &event, sizeof event, ZMQ_DONTWAIT) != (int)sizeof event)
        return BD_WIRE_QUIET;
    zmq_recv(watch->socket, address, sizeof address, ZMQ_DONTWAIT); // its second frame
    if (event.event == ZMQ_EVENT_HANDSHAKE_SUCCEEDED) {
        watch->peers++;
        return BD_WIRE_CAME;
    }
    if (watch->peers == 0) // it never got as far as a handshake
        return bd_wire_watch_next(watch);
    watch->peers--;
    return BD_WIRE_LEFT;
}
