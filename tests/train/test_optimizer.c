/* AdamW over parameters, clipping, division by the total weight, moment storage. */
#include "train/optimizer.h"

#include "base/threads.h"
#include "golden.h"

/* A list of trainable parameters with the given shapes. */
typedef struct {
    bd_parameter tensor[4];
    bd_parameter *items[4];
    bd_parameters list;
} bundle;

static void bundle_begin(bundle *b, int count, const int *ranks, const int64_t (*shapes)[4])
{
    static const char *const names[4] = {"a", "b", "c", "d"};
    bd_error err = {0};
    *b = (bundle){0};
    for (int i = 0; i < count; i++) {
        check_ok(bd_parameter_create(&b->tensor[i], names[i], ranks[i], shapes[i], 0, &err), err);
        check_ok(bd_parameter_train(&b->tensor[i], &err), err);
        b->items[i] = &b->tensor[i];
    }
    b->list = (bd_parameters){b->items, count};
}

static void bundle_end(bundle *b)
{
    for (int i = 0; i < b->list.count; i++)
        bd_parameter_free(&b->tensor[i]);
}

static const bd_weighted one = {.sum = 1, .denominator = 1};

static void run_adamw(const char *name)
{
    golden g = golden_open(name);
    const bd_tensor *start = golden_tensor(&g, "param0"), *gradients = golden_tensor(&g, "grads");
    const bd_tensor *params = golden_tensor(&g, "params"), *m = golden_tensor(&g, "m"),
                    *v = golden_tensor(&g, "v");
    bd_optimizer_options options = {.b1 = golden_number(g.json, "b1"),
                                    .b2 = golden_number(g.json, "b2"),
                                    .eps = golden_number(g.json, "eps"),
                                    .eps_root = golden_number(g.json, "eps_root"),
                                    .weight_decay = golden_number(g.json, "weight_decay"),
                                    .m_dtype = golden_kind(g.json, "m_kind"),
                                    .v_dtype = golden_kind(g.json, "v_kind")};
    assert_int_equal(m->dtype, options.m_dtype);
    int64_t n = start->count, steps = gradients->shape[0];
    bundle b;
    bundle_begin(&b, 1, (int[]){1}, (int64_t[][4]){{n}});
    bd_parameter *p = &b.tensor[0];
    memcpy(p->value, start->data, (size_t)n * 4);
    bd_error err = {0};
    bd_optimizer *o;
    check_ok(o = bd_optimizer_create(&b.list, &options, &err), err);
    for (int64_t step = 0; step < steps; step++) {
        uint64_t version = p->version;
        memcpy(p->gradient, (const float *)gradients->data + step * n, (size_t)n * 4);
        bd_optimizer_step(o, one, golden_number(g.json, "lr"));
        assert_true(p->version > version); // panels are out of date
        check_array(p->value, (const float *)params->data + step * n, n, 1e-6);
        const bd_tensor *want[2] = {m, v};
        const void *got[2] = {o->moments[0].m, o->moments[0].v};
        for (int i = 0; i < 2; i++) {
            size_t size = bd_dtype_size(want[i]->dtype) * (size_t)n;
            const char *row = (const char *)want[i]->data + size * (size_t)step;
            if (want[i]->dtype == BD_BF16)
                assert_memory_equal(got[i], row, size); // bit for bit
            else
                check_array((const float *)got[i], (const float *)(const void *)row, n, 1e-6);
        }
    }
    bd_optimizer_free(o);
    bundle_end(&b);
    golden_close(&g);
}

static void test_adamw(void **state)
{
    (void)state;
    static const char *const kinds[3] = {"fp32_fp32", "bf16_fp32", "bf16_bf16"};
    for (int i = 0; i < 6; i++) {
        char name[64];
        snprintf(name, sizeof name, "adamw/%s_decay_0.%d", kinds[i / 2], i % 2);
        run_adamw(name);
    }
}

static void run_clip(const char *name)
{
    golden g = golden_open(name);
    bundle b;
    bundle_begin(&b, 3, (int[]){2, 1, 3}, (int64_t[][4]){{7, 5}, {11}, {2, 3, 4}});
    for (int i = 0; i < 3; i++) {
        char tensor[32];
        snprintf(tensor, sizeof tensor, "grad.%d", i);
        memcpy(b.tensor[i].gradient, golden_tensor(&g, tensor)->data,
               (size_t)b.tensor[i].count * 4);
    }
    double norm = bd_gradient_norm(&b.list);
    check_near(norm, golden_number(g.json, "norm"), 1e-6);
    bd_gradient_scale(&b.list, bd_clip_factor(norm, golden_number(g.json, "limit")));
    for (int i = 0; i < 3; i++) {
        char tensor[32];
        snprintf(tensor, sizeof tensor, "clipped.%d", i);
        check_array(b.tensor[i].gradient, (const float *)golden_tensor(&g, tensor)->data,
                    b.tensor[i].count, 1e-6);
    }
    bundle_end(&b);
    golden_close(&g);
}

