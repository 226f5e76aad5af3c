#include "attention/isa/few.h"

/* The forward pass of one unit of rows, for one key head or a few neighbouring ones. For each tile
 * of keys: scores and softmax so far of all rows, then the sums of values so far (online softmax).
 * A row's numbers depend on its query and on the visible keys alone: a tile it does not see leaves
 * its state as it is, and hidden keys of a tile it does see add exactly nothing.
 *
 * Training packs all keys first (kernel.h) and takes one key head at a time. Generation reads keys
 * and values where they lie: its tasks take neighbouring heads together, because those lie side by
 * side in memory. */

// A row's state after some tiles is its `shift` and sums of 2^(score - shift). The shift is the
// largest score so far: in bf16 as it is, so that the largest word is exactly 1; in f32 rounded up
// to an integer, because subtracting and rescaling by integers rounds nothing. This stands for a
// row that has seen nothing; any real score is above it.
#define NOTHING_YET (-1e30f)

enum {
    MOST_SLOTS = BD_MOST_GROUPS * BD_ROW_GROUP, // rows of all heads of a task
    GROUP_WORDS = BD_ROW_GROUP * BD_KEY_TILE,   // the probabilities of a group of rows
};

typedef struct {
    const bd_attention_job *job;
    int64_t b, first_head, heads;
    int64_t first_row, rows, groups; // of the unit; every head has as many
    float shift[MOST_SLOTS], sum[MOST_SLOTS], factor[MOST_SLOTS];
    bd_word *query; // [heads, groups, BD_ROW_GROUP, row_words]
    float *out;     // [heads, groups, BD_ROW_GROUP, width]
    bd_word *p;     // [heads, groups, GROUP_WORDS]
} unit_state;

// What the rows of a unit see of a tile.
typedef struct {
    int64_t index, keys;
    uint64_t masks[BD_UNIT_ROWS];
    sight seen[BD_UNIT_ROWS / BD_ROW_GROUP];
} tile_view;

/* --- softmax --------------------------------------------------------------------------------- */

/* The scores of a group of rows for the keys they see of a tile, times `unit` in powers of two,
 * become 2^(score - shift) as words in p; factor[r] is what the sums before this tile shrink by.
 * masks: per row. */
INLINE void softmax_rows(const bd_words words, int64_t rows, sight seen, float unit,
                         const uint64_t *masks, const float *scores, float *shift, float *sum,
                         float *factor, bd_word *p)
{
    float top[2 * BD_ROW_GROUP]; // a whole vector at every level
    for (int64_t r = 0; r < rows; r++) {
        vf best = vf_set1(-INFINITY);
        for (int64_t k = seen.begin; k < seen.end; k += VF_WIDTH) {
            vf s = vf_load(scores + r * BD_KEY_TILE + k);
            if (!seen.whole)
                s = vf_select(lanes_of(masks[r], k), s, vf_set1(-INFINITY));
            best = vf_max(best, s);
        }
        top[r] = vf_largest(best) * unit;
        if (words == BD_WORDS_F32)
            top[r] = ceilf(top[r]);
        top[r] = top[r] > shift[r] ? top[r] : shift[r];
    }
    for (int64_t r = 0; r < rows; r += VF_WIDTH) {
        int64_t n = rows - r < VF_WIDTH ? rows - r : VF_WIDTH;
        vf now = vf_load_n(top + r, n);
        vf shrink = power_of_two(words, vf_load_n(shift + r, n), now);
        vf_store_n(factor + r, shrink, n);
        vf_store_n(sum + r, vf_load_n(sum + r, n) * shrink, n);
        vf_store_n(shift + r, now, n);
    }
    for (int64_t r = 0; r < rows; r++) {
        vf total = vf_zero();
        for (int64_t k = seen.begin; k < seen.end; k += VF_WIDTH) {
            vf s = vf_load(scores + r * BD_KEY_TILE + k);
            vf e = power_of_two(words, s * unit, vf_set1(top[r]));
            if (!seen.whole)
                e = vf_select(lanes_of(masks[r], k), e, vf_zero());
            total += e;
            if (words == BD_WORDS_PAIRS)
                store_half_words((uint16_t *)(void *)(p + r * (BD_KEY_TILE / 2)) + k, e);
            else
                store_words(p + r * BD_KEY_TILE + k, words == BD_WORDS_ROUNDED ? rounded(e) : e);
        }
        sum[r] += vf_sum(total);
    }
}

