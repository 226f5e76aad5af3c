/* gradients.h - is the way back the derivative of the way forward?
 *
 * A fixture builds one result out of operands (values) and parameters. The loss is a fixed random
 * combination of the result, summed in double; every gradient is compared with central differences.
 */
#ifndef BD_TESTS_GRADIENTS_H
#define BD_TESTS_GRADIENTS_H

#include "autograd/tape.h"
#include "check.h"

enum { MOST_OPERANDS = 4, MOST_PARAMETERS = 4 };

typedef struct fixture fixture;
struct fixture {
    bd_value *(*build)(fixture *f, bd_tape *tape); /* reads leaf[] and parameter[] */
    int operands, parameters;
    bd_value *leaf[MOST_OPERANDS]; /* made anew for every run from the arrays below */
    float *operand[MOST_OPERANDS];
    int64_t rows[MOST_OPERANDS], width[MOST_OPERANDS];
    bool frozen_operand[MOST_OPERANDS];
    bd_parameter parameter[MOST_PARAMETERS];
    double step; /* of the differences; 0: 0.01 */
    /* Options of the operation under test. */
    int64_t number;
    const int32_t *indices;
    const void *more;
    bd_arena *arena;
};

static inline void fixture_operand(fixture *f, int64_t rows, int64_t width)
{
    int i = f->operands++;
    f->rows[i] = rows;
    f->width[i] = width;
    f->operand[i] = malloc((size_t)(rows * width) * sizeof(float));
    check_fill(f->operand[i], rows * width, 100 + (uint64_t)i);
}

/* rows 0: a vector. */
static inline void fixture_parameter(fixture *f, int64_t rows, int64_t width, bool trained)
{
    bd_error err = {0};
    bd_parameter *p = &f->parameter[f->parameters];
    int64_t shape[2] = {rows ? rows : width, width};
    check_ok(bd_parameter_create(p, "weight", rows ? 2 : 1, shape, 0, &err), err);
    check_fill(p->value, p->count, 200 + (uint64_t)f->parameters++);
    if (trained)
        check_ok(bd_parameter_train(p, &err), err);
}

static inline void fixture_free(fixture *f)
{
    for (int i = 0; i < f->operands; i++)
        free(f->operand[i]);
    for (int i = 0; i < f->parameters; i++)
        bd_parameter_free(&f->parameter[i]);
    bd_arena_destroy(f->arena);
}

static inline bd_value *fixture_run(fixture *f, bd_tape *tape)
{
    for (int i = 0; i < f->operands; i++) {
        f->leaf[i] = bd_tape_value(tape, f->rows[i], f->width[i], !f->frozen_operand[i]);
        memcpy(f->leaf[i]->data, f->operand[i], (size_t)(f->rows[i] * f->width[i]) * sizeof(float));
    }
    return f->build(f, tape);
}

static inline double fixture_loss(fixture *f)
{
    size_t mark = bd_arena_mark(f->arena);
    bd_tape tape = bd_tape_begin(f->arena, BD_F32, false);
    bd_value *y = fixture_run(f, &tape);
    assert_null(y->gradient);
    uint64_t state = 77;
    double loss = 0;
    for (int64_t i = 0; i < y->rows * y->width; i++)
        loss += (double)y->data[i] * (double)check_noise(&state);
    bd_arena_release(f->arena, mark);
    return loss;
}

/* Central differences of the loss in every one of `values`, against `gradient`. */
static inline void fixture_compare(fixture *f, const char *what, float *values, int64_t count,
                                   const float *gradient, bd_parameter *changed)
{
    double step = f->step > 0 ? f->step : 0.01;
    float *wanted = malloc((size_t)count * sizeof *wanted);
    for (int64_t i = 0; i < count; i++) {
        float kept = values[i];
        double loss[2];
        for (int side = 0; side < 2; side++) {
            values[i] = kept + (float)(side ? step : -step);
            if (changed)
                bd_parameter_changed(changed);
            loss[side] = fixture_loss(f);
        }
        double low = (double)(kept - (float)step), high = (double)(kept + (float)step);
        values[i] = kept;
        wanted[i] = (float)((loss[1] - loss[0]) / (high - low));
    }
    if (changed)
        bd_parameter_changed(changed);
    double found = check_relative(gradient, wanted, count);
    if (found > 1.5e-3)
        fail_msg("gradient of %s differs by %.3g relative from finite differences", what, found);
    free(wanted);
}

static inline void fixture_check(fixture *f)
{
    f->arena = check_arena();
    bd_tape tape = bd_tape_begin(f->arena, BD_F32, true);
    bd_value *y = fixture_run(f, &tape);
    bool anything = false;
    for (int i = 0; i < f->operands; i++)
        anything = anything || !f->frozen_operand[i];
    for (int i = 0; i < f->parameters; i++)
        anything = anything || f->parameter[i].gradient;
    if (!anything) { // nothing upstream is trained: no gradient, no notes
        assert_null(y->gradient);
        assert_null(tape.last);
        fixture_free(f);
        return;
    }
    assert_non_null(y->gradient);
    for (int64_t i = 0; i < y->rows * y->width; i++)
        assert_true(y->gradient[i] == 0);
    check_fill(y->gradient, y->rows * y->width, 38); // the noise of state 77 = 38 * 2 + 1
    bd_tape_backward(&tape);
    assert_null(tape.last);
    bd_value *leaf[MOST_OPERANDS]; // the runs for the differences make new ones
    memcpy(leaf, f->leaf, sizeof leaf);
    for (int i = 0; i < f->operands; i++) {
        char what[32];
        snprintf(what, sizeof what, "operand %d", i);
        if (f->frozen_operand[i])
            assert_null(leaf[i]->gradient);
        else
            fixture_compare(f, what, f->operand[i], f->rows[i] * f->width[i], leaf[i]->gradient,
                            NULL);
    }
    for (int i = 0; i < f->parameters; i++) {
        char what[32];
        snprintf(what, sizeof what, "parameter %d", i);
        bd_parameter *p = &f->parameter[i];
        if (p->gradient)
            fixture_compare(f, what, p->value, p->count, p->gradient, p);
    }
    fixture_free(f);
}

#endif
