#include "train/contract.h"

#include <assert.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/json.h"

typedef struct {
    char *name, *value;
} field;

struct bd_contract {
    field *fields;
    int64_t count, room;
    char failure[80]; // why a field is missing; empty: none is
};

bd_contract *bd_contract_create(void)
{
    return calloc(1, sizeof(bd_contract));
}

void bd_contract_free(bd_contract *contract)
{
    if (!contract)
        return;
    for (int64_t i = 0; i < contract->count; i++) {
        free(contract->fields[i].name);
        free(contract->fields[i].value);
    }
    free(contract->fields);
    free(contract);
}

bool bd_contract_ready(const bd_contract *contract, bd_error *err)
{
    if (!contract)
        return bd_fail_as(err, BD_ERROR_SYSTEM, "contract: no memory");
    if (contract->failure[0])
        return bd_fail(err, "contract: %s", contract->failure);
    return true;
}

// --- adding --------------------------------------------------------------------------------------

static void fail(bd_contract *contract, const char *name, const char *why)
{
    if (!contract->failure[0])
        snprintf(contract->failure, sizeof contract->failure, "field %.40s: %s", name, why);
}

static bool is_utf8(const char *text)
{
    json_t *value = json_string(text);
    json_decref(value);
    return value != NULL;
}

void bd_contract_text(bd_contract *contract, const char *name, const char *value)
{
    if (!contract)
        return;
    assert(!bd_contract_find(contract, name));
    if (!is_utf8(name) || !is_utf8(value)) {
        fail(contract, name, "not UTF-8");
        return;
    }
    if (contract->count == contract->room) {
        int64_t room = contract->room ? 2 * contract->room : 32;
        field *larger = realloc(contract->fields, (size_t)room * sizeof *larger);
        if (!larger) {
            fail(contract, name, "no memory");
            return;
        }
        contract->fields = larger;
        contract->room = room;
    }
    field added = {strdup(name), strdup(value)};
    if (added.name && added.value) {
        contract->fields[contract->count++] = added;
    } else {
        free(added.name);
        free(added.value);
        fail(contract, name, "no memory");
    }
}

void bd_contract_int(bd_contract *contract, const char *name, int64_t value)
{
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)value);
    bd_contract_text(contract, name, text);
}

void bd_contract_number(bd_contract *contract, const char *name, double value)
{
    // The fewest digits that read back to the same number; 17 always do.
    char text[40];
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    bd_contract_text(contract, name, text);
}

void bd_contract_bool(bd_contract *contract, const char *name, bool value)
{
    bd_contract_text(contract, name, value ? "true" : "false");
}

void bd_contract_ints(bd_contract *contract, const char *name, const int64_t *values, int64_t count)
{
    char *text = NULL;
    size_t size;
    FILE *stream = open_memstream(&text, &size);
    if (stream) {
        fputc('[', stream);
        for (int64_t i = 0; i < count; i++)
            fprintf(stream, "%s%lld", i ? ", " : "", (long long)values[i]);
        fputc(']', stream);
        if (fclose(stream) == 0)
            bd_contract_text(contract, name, text);
        else
            stream = NULL;
    }
    if (!stream && contract)
        fail(contract, name, "no memory");
    free(text);
}

void bd_contract_hash(bd_contract *contract, const char *name, const void *bytes, size_t size)
{
    char hash[BD_SHA256_TEXT];
    bd_sha256_bytes(bytes, size, hash);
    bd_contract_text(contract, name, hash);
}

// --- reading -------------------------------------------------------------------------------------

int64_t bd_contract_count(const bd_contract *contract)
{
    return contract ? contract->count : 0;
}

const char *bd_contract_find(const bd_contract *contract, const char *name)
{
    for (int64_t i = 0; i < bd_contract_count(contract); i++)
        if (!strcmp(contract->fields[i].name, name))
            return contract->fields[i].value;
    return NULL;
}