/* --- one tile for one head ------------------------------------------------------------------- */

INLINE raw_tile raw_tile_of(const bd_attention_job *job, int64_t b, int64_t head,
                            const tile_view *view)
{
    int64_t at = key_at(job, b, head, view->index * BD_KEY_TILE);
    return (raw_tile){.key = job->key + at,
                      .value = job->value + at,
                      .stride = job->a->key_heads * job->a->head_size,
                      .keys = view->keys,
                      .size = job->a->head_size};
}

INLINE int64_t rows_in_group(const unit_state *unit, int64_t group)
{
    int64_t left = unit->rows - group * BD_ROW_GROUP;
    return left < BD_ROW_GROUP ? left : BD_ROW_GROUP;
}

// Scores and softmax of all rows; packs the keys into `space` where that pays.
INLINE void score_head(const bd_words words, unit_state *unit, int64_t h, const tile_view *view,
                       bd_word *space, fetcher *next)
{
    const bd_attention_job *job = unit->job;
    raw_tile raw = raw_tile_of(job, unit->b, unit->first_head + h, view);
    const bd_word *columns = space;
    bool few = !job->key_columns && unit->groups == 1;
    if (job->key_columns)
        columns =
            job->key_columns +
            (bd_job_head(job, unit->b, unit->first_head + h) * job->plan.tiles + view->index) *
                bd_job_column_words(job);
    else if (!few)
        pack_columns(words, raw.key, raw.stride, raw.keys, raw.size, space, next);
    for (int64_t g = 0; g < unit->groups; g++) {
        _Alignas(64) float scores[BD_ROW_GROUP * BD_KEY_TILE];
        int64_t rows = rows_in_group(unit, g), group = h * unit->groups + g;
        int64_t slot = group * BD_ROW_GROUP;
        const bd_word *query = unit->query + slot * job->row_words;
        sight seen = view->seen[g];
        if (!seen.end)
            continue;
        if (few)
            scores_of_few(words, rows, query, job->row_words, &raw, seen.begin, seen.end, scores,
                          next);
        else
            multiply_heads(words, (product){.rows = rows,
                                            .columns = seen.end - seen.begin,
                                            .steps = job->head_steps,
                                            .a = query,
                                            .a_row = job->row_words,
                                            .a_step = 1,
                                            .b = columns + seen.begin,
                                            .b_step = BD_KEY_TILE,
                                            .c = scores + seen.begin,
                                            .c_row = BD_KEY_TILE});
        softmax_rows(words, rows, seen, job->score_unit, view->masks + g * BD_ROW_GROUP, scores,
                     unit->shift + slot, unit->sum + slot, unit->factor + slot,
                     unit->p + group * GROUP_WORDS);
    }
}

// out = factor * out + p @ values for all rows; packs the values into `space` where that pays.
INLINE void add_values(const bd_words words, unit_state *unit, int64_t h, const tile_view *view,
                       bd_word *space, fetcher *next)
{
    const bd_attention_job *job = unit->job;
    raw_tile raw = raw_tile_of(job, unit->b, unit->first_head + h, view);
    const bd_word *values = space;
    bool few = !job->value_rows && unit->groups == 1;
    if (job->value_rows)
        values = job->value_rows +
                 (bd_job_head(job, unit->b, unit->first_head + h) * job->plan.tiles + view->index) *
                     bd_job_row_words(job);
    else if (!few)
        pack_right(words, raw.value, raw.stride, raw.keys, raw.keys + raw.keys % 2, raw.size,
                   job->width, space, next);
    for (int64_t g = 0; g < unit->groups; g++) {
        int64_t rows = rows_in_group(unit, g), group = h * unit->groups + g;
        int64_t slot = group * BD_ROW_GROUP;
        const bd_word *p = unit->p + group * GROUP_WORDS;
        float *out = unit->out + slot * job->width;
        sight seen = view->seen[g];
        if (!seen.end)
            continue;
        int64_t end = seen.end < view->keys ? seen.end : view->keys;
        if (few) {
            values_of_few(words, rows, job->width, p, &raw, seen.begin, end, out,
                          unit->factor + slot, next);
            continue;
        }
        int64_t first = words == BD_WORDS_PAIRS ? seen.begin / 2 : seen.begin;
        multiply(words, (product){.rows = rows,
                                  .columns = job->width,
                                  .steps = bd_words_of(words, end) - first,
                                  .a = p + first,
                                  .a_row = words == BD_WORDS_PAIRS ? BD_KEY_TILE / 2 : BD_KEY_TILE,
                                  .a_step = 1,
                                  .b = values + first * job->width,
                                  .b_step = job->width,
                                  .c = out,
                                  .c_row = job->width,
                                  .end = SCALE_AND_ADD,
                                  .factor = unit->factor + slot});
    }
}

