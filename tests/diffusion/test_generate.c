/* Generation: blocks are streamed, stop tokens end it after their block, cached equals plain. */
#include "diffusion/generate.h"
#include "diffusion/golden.h"

static bd_arena *arena;
static bd_model *model; // counts on: 20 21 22 -> 23 24 25 ...

enum { MASK = 96, STOP = 95 };

static const bd_canvas canvas = {BD_SHIFTED, BD_SEED_AND_MASK, 4, MASK};
static const int32_t prompt[6] = {20, 21, 22, 23, 24, 25};

typedef struct {
    int32_t tokens[64];
    int64_t count, calls, cancel_after, transitions;
} stream_log;

static bool log_tokens(void *self, const int32_t *tokens, int64_t count)
{
    stream_log *log = self;
    memcpy(log->tokens + log->count, tokens, (size_t)count * sizeof *tokens);
    log->count += count;
    log->calls++;
    return log->calls != log->cancel_after;
}

static void log_transition(void *self, const bd_transition *transition)
{
    (void)transition;
    ((stream_log *)self)->transitions++;
}

static bd_block_generated generate(const bd_block_generation *options, int32_t *out)
{
    bd_error err = {0};
    bd_block_generated result;
    check_ok(bd_block_generate(model, NULL, prompt, 6, options, out, &result, arena, &err), err);
    return result;
}

static void counts_and_streams(void **state)
{
    (void)state;
    stream_log log = {0};
    bd_block_generation options = bd_block_generation_default(canvas, 9);
    options.stream = log_tokens;
    options.transition = log_transition;
    options.self = &log;
    int32_t out[9];
    bd_block_generated got = generate(&options, out);
    assert_true(got.count == 9 && !got.stopped && !got.cancelled);
    // Most of what the little model says is the count: the prompt's last token plus one and so on.
    int right = 0;
    for (int i = 0; i < 9; i++)
        right += out[i] == 26 + i;
    assert_true(right >= 7);
    // Blocks of positions 6..7, 8..11, 12..14.
    assert_int_equal(log.calls, 3);
    assert_int_equal(log.count, 9);
    check_ints(log.tokens, out, 9);
    assert_int_equal(log.transitions, got.statistics.transitions);
    assert_int_equal(got.statistics.commits, 9);
    assert_true(got.statistics.row_forwards <= got.statistics.transitions + 1);
    assert_true(bd_rollout_mean_confidence(&got.statistics) > .3);

    int32_t plain[9];
    options.plain = true;
    options.stream = NULL;
    options.transition = NULL;
    bd_block_generated reference = generate(&options, plain);
    check_ints(out, plain, 9);
    assert_true(reference.statistics.forward_tokens > got.statistics.forward_tokens);
}

static void stops_after_the_block(void **state)
{
    (void)state;
    int32_t all[16], out[16];
    bd_block_generation options = bd_block_generation_default(canvas, 16);
    generate(&options, all);
    for (int at = 0; at < 16; at++) {
        bool earlier = false;
        for (int i = 0; i < at; i++)
            earlier |= all[i] == all[at];
        if (earlier || all[at] == MASK)
            continue;
        stream_log log = {0};
        options.stop = &all[at];
        options.stop_count = 1;
        options.stream = log_tokens;
        options.self = &log;
        bd_block_generated got = generate(&options, out);
        assert_true(got.stopped && got.count == at + 1);
        check_ints(out, all, at + 1);
        check_ints(log.tokens, all, at + 1);
        assert_int_equal(log.count, at + 1);
        // Nothing beyond the block was generated.
        int64_t block_end = ((6 + at) / 4 + 1) * 4;
        assert_int_equal(got.statistics.commits, (block_end < 22 ? block_end : 22) - 6);
    }
}

static void cancels(void **state)
{
    (void)state;
    int32_t out[16];
    stream_log log = {.cancel_after = 2};
    bd_block_generation options = bd_block_generation_default(canvas, 16);
    options.stream = log_tokens;
    options.self = &log;
    bd_block_generated got = generate(&options, out);
    assert_true(got.cancelled && !got.stopped && got.count == 6 && log.calls == 2);
}

static void samples_by_seed(void **state)
{
    (void)state;
    int32_t a[16], b[16], c[16], greedy[16];
    bd_block_generation options = bd_block_generation_default(canvas, 16);
    generate(&options, greedy);
    options.sample = true;
    options.rollout.temperature = 1.5f;
    options.seed = 1;
    generate(&options, a);
    options.plain = true;
    generate(&options, b);
    check_ints(b, a, 16);
    options.seed = 2;
    generate(&options, c);
    int differ = 0, from_greedy = 0;
    for (int i = 0; i < 16; i++) {
        differ += a[i] != c[i];
        from_greedy += a[i] != greedy[i];
        assert_true(a[i] != MASK && a[i] >= 0 && a[i] < MASK + 1);
    }
    assert_true(differ > 0 && from_greedy > 0);
    options.rollout.top_k = 1;
    generate(&options, c);
    bd_block_generation again = options;
    again.sample = false;
    generate(&again, greedy);
    check_ints(c, greedy, 16);
}

static void caches_may_be_kept(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_block_generated result;
    bd_rollout_caches *caches = bd_rollout_caches_create(model, 1, 40, &err);
    int32_t fresh[12], kept[12];
    bd_block_generation options = bd_block_generation_default(canvas, 12);
    const int32_t other[3] = {60, 61, 62};
    generate(&options, fresh);
    check_ok(bd_block_generate(model, caches, other, 3, &options, kept, &result, arena, &err), err);
    check_ok(bd_block_generate(model, caches, prompt, 6, &options, kept, &result, arena, &err),
             err);
    check_ints(kept, fresh, 12);
    bd_rollout_caches_free(caches);
}

static void refusals(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_block_generated result;
    int32_t out[64];
    const int32_t stops[2] = {STOP, MASK};
    bd_block_generation options = bd_block_generation_default(canvas, 0);
#define GENERATE(count)                                                                            \
    bd_block_generate(model, NULL, prompt, count, &options, out, &result, arena, &err)
    check_refused(GENERATE(6), err, "max_tokens is 0");
    options.max_tokens = 59;
    check_refused(GENERATE(6), err,
                  "a prompt of 6 tokens and 59 new ones, wanted at most the model's 64");
    options.max_tokens = INT64_MAX;
    check_refused(GENERATE(6), err, "positions");
    options.max_tokens = 8;
    check_refused(GENERATE(0), err, "position 0 is completion, wanted a prompt token");
    options.stop = stops;
    options.stop_count = 2;
    check_refused(GENERATE(6), err, "stop_token_ids[1] is the mask token 96");
    options.stop_count = 1;
    options.rollout.canvas.mask_id = 97;
    check_refused(GENERATE(6), err, "mask_id is 97");
#undef GENERATE
}

int main(void)
{
    bd_error err = {0};
    arena = check_arena();
    model = bd_model_open(GOLDEN "models/student_shift", BD_F32, &err);
    if (!model)
        return 1;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_and_streams),
        cmocka_unit_test(stops_after_the_block),
        cmocka_unit_test(cancels),
        cmocka_unit_test(samples_by_seed),
        cmocka_unit_test(caches_may_be_kept),
        cmocka_unit_test(refusals),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    bd_model_close(model);
    bd_arena_destroy(arena);
    return failed;
}
