// The vital invariant: a token's logits are the same bits however its row is cut into calls.
#include "base/threads.h"
#include "models.h"

enum { LENGTH = 41 };

/* Logits of the whole row, fed in pieces of the sizes given (the last one repeats). */
static void feed(bd_model *model, bd_cache *cache, const int32_t *tokens, int64_t from, int64_t to,
                 const int64_t *pieces, float *logits, bd_arena *arena)
{
    int64_t V = model->config.vocabulary;
    bd_tape tape = bd_tape_begin(arena, model->compute, false);
    for (int64_t at = from; at<to; pieces += pieces[1]> 0) {
        int64_t n = at + pieces[0] <= to ? pieces[0] : to - at;
        size_t mark = bd_arena_mark(arena);
        bd_value *h = bd_model_forward(
            model, &tape,
            &(bd_forward){.tokens = tokens + at, .rows = 1, .length = n, .cache = cache});
        bd_model_logits(model, h->data, n, logits + at * V, arena);
        bd_arena_release(arena, mark);
        at += n;
    }
}

static void check_chunkings(bd_model *model)
{
    static const int64_t chunkings[][6] = {{1}, {8}, {16}, {5, 1, 7}, {LENGTH}, {33, 1, 1, 4}, {2}};
    bd_error err = {0};
    bd_arena *arena = check_arena();
    int64_t V = model->config.vocabulary;
    int32_t tokens[LENGTH];
    random_tokens(tokens, LENGTH, V, 3);
    float *whole = bd_arena_floats(arena, LENGTH * V), *pieces = bd_arena_floats(arena, LENGTH * V);

    // The reference: whole row, no cache, one thread.
    bd_threads_set(1);
    bd_tape tape = bd_tape_begin(arena, model->compute, false);
    bd_value *h = bd_model_forward(model, &tape,
                                   &(bd_forward){.tokens = tokens, .rows = 1, .length = LENGTH});
    bd_model_logits(model, h->data, LENGTH, whole, arena);
    for (int threads = 1; threads <= 2; threads++) {
        bd_threads_set(threads);
        for (size_t i = 0; i < sizeof chunkings / sizeof *chunkings; i++) {
            bd_cache *cache = bd_cache_create(model, LENGTH, &err);
            check_ok(cache, err);
            memset(pieces, 0, (size_t)(LENGTH * V) * sizeof *pieces);
            feed(model, cache, tokens, 0, LENGTH, chunkings[i], pieces, arena);
            assert_int_equal(cache->length, LENGTH);
            if (memcmp(whole, pieces, (size_t)(LENGTH * V) * sizeof *whole) != 0)
                fail_msg("chunking %zu, %d threads, %s: other bits than the whole row (%.3g)", i,
                         threads, bd_dtype_name(model->compute),
                         check_relative(pieces, whole, LENGTH * V));
            bd_cache_free(cache);
        }
    }
    bd_arena_destroy(arena);
}

static void chunkings(void **state)
{
    (void)state;
    for (int family = 0; family < BD_FAMILY_COUNT; family++)
        for (int half = 0; half < 2; half++) {
            bd_model_config config = small_config((bd_model_family)family);
            if (family != BD_FAMILY_LLAMA)
                config.layer_window[1] = 6; // a sliding layer among full ones
            bd_model *model = small_model(&config, half ? BD_BF16 : BD_F32);
            check_chunkings(model);
            bd_model_close(model);
        }
}

/* Wrong proposals are fed, cut off again, and leave no trace. */
static void truncation(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_arena *arena = check_arena();
    bd_model_config config = small_config(BD_FAMILY_QWEN3);
    bd_model *model = small_model(&config, BD_F32);
    int64_t V = config.vocabulary;
    int32_t tokens[LENGTH], wrong[LENGTH];
    random_tokens(tokens, LENGTH, V, 3);
    random_tokens(wrong, LENGTH, V, 4);
    float *want = bd_arena_floats(arena, LENGTH * V), *got = bd_arena_floats(arena, LENGTH * V);
    float *waste = bd_arena_floats(arena, LENGTH * V);
    bd_cache *cache = bd_cache_create(model, LENGTH, &err);
    check_ok(cache, err);
    feed(model, cache, tokens, 0, LENGTH, (int64_t[]){LENGTH, 0}, want, arena);
    bd_cache_truncate(cache, 0);
    for (int64_t at = 0; at < LENGTH; at += 3) {
        int64_t to = at + 3 < LENGTH ? at + 3 : LENGTH, over = to + 5 < LENGTH ? to + 5 : LENGTH;
        feed(model, cache, wrong, at, over, (int64_t[]){8, 0}, waste, arena);
        bd_cache_truncate(cache, at);
        feed(model, cache, tokens, at, to, (int64_t[]){3, 0}, got, arena);
    }
    assert_memory_equal(want, got, (size_t)(LENGTH * V) * sizeof *want);
    bd_cache_free(cache);
    bd_model_close(model);
    bd_arena_destroy(arena);
}

/* A rule together with a cache: blocks of a block-diffusion row, one at a time, against the whole
 * row. With a sliding layer as well, which stays causal whatever the rule is. */
