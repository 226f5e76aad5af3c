/* Whose head a draft reads, and what long use of one decoder leaves behind. Numbers and links are
 * those of the project's list of field reports. */
#include <unistd.h>

#include "base/file.h"
#include "draft/micro.h"
#include "draft/speculative.h"

static char folder[BD_PATH];

/* The micro draft's file with one more tensor: a head of `rows` rows, the target's but for the last
 * value, to which `difference` is added. */
static void save_with_head(const micro *m, int64_t rows, float difference)
{
    enum { MOST = 64 };
    bd_error err = {0};
    char path[BD_PATH + 32];
    static float head[MICRO_V * MICRO_H];
    static bd_tensor tensors[MOST];
    check_ok(bd_draft_save(m->draft, folder, BD_F32, &err), err);
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    bd_safetensors *file = bd_safetensors_open(path, &err);
    check_ok(file != NULL, err);
    int64_t count = bd_safetensors_count(file);
    assert_true(count < MOST);
    for (int64_t i = 0; i < count; i++)
        tensors[i] = *bd_safetensors_at(file, i);
    memcpy(head, m->target->head->data, sizeof head);
    head[rows * MICRO_H - 1] += difference;
    tensors[count] = (bd_tensor){.name = "lm_head.weight",
                                 .dtype = BD_F32,
                                 .rank = 2,
                                 .shape = {rows, MICRO_H},
                                 .count = rows * MICRO_H,
                                 .data = head};
    check_ok(bd_safetensors_write(path, tensors, count + 1, NULL, &err), err);
    bd_safetensors_close(file);
}

/* #33 vllm-ascend#11374 (https://github.com/vllm-project/vllm-ascend/issues/11374): a draft's own,
 * smaller head was silently replaced by the target's. Here a head in the file either is the
 * target's to the last bit or the file is refused, by name. */
static void a_head_is_never_replaced(void **state)
{
    (void)state;
    bd_error err = {0};
    micro *m = micro_open();
    save_with_head(m, MICRO_V, 0);
    bd_draft *draft = bd_draft_open(folder, m->target, BD_F32, &err);
    check_ok(draft != NULL, err);
    bd_draft_close(draft);
    save_with_head(m, MICRO_V, 1e-3f);
    check_refused(bd_draft_open(folder, m->target, BD_F32, &err), err,
                  "\"lm_head.weight\" is not the target's");
    save_with_head(m, MICRO_V - 2, 0);
    check_refused(bd_draft_open(folder, m->target, BD_F32, &err), err,
                  "\"lm_head.weight\" is not the target's");
    check_ok(bd_folder_remove(folder, &err), err);
    micro_close(m);
}

/* #42 vllm#55279 (https://github.com/vllm-project/vllm/issues/55279): an index that only ever grew
 * ran out of bounds after some 11,000 sampled steps. One decoder is used for more than that; the
 * text of a seed is the same before and after. */
static void a_decoder_does_not_wear_out(void **state)
{
    (void)state;
    enum { NEW = 48, STEPS = 12000 };
    const int32_t prompt[3] = {3, 1, 4};
    bd_error err = {0};
    micro *m = micro_open();
    bd_decoder *decoder = bd_decoder_create(m->target, m->draft, 64, &err);
    check_ok(decoder != NULL, err);
    bd_generation g = bd_generation_default();
    g.most = NEW;
    g.sampling.temperature = 1;
    int32_t first[NEW], out[NEW];
    int64_t steps = 0;
    for (uint64_t run = 0; steps < STEPS; run++) {
        bd_generation_report report;
        g.sampling.seed = run;
        assert_int_equal(bd_generate(decoder, prompt, 3, &g, out, &report, &err), NEW);
        steps += report.cycles;
        for (int i = 0; i < NEW; i++)
            assert_in_range(out[i], 0, MICRO_V - 1);
        if (run == 0)
            memcpy(first, out, sizeof first);
    }
    g.sampling.seed = 0;
    assert_int_equal(bd_generate(decoder, prompt, 3, &g, out, NULL, &err), NEW);
    assert_memory_equal(out, first, sizeof first);
    bd_decoder_free(decoder);
    micro_close(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_head_is_never_replaced),
        cmocka_unit_test(a_decoder_does_not_wear_out),
    };
    snprintf(folder, sizeof folder, "/tmp/bdlm-head-%ld", (long)getpid());
    return cmocka_run_group_tests(tests, NULL, NULL);
}
