/* tokenizer_internal.h - the parts a tokenizer is made of, for the files tokenizer_*.c only.
 *
 * Text passes through them in this order: added tokens are cut out (tokenizer_added.c), the rest is
 * normalized (tokenizer_normalize.c), cut into words by patterns (tokenizer_pattern.c), and each
 * word's bytes are merged into tokens (tokenizer_bpe.c). tokenizer_encode.c leads the way.
 */
#ifndef BD_FORMAT_TOKENIZER_INTERNAL_H
#define BD_FORMAT_TOKENIZER_INTERNAL_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <jansson.h>
#include <pthread.h>

#include "base/file.h"
#include "base/sha256.h"
#include "format/tokenizer.h"

enum {
    BD_MOST_TOKENS = 1 << 24,
    BD_MOST_STAGES = 16,
    BD_MOST_AUTOMATIC = 16, // special tokens on one side of a text
};

// --- vocabulary: ids, bytes, merges (tokenizer_vocabulary.c) -------------------------------------

enum {
    BD_TOKEN_IN_MODEL = 1, // merges can make it
    BD_TOKEN_RAW = 2,      // its spelling has characters outside the byte alphabet
    BD_TOKEN_IS_ADDED = 4,
    BD_TOKEN_IS_SPECIAL = 8,
};

typedef struct {
    uint32_t begin, size; // its bytes in the pool
    uint8_t flags;        // 0: no token has this id
} bd_token;

typedef struct {
    uint64_t pair; // left << 32 | right
    uint32_t rank;
    int32_t result; // -1: an empty slot
} bd_merge_slot;

typedef struct {
    bd_text pool;
    bd_token *tokens;
    int64_t size, room;

    int32_t *bucket; // ids of the model's tokens by hash of their bytes, -1: empty
    uint64_t bucket_mask;
    int64_t bucket_used;

    uint64_t *merges; // pairs in the order of rank
    int64_t merge_count, merge_room;
    bd_merge_slot *slots; // the same by pair
    uint64_t slot_mask;

    int32_t byte[256]; // the token of each single byte, -1: none
} bd_vocabulary;

bool bd_vocabulary_start(bd_vocabulary *v, bd_error *err);
bool bd_vocabulary_put(bd_vocabulary *v, int32_t id, const char *bytes, size_t size, uint8_t flags,
                       bd_error *err);
int32_t bd_vocabulary_find(const bd_vocabulary *v, const char *bytes, size_t size, bool raw);
bool bd_vocabulary_merge(bd_vocabulary *v, int32_t left, int32_t right, int32_t result,
                         bd_error *err);
const bd_merge_slot *bd_vocabulary_merge_of(const bd_vocabulary *v, int32_t left, int32_t right);
void bd_vocabulary_free(bd_vocabulary *v);

uint64_t bd_hash_bytes(const char *bytes, size_t size);

/* GPT-2's alphabet: 256 printable characters, one for each byte. */
int32_t bd_byte_character(uint8_t byte);
/* Append the bytes that `spelled` stands for; false (with the spelling itself appended) when one of
 * its characters is outside the alphabet. */
bool bd_unspell(const char *spelled, size_t size, bd_text *bytes);

// --- the text of a tokenizer.json (tokenizer_source.c) -------------------------------------------

typedef struct {
    const char *text;
    size_t size;
} bd_source_span;

typedef struct {
    bd_source_span vocabulary, merges; // of the source; text NULL: not found
    bd_text rest;                      // the source with both of them empty
} bd_source_parts;
void bd_source_cut(const char *text, size_t size, bd_source_parts *parts);

/* Read the two long lists. An entry's text is a token's spelling and `number` its id, or both sides
 * of a merge in one and `number` where the second begins. */
typedef bool (*bd_source_entry)(void *context, const char *text, size_t size, int64_t number,
                                bd_error *err);
bool bd_source_vocabulary(const bd_source_parts *parts, const char *where, bd_source_entry entry,
                          void *context, bd_error *err);
bool bd_source_merges(const bd_source_parts *parts, const char *where, bd_source_entry entry,
                      void *context, bd_error *err);

/* Append the source with one more object (as JSON text) in its list of added tokens. */
bool bd_source_add_token(const char *text, size_t size, const char *token, bd_text *out);

