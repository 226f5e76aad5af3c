#include "attention/isa/product.h"

/* The backward pass of one chunk of key tiles of one key head. For each tile, each unit of rows,
 * with s = scale <q, k>, p = exp(s - log_sum), dp = <d_out, v>, ds = scale p (dp - delta):
 *
 *     d_value[k] += sum_rows p d_out
 *     d_key[k] += sum_rows ds q
 *     d_query[row] += sum_k ds k
 *
 * in that order of tiles and units whatever the number of threads. d_query is summed per chunk and
 * the chunks are added in order at the end. */

// One (tile, unit): p and ds of all its rows, as the three products read them.
typedef struct {
    // Left operands summed over rows, [words of rows][BD_KEY_TILE].
    _Alignas(64) bd_word p[BD_UNIT_ROWS * BD_KEY_TILE];
    _Alignas(64) bd_word ds[BD_UNIT_ROWS * BD_KEY_TILE];
    // Left operand summed over keys, one group of rows: [row][words of BD_KEY_TILE].
    _Alignas(64) bd_word ds_rows[BD_ROW_GROUP * BD_KEY_TILE];
    sight seen[BD_UNIT_ROWS / BD_ROW_GROUP];
} unit_slopes;

typedef struct {
    const bd_attention_job *job;
    int64_t b, key_head, keys; // keys: in the tile
    const bd_word *key_columns, *value_columns, *key_rows;
    _Alignas(64) float d_key[BD_KEY_TILE * BD_MOST_HEAD_SIZE];
    _Alignas(64) float d_value[BD_KEY_TILE * BD_MOST_HEAD_SIZE];
} tile_state;

/* --- slopes of scores ------------------------------------------------------------------------ */

/* p and ds of rows 2i and 2i + 1 of a group for the keys it sees. */
INLINE void slopes_of_two(const bd_words words, const bd_attention_job *job, int64_t row,
                          sight seen, const uint64_t *masks, const float *scores, const float *d_p,
                          int64_t line, unit_slopes *u)
{
    const float *shift = job->row_shift + line, *factor = job->row_factor + line;
    const float *delta = job->row_delta + line;
    int64_t in_group = row % BD_ROW_GROUP;
    for (int64_t k = seen.begin; k < seen.end; k += VF_WIDTH) {
        vf p[2], ds[2];
        for (int i = 0; i < 2; i++) {
            int64_t at = (in_group + i) * BD_KEY_TILE + k;
            p[i] = power_of_two(words, vf_load(scores + at) * job->score_unit, vf_set1(shift[i]));
            if (words == BD_WORDS_F32)
                p[i] *= factor[i];
            if (!seen.whole)
                p[i] = vf_select(lanes_of(masks[in_group + i], k), p[i], vf_zero());
            ds[i] = p[i] * (vf_load(d_p + at) - delta[i]) * job->a->scale;
            if (words == BD_WORDS_PAIRS) {
                bd_word *to = u->ds_rows + (in_group + i) * (BD_KEY_TILE / 2);
                store_half_words((uint16_t *)(void *)to + k, ds[i]);
                continue;
            }
            if (words == BD_WORDS_ROUNDED) {
                p[i] = rounded(p[i]);
                ds[i] = rounded(ds[i]);
            }
            store_words(u->p + (row + i) * BD_KEY_TILE + k, p[i]);
            store_words(u->ds + (row + i) * BD_KEY_TILE + k, ds[i]);
        }
        if (words == BD_WORDS_PAIRS) {
            store_words(u->p + row / 2 * BD_KEY_TILE + k, pairs_across(p[0], p[1]));
            store_words(u->ds + row / 2 * BD_KEY_TILE + k, pairs_across(ds[0], ds[1]));
        }
    }
}

