#include "train/row_plan.h"

#include <assert.h>
#include <stdlib.h>

/* A document, or the part of one that lies in one row. */
typedef struct {
    int64_t begin, count;
} piece;

struct bd_row_plan {
    bd_token_documents documents;
    bd_row_layout layout;
    piece *pieces;
    int64_t piece_count, piece_room;
    int64_t *ends; // row r is pieces [ends[r - 1], ends[r])
    int64_t rows, row_room;
    int64_t lost;
    bool out_of_memory;
};

int64_t *bd_document_ends(const int32_t *tokens, int64_t token_count, int32_t end_id,
                          int64_t *count, bd_error *err)
{
    int64_t documents = 0;
    for (int64_t i = 0; i < token_count; i++)
        documents += i + 1 == token_count || (end_id >= 0 && tokens[i] == end_id);
    int64_t *ends = malloc((size_t)(documents + 1) * sizeof *ends);
    if (!ends) {
        bd_fail_as(err, BD_ERROR_SYSTEM, "data: no memory for the ends of %lld documents",
                   (long long)documents);
        return NULL;
    }
    *count = 0;
    for (int64_t i = 0; i < token_count; i++)
        if (i + 1 == token_count || (end_id >= 0 && tokens[i] == end_id))
            ends[(*count)++] = i + 1;
    return ends;
}

double bd_completion_share(const bd_token_documents *documents)
{
    int64_t tokens = documents->count ? documents->ends[documents->count - 1] : 0, marked = 0;
    if (!documents->completion)
        return 1;
    for (int64_t i = 0; i < tokens; i++)
        marked += documents->completion[i] != 0;
    return tokens ? (double)marked / (double)tokens : 0;
}

// --- making a plan -------------------------------------------------------------------------------

static void *grow(bd_row_plan *plan, void *list, int64_t count, int64_t *room, size_t size)
{
    if (count < *room)
        return list;
    int64_t wanted = *room ? 2 * *room : 64;
    void *larger = realloc(list, (size_t)wanted * size);
    if (!larger) {
        plan->out_of_memory = true;
        return list;
    }
    *room = wanted;
    return larger;
}

static void add_piece(bd_row_plan *plan, piece added)
{
    plan->pieces =
        grow(plan, plan->pieces, plan->piece_count, &plan->piece_room, sizeof *plan->pieces);
    if (!plan->out_of_memory)
        plan->pieces[plan->piece_count++] = added;
}

static void end_row(bd_row_plan *plan)
{
    int64_t begin = plan->rows ? plan->ends[plan->rows - 1] : 0;
    if (plan->out_of_memory || begin == plan->piece_count)
        return;
    plan->ends = grow(plan, plan->ends, plan->rows, &plan->row_room, sizeof *plan->ends);
    if (!plan->out_of_memory)
        plan->ends[plan->rows++] = plan->piece_count;
}

/* Slots that a piece takes, end tokens included; bd_diffusion_batch_append adds as many. */
static int64_t slots_of(const bd_row_plan *plan, piece p)
{
    const bd_padding *padding = &plan->layout.padding;
    const uint8_t *completion = plan->documents.completion;
    bool ends = !completion || completion[p.begin + p.count - 1];
    if (!ends || padding->policy != BD_PAD_TO_BLOCK_END)
        return p.count;
    return (p.count + padding->block_size - 1) / padding->block_size * padding->block_size;
}

/* Lay one document down; `used` slots of the open row are taken. Returns the same afterwards. */
static int64_t lay(bd_row_plan *plan, int64_t begin, int64_t end, int64_t used)
{
    const bd_row_layout *layout = &plan->layout;
    while (begin < end && !plan->out_of_memory) {
        piece p = {.begin = begin, .count = end - begin};
        int64_t room = layout->length - used;
        if (used > 0 && (!layout->packing || (!layout->cut && slots_of(plan, p) > room))) {
            end_row(plan);
            used = 0;
            continue;
        }
        if (p.count > room)
            p.count = room; // and with the row full no end tokens follow
        int64_t slots = slots_of(plan, p);
        add_piece(plan, p);
        used += slots < room ? slots : room;
        begin += p.count;
        if (used == layout->length) {
            end_row(plan);
            used = 0;
        }
        if (!layout->cut) {
            plan->lost += end - begin;
            break;
        }
    }
    return used;
}

static bool check(const bd_token_documents *documents, const bd_row_layout *layout, bd_error *err)
{
    if (layout->length < 1 || layout->length > INT32_MAX)
        return bd_fail(err, "sequence_length: %lld, at least 1 expected",
                       (long long)layout->length);
    if (layout->packing && layout->padding.policy == BD_PAD_IN_LOSS)
        return bd_fail(err, "pad_policy eos-in-loss with packing: the end tokens would fill the "
                            "row, packing false wanted");
    if (layout->padding.policy == BD_PAD_TO_BLOCK_END && layout->padding.block_size < 1)
        return bd_fail(err, "pad_policy to-block-end needs blocks, objective block_diffusion "
                            "wanted");
    if (layout->padding.policy != BD_PAD_NONE && layout->padding.end_id < 0)
        return bd_fail(err, "pad_policy %s needs an end token, the tokenizer names none",
                       bd_pad_policy_name(layout->padding.policy));
    if (documents->count < 1 || documents->ends[documents->count - 1] < 1)
        return bd_fail(err, "data: no documents");
    return true;
}

bd_row_plan *bd_row_plan_create(const bd_token_documents *documents, const bd_row_layout *layout,
                                bd_error *err)
{
    if (!check(documents, layout, err))
        return NULL;
    bd_row_plan *plan = calloc(1, sizeof *plan);
    if (!plan) {
        bd_fail_as(err, BD_ERROR_SYSTEM, "data: no memory for a plan of its rows");
        return NULL;
    }
    plan->documents = *documents;
    plan->layout = *layout;
    int64_t begin = 0, used = 0;
    for (int64_t d = 0; d < documents->count; d++) {
        assert(documents->ends[d] >= begin);
        used = lay(plan, begin, documents->ends[d], used);
        begin = documents->ends[d];
    }
    end_row(plan);
    if (!plan->out_of_memory)
        return plan;
    bd_fail_as(err, BD_ERROR_SYSTEM, "data: no memory for a plan of more than %lld rows",
               (long long)plan->rows);
    bd_row_plan_free(plan);
    return NULL;
}

void bd_row_plan_free(bd_row_plan *plan)
{
    if (!plan)
        return;
    free(plan->pieces);
    free(plan->ends);
    free(plan);
}

// --- using it ------------------------------------------------------------------------------------

int64_t bd_row_plan_rows(const bd_row_plan *plan)
{
    return plan->rows;
}

int64_t bd_row_plan_lost(const bd_row_plan *plan)
{
    return plan->lost;
}

void bd_row_plan_fill(const bd_row_plan *plan, int64_t row, bd_diffusion_batch *batch, int64_t slot)
{
    assert(row >= 0 && row < plan->rows && batch->length == plan->layout.length);
    const bd_token_documents *d = &plan->documents;
    int64_t used = 0;
    for (int64_t i = row ? plan->ends[row - 1] : 0; i < plan->ends[row]; i++) {
        const piece *p = &plan->pieces[i];
        used = bd_diffusion_batch_append(batch, slot, used, d->tokens + p->begin,
                                         d->completion ? d->completion + p->begin : NULL, p->count,
                                         &plan->layout.padding);
    }
    bd_diffusion_batch_pad(batch, slot, used, plan->layout.padding.pad_id);
}
