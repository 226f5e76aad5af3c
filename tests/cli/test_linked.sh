#!/bin/sh
# Training has the same bytes with and without on-policy distillation linked in: pretraining and fine-tuning
# beside a program that has no src/distill at all, distillation from a data set beside one that cannot roll out.
. tests/cli/lib.sh
. tests/cli/distillation.sh
whole=$BDLM
same() { cmp "$work/$1/latest/model.safetensors" "$work/$2/latest/model.safetensors"; }

train() { # NAME PROGRAM: what every program can do
    "$2" pretrain --train-files "$work/text.txt" --documents entries --tokenizer "$work/tokenizer" --out "$work/$1-text" \
        --hidden-size 32 --num-hidden-layers 2 --num-attention-heads 2 --num-key-value-heads 1 \
        --intermediate-size 48 --sequence-length 48 --batch-size 4 --max-steps 8 --lr 5e-3 &&
        "$2" sft --path "$work/$1-text/latest" --train-files "$work/train.jsonl" --kind block_diffusion --block-size 4 \
            --out "$work/$1-blocks" --sequence-length 48 --batch-size 4 --max-steps 8 --lr 5e-3
}
check "with everything" quiet train with "$whole"
check "without distillation" quiet train without "$whole-without-distill"
check "pretraining is the same" same with-text without-text
check "fine-tuning is the same" same with-blocks without-blocks
replace=
check "it has no distillation" refuses 1 "not linked in" "$whole-without-distill" distill

check "from a data set, with rollouts" quiet distill "$work/data-with" --max-steps 6 --data-source dataset
BDLM=$whole-without-rollout
check "from a data set, without" quiet distill "$work/data-without" --max-steps 6 --data-source dataset
check "distillation from a data set is the same" same data-with data-without
check "it cannot roll out" refuses 1 "rollouts are not linked in" distill "$work/own" --max-steps 6 --data-source student_rollout
finish