// The group of rows that starts at `row` of the unit: its slopes, and its share of d_query.
INLINE void group_slopes(const bd_words words, const tile_state *tile, int64_t unit, int64_t row,
                         const uint64_t *masks, sight seen, unit_slopes *u, float *d_query)
{
    const bd_attention_job *job = tile->job;
    int64_t line = bd_job_head(job, tile->b, tile->key_head) * job->padded_rows;
    line += unit * BD_UNIT_ROWS + row;
    _Alignas(64) float scores[BD_ROW_GROUP * BD_KEY_TILE];
    _Alignas(64) float d_p[BD_ROW_GROUP * BD_KEY_TILE];
    product dot = {.rows = BD_ROW_GROUP,
                   .columns = seen.end - seen.begin,
                   .steps = job->head_steps,
                   .a = job->query_left + line * job->row_words,
                   .a_row = job->row_words,
                   .a_step = 1,
                   .b = tile->key_columns + seen.begin,
                   .b_step = BD_KEY_TILE,
                   .c = scores + seen.begin,
                   .c_row = BD_KEY_TILE};
    multiply_heads(words, dot);
    dot.a = job->d_out_left + line * job->row_words;
    dot.b = tile->value_columns + seen.begin;
    dot.c = d_p + seen.begin;
    multiply_heads(words, dot);
    for (int64_t r = 0; r < BD_ROW_GROUP; r += 2)
        slopes_of_two(words, job, row + r, seen, masks, scores, d_p, line + r, u);

    int64_t first = words == BD_WORDS_PAIRS ? seen.begin / 2 : seen.begin;
    int64_t end = bd_words_of(words, seen.end);
    const bd_word *ds = words == BD_WORDS_PAIRS ? u->ds_rows : u->ds + row * BD_KEY_TILE;
    multiply(words, (product){.rows = BD_ROW_GROUP,
                              .columns = job->width,
                              .steps = end - first,
                              .a = ds + first,
                              .a_row = words == BD_WORDS_PAIRS ? BD_KEY_TILE / 2 : BD_KEY_TILE,
                              .a_step = 1,
                              .b = tile->key_rows + first * job->width,
                              .b_step = job->width,
                              .c = d_query + row * job->width,
                              .c_row = job->width,
                              .end = ADD});
}

/* --- one tile and one unit ------------------------------------------------------------------- */

// Neighbouring groups that see the same keys go into one product.
INLINE void add_to_keys(const bd_words words, tile_state *tile, int64_t unit, const unit_slopes *u)
{
    const bd_attention_job *job = tile->job;
    enum { GROUPS = BD_UNIT_ROWS / BD_ROW_GROUP };
    int64_t line =
        bd_job_head(job, tile->b, tile->key_head) * job->padded_rows + unit * BD_UNIT_ROWS;
    for (int g = 0, next; g < GROUPS; g = next) {
        sight seen = u->seen[g];
        for (next = g + 1;
             next < GROUPS && u->seen[next].begin == seen.begin && u->seen[next].end == seen.end;)
            next++;
        if (!seen.end)
            continue;
        int64_t first = bd_words_of(words, g * BD_ROW_GROUP);
        int64_t steps = bd_words_of(words, (next - g) * BD_ROW_GROUP);
        int64_t right = bd_words_of(words, line) + first;
        product sum = {.rows = seen.end - seen.begin,
                       .columns = job->width,
                       .steps = steps,
                       .a = u->p + first * BD_KEY_TILE + seen.begin,
                       .a_row = 1,
                       .a_step = BD_KEY_TILE,
                       .b = job->d_out_right + right * job->width,
                       .b_step = job->width,
                       .c = tile->d_value + seen.begin * job->width,
                       .c_row = job->width,
                       .end = ADD};
        multiply(words, sum);
        sum.a = u->ds + first * BD_KEY_TILE + seen.begin;
        sum.b = job->query_right + right * job->width;
        sum.c = tile->d_key + seen.begin * job->width;
        multiply(words, sum);
    }
}

INLINE void unit_of_tile(const bd_words words, tile_state *tile, int64_t unit,
                         const uint64_t *query_masks, float *d_query, unit_slopes *u)
{
    const uint64_t present = ~(uint64_t)0 >> (BD_KEY_TILE - tile->keys);
    const bd_attention_plan *plan = &tile->job->plan;
    int64_t first_row = unit * BD_UNIT_ROWS, first_query = first_row / plan->group;
    for (int64_t row = 0; row < BD_UNIT_ROWS; row += BD_ROW_GROUP) {
        uint64_t masks[BD_ROW_GROUP];
        for (int64_t r = 0; r < BD_ROW_GROUP; r++) {
            int64_t at = first_row + row + r;
            masks[r] = at >= plan->rows ? 0
                       : query_masks    ? query_masks[at / plan->group - first_query]
                                        : present;
        }
        sight seen = sight_of(masks, BD_ROW_GROUP);
        u->seen[row / BD_ROW_GROUP] = seen;
        if (seen.end)
            group_slopes(words, tile, unit, row, masks, seen, u, d_query);
    }
    add_to_keys(words, tile, unit, u);
}

