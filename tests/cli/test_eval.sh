#!/bin/sh
# bdlm eval: text under causal and block-diffusion models, from token ids.
. tests/cli/lib.sh
models=tests/golden/block-diffusion/models
mkdir "$work/same" && cp "$models/student_same"/* "$work/same" && chmod u+w "$work/same"/* &&
    sed -i '0,/{/s//{"block_diffusion": {"block_size": 4, "mask_token_id": 96, "logit_alignment": "same_position", "canvas_policy": "all_masked"},/' \
        "$work/same/config.json"
echo "20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35" >"$work/ids"
field() { sed -n 's/.*"'"$1"'": \([-0-9.e]*\).*/\1/p' "$2" | tail -1; }
near() { awk "BEGIN { d = ($1) - ($2); exit !(d < $3 && -d < $3) }"; }

"$BDLM" eval -m $models/teacher --tokens-in "$work/ids" --dtype f32 --json >"$work/causal" 2>"$work/err"
check "causal: 15 of 16 tokens have a predecessor" test "$(field tokens "$work/causal")" = 15
check "causal: perplexity is exp of the mean" near "$(field perplexity "$work/causal")" \
    "exp($(field nats_per_token "$work/causal"))" 1e-3

"$BDLM" eval -m "$work/same" --tokens-in "$work/ids" --dtype f32 --exact --json >"$work/exact" 2>"$work/err"
"$BDLM" eval -m "$work/same" --tokens-in "$work/ids" --dtype f32 --rounds 200 --json >"$work/some" 2>"$work/err"
bound() { awk -F'[:,]' '/"perplexity"/ { print log($2) }' "$1"; }
check "blocks: the exact bound has no margin" near "$(field nats_per_token_margin "$work/exact")" 0 1e-12
check "blocks: the estimate meets the exact bound" near "$(bound "$work/exact")" "$(bound "$work/some")" \
    "2 * $(field nats_per_token_margin "$work/some") + 1e-6"
check "blocks: a level per share" test "$(grep -c '"masked"' "$work/exact")" = 5
# Answers: what a model says is taken as what was wanted, then changed in known places. $work/teacher is
# causal, $work/student in blocks; both count word for word, and as beginnings.
. tests/cli/distillation.sh
head -5 "$work/train.jsonl" >"$work/questions.jsonl"
said() { # said MODEL OPTIONS...: the questions with the model's own words as their answers
    model=$1; shift
    "$BDLM" eval -m "$model" --answers "$work/questions.jsonl" -n 6 --dtype f32 "$@" -v 2>&1 >/dev/null |
        sed -n 's/^  got: *//p' >"$work/words"
    paste -d '\n' "$work/questions.jsonl" "$work/words" | awk 'NR % 2 { q = $0; sub(/, "completion": .*/, "", q); next }
        { gsub(/\\/, "\\\\"); gsub(/"/, "\\\""); print q ", \"completion\": \"" $0 "\"}" }' >"$work/answers.jsonl"
}
for setting in teacher student "student --chat"; do
    set -- $setting
    kind=$1 chat=${2:-}
    said "$work/$kind/latest" $chat
    "$BDLM" eval -m "$work/$kind/latest" --answers "$work/answers.jsonl" -n 6 --dtype f32 $chat --json >"$work/all" 2>"$work/err"
    check "$kind $chat: its own words are all exact" test "$(field exact "$work/all")/$(field records "$work/all")" = 5/5
    sed '2s/"completion": "/&zz /; 4s/"completion": "/&zz /' "$work/answers.jsonl" >"$work/changed.jsonl"
    "$BDLM" eval -m "$work/$kind/latest" --answers "$work/changed.jsonl" -n 6 --dtype f32 $chat --json >"$work/some" 2>"$work/err"
    check "$kind $chat: two changed ones are not" test "$(field exact "$work/some")" = 3
done
# The beginning of what is said counts as a beginning only.
said "$work/teacher/latest"
sed 's/\("completion": ".\).*"}/\1"}/' "$work/answers.jsonl" >"$work/short.jsonl"
"$BDLM" eval -m "$work/teacher/latest" --answers "$work/short.jsonl" -n 6 --dtype f32 --json >"$work/some" 2>"$work/err"
check "beginnings" test "$(field begins "$work/some")" = 5
check "a question without an answer" refuses 1 "no answer at the end" sh -c "echo '{\"text\": \"a\"}' >$work/text.jsonl; \
    $BDLM eval -m $work/teacher/latest --answers $work/text.jsonl"
: >"$work/none.jsonl"
check "no questions" refuses 1 "no records" "$BDLM" eval -m "$work/teacher/latest" --answers "$work/none.jsonl"

: >"$work/empty"
check "no text" refuses 1 "a text of 0 tokens" "$BDLM" eval -m "$work/same" --tokens-in "$work/empty"
finish
