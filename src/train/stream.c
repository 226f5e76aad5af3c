#include "train/stream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zmq.h>

#include "base/progress.h"
#include "train/wire.h"

enum { QUEUED_RECORDS = 4, QUEUED_REQUESTS = 2, POLL_MS = 100, LINGER_MS = 2000 };
/* A request is repeated this long after its producer left (its queue is then surely gone), or after
 * so long without any record while there are producers. */
static const double after_leaving = 0.2, after_silence = 10, word_of_waiting = 10;

/* A row that was asked for. */
typedef struct {
    uint64_t key;
    int32_t *tokens;
    bool sent, again; // again: it was sent before
    void *record;     // NULL: not here yet
} wanted;

struct bd_states_stream {
    bd_stream_options options;
    bd_states_layout layout;
    bd_wire_address address;
    char *layout_text;
    size_t record_size;
    uint64_t session;
    void *context, *requests, *records;
    bd_wire_watch request_peers, record_peers;
    wanted *list;
    int64_t count, room;
    bd_stream_counts counts;
    double last_record, last_word, repeat_at; // repeat_at 0: nothing to repeat
};

// --- opening and closing -------------------------------------------------------------------------

static void forget(wanted *w)
{
    free(w->tokens);
    free(w->record);
}

/* One END for each producer: pushed messages go round among the peers. */
static void say_end(bd_states_stream *s)
{
    bd_wire_head head = {.magic = "bdreque", .key = BD_WIRE_END, .session = s->session};
    for (int64_t i = 0; i < s->record_peers.peers; i++)
        zmq_send(s->requests, &head, sizeof head, ZMQ_DONTWAIT);
}

void bd_states_stream_close(bd_states_stream *s, bool finished)
{
    if (!s)
        return;
    if (finished && s->requests)
        say_end(s);
    bd_wire_watch_close(&s->request_peers);
    bd_wire_watch_close(&s->record_peers);
    bd_wire_close(s->requests, finished ? LINGER_MS : 0);
    bd_wire_close(s->records, 0);
    if (s->context)
        zmq_ctx_term(s->context);
    for (int64_t i = 0; i < s->count; i++)
        forget(&s->list[i]);
    free(s->list);
    free(s->layout_text);
    free(s);
}

static bool open_sockets(bd_states_stream *s, bd_error *err)
{
    if (!(s->context = zmq_ctx_new()))
        return bd_wire_fail(s->options.address, "cannot start ZeroMQ", err);
    return (s->records = bd_wire_socket(s->context, ZMQ_PULL, s->address.records, true,
                                        QUEUED_RECORDS, err)) &&
           (s->requests = bd_wire_socket(s->context, ZMQ_PUSH, s->address.requests, true,
                                         QUEUED_REQUESTS, err)) &&
           bd_wire_watch_open(s->context, s->records, "records", &s->record_peers, err) &&
           bd_wire_watch_open(s->context, s->requests, "requests", &s->request_peers, err);
}

bd_states_stream *bd_states_stream_open(const bd_states_layout *layout,
                                        const bd_stream_options *options, bd_error *err)
{
    bd_states_stream *s = calloc(1, sizeof *s);
    if (!s) {
        bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", options->address);
        return NULL;
    }
    s->options = *options;
    s->layout = *layout;
    s->record_size = bd_states_size(layout);
    // Told apart from an earlier life of the same run, whose records may still be on their way.
    s->session = (uint64_t)(bd_seconds() * 1e9) ^ (uint64_t)getpid() << 40;
    s->last_record = s->last_word = bd_seconds();
    json_t *root = bd_states_layout_to_json(layout);
    s->layout_text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    if (!s->layout_text)
        bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory", options->address);
    else if (bd_wire_address_parse(options->address, &s->address, err) && open_sockets(s, err))
        return s;
    bd_states_stream_close(s, false);
    return NULL;
}

static void tell(const bd_states_stream *s, const char *line)
{
    if (s->options.tell)
        s->options.tell(s->options.self, line);
}

// --- asking --------------------------------------------------------------------------------------

static wanted *find(bd_states_stream *s, uint64_t key)
{
    for (int64_t i = 0; i < s->count; i++)
        if (s->list[i].key == key)
            return &s->list[i];
    return NULL;
}

