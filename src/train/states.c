#include "train/states.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>
#include <zlib.h>

#include "format/json.h"

static const char magic[8] = "bdstate1";

typedef struct {
    char magic[8];
    uint64_t number, session;
    uint32_t crc, zero;
} record_head;

enum { MOST_LENGTH = 1 << 24, MOST_WIDTH = 1 << 24 };

// --- layout --------------------------------------------------------------------------------------

bool bd_states_layout_make(const bd_model *target, const int64_t *taps, int64_t tap_count,
                           int64_t length, bd_dtype dtype, bd_states_layout *out, bd_error *err)
{
    *out = (bd_states_layout){.compute = target->compute,
                              .vocabulary = target->config.vocabulary,
                              .hidden = target->config.hidden,
                              .length = length,
                              .tap_count = tap_count,
                              .dtype = dtype,
                              .final = true};
    assert(tap_count <= BD_MOST_TAPS);
    memcpy(out->taps, taps, (size_t)tap_count * sizeof *taps);
    return bd_model_fingerprint(target, out->target, err) &&
           bd_states_layout_check(out, "hidden states", err);
}

static bool is_digest(const char *text)
{
    return strlen(text) == BD_SHA256_TEXT - 1 &&
           strspn(text, "0123456789abcdef") == BD_SHA256_TEXT - 1;
}

bool bd_states_layout_check(const bd_states_layout *l, const char *where, bd_error *err)
{
    if (!is_digest(l->target))
        return bd_fail(err, "%s: target: 64 hexadecimal digits expected", where);
    if (l->compute != BD_F32 && l->compute != BD_BF16)
        return bd_fail(err, "%s: compute: found %s, F32 or BF16 expected", where,
                       bd_dtype_name(l->compute));
    if (l->dtype != BD_F64 && l->dtype != BD_F32 && l->dtype != BD_BF16)
        return bd_fail(err, "%s: dtype: found %s, F64, F32 or BF16 expected", where,
                       bd_dtype_name(l->dtype));
    if (l->length < 1 || l->length > MOST_LENGTH || l->hidden < 1 || l->hidden > MOST_WIDTH ||
        l->vocabulary < 1 || l->vocabulary > INT32_MAX)
        return bd_fail(err,
                       "%s: sequence_length %lld, hidden_size %lld, vocab_size %lld: sizes of "
                       "a model and its rows expected",
                       where, (long long)l->length, (long long)l->hidden, (long long)l->vocabulary);
    if (l->tap_count < 1 || l->tap_count > BD_MOST_TAPS)
        return bd_fail(err, "%s: target_layer_ids: found %lld layers, 1 to %d expected", where,
                       (long long)l->tap_count, BD_MOST_TAPS);
    for (int64_t i = 0; i < l->tap_count; i++)
        if (l->taps[i] < -1 || l->taps[i] >= BD_MOST_LAYERS)
            return bd_fail(err, "%s: target_layer_ids: found layer %lld, -1 to %d expected", where,
                           (long long)l->taps[i], BD_MOST_LAYERS - 1);
    return true;
}

static void taps_text(const bd_states_layout *l, char *out, size_t room)
{
    size_t used = (size_t)snprintf(out, room, "[");
    for (int64_t i = 0; i < l->tap_count && used + 8 < room; i++)
        used += (size_t)snprintf(out + used, room - used, "%s%lld", i ? ", " : "",
                                 (long long)l->taps[i]);
    snprintf(out + used, room - used, "]");
}

json_t *bd_states_layout_to_json(const bd_states_layout *l)
{
    json_t *taps = json_array();
    for (int64_t i = 0; i < l->tap_count; i++)
        json_array_append_new(taps, json_integer(l->taps[i]));
    return json_pack("{s:s,s:s,s:I,s:I,s:I,s:o,s:s,s:b,s:b}", "target", l->target, "compute",
                     bd_dtype_name(l->compute), "vocab_size", (json_int_t)l->vocabulary,
                     "hidden_size", (json_int_t)l->hidden, "sequence_length", (json_int_t)l->length,
                     "target_layer_ids", taps, "dtype", bd_dtype_name(l->dtype), "final_states",
                     l->final, "prenorm", l->prenorm);
}

static bool parse_dtype(json_t *object, const char *where, const char *field, bd_dtype *out,
                        bd_error *err)
{
    const char *name = bd_json_text(object, where, field, err);
    if (!name)
        return false;
    return bd_dtype_from_name(name, out) ||
           bd_fail(err, "%s: %s: found \"%.40s\", F64, F32 or BF16 expected", where, field, name);
}

