/* Drafting and speculative generation: the golden drafts and traces; lossless for any draft (B10).
 */
#include "base/threads.h"
#include "draft/speculative.h"
#include "golden.h"

enum { CAPACITY = 256 };

static const char *const names[] = {"generate-draft-dflash", "generate-draft-dflash-swa"};

typedef struct {
    json_t *json;
    bd_safetensors *tensors;
    bd_arena *arena;
    bd_model *target;
    bd_draft *draft;
    bd_decoder *decoder;
} generation_case;

static generation_case open_case(const char *name, bd_dtype compute)
{
    bd_error err = {0};
    generation_case c = {
        .json = golden_json(name), .tensors = golden_tensors(name), .arena = check_arena()};
    c.target = golden_target(json_string_value(json_object_get(c.json, "target")), compute);
    c.draft = golden_draft(json_string_value(json_object_get(c.json, "draft")), c.target, compute);
    c.decoder = bd_decoder_create(c.target, c.draft, CAPACITY, &err);
    check_ok(c.decoder != NULL, err);
    return c;
}

static void close_case(generation_case *c)
{
    bd_decoder_free(c->decoder);
    bd_draft_close(c->draft);
    bd_model_close(c->target);
    bd_safetensors_close(c->tensors);
    bd_arena_destroy(c->arena);
    json_decref(c->json);
}

static int32_t *ids(const generation_case *c, json_t *object, const char *field, int64_t *count)
{
    json_t *list = json_object_get(object, field);
    *count = (int64_t)json_array_size(list);
    int32_t *out = bd_arena_ints(c->arena, *count);
    for (int64_t i = 0; i < *count; i++)
        out[i] = (int32_t)json_integer_value(json_array_get(list, (size_t)i));
    return out;
}

static int64_t number(json_t *object, const char *field, int64_t fallback)
{
    json_t *value = json_object_get(object, field);
    return json_is_integer(value) ? json_integer_value(value) : fallback;
}

static void golden_drafts(void **state)
{
    (void)state;
    for (int n = 0; n < 2; n++) {
        generation_case c = open_case(names[n], BD_F32);
        bd_error err = {0};
        int64_t V = c.target->config.vocabulary, H = c.target->config.hidden;
        int64_t bs = c.draft->config.block_size;
        json_t *list = json_object_get(c.json, "draft_cases"), *one;
        size_t i;
        assert_true(json_array_size(list) > 0);
        json_array_foreach(list, i, one)
        {
            int64_t count, wanted;
            const int32_t *prompt = ids(&c, one, "prompt", &count);
            const int32_t *tokens = ids(&c, one, "draft_tokens", &wanted);
            const float *logits = bd_decoder_follow(c.decoder, prompt, count, &err);
            check_ok(logits != NULL, err);
            int32_t base = (int32_t)number(one, "base_token", -1), best;
            bd_best_tokens(logits, 1, V, &best);
            assert_int_equal(best, base);
            bd_proposal p = {.limit = 0};
            assert_int_equal(bd_decoder_propose(c.decoder, base, &p, &err), wanted);
            check_ints("draft_tokens", p.tokens, tokens, wanted);

            char name[40];
            snprintf(name, sizeof name, "%zu/hidden", i);
            assert_int_equal(p.slots, bs);
            check_array(p.hidden, golden_floats(c.tensors, name, c.arena), bs * H, 1e-4);
            float *rows = bd_arena_floats(c.arena, bs * V);
            bd_model_logits(c.target, p.hidden, bs, rows, c.arena);
            snprintf(name, sizeof name, "%zu/logits", i);
            check_array(rows, golden_floats(c.tensors, name, c.arena), bs * V, 1e-4);
        }
        close_case(&c);
    }
}

// --- traces --------------------------------------------------------------------------------------

typedef struct {
    const generation_case *c;
    json_t *steps;
    size_t at;
    int64_t written;
    const int32_t *output;
} trace;

