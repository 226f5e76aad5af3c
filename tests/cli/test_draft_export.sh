#!/bin/sh
# Drafts go out in every layout and both GGUF flavours and come back with the same bytes; what a layout or a
# flavour does not have is refused by name.
. tests/cli/lib.sh
golden=tests/golden/draft
quiet() { "$@" >"$work/out" 2>"$work/err" || { cat "$work/err"; return 1; }; }
same() { cmp "$1/model.safetensors" "$2/model.safetensors" && cmp "$1/config.json" "$2/config.json"; }
export_draft() { target=$1; draft=$2; shift 2; "$BDLM" draft export -m "$target" -md "$draft" "$@"; }

# --- folders: all nine golden drafts in every layout that knows them
layouts() { # DRAFT TARGET LAYOUT...
    d=$golden/draft-$1 t=$golden/target-$2-tiny kind=$1; shift 2
    check "$kind: modelopt" quiet export_draft "$t" "$d" --out "$work/$kind"
    for layout in "$@"; do
        check "$kind: $layout" quiet export_draft "$t" "$d" --layout "$layout" --out "$work/$kind-$layout"
        check "$kind: $layout read again" quiet "$BDLM" draft import "$work/$kind-$layout" -m "$t" --out "$work/$kind-$layout-in"
        check "$kind: $layout changes nothing" same "$work/$kind" "$work/$kind-$layout-in"
    done
}
layouts dflash qwen3 vllm specforge zlab
layouts dflash-swa llama vllm specforge zlab
layouts dflash2 llama vllm specforge zlab
layouts domino qwen3 specforge
layouts dspark-gated llama vllm specforge
layouts dspark-rnn qwen2 vllm specforge
layouts dspark-vanilla qwen3 vllm specforge
layouts lilicorr qwen2 vllm
layouts lilicorr-conv qwen3 vllm
check "domino is not z-lab's" refuses 1 "layout zlab: its programs do not load domino drafts" \
    export_draft $golden/target-qwen3-tiny $golden/draft-domino --layout zlab --out "$work/no"
check "vllm nests the Markov head" sh -c "'$BDLM' inspect --tensors '$work/dspark-vanilla-vllm' | grep -q '^markov_head.markov_w1.weight '"
check "modelopt does not" sh -c "'$BDLM' inspect --tensors '$work/dspark-vanilla' | grep -q '^markov_w1.weight '"
check "vllm finds the rank at the top" grep -q '^  "markov_rank"' "$work/dspark-vanilla-vllm/config.json"
check "the layout of a block is written" grep -q '"sample_from_anchor": true' "$work/dspark-vanilla-vllm/config.json"
check "and in plain DFlash" grep -q '"sample_from_anchor": false' "$work/dflash-vllm/config.json"
check "LiLiCorr has its newer names" sh -c "'$BDLM' inspect --tensors '$work/lilicorr' | grep -q '^lilicorr.feature_mlp.up_proj.weight '"
check "is_causal for z-lab" grep -q '^  "is_causal"' "$work/dflash-zlab/config.json"

# --- GGUF: a target with a tokenizer, and a draft of each kind that has a form there
i=0
while [ $i -lt 200 ]; do
    echo "entry $i: the block of $((i % 7)) tokens follows the block of $((i % 5)) tokens."
    i=$((i + 1))
done >"$work/text.txt"
t=$work/target
"$BDLM" tokenizer train "$work/text.txt" --out "$work/tokenizer" --vocab-size 400 2>/dev/null
check "target" quiet "$BDLM" init --out "$t" --tokenizer "$work/tokenizer" --hidden-size 64 --num-hidden-layers 5 \
    --num-attention-heads 2 --num-key-value-heads 1 --head-dim 32 --intermediate-size 64
