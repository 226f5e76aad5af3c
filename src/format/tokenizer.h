/* tokenizer.h - text to token ids and back, from the files language models are published with.
 *
 * Reads Hugging Face's tokenizer.json where it describes a byte-level BPE (Qwen, Llama 3, GPT-2,
 * gpt-oss and their relatives), and GPT-2's older pair of files. What a file asks for and bdlm does
 * not do is refused by name when the file is opened, so ids are either those of other libraries or
 * none.
 *
 *     bd_tokenizer *tokenizer = bd_tokenizer_open("models/qwen3", &err);   // folder or
 * tokenizer.json bd_tokens tokens = {0}; if (!bd_tokenizer_encode(tokenizer, text, strlen(text),
 * NULL, &tokens, &err)) ... bd_text back = {0}; if (!bd_tokenizer_decode(tokenizer, tokens.ids,
 * tokens.count, false, &back, &err)) ... bd_tokens_free(&tokens), bd_text_free(&back),
 * bd_tokenizer_close(tokenizer);
 *
 * A tokenizer does not change while it encodes and decodes; any number of threads may do both at
 * once. Adding a token or setting a role is for one thread, with nobody else at work.
 */
#ifndef BD_FORMAT_TOKENIZER_H
#define BD_FORMAT_TOKENIZER_H

#include <stddef.h>
#include <stdint.h>

#include "base/error.h"
#include "format/tokenizer_text.h"

typedef struct bd_tokenizer bd_tokenizer;

// --- opening and saving --------------------------------------------------------------------------

/* `path` is a folder with tokenizer.json (or encoder.json and vocab.bpe, or vocab.json and
 * merges.txt) and perhaps tokenizer_config.json and chat_template.jinja, or it is a tokenizer.json
 * itself. */
bd_tokenizer *bd_tokenizer_open(const char *path, bd_error *err);

/* From the text of a tokenizer.json; `what` stands for the file's name in errors. */
bd_tokenizer *bd_tokenizer_parse(const char *json, size_t size, const char *what, bd_error *err);
void bd_tokenizer_close(bd_tokenizer *tokenizer);

/* Write tokenizer.json and tokenizer_config.json into `folder` (made if needed): the files as they
 * were read, with the tokens, roles and chat template that were added since. */
bool bd_tokenizer_save(const bd_tokenizer *tokenizer, const char *folder, bd_error *err);

/* SHA-256 of the tokenizer.json this was read from, or that save would write once a token was added
 * (of both files one after the other for GPT-2's pair), as 64 hexadecimal digits. */
const char *bd_tokenizer_identity(const bd_tokenizer *tokenizer);

// --- tokens --------------------------------------------------------------------------------------

/* The largest id plus one: the least number of rows an embedding needs. Ids may have holes. */
int64_t bd_tokenizer_size(const bd_tokenizer *tokenizer);

typedef enum {
    BD_TOKEN_NONE,    /* no token has this id */
    BD_TOKEN_NORMAL,  /* of the model's vocabulary */
    BD_TOKEN_ADDED,   /* matched as a whole before the model sees the text, shown when decoding */
    BD_TOKEN_SPECIAL, /* the same, and left out when decoding without special tokens */
} bd_token_kind;
bd_token_kind bd_tokenizer_kind(const bd_tokenizer *tokenizer, int32_t id);

/* The bytes that a token stands for (not always whole characters), NULL for an id without a token.
 */
const char *bd_tokenizer_token(const bd_tokenizer *tokenizer, int32_t id, size_t *size);

/* The id of the token that stands for exactly these bytes, -1 if there is none. Tokens matched as a
 * whole come first. `text` is what it stands for (" the"), not how files spell it ("\u0120the"). */
int32_t bd_tokenizer_find(const bd_tokenizer *tokenizer, const char *text, size_t size);

/* Append how files spell a token: GPT-2's byte-to-character alphabet, added tokens as they are. */
void bd_tokenizer_spell(const bd_tokenizer *tokenizer, int32_t id, bd_text *out);