static void check_cycle(void *self, const bd_cycle *cycle)
{
    trace *t = self;
    json_t *step = json_array_get(t->steps, t->at++);
    assert_non_null(step);
    int64_t count, emitted;
    const int32_t *proposed = ids(t->c, step, "draft_tokens", &count);
    const int32_t *tokens = ids(t->c, step, "emitted", &emitted);
    assert_int_equal(cycle->base, number(step, "base_token", -1));
    assert_int_equal(cycle->count, count);
    check_ints("draft_tokens", cycle->proposed, proposed, count);
    assert_int_equal(cycle->accepted, number(step, "accepted", -1));
    assert_int_equal(cycle->emitted, emitted);
    check_ints("emitted", t->output + t->written, tokens, emitted);
    t->written += emitted;
}

static void golden_traces(void **state)
{
    (void)state;
    for (int n = 0; n < 2; n++) {
        generation_case c = open_case(names[n], BD_F32);
        bd_error err = {0};
        json_t *list = json_object_get(c.json, "speculative"), *one;
        size_t i;
        assert_true(json_array_size(list) > 0);
        json_array_foreach(list, i, one)
        {
            int64_t count, wanted;
            const int32_t *prompt = ids(&c, one, "prompt", &count);
            const int32_t *output = ids(&c, one, "output", &wanted);
            int32_t stop = (int32_t)number(one, "eos_token_id", -1);
            bd_generation g = bd_generation_default();
            g.most = number(one, "max_new_tokens", 0);
            g.stop = &stop;
            g.stop_count = stop >= 0;
            g.most_proposed = number(one, "max_draft", -1);
            g.whole_blocks = true;
            int32_t *got = bd_arena_ints(c.arena, g.most);
            trace t = {.c = &c, .steps = json_object_get(one, "steps"), .output = got};
            g.self = &t;
            g.cycle = check_cycle;
            int64_t made = bd_generate(c.decoder, prompt, count, &g, got, NULL, &err);
            check_ok(made >= 0, err);
            assert_int_equal(made, wanted);
            check_ints("output", got, output, wanted);
            assert_int_equal(t.at, json_array_size(t.steps));
            // The same text without traces, and without a draft.
            for (int mode = 0; mode < 2; mode++) {
                g.whole_blocks = false;
                g.cycle = NULL;
                g.most_proposed = mode ? 0 : -1;
                assert_int_equal(bd_generate(c.decoder, prompt, count, &g, got, NULL, &err),
                                 wanted);
                check_ints("output", got, output, wanted);
            }
        }
        close_case(&c);
    }
}

// --- lossless ------------------------------------------------------------------------------------

enum { NEW = 60, PROMPT = 7 };
static const int32_t some_prompt[PROMPT] = {3, 14, 15, 9, 26, 5, 35};

/* Text from a fresh decoder. */
static void text_of(const generation_case *c, bd_draft *draft, bd_generation g, int32_t *out,
                    bd_generation_report *report)
{
    bd_error err = {0};
    bd_decoder *d = bd_decoder_create(c->target, draft, CAPACITY, &err);
    check_ok(d != NULL, err);
    g.most = NEW;
    int64_t made = bd_generate(d, some_prompt, PROMPT, &g, out, report, &err);
    check_ok(made == NEW, err);
    bd_decoder_free(d);
}

static void drafts_never_change_the_text(void **state)
{
    (void)state;
    const bd_dtype computes[2] = {BD_F32, BD_BF16};
    const float temperatures[2] = {0, 0.8f};
    for (int i = 0; i < 8; i++) {
        generation_case c = open_case(names[i & 1], computes[i >> 1 & 1]);
        bd_generation g = bd_generation_default();
        g.sampling.temperature = temperatures[i >> 2];
        g.sampling.top_k = 20;
        g.sampling.top_p = 0.95f;
        g.sampling.seed = 11;
        int32_t plain[NEW], drafted[NEW];
        bd_generation_report a, b;
        bd_threads_set(2);
        text_of(&c, NULL, g, plain, &a);
        assert_int_equal(a.cycles, NEW - 1);
        check_near(bd_accept_length(&a), 1, 0);
        for (int threads = 1; threads <= 2; threads++) {
            bd_threads_set(threads);
            text_of(&c, c.draft, g, drafted, &b);
            assert_memory_equal(plain, drafted, sizeof plain);
        }
        assert_true(b.cycles <= a.cycles && b.drafted_cycles > 0);
        g.schedule = BD_DRAFT_AUTO;
        text_of(&c, c.draft, g, drafted, &b);
        assert_memory_equal(plain, drafted, sizeof plain);
        close_case(&c);
    }
}

