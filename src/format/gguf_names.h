/* gguf_names.h - what a layer's tensors are called in GGUF files. Source: spec gguf 2, 3, 4. */
#ifndef BD_FORMAT_GGUF_NAMES_H
#define BD_FORMAT_GGUF_NAMES_H

#include <stdbool.h>
#include <stddef.h>

enum { BD_GGUF_NAME = 64 };

/* "self_attn.q_proj.weight" of layer 3 is "blk.3.attn_q.weight". False: no such name. */
bool bd_gguf_layer_name(const char *part, long long layer, char out[BD_GGUF_NAME]);

#endif