/* --- units ----------------------------------------------------------------------------------- */

INLINE void start_unit(const bd_words words, unit_state *unit)
{
    const bd_attention_job *job = unit->job;
    int64_t slots = unit->groups * BD_ROW_GROUP;
    for (int64_t h = 0; h < unit->heads; h++)
        for (int64_t r = 0; r < slots; r++) {
            int64_t slot = h * slots + r;
            bd_word *query = unit->query + slot * job->row_words;
            unit->shift[slot] = NOTHING_YET;
            unit->sum[slot] = 0;
            if (r >= unit->rows) // isa/few.h computes some rows more
                memset(query, 0, (size_t)job->row_words * sizeof *query);
            else
                pack_left(words,
                          job->query +
                              row_at(job, unit->b, unit->first_head + h, unit->first_row + r),
                          job->a->head_size, job->row_words, query);
        }
    memset(unit->out, 0, (size_t)(unit->heads * slots * job->width) * sizeof *unit->out);
}

// Divides by the sum of exponentials, the sink's included; a row that saw nothing stays 0.
static void finish_row(unit_state *unit, int64_t h, int64_t r)
{
    const bd_attention_job *job = unit->job;
    const bd_attention *a = job->a;
    int64_t slot = h * unit->groups * BD_ROW_GROUP + r, row = unit->first_row + r;
    int64_t head = (unit->first_head + h) * job->plan.group + row % job->plan.group;
    float sum = unit->sum[slot], factor = sum != 0 ? 1 / sum : 0; // NaN goes on
    double log_sum = -INFINITY;
    if (sum != 0 && (job->log_sum || a->sink))
        log_sum = (double)unit->shift[slot] * M_LN2 + log((double)sum);
    if (sum != 0 && a->sink) {
        double more = (double)a->sink[head] - log_sum;
        factor *= (float)(1 / (1 + exp(more)));
        log_sum = more > 0 ? (double)a->sink[head] + log1p(exp(-more)) : log_sum + log1p(exp(more));
    }
    float *out = job->out + row_at(job, unit->b, unit->first_head + h, row);
    for (int64_t i = 0; i < a->head_size; i++)
        out[i] = unit->out[slot * job->width + i] * factor + 0.0f; // never -0
    int64_t line = (job->first_row + unit->b) * a->query_heads + head;
    if (job->log_sum)
        job->log_sum[line * a->rule->query_length + row / job->plan.group] = (float)log_sum;
}

// false: no row of the unit sees any key of the tile.
INLINE bool look_at_tile(const unit_state *unit, int64_t index, int32_t mark, tile_view *view)
{
    const bd_attention_plan *plan = &unit->job->plan;
    if (mark == BD_MARK_EMPTY)
        return false;
    view->index = index;
    view->keys = keys_in_tile(unit->job, index);
    const uint64_t present = ~(uint64_t)0 >> (BD_KEY_TILE - view->keys);
    const uint64_t *masks = mark == BD_MARK_FULL ? NULL : plan->masks + mark * plan->unit_queries;
    int64_t first_query = unit->first_row / plan->group;
    bool any = false;
    for (int64_t r = 0; r < unit->rows; r++)
        view->masks[r] = masks ? masks[(unit->first_row + r) / plan->group - first_query] : present;
    for (int64_t g = 0; g < unit->groups; g++) {
        view->seen[g] = sight_of(view->masks + g * BD_ROW_GROUP, rows_in_group(unit, g));
        any = any || view->seen[g].end;
    }
    return any;
}

