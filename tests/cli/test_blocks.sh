#!/bin/sh
# Block-diffusion models from the command line: generation with and without caches, schedules, traces,
# evaluation. The golden students count: 20 21 22 23 goes on with 24 25 26.
. tests/cli/lib.sh
models=tests/golden/block-diffusion/models
quiet() { "$@" >"$work/out" 2>"$work/err" || { cat "$work/err"; return 1; }; }
student() { # student NAME ALIGNMENT POLICY: a golden student whose config.json says what it is
    mkdir "$work/$1" && cp "$models/student_$1"/* "$work/$1" && chmod u+w "$work/$1"/* &&
        sed -i '0,/{/s//{"block_diffusion": {"block_size": 4, "mask_token_id": 96, "logit_alignment": "'"$2"'", "canvas_policy": "'"$3"'"},/' \
            "$work/$1/config.json"
}
student same same_position all_masked
student shift shifted seed_and_mask
echo "20 21 22 23 24" >"$work/ids"
say() { "$BDLM" generate --tokens-in "$work/ids" -n 14 --ignore-eos --dtype f32 "$@" 2>"$work/err"; }
counted="25 26 27 28 29 30 31 32 33 34 35 36 37 38 "

for name in same shift; do
    m=$work/$name
    for schedule in low_confidence one sequential; do
        check "$name, $schedule: counts" sh -c "[ \"\$($BDLM generate -m $m --tokens-in $work/ids -n 14 --ignore-eos \
            --dtype f32 --schedule $schedule 2>/dev/null)\" = '$counted' ]"
    done
    for schedule in low_confidence one sequential static dynamic factor entropy; do
        for dtype in f32 bf16; do
            say -m "$m" --schedule $schedule --dtype $dtype -t 1 >"$work/cached"
            say -m "$m" --schedule $schedule --dtype $dtype -t 2 --cacheless >"$work/plain"
            check "$name, $schedule, $dtype: cached as cacheless" cmp "$work/cached" "$work/plain"
        done
        check "$name, $schedule: something is said" test -s "$work/cached"
    done
    say -m "$m" --temp 1.5 -s 3 >"$work/cached"; say -m "$m" --temp 1.5 -s 3 --cacheless >"$work/plain"
    check "$name: sampled, cached as cacheless" cmp "$work/cached" "$work/plain"
    say -m "$m" --temp 1.5 -s 4 >"$work/plain"
    check "$name: another seed says something else" sh -c "! cmp -s $work/cached $work/plain"
    check "$name: compare" sh -c "$BDLM generate -m $m --tokens-in $work/ids -n 20 --compare --json 2>/dev/null |
        grep -q '\"identical\": true'"
done

say -m "$work/shift" --schedule static --steps 2 --json >"$work/two"
say -m "$work/shift" --schedule static --json >"$work/all"
forwards() { sed -n 's/.*"forwards": \([0-9]*\).*/\1/p' "$1"; }
check "fewer steps, fewer passes" test "$(forwards "$work/two")" -lt "$(forwards "$work/all")"
check "threshold 0 keeps all at once" sh -c "$BDLM generate -m $work/same --tokens-in $work/ids -n 11 --ignore-eos \
    --threshold 0 --json 2>/dev/null | grep -q '\"forwards\": 3,'"
say -m "$work/same" --trace --trace-html "$work/page.html" >"$work/text"
check "a trace shows masks" grep -q '░' "$work/err"
check "a trace in a file has no colours" sh -c "! grep -q \"\$(printf '\\033')\" $work/err"
check "statistics" grep -q 'tokens per forward' "$work/err"
check "the page" grep -q 'type="range"' "$work/page.html"
check "the page has the text" grep -q "$counted" "$work/page.html"
check "text with a trace" sh -c "[ \"\$(cat $work/text)\" = '$counted' ]"

check "a draft for blocks" refuses 2 "drafts are for causal models" "$BDLM" generate -m "$work/same" -md x -p x
check "an unknown schedule" refuses 1 "low_confidence, one" "$BDLM" generate -m "$work/same" --schedule x \
    --tokens-in "$work/ids"
check "a causal folder" refuses 2 "no block-diffusion model" "$BDLM" generate -m $models/teacher --steps 2 -p x
check "no tokenizer" refuses 1 "no tokenizer here" "$BDLM" generate -m "$work/same" -p x
echo "1 two" >"$work/bad"
check "no ids" refuses 1 "a token id wanted" "$BDLM" generate -m "$work/same" --tokens-in "$work/bad"
echo "97" >"$work/bad"
check "an id too large" refuses 1 "97" "$BDLM" generate -m "$work/same" --tokens-in "$work/bad"
finish
