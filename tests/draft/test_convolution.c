/* Convolutions around sublayers: the hand-computed values T1 to T4 of the spec, and the way back
 * against central differences. */
#include "../autograd/gradients.h"
#include "draft/convolution.h"

static bd_convolution hand_made(bd_parameter *base, const float *taps, int64_t count,
                                int64_t hidden, bd_parameter *projection, const float *rows,
                                int64_t outputs)
{
    bd_parameter_map(base, "base", 3, (int64_t[]){2, count, hidden}, BD_F32, taps);
    bd_parameter_map(projection, "projection", 2, (int64_t[]){outputs, hidden}, BD_F32, rows);
    return (bd_convolution){base, projection};
}

// T1: tap 1 alone, which shifts rows by one and starts every block with zeros.
static void blocks_start_with_zeros(void **state)
{
    (void)state;
    bd_arena *arena = check_arena();
    bd_parameter base, projection;
    const float taps[8] = {0, 0, 1, 1, 0, 0, 0, 0}, none[4 * 2] = {0};
    const float x[12] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    const float want[12] = {0, 0, 1, 2, 3, 4, 0, 0, 7, 8, 9, 10};
    bd_convolution conv = hand_made(&base, taps, 2, 2, &projection, none, 4);
    bd_tape tape = bd_tape_begin(arena, BD_F32, false);
    bd_value *rows = bd_tape_constant(&tape, x, 6, 2);
    bd_value *delta = bd_convolution_coefficients(&conv, &tape, rows);
    check_array(bd_convolution_apply(&conv, &tape, 0, rows, delta, 3)->data, want, 12, 0);
    bd_parameter_free(&base);
    bd_parameter_free(&projection);
    bd_arena_destroy(arena);
}

typedef struct {
    bd_arena *arena;
    bd_parameter base, projection;
    bd_convolution conv;
} hand;

static const float t3_rows[16] = {1, 2, 0, -1, 3, -1, 1, 2, -2, 1, 4, 0, 0, 1, -1, 1};

static void t3_open(hand *h)
{
    static const float taps[16] = {1, 1, 1, 1, .5f, 0, -.5f, 1, 1, 1, 1, 1, 0, .25f, 0, -1};
    static float rows[8 * 4];
    static const struct {
        int row, column;
        float value;
    } set[] = {{0, 0, .1f}, {1, 2, .1f}, {2, 1, .2f}, {3, 3, .2f},
               {4, 1, .1f}, {5, 0, .1f}, {6, 2, .5f}, {7, 3, -.5f}};
    for (size_t i = 0; i < 8; i++)
        rows[set[i].row * 4 + set[i].column] = set[i].value;
    h->arena = check_arena();
    h->conv = hand_made(&h->base, taps, 2, 4, &h->projection, rows, 8);
}

static void t3_close(hand *h)
{
    bd_parameter_free(&h->base);
    bd_parameter_free(&h->projection);
    bd_arena_destroy(h->arena);
}

static void both_sides(void **state)
{
    (void)state;
    hand h;
    t3_open(&h);
    const float want[16] = {1.1f,  2.2f, 0,    -1, 4.2f,  -1.7f, 1.1f,  .8f,
                            -1.6f, .8f,  5.6f, 0,  -1.4f, 1.2f,  -2.1f, .9f};
    const float side1[16] = {.2f, .1f,  0, .5f, -.1f, .3f, .5f,  -1,
                             .1f, -.2f, 2, 0,   .1f,  0,   -.5f, -.5f};
    const float after[16] = {2.64f,  5.28f, 0,     -2.2f, 8.66f,  .24f,  2.86f, 6.08f,
                             -3.52f, 1.76f, 8.96f, 0,     -1.48f, 2.24f, -9.8f, 1.8f};
    bd_tape tape = bd_tape_begin(h.arena, BD_F32, false);
    bd_value *x = bd_tape_constant(&tape, t3_rows, 4, 4);
    bd_value *delta = bd_convolution_coefficients(&h.conv, &tape, x);
    for (int i = 0; i < 4; i++)
        check_array(delta->data + i * 8 + 4, side1 + i * 4, 4, 1e-6);
    bd_value *y = bd_convolution_apply(&h.conv, &tape, 0, x, delta, 2);
    check_array(y->data, want, 16, 1e-6);
    bd_scale(2, 16, y->data);
    check_array(bd_convolution_apply(&h.conv, &tape, 1, y, delta, 2)->data, after, 16, 1e-6);
    t3_close(&h);
}

// T4: the gradients of T3's first side by hand.
static void way_back(void **state)
{
    (void)state;
    hand h;
    bd_error err = {0};
    t3_open(&h);
    check_ok(bd_parameter_train(&h.base, &err) && bd_parameter_train(&h.projection, &err), err);
    const float dx[16] = {.31f,  .1f,   .19f,  1.52f, .74f,  1.12f, 1,     .72f,
                          1.55f, 1.08f, 1.53f, 3.6f,  1.44f, 1.16f, 1.36f, 2.64f};
    const float base[16] = {-.2f, 2.2f, 3.6f, 2.8f, -2.1f, 2.6f, 6, -.8f};
    const float weight[32] = {4.8f, .7f,   -3.7f, 2.7f, -2.3f, 1.4f, 19.8f, 5.1f,
                              5.1f, -2.9f, 2.9f,  2.2f, -2.4f, 6.8f, -6.8f, 4.4f};
    bd_tape tape = bd_tape_begin(h.arena, BD_F32, true);
    bd_value *x = bd_tape_value(&tape, 4, 4, true);
    memcpy(x->data, t3_rows, sizeof t3_rows);
    bd_value *y = bd_convolution_apply(&h.conv, &tape, 0, x,
                                       bd_convolution_coefficients(&h.conv, &tape, x), 2);
    for (int i = 0; i < 16; i++)
        y->gradient[i] = (float)(i + 1) / 10;
    bd_tape_backward(&tape);
    check_array(x->gradient, dx, 16, 2e-6);
    check_array(h.base.gradient, base, 16, 2e-6);
    check_array(h.projection.gradient, weight, 32, 2e-6);
    t3_close(&h);
}

static bd_value *build(fixture *f, bd_tape *tape)
{
    bd_convolution conv = {&f->parameter[0], &f->parameter[1]};
    bd_value *delta = bd_convolution_coefficients(&conv, tape, f->leaf[0]);
    bd_value *y = bd_convolution_apply(&conv, tape, 0, f->leaf[0], delta, 5);
    return bd_convolution_apply(&conv, tape, 1, y, delta, 5);
}

static void differences(void **state)
{
    (void)state;
    for (int mask = 0; mask < 8; mask++) {
        fixture f = {.build = build};
        fixture_operand(&f, 10, 6);
        f.frozen_operand[0] = !(mask & 1);
        fixture_parameter(&f, 6, 6, mask & 2);
        f.parameter[0].rank = 3;
        memcpy(f.parameter[0].shape, (int64_t[]){2, 3, 6}, 3 * sizeof(int64_t));
        fixture_parameter(&f, 18, 6, mask & 4); // 2 sides, 3 taps, 3 groups of 2
        fixture_check(&f);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_start_with_zeros),
        cmocka_unit_test(both_sides),
        cmocka_unit_test(way_back),
        cmocka_unit_test(differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