// What the unit's heads will read of a tile, in the order of memory.
INLINE fetcher rows_ahead(const unit_state *unit, const float *array, int64_t tile)
{
    const bd_attention_job *job = unit->job;
    if (!job->fetch_ahead || tile >= job->plan.tiles)
        return (fetcher){0};
    return (fetcher){.row = array + key_at(job, unit->b, unit->first_head, tile * BD_KEY_TILE),
                     .numbers = unit->heads * job->a->head_size,
                     .stride = job->a->key_heads * job->a->head_size,
                     .rows = keys_in_tile(job, tile)};
}

INLINE void run_unit(const bd_words words, unit_state *unit, bd_word *space)
{
    const bd_attention_job *job = unit->job;
    const int32_t *marks =
        bd_attention_plan_marks(&job->plan, unit->b, unit->first_row / BD_UNIT_ROWS);
    start_unit(words, unit);
    for (int64_t t = 0; t < job->plan.tiles; t++) {
        tile_view view;
        if (!look_at_tile(unit, t, marks[t], &view))
            continue;
        fetcher next = rows_ahead(unit, job->value, t);
        for (int64_t h = 0; h < unit->heads; h++)
            score_head(words, unit, h, &view, space, &next);
        next = rows_ahead(unit, job->key, t + 1);
        for (int64_t h = 0; h < unit->heads; h++)
            add_values(words, unit, h, &view, space, &next);
    }
    for (int64_t h = 0; h < unit->heads; h++)
        for (int64_t r = 0; r < unit->rows; r++)
            finish_row(unit, h, r);
}

static void forward_unit(const bd_attention_job *job, int64_t b, int64_t heads, int64_t index)
{
    _Alignas(64) bd_word query[BD_MOST_SLOT_NUMBERS], p[BD_MOST_GROUPS * GROUP_WORDS];
    _Alignas(64) bd_word space[BD_KEY_TILE * BD_MOST_HEAD_SIZE];
    _Alignas(64) float out[BD_MOST_SLOT_NUMBERS];
    unit_state unit = {.job = job, .b = b, .query = query, .out = out, .p = p};
    unit.first_head = heads * job->heads_at_once;
    unit.heads = job->a->key_heads - unit.first_head;
    unit.heads = unit.heads < job->heads_at_once ? unit.heads : job->heads_at_once;
    unit.first_row = index * BD_UNIT_ROWS;
    unit.rows = job->plan.rows - unit.first_row;
    unit.rows = unit.rows < BD_UNIT_ROWS ? unit.rows : BD_UNIT_ROWS;
    unit.groups = (unit.rows + BD_ROW_GROUP - 1) / BD_ROW_GROUP;
    if (job->words == BD_WORDS_F32)
        run_unit(BD_WORDS_F32, &unit, space);
    else
        run_unit(BF16_WORDS, &unit, space);
}

INLINE void pack(const bd_words words, const bd_attention_job *job, int64_t b, int64_t key_head,
                 int64_t index)
{
    int64_t at = key_at(job, b, key_head, index * BD_KEY_TILE);
    int64_t stride = job->a->key_heads * job->a->head_size, keys = keys_in_tile(job, index);
    int64_t tile = bd_job_head(job, b, key_head) * job->plan.tiles + index;
    fetcher nothing = {0};
    pack_columns(words, job->key + at, stride, keys, job->a->head_size,
                 job->key_columns + tile * bd_job_column_words(job), &nothing);
    pack_right(words, job->value + at, stride, keys, BD_KEY_TILE, job->a->head_size, job->width,
               job->value_rows + tile * bd_job_row_words(job), &nothing);
}

static void pack_tile(const bd_attention_job *job, int64_t b, int64_t key_head, int64_t index)
{
    if (job->words == BD_WORDS_F32)
        pack(BD_WORDS_F32, job, b, key_head, index);
    else
        pack(BF16_WORDS, job, b, key_head, index);
}

const bd_attention_forward_kernels BD_ISA_NAME(bd_attention_forward) = {
    .bf16_words = BF16_WORDS,
    .pack_tile = pack_tile,
    .forward_unit = forward_unit,
};
