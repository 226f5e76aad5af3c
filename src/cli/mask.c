/* bdlm mask - the picture of an attention rule, in the terminal or as SVG.
 *
 * Every square asks bd_visibility_allows(), the function training and generation ask.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "attention/visibility.h"
#include "base/arena.h"
#include "base/file.h"
#include "cli/command.h"
#include "cli/options.h"
#include "parallel/layout.h"

typedef struct {
    const char *kind, *layout, *packed, *anchors, *svg;
    int64_t length, block_size, window, shards, tile;
    bool causal_in_block, plain;
    // Made from these.
    bd_visibility rule;
    bd_anchors blocks;
} picture;

/* "3,5,4" into numbers; at most `most`. */
static int64_t read_list(const char *text, int64_t *out, int64_t most, const char *option,
                         bd_error *err)
{
    int64_t count = 0;
    for (const char *at = text; at && *at;) {
        char *end;
        long long value = strtoll(at, &end, 10);
        if (end == at || (*end && *end != ',') || value < 0 || count == most) {
            bd_fail_as(err, BD_ERROR_USAGE, "%s: %s is not a list of at most %lld numbers", option,
                       text, (long long)most);
            return -1;
        }
        out[count++] = value;
        at = *end ? end + 1 : end;
    }
    return count;
}

/* Positions restart and segments count up per document; what is left of the row is padding. */
static bool pack(picture *p, bd_arena *arena, bd_error *err)
{
    int64_t sizes[64], used = 0;
    int64_t count = read_list(p->packed, sizes, 64, "--packed", err);
    if (count < 0)
        return false;
    int32_t *position = bd_arena_ints(arena, p->length), *segment = bd_arena_ints(arena, p->length);
    memset(position, 0, (size_t)p->length * sizeof *position);
    memset(segment, 0, (size_t)p->length * sizeof *segment);
    for (int64_t d = 0; d < count; d++)
        for (int64_t i = 0; i < sizes[d]; i++, used++) {
            if (used == p->length)
                return bd_fail_as(err, BD_ERROR_USAGE, "--packed: more than the row's %lld tokens",
                                  (long long)used);
            position[used] = (int32_t)i;
            segment[used] = (int32_t)d + 1;
        }
    p->rule.query_position = p->rule.key_position = position;
    p->rule.query_segment = p->rule.key_segment = segment;
    return true;
}

static bool reorder(picture *p, bd_arena *arena, bd_error *err)
{
    bd_layout layout;
    int32_t *order = bd_arena_ints(arena, p->length);
    if (!bd_layout_from_name(p->layout, &layout, err) ||
        !bd_layout_order(layout, p->length, p->shards, order, err))
        return false;
    p->rule.query_position = p->rule.key_position =
        order; // a slot's position is what was in it before
    return true;
}

