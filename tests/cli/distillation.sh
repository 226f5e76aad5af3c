# A small causal teacher and a block-diffusion student of it in $work: for tests of `bdlm distill`.
# Source it behind lib.sh; `distill RUN OPTIONS...` trains (replace=exec: in place of the shell), `quiet COMMAND...` shows errors only.
quiet() { "$@" >"$work/out" 2>"$work/err" || { cat "$work/err"; return 1; }; }
$BDLM data exercises -n 80 -s 1 >"$work/train.jsonl"
$BDLM data exercises -n 80 --text >"$work/text.txt"
quiet "$BDLM" tokenizer train "$work/text.txt" --out "$work/tokenizer" --vocab-size 290
quiet "$BDLM" pretrain --train-files "$work/text.txt" --documents entries --tokenizer "$work/tokenizer" \
    --out "$work/teacher" --hidden-size 32 --num-hidden-layers 2 --num-attention-heads 2 \
    --num-key-value-heads 1 --intermediate-size 48 --sequence-length 48 --batch-size 4 --max-steps 20 --lr 5e-3
quiet "$BDLM" sft --path "$work/teacher/latest" --train-files "$work/train.jsonl" --kind block_diffusion \
    --block-size 4 --logit-alignment shifted --canvas-policy seed_and_mask --out "$work/student" \
    --sequence-length 48 --batch-size 4 --max-steps 20 --lr 5e-3
distill() {
    run=$1
    shift
    ${replace:-} "$BDLM" distill --recipe recipes/opd.yaml --path "$work/student/latest" --teacher "$work/teacher/latest" \
        --train-files "$work/train.jsonl" --sequence-length 48 --batch-size 4 --lr 1e-3 --out "$run" "$@"
}
