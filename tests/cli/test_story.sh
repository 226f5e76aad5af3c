#!/bin/sh
# Text to tokenizer to model to draft to speculative text, small: the commands fit together, outputs do
# not depend on threads or on the draft, a stopped run goes on to the same bytes.
. tests/cli/lib.sh
i=0
while [ $i -lt 400 ]; do
    echo "entry $i: the block of $((i % 7)) tokens follows the block of $((i % 5)) tokens, and so on."
    i=$((i + 1))
done >"$work/text.txt"
t=$work/tokenizer
model="--hidden-size 32 --num-hidden-layers 4 --num-attention-heads 2 --num-key-value-heads 1 --intermediate-size 48"
quick="--sequence-length 32 --batch-size 4 --max-steps 30 --lr 5e-3"
quiet() { "$@" >"$work/out" 2>"$work/err" || { cat "$work/err"; return 1; }; }

check "tokenizer" quiet "$BDLM" tokenizer train "$work/text.txt" --out "$t" --vocab-size 400
check "encode" sh -c "$BDLM tokenizer encode -m $t 'the block of 3 tokens' >$work/ids"
check "decode gives the text back" sh -c "[ \"\$($BDLM tokenizer decode -m $t <$work/ids)\" = 'the block of 3 tokens' ]"
check "init" quiet "$BDLM" init --out "$work/fresh" --tokenizer "$t" $model
check "init twice" refuses 1 "exists already" "$BDLM" init --out "$work/fresh" --tokenizer "$t" $model
check "inspect" sh -c "$BDLM inspect $work/fresh | grep -q 'million values'"

check "pretrain" quiet "$BDLM" pretrain --train-files "$work/text.txt" --tokenizer "$t" --out "$work/target" $model $quick
check "a run is not overwritten" refuses 1 "$work/target" "$BDLM" pretrain --train-files "$work/text.txt" \
    --tokenizer "$t" --out "$work/target" $model $quick
check "log" sh -c "tail -n 1 $work/target/metrics.jsonl | grep -q '\"loss\"'"
check "draft" quiet "$BDLM" draft train --path "$work/target/latest" --train-files "$work/text.txt" --out "$work/draft" \
    --num-hidden-layers 1 --num-attention-heads 2 --num-key-value-heads 1 --head-dim 16 --intermediate-size 32 \
    --block-size 4 --num-anchors 8 $quick
check "draft needs its sizes" refuses 1 "draft.num_attention_heads" "$BDLM" draft train --path "$work/target/latest" \
    --train-files "$work/text.txt" --out "$work/no"

say() { "$BDLM" generate -m "$work/target/latest" -p "entry 12: the block" -n 40 --ignore-eos "$@" 2>"$work/err"; }
for dtype in f32 bf16 q8_0; do
    say --dtype $dtype -t 1 >"$work/plain"
    check "something is said in $dtype" test -s "$work/plain"
    for threads in 1 2; do
        say --dtype $dtype -t $threads >"$work/other"
        check "plain, $dtype, $threads threads" cmp "$work/plain" "$work/other"
        say --dtype $dtype -t $threads -md "$work/draft/latest" >"$work/other"
        check "with draft, $dtype, $threads threads" cmp "$work/plain" "$work/other"
    done
done
say --temp 0.8 -s 7 >"$work/plain"; say --temp 0.8 -s 7 -md "$work/draft/latest" >"$work/other"
check "sampled text is the same with a plain DFlash draft" cmp "$work/plain" "$work/other"
check "compare" sh -c "$BDLM generate -m $work/target/latest -md $work/draft/latest -p 'entry 3' -n 30 --compare --json \
    --spec-dump $work/dump.jsonl 2>$work/err | grep -q '\"identical\": true'"
check "cycles are written" grep -q '"proposed"' "$work/dump.jsonl"
check "report in words" grep -q 'break-even' "$work/err"
check "a draft that is not there" refuses 1 "$work/none" "$BDLM" generate -m "$work/target/latest" -md "$work/none" -p x
check "a draft of another target" refuses 1 "" "$BDLM" generate -m "$work/fresh" -md "$work/target/latest" -p x
printf '{"turns": ["entry 7: the"], "category": "seven"}\n' >"$work/prompts.jsonl"
check "draft eval" sh -c "$BDLM draft eval -m $work/target/latest -md $work/draft/latest $work/prompts.jsonl -n 20 \
    2>$work/err | grep -q '^seven'"
printf '{"turns": ["entry 7: the"]}\n' >"$work/other.jsonl"
check "a prompt without category counts by its file" sh -c "$BDLM draft eval -m $work/target/latest -md $work/draft/latest \
    $work/prompts.jsonl $work/other.jsonl -n 20 --json 2>$work/err | tr -d ' \n' | grep -q '\"other\":{\"prompts\":1,'"
printf '{"turns": [""]}\n' >"$work/empty.jsonl"
check "one of two failed" sh -c "$BDLM draft eval -m $work/target/latest -md $work/draft/latest $work/prompts.jsonl $work/empty.jsonl \
    -n 20 >$work/out 2>$work/err && grep -q '1 of 2 prompts failed; prompt 2: no tokens in it' $work/err"
check "all failed" refuses 1 "all 1 prompts failed; prompt 1: no tokens in it" \
    "$BDLM" draft eval -m "$work/target/latest" -md "$work/draft/latest" "$work/empty.jsonl" -n 20
check "page" sh -c "$BDLM report $work/target $work/draft -o $work/page.html 2>$work/err && grep -q '<svg' $work/page.html"

# 30 steps at once, or 10, a stop, and the rest: the same weights.
part="--train-files $work/text.txt --tokenizer $t $model $quick --save-every 10"
quiet "$BDLM" pretrain $part --out "$work/whole"
( "$BDLM" pretrain $part --out "$work/parts" 2>/dev/null & p=$!
  while [ ! -e "$work/parts/latest" ] && kill -0 $p 2>/dev/null; do sleep 0.01; done; kill -9 $p; wait $p ) 2>/dev/null
quiet "$BDLM" pretrain $part --out "$work/parts" --resume
check "killed and resumed: the same weights" cmp "$work/whole/latest/model.safetensors" "$work/parts/latest/model.safetensors"
check "another recipe is refused" refuses 1 "learning_rate" "$BDLM" pretrain $part --out "$work/whole" --resume --lr 1e-3
finish
