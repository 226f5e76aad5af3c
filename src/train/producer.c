#include "train/producer.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zmq.h>

#include "base/progress.h"
#include "format/json.h"
#include "train/wire.h"

enum {
    QUEUED_RECORDS = 2,
    QUEUED_REQUESTS = 1,
    POLL_MS = 100,
    LINGER_MS = 2000,
    COMING_SECONDS = 5
};

/* One trainer. */
typedef struct {
    const char *name;
    bd_wire_address address;
    void *requests, *records;
    bd_wire_watch watch;
    bool done; // it said so
    char text[BD_WIRE_TEXT];
    bd_states_layout layout; // of `text`: parsed once, trainers ask for the same all along
} trainer_link;

typedef struct {
    bd_model *target;
    const bd_producer_options *options;
    bd_producer_report *report;
    char fingerprint[BD_SHA256_TEXT];
    void *context;
    trainer_link links[BD_MOST_TRAINERS];
    bd_arena *arena;
    double last_request;
} producer;

static void tell(const producer *p, const trainer_link *from, const char *what)
{
    char line[400];
    snprintf(line, sizeof line, "%.200s: %s", from->name, what);
    if (p->options->tell)
        p->options->tell(p->options->self, line);
}

static bool stopping(const producer *p)
{
    return p->options->stop && *p->options->stop;
}

// --- a request -----------------------------------------------------------------------------------

typedef struct {
    bd_wire_head head;
    int32_t *tokens; // in the arena
} request;

static bool parse_layout(const trainer_link *from, const char *text, size_t size,
                         bd_states_layout *out)
{
    bd_error ignored = {0};
    json_t *root = bd_json_parse(text, size, from->name, &ignored);
    bool ok = root && bd_states_layout_parse(root, from->name, out, &ignored);
    json_decref(root);
    return ok;
}

/* Is this something that this target can answer as it is wanted? */
static bool accept_layout(const producer *p, const trainer_link *from,
                          const bd_states_layout *wanted, bd_error *err)
{
    const bd_states_layout l = *wanted;
    bd_states_layout own = l;
    memcpy(own.target, p->fingerprint, sizeof own.target);
    own.compute = p->target->compute;
    own.vocabulary = p->target->config.vocabulary;
    own.hidden = p->target->config.hidden;
    if (!bd_states_layout_match(&own, &l, "the target here", err))
        return bd_error_wrap(err, "%.200s wants other states", from->name);
    if (l.length > p->target->config.max_positions)
        return bd_fail(err,
                       "%.200s: sequence_length: found %lld, at most the target's %lld "
                       "positions expected",
                       from->name, (long long)l.length, (long long)p->target->config.max_positions);
    for (int64_t i = 0; i < l.tap_count; i++)
        if (l.taps[i] >= p->target->config.layers)
            return bd_fail(err, "%.200s: target_layer_ids: found %lld, -1 to %lld expected",
                           from->name, (long long)l.taps[i],
                           (long long)p->target->config.layers - 1);
    return true;
}

/* The frames of one message into buffers of these sizes. How many bytes each had; -1: no frame. */
static int receive_frames(void *socket, void *const buffers[3], const size_t room[3], int sizes[3])
{
    int count = 0, more = 1;
    size_t length = sizeof more;
    for (; more; count++) {
        char rest[8];
        void *into = count < 3 ? buffers[count] : rest;
        int got =
            zmq_recv(socket, into, count < 3 ? room[count] : sizeof rest, count ? 0 : ZMQ_DONTWAIT);
        if (got < 0)
            return count;
        if (count < 3)
            sizes[count] = got;
        if (zmq_getsockopt(socket, ZMQ_RCVMORE, &more, &length) != 0)
            return count;
    }
    return count;
}

/* 1: a request; 0: none, or bytes that are none; -1: error. */
static int next_request(producer *p, trainer_link *from, request *out, bd_error *err)
{
    char text[BD_WIRE_TEXT];
    size_t most = (size_t)p->target->config.max_positions * sizeof(int32_t);
    out->tokens = bd_arena_alloc(p->arena, most);
    int sizes[3] = {0};
    int frames = receive_frames(from->requests, (void *[]){&out->head, text, out->tokens},
                                (size_t[]){sizeof out->head, sizeof text, most}, sizes);
    if (frames < 1)
        return 0;
    p->last_request = bd_seconds();
    bool known = sizes[0] == sizeof out->head && !memcmp(out->head.magic, "bdreque", 8);
    if (known && out->head.key == BD_WIRE_END) {
        from->done = true;
        tell(p, from, "the trainer is done");
        return 0;
    }
    bd_states_layout layout = from->layout;
    known = known && frames == 3 && sizes[1] < (int)sizeof text;
    size_t size = (size_t)sizes[1];
    bool news = known && (strlen(from->text) != size || memcmp(text, from->text, size) != 0);
    if (!known || (news && !parse_layout(from, text, size, &layout))) {
        tell(p, from, "a message that is no request was dropped");
        return 0;
    }
    if (news) {
        if (!accept_layout(p, from, &layout, err))
            return -1;
        memcpy(from->text, text, size);
        from->text[size] = 0;
        from->layout = layout;
    }
    bool fits = sizes[2] == (int)((size_t)from->layout.length * sizeof(int32_t));
    for (int64_t i = 0; fits && i < from->layout.length; i++)
        fits = out->tokens[i] >= 0 && out->tokens[i] < from->layout.vocabulary;
    if (!fits)
        tell(p, from, "a request with tokens that the target does not have was dropped");
    return fits;
}

// --- an answer -----------------------------------------------------------------------------------