/* --- chunks ---------------------------------------------------------------------------------- */

INLINE void add_tile(const tile_state *tile, int64_t index)
{
    const bd_attention_job *job = tile->job;
    int64_t size = job->a->head_size;
    for (int64_t k = 0; k < tile->keys; k++) {
        int64_t at = key_at(job, tile->b, tile->key_head, index * BD_KEY_TILE + k);
        for (int64_t i = 0; i < size; i++) {
            job->d_key[at + i] += tile->d_key[k * job->width + i];
            job->d_value[at + i] += tile->d_value[k * job->width + i];
        }
    }
}

INLINE void run_chunk(const bd_words words, const bd_attention_job *job, int64_t b,
                      int64_t key_head, int64_t chunk)
{
    const bd_attention_plan *plan = &job->plan;
    tile_state tile;
    unit_slopes u;
    tile.job = job;
    tile.b = b;
    tile.key_head = key_head;
    int64_t head = bd_job_head(job, b, key_head), heads = job->rows_of_batch * job->a->key_heads;
    float *d_query = job->d_query_parts + (chunk * heads + head) * job->padded_rows * job->width;
    memset(d_query, 0, (size_t)(job->padded_rows * job->width) * sizeof *d_query);
    for (int64_t t = chunk; t < plan->tiles; t += job->chunks) {
        int64_t at = head * plan->tiles + t;
        tile.keys = keys_in_tile(job, t);
        tile.key_columns = job->key_columns + at * bd_job_column_words(job);
        tile.value_columns = job->value_columns + at * bd_job_column_words(job);
        tile.key_rows = job->key_rows + at * bd_job_row_words(job);
        memset(tile.d_key, 0, (size_t)(BD_KEY_TILE * job->width) * sizeof(float));
        memset(tile.d_value, 0, (size_t)(BD_KEY_TILE * job->width) * sizeof(float));
        for (int64_t unit = 0; unit < plan->units; unit++) {
            int32_t mark = bd_attention_plan_marks(plan, b, unit)[t];
            if (mark == BD_MARK_EMPTY)
                continue;
            unit_of_tile(words, &tile, unit,
                         mark == BD_MARK_FULL ? NULL : plan->masks + mark * plan->unit_queries,
                         d_query + unit * BD_UNIT_ROWS * job->width, &u);
        }
        add_tile(&tile, t);
    }
}

static void backward_chunk(const bd_attention_job *job, int64_t b, int64_t key_head, int64_t index)
{
    if (job->words == BD_WORDS_F32)
        run_chunk(BD_WORDS_F32, job, b, key_head, index);
    else
        run_chunk(BF16_WORDS, job, b, key_head, index);
}

/* --- before and after ------------------------------------------------------------------------ */

INLINE void pack(const bd_words words, const bd_attention_job *job, int64_t b, int64_t key_head,
                 int64_t index)
{
    int64_t at = key_at(job, b, key_head, index * BD_KEY_TILE), size = job->a->head_size;
    int64_t stride = job->a->key_heads * size, keys = keys_in_tile(job, index);
    int64_t tile = bd_job_head(job, b, key_head) * job->plan.tiles + index;
    int64_t columns = tile * bd_job_column_words(job);
    fetcher nothing = {0};
    pack_columns(words, job->key + at, stride, keys, size, job->key_columns + columns, &nothing);
    pack_columns(words, job->value + at, stride, keys, size, job->value_columns + columns,
                 &nothing);
    pack_right(words, job->key + at, stride, keys, BD_KEY_TILE, size, job->width,
               job->key_rows + tile * bd_job_row_words(job), &nothing);
}

static void pack_tile(const bd_attention_job *job, int64_t b, int64_t key_head, int64_t index)
{
    if (job->words == BD_WORDS_F32)
        pack(BD_WORDS_F32, job, b, key_head, index);
    else
        pack(BF16_WORDS, job, b, key_head, index);
}

