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
