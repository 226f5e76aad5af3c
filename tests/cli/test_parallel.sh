#!/bin/sh
# generate --parallel: the bytes of one prompt after the other, in the prompts' order.
. tests/cli/lib.sh
i=0
while [ $i -lt 300 ]; do
    echo "entry $i: the block of $((i % 7)) tokens follows the block of $((i % 5)) tokens, and so on."
    i=$((i + 1))
done >"$work/text.txt"
t=$work/tokenizer
m=$work/target/latest
quiet() { "$@" >"$work/out" 2>"$work/err" || { cat "$work/err"; return 1; }; }
size="--num-hidden-layers 2 --num-attention-heads 2 --num-key-value-heads 1 --intermediate-size 48"
quick="--sequence-length 32 --batch-size 4 --max-steps 30 --lr 5e-3"
check "tokenizer" quiet "$BDLM" tokenizer train "$work/text.txt" --out "$t" --vocab-size 400
check "pretrain" quiet "$BDLM" pretrain --train-files "$work/text.txt" --tokenizer "$t" --out "$work/target" \
    --hidden-size 32 $size $quick
check "draft" quiet "$BDLM" draft train --path "$m" --train-files "$work/text.txt" --out "$work/draft" $size --head-dim 16 \
    --block-size 4 --num-anchors 8 $quick
for i in 1 2 3 4 5 6 7 8 9; do
    printf '{"prompt": "entry %s: the block of %s"}\n' $i "$(head -c $((i * 3 % 8 * 5)) "$work/text.txt" | tr '\n' ' ')"
done >"$work/prompts.jsonl"

say() { "$BDLM" generate -m "$m" --prompts "$work/prompts.jsonl" -n 25 "$@" 2>"$work/err" || cat "$work/err"; }
for dtype in f32 bf16 q8_0; do
    for temperature in 0 0.9; do
        say --dtype $dtype --temp $temperature >"$work/one"
        check "something is said" test -s "$work/one"
        for places in 1 2 4 9 50; do
            say --dtype $dtype --temp $temperature --parallel $places >"$work/many"
            check "$places at once, $dtype, temperature $temperature" cmp "$work/one" "$work/many"
        done
    done
done
check "what it did is told" grep -q '^plain: .* tokens/s' "$work/err"
say --json | sed -n '/"samples"/,$p' >"$work/one"
say --json --parallel 4 | sed -n '/"samples"/,$p' >"$work/many"
check "samples are in order" cmp "$work/one" "$work/many"
check "one prompt" sh -c "$BDLM generate -m $m -p 'entry 3' -n 9 --parallel 3 2>$work/err >$work/a && $BDLM generate -m $m -p 'entry 3' -n 9 2>$work/err | cmp - $work/a"
check "with a draft" refuses 2 "--parallel: plain decoding only" "$BDLM" generate -m "$m" -md "$work/draft/latest" -p x --parallel 2
check "no places" refuses 2 "--parallel: 0 is outside" "$BDLM" generate -m "$m" -p x --parallel 0
printf '{"prompt": ""}\n' >>"$work/prompts.jsonl"
check "an empty prompt" refuses 1 "prompt 10: prompt: no tokens" "$BDLM" generate -m "$m" --prompts "$work/prompts.jsonl" --parallel 2
finish
