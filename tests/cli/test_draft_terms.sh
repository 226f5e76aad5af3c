#!/bin/sh
# Options of drafts that only some runs have: the attention sink, LiLiCorr's calibration and the start of its
# convolutions. What is refused at the start is refused at a resume too.
. tests/cli/lib.sh
. tests/cli/drafting.sh
data="--train-files $corpus --tokenizer $work/tokenizer --sequence-length 32"
lattice="$(variant lilicorr) --conv-kernel-size 2 --conv-group-size 4"

check "sink" draft_train $data --max-steps 4 --attention-sink true --out "$work/sink"
check "its tensors are written" sh -c "'$BDLM' inspect --tensors '$work/sink/latest' | grep -q attention_sink_bias"
check "a resume without it is refused" refuses 1 "attention_sink_bias" \
    "$BDLM" draft train --path "$target" $small $data --max-steps 6 --out "$work/sink" --resume
printf "draft:\n  use_flex_attention: true\n" >"$work/flex.yaml"
check "flex attention at a resume" refuses 1 "block-sparse kernel" \
    "$BDLM" draft train --recipe "$work/flex.yaml" --path "$target" $small $data --max-steps 6 --attention-sink true \
    --out "$work/sink" --resume

check "calibration" draft_train $data $lattice --max-steps 4 --lilicorr-w-cal 0.5 --conv-projection-init-std 0.02 \
    --out "$work/lattice"
check "it is logged" grep -q lilicorr_calibration "$work/lattice/metrics.jsonl"
check "another weight at a resume" refuses 1 "lilicorr_w_cal" \
    "$BDLM" draft train --path "$target" $small $data $lattice --max-steps 6 --lilicorr-w-cal 0.25 \
    --conv-projection-init-std 0.02 --out "$work/lattice" --resume
check "a start without convolutions" refuses 1 "conv_projection_init_std without" \
    "$BDLM" draft train --path "$target" $small $data $(variant lilicorr) --max-steps 4 \
    --conv-projection-init-std 0.02 --out "$work/none"
finish