static void a_grown_conversation_is_not_read_again(void **state)
{
    (void)state;
    bd_error err = {0};
    generation_case c = open_case(names[0], BD_F32);
    bd_generation g = bd_generation_default();
    int32_t long_prompt[PROMPT + 10 + 3], first[10], again[10], fresh[10];
    bd_generation_report report;
    g.most = 10;
    memcpy(long_prompt, some_prompt, sizeof some_prompt);
    assert_int_equal(bd_generate(c.decoder, some_prompt, PROMPT, &g, first, &report, &err), 10);
    assert_int_equal(report.prompt_read, PROMPT);
    memcpy(long_prompt + PROMPT, first, sizeof first);
    long_prompt[PROMPT + 10] = 1;
    long_prompt[PROMPT + 11] = 2;
    long_prompt[PROMPT + 12] = 3;
    int64_t count = PROMPT + 13;
    assert_int_equal(bd_generate(c.decoder, long_prompt, count, &g, again, &report, &err), 10);
    assert_true(report.prompt_read < count && report.prompt_read >= 4);
    bd_decoder *d = bd_decoder_create(c.target, c.draft, CAPACITY, &err);
    assert_int_equal(bd_generate(d, long_prompt, count, &g, fresh, NULL, &err), 10);
    assert_memory_equal(again, fresh, sizeof fresh);
    bd_decoder_free(d);
    close_case(&c);
}

/* What a session knows after cutting back and learning again is what it knows when told at once. */
static void context_can_be_cut_back(void **state)
{
    (void)state;
    bd_error err = {0};
    generation_case c = open_case(names[1], BD_F32);
    bd_arena *arena = c.arena;
    int64_t width = bd_draft_feature_width(c.draft), H = c.target->config.hidden;
    float *features = bd_arena_floats(arena, PROMPT * width);
    bd_draft_observe(c.draft, some_prompt, 1, PROMPT, features, NULL, arena);
    bd_draft_session *s = bd_draft_session_create(c.draft, CAPACITY, &err);
    check_ok(bd_draft_begin(s, &(bd_hidden){features, PROMPT}, &err), err);
    bd_proposal p = {.limit = 0};
    assert_int_equal(bd_draft_propose(s, 5, &p, &err), 3);
    float *at_once = bd_arena_floats(arena, p.slots * H);
    memcpy(at_once, p.hidden, (size_t)(p.slots * H) * sizeof(float));
    bd_draft_truncate(s, 2);
    assert_int_equal(bd_draft_length(s), 2);
    for (int64_t i = 2; i < PROMPT; i++)
        check_ok(bd_draft_commit(s, &(bd_hidden){features + i * width, 1}, &err), err);
    assert_int_equal(bd_draft_propose(s, 5, &p, &err), 3);
    assert_memory_equal(p.hidden, at_once, (size_t)(p.slots * H) * sizeof(float));
    bd_draft_session_free(s);
    close_case(&c);
}

/* A block in training and the same block in generation are the same function. */
static void training_and_drafting_agree(void **state)
{
    (void)state;
    bd_error err = {0};
    for (int n = 0; n < 2; n++) {
        generation_case c = open_case(names[n], BD_F32);
        bd_arena *arena = c.arena;
        enum { S = 16, ANCHOR = 9 };
        int32_t tokens[S];
        float mask[S];
        for (int i = 0; i < S; i++) {
            tokens[i] = (int32_t)((i * 37 + 11) % 90);
            mask[i] = 1;
        }
        int64_t H = c.target->config.hidden, bs = c.draft->config.block_size;
        float *features = bd_arena_floats(arena, S * bd_draft_feature_width(c.draft));
        float *hidden = bd_arena_floats(arena, bs * H);
        bd_draft_observe(c.draft, tokens, 1, S, features, NULL, arena);
        const bd_anchors anchors = {
            .blocks = 1, .anchor = (int32_t[]){ANCHOR}, .keep = (uint8_t[]){1}};
        const bd_draft_batch batch = {.rows = 1,
                                      .length = S,
                                      .tokens = tokens,
                                      .loss_mask = mask,
                                      .anchors = &anchors,
                                      .features = features};
        bd_draft_objective o = bd_draft_objective_default();
        o.distill = false;
        bd_draft_loss loss;
        bd_draft_record record = {.hidden = hidden};
        bd_tape tape = bd_tape_begin(arena, BD_F32, false);
        check_ok(bd_draft_step_run(c.draft, &tape, &batch, &o, BD_DRAFT_SUM, &record, &loss, &err),
                 err);
        bd_draft_session *s = bd_draft_session_create(c.draft, CAPACITY, &err);
        check_ok(bd_draft_begin(s, &(bd_hidden){features, ANCHOR}, &err), err);
        bd_proposal p = {.limit = 0};
        assert_int_equal(bd_draft_propose(s, tokens[ANCHOR], &p, &err), bs - 1);
        check_array(p.hidden, hidden, bs * H, 1e-5);
        bd_draft_session_free(s);
        close_case(&c);
    }
}