/* True: sent. False: no producer has room for it now. */
static bool send_request(bd_states_stream *s, const wanted *w)
{
    bd_wire_head head = {.magic = "bdreque", .key = w->key, .session = s->session};
    size_t tokens = (size_t)s->layout.length * sizeof *w->tokens;
    return zmq_send(s->requests, &head, sizeof head, ZMQ_SNDMORE | ZMQ_DONTWAIT) >= 0 &&
           zmq_send(s->requests, s->layout_text, strlen(s->layout_text), ZMQ_SNDMORE) >= 0 &&
           zmq_send(s->requests, w->tokens, tokens, 0) >= 0;
}

static void send_requests(bd_states_stream *s)
{
    for (int64_t i = 0; i < s->count; i++) {
        wanted *w = &s->list[i];
        if (w->sent)
            continue;
        if (!send_request(s, w))
            return;
        s->counts.asked_again += w->again;
        w->sent = w->again = true;
    }
}

static bool ask(void *self, uint64_t key, const int32_t *tokens, bd_error *err)
{
    bd_states_stream *s = self;
    if (find(s, key))
        return true;
    if (s->count == s->room) {
        int64_t room = s->room ? 2 * s->room : 32;
        wanted *list = realloc(s->list, (size_t)room * sizeof *list);
        if (!list)
            return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory for requests",
                              s->options.address);
        s->list = list;
        s->room = room;
    }
    size_t bytes = (size_t)s->layout.length * sizeof *tokens;
    wanted w = {.key = key, .tokens = malloc(bytes)};
    if (!w.tokens)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory for requests", s->options.address);
    memcpy(w.tokens, tokens, bytes);
    s->list[s->count++] = w;
    send_requests(s);
    return true;
}

static bool has_unsent(const bd_states_stream *s)
{
    for (int64_t i = 0; i < s->count; i++)
        if (!s->list[i].sent)
            return true;
    return false;
}

/* Everything that is not here yet is asked for once more. */
static void repeat(bd_states_stream *s)
{
    for (int64_t i = 0; i < s->count; i++)
        if (!s->list[i].record)
            s->list[i].sent = false;
    s->repeat_at = 0;
}

// --- receiving -----------------------------------------------------------------------------------

/* One message into the list, or away with it. */
static bool keep(bd_states_stream *s, const void *bytes, size_t size, bd_error *err)
{
    uint64_t key, session;
    char line[700];
    bd_error why = {0};
    wanted *w = NULL;
    if (!bd_states_number(&s->layout, bytes, size, &key, &session)) {
        snprintf(line, sizeof line, "%zu bytes that are no record were dropped", size);
        tell(s, line);
        return true;
    }
    if (session == s->session)
        w = find(s, key);
    if (!w || w->record) {
        s->counts.repeated++;
        return true;
    }
    void *copy = malloc(size); // what the message holds need not be aligned
    if (!copy)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "%s: no memory for a record of %zu bytes",
                          s->options.address, size);
    memcpy(copy, bytes, size);
    if (!bd_states_open(&s->layout, copy, size, s->options.address, key, session, &why)) {
        snprintf(line, sizeof line, "%.600s; asked again", why.message);
        tell(s, line);
        free(copy);
        w->sent = false;
        return true;
    }
    w->record = copy;
    s->counts.received++;
    s->last_record = bd_seconds();
    return true;
}

static bool receive(bd_states_stream *s, bd_error *err)
{
    for (;;) {
        zmq_msg_t message;
        zmq_msg_init(&message);
        bool more = zmq_msg_recv(&message, s->records, ZMQ_DONTWAIT) >= 0;
        bool ok = !more || keep(s, zmq_msg_data(&message), zmq_msg_size(&message), err);
        zmq_msg_close(&message);
        if (!more || !ok)
            return ok;
    }
}

static int64_t missing(const bd_states_stream *s)
{
    int64_t count = 0;
    for (int64_t i = 0; i < s->count; i++)
        count += !s->list[i].record && s->list[i].again;
    return count;
}

