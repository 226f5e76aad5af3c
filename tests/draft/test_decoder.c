/* A decoder's target and draft always know the same tokens, however they came to know them. */
#include "draft/speculative.h"
#include "golden.h"

enum { CAPACITY = 800, LENGTH = 600, VOCABULARY = 90 };

typedef struct {
    bd_model *target;
    bd_draft *draft;
    bd_arena *arena;
    int32_t text[LENGTH];
} pair;

static int open_pair(void **state)
{
    pair *p = calloc(1, sizeof *p);
    p->target = golden_target("target-llama-tiny", BD_F32);
    p->draft = golden_draft("draft-dflash-swa", p->target, BD_F32);
    p->arena = check_arena();
    for (int i = 0; i < LENGTH; i++)
        p->text[i] = (i * i * 31 + i * 7 + 5) % VOCABULARY;
    *state = p;
    return 0;
}

static int close_pair(void **state)
{
    pair *p = *state;
    bd_draft_close(p->draft);
    bd_model_close(p->target);
    bd_arena_destroy(p->arena);
    free(p);
    return 0;
}

static bd_decoder *new_decoder(const pair *p)
{
    bd_error err = {0};
    bd_decoder *d = bd_decoder_create(p->target, p->draft, CAPACITY, &err);
    check_ok(d != NULL, err);
    return d;
}

/* A decoder that has read `count` tokens answers like a fresh one, bit by bit. */
static void expect_like_fresh(const pair *p, bd_decoder *d, const int32_t *text, int64_t count)
{
    bd_error err = {0};
    int64_t V = p->target->config.vocabulary, H = p->target->config.hidden;
    size_t bytes = (size_t)V * sizeof(float);
    bd_decoder *fresh = new_decoder(p);
    const float *logits = bd_decoder_follow(fresh, text, count, &err);
    check_ok(logits != NULL, err);
    float *wanted = memcpy(bd_arena_floats(p->arena, V), logits, bytes);
    logits = bd_decoder_follow(d, text, count, &err);
    check_ok(logits != NULL, err);
    assert_memory_equal(logits, wanted, bytes);
    assert_int_equal(bd_decoder_length(d), count);

    bd_proposal a = {.limit = 0}, b = {.limit = 0};
    assert_int_equal(bd_decoder_propose(d, 3, &a, &err), 3);
    assert_int_equal(bd_decoder_propose(fresh, 3, &b, &err), 3);
    assert_memory_equal(a.hidden, b.hidden, (size_t)(a.slots * H) * sizeof(float));
    bd_decoder_free(fresh);
}

static void texts_that_share_a_beginning(void **state)
{
    pair *p = *state;
    bd_decoder *d = new_decoder(p);
    // Longer than a chunk, so that part of it waits to be told to the draft; then cut inside what
    // waits, inside what the draft knows, and grown again with other tokens.
    const int64_t lengths[] = {LENGTH, LENGTH - 20, 530, 100, 101, 400, 1, LENGTH};
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        bd_error err = {0};
        if (i % 2 == 0 && lengths[i] > 50)
            p->text[lengths[i] - 40] = (p->text[lengths[i] - 40] + 1) % VOCABULARY;
        check_ok(bd_decoder_follow(d, p->text, lengths[i], &err) != NULL, err);
        if (i % 3 > 0) // sometimes the draft is asked before the next cut, sometimes not
            expect_like_fresh(p, d, p->text, lengths[i]);
    }
    bd_decoder_free(d);
}

static void a_draft_that_rested_has_missed_nothing(void **state)
{
    pair *p = *state;
    bd_error err = {0};
    enum { PROMPT = 6, NEW = 300 };
    bd_decoder *d = new_decoder(p);
    bd_generation g = bd_generation_default();
    int32_t out[NEW], whole[PROMPT + NEW];
    g.most = NEW;
    g.most_proposed = 0;
    assert_int_equal(bd_generate(d, p->text, PROMPT, &g, out, NULL, &err), NEW);
    memcpy(whole, p->text, PROMPT * sizeof *whole);
    memcpy(whole + PROMPT, out, sizeof out);
    expect_like_fresh(p, d, whole, PROMPT + NEW);
    bd_decoder_free(d);
}

static void what_is_tried_is_forgotten_unless_kept(void **state)
{
    pair *p = *state;
    bd_error err = {0};
    int64_t V = p->target->config.vocabulary;
    size_t bytes = (size_t)V * sizeof(float);
    bd_decoder *d = new_decoder(p);
    check_ok(bd_decoder_follow(d, p->text, 20, &err) != NULL, err);
    const float *logits = bd_decoder_try(d, p->text + 20, 5, &err);
    float *first = memcpy(bd_arena_floats(p->arena, V), logits, bytes);
    float *fifth = memcpy(bd_arena_floats(p->arena, V), logits + 4 * V, bytes);
    const int32_t other[3] = {1, 2, 3};
    check_ok(bd_decoder_try(d, other, 3, &err) != NULL, err);
    check_ok(bd_decoder_keep(d, 0, &err), err);
    assert_memory_equal(bd_decoder_try(d, p->text + 20, 5, &err), first, bytes);
    check_ok(bd_decoder_keep(d, 2, &err), err);
    assert_int_equal(bd_decoder_length(d), 22);
    assert_int_equal(bd_decoder_known(d, p->text, LENGTH), 22);
    logits = bd_decoder_try(d, p->text + 22, 3, &err); // together or in parts: the same bits
    assert_memory_equal(logits + 2 * V, fifth, bytes);
    bd_decoder_free(d);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(texts_that_share_a_beginning, open_pair, close_pair),
        cmocka_unit_test_setup_teardown(a_draft_that_rested_has_missed_nothing, open_pair,
                                        close_pair),
        cmocka_unit_test_setup_teardown(what_is_tried_is_forgotten_unless_kept, open_pair,
                                        close_pair),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