bool bd_states_layout_parse(json_t *object, const char *where, bd_states_layout *out, bd_error *err)
{
    *out = (bd_states_layout){0};
    const char *target = bd_json_text(object, where, "target", err);
    json_t *taps = target ? bd_json_array(object, where, "target_layer_ids", err) : NULL;
    if (!taps)
        return false;
    snprintf(out->target, sizeof out->target, "%s", target);
    if (strlen(target) >= sizeof out->target)
        out->target[0] = 0; // refused below
    out->tap_count = (int64_t)json_array_size(taps);
    for (int64_t i = 0; i < out->tap_count && i < BD_MOST_TAPS; i++) {
        json_t *id = json_array_get(taps, (size_t)i);
        out->taps[i] = json_is_integer(id) ? json_integer_value(id) : -2;
    }
    return parse_dtype(object, where, "compute", &out->compute, err) &&
           parse_dtype(object, where, "dtype", &out->dtype, err) &&
           bd_json_int(object, where, "vocab_size", 1, INT32_MAX, &out->vocabulary, err) &&
           bd_json_int(object, where, "hidden_size", 1, MOST_WIDTH, &out->hidden, err) &&
           bd_json_int(object, where, "sequence_length", 1, MOST_LENGTH, &out->length, err) &&
           bd_json_bool(object, where, "final_states", &out->final, err) &&
           bd_json_bool(object, where, "prenorm", &out->prenorm, err) &&
           bd_states_layout_check(out, where, err);
}

void bd_states_layout_contract(const bd_states_layout *l, bd_contract *contract)
{
    // The target, its rounding and the taps are told by whoever trains.
    bd_contract_text(contract, "states_dtype", bd_dtype_name(l->dtype));
    bd_contract_bool(contract, "states_prenorm", l->prenorm);
}

static bool differ(const char *where, const char *field, const char *found, const char *wanted,
                   bd_error *err)
{
    return bd_fail_as(err, BD_ERROR_STATE, "%s: %s: found %s, %s expected", where, field, found,
                      wanted);
}

static bool differ_number(const char *where, const char *field, int64_t found, int64_t wanted,
                          bd_error *err)
{
    return bd_fail_as(err, BD_ERROR_STATE, "%s: %s: found %lld, %lld expected", where, field,
                      (long long)found, (long long)wanted);
}

bool bd_states_layout_match(const bd_states_layout *found, const bd_states_layout *wanted,
                            const char *where, bd_error *err)
{
    char a[400], b[400];
    if (strcmp(found->target, wanted->target) != 0)
        return differ(where, "target", found->target, wanted->target, err);
    if (found->compute != wanted->compute)
        return differ(where, "compute", bd_dtype_name(found->compute),
                      bd_dtype_name(wanted->compute), err);
    if (found->vocabulary != wanted->vocabulary)
        return differ_number(where, "vocab_size", found->vocabulary, wanted->vocabulary, err);
    if (found->hidden != wanted->hidden)
        return differ_number(where, "hidden_size", found->hidden, wanted->hidden, err);
    if (found->length != wanted->length)
        return differ_number(where, "sequence_length", found->length, wanted->length, err);
    taps_text(found, a, sizeof a);
    taps_text(wanted, b, sizeof b);
    if (found->tap_count != wanted->tap_count ||
        memcmp(found->taps, wanted->taps, (size_t)found->tap_count * sizeof *found->taps) != 0)
        return differ(where, "target_layer_ids", a, b, err);
    if (found->dtype != wanted->dtype)
        return differ(where, "dtype", bd_dtype_name(found->dtype), bd_dtype_name(wanted->dtype),
                      err);
    if (found->final != wanted->final)
        return differ(where, "final_states", found->final ? "true" : "false",
                      wanted->final ? "true" : "false", err);
    if (found->prenorm != wanted->prenorm)
        return differ(where, "prenorm", found->prenorm ? "true" : "false",
                      wanted->prenorm ? "true" : "false", err);
    return true;
}

// --- the parts of a record -----------------------------------------------------------------------

/* Byte offsets. All factors are bounded by the check of the layout: no product overflows. */
typedef struct {
    size_t tokens, mask, features, final, end;
    int64_t feature_count, final_count;
} parts;

static parts parts_of(const bd_states_layout *l)
{
    parts p = {.tokens = sizeof(record_head)};
    size_t length = (size_t)l->length, item = bd_dtype_size(l->dtype);
    p.feature_count = l->length * l->tap_count * l->hidden;
    p.final_count = l->final ? l->length * l->hidden : 0;
    p.mask = p.tokens + length * sizeof(int32_t);
    p.features = (p.mask + length + 7) / 8 * 8;
    p.final = p.features + (size_t)p.feature_count * item;
    p.end = (p.final + (size_t)p.final_count * item + 7) / 8 * 8;
    return p;
}

size_t bd_states_size(const bd_states_layout *layout)
{
    return parts_of(layout).end;
}

static uint32_t checksum(const void *record, size_t size)
{
    record_head head;
    memcpy(&head, record, sizeof head);
    head.crc = 0;
    uLong crc = crc32(0, (const Bytef *)&head, sizeof head);
    return (uint32_t)crc32_z(crc, (const Bytef *)record + sizeof head, size - sizeof head);
}

