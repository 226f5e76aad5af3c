#include <assert.h>

#include "attention/isa/few.h"

/* The forward pass of one unit: for each tile of keys, for each group of rows, scores, softmax so far, and
 * the sum of values so far (online softmax). A row's numbers depend on its query and on the visible keys
 * alone: a tile it does not see leaves its state as it is, and hidden keys of a tile it does see add
 * exactly nothing. */

// A row's state after some tiles is its `shift` and sums of 2^(score - shift). The shift is the largest score so
// far: in bf16 as it is, so that the largest word is exactly 1; in f32 rounded up to an integer, because
// subtracting and rescaling by integers rounds nothing. This stands for a row that has seen nothing; any real
// score is above it.
#define NOTHING_YET (-1e30f)

typedef struct {
    const bd_attention_job *job;
    int64_t b, key_head;
    int64_t first_row, rows; // of the unit
    int64_t first_query;
    float shift[BD_UNIT_ROWS];
    float sum[BD_UNIT_ROWS];
    _Alignas(64) bd_word query[BD_UNIT_ROWS * BD_MOST_HEAD_SIZE];
    _Alignas(64) float out[BD_UNIT_ROWS * BD_MOST_HEAD_SIZE];
} unit_state;

// One tile of keys and values as the products read them; where one is NULL, `raw` is read instead.
typedef struct {
    const bd_word *columns, *rows;
    int64_t row_stride; // words between value rows
    int64_t keys;       // in this tile
    raw_tile raw;
} key_tile;

/* --- softmax --------------------------------------------------------------------------------------- */

/* The scores of a group of rows for keys [begin, end) of a tile, times `unit` in powers of two, become
 * 2^(score - shift) as words in p; factor[r] is what the sums before this tile shrink by.
 * masks: per row, or NULL when all is seen. */