static void test_clip(void **state)
{
    (void)state;
    static const char *const names[4] = {"clip/above", "clip/below", "clip/large", "clip/zero"};
    for (int i = 0; i < 4; i++)
        run_clip(names[i]);
    assert_true(bd_clip_factor(5, 0) == 1);
    assert_true(bd_clip_factor(5, 5) == 1);
    assert_true(bd_clip_factor(5, 10) == 1);
}

// One factor does what division and clipping do one after the other. Moments tell: AdamW's first
// update itself hardly depends on the scale of the gradient.
static void test_factor(void **state)
{
    (void)state;
    bd_error err = {0};
    bundle b[2];
    bd_optimizer *o[2];
    bd_optimizer_options options = bd_optimizer_default();
    options.clip = 0.5;
    options.weight_decay = 0.1;
    for (int i = 0; i < 2; i++) {
        bundle_begin(&b[i], 2, (int[]){2, 1}, (int64_t[][4]){{9, 31}, {13}});
        for (int j = 0; j < 2; j++) {
            check_fill(b[i].tensor[j].value, b[i].tensor[j].count, 3);
            check_fill(b[i].tensor[j].gradient, b[i].tensor[j].count, 4);
        }
    }
    check_ok(o[0] = bd_optimizer_create(&b[0].list, &options, &err), err);
    double norm = bd_optimizer_step(o[0], (bd_weighted){.sum = 9, .denominator = 0.25}, 0.01);
    bd_gradient_scale(&b[1].list, 4);
    check_near(norm, bd_gradient_norm(&b[1].list), 1e-6);
    assert_true(norm > 10);
    bd_gradient_scale(&b[1].list, bd_clip_factor(norm, 0.5));
    check_near(bd_gradient_norm(&b[1].list), 0.5, 1e-6);
    options.clip = 0;
    check_ok(o[1] = bd_optimizer_create(&b[1].list, &options, &err), err);
    bd_optimizer_step(o[1], one, 0.01);
    for (int j = 0; j < 2; j++) {
        int64_t count = b[0].tensor[j].count;
        check_array(b[0].tensor[j].value, b[1].tensor[j].value, count, 1e-6);
        check_array((float *)o[0]->moments[j].m, (float *)o[1]->moments[j].m, count, 1e-6);
        check_array((float *)o[0]->moments[j].v, (float *)o[1]->moments[j].v, count, 1e-6);
    }
    for (int i = 0; i < 2; i++) {
        bd_optimizer_free(o[i]);
        bundle_end(&b[i]);
    }
}

static void test_decay(void **state)
{
    (void)state;
    bd_error err = {0};
    bundle b;
    bundle_begin(&b, 2, (int[]){2, 1}, (int64_t[][4]){{1, 2}, {2}});
    bd_optimizer_options options = bd_optimizer_default();
    options.weight_decay = 0.5;
    bd_optimizer *o;
    check_ok(o = bd_optimizer_create(&b.list, &options, &err), err);
    for (int j = 0; j < 2; j++)
        b.tensor[j].value[0] = 2, b.tensor[j].value[1] = -1;
    assert_true(bd_optimizer_step(o, one, 0.1) == 0);
    check_near(b.tensor[0].value[0], 1.9, 1e-7);
    check_near(b.tensor[0].value[1], -0.95, 1e-7);
    assert_true(b.tensor[1].value[0] == 2 && b.tensor[1].value[1] == -1);
    bd_optimizer_free(o);
    bundle_end(&b);
}

// D-07: nothing weighted gives exact zeros, whatever the buffers hold; the optimizer steps on.
static void test_nothing_weighted(void **state)
{
    (void)state;
    bd_error err = {0};
    bundle b;
    bundle_begin(&b, 1, (int[]){2}, (int64_t[][4]){{2, 2}});
    bd_optimizer_options options = bd_optimizer_default();
    bd_optimizer *o;
    check_ok(o = bd_optimizer_create(&b.list, &options, &err), err);
    float *m = o->moments[0].m;
    m[0] = 1;
    b.tensor[0].gradient[1] = NAN;
    assert_true(bd_optimizer_step(o, (bd_weighted){0}, 0.1) == 0);
    assert_int_equal(o->step, 1);
    check_near(m[0], 0.9, 1e-6);
    for (int i = 0; i < 4; i++)
        assert_true(b.tensor[0].gradient[i] == 0);
    assert_true(b.tensor[0].value[1] == 0);
    bd_optimizer_free(o);
    bundle_end(&b);
}

static void test_not_finite(void **state)
{
    (void)state;
    bd_error err = {0};
    bundle b;
    bundle_begin(&b, 1, (int[]){2}, (int64_t[][4]){{2, 2}});
    bd_optimizer_options options = bd_optimizer_default();
    bd_optimizer *o;
    check_ok(o = bd_optimizer_create(&b.list, &options, &err), err);
    uint64_t version = b.tensor[0].version;
    b.tensor[0].gradient[1] = INFINITY;
    b.tensor[0].gradient[0] = 1;
    assert_false(isfinite(bd_optimizer_step(o, one, 0.1)));
    assert_int_equal(o->step, 0);
    assert_true(b.tensor[0].value[0] == 0 && b.tensor[0].version == version);
    assert_true(((float *)o->moments[0].m)[0] == 0);
    bd_optimizer_free(o);
    bundle_end(&b);
}

