#!/bin/sh
# Hidden states from a cache: the same weights as online for every variant, and refusals that say why.
. tests/cli/lib.sh
. tests/cli/drafting.sh
words="--path $target --train-files $corpus --sequence-length 32 --num-hidden-layers 2"
steps="--max-steps 12 --eval-every 6 --save-every 6"

check "cache" quiet "$BDLM" draft cache $words --out "$work/cache"
check "its size is told first" grep -q 'GB' "$work/err"
check "inspect" sh -c "$BDLM inspect $work/cache 2>$work/err | grep -q '296 records, all whole'"
check "cache twice" refuses 1 "exists already" "$BDLM" draft cache $words --out "$work/cache"
check "cache in f64" quiet "$BDLM" draft cache $words --out "$work/wide" --states-dtype fp64
check "cache before the norm" quiet "$BDLM" draft cache $words --out "$work/prenorm" --states-prenorm
check "cache in bf16" quiet "$BDLM" draft cache $words --out "$work/narrow" --states-dtype bf16

# Killed while it is written, and finished: the same bytes.
( "$BDLM" draft cache $words --out "$work/killed" 2>/dev/null & p=$!
  while [ ! -e "$work/killed/cache.json" ] && kill -0 $p 2>/dev/null; do sleep 0.01; done; kill -9 $p; wait $p ) 2>/dev/null
check "killed and finished" sh -c "grep -q '\"complete\": true' $work/killed/cache.json || $BDLM draft cache $words --out $work/killed --resume 2>$work/err"
check "the same bytes" sh -c "cmp $work/cache/states-00000.bin $work/killed/states-00000.bin && cmp $work/cache/cache.json $work/killed/cache.json"
check "nothing left over" sh -c "[ \$(ls -A $work/killed | wc -l) = 2 ]"

for v in dflash dspark domino dflash2 lilicorr; do
    check "$v online" draft_train $(variant $v) $steps --train-files "$corpus" --sequence-length 32 --out "$work/$v"
    check "$v offline" draft_train $(variant $v) $steps --cache "$work/cache" --out "$work/$v-off"
    check "$v: the same weights" same_weights "$work/$v" "$work/$v-off"
done
for kind in wide prenorm narrow; do
    check "dflash from $kind" draft_train $(variant dflash) $steps --cache "$work/$kind" --out "$work/dflash-$kind"
done
check "f64: the same weights" same_weights "$work/dflash" "$work/dflash-wide"
check "before the norm: the same weights" same_weights "$work/dflash" "$work/dflash-prenorm"
check "bf16 is rounded" sh -c "! cmp -s $work/dflash/latest/model.safetensors $work/dflash-narrow/latest/model.safetensors"
check "bf16 takes half the room" sh -c "[ \$(wc -c <$work/narrow/states-00000.bin) -lt \$((\$(wc -c <$work/cache/states-00000.bin) * 6 / 10)) ]"

# A run stopped half way goes on from the cache to the same weights.
check "first half" draft_train $(variant dflash) $steps --cache "$work/cache" --out "$work/half"
rm -r "$work/half/checkpoint-12"; ln -sfn checkpoint-6 "$work/half/latest"
check "second half" draft_train $(variant dflash) $steps --cache "$work/cache" --out "$work/half" --resume
check "in two halves: the same weights" same_weights "$work/dflash" "$work/half"

off="$BDLM draft train --path $target $small --max-steps 2 --out $work/no"
check "other layers" refuses 1 "target_layer_ids: found [1, 1], [0, 2] expected" $off --cache "$work/cache" --target-layer-ids 0,2
check "other length" refuses 1 "sequence_length: found 32, 64 expected" $off --cache "$work/cache" --sequence-length 64
check "other rounding" refuses 1 "compute: found F32, BF16 expected" $off --cache "$work/cache" --dtype bf16
check "other dtype" refuses 1 "dtype: found F32, BF16 expected" $off --cache "$work/cache" --states-dtype bf16
check "other norm" refuses 1 "prenorm: found true, false expected" $off --cache "$work/prenorm" --states-prenorm false
check "cache and text" refuses 2 "one of the two" $off --cache "$work/cache" --train-files "$corpus"
check "other target" quiet "$BDLM" init --out "$work/fresh" --tokenizer "$work/tokenizer" --hidden-size 32 \
    --num-hidden-layers 4 --num-attention-heads 2 --num-key-value-heads 1 --intermediate-size 48
check "cache of another target" refuses 1 "target: found" "$BDLM" draft train --path "$work/fresh" $small --max-steps 2 \
    --out "$work/no" --cache "$work/cache"
sed 's/"complete": true/"complete": false/' "$work/cache/cache.json" >"$work/j" && cp "$work/j" "$work/cache/cache.json"
check "an unfinished cache" refuses 1 "complete: found false" $off --cache "$work/cache"
check "goes on" quiet "$BDLM" draft cache $words --out "$work/cache" --resume
check "goes on with the same text only" refuses 1 "dtype: found F32, BF16" "$BDLM" draft cache $words --out "$work/cache" \
    --resume --states-dtype bf16
size=$(wc -c <"$work/cache/states-00000.bin") # the last row is held out: every run reads it
printf x | dd of="$work/cache/states-00000.bin" bs=1 seek=$((size - 5000)) conv=notrunc 2>/dev/null
check "inspect finds a damaged record" refuses 1 "damaged: found checksum" "$BDLM" inspect "$work/cache"
check "a damaged record" refuses 1 "damaged: found checksum" $off --cache "$work/cache"
truncate -s 9999 "$work/cache/states-00000.bin"
check "a cut file" refuses 1 "found 9999 bytes" $off --cache "$work/cache"
finish
