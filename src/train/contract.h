/* contract.h - what a resumed run must have in common with the run it goes on from.
 *
 * An ordered map from field names to texts. Numbers are written with the fewest digits that read
 * back to the same bits, so that comparing texts is comparing values. There is no partial
 * acceptance and no override: the comparison lists every field that differs.
 *
 *     bd_contract *c = bd_contract_create();
 *     bd_contract_int(c, "block_size", 4);
 *     bd_contract_number(c, "learning_rate", 3e-4);
 *     if (!bd_contract_compare(saved, c, "RUN/checkpoint-10", &err)) ...
 *     bd_contract_free(c);
 *
 * Source: block-diffusion H-01 to H-05, M-10.
 */
#ifndef BD_TRAIN_CONTRACT_H
#define BD_TRAIN_CONTRACT_H

#include <jansson.h>

#include "base/error.h"
#include "base/sha256.h"

typedef struct bd_contract bd_contract;

bd_contract *bd_contract_create(
    void); /* NULL: no memory; the functions below accept NULL as well */
void bd_contract_free(bd_contract *contract);

/* Did every field get in? Failures to add one (no memory, not UTF-8) are remembered and told here.
 */
bool bd_contract_ready(const bd_contract *contract, bd_error *err);

/* Add a field at the end. A name may be added once. */
void bd_contract_text(bd_contract *contract, const char *name, const char *value);
void bd_contract_int(bd_contract *contract, const char *name, int64_t value);
void bd_contract_number(bd_contract *contract, const char *name, double value);
void bd_contract_bool(bd_contract *contract, const char *name, bool value);
void bd_contract_ints(bd_contract *contract, const char *name, const int64_t *values,
                      int64_t count);
/* SHA-256 of bytes, for what is too long to write out. */
void bd_contract_hash(bd_contract *contract, const char *name, const void *bytes, size_t size);

int64_t bd_contract_count(const bd_contract *contract);
const char *bd_contract_find(const bd_contract *contract, const char *name); /* NULL: absent */

json_t *bd_contract_to_json(const bd_contract *contract); /* {"name": "text", ...} in order */
bd_contract *bd_contract_from_json(json_t *object, const char *where, bd_error *err);

/* SHA-256 over all fields in order. */
void bd_contract_fingerprint(const bd_contract *contract, char out[BD_SHA256_TEXT]);

/* Equal as maps? If not: BD_ERROR_STATE, "where: field: checkpoint has X, this run has Y; ..." with
 * every difference that fits into the message and the number of the others. */
bool bd_contract_compare(const bd_contract *saved, const bd_contract *current, const char *where,
                         bd_error *err);

/* All differences, one a line, for a report; "" when equal. free() it. */
char *bd_contract_differences(const bd_contract *saved, const bd_contract *current);

#endif
