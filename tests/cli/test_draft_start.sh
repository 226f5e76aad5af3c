#!/bin/sh
# A draft that starts from another one's weights, and tensors that are not trained.
. tests/cli/lib.sh
. tests/cli/drafting.sh
check "cache" quiet "$BDLM" draft cache --path "$target" --train-files "$corpus" --sequence-length 32 --num-hidden-layers 2 \
    --out "$work/cache"
train() { out=$1; shift; draft_train --cache "$work/cache" --out "$work/$out" "$@"; }
first=$work/first/latest
check "a first draft" train first --max-steps 8
check "started from it" train same --max-steps 1 --lr 0 --init-checkpoint "$first"
check "it is told" grep -q "starts from $first, 25 tensors" "$work/err"
check "its weights" cmp "$first/model.safetensors" "$work/same/latest/model.safetensors"
check "from a file" train file --max-steps 1 --lr 0 --init-checkpoint "$first/model.safetensors"
check "the same" cmp "$first/model.safetensors" "$work/file/latest/model.safetensors"

# Half of the run, then the rest: frozen and warm weights come from the checkpoint, not from the start again.
some="--max-steps 8 --save-every 4 --freeze fc,layers.0"
check "some tensors frozen" train frozen $some --init-checkpoint "$first"
check "how many" grep -q '12 of 25 tensors are frozen' "$work/err"
cp -r "$work/first" "$work/gone"
check "half way" train half $some --init-checkpoint "$work/gone/latest"
rm -r "$work/half/checkpoint-8"; ln -sfn checkpoint-4 "$work/half/latest"
rm -r "$work/gone"
check "goes on, its start gone" train half $some --init-checkpoint "$work/gone/latest" --resume
check "the same weights" same_weights "$work/frozen" "$work/half"
check "another freeze does not resume" refuses 1 "trained_tensors" "$BDLM" draft train --path "$target" $small --cache \
    "$work/cache" --out "$work/frozen" --resume --max-steps 8 --freeze fc --init-checkpoint "$first"

no="$BDLM draft train --path $target $small --cache $work/cache --out $work/no --max-steps 2"
check "no such draft" refuses 1 "no draft weights at $work/none" $no --init-checkpoint "$work/none"
check "other sizes" refuses 1 "of another shape or type (layers.0.mlp.gate_proj.weight" $no --init-checkpoint "$first" \
    --intermediate-size 40
check "tensors too few" refuses 1 "2 missing (markov_w1.weight, markov_w2.weight)" $no --init-checkpoint "$first" \
    --projector-type dspark --markov-rank 4
check "frozen tensors that are none" refuses 1 'begins with "layer.0"' $no --freeze layer.0
check "all frozen" refuses 1 "one to train expected" $no --freeze fc,hidden_norm,layers,norm
printf '%s\n' '{"prompt": "a", "completion": "b"}' >"$work/talk.jsonl"
check "conversations are no text" refuses 1 "conversations (.jsonl), text wanted" $BDLM draft cache --path $target --num-hidden-layers 1 --num-attention-heads 2 \
    --num-key-value-heads 1 --head-dim 16 --intermediate-size 32 --train-files "$work/talk.jsonl" --out "$work/none"
finish
