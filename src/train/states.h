/* states.h - hidden states of a target kept for training a drafter: one record a row of tokens.
 *
 * A draft needs of its frozen target nothing but the states of a few layers and its output. A
 * record holds them for one row, with the row's tokens and loss mask. Files of a cache and messages
 * of a stream carry the same bytes:
 *
 *     "bdstate1", u64 number, u64 session, u32 CRC-32 of the record with this field 0, u32 0
 *     i32 tokens[L], u8 loss_mask[L], zeros up to a multiple of 8
 *     features[L, taps * H], final[L, H] (when kept) in the layout's dtype, zeros up to 8
 *
 * little-endian. What all records of a cache or stream have in common is their layout; training
 * refuses one that differs in any field from what its draft reads (decision 14).
 *
 *     bd_states_layout layout;
 *     if (!bd_states_layout_make(target, taps, tap_count, length, BD_F32, &layout, &err)) ...
 *     bd_states_observe(target, &layout, tokens, mask, 7, 0, record, arena);
 *     if (!bd_states_open(&layout, record, size, "cache/x.bin", 7, 0, &err)) ...
 *     bd_states_take(&layout, record, &(bd_states_row){.features = features});
 *
 * Source: draft-family 1.3 to 1.5.
 */
#ifndef BD_TRAIN_STATES_H
#define BD_TRAIN_STATES_H

#include <jansson.h>

#include "base/sha256.h"
#include "draft/observe.h"
#include "train/contract.h"

typedef struct {
    char target[BD_SHA256_TEXT]; /* fingerprint of the model that was run */
    bd_dtype compute;            /* what its products rounded their inputs to */
    int64_t vocabulary, hidden;  /* of the target */
    int64_t length;              /* tokens of a row */
    int64_t tap_count;
    int64_t taps[BD_MOST_TAPS]; /* target_layer_ids, in the order of the features */
    bd_dtype dtype;             /* of the states: F64, F32 or BF16 */
    bool final;                 /* the target's output is kept: what a teacher's rows are made of */
    bool prenorm;               /* from before its final norm, which training then applies */
} bd_states_layout;

/* The layout for this target; final states are kept, after the norm. Computes the fingerprint. */
bool bd_states_layout_make(const bd_model *target, const int64_t *taps, int64_t tap_count,
                           int64_t length, bd_dtype dtype, bd_states_layout *out, bd_error *err);

/* Sizes that make sense and can be added up; needed before any other function gets a layout that
 * came from outside. */
bool bd_states_layout_check(const bd_states_layout *layout, const char *where, bd_error *err);

json_t *bd_states_layout_to_json(const bd_states_layout *layout);
bool bd_states_layout_parse(json_t *object, const char *where, bd_states_layout *out,
                            bd_error *err);
void bd_states_layout_contract(const bd_states_layout *layout, bd_contract *contract);

/* Is `found` what `wanted` says, in every field? Else one line: "where: target_layer_ids: found
 * [0, 2], [1, 2] expected". */
bool bd_states_layout_match(const bd_states_layout *found, const bd_states_layout *wanted,
                            const char *where, bd_error *err);

size_t bd_states_size(const bd_states_layout *layout); /* bytes of a record */

/* --- a record --------------------------------------------------------------------------------- */

/* Run the target over one row and fill in the record. loss_mask NULL: every token counts. */
void bd_states_observe(bd_model *target, const bd_states_layout *layout, const int32_t *tokens,
                       const uint8_t *loss_mask, uint64_t number, uint64_t session, void *record,
                       bd_arena *scratch);

/* Is this a whole, undamaged record of this layout and number? `where` is for messages. */
bool bd_states_open(const bd_states_layout *layout, const void *record, size_t size,
                    const char *where, uint64_t number, uint64_t session, bd_error *err);

/* The number and session of bytes that begin like a record of this size; false: they do not. */
bool bd_states_number(const bd_states_layout *layout, const void *record, size_t size,
                      uint64_t *number, uint64_t *session);

/* Copies of an opened record's parts; NULL: not wanted. */
typedef struct {
    int32_t *tokens;  /* [L] */
    float *loss_mask; /* [L]: 0 or 1 */
    float *features;  /* [L, taps * H] */
    float *final;     /* [L, H]; only when kept */
} bd_states_row;
void bd_states_take(const bd_states_layout *layout, const void *record, const bd_states_row *out);

/* --- where training gets them from ------------------------------------------------------------ */

/* A cache or a stream. Keys number what a run reads: sample k of the run, or BD_STATES_HELD_OUT
 * plus the row of an evaluation. */
#define BD_STATES_HELD_OUT ((uint64_t)1 << 62)
typedef struct {
    void *self;
    const char *mode; /* "offline", "streaming" */
    const char *name; /* of the folder or address, for messages */
    bd_states_layout layout;
    int64_t ahead; /* samples it wants to be asked for before they are read */
    /* This row will be read; asking twice is asking once. NULL: it need not know. */
    bool (*ask)(void *self, uint64_t key, const int32_t *tokens, bd_error *err);
    /* Read a row. What was asked for in order is best read in that order. */
    bool (*read)(void *self, uint64_t key, int64_t row, const bd_states_row *out, bd_error *err);
} bd_states_source;

#endif
