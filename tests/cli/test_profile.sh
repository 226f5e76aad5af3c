#!/bin/sh
# --profile: known numbers of calls, a trace that parses, and the same weights with and without.
. tests/cli/lib.sh
i=0
while [ $i -lt 200 ]; do
    echo "entry $i: the block of $((i % 7)) tokens follows the block of $((i % 5)) tokens, and so on."
    i=$((i + 1))
done >"$work/text.txt"
t=$work/tokenizer
quiet() { "$@" >"$work/out" 2>"$work/err" || { cat "$work/err"; return 1; }; }
check "tokenizer" quiet "$BDLM" tokenizer train "$work/text.txt" --out "$t" --vocab-size 300
pretrain() { # pretrain RUN OPTIONS...
    run=$1; shift
    quiet "$BDLM" pretrain --train-files "$work/text.txt" --tokenizer "$t" --out "$work/$run" --hidden-size 32 \
        --num-hidden-layers 3 --num-attention-heads 2 --num-key-value-heads 1 --intermediate-size 48 \
        --sequence-length 32 --batch-size 4 --max-steps 7 --grad-accum 2 --dtype bf16 "$@"
}
# calls PHASE OPERATION N: so many calls of it in that phase ("" : of the phase itself)
calls() {
    found=$(awk -v phase="$1" -v operation="$2" -v FS='  +' '
        /^[a-z]/ { inside = ($1 == phase); if (inside && operation == "") print $2 }
        /^  [a-z]/ && inside && $2 == operation { print $3 }' "$work/err")
    [ "$found" = "$3" ] || { echo "$1, $2: \"$found\" calls, wanted $3"; cat "$work/err"; return 1; }
}
# As many complete events as the table counts calls, one a line between the brackets of a JSON array.
holds_all() {
    told=$(awk -v FS='  +' '/^  [a-z]/ { n += $3 } /^[a-z].*%/ && $1 != "outside" && NF > 5 { n += $2 } END { print n }' "$work/err")
    traced=$(awk 'NR == 1 { if ($0 != "[") exit 1; next }
        $0 == "]" { ended = 1; next }
        /^\{"name": "[a-z0-9, ]*", "cat": "[a-z]*", "ph": "X", "ts": [0-9.]*, "dur": [0-9.]*, "pid": 1, "tid": [0-9]*, "args": \{"flops": [0-9]*, "bytes": [0-9]*\}\},?$/ { n++; next }
        { print "not an event: " $0; exit 1 }
        END { if (ended) print n }' "$1")
    [ "$told" = "$traced" ] || { echo "$told calls, $traced events"; return 1; }
}
sums() { sha256sum "$work/$1"/latest/*.safetensors | cut -d' ' -f1; }

check "plain" pretrain plain
check "nothing is told without being asked" sh -c "! grep -q '^profile:' $work/err"
for threads in 1 2; do
    check "profile, $threads threads" pretrain told$threads --profile --profile-trace "$work/trace$threads.json" --threads $threads
    # 7 steps of 2 micro-batches, 3 layers: 4 products each (query, key and value are one, gate and up too)
    # and the head's 2, norms at 4 places each and at the end, 7 matrices each to train.
    check "steps" calls forward "" 14
    check "attention" calls forward "attention bf16" 42
    check "attention, back" calls backward "attention bf16, back" 42
    check "norms" calls forward "rms norm" $((14 * 13))
    check "products" calls forward "matmul bf16" $((14 * 14))
    check "rope" calls forward "rope" 84
    check "swiglu" calls backward "swiglu, back" 42
    check "weight gradients" calls backward "weight gradient bf16" $((14 * 3 * 7))
    check "updates" calls update "" 7
    check "evaluation" calls evaluation "" 1
    check "ceilings" grep -q '^profile: .*GFLOP/s f32.*GB/s read' "$work/err"
    check "the rest" grep -q '^outside' "$work/err"
    check "the weights are the same" [ "$(sums plain)" = "$(sums told$threads)" ]
    check "the trace holds every call" holds_all "$work/trace$threads.json"
done
check "loss lines are the same" sh -c "cut -d, -f1-3 $work/plain/metrics.jsonl >$work/a; cut -d, -f1-3 $work/told1/metrics.jsonl >$work/b; cmp $work/a $work/b"
m=$work/plain/latest
"$BDLM" generate -m "$m" -p "entry 3" -n 20 --ignore-eos >"$work/said" 2>/dev/null
"$BDLM" generate -m "$m" -p "entry 3" -n 20 --ignore-eos --profile >"$work/told" 2>"$work/err"
check "generate says the same" cmp "$work/said" "$work/told"
check "one prompt" calls prompt "" 1
check "a pass for each token" calls decode "" 19
check "eval" quiet "$BDLM" eval -m "$m" "$work/text.txt" --limit 200 --window 64 --stride 32 --profile
check "windows" calls "window of text" "" 6
check "a folder that is not there" refuses 1 "--profile-trace" "$BDLM" eval -m "$m" "$work/text.txt" --limit 200 \
    --profile-trace "$work/none/t.json"
finish
