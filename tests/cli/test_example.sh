# The example program brings its own rollout, alignment, teacher and identity, sees public headers
# only, and gets the losses of the golden cases.
. tests/cli/lib.sh
example=$(dirname "$BDLM")/examples/own_model
cases=tests/golden/block-diffusion/cases/distill

check "only public headers" sh -c "! grep '#include \"' examples/own_model.c"
for case in "$cases"/*.json; do
    check "$(basename "$case" .json)" "$example" "${case%.json}.safetensors" "$case"
done >"$work/log"
cat "$work/log"

# A case that says something else is noticed.
sed 's/"loss": [0-9.]*/"loss": 99/' "$cases/forward.json" >"$work/other.json"
check "a wrong loss fails" sh -c "! $example $cases/forward.safetensors $work/other.json"
# Weights are checked before anything is computed: an infinite one is refused by name.
offset=$(($(od -An -t u8 -N 8 "$cases/forward.safetensors") + 8 + $(grep -ao '"weights":{[^}]*' "$cases/forward.safetensors" | sed 's/.*offsets":\[\([0-9]*\).*/\1/')))
cp "$cases/forward.safetensors" "$work/bad.safetensors"
printf '\000\000\200\177' | dd of="$work/bad.safetensors" bs=1 seek="$offset" conv=notrunc 2>/dev/null
check "an infinite weight is refused" sh -c "! $example $work/bad.safetensors $cases/forward.json 2>$work/err && grep -q 'weight' $work/err"
finish
