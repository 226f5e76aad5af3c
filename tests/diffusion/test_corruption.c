/* Corruption: T-15 to T-18, the table of given draws, and what keyed draws do not depend on. */
#include "diffusion/corruption.h"

#include "base/random.h"
#include "diffusion/golden.h"
#include "parallel/layout.h"

static bd_arena *arena;

#define INTS(...) ((const int32_t[]){__VA_ARGS__})

/* The rows of T-16. */
static const int32_t tokens[20] = {11, 12, 13, 14, 15, 16, 17, 18, 19, 0,
                                   21, 22, 23, 24, 25, 26, 0,  0,  0,  0};
static const int32_t valid[20] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0};

typedef struct {
    int32_t inputs[24], corruption[24], loss[24];
    float noise[24];
} corrupted;

static corrupted corrupt(const bd_canvas *canvas, double min_noise, int64_t rows, int64_t length,
                         const int32_t *ids, const int32_t *eligible,
                         const bd_corruption_draws *draws)
{
    corrupted c;
    bd_error err = {0};
    bd_corruption out = {c.inputs, c.corruption, c.loss, c.noise};
    bd_placement placement = {rows, length, NULL, NULL};
    check_ok(bd_corrupt(canvas, min_noise, &placement, ids, eligible, draws, &out, &err), err);
    return c;
}

static void keyed_draws(void **state)
{
    (void)state;
    const uint64_t keys[2] = {bd_random_key(7, 0, 3, 0), bd_random_key(7, 0, 3, 1)};
    const bd_corruption_draws draws = {.keys = keys};
    corrupted c = corrupt(&same_position_4, 1e-3, 2, 10, tokens, valid, &draws);
    const double t[3] = {.264439, .177557, .003732};
    for (int i = 0; i < 10; i++)
        check_near((double)c.noise[i], t[i / 4], 1e-6);
    check_ints(c.corruption, INTS(1, 0, 0, 0, 0, 0, 0, 1, 1, 0), 10);
    check_ints(c.corruption + 10, INTS(0, 1, 0, 0, 1, 1, 0, 0, 0, 0), 10);
    check_ints(c.loss, c.corruption, 20);
    check_ints(c.inputs, INTS(99, 12, 13, 14, 15, 16, 17, 99, 99, 0), 10);

    c = corrupt(&shifted_4, 1e-3, 2, 10, tokens, valid, &draws);
    check_ints(c.corruption, INTS(0, 1, 0, 0, 0, 0, 0, 1, 0, 0), 10);
    check_ints(c.corruption + 10, INTS(0, 1, 0, 0, 0, 1, 0, 0, 0, 0), 10);
    check_ints(c.loss, INTS(0, 1, 0, 0, 1, 0, 0, 1, 1, 0), 10);
    check_ints(c.loss + 10, INTS(0, 1, 0, 0, 1, 1, 0, 0, 0, 0), 10);
}

static void everything(void **state)
{
    (void)state;
    const uint64_t keys[2] = {1, 2};
    const bd_corruption_draws draws = {.keys = keys};
    corrupted c = corrupt(&same_position_4, 1, 2, 10, tokens, valid, &draws);
    check_ints(c.corruption, valid, 20);
    c = corrupt(&shifted_4, 1, 2, 10, tokens, valid, &draws);
    check_ints(c.inputs, INTS(11, 99, 99, 99, 15, 99, 99, 99, 19, 0), 10);
    check_ints(c.inputs + 10, INTS(21, 99, 99, 99, 25, 99, 0, 0, 0, 0), 10);
    for (int i = 0; i < 20; i++)
        assert_int_equal(c.loss[i], valid[i] && i % 10 != 0);
    // Completion only (T-18), and a token that happens to be the mask id stays a clean token.
    const int32_t from_3[10] = {0, 0, 0, 1, 1, 1, 1, 1, 1, 0},
                  from_4[10] = {0, 0, 0, 0, 1, 1, 1, 1, 1, 0};
    c = corrupt(&same_position_4, 1, 1, 10, tokens, from_3, &draws);
    check_ints(c.inputs, INTS(11, 12, 13, 99, 99, 99, 99, 99, 99, 0), 10);
    c = corrupt(&shifted_4, 1, 1, 10, tokens, from_3, &draws);
    check_ints(c.inputs, INTS(11, 12, 13, 99, 15, 99, 99, 99, 19, 0), 10);
    check_ints(c.loss, from_3, 10);
    c = corrupt(&shifted_4, 1, 1, 10, tokens, from_4, &draws);
    check_ints(c.inputs, INTS(11, 12, 13, 14, 15, 99, 99, 99, 19, 0), 10);
    check_ints(c.loss, from_4, 10);
    const bd_canvas mask_12 = {BD_SAME_POSITION, BD_ALL_MASKED, 4, 12};
    c = corrupt(&mask_12, 1, 1, 10, tokens, from_3, &draws);
    check_ints(c.corruption, from_3, 10);
    assert_int_equal(c.inputs[1], 12);
}