// T-25: the stored moment is rounded, the update is not.
static void test_bf16_moment(void **state)
{
    (void)state;
    bd_error err = {0};
    const float want[2][2] = {{.030029296875f, .05712890625f}, {.03f, .057f}};
    for (int kind = 0; kind < 2; kind++) {
        bundle b;
        bundle_begin(&b, 1, (int[]){1}, (int64_t[][4]){{1}});
        bd_optimizer_options options = bd_optimizer_default();
        options.m_dtype = kind == 0 ? BD_BF16 : BD_F32;
        options.clip = 0;
        bd_optimizer *o;
        check_ok(o = bd_optimizer_create(&b.list, &options, &err), err);
        for (int step = 0; step < 2; step++) {
            float m;
            b.tensor[0].gradient[0] = 0.3f;
            bd_optimizer_step(o, one, 0.1);
            bd_to_f32(options.m_dtype, o->moments[0].m, &m, 1);
            check_near(m, want[kind][step], kind == 0 ? 0 : 1e-7);
        }
        bd_optimizer_free(o);
        bundle_end(&b);
    }
}

// T-21: gradients of sums, divided once by the total denominator.
static void test_total_denominator(void **state)
{
    (void)state;
    bundle b;
    bundle_begin(&b, 1, (int[]){1}, (int64_t[][4]){{1}});
    const float x[2][2] = {{0, 3}, {2, 0}}, w[2][2] = {{1, 0.5f}, {0.25f, 0}};
    const double sums[2] = {0, -0.5}, denominators[2] = {1.5, 0.25};
    bd_weighted total = {0};
    for (int micro = 0; micro < 2; micro++) {
        bd_weighted part = {0};
        float before = b.tensor[0].gradient[0];
        for (int i = 0; i < 2; i++) {
            part.sum += (double)(w[micro][i] * (1 - x[micro][i]) * (1 - x[micro][i]));
            part.denominator += (double)w[micro][i];
            b.tensor[0].gradient[0] += 2 * w[micro][i] * (1 - x[micro][i]);
        }
        check_near(b.tensor[0].gradient[0] - before, sums[micro], 1e-7);
        check_near(part.denominator, denominators[micro], 0);
        bd_error err = {0};
        check_ok(bd_weighted_add(&total, part, "loss", &err), err);
    }
    bd_gradient_scale(&b.list, bd_weighted_factor(total));
    check_near(b.tensor[0].gradient[0], -0.2857143, 1e-6);
    bundle_end(&b);
}

static void test_threads(void **state)
{
    (void)state;
    bd_error err = {0};
    bundle b[2];
    double norms[2];
    for (int i = 0; i < 2; i++) {
        bd_threads_set(i + 1);
        bundle_begin(&b[i], 2, (int[]){2, 1}, (int64_t[][4]){{300, 1001}, {77}});
        for (int j = 0; j < 2; j++) {
            check_fill(b[i].tensor[j].value, b[i].tensor[j].count, 5);
            check_fill(b[i].tensor[j].gradient, b[i].tensor[j].count, 6);
        }
        bd_optimizer_options options = bd_optimizer_default();
        bd_optimizer *o;
        check_ok(o = bd_optimizer_create(&b[i].list, &options, &err), err);
        norms[i] = bd_optimizer_step(o, one, 0.1);
        bd_optimizer_free(o);
    }
    assert_true(norms[0] == norms[1]);
    for (int j = 0; j < 2; j++)
        assert_memory_equal(b[0].tensor[j].value, b[1].tensor[j].value,
                            (size_t)b[0].tensor[j].count * 4);
    bundle_end(&b[0]);
    bundle_end(&b[1]);
    bd_threads_set(0);
}

static void test_refusals(void **state)
{
    (void)state;
    bd_error err = {0};
    bd_optimizer_options o = bd_optimizer_default();
    check_ok(bd_optimizer_check(&o, &err), err);
    o.b1 = 1;
    check_refused(bd_optimizer_check(&o, &err), err, "adam_b1 1,");
    o = bd_optimizer_default();
    o.clip = NAN;
    check_refused(bd_optimizer_check(&o, &err), err, "clip nan");
    o = bd_optimizer_default();
    o.v_dtype = BD_F16;
    check_refused(bd_optimizer_check(&o, &err), err, "F32 or BF16 expected");
    assert_int_equal(err.kind, BD_ERROR_TYPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_adamw),
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_factor),
        cmocka_unit_test(test_decay),
        cmocka_unit_test(test_nothing_weighted),
        cmocka_unit_test(test_not_finite),
        cmocka_unit_test(test_bf16_moment),
        cmocka_unit_test(test_total_denominator),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
