/* gguf_model.h - target models as GGUF files, and back to a Hugging Face folder.
 *
 * Llama files rotate adjacent pairs where the folder rotates halves, so the rows of q and k are put
 * in another order there; Qwen2 and Qwen3 are stored as they are. Vectors and norms are F32 in
 * GGUF, and come back in the matrices' type where that loses nothing. Source: spec gguf 2.
 *
 *     if (!bd_model_save_gguf(model, tokenizer, "m.gguf", NULL, &err)) ...
 *     if (!bd_gguf_to_folder("m.gguf", "folder", &err)) ...
 */
#ifndef BD_MODEL_GGUF_MODEL_H
#define BD_MODEL_GGUF_MODEL_H

#include "format/gguf.h"
#include "format/tokenizer.h"
#include "model/model.h"

/* `type` NULL: every matrix in the type it has. What the architecture's files cannot say (windows,
 * llama3 scaling, attention biases of Qwen3 and Llama) is refused by name. */
bool bd_model_save_gguf(const bd_model *model, const bd_tokenizer *tokenizer, const char *path,
                        const bd_gguf_type *type, bd_error *err);

/* Writes config.json, model.safetensors and the tokenizer into `folder`. Q8_0 becomes F32. */
bool bd_gguf_to_folder(const char *path, const char *folder, bd_error *err);

bool bd_gguf_model_config(const bd_gguf *file, const char *where, bd_model_config *config,
                          bd_error *err);

/* Rows of a llama q or k matrix (or bias, width 1) from halves to pairs: row 2j of a head is its
 * old row j, row 2j + 1 its old row j + head_size/2; `back` undoes it. bytes: of one row. */
void bd_gguf_pair_rows(const void *source, void *target, int64_t rows, int64_t head_size,
                       size_t row_bytes, bool back);

/* The shortest decimal number that is the same fp32: 1e-6, not 9.99999997e-07. */
double bd_gguf_shortest(double value);

/* Type of a tensor in such a file: vectors and norms F32, matrices `wanted` or their own. */
bd_gguf_type bd_gguf_tensor_type(const bd_parameter *p, const bd_gguf_type *wanted);

/* Whether a rotary scaling has a form in these files: none, linear, yarn with the usual betas. */
bool bd_gguf_check_rope(const bd_rope_config *rope, bd_error *err);

/* The keys that models and drafts have in common, each behind "ARCHITECTURE.". */
void bd_gguf_put_dimensions(bd_gguf_out *out, const char *architecture, const bd_model_config *c);
bool bd_gguf_take_dimensions(const bd_gguf *file, const char *where, const char *architecture,
                             bd_model_config *config, bd_error *err);

#endif