static void watch(producer *p)
{
    bd_wire_event event;
    for (int i = 0; i < p->options->count; i++)
        while ((event = bd_wire_watch_next(&p->links[i].watch)) != BD_WIRE_QUIET) {
            bool came = event == BD_WIRE_CAME;
            p->last_request = bd_seconds(); // patience counts from here
            if (came)
                p->links[i].done = false; // a trainer that was resumed, say
            if (came || !p->links[i].done)
                tell(p, &p->links[i],
                     came ? "a trainer is there" : "the trainer is gone; waiting for it");
        }
}

/* False with the record not sent: the trainer went away, or `stop`. The two sockets of a trainer do
 * not come up at the same moment, so that one which is not there yet gets some time. */
static bool send_record(producer *p, trainer_link *to, const void *record, size_t size)
{
    bool there = to->watch.peers > 0;
    double began = bd_seconds();
    while (zmq_send(to->records, record, size, ZMQ_DONTWAIT) < 0) {
        zmq_pollitem_t items[] = {{.socket = to->records, .events = ZMQ_POLLOUT},
                                  {.socket = to->watch.socket, .events = ZMQ_POLLIN}};
        zmq_poll(items, 2, POLL_MS);
        watch(p);
        bool gone = to->watch.peers == 0 && (there || bd_seconds() - began > COMING_SECONDS);
        if (stopping(p) || gone)
            return false;
        there = there || to->watch.peers > 0;
    }
    return true;
}

static bool answer(producer *p, trainer_link *to, const request *r)
{
    const bd_states_layout *l = &to->layout;
    size_t size = bd_states_size(l);
    void *record = bd_arena_alloc(p->arena, size);
    double began = bd_seconds();
    bd_states_observe(p->target, l, r->tokens, NULL, r->head.key, r->head.session, record,
                      p->arena);
    double made = bd_seconds();
    bool sent = send_record(p, to, record, size);
    p->report->working += made - began;
    p->report->sending += bd_seconds() - made;
    p->report->records += sent;
    p->report->tokens += sent ? l->length : 0;
    if (sent && p->options->made)
        p->options->made(p->options->self, p->report->records);
    return sent;
}

// --- the loop ------------------------------------------------------------------------------------

static bool all_done(const producer *p)
{
    for (int i = 0; i < p->options->count; i++)
        if (!p->links[i].done)
            return false;
    return true;
}

static bool serve(producer *p, bd_error *err)
{
    const bd_producer_options *o = p->options;
    zmq_pollitem_t items[2 * BD_MOST_TRAINERS];
    while (!stopping(p) && !all_done(p)) {
        for (int i = 0; i < o->count; i++) {
            items[2 * i] = (zmq_pollitem_t){.socket = p->links[i].requests, .events = ZMQ_POLLIN};
            items[2 * i + 1] =
                (zmq_pollitem_t){.socket = p->links[i].watch.socket, .events = ZMQ_POLLIN};
        }
        if (zmq_poll(items, 2 * o->count, POLL_MS) < 0 && errno != EINTR)
            return bd_wire_fail(o->addresses[0], "cannot wait", err);
        watch(p);
        for (int i = 0; i < o->count && !stopping(p); i++) {
            size_t mark = bd_arena_mark(p->arena);
            request r;
            int got = next_request(p, &p->links[i], &r, err);
            if (got > 0)
                answer(p, &p->links[i], &r);
            bd_arena_release(p->arena, mark);
            if (got < 0)
                return false;
        }
        double silence = bd_seconds() - p->last_request;
        if (o->patience > 0 && silence > o->patience)
            return bd_fail(err, "%.200s: no request for %.0f s", o->addresses[0], silence);
    }
    return true;
}

static bool connect_all(producer *p, bd_error *err)
{
    if (!(p->context = zmq_ctx_new()))
        return bd_wire_fail(p->options->addresses[0], "cannot start ZeroMQ", err);
    for (int i = 0; i < p->options->count; i++) {
        trainer_link *l = &p->links[i];
        char name[32];
        snprintf(name, sizeof name, "trainer-%d", i);
        l->name = p->options->addresses[i];
        if (!bd_wire_address_parse(l->name, &l->address, err) ||
            !(l->records = bd_wire_socket(p->context, ZMQ_PUSH, l->address.records, false,
                                          QUEUED_RECORDS, err)) ||
            !(l->requests = bd_wire_socket(p->context, ZMQ_PULL, l->address.requests, false,
                                           QUEUED_REQUESTS, err)) ||
            !bd_wire_watch_open(p->context, l->records, name, &l->watch, err))
            return false;
    }
    return true;
}

bool bd_producer_run(bd_model *target, const bd_producer_options *options,
                     bd_producer_report *report, bd_error *err)
{
    assert(options->count >= 1 && options->count <= BD_MOST_TRAINERS);
    *report = (bd_producer_report){0};
    producer *p = calloc(1, sizeof *p);
    if (!p)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "producer: no memory");
    *p = (producer){
        .target = target, .options = options, .report = report, .last_request = bd_seconds()};
    bool ok = bd_model_fingerprint(target, p->fingerprint, err) &&
              (p->arena = bd_arena_create(0, err)) && connect_all(p, err) && serve(p, err);
    for (int i = 0; i < options->count; i++) {
        bd_wire_watch_close(&p->links[i].watch);
        bd_wire_close(p->links[i].requests, 0);
        bd_wire_close(p->links[i].records, ok ? LINGER_MS : 0);
    }
    if (p->context)
        zmq_ctx_term(p->context);
    bd_arena_destroy(p->arena);
    free(p);
    return ok;
}
