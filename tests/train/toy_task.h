/* toy_task.h - a task without a model, for tests of the trainer: a few tensors pulled towards
 * noise.
 *
 * loss sum = sum over elements i of weight * (value[i] - x[i])^2 / 2, x drawn from (seed, step,
 * micro). Faults can be asked for by step.
 */
#ifndef BD_TESTS_TOY_TASK_H
#define BD_TESTS_TOY_TASK_H

#include <signal.h>

#include "base/file.h"
#include "base/random.h"
#include "check.h"
#include "format/safetensors.h"
#include "train/task.h"

enum { TOY_TENSORS = 3 };

typedef struct {
    bd_parameter tensor[TOY_TENSORS];
    bd_parameter *items[TOY_TENSORS];
    bd_parameters parameters;
    uint64_t seed;
    int64_t step, micro;
    bd_dtype save_dtype;
    bool save_rounded;    /* save fp32 that is not what is trained */
    const char *identity; /* one more field of the contract */
    double weight;        /* of micro-batch 0; the others weigh half of it; 0: nothing is trained */
    int64_t stop_at;      /* raise `stop` while this step runs; -1: never */
    volatile sig_atomic_t stop;
    int64_t best_at; /* the evaluation after this step is the best one; -1: whatever comes out */
    int64_t bad_loss_at, bad_gradient_at, fail_save_at; /* steps; -1: never */
    int64_t saves;
} toy;

static const char *const toy_names[TOY_TENSORS] = {"first.weight", "norm.weight", "last.weight"};
static const int64_t toy_shapes[TOY_TENSORS][2] = {{40, 30}, {30, 1}, {7, 30}};

static inline bool toy_next(void *self, int64_t step, int64_t micro, bd_error *err)
{
    (void)err;
    toy *t = self;
    t->step = step;
    t->micro = micro;
    if (step == t->stop_at)
        t->stop = 1;
    return true;
}

static inline double toy_pull(toy *t, bool gradients)
{
    double sum = 0, weight = t->micro == 0 ? t->weight : t->weight / 2;
    for (int i = 0; i < TOY_TENSORS && weight > 0; i++) {
        bd_parameter *p = &t->tensor[i];
        uint64_t key = bd_random_key(t->seed, (uint64_t)i, (uint64_t)t->step, (uint64_t)t->micro);
        for (int64_t j = 0; j < p->count; j++) {
            double difference =
                (double)p->value[j] - (double)bd_random_normal(key, BD_STREAM_SAMPLE, (uint32_t)j);
            sum += weight * difference * difference / 2;
            if (gradients)
                p->gradient[j] += (float)(weight * difference);
        }
    }
    return sum;
}

static inline bool toy_forward(void *self, bd_tape *tape, bd_loss *loss, bd_error *err)
{
    (void)err;
    toy *t = self;
    float *scratch = bd_arena_floats(tape->arena, 100000);
    scratch[0] = 1;
    double weight = t->micro == 0 ? t->weight : t->weight / 2;
    loss->loss = (bd_weighted){.sum = toy_pull(t, true), .denominator = weight * 1447};
    loss->metrics[loss->metric_count++] = bd_metric_weighted("closeness", loss->loss);
    loss->metrics[loss->metric_count++] = bd_metric_scalar("micro", (double)t->micro);
    loss->tokens = 10;
    if (t->step == t->bad_loss_at && t->micro == 1)
        loss->loss.sum = NAN;
    if (t->step == t->bad_gradient_at)
        t->tensor[1].gradient[3] = INFINITY;
    return true;
}

static inline bool toy_evaluate(void *self, bd_tape *tape, bd_loss *loss, bd_error *err)
{
    (void)err;
    (void)tape;
    toy *t = self;
    loss->tokens = 10;
    if (t->best_at >= 0) {
        loss->loss = (bd_weighted){.sum = fabs((double)(t->step - t->best_at)), .denominator = 2};
        return true;
    }
    t->step = 1 << 20; // data that no step trains on
    t->micro = 0;
    loss->loss = (bd_weighted){.sum = toy_pull(t, false), .denominator = t->weight * 1447};
    return true;
}

static inline bool toy_identity(void *self, bd_contract *contract, bd_error *err)
{
    (void)err;
    toy *t = self;
    bd_contract_int(contract, "seed", (int64_t)t->seed);
    bd_contract_text(contract, "target", t->identity);
    return true;
}

