#!/bin/sh
# The doctor names what is wrong with a draft, for every fault that is planted, and only then.
. tests/cli/lib.sh
edit() { perl tests/cli/edit_tensors.pl "$@"; }
quiet() { "$@" >"$work/out" 2>"$work/err" || { cat "$work/err"; return 1; }; }
perl -e 'my @n = qw(red blue green black white grey brown pink); my @a = qw(fox owl cat dog hen bee); my $x = 1;
    sub draw { $x = ($x * 1103515245 + 12345) % 2147483648; return int($x / 65536) % $_[0]; }
    for (1 .. 1500) { my ($i, $j, $k) = (draw(8), draw(6), draw(9));
    print "the $n[$i] $a[$j] counts: ", join(" ", map { ($k + $_ * ($j + 1)) % 10 } 0 .. 9),
    " and then the $n[($i + 3) % 8] $a[($j + 2) % 6] sleeps.\n"; }' >"$work/text.txt"
target=$work/base/latest
check "tokenizer" quiet "$BDLM" tokenizer train "$work/text.txt" --out "$work/tokenizer" --vocab-size 300
# Large first weights: layers that are far from each other, as those of a large model are.
check "target" quiet "$BDLM" pretrain --train-files "$work/text.txt" --tokenizer "$work/tokenizer" --out "$work/base" \
    --hidden-size 64 --num-hidden-layers 4 --num-attention-heads 4 --num-key-value-heads 2 --intermediate-size 128 \
    --initializer-range 0.1 --tie-word-embeddings false --sequence-length 64 --batch-size 8 --max-steps 300 --lr 5e-3
check "a final norm that is far from 1" edit "$target" rescale-norm
draft() { # NAME TAPS OPTION...
    kind=$1 taps=$2; shift 2
    check "draft $kind" quiet "$BDLM" draft train --path "$target" --out "$work/run-$kind" --num-hidden-layers 2 \
        --num-attention-heads 4 --num-key-value-heads 2 --head-dim 16 --intermediate-size 128 --block-size 6 --num-anchors 16 \
        --batch-size 8 --sequence-length 66 --lr 5e-3 --max-steps 300 --target-layer-ids "$taps" "$@"
    cp -rL "$work/run-$kind/latest" "$work/$kind"
}
draft good "[1,2]" --train-files "$work/text.txt"
doctor() { "$BDLM" draft doctor --target "$1" --draft "$2" --text "$work/text.txt" --rows 48 --length 96 --json "$work/doctor.json"; }
# well NAME TARGET DRAFT
well() {
    doctor "$2" "$3" >"$work/out" 2>"$work/err"
    status=$?
    [ $status = 0 ] && grep -q '^all is well' "$work/out" || { echo "exit status $status"; cat "$work/out" "$work/err"; return 1; }
}
# names TARGET DRAFT "PART: WORDS" FIX: exit status 1, this fault first, no other one
names() {
    doctor "$1" "$2" >"$work/out" 2>"$work/err"
    status=$?
    [ $status = 1 ] && [ "$(grep -c '^fault: ' "$work/out")" = 1 ] && grep -qF -- "fault: $3" "$work/out" &&
        grep -qF -- "  fix: $4" "$work/out" || { echo "exit status $status"; cat "$work/out" "$work/err"; return 1; }
}
check "a good pair" well good "$target" "$work/good"
check "its findings as JSON" grep -q '"well": true' "$work/doctor.json"
check "blocks see nothing they must not" grep -q '^leak  *0 of [1-9][0-9]* values' "$work/out"
check "openings of its own" sh -c "$BDLM draft doctor --target $target --draft $work/good --length 64 >$work/out 2>$work/err
    grep -q '^all is well' $work/out"
check "text as it is" sh -c "$BDLM draft doctor --target $target --draft $work/good --text $work/text.txt --given >$work/out 2>$work/err
    grep -q '^all is well' $work/out"