static bool place_anchors(picture *p, bd_arena *arena, bd_error *err)
{
    int64_t list[64];
    int64_t count = read_list(p->anchors ? p->anchors : "1,3", list, 64, "--anchors", err);
    if (count < 1)
        return count == 0 ? bd_fail_as(err, BD_ERROR_USAGE, "--anchors: at least one is wanted")
                          : false;
    int32_t *anchor = bd_arena_ints(arena, count);
    uint8_t *keep = bd_arena_alloc(arena, (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        if (list[i] >= p->length)
            return bd_fail_as(err, BD_ERROR_USAGE, "--anchors: %lld, below the length %lld wanted",
                              (long long)list[i], (long long)p->length);
        anchor[i] = (int32_t)list[i];
        keep[i] = 1;
    }
    p->blocks = (bd_anchors){count, anchor, keep};
    p->rule.anchors = &p->blocks;
    p->rule.context_length = p->length;
    p->rule.query_length = count * p->block_size;
    p->rule.key_length = p->length + p->rule.query_length;
    return true;
}

static bool make_rule(picture *p, bd_arena *arena, bd_error *err)
{
    static const char *const kinds[] = {"causal", "block-diffusion", "doubled", "draft"};
    int kind = 0;
    while (strcmp(kinds[kind], p->kind) != 0)
        kind++;
    bool doubled = kind == BD_DOUBLED;
    p->rule = (bd_visibility){.kind = (bd_visibility_kind)kind,
                              .query_length = doubled ? 2 * p->length : p->length,
                              .key_length = doubled ? 2 * p->length : p->length,
                              .block_size = p->block_size,
                              .window = p->window,
                              .causal_in_block = p->causal_in_block};
    if (kind == BD_DRAFT)
        return place_anchors(p, arena, err);
    if (doubled && (p->packed || p->layout))
        return bd_fail_as(err, BD_ERROR_USAGE,
                          "--packed and --layout go with causal and block-diffusion");
    if (p->packed && p->layout)
        return bd_fail_as(err, BD_ERROR_USAGE, "--packed and --layout cannot go together");
    if (p->packed)
        return pack(p, arena, err);
    return !p->layout || reorder(p, arena, err);
}

// --- drawing -------------------------------------------------------------------------------------

static void draw_terminal(const picture *p)
{
    bool colour = isatty(1) && !p->plain;
    for (int64_t q = 0; q < p->rule.query_length; q++) {
        for (int64_t k = 0; k < p->rule.key_length; k++) {
            bool visible = bd_visibility_allows(&p->rule, 0, q, k);
            if (p->plain)
                putchar(visible ? '1' : '.');
            else if (colour)
                fputs(visible ? "\033[44m  \033[0m" : "\033[2m··\033[0m", stdout);
            else
                fputs(visible ? "██" : "··", stdout);
        }
        putchar('\n');
    }
}

static void draw_tiles(const picture *p)
{
    printf("\ntiles of %lld x %lld (F every pair, P some, E none: skipped):\n", (long long)p->tile,
           (long long)p->tile);
    for (int64_t q = 0; q < p->rule.query_length; q += p->tile) {
        for (int64_t k = 0; k < p->rule.key_length; k += p->tile) {
            bd_range rows = {q, q + p->tile < p->rule.query_length ? q + p->tile
                                                                   : p->rule.query_length};
            bd_range columns = {k, k + p->tile < p->rule.key_length ? k + p->tile
                                                                    : p->rule.key_length};
            putchar("EPF"[bd_visibility_tile(&p->rule, 0, rows, columns)]);
        }
        putchar('\n');
    }
}

static bool draw_svg(const picture *p, bd_error *err)
{
    enum { CELL = 12 };
    bd_writer *out = bd_writer_open(p->svg, err);
    if (!out)
        return false;
    bd_writer_print(
        out,
        "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %lld %lld'>\n<title>%s</title>\n"
        "<rect width='100%%' height='100%%' fill='#f3f4f6'/>\n<g fill='#2563eb'>\n",
        (long long)(CELL * p->rule.key_length), (long long)(CELL * p->rule.query_length), p->kind);
    for (int64_t q = 0; q < p->rule.query_length; q++)
        for (int64_t k = 0; k < p->rule.key_length; k++)
            if (bd_visibility_allows(&p->rule, 0, q, k))
                bd_writer_print(out, "<rect x='%lld' y='%lld' width='%d' height='%d'/>\n",
                                (long long)(k * CELL), (long long)(q * CELL), CELL - 1, CELL - 1);
    bd_writer_print(out, "</g>\n</svg>\n");
    return bd_writer_commit(out, err);
}

static bool draw(picture *p, bd_error *err)
{
    bd_arena *arena = bd_arena_create((size_t)1 << 30, err);
    if (!arena)
        return false;
    bool ok = make_rule(p, arena, err);
    if (ok && p->svg)
        ok = draw_svg(p, err);
    else if (ok)
        draw_terminal(p);
    if (ok && p->tile)
        draw_tiles(p);
    if (ok) {
        fflush(stdout);
        fprintf(stderr, "%lld of %lld pairs visible\n", (long long)bd_visibility_count(&p->rule, 0),
                (long long)(p->rule.query_length * p->rule.key_length));
    }
    bd_arena_destroy(arena);
    return ok;
}

int bd_command_mask(int argc, char **argv)
{
    picture p = {.kind = "block-diffusion", .length = 16, .block_size = 4, .shards = 2};
    const bd_option list[] = {
        {"rule", NULL, BD_ARGUMENT_CHOICE, "causal|block-diffusion|doubled|draft", "which rule",
         &p.kind, 0, 0, false},
        {"length", "n", BD_ARGUMENT_INT, "N", "tokens of the row (16)", &p.length, 1, 4096, false},
        {"block-size", NULL, BD_ARGUMENT_INT, "N", "tokens per block (4)", &p.block_size, 1, 4096,
         false},
        {"window", NULL, BD_ARGUMENT_INT, "N", "causal, draft: tokens looked back on; 0: all (0)",
         &p.window, 0, 1e6, false},
        {"packed", NULL, BD_ARGUMENT_TEXT, "N,N,...",
         "documents of these lengths in the row; the rest is padding", &p.packed, 0, 0, false},
        {"layout", NULL, BD_ARGUMENT_CHOICE, "in_order|dual_chunk_swap|striped",
         "reordered for --shards ranks", &p.layout, 0, 0, false},
        {"shards", NULL, BD_ARGUMENT_INT, "N", "ranks of --layout (2)", &p.shards, 1, 64, false},
        {"anchors", NULL, BD_ARGUMENT_TEXT, "N,N,...", "draft: where blocks start (1,3)",
         &p.anchors, 0, 0, false},
        {"causal-in-block", NULL, BD_ARGUMENT_FLAG, NULL,
         "draft: a slot sees only slots up to itself", &p.causal_in_block, 0, 0, false},
        {"tile", NULL, BD_ARGUMENT_INT, "N", "also print the classes of N x N tiles", &p.tile, 1,
         4096, false},
        {"plain", NULL, BD_ARGUMENT_FLAG, NULL, "1 and . instead of squares", &p.plain, 0, 0,
         false},
        {"svg", NULL, BD_ARGUMENT_TEXT, "FILE.svg", "a picture instead", &p.svg, 0, 0, false},
    };
    const bd_options options = {
        .command = "mask",
        .summary = "Draws who may read whom: a row per query, a column per key. Keys of a "
                   "draft are the context first, then the blocks.",
        .list = list,
        .count = sizeof list / sizeof *list};
    bd_error err = {0};
    if (!bd_options_parse(&options, argc, argv, &err))
        return bd_usage_error("mask", &err);
    return draw(&p, &err) ? 0 : bd_run_error("mask", &err);
}