// --- normalization (tokenizer_normalize.c) -------------------------------------------------------

typedef enum { BD_NFC, BD_NFD, BD_NFKC, BD_NFKD } bd_normal_form;

/* From `to` bytes into the normalized text on, up to the next piece: bytes copied from `from` on in
 * the text, or (replaced) made out of the characters from there to the next piece's. */
typedef struct {
    int64_t to, from;
    bool replaced;
} bd_aligned_piece;

typedef struct {
    bd_aligned_piece *pieces;
    int64_t count, room;
    bool failed;
} bd_alignment;

/* Does the form leave this text as it is without a look at any table? */
bool bd_normal_already(bd_normal_form form, const char *text, size_t size);

/* Append the normal form of well-formed text and where it came from. `alignment` may be NULL. */
bool bd_normalize(bd_normal_form form, const char *text, size_t size, bd_text *out,
                  bd_alignment *alignment, bd_error *err);

/* The span of the text that a span of the normalized text came from. */
bd_token_span bd_alignment_span(const bd_alignment *alignment, int64_t begin, int64_t end);

// --- added tokens (tokenizer_added.c) ------------------------------------------------------------

typedef struct {
    int32_t id;
    bool single_word, lstrip, rstrip, normalized, special;
} bd_added_token;

typedef struct {
    int32_t child, sibling; // node numbers, -1: none
    int32_t token;          // index into the list of added tokens, -1: none ends here
    uint8_t byte;
} bd_trie_node;

typedef struct {
    bd_trie_node *nodes; // node 0 is the root
    int32_t count, room;
    int32_t first[256]; // the root's children by byte
} bd_trie;

bool bd_trie_add(bd_trie *trie, const char *bytes, size_t size, int32_t token, bd_error *err);
void bd_trie_free(bd_trie *trie);

typedef struct {
    int64_t begin, end; // with the spaces that lstrip and rstrip take
    int32_t token;      // index into the list; -1: none left
} bd_added_match;

/* The first token at or after *from, longest first; *from moves behind it. `done` is the end of
 * what earlier matches took, which lstrip does not take again. */
bd_added_match bd_added_next(const bd_trie *trie, const bd_added_token *added, const char *text,
                             int64_t size, bool skip_special, int64_t done, int64_t *from);

// --- patterns (tokenizer_pattern.c) --------------------------------------------------------------

typedef enum {
    BD_SPLIT_ISOLATED,
    BD_SPLIT_REMOVED,
    BD_SPLIT_CONTIGUOUS,
    BD_SPLIT_WITH_PREVIOUS,
    BD_SPLIT_WITH_NEXT,
} bd_split_behavior;

typedef struct {
    pcre2_code *code; // NULL: the text stays one word
    bool jit, invert, prefix_space;
    bd_split_behavior behavior;
} bd_stage;

extern const char *const bd_pattern_gpt2, *const bd_pattern_qwen, *const bd_pattern_llama3;

/* Compile a pattern written for the Oniguruma engine so that PCRE2 finds the same words. */
bool bd_stage_compile(bd_stage *stage, const char *pattern, const char *where, bd_error *err);
/* Words, joiners among them, and runs of what is neither word nor space: the Whitespace
 * pre-tokenizer. */
bool bd_stage_words(bd_stage *stage, const char *where, bd_error *err);
bool bd_stage_literal(bd_stage *stage, const char *text, const char *where, bd_error *err);
void bd_stage_free(bd_stage *stage);

typedef struct {
    pcre2_match_data *match;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
} bd_matcher;
bool bd_matcher_open(bd_matcher *matcher, bd_error *err);
void bd_matcher_close(bd_matcher *matcher);
void bd_matcher_limit(bd_matcher *matcher, size_t text_size);

/* Call `word` for every piece of `text` in order; false as soon as it is false or matching fails.
 */
typedef bool (*bd_word_visitor)(void *context, const char *text, size_t size, bd_error *err);
bool bd_stage_split(const bd_stage *stage, bd_matcher *matcher, const char *text, size_t size,
                    bd_word_visitor word, void *context, bd_error *err);

// --- merging (tokenizer_bpe.c) -------------------------------------------------------------------

typedef struct {
    int32_t id;          // -1: merged into its left neighbour
    int32_t left, right; // neighbours, -1: none
} bd_symbol;