train() { # NAME OPTION...
    kind=$1; shift
    check "draft $kind" quiet "$BDLM" draft train --path "$t" --train-files "$work/text.txt" --out "$work/run-$kind" --max-steps 2 \
        --sequence-length 32 --batch-size 2 --num-hidden-layers 2 --num-attention-heads 2 --num-key-value-heads 1 \
        --head-dim 32 --intermediate-size 64 --block-size 4 --num-anchors 4 "$@"
    check "export $kind" quiet export_draft "$t" "$work/run-$kind/latest" --out "$work/$kind-plain"
}
round() { # NAME FLAVOR DTYPE
    check "$1 to $2" quiet export_draft "$t" "$work/$1-plain" --to gguf --flavor $2 --out "$work/$1-$2.gguf"
    check "$1 from $2" quiet "$BDLM" draft import "$work/$1-$2.gguf" -m "$t" --out "$work/$1-$2"
    check "$1 in $2: the same bytes" same "$work/$1-plain" "$work/$1-$2"
    check "$1 in $2 as Q8_0" quiet export_draft "$t" "$work/$1-plain" --to gguf --flavor $2 --dtype Q8_0 --out "$work/$1-$2-q8.gguf"
    check "$1 from Q8_0" quiet "$BDLM" draft import "$work/$1-$2-q8.gguf" -m "$t" --out "$work/$1-$2-q8"
}
train plain
train dspark --projector-type dspark --markov-rank 32 --use-confidence-head true --confidence-head-alpha 1
train dflash2 --projector-type dflash2 --conv-kernel-size 2 --conv-group-size 16 --selector-rank 32 --selector-top-k 4
train gated --projector-type dspark --markov-rank 32 --markov-head-type gated
train domino --projector-type domino --emb-dim 16 --gru-hidden-dim 16
round plain mainline
round plain ik
round dspark mainline
round dspark ik
round dflash2 mainline
# What each flavour's program looks for, by name and number; a round trip alone would not notice a common fault.
ids=$(tr -d ' \n' <"$work/plain-plain/config.json" | sed 's/.*"target_layer_ids":\[\([0-9,]*\)\].*/\1/')
first=${ids%,*} second=${ids#*,}
keys() { "$BDLM" inspect "$work/$1.gguf" | sed 's/  */ /g' >"$work/keys"; }
has() { check "$1: $2" grep -q "^$2" "$work/keys"; }
keys plain-mainline
has mainline "general.architecture dflash$"
has mainline "dflash.target_layers $((first + 1)) $((second + 1))$"
has mainline "dflash.block_size 4$"
has mainline "tokenizer.ggml.mask_token_id [0-9]"
has mainline "fc.weight F32 \[64, 128\]"
has mainline "enc.output_norm.weight F32 \[64\]"
has mainline "blk.1.ffn_norm.weight F32 \[64\]"
check "mainline: eleven tensors a layer and three" grep -q "^25 tensors" "$work/keys"
keys plain-ik
has ik "general.architecture dflash-draft$"
has ik "dflash-draft.dflash.target_layer_ids $first $second$"
has ik "dflash-draft.dflash.n_target_features 128$"
has ik "dflash-draft.dflash.mask_token_id [0-9]"
has ik "dflash_fc.weight F32 \[64, 128\]"
has ik "dflash_hidden_norm.weight F32 \[64\]"
has ik "blk.1.post_attention_norm.weight F32 \[64\]"
check "ik: no mask among the tokenizer's keys" sh -c "! grep -q mask_token_id.*tokenizer '$work/keys' && ! grep -q '^tokenizer.ggml.mask' '$work/keys'"
keys dspark-mainline
has dspark "dflash.sample_from_anchor true$"
has dspark "dflash.has_confidence_head true$"
has dspark "conf_proj.weight F32 \[1, 96\]"
keys dflash2-mainline
has dflash2 "dflash.selector_top_k 4$"
has dflash2 "blk.0.attn_conv_base F32 \[2, 2, 64\]"
has dflash2 "selector_hidden.weight F32 \[32, 64\]"
keys plain-mainline-q8
has Q8_0 "blk.0.attn_q.weight Q8_0"
has Q8_0 "blk.0.attn_q_norm.weight F32"
refuse() { check "$1: $3" refuses 1 "$3" export_draft "$t" "$work/$1-plain" --to gguf --flavor $2 --out "$work/no.gguf"; }
refuse dflash2 ik "the ik flavour has no dflash2 head"
refuse domino mainline "the mainline flavour has no domino head"
refuse gated mainline 'markov_head_type is "gated"'
check "nothing is left of a refused export" test ! -e "$work/no.gguf"
sed 's/"target_layer_ids": \[/&4,/' "$work/plain-plain/config.json" | tr -d '\n' | sed 's/4, *1, */4, /' >"$work/config.json"
mkdir "$work/late"; cp "$work/plain-plain/model.safetensors" "$work/late"; cp "$work/config.json" "$work/late"
check "mainline cannot read the last layer" refuses 1 "target_layer_ids has layer 4" export_draft "$t" "$work/late" --to gguf --out "$work/no.gguf"
check "ik can" quiet export_draft "$t" "$work/late" --to gguf --flavor ik --out "$work/late.gguf"
finish