static void given_draws(void **state)
{
    (void)state;
    int32_t ids[12], all[12];
    float half[12];
    for (int i = 0; i < 12; i++) {
        ids[i] = 10 + i;
        all[i] = 1;
        half[i] = .5f;
    }
    // Noise levels .1, .9, .1, given as the draws that make them with min_noise 1e-3.
    float u[3];
    for (int i = 0; i < 3; i++)
        u[i] = (float)(((i == 1 ? .9 : .1) - 1e-3) / (1 - 1e-3));
    const bd_corruption_draws draws = {.blocks = 3, .noise = u, .select = half, .fallback = half};
    corrupted c = corrupt(&same_position_4, 1e-3, 1, 12, ids, all, &draws);
    check_ints(c.corruption, INTS(1, 0, 0, 0, 1, 1, 1, 1, 1, 0, 0, 0), 12);
    c = corrupt(&shifted_4, 1e-3, 1, 12, ids, all, &draws);
    check_ints(c.corruption, INTS(0, 1, 0, 0, 0, 1, 1, 1, 0, 1, 0, 0), 12);
    check_ints(c.loss, INTS(0, 1, 0, 0, 1, 1, 1, 1, 1, 1, 0, 0), 12);
}

static void refusals(void **state)
{
    (void)state;
    bd_error err = {0};
    corrupted c;
    const uint64_t keys[2] = {1, 2};
    const bd_corruption_draws draws = {.keys = keys};
    bd_corruption out = {c.inputs, c.corruption, c.loss, NULL};
    bd_placement placement = {2, 10, NULL, NULL}, empty = {1, 0, NULL, NULL};
    const bd_canvas *same = &same_position_4;
    check_refused(bd_corrupt(same, 0, &placement, tokens, valid, &draws, &out, &err), err,
                  "min_noise is 0");
    check_refused(bd_corrupt(same, 1.5, &placement, tokens, valid, &draws, &out, &err), err,
                  "min_noise is 1.5");
    check_refused(bd_corrupt(same, (double)NAN, &placement, tokens, valid, &draws, &out, &err), err,
                  "min_noise");
    check_refused(bd_corrupt(same, .5, &empty, tokens, valid, &draws, &out, &err), err,
                  "1 rows of 0 tokens");
    const bd_canvas bad[4] = {{BD_SAME_POSITION, BD_ALL_MASKED, 0, 99},
                              {BD_SAME_POSITION, BD_ALL_MASKED, 4, -1},
                              {BD_SHIFTED, BD_ALL_MASKED, 4, 99},
                              {BD_SHIFTED, BD_SEED_AND_MASK, 1, 99}};
    const char *wanted[4] = {"block_size is 0", "mask_id is -1", "does not go with", "at least 2"};
    for (int i = 0; i < 4; i++)
        check_refused(bd_corrupt(&bad[i], .5, &placement, tokens, valid, &draws, &out, &err), err,
                      wanted[i]);

    bd_diffusion_batch batch = bd_diffusion_batch_allocate(arena, 1, 10);
    bd_corruption_options options = bd_corruption_default();
    options.completion_only = true;
    batch.completion_mask = NULL;
    check_refused(bd_corrupt_batch(&batch, same, &options, &draws, NULL, arena, &err), err,
                  "completion_only needs a completion_mask");
    options.completion_only = false;
    options.last_answer = true;
    check_refused(bd_corrupt_batch(&batch, same, &options, &draws, NULL, arena, &err), err,
                  "last answer needs completion_only");
}

