/* Several texts through shared passes are those of one at a time, bit for bit, wherever each ends. */
#include "base/threads.h"
#include "check.h"
#include "draft/parallel.h"

enum { TEXTS = 11, MOST = 40, CAPACITY = 180, VOCABULARY = 53, LONGEST = 90 };

typedef struct {
    bd_model *target;
    bd_generation options;
    int32_t prompts[TEXTS][LONGEST], out[TEXTS][MOST], alone[TEXTS][MOST];
    int64_t prompt_count[TEXTS], most[TEXTS], count[TEXTS], read[TEXTS];
    bd_generation_end ended[TEXTS];
    bd_parallel_text texts[TEXTS];
    int64_t told[TEXTS], calls, stop_after;
} story;

/* Every other layer looks back on 16 tokens only. */
static bd_model *small_model(bd_dtype compute)
{
    bd_error err = {0};
    bd_model_config c = {.family = BD_FAMILY_QWEN3,
                         .vocabulary = VOCABULARY,
                         .hidden = 32,
                         .layers = 4,
                         .query_heads = 4,
                         .key_heads = 2,
                         .head_size = 16,
                         .intermediate = 48,
                         .max_positions = 256,
                         .norm_eps = 1e-6,
                         .initializer_range = 0.3,
                         .qk_norm = true,
                         .rope = {.theta = 10000, .factor = 1},
                         .bos = -1,
                         .pad = -1};
    c.layer_window[1] = c.layer_window[3] = 16;
    bd_model *model = bd_model_create(&c, 3, compute, &err);
    check_ok(model, err);
    return model;
}

/* Prompts of 1 to 90 tokens, two that begin alike, texts of 1 to 40 tokens. */
static void make_prompts(story *s)
{
    for (int i = 0; i < TEXTS; i++) {
        s->prompt_count[i] = i == 2 ? 1 : i == 5 ? LONGEST : 3 + 5 * i;
        s->most[i] = i == 4 ? 1 : i == 7 ? 9 : MOST;
        for (int64_t k = 0; k < s->prompt_count[i]; k++)
            s->prompts[i][k] = (int32_t)((k * k * 31 + k * 7 + (i == 9 ? 8 : i) * 13) % VOCABULARY);
    }
}

static void write_alone(story *s)
{
    bd_error err = {0};
    for (int i = 0; i < TEXTS; i++) {
        bd_decoder *d = bd_decoder_create(s->target, NULL, CAPACITY, &err);
        check_ok(d, err);
        bd_generation options = s->options;
        bd_generation_report report;
        options.most = s->most[i];
        s->count[i] =
            bd_generate(d, s->prompts[i], s->prompt_count[i], &options, s->alone[i], &report, &err);
        check_ok(s->count[i] > 0, err);
        s->ended[i] = report.ended;
        bd_decoder_free(d);
    }
}

static bool told(void *self, int64_t index)
{
    story *s = self;
    s->told[index]++;
    return s->stop_after == 0 || ++s->calls < s->stop_after;
}

static bd_parallel_report write_together(story *s, int64_t places)
{
    bd_error err = {0};
    bd_parallel_report report;
    for (int i = 0; i < TEXTS; i++) {
        memset(s->out[i], -1, sizeof s->out[i]);
        s->told[i] = 0;
        s->texts[i] = (bd_parallel_text){.prompt = s->prompts[i],
                                         .prompt_count = s->prompt_count[i],
                                         .out = s->out[i],
                                         .most = s->most[i]};
    }
    s->options.self = s;
    s->calls = 0;
    check_ok(bd_generate_parallel(s->target, CAPACITY, s->texts, TEXTS, places, &s->options, told,
                                  &report, &err),
             err);
    return report;
}

static void compare(const story *s)
{
    for (int i = 0; i < TEXTS; i++) {
        assert_int_equal(s->told[i], 1);
        assert_int_equal(s->texts[i].count, s->count[i]);
        assert_int_equal(s->texts[i].ended, s->ended[i]);
        assert_memory_equal(s->out[i], s->alone[i], (size_t)s->count[i] * sizeof(int32_t));
    }
}

static void same_texts(bd_dtype compute, float temperature)
{
    story s = {.target = small_model(compute), .options = bd_generation_default()};
    // Some texts meet these early, some late, some never.
    const int32_t stops[] = {11, 37};
    s.options.stop = stops;
    s.options.stop_count = 2;
    s.options.sampling.temperature = temperature;
    s.options.sampling.seed = 5;
    make_prompts(&s);
    write_alone(&s);
    int64_t passes = 0, stopped = 0, tokens = 0;
    for (int i = 0; i < TEXTS; i++) {
        tokens += s.count[i];
        stopped += s.ended[i] == BD_ENDED_BY_STOP;
    }
    assert_true(temperature == 0 || (stopped > 0 && stopped < TEXTS));
    const int64_t places[] = {1, 2, 3, 4, TEXTS, TEXTS + 5};
    for (int threads = 1; threads <= 2; threads++) {
        bd_threads_set(threads);
        for (size_t n = 0; n < sizeof places / sizeof *places; n++) {
            bd_parallel_report report = write_together(&s, places[n]);
            compare(&s);
            if (places[n] == 1) // every token but each text's first, which its prompt brings
                assert_int_equal(report.passes, tokens - TEXTS);
            else
                assert_true(report.passes <= passes);
            assert_true(report.passes * places[n] >= tokens - TEXTS);
            passes = report.passes;
        }
    }
    bd_model_close(s.target);
}