json_t *bd_contract_to_json(const bd_contract *contract)
{
    json_t *object = json_object();
    for (int64_t i = 0; i < bd_contract_count(contract); i++)
        json_object_set_new(object, contract->fields[i].name,
                            json_string(contract->fields[i].value));
    return object;
}

bd_contract *bd_contract_from_json(json_t *object, const char *where, bd_error *err)
{
    if (!json_is_object(object)) {
        bd_fail_as(err, BD_ERROR_STATE, "%s: no contract; written by another program or task?",
                   where);
        return NULL;
    }
    bd_contract *contract = bd_contract_create();
    const char *name;
    json_t *value;
    json_object_foreach(object, name, value)
    {
        if (!json_is_string(value)) {
            bd_fail(err, "%s: contract field %.80s: a text expected", where, name);
            bd_contract_free(contract);
            return NULL;
        }
        bd_contract_text(contract, name, json_string_value(value));
    }
    if (!bd_contract_ready(contract, err)) {
        bd_contract_free(contract);
        return NULL;
    }
    return contract;
}

void bd_contract_fingerprint(const bd_contract *contract, char out[BD_SHA256_TEXT])
{
    bd_sha256 *hash = bd_sha256_begin();
    for (int64_t i = 0; i < bd_contract_count(contract); i++) {
        // With their final NULs, so that no two lists of fields run together to the same bytes.
        bd_sha256_add(hash, contract->fields[i].name, strlen(contract->fields[i].name) + 1);
        bd_sha256_add(hash, contract->fields[i].value, strlen(contract->fields[i].value) + 1);
    }
    bd_sha256_end(hash, out);
}

// --- comparing -----------------------------------------------------------------------------------

typedef void difference_function(void *context, const char *line);

/* Calls `tell` with "field: checkpoint has X, this run has Y" for each difference: first the fields
 * of this run in order, then those that only the checkpoint has. */
static void each_difference(const bd_contract *saved, const bd_contract *current,
                            difference_function *tell, void *context)
{
    char line[600];
    for (int64_t i = 0; i < bd_contract_count(current); i++) {
        const field *f = &current->fields[i];
        const char *old = bd_contract_find(saved, f->name);
        if (old && !strcmp(old, f->value))
            continue;
        snprintf(line, sizeof line, "%.80s: checkpoint has %.240s, this run has %.240s", f->name,
                 old ? old : "no such field", f->value);
        tell(context, line);
    }
    for (int64_t i = 0; i < bd_contract_count(saved); i++) {
        const field *f = &saved->fields[i];
        if (bd_contract_find(current, f->name))
            continue;
        snprintf(line, sizeof line, "%.80s: checkpoint has %.240s, this run has no such field",
                 f->name, f->value);
        tell(context, line);
    }
}

typedef struct {
    char text[900];
    int64_t told, left_out;
} message;

static void add_to_message(void *context, const char *line)
{
    message *m = context;
    size_t used = strlen(m->text);
    if (m->left_out || used + strlen(line) + 3 > sizeof m->text - 40) { // 40: "and N more"
        m->left_out++;
        return;
    }
    snprintf(m->text + used, sizeof m->text - used, "%s%s", m->told++ ? "; " : "", line);
}

bool bd_contract_compare(const bd_contract *saved, const bd_contract *current, const char *where,
                         bd_error *err)
{
    message m = {0};
    each_difference(saved, current, add_to_message, &m);
    if (m.told + m.left_out == 0)
        return true;
    size_t used = strlen(m.text);
    if (m.left_out)
        snprintf(m.text + used, sizeof m.text - used, "; and %lld more", (long long)m.left_out);
    bd_fail_as(err, BD_ERROR_STATE, "%s", m.text);
    return bd_error_wrap(err, "%.90s", where);
}

static void add_line(void *context, const char *line)
{
    fprintf(context, "%s\n", line);
}

char *bd_contract_differences(const bd_contract *saved, const bd_contract *current)
{
    char *text = NULL;
    size_t size;
    FILE *stream = open_memstream(&text, &size);
    if (!stream)
        return NULL;
    each_difference(saved, current, add_line, stream);
    fclose(stream);
    return text;
}