/* --- whole batches ---------------------------------------------------------------------------- */

static const bd_padding no_padding = {BD_PAD_NONE, 0, 9, 4};

static void batches(void **state)
{
    (void)state;
    bd_error err = {0};
    const uint64_t keys[2] = {3, 4};
    const bd_corruption_draws draws = {.keys = keys};
    bd_corruption_options options = {.min_noise = 1};
    // Without completion_only everything real is eligible, and a missing mask is made.
    bd_diffusion_batch batch = bd_diffusion_batch_allocate(arena, 1, 8);
    bd_diffusion_batch_fill(&batch, 0, tokens, (const uint8_t[]){0, 0, 1, 1, 1}, 5, &no_padding);
    batch.completion_mask = NULL;
    check_ok(bd_corrupt_batch(&batch, &same_position_4, &options, &draws, NULL, arena, &err), err);
    check_ints(batch.completion_mask, INTS(1, 1, 1, 1, 1, 0, 0, 0), 8);
    check_ints(batch.inputs, INTS(99, 99, 99, 99, 99, 0, 0, 0), 8);
    check_ints(batch.targets, INTS(11, 12, 13, 14, 15, 0, 0, 0), 8);
    check_ok(bd_diffusion_batch_check(&batch, &same_position_4, false, &err), err);

    // Last answer: P A P A P in blocks of 4; the leak guard sees the row as it is after the cut.
    const uint8_t marks[8] = {0, 1, 0, 0, 0, 1, 1, 0};
    bd_diffusion_batch_fill(&batch, 0, tokens, marks, 8, &no_padding);
    options.completion_only = true;
    check_refused(bd_corrupt_batch(&batch, &same_position_4, &options, &draws, NULL, arena, &err),
                  err, "row 0, slot 2: prompt token after completion token");
    options.last_answer = true;
    options.pad_id = 5;
    check_ok(bd_corrupt_batch(&batch, &same_position_4, &options, &draws, NULL, arena, &err), err);
    check_ints(batch.inputs, INTS(11, 12, 13, 14, 15, 99, 99, 5), 8);
    check_ints(batch.completion_mask, INTS(0, 0, 0, 0, 0, 1, 1, 0), 8);
    assert_int_equal(batch.targets_position[7], 0);
    check_ok(bd_diffusion_batch_check(&batch, &same_position_4, true, &err), err);
}

/* Masks of a row do not depend on how rows are spread, and packed documents have blocks of their
 * own. */
static void independence(void **state)
{
    (void)state;
    bd_error err = {0};
    const uint64_t keys[2] = {bd_random_key(7, 0, 3, 0), bd_random_key(7, 0, 3, 1)};
    const bd_corruption_draws both = {.keys = keys}, second = {.keys = keys + 1};
    corrupted a = corrupt(&shifted_4, .1, 2, 10, tokens, valid, &both);
    corrupted b = corrupt(&shifted_4, .1, 1, 10, tokens + 10, valid + 10, &second);
    check_ints(b.inputs, a.inputs + 10, 10);

    // With positions and segments of one document a row, the result is the same.
    const int32_t positions[20] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 1, 2, 3, 4, 5};
    corrupted c;
    bd_corruption out = {c.inputs, c.corruption, c.loss, NULL};
    bd_placement placed = {2, 10, positions, valid};
    check_ok(bd_corrupt(&shifted_4, .1, &placed, tokens, valid, &both, &out, &err), err);
    check_ints(c.inputs, a.inputs, 20);
    check_ints(c.loss, a.loss, 20);

    // Documents of 3 and 6: anchors at 0, 3 and 7; the two that begin a document carry no loss.
    const int32_t packed[9] = {0, 1, 2, 0, 1, 2, 3, 4, 5},
                  segments[9] = {1, 1, 1, 2, 2, 2, 2, 2, 2};
    const int32_t all[9] = {1, 1, 1, 1, 1, 1, 1, 1, 1};
    bd_placement two = {1, 9, packed, segments};
    check_ok(bd_corrupt(&shifted_4, 1, &two, tokens, all, &both, &out, &err), err);
    check_ints(c.corruption, INTS(0, 1, 1, 0, 1, 1, 1, 0, 1), 9);
    check_ints(c.loss, INTS(0, 1, 1, 0, 1, 1, 1, 1, 1), 9);
}