static void blocks_through_a_cache(void **state)
{
    (void)state;
    enum { BLOCK = 4 };
    bd_error err = {0};
    bd_arena *arena = check_arena();
    for (int sliding = 0; sliding < 2; sliding++) {
        bd_model_config config = small_config(BD_FAMILY_QWEN3);
        config.layer_window[2] = sliding ? 5 : 0;
        bd_model *model = small_model(&config, BD_F32);
        int64_t H = config.hidden;
        int32_t tokens[LENGTH], canvas[BLOCK];
        random_tokens(tokens, LENGTH, config.vocabulary, 3);
        bd_visibility rule = {.kind = BD_BLOCK_DIFFUSION,
                              .block_size = BLOCK,
                              .query_length = LENGTH,
                              .key_length = LENGTH};
        bd_tape tape = bd_tape_begin(arena, BD_F32, false);
        bd_value *whole = bd_model_forward(
            model, &tape,
            &(bd_forward){.tokens = tokens, .rows = 1, .length = LENGTH, .rule = &rule});
        bd_value *causal = bd_model_forward(
            model, &tape, &(bd_forward){.tokens = tokens, .rows = 1, .length = LENGTH});
        assert_true(memcmp(whole->data, causal->data, (size_t)H * sizeof(float)) != 0);
        bd_cache *cache = bd_cache_create(model, LENGTH, &err);
        check_ok(cache, err);
        for (int64_t at = 0; at < LENGTH; at += BLOCK) {
            int64_t n = at + BLOCK <= LENGTH ? BLOCK : LENGTH - at;
            random_tokens(canvas, BLOCK, config.vocabulary, (uint64_t)at + 9);
            bd_model_forward(
                model, &tape,
                &(bd_forward){
                    .tokens = canvas, .rows = 1, .length = n, .rule = &rule, .cache = cache});
            bd_cache_truncate(cache, at); // a pass over the canvas is not kept
            bd_value *h = bd_model_forward(
                model, &tape,
                &(bd_forward){
                    .tokens = tokens + at, .rows = 1, .length = n, .rule = &rule, .cache = cache});
            assert_memory_equal(h->data, whole->data + at * H, (size_t)(n * H) * sizeof(float));
        }
        bd_cache_free(cache);
        bd_model_close(model);
    }
    bd_arena_destroy(arena);
}

/* What a sliding layer sees is the window, not the row: far tokens change nothing beyond it. */
static void window(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    bd_model_config config = small_config(BD_FAMILY_QWEN2);
    config.layers = 1;
    config.layer_window[0] = 4;
    bd_model *model = small_model(&config, BD_F32);
    int64_t H = config.hidden;
    int32_t tokens[12], others[12];
    random_tokens(tokens, 12, config.vocabulary, 3);
    memcpy(others, tokens, sizeof others);
    others[3] = (others[3] + 1) % (int32_t)config.vocabulary;
    bd_visibility rule = {
        .kind = BD_BLOCK_DIFFUSION, .block_size = 12, .query_length = 12, .key_length = 12};
    const bd_visibility *rules[] = {NULL, &rule};
    for (int r = 0; r < 2; r++) {
        bd_tape tape = bd_tape_begin(arena, BD_F32, false);
        bd_forward input = {.tokens = tokens, .rows = 1, .length = 12, .rule = rules[r]};
        bd_value *a = bd_model_forward(model, &tape, &input);
        input.tokens = others;
        bd_value *b = bd_model_forward(model, &tape, &input);
        for (int64_t q = 0; q < 12; q++) { // token 3 is in the windows of 3, 4, 5 and 6 alone
            bool same = memcmp(a->data + q * H, b->data + q * H, (size_t)H * sizeof(float)) == 0;
            assert_int_equal(same, q < 3 || q > 6);
        }
    }
    bd_model_close(model);
    bd_arena_destroy(arena);
}

/* A hundred steps of generation use the memory of one. */
static void flat_memory(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_arena *arena = check_arena();
    bd_model_config config = small_config(BD_FAMILY_QWEN3);
    bd_model *model = small_model(&config, BD_BF16);
    bd_cache *cache = bd_cache_create(model, 128, &err);
    check_ok(cache, err);
    float *logits = bd_arena_floats(arena, config.vocabulary);
    int32_t token = 1;
    size_t peak = 0;
    bd_tape tape = bd_tape_begin(arena, BD_BF16, false);
    for (int step = 0; step < 128; step++) {
        size_t mark = bd_arena_mark(arena);
        bd_value *h = bd_model_forward(
            model, &tape, &(bd_forward){.tokens = &token, .rows = 1, .length = 1, .cache = cache});
        bd_model_logits(model, h->data, 1, logits, arena);
        bd_arena_release(arena, mark);
        assert_null(tape.last);
        if (step == 4)
            peak = bd_arena_peak(arena);
    }
    // Scratch of attention may follow the length of the cache; nothing may follow the number of
    // steps.
    assert_true(bd_arena_peak(arena) <= peak + 128 * 64 * sizeof(float));
    bd_cache_free(cache);
    bd_model_close(model);
    bd_arena_destroy(arena);
}

/* Without recording, a prompt's activations do not pile up over the layers. */
static void layers_share_memory(void **state)
{
    (void)state;
    int32_t tokens[64];
    size_t peak[2];
    for (int deep = 0; deep < 2; deep++) {
        bd_arena *arena = check_arena();
        bd_model_config config = small_config(BD_FAMILY_QWEN3);
        config.layers = deep ? 12 : 2;
        bd_model *model = small_model(&config, BD_F32);
        random_tokens(tokens, 64, config.vocabulary, 3);
        bd_tape tape = bd_tape_begin(arena, BD_F32, false);
        bd_model_forward(model, &tape, &(bd_forward){.tokens = tokens, .rows = 1, .length = 64});
        peak[deep] = bd_arena_peak(arena);
        bd_model_close(model);
        bd_arena_destroy(arena);
    }
    assert_int_equal(peak[0], peak[1]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chunkings),
        cmocka_unit_test(truncation),
        cmocka_unit_test(blocks_through_a_cache),
        cmocka_unit_test(window),
        cmocka_unit_test(flat_memory),
        cmocka_unit_test(layers_share_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