/* Who came, who left. */
static void watch(bd_states_stream *s)
{
    char line[200];
    bd_wire_event event;
    while ((event = bd_wire_watch_next(&s->record_peers)) != BD_WIRE_QUIET) {
        if (event == BD_WIRE_LEFT)
            s->repeat_at = bd_seconds() + after_leaving;
        else
            s->last_record = bd_seconds(); // it has just begun: silence counts from now
        snprintf(line, sizeof line, "a producer %s, %lld there%s%lld%s",
                 event == BD_WIRE_CAME ? "came" : "is gone", (long long)s->record_peers.peers,
                 event == BD_WIRE_CAME ? "; " : "; what it may have taken with it (",
                 (long long)missing(s),
                 event == BD_WIRE_CAME ? " rows are waited for" : " rows) is asked for again");
        tell(s, line);
    }
    while ((event = bd_wire_watch_next(&s->request_peers)) != BD_WIRE_QUIET)
        if (event == BD_WIRE_LEFT)
            s->repeat_at = bd_seconds() + after_leaving;
}

static bool wait_more(bd_states_stream *s, uint64_t key, bd_error *err)
{
    char line[200];
    double now = bd_seconds(), silence = now - s->last_record;
    if (s->options.stop && *s->options.stop)
        return bd_fail_as(err, BD_ERROR_STOPPED, "%s: stopped while waiting for record %llu",
                          s->options.address, (unsigned long long)key);
    if (s->options.patience > 0 && silence > s->options.patience)
        return bd_fail(err,
                       "%s: no record for %.0f s with %lld producers there (data."
                       "stream_patience %g)",
                       s->options.address, silence, (long long)s->record_peers.peers,
                       s->options.patience);
    if (s->record_peers.peers > 0 && silence > after_silence && s->repeat_at == 0)
        s->repeat_at = now + silence; // less and less often
    if (silence > word_of_waiting && now - s->last_word > word_of_waiting) {
        snprintf(line, sizeof line, "no record for %.0f s; %lld producers there", silence,
                 (long long)s->record_peers.peers);
        tell(s, line);
        s->last_word = now;
    }
    return true;
}

static bool pump(bd_states_stream *s, int wait_ms, bd_error *err)
{
    // Room for a request is waited for only while one is to be sent.
    zmq_pollitem_t items[] = {{.socket = s->records, .events = ZMQ_POLLIN},
                              {.socket = s->record_peers.socket, .events = ZMQ_POLLIN},
                              {.socket = s->request_peers.socket, .events = ZMQ_POLLIN},
                              {.socket = s->requests, .events = ZMQ_POLLOUT}};
    if (zmq_poll(items, has_unsent(s) ? 4 : 3, wait_ms) < 0 && errno != EINTR)
        return bd_wire_fail(s->options.address, "cannot wait", err);
    if (!receive(s, err))
        return false;
    watch(s);
    if (s->repeat_at > 0 && bd_seconds() >= s->repeat_at)
        repeat(s);
    send_requests(s);
    return true;
}

static bool read_row(void *self, uint64_t key, int64_t row, const bd_states_row *out, bd_error *err)
{
    bd_states_stream *s = self;
    wanted *w = find(s, key);
    if (!w)
        return bd_fail(err, "%s: row %lld was not asked for", s->options.address, (long long)row);
    if (!pump(s, 0, err))
        return false;
    while (!(w = find(s, key))->record)
        if (!wait_more(s, key, err) || !pump(s, POLL_MS, err))
            return false;
    bd_states_take(&s->layout, w->record, out);
    forget(w);
    memmove(w, w + 1, (size_t)(&s->list[--s->count] - w) * sizeof *w); // in order: oldest first
    return true;
}

bd_states_source bd_states_stream_source(bd_states_stream *stream)
{
    return (bd_states_source){.self = stream,
                              .mode = "streaming",
                              .name = stream->options.address,
                              .layout = stream->layout,
                              .ahead = stream->options.ahead,
                              .ask = ask,
                              .read = read_row};
}

bd_stream_counts bd_states_stream_count(const bd_states_stream *stream)
{
    bd_stream_counts counts = stream->counts;
    counts.producers = stream->record_peers.peers;
    counts.waiting = stream->count;
    return counts;
}
