/* row_plan.h - documents laid into rows of one length.
 *
 * A row is several documents one after the other (packing), each with its own segment number and
 * positions from 0, or one document and padding. Which documents share a row is decided once,
 * before training, in the order of the data; an epoch then shuffles whole rows.
 *
 *     bd_row_layout layout = {.length = 512, .packing = true, .padding = {.pad_id = pad}};
 *     bd_row_plan *plan = bd_row_plan_create(&documents, &layout, &err);
 *     bd_row_plan_fill(plan, row, &batch, 0);             // row `row` of the data, slot row 0
 *     bd_row_plan_free(plan);
 *
 * Source: block-diffusion B-07, B-09, decision 2, field report 61.
 */
#ifndef BD_TRAIN_ROW_PLAN_H
#define BD_TRAIN_ROW_PLAN_H

#include "diffusion/batch.h"

/* Documents one after the other. Document d is tokens [ends[d - 1], ends[d]). */
typedef struct {
    const int32_t *tokens;
    const uint8_t *completion; /* 1: the model's to produce; NULL: every token is */
    const int64_t *ends;       /* [count], rising; the last is the number of tokens */
    int64_t count;
} bd_token_documents;

/* Where the documents of a stream end: behind every `end_id`, and at the end of the stream. Returns
 * [*count] ends to free(), NULL without memory. end_id -1: the stream is one document. */
int64_t *bd_document_ends(const int32_t *tokens, int64_t token_count, int32_t end_id,
                          int64_t *count, bd_error *err);

/* Of the tokens, how many are completion: 0 to 1. */
double bd_completion_share(const bd_token_documents *documents);

typedef struct {
    int64_t length; /* tokens a row */
    bool packing;   /* as many documents in a row as fit */
    bool cut;       /* a document that does not fit goes on in the next row, as a document of its
                       own; false: it starts a new row, and loses what is beyond the row's end */
    bd_padding padding; /* "eos-in-loss" fills the row, so it does not go with packing */
} bd_row_layout;

typedef struct bd_row_plan bd_row_plan;

/* The documents are not copied. Errors: no documents, an illegal layout. */
bd_row_plan *bd_row_plan_create(const bd_token_documents *documents, const bd_row_layout *layout,
                                bd_error *err);
void bd_row_plan_free(bd_row_plan *plan);

int64_t bd_row_plan_rows(const bd_row_plan *plan);
int64_t bd_row_plan_lost(const bd_row_plan *plan); /* tokens beyond the ends of their rows */

/* Put row `row` of the data into row `slot` of the batch, whose length is the layout's: inputs and
 * targets are the clean tokens, corruption and loss masks 0. */
void bd_row_plan_fill(const bd_row_plan *plan, int64_t row, bd_diffusion_batch *batch,
                      int64_t slot);

#endif
