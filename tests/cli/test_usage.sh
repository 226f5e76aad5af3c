#!/bin/sh
# Wrong usage is exit status 2 with how to get help; bad input is 1 with one line.
. tests/cli/lib.sh
empty=$work/empty; mkdir "$empty"

"$BDLM" >"$work/out" 2>"$work/err"
check "no command" test $? = 2
check "no command: the commands are listed" grep -q 'draft train' "$work/err"
check "unknown command" refuses 2 "unknown command" "$BDLM" fly
check "unknown verb" refuses 2 "unknown command draft" "$BDLM" draft
check "unknown option" refuses 2 "unknown option --speed" "$BDLM" generate --speed 3
check "help hint" refuses 2 "bdlm generate --help" "$BDLM" generate --speed 3
check "missing option" refuses 2 "--model FOLDER is required" "$BDLM" generate -p x
check "not a number" refuses 2 "--tokens: many is not a whole number" "$BDLM" generate -m x -p x -n many
check "out of range" refuses 2 "--tokens: 0 is outside" "$BDLM" generate -m x -p x -n 0
check "not a choice" refuses 2 "--dtype: f64 is not one of bf16|f32" "$BDLM" generate -m x -p x --dtype f64
check "unknown recipe key" refuses 2 "train.learning" "$BDLM" pretrain --set train.learning=1
check "recipe range" refuses 2 "train.lr" "$BDLM" pretrain --lr 99
check "help" sh -c "$BDLM generate --help | grep -q -- --compare"
check "help of recipes" sh -c "$BDLM pretrain --help | grep -q -- --warmup-ratio"
check "version" sh -c "$BDLM version | grep -q 'instruction set'"
check "version as json" sh -c "$BDLM version --json | grep -q '\"instruction_set\"'"
check "forced level" sh -c "BDLM_ISA=portable $BDLM version | grep -q 'instruction set: portable'"
check "unknown level" refuses 1 "BDLM_ISA" env BDLM_ISA=mmx "$BDLM" version

check "no folder" refuses 1 "$work/none" "$BDLM" generate -m "$work/none" -p x
check "empty folder" refuses 1 "$empty" "$BDLM" generate -m "$empty" -p x
check "no recipe" refuses 1 "$work/none.yaml: cannot open" "$BDLM" pretrain --recipe "$work/none.yaml"
check "no text" refuses 1 "$work/none.txt" "$BDLM" tokenizer train "$work/none.txt" --out "$work/t"
check "nothing written" test ! -e "$work/t"
printf 'caf\351 au lait\n' >"$work/latin.txt"
check "not UTF-8" refuses 1 "$work/latin.txt" "$BDLM" tokenizer train "$work/latin.txt" --out "$work/t"
check "still nothing written" test ! -e "$work/t"
check "no case" refuses 1 "$work/none.json" "$BDLM" probe "$work/none.json" --out "$work/o.safetensors"
printf '{"a": 1}' >"$work/odd.json"
check "not a case" refuses 1 "not a golden case" "$BDLM" probe "$work/odd.json" --out "$work/o.safetensors"
check "no answer written" test ! -e "$work/o.safetensors"
finish