static void greedy_f32(void **state)
{
    (void)state;
    same_texts(BD_F32, 0);
}

static void greedy_bf16(void **state)
{
    (void)state;
    same_texts(BD_BF16, 0);
}

static void greedy_int8(void **state)
{
    (void)state;
    same_texts(BD_Q8_0, 0);
}

static void sampled(void **state)
{
    (void)state;
    same_texts(BD_F32, 1.5f);
    same_texts(BD_BF16, 1.5f);
}

/* Logits of a shared pass, not only what is chosen from them. */
static void same_logits(void **state)
{
    (void)state;
    for (int n = 0; n < 2; n++) {
        bd_error err = {0};
        story s = {.target = small_model(n ? BD_BF16 : BD_F32)};
        bd_decoder *d[TEXTS], *alone[TEXTS];
        int32_t tokens[TEXTS];
        make_prompts(&s);
        for (int i = 0; i < TEXTS; i++) {
            d[i] = bd_decoder_create(s.target, NULL, CAPACITY, &err);
            alone[i] = bd_decoder_create(s.target, NULL, CAPACITY, &err);
            check_ok(d[i] && alone[i], err);
            check_ok(bd_decoder_follow(d[i], s.prompts[i], s.prompt_count[i], &err), err);
            check_ok(bd_decoder_follow(alone[i], s.prompts[i], s.prompt_count[i], &err), err);
            tokens[i] = (int32_t)(i * 4 + 1);
        }
        for (int step = 0; step < 3; step++) {
            const float *logits = bd_decoders_try(d, TEXTS, tokens, &err);
            check_ok(logits, err);
            for (int i = 0; i < TEXTS; i++) {
                const float *wanted = bd_decoder_try(alone[i], tokens + i, 1, &err);
                check_ok(wanted, err);
                assert_memory_equal(logits + i * VOCABULARY, wanted, VOCABULARY * sizeof *logits);
            }
            for (int i = 0; i < TEXTS; i++) {
                // One of them takes its token back and reads another one.
                int64_t kept = step == 1 && i == 3 ? 0 : 1;
                check_ok(bd_decoder_keep(d[i], kept, &err), err);
                check_ok(bd_decoder_keep(alone[i], kept, &err), err);
                tokens[i] = (tokens[i] + 7) % VOCABULARY;
            }
        }
        tokens[2] = VOCABULARY;
        check_refused(bd_decoders_try(d, TEXTS, tokens, &err), err, "not in a vocabulary");
        for (int i = 0; i < TEXTS; i++) {
            bd_decoder_free(d[i]);
            bd_decoder_free(alone[i]);
        }
        bd_model_close(s.target);
    }
}

static void ends_when_told_to(void **state)
{
    (void)state;
    story s = {.target = small_model(BD_F32), .options = bd_generation_default(), .stop_after = 3};
    make_prompts(&s);
    write_together(&s, 2);
    int64_t ended = 0;
    for (int i = 0; i < TEXTS; i++)
        ended += s.told[i];
    assert_true(ended >= 3 && ended <= 4); // two may end in the same pass
    bd_model_close(s.target);
}

static void refusals(void **state)
{
    (void)state;
    bd_error err = {0};
    story s = {.target = small_model(BD_F32), .options = bd_generation_default()};
    bd_parallel_report report;
    int32_t token = 1, out[MOST];
    bd_parallel_text texts[2] = {
        {.prompt = &token, .prompt_count = 1, .out = out, .most = MOST},
        {.prompt = &token, .prompt_count = 1, .out = out, .most = CAPACITY}};
    check_refused(
        bd_generate_parallel(s.target, CAPACITY, texts, 2, 2, &s.options, NULL, &report, &err), err,
        "prompt 2: a prompt of 1 and 180 new tokens");
    texts[1].most = MOST;
    token = VOCABULARY;
    check_refused(
        bd_generate_parallel(s.target, CAPACITY, texts, 2, 2, &s.options, NULL, &report, &err), err,
        "not in a vocabulary");
    check_ok(bd_generate_parallel(s.target, CAPACITY, texts, 0, 2, &s.options, NULL, &report, &err),
             err);
    bd_model_close(s.target);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_f32),  cmocka_unit_test(greedy_bf16),
        cmocka_unit_test(greedy_int8), cmocka_unit_test(sampled),
        cmocka_unit_test(same_logits), cmocka_unit_test(ends_when_told_to),
        cmocka_unit_test(refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
