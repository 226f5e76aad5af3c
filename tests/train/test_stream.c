/* A stream of hidden states: its two ends against each other, and each against bytes that nobody
 * should send. */
#include "train/stream.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include <zmq.h>

#include "base/threads.h"
#include "draft/micro.h"
#include "train/producer.h"
#include "train/wire.h"

enum { L = 12, ROWS = 10 };
static bd_model *target;
static bd_states_layout layout;
static int32_t tokens[ROWS * L];
static char address[80];

static int open_target(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model_config config = micro_target_config();
    bd_threads_set(1); // before a fork there must be no other threads
    for (int i = 0; i < ROWS * L; i++)
        tokens[i] = (int32_t)(micro_hash(7, i) % 10);
    snprintf(address, sizeof address, "ipc:///tmp/bdlm-stream-%ld", (long)getpid());
    target = bd_model_create(&config, 1, BD_F32, &err);
    return target && bd_states_layout_make(target, (int64_t[]){1, 2}, 2, L, BD_F32, &layout, &err)
               ? 0
               : -1;
}

static int close_target(void **state)
{
    (void)state;
    bd_wire_address a;
    bd_error err = {0};
    bd_model_close(target);
    if (bd_wire_address_parse(address, &a, &err)) {
        unlink(a.records + 6);
        unlink(a.requests + 6);
    }
    return 0;
}

/* A producer in a process of its own; its exit status is the number of records, 100 an error. */
static pid_t start_producer(void)
{
    pid_t child = fork();
    if (child)
        return child;
    bd_error err = {0};
    bd_producer_report report;
    bd_producer_options options = {.addresses = {address}, .count = 1, .patience = 20};
    _exit(bd_producer_run(target, &options, &report, &err) ? (int)report.records : 100);
}