// --- options -------------------------------------------------------------------------------------

static bool three_calls(void *self, const int32_t *tokens, int64_t count)
{
    (void)tokens;
    assert_true(count > 0);
    return ++*(int *)self < 3;
}

static void the_caller_may_end_it(void **state)
{
    (void)state;
    bd_error err = {0};
    generation_case c = open_case(names[0], BD_F32);
    bd_generation g = bd_generation_default();
    bd_generation_report report;
    int32_t out[NEW];
    int calls = 0;
    g.most = NEW;
    g.self = &calls;
    g.emit = three_calls;
    int64_t made = bd_generate(c.decoder, some_prompt, PROMPT, &g, out, &report, &err);
    assert_true(made >= 3 && made < NEW);
    assert_int_equal(calls, 3);
    assert_int_equal(report.ended, BD_ENDED_BY_CALLER);
    close_case(&c);
}

static void bad_requests_are_refused(void **state)
{
    (void)state;
    bd_error err = {0};
    generation_case c = open_case(names[0], BD_F32);
    bd_generation g = bd_generation_default();
    int32_t out[NEW], bad[2] = {1, 97};
    g.most = NEW;
    check_refused(bd_generate(c.decoder, some_prompt, 0, &g, out, NULL, &err) >= 0, err,
                  "prompt is empty");
    check_refused(bd_generate(c.decoder, bad, 2, &g, out, NULL, &err) >= 0, err,
                  "token 97 at position 1");
    g.most = CAPACITY;
    check_refused(bd_generate(c.decoder, some_prompt, PROMPT, &g, out, NULL, &err) >= 0, err,
                  "do not fit a context of 256");
    g.most = 0;
    check_refused(bd_generate(c.decoder, some_prompt, PROMPT, &g, out, NULL, &err) >= 0, err,
                  "at least 1 expected");
    g.most = NEW;
    g.sampling.temperature = -1;
    check_refused(bd_generate(c.decoder, some_prompt, PROMPT, &g, out, NULL, &err) >= 0, err,
                  "temperature");
    close_case(&c);
}

static void costs_are_measured(void **state)
{
    (void)state;
    bd_error err = {0};
    generation_case c = open_case(names[0], BD_F32);
    assert_non_null(bd_decoder_follow(c.decoder, some_prompt, PROMPT, &err));
    assert_true(bd_decoder_cost(c.decoder, 1, 3, &err) > 0);
    assert_true(bd_decoder_cost(c.decoder, 4, 3, &err) > 0);
    assert_int_equal(bd_decoder_length(c.decoder), PROMPT);
    check_near(bd_break_even_length(0.2, 1.3, 1), 1.5, 1e-12);
    check_refused(bd_decoder_cost(c.decoder, CAPACITY, 1, &err) >= 0, err, "do not fit");
    close_case(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(golden_drafts),
        cmocka_unit_test(golden_traces),
        cmocka_unit_test(drafts_never_change_the_text),
        cmocka_unit_test(a_grown_conversation_is_not_read_again),
        cmocka_unit_test(context_can_be_cut_back),
        cmocka_unit_test(training_and_drafting_agree),
        cmocka_unit_test(the_caller_may_end_it),
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(costs_are_measured),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