static inline bool toy_save(void *self, const char *folder, bd_error *err)
{
    toy *t = self;
    if (t->saves++ == t->fail_save_at)
        return bd_fail(err, "%s: the disk is full", folder);
    bd_tensor tensors[TOY_TENSORS];
    void *data[TOY_TENSORS];
    for (int i = 0; i < TOY_TENSORS; i++) {
        const bd_parameter *p = &t->tensor[i];
        data[i] = malloc((size_t)p->count * 4);
        bd_from_f32(t->save_dtype, p->value, data[i], p->count);
        for (int64_t j = 0; t->save_rounded && j < p->count; j++)
            ((float *)data[i])[j] = roundf(p->value[j] * 64) / 64;
        tensors[i] = (bd_tensor){.name = p->name,
                                 .dtype = t->save_dtype,
                                 .rank = p->rank,
                                 .shape = {p->shape[0], p->shape[1]},
                                 .count = p->count,
                                 .data = data[i]};
    }
    char path[BD_PATH];
    bool ok = bd_safetensors_write_folder(folder, tensors, TOY_TENSORS, (size_t)1 << 30, err) &&
              bd_path_join(path, folder, "config.json", err) && bd_file_write(path, "{}\n", 3, err);
    for (int i = 0; i < TOY_TENSORS; i++)
        free(data[i]);
    return ok;
}

static inline bool toy_save_batch(void *self, const char *folder, bd_error *err)
{
    toy *t = self;
    char path[BD_PATH], text[64];
    int size = snprintf(text, sizeof text, "%lld %lld\n", (long long)t->step, (long long)t->micro);
    return bd_path_join(path, folder, "batch.txt", err) &&
           bd_file_write(path, text, (size_t)size, err);
}

static inline void toy_begin(toy *t, uint64_t seed)
{
    bd_error err = {0};
    *t = (toy){.seed = seed,
               .save_dtype = BD_F32,
               .identity = "noise",
               .weight = 1,
               .stop_at = -1,
               .best_at = -1,
               .bad_loss_at = -1,
               .bad_gradient_at = -1,
               .fail_save_at = -1};
    for (int i = 0; i < TOY_TENSORS; i++) {
        int rank = toy_shapes[i][1] == 1 ? 1 : 2;
        check_ok(bd_parameter_create(&t->tensor[i], toy_names[i], rank, toy_shapes[i], 0, &err),
                 err);
        bd_parameter_normal(&t->tensor[i], seed, i, 1);
        check_ok(bd_parameter_train(&t->tensor[i], &err), err);
        t->items[i] = &t->tensor[i];
    }
    t->parameters = (bd_parameters){t->items, TOY_TENSORS};
}

static inline void toy_end(toy *t)
{
    for (int i = 0; i < TOY_TENSORS; i++)
        bd_parameter_free(&t->tensor[i]);
}

static inline bd_task toy_task(toy *t)
{
    return (bd_task){.self = t,
                     .name = "toy",
                     .parameters = &t->parameters,
                     .perplexity = true,
                     .next = toy_next,
                     .forward = toy_forward,
                     .identity = toy_identity,
                     .evaluate = toy_evaluate,
                     .save = toy_save,
                     .save_batch = toy_save_batch};
}

/* Are all values of two toys the same bits? */
static inline bool toy_equal(const toy *a, const toy *b)
{
    for (int i = 0; i < TOY_TENSORS; i++)
        if (memcmp(a->tensor[i].value, b->tensor[i].value, (size_t)a->tensor[i].count * 4))
            return false;
    return true;
}

/* A fresh folder for a test; it is removed by toy_folder_remove(). In memory where there is such a
 * place: the tests write hundreds of synced files. */
static inline void toy_folder(char out[BD_PATH])
{
    snprintf(out, BD_PATH, "%s/bdlm-train-XXXXXX",
             bd_folder_exists("/dev/shm") ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(out));
    strcat(out, "/run");
}

static inline void toy_folder_remove(char folder[BD_PATH])
{
    bd_error err = {0};
    *strrchr(folder, '/') = 0;
    check_ok(bd_folder_remove(folder, &err), err);
}

#endif
