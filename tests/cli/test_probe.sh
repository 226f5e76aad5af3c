#!/bin/sh
# The probe agrees with every golden case, also on copies that hold the inputs alone.
. tests/cli/lib.sh
golden=tests/golden

check "all cases" sh -c "$BDLM probe --all $golden >$work/all 2>$work/failures || { cat $work/failures; exit 1; }"
sed -n 's/^\(.*[^ ]\)  *\([0-9]*\) skipped: /skipped: golden \1 (\2 cases): /p' "$work/all"

one() { # one CASE: run a single case, name its outputs
    "$BDLM" probe "$1" --out "$work/o.safetensors" && test -s "$work/o.safetensors" && test -s "$work/o.json"
}
check "one case" one $golden/draft/dflash-ce-decay.json
check "scalars beside it" grep -q '"loss": 3.5\|"loss"' "$work/o.json"
check "one table" one $golden/block-diffusion/tables/corruption.json
check "--out must be .safetensors" refuses 2 "--out" "$BDLM" probe $golden/draft/tables.json --out "$work/o.txt"

# An answer must come from inputs alone: take everything expected out of a table and compare.
sed 's/, "rows": \[[^]]*\]//' $golden/block-diffusion/tables/visibility.json >"$work/visibility.json"
check "inputs alone" sh -c "$BDLM probe $work/visibility.json --out $work/a.safetensors &&
    $BDLM probe $golden/block-diffusion/tables/visibility.json --out $work/b.safetensors &&
    cmp $work/a.json $work/b.json"

# The project's copy of the cases is still what it was copied from, where that is at hand.
if [ -d ../shared/golden ]; then
    check "copy equals the original" diff -r -q -x compare.py $golden ../shared/golden
else
    echo "skipped: ../shared/golden is not here to compare the copy with"
fi
finish