typedef struct {
    uint64_t order; // rank << 32 | position: the next merge is the smallest
    int32_t result;
} bd_candidate;

typedef struct {
    bd_symbol *symbols;
    bd_candidate *heap;
    int32_t *ids;
    size_t room;
    struct bd_word_cache *cache;
} bd_merger;

typedef struct {
    const bd_vocabulary *vocabulary;
    int32_t unknown;  // stands for bytes the vocabulary lacks; -1: they are an error
    bool whole_words; // ignore_merges: a word that is a token is that token
} bd_merge_rules;

bool bd_merger_open(bd_merger *merger, bd_error *err);
void bd_merger_close(bd_merger *merger);

/* The tokens of one word. `*ids` stays valid until the next call. */
bool bd_merger_run(bd_merger *merger, const bd_merge_rules *rules, const char *word, size_t size,
                   const int32_t **ids, size_t *count, bd_error *err);

// --- the tokenizer -------------------------------------------------------------------------------

/* What one running encode call needs; kept for the next one. */
typedef struct bd_scratch {
    struct bd_scratch *next;
    bd_matcher matcher;
    bd_merger merger;
    bd_text normal, prefixed;
    bd_alignment alignment;
} bd_scratch;
void bd_scratch_free_all(bd_scratch *list);

struct bd_tokenizer {
    char *name; // for errors: the path it came from
    char identity[BD_SHA256_TEXT];
    bd_map map;         // the source, a tokenizer.json, as a mapped file ...
    char *owned;        // ... or in memory
    const char *source; // one of the two
    size_t source_size;
    json_t *config;          // tokenizer_config.json as read; NULL: none
    bool template_elsewhere; // the chat template is not the one that `config` holds

    bd_vocabulary vocabulary;
    bd_merge_rules rules;
    bd_added_token *added;
    int64_t added_count, added_room;
    bd_trie plain_trie, normal_trie;

    bool normalizes;
    bd_normal_form form;
    bd_stage stages[BD_MOST_STAGES];
    int stage_count;
    char *pattern;     // the only pattern's text, or NULL
    int pattern_count; // Split stages

    int32_t before[BD_MOST_AUTOMATIC], after[BD_MOST_AUTOMATIC];
    int before_count, after_count;

    int32_t role[BD_ROLE_COUNT];
    char *chat_template;

    pthread_mutex_t lock; // guards `idle`
    bd_scratch *idle;
};

/* Fill in a tokenizer from its source (tokenizer_load.c). */
bool bd_tokenizer_load(bd_tokenizer *t, bd_error *err);
/* The id of a token of the model by the way files spell it, -1: none, -2: no memory to look. */
int32_t bd_tokenizer_find_spelled(const bd_tokenizer *t, const char *text, size_t size);
/* Register one added token everywhere but in the source. */
bool bd_tokenizer_put_added(bd_tokenizer *t, bd_added_token token, const char *text, size_t size,
                            bd_error *err);

/* The parts of a tokenizer.json that every byte-level tokenizer made here shares: "version",
 * "added_tokens" (empty), "normalizer", "pre_tokenizer", "post_processor" and "decoder". NULL
 * pattern: GPT-2's, and no normalizer. The caller adds "model" (tokenizer_gpt2.c). */
json_t *bd_tokenizer_json_frame(const char *pattern);
json_t *bd_added_token_json(int32_t id, const char *text, size_t size, bool special);

/* A tokenizer.json made of GPT-2's two files, and the hash of both; json_decref() it. */
json_t *bd_gpt2_to_json(const char *vocabulary_path, const char *merges_path,
                        char identity[BD_SHA256_TEXT], bd_error *err);

/* A tokenizer from a JSON value, whose text becomes its source. Takes over `root`, also on failure.
 * `identity` NULL: the hash of that text. */
bd_tokenizer *bd_tokenizer_from_json(json_t *root, const char *what, const char *identity,
                                     bd_error *err);

/* tokenizer_config.json and chat_template.jinja of a folder (tokenizer_config.c). */
bool bd_tokenizer_read_config(bd_tokenizer *t, const char *folder, bd_error *err);
bool bd_tokenizer_write_config(const bd_tokenizer *t, const char *folder, bd_error *err);

#endif
