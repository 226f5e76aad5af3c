/* The reference's acceptance metric: draft-family 7.2, T41, T42. */
#include "draft/speculative.h"
#include "draft/validate.h"
#include "golden.h"

/* The target's token at index i is i, so a draft is right where it equals its own index. */
typedef struct {
    const int32_t *drafts; // of all cycles, one after the other
    int64_t per_cycle;
    int64_t cycle;
} counting;

static int64_t count_draft(void *self, const int32_t *tokens, int64_t count, int64_t steps,
                           int32_t *base, int32_t *drafts, bd_error *err)
{
    (void)tokens;
    (void)err;
    counting *c = self;
    *base = (int32_t)count;
    int64_t n = steps < c->per_cycle ? steps : c->per_cycle;
    if (n == 0)
        return 0;
    for (int64_t i = 0; i < n; i++)
        drafts[i] = c->drafts ? c->drafts[c->cycle * c->per_cycle + i] : -1;
    c->cycle++;
    return n;
}

static bool count_judge(void *self, const int32_t *tokens, int64_t count, int64_t first,
                        int32_t *best, bd_error *err)
{
    (void)self;
    (void)tokens;
    (void)err;
    for (int64_t i = first; i < count; i++)
        best[i - first] = (int32_t)(i + 1);
    return true;
}

static void expect(const int32_t *drafts, int64_t output, int64_t want_accepted,
                   int64_t want_cycles)
{
    bd_error err = {0};
    counting c = {.drafts = drafts, .per_cycle = 2};
    const bd_validation v = {&c, count_draft, count_judge};
    const int32_t prompt[4] = {0, 1, 2, 3};
    int64_t accepted, cycles;
    check_ok(bd_validate(&v, prompt, 4, output, 2, &accepted, &cycles, &err), err);
    assert_int_equal(accepted, want_accepted);
    assert_int_equal(cycles, want_cycles);
}

static void counted_by_hand(void **state) // T41
{
    (void)state;
    expect((int32_t[]){5, 6}, 3, 3, 1);
    expect(NULL, 4, 2, 2);
    expect((int32_t[]){5, 0, 8, 9}, 6, 5, 2);
}

static void expect_truth(const int32_t *drafts, int64_t output, int32_t stop, int64_t want_added,
                         int64_t want_cycles)
{
    bd_error err = {0};
    counting c = {.drafts = drafts, .per_cycle = 2};
    const bd_validation v = {&c, count_draft, count_judge};
    const int32_t prompt[4] = {0, 1, 2, 3};
    int64_t added, cycles;
    check_ok(bd_validate_truth(&v, prompt, 4, output, &stop, 1, 2, &added, &cycles, &err), err);
    assert_int_equal(added, want_added);
    assert_int_equal(cycles, want_cycles);
}

/* The other driver: the text is 4, 5, 6, 7, ... after the prompt. */
static void counted_against_a_fixed_text(void **state)
{
    (void)state;
    expect_truth((int32_t[]){5, 6, 8, 9}, 4, 99, 4, 2); // 4, then 5 6 and 7
    expect_truth((int32_t[]){5, 6, 8, 9}, 5, 99, 5, 3); // the third cycle only takes 8
    expect_truth((int32_t[]){5, 0, 7, 8}, 4, 99, 4, 3); // 4; 5, 6; 7
    expect_truth(NULL, 4, 99, 4, 4);
    expect_truth((int32_t[]){5, 6}, 4, 5, 2, 2); // the text ends with a stop token
}

/* The longest accepted run of the real decoder on the same rule: T42 as greedy acceptance. */
static void longest_run(void **state)
{
    (void)state;
    static const struct {
        int32_t block[4], posterior[4];
        int64_t accepted;
        int32_t bonus;
    } cases[] = {{{7, 1, 2, 3}, {1, 2, 9, 4}, 2, 9},
                 {{7, 1, 2, 3}, {5, 2, 3, 4}, 0, 5},
                 {{7, 1, 2, 3}, {1, 2, 3, 4}, 3, 4}};
    const bd_draws u = {.sample = .4f};
    for (size_t i = 0; i < 3; i++) {
        int64_t accepted = 0;
        int32_t token = -1;
        while (accepted < 4) {
            float p[10] = {0};
            p[cases[i].posterior[accepted]] = 1;
            int32_t proposed = accepted < 3 ? cases[i].block[accepted + 1] : -1;
            if (!bd_accept_token(p, NULL, 10, proposed, &u, NULL, &token))
                break;
            accepted++;
        }
        assert_int_equal(accepted, cases[i].accepted);
        assert_int_equal(token, cases[i].bonus);
    }
}

static void real_models(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_model *target = golden_target("target-qwen3-tiny", BD_F32);
    bd_draft *draft = golden_draft("draft-dflash", target, BD_F32);
    bd_decoder *d = bd_decoder_create(target, draft, 128, &err);
    check_ok(d != NULL, err);
    // The trace of generate-draft-dflash: its first three cycles bring 3 tokens each, then 2, 4, 4.
    const int32_t prompt[8] = {67, 12, 44, 49, 37, 5, 13, 67};
    int64_t accepted, cycles;
    check_ok(bd_validate_draft(d, prompt, 8, 3, 3, &accepted, &cycles, &err), err);
    assert_int_equal(accepted, 3);
    assert_int_equal(cycles, 1);
    // Steps 0: only base tokens.
    check_ok(bd_validate_draft(d, prompt, 8, 5, 0, &accepted, &cycles, &err), err);
    assert_int_equal(accepted, 5);
    assert_int_equal(cycles, 5);
    // The same without drafts against a fixed text; with them in no more cycles than without.
    check_ok(bd_validate_draft_truth(d, prompt, 8, 20, NULL, 0, 0, &accepted, &cycles, &err), err);
    assert_int_equal(accepted, 20);
    assert_int_equal(cycles, 20);
    check_ok(bd_validate_draft_truth(d, prompt, 8, 20, NULL, 0, 3, &accepted, &cycles, &err), err);
    assert_int_equal(accepted, 20);
    assert_true(cycles < 12);
    // Corrections lengthen the text uncounted: the text is the greedy one, the metric is
    // reproducible.
    check_ok(bd_validate_draft(d, prompt, 8, 20, 3, &accepted, &cycles, &err), err);
    int64_t again, cycles_again;
    check_ok(bd_validate_draft(d, prompt, 8, 20, 3, &again, &cycles_again, &err), err);
    assert_int_equal(accepted, again);
    assert_int_equal(cycles, cycles_again);
    assert_true(accepted > cycles);
    check_refused(bd_validate_draft(d, prompt, 0, 20, 3, &again, &cycles, &err), err,
                  "prompt of 0");
    bd_decoder_free(d);
    bd_draft_close(draft);
    bd_model_close(target);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counted_by_hand), cmocka_unit_test(counted_against_a_fixed_text),
        cmocka_unit_test(longest_run), cmocka_unit_test(real_models)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