# --- config.json
plant() { # NAME FROM TO
    cp -r "$work/good" "$work/$1"
    perl -0pi -e "s/$2/$3/" "$work/$1/config.json"
    cmp -s "$work/good/config.json" "$work/$1/config.json" && echo "nothing planted: $1"
}
plant layout '"shift_label": false' '"shift_label": true'
check "the layout of a block" names "$target" "$work/layout" "layout: slot 0 is the anchor: " 'config.json: set "shift_label" ("sample_from_anchor") to false'
check "the fault as JSON" grep -q '"fix": "config.json: set \\"shift_label' "$work/doctor.json"
check "others refuse it" refuses 1 '"shift_label" is true' "$BDLM" generate -m "$target" -md "$work/layout" -p the
plant early '"target_layer_ids": \[\s*1,\s*2' '"target_layer_ids": [0, 1'
check "layers one too low" names "$target" "$work/early" "taps: target layers [1, 2]: " 'config.json: set "target_layer_ids" to [1, 2]'
plant late '"target_layer_ids": \[\s*1,\s*2' '"target_layer_ids": [2, 3'
check "layers one too high" names "$target" "$work/late" "taps: target layers [1, 2]: " 'config.json: set "target_layer_ids" to [1, 2]'
plant rope '"rope_theta": 10000.0' '"rope_theta": 500000.0'
check "the rotary base" names "$target" "$work/rope" "rope: rotary base 10000, the target's: " 'config.json: set "rope_theta" to 10000 (found 500000)'
mask=$(sed -n 's/.*"mask_token_id": \([0-9]*\).*/\1/p' "$work/good/config.json")
plant token "\"mask_token_id\": $mask" '"mask_token_id": 7'
check "another mask token" names "$target" "$work/token" "mask: mask token $mask: " "config.json: set \"mask_token_id\" to $mask"
plant words '"vocab_size": 320' '"vocab_size": 300'
check "the vocabulary" names "$target" "$work/words" "vocab: 300 tokens, the target has 320" 'config.json: set "vocab_size" to 320'
plant window '"causal": false' '"causal": false, "use_swa": true, "swa_window_size": 6'
check "a window it was not trained with" names "$target" "$work/window" "window: no window: " 'config.json: "use_swa" false'
plant both '"rope_theta": 10000.0' '"rope_theta": 500000.0'
perl -0pi -e 's/"target_layer_ids": \[\s*1,\s*2/"target_layer_ids": [0, 1/' "$work/both/config.json"
doctor "$target" "$work/both" >"$work/out" 2>"$work/err"
check "two faults: the base" grep -q '^fault: rope' "$work/out"
check "two faults: the layers" grep -q '^fault: taps: target layers \[1, 2\]' "$work/out"

# --- tensors
cp -r "$work/good" "$work/head"
edit "$work/head" copy "$target" model.embed_tokens.weight lm_head.weight
check "a head that is not the target's" names "$target" "$work/head" 'head: "lm_head.weight" is not the target' 'remove "lm_head.weight"'
cp -r "$work/good" "$work/same-head"
edit "$work/same-head" copy "$target" lm_head.weight lm_head.weight
check "a copy of the target's" well copy "$target" "$work/same-head"
cp -rL "$target" "$work/zero"
edit "$work/zero" zero-row model.embed_tokens.weight "$mask"
check "a mask row of zeros" names "$work/zero" "$work/good" "mask: row $mask has 0.000" "row $mask of the target's embedding is next to zero"

# --- where the final norm is. A last layer that adds nothing: the same target, but the layer below it is no longer
# the last, whose states are served after the norm.
draft last "[0,3]" --train-files "$work/text.txt"
cp -rL "$target" "$work/longer"
edit "$work/longer" identity-layer 4
check "a draft that taps the last layer" well last "$target" "$work/last"
cp -r "$work/last" "$work/from-one"
perl -0pi -e 's/"target_layer_ids": \[\s*0,\s*3/"target_layer_ids": [1, 4/' "$work/from-one/config.json"
check "layers counted from 1" names "$target" "$work/from-one" "taps: layer 4 of a target with layers 0 to 3" \
    'config.json: lower "target_layer_ids" by one; examined with [0, 3]'
check "states before the norm, learned after it" names "$work/longer" "$work/last" "norm: layer 3 after the final norm: " \
    "the draft learned layer 3 after the target's final norm"
cache="--num-hidden-layers 2 --sequence-length 66 --target-layer-ids [1,2]"
check "a cache before the norm" quiet "$BDLM" draft cache --path "$target" --train-files "$work/text.txt" $cache --states-prenorm --out "$work/cache"
perl -pi -e 's/"prenorm": true/"prenorm": false/' "$work/cache/cache.json"
draft taught "[1,2]" --cache "$work/cache"
check "a teacher before the norm" names "$target" "$work/taught" "norm: taught by un-normed final states: " "its teacher's states were pre-norm"

# --- a variant whose first slot predicts
draft dspark "[1,2]" --train-files "$work/text.txt" --projector-type dspark --markov-rank 8
check "a good DSpark pair" well dspark "$target" "$work/dspark"
sed -i 's/"shift_label": true/"shift_label": false/' "$work/dspark/config.json"
check "the layout of its blocks" names "$target" "$work/dspark" "layout: slot 0 already predicts: " 'config.json: set "shift_label"'

# --- nothing to find
draft new "[1,2]" --train-files "$work/text.txt" --max-steps 1
check "an untrained draft" names "$target" "$work/new" "draft: next to nothing is accepted" "not trained, or for another target"
check "too little text" refuses 1 "at least 64 wanted" "$BDLM" draft doctor --target "$target" --draft "$work/good" --rows 2 --length 32
check "--given without text" refuses 2 "--given" "$BDLM" draft doctor --target "$target" --draft "$work/good" --given
check "no draft" refuses 2 "--draft FOLDER is required" "$BDLM" draft doctor --target "$target"
check "no such draft" refuses 1 "$work/none/config.json" "$BDLM" draft doctor --target "$target" --draft "$work/none"
finish
