#include "format/tokenizer_internal.h"

#include <string.h>

// The bytes of a token that is to be shown, NULL for one that is not.
static const char *shown(const bd_tokenizer *t, int32_t id, bool skip_special, size_t *size)
{
    if (skip_special && bd_tokenizer_kind(t, id) == BD_TOKEN_SPECIAL)
        return NULL;
    return bd_tokenizer_token(t, id, size);
}

bool bd_tokenizer_decode(const bd_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                         bool skip_special, bd_text *out, bd_error *err)
{
    bd_text bytes = {0};
    for (int64_t i = 0; i < count; i++) {
        size_t size;
        const char *token = shown(tokenizer, ids[i], skip_special, &size);
        if (token)
            bd_text_add(&bytes, token, size);
    }
    bool ok = bd_text_check(&bytes, err);
    if (ok) {
        bd_utf8_repair(out, bytes.data ? bytes.data : "", bytes.size, false);
        ok = bd_text_check(out, err);
    }
    bd_text_free(&bytes);
    return ok;
}

// At most three bytes of a character can wait for its last one.
static void hold(bd_token_stream *stream, const char *bytes, size_t size)
{
    memcpy(stream->held, bytes, size);
    stream->held_size = size;
}

bool bd_token_stream_add(bd_token_stream *stream, const bd_tokenizer *tokenizer, int32_t id,
                         bd_text *out, bd_error *err)
{
    size_t size;
    const char *token = shown(tokenizer, id, stream->skip_special, &size);
    if (!token)
        return true;
    if (stream->held_size == 0) {
        size_t used = bd_utf8_repair(out, token, size, true);
        hold(stream, token + used, size - used);
        return bd_text_check(out, err);
    }
    bd_text bytes = {0};
    bd_text_add(&bytes, stream->held, stream->held_size);
    bd_text_add(&bytes, token, size);
    bool ok = bd_text_check(&bytes, err);
    if (ok) {
        size_t used = bd_utf8_repair(out, bytes.data, bytes.size, true);
        hold(stream, bytes.data + used, bytes.size - used);
        ok = bd_text_check(out, err);
    }
    bd_text_free(&bytes);
    return ok;
}

bool bd_token_stream_finish(bd_token_stream *stream, bd_text *out, bd_error *err)
{
    bd_utf8_repair(out, stream->held, stream->held_size, false);
    stream->held_size = 0;
    return bd_text_check(out, err);
}
