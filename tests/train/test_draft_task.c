/* Training a drafter: the same weights wherever the hidden states come from, the loss mask of the
 * records, tensors that are not trained. */
#include "train/draft_task.h"

#include <unistd.h>

#include "base/file.h"
#include "draft/micro.h"
#include "train/states_cache.h"
#include "train/trainer.h"

enum { ROWS = 20, STEPS = 6 };
static int32_t tokens[ROWS * MICRO_S];
static char folder[64];

static int begin(void **state)
{
    (void)state;
    snprintf(folder, sizeof folder, "/tmp/bdlm-draft-task-%ld", (long)getpid());
    for (int i = 0; i < ROWS * MICRO_S; i++)
        tokens[i] = (int32_t)(micro_hash(5, i) % 10);
    return 0;
}

static int end(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_folder_remove(folder, &err);
    return 0;
}

static bd_draft_task_options options_of(micro *m, const bd_states_source *source)
{
    return (bd_draft_task_options){.draft = m->draft,
                                   .tokens = tokens,
                                   .token_count = ROWS * MICRO_S,
                                   .sequence_length = MICRO_S,
                                   .batch_rows = 2,
                                   .micro_batches = 2,
                                   .evaluation_rows = 2,
                                   .anchors = 4,
                                   .objective = bd_draft_objective_default(),
                                   .steps = STEPS,
                                   .lambda_start = 1,
                                   .lambda_ratio = 1,
                                   .seed = 3,
                                   .save_dtype = BD_F32,
                                   .source = source};
}

static bd_train_result train(const bd_draft_task_options *options)
{
    bd_error err = {0};
    bd_task task;
    bd_train_result result;
    bd_trainer_options trainer = bd_trainer_default();
    trainer.compute = BD_F32;
    trainer.steps = STEPS;
    trainer.micro_batches = 2;
    check_ok(bd_draft_task_create(options, &task, &err), err);
    check_ok(bd_train(&task, &trainer, &result, &err), err);
    bd_draft_task_free(&task);
    return result;
}

static bd_states_cache *make_cache(micro *m, bd_dtype dtype, bool final, bool prenorm,
                                   const uint8_t *mask)
{
    bd_error err = {0};
    bool stopped;
    bd_states_cache_about about = {.tokens = tokens, .loss_mask = mask, .rows = ROWS};
    bd_folder_remove(folder, &err);
    check_ok(bd_states_layout_make(m->target, m->draft->config.taps, 2, MICRO_S, dtype,
                                   &about.layout, &err),
             err);
    about.layout.final = final;
    about.layout.prenorm = prenorm;
    about.file_bytes = 10000;
    check_ok(bd_states_cache_write(folder, m->target, &about, false, NULL, NULL, &stopped, &err),
             err);
    bd_states_cache *cache = bd_states_cache_open(folder, &err);
    check_ok(cache != NULL, err);
    return cache;
}

static bool same_weights(const micro *a, const micro *b)
{
    for (int64_t i = 0; i < a->draft->parameters.count; i++) {
        const bd_parameter *p = a->draft->parameters.items[i], *q = b->draft->parameters.items[i];
        if (memcmp(p->value, q->value, (size_t)p->count * sizeof(float)))
            return false;
    }
    return true;
}

static void offline_is_online(void **state)
{
    (void)state;
    micro *online = micro_open();
    bd_draft_task_options options = options_of(online, NULL);
    bd_train_result want = train(&options);
    for (int prenorm = 0; prenorm < 2; prenorm++)
        for (int wide = 0; wide < 2; wide++) {
            micro *m = micro_open();
            bd_states_cache *cache = make_cache(m, wide ? BD_F64 : BD_F32, true, prenorm, NULL);
            bd_states_source source = bd_states_cache_source(cache);
            assert_false(same_weights(m, online));
            options = options_of(m, &source);
            bd_train_result got = train(&options);
            assert_true(same_weights(m, online));
            assert_true(got.loss == want.loss && got.evaluation == want.evaluation);
            bd_states_cache_close(cache);
            micro_close(m);
        }
    micro_close(online);
}

/* Rows whose records mark nothing as answers train nothing; the mask is the record's own. */
static void the_records_say_what_counts(void **state)
{
    (void)state;
    uint8_t mask[ROWS * MICRO_S] = {0};
    micro *m = micro_open(), *fresh = micro_open();
    bd_states_cache *cache = make_cache(m, BD_F32, true, false, mask);
    bd_states_source source = bd_states_cache_source(cache);
    bd_draft_task_options options = options_of(m, &source);
    train(&options);
    bd_states_cache_close(cache);
    assert_true(same_weights(m, fresh));
    memset(mask, 1, sizeof mask);
    cache = make_cache(m, BD_F32, true, false, mask);
    source = bd_states_cache_source(cache);
    train(&options);
    assert_false(same_weights(m, fresh));
    bd_states_cache_close(cache);
    micro_close(m);
    micro_close(fresh);
}

static void refusals(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_task task;
    micro *m = micro_open();
    bd_states_cache *cache = make_cache(m, BD_F32, false, false, NULL);
    bd_states_source source = bd_states_cache_source(cache);
    bd_draft_task_options options = options_of(m, &source);
    check_refused(bd_draft_task_create(&options, &task, &err), err,
                  "final_states: found false, true expected");
    options.objective.distill = false; // then nobody reads them
    train(&options);
    // Field report 31: the right number of layers, and not the right ones.
    source.layout.taps[1]++;
    check_refused(bd_draft_task_create(&options, &task, &err), err, "target_layer_ids: found [");
    source.layout.taps[1]--;
    // Records of another text: told when they are read.
    int32_t first = tokens[0];
    tokens[0] = (first + 1) % 10;
    bd_trainer_options trainer = bd_trainer_default();
    trainer.steps = STEPS;
    trainer.micro_batches = 2;
    check_ok(bd_draft_task_create(&options, &task, &err), err);
    check_refused(bd_train(&task, &trainer, NULL, &err), err, "row 0: found other tokens");
    bd_draft_task_free(&task);
    tokens[0] = first;
    bd_states_cache_close(cache);
    micro_close(m);
}

static void frozen_tensors_stay(void **state)
{
    (void)state;
    micro *m = micro_open(), *fresh = micro_open();
    bd_parameter *items[64];
    bd_parameters trained = {.items = items};
    const bd_parameters *all = &m->draft->parameters;
    for (int64_t i = 0; i < all->count; i += 2)
        items[trained.count++] = all->items[i];
    bd_draft_task_options options = options_of(m, NULL);
    options.trained = &trained;
    train(&options);
    for (int64_t i = 0; i < all->count; i++) {
        const bd_parameter *p = all->items[i], *old = fresh->draft->parameters.items[i];
        bool same = !memcmp(p->value, old->value, (size_t)p->count * sizeof(float));
        assert_int_equal(same, i % 2);
    }
    micro_close(m);
    micro_close(fresh);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(offline_is_online),
        cmocka_unit_test(the_records_say_what_counts),
        cmocka_unit_test(refusals),
        cmocka_unit_test(frozen_tensors_stay),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
