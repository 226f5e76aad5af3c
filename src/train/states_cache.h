/* states_cache.h - hidden states of a whole text, written once and mapped by every run after it.
 *
 *     CACHE/cache.json          layout, rows, what text it was made from, whether it is complete
 *           states-00000.bin    records of rows 0 .. per_file - 1, one after the other (states.h)
 *           states-00001.bin    ...
 *
 * A file appears when all of its records are written; cache.json says "complete" when the last one
 * has. So a killed writer leaves whole files, and goes on behind them. Reading maps the files: a
 * cache larger than memory costs no memory. Every record is checked when it is read.
 *
 *     bd_states_cache_about about = {.layout = layout, .tokens = ids, .rows = rows};
 *     if (!bd_states_cache_write("cache", target, &about, false, progress, NULL, &stopped, &err))
 * ... bd_states_cache *cache = bd_states_cache_open("cache", &err); bd_states_source source =
 * bd_states_cache_source(cache); bd_states_cache_close(cache);
 *
 * Source: draft-family 1.3; field reports 20, 21, 23.
 */
#ifndef BD_TRAIN_STATES_CACHE_H
#define BD_TRAIN_STATES_CACHE_H

#include <signal.h>

#include "base/progress.h"
#include "train/states.h"

typedef struct {
    bd_states_layout layout;
    const int32_t *tokens;    /* [rows, layout.length] */
    const uint8_t *loss_mask; /* the same; NULL: every token counts */
    int64_t rows;
    size_t file_bytes; /* a file holds as many records as fit, at least one; 0: 64 MiB */
} bd_states_cache_about;

/* Bytes of all records. */
double bd_states_cache_bytes(const bd_states_cache_about *about);

/* Run the target over all rows. A folder that exists is refused, unless `resume` and it is an
 * incomplete cache of exactly this text and layout: then only missing files are made. More bytes
 * than the disk has free are refused before anything is written. stop non-zero: end with
 * *stopped, without the file at hand. */
bool bd_states_cache_write(const char *folder, bd_model *target, const bd_states_cache_about *about,
                           bool resume, bd_progress *progress, const volatile sig_atomic_t *stop,
                           bool *stopped, bd_error *err);

typedef struct bd_states_cache bd_states_cache;

/* Refused: incomplete caches, files missing or of another size, fields out of range. */
bd_states_cache *bd_states_cache_open(const char *folder, bd_error *err);
void bd_states_cache_close(bd_states_cache *cache);

const bd_states_layout *bd_states_cache_layout(const bd_states_cache *cache);
int64_t bd_states_cache_rows(const bd_states_cache *cache);
const int32_t *bd_states_cache_tokens(const bd_states_cache *cache); /* [rows, length] */

/* One record, checked. */
const void *bd_states_cache_record(const bd_states_cache *cache, int64_t row, bd_error *err);

bd_states_source bd_states_cache_source(bd_states_cache *cache);

#endif
