#!/bin/sh
# Hidden states from producers: the same weights as online; a producer killed and replaced, the trainer
# killed and resumed, two producers, two trainers; nobody loses or doubles a record.
. tests/cli/lib.sh
. tests/cli/drafting.sh
# More than one epoch: 294 rows are trained on.
steps="--max-steps 90 --eval-every 30 --save-every 10 --train-files $corpus --sequence-length 32"
at=ipc://$work/s
produce() { # produce LOG ADDRESS...: in the background, its number in $producer
    log=$1; shift
    "$BDLM" draft produce --path "$target" -t 1 --patience 60 $(printf -- '--to %s ' "$@") 2>"$log" &
    producer=$!
}
listen() { # listen RUN ADDRESS OPTION...
    run=$1 address=$2; shift 2
    quiet "$BDLM" draft train --path "$target" $small $steps --out "$run" --listen "$address" --stream-patience 60 "$@"
}
check "online" draft_train $steps --out "$work/online"
check "dspark online" draft_train $(variant dspark) $steps --grad-accum 2 --out "$work/dspark"

produce "$work/p1" "$at"
check "streamed" listen "$work/streamed" "$at" --stream-ahead 5
check "the same weights" same_weights "$work/online" "$work/streamed"
check "the producer ends with it" wait $producer
check "every record once" grep -q 'stream: 378 records, 0 asked for again, 0 dropped' "$work/err"
check "what the producer made" grep -q '378 records, 12096 tokens' "$work/p1"

# Two producers; one is killed in the middle and another takes its place.
produce "$work/p1" "$at"; first=$producer
produce "$work/p2" "$at"; second=$producer
( while [ ! -e "$work/two/checkpoint-10" ]; do sleep 0.01; done; kill -9 $first ) 2>/dev/null &
killer=$!
check "two producers, one killed" listen "$work/two" "$at" $(variant dspark) --stream-ahead 5 --grad-accum 2
check "two producers: the same weights" same_weights "$work/dspark" "$work/two"
check "it is told" grep -q 'stream: a producer is gone' "$work/err"
wait $killer; wait $first 2>/dev/null
check "the other ends with the run" wait $second

# The only producer is killed; a new one goes on.
produce "$work/p1" "$at"; first=$producer
( while [ ! -e "$work/one/checkpoint-10" ]; do sleep 0.01; done; kill -9 $first
  sleep 0.3; "$BDLM" draft produce --path "$target" -t 1 --to "$at" --patience 60 2>"$work/p2" ) 2>/dev/null &
replacement=$!
check "the producer is replaced" listen "$work/one" "$at"
check "replaced: the same weights" same_weights "$work/online" "$work/one"
check "the new one ends with the run" wait $replacement
wait $first 2>/dev/null

# The trainer is killed and resumed; the producer waits for it.
produce "$work/p1" "$at"
( "$BDLM" draft train --path "$target" $small $steps --out "$work/killed" --listen "$at" 2>"$work/log" & p=$!
  while [ ! -e "$work/killed/checkpoint-20" ] && kill -0 $p 2>/dev/null; do sleep 0.01; done; kill -9 $p; wait $p ) 2>/dev/null
sleep 0.3
check "the producer noticed" grep -q 'the trainer is gone' "$work/p1"
check "the trainer goes on" listen "$work/killed" "$at" --resume
check "killed and resumed: the same weights" same_weights "$work/online" "$work/killed"
check "the producer ended at last" wait $producer

# A run that was online goes on as a stream. Stopped while it waits for a producer, it is saved.
cp -r "$work/online" "$work/stopped"
rm -r "$work/stopped/checkpoint-90"; ln -sfn checkpoint-80 "$work/stopped/latest"
"$BDLM" draft train --path "$target" $small $steps --out "$work/stopped" --listen "$at" --resume 2>"$work/log" & p=$!
while ! grep -q 'waiting for producers' "$work/log" && kill -0 $p 2>/dev/null; do sleep 0.01; done
sleep 1; kill $p
check "a stop while waiting is a stop" wait $p
check "and is told" grep -q 'stopped at step 80' "$work/log"
produce "$work/p1" "$at"
check "stopped and resumed" listen "$work/stopped" "$at" --resume
check "stopped and resumed: the same weights" same_weights "$work/online" "$work/stopped"
wait $producer

# One producer, two trainers that want different states.
produce "$work/p1" "$at-a" "$at-b"
( listen "$work/a" "$at-a" --stream-ahead 3 >"$work/a.log" 2>&1 ) & other=$!
draft_train --num-hidden-layers 1 $steps --out "$work/b-online"
check "two trainers, the second" sh -c "$BDLM draft train --path $target $(echo $small) --num-hidden-layers 1 $steps \
    --out $work/b --listen $at-b --stream-patience 60 2>$work/err2"
check "two trainers, the first" wait $other
check "two trainers: the same weights" same_weights "$work/online" "$work/a"
check "two trainers: the same weights for the other" same_weights "$work/b-online" "$work/b"
check "the producer of two ended" wait $producer

# What is refused, and by whom.
check "an address that is none" refuses 1 'found "nowhere"' "$BDLM" draft train --path "$target" $small $steps \
    --out "$work/no" --listen nowhere
check "nobody comes" refuses 1 "no record for" "$BDLM" draft train --path "$target" $small $steps --out "$work/no" \
    --listen "$at" --stream-patience 0.2
check "nobody asks" refuses 1 "no request for" "$BDLM" draft produce --path "$target" --to "$at" --patience 0.2
rm -rf "$work/no"
( "$BDLM" draft train --path "$target" $small $steps --out "$work/no" --listen "$at" --dtype bf16 --stream-patience 2 \
    2>/dev/null ) & other=$!
check "a producer that rounds otherwise" refuses 1 "compute: found F32, BF16 expected" "$BDLM" draft produce --path "$target" \
    --to "$at" --patience 20
wait $other
finish
