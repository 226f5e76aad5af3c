/* export.h - a draft in the forms that other programs load, and back.
 *
 * Hugging Face folders differ in tensor names of the heads and in where config.json has its fields;
 * GGUF files in two flavours differ in names, keys and the numbering of tapped layers. Values stay
 * what they are, bit by bit. Source: draft-family 8, dflash2-lilicorr 8, gguf 3 and 4.
 *
 *     if (!bd_draft_export(draft, BD_LAYOUT_VLLM, "out", &err)) ...
 *     if (!bd_draft_export_gguf(draft, tokenizer, BD_FLAVOR_MAINLINE, NULL, "draft.gguf", &err))
 * ... if (!bd_draft_import_gguf("draft.gguf", target, "out", &err)) ...
 */
#ifndef BD_DRAFT_EXPORT_H
#define BD_DRAFT_EXPORT_H

#include "draft/draft.h"
#include "format/gguf.h"
#include "format/tokenizer.h"

typedef enum {
    BD_LAYOUT_MODELOPT,
    BD_LAYOUT_VLLM,
    BD_LAYOUT_SPECFORGE,
    BD_LAYOUT_ZLAB
} bd_draft_layout;
typedef enum { BD_FLAVOR_MAINLINE, BD_FLAVOR_IK } bd_gguf_flavor;

/* config.json and model.safetensors; every tensor keeps its dtype. A variant that the layout's
 * programs do not know is refused by name. */
bool bd_draft_export(const bd_draft *draft, bd_draft_layout layout, const char *folder,
                     bd_error *err);

/* One file with the target's tokenizer; `type` NULL: every matrix keeps its type. Refused by name:
 * variants, heads, windows, sinks, biases and taps that the flavour's program does not have. */
bool bd_draft_export_gguf(const bd_draft *draft, const bd_tokenizer *tokenizer,
                          bd_gguf_flavor flavor, const bd_gguf_type *type, const char *path,
                          bd_error *err);

/* A draft file of either flavour as a folder. */
bool bd_draft_import_gguf(const char *path, bd_model *target, const char *folder, bd_error *err);

/* The name of a draft's tensor in a flavour's file. False: it has none. */
bool bd_draft_gguf_name(const char *name, bd_gguf_flavor flavor, char out[64]);

#endif
