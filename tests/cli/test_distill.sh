#!/bin/sh
# `bdlm distill` as typed: both sources, what it tells, what it refuses, killed runs.
. tests/cli/lib.sh
. tests/cli/distillation.sh
. tests/cli/kill_and_resume.sh

check "on the student's own answers" quiet distill "$work/own" --max-steps 6
for field in tokens_per_forward forced_fraction stop_rate unsafe_rows soft_loss hard_loss rollout_seconds teacher_seconds; do
    check "metrics have $field" grep -q "\"$field\"" "$work/own/metrics.jsonl"
done
check "on the answers in the data" quiet distill "$work/given" --data-source dataset --max-steps 6
check "a checkpoint is a model" quiet "$BDLM" inspect "$work/own/latest"
check "and says its contract" sh -c "$BDLM inspect $work/own | grep -q opd_loss"
check "the difference of two runs" sh -c "$BDLM inspect $work/own $work/given 2>&1 | grep -q 'data_source\\|opd'"

check "another temperature is refused" refuses 1 "distill_temperature" distill "$work/own" --resume --max-steps 6 --set distill.temperature=2
check "data's answers do not go on from own ones" refuses 1 "cannot resume" distill "$work/own" --resume --max-steps 6 \
    --data-source dataset
check "own answers do not go on from the data's" refuses 1 "cannot resume" distill "$work/given" --resume --max-steps 6
check "a teacher is needed" refuses 1 "distill.teacher" "$BDLM" distill --recipe recipes/opd.yaml --path "$work/student/latest" \
    --train-files "$work/train.jsonl" --out "$work/no"
check "nothing to resume" refuses 1 "no such run" distill "$work/none" --resume --max-steps 6

# Answers in the data may be learnt along a path, and held-out ones looked at; own answers may not.
$BDLM data exercises -n 20 -s 2 >"$work/eval.jsonl"
path="--set distill.alpha_schedule=linear --set distill.alpha_end=0.1 --set distill.temperature_schedule=cosine --set distill.temperature_end=3"
check "loss weights along a path" quiet distill "$work/path" --data-source dataset --max-steps 6 $path \
    --eval-files "$work/eval.jsonl" --eval-every 3
number() { sed -n "\$s/.*\"$1\":\([-0-9.e]*\).*/\1/p" "$work/path/metrics.jsonl"; }
check "the last step has the last weights" awk -v l="$(number loss)" -v s="$(number soft_loss)" -v h="$(number hard_loss)" \
    'BEGIN { d = l - (0.1 * s + 0.9 * h); exit !(d < 1e-6 && d > -1e-6) }'
check "held-out loss" grep -q '"eval_loss"' "$work/path/metrics.jsonl"
check "the path is part of the contract" refuses 1 "alpha_end" distill "$work/path" --resume --data-source dataset \
    --max-steps 6 $path --eval-files "$work/eval.jsonl" --eval-every 3 --set distill.alpha_end=0.2
check "the teacher's likeliest tokens" quiet distill "$work/top" --max-steps 3 --set distill.opd_teacher_topk=8

# T-50: what does not go together is refused by name before anything is trained (I.2).
rejected() { status=$1; name=$2; shift 2; check "refused: $name" refuses $status "$name" distill "$work/no" --max-steps 2 "$@"; }
rejected 2 objective.block_size --set objective.block_size=0
rejected 1 objective.mask_id --set objective.mask_id=999
rejected 1 "logit_alignment shifted does not go with canvas_policy all_masked" \
    --set objective.logit_alignment=shifted --set objective.canvas_policy=all_masked
rejected 1 data.packing --set data.packing=true
rejected 2 objective.min_noise --set objective.min_noise=0
rejected 2 objective.min_noise --set objective.min_noise=1.5
rejected 1 objective.kind --set objective.kind=causal_lm
rejected 1 data.completion_only --set data.completion_only=false
rejected 1 "distill.teacher: a block-diffusion model" --teacher "$work/student/latest"
rejected 2 distill.beta --set distill.beta=0.5
rejected 2 distill.alpha --set distill.alpha=1.5
rejected 2 distill.alpha --set distill.alpha=nan
rejected 2 distill.temperature --set distill.temperature=0
rejected 1 distill.alpha_end --set distill.alpha_end=0.1
rejected 1 distill.alpha_schedule --set distill.alpha_schedule=linear
rejected 1 distill.temperature_schedule --set distill.temperature_schedule=cosine
rejected 2 rollout.temperature --set rollout.temperature=0
rejected 2 rollout.threshold --set rollout.threshold=nan
rejected 1 train.eval_every --set train.eval_every=2
rejected 1 data.eval_files --eval-files "$work/eval.jsonl"
rejected 2 train.max_steps --set train.max_steps=0
rejected 1 max_steps --set rollout.max_denoise_steps=2
rejected 1 "names 3 twice" --set rollout.stop_token_ids=3,3
rejected 1 "stop_token_ids[0] is 99999" --set rollout.stop_token_ids=99999
rejected 1 "is the mask token" --set rollout.stop_token_ids=289
rejected 1 opd_teacher_topk --set distill.opd_loss=reverse_kl --set distill.opd_teacher_topk=4

# Killed at random moments, also before the first checkpoint, and resumed: the same weights.
steps="--max-steps 1500 --save-every 100"
quiet distill "$work/whole" $steps
kill_and_resume "$work/parts" 3 7 $steps
check "killed and resumed: the same weights" cmp "$work/whole/latest/model.safetensors" "$work/parts/latest/model.safetensors"
# A run that was killed before its first checkpoint only begins again as what it was.
mkdir "$work/early"
cp "$work/whole/run.json" "$work/early/"
check "another recipe does not begin again" refuses 1 "learning_rate" distill "$work/early" --resume $steps --lr 2e-3
check "the same does" quiet distill "$work/early" --resume $steps
check "to the same weights" cmp "$work/whole/latest/model.safetensors" "$work/early/latest/model.safetensors"
finish