static int result_of(pid_t child)
{
    int status;
    waitpid(child, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 200;
}

static bd_states_stream *open_stream(void)
{
    bd_error err = {0};
    bd_stream_options options = {.address = address, .ahead = 4, .patience = 20};
    bd_states_stream *stream = bd_states_stream_open(&layout, &options, &err);
    check_ok(stream != NULL, err);
    return stream;
}

/* A row as it is computed here. */
static void check_row(const bd_states_source *source, uint64_t key, int64_t row)
{
    bd_error err = {0};
    bd_arena *arena = check_arena();
    float *got = bd_arena_floats(arena, L * 16), *want = bd_arena_floats(arena, L * 16);
    const bd_observation out = {.features = want};
    bd_target_observe(target, (int64_t[]){2, 3}, 2, tokens + row * L, 1, L, &out, arena);
    int32_t ids[L];
    check_ok(source->read(source->self, key, row, &(bd_states_row){.tokens = ids, .features = got},
                          &err),
             err);
    assert_memory_equal(ids, tokens + row * L, sizeof ids);
    assert_memory_equal(got, want, L * 16 * sizeof(float));
    bd_arena_destroy(arena);
}

static void every_row_comes_once(void **state)
{
    (void)state;
    bd_error err = {0};
    pid_t child = start_producer();
    bd_states_stream *stream = open_stream();
    bd_states_source source = bd_states_stream_source(stream);
    for (int row = 0; row < ROWS; row++)
        for (int twice = 0; twice < 2; twice++)
            check_ok(source.ask(source.self, (uint64_t)(100 + row), tokens + row * L, &err), err);
    for (int i = 0; i < ROWS; i++) // in another order than asked
        check_row(&source, (uint64_t)(100 + i * 3 % ROWS), i * 3 % ROWS);
    check_refused(source.read(source.self, 100, 0, &(bd_states_row){0}, &err), err, "not asked");
    bd_stream_counts counts = bd_states_stream_count(stream);
    assert_int_equal(counts.received, ROWS);
    assert_int_equal(counts.repeated, 0);
    assert_int_equal(counts.waiting, 0);
    assert_int_equal(counts.producers, 1);
    bd_states_stream_close(stream, true);
    assert_int_equal(result_of(child), ROWS);
}

/* Who reads one row of what was asked for keeps the producer from making more than was asked for.
 */
static void a_slow_trainer_slows_its_producer(void **state)
{
    (void)state;
    bd_error err = {0};
    pid_t child = start_producer();
    bd_states_stream *stream = open_stream();
    bd_states_source source = bd_states_stream_source(stream);
    for (int row = 0; row < 3; row++)
        check_ok(source.ask(source.self, (uint64_t)row, tokens + row * L, &err), err);
    check_row(&source, 0, 0);
    usleep(200000);
    check_row(&source, 2, 2);
    bd_states_stream_close(stream, true);
    assert_int_equal(result_of(child), 3);
}

/* A killed producer takes requests with it; the next one gets them. */
static void a_killed_producer_is_replaced(void **state)
{
    (void)state;
    bd_error err = {0};
    pid_t first = start_producer();
    bd_states_stream *stream = open_stream();
    bd_states_source source = bd_states_stream_source(stream);
    check_ok(source.ask(source.self, 0, tokens, &err), err);
    check_row(&source, 0, 0);
    kill(first, SIGSTOP); // it gets requests, and will not answer them
    for (int row = 1; row < ROWS; row++)
        check_ok(source.ask(source.self, (uint64_t)row, tokens + row * L, &err), err);
    usleep(50000);
    kill(first, SIGKILL);
    waitpid(first, NULL, 0);
    pid_t second = start_producer();
    for (int row = 1; row < ROWS; row++)
        check_row(&source, (uint64_t)row, row);
    bd_stream_counts counts = bd_states_stream_count(stream);
    assert_int_equal(counts.received, ROWS);
    assert_true(counts.asked_again > 0);
    bd_states_stream_close(stream, true);
    assert_true(result_of(second) >= ROWS - 1);
}

// --- bytes that nobody should send ---------------------------------------------------------------

static void *raw(void *context, int type, const char *where, bool bind)
{
    bd_error err = {0};
    void *socket = bd_wire_socket(context, type, where, bind, 100, &err);
    check_ok(socket != NULL, err);
    zmq_setsockopt(socket, ZMQ_LINGER, &(int){1000}, sizeof(int));
    zmq_setsockopt(socket, ZMQ_RCVTIMEO, &(int){10000}, sizeof(int));
    zmq_setsockopt(socket, ZMQ_SNDTIMEO, &(int){10000}, sizeof(int));
    return socket;
}

static void send_all(void *socket, const void *bytes, size_t size, int flags)
{
    assert_int_equal(zmq_send(socket, bytes, size, flags), (int)size);
}

/* A false producer answers with everything but the record, then with the record, twice. */
static void a_trainer_survives_false_producers(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_wire_address a;
    bd_wire_head head;
    char ignored[BD_WIRE_TEXT];
    check_ok(bd_wire_address_parse(address, &a, &err), err);
    bd_arena *arena = check_arena();
    bd_states_stream *stream = open_stream();
    bd_states_source source = bd_states_stream_source(stream);
    void *context = zmq_ctx_new();
    void *requests = raw(context, ZMQ_PULL, a.requests, false);
    void *records = raw(context, ZMQ_PUSH, a.records, false);
    usleep(100000); // connected
    check_ok(source.ask(source.self, 5, tokens, &err), err);
    check_ok(source.ask(source.self, 6, tokens + L, &err), err);
    assert_int_equal(zmq_recv(requests, &head, sizeof head, 0), (int)sizeof head);
    assert_int_equal(head.key, 5);
    zmq_recv(requests, ignored, sizeof ignored, 0);
    assert_int_equal(zmq_recv(requests, ignored, sizeof ignored, 0), L * 4);
    assert_memory_equal(ignored, tokens, L * 4);

    size_t size = bd_states_size(&layout);
    uint8_t *record = bd_arena_alloc(arena, size);
    send_all(records, "", 0, 0);
    send_all(records, "bdstate1", 8, 0);
    memset(record, 0xff, size);
    send_all(records, record, size, 0);
    bd_states_observe(target, &layout, tokens, NULL, 5, head.session + 1, record, arena);
    send_all(records, record, size, 0); // of another session
    bd_states_observe(target, &layout, tokens, NULL, 9, head.session, record, arena);
    send_all(records, record, size, 0); // never asked for
    bd_states_observe(target, &layout, tokens, NULL, 5, head.session, record, arena);
    send_all(records, record, size - 1, 0);
    record[size - 3] ^= 1;
    send_all(records, record, size, 0); // damaged
    record[size - 3] ^= 1;
    send_all(records, record, size, 0);
    send_all(records, record, size, 0);
    bd_states_observe(target, &layout, tokens + L, NULL, 6, head.session, record, arena);
    send_all(records, record, size, 0);
    check_row(&source, 5, 0);
    check_row(&source, 6, 1);
    bd_stream_counts counts = bd_states_stream_count(stream);
    assert_int_equal(counts.received, 2);
    assert_int_equal(counts.repeated, 3); // of another session, never asked for, twice
    zmq_close(requests);
    zmq_close(records);
    zmq_ctx_term(context);
    bd_states_stream_close(stream, false);
    bd_arena_destroy(arena);
}

static void ask_raw(void *requests, uint64_t key, const char *text, const void *ids, size_t size)
{
    bd_wire_head head = {.magic = "bdreque", .key = key, .session = 17};
    send_all(requests, &head, sizeof head, ZMQ_SNDMORE);
    send_all(requests, text, strlen(text), ZMQ_SNDMORE);
    send_all(requests, ids, size, 0);
}

/* A false trainer sends nonsense; the producer answers what makes sense in between, and ends with
 * an error when states of another target are wanted. */
static void a_producer_survives_false_trainers(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_wire_address a;
    check_ok(bd_wire_address_parse(address, &a, &err), err);
    pid_t child = start_producer();
    bd_arena *arena = check_arena();
    void *context = zmq_ctx_new();
    void *requests = raw(context, ZMQ_PUSH, a.requests, true);
    void *records = raw(context, ZMQ_PULL, a.records, true);
    json_t *root = bd_states_layout_to_json(&layout);
    char *text = json_dumps(root, JSON_COMPACT);
    char *long_text = bd_arena_alloc(arena, BD_WIRE_TEXT + 10);
    memset(long_text, ' ', BD_WIRE_TEXT + 9);
    long_text[BD_WIRE_TEXT + 9] = 0;
    int32_t foreign[L] = {11};
    send_all(requests, "", 0, 0);
    send_all(requests, "bdreque", 8, 0);
    ask_raw(requests, 1, "{", tokens, L * 4);
    ask_raw(requests, 2, long_text, tokens, L * 4);
    ask_raw(requests, 3, text, tokens, L * 4 - 4);
    ask_raw(requests, 4, text, foreign, sizeof foreign);
    ask_raw(requests, 5, text, tokens, sizeof tokens);
    for (int i = 0; i < 6; i++) // more frames than a request has
        send_all(requests, text, strlen(text), i < 5 ? ZMQ_SNDMORE : 0);
    ask_raw(requests, 6, text, tokens, L * 4);
    size_t size = bd_states_size(&layout);
    void *record = bd_arena_alloc(arena, size);
    assert_int_equal(zmq_recv(records, record, size, 0), (int)size);
    check_ok(bd_states_open(&layout, record, size, "x", 6, 17, &err), err);
    json_object_set_new(root, "compute", json_string("BF16"));
    char *other = json_dumps(root, JSON_COMPACT);
    ask_raw(requests, 7, other, tokens, L * 4);
    assert_int_equal(result_of(child), 100);
    free(text);
    free(other);
    json_decref(root);
    zmq_close(requests);
    zmq_close(records);
    zmq_ctx_term(context);
    bd_arena_destroy(arena);
}

static void addresses(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_wire_address a;
    check_ok(bd_wire_address_parse("tcp://127.0.0.1:5600", &a, &err), err);
    assert_string_equal(a.requests, "tcp://127.0.0.1:5601");
    check_ok(bd_wire_address_parse("ipc:///tmp/x", &a, &err), err);
    assert_string_equal(a.requests, "ipc:///tmp/x.requests");
    static const char *const bad[] = {"",          "tcp://",      "tcp://x",       "tcp://x:",
                                      "ipc://",    "tcp://x:0",   "tcp://x:65535", "tcp://x:1y",
                                      "udp://x:1", "tcp://:5600", "127.0.0.1:5600"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        check_refused(bd_wire_address_parse(bad[i], &a, &err), err, "expected");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_comes_once),
        cmocka_unit_test(a_slow_trainer_slows_its_producer),
        cmocka_unit_test(a_killed_producer_is_replaced),
        cmocka_unit_test(a_trainer_survives_false_producers),
        cmocka_unit_test(a_producer_survives_false_trainers),
        cmocka_unit_test(addresses),
    };
    return cmocka_run_group_tests(tests, open_target, close_target);
}