// delta = <d_out, out>; p = 2^(score - shift), and in f32, where the shift is an integer, * factor.
INLINE void prepare_row(const bd_words words, const bd_attention_job *job, int64_t b,
                        int64_t key_head, int64_t row, int64_t line)
{
    const bd_attention *a = job->a;
    int64_t at = row_at(job, b, key_head, row), group = job->plan.group;
    vf sum = vf_zero();
    for (int64_t i = 0; i < a->head_size; i += VF_WIDTH)
        sum = vf_fma(load_at(job->d_out + at, i, a->head_size),
                     load_at(job->saved_out + at, i, a->head_size), sum);
    job->row_delta[line] = vf_sum(sum);
    int64_t head = (job->first_row + b) * a->query_heads + key_head * group + row % group;
    float log_sum = job->saved_log_sum[head * a->rule->query_length + row / group];
    double exact =
        log_sum == -INFINITY ? 0 : (double)log_sum * M_LOG2E; // masks hide what is not seen
    double shift = words == BD_WORDS_F32 ? ceil(exact) : exact;
    job->row_shift[line] = (float)shift;
    job->row_factor[line] = (float)exp2(shift - exact);
}

INLINE void prepare(const bd_words words, const bd_attention_job *job, int64_t b, int64_t key_head,
                    int64_t index)
{
    float query[BD_UNIT_ROWS * BD_MOST_HEAD_SIZE], d_out[BD_UNIT_ROWS * BD_MOST_HEAD_SIZE];
    int64_t first = index * BD_UNIT_ROWS, size = job->a->head_size;
    int64_t line = bd_job_head(job, b, key_head) * job->padded_rows + first;
    for (int64_t r = 0; r < BD_UNIT_ROWS; r++) {
        if (first + r < job->plan.rows) {
            int64_t at = row_at(job, b, key_head, first + r);
            memcpy(query + r * size, job->query + at, (size_t)size * sizeof(float));
            memcpy(d_out + r * size, job->d_out + at, (size_t)size * sizeof(float));
            prepare_row(words, job, b, key_head, first + r, line + r);
        } else {
            memset(query + r * size, 0, (size_t)size * sizeof(float));
            memset(d_out + r * size, 0, (size_t)size * sizeof(float));
            job->row_delta[line + r] = job->row_shift[line + r] = job->row_factor[line + r] = 0;
        }
        int64_t left = (line + r) * job->row_words;
        pack_left(words, query + r * size, size, job->row_words, job->query_left + left);
        pack_left(words, d_out + r * size, size, job->row_words, job->d_out_left + left);
    }
    if (words != BD_WORDS_PAIRS)
        return; // the left operands serve as right ones
    int64_t right = line / 2 * job->width;
    fetcher nothing = {0};
    pack_right(words, query, size, BD_UNIT_ROWS, BD_UNIT_ROWS, size, job->width,
               job->query_right + right, &nothing);
    pack_right(words, d_out, size, BD_UNIT_ROWS, BD_UNIT_ROWS, size, job->width,
               job->d_out_right + right, &nothing);
}

static void prepare_unit(const bd_attention_job *job, int64_t b, int64_t key_head, int64_t index)
{
    if (job->words == BD_WORDS_F32)
        prepare(BD_WORDS_F32, job, b, key_head, index);
    else
        prepare(BF16_WORDS, job, b, key_head, index);
}

static void finish_unit(const bd_attention_job *job, int64_t b, int64_t key_head, int64_t index)
{
    int64_t heads = job->rows_of_batch * job->a->key_heads, size = job->a->head_size;
    int64_t stride = heads * job->padded_rows * job->width; // between chunks
    const float *parts = job->d_query_parts;
    parts += bd_job_head(job, b, key_head) * job->padded_rows * job->width;
    for (int64_t row = index * BD_UNIT_ROWS, r = 0; r < BD_UNIT_ROWS && row + r < job->plan.rows;
         r++) {
        float *d_query = job->d_query + row_at(job, b, key_head, row + r);
        for (int64_t i = 0; i < size; i++) {
            const float *part = parts + (row + r) * job->width + i;
            float sum = part[0];
            for (int64_t c = 1; c < job->chunks; c++)
                sum += part[c * stride];
            d_query[i] += sum;
        }
    }
}

const bd_attention_backward_kernels BD_ISA_NAME(bd_attention_backward) = {
    .pack_tile = pack_tile,
    .prepare_unit = prepare_unit,
    .backward_chunk = backward_chunk,
    .finish_unit = finish_unit,
};
