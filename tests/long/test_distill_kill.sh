#!/bin/sh
# Killed with -9 at 20 random moments, a checkpoint after every step so that many fall into the writing
# of one, resumed each time: the weights of an uninterrupted run.
. tests/cli/lib.sh
. tests/cli/distillation.sh
. tests/cli/kill_and_resume.sh
steps="--max-steps 1500 --save-every 1"
quiet distill "$work/whole" $steps
kill_and_resume "$work/parts" 20 11 $steps
check "20 kills: the same weights" cmp "$work/whole/latest/model.safetensors" "$work/parts/latest/model.safetensors"
finish
