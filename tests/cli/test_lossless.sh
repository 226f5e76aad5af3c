#!/bin/sh
# Speculative text is plain text, byte for byte: every variant, f32 and bf16, one thread and two, several
# prompts in one run. Each draft is accepted often enough that the comparison means something.
. tests/cli/lib.sh
target_steps=400
. tests/cli/drafting.sh
few="--recipe recipes/compare-drafters.yaml --sequence-length 32 --block-size 4 --num-anchors 8 --num-hidden-layers 2
    --max-steps 200 --batch-size 4 --lr 3e-3 --head-dim 16 --num-attention-heads 2 --num-key-value-heads 1
    --intermediate-size 32 --conv-group-size 8 --held-out-fraction 0.03 --lilicorr-hidden-size 32 --emb-dim 8
    --gru-hidden-dim 8 --markov-rank 8 --selector-rank 8"
variants="dflash dspark domino dflash2 lilicorr"
check "cache" quiet "$BDLM" draft cache $few --path "$target" --train-files "$corpus" --out "$work/cache"
check "five drafts" quiet "$BDLM" draft compare $few --path "$target" --cache "$work/cache" -n 4 --limit 1 --out "$work/drafts"

cat >"$work/prompts.jsonl" <<END
{"prompt": "entry 7: the"}
{"prompt": "entry 31: the block of 3"}
{"prompt": "tokens follows"}
{"prompt": "Zebras, and then?"}
{"prompt": "e"}
END
generate() { "$BDLM" generate -m "$target" --prompts "$work/prompts.jsonl" -n 60 --ignore-eos "$@" 2>"$work/err"; }
number() { sed -n "s/.*\"$1\": \([0-9.]*\).*/\1/p" "$work/json" | head -1; }

for dtype in f32 bf16; do
    generate --dtype $dtype -t 1 >"$work/plain"
    check "plain text in $dtype" test "$(wc -c <"$work/plain")" -gt 300
    generate --dtype $dtype -t 2 >"$work/other"
    check "plain, $dtype: two threads" cmp "$work/plain" "$work/other"
    for v in $variants; do
        d=$work/drafts/$v-seed0/latest
        for threads in 1 2; do
            generate --dtype $dtype -t $threads -md "$d" >"$work/other"
            check "$v, $dtype, $threads threads" cmp "$work/plain" "$work/other"
        done
        # Token by token rather than as text, and how much of it the draft brought.
        generate --dtype $dtype -t 2 -md "$d" --compare --json >"$work/json"
        check "$v, $dtype: the same ids" grep -q '"identical": true' "$work/json"
        check "$v, $dtype: drafts are accepted" awk "BEGIN { exit !($(number acceptance_length) > 1.3) }"
        generate --dtype $dtype -t 2 -md "$d" --schedule auto >"$work/other"
        check "$v, $dtype, auto" cmp "$work/plain" "$work/other"
        check "$v, $dtype: and rejected" awk "BEGIN { exit !($(number acceptance_length) < 4) }"
    done
    dspark="-md $work/drafts/dspark-seed0/latest"
    generate --dtype $dtype -t 2 $dspark --schedule confidence >"$work/other"
    check "confidence, $dtype" cmp "$work/plain" "$work/other"
    generate --dtype $dtype -t 2 $dspark --schedule confidence --compare --json >"$work/json"
    check "confidence, $dtype: the same ids" grep -q '"identical": true' "$work/json"
    check "confidence, $dtype: drafts are accepted" awk "BEGIN { exit !($(number acceptance_length) > 1.1) }"
done

say="$BDLM generate -m $target -p entry -n 8"
check "no confidence head" refuses 2 "has no confidence head (a domino draft)" $say -md "$work/drafts/domino-seed0/latest" \
    --schedule confidence
check "nothing to schedule" refuses 2 "--schedule wants --draft" $say --schedule auto
check "an unknown schedule" refuses 2 "fixed, confidence, auto" $say $dspark --schedule always
check "eval" quiet "$BDLM" draft eval -m "$target" $dspark "$work/prompts.jsonl" -n 20 --schedule confidence
check "plain decoding beside it" grep -q '^plain decoding: ' "$work/out"
printf "{\"turns\": [\"entry\"]}\n{\"turns\": [\"\"]}\n" >"$work/some.jsonl"
check "eval with one that fails" quiet "$BDLM" draft eval -m "$target" $dspark "$work/some.jsonl" -n 20
check "which is named" grep -q "prompt 2 failed: no tokens" "$work/err"
check "eval without a head" refuses 2 "has no confidence head" "$BDLM" draft eval -m "$target" \
    -md "$work/drafts/dflash-seed0/latest" "$work/prompts.jsonl" --schedule confidence
finish
