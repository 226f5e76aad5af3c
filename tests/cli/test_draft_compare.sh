#!/bin/sh
# Drafters side by side: the table, the files, what is refused, and going on after a stop.
. tests/cli/lib.sh
. tests/cli/drafting.sh
recipe=recipes/compare-drafters.yaml
few="--recipe $recipe --sequence-length 32 --block-size 4 --num-anchors 8 --num-hidden-layers 2 --max-steps 10 --batch-size 4
    --head-dim 16 --num-attention-heads 2 --num-key-value-heads 1 --intermediate-size 32 --conv-group-size 8 --held-out-fraction 0.03
    --lilicorr-hidden-size 32 --emb-dim 8 --gru-hidden-dim 8 --markov-rank 8 --selector-rank 8"
cat="$BDLM draft cache $few --path $target --train-files $corpus --out $work/cache"
check "cache" quiet $cat
compare="$BDLM draft compare $few --path $target --cache $work/cache -n 16"
check "all five" quiet $compare --out "$work/all" --json
for v in dflash dspark domino dflash2 lilicorr; do
    check "$v is in the table" grep -q "^| $v | [0-9]* | 1 |" "$work/all/compare.md"
    check "$v is a draft" sh -c "$BDLM inspect $work/all/$v-seed0/latest >$work/out2"
done
check "JSON on stdout is that of the file" cmp "$work/out" "$work/all/compare.json"
check "what a draft was" grep -q '"acceptance_per_position"' "$work/out"
check "two of them with two seeds" quiet $compare --variants dflash,dspark --seeds 1,2 --out "$work/two" --limit 3
check "a line with the range" grep -Eq '^dspark .*[0-9]-[0-9]' "$work/out"
check "four drafts" sh -c "[ \$(ls -d $work/two/*-seed* | wc -l) = 4 ]"

# The same numbers as from draft eval on the same prompts.
printf '{"turns": ["entry 7: the"]}\n{"prompt": "entry 31: the block of"}\n' >"$work/prompts.jsonl"
check "prompts of a file" quiet $compare --variants dspark --out "$work/file" "$work/prompts.jsonl"
check "eval" sh -c "$BDLM draft eval -m $target -md $work/file/dspark-seed0/latest --dtype f32 -n 16 --json $work/prompts.jsonl \
    >$work/eval.json 2>$work/err2"
accept() { sed -n 's/.*"acceptance_length": \([0-9.]*\).*/\1/p' "$1" | head -1; }
check "the acceptance length of draft eval" sh -c "[ -n '$(accept "$work/eval.json")' ] && [ '$(accept "$work/eval.json")' = '$(accept "$work/file/compare.json")' ]"

# And the weights are those of draft train.
check "alone" quiet "$BDLM" draft train $few --path "$target" --cache "$work/cache" --seed 2 --out "$work/alone"
check "the same weights" cmp "$work/alone/latest/model.safetensors" "$work/two/dflash-seed2/latest/model.safetensors"

check "not over what is there" refuses 1 "exists already" $compare --out "$work/two"
rm -r "$work/two/dspark-seed2" "$work/two/compare.md"
check "the missing one is made" quiet $compare --variants dflash,dspark --seeds 1,2 --out "$work/two" --limit 3 --resume
check "and the table" test -s "$work/two/compare.md"
check "an unknown variant" refuses 2 "dflash2" $compare --variants dflash,medusa --out "$work/no"
check "a variant twice" refuses 2 "twice" $compare --variants dflash,dflash --out "$work/no"
check "seeds that are none" refuses 2 "--seeds" $compare --seeds 1,x --out "$work/no"
check "a variant without its options" refuses 1 "dspark: option draft.markov_rank" "$BDLM" draft compare $small --path "$target" \
    --cache "$work/cache" --variants dflash,dspark --max-steps 2 --out "$work/no"
check "nothing held out" refuses 1 "no prompts" $compare --held-out-fraction 0 --out "$work/no"
check "nothing was begun" test ! -e "$work/no"
finish
