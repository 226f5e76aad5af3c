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
: >"$work/empty"
check "no text" refuses 1 "a text of 0 tokens" "$BDLM" eval -m "$work/same" --tokens-in "$work/empty"
finish
