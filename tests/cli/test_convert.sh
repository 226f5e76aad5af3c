#!/bin/sh
# A model folder to GGUF and back gives the same weights and the same token ids, for each family and format.
. tests/cli/lib.sh
i=0
while [ $i -lt 200 ]; do
    echo "entry $i: the block of $((i % 7)) tokens follows the block of $((i % 5)) tokens."
    i=$((i + 1))
done >"$work/text.txt"
t=$work/tokenizer
sizes="--hidden-size 64 --num-hidden-layers 2 --num-attention-heads 4 --num-key-value-heads 2 --head-dim 16 --intermediate-size 96"
quiet() { "$@" >"$work/out" 2>"$work/err" || { cat "$work/err"; return 1; }; }

check "tokenizer" quiet "$BDLM" tokenizer train "$work/text.txt" --out "$t" --vocab-size 400
for family in llama qwen2 qwen3; do
    for dtype in F32 BF16 F16; do
        m=$work/$family-$dtype
        check "init $family $dtype" quiet "$BDLM" init --out "$m" --tokenizer "$t" --dtype $dtype $sizes --family $family
        check "to GGUF" quiet "$BDLM" convert "$m" --out "$m.gguf"
        check "and back" quiet "$BDLM" convert "$m.gguf" --out "$m-again"
        check "$family $dtype: the same weights" cmp "$m/model.safetensors" "$m-again/model.safetensors"
        check "$family $dtype: to the same GGUF" quiet "$BDLM" convert "$m-again" --out "$m-2.gguf"
        check "$family $dtype: byte for byte" cmp "$m.gguf" "$m-2.gguf"
    done
    m=$work/$family-F32
    check "Q8_0" quiet "$BDLM" convert "$m" --out "$m-q8.gguf" --dtype Q8_0
    check "Q8_0 and back" quiet "$BDLM" convert "$m-q8.gguf" --out "$m-q8"
    check "Q8_0 again: it changes nothing more" sh -c "'$BDLM' convert '$m-q8' --out '$m-q8-2.gguf' --dtype Q8_0 2>/dev/null &&
        cmp '$m-q8.gguf' '$m-q8-2.gguf'"
    for folder in "$m" "$m-again"; do
        "$BDLM" tokenizer encode -m "$folder" "the block of 12 tokens,<|im_end|>  and so on" >"$work/ids-$(basename "$folder")"
    done
    check "$family: the same ids" cmp "$work/ids-$family-F32" "$work/ids-$family-F32-again"
done
check "not over another" refuses 1 "exists already" "$BDLM" convert "$work/llama-F32" --out "$work/qwen2-F32.gguf"
head -c 3000 "$work/llama-F32.gguf" >"$work/cut.gguf"
check "a cut file" refuses 1 "$work/cut.gguf" "$BDLM" convert "$work/cut.gguf" --out "$work/cut"
check "nothing is left" test ! -e "$work/cut" -a ! -e "$work/cut.tmp"
check "qwen2 heads that do not fill the width" quiet "$BDLM" init --out "$work/odd" --tokenizer "$t" ${sizes%--head-dim*} --head-dim 32 \
    --intermediate-size 96 --family qwen2
check "are refused" refuses 1 "4 heads of 32 are not hidden_size 64" "$BDLM" convert "$work/odd" --out "$work/odd.gguf"
finish
