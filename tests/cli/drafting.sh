# drafting.sh - a small text, tokenizer and target for tests of drafter training; source after lib.sh.
# $target, $corpus; $small: sizes and budget of a draft; variant NAME prints what NAME needs beside them. Set
# $target_steps before for a target that writes sensible text (30).
i=0
while [ $i -lt 400 ]; do
    echo "entry $i: the block of $((i % 7)) tokens follows the block of $((i % 5)) tokens, and so on."
    i=$((i + 1))
done >"$work/text.txt"
corpus=$work/text.txt
target=$work/target/latest
quiet() { "$@" >"$work/out" 2>"$work/err" || { cat "$work/err"; return 1; }; }
check "tokenizer" quiet "$BDLM" tokenizer train "$corpus" --out "$work/tokenizer" --vocab-size 320
check "target" quiet "$BDLM" pretrain --train-files "$corpus" --tokenizer "$work/tokenizer" --out "$work/target" \
    --hidden-size 32 --num-hidden-layers 4 --num-attention-heads 2 --num-key-value-heads 1 --intermediate-size 48 \
    --sequence-length 32 --batch-size 4 --max-steps ${target_steps:-30} --lr 5e-3
small="--num-hidden-layers 2 --num-attention-heads 2 --num-key-value-heads 1 --head-dim 16 --intermediate-size 32
    --block-size 4 --num-anchors 8 --batch-size 4 --lr 5e-3"
variant() {
    printf '%s' "--projector-type $1 "
    case $1 in
    dspark) printf '%s' "--markov-rank 8 --use-confidence-head --confidence-head-alpha 1" ;;
    domino) printf '%s' "--emb-dim 8 --gru-hidden-dim 8" ;;
    dflash2) printf '%s' "--conv-kernel-size 2 --conv-group-size 4 --selector-rank 8 --selector-top-k 4" ;;
    lilicorr) printf '%s' "--lilicorr-candidate-topk 4 --lilicorr-num-layers 1 --lilicorr-num-heads 2 --lilicorr-mlp-ratio 2
        --lilicorr-factor-dim 8 --lilicorr-vector-eps 1e-3 --lilicorr-logit-scale 10 --lilicorr-w-ce 1
        --lilicorr-w-margin 0.1 --lilicorr-w-pen 0.1 --lilicorr-margin 0.5" ;;
    esac
}
draft_train() { quiet "$BDLM" draft train --path "$target" $small "$@"; }
same_weights() { cmp "$1/latest/model.safetensors" "$2/latest/model.safetensors"; }
