/* kernel.h - what one instruction set does for attention.c.
 *
 * Operands of the products are kept in words of 4 bytes: one multiply step eats one word of each
 * side.
 *
 *     BD_WORDS_F32      a float
 *     BD_WORDS_ROUNDED  a float rounded to bf16
 *     BD_WORDS_PAIRS    two bf16 numbers that are neighbours along the summed dimension
 *
 * All arrays of a job cover rows first_row .. of the batch; b below counts from there. "Row" alone
 * is a query row of one key head: (query, head of the group), see plan.h.
 */
#ifndef BD_ATTENTION_KERNEL_H
#define BD_ATTENTION_KERNEL_H

#include "attention/attention.h"
#include "attention/plan.h"
#include "tensor/isa.h"

typedef enum { BD_WORDS_F32, BD_WORDS_ROUNDED, BD_WORDS_PAIRS } bd_words;

typedef uint32_t bd_word __attribute__((may_alias));

enum {
    BD_HEAD_PAD = 16, /* packed heads are zero beyond head_size up to a multiple of this */
    BD_ROW_GROUP = 8, /* rows that are computed together */
    /* Most that one forward task holds, over all its heads: groups of rows, and numbers in their
     * padded heads. */
    BD_MOST_GROUPS = 16,
    BD_MOST_SLOT_NUMBERS = BD_UNIT_ROWS * BD_MOST_HEAD_SIZE,
};

typedef struct {
    const bd_attention *a;
    bd_attention_plan plan;
    bd_words words;
    float score_unit; /* scale * log2(e): turns a product into a score in powers of two */
    int64_t first_row, rows_of_batch; /* of the batch, in this job */
    int64_t width;      /* head_size rounded up to BD_HEAD_PAD: numbers in a padded head */
    int64_t head_steps; /* words of a head along head_size */
    int64_t row_words;  /* words of a padded head along head_size */
    const float *query, *key, *value;
    float *out, *log_sum;
    int64_t heads_at_once; /* key heads of one forward task */
    bool fetch_ahead;      /* keys and values come from memory: ask for the next tile early */

    /* Keys and values of all tiles, or NULL: each task packs what it needs.
     * key_columns   [batch, key_heads, tiles, head_steps, BD_KEY_TILE]
     * value_rows    [batch, key_heads, tiles, words of BD_KEY_TILE keys, width] */
    bd_word *key_columns, *value_rows;

    /* The backward pass needs both the other way round as well, and the rows of queries and d_out
     * as left operands (row_words each) and as right operands (summed over rows: the same array
     * when a word is a float). */
    bd_word *value_columns, *key_rows;
    const float *saved_out, *saved_log_sum, *d_out;
    int64_t padded_rows;                /* plan.units * BD_UNIT_ROWS */
    bd_word *query_left, *d_out_left;   /* [batch, key_heads, padded_rows, row_words] */
    bd_word *query_right, *d_out_right; /* [batch, key_heads, words of padded_rows, width] */
    /* [batch, key_heads, padded_rows]: exp(-log_sum) = 2^-shift * factor, delta = <d_out, out>. */
    float *row_shift, *row_factor, *row_delta;
    int64_t chunks;       /* tiles c, c + chunks, c + 2 chunks ... are one task */
    float *d_query_parts; /* [chunks, batch, key_heads, padded_rows, width] */
    float *d_query, *d_key, *d_value;
} bd_attention_job;

/* Words that hold `count` neighbouring numbers of the summed dimension. */
static inline int64_t bd_words_of(bd_words words, int64_t count)
{
    return words == BD_WORDS_PAIRS ? (count + 1) / 2 : count;
}

static inline int64_t bd_job_head(const bd_attention_job *job, int64_t b, int64_t key_head)
{
    return b * job->a->key_heads + key_head;
}
static inline int64_t bd_job_column_words(const bd_attention_job *job)
{
    return job->head_steps * BD_KEY_TILE;
}
static inline int64_t bd_job_row_words(const bd_attention_job *job)
{
    return bd_words_of(job->words, BD_KEY_TILE) * job->width;
}

/* One task: (row of the batch, key head, index), index counting what the name says. */
typedef void bd_attention_task(const bd_attention_job *job, int64_t b, int64_t key_head,
                               int64_t index);

typedef struct {
    /* What a product with inputs rounded to bf16 works on. */
    bd_words bf16_words;
    /* Fills key_columns and value_rows of a tile. */
    bd_attention_task *pack_tile;
    /* Writes out and log_sum of a unit; heads are counted heads_at_once at a time. */
    bd_attention_task *forward_unit;
} bd_attention_forward_kernels;

typedef struct {
    /* Fills key_columns, value_columns and key_rows of a tile. */
    bd_attention_task *pack_tile;
    /* Fills query_*, d_out_* and row_* of a unit. */
    bd_attention_task *prepare_unit;
    /* Adds to d_key and d_value of a chunk's tiles, and writes its d_query_parts. */
    bd_attention_task *backward_chunk;
    /* Adds the d_query_parts of a unit to d_query. */
    bd_attention_task *finish_unit;
} bd_attention_backward_kernels;

#define BD_DECLARE_ATTENTION(level)                                                                \
    extern const bd_attention_forward_kernels bd_attention_forward_##level;                        \
    extern const bd_attention_backward_kernels bd_attention_backward_##level;
BD_FOR_EACH_ISA(BD_DECLARE_ATTENTION)
#undef BD_DECLARE_ATTENTION

#endif