typedef enum {
    BD_ROLE_BOS,
    BD_ROLE_EOS,
    BD_ROLE_PAD,
    BD_ROLE_UNKNOWN,
    BD_ROLE_MASK,
    BD_ROLE_COUNT
} bd_token_role;
const char *bd_token_role_name(bd_token_role role); /* "bos", "eos", "pad", "unk", "mask" */

/* What tokenizer_config.json calls bos_token, eos_token, ...; -1 when it names none. */
int32_t bd_tokenizer_role(const bd_tokenizer *tokenizer, bd_token_role role);
bool bd_tokenizer_set_role(bd_tokenizer *tokenizer, bd_token_role role, int32_t id, bd_error *err);

/* Add a token that is matched as a whole, after all others: its id is bd_tokenizer_size(). A text
 * that is a token already keeps its id. Returns the id, -1 on failure. The text of the whole file
 * is made anew for each token: this is for the few that a model needs, not for thousands. */
int32_t bd_tokenizer_add(bd_tokenizer *tokenizer, const char *text, bool special, bd_error *err);

/* Merges in the order of their rank, and the pattern that splits text into words (NULL unless there
 * is exactly one), for writing the tokenizer in another format. */
int64_t bd_tokenizer_merge_count(const bd_tokenizer *tokenizer);
void bd_tokenizer_merge(const bd_tokenizer *tokenizer, int64_t rank, int32_t *left, int32_t *right);
const char *bd_tokenizer_pattern(const bd_tokenizer *tokenizer);

/* The Jinja source of the chat template, NULL when the folder has none; see chat.h. */
const char *bd_tokenizer_chat_template(const bd_tokenizer *tokenizer);
bool bd_tokenizer_set_chat_template(bd_tokenizer *tokenizer, const char *source, bd_error *err);

// --- encoding ------------------------------------------------------------------------------------

/* Where a token's bytes lie in the text given to encode. Where normalization replaced characters,
 * the span covers all characters that the token has a part of. */
typedef struct {
    int64_t begin, end;
} bd_token_span;

typedef struct {
    int32_t *ids;
    bd_token_span *spans; /* one for each id when asked for, else NULL */
    int64_t count, room;
} bd_tokens;
void bd_tokens_free(bd_tokens *tokens);

typedef struct {
    bool add_special;     /* put the tokens around the text that the file's post-processor names */
    bool special_as_text; /* read "<|im_end|>" in the text as ten characters, not as that token */
    bool spans;           /* fill in spans; a bd_tokens is used with or without, not both */
} bd_encode_options;

/* Append the ids of `text`, which must be UTF-8 (see bd_utf8_repair for text that is not). NULL
 * options: all false. Fails on malformed text, on a byte the vocabulary lacks, on a pattern that
 * needs too many steps; `out` then keeps what it had before. The time taken is O(n log n). */
bool bd_tokenizer_encode(const bd_tokenizer *tokenizer, const char *text, size_t size,
                         const bd_encode_options *options, bd_tokens *out, bd_error *err);

// --- decoding ------------------------------------------------------------------------------------

/* Append the text of the ids, each malformed part as one U+FFFD. Ids without a token (embedding
 * rows beyond the vocabulary) add nothing. */
bool bd_tokenizer_decode(const bd_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                         bool skip_special, bd_text *out, bd_error *err);

/* Decoding one token at a time, for text that is shown while it is generated. What the stream has
 * appended so far, plus what finish appends, is what bd_tokenizer_decode gives for all ids. */
typedef struct {
    bool skip_special;
    char held[8]; /* the start of a character that later tokens may complete */
    size_t held_size;
} bd_token_stream;
bool bd_token_stream_add(bd_token_stream *stream, const bd_tokenizer *tokenizer, int32_t id,
                         bd_text *out, bd_error *err);
bool bd_token_stream_finish(bd_token_stream *stream, bd_text *out, bd_error *err);

#endif
