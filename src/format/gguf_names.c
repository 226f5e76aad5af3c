#include "format/gguf_names.h"

#include <stdio.h>
#include <string.h>

static const char *const names[][2] = {
    {"input_layernorm.weight", "attn_norm.weight"},
    {"self_attn.q_proj.weight", "attn_q.weight"},
    {"self_attn.q_proj.bias", "attn_q.bias"},
    {"self_attn.k_proj.weight", "attn_k.weight"},
    {"self_attn.k_proj.bias", "attn_k.bias"},
    {"self_attn.v_proj.weight", "attn_v.weight"},
    {"self_attn.v_proj.bias", "attn_v.bias"},
    {"self_attn.o_proj.weight", "attn_output.weight"},
    {"self_attn.o_proj.bias", "attn_output.bias"},
    {"self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"self_attn.attention_sink_bias", "attn_sinks.weight"},
    {"post_attention_layernorm.weight", "ffn_norm.weight"},
    {"mlp.gate_proj.weight", "ffn_gate.weight"},
    {"mlp.up_proj.weight", "ffn_up.weight"},
    {"mlp.down_proj.weight", "ffn_down.weight"},
    {"attention_conv.base_kernel", "attn_conv_base"},
    {"attention_conv.kernel_projection.weight", "attn_conv_proj.weight"},
    {"mlp_conv.base_kernel", "ffn_conv_base"},
    {"mlp_conv.kernel_projection.weight", "ffn_conv_proj.weight"},
};

bool bd_gguf_layer_name(const char *part, long long layer, char out[BD_GGUF_NAME])
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i][0], part)) {
            snprintf(out, BD_GGUF_NAME, "blk.%lld.%s", layer, names[i][1]);
            return true;
        }
    return false;
}