/* --- the table -------------------------------------------------------------------------------- */

static void check_reordered(json_t *item, json_t *want, const bd_corruption *out, int64_t rows,
                            int64_t length)
{
    const char *names[4] = {"inputs", "corruption", "loss", "targets"};
    const int32_t *fields[4] = {out->inputs, out->corruption, out->loss,
                                golden_ints(item, "tokens", arena)};
    bd_error err = {0};
    int32_t *order = bd_arena_ints(arena, length), *moved = bd_arena_ints(arena, rows * length);
    check_ok(bd_layout_order(BD_LAYOUT_DUAL_CHUNK_SWAP, length, 2, order, &err), err);
    check_ints(order, golden_ints(want, "order", arena), length);
    check_ints(order, golden_ints(want, "positions", arena), length);
    for (int f = 0; f < 4; f++) {
        bd_layout_apply(order, rows, length, sizeof(int32_t), fields[f], moved);
        check_ints(moved, golden_ints(want, names[f], arena), rows * length);
    }
}

static void golden(void **state)
{
    (void)state;
    json_t *root = golden_table("corruption"), *item;
    size_t index;
    int refused = 0, reordered = 0;
    json_array_foreach(json_object_get(root, "cases"), index, item)
    {
        bd_error err = {0};
        bd_canvas canvas;
        bool error = json_is_true(json_object_get(item, "error"));
        bool made = bd_canvas_make(golden_text(item, "alignment"), golden_text(item, "canvas"),
                                   golden_int(item, "block_size"), golden_int(item, "mask_id"),
                                   &canvas, &err);
        bd_corruption_options options = {.min_noise = golden_number(item, "min_noise")};
        made = made && bd_corruption_check(&canvas, &options, &err);
        assert_int_equal(made, !error);
        refused += error;
        if (error)
            continue;
        bd_placement p = {0};
        golden_shape(item, "tokens", &p.rows, &p.length);
        int64_t cells = p.rows * p.length, block = canvas.block_size;
        bd_corruption_draws draws = {.blocks = (p.length + block - 1) / block,
                                     .noise = golden_floats(item, "noise_u", arena),
                                     .select = golden_floats(item, "select_u", arena),
                                     .fallback = golden_floats(item, "fallback_u", arena)};
        bd_corruption out = {bd_arena_ints(arena, cells), bd_arena_ints(arena, cells),
                             bd_arena_ints(arena, cells), NULL};
        check_ok(bd_corrupt(&canvas, options.min_noise, &p, golden_ints(item, "tokens", arena),
                            golden_ints(item, "eligible", arena), &draws, &out, &err),
                 err);
        check_ints(out.inputs, golden_ints(item, "inputs", arena), cells);
        check_ints(out.corruption, golden_ints(item, "corruption", arena), cells);
        check_ints(out.loss, golden_ints(item, "loss", arena), cells);
        json_t *want = json_object_get(item, "reordered");
        if (want) {
            check_reordered(item, want, &out, p.rows, p.length);
            reordered++;
        }
    }
    assert_int_equal(index, 42);
    assert_int_equal(refused, 7);
    assert_int_equal(reordered, 2);
    json_decref(root);
}

int main(void)
{
    arena = check_arena();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keyed_draws), cmocka_unit_test(everything), cmocka_unit_test(given_draws),
        cmocka_unit_test(refusals),    cmocka_unit_test(batches),    cmocka_unit_test(independence),
        cmocka_unit_test(golden),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