INLINE void softmax_rows(const bd_words words, int64_t rows, int64_t begin, int64_t end, float unit,
                         const uint64_t *masks, const float *scores, float *shift, float *sum,
                         float *factor, bd_word *p)
{
    float top[2 * BD_ROW_GROUP]; // a whole vector at every level
    for (int64_t r = 0; r < rows; r++) {
        vf best = vf_set1(-INFINITY);
        for (int64_t k = begin; k < end; k += VF_WIDTH) {
            vf s = vf_load(scores + r * BD_KEY_TILE + k);
            best = vf_max(best, masks ? vf_select(lanes_of(masks[r], k), s, vf_set1(-INFINITY)) : s);
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
        for (int64_t k = begin; k < end; k += VF_WIDTH) {
            vf s = vf_load(scores + r * BD_KEY_TILE + k);
            vf e = power_of_two(words, s * unit, vf_set1(top[r]));
            if (masks)
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

/* --- one tile for one group of rows ------------------------------------------------------------------ */

INLINE void scores_of(const bd_words words, const unit_state *unit, int64_t row, int64_t rows,
                      const key_tile *tile, int64_t begin, int64_t end, float *scores)
{
    const bd_attention_job *job = unit->job;
    const bd_word *query = unit->query + row * job->row_words;
    if (tile->columns)
        multiply_heads(words, (product){.rows = rows,
                                        .columns = end - begin,
                                        .steps = job->head_steps,
                                        .a = query,
                                        .a_row = job->row_words,
                                        .a_step = 1,
                                        .b = tile->columns + begin,
                                        .b_step = BD_KEY_TILE,
                                        .c = scores + begin,
                                        .c_row = BD_KEY_TILE});
    else
        scores_of_few(words, rows, query, job->row_words, &tile->raw, begin, end, scores);
}

// out = factor * out + p @ values
INLINE void add_values(const bd_words words, unit_state *unit, int64_t row, int64_t rows,
                       const key_tile *tile, int64_t begin, int64_t end, const bd_word *p,
                       const float *factor)
{
    const bd_attention_job *job = unit->job;
    end = end < tile->keys ? end : tile->keys;
    if (words == BD_WORDS_PAIRS && !tile->rows) {
        values_of_few(rows, job->width, p, &tile->raw, begin, end, unit->out + row * job->width,
                      factor);
        return;
    }
    int64_t first = words == BD_WORDS_PAIRS ? begin / 2 : begin;
    multiply(words, (product){.rows = rows,
                              .columns = job->width,
                              .steps = bd_words_of(words, end) - first,
                              .a = p + first,
                              .a_row = words == BD_WORDS_PAIRS ? BD_KEY_TILE / 2 : BD_KEY_TILE,
                              .a_step = 1,
                              .b = tile->rows + first * tile->row_stride,
                              .b_step = tile->row_stride,
                              .c = unit->out + row * job->width,
                              .c_row = job->width,
                              .end = SCALE_AND_ADD,
                              .factor = factor});
}

INLINE void attend(const bd_words words, unit_state *unit, int64_t row, int64_t rows,
                   const key_tile *tile, const uint64_t *masks, int64_t begin, int64_t end)
{
    _Alignas(64) float scores[BD_ROW_GROUP * BD_KEY_TILE];
    _Alignas(64) bd_word p[BD_ROW_GROUP * BD_KEY_TILE];
    float factor[BD_ROW_GROUP];
    scores_of(words, unit, row, rows, tile, begin, end, scores);
    softmax_rows(words, rows, begin, end, unit->job->score_unit, masks, scores, unit->shift + row,
                 unit->sum + row, factor, p);
    add_values(words, unit, row, rows, tile, begin, end, p, factor);
}

INLINE void attend_tile(const bd_words words, unit_state *unit, const key_tile *tile,
                        const uint64_t *query_masks)
{
    const uint64_t present = ~(uint64_t)0 >> (BD_KEY_TILE - tile->keys);
    int64_t group = unit->job->plan.group;
    for (int64_t row = 0; row < unit->rows; row += BD_ROW_GROUP) {
        int64_t rows = unit->rows - row < BD_ROW_GROUP ? unit->rows - row : BD_ROW_GROUP;
        uint64_t masks[BD_ROW_GROUP];
        for (int64_t r = 0; r < rows; r++) {
            int64_t query = (unit->first_row + row + r) / group - unit->first_query;
            masks[r] = query_masks ? query_masks[query] : present;
        }
        sight seen = sight_of(masks, rows);
        if (seen.end)
            attend(words, unit, row, rows, tile, seen.whole ? NULL : masks, seen.begin, seen.end);
    }
}

/* --- units ----------------------------------------------------------------------------------------- */

INLINE void start_unit(const bd_words words, unit_state *unit, const bd_attention_job *job, int64_t b,
                       int64_t key_head, int64_t index)
{
    unit->job = job;
    unit->b = b;
    unit->key_head = key_head;
    unit->first_row = index * BD_UNIT_ROWS;
    unit->rows = job->plan.rows - unit->first_row;
    unit->rows = unit->rows < BD_UNIT_ROWS ? unit->rows : BD_UNIT_ROWS;
    unit->first_query = unit->first_row / job->plan.group;
    for (int64_t r = 0; r < unit->rows; r++) {
        unit->shift[r] = NOTHING_YET;
        unit->sum[r] = 0;
        pack_left(words, job->query + row_at(job, b, key_head, unit->first_row + r),
                  job->a->head_size, job->row_words, unit->query + r * job->row_words);
    }
    if (unit->rows < BD_ROW_GROUP) // isa/few.h computes some rows more
        memset(unit->query + unit->rows * job->row_words, 0,
               (size_t)((BD_ROW_GROUP - unit->rows) * job->row_words) * sizeof(bd_word));
    memset(unit->out, 0, (size_t)(unit->rows * job->width) * sizeof *unit->out);
}

// Divides by the sum of exponentials, the sink's included; a row that saw nothing stays 0.
static void finish_unit(unit_state *unit)
{
    const bd_attention_job *job = unit->job;
    const bd_attention *a = job->a;
    for (int64_t r = 0; r < unit->rows; r++) {
        int64_t row = unit->first_row + r, head = unit->key_head * job->plan.group;
        head += row % job->plan.group;
        float sum = unit->sum[r], factor = sum != 0 ? 1 / sum : 0; // NaN goes on
        double log_sum = -INFINITY;
        if (sum != 0 && (job->log_sum || a->sink))
            log_sum = (double)unit->shift[r] * M_LN2 + log((double)sum);
        if (sum != 0 && a->sink) {
            double more = (double)a->sink[head] - log_sum, seen = 1 / (1 + exp(more));
            factor *= (float)seen;
            log_sum = more > 0 ? (double)a->sink[head] + log1p(exp(-more)) : log_sum + log1p(exp(more));
        }
        float *out = job->out + row_at(job, unit->b, unit->key_head, row);
        for (int64_t i = 0; i < a->head_size; i++)
            out[i] = unit->out[r * job->width + i] * factor + 0.0f; // never -0
        int64_t line = (job->first_row + unit->b) * a->query_heads + head;
        if (job->log_sum)
            job->log_sum[line * a->rule->query_length + row / job->plan.group] = (float)log_sum;
    }
}

// Keys and values of a tile for this task alone.
typedef struct {
    _Alignas(64) bd_word columns[BD_MOST_HEAD_SIZE * BD_KEY_TILE];
    _Alignas(64) bd_word rows[BD_KEY_TILE * BD_MOST_HEAD_SIZE];
} tile_space;

INLINE key_tile find_tile(const bd_words words, const bd_attention_job *job, int64_t b,
                          int64_t key_head, int64_t index, int64_t unit_rows, tile_space *space)
{
    key_tile tile = {.row_stride = job->width, .keys = keys_in_tile(job, index)};
    if (job->key_columns) {
        int64_t at = bd_job_head(job, b, key_head) * job->plan.tiles + index;
        tile.columns = job->key_columns + at * bd_job_column_words(job);
        tile.rows = job->value_rows + at * bd_job_row_words(job);
        return tile;
    }
    int64_t stride = job->a->key_heads * job->a->head_size, size = job->a->head_size;
    int64_t at = key_at(job, b, key_head, index * BD_KEY_TILE);
    tile.raw = (raw_tile){job->key + at, job->value + at, stride, tile.keys, size};
    bool few = unit_rows <= BD_ROW_GROUP;
    if (!few) {
        pack_columns(words, job->key + at, stride, tile.keys, size, space->columns);
        tile.columns = space->columns;
    }
    if (words == BD_WORDS_F32 && size == job->width) {
        tile.rows = (const bd_word *)(job->value + at);
        tile.row_stride = stride;
    } else if (!few || words != BD_WORDS_PAIRS) {
        int64_t padded = tile.keys + tile.keys % 2;
        pack_right(words, job->value + at, stride, tile.keys, padded, size, job->width, space->rows);
        tile.rows = space->rows;
    }
    return tile;
}

INLINE void run_unit(const bd_words words, const bd_attention_job *job, int64_t b, int64_t key_head,
                     int64_t index)
{
    unit_state unit;
    tile_space space;
    start_unit(words, &unit, job, b, key_head, index);
    const int32_t *marks = bd_attention_plan_marks(&job->plan, b, index);
    for (int64_t t = 0; t < job->plan.tiles; t++) {
        if (marks[t] == BD_MARK_EMPTY)
            continue;
        key_tile tile = find_tile(words, job, b, key_head, t, unit.rows, &space);
        attend_tile(words, &unit, &tile,
                    marks[t] == BD_MARK_FULL ? NULL
                                             : job->plan.masks + marks[t] * job->plan.unit_queries);
    }
    finish_unit(&unit);
}

static void forward_unit(const bd_attention_job *job, int64_t b, int64_t key_head, int64_t index)
{
    if (job->words == BD_WORDS_F32)
        run_unit(BD_WORDS_F32, job, b, key_head, index);
    else
        run_unit(BF16_WORDS, job, b, key_head, index);
}

INLINE void pack(const bd_words words, const bd_attention_job *job, int64_t b, int64_t key_head,
                 int64_t index)
{
    int64_t at = key_at(job, b, key_head, index * BD_KEY_TILE);
    int64_t stride = job->a->key_heads * job->a->head_size, keys = keys_in_tile(job, index);
    int64_t tile = bd_job_head(job, b, key_head) * job->plan.tiles + index;
    pack_columns(words, job->key + at, stride, keys, job->a->head_size,
                 job->key_columns + tile * bd_job_column_words(job));
    pack_right(words, job->value + at, stride, keys, BD_KEY_TILE, job->a->head_size, job->width,
               job->value_rows + tile * bd_job_row_words(job));
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