// --- writing -------------------------------------------------------------------------------------

void bd_states_observe(bd_model *target, const bd_states_layout *l, const int32_t *tokens,
                       const uint8_t *loss_mask, uint64_t number, uint64_t session, void *record,
                       bd_arena *scratch)
{
    const parts p = parts_of(l);
    char *bytes = record;
    int64_t layers[BD_MOST_TAPS];
    for (int64_t i = 0; i < l->tap_count; i++)
        layers[i] = l->taps[i] + 1;
    size_t mark = bd_arena_mark(scratch);
    float *features = bd_arena_floats(scratch, p.feature_count);
    float *final = l->final ? bd_arena_floats(scratch, p.final_count) : NULL;
    const bd_observation out = {.features = features,
                                .final = l->prenorm ? NULL : final,
                                .prenorm = l->prenorm ? final : NULL};
    bd_target_observe(target, layers, l->tap_count, tokens, 1, l->length, &out, scratch);

    memset(bytes + p.mask, loss_mask ? 0 : 1, (size_t)l->length);
    for (int64_t i = 0; loss_mask && i < l->length; i++)
        bytes[p.mask + (size_t)i] = loss_mask[i] != 0;
    memset(bytes + p.mask + l->length, 0, p.features - p.mask - (size_t)l->length);
    memcpy(bytes + p.tokens, tokens, (size_t)l->length * sizeof *tokens);
    bd_from_f32(l->dtype, features, bytes + p.features, p.feature_count);
    if (final)
        bd_from_f32(l->dtype, final, bytes + p.final, p.final_count);
    size_t used = p.final + (size_t)p.final_count * bd_dtype_size(l->dtype);
    memset(bytes + used, 0, p.end - used);
    record_head head = {.number = number, .session = session};
    memcpy(head.magic, magic, sizeof magic);
    memcpy(bytes, &head, sizeof head);
    head.crc = checksum(bytes, p.end);
    memcpy(bytes, &head, sizeof head);
    bd_arena_release(scratch, mark);
}

// --- reading -------------------------------------------------------------------------------------

bool bd_states_number(const bd_states_layout *layout, const void *record, size_t size,
                      uint64_t *number, uint64_t *session)
{
    record_head head;
    if (size != bd_states_size(layout))
        return false;
    memcpy(&head, record, sizeof head);
    *number = head.number;
    *session = head.session;
    return !memcmp(head.magic, magic, sizeof magic);
}

bool bd_states_open(const bd_states_layout *l, const void *record, size_t size, const char *where,
                    uint64_t number, uint64_t session, bd_error *err)
{
    const parts p = parts_of(l);
    uint64_t found, found_session;
    if (size != p.end)
        return bd_fail(err, "%s: record %llu: found %zu bytes, %zu expected", where,
                       (unsigned long long)number, size, p.end);
    if (!bd_states_number(l, record, size, &found, &found_session))
        return bd_fail(err, "%s: record %llu: found other bytes, \"%.8s\" expected at its start",
                       where, (unsigned long long)number, magic);
    if (found != number || found_session != session)
        return bd_fail(err,
                       "%s: record %llu: found number %llu of session %llx, session %llx "
                       "expected",
                       where, (unsigned long long)number, (unsigned long long)found,
                       (unsigned long long)found_session, (unsigned long long)session);
    record_head head;
    memcpy(&head, record, sizeof head);
    uint32_t crc = checksum(record, size);
    if (crc != head.crc)
        return bd_fail(err, "%s: record %llu: damaged: found checksum %08x, %08x expected", where,
                       (unsigned long long)number, crc, head.crc);
    for (int64_t i = 0; i < l->length; i++) {
        int32_t token;
        memcpy(&token, (const char *)record + p.tokens + (size_t)i * sizeof token, sizeof token);
        if (token < 0 || token >= l->vocabulary)
            return bd_fail(err, "%s: record %llu: token %lld is %d, 0 to %lld expected", where,
                           (unsigned long long)number, (long long)i, token,
                           (long long)l->vocabulary - 1);
    }
    return true;
}

void bd_states_take(const bd_states_layout *l, const void *record, const bd_states_row *out)
{
    const parts p = parts_of(l);
    const char *bytes = record;
    if (out->tokens)
        memcpy(out->tokens, bytes + p.tokens, (size_t)l->length * sizeof *out->tokens);
    for (int64_t i = 0; out->loss_mask && i < l->length; i++)
        out->loss_mask[i] = bytes[p.mask + (size_t)i] != 0;
    if (out->features)
        bd_to_f32(l->dtype, bytes + p.features, out->features, p.feature_count);
    assert(!out->final || l->final);
    if (out->final)
        bd_to_f32(l->dtype, bytes + p.final, out->final, p.final_count);
}
